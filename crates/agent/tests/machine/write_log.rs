//! What a guest did to its disk, from the log that qemu's `blklogwrites` keeps, and the disks that a power cut could have
//! left behind: every write before the last flush, and of those after it any.

use std::{collections::HashSet, fs, ops::Range, path::Path};

use rand::{Rng, SeedableRng, rngs::StdRng, seq::IteratorRandom};

const SECTOR: usize = 512;
const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;

#[derive(Clone, Debug)]
pub enum Event {
    Write { offset: usize, bytes: Range<usize> },
    Flush,
}

/// The log's bytes, and where in them each event's are.
pub struct Log {
    bytes: Vec<u8>,
    pub events: Vec<Event>,
}

impl Log {
    pub fn read(path: &Path) -> Self {
        let bytes = fs::read(path).expect("the log");
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        assert_eq!(number(0), MAGIC, "this is not a log of writes");
        let entries = number(16);
        let mut events = Vec::new();
        let mut at = SECTOR;
        for _ in 0..entries {
            let (sector, count, flags) = (number(at) as usize, number(at + 8) as usize, number(at + 16));
            at += SECTOR;
            assert_eq!(
                flags & DISCARD,
                0,
                "the guest discarded sectors, which is not played back"
            );
            let range = at..at + count * SECTOR;
            at = range.end;
            if !range.is_empty() {
                events.push(Event::Write {
                    offset: sector * SECTOR,
                    bytes: range,
                });
            }
            if flags & (FLUSH | FUA) != 0 {
                events.push(Event::Flush);
            }
        }
        Self { bytes, events }
    }

    /// Which bytes of the disk a write changes.
    pub fn touched(&self) -> impl Iterator<Item = Range<usize>> {
        self.events.iter().filter_map(|event| match event {
            Event::Write { offset, bytes } => Some(*offset..offset + bytes.len()),
            Event::Flush => None,
        })
    }

    /// The places of the writes among the events.
    pub fn writes(&self) -> impl Iterator<Item = usize> {
        (0..self.events.len()).filter(|at| matches!(self.events[*at], Event::Write { .. }))
    }

    fn data(&self, bytes: &Range<usize>) -> &[u8] {
        &self.bytes[bytes.clone()]
    }
}

/// A disk after a power cut: the first events, of which these sectors never arrived.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cut {
    pub after: usize,
    /// Writes that were lost, by their place among the events; all or one sector of each.
    pub lost: Vec<(usize, Option<usize>)>,
}

impl std::fmt::Display for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "power cut after event {}", self.after)?;
        for (write, sector) in &self.lost {
            match sector {
                None => write!(f, ", without write {write}")?,
                Some(sector) => write!(f, ", without sector {sector} of write {write}")?,
            }
        }
        Ok(())
    }
}

pub struct Cuts {
    pub prefixes: usize,
    pub reorderings: usize,
    pub all: Vec<Cut>,
}

impl Log {
    /// Every prefix, and at every event seeded subsets of what was not flushed, single omissions and torn writes.
    pub fn cuts(&self, subsets: usize, seed: u64) -> Cuts {
        let mut random = StdRng::seed_from_u64(seed);
        let mut known = HashSet::new();
        let mut all = Vec::new();
        let mut open: Vec<usize> = Vec::new();
        let mut prefixes = 0;
        for after in 0..=self.events.len() {
            let mut candidates = vec![Vec::new()];
            if let Some(last) = open.last() {
                // The writes before it were lost, though it arrived.
                candidates.push(vec![(open[random.random_range(0..open.len())], None)]);
                let Event::Write { bytes, .. } = &self.events[*last] else {
                    unreachable!("only writes wait for a flush")
                };
                candidates.push(vec![(*last, Some(random.random_range(0..bytes.len() / SECTOR)))]);
                for _ in 0..subsets {
                    let count = random.random_range(1..=open.len());
                    let mut lost: Vec<_> = open
                        .iter()
                        .map(|at| (*at, None))
                        .choose_multiple(&mut random, count);
                    lost.sort_unstable();
                    candidates.push(lost);
                }
            }
            for lost in candidates {
                let cut = Cut { after, lost };
                if known.insert(cut.clone()) {
                    prefixes += usize::from(cut.lost.is_empty());
                    all.push(cut);
                }
            }
            match self.events.get(after) {
                Some(Event::Write { .. }) => open.push(after),
                Some(Event::Flush) => open.clear(),
                None => {}
            }
        }
        Cuts {
            prefixes,
            reorderings: all.len() - prefixes,
            all,
        }
    }
}

