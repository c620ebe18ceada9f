//! The system of a slot: Debian's kernel, an initramfs that finds the slot, and systemd with the agent as its service.

use std::{fs, io::Write, os::unix::fs::symlink, path::Path};

use super::{
    disk::{filesystem, run},
    parts::Parts,
};

/// How a system behaves once its kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    Good,
    /// Its first process ends, and with it the kernel, which restarts the machine by itself.
    Panics,
    /// systemd stops for good; only the watchdog helps.
    Hangs,
    /// It runs and its health check fails.
    Unhealthy,
}

/// What differs between machines with one boot loader and another.
#[derive(Clone, Copy, Debug)]
pub struct Flavour {
    /// `bootStore` of the agent's configuration.
    pub boot_store: &'static str,
    /// How the partition of the boot loader is checked and mounted; empty where the agent writes to the device.
    pub mount_boot: &'static str,
    pub modules: &'static [&'static str],
}

/// What every machine loads: its disk, its filesystem and its watchdog.
const MODULES: [&str; 5] = ["crc32c_generic", "ext4", "virtio_pci", "virtio_blk", "i6300esb"];

/// Disk partitions are the same for all boot loaders: 1 boot, 2 and 3 the slots, 4 data. The second disk is a stick.
const INIT: &str = r#"#!/bin/busybox sh
busybox=/bin/busybox
$busybox mount -t proc proc /proc; $busybox mount -t sysfs sys /sys; $busybox mount -t devtmpfs dev /dev
$busybox dmesg -n 7
for module in $($busybox cat /modules/order); do $busybox insmod /modules/$module || echo "SAY no module $module"; done
slot=$($busybox sed 's/.*slipway.slot=\(.\).*/\1/' /proc/cmdline)
case $slot in A) root=/dev/vda2 ;; B) root=/dev/vda3 ;; esac
$busybox mount -t ext4 -o ro $root /root || echo "SAY no root"
/bin/e2fsck -p /dev/vda4 || echo "SAY checked the data partition: $?"
$busybox mount -t ext4 /dev/vda4 /root/var || echo "SAY no data"
MOUNT_BOOT
$busybox mount -t ext4 -o ro /dev/vdb /root/media || echo "SAY no stick"
$busybox mount -t tmpfs tmp /root/tmp
echo "SAY boot $($busybox cat /root/etc/version) $slot"
[ $($busybox cat /root/etc/behaviour) = Panics ] && exit 1
$busybox mount --move /dev /root/dev; $busybox umount /sys; $busybox umount /proc
exec $busybox switch_root /root /lib/systemd/systemd
"#;

const SYSTEM_CONF: &str = "[Manager]
LogTarget=kmsg
LogLevel=notice
ShowStatus=no
DefaultStandardOutput=tty
DefaultTimeoutStopSec=10
RuntimeWatchdogSec=30
RebootWatchdogSec=60
";

/// Runs what the test laid on the data partition, once the agent is up.
const STORY: &str = "[Unit]
After=slipway-agent.service
[Service]
Type=exec
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
ExecStart=/bin/sh /var/story.sh
";

/// The process that keeps the watchdog quiet crashes; systemd then freezes instead of ending.
const HANG: &str = "[Unit]
Before=slipway-agent.service
[Service]
Type=oneshot
ExecStart=/bin/kill -SEGV 1
";

const CONFIG: &str = r"compatible: test-machine
keyRing: /etc/slipway-agent/keys.json
bootStore:
BOOT_STORE
slots:
  A: [{name: root, device: /dev/vda2}]
  B: [{name: root, device: /dev/vda3}]
tries: 1
health:
  commands: [[/bin/grep, -q, Good, /etc/behaviour]]
  soakSeconds: 0
  deadlineSeconds: 3
  intervalSeconds: 1
";

pub fn config(flavour: &Flavour) -> String {
    CONFIG
        .replace("BOOT_STORE", flavour.boot_store)
        .replace("KERNEL_OPTIONS", super::KERNEL_OPTIONS)
}

/// Builds systems that have this agent and trust this key.
pub struct System<'a> {
    pub parts: &'a Parts,
    pub flavour: Flavour,
    pub agent: &'a Path,
    pub key: &'a str,
}

const UNITS: [&str; 12] = [
    "basic.target",
    "sysinit.target",
    "local-fs.target",
    "multi-user.target",
    "shutdown.target",
    "umount.target",
    "final.target",
    "reboot.target",
    "poweroff.target",
    "systemd-reboot.service",
    "systemd-poweroff.service",
    "slices.target",
];

const APPLETS: [&str; 11] = [
    "sh", "true", "cat", "echo", "sleep", "grep", "sync", "touch", "kill", "sed", "date",
];

