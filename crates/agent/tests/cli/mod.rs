//! The program as people use it: images built, shown and checked, keys of the real minisign, and an update of slots that are
//! files.

pub mod guest;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use slipway_slots::{Slot, boot::BootState};
use tempfile::TempDir;

use crate::{
    ssh::Sshd,
    support::{disks::StoreBytes, host::Kind},
};

struct Bench {
    folder: TempDir,
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let pair = minisign::KeyPair::generate_unencrypted_keypair().expect("a key");
        let secret = pair.sk.to_box(None).expect("a box").into_string();
        fs::write(folder.path().join("key"), secret).expect("written");
        let public = pair.pk.to_box().expect("a box").into_string();
        fs::write(folder.path().join("key.pub"), public).expect("written");
        let ring = serde_json::json!({"version": 1, "threshold": 1, "keys": [pair.pk.to_base64()]});
        fs::write(folder.path().join("keys.json"), ring.to_string()).expect("written");
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn agent(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_slipway-agent"))
            .current_dir(self.folder.path())
            .env("SLIPWAY_AGENT_CONFIG", self.path("config.yaml"))
            .env_remove("MINISIGN_PASSWORD")
            .args(arguments)
            .output()
            .expect("it runs")
    }

    fn good(&self, arguments: &[&str]) -> String {
        let output = self.agent(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", said(&output));
        said(&output)
    }

    fn bad(&self, arguments: &[&str]) -> String {
        let output = self.agent(arguments);
        assert!(!output.status.success(), "{arguments:?}: {}", said(&output));
        said(&output)
    }

    fn build(&self, version: &str, raw: &[u8]) -> String {
        fs::write(self.path("raw"), raw).expect("written");
        let out = format!("image-{version}");
        self.good(&[
            "image",
            "build",
            "--name",
            "box",
            "--image-version",
            version,
            "--compatible",
            "box-1",
            "--partition",
            "root=raw",
            "--sign-with",
            "key",
            "--out",
            &out,
            "--oci",
            &format!("oci-{version}"),
        ]);
        out
    }

    /// A host whose slots are files.
    fn host(&self) {
        fs::write(self.path("store"), vec![0; 64 << 10]).expect("a boot store");
        let store = format!("records: {{device: {}}}", self.path("store").display());
        self.host_with(&store);
    }

    fn host_with(&self, store: &str) {
        self.host_of(store, "rebootCommand: [\"true\"]\n");
    }

    /// With more of the configuration.
    fn host_of(&self, store: &str, more: &str) {
        for slot in ["a", "b"] {
            let file = fs::File::create(self.path(slot)).expect("a slot");
            file.set_len(4 << 20).expect("a size");
        }
        let folder = self.folder.path().display();
        let config = format!(
            "compatible: box-1\nstateDirectory: {folder}/state\nkeyRing: {folder}/keys.json\n\
             bootStore:\n  {store}\n\
             slots:\n  A: [{{name: root, device: {folder}/a}}]\n  B: [{{name: root, device: {folder}/b}}]\n\
             booted: A\n{more}"
        );
        fs::write(self.path("config.yaml"), config).expect("written");
        self.good(&["install", "--slot", "A"]);
    }
}

fn raw(length: usize, seed: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (at / 4096 * 31 + at % 251 + seed) as u8)
        .collect()
}

#[test]
fn an_image_is_built_shown_and_checked_in_both_forms() {
    let bench = Bench::new();
    let out = bench.build("1.0", &raw(1_000_000, 1));
    for form in [out.as_str(), "oci-1.0"] {
        let shown = bench.good(&["image", "inspect", form]);
        assert!(
            shown.contains("box 1.0")
                && shown.contains("1003520 bytes in ")
                && shown.contains(" chunks of about 8192;"),
            "{shown}"
        );
        let checked = bench.good(&["image", "verify", form, "--key", "key.pub"]);
        assert!(
            checked.contains("signatures and every byte are right"),
            "{checked}"
        );
        bench.good(&["image", "verify", form, "--key", "keys.json"]);
    }
    let stranger = Bench::new();
    fs::copy(stranger.path("key.pub"), bench.path("stranger.pub")).expect("copied");
    let refused = bench.bad(&["image", "verify", &out, "--key", "stranger.pub"]);
    assert!(refused.contains("0 of the signatures"), "{refused}");
}

