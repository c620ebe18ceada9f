//! The image against the real `qemu-img`, both ways; against every cut of power; and against every flipped bit.

use std::{
    cell::RefCell,
    fs::OpenOptions,
    path::{Path, PathBuf},
    process::Command,
};

use proptest::prelude::*;

use super::*;

fn qemu_img() -> bool {
    let found = Command::new("qemu-img").arg("--version").output().is_ok();
    if !found {
        println!("report: skipped: agreement with qemu-img, which is not installed (Debian: qemu-utils)");
    }
    found
}

fn run(arguments: &[&str]) -> String {
    let output = Command::new("qemu-img")
        .args(arguments)
        .output()
        .expect("qemu-img runs");
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "qemu-img {arguments:?}: {text}");
    text
}

fn create(folder: &Path, size: &str, options: &str) -> PathBuf {
    let path = folder.join("disk.vhdx");
    let text = path.to_str().expect("a plain path");
    run(&["create", "-q", "-f", "vhdx", "-o", options, text, size]);
    path
}

fn open(path: &Path) -> Vhdx<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .expect("the image");
    Vhdx::open(file, Access::Write).expect("an image of qemu-img opens")
}

/// What `qemu-img convert` reads from the image.
fn as_raw(image: &Path) -> Vec<u8> {
    let raw = image.with_extension("raw");
    let (from, to) = (image.to_str().expect("plain"), raw.to_str().expect("plain"));
    run(&["convert", "-q", "-f", "vhdx", "-O", "raw", from, to]);
    std::fs::read(raw).expect("the raw image")
}

fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

#[test]
fn qemu_reads_what_we_write_and_finds_nothing_wrong() {
    if !qemu_img() {
        return;
    }
    for options in ["block_size=1M", "block_size=8M", "block_size=2M,subformat=fixed"] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = create(folder.path(), "20M", options);
        let mut expected = vec![0; 20 << 20];
        let mut disk = open(&path);
        assert_eq!(disk.size(), 20 << 20);
        let pieces = [
            (0, 4096),
            (3 << 20, 5 << 20),
            ((20 << 20) - 512, 512),
            (1 << 20, 100),
        ];
        for (number, (offset, length)) in pieces.into_iter().enumerate() {
            let bytes = pattern(length, number as u64);
            disk.write(&bytes, offset as u64).expect("a write");
            expected[offset..offset + length].copy_from_slice(&bytes);
            if number == 1 {
                disk.flush().expect("a flush");
            }
        }
        disk.write(&vec![0; 2 << 20], 12 << 20).expect("zeros");
        let mut seen = vec![0xAA; 20 << 20];
        disk.read(&mut seen, 0).expect("a read");
        assert!(seen == expected, "what was written is read, {options}");
        disk.close().expect("closing");
        let said = run(&["check", "-f", "vhdx", path.to_str().expect("plain")]);
        assert!(said.contains("No errors were found"), "{said}");
        assert!(as_raw(&path) == expected, "qemu reads the same, {options}");
    }
}

#[test]
fn we_read_what_qemu_writes() {
    if !qemu_img() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut expected = pattern(33 << 20, 7);
    expected[5 << 20..21 << 20].fill(0);
    let raw = folder.path().join("in.raw");
    std::fs::write(&raw, &expected).expect("writing");
    for options in ["block_size=1M,log_size=2M", "block_size=16M", "subformat=fixed"] {
        let image = folder.path().join("in.vhdx");
        let (from, to) = (raw.to_str().expect("plain"), image.to_str().expect("plain"));
        run(&[
            "convert", "-q", "-f", "raw", "-O", "vhdx", "-o", options, from, to,
        ]);
        let disk = Vhdx::open(File::open(&image).expect("the image"), Access::Read).expect("it opens");
        let mut seen = vec![0xAA; expected.len()];
        disk.read(&mut seen, 0).expect("a read");
        assert!(seen == expected, "{options}");
    }
}

/// A sparse image in memory, which remembers what was done to it.
#[derive(Clone, Default)]
struct Recorded {
    bytes: RefCell<Vec<u8>>,
    done: RefCell<Vec<Done>>,
}

#[derive(Clone)]
enum Done {
    Write(u64, Vec<u8>),
    Length(u64),
    Flush,
}

impl Recorded {
    fn of(bytes: Vec<u8>) -> Self {
        Self {
            bytes: RefCell::new(bytes),
            done: RefCell::default(),
        }
    }
}

impl Done {
    fn to(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Length(length) => bytes.resize(*length as usize, 0),
            Self::Write(offset, data) => {
                let (start, end) = (*offset as usize, *offset as usize + data.len());
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                bytes[start..end].copy_from_slice(data);
            }
            Self::Flush => {}
        }
    }
}

