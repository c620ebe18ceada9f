//! An ext4 image of which files worth 5 % of the bytes were replaced, on a running host that has the old one.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use serde_json::{Value, json};

use crate::prepare;

pub struct Delta {
    /// Downloaded bytes, index included, over the image's size.
    pub ours: f64,
    /// The same for casync with its defaults; null where it is not installed.
    pub casync: Value,
    /// How much of the image's files was replaced.
    pub changed: f64,
    pub written: f64,
}

fn run(program: &str, arguments: &[&str]) -> Result<()> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("running {program}"))?;
    if !output.status.success() {
        bail!(
            "{program} {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

/// Half of a file does not compress, half does, as in binaries.
fn contents(random: &mut StdRng) -> Vec<u8> {
    let length = 4096 << random.random_range(0..8_u32);
    let mut bytes = vec![0; length];
    random.fill_bytes(&mut bytes[..length / 2]);
    for byte in &mut bytes[length / 2..] {
        *byte = b'a' + random.random_range(0..4_u8);
    }
    bytes
}

/// Mounts an image, changes it, unmounts it.
fn mounted(image: &Path, place: &Path, change: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    fs::create_dir_all(place)?;
    let (image, at) = (image.display().to_string(), place.display().to_string());
    run("mount", &["-o", "loop", &image, &at])?;
    let result = change(place);
    run("umount", &[&at])?;
    result
}

pub fn measure(directory: &Path, size: u64) -> Result<Delta> {
    let directory = directory.join("delta");
    fs::create_dir_all(&directory)?;
    let (old, new) = (directory.join("old.img"), directory.join("new.img"));
    let mut random = StdRng::seed_from_u64(5);
    eprintln!("making two ext4 images of {} MiB", size >> 20);
    fs::File::create(&old)?.set_len(size)?;
    run("mkfs.ext4", &["-q", "-m", "0", &old.display().to_string()])?;
    let mount = directory.join("mounted");
    let mut total = 0;
    mounted(&old, &mount, |place| {
        for number in 0.. {
            let bytes = contents(&mut random);
            if total + bytes.len() as u64 > size * 8 / 10 {
                return Ok(());
            }
            let folder = place.join(format!("d{}", number % 20));
            fs::create_dir_all(&folder)?;
            fs::write(folder.join(format!("f{number}")), &bytes)?;
            total += bytes.len() as u64;
        }
        Ok(())
    })?;
    fs::copy(&old, &new)?;
    let mut changed = 0;
    mounted(&new, &mount, |place| {
        let mut files = Vec::new();
        for folder in fs::read_dir(place)?.flatten() {
            files.extend(fs::read_dir(folder.path())?.flatten().map(|entry| entry.path()));
        }
        files.sort();
        while changed < total / 20 {
            let at = random.random_range(0..files.len());
            let path = files.swap_remove(at);
            let bytes = contents(&mut random);
            fs::remove_file(&path).ok();
            fs::write(&path, &bytes)?;
            changed += bytes.len() as u64;
        }
        Ok(())
    })?;
    prepare::build(&directory, &new)?;
    let slot = prepare::slot_size(size);
    for name in ["slot-a", "slot-b"] {
        fs::copy(&old, directory.join(name))?;
        fs::OpenOptions::new()
            .write(true)
            .open(directory.join(name))?
            .set_len(slot)?;
    }
    // The slot to be written holds nothing of either image.
    crate::write::noise(&directory.join("slot-b"), slot, 6)?;
    prepare::reset(&directory)?;
    let cost = prepare::measure(&directory, None)?.context("the engine ended without being told to")?;
    let casync = casync(&directory, &old, &new, size)?;
    fs::remove_dir_all(&directory)?;
    Ok(Delta {
        ours: cost.bytes_downloaded as f64 / size as f64,
        casync,
        changed: changed as f64 / total as f64,
        written: cost.bytes_written as f64 / size as f64,
    })
}

/// The chunks of the new image that the old one's store does not have, and the new index.
fn casync(directory: &Path, old: &Path, new: &Path, size: u64) -> Result<Value> {
    if Command::new("casync").arg("--help").output().is_err() {
        eprintln!("casync is not installed: its fraction is left out");
        return Ok(Value::Null);
    }
    let make = |name: &str, image: &Path| -> Result<(u64, BTreeSet<(String, u64)>)> {
        let index = directory.join(format!("{name}.caibx"));
        let store = directory.join(format!("{name}.castr"));
        let status = Command::new("casync")
            .arg("make")
            .arg(format!("--store={}", store.display()))
            .arg(&index)
            .arg(image)
            .output()?;
        if !status.status.success() {
            bail!("casync: {}", String::from_utf8_lossy(&status.stderr));
        }
        let mut chunks = BTreeSet::new();
        for folder in fs::read_dir(&store)?.flatten() {
            for chunk in fs::read_dir(folder.path())?.flatten() {
                chunks.insert((
                    chunk.file_name().to_string_lossy().into_owned(),
                    chunk.metadata()?.len(),
                ));
            }
        }
        Ok((fs::metadata(&index)?.len(), chunks))
    };
    let (_, had) = make("old", old)?;
    let (index, has) = make("new", new)?;
    let missing: u64 = has.difference(&had).map(|(_, length)| length).sum();
    Ok(json!((missing + index) as f64 / size as f64))
}
