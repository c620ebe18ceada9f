//! VHDX on disk: file identifier, headers, region table, metadata and block table, as bytes in and values out. Nothing
//! here does I/O. The format is Microsoft's [MS-VHDX]; every number in it is little-endian.

use super::Error;

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;

/// The unit of headers, log and block table writes.
pub const SECTOR: usize = 4096;

pub const FILE_IDENTIFIER: &[u8; 8] = b"vhdxfile";
pub const HEADERS: [u64; 2] = [64 * KIB, 128 * KIB];
pub const REGION_TABLES: [u64; 2] = [192 * KIB, 256 * KIB];
pub const REGION_TABLE_LENGTH: usize = 64 * 1024;
/// Identifier, headers and region tables; nothing else may lie in the first megabyte.
pub const HEADER_SECTION: u64 = MIB;

const METADATA_TABLE_LENGTH: usize = 64 * 1024;
const LARGEST_DISK: u64 = 64 << 40;
/// A block table beyond this would break the memory promise; it is reached by 2 TiB with 1 MiB blocks, and by nothing
/// up to the format's own limit with 32 MiB blocks.
const MOST_TABLE_ENTRIES: u64 = 2 << 20;

/// A GUID in the byte order it has on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Guid(pub [u8; 16]);

impl Guid {
    pub const ZERO: Self = Self([0; 16]);

    const fn new(a: u32, b: u16, c: u16, d: [u8; 8]) -> Self {
        let (a, b, c) = (a.to_le_bytes(), b.to_le_bytes(), c.to_le_bytes());
        Self([
            a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7],
        ])
    }

    pub fn random() -> Self {
        Self(*uuid::Uuid::new_v4().as_bytes())
    }
}

const BLOCK_TABLE_REGION: Guid = Guid::new(
    0x2DC2_7766,
    0xF623,
    0x4200,
    [0x9D, 0x64, 0x11, 0x5E, 0x9B, 0xFD, 0x4A, 0x08],
);
const METADATA_REGION: Guid = Guid::new(
    0x8B7C_A206,
    0x4790,
    0x4B9A,
    [0xB8, 0xFE, 0x57, 0x5F, 0x05, 0x0F, 0x88, 0x6E],
);
const FILE_PARAMETERS: Guid = Guid::new(
    0xCAA1_6737,
    0xFA36,
    0x4D43,
    [0xB3, 0xB6, 0x33, 0xF0, 0xAA, 0x44, 0xE7, 0x6B],
);
const VIRTUAL_DISK_SIZE: Guid = Guid::new(
    0x2FA5_4224,
    0xCD1B,
    0x4876,
    [0xB2, 0x11, 0x5D, 0xBE, 0xD8, 0x3B, 0xF4, 0xB8],
);
const LOGICAL_SECTOR_SIZE: Guid = Guid::new(
    0x8141_BF1D,
    0xA96F,
    0x4709,
    [0xBA, 0x47, 0xF2, 0x33, 0xA8, 0xFA, 0xAB, 0x5F],
);
const PHYSICAL_SECTOR_SIZE: Guid = Guid::new(
    0xCDA3_48C7,
    0x445D,
    0x4471,
    [0x9C, 0xC9, 0xE9, 0x88, 0x52, 0x51, 0xC5, 0x56],
);
const VIRTUAL_DISK_ID: Guid = Guid::new(
    0xBECA_12AB,
    0xB2E6,
    0x4523,
    [0x93, 0xEF, 0xC3, 0x09, 0xE0, 0x00, 0xC7, 0x46],
);
const PARENT_LOCATOR: Guid = Guid::new(
    0xA8D3_5F2D,
    0xB30B,
    0x454D,
    [0xAB, 0xF7, 0xD3, 0xD8, 0x48, 0x34, 0xAB, 0x0C],
);

pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn guid_at(bytes: &[u8], at: usize) -> Guid {
    Guid(bytes[at..at + 16].try_into().expect("sixteen bytes"))
}

