//! Agreement with the tools that administrators and boot loaders use, in both directions: what we write they read,
//! what they write we read. A tool that is not installed is said to be skipped.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use slipway_agent::boot_store::{BootStore, Device, Directory, Stored};
use slipway_slots::boot::{BootChange, BootState, GptAttributes, Grubenv, SlotBoot, SystemdBoot, UbootEnv};
use slipway_slots::manifest::{KeyRing, KeyRingFile, SignedManifest};
use slipway_slots::{BySlot, Slot};
use tempfile::TempDir;

use crate::support::images::{TestImage, blocks};

/// Whether the tool is here; if not, the report says so.
fn installed(tool: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let found = path
        .split(':')
        .chain(["/usr/sbin", "/sbin"])
        .any(|directory| Path::new(directory).join(tool).is_file());
    if !found {
        println!("report: skipped: agreement with {tool}, which is not installed");
    }
    found
}

fn run(tool: &str, arguments: &[&str]) -> String {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output: Output = Command::new(tool)
        .args(arguments)
        .env("PATH", path)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{tool} {arguments:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// E-36.
#[test]
fn e36_grub_editenv_reads_ours_and_we_read_its() {
    if !installed("grub-editenv") {
        return;
    }
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("grubenv");
    let file = path.to_str().unwrap();
    run("grub-editenv", &[file, "create"]);
    run(
        "grub-editenv",
        &[
            file,
            "set",
            "saved_entry=debian",
            "ORDER=A B",
            "A_OK=1",
            "A_TRY=0",
            "B_OK=1",
            "B_TRY=0",
        ],
    );
    let mut store = Stored::new(Grubenv, Directory::open(directory.path()).unwrap());
    let state = store.read().unwrap().state;
    assert_eq!(
        state.slots,
        BySlot {
            a: SlotBoot::Good,
            b: SlotBoot::Good
        }
    );
    assert_eq!(state.preferred, Slot::A);
    store.change(BootChange::MakeUnbootable(Slot::B)).unwrap();
    let list = run("grub-editenv", &[file, "list"]);
    assert!(list.contains("ORDER=A\n") && list.contains("B_OK=0\n"), "{list}");
    assert!(list.contains("saved_entry=debian\n"), "{list}");
    store
        .change(BootChange::Arm {
            slot: Slot::B,
            tries: 3,
        })
        .unwrap();
    let list = run("grub-editenv", &[file, "list"]);
    assert!(
        list.contains("ORDER=B A\n") && list.contains("B_OK=1\n"),
        "{list}"
    );
    // What GRUB's script does for one boot, with GRUB's own code for the block.
    run("grub-editenv", &[file, "set", "B_TRY=1", "SLIPWAY_LEFT=2"]);
    let reading = store.read().unwrap();
    assert_eq!(reading.problems, Vec::<String>::new());
    assert_eq!(reading.state.slots.b, SlotBoot::Trial { left: 2, of: 3 });
    store
        .change(BootChange::Confirm {
            slot: Slot::B,
            epoch: 9,
        })
        .unwrap();
    let list = run("grub-editenv", &[file, "list"]);
    assert!(
        list.contains("B_TRY=0\n") && list.contains("saved_entry=debian\n"),
        "{list}"
    );
}

#[test]
fn fw_printenv_reads_ours_and_we_read_fw_setenvs() {
    if !installed("fw_printenv") || !installed("fw_setenv") {
        return;
    }
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("env.img");
    fs::write(&path, vec![0; 65536]).unwrap();
    let config = directory.path().join("fw_env.config");
    let device = path.to_str().unwrap();
    fs::write(&config, format!("{device} 0x0 0x2000\n{device} 0x4000 0x2000\n")).unwrap();
    let config = config.to_str().unwrap();
    let codec = UbootEnv {
        offsets: [0, 0x4000],
        size: 0x2000,
    };
    let mut store = Stored::new(codec, Device::open(&path).unwrap());
    store.install(&BootState::installed(Slot::A)).unwrap();
    assert_eq!(
        run("fw_printenv", &["-c", config, "-n", "BOOT_ORDER"]).trim(),
        "A"
    );
    run("fw_setenv", &["-c", config, "bootcmd", "run distro_bootcmd"]);
    store
        .change(BootChange::Arm {
            slot: Slot::B,
            tries: 3,
        })
        .unwrap();
    assert_eq!(
        run("fw_printenv", &["-c", config, "-n", "BOOT_ORDER"]).trim(),
        "B A"
    );
    assert_eq!(
        run("fw_printenv", &["-c", config, "-n", "bootcmd"]).trim(),
        "run distro_bootcmd"
    );
    // One boot of U-Boot's script. Often enough for the flags to go around.
    for count in 0..300 {
        run(
            "fw_setenv",
            &[
                "-c",
                config,
                "BOOT_B_LEFT",
                if count % 2 == 0 { "2" } else { "3" },
            ],
        );
        let left = if count % 2 == 0 { 2 } else { 3 };
        assert_eq!(
            store.read().unwrap().state.slots.b,
            SlotBoot::Trial { left, of: 3 },
            "{count}"
        );
        if !crate::power::full() && count == 20 {
            break;
        }
    }
    store
        .change(BootChange::Confirm {
            slot: Slot::B,
            epoch: 4,
        })
        .unwrap();
    assert_eq!(
        run("fw_printenv", &["-c", config, "-n", "slipway_epoch"]).trim(),
        "4"
    );
}

#[test]
fn cgpt_reads_ours_and_we_read_its() {
    if !installed("cgpt") {
        return;
    }
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("disk.img");
    let size: u64 = 16 << 20;
    fs::File::create(&path).unwrap().set_len(size).unwrap();
    let disk = path.to_str().unwrap();
    run("cgpt", &["create", disk]);
    for number in ["1", "2", "3"] {
        let start = (2048 * number.parse::<u64>().unwrap()).to_string();
        run(
            "cgpt",
            &[
                "add", "-i", number, "-t", "rootfs", "-b", &start, "-s", "2048", "-l", "slot", disk,
            ],
        );
    }
    let codec = GptAttributes {
        disk_size: size,
        partitions: BySlot { a: 2, b: 3 },
        tries: 3,
    };
    let mut store = Stored::new(codec, Device::open(&path).unwrap());
    store.install(&BootState::installed(Slot::A)).unwrap();
    store
        .change(BootChange::Arm {
            slot: Slot::B,
            tries: 3,
        })
        .unwrap();
    let show = |number: &str, field: &str| {
        run("cgpt", &["show", "-i", number, field, disk])
            .trim()
            .to_owned()
    };
    assert_eq!(
        (show("3", "-P"), show("3", "-T"), show("3", "-S")),
        ("2".into(), "3".into(), "0".into())
    );
    assert_eq!(
        (show("2", "-P"), show("2", "-T"), show("2", "-S")),
        ("1".into(), "0".into(), "1".into())
    );
    // The firmware takes a try.
    run("cgpt", &["add", "-i", "3", "-T", "2", disk]);
    let reading = store.read().unwrap();
    assert_eq!(reading.state.slots.b, SlotBoot::Trial { left: 2, of: 3 });
    assert_eq!(reading.problems, Vec::<String>::new());
    store
        .change(BootChange::Confirm {
            slot: Slot::B,
            epoch: 0,
        })
        .unwrap();
    assert_eq!((show("3", "-T"), show("3", "-S")), ("0".into(), "1".into()));
    let listing = run("cgpt", &["show", disk]);
    assert!(!listing.contains("INVALID"), "{listing}");
}

/// Unmounted when the test ends, however it does.
struct Mounted(TempDir);

impl Drop for Mounted {
    fn drop(&mut self) {
        // What stays mounted goes with the machine.
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

/// bootctl reads the entries as systemd-boot would: order, counters, title.
#[test]
fn bootctl_reads_our_entries() {
    if !installed("bootctl") {
        return;
    }
    let esp = TempDir::new().unwrap();
    // bootctl wants the root of a filesystem.
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "tmpfs"])
        .arg(esp.path())
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        println!("report: skipped: agreement with bootctl: this machine does not let a test mount a tmpfs");
        return;
    }
    let esp = Mounted(esp);
    let entries = esp.0.path().join("loader/entries");
    fs::create_dir_all(&entries).unwrap();
    for slot in ["a", "b"] {
        fs::create_dir_all(esp.0.path().join(slot)).unwrap();
        fs::write(esp.0.path().join(slot).join("vmlinuz"), "kernel").unwrap();
    }
    let codec = SystemdBoot {
        entries: BySlot {
            a: "title Slot A\nlinux /a/vmlinuz\noptions root=PARTLABEL=root-a".into(),
            b: "title Slot B\nlinux /b/vmlinuz\noptions root=PARTLABEL=root-b".into(),
        },
    };
    let mut store = Stored::new(codec, Directory::open(&entries).unwrap());
    store.install(&BootState::installed(Slot::A)).unwrap();
    store
        .change(BootChange::Arm {
            slot: Slot::B,
            tries: 3,
        })
        .unwrap();
    let path = format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default());
    let list = || {
        let output = Command::new("bootctl")
            .args(["--esp-path", esp.0.path().to_str().unwrap(), "--no-pager", "list"])
            .env("SYSTEMD_RELAX_ESP_CHECKS", "1")
            .env("PATH", &path)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        text
    };
    let text = list();
    let (a, b) = (text.find("Slot A"), text.find("Slot B"));
    assert!(b.is_some() && b < a, "slot B comes first: {text}");
    assert!(
        text.contains("slipway-b+3.conf") && text.contains("3 left"),
        "{text}"
    );
    // What systemd-boot does when it boots the entry.
    fs::rename(
        entries.join("slipway-b+3.conf"),
        entries.join("slipway-b+2-1.conf"),
    )
    .unwrap();
    let reading = store.read().unwrap();
    assert_eq!(reading.state.slots.b, SlotBoot::Trial { left: 2, of: 3 });
    assert_eq!(reading.problems, Vec::<String>::new());
    store
        .change(BootChange::Confirm {
            slot: Slot::B,
            epoch: 1,
        })
        .unwrap();
    let text = list();
    assert!(
        text.contains("slipway-b.conf") && !text.contains("slipway-b+"),
        "{text}"
    );
}

