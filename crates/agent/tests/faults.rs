//! Disks that fail, fill up or become read-only, and clocks that jump: the agent completes without help, or fails with
//! one clear reason, and goes on when the fault is gone. It never arms a slot that is not verified.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use slipway_agent::boot_store::{BootStore, Device, Stored};
use slipway_agent::engine::{
    Engine, EngineError, Failpoint, Failpoints, JournalFile, Preflight, PreflightError, Rest, SlotPartition,
    Unhindered,
};
use slipway_agent::target::LocalTarget;
use slipway_slots::boot::{BootState, Records, SlotBoot};
use slipway_slots::machine::Outcome;
use slipway_slots::{BySlot, Digest, Slot};
use tempfile::TempDir;

use crate::engine::{Bench, CHUNKS};
use crate::local_targets::Loop;
use crate::support::boot_loader;
use crate::support::faulty_disk::{Effect, Fault, FaultyDisk, Operation};
use crate::support::host::Kind;

const SIZE: usize = CHUNKS * 4096 + 64 * 1024;

/// The engine of a host whose slot B is this file or device.
fn engine_over(bench: &Bench, slot_b: &Path) -> Result<Engine, EngineError> {
    let mut host = bench.setup.host(&bench.shared, Some(Slot::A));
    host.slots.b = vec![SlotPartition {
        name: "root".into(),
        target: Box::new(LocalTarget::open(slot_b).unwrap()),
    }];
    Engine::open(host)
}

fn armed(bench: &Bench) -> bool {
    let state = Kind::Records.read(&bench.shared.disks().store).state.unwrap();
    state.slots[Slot::B] != SlotBoot::Unbootable
}

/// Every read, write and flush of an update fails in turn, with every error a disk gives.
#[test]
fn a_disk_that_fails_anywhere_is_named_with_its_error_and_works_again_afterwards() {
    let mut runs = 0;
    let cases = [
        (
            Operation::Write,
            Effect::Error(5),
            "Input/output error (os error 5)",
        ),
        (Operation::Write, Effect::Torn, "Input/output error (os error 5)"),
        (
            Operation::Write,
            Effect::Error(28),
            "No space left on device (os error 28)",
        ),
        (
            Operation::Write,
            Effect::Error(30),
            "Read-only file system (os error 30)",
        ),
        (
            Operation::Read,
            Effect::Error(5),
            "Input/output error (os error 5)",
        ),
        (
            Operation::Flush,
            Effect::Error(5),
            "Input/output error (os error 5)",
        ),
    ];
    for (operation, effect, said) in cases {
        for nth in 1.. {
            let mut bench = Bench::new();
            bench.setup.limits.step = 16 * 1024;
            let Some(disk) = FaultyDisk::mount(vec![0xee; SIZE], "a disk with I/O errors") else {
                return;
            };
            let mut engine = engine_over(&bench, &disk.path()).unwrap();
            disk.disk().set(Some(Fault {
                operation,
                effect,
                nth,
                times: usize::MAX,
            }));
            let result = engine.prepare("op-1", bench.new.image());
            if disk.disk().hits == 0 {
                result.unwrap();
                break;
            }
            runs += 1;
            let what = format!("{operation:?} {nth} with {effect:?}");
            match result {
                // The label, which is read for the status only.
                Ok(_) => assert!(bench.new.is_in(&disk.disk().bytes), "{what}: done and not there"),
                Err(error) => {
                    let error = error.to_string();
                    assert_eq!(error.matches(said).count(), 1, "{what}: {error}");
                    assert!(
                        error.contains(&disk.path().display().to_string()),
                        "{what}: {error}"
                    );
                }
            }
            assert!(!armed(&bench), "{what}: armed");
            assert!(
                bench.old.is_in(&bench.shared.disks().a),
                "{what}: the running slot was touched"
            );
            disk.disk().set(None);
            engine
                .prepare("op-1", bench.new.image())
                .unwrap_or_else(|error| panic!("{what}: it does not go on: {error}"));
            assert!(bench.new.is_in(&disk.disk().bytes), "{what}");
            engine.activate("op-1", 3).unwrap();
            assert!(armed(&bench), "{what}");
        }
    }
    println!(
        "report: {runs} operations of a disk failed, each with one reason, and the update was finished after each"
    );
    assert!(runs > 30, "{runs}");
}

