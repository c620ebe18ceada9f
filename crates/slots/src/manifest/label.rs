//! The label at the end of a slot: the signed manifest of the image that was written to it. A host's version is read
//! from here, from the booted slot's own bytes, never from what somebody asked for.

use super::{SignedManifest, TrustError};

/// The last bytes of a slot's first partition are the label's. Images must leave them free.
pub const LABEL_SIZE: usize = 64 * 1024;

const MAGIC: &[u8; 16] = b"slipway label 1\n";
const HEADER: usize = MAGIC.len() + 8;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    #[error("the slot has no label: nothing was written to it, or not by this agent")]
    Absent,
    #[error("the slot's label is damaged")]
    Damaged,
    #[error("the slot's label cannot be read: {0}")]
    Unreadable(#[from] TrustError),
    #[error("the manifest and its signatures take {0} bytes: a label has room for {room}", room = LABEL_SIZE - HEADER)]
    TooLarge(usize),
}

/// [`LABEL_SIZE`] bytes.
pub fn encode_label(signed: &SignedManifest) -> Result<Vec<u8>, LabelError> {
    let payload = signed.encode();
    if payload.len() > LABEL_SIZE - HEADER {
        return Err(LabelError::TooLarge(payload.len()));
    }
    let mut label = Vec::with_capacity(LABEL_SIZE);
    label.extend_from_slice(MAGIC);
    label.extend_from_slice(&(payload.len() as u32).to_be_bytes());
    label.extend_from_slice(&crc32fast::hash(&payload).to_be_bytes());
    label.extend_from_slice(&payload);
    label.resize(LABEL_SIZE, 0);
    Ok(label)
}

/// The signatures are not checked here: they were when the image was written, and the keys may have changed since.
pub fn decode_label(label: &[u8]) -> Result<SignedManifest, LabelError> {
    if label.len() < HEADER || !label.starts_with(MAGIC) {
        return Err(LabelError::Absent);
    }
    let number = |at: usize| u32::from_be_bytes(label[at..at + 4].try_into().expect("4 bytes"));
    let length = number(MAGIC.len()) as usize;
    let payload = label
        .get(HEADER..)
        .and_then(|rest| rest.get(..length))
        .ok_or(LabelError::Damaged)?;
    let padding = &label[HEADER + length..];
    if crc32fast::hash(payload) != number(MAGIC.len() + 4) || padding.iter().any(|byte| *byte != 0) {
        return Err(LabelError::Damaged);
    }
    Ok(SignedManifest::decode(payload)?)
}