impl System<'_> {
    /// The filesystem of a slot, as a raw image of this size.
    pub fn image(&self, version: &str, behaviour: Behaviour, tree: &Path, image: &Path, size: u64) {
        for folder in [
            "usr/bin",
            "usr/lib64",
            "usr/lib/x86_64-linux-gnu",
            "usr/lib/systemd/system",
            "etc/systemd/system/multi-user.target.wants",
            "etc/slipway-agent",
            "dev",
            "proc",
            "sys",
            "run",
            "tmp",
            "var",
            "boot",
            "media",
            "root",
        ] {
            fs::create_dir_all(tree.join(folder)).expect("a folder");
        }
        for (link, to) in [
            ("bin", "usr/bin"),
            ("sbin", "usr/bin"),
            ("lib", "usr/lib"),
            ("lib64", "usr/lib64"),
            ("usr/sbin", "bin"),
        ] {
            symlink(to, tree.join(link)).expect("a link");
        }
        self.programs(tree);
        let write = |path: &str, text: &str| fs::write(tree.join(path), text).expect("written");
        write("etc/version", version);
        write("etc/behaviour", &format!("{behaviour:?}\n"));
        write("etc/machine-id", "0123456789abcdef0123456789abcdef\n");
        write("etc/passwd", "root:x:0:0::/root:/bin/sh\n");
        write("etc/group", "root:x:0:\n");
        write("etc/systemd/system.conf", SYSTEM_CONF);
        write("etc/slipway-agent/config.yaml", &config(&self.flavour));
        let ring = serde_json::json!({"version": 1, "threshold": 1, "keys": [self.key]});
        write("etc/slipway-agent/keys.json", &ring.to_string());
        // The unit is the package's, with all that it forbids the agent.
        let mut services = vec![
            (
                "slipway-agent",
                include_str!("../../package/slipway-agent.service"),
            ),
            ("story", STORY),
        ];
        if behaviour == Behaviour::Hangs {
            services.push(("hang", HANG));
        }
        for (name, unit) in services {
            write(&format!("etc/systemd/system/{name}.service"), unit);
            let wants = format!("etc/systemd/system/multi-user.target.wants/{name}.service");
            symlink(format!("../{name}.service"), tree.join(wants)).expect("a link");
        }
        symlink(
            "/usr/lib/systemd/system/multi-user.target",
            tree.join("etc/systemd/system/default.target"),
        )
        .expect("a link");
        fs::copy(&self.parts.kernel, tree.join("vmlinuz")).expect("the kernel");
        let initrd = zstd::bulk::compress(&self.initrd(), 3).expect("compressed");
        fs::write(tree.join("initrd"), initrd).expect("written");
        filesystem("ext2", tree, image, size);
    }

    fn programs(&self, tree: &Path) {
        let mut programs = Vec::new();
        for (from, to) in [
            ("lib/systemd/systemd", "usr/lib/systemd"),
            ("lib/systemd/systemd-shutdown", "usr/lib/systemd"),
            ("bin/systemctl", "usr/bin"),
            ("bin/umount", "usr/bin"),
            ("bin/flock", "usr/bin"),
            ("bin/busybox", "usr/bin"),
        ] {
            let from = self.parts.file(from);
            let to = tree.join(to).join(from.file_name().expect("a name"));
            fs::copy(&from, &to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
            programs.push(to);
        }
        let agent = tree.join("usr/bin/slipway-agent");
        fs::copy(self.agent, &agent).expect("the agent");
        programs.push(agent);
        for library in self.parts.libraries(&programs) {
            let name = library.file_name().expect("a name").to_owned();
            let folder = if name.to_string_lossy().starts_with("ld-linux") {
                "usr/lib64"
            } else {
                "usr/lib/x86_64-linux-gnu"
            };
            fs::copy(&library, tree.join(folder).join(name)).expect("a library");
        }
        for applet in APPLETS {
            symlink("busybox", tree.join("usr/bin").join(applet)).expect("a link");
        }
        for unit in UNITS {
            let from = self.parts.file(&format!("lib/systemd/system/{unit}"));
            fs::copy(from, tree.join("usr/lib/systemd/system").join(unit)).expect("a unit");
        }
    }

    fn initrd(&self) -> Vec<u8> {
        let mut archive = Archive::default();
        for folder in ["bin", "dev", "proc", "sys", "root", "modules"] {
            archive.add(folder, 0o040_755, &[]);
        }
        let read = |path: &Path| fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        archive.add("bin/busybox", 0o100_755, &read(&self.parts.file("bin/busybox")));
        archive.add(
            "bin/e2fsck",
            0o100_755,
            &read(&self.parts.file("sbin/e2fsck.static")),
        );
        let init = INIT.replace("MOUNT_BOOT", self.flavour.mount_boot);
        archive.add("init", 0o100_755, init.as_bytes());
        let mut names: Vec<&str> = MODULES.to_vec();
        names.extend(self.flavour.modules);
        let mut order = String::new();
        let stripped = tempfile::NamedTempFile::new().expect("a file");
        for module in self.parts.modules(&names) {
            let name = module.file_name().expect("a name").to_string_lossy().into_owned();
            run(
                "strip",
                &[
                    "-g",
                    "-o",
                    &stripped.path().to_string_lossy(),
                    &module.to_string_lossy(),
                ],
            );
            archive.add(&format!("modules/{name}"), 0o100_644, &read(stripped.path()));
            order.push_str(&name);
            order.push('\n');
        }
        archive.add("modules/order", 0o100_644, order.as_bytes());
        archive.finish()
    }
}

/// A cpio archive as the kernel unpacks it.
#[derive(Default)]
struct Archive(Vec<u8>);

impl Archive {
    fn add(&mut self, name: &str, mode: u32, bytes: &[u8]) {
        let links = 1;
        write!(
            self.0,
            "070701{:08x}{mode:08x}{:08x}{:08x}{links:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}",
            self.0.len(),
            0,
            0,
            0,
            bytes.len(),
            0,
            0,
            0,
            0,
            name.len() + 1,
            0
        )
        .expect("in memory");
        self.0.extend(name.as_bytes());
        self.0.push(0);
        self.pad();
        self.0.extend(bytes);
        self.pad();
    }

    fn pad(&mut self) {
        while !self.0.len().is_multiple_of(4) {
            self.0.push(0);
        }
    }

    fn finish(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, &[]);
        self.0
    }
}