/// A disk that takes less than it was given is asked again by the agent itself.
#[test]
fn short_writes_complete_without_help() {
    let bench = Bench::new();
    let Some(disk) = FaultyDisk::mount(vec![0xee; SIZE], "a disk with short writes") else {
        return;
    };
    disk.disk().set(Some(Fault {
        operation: Operation::Write,
        effect: Effect::Short,
        nth: 1,
        times: usize::MAX,
    }));
    let mut engine = engine_over(&bench, &disk.path()).unwrap();
    engine.prepare("op-1", bench.new.image()).unwrap();
    assert!(disk.disk().hits > CHUNKS, "the disk took everything at once");
    assert!(bench.new.is_in(&disk.disk().bytes));
}

/// A small filesystem in memory, unmounted when it is dropped.
struct SmallFilesystem(TempDir);

impl SmallFilesystem {
    fn mount(what: &str) -> Option<Self> {
        let directory = TempDir::new().unwrap();
        let output = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"])
            .arg(directory.path())
            .output();
        match output {
            Ok(output) if output.status.success() => Some(Self(directory)),
            other => {
                println!("report: skipped: {what} needs to mount a filesystem: {other:?}");
                None
            }
        }
    }

    fn path(&self) -> PathBuf {
        self.0.path().to_owned()
    }
}

impl Drop for SmallFilesystem {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).output();
    }
}

fn remount(path: &Path, how: &str) {
    let status = Command::new("mount")
        .args(["-o", &format!("remount,{how}")])
        .arg(path)
        .status()
        .unwrap();
    assert!(status.success(), "remounting {how}");
}

/// Takes all space that is left.
fn fill(path: &Path) {
    use std::io::Write;
    let mut file = fs::File::create(path.join("filler")).unwrap();
    while file.write_all(&[0; 512]).is_ok() {}
}

#[derive(Clone, Copy, Debug)]
enum Trouble {
    Full,
    ReadOnly,
}

impl Trouble {
    fn begin(self, path: &Path) {
        match self {
            Self::Full => fill(path),
            Self::ReadOnly => remount(path, "ro"),
        }
    }

    fn end(self, path: &Path) {
        match self {
            Self::Full => fs::remove_file(path.join("filler")).unwrap(),
            Self::ReadOnly => remount(path, "rw"),
        }
    }

    fn said(self) -> &'static str {
        match self {
            Self::Full => "No space left on device (os error 28)",
            Self::ReadOnly => "Read-only file system (os error 30)",
        }
    }
}

/// The state directory's disk is in trouble from a failpoint on.
struct TroubleAt(Failpoint, Trouble, PathBuf);

impl Failpoints for TroubleAt {
    fn reached(&self, point: Failpoint) {
        if point == self.0 && !self.2.join("filler").exists() {
            self.1.begin(&self.2);
        }
    }
}

