//! A VHDX disk image on the host as a disk to read and write, while no machine runs from it. Owns the file it was given
//! and nothing else.
//!
//! Data goes straight into blocks that the file already has, or into new ones behind its end. The block table has no
//! checksum, so it only ever changes through the log, and only when a caller flushes: data first, then a log entry, then
//! the table. A cut at any byte leaves what was flushed last, and an image that other programs open.

mod layout;
mod log;

use std::{collections::BTreeSet, fs::File, io, os::unix::fs::FileExt};

use layout::{
    Block, ENTRY_ZERO, Extent, FILE_IDENTIFIER, Geometry, Guid, HEADERS, Header, KIB, MIB,
    REGION_TABLE_LENGTH, REGION_TABLES, Regions, SECTOR, block_of, check_table, entry_at, u64_at,
};
use log::{Descriptor, Entry};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{doing}: {source}")]
    Io {
        doing: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("the VHDX image is damaged: {what}; restore it, or see what `qemu-img check` says of it")]
    Corrupt { what: String },
    #[error("the VHDX image cannot be used as a disk: {what}")]
    Unsupported { what: String },
    #[error(
        "the VHDX image was not closed cleanly and is open for reading alone; open it for writing once, which replays its log"
    )]
    NeedsReplay,
    #[error("{length} bytes at {offset} are asked for, and the disk has {size}")]
    OutOfRange { offset: u64, length: u64, size: u64 },
}

