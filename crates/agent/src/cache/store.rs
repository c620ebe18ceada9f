//! The cache's files. Names are digests; what has its name is complete, was verified and is durable.
//!
//! ```text
//! blobs/sha256/HEX   verified bytes
//! partial/HEX        a download under way
//! partial/HEX.import a blob of a bundle under way
//! images/HEX.json    the record that makes blobs an image
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock, ioctl_ficlone, statvfs};
use slipway_slots::Digest;
use slipway_slots::digest::Hasher;
use slipway_slots::manifest::Blob;

use super::failpoint::{ServiceFailpoint, ServiceFailpoints};
use super::index::ImageRecord;

/// Written data is flushed this often, so that a power failure costs little.
const FLUSH_EVERY: u64 = 32 << 20;
const MAX_RECORD: u64 = 1 << 20;

pub struct Store {
    root: PathBuf,
    steps: Arc<dyn ServiceFailpoints>,
}

/// What was found on disk.
#[derive(Default)]
pub struct Found {
    pub images: Vec<ImageRecord>,
    /// Blobs, complete or not, that no image has.
    pub loose: Vec<(Digest, u64)>,
    /// What could not be used, in words.
    pub problems: Vec<String>,
}

fn hex(digest: &Digest) -> String {
    digest.to_string().trim_start_matches("sha256:").to_owned()
}

fn digest_of_name(name: &str) -> Option<Digest> {
    format!("sha256:{name}").parse().ok()
}

pub fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// All of the old or all of the new, durable when it returns.
pub fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(directory)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    sync_directory(directory)
}

/// Bytes that the file system of a path still has.
pub fn free(path: &Path) -> io::Result<u64> {
    let found = statvfs(path)?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

/// Whether two paths are on one file system.
pub fn same_disk(one: &Path, other: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev()).ok();
    device(one).is_some() && device(one) == device(other)
}

/// A copy that shares its bytes where the file system can do that. True when it does.
pub fn copy_file(from: &Path, to: &Path) -> io::Result<bool> {
    let source = File::open(from)?;
    let target = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(to)?;
    let shared = ioctl_ficlone(&target, &source).is_ok();
    if !shared {
        io::copy(&mut &source, &mut &target)?;
    }
    target.sync_all()?;
    Ok(shared)
}

impl Store {
    pub fn open(root: &Path, steps: Arc<dyn ServiceFailpoints>) -> io::Result<Self> {
        for directory in ["blobs/sha256", "partial", "images"] {
            fs::create_dir_all(root.join(directory))?;
        }
        Ok(Self {
            root: root.to_owned(),
            steps,
        })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.root.join("blobs/sha256").join(hex(digest))
    }

    fn partial_path(&self, digest: &Digest) -> PathBuf {
        self.root.join("partial").join(hex(digest))
    }

    fn record_path(&self, digest: &Digest) -> PathBuf {
        self.root.join("images").join(format!("{}.json", hex(digest)))
    }

    pub(super) fn reached(&self, step: ServiceFailpoint) {
        self.steps.reached(step);
    }

    /// The size of a complete blob.
    pub fn blob_size(&self, digest: &Digest) -> Option<u64> {
        fs::metadata(self.blob_path(digest))
            .ok()
            .map(|metadata| metadata.len())
    }

    /// Bytes on disk for a blob, complete or not.
    pub fn present(&self, digest: &Digest) -> u64 {
        self.blob_size(digest)
            .or_else(|| Some(fs::metadata(self.partial_path(digest)).ok()?.len()))
            .unwrap_or_default()
    }

    /// Bytes the file system still has.
    pub fn free(&self) -> io::Result<u64> {
        free(&self.root)
    }