/// A manifest that minisign signed is accepted, and minisign accepts one that we signed.
#[test]
fn e25_minisign_signs_what_we_verify() {
    if !installed("minisign") {
        return;
    }
    let directory = TempDir::new().unwrap();
    let file = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (public, secret) = (file("key.pub"), file("key.sec"));
    run("minisign", &["-G", "-W", "-p", &public, "-s", &secret]);
    let image = TestImage::build("1.0", 1, blocks(4, 1, &[]));
    let manifest = image.manifest.encode();
    fs::write(file("manifest.json"), &manifest).unwrap();
    run(
        "minisign",
        &["-S", "-W", "-s", &secret, "-m", &file("manifest.json")],
    );
    let key = fs::read_to_string(&public).unwrap();
    let ring = KeyRing::new(KeyRingFile {
        version: 1,
        threshold: 1,
        keys: vec![key.lines().nth(1).unwrap().to_owned()],
    })
    .unwrap();
    let signed = SignedManifest {
        manifest: String::from_utf8(manifest.clone()).unwrap(),
        signatures: vec![fs::read_to_string(file("manifest.json.minisig")).unwrap()],
    };
    assert_eq!(ring.verify(&signed).unwrap(), image.manifest);
    let ours = crate::support::images::signer();
    fs::write(file("manifest.json.minisig"), ours.signature(&manifest)).unwrap();
    run(
        "minisign",
        &["-V", "-P", &ours.public(), "-m", &file("manifest.json")],
    );
}
