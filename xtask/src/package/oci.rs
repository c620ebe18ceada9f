//! An OCI image layout, written without a container engine: blobs by their digest, one manifest for each architecture,
//! and an index over them. The same input gives the same digests.

use std::{
    fs,
    io::{self, Write as _},
    path::Path,
};

use flate2::{Compression, GzBuilder};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::tar;

pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// Nobody in particular, and not root. Kubernetes' own images use the same number.
pub const USER: &str = "65532:65532";

/// The image of one architecture: its files, and what it starts.
pub struct Image<'a> {
    pub architecture: &'a str,
    pub entries: Vec<tar::Entry<'a>>,
    pub entrypoint: &'a [&'a str],
}

/// Writes a layout with all images under one name; returns the digest of their index, by which they are pulled.
pub fn write(images: &[Image<'_>], name: &str, labels: &Value, directory: &Path) -> io::Result<String> {
    let blobs = directory.join("blobs/sha256");
    fs::create_dir_all(&blobs)?;
    let mut manifests = Vec::new();
    for image in images {
        let archive = tar::archive(&image.entries);
        let layer = compress(&archive)?;
        let config = json!({
            "architecture": image.architecture,
            "os": "linux",
            "config": {
                "User": USER,
                "Entrypoint": image.entrypoint,
                "WorkingDir": "/",
                "Labels": labels,
            },
            "rootfs": {"type": "layers", "diff_ids": [digest(&archive)]},
            "history": [{"created_by": "slipway", "comment": "from scratch"}],
        });
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": blob(&blobs, CONFIG, config.to_string().as_bytes())?,
            "layers": [blob(&blobs, LAYER, &layer)?],
            "annotations": labels,
        });
        let mut descriptor = blob(&blobs, MANIFEST, manifest.to_string().as_bytes())?;
        descriptor["platform"] = json!({"architecture": image.architecture, "os": "linux"});
        manifests.push(descriptor);
    }
    let index = json!({
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": manifests,
        "annotations": labels,
    });
    let mut descriptor = blob(&blobs, INDEX, index.to_string().as_bytes())?;
    let digest = descriptor["digest"].as_str().unwrap_or_default().to_owned();
    descriptor["annotations"] = json!({"org.opencontainers.image.ref.name": name});
    let entry = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [descriptor]});
    fs::write(directory.join("index.json"), entry.to_string())?;
    fs::write(
        directory.join("oci-layout"),
        json!({"imageLayoutVersion": "1.0.0"}).to_string(),
    )?;
    Ok(digest)
}

/// Writes a blob where its digest says, and describes it.
fn blob(blobs: &Path, media_type: &str, content: &[u8]) -> io::Result<Value> {
    let digest = digest(content);
    fs::write(blobs.join(digest.trim_start_matches("sha256:")), content)?;
    Ok(json!({"mediaType": media_type, "digest": digest, "size": content.len()}))
}

pub fn digest(content: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(content)))
}

/// With no time and no name in its header.
fn compress(content: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzBuilder::new()
        .mtime(0)
        .write(Vec::new(), Compression::default());
    encoder.write_all(content)?;
    encoder.finish()
}

#[cfg(test)]
mod tests {
    use std::{io::Read, path::PathBuf};

    use super::*;

    fn entries(program: &[u8]) -> Vec<tar::Entry<'_>> {
        vec![tar::Entry {
            path: "slipway",
            mode: 0o755,
            owner: 0,
            content: program,
        }]
    }

    fn layout(directory: &Path, programs: [&[u8]; 2]) -> String {
        let images = [("amd64", programs[0]), ("arm64", programs[1])].map(|(architecture, program)| Image {
            architecture,
            entries: entries(program),
            entrypoint: &["/slipway"],
        });
        let labels = json!({"org.opencontainers.image.version": "v0.1.0"});
        write(&images, "v0.1.0", &labels, directory).expect("it can be written")
    }

    /// Reads what a descriptor describes, and holds it to its digest and size as the specification asks.
    fn read(directory: &Path, descriptor: &Value) -> Vec<u8> {
        let digest = descriptor["digest"].as_str().expect("a digest");
        let (algorithm, hash) = digest.split_once(':').expect("an algorithm");
        let path: PathBuf = directory.join("blobs").join(algorithm).join(hash);
        let content = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(descriptor["size"], content.len());
        assert_eq!(super::digest(&content), digest);
        content
    }

    fn read_json(directory: &Path, descriptor: &Value, media_type: &str) -> Value {
        assert_eq!(descriptor["mediaType"], media_type);
        serde_json::from_slice(&read(directory, descriptor)).expect("JSON")
    }

    #[test]
    fn a_layout_reads_back_by_the_specification() {
        let folder = tempfile::tempdir().expect("a temporary directory can be made");
        let directory = folder.path();
        let digest = layout(directory, [b"for one machine", b"for another"]);
        let parse = |name: &str| -> Value {
            serde_json::from_slice(&fs::read(directory.join(name)).expect(name)).expect("JSON")
        };
        assert_eq!(parse("oci-layout"), json!({"imageLayoutVersion": "1.0.0"}));
        let entry = parse("index.json");
        assert_eq!(entry["schemaVersion"], 2);
        let named = &entry["manifests"][0];
        assert_eq!(
            named["annotations"]["org.opencontainers.image.ref.name"],
            "v0.1.0"
        );
        assert_eq!(named["digest"], digest);
        let index = read_json(directory, named, INDEX);
        let manifests = index["manifests"].as_array().expect("manifests");
        assert_eq!(manifests.len(), 2);
        for (descriptor, (architecture, program)) in manifests
            .iter()
            .zip([("amd64", &b"for one machine"[..]), ("arm64", b"for another")])
        {
            assert_eq!(
                descriptor["platform"],
                json!({"architecture": architecture, "os": "linux"})
            );
            let manifest = read_json(directory, descriptor, MANIFEST);
            assert_eq!(manifest["mediaType"], MANIFEST);
            let config = read_json(directory, &manifest["config"], CONFIG);
            assert_eq!(config["architecture"], architecture);
            assert_eq!(config["config"]["User"], "65532:65532");
            assert_eq!(config["config"]["Entrypoint"], json!(["/slipway"]));
            assert!(config["config"].get("Cmd").is_none() && config["config"].get("Shell").is_none());
            let layer = &manifest["layers"][0];
            assert_eq!(layer["mediaType"], LAYER);
            let mut archive = Vec::new();
            flate2::read::GzDecoder::new(&read(directory, layer)[..])
                .read_to_end(&mut archive)
                .expect("gzip");
            assert_eq!(config["rootfs"]["diff_ids"], json!([super::digest(&archive)]));
            assert_eq!(archive, tar::archive(&entries(program)));
        }
    }

    #[test]
    fn the_same_input_is_the_same_image_and_other_input_another() {
        let digests: Vec<String> = [[&b"a"[..], b"b"], [b"a", b"b"], [b"a", b"c"]]
            .into_iter()
            .map(|programs| layout(tempfile::tempdir().expect("a directory").path(), programs))
            .collect();
        assert_eq!(digests[0], digests[1]);
        assert_ne!(digests[0], digests[2]);
    }
}
