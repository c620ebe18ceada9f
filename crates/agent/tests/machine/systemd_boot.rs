//! A machine with UEFI firmware and systemd-boot, which counts tries in the names of its entries.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{
    Loader, asked_for, board,
    disk::{BOOT, Workshop, run, text},
    system::{Behaviour, Flavour},
};

/// systemd-boot starts kernels from the EFI system partition only, so both slots share one; the system is the slot's.
const SYSTEMD_BOOT: Loader = Loader {
    name: "systemd-boot",
    flavour: Flavour {
        boot_store: "  systemdBoot:
    directory: /boot/loader/entries
    a: |
      linux /vmlinuz
      initrd /initrd
      options slipway.slot=A KERNEL_OPTIONS
    b: |
      linux /vmlinuz
      initrd /initrd
      options slipway.slot=B KERNEL_OPTIONS",
        mount_boot: "$busybox mount -t vfat -o sync /dev/vda1 /root/boot || echo \"SAY no boot\"",
        modules: &["nls_cp437", "nls_ascii", "vfat"],
    },
    programs: &["mformat", "mcopy"],
    files: &[FIRMWARE, VARIABLES, LOADER],
    disk,
    firmware,
};

const FIRMWARE: &str = "/usr/share/OVMF/OVMF_CODE.fd";
const VARIABLES: &str = "/usr/share/OVMF/OVMF_VARS.fd";
const LOADER: &str = "/usr/lib/systemd/boot/efi/systemd-bootx64.efi";

fn disk(workshop: &Workshop, slot_a: &Path, data: &Path) -> PathBuf {
    let tree = workshop.folder.join("esp");
    for folder in ["EFI/BOOT", "loader/entries"] {
        fs::create_dir_all(tree.join(folder)).expect("a folder");
    }
    fs::copy(LOADER, tree.join("EFI/BOOT/BOOTX64.EFI")).expect("systemd-boot");
    fs::write(tree.join("loader/loader.conf"), "timeout 0\n").expect("written");
    for file in ["vmlinuz", "initrd"] {
        fs::copy(workshop.folder.join("tree-1").join(file), tree.join(file)).expect("the kernel");
    }
    let entries = tree.join("loader/entries");
    workshop.install(&SYSTEMD_BOOT.flavour, "/boot/loader/entries", &entries);
    // There is no FAT to mount here, so the partition is filled by mtools.
    let image = workshop.folder.join("esp.raw");
    fs::File::create(&image)
        .and_then(|file| file.set_len(BOOT.length))
        .expect("an image");
    run("mformat", &["-i", text(&image), "-v", "ESP", "::"]);
    for folder in ["EFI", "loader", "vmlinuz", "initrd"] {
        run(
            "mcopy",
            &["-s", "-i", text(&image), text(&tree.join(folder)), "::"],
        );
    }
    workshop.disk(0xEF, &image, slot_a, data).0
}

fn firmware(workshop: &Workshop) -> Vec<String> {
    let variables = workshop.folder.join("variables.fd");
    fs::copy(VARIABLES, &variables).expect("the firmware's variables");
    let flash = |unit: u8, options: &str, file: &Path| {
        [
            "-drive".to_owned(),
            format!(
                "if=pflash,format=raw,unit={unit}{options},file={}",
                file.display()
            ),
        ]
    };
    let mut arguments = board("q35");
    arguments.extend(flash(0, ",readonly=on", Path::new(FIRMWARE)));
    arguments.extend(flash(1, "", &variables));
    arguments
}

#[test]
fn systemd_boot_boots_the_new_system_and_it_is_confirmed_and_left_by_hand() {
    if asked_for() {
        SYSTEMD_BOOT.updates_and_is_left_by_hand();
    }
}

#[test]
fn e28_systemd_boot_returns_from_a_system_that_panics() {
    if asked_for() {
        SYSTEMD_BOOT.returns(Behaviour::Panics);
    }
}
