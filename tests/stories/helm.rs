//! The pinned Helm: built from its Go module into the per-user cache, and run.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

use anyhow::{Context, Result, bail, ensure};

/// Built by the first who asks.
static PROGRAM: LazyLock<Result<PathBuf, String>> =
    LazyLock::new(|| build().map_err(|error| format!("{error:#}")));

/// Runs Helm on the cluster of a kubeconfig, or on none, and returns what it printed.
pub fn helm(kubeconfig: Option<&Path>, arguments: &[&str]) -> Result<String> {
    let program = PROGRAM.as_ref().map_err(|message| anyhow::anyhow!("{message}"))?;
    let mut command = Command::new(program);
    // Helm keeps what it learnt of a cluster under HOME; it shall not meet another run's.
    let home = tempfile::tempdir()?;
    command.env("HOME", home.path()).env_remove("KUBECONFIG");
    if let Some(kubeconfig) = kubeconfig {
        command.arg("--kubeconfig").arg(kubeconfig);
    }
    let output = command.args(arguments).output().context("running helm")?;
    ensure!(
        output.status.success(),
        "helm {}: {}{}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}

fn build() -> Result<PathBuf> {
    let cache = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| env::home_dir().map(|home| home.join(".cache")))
        .context("neither XDG_CACHE_HOME nor HOME says where the cache is")?;
    let program = cache.join("slipway/helm");
    let status = Command::new("go")
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../parts/helm"))
        .env("CGO_ENABLED", "0")
        .args([
            "build",
            "-p=2",
            "-trimpath",
            "-buildvcs=false",
            "-mod=readonly",
            "-ldflags=-s -w",
            "-o",
        ])
        .arg(&program)
        .arg("helm.sh/helm/v3/cmd/helm")
        .status()
        .context("running go; install Go 1.26 or newer")?;
    if !status.success() {
        bail!("Helm does not build; go's message is above");
    }
    Ok(program)
}
