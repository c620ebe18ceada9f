//! Puts a disk together: GRUB in front, a boot partition, two slots, data. Everything is made from files, without a mount.

use std::{
    fs,
    io::Write,
    os::unix::fs::{FileExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
};

use super::parts::{MODULES, Parts};

const MIB: u64 = 1 << 20;
/// Where the partitions begin and how long they are, in MiB.
const BOOT: (u64, u64) = (1, 8);
const SLOT_A: (u64, u64) = (9, 48);
const SLOT_B: (u64, u64) = (57, 48);
pub const DATA: (u64, u64) = (105, 160);
const DISK: u64 = 265;
/// The image of a slot leaves room for its label.
const SLOT_IMAGE: u64 = 46 * MIB;

pub fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().expect(program);
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// How a system behaves once its kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    Good,
    /// The kernel panics, and restarts the machine by itself.
    Panics,
    /// Nothing happens any more; only the watchdog helps.
    Hangs,
    /// It runs and its health check fails.
    Unhealthy,
}

const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for module in $(cat /modules/order); do insmod /modules/$module.ko; done
slot=$(sed 's/.*slipway.slot=\(.\).*/\1/' /proc/cmdline)
echo "SAY boot $(cat /etc/version) $slot"
case $(cat /etc/behaviour) in
  Panics) echo c > /proc/sysrq-trigger ;;
  Hangs) exec 3> /dev/watchdog; while true; do sleep 1000; done ;;
esac
mount -t ext4 /dev/vda4 /data || echo "SAY no data"
mount -t ext4 -o rw,sync /dev/vda1 /boot || echo "SAY no boot"
if slipway-agent run --once; then . /data/boot.sh; else echo "SAY agent failed"; fi
sync; poweroff -f
"#;

const CONFIG: &str = r"compatible: test-machine
stateDirectory: /data/agent
keyRing: /etc/slipway-agent/keys.json
bootStore:
  grubenv:
    directory: /boot/grub
slots:
  A: [{name: root, device: /dev/vda2}]
  B: [{name: root, device: /dev/vda3}]
rebootCommand: [/bin/reboot, -f]
tries: 1
health:
  commands: [[/bin/grep, -q, Good, /etc/behaviour]]
  soakSeconds: 0
  deadlineSeconds: 2
  intervalSeconds: 1
";

/// Makes images and disks in one folder.
pub struct Workshop {
    pub folder: PathBuf,
    parts: Parts,
    agent: PathBuf,
    libraries: Vec<PathBuf>,
}

impl Workshop {
    pub fn new(folder: &Path, parts: Parts) -> Self {
        let built = Path::new(env!("CARGO_BIN_EXE_slipway-agent"));
        let agent = folder.join("slipway-agent");
        run("strip", &["-o", text(&agent), text(built)]);
        let workshop = Self {
            folder: folder.to_owned(),
            parts,
            libraries: libraries(built),
            agent,
        };
        let (public, secret) = (folder.join("key.pub"), folder.join("key.sec"));
        let pair = minisign::KeyPair::generate_unencrypted_keypair().expect("a key");
        fs::write(&secret, pair.sk.to_box(None).expect("a box").into_string()).expect("written");
        fs::write(&public, pair.pk.to_base64()).expect("written");
        workshop
    }

    /// The slot's filesystem with a kernel and a system of this version, as a raw image.
    pub fn slot(&self, version: &str, behaviour: Behaviour) -> PathBuf {
        let tree = self.folder.join(format!("tree-{version}"));
        fs::create_dir_all(&tree).expect("a folder");
        fs::copy(&self.parts.kernel, tree.join("vmlinuz")).expect("the kernel");
        let initrd = zstd::bulk::compress(&self.initrd(version, behaviour), 3).expect("compressed");
        fs::write(tree.join("initrd"), initrd).expect("written");
        let image = self.folder.join(format!("slot-{version}.raw"));
        filesystem("ext2", &tree, &image, SLOT_IMAGE);
        image
    }

    /// A signed image of a slot in a folder of its own.
    pub fn image(&self, version: &str, slot: &Path, into: &Path) {
        let partition = format!("root={}", slot.display());
        run(
            env!("CARGO_BIN_EXE_slipway-agent"),
            &[
                "image",
                "build",
                "--name",
                "test",
                "--image-version",
                version,
                "--compatible",
                "test-machine",
                "--partition",
                &partition,
                "--sign-with",
                text(&self.folder.join("key.sec")),
                "--out",
                text(into),
            ],
        );
    }

