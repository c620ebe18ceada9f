//! Small signed node images, as OCI layouts that the cache imports.

use std::path::Path;
use std::sync::OnceLock;

use minisign::KeyPair;
use serde_json::{Value, json};
use slipway_agent::image::build_partition;
use slipway_slots::Digest;
use slipway_slots::manifest::{KeyRing, KeyRingFile, LABEL_SIZE, Manifest, SignedManifest, encode_label};

/// Partitions of simulated slots, at least.
const SLOT_SIZE: usize = 16 * 4096 + LABEL_SIZE;

/// Images of simulated hosts do not expire.
const NEVER: &str = "2200-01-01T00:00:00Z";

/// The key that signs images of simulated hosts; made once a process.
pub fn signing_key() -> &'static KeyPair {
    static KEY: OnceLock<KeyPair> = OnceLock::new();
    KEY.get_or_init(|| KeyPair::generate_unencrypted_keypair().expect("the system has randomness"))
}

pub fn key_ring() -> KeyRing {
    KeyRing::new(KeyRingFile {
        version: 1,
        threshold: 1,
        keys: vec![signing_key().pk.to_base64()],
    })
    .expect("a ring of one key")
}

/// An image for the slots of simulated hosts.
#[derive(Debug)]
pub struct NodeImage {
    pub signed: SignedManifest,
    /// The engine's name for it.
    pub id: Digest,
    /// The cache's name for it.
    pub digest: Digest,
    files: Vec<(Digest, Vec<u8>)>,
    index: Vec<u8>,
    raw: Vec<u8>,
}

impl NodeImage {
    /// Images of different versions have different bytes.
    pub fn build(version: &str, epoch: u64) -> std::io::Result<Self> {
        let mut state = u32::from_le_bytes(
            Digest::of(version.as_bytes()).0[..4]
                .try_into()
                .unwrap_or_default(),
        );
        let contents = (0..SLOT_SIZE - LABEL_SIZE)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            })
            .collect();
        Self::with_contents(version, epoch, contents)
    }

    /// Of these bytes, in whole blocks. Slots of hosts are as large as the image that is installed on them.
    pub fn with_contents(version: &str, epoch: u64, raw: Vec<u8>) -> std::io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let partition = build_partition("root", &mut raw.as_slice(), raw.len() as u64, folder.path())?;
        let manifest = Manifest {
            format: Manifest::FORMAT,
            name: "simulated-os".to_owned(),
            version: version.to_owned(),
            compatible: vec!["simulated".to_owned()],
            arch: "x86_64".to_owned(),
            epoch,
            created: jiff::Timestamp::UNIX_EPOCH,
            not_after: NEVER.parse().map_err(std::io::Error::other)?,
            kubelet_version: Some(format!("v{version}")),
            partitions: vec![partition.clone()],
        };
        let bytes = manifest.encode();
        let signature = minisign::sign(
            Some(&signing_key().pk),
            &signing_key().sk,
            bytes.as_slice(),
            None,
            None,
        )
        .map_err(std::io::Error::other)?;
        let signed = SignedManifest {
            manifest: String::from_utf8(bytes).map_err(std::io::Error::other)?,
            signatures: vec![signature.to_string()],
        };
        let mut files = Vec::new();
        let mut add = |bytes: Vec<u8>, kind: &str| -> Value {
            let digest = Digest::of(&bytes);
            let descriptor = json!({"mediaType": kind, "digest": digest.to_string(), "size": bytes.len()});
            files.push((digest, bytes));
            descriptor
        };
        let config = add(b"{}".to_vec(), "application/vnd.oci.empty.v1+json");
        let mut layers = vec![add(
            signed.encode(),
            "application/vnd.slipway.node-image.manifest.v1+json",
        )];
        for blob in [Some(partition.index), Some(partition.chunks), partition.solid]
            .into_iter()
            .flatten()
        {
            let bytes = std::fs::read(slipway_agent::image::blob_path(folder.path(), &blob.digest))?;
            layers.push(add(bytes, "application/vnd.slipway.node-image.blob.v1"));
        }
        let oci = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "artifactType": "application/vnd.slipway.node-image.v1",
            "config": config,
            "layers": layers,
        });
        let descriptor = add(
            oci.to_string().into_bytes(),
            "application/vnd.oci.image.manifest.v1+json",
        );
        let digest = files.last().map(|(digest, _)| *digest).expect("just added");
        let index = json!({"schemaVersion": 2, "manifests": [descriptor]});
        Ok(Self {
            id: manifest.id(),
            signed,
            digest,
            files,
            index: index.to_string().into_bytes(),
            raw,
        })
    }

    /// Its blobs and, as the last of them, the manifest: what a registry has of it.
    pub fn blobs(&self) -> &[(Digest, Vec<u8>)] {
        &self.files
    }

    /// Writes it as an OCI layout: what `import` takes.
    pub fn write_layout(&self, to: &Path) -> std::io::Result<()> {
        std::fs::create_dir_all(to.join("blobs/sha256"))?;
        for (digest, bytes) in &self.files {
            let name = digest.to_string();
            std::fs::write(to.join("blobs").join(name.replacen(':', "/", 1)), bytes)?;
        }
        std::fs::write(to.join("index.json"), &self.index)?;
        std::fs::write(to.join("oci-layout"), br#"{"imageLayoutVersion":"1.0.0"}"#)
    }

    /// The bytes of a slot that holds it.
    pub fn size(&self) -> u64 {
        self.raw.len() as u64
    }

    /// A partition that holds it.
    pub(crate) fn slot(&self) -> Vec<u8> {
        let mut slot = self.raw.clone();
        slot.resize(slot.len().max(SLOT_SIZE - LABEL_SIZE), 0);
        slot.extend_from_slice(&encode_label(&self.signed).expect("a small manifest fits into a label"));
        slot
    }
}
