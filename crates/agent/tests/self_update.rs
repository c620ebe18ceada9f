//! The agent updates itself: killed at every step, something that is verified starts.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use slipway_agent::engine::{Failpoint, Failpoints, Image, Sources, Unhindered};
use slipway_agent::image::{ImageDirectory, build_partition};
use slipway_agent::self_update::{Choice, Installation, PARTITION};
use slipway_slots::Digest;
use slipway_slots::manifest::{Expectation, KeyRing, SignedManifest};
use tempfile::TempDir;

use crate::processes::SignalAt;
use crate::support::host::noon;
use crate::support::images::{manifest, signer};

/// A program that says its version. What is behind `exit` is never read, as in a binary's padding.
fn program(version: &str) -> Vec<u8> {
    format!("#!/bin/sh\necho {version}\nexit 0\n").into_bytes()
}

fn image(version: &str, directory: &Path) -> Image {
    let bytes = program(version);
    let partition = build_partition(PARTITION, &mut bytes.as_slice(), bytes.len() as u64, directory).unwrap();
    Image {
        signed: signer().sign(&manifest(version, 1, vec![partition])),
        sources: Sources::new(vec![Box::new(ImageDirectory::new(directory))]),
    }
}

/// What the launcher starts says this.
fn starts(installation: &Installation, packaged: &Path) -> (String, Option<Digest>) {
    let (path, digest) = match installation.choose() {
        Choice::Version { path, digest, .. } => (path, Some(digest)),
        Choice::Packaged => (packaged.to_owned(), None),
    };
    let output = Command::new(&path)
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(output.status.success());
    (
        String::from_utf8(output.stdout).unwrap().trim().to_owned(),
        digest,
    )
}

struct DieAt {
    point: Failpoint,
    nth: usize,
    reached: AtomicUsize,
}

struct Died;

impl Failpoints for DieAt {
    fn reached(&self, point: Failpoint) {
        if point == self.point && self.reached.fetch_add(1, Ordering::Relaxed) + 1 == self.nth {
            resume_unwind(Box::new(Died));
        }
    }
}

fn expectation(keys: &KeyRing) -> Expectation<'_> {
    Expectation {
        keys,
        compatible: "edge-box",
        arch: "x86_64",
        epoch: 1,
        now: noon(),
        partitions: &[],
        quarantined: const { &std::collections::BTreeMap::new() },
    }
}

#[test]
fn killed_at_every_step_of_its_own_update_the_agent_still_starts() {
    let keys = signer().ring();
    let blobs = TempDir::new().unwrap();
    let mut deaths = 0;
    for point in Failpoint::ALL {
        for nth in 1.. {
            let place = TempDir::new().unwrap();
            let packaged = place.path().join("packaged");
            fs::write(&packaged, program("packaged")).unwrap();
            fs::set_permissions(&packaged, fs::Permissions::from_mode(0o755)).unwrap();
            let versions = place.path().join("versions");
            let calm = Installation::new(&versions, Arc::new(Unhindered));
            let first = calm
                .install(image("one", blobs.path()), &expectation(&keys), 2)
                .unwrap();
            assert_eq!(starts(&calm, &packaged), ("one".into(), Some(first)));
            calm.confirm(first).unwrap();
            let die = Arc::new(DieAt {
                point,
                nth,
                reached: AtomicUsize::new(0),
            });
            let dying = Installation::new(&versions, die.clone());
            let died = catch_unwind(AssertUnwindSafe(|| {
                let second = dying
                    .install(image("two", blobs.path()), &expectation(&keys), 2)
                    .unwrap();
                assert_eq!(starts(&dying, &packaged), ("two".into(), Some(second)));
                dying.confirm(second).unwrap();
            }))
            .is_err();
            if !died {
                assert!(die.reached.load(Ordering::Relaxed) < nth);
                break;
            }
            deaths += 1;
            let (said, _) = starts(&calm, &packaged);
            assert!(said == "one" || said == "two", "after {point:?}: {said}");
            // Asked again, it arrives.
            let second = calm
                .install(image("two", blobs.path()), &expectation(&keys), 2)
                .unwrap();
            let (said, digest) = starts(&calm, &packaged);
            assert_eq!((said.as_str(), digest), ("two", Some(second)));
            calm.confirm(second).unwrap();
            assert_eq!(starts(&calm, &packaged).0, "two");
        }
    }
    println!("report: the agent died at {deaths} places of its own update and started each time");
    assert!(deaths >= 8, "{deaths}");
}

