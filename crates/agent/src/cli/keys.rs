//! `slipway-agent keys …`: the ring of keys that a host trusts, and the one that takes its place.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use clap::Subcommand;

use super::config::Config;

#[derive(Subcommand)]
pub enum Keys {
    /// The version of the ring, how many of its keys must sign, and which they are.
    Show,
    /// Put the next ring in place of this one. Enough keys of both must have signed it, with minisign.
    Rotate {
        /// The next ring: a JSON file with `version`, `threshold` and `keys`.
        #[arg(long)]
        ring: PathBuf,
        /// minisign's signatures over that file.
        #[arg(long, required = true, num_args = 1..)]
        signature: Vec<PathBuf>,
    },
}

pub fn run(config: &Config, command: Keys) -> Result<()> {
    let ring = config.keys()?;
    match command {
        Keys::Show => {
            let file = ring.file();
            println!(
                "version {}: {} of these {} keys must sign",
                file.version,
                file.threshold,
                file.keys.len()
            );
            for key in &file.keys {
                println!("{key}");
            }
        }
        Keys::Rotate {
            ring: place,
            signature,
        } => {
            let read = |path: &Path| fs::read(path).with_context(|| format!("reading {}", path.display()));
            let next = read(&place)?;
            let mut signatures = Vec::new();
            for path in &signature {
                let text = String::from_utf8(read(path)?);
                signatures.push(text.with_context(|| format!("{} is no signature", path.display()))?);
            }
            let rotated = ring
                .rotate(&next, &signatures)
                .with_context(|| format!("the key ring stays as it is; {}", place.display()))?;
            replace(&config.key_ring, &next)
                .with_context(|| format!("writing the key ring {}", config.key_ring.display()))?;
            println!(
                "the key ring is of version {}; it was of version {}",
                rotated.file().version,
                ring.file().version
            );
        }
    }
    Ok(())
}

/// All of the old or all of the new, whenever the power fails.
fn replace(place: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = place.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(place).map_err(|error| error.error)?;
    File::open(folder)?.sync_all()
}
