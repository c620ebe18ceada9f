//! Puts disks together from files, without a mount: a boot loader in front, two slots, data; and a stick with an image.

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    parts::Parts,
    system::{Behaviour, Flavour, System, config},
};

pub const MIB: u64 = 1 << 20;

/// Where a partition begins and how long it is, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub start: u64,
    pub length: u64,
}

const fn mib(start: u64, length: u64) -> Extent {
    Extent {
        start: start * MIB,
        length: length * MIB,
    }
}

pub const BOOT: Extent = mib(1, 16);
pub const SLOT_A: Extent = mib(17, 81);
pub const SLOT_B: Extent = mib(98, 81);
pub const DATA: Extent = mib(179, 24);
const DISK: u64 = 203 * MIB;
/// The image of a slot leaves the end of it to the label.
pub const SLOT_IMAGE: u64 = 80 * MIB;

/// So much of the slot that does not run is nothing of any image.
const OTHER: u64 = 4 * MIB;

pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect(program);
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

pub fn filesystem(kind: &str, tree: &Path, image: &Path, size: u64) {
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

/// Makes images and disks in one folder.
pub struct Workshop {
    pub folder: PathBuf,
    pub parts: Parts,
    agent: PathBuf,
    key: String,
}

impl Workshop {
    pub fn new(folder: &Path, parts: Parts) -> Self {
        let agent = folder.join("slipway-agent");
        run(
            "strip",
            &["-o", text(&agent), env!("CARGO_BIN_EXE_slipway-agent")],
        );
        let pair = minisign::KeyPair::generate_unencrypted_keypair().expect("a key");
        let secret = pair.sk.to_box(None).expect("a box").into_string();
        fs::write(folder.join("key.sec"), secret).expect("written");
        Self {
            folder: folder.to_owned(),
            parts,
            agent,
            key: pair.pk.to_base64(),
        }
    }

    /// A slot's filesystem with a system of this version.
    pub fn slot(&self, flavour: Flavour, version: &str, behaviour: Behaviour) -> PathBuf {
        let tree = self.folder.join(format!("tree-{version}"));
        let image = self.folder.join(format!("slot-{version}.raw"));
        let system = System {
            parts: &self.parts,
            flavour,
            agent: &self.agent,
            key: &self.key,
        };
        system.image(version, behaviour, &tree, &image, SLOT_IMAGE);
        image
    }

    /// The signed image of a slot, on a stick.
    pub fn stick(&self, version: &str, slot: &Path) -> PathBuf {
        let bundle = self.folder.join(format!("bundle-{version}"));
        let stick = self.folder.join(format!("stick-{version}.raw"));
        let partition = format!("root={}", slot.display());
        let secret = self.folder.join("key.sec");
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
                text(&secret),
                "--out",
                text(&bundle),
            ],
        );
        filesystem("ext2", &bundle, &stick, 88 * MIB);
        stick
    }

    /// The boot store, written as it is on a host: by the agent. `place` is what the host calls the folder.
    pub fn install(&self, flavour: &Flavour, place: &str, folder: &Path) {
        let host = self.folder.join("host.yaml");
        fs::write(&host, config(flavour).replace(place, text(folder))).expect("written");
        run(
            env!("CARGO_BIN_EXE_slipway-agent"),
            &["--config", text(&host), "install", "--slot", "A"],
        );
    }

    /// Partitions, the boot loader's, the first slot and data. `kind` is the type of the first partition.
    pub fn disk(&self, kind: u8, boot: &Path, slot_a: &Path, data: &Path) -> (PathBuf, fs::File) {
        let disk = self.folder.join("disk.raw");
        let file = fs::File::create(&disk).expect("a disk");
        file.set_len(DISK).expect("a size");
        let mut table = [0_u8; 72];
        for (entry, part) in table[6..70].chunks_mut(16).zip([BOOT, SLOT_A, SLOT_B, DATA]) {
            entry[4] = 0x83;
            entry[8..12].copy_from_slice(&((part.start / 512) as u32).to_le_bytes());
            entry[12..16].copy_from_slice(&((part.length / 512) as u32).to_le_bytes());
        }
        table[6 + 4] = kind;
        table[70..].copy_from_slice(&[0x55, 0xAA]);
        file.write_all_at(&table, 440).expect("written");
        place(&file, boot, BOOT);
        place(&file, slot_a, SLOT_A);
        // The other slot has what such a host has there: the same system, of which part was lost.
        place(&file, slot_a, SLOT_B);
        file.write_all_at(&vec![0xEE; OTHER as usize], SLOT_B.start + SLOT_IMAGE / 2)
            .expect("written");
        let image = self.folder.join("data.raw");
        filesystem("ext4", data, &image, DATA.length);
        place(&file, &image, DATA);
        (disk, file)
    }
}

fn place(disk: &fs::File, image: &Path, part: Extent) {
    let bytes = fs::read(image).expect("an image");
    assert!(
        bytes.len() as u64 <= part.length,
        "{} does not fit",
        image.display()
    );
    disk.write_all_at(&bytes, part.start).expect("written");
}
