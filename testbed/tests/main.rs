//! The testbed against itself: real processes, real failures.

// A test fails by panicking.
#![allow(clippy::unwrap_used)]

mod bad_input;
mod clusters;
mod death;
mod parts;
mod parts_cache;
mod real_hosts;

use std::{path::Path, process::Command};

/// Makes an executable script. Another process writes it, because a file cannot be run while a child of some other
/// test's thread still holds it open for writing.
fn script(path: &Path, text: &str) {
    let status = Command::new("sh")
        .args(["-c", "printf %s \"$2\" > \"$1\" && chmod +x \"$1\"", "sh"])
        .arg(path)
        .arg(text)
        .status();
    assert!(status.unwrap().success());
}
