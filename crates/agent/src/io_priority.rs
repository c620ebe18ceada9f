//! The disk belongs to what the host is for: an update reads and writes when nobody else does.

use std::io;
use std::process::{Command, Stdio};

/// Puts this thread, and those it starts from now on, behind all others at the disk. It is done by `ionice`, which every
/// Debian has; without it the update goes on at the usual priority, and whoever called says so.
pub fn give_way() -> io::Result<()> {
    let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
    let status = Command::new("ionice")
        .args(["-c", "3", "-p", &thread])
        .stdin(Stdio::null())
        .status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("ionice {status}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn priority() -> Option<String> {
        let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
        let output = Command::new("ionice").args(["-p", &thread]).output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// E-41: the threads of a write are started by the one that gave way, and are behind all others as well.
    #[test]
    fn e41_an_update_gives_way_at_the_disk() {
        std::thread::spawn(|| {
            let Some(before) = priority() else {
                println!("report: skipped: reading the I/O priority needs ionice (Debian: util-linux)");
                return;
            };
            assert_ne!(before, "idle");
            give_way().expect("it is allowed to give way");
            assert_eq!(priority().as_deref(), Some("idle"));
            let started = std::thread::spawn(priority).join().expect("it ends");
            assert_eq!(started.as_deref(), Some("idle"));
        })
        .join()
        .expect("it ends");
    }
}
