//! The agent updates itself: killed at every step, something that is verified starts.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use slipway_agent::engine::{Failpoint, Failpoints, Image, Sources, Unhindered};
use slipway_agent::image::{ImageDirectory, build_partition};
use slipway_agent::self_update::{Choice, Installation, PARTITION};
use slipway_slots::Digest;
use slipway_slots::manifest::{Expectation, KeyRing};
use tempfile::TempDir;

use crate::support::host::noon;
use crate::support::images::{manifest, signer};

/// A program that says its version. What is behind `exit` is never read, as in a binary's padding.
fn program(version: &str) -> Vec<u8> {
    format!("#!/bin/sh\necho {version}\nexit 0\n").into_bytes()
}

fn image(version: &str, directory: &Path) -> Image {
    let bytes = program(version);
    let partition = build_partition(PARTITION, &mut bytes.as_slice(), bytes.len() as u64, directory).unwrap();
    Image {
        signed: signer().sign(&manifest(version, 1, vec![partition])),
        sources: Sources::new(vec![Box::new(ImageDirectory::new(directory))]),
    }
}

/// What the launcher starts says this.
fn starts(installation: &Installation, packaged: &Path) -> (String, Option<Digest>) {
    let (path, digest) = match installation.choose() {
        Choice::Version { path, digest, .. } => (path, Some(digest)),
        Choice::Packaged => (packaged.to_owned(), None),
    };
    let output = Command::new(&path)
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(output.status.success());
    (
        String::from_utf8(output.stdout).unwrap().trim().to_owned(),
        digest,
    )
}

struct DieAt {
    point: Failpoint,
    nth: usize,
    reached: AtomicUsize,
}

struct Died;

impl Failpoints for DieAt {
    fn reached(&self, point: Failpoint) {
        if point == self.point && self.reached.fetch_add(1, Ordering::Relaxed) + 1 == self.nth {
            resume_unwind(Box::new(Died));
        }
    }
}

fn expectation(keys: &KeyRing) -> Expectation<'_> {
    Expectation {
        keys,
        compatible: "edge-box",
        arch: "x86_64",
        epoch: 1,
        now: noon(),
        partitions: &[],
        quarantined: const { &std::collections::BTreeMap::new() },
    }
}

#[test]
fn killed_at_every_step_of_its_own_update_the_agent_still_starts() {
    let keys = signer().ring();
    let blobs = TempDir::new().unwrap();
    let mut deaths = 0;
    for point in Failpoint::ALL {
        for nth in 1.. {
            let place = TempDir::new().unwrap();
            let packaged = place.path().join("packaged");
            fs::write(&packaged, program("packaged")).unwrap();
            fs::set_permissions(&packaged, fs::Permissions::from_mode(0o755)).unwrap();
            let versions = place.path().join("versions");
            let calm = Installation::new(&versions, Arc::new(Unhindered));
            let first = calm
                .install(image("one", blobs.path()), &expectation(&keys), 2)
                .unwrap();
            assert_eq!(starts(&calm, &packaged), ("one".into(), Some(first)));
            calm.confirm(first).unwrap();
            let die = Arc::new(DieAt {
                point,
                nth,
                reached: AtomicUsize::new(0),
            });
            let dying = Installation::new(&versions, die.clone());
            let died = catch_unwind(AssertUnwindSafe(|| {
                let second = dying
                    .install(image("two", blobs.path()), &expectation(&keys), 2)
                    .unwrap();
                assert_eq!(starts(&dying, &packaged), ("two".into(), Some(second)));
                dying.confirm(second).unwrap();
            }))
            .is_err();
            if !died {
                assert!(die.reached.load(Ordering::Relaxed) < nth);
                break;
            }
            deaths += 1;
            let (said, _) = starts(&calm, &packaged);
            assert!(said == "one" || said == "two", "after {point:?}: {said}");
            // Asked again, it arrives.
            let second = calm
                .install(image("two", blobs.path()), &expectation(&keys), 2)
                .unwrap();
            let (said, digest) = starts(&calm, &packaged);
            assert_eq!((said.as_str(), digest), ("two", Some(second)));
            calm.confirm(second).unwrap();
            assert_eq!(starts(&calm, &packaged).0, "two");
        }
    }
    println!("report: the agent died at {deaths} places of its own update and started each time");
    assert!(deaths >= 8, "{deaths}");
}

#[test]
fn a_version_that_never_confirms_itself_is_left_after_its_tries() {
    let keys = signer().ring();
    let blobs = TempDir::new().unwrap();
    let place = TempDir::new().unwrap();
    let installation = Installation::new(place.path(), Arc::new(Unhindered));
    let first = installation
        .install(image("one", blobs.path()), &expectation(&keys), 1)
        .unwrap();
    installation.choose();
    installation.confirm(first).unwrap();
    let second = installation
        .install(image("two", blobs.path()), &expectation(&keys), 2)
        .unwrap();
    let chosen = || match installation.choose() {
        Choice::Version { digest, .. } => digest,
        Choice::Packaged => panic!("nothing was chosen"),
    };
    assert_eq!(
        [chosen(), chosen(), chosen(), chosen()],
        [second, second, first, first]
    );
}

#[test]
fn a_damaged_state_or_version_leads_to_the_packaged_agent() {
    let keys = signer().ring();
    let blobs = TempDir::new().unwrap();
    let place = TempDir::new().unwrap();
    let installation = Installation::new(place.path(), Arc::new(Unhindered));
    assert_eq!(installation.choose(), Choice::Packaged);
    let digest = installation
        .install(image("one", blobs.path()), &expectation(&keys), 1)
        .unwrap();
    installation.choose();
    installation.confirm(digest).unwrap();
    let Choice::Version { path, .. } = installation.choose() else {
        panic!("the confirmed version starts")
    };
    let good = fs::read(&path).unwrap();
    for place in (0..good.len()).step_by(97) {
        let mut bad = good.clone();
        bad[place] ^= 1;
        fs::write(&path, &bad).unwrap();
        assert_eq!(installation.choose(), Choice::Packaged, "byte {place}");
    }
    fs::write(&path, &good).unwrap();
    let state = place.path().join("state");
    let good = fs::read(&state).unwrap();
    for place in 0..good.len() - 1 {
        let mut bad = good.clone();
        bad[place] ^= 4;
        fs::write(&state, &bad).unwrap();
        assert_eq!(installation.choose(), Choice::Packaged, "byte {place}");
    }
}

#[test]
fn an_unsigned_agent_is_not_installed() {
    let keys = signer().ring();
    let blobs = TempDir::new().unwrap();
    let place = TempDir::new().unwrap();
    let installation = Installation::new(place.path(), Arc::new(Unhindered));
    let mut unsigned = image("one", blobs.path());
    unsigned.signed.signatures.clear();
    assert!(installation.install(unsigned, &expectation(&keys), 1).is_err());
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
}
