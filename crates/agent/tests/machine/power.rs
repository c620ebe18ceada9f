//! E-22 on a real machine: the power fails while the guest updates itself. Its own writes, as qemu logged them, are cut off
//! at every event and reordered between flushes. For every such disk GRUB's own filesystem code says what it would read,
//! and the slot that follows must be whole. Hundreds of them are started again until the system of a slot runs, and some
//! of those until the update has come to its end.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Instant,
};

use parking_lot::Mutex;
use rand::{SeedableRng, rngs::StdRng, seq::IteratorRandom};
use slipway_slots::{Digest, Slot, digest::Hasher};

use super::{
    Prepared, asked_for,
    disk::{BOOT, DATA, Extent, SLOT_A, SLOT_B, SLOT_IMAGE, text},
    grub::GRUB,
    qemu::{Disk, Session, places, power_on, start},
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
/// How many disks are started again, and how many of them until the update has ended: the environment may say otherwise.
const STARTED: (&str, usize) = ("SLIPWAY_MACHINE_DISKS", 250);
const TO_THE_END: (&str, usize) = ("SLIPWAY_MACHINE_DISKS_TO_THE_END", 20);
/// After so many disks it is said how many there were.
const SAID_EVERY: usize = 25;

fn sample_size((variable, default): (&str, usize)) -> usize {
    std::env::var(variable).map_or(default, |text| text.parse().expect(variable))
}

/// Asks for the update until it has ended one way or the other, whatever a power cut left of it.
const UNTIL_IT_ENDS: &str = r"
if slipway-agent history | grep -q '^offered'; then report; exit; fi
slipway-agent update --from /media --id offered || fail update
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
    let mut grub = Grub {
        folder: recording.machine.workshop.folder.clone(),
        known: HashMap::new(),
    };
    let mut replay = Replay::new(&recording.log, recording.start.clone());
    let mut boots = [0_usize; 2];
    let mut foretold = Vec::with_capacity(cuts.all.len());
    for cut in &cuts.all {
        replay.disk_after(cut, |disk| {
            let slot = grub
                .chooses(part(disk, BOOT))
                .unwrap_or_else(|| panic!("{cut}: nothing boots"));
            assert!(
                is_whole(disk, slot, &old, &new),
                "{cut}: slot {slot} boots and is not whole"
            );
            boots[usize::from(slot == Slot::B)] += 1;
            foretold.push(slot);
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
    boot_again(&recording, &cuts.all, &foretold);
}

/// What the machines did that were started again.
#[derive(Default)]
struct Started {
    disks: usize,
    slots: [usize; 2],
    to_the_end: usize,
    boots: usize,
}

impl Started {
    fn report(&self, began: Instant) {
        println!(
            "report: power cuts on a machine with GRUB: {} disks started again, each from the slot foretold ({} A, {} B), \
             {} of them until the update had ended, {} boots in {:.1} s, seed {SEED}",
            self.disks,
            self.slots[0],
            self.slots[1],
            self.to_the_end,
            self.boots,
            began.elapsed().as_secs_f32()
        );
    }
}

/// Starts a sample of the disks, as many at once as there are processors; each machine must take the slot that was foretold.
fn boot_again(recording: &Recording, cuts: &[Cut], foretold: &[Slot]) {
    let mut random = StdRng::seed_from_u64(SEED);
    let mut sample: Vec<usize> = (0..cuts.len()).choose_multiple(&mut random, sample_size(STARTED));
    let to_the_end: HashSet<usize> = sample
        .iter()
        .copied()
        .choose_multiple(&mut random, sample_size(TO_THE_END))
        .into_iter()
        .collect();
    sample.sort_unstable();
    let replay = Replay::new(&recording.log, recording.start.clone());
    let (next, began) = (Mutex::new((sample.iter(), replay)), Instant::now());
    let started = Mutex::new(Started::default());
    let work = |worker: usize| {
        let path = recording
            .machine
            .workshop
            .folder
            .join(format!("cut-{worker}.raw"));
        loop {
            // The disks are made one after the other, in the order of the log.
            let at = {
                let mut next = next.lock();
                let Some(at) = next.0.next() else { return };
                next.1
                    .disk_after(&cuts[*at], |disk| fs::write(&path, disk).expect("written"));
                *at
            };
            let (cut, slot, is_to_end) = (&cuts[at], foretold[at], to_the_end.contains(&at));
            let session = boots_as_foretold(recording, &path, cut, slot, is_to_end);
            let mut started = started.lock();
            started.disks += 1;
            started.slots[usize::from(slot == Slot::B)] += 1;
            started.to_the_end += usize::from(is_to_end);
            started.boots += session.boots().len();
            if started.disks.is_multiple_of(SAID_EVERY) || started.disks == sample.len() {
                started.report(began);
            }
        }
    };
    thread::scope(|scope| {
        for worker in 0..places() {
            let work = &work;
            scope.spawn(move || work(worker));
        }
    });
    assert_eq!(started.into_inner().disks, sample.len());
}

fn boots_as_foretold(recording: &Recording, disk: &Path, cut: &Cut, slot: Slot, is_to_end: bool) -> Session {
    let (stick, firmware) = (&recording.machine.stick, &recording.machine.firmware);
    let play = if is_to_end { power_on } else { start };
    let session = play(&Disk::Plain(disk), stick, firmware);
    let first = session.boots().first().map(ToString::to_string);
    let expected = match slot {
        Slot::A => "1 A",
        Slot::B => "2 B",
    };
    assert_eq!(first.as_deref(), Some(expected), "{cut}:\n{}", session.text());
    if is_to_end {
        ends_well(&session, &cut.to_string());
    }
    session
}
