//! The VHDX log: entries as bytes in and values out, which of them are active, and what replaying them writes. Nothing
//! here does I/O.

use super::{
    Error,
    layout::{Extent, Guid, REGION_TABLES, SECTOR, checksum, put, u32_at, u64_at},
};

const HEADER_LENGTH: usize = 64;
const DESCRIPTOR_LENGTH: usize = 32;
/// A sector that is written back whole: its first eight and last four bytes travel in the descriptor.
const CARRIED: std::ops::Range<usize> = 8..SECTOR - 4;

/// The largest disk of the format, twice: nobody needs a longer file.
const LARGEST_FILE: u64 = 128 << 40;

/// One write that an entry carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Descriptor {
    Data { offset: u64, sector: Box<[u8]> },
    Zero(Extent),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub sequence: u64,
    /// Where in the log the oldest entry is that is not yet in place.
    pub tail: u32,
    /// The file had this length, flushed, when the entry was written.
    pub flushed_length: u64,
    /// The file needs this length for what the entry says.
    pub last_length: u64,
    pub changes: Vec<Descriptor>,
}

fn descriptor_sectors(count: usize) -> usize {
    (HEADER_LENGTH + count * DESCRIPTOR_LENGTH).div_ceil(SECTOR)
}

/// How long an entry with so many data sectors is.
pub fn entry_length(sectors: usize) -> usize {
    (descriptor_sectors(sectors) + sectors) * SECTOR
}

impl Entry {
    pub fn encode(&self, log: Guid) -> Vec<u8> {
        let data = self
            .changes
            .iter()
            .filter(|change| matches!(change, Descriptor::Data { .. }))
            .count();
        let first_data = descriptor_sectors(self.changes.len());
        let mut bytes = vec![0; (first_data + data) * SECTOR];
        let length = bytes.len() as u32;
        put(&mut bytes, 0, b"loge");
        put(&mut bytes, 8, &length.to_le_bytes());
        put(&mut bytes, 12, &self.tail.to_le_bytes());
        put(&mut bytes, 16, &self.sequence.to_le_bytes());
        put(&mut bytes, 24, &(self.changes.len() as u32).to_le_bytes());
        put(&mut bytes, 32, &log.0);
        put(&mut bytes, 48, &self.flushed_length.to_le_bytes());
        put(&mut bytes, 56, &self.last_length.to_le_bytes());
        let mut at_sector = first_data * SECTOR;
        for (index, change) in self.changes.iter().enumerate() {
            let at = HEADER_LENGTH + index * DESCRIPTOR_LENGTH;
            put(&mut bytes, at + 24, &self.sequence.to_le_bytes());
            match change {
                Descriptor::Zero(extent) => {
                    put(&mut bytes, at, b"zero");
                    put(&mut bytes, at + 8, &extent.length.to_le_bytes());
                    put(&mut bytes, at + 16, &extent.offset.to_le_bytes());
                }
                Descriptor::Data { offset, sector } => {
                    put(&mut bytes, at, b"desc");
                    put(&mut bytes, at + 4, &sector[CARRIED.end..]);
                    put(&mut bytes, at + 8, &sector[..CARRIED.start]);
                    put(&mut bytes, at + 16, &offset.to_le_bytes());
                    put(&mut bytes, at_sector, b"data");
                    put(
                        &mut bytes,
                        at_sector + 4,
                        &((self.sequence >> 32) as u32).to_le_bytes(),
                    );
                    put(&mut bytes, at_sector + CARRIED.start, &sector[CARRIED]);
                    put(
                        &mut bytes,
                        at_sector + CARRIED.end,
                        &(self.sequence as u32).to_le_bytes(),
                    );
                    at_sector += SECTOR;
                }
            }
        }
        let sum = checksum(&bytes, 4);
        put(&mut bytes, 4, &sum.to_le_bytes());
        bytes
    }