pub fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// CRC-32C with the checksum's own four bytes taken as zero.
pub fn checksum(bytes: &[u8], field: usize) -> u32 {
    let crc = crc32c::crc32c(&bytes[..field]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc32c::crc32c_append(crc, &bytes[field + 4..])
}

fn corrupt(what: impl Into<String>) -> Error {
    Error::Corrupt { what: what.into() }
}

/// One of the two headers. The valid one with the higher sequence number is current.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    pub sequence: u64,
    pub file_write: Guid,
    pub data_write: Guid,
    /// Not zero while the log may hold entries that are not yet in place.
    pub log: Guid,
    pub log_length: u32,
    pub log_offset: u64,
}

impl Header {
    /// `None` for bytes that are no header: a torn write, or a flipped bit.
    fn parse(bytes: &[u8]) -> Option<Self> {
        (&bytes[..4] == b"head" && u32_at(bytes, 4) == checksum(bytes, 4)).then(|| Self {
            sequence: u64_at(bytes, 8),
            file_write: guid_at(bytes, 16),
            data_write: guid_at(bytes, 32),
            log: guid_at(bytes, 48),
            log_length: u32_at(bytes, 68),
            log_offset: u64_at(bytes, 72),
        })
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; SECTOR];
        put(&mut bytes, 0, b"head");
        put(&mut bytes, 8, &self.sequence.to_le_bytes());
        put(&mut bytes, 16, &self.file_write.0);
        put(&mut bytes, 32, &self.data_write.0);
        put(&mut bytes, 48, &self.log.0);
        put(&mut bytes, 66, &1_u16.to_le_bytes());
        put(&mut bytes, 68, &self.log_length.to_le_bytes());
        put(&mut bytes, 72, &self.log_offset.to_le_bytes());
        let sum = checksum(&bytes, 4);
        put(&mut bytes, 4, &sum.to_le_bytes());
        bytes
    }

    /// The current header of two, and which of them it is.
    pub fn current(copies: &[Vec<u8>; 2]) -> Result<(usize, Self), Error> {
        let parsed = [Self::parse(&copies[0]), Self::parse(&copies[1])];
        let (at, header) = match parsed {
            [Some(first), Some(second)] if first.sequence == second.sequence && first != second => {
                return Err(corrupt(format!(
                    "both headers have sequence number {} and differ",
                    first.sequence
                )));
            }
            [Some(first), Some(second)] if first.sequence >= second.sequence => (0, first),
            [Some(first), None] => (0, first),
            [_, Some(second)] => (1, second),
            [None, None] => return Err(corrupt("neither header has a valid checksum")),
        };
        let (log_version, version) = (u16_at(&copies[at], 64), u16_at(&copies[at], 66));
        if version != 1 || (log_version != 0 && header.log != Guid::ZERO) {
            return Err(Error::Unsupported {
                what: format!(
                    "version {version} with log version {log_version}; known are version 1 with log version 0"
                ),
            });
        }
        let length = u64::from(header.log_length);
        if length == 0
            || !length.is_multiple_of(MIB)
            || !header.log_offset.is_multiple_of(MIB)
            || header.log_offset < HEADER_SECTION
            || header.log_offset > LARGEST_DISK
        {
            return Err(corrupt(format!(
                "the log is said to be {length} bytes at {}, which is no place for it",
                header.log_offset
            )));
        }
        Ok((at, header))
    }
}

/// A stretch of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    pub offset: u64,
    pub length: u64,
}

