//! Images into the cache, from a bundle: a tar file or a directory. Nothing is unpacked, and every byte is checked.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use slipway_slots::Digest;
use slipway_slots::manifest::Blob;

use super::arrival::InFlight;
use super::bundle::{MAX_DOCUMENT, blob_of_path, blob_path, bundle_error, repository};
use super::failpoint::ServiceFailpoint;
use super::store::{Finished, Partial};
use super::{Cache, CacheError, manifest};

/// An image that a bundle brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleImage {
    pub digest: Digest,
    pub names: Vec<String>,
}

impl Cache {
    /// Takes the images of a bundle, a tar file or a directory in the same layout. Every byte is checked; `only` names what
    /// must be in it and what is taken.
    pub fn import(self: &Arc<Self>, from: &Path, only: &[Digest]) -> Result<Vec<BundleImage>, CacheError> {
        let index = Documents::read(from).map_err(|error| bundle_error(from, error))?;
        let images = index.images().map_err(|reason| bundle_error(from, reason))?;
        for digest in only {
            if !images.iter().any(|image| image.digest == *digest) {
                return Err(bundle_error(from, format!("it does not hold {digest}")));
            }
        }
        let images: Vec<_> = images
            .into_iter()
            .filter(|image| only.is_empty() || only.contains(&image.digest))
            .collect();
        let mut arriving = Vec::new();
        for image in &images {
            if self.image(&image.digest).is_none() {
                arriving.push(self.plan_import(from, &index, image)?);
            }
        }
        let expected: BTreeMap<_, _> = arriving
            .iter()
            .flat_map(|plan| plan.blobs.iter().map(|blob| (blob.digest, blob.size)))
            .collect();
        if !expected.is_empty() {
            self.take_blobs(from, &expected)?;
        }
        for plan in &arriving {
            self.admit(plan.digest, plan.flight.number, plan.blobs.clone(), &plan.image)?;
        }
        drop(arriving);
        let now = self.now();
        for image in &images {
            let names: Vec<_> = {
                let index = self.index.lock();
                let named = image.names.iter();
                named
                    .map(|name| (name.clone(), index.name_time(name, now)))
                    .collect()
            };
            self.change(&image.digest, |record| {
                record.last_used = now;
                record.names.extend(names);
            })?;
        }
        Ok(images)
    }

    /// Which blobs an image of the bundle needs, with their room reserved.
    fn plan_import(
        self: &Arc<Self>,
        from: &Path,
        index: &Documents,
        image: &BundleImage,
    ) -> Result<Importing, CacheError> {
        let mut next = image.digest;
        let mut blobs = Vec::new();
        for _ in 0..3 {
            let bytes = index.blob(&next).ok_or_else(|| {
                bundle_error(from, format!("manifest {next} is not in it, or has other bytes"))
            })?;
            blobs.push(Blob {
                digest: next,
                size: bytes.len() as u64,
            });
            match manifest::read(bytes, &self.settings.architecture)
                .map_err(|problem| bundle_error(from, problem))?
            {
                manifest::Read::Index(blob) => next = blob.digest,
                manifest::Read::Image(read) => {
                    blobs.extend(&read.blobs);
                    let flight = self.flight(image.digest);
                    self.reserve(flight.number, &blobs)?;
                    self.store.reached(ServiceFailpoint::Reserved);
                    return Ok(Importing {
                        digest: image.digest,
                        image: read,
                        blobs,
                        flight,
                    });
                }
            }
        }
        Err(bundle_error(from, "its indexes name each other"))
    }

    fn take_blobs(&self, from: &Path, expected: &BTreeMap<Digest, u64>) -> Result<(), CacheError> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::StorageFull => CacheError::DiskFull("the images of a bundle".to_owned()),
            _ => bundle_error(from, error),
        };
        let mut missing: BTreeMap<_, _> = expected
            .iter()
            .filter(|(digest, size)| self.store.blob_size(digest) != Some(**size))
            .map(|(digest, size)| (*digest, *size))
            .collect();
        let named = |partial: Partial, digest: &Digest| match partial.finish()? {
            Finished::Named => Ok(()),
            Finished::Mismatch { .. } => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("blob {digest} has other bytes"),
            )),
        };
        if from.is_dir() {
            for (digest, size) in std::mem::take(&mut missing) {
                let file = from.join(blob_path(&digest));
                let partial = self.store.adopt(&file, &Blob { digest, size }).map_err(failed)?;
                named(partial, &digest).map_err(failed)?;
            }
            return Ok(());
        }
        each_file(from, &mut |path, reader| {
            let Some(digest) = blob_of_path(path) else {
                return Ok(());
            };
            let Some(size) = missing.remove(&digest) else {
                return Ok(());
            };
            let mut partial = self.store.importing(&Blob { digest, size })?;
            let mut buffer = vec![0; 1 << 20];
            loop {
                let read = reader.read(&mut buffer)?;
                if read == 0 {
                    break;
                }
                if !partial.append(&buffer[..read])? {
                    break;
                }
            }
            named(partial, &digest)
        })
        .map_err(failed)?;
        match missing.keys().next() {
            None => Ok(()),
            Some(digest) => Err(bundle_error(from, format!("blob {digest} is not in it"))),
        }
    }
}

