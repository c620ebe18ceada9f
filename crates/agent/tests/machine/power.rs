//! E-22 on a real machine: the power fails while the guest updates itself. Its own writes, as qemu logged them, are cut off
//! at every event and reordered between flushes. For every such disk GRUB's own filesystem code says what it would read,
//! and the slot that follows must be whole; a sample of them is booted again and has to come to its end.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::PathBuf,
    process::Command,
    time::Instant,
};

use rand::{SeedableRng, rngs::StdRng, seq::IteratorRandom};
use slipway_slots::{Digest, Slot, digest::Hasher};

use super::{
    Prepared, asked_for,
    disk::{BOOT, DATA, Extent, SLOT_A, SLOT_B, SLOT_IMAGE, text},
    grub::GRUB,
    qemu::{Disk, Session, power_on},
    system::Behaviour,
    write_log::{Cut, Log, Replay, disk_of_a_liar},
};
use crate::support::{
    boot_loader,
    disks::{Disks, Shared, StoreBytes},
    host::Kind,
};

const SEED: u64 = 0x0022;
/// Seeded subsets of the unflushed writes at every event.
const SUBSETS: usize = 8;
/// How many disks are booted again, unless the environment says otherwise: about half a minute each.
const SAMPLE: usize = 100;
const SAMPLE_VARIABLE: &str = "SLIPWAY_MACHINE_DISKS";

fn sample_size() -> usize {
    std::env::var(SAMPLE_VARIABLE).map_or(SAMPLE, |text| text.parse().expect(SAMPLE_VARIABLE))
}

/// Asks for the update until it has ended one way or the other, whatever a power cut left of it.
const UNTIL_IT_ENDS: &str = r"
if slipway-agent history | grep -q '^offered'; then report; exit; fi
slipway-agent update --from /media --id offered || say update failed
";

/// Slot, boot loader and data of a disk.
fn part(disk: &[u8], extent: Extent) -> &[u8] {
    &disk[extent.start as usize..(extent.start + extent.length) as usize]
}

/// Whether every byte of a slot is its image's.
fn is_whole(disk: &[u8], slot: Slot, old: &[u8], new: &[u8]) -> bool {
    let (extent, image) = match slot {
        Slot::A => (SLOT_A, old),
        Slot::B => (SLOT_B, new),
    };
    part(disk, extent)[..image.len()] == *image
}

/// What GRUB reads from its partition, by its own code.
struct Grub {
    folder: PathBuf,
    known: HashMap<Digest, Option<Slot>>,
}

impl Grub {
    fn chooses(&mut self, boot: &[u8]) -> Option<Slot> {
        let mut hasher = Hasher::new();
        hasher.update(boot);
        let digest = hasher.finish();
        if let Some(slot) = self.known.get(&digest) {
            return *slot;
        }
        let image = self.folder.join("boot-after-cut.raw");
        fs::write(&image, boot).expect("written");
        let mut files = BTreeMap::new();
        for name in ["grubenv", "grubenv.shadow"] {
            let output = Command::new("grub-fstest")
                .args([text(&image), "cat", &format!("/grub/{name}")])
                .output()
                .expect("grub-fstest runs");
            if output.status.success() {
                files.insert(name.to_owned(), output.stdout);
            }
        }
        let disks = Disks {
            a: Vec::new(),
            b: Vec::new(),
            store: StoreBytes::Files(files),
            journal: Vec::new(),
        };
        let slot = boot_loader::boot(Kind::Grubenv, &Shared::new(disks, false));
        self.known.insert(digest, slot);
        slot
    }
}

/// A machine that was updated from version 1 to 2 with its writes logged.
struct Recording {
    machine: Prepared,
    start: Vec<u8>,
    log: Log,
}

fn record() -> Option<Recording> {
    let machine = GRUB.prepare(Behaviour::Good, UNTIL_IT_ENDS)?;
    let start = fs::read(&machine.disk).expect("the disk");
    let log = machine.workshop.folder.join("writes.log");
    fs::File::create(&log).expect("a log");
    let logged = Disk::Logged {
        disk: &machine.disk,
        log: &log,
    };
    let session = power_on(&logged, &machine.stick, &machine.firmware);
    assert_eq!(session.boots(), ["1 A", "2 B"], "{}", session.text());
    ends_well(&session, "the recording");
    println!(
        "report: machine with GRUB, update with its writes logged: {} boots in {:.1} s",
        session.boots().len(),
        session.seconds
    );
    let log = Log::read(&log);
    Some(Recording { machine, start, log })
}

