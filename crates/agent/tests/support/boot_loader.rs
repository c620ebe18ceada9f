//! The boot loader's half of each store, written after its own documentation rather than with our codecs: which slot
//! it takes from the bytes as they are, and what it writes before it jumps there.

use std::collections::BTreeMap;

use slipway_slots::boot::{Contents, Layout, Step};
use slipway_slots::{BySlot, Slot};

use super::disks::{Device, DiskWrite, SECTOR, Shared, StoreBytes};
use super::host::Kind;

/// The slot that is booted; the counter is written through `shared`, as the loader would.
pub fn boot(kind: Kind, shared: &Shared) -> Option<Slot> {
    let store = shared.disks().store;
    let (slot, changes) = match (kind, &store) {
        (Kind::Grubenv, StoreBytes::Files(files)) => grub(files),
        (Kind::Uboot, StoreBytes::Disk(disk)) => uboot(disk),
        (Kind::SystemdBoot, StoreBytes::Files(files)) => systemd_boot(files),
        // No boot loader but ours reads records; partition attributes are counted in both tables by ours as well.
        (Kind::Records | Kind::Gpt, StoreBytes::Disk(disk)) => through_codec(kind, disk),
        (kind, _) => panic!("{kind:?} has another kind of store"),
    };
    for change in changes {
        match change {
            DiskWrite::Step(Step::Flush) => shared.flush(Device::Store),
            change => shared.write(Device::Store, change),
        }
    }
    shared.flush(Device::Store);
    slot
}

fn variables(block: &[u8]) -> Option<BTreeMap<String, String>> {
    if block.len() != 1024 {
        return None;
    }
    let text = String::from_utf8_lossy(block);
    let text = text.strip_prefix("# GRUB Environment Block\n")?;
    Some(
        text.lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
    )
}

/// What `grub.cfg` in docs/edge does: the first slot of ORDER that is OK and, on trial, has tries left.
fn grub(files: &BTreeMap<String, Vec<u8>>) -> (Option<Slot>, Vec<DiskWrite>) {
    let read = |name: &str| files.get(name).and_then(|block| variables(block));
    let (name, set) = match (read("grubenv"), read("grubenv.shadow")) {
        (Some(set), _) if set.contains_key("ORDER") => ("grubenv", set),
        (_, Some(set)) => ("grubenv.shadow", set),
        _ => return (None, Vec::new()),
    };
    let get = |name: &str| set.get(name).cloned().unwrap_or_default();
    for slot in get("ORDER")
        .split(' ')
        .filter_map(|name| name.parse::<Slot>().ok())
    {
        if get(&format!("{slot}_OK")) != "1" {
            continue;
        }
        if get("SLIPWAY_TRIAL") != slot.to_string() {
            return (Some(slot), Vec::new());
        }
        let tried = get(&format!("{slot}_TRY"));
        let left = get("SLIPWAY_LEFT");
        let (Ok(tried_count), Ok(left_count)) = (tried.parse::<u8>(), left.parse::<u8>()) else {
            continue;
        };
        if left_count == 0 {
            continue;
        }
        // save_env: the block is changed in memory and written in place, both sectors.
        let text = String::from_utf8_lossy(&files[name]).into_owned();
        let text = text
            .replacen(
                &format!("\n{slot}_TRY={tried}\n"),
                &format!("\n{slot}_TRY={}\n", tried_count + 1),
                1,
            )
            .replacen(
                &format!("\nSLIPWAY_LEFT={left}\n"),
                &format!("\nSLIPWAY_LEFT={}\n", left_count - 1),
                1,
            );
        let bytes = text.into_bytes();
        assert_eq!(
            bytes[SECTOR..],
            files[name][SECTOR..],
            "only the first sector changes"
        );
        let write = DiskWrite::Step(Step::WriteFile {
            name: name.to_owned(),
            bytes,
        });
        return (Some(slot), vec![write]);
    }
    (None, Vec::new())
}

/// U-Boot's choice between two environments, and RAUC's boot script.
fn uboot(disk: &[u8]) -> (Option<Slot>, Vec<DiskWrite>) {
    let codec = Kind::uboot();
    let size = codec.size as usize;
    let copies = codec.offsets.map(|offset| {
        let bytes = &disk[offset as usize..offset as usize + size];
        let sum = u32::from_le_bytes(bytes[..4].try_into().expect("4 bytes"));
        (crc32fast::hash(&bytes[5..]) == sum).then_some(bytes)
    });
    let at = match copies {
        [None, None] => return (None, Vec::new()),
        [Some(_), None] => 0,
        [None, Some(_)] => 1,
        [Some(first), Some(second)] => match (first[4], second[4]) {
            (255, 0) => 1,
            (0, 255) => 0,
            (first, second) => usize::from(second > first),
        },
    };
    let bytes = copies[at].expect("a good copy");
    let text = String::from_utf8_lossy(&bytes[5..]).into_owned();
    let mut set: Vec<(String, String)> = text
        .split('\0')
        .take_while(|variable| !variable.is_empty())
        .filter_map(|variable| variable.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let get = |set: &[(String, String)], name: &str| {
        set.iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.clone())
            .unwrap_or_default()
    };
    for slot in get(&set, "BOOT_ORDER")
        .split(' ')
        .filter_map(|name| name.parse::<Slot>().ok())
    {
        let counter = format!("BOOT_{slot}_LEFT");
        let left: u8 = get(&set, &counter).parse().unwrap_or(0);
        if left == 0 {
            continue;
        }
        if get(&set, "slipway_trial") != slot.to_string() {
            return (Some(slot), Vec::new());
        }
        for (name, value) in &mut set {
            if *name == counter {
                *value = (left - 1).to_string();
            }
        }
        // saveenv: the other copy, with the next flags.
        let mut data = Vec::new();
        for (name, value) in &set {
            data.extend_from_slice(format!("{name}={value}\0").as_bytes());
        }
        data.resize(size - 5, 0);
        let mut copy = crc32fast::hash(&data).to_le_bytes().to_vec();
        copy.push(bytes[4].wrapping_add(1));
        copy.extend_from_slice(&data);
        let write = DiskWrite::Bytes {
            offset: codec.offsets[1 - at],
            bytes: copy,
        };
        return (Some(slot), vec![write]);
    }
    (None, Vec::new())
}

