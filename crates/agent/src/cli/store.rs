//! `bootStore` of the configuration: which format on which device or directory.

use std::{
    fs::File,
    io::{Seek, SeekFrom},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde::Deserialize;
use slipway_agent::boot_store::{BootStore, Device, Directory, Stored};
use slipway_slots::{
    BySlot,
    boot::{GptAttributes, Grubenv, Records, SystemdBoot, UbootEnv},
};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum StoreConfig {
    /// The directory of GRUB's environment block.
    Grubenv { directory: PathBuf },
    /// Our own records, on a partition or in a file.
    Records {
        device: PathBuf,
        #[serde(default)]
        offset: u64,
    },
    /// U-Boot's redundant environment.
    Uboot {
        device: PathBuf,
        offsets: [u64; 2],
        size: u64,
    },
    /// The directory of systemd-boot's entries, and what stands in the entry of each slot: `linux`, `initrd`, `options`.
    SystemdBoot {
        directory: PathBuf,
        a: String,
        b: String,
    },
    /// Attributes of two partitions of a disk, by their numbers from 1.
    Gpt { disk: PathBuf, a: u32, b: u32 },
}

impl StoreConfig {
    /// `tries` is what slots are armed with here.
    pub fn open(&self, tries: u8) -> Result<Box<dyn BootStore>> {
        Ok(match self {
            Self::Grubenv { directory: path } => Box::new(Stored::new(Grubenv, directory(path)?)),
            Self::Records { device: path, offset } => {
                Box::new(Stored::new(Records { offset: *offset }, device(path)?))
            }
            Self::Uboot {
                device: path,
                offsets,
                size,
            } => {
                let codec = UbootEnv {
                    offsets: *offsets,
                    size: *size,
                };
                Box::new(Stored::new(codec, device(path)?))
            }
            Self::SystemdBoot {
                directory: path,
                a,
                b,
            } => {
                let entries = BySlot {
                    a: a.clone(),
                    b: b.clone(),
                };
                Box::new(Stored::new(SystemdBoot { entries }, directory(path)?))
            }
            Self::Gpt { disk, a, b } => {
                let disk_size = File::open(disk)
                    .and_then(|mut file| file.seek(SeekFrom::End(0)))
                    .with_context(|| disk.display().to_string())?;
                let codec = GptAttributes {
                    disk_size,
                    partitions: BySlot { a: *a, b: *b },
                    tries,
                };
                Box::new(Stored::new(codec, device(disk)?))
            }
        })
    }
}

fn device(path: &Path) -> Result<Device> {
    Device::open(path).with_context(|| path.display().to_string())
}

fn directory(path: &Path) -> Result<Directory> {
    Directory::open(path).with_context(|| path.display().to_string())
}
