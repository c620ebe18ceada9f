//! A disk that fails on demand: one file in a filesystem of our own (FUSE), so that the agent's real reads, writes and
//! flushes meet real errors of the kernel.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, WriteFlags,
};
use tempfile::TempDir;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Read,
    Write,
    Flush,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Fails with this error of the kernel.
    Error(i32),
    /// The first sector arrives, then it fails.
    Torn,
    /// Less is written than was given, and said so: no error at all.
    Short,
}

/// From the `nth` operation of its kind on, `times` of them.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub operation: Operation,
    pub effect: Effect,
    pub nth: usize,
    pub times: usize,
}

#[derive(Debug)]
pub struct Disk {
    pub bytes: Vec<u8>,
    fault: Option<Fault>,
    /// Operations of the fault's kind since it was set.
    seen: usize,
    pub hits: usize,
}

impl Disk {
    pub fn set(&mut self, fault: Option<Fault>) {
        self.fault = fault;
        self.seen = 0;
        self.hits = 0;
    }

    fn effect(&mut self, operation: Operation) -> Option<Effect> {
        let fault = self.fault.filter(|fault| fault.operation == operation)?;
        self.seen += 1;
        let hit = self.seen >= fault.nth && self.seen - fault.nth < fault.times;
        self.hits += usize::from(hit);
        hit.then_some(fault.effect)
    }
}

/// Mounted; unmounted when it is dropped.
pub struct FaultyDisk {
    shared: Arc<Mutex<Disk>>,
    _session: BackgroundSession,
    directory: TempDir,
}

impl FaultyDisk {
    /// `None`, and said so, where this machine has no FUSE.
    pub fn mount(bytes: Vec<u8>, what: &str) -> Option<Self> {
        let skipped = |reason: String| {
            println!("report: skipped: {what} needs FUSE: {reason}");
        };
        if let Err(error) = fs::metadata("/dev/fuse") {
            skipped(format!("/dev/fuse: {error}"));
            return None;
        }
        let directory = TempDir::new().unwrap();
        let shared = Arc::new(Mutex::new(Disk {
            bytes,
            fault: None,
            seen: 0,
            hits: 0,
        }));
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("faulty".into()), MountOption::RW];
        match fuser::spawn_mount(Served(shared.clone()), directory.path(), &config) {
            Ok(session) => Some(Self {
                shared,
                _session: session,
                directory,
            }),
            Err(error) => {
                skipped(error.to_string());
                None
            }
        }
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("slot")
    }

    pub fn disk(&self) -> MutexGuard<'_, Disk> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Served(Arc<Mutex<Disk>>);

/// Nothing may be remembered by the kernel.
const TTL: Duration = Duration::ZERO;
const FILE: u64 = 2;

impl Served {
    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attributes(&self, inode: u64) -> FileAttr {
        let size = self.disk().bytes.len() as u64;
        let file = inode == FILE;
        FileAttr {
            ino: INodeNo(inode),
            size: if file { size } else { 0 },
            blocks: size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if file {
                FileType::RegularFile
            } else {
                FileType::Directory
            },
            perm: if file { 0o600 } else { 0o700 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            flags: 0,
            blksize: 4096,
        }
    }
}

impl Filesystem for Served {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == "slot" {
            reply.entry(&TTL, &self.attributes(FILE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.attributes(u64::from(inode)));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // Past the page cache: what the agent does is what arrives here.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut disk = self.disk();
        match disk.effect(Operation::Read) {
            Some(Effect::Error(number)) => reply.error(Errno::from_i32(number)),
            Some(Effect::Torn) => reply.error(Errno::EIO),
            _ => {
                let start = (offset as usize).min(disk.bytes.len());
                let end = (start + size as usize).min(disk.bytes.len());
                reply.data(&disk.bytes[start..end]);
            }
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut disk = self.disk();
        let effect = disk.effect(Operation::Write);
        let taken = match effect {
            None => data.len(),
            Some(Effect::Error(_)) => 0,
            Some(Effect::Torn | Effect::Short) => data.len().min(512),
        };
        let start = offset as usize;
        disk.bytes[start..start + taken].copy_from_slice(&data[..taken]);
        match effect {
            Some(Effect::Error(number)) => reply.error(Errno::from_i32(number)),
            Some(Effect::Torn) => reply.error(Errno::EIO),
            None | Some(Effect::Short) => reply.written(taken as u32),
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        match self.disk().effect(Operation::Flush) {
            Some(Effect::Error(number)) => reply.error(Errno::from_i32(number)),
            Some(Effect::Torn) => reply.error(Errno::EIO),
            None | Some(Effect::Short) => reply.ok(),
        }
    }
}
