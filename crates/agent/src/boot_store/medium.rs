//! Where a boot store's bytes live: ranges of a device or file, or the files of one directory.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use slipway_slots::boot::{Contents, Extent, Layout, Step};

/// No file of a boot store is larger; more is not read.
const MAX_FILE: u64 = 64 * 1024;

/// Reads a store whole and carries out one step of a change at a time.
pub trait Medium: Send {
    fn describe(&self) -> String;
    fn load(&mut self, layout: &Layout) -> io::Result<Contents>;
    fn apply(&mut self, step: &Step) -> io::Result<()>;
}

/// A device or a file of fixed size.
#[derive(Debug)]
pub struct Device {
    path: PathBuf,
    file: File,
}

impl Device {
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            file: OpenOptions::new().read(true).write(true).open(path)?,
        })
    }
}

fn wrong_medium(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("this store lives in {what}"))
}

impl Medium for Device {
    fn describe(&self) -> String {
        self.path.display().to_string()
    }

    fn load(&mut self, layout: &Layout) -> io::Result<Contents> {
        let Layout::Extents(extents) = layout else {
            return Err(wrong_medium("a directory, not on a device"));
        };
        let read = |extent: &Extent| {
            let mut bytes = vec![0; extent.length as usize];
            self.file.read_exact_at(&mut bytes, extent.offset)?;
            Ok(bytes)
        };
        Ok(Contents::Extents(
            extents.iter().map(read).collect::<io::Result<_>>()?,
        ))
    }

    fn apply(&mut self, step: &Step) -> io::Result<()> {
        match step {
            Step::Write { offset, bytes } => self.file.write_all_at(bytes, *offset),
            Step::Flush => self.file.sync_all(),
            Step::WriteFile { .. } | Step::Rename { .. } | Step::Remove { .. } => {
                Err(wrong_medium("a directory, not on a device"))
            }
        }
    }
}

/// A directory on a mounted filesystem.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
}

impl Directory {
    pub fn open(path: &Path) -> io::Result<Self> {
        if !fs::metadata(path)?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok(Self {
            path: path.to_owned(),
        })
    }
}

impl Medium for Directory {
    fn describe(&self) -> String {
        self.path.display().to_string()
    }

    fn load(&mut self, layout: &Layout) -> io::Result<Contents> {
        let Layout::Files { prefix } = layout else {
            return Err(wrong_medium("a device, not a directory"));
        };
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            if !name.starts_with(prefix.as_str()) || !entry.file_type()?.is_file() {
                continue;
            }
            if entry.metadata()?.len() > MAX_FILE {
                return Err(io::Error::new(
                    io::ErrorKind::FileTooLarge,
                    format!("{name} has more than {MAX_FILE} bytes"),
                ));
            }
            files.insert(name, fs::read(entry.path())?);
        }
        Ok(Contents::Files(files))
    }

    fn apply(&mut self, step: &Step) -> io::Result<()> {
        match step {
            Step::WriteFile { name, bytes } => {
                let mut file = File::create(self.path.join(name))?;
                file.write_all(bytes)?;
                file.sync_all()
            }
            Step::Rename { from, to } => fs::rename(self.path.join(from), self.path.join(to)),
            Step::Remove { name } => match fs::remove_file(self.path.join(name)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                result => result,
            },
            Step::Flush => File::open(&self.path)?.sync_all(),
            Step::Write { .. } => Err(wrong_medium("a device, not a directory")),
        }
    }
}