impl Backing for Recorded {
    fn length(&self) -> io::Result<u64> {
        Ok(self.bytes.borrow().len() as u64)
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        let done = Done::Length(length);
        done.to(&mut self.bytes.borrow_mut());
        self.done.borrow_mut().push(done);
        Ok(())
    }

    fn read(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let all = self.bytes.borrow();
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        match start.checked_add(bytes.len()).and_then(|end| all.get(start..end)) {
            Some(found) => bytes.copy_from_slice(found),
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        Ok(())
    }

    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let done = Done::Write(offset, bytes.to_vec());
        done.to(&mut self.bytes.borrow_mut());
        self.done.borrow_mut().push(done);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.done.borrow_mut().push(Done::Flush);
        Ok(())
    }
}

/// An image made by hand, small enough to be flipped bit by bit: 4 MiB in blocks of 1 MiB, nothing allocated.
fn small() -> Vec<u8> {
    let mut bytes = vec![0; 4 << 20];
    layout::put(&mut bytes, 0, FILE_IDENTIFIER);
    let header = Header {
        sequence: 7,
        file_write: Guid([1; 16]),
        data_write: Guid([2; 16]),
        log: Guid::ZERO,
        log_length: 1 << 20,
        log_offset: 1 << 20,
    };
    layout::put(&mut bytes, HEADERS[0] as usize, &header.encode());
    let older = Header {
        sequence: 6,
        ..header
    };
    layout::put(&mut bytes, HEADERS[1] as usize, &older.encode());
    for at in REGION_TABLES {
        let table = layout::example_regions(2 << 20, 3 << 20);
        layout::put(&mut bytes, at as usize, &table);
    }
    let metadata = layout::example_metadata(4 << 20, 1 << 20);
    layout::put(&mut bytes, 3 << 20, &metadata);
    bytes
}

fn contents(bytes: Vec<u8>) -> Result<Vec<u8>, Error> {
    let disk = Vhdx::open(Recorded::of(bytes), Access::Write)?;
    let mut seen = vec![0; disk.size() as usize];
    disk.read(&mut seen, 0)?;
    Ok(seen)
}

/// After so many operations the disk has these bytes.
type Promised = Vec<(usize, Vec<u8>)>;

/// Two flushed writes, a third that is not, and a close: the log of what reached the disk.
fn session() -> (Vec<u8>, Vec<Done>, Promised) {
    let start = small();
    let mut disk = Vhdx::open(Recorded::of(start.clone()), Access::Write).expect("it opens");
    let mut promised = vec![(0, vec![0; 4 << 20])];
    let mut expected = vec![0; 4 << 20];
    for (number, (offset, length)) in [(0, 8192), (1 << 20, 4096), (5000, 100), (3 << 20, 4096)]
        .into_iter()
        .enumerate()
    {
        let bytes = pattern(length, number as u64 + 1);
        disk.write(&bytes, offset as u64).expect("a write");
        expected[offset..offset + length].copy_from_slice(&bytes);
        if number != 2 {
            disk.flush().expect("a flush");
            promised.push((disk.backing.done.borrow().len(), expected.clone()));
        }
    }
    let recorded = disk.close().expect("closing");
    let done = recorded.done.into_inner();
    (start, done, promised)
}

/// Writes since the last flush, of which a cut of power may lose any.
fn unflushed(done: &[Done]) -> usize {
    done.iter()
        .rev()
        .take_while(|done| !matches!(done, Done::Flush))
        .count()
}

