//! OCI manifests, read: which blobs an image has, and of what kind it is. Pure.

use std::collections::BTreeSet;

use serde::Deserialize;
use slipway_slots::Digest;
use slipway_slots::manifest::{Blob, SignedManifest};

use super::index::Kind;

/// Manifests are small.
pub const MAX_MANIFEST: u64 = 4 << 20;
const MAX_BLOBS: usize = 512;
/// Sizes are added without overflow.
const MAX_SIZE: u64 = 1 << 50;

pub const IMAGE: &str = "application/vnd.oci.image.manifest.v1+json";
pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub const DOCKER_IMAGE: &str = "application/vnd.docker.distribution.manifest.v2+json";
pub const DOCKER_INDEX: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
pub const ACCEPTED: [&str; 4] = [IMAGE, INDEX, DOCKER_IMAGE, DOCKER_INDEX];
const DISK_MANIFEST_LAYER: &str = "application/vnd.slipway.node-image.manifest.v1+json";

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestProblem {
    #[error("the manifest cannot be read: {0}")]
    Syntax(String),
    #[error("the manifest {0}")]
    Contents(String),
    #[error("the image has nothing for {0}")]
    NoPlatform(String),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    size: u64,
    #[serde(default)]
    platform: Option<Platform>,
}

#[derive(Debug, Deserialize)]
struct Platform {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    schema_version: u32,
    #[serde(default)]
    manifests: Option<Vec<Descriptor>>,
    #[serde(default)]
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Option<Vec<Descriptor>>,
}

/// What a manifest says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// An image: its configuration and layers.
    Image(Image),
    /// Several platforms: the manifest for ours.
    Index(Blob),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    pub kind: Kind,
    /// Each once: the configuration, then the layers.
    pub blobs: Vec<Blob>,
    /// The layer with the signed manifest of a disk image.
    pub disk_manifest: Option<Blob>,
}

/// Our architecture, as OCI names it.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn blob(descriptor: &Descriptor) -> Result<Blob, ManifestProblem> {
    let digest = descriptor
        .digest
        .parse()
        .map_err(|error| ManifestProblem::Contents(format!("names a blob badly: {error}")))?;
    if descriptor.size > MAX_SIZE {
        return Err(ManifestProblem::Contents(format!(
            "names a blob of {} bytes",
            descriptor.size
        )));
    }
    Ok(Blob {
        digest,
        size: descriptor.size,
    })
}

/// Reads a manifest whose digest was checked.
pub fn read(bytes: &[u8], architecture: &str) -> Result<Read, ManifestProblem> {
    if bytes.len() as u64 > MAX_MANIFEST {
        return Err(ManifestProblem::Contents(format!("has {} bytes", bytes.len())));
    }
    let document: Document =
        serde_json::from_slice(bytes).map_err(|error| ManifestProblem::Syntax(error.to_string()))?;
    if document.schema_version != 2 {
        return Err(ManifestProblem::Contents(format!(
            "is of version {}: version 2 is read",
            document.schema_version
        )));
    }
    match (document.manifests, document.config, document.layers) {
        (Some(manifests), None, None) => {
            let ours = manifests.iter().find(|manifest| {
                manifest
                    .platform
                    .as_ref()
                    .is_some_and(|platform| platform.os == "linux" && platform.architecture == architecture)
            });
            // An index of one manifest without a platform is how artifacts are often pushed.
            let only = match manifests.as_slice() {
                [one] if one.platform.is_none() => Some(one),
                _ => None,
            };
            match ours.or(only) {
                Some(manifest) => Ok(Read::Index(blob(manifest)?)),
                None => Err(ManifestProblem::NoPlatform(format!("linux/{architecture}"))),
            }
        }
        (None, Some(config), Some(layers)) => {
            if layers.len() >= MAX_BLOBS {
                return Err(ManifestProblem::Contents(format!("has {} layers", layers.len())));
            }
            let mut blobs = Vec::new();
            let mut seen = BTreeSet::new();
            let mut disk_manifest = None;
            for descriptor in std::iter::once(&config).chain(&layers) {
                let blob = blob(descriptor)?;
                if descriptor.media_type == DISK_MANIFEST_LAYER {
                    disk_manifest = Some(blob);
                }
                if seen.insert(blob.digest) {
                    blobs.push(blob);
                } else if blobs
                    .iter()
                    .any(|other| other.digest == blob.digest && other.size != blob.size)
                {
                    return Err(ManifestProblem::Contents(format!(
                        "gives {} two sizes",
                        blob.digest
                    )));
                }
            }
            Ok(Read::Image(Image {
                kind: if disk_manifest.is_some() {
                    Kind::Disk
                } else {
                    Kind::Container
                },
                blobs,
                disk_manifest,
            }))
        }
        _ => Err(ManifestProblem::Contents(
            "is neither an image nor an index".to_owned(),
        )),
    }
}

