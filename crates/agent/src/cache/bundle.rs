//! Bundles: images as one tar file in OCI's image layout, for a stick, for k3s' images folder and for containerd. The same
//! file serves all three. What both directions share.

use std::path::Path;

use slipway_slots::Digest;

use super::CacheError;
use super::manifest::MAX_MANIFEST;

pub(super) const LAYOUT: &[u8] = br#"{"imageLayoutVersion":"1.0.0"}"#;
/// Files of a bundle beside its blobs.
pub(super) const MAX_DOCUMENT: u64 = MAX_MANIFEST;

#[expect(clippy::needless_pass_by_value, reason = "errors and texts, as they come")]
pub(super) fn bundle_error(name: &Path, reason: impl ToString) -> CacheError {
    CacheError::Bundle {
        name: name
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
        reason: reason.to_string(),
    }
}

/// The repository of a name, and whether it has a tag.
pub(super) fn repository(name: &str) -> (&str, bool) {
    match name.rsplit_once(':') {
        // A colon before a slash is a port's.
        Some((repository, tag)) if !tag.contains('/') => (repository, true),
        _ => (name, false),
    }
}

/// What an image of these names is found by: each tag, and the digest in each repository.
pub fn announced_names<'a>(names: impl IntoIterator<Item = &'a String>, digest: &Digest) -> Vec<String> {
    let mut announced = Vec::new();
    for name in names {
        let (repository, tagged) = repository(name);
        if tagged {
            announced.push(name.clone());
        }
        announced.push(format!("{repository}@{digest}"));
    }
    announced.sort();
    announced.dedup();
    announced
}

pub(super) fn blob_path(digest: &Digest) -> String {
    format!("blobs/{}", digest.to_string().replacen(':', "/", 1))
}

pub(super) fn blob_of_path(path: &str) -> Option<Digest> {
    let name = path.trim_start_matches("./").strip_prefix("blobs/sha256/")?;
    format!("sha256:{name}").parse().ok()
}
