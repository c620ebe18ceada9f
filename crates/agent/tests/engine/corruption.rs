//! Bits that flip: in the target after it was written, in the journal, in the image.

use std::io;

use slipway_agent::engine::{Engine, Line, SlotPartition, read_lines};
use slipway_agent::target::{SlotTarget, Through};
use slipway_slots::Slot;
use slipway_slots::manifest::{Manifest, SignedManifest};

use super::{Bench, CHUNKS};
use crate::support::disks::MemoryTarget;
use crate::support::images::signer;

/// Flips one bit of what was written, at the first flush after the label.
struct Flipping {
    inner: MemoryTarget,
    place: usize,
    bit: u8,
}

impl SlotTarget for Flipping {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn in_use(&mut self) -> io::Result<Option<String>> {
        self.inner.in_use()
    }

    fn read_at(&mut self, offset: u64, buffer: &mut [u8], through: Through) -> io::Result<()> {
        self.inner.read_at(offset, buffer, through)?;
        let place = self.place as u64;
        if through == Through::Medium && (offset..offset + buffer.len() as u64).contains(&place) {
            buffer[(place - offset) as usize] ^= self.bit;
        }
        Ok(())
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// E-24: samples of every region of the slot, the label included.
#[test]
fn e24_a_bit_that_flips_on_the_medium_is_found_and_the_slot_is_not_armed() {
    let label = CHUNKS * 4096;
    let bench = Bench::new();
    let start = bench.shared.disks();
    for place in (0..label).step_by(4999).chain((label..label + 1500).step_by(250)) {
        bench.shared.change(|disks| *disks = start.clone());
        let mut host = bench.setup.host(&bench.shared, Some(Slot::A));
        host.slots.b = vec![SlotPartition {
            name: "root".into(),
            target: Box::new(Flipping {
                inner: MemoryTarget {
                    shared: bench.shared.clone(),
                    slot: Slot::B,
                    used_by: None,
                },
                place,
                bit: 1 << (place % 8),
            }),
        }];
        let mut engine = Engine::open(host).unwrap();
        let error = engine.prepare("op-1", bench.new.image()).unwrap_err().to_string();
        assert!(
            error.contains("read back as") || error.contains("label"),
            "{place}: {error}"
        );
        assert!(!engine.status().unwrap().slots[1].boot.can_boot());
        assert!(engine.activate("op-1", 3).is_err(), "{place}: it was armed");
    }
}

fn journal() -> Vec<u8> {
    let bench = Bench::new();
    let mut engine = bench.setup.engine(&bench.shared, Slot::A).unwrap();
    engine.prepare("op-1", bench.new.image()).unwrap();
    engine.activate("op-1", 3).unwrap();
    bench.shared.disks().journal
}

/// Lines before the damage are believed, the damaged one and those after it never.
#[test]
fn e35_every_damaged_bit_and_byte_of_the_journal_is_noticed() {
    let good = journal();
    let lines = read_lines(&good).lines;
    assert_eq!(lines.len(), 3, "accepted, verified, activated");
    assert!(read_lines(&good).problems.is_empty());
    let mut count = 0;
    for place in 0..good.len() {
        for change in 1..=255_u8 {
            let mut damaged = good.clone();
            damaged[place] ^= change;
            let reading = read_lines(&damaged);
            assert!(
                !reading.problems.is_empty(),
                "byte {place} changed by {change:#x}"
            );
            let untouched = good[..place].split(|byte| *byte == b'\n').count() - 1;
            let believed: Vec<&Line> = reading.lines.iter().collect();
            assert_eq!(believed, lines[..untouched].iter().collect::<Vec<_>>());
            count += 1;
        }
    }
    println!("report: {count} damaged bytes in the journal, all noticed");
}

/// The signature covers every bit of the manifest: every place with every other byte in full, and a sample in every run.
#[test]
fn e25_every_damaged_bit_and_byte_of_a_signed_manifest_is_refused() {
    let bench = Bench::new();
    let ring = signer().ring();
    let good = bench.new.signed.encode();
    assert!(ring.verify(&SignedManifest::decode(&good).unwrap()).is_ok());
    let full = crate::power::full();
    let mut count = 0;
    for place in (0..good.len()).step_by(if full { 1 } else { 7 }) {
        for change in 1..=255_u8 {
            // A single bit, or several.
            if !full && !change.is_power_of_two() && usize::from(change) % 61 != place % 61 {
                continue;
            }
            let mut damaged = good.clone();
            damaged[place] ^= change;
            if let Ok(signed) = SignedManifest::decode(&damaged)
                && let Ok(manifest) = ring.verify(&signed)
            {
                // Only a comment of the signature, which says nothing about the image, may differ.
                assert_eq!(
                    manifest, bench.new.manifest,
                    "byte {place} changed by {change:#x}"
                );
                assert_eq!(signed.manifest, bench.new.signed.manifest);
            }
            count += 1;
        }
    }
    let bytes = bench.new.manifest.encode();
    assert_eq!(Manifest::decode(&bytes).unwrap(), bench.new.manifest);
    println!("report: {count} damaged bits and bytes in a signed manifest, none accepted");
}

/// E-30 and the journal: a wiped or cut-off journal never stops the agent.
#[test]
fn a_journal_cut_off_anywhere_is_read_up_to_there_and_written_on() {
    let good = journal();
    let bench = Bench::new();
    for end in 0..good.len() {
        bench.shared.change(|disks| disks.journal = good[..end].to_vec());
        let mut engine = bench.setup.engine(&bench.shared, Slot::A).unwrap();
        let whole = good[..end].split(|byte| *byte == b'\n').count() - 1;
        assert_eq!(
            engine.status().unwrap().current.is_some(),
            whole > 0,
            "cut at {end}"
        );
        let journal = bench.shared.disks().journal;
        assert!(read_lines(&journal).problems.is_empty(), "cut at {end}");
    }
}
