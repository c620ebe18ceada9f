//! E-43 for disk images: a partition inside a raw and inside a VHDX image, with a partition table of real tools' making,
//! and `qemu-img` as the judge of what is in the image afterwards.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use slipway_agent::{
    disk_image::{ImagePartition, OpenError, Select},
    target::{SlotTarget, Through},
};
use tempfile::TempDir;

const DISK: u64 = 24 << 20;

/// A raw disk with two partitions, the second filled with a pattern.
fn raw_disk(folder: &Path) -> PathBuf {
    let path = folder.join("disk.raw");
    let file = fs::File::create(&path).expect("a file");
    file.set_len(DISK).expect("a size");
    let mut disk = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .expect("the disk");
    let mut table = gptman::GPT::new_from(&mut disk, 512, [7; 16]).expect("a table");
    for (number, name, first, megabytes) in [(1, "slot-a", 2048, 8), (2, "slot-b", 2048 * 9, 8)] {
        table[number] = gptman::GPTPartitionEntry {
            partition_type_guid: [0xAF; 16],
            unique_partition_guid: [number as u8; 16],
            starting_lba: first,
            ending_lba: first + megabytes * 2048 - 1,
            attribute_bits: 0,
            partition_name: name.into(),
        };
    }
    table.write_into(&mut disk).expect("written");
    gptman::GPT::write_protective_mbr_into(&mut disk, 512).expect("written");
    path
}

fn qemu_img(arguments: &[&str]) -> Option<()> {
    let Ok(output) = Command::new("qemu-img").args(arguments).output() else {
        println!("report: skipped: agreement with qemu-img, which is not installed (Debian: qemu-utils)");
        return None;
    };
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Some(())
}

fn images(folder: &TempDir) -> Vec<PathBuf> {
    let raw = raw_disk(folder.path());
    let vhdx = folder.path().join("disk.vhdx");
    let (from, to) = (raw.to_str().expect("plain"), vhdx.to_str().expect("plain"));
    let converted = qemu_img(&[
        "convert",
        "-q",
        "-f",
        "raw",
        "-O",
        "vhdx",
        "-o",
        "block_size=1M",
        from,
        to,
    ]);
    match converted {
        Some(()) => vec![raw, vhdx],
        None => vec![raw],
    }
}

#[test]
fn e43_a_partition_of_a_disk_image_is_a_target_and_its_neighbours_stay() {
    let folder = tempfile::tempdir().expect("a folder");
    for image in images(&folder) {
        let before = fs::read(raw_disk(folder.path())).expect("the disk");
        let select = Select::Label("slot-b".to_owned());
        let mut target = ImagePartition::open(&image, &select).expect("it opens");
        assert_eq!(target.size(), 8 << 20);
        assert_eq!(target.in_use().expect("asked"), None);
        let bytes: Vec<u8> = (0..3 << 20).map(|at| (at / 4096 + at) as u8).collect();
        target.write_at(1 << 20, &bytes).expect("a write");
        target.flush().expect("a flush");
        let mut seen = vec![0; bytes.len()];
        target
            .read_at(1 << 20, &mut seen, Through::Medium)
            .expect("a read");
        assert!(seen == bytes);
        assert!(
            target.write_at((8 << 20) - 4096, &[0; 8192]).is_err(),
            "beyond the partition"
        );
        let again = ImagePartition::open(&image, &Select::Number(1))
            .err()
            .expect("it is locked");
        assert!(matches!(again, OpenError::InUse { .. }), "{again}");
        target.close().expect("closed");
        let mut expected = before;
        let start = (2048 * 9 * 512) + (1 << 20);
        expected[start..start + bytes.len()].copy_from_slice(&bytes);
        let now = if image.extension().is_some_and(|extension| extension == "vhdx") {
            let back = folder.path().join("back.raw");
            let (from, to) = (image.to_str().expect("plain"), back.to_str().expect("plain"));
            qemu_img(&["check", "-q", "-f", "vhdx", from]);
            qemu_img(&["convert", "-q", "-f", "vhdx", "-O", "raw", from, to]);
            fs::read(back).expect("read")
        } else {
            fs::read(&image).expect("read")
        };
        assert!(now == expected, "{}", image.display());
        fs::remove_file(&image).expect("removed");
    }
}

#[test]
fn a_partition_that_is_not_there_is_told_with_those_that_are() {
    let folder = tempfile::tempdir().expect("a folder");
    let raw = raw_disk(folder.path());
    let said = |select: Select| {
        ImagePartition::open(&raw, &select)
            .err()
            .expect("refused")
            .to_string()
    };
    let text = said(Select::Label("slot-c".to_owned()));
    assert!(text.contains("1 (slot-a), 2 (slot-b)"), "{text}");
    assert!(said(Select::Number(9)).contains("has no partition 9"));
    let empty = folder.path().join("empty.raw");
    fs::write(&empty, vec![0; 1 << 20]).expect("written");
    let text = ImagePartition::open(&empty, &Select::Number(1))
        .err()
        .expect("no table")
        .to_string();
    assert!(text.contains("a GPT is needed"), "{text}");
}

/// A virtual machine monitor's locks are seen while it has the image open.
#[test]
fn e44_an_image_that_a_machine_uses_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let raw = raw_disk(folder.path());
    let storage = format!(
        "driver=raw,node-name=disk,file.driver=file,file.filename={}",
        raw.display()
    );
    let held = Command::new("qemu-storage-daemon")
        .args(["--blockdev", &storage, "--nbd-server"])
        .arg(format!(
            "addr.type=unix,addr.path={}/socket",
            folder.path().display()
        ))
        .args(["--export", "type=nbd,id=e,node-name=disk,writable=on"])
        .spawn();
    let Ok(mut held) = held else {
        println!(
            "report: skipped: agreement with qemu-storage-daemon, which is not installed (Debian: qemu-system-common)"
        );
        return;
    };
    let refused = loop {
        match ImagePartition::open(&raw, &Select::Number(1)) {
            Err(error) => break error,
            Ok(_) if held.try_wait().expect("asked").is_some() => panic!("it did not start"),
            Ok(_) => std::thread::yield_now(),
        }
    };
    held.kill().expect("ended");
    held.wait().expect("ended");
    assert!(refused.to_string().contains("holds a lock on it"), "{refused}");
    ImagePartition::open(&raw, &Select::Number(1)).expect("free again");
}
