//! An image as files: a directory of blobs beside its signed manifest, or an OCI image layout with the same as layers.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use slipway_agent::engine::{ChunkSource, FetchError};
use slipway_slots::{
    Digest,
    digest::Hasher,
    manifest::{Blob, ChunkIndex, Manifest, SignedManifest},
};

pub const SIGNED_MANIFEST: &str = "manifest.signed.json";
const ARTIFACT: &str = "application/vnd.slipway.node-image.v1";
const LAYER_MANIFEST: &str = "application/vnd.slipway.node-image.manifest.v1+json";
const LAYER_BLOB: &str = "application/vnd.slipway.node-image.blob.v1";
const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// Where the files of an image are.
#[derive(Debug)]
pub struct Bundle {
    folder: PathBuf,
    oci: bool,
    pub signed: SignedManifest,
    open: Option<(Digest, File)>,
}

impl Bundle {
    pub fn open(folder: &Path) -> Result<Self> {
        let oci = folder.join("oci-layout").exists();
        let place = if oci {
            oci_manifest_layer(folder)?
        } else {
            folder.join(SIGNED_MANIFEST)
        };
        let bytes = read_limited(&place, 4 << 20)?;
        let signed = SignedManifest::decode(&bytes).with_context(|| place.display().to_string())?;
        Ok(Self {
            folder: folder.to_owned(),
            oci,
            signed,
            open: None,
        })
    }

    pub fn path(&self, digest: &Digest) -> PathBuf {
        let text = digest.to_string();
        match text.split_once(':') {
            Some((kind, hex)) if self.oci => self.folder.join("blobs").join(kind).join(hex),
            _ => self.folder.join(text.replace(':', "-")),
        }
    }

    /// Reads everything and compares it with the manifest. The manifest's signatures are the caller's matter.
    pub fn verify(&self, manifest: &Manifest) -> Result<()> {
        for partition in &manifest.partitions {
            let blobs = [Some(partition.index), Some(partition.chunks), partition.solid];
            for blob in blobs.iter().flatten() {
                self.verify_blob(blob)?;
            }
            let stored = fs::read(self.path(&partition.index.digest))?;
            let plain = ChunkIndex::plain_size(partition.chunk_count);
            let plain =
                zstd::bulk::decompress(&stored, plain).context("the chunk index cannot be unpacked")?;
            let index = ChunkIndex::decode(&plain, partition)?;
            let chunks = File::open(self.path(&partition.chunks.digest))?;
            let mut whole = Hasher::new();
            for (number, entry) in index.entries.iter().enumerate() {
                let length = entry.length;
                let mut stored = vec![0; entry.stored_length as usize];
                chunks.read_exact_at(&mut stored, entry.stored_offset)?;
                if entry.stored_length != length {
                    stored = zstd::bulk::decompress(&stored, length as usize).with_context(|| {
                        format!("chunk {number} of {} cannot be unpacked", partition.name)
                    })?;
                }
                if Digest::of(&stored) != entry.digest {
                    bail!(
                        "chunk {number} of partition {} is not what its index says",
                        partition.name
                    );
                }
                whole.update(&stored);
            }
            if whole.finish() != partition.digest {
                bail!("partition {} is not what the manifest says", partition.name);
            }
            if let Some(solid) = &partition.solid {
                let file = File::open(self.path(&solid.digest))?;
                let mut reader = zstd::stream::read::Decoder::new(file)?.take(partition.size + 1);
                let (mut hasher, mut length) = (Hasher::new(), 0);
                let mut buffer = vec![0; 1 << 20];
                while let read @ 1.. = reader.read(&mut buffer)? {
                    hasher.update(&buffer[..read]);
                    length += read as u64;
                }
                if length != partition.size || hasher.finish() != partition.digest {
                    bail!(
                        "the solid form of partition {} is not what the manifest says",
                        partition.name
                    );
                }
            }
        }
        Ok(())
    }

    fn verify_blob(&self, blob: &Blob) -> Result<()> {
        let path = self.path(&blob.digest);
        let mut file = File::open(&path).with_context(|| format!("opening {}", path.display()))?;
        let (mut hasher, mut length) = (Hasher::new(), 0);
        let mut buffer = vec![0; 1 << 20];
        while let read @ 1.. = file.read(&mut buffer)? {
            hasher.update(&buffer[..read]);
            length += read as u64;
        }
        if length != blob.size || hasher.finish() != blob.digest {
            bail!(
                "{} is not what the manifest says: it has {length} bytes or other ones",
                path.display()
            );
        }
        Ok(())
    }
}

impl ChunkSource for Bundle {
    fn name(&self) -> String {
        self.folder.display().to_string()
    }

    fn read(&mut self, blob: &Blob, offset: u64, buffer: &mut [u8]) -> Result<(), FetchError> {
        let failed = |error: &io::Error| {
            let (source_name, blob) = (self.folder.display().to_string(), blob.digest.to_string());
            match error.kind() {
                io::ErrorKind::NotFound => FetchError::Absent { source_name, blob },
                _ => FetchError::Failed {
                    source_name,
                    blob,
                    reason: error.to_string(),
                },
            }
        };
        if self
            .open
            .as_ref()
            .is_none_or(|(digest, _)| *digest != blob.digest)
        {
            let file = File::open(self.path(&blob.digest)).map_err(|error| failed(&error))?;
            self.open = Some((blob.digest, file));
        }
        let (_, file) = self.open.as_ref().expect("just opened");
        file.read_exact_at(buffer, offset).map_err(|error| failed(&error))
    }
}

