//! Manifests: canonical, signed by enough keys, refused when they are not for this host.

use jiff::Timestamp;
use slipway_slots::Digest;
use slipway_slots::manifest::{Blob, Manifest, PartitionImage};

pub fn sample() -> Manifest {
    let blob = |text: &str, size| Blob {
        digest: Digest::of(text.as_bytes()),
        size,
    };
    Manifest {
        format: Manifest::FORMAT,
        name: "edge-os".into(),
        version: "1.2.3".into(),
        compatible: vec!["edge-box".into()],
        arch: "x86_64".into(),
        epoch: 4,
        created: Timestamp::UNIX_EPOCH,
        not_after: "2040-01-01T00:00:00Z".parse().expect("a time"),
        kubelet_version: Some("v1.34.2+k3s1".into()),
        partitions: vec![PartitionImage {
            name: "root".into(),
            size: 16 * 4096,
            digest: Digest::of(b"all"),
            chunk_size: 8192,
            chunk_count: 8,
            index: blob("index", 340),
            chunks: blob("chunks", 16 * 4096),
            solid: None,
        }],
    }
}

#[test]
fn a_manifest_has_one_form_in_bytes() {
    let manifest = sample();
    let bytes = manifest.encode();
    assert_eq!(Manifest::decode(&bytes).unwrap(), manifest);
    let spaced = String::from_utf8(bytes)
        .unwrap()
        .replace(",\"arch\"", ", \"arch\"");
    assert!(Manifest::decode(spaced.as_bytes()).is_err());
}