#[test]
fn every_blob_that_is_not_what_it_was_is_found() {
    let bench = Bench::new();
    let out = bench.build("1.0", &raw(500_000, 1));
    let mut flips = 0;
    for entry in fs::read_dir(bench.path(&out)).expect("the image").flatten() {
        let path = entry.path();
        let bytes = fs::read(&path).expect("a blob");
        for at in [0, bytes.len() / 2, bytes.len() - 1] {
            let mut wrong = bytes.clone();
            wrong[at] ^= 1;
            fs::write(&path, &wrong).expect("written");
            bench.bad(&["image", "verify", &out, "--key", "key.pub"]);
            flips += 1;
        }
        fs::write(&path, bytes).expect("written");
    }
    assert!(flips >= 12, "{flips} flips of four files");
    bench.good(&["image", "verify", &out, "--key", "key.pub"]);
}

#[test]
fn a_tree_becomes_a_filesystem_of_the_size_asked_for() {
    let bench = Bench::new();
    fs::create_dir_all(bench.path("tree/etc")).expect("a folder");
    fs::write(bench.path("tree/etc/hostname"), "box").expect("written");
    if Command::new("mke2fs").arg("-V").output().is_err() {
        println!("report: skipped: an image from a tree needs mke2fs (Debian: e2fsprogs)");
        return;
    }
    bench.good(&[
        "image",
        "build",
        "--name",
        "box",
        "--image-version",
        "1",
        "--compatible",
        "box-1",
        "--partition",
        "root=tree",
        "--tree-size",
        "8388608",
        "--sign-with",
        "key",
        "--out",
        "one",
    ]);
    bench.good(&["image", "verify", "one", "--key", "key.pub"]);
    let shown = bench.good(&["image", "inspect", "--json", "one"]);
    let manifest: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(manifest["partitions"][0]["size"], 8_388_608, "{shown}");
    let refused = bench.bad(&[
        "image",
        "build",
        "--name",
        "box",
        "--image-version",
        "1",
        "--compatible",
        "box-1",
        "--partition",
        "root=tree",
        "--sign-with",
        "key",
        "--out",
        "three",
    ]);
    assert!(refused.contains("--tree-size"), "{refused}");
}

fn minisign(arguments: &[&str], folder: &Path) -> Option<Output> {
    let output = Command::new("minisign")
        .current_dir(folder)
        .args(arguments)
        .output();
    if output.is_err() {
        println!("report: skipped: agreement with minisign, which is not installed");
    }
    output.ok()
}

#[test]
fn the_real_minisign_agrees_both_ways() {
    let bench = Bench::new();
    let folder = bench.folder.path();
    // Our signature, its verification.
    let out = bench.build("1.0", &raw(100_000, 1));
    let signed: serde_json::Value =
        serde_json::from_slice(&fs::read(bench.path(&out).join("manifest.signed.json")).expect("read"))
            .expect("JSON");
    fs::write(bench.path("manifest"), signed["manifest"].as_str().expect("text")).expect("written");
    fs::write(
        bench.path("manifest.minisig"),
        signed["signatures"][0].as_str().expect("text"),
    )
    .expect("written");
    let Some(output) = minisign(&["-V", "-p", "key.pub", "-m", "manifest"], folder) else {
        return;
    };
    assert!(output.status.success(), "{}", said(&output));
    // Its key, our signature and verification.
    let output = minisign(&["-G", "-W", "-p", "theirs.pub", "-s", "theirs"], folder).expect("installed");
    assert!(output.status.success(), "{}", said(&output));
    bench.good(&[
        "image",
        "build",
        "--name",
        "box",
        "--image-version",
        "2",
        "--compatible",
        "box-1",
        "--partition",
        "root=raw",
        "--sign-with",
        "theirs",
        "--out",
        "theirs-image",
    ]);
    bench.good(&["image", "verify", "theirs-image", "--key", "theirs.pub"]);
    // Its signature, our verification.
    let signed: serde_json::Value =
        serde_json::from_slice(&fs::read(bench.path("theirs-image/manifest.signed.json")).expect("read"))
            .expect("JSON");
    fs::write(bench.path("again"), signed["manifest"].as_str().expect("text")).expect("written");
    let output = minisign(&["-S", "-s", "theirs", "-m", "again"], folder).expect("installed");
    assert!(output.status.success(), "{}", said(&output));
    let signature = fs::read_to_string(bench.path("again.minisig")).expect("a signature");
    let mut resigned = signed;
    resigned["signatures"] = serde_json::json!([signature]);
    fs::write(
        bench.path("theirs-image/manifest.signed.json"),
        resigned.to_string(),
    )
    .expect("written");
    bench.good(&["image", "verify", "theirs-image", "--key", "theirs.pub"]);
}