    /// Reads the records and what lies beside them. A record whose blobs are not all there is no image: it goes.
    pub fn load(&self) -> io::Result<Found> {
        let mut found = Found::default();
        for entry in fs::read_dir(self.root.join("images"))? {
            let path = entry?.path();
            match read_record(&path) {
                Ok(record) => {
                    let missing = record
                        .blobs
                        .iter()
                        .find(|blob| self.blob_size(&blob.digest) != Some(blob.size));
                    match missing {
                        None => found.images.push(record),
                        Some(blob) => {
                            found.problems.push(format!(
                                "image {} is no longer usable: blob {} is not there or has another size",
                                record.digest, blob.digest
                            ));
                            fs::remove_file(&path)?;
                        }
                    }
                }
                Err(reason) => {
                    // The rest of a write that was cut off, or damage: the image is ensured again.
                    if path.extension().is_some_and(|extension| extension == "json") {
                        found.problems.push(format!("{} {reason}", path.display()));
                    }
                    fs::remove_file(&path)?;
                }
            }
        }
        let named: std::collections::BTreeSet<_> = found
            .images
            .iter()
            .flat_map(|record| record.blobs.iter().map(|blob| blob.digest))
            .collect();
        for directory in ["blobs/sha256", "partial"] {
            for entry in fs::read_dir(self.root.join(directory))? {
                let entry = entry?;
                let name = entry.file_name();
                match name.to_str().and_then(digest_of_name) {
                    Some(digest) if !named.contains(&digest) => {
                        found.loose.push((digest, entry.metadata()?.len()));
                    }
                    Some(_) if directory == "partial" => fs::remove_file(entry.path())?,
                    Some(_) => {}
                    // The rest of an import: it begins again.
                    None => fs::remove_file(entry.path())?,
                }
            }
        }
        Ok(found)
    }

    pub fn write_record(&self, record: &ImageRecord) -> io::Result<()> {
        let bytes = serde_json::to_vec(record)?;
        replace_file(&self.record_path(&record.digest), &bytes)?;
        self.reached(ServiceFailpoint::RecordWritten);
        Ok(())
    }

    /// From now on it is no image; its blobs go after it.
    pub fn remove_record(&self, digest: &Digest) -> io::Result<()> {
        match fs::remove_file(self.record_path(digest)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed?,
        }
        sync_directory(&self.root.join("images"))?;
        self.reached(ServiceFailpoint::RecordRemoved);
        Ok(())
    }

    pub fn remove_blob(&self, digest: &Digest) -> io::Result<()> {
        for path in [self.blob_path(digest), self.partial_path(digest)] {
            match fs::remove_file(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed?,
            }
        }
        self.reached(ServiceFailpoint::BlobRemoved);
        Ok(())
    }

    pub fn read_blob(&self, blob: &Blob) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(self.blob_path(&blob.digest))?
            .take(blob.size + 1)
            .read_to_end(&mut bytes)?;
        if Digest::of(&bytes) != blob.digest {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("blob {} has other bytes on disk", blob.digest),
            ));
        }
        Ok(bytes)
    }

    /// Reads every byte of a blob again.
    pub fn verify_blob(&self, blob: &Blob) -> io::Result<bool> {
        let mut file = File::open(self.blob_path(&blob.digest))?;
        let (hasher, length) = hash(&mut file, u64::MAX)?;
        Ok(length == blob.size && hasher.finish() == blob.digest)
    }

    /// Opens the download of a blob where it stopped.
    pub fn partial(&self, blob: &Blob) -> io::Result<Partial> {
        self.open_partial(blob, self.partial_path(&blob.digest))
    }

    /// A blob of a bundle, from its first byte. It has a file of its own: a download of the same blob may be under way.
    pub fn importing(&self, blob: &Blob) -> io::Result<Partial> {
        let mut partial = self.open_partial(blob, self.importing_path(&blob.digest))?;
        partial.restart()?;
        Ok(partial)
    }

    fn importing_path(&self, digest: &Digest) -> PathBuf {
        self.root.join("partial").join(format!("{}.import", hex(digest)))
    }

    fn open_partial(&self, blob: &Blob, path: PathBuf) -> io::Result<Partial> {
        let mut file = locked(&path)?;
        if file.metadata()?.len() > blob.size {
            file.set_len(0)?;
        }
        let (hasher, length) = hash(&mut file, blob.size)?;
        file.seek(SeekFrom::Start(length))?;
        if length < blob.size {
            // The disk promises the rest now, and not when half of it is there. Not every file system can.
            let allocated = fallocate(&file, FallocateFlags::KEEP_SIZE, 0, blob.size);
            if allocated == Err(rustix::io::Errno::NOSPC) {
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        self.reached(ServiceFailpoint::PartialOpened);
        Ok(Partial {
            file,
            blob: *blob,
            path,
            named: self.blob_path(&blob.digest),
            hasher,
            length,
            inherited: length,
            unflushed: 0,
            steps: self.steps.clone(),
        })
    }

    /// Takes a file that lies on this host as the download of a blob, sharing its bytes where the file system can.
    pub fn adopt(&self, from: &Path, blob: &Blob) -> io::Result<Partial> {
        let path = self.importing_path(&blob.digest);
        copy_file(from, &path)?;
        self.open_partial(blob, path)
    }

    /// What a download left when its blob came another way.
    pub fn drop_partial(&self, digest: &Digest) -> io::Result<()> {
        match fs::remove_file(self.partial_path(digest)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// Bytes that are here already, such as a manifest: verified and named like any other.
    pub fn add_bytes(&self, bytes: &[u8]) -> io::Result<Blob> {
        let blob = Blob {
            digest: Digest::of(bytes),
            size: bytes.len() as u64,
        };
        if self.blob_size(&blob.digest) != Some(blob.size) {
            let mut partial = self.importing(&blob)?;
            partial.append(bytes)?;
            partial.finish()?;
        }
        Ok(blob)
    }
}

/// Opens a file that nobody else writes to: a write of somebody who stopped waiting for it may still be under way.
fn locked(path: &Path) -> io::Result<File> {
    loop {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        flock(&file, FlockOperation::LockExclusive)?;
        // Whoever had it may have given it its name meanwhile.
        let (ours, there) = (file.metadata()?, fs::metadata(path));
        if there.is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())) {
            return Ok(file);
        }
    }
}

fn read_record(path: &Path) -> Result<ImageRecord, String> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_RECORD).read_to_end(&mut bytes))
        .map_err(|error| format!("cannot be read: {error}"))?;
    let record: ImageRecord =
        serde_json::from_slice(&bytes).map_err(|error| format!("is damaged: {error}"))?;
    let expected = format!("{}.json", hex(&record.digest));
    if path.file_name().is_none_or(|name| name != expected.as_str()) {
        return Err("has another image's name".to_owned());
    }
    Ok(record)
}

