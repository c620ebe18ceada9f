//! Pieces of any length at any place, as the engine hands them to the writer.

use std::sync::mpsc::channel;

use proptest::prelude::*;

use super::*;
use crate::engine::{Unhindered, progress::Meter, progress::Watch};

const STEP: usize = 4 * BLOCK;

/// A partition in memory that remembers how it was written.
struct Recorded {
    bytes: Vec<u8>,
    writes: Vec<(u64, usize)>,
}

impl SlotTarget for Recorded {
    fn describe(&self) -> String {
        "memory".to_owned()
    }

    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn in_use(&mut self) -> io::Result<Option<String>> {
        Ok(None)
    }

    fn read_at(&mut self, offset: u64, buffer: &mut [u8], _: Through) -> io::Result<()> {
        buffer.copy_from_slice(&self.bytes[offset as usize..][..buffer.len()]);
        Ok(())
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.bytes[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        self.writes.push((offset, bytes.len()));
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
enum Part {
    InPlace,
    New { familiar: bool },
    Checkpoint,
}

fn part() -> impl Strategy<Value = (Part, usize)> {
    let kind = prop_oneof![
        2 => Just(Part::InPlace),
        3 => Just(Part::New { familiar: false }),
        3 => Just(Part::New { familiar: true }),
        1 => Just(Part::Checkpoint),
    ];
    // Shorter than what is written at once, longer than it, and whole blocks.
    let length = prop_oneof![
        1..900_usize,
        900..20_000_usize,
        (1..5_usize).prop_map(|count| count * BLOCK)
    ];
    (kind, length)
}

proptest! {
    /// Whatever comes in whatever pieces: the target has the image, in whole blocks, none written that it had and was
    /// asked about.
    #[test]
    fn pieces_become_whole_blocks(parts in proptest::collection::vec(part(), 1..12)) {
        let length: usize = parts.iter().map(|(_, length)| length).sum();
        let size = length.next_multiple_of(BLOCK);
        // Every third block is what the target holds already.
        let old: Vec<u8> = (0..size).map(|at| (at / BLOCK) as u8).collect();
        let mut image = old.clone();
        let mut at = 0;
        let (send, pieces) = channel();
        for (part, length) in &parts {
            if let Part::New { familiar } = *part {
                let mut placed = Placed::new(at as u64, *length, AlignedBuffer::default());
                for (number, byte) in placed.bytes_mut().iter_mut().enumerate() {
                    let place = at + number;
                    *byte = if (place / BLOCK).is_multiple_of(3) { old[place] } else { 0xee };
                }
                image[at..at + length].copy_from_slice(placed.bytes());
                let bytes = Bytes::Checked(placed);
                send.send(Piece::Bytes { bytes, familiar }).expect("it is taken");
            } else if let Part::Checkpoint = part {
                send.send(Piece::Checkpoint).expect("it is taken");
            }
            at += length;
        }
        drop(send);
        let mut target = Recorded { bytes: old.clone(), writes: Vec::new() };
        let index = ChunkIndex { entries: Vec::new() };
        let meter = Meter::new(Watch::default(), length as u64);
        let writer = BlockWriter::new(&mut target, &index, STEP as u64, &Unhindered, meter.wear());
        let (used, _memory) = channel();
        prop_assert!(writer.run(&pieces, &used).is_ok());
        prop_assert!(target.bytes == image, "the target has other bytes");
        for (offset, length) in &target.writes {
            prop_assert!(offset.is_multiple_of(BLOCK as u64) && length.is_multiple_of(BLOCK));
            prop_assert!(*length <= STEP, "{length}");
        }
        if parts.iter().all(|(part, _)| matches!(part, Part::New { familiar: true })) {
            let written: usize = target.writes.iter().map(|(_, length)| length).sum();
            let differ = (0..size / BLOCK).filter(|block| {
                let range = block * BLOCK..(block + 1) * BLOCK;
                old[range.clone()] != image[range]
            });
            prop_assert_eq!(written, differ.count() * BLOCK);
        }
    }
}