#[test]
fn an_update_writes_the_other_slot_and_says_so() {
    let bench = Bench::new();
    bench.host();
    let image = raw(2_000_000, 1);
    let out = bench.build("2.0", &image);
    let before = fs::read(bench.path("a")).expect("slot A");
    let told = bench.good(&["update", "--from", &out, "--id", "first", "--stage"]);
    assert!(told.contains("box 2.0 is written and verified (first)"), "{told}");
    assert!(fs::read(bench.path("b")).expect("slot B")[..image.len()] == image);
    assert!(
        fs::read(bench.path("a")).expect("slot A") == before,
        "the other slot is as it was"
    );
    let status = bench.good(&["status"]);
    assert!(
        status.contains("* A") && status.contains("does not boot"),
        "{status}"
    );
    let status: serde_json::Value = serde_json::from_str(&bench.good(&["status", "--json"])).expect("JSON");
    assert_eq!(status["current"]["operation"]["version"], "2.0", "{status}");
    // An image for other hosts, or of nobody, changes nothing.
    let text = fs::read_to_string(bench.path(&out).join("manifest.signed.json")).expect("read");
    fs::write(
        bench.path(&out).join("manifest.signed.json"),
        text.replace("box-1", "box-2"),
    )
    .expect("written");
    let refused = bench.bad(&["update", "--from", &out, "--id", "second"]);
    assert!(refused.contains("not trusted"), "{refused}");
}

/// The ring hands over to the next one, signed by both; nothing else takes its place.
#[test]
fn a_key_ring_is_rotated_by_its_own_keys_and_the_next_ones() {
    let (bench, next) = (Bench::new(), Bench::new());
    bench.host();
    let image = bench.build("2.0", &raw(100_000, 1));
    let mut ring: serde_json::Value =
        serde_json::from_slice(&fs::read(next.path("keys.json")).expect("read")).expect("JSON");
    ring["version"] = 2.into();
    fs::write(bench.path("next.json"), ring.to_string()).expect("written");
    for (signer, name) in [(&bench, "old"), (&next, "new")] {
        let secret = fs::read_to_string(signer.path("key")).expect("a key");
        let secret = minisign::SecretKeyBox::from_string(&secret).expect("a box");
        let secret = secret.into_unencrypted_secret_key().expect("a key");
        let signature = minisign::sign(None, &secret, ring.to_string().as_bytes(), None, None);
        fs::write(bench.path(name), signature.expect("signed").into_string()).expect("written");
    }
    let before = fs::read(bench.path("keys.json")).expect("the ring");
    for signatures in [&["old"][..], &["new"], &["new", "new"]] {
        let mut arguments = vec!["keys", "rotate", "--ring", "next.json", "--signature"];
        arguments.extend(signatures);
        let refused = bench.bad(&arguments);
        assert!(
            refused.contains("the key ring stays as it is") && refused.contains("0 of the signatures"),
            "{refused}"
        );
        assert_eq!(fs::read(bench.path("keys.json")).expect("the ring"), before);
    }
    let rotate = [
        "keys",
        "rotate",
        "--ring",
        "next.json",
        "--signature",
        "old",
        "new",
    ];
    let told = bench.good(&rotate);
    assert_eq!(told, "the key ring is of version 2; it was of version 1\n");
    assert!(
        bench
            .good(&["keys", "show"])
            .starts_with("version 2: 1 of these 1 keys")
    );
    // What the old key alone vouches for is not trusted any more, and the same again is refused.
    let refused = bench.bad(&["update", "--from", &image]);
    assert!(refused.contains("not trusted"), "{refused}");
    assert!(bench.bad(&rotate).contains("the key ring stays as it is"));
}

/// An empty store of a kind, and `bootStore` of the configuration for it.
fn empty_store(bench: &Bench, kind: Kind) -> String {
    let place = bench.path("store").display().to_string();
    match kind.bytes(&BootState::installed(Slot::A)) {
        StoreBytes::Files(_) => fs::create_dir(bench.path("store")).expect("a folder"),
        // A disk has a partition table before it has a boot store.
        StoreBytes::Disk(disk) if kind == Kind::Gpt => fs::write(&place, disk).expect("a disk"),
        StoreBytes::Disk(disk) => fs::write(&place, vec![0; disk.len()]).expect("a disk"),
    }
    match kind {
        Kind::Records => format!("records: {{device: {place}, offset: 4096}}"),
        Kind::Grubenv => format!("grubenv: {{directory: {place}}}"),
        Kind::Uboot => format!("uboot: {{device: {place}, offsets: [0, 8192], size: 1024}}"),
        Kind::SystemdBoot => {
            format!("systemdBoot: {{directory: {place}, a: linux /a/vmlinuz, b: linux /b/vmlinuz}}")
        }
        Kind::Gpt => format!("gpt: {{disk: {place}, a: 1, b: 2}}"),
    }
}

