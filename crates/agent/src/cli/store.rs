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
    boot::{Codec, GptAttributes, Grubenv, Records, SystemdBoot, UbootEnv},
};

use super::{config::text, node::RemoteNode};

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
    /// `tries` is what slots are armed with here. Devices and directories are the node's, if there is one.
    pub fn open(&self, tries: u8, node: Option<&RemoteNode>) -> Result<Box<dyn BootStore>> {
        let location = Location(node);
        match self {
            Self::Grubenv { directory } => location.in_directory(Grubenv, directory),
            Self::Records { device, offset } => location.on_device(device, |_| Records { offset: *offset }),
            Self::Uboot {
                device,
                offsets,
                size,
            } => location.on_device(device, |_| UbootEnv {
                offsets: *offsets,
                size: *size,
            }),
            Self::SystemdBoot { directory, a, b } => {
                let entries = BySlot {
                    a: a.clone(),
                    b: b.clone(),
                };
                location.in_directory(SystemdBoot { entries }, directory)
            }
            Self::Gpt { disk, a, b } => location.on_device(disk, |disk_size| GptAttributes {
                disk_size,
                partitions: BySlot { a: *a, b: *b },
                tries,
            }),
        }
    }
}

/// Where a boot store lives: here, or on a node.
struct Location<'a>(Option<&'a RemoteNode>);

impl Location<'_> {
    /// `codec` is told how large the device is.
    fn on_device<C: Codec + 'static>(
        &self,
        path: &Path,
        codec: impl FnOnce(u64) -> C,
    ) -> Result<Box<dyn BootStore>> {
        if let Some(node) = self.0 {
            let device = node.device(text(path)?)?;
            return Ok(Box::new(Stored::new(codec(device.size()), device)));
        }
        let size = File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0)));
        let size = size.with_context(|| path.display().to_string())?;
        let device = Device::open(path).with_context(|| path.display().to_string())?;
        Ok(Box::new(Stored::new(codec(size), device)))
    }

    fn in_directory<C: Codec + 'static>(&self, codec: C, path: &Path) -> Result<Box<dyn BootStore>> {
        if let Some(node) = self.0 {
            let directory = node.directory(text(path)?)?;
            return Ok(Box::new(Stored::new(codec, directory)));
        }
        let directory = Directory::open(path).with_context(|| path.display().to_string())?;
        Ok(Box::new(Stored::new(codec, directory)))
    }
}
