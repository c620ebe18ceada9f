//! GPT partition attributes as ChromeOS and its relatives read them: priority, tries and success of each slot's
//! partition. Also the little of GPT that it takes to find a partition.
//!
//! The table is there twice. A reader believes the primary copy while its checksums are right, so a change writes the
//! backup first; when the primary is damaged, the backup counts and the primary is written first.

use crate::{BySlot, Slot};

use super::{BootState, Codec, CodecError, Contents, Decoded, Extent, Layout, SlotBoot, Step};

const SECTOR: u64 = 512;
const HEADER: usize = 92;
const ENTRY: usize = 128;
const ENTRIES: usize = 128;
/// One header sector and the entries.
const COPY: u64 = SECTOR + (ENTRY * ENTRIES) as u64;

const PRIORITY: u32 = 48;
const TRIES: u32 = 52;
const SUCCESSFUL: u32 = 56;

/// Where a partition of a GPT disk lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// From 1, as in `/dev/sda1`.
    pub number: u32,
    pub offset: u64,
    pub length: u64,
}

/// The attributes of two partitions of one disk with 512-byte sectors and 128 entries.
#[derive(Clone, Copy, Debug)]
pub struct GptAttributes {
    pub disk_size: u64,
    /// Partition numbers, from 1.
    pub partitions: BySlot<u32>,
    /// How many tries a slot is armed with: the format counts only those that are left.
    pub tries: u8,
}

/// A copy of the table whose checksums are right.
#[derive(Clone)]
struct Table {
    header: Vec<u8>,
    entries: Vec<u8>,
    /// The rest of the header's sector is empty.
    padded: bool,
}

/// The two ranges of a disk that hold its tables, primary first.
pub fn table_extents(disk_size: u64) -> [Extent; 2] {
    let sectors = disk_size / SECTOR;
    [
        Extent {
            offset: SECTOR,
            length: COPY,
        },
        Extent {
            offset: sectors.saturating_sub(COPY / SECTOR) * SECTOR,
            length: COPY,
        },
    ]
}