impl Extent {
    pub fn end(&self) -> u64 {
        self.offset + self.length
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Regions {
    pub block_table: Extent,
    pub metadata: Extent,
}

impl Regions {
    /// The first copy whose checksum holds decides.
    pub fn parse(copies: &[Vec<u8>; 2], log: Extent, file_length: u64) -> Result<Self, Error> {
        let valid = |bytes: &&Vec<u8>| &bytes[..4] == b"regi" && u32_at(bytes, 4) == checksum(bytes, 4);
        let bytes = copies
            .iter()
            .find(valid)
            .ok_or_else(|| corrupt("neither region table has a valid checksum"))?;
        let count = u32_at(bytes, 8) as usize;
        if count > 2047 {
            return Err(corrupt(format!("the region table claims {count} regions")));
        }
        let (mut block_table, mut metadata) = (None, None);
        let mut taken = vec![log];
        for index in 0..count {
            let at = 16 + index * 32;
            let extent = Extent {
                offset: u64_at(bytes, at + 16),
                length: u64::from(u32_at(bytes, at + 24)),
            };
            if extent.offset < HEADER_SECTION
                || !extent.offset.is_multiple_of(MIB)
                || extent.length == 0
                || !extent.length.is_multiple_of(MIB)
                || extent.offset > LARGEST_DISK
                || extent.end() > file_length
            {
                return Err(corrupt(format!(
                    "region {index} lies at {} with {} bytes, the file has {file_length}",
                    extent.offset, extent.length
                )));
            }
            taken.push(extent);
            let place = match guid_at(bytes, at) {
                BLOCK_TABLE_REGION => &mut block_table,
                METADATA_REGION => &mut metadata,
                _ if u32_at(bytes, at + 28) & 1 == 0 => continue,
                _ => {
                    return Err(Error::Unsupported {
                        what: format!("region {index} is marked as required and is not known"),
                    });
                }
            };
            if place.replace(extent).is_some() {
                return Err(corrupt(format!("region {index} is there twice")));
            }
        }
        without_overlap(&mut taken)?;
        match (block_table, metadata) {
            (Some(block_table), Some(metadata)) => Ok(Self {
                block_table,
                metadata,
            }),
            _ => Err(corrupt("the region table names no block table or no metadata")),
        }
    }
}

/// What may not be used twice is not: sorts, then compares neighbours.
pub fn without_overlap(extents: &mut [Extent]) -> Result<(), Error> {
    extents.sort_unstable();
    match extents.windows(2).find(|pair| pair[0].end() > pair[1].offset) {
        None => Ok(()),
        Some(pair) => Err(corrupt(format!(
            "{} bytes at {} and {} bytes at {} of the file overlap",
            pair[0].length, pair[0].offset, pair[1].length, pair[1].offset
        ))),
    }
}

/// The shape of the disk inside the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    pub size: u64,
    pub block: u64,
    pub logical_sector: u32,
    pub physical_sector: u32,
}

impl Geometry {
    /// From the metadata region's bytes.
    pub fn parse(region: &[u8]) -> Result<Self, Error> {
        if region.len() < METADATA_TABLE_LENGTH || &region[..8] != b"metadata" {
            return Err(corrupt("the metadata table has no signature"));
        }
        let count = usize::from(u16_at(region, 10));
        if count > 2047 {
            return Err(corrupt(format!("the metadata table claims {count} items")));
        }
        let (mut parameters, mut size, mut logical, mut physical) = (None, None, None, None);
        for index in 0..count {
            let at = 32 + index * 32;
            let (offset, length) = (u32_at(region, at + 16) as usize, u32_at(region, at + 20) as usize);
            let item = match (offset, length) {
                (0, 0) => &region[..0],
                _ if offset >= METADATA_TABLE_LENGTH
                    && length <= region.len()
                    && offset <= region.len() - length =>
                {
                    &region[offset..offset + length]
                }
                _ => {
                    return Err(corrupt(format!(
                        "metadata item {index} has {length} bytes at {offset}, outside its region"
                    )));
                }
            };
            let sized = |length: usize| {
                (item.len() == length).then_some(item).ok_or_else(|| {
                    corrupt(format!(
                        "metadata item {index} has {} bytes, not {length}",
                        item.len()
                    ))
                })
            };
            let before = match guid_at(region, at) {
                FILE_PARAMETERS => {
                    let item = sized(8)?;
                    parameters
                        .replace((u64::from(u32_at(item, 0)), u32_at(item, 4)))
                        .is_some()
                }
                VIRTUAL_DISK_SIZE => size.replace(u64_at(sized(8)?, 0)).is_some(),
                LOGICAL_SECTOR_SIZE => logical.replace(u32_at(sized(4)?, 0)).is_some(),
                PHYSICAL_SECTOR_SIZE => physical.replace(u32_at(sized(4)?, 0)).is_some(),
                VIRTUAL_DISK_ID => sized(16).map(|_| false)?,
                PARENT_LOCATOR => return Err(differencing()),
                _ if u32_at(region, at + 24) & 4 == 0 => false,
                _ => {
                    return Err(Error::Unsupported {
                        what: format!("metadata item {index} is marked as required and is not known"),
                    });
                }
            };
            if before {
                return Err(corrupt(format!("metadata item {index} is there twice")));
            }
        }
        let (Some((block, flags)), Some(size), Some(logical_sector), Some(physical_sector)) =
            (parameters, size, logical, physical)
        else {
            return Err(corrupt(
                "the metadata lacks the disk's size, block size or sector size",
            ));
        };
        if flags & 2 != 0 {
            return Err(differencing());
        }
        let geometry = Self {
            size,
            block,
            logical_sector,
            physical_sector,
        };
        let sectors_known = [512, 4096].contains(&logical_sector) && [512, 4096].contains(&physical_sector);
        if !sectors_known || flags & !3 != 0 {
            return Err(corrupt(format!(
                "sector sizes {logical_sector} and {physical_sector}, flags {flags:#x}"
            )));
        }
        if !(MIB..=256 * MIB).contains(&block) || !block.is_power_of_two() {
            return Err(corrupt(format!(
                "the block size is {block}; it is a power of two from 1 MiB to 256 MiB"
            )));
        }
        if size == 0 || size > LARGEST_DISK || size % u64::from(logical_sector) != 0 {
            return Err(corrupt(format!("the disk's size is {size}")));
        }
        if geometry.table_entries() > MOST_TABLE_ENTRIES {
            return Err(Error::Unsupported {
                what: format!(
                    "a block table of {} entries ({size} bytes in blocks of {block}); convert the image to larger blocks",
                    geometry.table_entries()
                ),
            });
        }
        Ok(geometry)
    }

