//! Switches a machine on and listens until it switches itself off, or has said enough.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

/// A machine that is still on after this is stuck. Emulation beside other work is slow.
const LONGEST: Duration = Duration::from_mins(30);

/// One machine at a time: each keeps a core busy.
static TURN: Mutex<()> = Mutex::new(());

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
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let began = Instant::now();
    let mut command = Command::new("qemu-system-x86_64");
    command
        .args(["-accel", "tcg", "-cpu", "max", "-m", "256"])
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
