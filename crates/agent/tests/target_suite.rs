//! E-43: one suite for every slot target. A target that passes it can be written by the engine.

use slipway_agent::engine::{Engine, SlotPartition};
use slipway_agent::target::{Cut, SlotTarget, Through};
use slipway_slots::boot::BootState;
use slipway_slots::chunking::Chunker;
use slipway_slots::{BySlot, Digest, Slot};

use crate::support::disks::{Disks, MemoryTarget, Shared};
use crate::support::host::{Kind, Setup};
use crate::support::images::{TestImage, blocks, noise};

/// The size every target of the suite has.
pub const SIZE: u64 = 16 * 4096 + 64 * 1024;

/// Holds a target of [`SIZE`] bytes to what the engine relies on. `open` gives the same partition each time: what one
/// wrote and flushed, the next one reads.
pub fn check(name: &str, open: &mut dyn FnMut() -> Box<dyn SlotTarget>) {
    reads_what_was_written(name, &mut *open());
    let mut again = open();
    let mut block = vec![0; 4096];
    again.read_at(8192, &mut block, Through::Medium).unwrap();
    assert!(
        block.iter().all(|byte| *byte == 7),
        "{name}: opened again, it reads what was flushed"
    );
    stays_inside(name, &mut *open());
    digests_are_of_the_bytes(name, &mut *open());
    takes_an_image(name, open);
}

fn reads_what_was_written(name: &str, target: &mut dyn SlotTarget) {
    assert_eq!(target.size(), SIZE, "{name}");
    assert!(
        target.block_size().is_power_of_two() && target.block_size() <= 4096,
        "{name}"
    );
    assert_eq!(target.in_use().unwrap(), None, "{name}");
    target.write_at(0, &vec![1; 64 * 1024]).unwrap();
    target.write_at(8192, &vec![7; 4096]).unwrap();
    let end = SIZE - 4096;
    target.write_at(end, &vec![9; 4096]).unwrap();
    target.flush().unwrap();
    for through in [Through::Cache, Through::Medium] {
        let mut bytes = vec![0; SIZE as usize];
        target.read_at(0, &mut bytes, through).unwrap();
        assert_eq!(bytes[8191], 1, "{name}");
        assert_eq!(bytes[8192], 7, "{name}");
        assert_eq!(bytes[12287], 7, "{name}");
        assert_eq!(bytes[12288], 1, "{name}");
        assert_eq!(bytes[end as usize..], vec![9; 4096], "{name}");
        let mut few = [0; 10];
        target.read_at(8187, &mut few, through).unwrap();
        assert_eq!(
            few,
            [1, 1, 1, 1, 1, 7, 7, 7, 7, 7],
            "{name}: reads need no alignment"
        );
    }
}

fn stays_inside(name: &str, target: &mut dyn SlotTarget) {
    let mut block = vec![0; 4096];
    assert!(
        target.read_at(SIZE - 100, &mut block, Through::Cache).is_err(),
        "{name}: reads past its end"
    );
    assert!(
        target.write_at(SIZE, &block).is_err(),
        "{name}: writes past its end"
    );
    assert!(
        target.write_at(u64::MAX - 4095, &block).is_err(),
        "{name}: writes around the end"
    );
}

fn digests_are_of_the_bytes(name: &str, target: &mut dyn SlotTarget) {
    let bytes = blocks(16, 3, &[]);
    target.write_at(0, &bytes).unwrap();
    target.flush().unwrap();
    for through in [Through::Cache, Through::Medium] {
        let digests = target.digests(4097, &[4096, 1, 20_000, 100], through).unwrap();
        let expected: Vec<_> = [4097..8193, 8193..8194, 8194..28_194, 28_194..28_294]
            .map(|range| Digest::of(&bytes[range]))
            .to_vec();
        assert_eq!(digests, expected, "{name}");
        let whole = target.digest(0, bytes.len() as u64, through).unwrap();
        assert_eq!(whole, Digest::of(&bytes), "{name}");
    }
    cuts_are_those_of_the_bytes(name, target);
}

/// Cut at once or in several goes, chunks are the ones that whoever has the bytes cuts himself.
fn cuts_are_those_of_the_bytes(name: &str, target: &mut dyn SlotTarget) {
    let bytes = noise(16, 3);
    target.write_at(0, &bytes).unwrap();
    target.flush().unwrap();
    let chunker = Chunker::new(1024).unwrap();
    let mut rest = &bytes[100..];
    let mut expected = Vec::new();
    while !rest.is_empty() {
        let (chunk, behind) = rest.split_at(chunker.cut(rest));
        expected.push(Cut {
            digest: Digest::of(chunk),
            length: chunk.len() as u32,
        });
        rest = behind;
    }
    assert!(expected.len() > 30, "{}", expected.len());
    for count in [1, 7, 1000] {
        let mut found = Vec::new();
        let (mut at, end) = (100, bytes.len() as u64);
        while at < end {
            let cuts = target.cut(at, end - at, chunker, count).unwrap();
            assert!(!cuts.is_empty() && cuts.len() <= count, "{name}");
            at += cuts.iter().map(|cut| u64::from(cut.length)).sum::<u64>();
            found.extend(cuts);
        }
        assert_eq!(found, expected, "{name}, {count} at once");
    }
}

/// The engine writes, verifies and reads the label of an image on it.
fn takes_an_image(name: &str, open: &mut dyn FnMut() -> Box<dyn SlotTarget>) {
    let setup = Setup::new(Kind::Records);
    let old = TestImage::build("1.0", 1, blocks(16, 1, &[1, 2]));
    let new = TestImage::build("2.0", 2, blocks(16, 2, &[1, 2]));
    let shared = Shared::new(
        Disks {
            a: old.slot(SIZE as usize),
            b: Vec::new(),
            store: setup.kind.bytes(&BootState::installed(Slot::A)),
            journal: Vec::new(),
        },
        false,
    );
    let mut host = setup.host(&shared, Some(Slot::A));
    let partition = |target: Box<dyn SlotTarget>| {
        vec![SlotPartition {
            name: "root".into(),
            target,
        }]
    };
    host.slots = BySlot {
        a: partition(Box::new(MemoryTarget {
            shared: shared.clone(),
            slot: Slot::A,
            used_by: None,
        })),
        b: partition(open()),
    };
    let mut engine = Engine::open(host).unwrap();
    engine
        .prepare("op-1", new.image())
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    engine
        .activate("op-1", 3)
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(
        engine.status().unwrap().slots[1].version.as_deref(),
        Some("2.0"),
        "{name}"
    );
    let mut bytes = vec![0; SIZE as usize];
    open().read_at(0, &mut bytes, Through::Medium).unwrap();
    assert!(new.is_in(&bytes), "{name}: the image is in it");
}