    /// `None` for bytes that are no entry of this log: torn, stale or never written.
    fn parse(bytes: &[u8], log: Guid) -> Option<Self> {
        let sequence = u64_at(bytes, 16);
        let count = u32_at(bytes, 24) as usize;
        let whole = sequence != 0
            && count <= bytes.len() / DESCRIPTOR_LENGTH
            && descriptor_sectors(count) * SECTOR <= bytes.len()
            && bytes[32..48] == log.0
            && u32_at(bytes, 4) == checksum(bytes, 4);
        if !whole {
            return None;
        }
        let mut sectors = bytes[descriptor_sectors(count) * SECTOR..].chunks_exact(SECTOR);
        let mut changes = Vec::new();
        for descriptor in bytes[HEADER_LENGTH..].chunks_exact(DESCRIPTOR_LENGTH).take(count) {
            if u64_at(descriptor, 24) != sequence {
                return None;
            }
            let offset = u64_at(descriptor, 16);
            if !offset.is_multiple_of(SECTOR as u64) {
                return None;
            }
            match &descriptor[..4] {
                b"zero" => {
                    let length = u64_at(descriptor, 8);
                    if !length.is_multiple_of(SECTOR as u64) || offset.checked_add(length).is_none() {
                        return None;
                    }
                    changes.push(Descriptor::Zero(Extent { offset, length }));
                }
                b"desc" => {
                    let carried = sectors.next()?;
                    let same = &carried[..4] == b"data"
                        && u32_at(carried, 4) == (sequence >> 32) as u32
                        && u32_at(carried, CARRIED.end) == sequence as u32;
                    if !same {
                        return None;
                    }
                    let mut sector = carried.to_vec();
                    put(&mut sector, 0, &descriptor[8..16]);
                    put(&mut sector, CARRIED.end, &descriptor[4..8]);
                    changes.push(Descriptor::Data {
                        offset,
                        sector: sector.into_boxed_slice(),
                    });
                }
                _ => return None,
            }
        }
        Some(Self {
            sequence,
            tail: u32_at(bytes, 12),
            flushed_length: u64_at(bytes, 48),
            last_length: u64_at(bytes, 56),
            changes,
        })
    }
}

/// The entry that begins at this place of the circular log, and its length.
fn entry_in(log: &[u8], at: usize, guid: Guid) -> Option<(Entry, usize)> {
    let start = &log[at..at + SECTOR];
    let length = u32_at(start, 8) as usize;
    if &start[..4] != b"loge" || length == 0 || !length.is_multiple_of(SECTOR) || length > log.len() {
        return None;
    }
    let bytes: Vec<u8> = if at + length <= log.len() {
        log[at..at + length].to_vec()
    } else {
        [&log[at..], &log[..at + length - log.len()]].concat()
    };
    Some((Entry::parse(&bytes, guid)?, length))
}

/// The entries that have to be replayed, oldest first. The active sequence is the run of
/// valid entries with consecutive numbers that ends highest and holds the tail its last entry names.
pub fn active(log: &[u8], guid: Guid) -> Result<Vec<Entry>, Error> {
    let mut best: Option<Vec<(usize, Entry)>> = None;
    let mut at = 0;
    while at < log.len() {
        let mut run: Vec<(usize, Entry)> = Vec::new();
        let (mut head, mut covered) = (at, 0);
        while covered < log.len() {
            let Some((entry, length)) = entry_in(log, head, guid) else {
                break;
            };
            if run
                .last()
                .is_some_and(|(_, last)| entry.sequence != last.sequence.wrapping_add(1))
            {
                break;
            }
            run.push((head, entry));
            covered += length;
            head = (head + length) % log.len();
        }
        at += covered.max(SECTOR);
        let Some((_, last)) = run.last() else { continue };
        let Some(from) = run.iter().position(|(place, _)| *place == last.tail as usize) else {
            continue;
        };
        let newest = best
            .as_ref()
            .and_then(|best| best.last())
            .map_or(0, |(_, entry)| entry.sequence);
        if last.sequence > newest {
            best = Some(run.split_off(from));
        }
    }
    match best {
        Some(run) => Ok(run.into_iter().map(|(_, entry)| entry).collect()),
        None => Err(Error::Corrupt {
            what: "the header announces log entries and the log holds no valid one".to_owned(),
        }),
    }
}

/// Refuses entries that would write where no log entry may: before the regions, or into the log itself.
pub fn check(entries: &[Entry], log: Extent, file_length: u64) -> Result<(), Error> {
    let corrupt = |what: String| Err(Error::Corrupt { what });
    for entry in entries {
        for change in &entry.changes {
            let extent = match change {
                Descriptor::Zero(extent) => *extent,
                Descriptor::Data { offset, .. } => Extent {
                    offset: *offset,
                    length: SECTOR as u64,
                },
            };
            let in_headers = extent.offset < REGION_TABLES[0];
            let in_log = extent.offset < log.end() && log.offset < extent.end();
            if in_headers || in_log || extent.end() > entry.last_length.max(file_length) {
                return corrupt(format!(
                    "log entry {} writes {} bytes at {}, where nothing of a log goes",
                    entry.sequence, extent.length, extent.offset
                ));
            }
        }
        if entry.last_length > LARGEST_FILE {
            return corrupt(format!(
                "log entry {} asks for a file of {} bytes",
                entry.sequence, entry.last_length
            ));
        }
    }
    match entries.last() {
        Some(last) if last.flushed_length > file_length => corrupt(format!(
            "the file has {file_length} bytes and its log says that {} were flushed: it was cut short",
            last.flushed_length
        )),
        _ => Ok(()),
    }
}