struct Importing {
    digest: Digest,
    image: manifest::Image,
    blobs: Vec<Blob>,
    flight: InFlight,
}

/// Every regular file of a bundle, by its path in it. Links and the like are passed over: nothing is ever unpacked.
fn each_file(from: &Path, visit: &mut dyn FnMut(&str, &mut dyn Read) -> io::Result<()>) -> io::Result<()> {
    if from.is_dir() {
        for path in ["oci-layout", "index.json"] {
            visit(path, &mut File::open(from.join(path))?)?;
        }
        let blobs: PathBuf = from.join("blobs/sha256");
        for entry in fs::read_dir(blobs)? {
            let entry = entry?;
            if let (true, Some(name)) = (entry.file_type()?.is_file(), entry.file_name().to_str()) {
                visit(&format!("blobs/sha256/{name}"), &mut File::open(entry.path())?)?;
            }
        }
        return Ok(());
    }
    let mut archive = tar::Archive::new(io::BufReader::with_capacity(1 << 20, File::open(from)?));
    for entry in archive.entries()? {
        let mut entry = entry?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        visit(&path, &mut entry)?;
    }
    Ok(())
}

/// The small files of a bundle: its index, and blobs that may be manifests.
struct Documents {
    index: Value,
    small: BTreeMap<Digest, Vec<u8>>,
}

impl Documents {
    fn read(from: &Path) -> io::Result<Self> {
        let (mut index, mut small, mut held) = (None, BTreeMap::new(), 0);
        each_file(from, &mut |path, reader| {
            let mut bytes = Vec::new();
            let path = path.trim_start_matches("./");
            if path == "index.json" {
                reader.take(MAX_DOCUMENT).read_to_end(&mut bytes)?;
                index = Some(serde_json::from_slice(&bytes)?);
            } else if let Some(digest) = blob_of_path(path) {
                // Manifests are JSON and small; a bundle of many megabytes of them is not one of ours.
                reader.take(MAX_DOCUMENT + 1).read_to_end(&mut bytes)?;
                let fits = bytes.len() as u64 <= MAX_DOCUMENT && held + bytes.len() <= 64 << 20;
                if fits && bytes.first() == Some(&b'{') && Digest::of(&bytes) == digest {
                    held += bytes.len();
                    small.insert(digest, bytes);
                }
            }
            Ok(())
        })?;
        let index =
            index.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it has no index.json"))?;
        Ok(Self { index, small })
    }

    fn blob(&self, digest: &Digest) -> Option<&[u8]> {
        self.small.get(digest).map(Vec::as_slice)
    }

    fn images(&self) -> Result<Vec<BundleImage>, String> {
        let mut images: BTreeMap<Digest, Vec<String>> = BTreeMap::new();
        for descriptor in self.index["manifests"].as_array().into_iter().flatten() {
            let digest: Digest = descriptor["digest"]
                .as_str()
                .unwrap_or_default()
                .parse()
                .map_err(|error: slipway_slots::digest::NotADigest| error.to_string())?;
            let names = images.entry(digest).or_default();
            let name = descriptor["annotations"]["io.containerd.image.name"]
                .as_str()
                .or_else(|| descriptor["annotations"]["org.opencontainers.image.ref.name"].as_str());
            // Under its digest, the repository is the name.
            let name = name.map(|name| name.split('@').next().unwrap_or(name));
            if let Some(name) = name.filter(|name| (1..=512).contains(&name.len())) {
                names.push(name.to_owned());
            }
        }
        if images.is_empty() {
            return Err("it names no image".to_owned());
        }
        Ok(images
            .into_iter()
            .map(|(digest, all)| BundleImage {
                digest,
                // A tag says its repository, too.
                names: all
                    .iter()
                    .filter(|name| {
                        let tagged = |other: &&String| repository(other) == (name.as_str(), true);
                        !all.iter().any(|other| tagged(&other))
                    })
                    .cloned()
                    .collect(),
            })
            .collect())
    }
}