/// The partitions in use, from the bytes at [`table_extents`]. `None` when neither copy can be trusted.
pub fn partitions(disk_size: u64, tables: [&[u8]; 2]) -> Option<Vec<Partition>> {
    let table = Table::primary(tables[0], disk_size).or_else(|| Table::backup(tables[1], disk_size))?;
    let found = table
        .entries
        .chunks_exact(ENTRY)
        .enumerate()
        .filter(|(_, entry)| entry[..16].iter().any(|byte| *byte != 0))
        .filter_map(|(at, entry)| {
            let first = u64_at(entry, 32);
            let last = u64_at(entry, 40);
            let end = last.checked_add(1)?.checked_mul(SECTOR)?;
            (first <= last && end <= disk_size).then_some(Partition {
                number: at as u32 + 1,
                offset: first * SECTOR,
                length: end - first * SECTOR,
            })
        });
    Some(found.collect())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

impl Table {
    /// Header first, entries after it.
    fn primary(bytes: &[u8], disk_size: u64) -> Option<Self> {
        let (header, entries) = bytes.split_at_checked(SECTOR as usize)?;
        Self::read(header, entries, 1, 2, disk_size)
    }

    /// Entries first, header in the disk's last sector.
    fn backup(bytes: &[u8], disk_size: u64) -> Option<Self> {
        let (entries, header) = bytes.split_at_checked((COPY - SECTOR) as usize)?;
        let sectors = disk_size / SECTOR;
        Self::read(header, entries, sectors - 1, sectors - COPY / SECTOR, disk_size)
    }

    fn read(sector: &[u8], entries: &[u8], own: u64, entries_at: u64, disk_size: u64) -> Option<Self> {
        if sector.len() as u64 != SECTOR || entries.len() != ENTRY * ENTRIES || disk_size < 3 * COPY {
            return None;
        }
        let header = &sector[..HEADER];
        let mut summed = header.to_vec();
        summed[16..20].fill(0);
        let right = header.starts_with(b"EFI PART")
            && u32_at(header, 12) as usize == HEADER
            && crc32fast::hash(&summed) == u32_at(header, 16)
            && u64_at(header, 24) == own
            && u64_at(header, 72) == entries_at
            && u32_at(header, 80) as usize == ENTRIES
            && u32_at(header, 84) as usize == ENTRY
            && crc32fast::hash(entries) == u32_at(header, 88);
        right.then(|| Self {
            header: header.to_vec(),
            entries: entries.to_vec(),
            padded: sector[HEADER..].iter().all(|byte| *byte == 0),
        })
    }

    fn attributes(&self, number: u32) -> u64 {
        u64_at(&self.entries, (number as usize - 1) * ENTRY + 48)
    }

    fn set_attributes(&mut self, number: u32, attributes: u64) {
        let at = (number as usize - 1) * ENTRY + 48;
        self.entries[at..at + 8].copy_from_slice(&attributes.to_le_bytes());
    }

    /// The same entries, with the header for the other place and the sums made right.
    fn placed(&self, own: u64, other: u64, entries_at: u64) -> Self {
        let mut header = self.header.clone();
        header[24..32].copy_from_slice(&own.to_le_bytes());
        header[32..40].copy_from_slice(&other.to_le_bytes());
        header[72..80].copy_from_slice(&entries_at.to_le_bytes());
        header[88..92].copy_from_slice(&crc32fast::hash(&self.entries).to_le_bytes());
        header[16..20].fill(0);
        let sum = crc32fast::hash(&header);
        header[16..20].copy_from_slice(&sum.to_le_bytes());
        Self {
            header,
            entries: self.entries.clone(),
            padded: true,
        }
    }
}

impl GptAttributes {
    fn tables(&self, contents: &Contents) -> ([Option<Table>; 2], Vec<String>) {
        let Contents::Extents(extents) = contents else {
            return ([None, None], vec!["it is not a disk".to_owned()]);
        };
        let bytes = |at: usize| extents.get(at).map_or(&[][..], Vec::as_slice);
        let tables = [
            Table::primary(bytes(0), self.disk_size),
            Table::backup(bytes(1), self.disk_size),
        ];
        let mut problems = Vec::new();
        for (name, table) in ["primary", "backup"].iter().zip(&tables) {
            match table {
                None => problems.push(format!("the {name} table is damaged")),
                Some(table) if !table.padded => {
                    problems.push(format!("the {name} table's header has bytes after its end"));
                }
                Some(_) => {}
            }
        }
        if let [Some(primary), Some(backup)] = &tables {
            // Only the places differ between the two.
            let same = primary.entries == backup.entries
                && primary.header[..16] == backup.header[..16]
                && primary.header[40..72] == backup.header[40..72];
            if !same {
                problems.push("the primary and the backup table differ".to_owned());
            }
        }
        (tables, problems)
    }

    fn state(&self, table: &Table) -> BootState {
        let attributes = BySlot::each(|slot| table.attributes(self.partitions[slot]));
        let field = |slot: Slot, at: u32| (attributes[slot] >> at & 0xf) as u8;
        let slots = BySlot::each(|slot| {
            let left = field(slot, TRIES);
            if field(slot, PRIORITY) == 0 {
                SlotBoot::Unbootable
            } else if attributes[slot] >> SUCCESSFUL & 1 == 1 {
                SlotBoot::Good
            } else {
                SlotBoot::Trial {
                    left,
                    of: self.tries.max(left),
                }
            }
        });
        let preferred = if field(Slot::B, PRIORITY) > field(Slot::A, PRIORITY) {
            Slot::B
        } else {
            Slot::A
        };
        BootState {
            slots,
            preferred,
            epoch: 0,
        }
    }

    fn attributes(old: u64, slot: Slot, state: &BootState) -> u64 {
        let priority: u64 = if slot == state.preferred { 2 } else { 1 };
        let (priority, tries, successful) = match state.slots[slot] {
            SlotBoot::Unbootable => (0, 0, 0),
            SlotBoot::Trial { left, .. } => (priority, u64::from(left), 0),
            SlotBoot::Good => (priority, 0, 1),
        };
        let cleared = old & !(0x1ff << PRIORITY);
        cleared | priority << PRIORITY | tries << TRIES | successful << SUCCESSFUL
    }
}

impl Codec for GptAttributes {
    fn name(&self) -> &'static str {
        "gpt"
    }

    fn layout(&self) -> Layout {
        Layout::Extents(table_extents(self.disk_size).to_vec())
    }

    fn decode(&self, contents: &Contents) -> Decoded {
        let (tables, problems) = self.tables(contents);
        let [primary, backup] = &tables;
        Decoded {
            state: primary
                .as_ref()
                .or(backup.as_ref())
                .map(|table| self.state(table)),
            problems,
        }
    }

    fn encode(&self, contents: &Contents, state: &BootState) -> Result<Vec<Step>, CodecError> {
        for slot in Slot::BOTH {
            let number = self.partitions[slot];
            if number == 0 || number as usize > ENTRIES {
                return Err(CodecError::Layout {
                    store: "gpt",
                    what: format!("slot {slot} is partition {number}: partitions are 1 to {ENTRIES}"),
                });
            }
            // Armed with another number, a slot would look as if it had been tried already.
            if let SlotBoot::Trial { of, .. } = state.slots[slot]
                && of != self.tries
            {
                return Err(CodecError::NoRoom {
                    store: "gpt",
                    what: format!("slots are armed with {} tries here, not with {of}", self.tries),
                });
            }
        }
        let (tables, problems) = self.tables(contents);
        let (Contents::Extents(extents), Some(source)) =
            (contents, tables[0].as_ref().or(tables[1].as_ref()))
        else {
            return Err(CodecError::Layout {
                store: "gpt",
                what: "neither partition table can be read".to_owned(),
            });
        };
        let mut table = source.clone();
        for slot in Slot::BOTH {
            let number = self.partitions[slot];
            table.set_attributes(number, Self::attributes(table.attributes(number), slot, state));
        }
        if problems.is_empty() && table.entries == source.entries {
            return Ok(Vec::new());
        }
        let last = self.disk_size / SECTOR - 1;
        let backup_entries = self.disk_size / SECTOR - COPY / SECTOR;
        let primary = table.placed(1, last, 2);
        let backup = table.placed(last, 1, backup_entries);
        let layout = table_extents(self.disk_size);
        let header = |table: &Table| {
            let mut sector = table.header.clone();
            sector.resize(SECTOR as usize, 0);
            sector
        };
        let mut primary_bytes = header(&primary);
        primary_bytes.extend_from_slice(&primary.entries);
        let mut backup_bytes = backup.entries.clone();
        backup_bytes.extend_from_slice(&header(&backup));
        let mut order = [(1, backup_bytes), (0, primary_bytes)];
        if tables[0].is_none() {
            order.reverse();
        }
        let mut steps = Vec::new();
        for (at, bytes) in order {
            let changed: Vec<_> = bytes
                .chunks(SECTOR as usize)
                .zip(extents[at].chunks(SECTOR as usize))
                .enumerate()
                .filter(|(_, (new, old))| new != old)
                .map(|(sector, (new, _))| Step::Write {
                    offset: layout[at].offset + sector as u64 * SECTOR,
                    bytes: new.to_vec(),
                })
                .collect();
            if !changed.is_empty() {
                steps.extend(changed);
                steps.push(Step::Flush);
            }
        }
        Ok(steps)
    }
}
