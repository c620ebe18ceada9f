//! Small images, signed with a key made for the test.

use std::path::PathBuf;
use std::sync::OnceLock;

use minisign::KeyPair;
use slipway_agent::engine::{ChunkSource, Image, Sources};
use slipway_agent::image::{ImageDirectory, build_partition};
use slipway_slots::manifest::{
    KeyRing, KeyRingFile, LABEL_SIZE, Manifest, PartitionImage, SignedManifest, encode_label,
};
use tempfile::TempDir;

/// A signing key and its ring.
pub struct Signer {
    pair: KeyPair,
}

impl Signer {
    pub fn new() -> Self {
        Self {
            pair: KeyPair::generate_unencrypted_keypair().expect("a key pair"),
        }
    }

    pub fn public(&self) -> String {
        self.pair.pk.to_base64()
    }

    pub fn signature(&self, bytes: &[u8]) -> String {
        minisign::sign(Some(&self.pair.pk), &self.pair.sk, bytes, None, None)
            .expect("a signature")
            .to_string()
    }

    pub fn ring(&self) -> KeyRing {
        KeyRing::new(KeyRingFile {
            version: 1,
            threshold: 1,
            keys: vec![self.public()],
        })
        .expect("a ring")
    }

    pub fn sign(&self, manifest: &Manifest) -> SignedManifest {
        let bytes = manifest.encode();
        SignedManifest {
            signatures: vec![self.signature(&bytes)],
            manifest: String::from_utf8(bytes).expect("JSON is text"),
        }
    }
}

/// One signer for all tests of a run.
pub fn signer() -> &'static Signer {
    static SIGNER: OnceLock<Signer> = OnceLock::new();
    SIGNER.get_or_init(Signer::new)
}

/// An image in a directory, and what a slot holds that was written with it.
pub struct TestImage {
    pub manifest: Manifest,
    pub signed: SignedManifest,
    pub directory: TempDir,
    pub raw: Vec<u8>,
    label: Vec<u8>,
}

pub fn manifest(version: &str, epoch: u64, partitions: Vec<PartitionImage>) -> Manifest {
    Manifest {
        format: Manifest::FORMAT,
        name: "edge-os".into(),
        version: version.into(),
        compatible: vec!["edge-box".into()],
        arch: "x86_64".into(),
        epoch,
        created: "2026-01-01T00:00:00Z".parse().expect("a time"),
        not_after: "2040-01-01T00:00:00Z".parse().expect("a time"),
        kubelet_version: None,
        partitions,
    }
}

impl TestImage {
    pub fn build(version: &str, epoch: u64, raw: Vec<u8>) -> Self {
        let directory = TempDir::new().expect("a directory");
        let partition = build_partition("root", &mut raw.as_slice(), raw.len() as u64, directory.path())
            .expect("an image");
        let manifest = manifest(version, epoch, vec![partition]);
        let signed = signer().sign(&manifest);
        Self {
            label: encode_label(&signed).expect("a label"),
            signed,
            manifest,
            directory,
            raw,
        }
    }

    /// A partition of `size` bytes that holds this image.
    pub fn slot(&self, size: usize) -> Vec<u8> {
        let mut slot = self.raw.clone();
        slot.resize(size - LABEL_SIZE, 0);
        slot.extend_from_slice(&self.label);
        slot
    }

    /// Whether a slot holds all of this image and its label.
    pub fn is_in(&self, slot: &[u8]) -> bool {
        slot.starts_with(&self.raw) && slot.ends_with(&self.label)
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().to_owned()
    }

    pub fn image(&self) -> Image {
        self.image_from(vec![Box::new(ImageDirectory::new(self.directory.path()))])
    }

    pub fn image_from(&self, sources: Vec<Box<dyn ChunkSource>>) -> Image {
        Image {
            signed: self.signed.clone(),
            sources: Sources::new(sources),
        }
    }
}

/// `chunks` blocks of 4 KiB, told apart by `seed`; every fifth is zero, every seventh the same as another, and those
/// named in `shared` are the same for every seed.
pub fn blocks(chunks: usize, seed: u8, shared: &[usize]) -> Vec<u8> {
    let mut raw = Vec::with_capacity(chunks * 4096);
    for number in 0..chunks {
        let kind = if shared.contains(&number) {
            Some((number as u8, 0))
        } else if number % 5 == 4 {
            None
        } else if number % 7 == 6 {
            Some((200, seed))
        } else {
            Some((number as u8, seed))
        };
        for byte in 0..4096_usize {
            raw.push(match kind {
                None => 0,
                Some((number, seed)) => {
                    (byte as u8)
                        .wrapping_mul(number | 1)
                        .wrapping_add((byte / 256) as u8 ^ number)
                        ^ seed
                }
            });
        }
    }
    raw
}

/// Blocks that neither compress nor repeat.
pub fn noise(blocks: usize, seed: u64) -> Vec<u8> {
    use rand::{RngCore, SeedableRng};
    let mut bytes = vec![0; blocks * 4096];
    rand::rngs::StdRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}
