//! A whole image, none of which is there yet: written and read back by the engine, and by `dd` with direct I/O.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Result, bail};
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use serde_json::{Value, json};

use crate::prepare;

pub struct Written {
    /// `dd`'s time over ours: 1.0 is as fast as `dd`.
    pub ratio: f64,
    pub seconds: f64,
    pub dd_seconds: f64,
    /// Of a processor: ours, and those of `dd`.
    pub busy_seconds: [f64; 2],
    /// The lowest and the highest ratio of a round.
    pub spread: [f64; 2],
    pub rss_mb: f64,
    pub resume: Value,
}

pub fn noise(path: &Path, size: u64, seed: u64) -> Result<()> {
    let mut file = File::create(path)?;
    let mut random = StdRng::seed_from_u64(seed);
    let mut buffer = vec![0; 1 << 20];
    let mut left = size;
    while left > 0 {
        let length = left.min(buffer.len() as u64) as usize;
        random.fill_bytes(&mut buffer[..length]);
        file.write_all(&buffer[..length])?;
        left -= length as u64;
    }
    file.sync_all()?;
    Ok(())
}

fn dd(arguments: &[String]) -> Result<()> {
    let status = Command::new("dd")
        .args(arguments)
        .stderr(Stdio::null())
        .status()?;
    if !status.success() {
        bail!("dd {arguments:?} ended with {status}");
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

pub fn measure(directory: &Path, size: u64, repeat: usize) -> Result<Written> {
    let directory = directory.join("write");
    fs::create_dir_all(&directory)?;
    let (raw, slot) = (directory.join("raw"), directory.join("slot-b"));
    eprintln!("making an image of {} MiB", size >> 20);
    noise(&raw, size, 1)?;
    prepare::build(&directory, &raw)?;
    noise(&directory.join("slot-a"), prepare::slot_size(size), 2)?;
    noise(&slot, prepare::slot_size(size), 3)?;
    let (mut ours, mut theirs, mut rss) = (Vec::new(), Vec::new(), 0.0_f64);
    let (mut our_busy, mut their_busy) = (Vec::new(), Vec::new());
    for round in 0..repeat {
        noise(&slot, prepare::slot_size(size), 10 + round as u64)?;
        let [_, busy_before] = prepare::busy_seconds()?;
        let began = Instant::now();
        dd(&[
            format!("if={}", raw.display()),
            format!("of={}", slot.display()),
            "bs=1M".into(),
            "oflag=direct".into(),
            "conv=fsync,notrunc".into(),
        ])?;
        dd(&[
            format!("if={}", slot.display()),
            "of=/dev/null".into(),
            "bs=1M".into(),
            "iflag=direct".into(),
        ])?;
        theirs.push(began.elapsed().as_secs_f64());
        their_busy.push(prepare::busy_seconds()?[1] - busy_before);
        noise(&slot, prepare::slot_size(size), 20 + round as u64)?;
        prepare::reset(&directory)?;
        let Some(cost) = prepare::measure(&directory, None)? else {
            bail!("the engine ended without being told to")
        };
        eprintln!(
            "round {round}: dd {:.2} s, engine {:.2} s",
            theirs[round], cost.seconds
        );
        ours.push(cost.seconds);
        our_busy.push(cost.busy_seconds);
        rss = rss.max(cost.rss_mb);
    }
    // Killed at half of its checkpoints; the next run finds what is there.
    noise(&slot, prepare::slot_size(size), 30)?;
    prepare::reset(&directory)?;
    let checkpoints = (size / (32 << 20)).max(2) as usize;
    let died = prepare::measure(&directory, Some(checkpoints / 2 - 1))?;
    let resumed = prepare::measure(&directory, None)?;
    let resume = match (died, resumed) {
        (None, Some(cost)) => json!({
            "seconds": cost.seconds,
            "downloaded_fraction": cost.bytes_downloaded as f64 / size as f64,
            "in_place_fraction": cost.bytes_in_place as f64 / size as f64,
        }),
        _ => bail!("the engine was not interrupted"),
    };
    let ratios: Vec<f64> = theirs
        .iter()
        .zip(&ours)
        .map(|(theirs, ours)| theirs / ours)
        .collect();
    let spread = [
        ratios.iter().copied().fold(f64::INFINITY, f64::min),
        ratios.iter().copied().fold(0.0, f64::max),
    ];
    let (seconds, dd_seconds) = (median(ours), median(theirs));
    fs::remove_dir_all(&directory)?;
    Ok(Written {
        ratio: median(ratios),
        seconds,
        dd_seconds,
        busy_seconds: [median(our_busy), median(their_busy)],
        spread,
        rss_mb: rss,
        resume,
    })
}
