//! What a machine is made of, and whether it is installed here.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Modules of Debian's kernel that the guest loads, in this order.
pub const MODULES: [&str; 13] = [
    "lib/crc16",
    "crypto/crc32c_generic",
    "fs/mbcache",
    "fs/jbd2/jbd2",
    "fs/ext4/ext4",
    "drivers/virtio/virtio",
    "drivers/virtio/virtio_ring",
    "drivers/virtio/virtio_pci_modern_dev",
    "drivers/virtio/virtio_pci_legacy_dev",
    "drivers/virtio/virtio_pci",
    "drivers/block/virtio_blk",
    "drivers/watchdog/watchdog",
    "drivers/watchdog/i6300esb",
];

pub struct Parts {
    pub kernel: PathBuf,
    pub modules: PathBuf,
}

impl Parts {
    /// `None`, said aloud, where something is not installed.
    pub fn find() -> Option<Self> {
        let mut missing: Vec<String> = ["qemu-system-x86_64", "grub-mkimage", "mke2fs", "strip"]
            .into_iter()
            .filter(|program| Command::new(program).arg("--version").output().is_err())
            .map(str::to_owned)
            .collect();
        for file in ["/usr/lib/grub/i386-pc/boot.img", "/bin/busybox"] {
            if !Path::new(file).exists() {
                missing.push(file.to_owned());
            }
        }
        let kernel = kernel();
        if kernel.is_none() {
            missing.push(
                "a kernel of linux-image-amd64 (SLIPWAY_TEST_KERNEL names where it is unpacked)".to_owned(),
            );
        }
        if missing.is_empty() {
            return kernel;
        }
        eprintln!(
            "SKIPPED: no real machine without {}; crates/agent/tests/machine/install.sh installs them",
            missing.join(", ")
        );
        None
    }
}

fn kernel() -> Option<Parts> {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let roots = [
        std::env::var_os("SLIPWAY_TEST_KERNEL").map(PathBuf::from),
        Some(home.join(".cache/slipway/machine/kernel")),
        Some("/".into()),
    ];
    roots.into_iter().flatten().find_map(|root| {
        let entries = fs::read_dir(root.join("boot")).ok()?;
        entries.flatten().find_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let version = name.strip_prefix("vmlinuz-")?;
            let modules = root.join("lib/modules").join(version).join("kernel");
            let complete = MODULES
                .iter()
                .all(|module| modules.join(module).with_extension("ko").exists());
            complete.then(|| Parts {
                kernel: entry.path(),
                modules,
            })
        })
    })
}