/// E-26: full or read-only before the start is a refusal with both numbers and without a byte written; in the middle it is
/// one clear reason, and the update goes on when there is space again.
#[test]
fn e26_a_state_directory_that_is_full_or_read_only_stops_the_update_with_one_reason() {
    let mut stopped = 0;
    for trouble in [Trouble::Full, Trouble::ReadOnly] {
        let Some(filesystem) = SmallFilesystem::mount("a full disk") else {
            return;
        };
        let mut bench = Bench::new();
        bench.setup.preflight = Preflight {
            least_space: 16 * 1024,
            supplies: "/nonexistent".into(),
            ..Preflight::new(&filesystem.path())
        };
        trouble.begin(&filesystem.path());
        let before = bench.shared.disks();
        let mut engine = bench.setup.engine(&bench.shared, Slot::A).unwrap();
        let error = engine.prepare("op-1", bench.new.image()).unwrap_err();
        match (trouble, &error) {
            (
                Trouble::Full,
                EngineError::Preflight(PreflightError::Space {
                    available: 0,
                    needed: 16_384,
                    ..
                }),
            )
            | (Trouble::ReadOnly, EngineError::Preflight(PreflightError::ReadOnly { .. })) => {}
            other => panic!("{other:?}"),
        }
        assert!(bench.shared.disks() == before, "something was written: {error}");
        trouble.end(&filesystem.path());

        for point in Failpoint::ALL {
            bench.reset();
            let journal = filesystem.path().join("journal");
            let _ = fs::remove_file(&journal);
            let what = format!("{trouble:?} from {point:?} on");
            bench.setup.failpoints = Arc::new(TroubleAt(point, trouble, filesystem.path()));
            let mut slot = Slot::A;
            let mut errors = 0;
            let mut confirmed = false;
            for _ in 0..12 {
                let run = || -> Result<Option<bool>, EngineError> {
                    let mut host = bench.setup.host(&bench.shared, Some(slot));
                    host.journal = Box::new(JournalFile::new(&journal));
                    let mut engine = Engine::open(host)?;
                    match engine.run() {
                        Ok(Rest::Rebooting(_)) => return Ok(None),
                        Ok(_) | Err(EngineError::ImageNeeded { .. }) => {}
                        Err(error) => return Err(error),
                    }
                    if let Some(ended) = engine.history().last() {
                        return Ok(Some(matches!(ended.outcome, Outcome::Confirmed)));
                    }
                    engine.prepare("op-1", bench.new.image())?;
                    engine.activate("op-1", 3)?;
                    Ok(None)
                };
                match run() {
                    Ok(Some(outcome)) => {
                        confirmed = outcome;
                        break;
                    }
                    Ok(None) => slot = boot_loader::boot(Kind::Records, &bench.shared).expect("a slot boots"),
                    Err(error) => {
                        let error = error.to_string();
                        let expected = match trouble {
                            Trouble::ReadOnly if error.contains("mount it read-write") => "is read-only",
                            Trouble::Full if error.contains("ResourceExhausted") => "has 0 bytes free",
                            _ => trouble.said(),
                        };
                        assert_eq!(error.matches(expected).count(), 1, "{what}: {error}");
                        errors += 1;
                        stopped += 1;
                        bench.setup.failpoints = Arc::new(Unhindered);
                        trouble.end(&filesystem.path());
                    }
                }
                assert!(
                    bench.old.is_in(&bench.shared.disks().a),
                    "{what}: the old slot was touched"
                );
            }
            assert!(errors <= 1, "{what}: {errors} errors for one trouble");
            assert!(confirmed, "{what}: the update was not brought to its end");
            if errors == 0 {
                // The failpoint is not on this way, or nothing is recorded after it.
                remount(&filesystem.path(), "rw");
                let _ = fs::remove_file(filesystem.path().join("filler"));
            }
        }
    }
    println!(
        "report: the state directory was full or read-only at {stopped} places; each update ended well afterwards"
    );
    assert!(stopped >= 8, "{stopped}");
}

/// A block device that becomes read-only under the agent.
struct ReadOnlyAt(Failpoint, PathBuf);

impl Failpoints for ReadOnlyAt {
    fn reached(&self, point: Failpoint) {
        if point == self.0 {
            set(&self.1, "--setro");
        }
    }
}

fn set(device: &Path, how: &str) {
    let status = Command::new("blockdev").arg(how).arg(device).status().unwrap();
    assert!(status.success(), "blockdev {how}");
}

#[test]
fn a_block_device_that_becomes_read_only_is_named_and_written_later() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("b.img");
    fs::write(&file, vec![0xee; SIZE]).unwrap();
    let Some(device) = Loop::over(&file, "a read-only block device") else {
        return;
    };
    for point in [Failpoint::Accepted, Failpoint::ChunkWritten, Failpoint::Written] {
        let mut bench = Bench::new();
        fs::write(&device.0, vec![0xee; SIZE]).unwrap();
        bench.setup.failpoints = Arc::new(ReadOnlyAt(point, device.0.clone()));
        let mut engine = engine_over(&bench, &device.0).unwrap();
        let error = engine.prepare("op-1", bench.new.image()).unwrap_err().to_string();
        let said = format!(
            "writing {}: Operation not permitted (os error 1)",
            device.0.display()
        );
        assert_eq!(error.matches(&said).count(), 1, "{point:?}: {error}");
        assert!(!armed(&bench));
        set(&device.0, "--setrw");
        bench.setup.failpoints = Arc::new(Unhindered);
        let mut engine = engine_over(&bench, &device.0).unwrap();
        engine.prepare("op-1", bench.new.image()).unwrap();
        assert!(bench.new.is_in(&fs::read(&device.0).unwrap()), "{point:?}");
    }
}

