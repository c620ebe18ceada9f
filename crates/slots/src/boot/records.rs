//! The agent's own boot store: two records, each in two copies, on a raw partition or in a file.
//!
//! The record with the higher sequence number counts. A change writes the other record, one copy after the other, so
//! the one that counts is never touched. Two good copies of one record that differ are a quorum against each other,
//! and neither is believed.

use crate::{BySlot, Slot};

use super::{BootState, Codec, CodecError, Contents, Decoded, Extent, Layout, MAX_TRIES, SlotBoot, Step};

const MAGIC: &[u8; 8] = b"slipboot";
const VERSION: u8 = 1;
/// One copy takes a block of its own: no write touches two of them.
const BLOCK: usize = 4096;
const COPIES: usize = 4;
/// Everything before the checksum; it fits into one sector, so a whole copy is written or not.
const PAYLOAD: usize = 60;

/// Two records in two copies each, [`Records::SIZE`] bytes from `offset` on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Records {
    pub offset: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Record {
    sequence: u64,
    state: BootState,
}

impl Records {
    pub const SIZE: u64 = (BLOCK * COPIES) as u64;

    /// The record that counts, and what is wrong with any copy.
    fn read(contents: &Contents) -> (Option<Record>, [bool; COPIES], Vec<String>) {
        let Contents::Extents(extents) = contents else {
            return (None, [false; COPIES], vec!["it is not a device".to_owned()]);
        };
        let bytes = extents.first().map_or(&[][..], Vec::as_slice);
        let mut problems = Vec::new();
        let mut good = [false; COPIES];
        let mut records = [None; COPIES];
        for copy in 0..COPIES {
            match bytes
                .get(copy * BLOCK..(copy + 1) * BLOCK)
                .and_then(|block| decode(block, copy))
            {
                Some((record, padded)) => {
                    records[copy] = Some(record);
                    good[copy] = padded;
                    if !padded {
                        problems.push(format!("copy {copy} has bytes where it must have none"));
                    }
                }
                None => problems.push(format!("copy {copy} is damaged")),
            }
        }
        let mut best: Option<Record> = None;
        for pair in 0..2 {
            let both = [records[pair * 2], records[pair * 2 + 1]];
            let record = match both {
                [Some(first), Some(second)] if first == second => Some(first),
                [Some(first), Some(second)] if first.sequence == second.sequence => {
                    problems.push(format!("the copies of record {} differ", first.sequence));
                    good[pair * 2] = false;
                    good[pair * 2 + 1] = false;
                    None
                }
                [Some(first), Some(second)] => {
                    // Power failed between the two copies.
                    problems.push(format!(
                        "record {} has one copy only",
                        first.sequence.max(second.sequence)
                    ));
                    let stale = usize::from(first.sequence > second.sequence);
                    good[pair * 2 + stale] = false;
                    both.into_iter().flatten().max_by_key(|record| record.sequence)
                }
                [one, other] => one.or(other),
            };
            if let Some(record) = record
                && best.is_none_or(|best| best.sequence < record.sequence)
            {
                best = Some(record);
            }
        }
        (best, good, problems)
    }

    fn write(self, record: Record, steps: &mut Vec<Step>) {
        let pair = (record.sequence % 2) as usize;
        for copy in [pair * 2, pair * 2 + 1] {
            steps.push(Step::Write {
                offset: self.offset + (copy * BLOCK) as u64,
                bytes: encode(record, copy),
            });
            steps.push(Step::Flush);
        }
    }
}

impl Codec for Records {
    fn name(&self) -> &'static str {
        "records"
    }

    fn layout(&self) -> Layout {
        Layout::Extents(vec![Extent {
            offset: self.offset,
            length: Self::SIZE,
        }])
    }

    fn decode(&self, contents: &Contents) -> Decoded {
        let (record, _, problems) = Self::read(contents);
        Decoded {
            state: record.map(|record| record.state),
            problems,
        }
    }

    fn encode(&self, contents: &Contents, state: &BootState) -> Result<Vec<Step>, CodecError> {
        let (record, good, _) = Self::read(contents);
        let mut steps = Vec::new();
        let sequence = record.map_or(0, |record| record.sequence);
        if record.is_some_and(|record| record.state == *state) && good == [true; COPIES] {
            return Ok(steps);
        }
        self.write(
            Record {
                sequence: sequence + 1,
                state: *state,
            },
            &mut steps,
        );
        let pair = (sequence % 2) as usize;
        if !(good[pair * 2] && good[pair * 2 + 1]) {
            self.write(
                Record {
                    sequence: sequence + 2,
                    state: *state,
                },
                &mut steps,
            );
        }
        Ok(steps)
    }
}

fn encode(record: Record, copy: usize) -> Vec<u8> {
    let mut block = Vec::with_capacity(BLOCK);
    block.extend_from_slice(MAGIC);
    block.push(VERSION);
    block.push(copy as u8);
    block.push(record.state.preferred.letter() as u8);
    for slot in Slot::BOTH {
        block.extend_from_slice(&match record.state.slots[slot] {
            SlotBoot::Unbootable => [b'u', 0, 0],
            SlotBoot::Trial { left, of } => [b't', left, of],
            SlotBoot::Good => [b'g', 0, 0],
        });
    }
    block.extend_from_slice(&record.state.epoch.to_be_bytes());
    block.extend_from_slice(&record.sequence.to_be_bytes());
    block.resize(PAYLOAD, 0);
    block.extend_from_slice(&crc32fast::hash(&block).to_be_bytes());
    block.resize(BLOCK, 0);
    block
}

/// The record, and whether the rest of its block is empty as it must be.
fn decode(block: &[u8], copy: usize) -> Option<(Record, bool)> {
    let (payload, rest) = block.split_at(PAYLOAD);
    let (sum, rest) = rest.split_at(4);
    if crc32fast::hash(payload).to_be_bytes() != sum
        || !payload.starts_with(MAGIC)
        || payload[8] != VERSION
        || usize::from(payload[9]) != copy
    {
        return None;
    }
    let slot = |at: usize| match payload[at..at + 3] {
        [b'u', 0, 0] => Some(SlotBoot::Unbootable),
        [b'g', 0, 0] => Some(SlotBoot::Good),
        [b't', left, of] if left <= of && (1..=MAX_TRIES).contains(&of) => Some(SlotBoot::Trial { left, of }),
        _ => None,
    };
    let number = |at: usize| u64::from_be_bytes(payload[at..at + 8].try_into().expect("8 bytes"));
    let record = Record {
        sequence: number(25),
        state: BootState {
            slots: BySlot {
                a: slot(11)?,
                b: slot(14)?,
            },
            preferred: match payload[10] {
                b'A' => Slot::A,
                b'B' => Slot::B,
                _ => return None,
            },
            epoch: number(17),
        },
    };
    Some((record, rest.iter().all(|byte| *byte == 0)))
}