/// The bytes that hold the image. Reads past the end are an error; what is written is durable after `flush`.
pub trait Backing {
    fn length(&self) -> io::Result<u64>;
    fn set_length(&self, length: u64) -> io::Result<()>;
    fn read(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;
    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    fn flush(&self) -> io::Result<()>;
}

impl Backing for File {
    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    fn read(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(bytes, offset)
    }

    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn flush(&self) -> io::Result<()> {
        // Not `sync_data`: a longer file is part of what is promised.
        self.sync_all()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

pub struct Vhdx<B: Backing> {
    backing: B,
    access: Access,
    header: Header,
    /// Which of the two headers is current.
    header_at: usize,
    geometry: Geometry,
    regions: Regions,
    table: Vec<u64>,
    /// Sectors of the table that differ from the file.
    unwritten: BTreeSet<usize>,
    /// Where the next new block goes.
    end: u64,
    next_entry: u64,
    next_sequence: u64,
    /// The headers tell other programs that the disk's data changed; once per opening.
    announced: bool,
}

fn doing(doing: &'static str) -> impl Fn(io::Error) -> Error {
    move |source| Error::Io { doing, source }
}

fn read_vec(backing: &impl Backing, what: &'static str, extent: Extent) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; extent.length as usize];
    backing.read(&mut bytes, extent.offset).map_err(doing(what))?;
    Ok(bytes)
}

fn two(
    backing: &impl Backing,
    what: &'static str,
    at: [u64; 2],
    length: usize,
) -> Result<[Vec<u8>; 2], Error> {
    let one = |offset| {
        let length = length as u64;
        read_vec(backing, what, Extent { offset, length })
    };
    Ok([one(at[0])?, one(at[1])?])
}

impl<B: Backing> Vhdx<B> {
    /// Whether these are the first bytes of a VHDX image.
    pub fn is_one(first: &[u8]) -> bool {
        first.starts_with(FILE_IDENTIFIER)
    }

    /// Checks the whole structure. Opened for writing, an image whose last user was cut off is first brought to the state
    /// its log tells of.
    pub fn open(backing: B, access: Access) -> Result<Self, Error> {
        let length = backing.length().map_err(doing("asking for the image's length"))?;
        if length < REGION_TABLES[1] + REGION_TABLE_LENGTH as u64 {
            return Err(Error::Corrupt {
                what: format!("it has {length} bytes, too few for its headers"),
            });
        }
        let first = Extent { offset: 0, length: 8 };
        if !Self::is_one(&read_vec(&backing, "reading the file identifier", first)?) {
            return Err(Error::Corrupt {
                what: "it does not begin with a VHDX file identifier".to_owned(),
            });
        }
        let (header_at, header) = Header::current(&two(&backing, "reading the headers", HEADERS, SECTOR)?)?;
        let log_extent = Extent {
            offset: header.log_offset,
            length: u64::from(header.log_length),
        };
        if log_extent.end() > length || log_extent.length > 64 * MIB {
            return Err(Error::Corrupt {
                what: format!(
                    "the log of {} bytes at {} does not fit into the file",
                    log_extent.length, log_extent.offset
                ),
            });
        }
        let replayed = header.log != Guid::ZERO;
        let mut next_sequence = 1;
        if replayed {
            let bytes = read_vec(&backing, "reading the log", log_extent)?;
            let entries = log::active(&bytes, header.log)?;
            log::check(&entries, log_extent, length)?;
            if access == Access::Read {
                return Err(Error::NeedsReplay);
            }
            replay(&backing, &entries)?;
            next_sequence = entries.last().map_or(1, |entry| entry.sequence + 1);
        }
        let length = backing.length().map_err(doing("asking for the image's length"))?;
        let tables = two(
            &backing,
            "reading the region tables",
            REGION_TABLES,
            REGION_TABLE_LENGTH,
        )?;
        let regions = Regions::parse(&tables, log_extent, length)?;
        // The table and its items; a longer region has nothing that is known.
        let metadata = Extent {
            length: regions.metadata.length.min(MIB),
            ..regions.metadata
        };
        let geometry = Geometry::parse(&read_vec(&backing, "reading the metadata", metadata)?)?;
        let entries = geometry.table_entries();
        if entries * 8 > regions.block_table.length {
            return Err(Error::Corrupt {
                what: format!(
                    "the block table has {} bytes, too few for {entries} entries",
                    regions.block_table.length
                ),
            });
        }
        let bytes = read_vec(
            &backing,
            "reading the block table",
            Extent {
                offset: regions.block_table.offset,
                length: entries * 8,
            },
        )?;
        let table: Vec<u64> = bytes.chunks_exact(8).map(|entry| u64_at(entry, 0)).collect();
        let taken = vec![log_extent, regions.block_table, regions.metadata];
        check_table(&table, &geometry, taken, length)?;
        let mut opened = Self {
            backing,
            access,
            header,
            header_at,
            geometry,
            regions,
            table,
            unwritten: BTreeSet::new(),
            end: length.next_multiple_of(MIB),
            next_entry: 0,
            next_sequence,
            announced: false,
        };
        if replayed {
            opened.write_header(Guid::ZERO)?;
        }
        Ok(opened)
    }

    /// The disk's size, as a machine sees it.
    pub fn size(&self) -> u64 {
        self.geometry.size
    }

    pub fn logical_sector(&self) -> u32 {
        self.geometry.logical_sector
    }

    pub fn block_size(&self) -> u64 {
        self.geometry.block
    }

    pub fn backing(&self) -> &B {
        &self.backing
    }

    pub fn read(&self, bytes: &mut [u8], offset: u64) -> Result<(), Error> {
        self.in_range(offset, bytes.len())?;
        let mut rest = bytes;
        let mut at = offset;
        while !rest.is_empty() {
            let (block, within) = (at / self.geometry.block, at % self.geometry.block);
            let length = (self.geometry.block - within).min(rest.len() as u64);
            let (piece, others) = rest.split_at_mut(length as usize);
            match block_of(self.table[self.geometry.entry_of(block) as usize]) {
                Block::Absent => piece.fill(0),
                Block::At(place) => self
                    .backing
                    .read(piece, place + within)
                    .map_err(doing("reading a block of the image"))?,
            }
            rest = others;
            at += length;
        }
        Ok(())
    }

    pub fn write(&mut self, bytes: &[u8], offset: u64) -> Result<(), Error> {
        self.in_range(offset, bytes.len())?;
        if self.access == Access::Read {
            return Err(Error::Unsupported {
                what: "it was opened for reading".to_owned(),
            });
        }
        if !self.announced {
            self.header.file_write = Guid::random();
            self.header.data_write = Guid::random();
            self.write_header(self.header.log)?;
            self.announced = true;
        }
        let mut rest = bytes;
        let mut at = offset;
        while !rest.is_empty() {
            let (block, within) = (at / self.geometry.block, at % self.geometry.block);
            let length = (self.geometry.block - within).min(rest.len() as u64);
            let (piece, others) = rest.split_at(length as usize);
            let entry = self.geometry.entry_of(block) as usize;
            match block_of(self.table[entry]) {
                Block::At(place) => self
                    .backing
                    .write(piece, place + within)
                    .map_err(doing("writing a block of the image"))?,
                // The rest of the block may read as anything, and from now on reads as zeros too.
                Block::Absent if piece.iter().all(|byte| *byte == 0) => {
                    if self.table[entry] != ENTRY_ZERO {
                        self.set_entry(entry, ENTRY_ZERO);
                    }
                }
                Block::Absent => {
                    let place = self.end;
                    self.backing
                        .set_length(place + self.geometry.block)
                        .map_err(doing("making the image longer"))?;
                    self.backing
                        .write(piece, place + within)
                        .map_err(doing("writing a new block of the image"))?;
                    self.end = place + self.geometry.block;
                    self.set_entry(entry, entry_at(place));
                }
            }
            rest = others;
            at += length;
        }
        Ok(())
    }

    /// Everything written so far is in the image, whatever happens next.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.backing.flush().map_err(doing("flushing the image"))?;
        while !self.unwritten.is_empty() {
            // A third of the log at most, so that the entry before stays whole while this one is written.
            let room = self.header.log_length as usize / 3;
            let mut batch: Vec<usize> = Vec::new();
            for sector in &self.unwritten {
                if log::entry_length(batch.len() + 1) > room {
                    break;
                }
                batch.push(*sector);
            }
            self.write_table(&batch)?;
            for sector in &batch {
                self.unwritten.remove(sector);
            }
        }
        Ok(())
    }

    /// Flushes, and leaves an image whose log is empty.
    pub fn close(mut self) -> Result<B, Error> {
        if self.access == Access::Write {
            self.flush()?;
            if self.header.log != Guid::ZERO {
                self.write_header(Guid::ZERO)?;
            }
        }
        Ok(self.backing)
    }

    fn in_range(&self, offset: u64, length: usize) -> Result<(), Error> {
        let (length, size) = (length as u64, self.geometry.size);
        match offset.checked_add(length) {
            Some(end) if end <= size => Ok(()),
            _ => Err(Error::OutOfRange { offset, length, size }),
        }
    }

    fn set_entry(&mut self, entry: usize, value: u64) {
        self.table[entry] = value;
        self.unwritten.insert(entry * 8 / SECTOR);
    }

    fn table_sector(&self, sector: usize) -> Box<[u8]> {
        let first = sector * SECTOR / 8;
        let entries = self.table[first..].iter().take(SECTOR / 8);
        let mut bytes = vec![0; SECTOR];
        for (place, entry) in bytes.chunks_exact_mut(8).zip(entries) {
            place.copy_from_slice(&entry.to_le_bytes());
        }
        bytes.into_boxed_slice()
    }

    /// Through the log: the entry is durable before the first byte of the table changes, and the header announces the log
    /// only when it holds an entry.
    fn write_table(&mut self, sectors: &[usize]) -> Result<(), Error> {
        let changes: Vec<Descriptor> = sectors
            .iter()
            .map(|sector| Descriptor::Data {
                offset: self.regions.block_table.offset + (sector * SECTOR) as u64,
                sector: self.table_sector(*sector),
            })
            .collect();
        let length = log::entry_length(sectors.len()) as u64;
        if self.next_entry + length > u64::from(self.header.log_length) {
            self.next_entry = 0;
        }
        let file = self
            .backing
            .length()
            .map_err(doing("asking for the image's length"))?;
        let entry = Entry {
            sequence: self.next_sequence,
            tail: self.next_entry as u32,
            flushed_length: file,
            last_length: file,
            changes,
        };
        let log = match self.header.log {
            Guid::ZERO => Guid::random(),
            log => log,
        };
        self.backing
            .write(&entry.encode(log), self.header.log_offset + self.next_entry)
            .map_err(doing("writing the image's log"))?;
        self.backing.flush().map_err(doing("flushing the image's log"))?;
        self.next_entry += length;
        self.next_sequence += 1;
        if self.header.log == Guid::ZERO {
            self.write_header(log)?;
        }
        apply(&self.backing, &entry)?;
        self.backing.flush().map_err(doing("flushing the block table"))
    }

    /// Both headers, one after the other, so that damage to one of them loses nothing.
    fn write_header(&mut self, log: Guid) -> Result<(), Error> {
        self.header.log = log;
        for _ in 0..2 {
            self.header.sequence += 1;
            self.header_at = 1 - self.header_at;
            self.backing
                .write(&self.header.encode(), HEADERS[self.header_at])
                .map_err(doing("writing a header of the image"))?;
            self.backing
                .flush()
                .map_err(doing("flushing a header of the image"))?;
        }
        Ok(())
    }
}

fn apply(backing: &impl Backing, entry: &Entry) -> Result<(), Error> {
    static ZEROS: [u8; 64 * KIB as usize] = [0; 64 * KIB as usize];
    for change in &entry.changes {
        match change {
            Descriptor::Data { offset, sector } => backing
                .write(sector, *offset)
                .map_err(doing("replaying the image's log"))?,
            Descriptor::Zero(extent) => {
                let mut at = extent.offset;
                while at < extent.end() {
                    let length = (extent.end() - at).min(ZEROS.len() as u64);
                    backing
                        .write(&ZEROS[..length as usize], at)
                        .map_err(doing("replaying the image's log"))?;
                    at += length;
                }
            }
        }
    }
    Ok(())
}

fn replay(backing: &impl Backing, entries: &[Entry]) -> Result<(), Error> {
    for entry in entries {
        let length = backing.length().map_err(doing("asking for the image's length"))?;
        if entry.last_length > length {
            backing
                .set_length(entry.last_length)
                .map_err(doing("making the image as long as its log says"))?;
        }
        apply(backing, entry)?;
    }
    backing.flush().map_err(doing("flushing what the log said"))
}

#[cfg(test)]
mod tests;
