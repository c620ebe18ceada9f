//! E-21 with the program as it ships, on loop devices: killed with SIGKILL, or stopped and continued, before every system
//! call by which it changes a disk. strace sends the signal, so the program knows nothing of the test.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{Command, Stdio},
    time::Instant,
};

use rustix::process::{Pid, Signal, kill_process};
use slipway_agent::boot_store::{Device, Medium};
use slipway_slots::{
    Slot,
    boot::{BootState, Codec, Records},
};
use tempfile::TempDir;

use crate::local_targets::Loop;

const AGENT: &str = env!("CARGO_BIN_EXE_slipway-agent");
const SLOT: usize = 2 << 20;
const IMAGE: usize = 1 << 20;
const STORE: Records = Records { offset: 0 };

/// What changes a file, a folder or a device, or makes that durable.
const CALLS: [&str; 9] = [
    "write",
    "pwrite64",
    "fsync",
    "fdatasync",
    "rename",
    "renameat",
    "renameat2",
    "unlink",
    "ftruncate",
];

/// What is disturbed: writing the new slot, or the service in it that decides about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Update,
    Trial,
}

impl Phase {
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Update => &["update", "--from", "stick", "--id", "op"],
            Self::Trial => &["run", "--once"],
        }
    }
}

/// Two images, one on a stick with its key.
struct Stick {
    folder: TempDir,
    old: Vec<u8>,
    new: Vec<u8>,
}

fn bytes(seed: u8) -> Vec<u8> {
    (0..IMAGE)
        .map(|at| ((at / 4096) as u8).wrapping_mul(seed) ^ (at % 251) as u8)
        .collect()
}

impl Stick {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let pair = minisign::KeyPair::generate_unencrypted_keypair().expect("a key");
        let secret = pair.sk.to_box(None).expect("a box").into_string();
        fs::write(folder.path().join("key"), secret).expect("written");
        let ring = serde_json::json!({"version": 1, "threshold": 1, "keys": [pair.pk.to_base64()]});
        fs::write(folder.path().join("keys.json"), ring.to_string()).expect("written");
        let new = bytes(3);
        fs::write(folder.path().join("raw"), &new).expect("written");
        let build = Command::new(AGENT)
            .current_dir(folder.path())
            .args(["image", "build", "--name", "box", "--image-version", "2"])
            .args(["--compatible", "box-1", "--partition", "root=raw"])
            .args(["--sign-with", "key", "--out", "stick"])
            .output()
            .expect("it runs");
        assert!(
            build.status.success(),
            "{}",
            String::from_utf8_lossy(&build.stderr)
        );
        Self {
            folder,
            old: bytes(1),
            new,
        }
    }
}

/// A host with the old image in slot A.
struct Host<'a> {
    stick: &'a Stick,
    folder: TempDir,
    slots: [Loop; 2],
}

impl<'a> Host<'a> {
    fn new(stick: &'a Stick) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let slot = |name: &str, fill: u8, image: &[u8]| {
            let mut slot = vec![fill; SLOT];
            slot[..image.len()].copy_from_slice(image);
            let path = folder.path().join(name);
            fs::write(&path, slot).expect("written");
            Loop::over(&path, "killing the program over a block device")
        };
        let slots = [slot("a", 0, &stick.old)?, slot("b", 0xee, &[])?];
        fs::write(folder.path().join("store"), vec![0; Records::SIZE as usize]).expect("written");
        for file in ["stick", "keys.json"] {
            std::os::unix::fs::symlink(stick.folder.path().join(file), folder.path().join(file))
                .expect("a link");
        }
        let host = Self { stick, folder, slots };
        host.runs_in(Slot::A);
        host.good(&["install", "--slot", "A"]);
        Some(host)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn runs_in(&self, slot: Slot) {
        let [a, b] = &self.slots;
        let place = self.folder.path().display();
        let config = format!(
            "compatible: box-1\nstateDirectory: {place}/state\nkeyRing: {place}/keys.json\n\
             bootStore:\n  records: {{device: {place}/store}}\n\
             slots:\n  A: [{{name: root, device: {}}}]\n  B: [{{name: root, device: {}}}]\n\
             booted: {slot}\nrebootCommand: [\"true\"]\npreflight: {{leastBattery: 0}}\n\
             health: {{commands: [[\"true\"]], soakSeconds: 0}}\n",
            a.0.display(),
            b.0.display()
        );
        fs::write(self.path("config.yaml"), config).expect("written");
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(self.folder.path())
            .env("SLIPWAY_AGENT_CONFIG", self.path("config.yaml"))
            .stdin(Stdio::null());
        command
    }