#[test]
fn a_version_that_never_confirms_itself_is_left_after_its_tries() {
    let keys = signer().ring();
    let blobs = TempDir::new().unwrap();
    let place = TempDir::new().unwrap();
    let installation = Installation::new(place.path(), Arc::new(Unhindered));
    let first = installation
        .install(image("one", blobs.path()), &expectation(&keys), 1)
        .unwrap();
    installation.choose();
    installation.confirm(first).unwrap();
    let second = installation
        .install(image("two", blobs.path()), &expectation(&keys), 2)
        .unwrap();
    let chosen = || match installation.choose() {
        Choice::Version { digest, .. } => digest,
        Choice::Packaged => panic!("nothing was chosen"),
    };
    assert_eq!(
        [chosen(), chosen(), chosen(), chosen()],
        [second, second, first, first]
    );
}

#[test]
fn a_damaged_state_or_version_leads_to_the_packaged_agent() {
    let keys = signer().ring();
    let blobs = TempDir::new().unwrap();
    let place = TempDir::new().unwrap();
    let installation = Installation::new(place.path(), Arc::new(Unhindered));
    assert_eq!(installation.choose(), Choice::Packaged);
    let digest = installation
        .install(image("one", blobs.path()), &expectation(&keys), 1)
        .unwrap();
    installation.choose();
    installation.confirm(digest).unwrap();
    let Choice::Version { path, .. } = installation.choose() else {
        panic!("the confirmed version starts")
    };
    let good = fs::read(&path).unwrap();
    for place in (0..good.len()).step_by(97) {
        let mut bad = good.clone();
        bad[place] ^= 1;
        fs::write(&path, &bad).unwrap();
        assert_eq!(installation.choose(), Choice::Packaged, "byte {place}");
    }
    fs::write(&path, &good).unwrap();
    let state = place.path().join("state");
    let good = fs::read(&state).unwrap();
    for place in 0..good.len() - 1 {
        let mut bad = good.clone();
        bad[place] ^= 4;
        fs::write(&state, &bad).unwrap();
        assert_eq!(installation.choose(), Choice::Packaged, "byte {place}");
    }
}

#[test]
fn an_unsigned_agent_is_not_installed() {
    let keys = signer().ring();
    let blobs = TempDir::new().unwrap();
    let place = TempDir::new().unwrap();
    let installation = Installation::new(place.path(), Arc::new(Unhindered));
    let mut unsigned = image("one", blobs.path());
    unsigned.signed.signatures.clear();
    assert!(installation.install(unsigned, &expectation(&keys), 1).is_err());
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
}

const UPDATE: &str = "SLIPWAY_TEST_SELF_UPDATE";
const FAILPOINT: &str = "SLIPWAY_TEST_SELF_UPDATE_FAILPOINT";

/// The agent's process while it updates itself; in a run of the whole suite there is nothing for it to do.
#[test]
fn child_process_of_the_update() {
    let Ok(step) = std::env::var(UPDATE) else {
        return;
    };
    let mut words = step.split(' ');
    let (what, place) = (words.next().unwrap(), Path::new(words.next().unwrap()));
    let failpoints = SignalAt::parse(&std::env::var(FAILPOINT).unwrap());
    let installation = Installation::new(&place.join("agent"), Arc::new(failpoints));
    match what {
        "install" => {
            let keys = KeyRing::decode(&fs::read(place.join("ring")).unwrap()).unwrap();
            let blobs = place.join("blobs");
            let image = Image {
                signed: SignedManifest::decode(&fs::read(place.join("signed")).unwrap()).unwrap(),
                sources: Sources::new(vec![Box::new(ImageDirectory::new(&blobs))]),
            };
            installation.install(image, &expectation(&keys), 3).unwrap();
        }
        "launch" => installation.launch(&["--version".into()]),
        "confirm" => installation
            .confirm(words.next().unwrap().parse().unwrap())
            .unwrap(),
        other => panic!("{other}"),
    }
}

/// A host whose agent is launched by the real program.
struct Launched {
    place: TempDir,
    two: Digest,
}

impl Launched {
    /// Version one is confirmed; version two waits in `blobs`.
    fn new() -> Self {
        let place = TempDir::new().unwrap();
        let blobs = place.path().join("blobs");
        let keys = signer().ring();
        let installation = Installation::new(&place.path().join("agent"), Arc::new(Unhindered));
        let one = installation
            .install(image("one", &blobs), &expectation(&keys), 3)
            .unwrap();
        installation.confirm(one).unwrap();
        let two = image("two", &blobs);
        let digest = two.signed.unverified().unwrap().partitions[0].digest;
        fs::write(place.path().join("signed"), two.signed.encode()).unwrap();
        fs::write(
            place.path().join("ring"),
            serde_json::to_vec(keys.file()).unwrap(),
        )
        .unwrap();
        let config = format!(
            "compatible: edge-box\nstateDirectory: {0}\nkeyRing: {0}/ring\nbootStore:\n  records:\n    device: \
             {0}/store\nslots:\n  A: []\n  B: []\n",
            place.path().display()
        );
        fs::write(place.path().join("config.yaml"), config).unwrap();
        Self { place, two: digest }
    }

