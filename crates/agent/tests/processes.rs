//! E-21 with a process: the engine runs in a process of its own over files and loop devices, and is killed with
//! SIGKILL, or stopped and continued, at every failpoint.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};
use slipway_agent::boot_store::{BootStore, Device, Medium, Stored};
use slipway_agent::engine::{
    Engine, Failpoint, Failpoints, Host, Image, JournalFile, Rest, SlotPartition, Sources, SystemClock,
};
use slipway_agent::image::ImageDirectory;
use slipway_agent::target::LocalTarget;
use slipway_slots::boot::{BootState, Codec, Records};
use slipway_slots::machine::Health;
use slipway_slots::manifest::{KeyRing, SignedManifest};
use slipway_slots::write_plan::{Limits, OnDeltaFailure};
use slipway_slots::{BySlot, Slot};
use tempfile::TempDir;

use crate::local_targets::Loop;
use crate::support::host::{FixedHealth, NoReboot, no_demands};
use crate::support::images::{TestImage, blocks, signer};

const SIZE: usize = 16 * 4096 + 64 * 1024;
const DIRECTORY: &str = "SLIPWAY_TEST_AGENT";
const SLOT: &str = "SLIPWAY_TEST_SLOT";
const FAILPOINT: &str = "SLIPWAY_TEST_FAILPOINT";

/// Sends a signal to its own process.
pub struct SignalAt {
    point: String,
    nth: usize,
    signal: Signal,
    reached: AtomicUsize,
}

impl SignalAt {
    /// `Verified 2 kill`: the point, which time, and whether to stop or to kill.
    pub fn parse(text: &str) -> Self {
        let mut words = text.split(' ');
        Self {
            point: words.next().unwrap().to_owned(),
            nth: words.next().unwrap().parse().unwrap(),
            signal: if words.next() == Some("stop") {
                Signal::STOP
            } else {
                Signal::KILL
            },
            reached: AtomicUsize::new(0),
        }
    }
}

impl Failpoints for SignalAt {
    fn reached(&self, point: Failpoint) {
        if format!("{point:?}") == self.point && self.reached.fetch_add(1, Ordering::Relaxed) + 1 == self.nth
        {
            kill_process(getpid(), self.signal).expect("a process may signal itself");
        }
    }
}

/// The agent's process; in a run of the whole suite there is nothing for it to do.
#[test]
fn child_process_of_the_tests_beside() {
    let Ok(directory) = std::env::var(DIRECTORY) else {
        return;
    };
    let directory = PathBuf::from(directory);
    let slot: Slot = std::env::var(SLOT).unwrap().parse().unwrap();
    let failpoint = std::env::var(FAILPOINT).unwrap();
    let failpoints = SignalAt::parse(&failpoint);
    let path = |name: &str| fs::read_to_string(directory.join(name)).unwrap();
    let partition = |name: &str| {
        vec![SlotPartition {
            name: "root".into(),
            target: Box::new(LocalTarget::open(Path::new(&path(name))).unwrap()),
        }]
    };
    let host = Host {
        compatible: "edge-box".into(),
        arch: "x86_64".into(),
        keys: KeyRing::decode(path("ring").as_bytes()).unwrap(),
        booted: Some(slot),
        slots: BySlot {
            a: partition("slot-a"),
            b: partition("slot-b"),
        },
        store: Box::new(Stored::new(
            Records { offset: 0 },
            Device::open(&directory.join("store")).unwrap(),
        )),
        journal: Box::new(JournalFile::new(&directory.join("journal"))),
        health: Box::new(FixedHealth(Health::Passed)),
        rebooter: Box::new(NoReboot),
        clock: Box::new(SystemClock),
        failpoints: Arc::new(failpoints),
        limits: Limits {
            step: 4096,
            checkpoint: 4 * 4096,
        },
        on_delta_failure: OnDeltaFailure::Full,
        preflight: no_demands(),
    };
    let image = Image {
        signed: SignedManifest::decode(path("signed").as_bytes()).unwrap(),
        sources: Sources::new(vec![Box::new(ImageDirectory::new(Path::new(&path("image"))))]),
    };
    let mut engine = Engine::open(host).unwrap();
    if let Ok(Rest::Rebooting(_)) = engine.run() {
        return;
    }
    if engine.history().is_empty() {
        engine.prepare("op-1", image).unwrap();
        engine.activate("op-1", 3).unwrap();
    }
}

/// A host over files, with slot B on a loop device where there is one.
struct Machine {
    directory: TempDir,
    old: TestImage,
    new: TestImage,
    _device: Option<Loop>,
}

