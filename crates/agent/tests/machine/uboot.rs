//! A machine with U-Boot and its redundant environment.
//!
//! Debian builds U-Boot for x86 with the environment compiled in, so the boot script does what the environment's driver
//! does on a board: it takes the newer of two copies whose sum is right, and saves into the other one.

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use super::{
    KERNEL_OPTIONS, Loader, asked_for, board,
    disk::{BOOT, Workshop, filesystem, run, text},
    system::{Behaviour, Flavour},
};

const UBOOT: Loader = Loader {
    name: "U-Boot",
    flavour: Flavour {
        boot_store: "  uboot: {device: /dev/vda, offsets: [524288, 589824], size: 16384}",
        mount_boot: "",
        modules: &[],
    },
    programs: &["mkimage"],
    files: &[FIRMWARE],
    disk,
    firmware: |_| [board("pc"), vec!["-bios".to_owned(), FIRMWARE.to_owned()]].concat(),
};

/// The 32-bit build, which starts 64-bit kernels; the 64-bit one resets when it hands over to them. On the newer board it leaves
/// ACPI unusable, and the machine could not switch itself off.
const FIRMWARE: &str = "/usr/lib/u-boot/qemu-x86/u-boot.rom";

/// Two copies of the environment are read to `2000000` and `2010000`; the next one is made at `2020000`.
const SCRIPT: &str = r#"
virtio read 2000000 400 20
virtio read 2010000 480 20
setenv first
setenv second
# The sum covers what follows it and the flags; crc32 writes it with the highest byte first.
crc32 2000005 3ffb 2030000
if cmp.b 2000000 2030003 1 && cmp.b 2000001 2030002 1 && cmp.b 2000002 2030001 1 && cmp.b 2000003 2030000 1; then
  setenv first good
fi
crc32 2010005 3ffb 2030000
if cmp.b 2010000 2030003 1 && cmp.b 2010001 2030002 1 && cmp.b 2010002 2030001 1 && cmp.b 2010003 2030000 1; then
  setenv second good
fi
setenv active
if test -n "${first}" && test -n "${second}"; then
  if itest.b *2010004 -gt *2000004; then setenv active 1; else setenv active 0; fi
elif test -n "${first}"; then setenv active 0
elif test -n "${second}"; then setenv active 1
fi
if test "${active}" = 0; then env import -b 2000005 3ffb; fi
if test "${active}" = 1; then env import -b 2010005 3ffb; fi
setenv chosen
for slot in ${BOOT_ORDER}; do
  if test -z "${chosen}"; then
    if test "${slot}" = A; then setenv left ${BOOT_A_LEFT}; else setenv left ${BOOT_B_LEFT}; fi
    if test "${left}" != 0; then setenv chosen ${slot}; fi
  fi
done
if test -n "${chosen}" && test "${slipway_trial}" = "${chosen}"; then
COUNT
  if test "${chosen}" = A; then setenv BOOT_A_LEFT ${left}; else setenv BOOT_B_LEFT ${left}; fi
  env export -b -s 3ffb 2020005 BOOT_ORDER BOOT_A_LEFT BOOT_B_LEFT slipway_trial slipway_tries slipway_epoch slipway_flags
  crc32 2020005 3ffb 2030000
  cp.b 2030003 2020000 1; cp.b 2030002 2020001 1; cp.b 2030001 2020002 1; cp.b 2030000 2020003 1
  if test "${active}" = 0; then
FLAGS_FIRST
    virtio write 2020000 480 20
  else
FLAGS_SECOND
    virtio write 2020000 400 20
  fi
fi
if test "${chosen}" = A; then setenv part 2; else setenv part 3; fi
setenv bootargs slipway.slot=${chosen} KERNEL_OPTIONS
if test -n "${chosen}"; then
  ext4load virtio 0:${part} 1000000 /vmlinuz
  setenv kernel ${filesize}
  ext4load virtio 0:${part} 4000000 /initrd
  zboot 1000000 ${kernel} 4000000 ${filesize}
fi
echo No slot boots.
sleep 30
reset
"#;

/// This U-Boot does not count: one line for each number.
fn script() -> String {
    let (mut count, mut first, mut second) = (String::new(), String::new(), String::new());
    for number in 1..=7 {
        let keyword = if number == 1 { "if" } else { "elif" };
        let _ = writeln!(
            count,
            "  {keyword} test \"${{left}}\" = {number}; then setenv left {}",
            number - 1
        );
    }
    count.push_str("  fi");
    for flags in 0..64 {
        let _ = writeln!(
            first,
            "    if itest.b *2000004 == {flags:x}; then mw.b 2020004 {:x}; fi",
            flags + 1
        );
        let _ = writeln!(
            second,
            "    if itest.b *2010004 == {flags:x}; then mw.b 2020004 {:x}; fi",
            flags + 1
        );
    }
    SCRIPT
        .replace("COUNT", &count)
        .replace("FLAGS_FIRST\n", &first)
        .replace("FLAGS_SECOND\n", &second)
        .replace("KERNEL_OPTIONS", KERNEL_OPTIONS)
}

fn disk(workshop: &Workshop, slot_a: &Path, data: &Path) -> PathBuf {
    let boot = workshop.folder.join("boot");
    fs::create_dir_all(&boot).expect("a folder");
    let text_file = workshop.folder.join("boot.txt");
    fs::write(&text_file, script()).expect("written");
    let compiled = boot.join("boot.scr");
    let arguments = [
        "-A",
        "x86",
        "-T",
        "script",
        "-C",
        "none",
        "-d",
        text(&text_file),
        text(&compiled),
    ];
    run("mkimage", &arguments);
    let image = workshop.folder.join("boot.raw");
    filesystem("ext2", &boot, &image, BOOT.length);
    // The two environments lie before the first partition.
    let (disk, _) = workshop.disk(0x83, &image, slot_a, data);
    workshop.install(
        &UBOOT.flavour,
        "/dev/vda,",
        Path::new(&format!("{},", text(&disk))),
    );
    disk
}

#[test]
fn uboot_boots_the_new_system_and_it_is_confirmed_and_left_by_hand() {
    if asked_for() {
        UBOOT.updates_and_is_left_by_hand();
    }
}

#[test]
fn e28_uboot_returns_from_a_system_that_panics() {
    if asked_for() {
        UBOOT.returns(Behaviour::Panics);
    }
}
