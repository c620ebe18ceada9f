//! Has the real Helm render the chart and compares. The story that does it builds Helm first, which is why it is not part
//! of every test run.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::bench::peers::root;

pub fn compare() -> Result<()> {
    let status = Command::new(env!("CARGO"))
        .current_dir(root())
        .args([
            "test",
            "--locked",
            "--package",
            "slipway-tests",
            "--test",
            "stories",
            "helm_chart",
        ])
        .args(["--", "--nocapture"])
        .env("SLIPWAY_TEST_FULL", "1")
        .status()
        .context("running the chart's story")?;
    if !status.success() {
        bail!("the chart does not render to what clusterctl installs");
    }
    Ok(())
}
