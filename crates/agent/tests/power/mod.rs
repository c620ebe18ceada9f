//! E-22: power fails. Every write and flush of a whole upgrade, of agent and boot loader, to slots, boot store and
//! journal, is recorded; then every state a power cut can leave behind is booted, recovered and brought to its end.
//!
//! A cut can come after any event. What was not flushed by then may have arrived or not, each write for itself, and a
//! write of several sectors may have lost one of them.

mod crash_states;

use std::collections::HashSet;
use std::time::Instant;

use slipway_agent::engine::Rest;
use slipway_slots::Slot;
use slipway_slots::boot::{BootState, SlotBoot};
use slipway_slots::machine::{Health, Outcome};
use slipway_slots::write_plan::Limits;

use crate::support::boot_loader;
use crate::support::disks::{Disks, Event, Shared};
use crate::support::host::{Kind, Setup};
use crate::support::images::{TestImage, blocks};
use crash_states::{Bounds, Counts, crash_states};

pub fn full() -> bool {
    std::env::var_os("SLIPWAY_TEST_FULL").is_some()
}

/// Two images and a host that has the first.
struct Story {
    setup: Setup,
    old: TestImage,
    new: TestImage,
    slot_size: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Confirmed,
    RolledBack,
}

impl Story {
    fn new(kind: Kind, chunks: usize, checkpoint: usize, health: Health) -> Self {
        let mut setup = Setup::new(kind);
        setup.limits = Limits {
            step: 4096,
            checkpoint: checkpoint as u64 * 4096,
        };
        setup.health = health;
        Self {
            setup,
            old: TestImage::build("1.0", 1, blocks(chunks, 1, &[1, 2])),
            new: TestImage::build("2.0", 2, blocks(chunks, 2, &[1, 2])),
            slot_size: chunks * 4096 + 64 * 1024,
        }
    }

    fn start(&self) -> Disks {
        Disks {
            a: self.old.slot(self.slot_size),
            b: vec![0xee; self.slot_size],
            store: self.setup.kind.bytes(&BootState::installed(Slot::A)),
            journal: Vec::new(),
        }
    }

    /// The upgrade from beginning to end, with everything that was done to the disks.
    fn record(&self) -> (Disks, Vec<Event>, End) {
        let start = self.start();
        let shared = Shared::new(start.clone(), true);
        let end = self.drive(&shared, Some(Slot::A), "the recording");
        (start, shared.log(), end)
    }

    /// What a slot that may boot must hold.
    fn check_slot(&self, disks: &Disks, slot: Slot, what: &str) {
        let bytes = match slot {
            Slot::A => &disks.a,
            Slot::B => &disks.b,
        };
        assert!(
            self.old.is_in(bytes) || self.new.is_in(bytes),
            "{what}: slot {slot} boots and is not verified"
        );
    }

    /// Boots, recovers and asks again until the upgrade has ended. `running` is `None` after a power cut.
    fn drive(&self, shared: &Shared, running: Option<Slot>, what: &str) -> End {
        let kind = self.setup.kind;
        let mut running = running;
        for _ in 0..12 {
            let slot = match running.take() {
                Some(slot) => slot,
                None => boot_loader::boot(kind, shared).unwrap_or_else(|| {
                    panic!("{what}: nothing boots; {:?}", kind.read(&shared.disks().store))
                }),
            };
            shared.inspect(|disks| self.check_slot(disks, slot, what));
            let mut engine = self
                .setup
                .engine(shared, slot)
                .unwrap_or_else(|error| panic!("{what}: the agent does not start: {error}"));
            let rest = engine.run().or_else(|error| match error {
                // The agent says so itself; whoever asked brings the image again.
                slipway_agent::engine::EngineError::ImageNeeded { .. } => {
                    Ok(Rest::Waiting(error.to_string()))
                }
                error => Err(error),
            });
            let rest = rest.unwrap_or_else(|error| panic!("{what}: the agent does not recover: {error}"));
            if let Rest::Rebooting(_) = rest {
                continue;
            }
            assert!(matches!(rest, Rest::Waiting(_)), "{what}: {rest:?}");
            let rolled_back = engine
                .history()
                .iter()
                .any(|ended| matches!(ended.outcome, Outcome::RolledBack { .. }));
            let reading = kind.read(&shared.disks().store);
            let state = reading
                .state
                .unwrap_or_else(|| panic!("{what}: the store cannot be read"));
            assert_eq!(
                reading.problems,
                Vec::<String>::new(),
                "{what}: the store is not repaired"
            );
            if slot == Slot::B && state.slots.b == SlotBoot::Good {
                assert!(
                    self.new.is_in(&shared.disks().b),
                    "{what}: the new slot is not the new image"
                );
                return End::Confirmed;
            }
            if rolled_back {
                assert_eq!(slot, Slot::A, "{what}: rolled back and still in the new slot");
                assert!(!state.slots.b.can_boot(), "{what}: what was rolled back may boot");
                return End::RolledBack;
            }
            engine
                .prepare("op-1", self.new.image())
                .unwrap_or_else(|error| panic!("{what}: it cannot be prepared again: {error}"));
            let rest = engine
                .activate("op-1", 3)
                .unwrap_or_else(|error| panic!("{what}: it cannot be activated again: {error}"));
            assert!(matches!(rest, Rest::Rebooting(_)), "{what}: {rest:?}");
        }
        panic!("{what}: it does not come to an end");
    }

