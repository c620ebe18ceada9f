//! Carries out the steps of a change in memory, and an empty store of each kind.

use std::collections::BTreeMap;

use slipway_slots::boot::{BootState, Codec, Contents, Layout, Step};

use super::DISK;

/// A store that was never written to; for partition attributes a disk with four partitions.
pub fn blank(codec: &dyn Codec) -> Contents {
    if codec.name() == "gpt" {
        return load(&partitioned(), codec);
    }
    match codec.layout() {
        Layout::Extents(extents) => Contents::Extents(
            extents
                .iter()
                .map(|extent| vec![0; extent.length as usize])
                .collect(),
        ),
        Layout::Files { .. } => Contents::Files(BTreeMap::new()),
    }
}

/// A store that holds `state`.
pub fn holding(codec: &dyn Codec, state: &BootState) -> Contents {
    let mut contents = blank(codec);
    for step in codec.encode(&contents, state).expect("there is room") {
        apply(&mut contents, codec, &step);
    }
    contents
}

pub fn apply(contents: &mut Contents, codec: &dyn Codec, step: &Step) {
    match (contents, step) {
        (_, Step::Flush) => {}
        (Contents::Extents(extents), Step::Write { offset, bytes }) => {
            let Layout::Extents(layout) = codec.layout() else {
                panic!("the layout does not fit")
            };
            let (at, extent) = layout
                .iter()
                .enumerate()
                .find(|(_, extent)| (extent.offset..extent.offset + extent.length).contains(offset))
                .expect("a write is inside an extent");
            let start = (offset - extent.offset) as usize;
            extents[at][start..start + bytes.len()].copy_from_slice(bytes);
        }
        (Contents::Files(files), Step::WriteFile { name, bytes }) => {
            files.insert(name.clone(), bytes.clone());
        }
        (Contents::Files(files), Step::Rename { from, to }) => {
            let bytes = files.remove(from).expect("what is renamed exists");
            files.insert(to.clone(), bytes);
        }
        (Contents::Files(files), Step::Remove { name }) => {
            files.remove(name);
        }
        (contents, step) => panic!("{step:?} does not fit {contents:?}"),
    }
}

fn load(disk: &[u8], codec: &dyn Codec) -> Contents {
    let Layout::Extents(extents) = codec.layout() else {
        panic!("a disk has extents")
    };
    Contents::Extents(
        extents
            .iter()
            .map(|extent| disk[extent.offset as usize..(extent.offset + extent.length) as usize].to_vec())
            .collect(),
    )
}

/// A disk of [`DISK`] bytes with a GPT of four partitions, both copies good.
pub fn partitioned() -> Vec<u8> {
    let sectors = DISK / 512;
    let mut entries = vec![0; 128 * 128];
    for number in 0..4u8 {
        let entry = &mut entries[usize::from(number) * 128..][..128];
        entry[..16].fill(0x11);
        entry[16..32].fill(number + 1);
        let first = 40 + u64::from(number) * 400;
        entry[32..40].copy_from_slice(&first.to_le_bytes());
        entry[40..48].copy_from_slice(&(first + 399).to_le_bytes());
    }
    let header = |own: u64, other: u64, at: u64| {
        let mut header = vec![0; 512];
        header[..8].copy_from_slice(b"EFI PART");
        header[8..12].copy_from_slice(&0x1_0000_u32.to_le_bytes());
        header[12..16].copy_from_slice(&92_u32.to_le_bytes());
        header[24..32].copy_from_slice(&own.to_le_bytes());
        header[32..40].copy_from_slice(&other.to_le_bytes());
        header[40..48].copy_from_slice(&34_u64.to_le_bytes());
        header[48..56].copy_from_slice(&(sectors - 34).to_le_bytes());
        header[56..72].fill(0xab);
        header[72..80].copy_from_slice(&at.to_le_bytes());
        header[80..84].copy_from_slice(&128_u32.to_le_bytes());
        header[84..88].copy_from_slice(&128_u32.to_le_bytes());
        header[88..92].copy_from_slice(&crc32fast::hash(&entries).to_le_bytes());
        let sum = crc32fast::hash(&header[..92]);
        header[16..20].copy_from_slice(&sum.to_le_bytes());
        header
    };
    let mut disk = vec![0; DISK as usize];
    disk[512..1024].copy_from_slice(&header(1, sectors - 1, 2));
    disk[1024..1024 + entries.len()].copy_from_slice(&entries);
    let backup = (sectors - 33) as usize * 512;
    disk[backup..backup + entries.len()].copy_from_slice(&entries);
    let last = disk.len() - 512;
    disk[last..].copy_from_slice(&header(sectors - 1, 1, sectors - 33));
    disk
}