    /// Payload blocks per sector bitmap block.
    fn chunk_ratio(&self) -> u64 {
        (1 << 23) * u64::from(self.logical_sector) / self.block
    }

    pub fn blocks(&self) -> u64 {
        self.size.div_ceil(self.block)
    }

    pub fn table_entries(&self) -> u64 {
        self.blocks() + (self.blocks() - 1) / self.chunk_ratio()
    }

    /// Where in the table a payload block's entry is: every chunk is followed by the entry of its sector bitmap.
    pub fn entry_of(&self, block: u64) -> u64 {
        block + block / self.chunk_ratio()
    }

    fn is_bitmap(&self, entry: u64) -> bool {
        (entry + 1).is_multiple_of(self.chunk_ratio() + 1)
    }
}

fn differencing() -> Error {
    Error::Unsupported {
        what: "a differencing disk, which needs its parent; merge it into one image first".to_owned(),
    }
}

/// What the block table says of one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Block {
    /// Not in the file; reads as zeros.
    Absent,
    /// In the file at this offset.
    At(u64),
}

const STATE_ZERO: u64 = 2;
const STATE_PRESENT: u64 = 6;

/// The entry of a block that was written with zeros alone.
pub const ENTRY_ZERO: u64 = STATE_ZERO;

pub fn entry_at(offset: u64) -> u64 {
    offset | STATE_PRESENT
}

/// What an entry says that [`check_table`] has accepted.
pub fn block_of(entry: u64) -> Block {
    match entry & 7 {
        STATE_PRESENT => Block::At(entry & !(MIB - 1)),
        _ => Block::Absent,
    }
}

