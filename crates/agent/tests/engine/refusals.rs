//! E-25, E-27, E-44: what is refused, is refused before a byte is written or a slot is given up.

use slipway_agent::engine::{Class, Engine, EngineError, Preflight, PreflightError};
use slipway_slots::Slot;
use slipway_slots::manifest::{KeyRing, KeyRingFile, Manifest, SignedManifest};

use super::Bench;
use crate::support::host::no_demands;
use crate::support::images::{Signer, TestImage, blocks, signer};

fn refused(bench: &Bench, signed: SignedManifest) -> String {
    let before = bench.shared.disks();
    let mut image = bench.new.image();
    image.signed = signed;
    let mut engine = bench.setup.engine(&bench.shared, Slot::A).unwrap();
    let error = engine.prepare("op-1", image).unwrap_err();
    assert!(bench.shared.disks() == before, "something was written: {error}");
    assert!(bench.shared.log().is_empty(), "something was written: {error}");
    error.to_string()
}

fn changed(bench: &Bench, change: impl FnOnce(&mut Manifest)) -> SignedManifest {
    let mut manifest = bench.new.manifest.clone();
    change(&mut manifest);
    signer().sign(&manifest)
}

#[test]
fn e25_an_image_that_is_not_for_this_host_is_refused_before_a_byte_is_written() {
    let bench = Bench::new();
    let mut unsigned = bench.new.signed.clone();
    unsigned.signatures.clear();
    let mut altered = bench.new.signed.clone();
    altered.manifest = altered.manifest.replace("2.0", "2.1");
    let stranger = Signer::new().sign(&bench.new.manifest);
    let cases = [
        (
            unsigned,
            "0 of the signatures are by keys this host trusts: 1 are needed",
        ),
        (
            altered,
            "0 of the signatures are by keys this host trusts: 1 are needed",
        ),
        (
            stranger,
            "0 of the signatures are by keys this host trusts: 1 are needed",
        ),
        (
            changed(&bench, |manifest| {
                manifest.not_after = "2026-05-31T00:00:00Z".parse().unwrap();
            }),
            "expired on 2026-05-31T00:00:00Z; it is 2026-06-01T12:00:00Z",
        ),
        (
            changed(&bench, |manifest| manifest.compatible = vec!["toaster".into()]),
            "is for toaster; this host is edge-box",
        ),
        (
            changed(&bench, |manifest| manifest.arch = "aarch64".into()),
            "is for aarch64; this host is x86_64",
        ),
        (
            changed(&bench, |manifest| manifest.epoch = 0),
            "is of epoch 0; this host takes none below 1",
        ),
        (
            changed(&bench, |manifest| manifest.partitions[0].name = "boot".into()),
            "has partitions boot; the slot has root",
        ),
    ];
    for (signed, reason) in cases {
        let said = refused(&bench, signed);
        assert!(said.contains(reason), "{said}");
    }
}

#[test]
fn e27_an_image_larger_than_the_slot_is_refused_before_a_byte_is_written() {
    let bench = Bench::new();
    let large = TestImage::build("2.0", 2, blocks(super::CHUNKS + 1, 2, &[]));
    let said = refused(&bench, large.signed);
    assert!(
        said.contains("69632 bytes for partition root; the slot has room for 65536"),
        "{said}"
    );
}

/// A clock that was set back does not revive an expired image: the running one was made later.
#[test]
fn a_clock_that_was_set_back_does_not_revive_an_expired_image() {
    let mut bench = Bench::new();
    bench.setup.now = "1970-01-02T00:00:00Z".parse().unwrap();
    let signed = changed(&bench, |manifest| {
        manifest.created = "2024-01-01T00:00:00Z".parse().unwrap();
        manifest.not_after = "2025-01-01T00:00:00Z".parse().unwrap();
    });
    let said = refused(&bench, signed);
    assert!(said.contains("expired"), "{said}");
}

#[test]
fn e44_a_slot_that_is_mounted_is_refused() {
    let mut bench = Bench::new();
    bench.setup.used_by = Some("mounted on /mnt".into());
    let before = bench.shared.disks();
    let mut engine = bench.setup.engine(&bench.shared, Slot::A).unwrap();
    let error = engine.prepare("op-1", bench.new.image()).unwrap_err();
    assert!(matches!(error, EngineError::InUse { .. }));
    assert_eq!(
        error.to_string(),
        "slot B is in use: mounted on /mnt; nothing was written"
    );
    assert!(bench.shared.disks() == before);
}

/// The running slot is never the target: the engine chooses the other one, and a slot on trial blocks.
#[test]
fn e44_the_running_slot_is_never_written() {
    let bench = Bench::new();
    let mut engine = bench.setup.engine(&bench.shared, Slot::A).unwrap();
    engine.prepare("op-1", bench.new.image()).unwrap();
    assert!(
        bench.old.is_in(&bench.shared.disks().a),
        "the running slot is as it was"
    );
}

