//! A partition inside a disk image on the host, raw or VHDX, as a slot target: the machine that boots from the image does
//! not run meanwhile. Owns the image's file and its lock.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
};

use gptman::GPT;
use rustix::fs::{Advice, fadvise};

use crate::{
    target::{SlotTarget, Through},
    vhdx::{self, Access, Vhdx},
};

/// Which partition of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Select {
    /// As partitioning tools count, from one.
    Number(u32),
    /// The GPT's partition name.
    Label(String),
}

impl std::fmt::Display for Select {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => write!(f, "partition {number}"),
            Self::Label(label) => write!(f, "partition {label:?}"),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the disk image {path} cannot be opened: {source}")]
    Open { path: String, source: io::Error },
    #[error("the disk image {path} is in use: {by}; stop the machine that boots from it")]
    InUse { path: String, by: String },
    #[error("the disk image {path} cannot be read as VHDX: {source}")]
    Vhdx { path: String, source: vhdx::Error },
    #[error("the disk image {path} has no partition table that can be read (a GPT is needed): {source}")]
    Table { path: String, source: gptman::Error },
    #[error("the disk image {path} has no {partition}; it has {there}")]
    Absent {
        path: String,
        partition: Select,
        there: String,
    },
    #[error("{partition} of {path} does not lie inside the disk, or not on whole 4096-byte blocks")]
    Place { path: String, partition: Select },
}

enum Disk {
    Raw(File),
    Vhdx(Box<Vhdx<File>>),
}

impl Disk {
    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        match self {
            Self::Raw(file) => file.read_exact_at(buffer, offset),
            Self::Vhdx(disk) => disk.read(buffer, offset).map_err(io::Error::other),
        }
    }

    fn file(&self) -> &File {
        match self {
            Self::Raw(file) => file,
            Self::Vhdx(disk) => disk.backing(),
        }
    }
}

/// One partition of a disk image, locked for as long as this lives.
pub struct ImagePartition {
    path: PathBuf,
    partition: Select,
    disk: Disk,
    start: u64,
    size: u64,
    _lock: Lock,
}

/// The lock on an image. It is given back by its name, because a child that is just being started has the file open too,
/// and would keep the lock for a moment.
struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing the file does it otherwise.
        let _ = self.0.unlock();
    }
}

impl ImagePartition {
    pub fn open(path: &Path, partition: &Select) -> Result<Self, OpenError> {
        let name = || path.display().to_string();
        let failed = |source| OpenError::Open { path: name(), source };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(failed)?;
        if let Err(error) = file.try_lock() {
            return Err(match error {
                std::fs::TryLockError::WouldBlock => OpenError::InUse {
                    path: name(),
                    by: "another process has locked it".to_owned(),
                },
                std::fs::TryLockError::Error(source) => failed(source),
            });
        }
        let lock = Lock(file.try_clone().map_err(failed)?);
        if let Some(by) = holder(&file).map_err(failed)? {
            return Err(OpenError::InUse { path: name(), by });
        }
        let length = file.metadata().map_err(failed)?.len();
        let mut first = [0; 8];
        let is_vhdx = length >= 8 && {
            file.read_exact_at(&mut first, 0).map_err(failed)?;
            Vhdx::<File>::is_one(&first)
        };
        let (disk, size, sector) = if is_vhdx {
            let disk =
                Vhdx::open(file, Access::Write).map_err(|source| OpenError::Vhdx { path: name(), source })?;
            let (size, sector) = (disk.size(), u64::from(disk.logical_sector()));
            (Disk::Vhdx(Box::new(disk)), size, Some(sector))
        } else {
            (Disk::Raw(file), length, None)
        };
        let mut cursor = Cursor {
            disk: &disk,
            size,
            at: 0,
        };
        let table = match sector {
            Some(sector) => GPT::read_from(&mut cursor, sector),
            None => GPT::find_from(&mut cursor),
        }
        .map_err(|source| OpenError::Table { path: name(), source })?;
        let found =
            table
                .iter()
                .filter(|(_, entry)| entry.is_used())
                .find(|(number, entry)| match partition {
                    Select::Number(which) => number == which,
                    Select::Label(label) => entry.partition_name.as_str() == label,
                });
        let Some((_, entry)) = found else {
            let there: Vec<String> = table
                .iter()
                .filter(|(_, entry)| entry.is_used())
                .map(|(number, entry)| format!("{number} ({})", entry.partition_name.as_str()))
                .collect();
            return Err(OpenError::Absent {
                path: name(),
                partition: partition.clone(),
                there: if there.is_empty() {
                    "none".to_owned()
                } else {
                    there.join(", ")
                },
            });
        };
        let bytes = entry.ending_lba.checked_add(1).and_then(|end| {
            Some((
                entry.starting_lba.checked_mul(table.sector_size)?,
                end.checked_mul(table.sector_size)?,
            ))
        });
        let (start, end) = match bytes {
            Some((start, end)) if start < end && end <= size && start % 4096 == 0 && end % 4096 == 0 => {
                (start, end)
            }
            _ => {
                return Err(OpenError::Place {
                    path: name(),
                    partition: partition.clone(),
                });
            }
        };
        Ok(Self {
            path: path.to_owned(),
            partition: partition.clone(),
            disk,
            start,
            size: end - start,
            _lock: lock,
        })
    }

