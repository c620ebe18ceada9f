//! Images out of the cache, as a bundle that appears whole.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read};
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use slipway_slots::Digest;

use super::bundle::{LAYOUT, MAX_DOCUMENT, announced_names, blob_path, bundle_error};
use super::failpoint::ServiceFailpoint;
use super::index::ImageRecord;
use super::store::{free, same_disk, sync_directory};
use super::{Cache, CacheError, manifest};

const GROWING: (&str, &str) = (".slipway-", ".partial");

/// Removes what exports left in a folder when the agent ended under them.
pub fn remove_leftovers(folder: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let ours = name
            .to_str()
            .is_some_and(|name| name.starts_with(GROWING.0) && name.ends_with(GROWING.1));
        if ours && entry.file_type()?.is_file() {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

impl Cache {
    /// The descriptors of an image, one for each name: tag and digest are announced together.
    fn descriptors(&self, record: &ImageRecord) -> Result<Vec<Value>, CacheError> {
        let manifest = record.blobs.first().ok_or(CacheError::NotCached(record.digest))?;
        let bytes = self.read_blob(&record.digest, manifest)?;
        let document: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let media_type = match document["mediaType"].as_str() {
            Some(media_type) => media_type,
            None if document["manifests"].is_array() => manifest::INDEX,
            None => manifest::IMAGE,
        };
        let plain =
            json!({"mediaType": media_type, "digest": manifest.digest.to_string(), "size": manifest.size});
        let announced = announced_names(record.names.keys(), &record.digest);
        if announced.is_empty() {
            return Ok(vec![plain]);
        }
        Ok(announced
            .into_iter()
            .map(|name| {
                let mut descriptor = plain.clone();
                descriptor["annotations"] = json!({
                    "io.containerd.image.name": name,
                    "org.opencontainers.image.ref.name": name,
                });
                descriptor
            })
            .collect())
    }

    /// Writes images as one tar file, atomically: readers see all of it or nothing. A file that has them already stays.
    pub fn export(self: &Arc<Self>, images: &[Digest], to: &Path) -> Result<(), CacheError> {
        let mut leases = Vec::new();
        let mut descriptors = Vec::new();
        let mut blobs = BTreeMap::new();
        let mut owners = BTreeMap::new();
        for image in images {
            leases.push(self.lease(image)?);
            let record = self.image(image).ok_or(CacheError::NotCached(*image))?;
            descriptors.extend(self.descriptors(&record)?);
            blobs.extend(record.blobs.iter().map(|blob| (blob.digest, blob.size)));
            owners.extend(record.blobs.iter().map(|blob| (blob.digest, *image)));
        }
        let index = json!({"schemaVersion": 2, "mediaType": manifest::INDEX, "manifests": descriptors});
        let index = index.to_string().into_bytes();
        if is_bundle_of(to, &index, &blobs) {
            return Ok(());
        }
        self.check_room(to, blobs.values().sum())?;
        match self.write_bundle(to, &index, &blobs) {
            Ok(()) => Ok(()),
            Err(NotWritten::Damaged(blob)) => {
                self.damaged(&blob)?;
                Err(CacheError::Damaged(owners.get(&blob).copied().unwrap_or(blob)))
            }
            Err(NotWritten::Io(error)) if error.kind() == io::ErrorKind::StorageFull => {
                Err(CacheError::DiskFull(to.display().to_string()))
            }
            Err(NotWritten::Io(error)) => Err(bundle_error(to, error)),
        }
    }

    /// Whether there is room for a file of so many bytes, before the first of them.
    fn check_room(&self, to: &Path, needed: u64) -> Result<(), CacheError> {
        let folder = to.parent().unwrap_or(Path::new("."));
        let free = free(folder).map_err(|error| bundle_error(to, error))?;
        let margin = if same_disk(folder, self.store.root()) {
            self.settings.margin
        } else {
            0
        };
        if free.saturating_sub(margin) < needed {
            return Err(CacheError::DiskFull(format!(
                "{}: it takes {needed} bytes and {} can be had",
                to.display(),
                free.saturating_sub(margin)
            )));
        }
        Ok(())
    }

    fn write_bundle(&self, to: &Path, index: &[u8], blobs: &BTreeMap<Digest, u64>) -> Result<(), NotWritten> {
        let directory = to.parent().unwrap_or(Path::new("."));
        // k3s takes what has an extension it knows: a file that grows has none.
        let file = tempfile::Builder::new()
            .prefix(GROWING.0)
            .suffix(GROWING.1)
            .tempfile_in(directory)?;
        let mut archive = tar::Builder::new(BufWriter::with_capacity(1 << 20, file.as_file()));
        for (name, bytes) in [("oci-layout", LAYOUT), ("index.json", index)] {
            archive.append_data(&mut header(bytes.len() as u64), name, bytes)?;
        }
        for (digest, size) in blobs {
            let blob = File::open(self.store.blob_path(digest));
            let mut checked = Checked {
                file: blob.map_err(|_| NotWritten::Damaged(*digest))?,
                hasher: slipway_slots::digest::Hasher::new(),
            };
            archive.append_data(&mut header(*size), blob_path(digest), &mut checked)?;
            // What left the disk is what it should be, or the bundle is not one.
            if checked.hasher.finish() != *digest {
                return Err(NotWritten::Damaged(*digest));
            }
        }
        archive
            .into_inner()?
            .into_inner()
            .map_err(io::IntoInnerError::into_error)?;
        file.as_file().sync_all()?;
        self.store.reached(ServiceFailpoint::BundleWritten);
        let named = file.persist(to).map_err(|error| error.error)?;
        drop(named);
        sync_directory(directory)?;
        self.store.reached(ServiceFailpoint::BundleNamed);
        Ok(())
    }
}

/// Why a bundle was not written.
enum NotWritten {
    Io(io::Error),
    /// This blob is not what it should be on our disk.
    Damaged(Digest),
}

impl From<io::Error> for NotWritten {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

fn header(size: u64) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_size(size);
    header.set_mode(0o644);
    header
}

/// Whether a file is the bundle that would be written: the same index first, and as many bytes. It was written whole.
fn is_bundle_of(path: &Path, index: &[u8], blobs: &BTreeMap<Digest, u64>) -> bool {
    let padded = |size: u64| 512 + size.div_ceil(512) * 512;
    let files = [LAYOUT.len() as u64, index.len() as u64];
    let total: u64 = files.iter().chain(blobs.values()).map(|size| padded(*size)).sum();
    let Ok(file) = File::open(path) else {
        return false;
    };
    // A tar file ends with two empty blocks.
    if file.metadata().map(|metadata| metadata.len()).ok() != Some(total + 1024) {
        return false;
    }
    let mut archive = tar::Archive::new(file);
    let Ok(entries) = archive.entries() else {
        return false;
    };
    let second = entries.flatten().nth(1);
    let mut found = Vec::new();
    second.is_some_and(|entry| entry.take(MAX_DOCUMENT).read_to_end(&mut found).is_ok() && found == index)
}

/// Hashes what passes.
struct Checked {
    file: File,
    hasher: slipway_slots::digest::Hasher,
}

impl Read for Checked {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        Ok(read)
    }
}