#[test]
fn two_of_three_keys_must_sign_and_a_ring_hands_over_to_the_next() {
    let signers = [Signer::new(), Signer::new(), Signer::new()];
    let ring = |version, signers: &[&Signer]| KeyRingFile {
        version,
        threshold: 2,
        keys: signers.iter().map(|signer| signer.public()).collect(),
    };
    let current = KeyRing::new(ring(1, &[&signers[0], &signers[1], &signers[2]])).unwrap();
    let bench = Bench::new();
    let bytes = bench.new.manifest.encode();
    let mut signed = bench.new.signed.clone();
    let first = signers[0].signature(&bytes);
    signed.signatures = vec![first.clone(), first];
    let error = current.verify(&signed).unwrap_err().to_string();
    assert!(
        error.contains("1 of the signatures"),
        "one key twice is one key: {error}"
    );
    signed.signatures.push(signers[2].signature(&bytes));
    assert_eq!(current.verify(&signed).unwrap(), bench.new.manifest);

    let newcomer = Signer::new();
    let next = serde_json::to_vec(&ring(2, &[&signers[0], &newcomer])).unwrap();
    let sign = |signers: &[&Signer]| -> Vec<String> {
        signers.iter().map(|signer| signer.signature(&next)).collect()
    };
    assert!(
        current.rotate(&next, &sign(&[&signers[0], &newcomer])).is_err(),
        "the old ring needs two"
    );
    assert!(
        current.rotate(&next, &sign(&[&signers[0], &signers[1]])).is_err(),
        "the new ring needs two"
    );
    let rotated = current
        .rotate(&next, &sign(&[&signers[0], &signers[1], &newcomer]))
        .unwrap();
    let old = serde_json::to_vec(current.file()).unwrap();
    let all: Vec<String> = [&signers[0], &signers[1], &newcomer]
        .iter()
        .map(|signer| signer.signature(&old))
        .collect();
    assert!(rotated.rotate(&old, &all).is_err(), "a ring does not go back");
}

/// What `prepare` says on a host with these demands, and that nothing was written.
fn refused_by(preflight: Preflight) -> EngineError {
    let mut bench = Bench::new();
    bench.setup.preflight = preflight;
    let before = bench.shared.disks();
    let mut engine = bench.setup.engine(&bench.shared, Slot::A).unwrap();
    let error = engine.prepare("op-1", bench.new.image()).unwrap_err();
    assert!(bench.shared.disks() == before, "something was written: {error}");
    assert!(bench.shared.log().is_empty(), "something was written: {error}");
    assert_eq!(error.class(), Class::Transient, "{error}");
    error
}

/// E-26 (local half): too little space is said before the start, with both numbers.
#[test]
fn e26_too_little_space_is_refused_before_a_byte_is_written() {
    let directory = tempfile::TempDir::new().unwrap();
    let demand = Preflight {
        least_space: u64::MAX,
        ..Preflight::new(directory.path())
    };
    let EngineError::Preflight(PreflightError::Space {
        place,
        available,
        needed,
    }) = refused_by(demand.clone())
    else {
        panic!("another reason");
    };
    assert_eq!(place, directory.path().display().to_string());
    assert_eq!(needed, u64::MAX);
    assert!(available > 0);
    let said = refused_by(demand).to_string();
    assert!(
        said.ends_with("18446744073709551615 are needed (ResourceExhausted)"),
        "{said}"
    );
}

/// A write that a power cut is likely to interrupt is not begun; on mains, or with enough in the battery, it is.
#[test]
fn an_empty_battery_is_refused_before_a_byte_is_written() {
    let supplies = tempfile::TempDir::new().unwrap();
    let describe = |name: &str, files: &[(&str, &str)]| {
        let folder = supplies.path().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        for (file, text) in files {
            std::fs::write(folder.join(file), format!("{text}\n")).unwrap();
        }
    };
    let demand = Preflight {
        supplies: supplies.path().to_owned(),
        ..no_demands()
    };
    describe("BAT0", &[("type", "Battery"), ("capacity", "12")]);
    describe(
        "MOUSE",
        &[("type", "Battery"), ("capacity", "99"), ("scope", "Device")],
    );
    describe("AC", &[("type", "Mains"), ("online", "0")]);
    assert_eq!(
        refused_by(demand.clone()).to_string(),
        "the host runs on battery with 12 %; an upgrade needs 30 %, or mains power"
    );
    let accepts = |preflight: &Preflight| {
        let mut bench = Bench::new();
        bench.setup.preflight = preflight.clone();
        let mut engine = bench.setup.engine(&bench.shared, Slot::A).unwrap();
        engine.prepare("op-1", bench.new.image()).unwrap();
    };
    describe("AC", &[("online", "1")]);
    accepts(&demand);
    describe("AC", &[("online", "0")]);
    describe("BAT0", &[("capacity", "30")]);
    accepts(&demand);
}

/// A configuration that names one partition for both slots would overwrite the running system.
#[test]
fn e44_one_partition_for_both_slots_is_refused() {
    let bench = Bench::new();
    let before = bench.shared.disks();
    let mut host = bench.setup.host(&bench.shared, Some(Slot::A));
    host.slots.b = bench.setup.host(&bench.shared, Some(Slot::A)).slots.a;
    let mut engine = Engine::open(host).unwrap();
    let error = engine.prepare("op-1", bench.new.image()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "slot A is a partition of both slots; nothing was written"
    );
    assert!(bench.shared.disks() == before);
    assert!(bench.shared.log().is_empty());
}
