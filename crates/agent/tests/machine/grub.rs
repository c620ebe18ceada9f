//! A machine with GRUB and the environment block that it counts tries in.

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use super::{
    KERNEL_OPTIONS, Loader, asked_for, board,
    disk::{BOOT, Workshop, filesystem, run, text},
    system::{Behaviour, Flavour},
};

pub const GRUB: Loader = Loader {
    name: "GRUB",
    flavour: Flavour {
        boot_store: "  grubenv:\n    directory: /boot/grub",
        // Without a journal the filesystem has to be checked after a power cut, before anything is written to it.
        mount_boot: "/bin/e2fsck -p /dev/vda1 || echo \"SAY checked the boot partition: $?\"\n\
                     $busybox mount -t ext4 /dev/vda1 /root/boot || echo \"SAY no boot\"",
        modules: &[],
    },
    programs: &["grub-mkimage", "grub-fstest"],
    files: &["/usr/lib/grub/i386-pc/boot.img"],
    disk,
    firmware: |_| board("q35"),
};

fn disk(workshop: &Workshop, slot_a: &Path, data: &Path) -> PathBuf {
    let boot = workshop.folder.join("boot");
    fs::create_dir_all(boot.join("grub")).expect("a folder");
    let config = include_str!("../../package/grub.cfg").replace("quiet panic=5 oops=panic", KERNEL_OPTIONS);
    let config = format!("serial --unit=0\nterminal_output serial\n{config}");
    fs::write(boot.join("grub/grub.cfg"), config).expect("written");
    workshop.install(&GRUB.flavour, "/boot/grub", &boot.join("grub"));
    let image = workshop.folder.join("boot.raw");
    filesystem("ext2", &boot, &image, BOOT.length);
    let (disk, file) = workshop.disk(0x83, &image, slot_a, data);
    let core = workshop.folder.join("core.img");
    let modules =
        "biosdisk part_msdos ext2 normal linux loadenv test configfile echo serial terminal reboot sleep";
    let mut arguments = vec!["-O", "i386-pc", "-o", text(&core), "-p", "(hd0,msdos1)/grub"];
    arguments.extend(modules.split(' '));
    run("grub-mkimage", &arguments);
    // GRUB's first sector loads the rest from the sectors behind it, before the first partition.
    let first = fs::read("/usr/lib/grub/i386-pc/boot.img").expect("GRUB");
    file.write_all_at(&first[..440], 0).expect("written");
    let core = fs::read(core).expect("GRUB");
    assert!(
        core.len() as u64 + 512 <= BOOT.start,
        "GRUB does not fit before the first partition"
    );
    file.write_all_at(&core, 512).expect("written");
    disk
}

/// Three boots: the old system, the new one that hangs, and the old one again. These are in every run.
#[test]
fn e28_grub_returns_from_a_system_that_hangs_when_the_watchdog_resets_it() {
    GRUB.returns(Behaviour::Hangs);
}

#[test]
fn grub_boots_the_new_system_and_it_is_confirmed_and_left_by_hand() {
    if asked_for() {
        GRUB.updates_and_is_left_by_hand();
    }
}

#[test]
fn e28_grub_returns_from_a_system_that_panics() {
    if asked_for() {
        GRUB.returns(Behaviour::Panics);
    }
}

#[test]
fn e29_grub_returns_from_a_system_that_is_not_healthy() {
    if asked_for() {
        GRUB.returns(Behaviour::Unhealthy);
    }
}