    /// Boots and recovers every crash state once.
    fn play(&self, bounds: &Bounds) -> Report {
        let kind = self.setup.kind;
        let began = Instant::now();
        let (start, log, end) = self.record();
        let mut known = HashSet::new();
        let mut report = Report {
            end,
            events: log.len(),
            counts: Counts::default(),
            distinct: 0,
            confirmed: 0,
            rolled_back: 0,
            seconds: 0.0,
        };
        report.counts = crash_states(&start, &log, kind, bounds, |disks, what| {
            if !known.insert(disks.digest()) {
                return;
            }
            let what = format!("{kind:?}: {what}");
            let shared = Shared::new(disks.clone(), false);
            match self.drive(&shared, None, &what) {
                End::Confirmed => report.confirmed += 1,
                End::RolledBack => report.rolled_back += 1,
            }
            assert!(
                self.old.is_in(&shared.disks().a),
                "{what}: the old slot was touched"
            );
        });
        report.distinct = known.len();
        report.seconds = began.elapsed().as_secs_f64();
        report
    }
}

struct Report {
    end: End,
    events: usize,
    counts: Counts,
    distinct: usize,
    confirmed: usize,
    rolled_back: usize,
    seconds: f64,
}

impl Report {
    fn print(&self, name: &str, kind: Kind) {
        let counts = &self.counts;
        println!(
            "report: power failure, {name}, {kind:?}: {} events, {} prefixes, {} subsets, {} omissions, {} tears, {} \
             seeded subsets; {} distinct states, all boot a verified slot and end ({} confirmed, {} rolled back) in \
             {:.1} s",
            self.events,
            counts.prefixes,
            counts.subsets,
            counts.omissions,
            counts.tears,
            counts.seeded,
            self.distinct,
            self.confirmed,
            self.rolled_back,
            self.seconds
        );
    }
}

fn bounds() -> Bounds {
    if full() {
        Bounds {
            subsets_up_to: 12,
            seeded: 10_000,
            tear_every: 1,
            omissions_everywhere: true,
        }
    } else {
        Bounds {
            subsets_up_to: 6,
            seeded: 20,
            tear_every: 16,
            omissions_everywhere: false,
        }
    }
}

/// Epochs short enough for every subset of them.
fn short_epochs(kind: Kind) {
    let checkpoint = if full() { 12 } else { 5 };
    let chunks = if full() { 24 } else { 10 };
    let story = Story::new(kind, chunks, checkpoint, Health::Passed);
    let report = story.play(&bounds());
    report.print("upgrade", kind);
    assert_eq!(report.end, End::Confirmed);
    assert!(report.confirmed > 0);
    let story = Story::new(kind, 10, 5, Health::Failed("kubelet is not ready".into()));
    let report = story.play(&bounds());
    report.print("rollback", kind);
    assert_eq!(report.end, End::RolledBack);
    assert_eq!(report.confirmed, 0, "an unhealthy image was confirmed");
}

/// Epochs too long for every subset: omissions, tears and seeded subsets.
fn long_epochs(kind: Kind) {
    let chunks = if full() { 40 } else { 14 };
    let story = Story::new(kind, chunks, 1000, Health::Passed);
    let report = story.play(&bounds());
    report.print("upgrade without checkpoints", kind);
    assert_eq!(report.end, End::Confirmed);
}

#[test]
fn e22_power_failure_with_records() {
    short_epochs(Kind::Records);
    long_epochs(Kind::Records);
}

#[test]
fn e22_power_failure_with_grubenv() {
    short_epochs(Kind::Grubenv);
    long_epochs(Kind::Grubenv);
}

#[test]
fn e22_power_failure_with_uboot() {
    short_epochs(Kind::Uboot);
    long_epochs(Kind::Uboot);
}

#[test]
fn e22_power_failure_with_systemd_boot() {
    short_epochs(Kind::SystemdBoot);
    long_epochs(Kind::SystemdBoot);
}

#[test]
fn e22_power_failure_with_gpt() {
    short_epochs(Kind::Gpt);
    long_epochs(Kind::Gpt);
}
