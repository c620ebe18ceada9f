//! Switches a machine on and listens until it switches itself off, or has said enough.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

/// A machine that is still on after this is stuck. Emulation beside other work is slow.
const LONGEST: Duration = Duration::from_mins(30);

/// How many machines are on. As many as there are processors may be: each keeps one busy.
static ON: Mutex<usize> = Mutex::new(0);
static OFF: Condvar = Condvar::new();

/// How many machines may be on at once.
pub fn places() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// One machine may be on.
struct Permit;

impl Permit {
    fn wait() -> Self {
        let mut on = ON.lock();
        while *on >= places() {
            OFF.wait(&mut on);
        }
        *on += 1;
        Self
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        *ON.lock() -= 1;
        OFF.notify_one();
    }
}

/// What a machine said on its console, and how long it was on.
pub struct Session {
    pub lines: Vec<String>,
    pub seconds: f32,
}

impl Session {
    /// What the systems said on purpose.
    pub fn spoken(&self) -> Vec<&str> {
        self.lines
            .iter()
            .filter_map(|line| line.split_once("SAY ").map(|(_, text)| text.trim()))
            .collect()
    }

    /// `version slot` of each boot.
    pub fn boots(&self) -> Vec<&str> {
        self.spoken()
            .into_iter()
            .filter_map(|line| line.strip_prefix("boot "))
            .collect()
    }

    pub fn said(&self, what: &str) -> bool {
        self.spoken().iter().any(|line| line.contains(what))
    }

    pub fn text(&self) -> String {
        self.lines.join("\n")
    }
}

struct Machine(Child);

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How the disk is attached: written to, or written to with a log of every write and flush.
pub enum Disk<'a> {
    Plain(&'a Path),
    Logged { disk: &'a Path, log: &'a Path },
}

/// Until the machine switches itself off.
pub fn power_on(disk: &Disk, stick: &Path, firmware: &[String]) -> Session {
    listen(disk, stick, firmware, |_| false)
}

/// Until the system of a slot has mounted its root and says so; then the machine is switched off.
pub fn start(disk: &Disk, stick: &Path, firmware: &[String]) -> Session {
    listen(disk, stick, firmware, |line| line.contains("SAY boot "))
}

fn listen(disk: &Disk, stick: &Path, firmware: &[String], enough: impl Fn(&str) -> bool) -> Session {
    let _permit = Permit::wait();
    let began = Instant::now();
    let mut command = Command::new("qemu-system-x86_64");
    command
        // With half of it, all in use, Debian's 6.1.192 once died in ext4 (`ext4_mb_load_buddy_gfp`).
        .args(["-accel", "tcg", "-cpu", "max", "-m", "512"])
        .args(["-nodefaults", "-nographic", "-serial", "stdio"])
        .args(["-device", "i6300esb", "-action", "watchdog=reset"])
        .args(firmware);
    let file = |path: &Path, name: &str| format!("driver=file,filename={},node-name={name}", path.display());
    match disk {
        Disk::Plain(disk) => command.arg("-blockdev").arg(file(disk, "disk")),
        Disk::Logged { disk, log } => command
            .arg("-blockdev")
            .arg(file(disk, "below"))
            .arg("-blockdev")
            .arg(file(log, "log"))
            .arg("-blockdev")
            .arg("driver=blklogwrites,file=below,log=log,log-sector-size=512,node-name=disk"),
    };
    command
        .args(["-device", "virtio-blk-pci,drive=disk,bootindex=0"])
        .arg("-blockdev")
        .arg(format!("{},read-only=on", file(stick, "stick")))
        .args(["-device", "virtio-blk-pci,drive=stick"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut machine = Machine(command.spawn().expect("qemu runs"));
    let (sender, receiver) = mpsc::channel();
    let console = BufReader::new(machine.0.stdout.take().expect("a console"));
    thread::spawn(move || {
        for line in console.split(b'\n').map_while(Result::ok) {
            let _ = sender.send(String::from_utf8_lossy(&line).trim_end().to_owned());
        }
    });
    let mut lines = Vec::new();
    let ended = loop {
        match receiver.recv_timeout(LONGEST.saturating_sub(began.elapsed())) {
            Ok(line) => {
                let is_enough = enough(&line);
                lines.push(line);
                if is_enough {
                    return Session {
                        lines,
                        seconds: began.elapsed().as_secs_f32(),
                    };
                }
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break true,
            Err(mpsc::RecvTimeoutError::Timeout) => break false,
        }
    };
    assert!(
        ended,
        "the machine is still on after {LONGEST:?}; it said:\n{}",
        lines.join("\n")
    );
    let status = machine.0.wait().expect("ended");
    assert!(
        status.success(),
        "qemu ended with {status}:\n{}",
        lines.join("\n")
    );
    Session {
        lines,
        seconds: began.elapsed().as_secs_f32(),
    }
}