/// A disk image is usable when its signed manifest names nothing that did not come with it. The engine's name for it.
pub fn check_disk(signed: &SignedManifest, image: &Image) -> Result<Digest, ManifestProblem> {
    let manifest = signed
        .unverified()
        .map_err(|error| ManifestProblem::Contents(format!("carries a node image that is wrong: {error}")))?;
    for partition in &manifest.partitions {
        for blob in [Some(partition.index), Some(partition.chunks), partition.solid]
            .into_iter()
            .flatten()
        {
            if !image.blobs.contains(&blob) {
                return Err(ManifestProblem::Contents(format!(
                    "lacks blob {} of partition {}",
                    blob.digest, partition.name
                )));
            }
        }
    }
    Ok(manifest.id())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn descriptor(text: &str, size: u64) -> serde_json::Value {
        json!({"mediaType": "application/octet-stream", "digest": Digest::of(text.as_bytes()).to_string(), "size": size})
    }

    #[test]
    fn layers_count_once_and_sizes_do_not_contradict() {
        let manifest = |second: u64| {
            json!({"schemaVersion": 2, "config": descriptor("c", 2),
                "layers": [descriptor("l", 5), descriptor("l", second)]})
            .to_string()
        };
        let Ok(Read::Image(image)) = read(manifest(5).as_bytes(), "amd64") else {
            panic!("an image");
        };
        assert_eq!(image.blobs.len(), 2);
        assert_eq!(image.kind, Kind::Container);
        let said = read(manifest(6).as_bytes(), "amd64").unwrap_err();
        assert!(said.to_string().contains("two sizes"), "{said}");
    }

    #[test]
    fn the_manifest_of_our_platform_is_chosen() {
        let with = |text: &str, architecture: &str| {
            let mut value = descriptor(text, 3);
            value["platform"] = json!({"os": "linux", "architecture": architecture});
            value
        };
        let index = json!({"schemaVersion": 2, "manifests": [with("arm", "arm64"), with("amd", "amd64")]});
        let chosen = |architecture: &str| read(index.to_string().as_bytes(), architecture);
        assert_eq!(
            chosen("amd64"),
            Ok(Read::Index(Blob {
                digest: Digest::of(b"amd"),
                size: 3
            }))
        );
        assert_eq!(
            chosen("riscv64"),
            Err(ManifestProblem::NoPlatform("linux/riscv64".to_owned()))
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes, "amd64");
        }

        #[test]
        fn damaged_manifests_are_read_or_refused(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let manifest = json!({"schemaVersion": 2, "config": descriptor("c", 2), "layers": [descriptor("l", 5)]});
            let mut bytes = manifest.to_string().into_bytes();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Ok(Read::Image(image)) = read(&bytes, "amd64") {
                prop_assert!(image.blobs.iter().all(|blob| blob.size <= MAX_SIZE));
            }
        }
    }
}