/// The table has no checksum, so its structure is checked whole: states, reserved bits, places in the file, and that no
/// byte of the file is used twice.
pub fn check_table(
    entries: &[u64],
    geometry: &Geometry,
    mut taken: Vec<Extent>,
    file_length: u64,
) -> Result<(), Error> {
    for (index, &entry) in entries.iter().enumerate() {
        let (state, reserved, offset) = (entry & 7, entry & (MIB - 8), entry & !(MIB - 1));
        let wrong = |what: &str| {
            Err(corrupt(format!(
                "entry {index} of the block table ({entry:#018x}) {what}"
            )))
        };
        if reserved != 0 {
            return wrong("has reserved bits set");
        }
        if geometry.is_bitmap(index as u64) {
            if entry != 0 {
                return wrong("is a sector bitmap, which only a differencing disk has");
            }
            continue;
        }
        match state {
            0..=3 if offset == 0 => {}
            0 | STATE_ZERO => return wrong("names no block and a place for it"),
            // Undefined and unmapped blocks may remember where they were.
            1 | 3 | STATE_PRESENT => {
                let extent = Extent {
                    offset,
                    length: geometry.block,
                };
                if offset < HEADER_SECTION
                    || offset
                        .checked_add(geometry.block)
                        .is_none_or(|end| end > file_length)
                {
                    return wrong("lies outside the file");
                }
                taken.push(extent);
            }
            7 => return wrong("is partially present, which only a differencing disk has"),
            _ => return wrong("has a state that does not exist"),
        }
    }
    without_overlap(&mut taken)
}

/// A region table with a megabyte of block table and of metadata, for images that tests make by hand.
#[cfg(test)]
pub fn example_regions(block_table: u64, metadata: u64) -> Vec<u8> {
    let mut bytes = vec![0; REGION_TABLE_LENGTH];
    put(&mut bytes, 0, b"regi");
    put(&mut bytes, 8, &2_u32.to_le_bytes());
    for (index, (guid, offset)) in [(BLOCK_TABLE_REGION, block_table), (METADATA_REGION, metadata)]
        .into_iter()
        .enumerate()
    {
        let at = 16 + index * 32;
        put(&mut bytes, at, &guid.0);
        put(&mut bytes, at + 16, &offset.to_le_bytes());
        put(&mut bytes, at + 24, &(MIB as u32).to_le_bytes());
        put(&mut bytes, at + 28, &1_u32.to_le_bytes());
    }
    let sum = checksum(&bytes, 4);
    put(&mut bytes, 4, &sum.to_le_bytes());
    bytes
}

/// The metadata of a plain disk, for images that tests make by hand.
#[cfg(test)]
pub fn example_metadata(size: u64, block: u32) -> Vec<u8> {
    let mut bytes = vec![0; METADATA_TABLE_LENGTH + 64];
    put(&mut bytes, 0, b"metadata");
    let items: [(Guid, Vec<u8>); 5] = [
        (FILE_PARAMETERS, [block.to_le_bytes(), [0; 4]].concat()),
        (VIRTUAL_DISK_SIZE, size.to_le_bytes().to_vec()),
        (LOGICAL_SECTOR_SIZE, 512_u32.to_le_bytes().to_vec()),
        (PHYSICAL_SECTOR_SIZE, 4096_u32.to_le_bytes().to_vec()),
        (VIRTUAL_DISK_ID, vec![9; 16]),
    ];
    put(&mut bytes, 10, &(items.len() as u16).to_le_bytes());
    let mut offset = METADATA_TABLE_LENGTH;
    for (index, (guid, value)) in items.into_iter().enumerate() {
        let at = 32 + index * 32;
        put(&mut bytes, at, &guid.0);
        put(&mut bytes, at + 16, &(offset as u32).to_le_bytes());
        put(&mut bytes, at + 20, &(value.len() as u32).to_le_bytes());
        put(&mut bytes, at + 24, &6_u32.to_le_bytes());
        put(&mut bytes, offset, &value);
        offset += value.len();
    }
    bytes
}