/// The store is set up, armed by an update, and says so.
#[test]
fn every_boot_store_can_be_configured() {
    for kind in Kind::ALL {
        let bench = Bench::new();
        bench.host_with(&empty_store(&bench, kind));
        let out = bench.build("2.0", &raw(200_000, 1));
        let told = bench.good(&["update", "--from", &out]);
        assert!(told.contains("rebooting"), "{kind:?}: {told}");
        let status = bench.good(&["status"]);
        assert!(
            status.contains("on trial, 3 of 3 tries left"),
            "{kind:?}: {status}"
        );
    }
}

/// Slots, boot store, health and reboot are another machine's, over a real sshd: from the update to its end, for every boot
/// store.
#[test]
fn e43_the_slots_of_a_node_over_ssh_are_configured_and_updated() {
    let Some(sshd) = Sshd::start() else { return };
    for (number, kind) in Kind::ALL.into_iter().enumerate() {
        let is_healthy = number % 2 == 0;
        let bench = Bench::new();
        let folder = bench.folder.path().display();
        let health = format!(
            "health: {{commands: [[test, -e, {folder}/healthy]], soakSeconds: 0, deadlineSeconds: 1, intervalSeconds: 1}}\n"
        );
        let reboot = format!("rebootCommand: [touch, {folder}/rebooted]\n");
        let node = sshd.configuration("host.pub", "user");
        bench.host_of(&empty_store(&bench, kind), &format!("{node}{health}{reboot}"));
        let image = raw(2_000_000, number);
        let out = bench.build("2.0", &image);
        let told = bench.good(&["update", "--from", &out, "--id", "first"]);
        assert!(told.contains("rebooting"), "{kind:?}: {told}");
        assert!(
            bench.path("rebooted").exists(),
            "{kind:?}: the node was told to restart"
        );
        assert!(fs::read(bench.path("b")).expect("slot B")[..image.len()] == image);
        let status = bench.good(&["status"]);
        assert!(
            status.contains("on trial, 3 of 3 tries left"),
            "{kind:?}: {status}"
        );
        // The node's boot loader chose the new slot; the kernel of this machine names none.
        let text = fs::read_to_string(bench.path("config.yaml")).expect("read");
        fs::write(bench.path("config.yaml"), text.replace("booted: A", "booted: B")).expect("written");
        fs::remove_file(bench.path("rebooted")).expect("removed");
        if is_healthy {
            fs::write(bench.path("healthy"), "").expect("written");
        }
        bench.good(&["run", "--once"]);
        assert_eq!(bench.path("rebooted").exists(), !is_healthy, "{kind:?}");
        if !is_healthy {
            fs::write(bench.path("config.yaml"), text).expect("written");
            bench.good(&["run", "--once"]);
        }
        let (status, history) = (bench.good(&["status"]), bench.good(&["history"]));
        let (slot, how) = if is_healthy {
            ("* B", "first  2.0  confirmed")
        } else {
            ("* A", "first  2.0  rolled back")
        };
        let is_good = |line: &str| line.starts_with(slot) && line.ends_with("good");
        assert!(status.lines().any(is_good), "{kind:?}: {status}");
        assert!(history.contains(how), "{kind:?}: {history}");
        let names_the_node = history.contains("on 127.0.0.1:");
        assert!(is_healthy || names_the_node, "{kind:?}: {history}");
    }
}

#[test]
fn e45_a_node_that_is_not_the_one_configured_is_refused_with_what_to_do() {
    let Some(sshd) = Sshd::start() else { return };
    let bench = Bench::new();
    let store = empty_store(&bench, Kind::Grubenv);
    bench.host_of(&store, &sshd.configuration("host.pub", "user"));
    let good = fs::read_to_string(bench.path("config.yaml")).expect("read");
    bench.good(&["status"]);
    let stranger = sshd.configuration("host.pub", "stranger");
    let other = sshd.configuration("other.pub", "user");
    let node = sshd.configuration("host.pub", "user");
    let disk_image = |text: &str| {
        let device = format!("device: {}", bench.path("b").display());
        text.replace(
            &device,
            &format!("image: {}, label: b", bench.path("b").display()),
        )
    };
    for (config, expected) in [
        (good.replace(&node, &other), "pin its new key"),
        (good.replace(&node, &stranger), "does not accept our key"),
        (
            good.replace("keyFile: ", "keyFile: /nowhere"),
            "reading the key for node 127.0.0.1 in /nowhere",
        ),
        (
            good.replace("helper: ", "helper: /nowhere"),
            "starting the helper",
        ),
        (good.replace("/b}", "/absent}"), "opening partition root on"),
        (disk_image(&good), "name a device of it"),
        (
            format!("{good}health: {{kubelet: \"http://127.0.0.1:10248/healthz\"}}\n"),
            "name a command",
        ),
        (good.replace("hostKeys: [", "hostKeys: [] #"), "none is pinned"),
    ] {
        assert_ne!(config, good);
        fs::write(bench.path("config.yaml"), config).expect("written");
        let told = bench.bad(&["status"]);
        assert!(told.contains(expected), "{expected}: {told}");
        assert!(!told.contains("PRIVATE KEY"), "{told}");
    }
}