/// A boot store that cannot be written: the slot that may still boot is not touched, nothing is armed, and the reason names
/// the store.
#[test]
fn a_boot_store_that_cannot_be_written_stops_the_update_before_the_slot_is_touched() {
    let store = vec![0; Records::SIZE as usize];
    let Some(disk) = FaultyDisk::mount(store, "a boot store with I/O errors") else {
        return;
    };
    let both_good = BootState {
        slots: BySlot {
            a: SlotBoot::Good,
            b: SlotBoot::Good,
        },
        ..BootState::installed(Slot::A)
    };
    let codec = Records { offset: 0 };
    Stored::new(codec, Device::open(&disk.path()).unwrap())
        .install(&both_good)
        .unwrap();
    let bench = Bench::new();
    let before = Digest::of(&bench.shared.disks().b);
    let open = || {
        let mut host = bench.setup.host(&bench.shared, Some(Slot::A));
        host.store = Box::new(Stored::new(codec, Device::open(&disk.path()).unwrap()));
        Engine::open(host).unwrap()
    };
    let fails = |engine: &mut Engine, operation: Operation, number: i32, arm: bool| {
        disk.disk().set(Some(Fault {
            operation,
            effect: Effect::Error(number),
            nth: 1,
            times: usize::MAX,
        }));
        let result = if arm {
            engine.activate("op-1", 3).map(drop)
        } else {
            engine.prepare("op-1", bench.new.image()).map(drop)
        };
        let error = result.unwrap_err().to_string();
        disk.disk().set(None);
        assert_eq!(
            error.matches(&format!("(os error {number})")).count(),
            1,
            "{error}"
        );
        assert!(error.contains(&disk.path().display().to_string()), "{error}");
    };
    let faults = [
        (Operation::Write, 30),
        (Operation::Write, 5),
        (Operation::Flush, 5),
    ];
    for (operation, number) in faults {
        fails(&mut open(), operation, number, false);
        assert!(
            Digest::of(&bench.shared.disks().b) == before,
            "the slot was written while it may boot: {operation:?} {number}"
        );
    }
    open().prepare("op-1", bench.new.image()).unwrap();
    assert!(bench.new.is_in(&bench.shared.disks().b));
    let armed = || {
        let mut store = Stored::new(codec, Device::open(&disk.path()).unwrap());
        store.read().unwrap().state.slots.b.can_boot()
    };
    for (operation, number) in &faults[..2] {
        fails(&mut open(), *operation, *number, true);
        assert!(!armed(), "armed by a write that failed");
    }
    open().run().unwrap();
    assert!(armed());
}

/// The clock jumps between any two starts of the agent, years back or past the image's expiry: an update that was accepted
/// comes to its end, and its journal stays readable.
#[test]
fn a_clock_that_jumps_does_not_disturb_an_update_that_was_accepted() {
    let times = [
        "1970-01-01T00:00:01Z",
        "2099-12-31T23:59:59Z",
        "2026-06-01T12:00:00Z",
    ];
    for first in times {
        for second in times {
            let mut bench = Bench::new();
            let mut engine = bench.setup.engine(&bench.shared, Slot::A).unwrap();
            engine.prepare("op-1", bench.new.image()).unwrap();
            bench.setup.now = first.parse().unwrap();
            let mut engine = bench.setup.engine(&bench.shared, Slot::A).unwrap();
            engine.activate("op-1", 3).unwrap();
            let slot = boot_loader::boot(Kind::Records, &bench.shared).unwrap();
            assert_eq!(slot, Slot::B);
            bench.setup.now = second.parse().unwrap();
            let mut engine = bench.setup.engine(&bench.shared, slot).unwrap();
            engine.run().unwrap();
            let status = engine.status().unwrap();
            assert!(
                matches!(status.last.unwrap().outcome, Outcome::Confirmed),
                "{first} {second}"
            );
            assert_eq!(status.problems, Vec::<String>::new(), "{first} {second}");
        }
    }
}
