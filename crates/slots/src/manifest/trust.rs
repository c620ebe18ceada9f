//! Who vouches for an image: minisign keys, N of M of them, and how a ring of keys hands over to its successor.

use std::collections::BTreeSet;

use minisign_verify::{PublicKey, Signature};
use serde::{Deserialize, Serialize};

use super::{MAX_MANIFEST, Manifest, ManifestError};

/// More signatures than any ring has keys; bounds what a hostile file makes us compute.
const MAX_KEYS: usize = 16;
const MAX_SIGNED: usize = MAX_MANIFEST * 2 + MAX_KEYS * 1024;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    #[error("the signed file cannot be read: {0}")]
    Syntax(String),
    #[error("a signature cannot be read: {0}")]
    Signature(String),
    #[error("the key ring {0}")]
    KeyRing(String),
    #[error("{valid} of the signatures are by keys this host trusts: {needed} are needed")]
    NotEnough { valid: usize, needed: usize },
    #[error("key ring version {offered} does not follow version {current}")]
    OldKeyRing { offered: u64, current: u64 },
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

/// A manifest's exact bytes and the minisign signatures over them, each as `minisign -S` writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignedManifest {
    pub manifest: String,
    pub signatures: Vec<String>,
}

impl SignedManifest {
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("text only")
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, TrustError> {
        if bytes.len() > MAX_SIGNED {
            return Err(TrustError::Syntax(format!(
                "it has {} bytes, more than {MAX_SIGNED}",
                bytes.len()
            )));
        }
        let signed: Self =
            serde_json::from_slice(bytes).map_err(|error| TrustError::Syntax(error.to_string()))?;
        if signed.signatures.len() > MAX_KEYS {
            return Err(TrustError::Syntax(format!(
                "it has more than {MAX_KEYS} signatures"
            )));
        }
        Ok(signed)
    }

    /// The manifest, whoever signed it. For looking at only: what is written to a slot comes from
    /// [`KeyRing::verify`].
    pub fn unverified(&self) -> Result<Manifest, ManifestError> {
        Manifest::decode(self.manifest.as_bytes())
    }
}

/// The keys a host trusts, as a file: its first version is installed with the host, each next one is signed by
/// enough keys of the one before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyRingFile {
    pub version: u64,
    /// How many different keys must have signed.
    pub threshold: usize,
    /// minisign public keys, base64, without the comment line.
    pub keys: Vec<String>,
}

/// A ring whose keys have been read.
#[derive(Clone, Debug)]
pub struct KeyRing {
    file: KeyRingFile,
    keys: Vec<PublicKey>,
}

impl KeyRing {
    pub fn new(file: KeyRingFile) -> Result<Self, TrustError> {
        let wrong = |problem: String| Err(TrustError::KeyRing(problem));
        if file.keys.is_empty() || file.keys.len() > MAX_KEYS {
            return wrong(format!(
                "has {} keys: 1 to {MAX_KEYS} are accepted",
                file.keys.len()
            ));
        }
        if file.threshold == 0 || file.threshold > file.keys.len() {
            return wrong(format!(
                "needs {} of {} keys: that is never or always",
                file.threshold,
                file.keys.len()
            ));
        }
        if file.keys.iter().collect::<BTreeSet<_>>().len() != file.keys.len() {
            return wrong("has a key twice".to_owned());
        }
        let mut keys = Vec::new();
        for (at, key) in file.keys.iter().enumerate() {
            match PublicKey::from_base64(key) {
                Ok(key) => keys.push(key),
                Err(error) => return wrong(format!("has no minisign public key at {at}: {error}")),
            }
        }
        Ok(Self { file, keys })
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, TrustError> {
        let file = serde_json::from_slice(bytes).map_err(|error| TrustError::KeyRing(error.to_string()))?;
        Self::new(file)
    }

    pub fn file(&self) -> &KeyRingFile {
        &self.file
    }

    /// The manifest, if enough different keys of this ring signed exactly these bytes.
    pub fn verify(&self, signed: &SignedManifest) -> Result<Manifest, TrustError> {
        self.enough_signed(signed.manifest.as_bytes(), &signed.signatures)?;
        Ok(signed.unverified()?)
    }

    /// The ring that follows this one: signed by enough keys of this ring, so that it is trusted, and by enough of
    /// its own, so that its owner can sign at all.
    pub fn rotate(&self, next: &[u8], signatures: &[String]) -> Result<Self, TrustError> {
        self.enough_signed(next, signatures)?;
        let ring = Self::decode(next)?;
        ring.enough_signed(next, signatures)?;
        if ring.file.version <= self.file.version {
            return Err(TrustError::OldKeyRing {
                offered: ring.file.version,
                current: self.file.version,
            });
        }
        Ok(ring)
    }

    fn enough_signed(&self, bytes: &[u8], signatures: &[String]) -> Result<(), TrustError> {
        if signatures.len() > MAX_KEYS {
            return Err(TrustError::Signature(format!("there are more than {MAX_KEYS}")));
        }
        let mut signers = BTreeSet::new();
        for text in signatures {
            let signature =
                Signature::decode(text).map_err(|error| TrustError::Signature(error.to_string()))?;
            signers.extend(
                self.keys
                    .iter()
                    .position(|key| key.verify(bytes, &signature, false).is_ok()),
            );
        }
        if signers.len() < self.file.threshold {
            return Err(TrustError::NotEnough {
                valid: signers.len(),
                needed: self.file.threshold,
            });
        }
        Ok(())
    }
}