fn read_limited(path: &Path, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(most + 1).read_to_end(&mut bytes))
        .with_context(|| format!("reading {}", path.display()))?;
    if bytes.len() as u64 > most {
        bail!("{} has more than {most} bytes", path.display());
    }
    Ok(bytes)
}

fn oci_blob(folder: &Path, descriptor: &Value) -> Result<PathBuf> {
    let digest: Digest = descriptor["digest"].as_str().unwrap_or_default().parse()?;
    let text = digest.to_string();
    Ok(folder.join("blobs").join(text.replacen(':', "/", 1)))
}

fn oci_manifest_layer(folder: &Path) -> Result<PathBuf> {
    let json = |path: &Path| -> Result<Value> {
        serde_json::from_slice(&read_limited(path, 4 << 20)?).with_context(|| path.display().to_string())
    };
    let index = json(&folder.join("index.json"))?;
    let ours = index["manifests"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|it| it["artifactType"] == ARTIFACT);
    let Some(ours) = ours else {
        bail!("{} holds no node image ({ARTIFACT})", folder.display());
    };
    let manifest = json(&oci_blob(folder, ours)?)?;
    let layer = manifest["layers"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|it| it["mediaType"] == LAYER_MANIFEST);
    match layer {
        Some(layer) => oci_blob(folder, layer),
        None => bail!("the node image in {} has no signed manifest", folder.display()),
    }
}

/// Makes an OCI image layout of a directory of blobs; `oras` and registries take it as it is.
pub fn write_oci(bundle: &Bundle, to: &Path) -> Result<()> {
    let manifest = bundle.signed.unverified()?;
    let folder = to.join("blobs/sha256");
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let add = |bytes: &[u8]| -> Result<Value> {
        let digest = Digest::of(bytes);
        let name = digest.to_string();
        fs::write(folder.join(name.trim_start_matches("sha256:")), bytes)?;
        Ok(json!({"digest": name, "size": bytes.len()}))
    };
    let with = |mut descriptor: Value, kind: &str| {
        descriptor["mediaType"] = kind.into();
        descriptor
    };
    let config = with(add(b"{}")?, "application/vnd.oci.empty.v1+json");
    let mut layers = vec![with(add(&bundle.signed.encode())?, LAYER_MANIFEST)];
    let mut blobs = BTreeMap::new();
    for partition in &manifest.partitions {
        for blob in [Some(partition.index), Some(partition.chunks), partition.solid]
            .into_iter()
            .flatten()
        {
            blobs.insert(blob.digest, blob.size);
        }
    }
    for (digest, size) in blobs {
        let name = digest.to_string();
        let (from, place) = (
            bundle.path(&digest),
            folder.join(name.trim_start_matches("sha256:")),
        );
        if !place.exists() && fs::hard_link(&from, &place).is_err() {
            fs::copy(&from, &place).with_context(|| format!("copying {}", from.display()))?;
        }
        layers.push(json!({"mediaType": LAYER_BLOB, "digest": name, "size": size}));
    }
    let oci = json!({
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "artifactType": ARTIFACT,
        "config": config,
        "layers": layers,
        "annotations": {
            "org.opencontainers.image.title": manifest.name,
            "org.opencontainers.image.version": manifest.version,
        },
    });
    let mut descriptor = with(add(&serde_json::to_vec(&oci)?)?, OCI_MANIFEST);
    descriptor["artifactType"] = ARTIFACT.into();
    descriptor["annotations"] = json!({"org.opencontainers.image.ref.name": manifest.version});
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [descriptor],
    });
    fs::write(to.join("index.json"), serde_json::to_vec(&index)?)?;
    fs::write(to.join("oci-layout"), br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    /// A layout whose index and manifest are these bytes; every blob has the second.
    fn layout(index: &[u8], blob: &[u8]) -> (tempfile::TempDir, Digest) {
        let folder = tempfile::tempdir().expect("a folder");
        let digest = Digest::of(blob);
        let place = folder
            .path()
            .join("blobs")
            .join(digest.to_string().replacen(':', "/", 1));
        fs::create_dir_all(place.parent().expect("a folder")).expect("a folder");
        fs::write(place, blob).expect("written");
        fs::write(folder.path().join("oci-layout"), b"{}").expect("written");
        fs::write(folder.path().join("index.json"), index).expect("written");
        (folder, digest)
    }

    proptest! {
        #[test]
        fn a_layout_takes_any_bytes(index in vec(any::<u8>(), 0..400), blob in vec(any::<u8>(), 0..400)) {
            let (folder, _) = layout(&index, &blob);
            prop_assert!(Bundle::open(folder.path()).is_err());
            fs::remove_file(folder.path().join("oci-layout")).expect("removed");
            fs::write(folder.path().join(SIGNED_MANIFEST), &blob).expect("written");
            prop_assert!(Bundle::open(folder.path()).is_err());
        }

        /// An index that leads to the manifest, and a manifest with anything in it.
        #[test]
        fn a_layouts_manifest_takes_any_bytes(noise in vec(any::<u8>(), 0..200), digest in ".{0,80}") {
            let manifest = json!({"layers": [{"mediaType": LAYER_MANIFEST, "digest": digest}]}).to_string();
            for blob in [noise.as_slice(), manifest.as_bytes()] {
                let (folder, named) = layout(b"", blob);
                let index = json!({"manifests": [{"artifactType": ARTIFACT, "digest": named.to_string()}]});
                fs::write(folder.path().join("index.json"), index.to_string()).expect("written");
                prop_assert!(Bundle::open(folder.path()).is_err());
            }
        }
    }
}