/// The running slot is good, the update has ended as that slot says, and data is what it was.
fn ends_well(session: &Session, what: &str) {
    let spoken = session.spoken();
    let runs = |slot: &str| {
        let start = format!("* {slot}");
        spoken
            .iter()
            .any(|line| line.starts_with(&start) && line.ends_with("good"))
    };
    let ended = |how: &str| {
        spoken
            .iter()
            .any(|line| line.starts_with("offered  2") && line.contains(how))
    };
    assert!(
        runs("B") && ended("confirmed") || runs("A") && ended("rolled back"),
        "{what}:\n{}",
        session.text()
    );
    assert!(
        session.said("data what the host is for"),
        "{what}:\n{}",
        session.text()
    );
    assert!(!session.said("update failed"), "{what}:\n{}", session.text());
}

#[test]
fn e22_grub_boots_a_verified_slot_wherever_the_power_fails() {
    if !asked_for() {
        return;
    }
    let Some(recording) = record() else {
        return;
    };
    let new = fs::read(&recording.machine.new).expect("the new image");
    let old = part(&recording.start, SLOT_A)[..SLOT_IMAGE as usize].to_vec();
    for range in recording.log.touched() {
        let (start, end) = (range.start as u64, range.end as u64);
        assert!(
            end <= SLOT_A.start || start >= SLOT_A.start + SLOT_A.length,
            "the running slot was written"
        );
    }
    let began = Instant::now();
    let cuts = recording.log.cuts(SUBSETS, SEED);
    let mut chosen = cuts
        .all
        .iter()
        .enumerate()
        .choose_multiple(&mut StdRng::seed_from_u64(SEED), sample_size());
    chosen.sort_unstable_by_key(|(at, _)| *at);
    let mut grub = Grub {
        folder: recording.machine.workshop.folder.clone(),
        known: HashMap::new(),
    };
    let mut replay = Replay::new(&recording.log, recording.start.clone());
    let mut boots = [0_usize; 2];
    let mut sample: Vec<(&Cut, Slot, PathBuf)> = Vec::new();
    for (at, cut) in cuts.all.iter().enumerate() {
        replay.disk_after(cut, |disk| {
            let slot = grub
                .chooses(part(disk, BOOT))
                .unwrap_or_else(|| panic!("{cut}: nothing boots"));
            assert!(
                is_whole(disk, slot, &old, &new),
                "{cut}: slot {slot} boots and is not whole"
            );
            boots[usize::from(slot == Slot::B)] += 1;
            if chosen.iter().any(|(number, _)| *number == at) {
                let path = recording.machine.workshop.folder.join(format!("cut-{at}.raw"));
                fs::write(&path, disk).expect("written");
                sample.push((cut, slot, path));
            }
        });
    }
    println!(
        "report: power cuts on a machine with GRUB: {} events, {} prefixes, {} reorderings, {} different boot partitions; \
         all lead to a whole slot ({} to A, {} to B) in {:.1} s, seed {SEED}",
        recording.log.events.len(),
        cuts.prefixes,
        cuts.reorderings,
        grub.known.len(),
        boots[0],
        boots[1],
        began.elapsed().as_secs_f32()
    );
    assert!(
        boots[0] > 0 && boots[1] > 0,
        "the recording has both sides of the change"
    );
    // The same check finds a slot that boots and is not whole: a disk that lies about one flush is enough.
    let lost = recording
        .log
        .touched()
        .position(|range| range.start as u64 >= SLOT_B.start && (range.end as u64) < DATA.start);
    let lost = recording
        .log
        .writes()
        .nth(lost.expect("the new slot was written"))
        .expect("a write");
    let disk = disk_of_a_liar(&recording.log, &recording.start, lost);
    assert_eq!(grub.chooses(part(&disk, BOOT)), Some(Slot::B));
    assert!(
        !is_whole(&disk, Slot::B, &old, &new),
        "a lost write of the new slot was not noticed"
    );
    let began = Instant::now();
    let mut count = 0;
    for (cut, slot, path) in &sample {
        let session = power_on(
            &Disk::Plain(path),
            &recording.machine.stick,
            &recording.machine.firmware,
        );
        let first = session
            .boots()
            .first()
            .map(|boot| boot.ends_with(&slot.to_string()));
        assert_eq!(
            first,
            Some(true),
            "{cut}: slot {slot} was expected:\n{}",
            session.text()
        );
        ends_well(&session, &cut.to_string());
        count += session.boots().len();
        fs::remove_file(path).expect("removed");
    }
    println!(
        "report: power cuts on a machine with GRUB: {} disks booted again, all came to their end in {count} boots and {:.1} s",
        sample.len(),
        began.elapsed().as_secs_f32()
    );
}