#[test]
fn power_may_fail_at_any_write_and_what_was_flushed_is_there() {
    let (start, done, promised) = session();
    let mut states = 0;
    for cut in 0..=done.len() {
        let epoch = unflushed(&done[..cut]);
        let sure = cut - epoch;
        // At least what had been flushed; at most what had been written, byte by byte.
        let flushed = &promised
            .iter()
            .rev()
            .find(|(at, _)| *at <= sure)
            .expect("the beginning")
            .1;
        let written = &promised
            .iter()
            .find(|(at, _)| *at >= cut)
            .unwrap_or(promised.last().expect("one"))
            .1;
        assert!(epoch <= 12, "every subset of {epoch} writes");
        for kept in 0..1_usize << epoch {
            for torn in [None, Some(512), Some(4096 - 512)] {
                let mut bytes = start.clone();
                for done in &done[..sure] {
                    done.to(&mut bytes);
                }
                for (number, done) in done[sure..cut].iter().enumerate() {
                    if kept & 1 << number == 0 {
                        continue;
                    }
                    match (done, torn) {
                        (Done::Write(offset, data), Some(length)) if data.len() > length => {
                            Done::Write(*offset, data[..length].to_vec()).to(&mut bytes);
                        }
                        (done, _) => done.to(&mut bytes),
                    }
                }
                states += 1;
                let seen =
                    contents(bytes).unwrap_or_else(|error| panic!("cut {cut}, kept {kept:b}: {error}"));
                let wrong = (0..seen.len()).step_by(512).find(|&at| {
                    let sector = at..at + 512;
                    seen[sector.clone()] != flushed[sector.clone()]
                        && seen[sector.clone()] != written[sector.clone()]
                        && {
                            let mut bytes = sector.into_iter();
                            bytes.any(|at| seen[at] != flushed[at] && seen[at] != written[at])
                        }
                });
                assert_eq!(
                    wrong, None,
                    "cut {cut}, kept {kept:b}, torn {torn:?}: a byte of nobody"
                );
            }
        }
    }
    println!("{states} states after a cut of power, {} operations", done.len());
    assert!(states > 100);
}

#[test]
fn qemu_opens_what_a_cut_left_after_we_replayed_it() {
    if !qemu_img() {
        return;
    }
    let (start, done, promised) = session();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("cut.vhdx");
    let mut replayed = 0;
    for cut in 0..=done.len() {
        let mut bytes = start.clone();
        for done in &done[..cut] {
            done.to(&mut bytes);
        }
        let (_, header) = Header::current(&[
            bytes[HEADERS[0] as usize..][..SECTOR].to_vec(),
            bytes[HEADERS[1] as usize..][..SECTOR].to_vec(),
        ])
        .expect("a header");
        replayed += usize::from(header.log != Guid::ZERO);
        std::fs::write(&path, &bytes).expect("writing");
        open(&path).close().expect("closing");
        run(&["check", "-q", "-f", "vhdx", path.to_str().expect("plain")]);
        if let Some((_, expected)) = promised.iter().find(|(at, _)| *at == cut) {
            assert!(as_raw(&path) == *expected, "cut {cut}");
        }
    }
    assert!(replayed > 0, "no cut left a log to replay");
}

/// The log that we leave is one that qemu replays to the same disk.
#[test]
fn qemu_replays_our_log() {
    if !qemu_img() {
        return;
    }
    let (start, done, promised) = session();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("cut.vhdx");
    // The table's change is lost and only the log tells of it: after the headers announce the log, before the table.
    let mut bytes = start;
    let mut told = 0;
    for (number, done) in done.iter().enumerate() {
        done.to(&mut bytes);
        let announces =
            matches!(done, Done::Write(at, data) if HEADERS.contains(at) && data[48..64] != [0; 16]);
        if !announces {
            continue;
        }
        told += 1;
        let (_, expected) = promised
            .iter()
            .find(|(at, _)| *at > number)
            .expect("a later flush");
        std::fs::write(&path, &bytes).expect("writing");
        run(&[
            "check",
            "-q",
            "-r",
            "all",
            "-f",
            "vhdx",
            path.to_str().expect("plain"),
        ]);
        assert!(as_raw(&path) == *expected, "operation {number}");
    }
    assert_eq!(told, 2, "both headers announced the log once");
}

/// An image whose log has to be replayed, cut just before the table changes for the flush of this number, with what the
/// flush before promised and what this one does.
fn with_log(flush: usize) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
    let (start, done, promised) = session();
    let (at, expected) = &promised[flush];
    let mut bytes = start;
    for done in &done[..at - 2] {
        done.to(&mut bytes);
    }
    (bytes, promised[flush - 1].1.clone(), expected.clone())
}

#[test]
fn every_flipped_bit_of_headers_regions_and_table_is_found_or_harmless() {
    let (start, done, promised) = session();
    let expected = &promised.last().expect("one").1;
    let mut bytes = start;
    for done in &done {
        done.to(&mut bytes);
    }
    assert!(contents(bytes.clone()).expect("it opens") == *expected);
    let places = [
        (0, 8),
        (HEADERS[0] as usize, SECTOR),
        (HEADERS[1] as usize, SECTOR),
        (REGION_TABLES[0] as usize, 128),
        (REGION_TABLES[1] as usize, 128),
        (2 << 20, 32),
    ];
    let (mut refused, mut harmless) = (0, 0);
    for (place, length) in places {
        for bit in 0..length * 8 {
            // Headers whole would be 65,536 openings; their fields are in the first 80 bytes, the rest is sampled.
            if bit > 80 * 8 && bit % 97 != 0 {
                continue;
            }
            let at = place + bit / 8;
            bytes[at] ^= 1 << (bit % 8);
            match contents(bytes.clone()) {
                Err(Error::Corrupt { .. } | Error::Unsupported { .. }) => refused += 1,
                Err(other) => panic!("bit {bit} at {place}: {other}"),
                Ok(seen) => {
                    assert!(
                        seen == *expected,
                        "bit {bit} at {place} changed the disk unnoticed"
                    );
                    harmless += 1;
                }
            }
            bytes[at] ^= 1 << (bit % 8);
        }
    }
    println!("{refused} flips refused, {harmless} repaired by the second copy or without effect");
    assert!(refused > 200 && harmless > 200);
}