    /// Flushes and leaves a clean image. Dropped without it, an image is as after a power cut: whole, with a log that its
    /// next user replays.
    pub fn close(mut self) -> io::Result<()> {
        self.flush()?;
        match self.disk {
            Disk::Raw(_) => Ok(()),
            Disk::Vhdx(disk) => disk.close().map(drop).map_err(io::Error::other),
        }
    }

    fn place(&self, offset: u64, length: usize) -> io::Result<u64> {
        match offset.checked_add(length as u64) {
            Some(end) if end <= self.size => Ok(self.start + offset),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "bytes {offset}+{length} are outside the partition's {}",
                    self.size
                ),
            )),
        }
    }
}

impl SlotTarget for ImagePartition {
    fn describe(&self) -> String {
        format!("{} {}", self.path.display(), self.partition)
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn in_use(&mut self) -> io::Result<Option<String>> {
        holder(self.disk.file())
    }

    fn read_at(&mut self, offset: u64, buffer: &mut [u8], through: Through) -> io::Result<()> {
        let at = self.place(offset, buffer.len())?;
        if through == Through::Medium {
            fadvise(self.disk.file(), 0, None, Advice::DontNeed)?;
        }
        self.disk.read(buffer, at)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let at = self.place(offset, bytes.len())?;
        match &mut self.disk {
            Disk::Raw(file) => file.write_all_at(bytes, at),
            Disk::Vhdx(disk) => disk.write(bytes, at).map_err(io::Error::other),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.disk {
            Disk::Raw(file) => file.sync_all(),
            Disk::Vhdx(disk) => disk.flush().map_err(io::Error::other),
        }
    }
}

/// What holds the file by record locks, as virtual machine monitors do.
fn holder(file: &File) -> io::Result<Option<String>> {
    let metadata = file.metadata()?;
    let (major, minor) = (
        rustix::fs::major(metadata.dev()),
        rustix::fs::minor(metadata.dev()),
    );
    let locks = std::fs::read_to_string("/proc/locks")?;
    Ok(record_lock(
        &locks,
        &format!("{major:02x}:{minor:02x}:{}", metadata.ino()),
    ))
}

/// The first record lock on this inode in the words of `/proc/locks`. Locks on the whole file (`FLOCK`) are ours.
fn record_lock(locks: &str, inode: &str) -> Option<String> {
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().filter(|word| *word != "->").collect();
        match words[..] {
            [_, kind @ ("OFDLCK" | "POSIX"), _, access, process, place, ..] if place == inode => {
                Some(match process {
                    "-1" => format!("a program holds a lock on it ({kind}, {access})"),
                    process => format!("process {process} holds a lock on it ({kind}, {access})"),
                })
            }
            _ => None,
        }
    })
}

/// The disk as the partition table's reader takes it.
struct Cursor<'a> {
    disk: &'a Disk,
    size: u64,
    at: u64,
}

impl Read for Cursor<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.size.saturating_sub(self.at).min(buffer.len() as u64) as usize;
        self.disk.read(&mut buffer[..length], self.at)?;
        self.at += length as u64;
        Ok(length)
    }
}

impl Seek for Cursor<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.size.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_machine_that_runs_is_seen_by_its_locks() {
        let locks = "1: FLOCK  ADVISORY  WRITE 12 08:01:77 0 EOF\n\
                     2: OFDLCK ADVISORY  READ  -1 08:01:78 100 101\n\
                     3: POSIX  ADVISORY  WRITE 901 fd:00:77 0 EOF\n\
                     3: -> POSIX  ADVISORY  WRITE 902 00:10:5 0 EOF\n";
        assert_eq!(record_lock(locks, "08:01:77"), None, "our own");
        assert!(record_lock(locks, "08:01:78").is_some_and(|by| by.contains("a program")));
        assert!(record_lock(locks, "fd:00:77").is_some_and(|by| by.contains("process 901")));
        assert!(record_lock(locks, "00:10:5").is_some_and(|by| by.contains("process 902")));
    }
}