    /// Whether the step ended by itself; it is killed at the failpoint.
    fn step(&self, what: &str, failpoint: &str) -> bool {
        let status = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "self_update::child_process_of_the_update",
                "--test-threads=1",
            ])
            .env(
                UPDATE,
                format!("{what} {} {}", self.place.path().display(), self.two),
            )
            .env(FAILPOINT, failpoint)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .status()
            .unwrap();
        assert!(
            status.success() || status.signal() == Some(9),
            "{what} at {failpoint}: {status}"
        );
        status.success()
    }

    /// What the packaged program starts says this.
    fn start(&self) -> String {
        let output = Command::new(env!("CARGO_BIN_EXE_slipway-agent"))
            .arg("--config")
            .arg(self.place.path().join("config.yaml"))
            .args(["launch", "--version"])
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}

/// The process is killed with SIGKILL while it installs, launches and confirms, at every failpoint there is; after each,
/// the real launcher starts a whole version, and the update can be brought to its end.
#[test]
fn the_real_launcher_starts_a_version_after_a_kill_at_every_step() {
    let mut kills = 0;
    for (what, before) in [("install", 0), ("launch", 1), ("confirm", 1)] {
        for point in Failpoint::ALL {
            for nth in 1..20 {
                let host = Launched::new();
                if before > 0 {
                    assert!(host.step("install", "none 1 kill"));
                }
                if host.step(what, &format!("{point:?} {nth} kill")) {
                    break;
                }
                kills += 1;
                let said = host.start();
                assert!(
                    said == "one" || said == "two",
                    "{what} killed at {point:?}: {said}"
                );
                assert!(host.step("install", "none 1 kill"));
                assert_eq!(host.start(), "two", "{what} killed at {point:?}");
                assert!(host.step("confirm", "none 1 kill"));
                for _ in 0..5 {
                    assert_eq!(host.start(), "two", "{what} killed at {point:?}");
                }
            }
        }
    }
    println!(
        "report: the agent's process was killed at {kills} places of its own update and was launched each time"
    );
    assert!(kills >= 9, "{kills}");
}

/// A version that cannot even be executed uses up its tries at once, and the one before it starts.
#[test]
fn what_cannot_be_executed_is_left_for_the_version_before_it() {
    let host = Launched::new();
    let blobs = host.place.path().join("blobs");
    let bytes = b"#!/nonexistent/interpreter\n".to_vec();
    let partition = build_partition(PARTITION, &mut bytes.as_slice(), bytes.len() as u64, &blobs).unwrap();
    let image = Image {
        signed: signer().sign(&manifest("three", 1, vec![partition])),
        sources: Sources::new(vec![Box::new(ImageDirectory::new(&blobs))]),
    };
    let keys = signer().ring();
    let installation = Installation::new(&host.place.path().join("agent"), Arc::new(Unhindered));
    installation.install(image, &expectation(&keys), 3).unwrap();
    assert_eq!(host.start(), "one");
    assert_eq!(host.start(), "one");
}

/// Without any version, and without a configuration, the packaged program runs itself.
#[test]
fn without_a_version_the_packaged_program_runs() {
    let host = Launched::new();
    let packaged = format!("slipway-agent {}", env!("CARGO_PKG_VERSION"));
    fs::remove_dir_all(host.place.path().join("agent")).unwrap();
    assert_eq!(host.start(), packaged);
    fs::remove_file(host.place.path().join("config.yaml")).unwrap();
    assert_eq!(host.start(), packaged);
}

/// An agent older than one that was confirmed is not taken any more.
#[test]
fn an_agent_of_an_older_epoch_is_not_installed() {
    let host = Launched::new();
    let keys = signer().ring();
    let blobs = host.place.path().join("blobs");
    let installation = Installation::new(&host.place.path().join("agent"), Arc::new(Unhindered));
    let versioned = |version: &str, epoch| {
        let bytes = program(version);
        let partition =
            build_partition(PARTITION, &mut bytes.as_slice(), bytes.len() as u64, &blobs).unwrap();
        Image {
            signed: signer().sign(&manifest(version, epoch, vec![partition])),
            sources: Sources::new(vec![Box::new(ImageDirectory::new(&blobs))]),
        }
    };
    let new = installation
        .install(versioned("five", 5), &expectation(&keys), 1)
        .unwrap();
    assert!(
        installation
            .install(versioned("four", 4), &expectation(&keys), 1)
            .is_ok()
    );
    installation
        .install(versioned("five", 5), &expectation(&keys), 1)
        .unwrap();
    installation.confirm(new).unwrap();
    let error = installation
        .install(versioned("four", 4), &expectation(&keys), 1)
        .unwrap_err()
        .to_string();
    assert!(error.contains("epoch 4; this host takes none below 5"), "{error}");
}