    fn good(&self, arguments: &[&str]) -> String {
        let output = self.command(AGENT).args(arguments).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let problem = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}{problem}");
        said
    }

    fn state(&self) -> BootState {
        let mut device = Device::open(&self.path("store")).expect("the store");
        let contents = device.load(&STORE.layout()).expect("read");
        STORE.decode(&contents).state.expect("the store can be read")
    }

    /// The boot loader's half, and the host in the slot that it starts.
    fn boot(&self) -> Slot {
        let mut device = Device::open(&self.path("store")).expect("the store");
        let state = self.state();
        let slot = state.next_boot().expect("a slot boots");
        let contents = device.load(&STORE.layout()).expect("read");
        for step in STORE
            .encode(&contents, &state.after_boot_of(slot))
            .expect("there is room")
        {
            device.apply(&step).expect("written");
        }
        self.runs_in(slot);
        slot
    }

    /// The old slot is as it was, and what would boot is whole.
    fn check(&self, what: &str) {
        let held = |slot: &Loop| fs::read(&slot.0).expect("the slot");
        let [a, b] = &self.slots;
        assert!(
            held(a)[..IMAGE] == self.stick.old,
            "{what}: the running slot was touched"
        );
        if self.state().next_boot() == Some(Slot::B) {
            assert!(
                held(b)[..IMAGE] == self.stick.new,
                "{what}: the new slot may boot and is not whole"
            );
        }
    }

    /// As after a restart of the service, until the new system is confirmed.
    fn finish(&self, what: &str) {
        for _ in 0..6 {
            self.good(&["run", "--once"]);
            self.check(what);
            let history = self.good(&["history"]);
            if history.contains("confirmed") {
                assert_eq!(history, "op  2  confirmed\n", "{what}");
                let status = self.good(&["status"]);
                assert!(status.contains("* B"), "{what}: {status}");
                return;
            }
            if self.state().next_boot() == Some(Slot::A) {
                self.good(Phase::Update.arguments());
            }
            self.boot();
        }
        panic!("{what}: it does not come to an end");
    }

    /// Runs a phase and disturbs it before the `nth` such call of one of its threads; false if there was none.
    fn disturb(&self, phase: Phase, call: &str, nth: usize, signal: &str) -> bool {
        let what = format!("{phase:?}, {signal} before {call} number {nth}");
        let mut strace = self
            .command("strace")
            .args(["-f", "-e", &format!("trace={call}")])
            .args(["-e", &format!("inject={call}:signal={signal}:when={nth}")])
            .arg(AGENT)
            .args(phase.arguments())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("strace runs");
        let tracer = strace.id();
        let mut stopped = false;
        let mut said = String::new();
        for line in BufReader::new(strace.stderr.take().expect("a pipe"))
            .lines()
            .map_while(Result::ok)
        {
            // Threads count their calls each for itself, so it may stop more than once; continuing it once more is nothing.
            if line.contains("--- stopped by SIGSTOP ---") {
                stopped = true;
                self.check(&what);
                let children = format!("/proc/{tracer}/task/{tracer}/children");
                let children = fs::read_to_string(children).unwrap_or_default();
                // What was said of a thread may be read when the program has already gone on and ended.
                if let Some(pid) = children.trim().parse().ok().and_then(Pid::from_raw) {
                    let _ = kill_process(pid, Signal::CONT);
                }
            }
            said.push_str(&line);
            said.push('\n');
        }
        let status = strace.wait().expect("it ended");
        let killed = status.signal() == Some(Signal::KILL.as_raw());
        assert!(
            killed || status.success(),
            "{what}: ended with {status} though it was not killed: {said}"
        );
        self.check(&what);
        killed || stopped
    }
}

/// Every call of a phase. Returns how often it was disturbed.
fn every_call(stick: &Stick, phase: Phase, signal: &str) -> Option<usize> {
    let mut count = 0;
    for call in CALLS {
        for nth in 1.. {
            let host = Host::new(stick)?;
            if phase == Phase::Trial {
                host.good(Phase::Update.arguments());
                assert_eq!(host.boot(), Slot::B);
            }
            if !host.disturb(phase, call, nth, signal) {
                break;
            }
            host.finish(&format!("{phase:?}, {signal} before {call} number {nth}"));
            count += 1;
        }
    }
    Some(count)
}

fn disturbed_everywhere(signal: &str) {
    let works = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output();
        output.is_ok_and(|output| output.status.success())
    };
    if !works("strace", &["-f", "true"]) {
        println!("report: skipped: signals at every system call need strace (Debian: strace)");
        return;
    }
    let began = Instant::now();
    let stick = Stick::new();
    let mut counts = [0; 2];
    for (count, phase) in counts.iter_mut().zip([Phase::Update, Phase::Trial]) {
        let Some(disturbed) = every_call(&stick, phase, signal) else {
            return;
        };
        *count = disturbed;
    }
    let [update, trial] = counts;
    println!(
        "report: the program got {signal} before {update} system calls of an update and {trial} of a trial, on loop devices, \
         and finished each time, in {:.1} s",
        began.elapsed().as_secs_f32()
    );
    assert!(
        update >= 15 && trial >= 5,
        "{update} and {trial}: strace sent fewer signals than there are calls"
    );
}

#[test]
fn e21_the_program_is_killed_before_every_call_that_changes_a_disk() {
    disturbed_everywhere("SIGKILL");
}

#[test]
fn e21_the_program_is_stopped_before_every_call_that_changes_a_disk() {
    disturbed_everywhere("SIGSTOP");
}
