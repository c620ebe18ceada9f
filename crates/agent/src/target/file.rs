//! A file or block device as a slot target: written and read back with direct I/O where the filesystem allows it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, OFlags, fadvise};

use super::aligned::{ALIGNMENT, AlignedBuffer, is_aligned};
use super::{SlotTarget, Through};

/// The largest piece moved at once.
const PIECE: usize = 1 << 20;

/// A range of a local file or block device; the whole of it unless said otherwise.
#[derive(Debug)]
pub struct LocalTarget {
    path: PathBuf,
    cached: File,
    /// `None` where the filesystem has no direct I/O: then the cache is dropped before reading back.
    direct: Option<File>,
    start: u64,
    size: u64,
    /// For bytes that direct I/O cannot use where they are.
    buffer: AlignedBuffer,
}

impl LocalTarget {
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut file = OpenOptions::new().read(true).write(true).open(path)?;
        let size = file.seek(SeekFrom::End(0))?;
        Self::over(path, file, 0, size)
    }

    /// A partition inside a disk or a raw disk image.
    pub fn open_range(path: &Path, start: u64, size: u64) -> io::Result<Self> {
        let mut file = OpenOptions::new().read(true).write(true).open(path)?;
        let end = file.seek(SeekFrom::End(0))?;
        if start.checked_add(size).is_none_or(|needed| needed > end) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("bytes {start} to {start}+{size} are not inside its {end} bytes"),
            ));
        }
        Self::over(path, file, start, size)
    }

    fn over(path: &Path, cached: File, start: u64, size: u64) -> io::Result<Self> {
        if !start.is_multiple_of(ALIGNMENT as u64) || !size.is_multiple_of(ALIGNMENT as u64) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{start}+{size} is not a multiple of {ALIGNMENT} bytes"),
            ));
        }
        let direct = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(OFlags::DIRECT.bits().cast_signed())
            .open(path)
            .ok();
        Ok(Self {
            // Names of one device differ; what they lead to does not.
            path: fs::canonicalize(path)?,
            cached,
            direct,
            start,
            size,
            buffer: AlignedBuffer::default(),
        })
    }

    fn check(&self, offset: u64, length: usize) -> io::Result<u64> {
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

impl SlotTarget for LocalTarget {
    fn describe(&self) -> String {
        if self.start == 0 {
            self.path.display().to_string()
        } else {
            format!("{} at {}", self.path.display(), self.start)
        }
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn in_use(&mut self) -> io::Result<Option<String>> {
        let metadata = self.cached.metadata()?;
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        if metadata.file_type().is_block_device() {
            return holder_of_device(metadata.rdev(), &mounts);
        }
        // A file is in use through a loop device over it that is mounted.
        for entry in fs::read_dir("/sys/block")? {
            let entry = entry?;
            let backing = entry.path().join("loop/backing_file");
            let Ok(backing) = fs::read_to_string(backing) else {
                continue;
            };
            let Ok(backing) = fs::metadata(backing.trim_end()) else {
                continue;
            };
            if (backing.dev(), backing.ino()) == (metadata.dev(), metadata.ino()) {
                let number = fs::read_to_string(entry.path().join("dev"))?;
                if let Some(place) = mounted(number.trim(), &mounts) {
                    let device = entry.file_name();
                    return Ok(Some(format!("mounted on {place} by {}", device.display())));
                }
            }
        }
        Ok(None)
    }

    fn read_at(&mut self, offset: u64, buffer: &mut [u8], through: Through) -> io::Result<()> {
        let at = self.check(offset, buffer.len())?;
        if through == Through::Cache {
            return self.cached.read_exact_at(buffer, at);
        }
        if let Some(direct) = &self.direct
            && at.is_multiple_of(ALIGNMENT as u64)
            && buffer.len().is_multiple_of(ALIGNMENT)
        {
            if is_aligned(buffer) {
                return direct.read_exact_at(buffer, at);
            }
            let mut done = 0;
            for piece in buffer.chunks_mut(PIECE) {
                let aligned = self.buffer.for_writing(piece.len());
                direct.read_exact_at(aligned, at + done)?;
                piece.copy_from_slice(aligned);
                done += piece.len() as u64;
            }
            return Ok(());
        }
        let length = std::num::NonZeroU64::new(buffer.len() as u64);
        fadvise(&self.cached, at, length, Advice::DontNeed)?;
        self.cached.read_exact_at(buffer, at)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let at = self.check(offset, bytes.len())?;
        if let Some(direct) = &self.direct
            && at.is_multiple_of(ALIGNMENT as u64)
            && bytes.len().is_multiple_of(ALIGNMENT)
        {
            if is_aligned(bytes) {
                return direct.write_all_at(bytes, at);
            }
            let mut done = 0;
            for piece in bytes.chunks(PIECE) {
                let aligned = self.buffer.for_writing(piece.len());
                aligned.copy_from_slice(piece);
                direct.write_all_at(aligned, at + done)?;
                done += piece.len() as u64;
            }
            return Ok(());
        }
        self.cached.write_all_at(bytes, at)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.cached.sync_data()
    }

    fn another_reader(&self) -> io::Result<Option<Box<dyn SlotTarget>>> {
        Ok(Some(Box::new(Self {
            path: self.path.clone(),
            cached: self.cached.try_clone()?,
            direct: self.direct.as_ref().map(File::try_clone).transpose()?,
            start: self.start,
            size: self.size,
            buffer: AlignedBuffer::default(),
        })))
    }
}

/// Who holds a block device: a mount of it, or a device above it (device mapper, RAID).
fn holder_of_device(device: u64, mounts: &str) -> io::Result<Option<String>> {
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    if let Some(place) = mounted(&number, mounts) {
        return Ok(Some(format!("mounted on {place}")));
    }
    let holders = PathBuf::from(format!("/sys/dev/block/{number}/holders"));
    let holder = fs::read_dir(holders).ok().and_then(|mut holders| holders.next());
    Ok(holder
        .transpose()?
        .map(|holder| format!("held by {}", holder.file_name().display())))
}

/// The first place where the device with this `major:minor` is mounted.
fn mounted<'a>(number: &str, mounts: &'a str) -> Option<&'a str> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        (fields.nth(2) == Some(number)).then(|| fields.nth(1).unwrap_or("?"))
    })
}
