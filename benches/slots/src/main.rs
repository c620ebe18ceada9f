//! Measures the agent's engine beside `dd` and casync. The engine runs in a process of its own, so that its memory and
//! time are its own.

mod delta;
mod prepare;
mod write;

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;
use serde_json::json;

#[derive(Parser)]
enum Arguments {
    /// Everything; prints one JSON object.
    Run {
        /// Where the images and slots of the run are; it needs eight times the image's size.
        #[arg(long)]
        directory: PathBuf,
        #[arg(long, default_value_t = 1024)]
        image_mib: u64,
        #[arg(long, default_value_t = 384)]
        delta_image_mib: u64,
        #[arg(long, default_value_t = 3)]
        repeat: usize,
    },
    /// The engine alone: prepares the image of a directory.
    Prepare {
        #[arg(long)]
        directory: PathBuf,
        /// End without notice at this checkpoint.
        #[arg(long)]
        die_at_checkpoint: Option<usize>,
    },
}

fn main() -> Result<()> {
    match Arguments::parse() {
        Arguments::Prepare {
            directory,
            die_at_checkpoint,
        } => prepare::run(&directory, die_at_checkpoint),
        Arguments::Run {
            directory,
            image_mib,
            delta_image_mib,
            repeat,
        } => {
            std::fs::create_dir_all(&directory)?;
            let written = write::measure(&directory, image_mib << 20, repeat)?;
            let delta = delta::measure(&directory, delta_image_mib << 20)?;
            let result = json!({
                "write_verify_vs_dd": written.ratio,
                "delta_fraction": delta.ours,
                "casync_fraction": delta.casync,
                "agent_rss_mb": written.rss_mb,
                "image_mib": image_mib,
                "write_verify_seconds": written.seconds,
                "dd_seconds": written.dd_seconds,
                "write_verify_busy_seconds": written.busy_seconds[0],
                "dd_busy_seconds": written.busy_seconds[1],
                "write_verify_vs_dd_spread": written.spread,
                "resume": written.resume,
                "delta_image_mib": delta_image_mib,
                "delta_changed_fraction": delta.changed,
                "delta_written_fraction": delta.written,
            });
            println!("{result}");
            Ok(())
        }
    }
}
