//! Real machines: a boot loader, Debian's kernel, systemd and the agent as its service, in qemu's software emulation. They
//! update, fail to boot, hang until the watchdog resets them, and return to the slot they came from.

mod disk;
mod grub;
mod parts;
mod power;
mod qemu;
mod system;
mod systemd_boot;
mod uboot;
mod write_log;

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use disk::Workshop;
use parts::Parts;
use qemu::{Disk, Session, power_on};
use system::{Behaviour, Flavour};

/// Restart by itself, talk on the serial line, and do not check a timer that a busy host delays.
const KERNEL_OPTIONS: &str =
    "quiet panic=1 oops=panic console=ttyS0 no_timer_check tsc=reliable printk.devkmsg=on mitigations=off";

/// A kind of machine, by what boots it.
struct Loader {
    name: &'static str,
    flavour: Flavour,
    /// What putting it together needs beside the guest's packages.
    programs: &'static [&'static str],
    files: &'static [&'static str],
    /// Its disk, with this slot installed as A and these files on the data partition.
    disk: fn(&Workshop, &Path, &Path) -> PathBuf,
    /// Its board and firmware, as qemu's arguments.
    firmware: fn(&Workshop) -> Vec<String>,
}

fn board(name: &str) -> Vec<String> {
    vec!["-machine".to_owned(), name.to_owned()]
}

/// What every machine is put together with.
const PROGRAMS: [&str; 4] = ["qemu-system-x86_64", "mke2fs", "strip", "readelf"];

/// A machine of version 1, and a stick with version 2.
struct Prepared {
    workshop: Workshop,
    disk: PathBuf,
    stick: PathBuf,
    /// The new version's slot.
    new: PathBuf,
    firmware: Vec<String>,
    _folder: tempfile::TempDir,
}

impl Loader {
    /// `None`, and said aloud, where something is missing.
    fn prepare(&self, behaviour: Behaviour, script: &str) -> Option<Prepared> {
        let programs = [&PROGRAMS[..], self.programs].concat();
        let parts = Parts::find(&programs, self.files)?;
        let folder = tempfile::tempdir().expect("a folder");
        let workshop = Workshop::new(folder.path(), parts);
        let old = workshop.slot(self.flavour, "1", Behaviour::Good);
        let new = workshop.slot(self.flavour, "2", behaviour);
        let data = workshop.folder.join("data");
        for place in ["lib", "tmp"] {
            fs::create_dir_all(data.join(place)).expect("a folder");
        }
        symlink("../run", data.join("run")).expect("a link");
        fs::write(data.join("precious"), "what the host is for").expect("written");
        fs::write(data.join("story.sh"), format!("{PRELUDE}{script}")).expect("written");
        Some(Prepared {
            disk: (self.disk)(&workshop, &old, &data),
            stick: workshop.stick("2", &new),
            firmware: (self.firmware)(&workshop),
            new,
            workshop,
            _folder: folder,
        })
    }

    /// Runs the story until the machine switches itself off.
    fn play(&self, behaviour: Behaviour, script: &str) -> Option<Session> {
        let machine = self.prepare(behaviour, script)?;
        let session = power_on(&Disk::Plain(&machine.disk), &machine.stick, &machine.firmware);
        println!(
            "report: machine with {}, {behaviour:?}: {} boots in {:.1} s",
            self.name,
            session.boots().len(),
            session.seconds
        );
        assert!(session.said("data what the host is for"), "{}", session.text());
        Some(session)
    }

    /// The new system is confirmed by its own service, and left again by hand.
    fn updates_and_is_left_by_hand(&self) {
        let Some(session) = self.play(Behaviour::Good, BY_HAND) else {
            return;
        };
        assert_eq!(session.boots(), ["1 A", "2 B", "1 A"], "{}", session.text());
        let spoken = session.spoken();
        let confirmed = |line: &&str| line.starts_with("before: * B") && line.ends_with("good");
        assert!(spoken.iter().any(confirmed), "{}", session.text());
        assert!(session.said("offered  2  confirmed"), "{}", session.text());
    }

    /// The new system does not come up or is not healthy: the old one runs again, and knows it.
    fn returns(&self, behaviour: Behaviour) {
        let Some(session) = self.play(behaviour, OFFER) else {
            return;
        };
        assert_eq!(session.boots(), ["1 A", "2 B", "1 A"], "{}", session.text());
        let spoken = session.spoken();
        let good = |line: &&str| line.starts_with("* A") && line.ends_with("good");
        assert!(spoken.iter().any(good), "{}", session.text());
        assert!(session.said("offered  2  rolled back"), "{}", session.text());
    }
}

/// The service decides about a slot on trial first; it holds the lock while it does.
const PRELUDE: &str = r#"say() { echo "SAY $*"; }
report() {
  slipway-agent status | sed 's/^/SAY /'
  slipway-agent history | sed 's/^/SAY /'
  say "data $(cat /var/precious)"
  sync
  systemctl poweroff
}
# Nothing follows from it, so the machine need not stay on.
fail() { say "$1 failed"; sync; systemctl poweroff; }
while slipway-agent status | grep -q 'on trial'; do sleep 1; done
flock /var/lib/slipway-agent/lock true
"#;

/// Offers the image on the stick once, and reports at the boot after the last reboot that follows from it.
const OFFER: &str = r"
if [ -e /var/offered ]; then report; exit; fi
touch /var/offered; sync
slipway-agent update --from /media --id offered || fail update
";

const BY_HAND: &str = r#"
case $(cat /var/step 2>/dev/null) in
  "") echo 1 > /var/step; sync; slipway-agent update --from /media --id offered || fail update ;;
  1) echo 2 > /var/step; slipway-agent status | sed 's/^/SAY before: /'; sync
     slipway-agent rollback --reason "asked for" || fail rollback ;;
  *) report ;;
esac
"#;

/// Three boots belong into every run; a boot costs ten seconds of a processor in emulation, so the others are asked for.
fn asked_for() -> bool {
    let full = std::env::var_os("SLIPWAY_TEST_FULL").is_some();
    if !full {
        println!("report: skipped: this machine boots with SLIPWAY_TEST_FULL=1");
    }
    full
}