/// An entry that is not whole was never written, as far as anybody can tell: then the disk is what the flush before left,
/// whole. Without an entry before it the image is refused.
#[test]
fn a_flipped_bit_of_the_log_never_gives_a_disk_that_nobody_flushed() {
    for (flush, entries) in [(1, 1), (2, 2)] {
        let (mut bytes, before, expected) = with_log(flush);
        assert!(contents(bytes.clone()).expect("it replays") == expected);
        assert!(before != expected);
        let sectors = (0..256).map(|number| (1 << 20) + number * SECTOR);
        let found: Vec<usize> = sectors.filter(|at| &bytes[*at..*at + 4] == b"loge").collect();
        assert_eq!(found.len(), entries);
        let last = *found.last().expect("an entry");
        let (mut refused, mut earlier) = (0, 0);
        for bit in (0..96 * 8).chain((96 * 8..2 * SECTOR * 8).step_by(211)) {
            let at = last + bit / 8;
            bytes[at] ^= 1 << (bit % 8);
            match contents(bytes.clone()) {
                Err(Error::Corrupt { .. }) => refused += 1,
                Err(other) => panic!("bit {bit}: {other}"),
                Ok(seen) => {
                    assert!(
                        entries > 1 && seen == before,
                        "bit {bit} of the log gave another disk"
                    );
                    earlier += 1;
                }
            }
            bytes[at] ^= 1 << (bit % 8);
        }
        println!("{entries} entries in the log: {refused} flips refused, {earlier} left the flush before");
        assert_eq!(refused > 0, entries == 1);
    }
}

#[test]
fn a_differencing_disk_and_a_short_file_are_refused_in_words() {
    let mut bytes = small();
    let flags = (3 << 20) + (64 << 10) + 4;
    bytes[flags] |= 2;
    let said = contents(bytes).expect_err("a parent").to_string();
    assert!(said.contains("differencing"), "{said}");
    let said = contents(small()[..100_000].to_vec())
        .expect_err("short")
        .to_string();
    assert!(said.contains("too few for its headers"), "{said}");
}

#[test]
fn reading_alone_replays_nothing() {
    let (bytes, _, _) = with_log(1);
    let backing = Recorded::of(bytes);
    match Vhdx::open(backing.clone(), Access::Read) {
        Err(Error::NeedsReplay) => {}
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("opened"),
    }
    assert!(backing.done.borrow().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the bytes, opening ends, asks for no memory beyond the file, and does not panic.
    #[test]
    fn hostile_bytes_are_refused_or_read(
        places in proptest::collection::vec((0_usize..4 << 20, any::<u64>()), 1..24),
        near in proptest::collection::vec((0_usize..6, 0_usize..512, any::<u8>()), 0..24),
        resum in any::<bool>(),
    ) {
        let mut bytes = small();
        for (at, value) in places {
            let at = at.min(bytes.len() - 8);
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        let bases = [HEADERS[0] as usize, HEADERS[1] as usize, REGION_TABLES[0] as usize, 2 << 20, 3 << 20, (3 << 20) + (64 << 10)];
        for (base, at, value) in near {
            bytes[bases[base] + at] = value;
        }
        if resum {
            // A liar who knows how to compute a checksum.
            for (at, length) in [(HEADERS[0] as usize, SECTOR), (REGION_TABLES[0] as usize, REGION_TABLE_LENGTH)] {
                let sum = layout::checksum(&bytes[at..at + length], 4);
                bytes[at + 4..at + 8].copy_from_slice(&sum.to_le_bytes());
            }
        }
        if let Ok(mut disk) = Vhdx::open(Recorded::of(bytes), Access::Write) {
            let mut buffer = [0; 512];
            let last = disk.size() - 512;
            let _ = disk.read(&mut buffer, last);
            if disk.block_size() <= 1 << 20 && disk.size() < 1 << 26 {
                disk.write(&buffer, last).expect("a write");
                disk.flush().expect("a flush");
            }
        }
    }
}