    /// A disk with this slot installed as A, these files in its data partition, and this script run at each boot.
    pub fn disk(&self, slot_a: &Path, data: &Path) -> PathBuf {
        let boot = self.folder.join("boot");
        fs::create_dir_all(boot.join("grub")).expect("a folder");
        // A busy host makes the emulated timer look broken to a kernel that checks it.
        let config = include_str!("../../package/grub.cfg")
            .replace("quiet panic=5", "quiet panic=1 console=ttyS0 no_timer_check");
        let config = format!("serial --unit=0\nterminal_output serial\n{config}");
        fs::write(boot.join("grub/grub.cfg"), config).expect("written");
        // Installed as it is on a host: by the agent.
        let host = self.folder.join("host.yaml");
        fs::write(&host, CONFIG.replace("/boot/grub", text(&boot.join("grub")))).expect("written");
        run(
            env!("CARGO_BIN_EXE_slipway-agent"),
            &["--config", text(&host), "install", "--slot", "A"],
        );
        let disk = self.folder.join("disk.raw");
        let file = fs::File::create(&disk).expect("a disk");
        file.set_len(DISK * MIB).expect("a size");
        let place = |image: &Path, (start, _): (u64, u64)| {
            let bytes = fs::read(image).expect("an image");
            file.write_all_at(&bytes, start * MIB).expect("written");
        };
        for (tree, kind, name, part) in [
            (boot.as_path(), "ext2", "boot.raw", BOOT),
            (data, "ext4", "data.raw", DATA),
        ] {
            let image = self.folder.join(name);
            filesystem(kind, tree, &image, part.1 * MIB);
            place(&image, part);
        }
        place(slot_a, SLOT_A);
        let core = self.folder.join("core.img");
        run(
            "grub-mkimage",
            &[
                "-O",
                "i386-pc",
                "-o",
                text(&core),
                "-p",
                "(hd0,msdos1)/grub",
                "biosdisk",
                "part_msdos",
                "ext2",
                "normal",
                "linux",
                "loadenv",
                "test",
                "configfile",
                "echo",
                "serial",
                "terminal",
                "reboot",
                "sleep",
            ],
        );
        // GRUB's first sector loads the rest from the sectors behind it, before the first partition.
        let mut first = fs::read("/usr/lib/grub/i386-pc/boot.img").expect("GRUB");
        for (number, (start, length)) in [BOOT, SLOT_A, SLOT_B, DATA].into_iter().enumerate() {
            let entry = &mut first[446 + 16 * number..462 + 16 * number];
            entry.fill(0);
            entry[4] = 0x83;
            entry[8..12].copy_from_slice(&((start * 2048) as u32).to_le_bytes());
            entry[12..16].copy_from_slice(&((length * 2048) as u32).to_le_bytes());
        }
        first[510..512].copy_from_slice(&[0x55, 0xAA]);
        file.write_all_at(&first, 0).expect("written");
        file.write_all_at(&fs::read(core).expect("GRUB"), 512)
            .expect("written");
        disk
    }

    fn initrd(&self, version: &str, behaviour: Behaviour) -> Vec<u8> {
        let mut archive = Archive::default();
        for folder in [
            "bin",
            "dev",
            "proc",
            "sys",
            "data",
            "boot",
            "modules",
            "etc",
            "etc/slipway-agent",
        ] {
            archive.add(folder, 0o040_755, &[]);
        }
        let read = |path: &Path| fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        archive.add("init", 0o100_755, INIT.as_bytes());
        archive.add("bin/busybox", 0o100_755, &read(Path::new("/bin/busybox")));
        archive.add("bin/slipway-agent", 0o100_755, &read(&self.agent));
        let mut folders = vec![PathBuf::new()];
        for library in &self.libraries {
            let inside = library.strip_prefix("/").expect("absolute");
            let above: Vec<&Path> = inside.ancestors().skip(1).collect();
            for folder in above.into_iter().rev() {
                if !folders.iter().any(|known| known == folder) {
                    archive.add(text(folder), 0o040_755, &[]);
                    folders.push(folder.to_owned());
                }
            }
            archive.add(text(inside), 0o100_755, &read(library));
        }
        let mut order = String::new();
        for module in MODULES {
            let name = module.rsplit('/').next().expect("a name");
            let path = self.parts.modules.join(module).with_extension("ko");
            archive.add(&format!("modules/{name}.ko"), 0o100_644, &read(&path));
            order.push_str(name);
            order.push('\n');
        }
        archive.add("modules/order", 0o100_644, order.as_bytes());
        archive.add("etc/version", 0o100_644, version.as_bytes());
        archive.add("etc/behaviour", 0o100_644, format!("{behaviour:?}\n").as_bytes());
        archive.add("etc/slipway-agent/config.yaml", 0o100_644, CONFIG.as_bytes());
        let key = fs::read_to_string(self.folder.join("key.pub")).expect("the key");
        let ring = serde_json::json!({"version": 1, "threshold": 1, "keys": [key]});
        archive.add(
            "etc/slipway-agent/keys.json",
            0o100_644,
            ring.to_string().as_bytes(),
        );
        archive.finish()
    }
}

fn filesystem(kind: &str, tree: &Path, image: &Path, size: u64) {
    let file = fs::File::create(image).expect("a file");
    file.set_len(size).expect("a size");
    run(
        "mke2fs",
        &[
            "-q",
            "-t",
            kind,
            "-b",
            "4096",
            "-F",
            "-d",
            text(tree),
            text(image),
        ],
    );
}

/// The shared libraries of a program, and its loader.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let output = Command::new("ldd").arg(program).output().expect("ldd runs");
    String::from_utf8_lossy(&output.stdout)
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
        .map(PathBuf::from)
        .collect()
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

pub fn script(folder: &Path, lines: &str) {
    let path = folder.join("boot.sh");
    fs::write(&path, lines).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("set");
}