impl Machine {
    fn new(loop_device: bool) -> Option<Self> {
        let directory = TempDir::new().unwrap();
        let old = TestImage::build("1.0", 1, blocks(16, 1, &[1, 2]));
        let new = TestImage::build("2.0", 2, blocks(16, 2, &[1, 2]));
        let file = |name: &str| directory.path().join(name);
        fs::write(file("a.img"), old.slot(SIZE)).unwrap();
        fs::write(file("b.img"), vec![0xee; SIZE]).unwrap();
        fs::write(file("store"), vec![0; Records::SIZE as usize]).unwrap();
        Stored::new(Records { offset: 0 }, Device::open(&file("store")).unwrap())
            .install(&BootState::installed(Slot::A))
            .unwrap();
        let device = if loop_device {
            Some(Loop::over(
                &file("b.img"),
                "killing the agent over a block device",
            )?)
        } else {
            None
        };
        let slot_b = device
            .as_ref()
            .map_or_else(|| file("b.img"), |device| device.0.clone());
        fs::write(file("slot-a"), file("a.img").to_str().unwrap()).unwrap();
        fs::write(file("slot-b"), slot_b.to_str().unwrap()).unwrap();
        fs::write(file("ring"), serde_json::to_vec(signer().ring().file()).unwrap()).unwrap();
        fs::write(file("signed"), new.signed.encode()).unwrap();
        fs::write(file("image"), new.path().to_str().unwrap()).unwrap();
        Some(Self {
            directory,
            old,
            new,
            _device: device,
        })
    }

    fn agent(&self, slot: Slot, failpoint: &str) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "processes::child_process_of_the_tests_beside",
                "--test-threads=1",
            ])
            .env(DIRECTORY, self.directory.path())
            .env(SLOT, slot.to_string())
            .env(FAILPOINT, failpoint)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    fn state(&self) -> BootState {
        let codec = Records { offset: 0 };
        let mut device = Device::open(&self.directory.path().join("store")).unwrap();
        let contents = device.load(&codec.layout()).unwrap();
        codec.decode(&contents).state.expect("the store can be read")
    }

    /// The boot loader's half.
    fn boot(&self) -> Slot {
        let codec = Records { offset: 0 };
        let mut device = Device::open(&self.directory.path().join("store")).unwrap();
        let state = self.state();
        let slot = state.next_boot().expect("a slot boots");
        let contents = device.load(&codec.layout()).unwrap();
        for step in codec.encode(&contents, &state.after_boot_of(slot)).unwrap() {
            device.apply(&step).unwrap();
        }
        slot
    }

    /// The old slot is untouched, and what would boot is verified.
    fn check(&self) {
        let a = fs::read(self.directory.path().join("a.img")).unwrap();
        let b_path = fs::read_to_string(self.directory.path().join("slot-b")).unwrap();
        let b = fs::read(b_path).unwrap();
        assert!(self.old.is_in(&a), "the old slot was touched");
        if self.state().next_boot() == Some(Slot::B) {
            assert!(self.new.is_in(&b), "the new slot may boot and is not verified");
        }
    }

    /// One run without disturbance; true when the upgrade is confirmed.
    fn finish(&self, mut slot: Slot) {
        for _ in 0..6 {
            let status = self.agent(slot, "none 1 kill").wait().unwrap();
            assert!(status.success(), "the agent does not recover: {status}");
            self.check();
            let journal = fs::read_to_string(self.directory.path().join("journal")).unwrap();
            if journal.contains("\"confirmed\"") {
                assert_eq!(slot, Slot::B);
                return;
            }
            slot = self.boot();
        }
        panic!("it does not come to an end");
    }
}

#[expect(
    clippy::zombie_processes,
    reason = "waitpid waits for it, and also tells that it stopped"
)]
fn every_failpoint(loop_device: bool) {
    let (mut kills, mut stops) = (0, 0);
    for point in Failpoint::ALL {
        for mode in ["kill", "stop"] {
            for nth in if crate::power::full() { 1..20 } else { 1..2 } {
                let Some(machine) = Machine::new(loop_device) else {
                    return;
                };
                let failpoint = format!("{point:?} {nth} {mode}");
                let mut slot = Slot::A;
                let mut disturbed = false;
                // The failpoint lies before the reboot or after it.
                for _ in 0..2 {
                    let mut child = machine.agent(slot, &failpoint);
                    let pid = Pid::from_child(&child);
                    let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED)
                        .expect("the child can be waited for")
                        .expect("it stopped or ended");
                    if status.stopped() {
                        machine.check();
                        kill_process(pid, Signal::CONT).unwrap();
                        assert!(
                            child.wait().unwrap().success(),
                            "continued at {failpoint}, it does not finish"
                        );
                        stops += 1;
                        disturbed = true;
                    } else if status.signaled() {
                        kills += 1;
                        disturbed = true;
                    }
                    machine.check();
                    if disturbed {
                        break;
                    }
                    slot = machine.boot();
                }
                if !disturbed {
                    break;
                }
                machine.finish(slot);
            }
        }
    }
    println!(
        "report: the agent's process was killed at {kills} and stopped at {stops} places ({}) and finished each time",
        if loop_device { "loop device" } else { "files" }
    );
    assert!(kills >= 12 && stops >= 12, "{kills} and {stops}");
}

#[test]
fn e21_the_process_is_killed_and_stopped_at_every_failpoint_over_files() {
    every_failpoint(false);
}

#[test]
fn e21_the_process_is_killed_and_stopped_at_every_failpoint_over_a_loop_device() {
    every_failpoint(true);
}
