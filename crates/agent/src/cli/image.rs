//! `slipway-agent image …`: makes, shows and checks images. Runs where images are built, not on a host.

use std::{
    fs::{self, File},
    io::Cursor,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use base64::Engine as _;
use clap::{Args, Subcommand};
use jiff::{Timestamp, ToSpan};
use slipway_agent::image::build_partition;
use slipway_slots::manifest::{KeyRing, KeyRingFile, Manifest, SignedManifest};

use super::bundle::{Bundle, SIGNED_MANIFEST, write_oci};

#[derive(Subcommand)]
pub enum Image {
    /// Cut partitions into chunks, write and sign the manifest.
    Build(Build),
    /// Show what an image is, whoever signed it.
    Inspect {
        /// A directory of blobs, or an OCI image layout.
        bundle: PathBuf,
        #[arg(long)]
        json: bool,
    },
    /// Check signatures, and every byte against the manifest.
    Verify {
        bundle: PathBuf,
        /// The key ring of the hosts, or public keys of minisign.
        #[arg(long, required = true, num_args = 1..)]
        key: Vec<PathBuf>,
    },
}

#[derive(Args)]
pub struct Build {
    #[arg(long)]
    name: String,
    #[arg(long)]
    image_version: String,
    /// The kinds of host it is for.
    #[arg(long, required = true)]
    compatible: Vec<String>,
    #[arg(long, default_value = std::env::consts::ARCH)]
    arch: String,
    /// Hosts take no image of a lower epoch after this one.
    #[arg(long, default_value_t = 0)]
    epoch: u64,
    /// Days until no host takes it any more.
    #[arg(long, default_value_t = 365)]
    valid_days: i64,
    #[arg(long)]
    kubelet_version: Option<String>,
    /// NAME=PATH: a raw image of the partition, or a directory tree (becomes ext4). The first carries the label.
    #[arg(long, required = true, value_name = "NAME=PATH")]
    partition: Vec<String>,
    /// The size of a partition made from a directory tree.
    #[arg(long, value_name = "BYTES")]
    tree_size: Option<u64>,
    /// Secret keys of minisign; a password is taken from MINISIGN_PASSWORD.
    #[arg(long, required = true)]
    sign_with: Vec<PathBuf>,
    /// Where the blobs and the signed manifest go.
    #[arg(long)]
    out: PathBuf,
    /// Also write an OCI image layout here.
    #[arg(long)]
    oci: Option<PathBuf>,
}

pub fn run(image: Image) -> Result<()> {
    match image {
        Image::Build(build) => build.run(),
        Image::Inspect { bundle, json } => inspect(&bundle, json),
        Image::Verify { bundle, key } => verify(&bundle, &key),
    }
}

impl Build {
    fn run(&self) -> Result<()> {
        fs::create_dir_all(&self.out).with_context(|| format!("making {}", self.out.display()))?;
        let mut partitions = Vec::new();
        for named in &self.partition {
            let Some((name, path)) = named.split_once('=') else {
                bail!("--partition {named}: it must be NAME=PATH");
            };
            let path = Path::new(path);
            let reading = || format!("reading {}", path.display());
            let tree;
            let path = if fs::metadata(path).with_context(reading)?.is_dir() {
                tree = filesystem(path, self.tree_size, &self.out)?;
                tree.path()
            } else {
                path
            };
            let mut file = File::open(path).with_context(reading)?;
            let size = file.metadata()?.len();
            partitions.push(build_partition(name, &mut file, size, &self.out).with_context(reading)?);
        }
        // Whole seconds: a manifest has one form in bytes.
        let created = Timestamp::from_second(Timestamp::now().as_second())?;
        let manifest = Manifest {
            format: Manifest::FORMAT,
            name: self.name.clone(),
            version: self.image_version.clone(),
            compatible: self.compatible.clone(),
            arch: self.arch.clone(),
            epoch: self.epoch,
            created,
            not_after: created.checked_add((self.valid_days * 24).hours())?,
            kubelet_version: self.kubelet_version.clone(),
            partitions,
        };
        manifest.check()?;
        let text = String::from_utf8(manifest.encode())?;
        let signatures = self
            .sign_with
            .iter()
            .map(|key| sign(&text, key))
            .collect::<Result<_>>()?;
        let signed = SignedManifest {
            manifest: text,
            signatures,
        };
        let place = self.out.join(SIGNED_MANIFEST);
        fs::write(&place, signed.encode()).with_context(|| format!("writing {}", place.display()))?;
        if let Some(oci) = &self.oci {
            write_oci(&Bundle::open(&self.out)?, oci)?;
        }
        println!("{} {} {}", manifest.name, manifest.version, manifest.id());
        Ok(())
    }
}

/// A directory tree as an ext4 filesystem, by the mke2fs of this machine.
fn filesystem(tree: &Path, size: Option<u64>, beside: &Path) -> Result<tempfile::NamedTempFile> {
    let Some(size) = size else {
        bail!(
            "{} is a directory: --tree-size says how large its partition becomes",
            tree.display()
        );
    };
    let image = tempfile::NamedTempFile::new_in(beside)?;
    image.as_file().set_len(size)?;
    // Nothing random in it, so that little differs between two images of nearly the same tree.
    let output = Command::new("mke2fs")
        .args([
            "-q",
            "-t",
            "ext4",
            "-b",
            "4096",
            "-U",
            "f0f0f0f0-0000-4000-8000-000000000000",
        ])
        .args(["-E", "hash_seed=f0f0f0f0-0000-4000-8000-000000000000", "-F", "-d"])
        .arg(tree)
        .arg(image.path())
        .env("E2FSPROGS_FAKE_TIME", "1")
        .output()
        .context("running mke2fs (Debian: e2fsprogs)")?;
    if !output.status.success() {
        bail!("mke2fs: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(image)
}

fn sign(text: &str, key: &Path) -> Result<String> {
    let naming = || format!("the secret key {}", key.display());
    let file = fs::read_to_string(key).with_context(naming)?;
    let sealed = minisign::SecretKeyBox::from_string(&file).with_context(naming)?;
    let secret = match std::env::var("MINISIGN_PASSWORD") {
        Ok(password) => sealed.into_secret_key(Some(password)).with_context(naming)?,
        Err(_) => match (sealed.into_unencrypted_secret_key(), without_checksum(&file)) {
            (Ok(secret), _) | (Err(_), Some(secret)) => secret,
            (Err(error), None) => {
                return Err(error)
                    .with_context(|| format!("{} (a password is taken from MINISIGN_PASSWORD)", naming()));
            }
        },
    };
    let signature = minisign::sign(None, &secret, Cursor::new(text), Some("slipway node image"), None)?;
    Ok(signature.into_string())
}

/// A key that was never encrypted has no checksum where minisign itself wrote it.
fn without_checksum(file: &str) -> Option<minisign::SecretKey> {
    const CHECKSUM: usize = 32;
    let line = file.lines().nth(1)?.trim();
    let bytes = base64::prelude::BASE64_STANDARD.decode(line).ok()?;
    let encrypted = bytes.get(2..4)? != [0, 0];
    let sum = bytes.get(bytes.len().checked_sub(CHECKSUM)?..)?;
    if encrypted || sum.iter().any(|byte| *byte != 0) {
        return None;
    }
    minisign::SecretKey::from_bytes(&bytes).ok()
}

fn inspect(bundle: &Path, json: bool) -> Result<()> {
    let bundle = Bundle::open(bundle)?;
    let manifest = bundle.signed.unverified()?;
    if json {
        println!("{}", serde_json::to_string_pretty(&manifest)?);
        return Ok(());
    }
    println!("{} {}", manifest.name, manifest.version);
    println!("  id          {}", manifest.id());
    println!(
        "  for         {} ({})",
        manifest.compatible.join(", "),
        manifest.arch
    );
    println!("  epoch       {}", manifest.epoch);
    println!("  created     {}", manifest.created);
    println!("  not after   {}", manifest.not_after);
    if let Some(kubelet) = &manifest.kubelet_version {
        println!("  kubelet     {kubelet}");
    }
    println!(
        "  signatures  {} (not checked; `image verify` does)",
        bundle.signed.signatures.len()
    );
    for partition in &manifest.partitions {
        println!(
            "  {:<11} {} bytes in {} chunks of about {}; stored {}, solid {}",
            partition.name,
            partition.size,
            partition.chunk_count,
            partition.chunk_size,
            partition.chunks.size,
            partition
                .solid
                .map_or_else(|| "none".to_owned(), |solid| solid.size.to_string())
        );
    }
    Ok(())
}

/// A key ring's file as it is; public keys of minisign as a ring of which one has to have signed.
fn key_ring(paths: &[PathBuf]) -> Result<KeyRing> {
    let mut keys = Vec::new();
    for path in paths {
        let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        if text.trim_start().starts_with('{') {
            return Ok(KeyRing::decode(text.as_bytes())?);
        }
        let key = text
            .lines()
            .map(str::trim)
            .rfind(|line| !line.is_empty())
            .unwrap_or_default();
        keys.push(key.to_owned());
    }
    let file = KeyRingFile {
        version: 1,
        threshold: 1,
        keys,
    };
    Ok(KeyRing::new(file)?)
}

fn verify(bundle: &Path, keys: &[PathBuf]) -> Result<()> {
    let bundle = Bundle::open(bundle)?;
    let manifest = key_ring(keys)?.verify(&bundle.signed)?;
    bundle.verify(&manifest)?;
    println!(
        "{} {} {}: signatures and every byte are right",
        manifest.name,
        manifest.version,
        manifest.id()
    );
    Ok(())
}
