//! E-43 and E-44 on files, loop devices and partitions inside a disk image.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use slipway_agent::target::{LocalTarget, SlotTarget, Through};
use slipway_slots::Digest;
use slipway_slots::boot::gpt;
use tempfile::TempDir;

use crate::support::host::partitioned;
use crate::support::images::noise;
use crate::target_suite::{SIZE, check};

fn sized(path: &Path, size: u64) {
    File::create(path).unwrap().set_len(size).unwrap();
}

#[test]
fn e43_a_file_is_a_slot_target() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("slot");
    sized(&path, SIZE);
    check("file", &mut || Box::new(LocalTarget::open(&path).unwrap()));
}

#[test]
fn e43_a_partition_inside_a_raw_disk_image_is_a_slot_target() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("disk.raw");
    let size = 1 << 20;
    let mut disk = partitioned(size);
    disk.resize(size as usize, 0);
    fs::write(&path, &disk).unwrap();
    let [primary, backup] = gpt::table_extents(size)
        .map(|extent| &disk[extent.offset as usize..(extent.offset + extent.length) as usize]);
    let partitions = gpt::partitions(size, [primary, backup]).unwrap();
    assert_eq!(partitions.len(), 2);
    let first = partitions[0];
    assert_eq!(
        (first.number, first.offset, first.length),
        (1, 40 * 512, 40 * 512)
    );
    let start = 64 * 4096;
    check("partition in a raw image", &mut || {
        Box::new(LocalTarget::open_range(&path, start, SIZE).unwrap())
    });
    let after = fs::read(&path).unwrap();
    let outside = |bytes: &[u8]| [&bytes[..start as usize], &bytes[(start + SIZE) as usize..]].concat();
    assert_eq!(
        outside(&after),
        outside(&disk),
        "nothing outside the partition was touched"
    );
}

/// A loop device over a file, given back when it is dropped.
pub struct Loop(pub PathBuf);

impl Loop {
    /// `None`, and said so, where this machine has none to give.
    pub fn over(file: &Path, what: &str) -> Option<Self> {
        let output = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(file)
            .output();
        match output {
            Ok(output) if output.status.success() => Some(Self(PathBuf::from(
                String::from_utf8_lossy(&output.stdout).trim().to_owned(),
            ))),
            other => {
                println!("report: skipped: {what} needs a loop device: {other:?}");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // Nothing to do about a device that does not go.
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

#[test]
fn e43_a_loop_device_is_a_slot_target() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("slot");
    sized(&path, SIZE);
    let Some(device) = Loop::over(&path, "a block device as a slot target") else {
        return;
    };
    check("loop device", &mut || {
        Box::new(LocalTarget::open(&device.0).unwrap())
    });
}

/// E-44: a mounted device says where it is mounted, and so does the file behind it.
#[test]
fn e44_a_mounted_device_and_the_file_behind_it_are_in_use() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("slot");
    sized(&path, 4 << 20);
    let Some(device) = Loop::over(&path, "a mounted slot") else {
        return;
    };
    let mount = directory.path().join("mounted");
    fs::create_dir(&mount).unwrap();
    let made = Command::new("mkfs.ext4").arg("-q").arg(&device.0).status();
    let mounted = made.is_ok_and(|status| status.success())
        && Command::new("mount")
            .arg(&device.0)
            .arg(&mount)
            .status()
            .is_ok_and(|status| status.success());
    if !mounted {
        println!("report: skipped: this machine does not let a test mount a filesystem");
        return;
    }
    let in_use = |path: &Path| LocalTarget::open(path).unwrap().in_use().unwrap();
    let (by_device, by_file) = (in_use(&device.0), in_use(&path));
    let unmounted = Command::new("umount").arg(&mount).status().unwrap();
    assert!(unmounted.success());
    let place = mount.display().to_string();
    assert!(by_device.is_some_and(|by| by == format!("mounted on {place}")));
    assert!(by_file.is_some_and(|by| by.starts_with(&format!("mounted on {place}"))));
    assert_eq!(in_use(&path), None, "unmounted, it is free");
}

#[test]
fn a_target_that_is_not_made_of_whole_blocks_is_refused() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("slot");
    sized(&path, 5000);
    let error = LocalTarget::open(&path).unwrap_err().to_string();
    assert!(error.contains("not a multiple of 4096"), "{error}");
    let error = LocalTarget::open_range(&path, 4096, 4096)
        .unwrap_err()
        .to_string();
    assert!(error.contains("not inside its 5000 bytes"), "{error}");
}

/// Long enough for several threads and pieces, with chunks that begin and end anywhere.
#[test]
fn digests_of_many_chunks_are_those_of_their_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slot");
    let bytes = noise(2304, 5);
    std::fs::write(&path, &bytes).unwrap();
    let mut target = LocalTarget::open(&path).unwrap();
    let mut one_way = OneWay(LocalTarget::open(&path).unwrap());
    for (offset, longest) in [
        (0_usize, 9_000_usize),
        (1, 32_768),
        (4096, 3 << 20),
        (12_345, 700_001),
    ] {
        let (mut lengths, mut expected) = (Vec::new(), Vec::new());
        let mut at = offset;
        while at < bytes.len() {
            let length = (1 + (at * 31 + offset) % longest).min(bytes.len() - at);
            lengths.push(length as u32);
            expected.push(Digest::of(&bytes[at..at + length]));
            at += length;
        }
        for through in [Through::Cache, Through::Medium] {
            let digests = target.digests(offset as u64, &lengths, through).unwrap();
            assert_eq!(digests, expected, "from {offset} on, side by side");
            let digests = one_way.digests(offset as u64, &lengths, through).unwrap();
            assert_eq!(digests, expected, "from {offset} on, one way");
        }
    }
    for target in [&mut target as &mut dyn SlotTarget, &mut one_way] {
        let past = target.digests(4096, &[4 << 20, 4 << 20, 4 << 20], Through::Medium);
        assert!(past.is_err(), "chunks that are not in it have no digests");
    }
}

/// A target that cannot be read side by side, as a node over SSH and a VHDX image cannot.
struct OneWay(LocalTarget);

impl SlotTarget for OneWay {
    fn describe(&self) -> String {
        self.0.describe()
    }

    fn size(&self) -> u64 {
        self.0.size()
    }

    fn in_use(&mut self) -> io::Result<Option<String>> {
        self.0.in_use()
    }

    fn read_at(&mut self, offset: u64, buffer: &mut [u8], through: Through) -> io::Result<()> {
        self.0.read_at(offset, buffer, through)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