/// A disk that goes from one cut to the next.
pub struct Replay<'a> {
    log: &'a Log,
    /// All events before `at`, the last of which is a flush.
    disk: Vec<u8>,
    at: usize,
}

impl<'a> Replay<'a> {
    pub fn new(log: &'a Log, start: Vec<u8>) -> Self {
        Self {
            log,
            disk: start,
            at: 0,
        }
    }

    /// The disk after this cut. Cuts come in the order of their events.
    pub fn disk_after(&mut self, cut: &Cut, seen: impl FnOnce(&[u8])) {
        let is_flush = |at: &usize| matches!(self.log.events[*at], Event::Flush);
        let flushed = (self.at..cut.after)
            .rev()
            .find(is_flush)
            .map_or(self.at, |at| at + 1);
        for at in self.at..flushed {
            if let Event::Write { offset, bytes } = &self.log.events[at] {
                let data = self.log.data(bytes);
                self.disk[*offset..offset + data.len()].copy_from_slice(data);
            }
        }
        self.at = flushed;
        let mut undo = Vec::new();
        for at in self.at..cut.after {
            let Event::Write { offset, bytes } = &self.log.events[at] else {
                continue;
            };
            let lost = cut.lost.iter().find(|(write, _)| *write == at);
            let data = self.log.data(bytes);
            undo.push((*offset, self.disk[*offset..offset + data.len()].to_vec()));
            for (sector, piece) in data.chunks(SECTOR).enumerate() {
                match lost {
                    Some((_, None)) => continue,
                    Some((_, Some(torn))) if *torn == sector => continue,
                    _ => {}
                }
                let start = offset + sector * SECTOR;
                self.disk[start..start + piece.len()].copy_from_slice(piece);
            }
        }
        seen(&self.disk);
        for (offset, bytes) in undo.into_iter().rev() {
            self.disk[offset..offset + bytes.len()].copy_from_slice(&bytes);
        }
    }
}

/// The disk of a machine whose disk said that everything had arrived, and lost this write all the same.
pub fn disk_of_a_liar(log: &Log, start: &[u8], lost: usize) -> Vec<u8> {
    let mut disk = start.to_vec();
    for (at, event) in log.events.iter().enumerate() {
        if let Event::Write { offset, bytes } = event
            && at != lost
        {
            disk[*offset..offset + bytes.len()].copy_from_slice(log.data(bytes));
        }
    }
    disk
}

#[test]
fn a_flushed_write_is_never_lost_and_the_others_may_be() {
    let write = |at: u8| {
        let start = SECTOR * usize::from(at);
        Event::Write {
            offset: start,
            bytes: start..start + SECTOR,
        }
    };
    let log = Log {
        bytes: (1..=4).flat_map(|at| [at; SECTOR]).collect(),
        events: vec![write(0), write(1), Event::Flush, write(2), write(3)],
    };
    let cuts = log.cuts(8, 7);
    assert_eq!(cuts.prefixes, 6);
    let mut replay = Replay::new(&log, vec![0; 4 * SECTOR]);
    let mut seen = HashSet::new();
    for cut in &cuts.all {
        replay.disk_after(cut, |disk| {
            let sectors: Vec<u8> = disk.iter().copied().step_by(SECTOR).collect();
            if cut.after >= 3 {
                assert_eq!(sectors[..2], [1, 2], "{cut}");
            }
            seen.insert(sectors);
        });
    }
    for possible in [[0, 0, 0, 0], [0, 2, 0, 0], [1, 2, 0, 4], [1, 2, 3, 4]] {
        assert!(seen.contains(&possible[..]), "{possible:?} is missing");
    }
}