/// The same command on this host and on a node over a real sshd.
#[test]
fn e45_a_command_runs_here_and_on_a_node_within_its_limits() {
    let sshd = Sshd::start();
    let node = sshd.as_ref().map(|sshd| sshd.configuration("host.pub", "user"));
    for (more, absent) in [(Some(String::new()), 125), (node, 127)] {
        let Some(more) = more else { continue };
        let bench = Bench::new();
        bench.host_of(&empty_store(&bench, Kind::Records), &more);
        let exec = |arguments: &[&str]| bench.agent(&[&["exec"], arguments].concat());
        let output = exec(&["--", "sh", "-c", "echo out; echo err >&2; exit 3"]);
        assert_eq!(output.status.code(), Some(3), "{}", said(&output));
        assert_eq!(
            (output.stdout.as_slice(), output.stderr.as_slice()),
            (&b"out\n"[..], &b"err\n"[..])
        );
        let output = exec(&["--time-limit", "1", "--", "sh", "-c", "sleep 60 & sleep 60"]);
        assert_eq!(output.status.code(), Some(124), "{}", said(&output));
        assert!(
            said(&output).contains("was ended with all its processes"),
            "{}",
            said(&output)
        );
        let output = exec(&["--output-limit", "4", "--", "echo", "hello"]);
        assert_eq!(output.stdout, b"hell", "{}", said(&output));
        assert!(said(&output).contains("left out"), "{}", said(&output));
        let output = exec(&["--", "sh", "-c", "kill -KILL $$"]);
        assert_eq!(output.status.code(), Some(125), "{}", said(&output));
        assert!(said(&output).contains("signal KILL"), "{}", said(&output));
        let output = exec(&["--", "/no/such/program"]);
        assert_eq!(output.status.code(), Some(absent), "{}", said(&output));
    }
}

/// E-46: what nobody lived to see the end of is told by the next start; its arguments, which may be secret, are not.
#[test]
fn e46_a_command_whose_agent_was_killed_is_told_of_by_the_next_start() {
    let bench = Bench::new();
    bench.host();
    let mut child = Command::new(env!("CARGO_BIN_EXE_slipway-agent"))
        .env("SLIPWAY_AGENT_CONFIG", bench.path("config.yaml"))
        .args(["exec", "--", "sh", "-c", "echo runs; sleep 2; : canary-argument"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut line = [0; 5];
    std::io::Read::read_exact(child.stdout.as_mut().expect("a pipe"), &mut line).expect("it says a line");
    child.kill().expect("killed");
    child.wait().expect("it ended");
    let told = bench.good(&["run", "--once"]);
    assert!(told.contains("the agent ended while it ran"), "{told}");
    assert!(!told.contains("canary-argument"), "{told}");
    let told = bench.good(&["run", "--once"]);
    assert!(!told.contains("while it ran"), "it is told once: {told}");
}

#[test]
fn mistakes_are_told_in_one_line() {
    let bench = Bench::new();
    let none = bench.bad(&["status"]);
    assert!(
        none.contains("reading the configuration") && none.contains("config.yaml"),
        "{none}"
    );
    bench.host();
    let text = fs::read_to_string(bench.path("config.yaml")).expect("read");
    fs::write(
        bench.path("config.yaml"),
        text.replace("compatible", "compatibel"),
    )
    .expect("written");
    let typo = bench.bad(&["status"]);
    assert!(typo.contains("compatibel"), "{typo}");
    fs::write(bench.path("config.yaml"), text).expect("written");
    let absent = bench.bad(&["update", "--from", "nowhere"]);
    assert!(absent.contains("nowhere/manifest.signed.json"), "{absent}");
}