fn hash(file: &mut File, most: u64) -> io::Result<(Hasher, u64)> {
    file.seek(SeekFrom::Start(0))?;
    let mut hasher = Hasher::new();
    let mut length = 0;
    let mut buffer = vec![0; 1 << 20];
    let mut reader = file.take(most);
    loop {
        match reader.read(&mut buffer)? {
            0 => return Ok((hasher, length)),
            read => {
                hasher.update(&buffer[..read]);
                length += read as u64;
            }
        }
    }
}

/// A blob that is being written.
pub struct Partial {
    file: File,
    blob: Blob,
    path: PathBuf,
    named: PathBuf,
    hasher: Hasher,
    length: u64,
    /// Bytes that an earlier run left; they are not this run's word.
    inherited: u64,
    unflushed: u64,
    steps: Arc<dyn ServiceFailpoints>,
}

/// How a complete download turned out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finished {
    Named,
    /// Removed. `inherited` bytes of it were of an earlier run.
    Mismatch {
        inherited: u64,
    },
}

impl Partial {
    pub fn length(&self) -> u64 {
        self.length
    }

    pub fn is_complete(&self) -> bool {
        self.length == self.blob.size
    }

    pub fn restart(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.hasher = Hasher::new();
        (self.length, self.inherited, self.unflushed) = (0, 0, 0);
        Ok(())
    }

    /// False when these are more bytes than the blob has: nothing is written then.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<bool> {
        if self.length + bytes.len() as u64 > self.blob.size {
            return Ok(false);
        }
        self.file.write_all(bytes)?;
        self.hasher.update(bytes);
        self.length += bytes.len() as u64;
        self.unflushed += bytes.len() as u64;
        if self.unflushed >= FLUSH_EVERY {
            self.file.sync_data()?;
            self.unflushed = 0;
        }
        self.steps.reached(ServiceFailpoint::PieceWritten);
        Ok(true)
    }

    /// Gives the blob its name if it is what it should be, and removes it if not.
    pub fn finish(self) -> io::Result<Finished> {
        if self.length != self.blob.size || self.hasher.finish() != self.blob.digest {
            fs::remove_file(&self.path)?;
            return Ok(Finished::Mismatch {
                inherited: self.inherited,
            });
        }
        self.file.sync_all()?;
        self.steps.reached(ServiceFailpoint::PartialSynced);
        fs::rename(&self.path, &self.named)?;
        if let Some(directory) = self.named.parent() {
            sync_directory(directory)?;
        }
        self.steps.reached(ServiceFailpoint::BlobNamed);
        Ok(Finished::Named)
    }
}