/// systemd-boot: entries without tries last, the higher version first; the counter is in the name.
fn systemd_boot(files: &BTreeMap<String, Vec<u8>>) -> (Option<Slot>, Vec<DiskWrite>) {
    struct Entry {
        name: String,
        slot: Slot,
        counters: Option<(u8, u8)>,
        version: u64,
    }
    let mut entries: Vec<Entry> = files
        .iter()
        .filter_map(|(name, bytes)| {
            let stem = name.strip_suffix(".conf")?;
            let (id, counters) = match stem.split_once('+') {
                Some((id, counters)) => {
                    let (left, done) = counters.split_once('-').unwrap_or((counters, "0"));
                    (id, Some((left.parse().ok()?, done.parse().ok()?)))
                }
                None => (stem, None),
            };
            let text = String::from_utf8_lossy(bytes);
            Some(Entry {
                name: name.clone(),
                slot: id.strip_prefix("slipway-")?.parse().ok()?,
                counters,
                version: text
                    .lines()
                    .find_map(|line| line.strip_prefix("version "))
                    .and_then(|version| version.parse().ok())
                    .unwrap_or(0),
            })
        })
        .collect();
    let spent = |entry: &Entry| matches!(entry.counters, Some((0, _)));
    entries.sort_by_key(|entry| (spent(entry), std::cmp::Reverse(entry.version)));
    let Some(first) = entries.first() else {
        return (None, Vec::new());
    };
    let mut changes = Vec::new();
    if let Some((left, done)) = first.counters
        && left > 0
    {
        // A rename on FAT: the new name, then the old one goes; either may be missing after a power cut.
        changes.push(DiskWrite::Step(Step::Rename {
            from: first.name.clone(),
            to: format!(
                "slipway-{}+{}-{}.conf",
                first.slot.letter().to_ascii_lowercase(),
                left - 1,
                done + 1
            ),
        }));
    }
    (Some(first.slot), changes)
}

fn through_codec(kind: Kind, disk: &[u8]) -> (Option<Slot>, Vec<DiskWrite>) {
    let codec = kind.codec();
    let Layout::Extents(extents) = codec.layout() else {
        panic!("a disk has extents")
    };
    let contents = Contents::Extents(
        extents
            .iter()
            .map(|extent| disk[extent.offset as usize..(extent.offset + extent.length) as usize].to_vec())
            .collect(),
    );
    let Some(state) = codec.decode(&contents).state else {
        return (None, Vec::new());
    };
    let slot = match kind {
        Kind::Gpt => highest_priority(&contents),
        _ => state.next_boot(),
    };
    let Some(slot) = slot else {
        return (None, Vec::new());
    };
    let after = state.after_boot_of(slot);
    if after == state {
        return (Some(slot), Vec::new());
    }
    let changes = codec
        .encode(&contents, &after)
        .expect("there is room")
        .into_iter()
        .map(|step| match step {
            Step::Write { offset, bytes } => DiskWrite::Bytes { offset, bytes },
            step => DiskWrite::Step(step),
        })
        .collect();
    (Some(slot), changes)
}

/// The attributes as ChromeOS documents them, from the first table whose checksums are right.
fn highest_priority(contents: &Contents) -> Option<Slot> {
    let Contents::Extents(extents) = contents else {
        return None;
    };
    let good = |header: &[u8], entries: &[u8]| {
        let mut summed = header[..92].to_vec();
        summed[16..20].fill(0);
        crc32fast::hash(&summed).to_le_bytes() == header[16..20]
            && crc32fast::hash(entries).to_le_bytes() == header[88..92]
    };
    let (primary, backup) = (&extents[0], &extents[1]);
    let split = backup.len() - SECTOR;
    let entries = if good(&primary[..SECTOR], &primary[SECTOR..]) {
        &primary[SECTOR..]
    } else if good(&backup[split..], &backup[..split]) {
        &backup[..split]
    } else {
        return None;
    };
    let attributes = BySlot::each(|slot| {
        let at = match slot {
            Slot::A => 48,
            Slot::B => 128 + 48,
        };
        u64::from_le_bytes(entries[at..at + 8].try_into().expect("8 bytes"))
    });
    Slot::BOTH
        .into_iter()
        .filter(|slot| {
            let bits = attributes[*slot];
            let (priority, tries, successful) = (bits >> 48 & 15, bits >> 52 & 15, bits >> 56 & 1);
            priority > 0 && (successful == 1 || tries > 0)
        })
        .max_by_key(|slot| (attributes[*slot] >> 48 & 15, std::cmp::Reverse(*slot)))
}
