//! Builds what is measured beside us, under benches/peers/, into the per-user cache. They never run in tests that CI runs.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap_or(Path::new("."))
}

/// Builds one of them with the Go toolchain its module asks for, which Go downloads where it is newer than what is here.
pub fn build(name: &str) -> Result<PathBuf> {
    build_package(name, ".")
}

/// The same for a program of somebody else's, which the module only names.
pub fn build_package(name: &str, package: &str) -> Result<PathBuf> {
    let cache = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| env::home_dir().map(|home| home.join(".cache")))
        .context("neither XDG_CACHE_HOME nor HOME says where the cache is")?;
    let program = cache.join("slipway/peers").join(name);
    eprintln!("building {name} (minutes at first, seconds after)");
    let status = go(name)?
        .env("CGO_ENABLED", "0")
        .args(["build", "-trimpath", "-o"])
        .arg(&program)
        .arg(package)
        .status()
        .context("running go; install Go 1.26 or newer")?;
    if !status.success() {
        bail!("{name} does not build; go's message is above");
    }
    Ok(program)
}

/// Where the sources of a module are that one of them is built from.
pub fn module_directory(name: &str, module: &str) -> Result<PathBuf> {
    let output = go(name)?
        .args(["list", "-m", "-f", "{{.Dir}}", module])
        .output()
        .context("running go; install Go 1.26 or newer")?;
    let directory = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if directory.is_empty() {
        bail!(
            "go does not say where {module} is: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(directory.into())
}

/// A Go command in one of their modules, with the toolchain that it asks for.
fn go(name: &str) -> Result<Command> {
    let source = root().join("benches/peers").join(name);
    let module = std::fs::read_to_string(source.join("go.mod"))
        .with_context(|| format!("reading the module in {}", source.display()))?;
    let version = module
        .lines()
        .find_map(|line| line.strip_prefix("go "))
        .context("go.mod names no Go version")?;
    let mut command = Command::new("go");
    command
        .current_dir(&source)
        .env("GOTOOLCHAIN", format!("go{}+auto", version.trim()));
    Ok(command)
}

/// Builds a Rust program in release mode and says where it is.
pub fn build_release(arguments: &[&str], target: &str) -> Result<PathBuf> {
    build_release_for(arguments, target, &[])
}

/// The same, with variables for cargo and the build scripts.
pub fn build_release_for(
    arguments: &[&str],
    target: &str,
    environment: &[(String, String)],
) -> Result<PathBuf> {
    eprintln!("building {target} in release mode");
    let output = Command::new(env!("CARGO"))
        .current_dir(root())
        .args([
            "build",
            "--release",
            "--locked",
            "--message-format=json-render-diagnostics",
        ])
        .args(arguments)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("running cargo build")?;
    if !output.status.success() {
        bail!("{target} does not build");
    }
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .find(|message| message["target"]["name"] == target && message["executable"].is_string())
        .and_then(|message| message["executable"].as_str().map(PathBuf::from))
        .with_context(|| format!("cargo built no program called {target}"))
}
