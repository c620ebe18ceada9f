//! The boot store of a node: on a device there, or in a directory.

use std::io;

use slipway_slots::boot::{Contents, Extent, Layout, Step};

use super::{
    Error, Node, RemoteTarget,
    helper::Helper,
    protocol::{LONGEST, Request, decode_files},
};
use crate::boot_store::Medium;
use crate::target::{SlotTarget, Through};

/// A device of a node.
pub struct RemoteDevice(RemoteTarget);

impl RemoteDevice {
    pub fn open(node: &Node, helper: &str, device: &str) -> Result<Self, Error> {
        RemoteTarget::open(node, helper, device).map(Self)
    }

    /// In bytes.
    pub fn size(&self) -> u64 {
        self.0.size()
    }
}

fn wrong_medium(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("this store lives in {what}"))
}

impl Medium for RemoteDevice {
    fn describe(&self) -> String {
        self.0.describe()
    }

    fn load(&mut self, layout: &Layout) -> io::Result<Contents> {
        let Layout::Extents(extents) = layout else {
            return Err(wrong_medium("a directory, not on a device"));
        };
        let read = |extent: &Extent| {
            let mut bytes = vec![0; extent.length as usize];
            self.0.read_at(extent.offset, &mut bytes, Through::Cache)?;
            Ok(bytes)
        };
        Ok(Contents::Extents(
            extents.iter().map(read).collect::<io::Result<_>>()?,
        ))
    }

    fn apply(&mut self, step: &Step) -> io::Result<()> {
        match step {
            Step::Write { offset, bytes } => self.0.write_at(*offset, bytes),
            Step::Flush => self.0.flush(),
            Step::WriteFile { .. } | Step::Rename { .. } | Step::Remove { .. } => {
                Err(wrong_medium("a directory, not on a device"))
            }
        }
    }
}

/// A directory of a node.
pub struct RemoteDirectory(Helper);

impl RemoteDirectory {
    pub fn open(node: &Node, helper: &str, directory: &str) -> Result<Self, Error> {
        Helper::start(node, helper, directory).map(Self)
    }
}

impl Medium for RemoteDirectory {
    fn describe(&self) -> String {
        self.0.name.clone()
    }

    fn load(&mut self, layout: &Layout) -> io::Result<Contents> {
        let Layout::Files { prefix } = layout else {
            return Err(wrong_medium("a device, not a directory"));
        };
        let request = Request::Files {
            prefix: prefix.clone(),
        };
        let files = self.0.ask(&request, LONGEST)?;
        decode_files(&files)
            .map(Contents::Files)
            .ok_or_else(|| io::Error::other("the helper on the node answers with no files"))
    }

    fn apply(&mut self, step: &Step) -> io::Result<()> {
        let request = match step.clone() {
            Step::WriteFile { name, bytes } => Request::WriteFile { name, bytes },
            Step::Rename { from, to } => Request::RenameFile { from, to },
            Step::Remove { name } => Request::RemoveFile { name },
            Step::Flush => Request::Flush,
            Step::Write { .. } => return Err(wrong_medium("a device, not a directory")),
        };
        self.0.ask(&request, 0).map(drop)
    }
}
