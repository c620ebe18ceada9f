//! E-21: the agent dies at every failpoint, each time it is reached; started again it finishes what it began.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use slipway_agent::engine::{Failpoint, Failpoints, Rest, Unhindered};
use slipway_slots::Slot;
use slipway_slots::machine::{Health, Outcome};

use super::Bench;
use crate::support::boot_loader;
use crate::support::host::Kind;

/// Panics when a point is reached for the n-th time.
struct DieAt {
    point: Failpoint,
    nth: usize,
    reached: AtomicUsize,
}

struct Died;

impl Failpoints for DieAt {
    fn reached(&self, point: Failpoint) {
        if point == self.point && self.reached.fetch_add(1, Ordering::Relaxed) + 1 == self.nth {
            resume_unwind(Box::new(Died));
        }
    }
}

/// The whole upgrade; every death is followed by a new start of the agent.
fn upgrade(bench: &mut Bench) {
    let mut slot = Slot::A;
    for _ in 0..10 {
        let run = catch_unwind(AssertUnwindSafe(|| {
            let mut engine = bench.setup.engine(&bench.shared, slot).unwrap();
            let rest = engine.run();
            if let Ok(Rest::Rebooting(_)) = rest {
                return None;
            }
            if let Some(ended) = engine.history().last() {
                return Some(ended.outcome.clone());
            }
            engine.prepare("op-1", bench.new.image()).unwrap();
            engine.activate("op-1", 3).unwrap();
            None
        }));
        match run {
            Ok(Some(outcome)) => {
                let expected = match bench.setup.health {
                    Health::Passed => matches!(outcome, Outcome::Confirmed),
                    _ => matches!(outcome, Outcome::RolledBack { .. }),
                };
                assert!(expected, "{outcome:?}");
                return;
            }
            Ok(None) => slot = boot_loader::boot(Kind::Records, &bench.shared).expect("a slot boots"),
            Err(_) => bench.setup.failpoints = Arc::new(Unhindered),
        }
        assert!(
            bench.old.is_in(&bench.shared.disks().a),
            "the old slot was touched"
        );
    }
    panic!("it does not come to an end");
}

#[test]
fn e21_killed_at_every_failpoint_it_finishes_what_it_began() {
    let mut deaths = 0;
    let mut bench = Bench::new();
    for health in [Health::Passed, Health::Failed("not ready".into())] {
        for point in Failpoint::ALL {
            for nth in 1.. {
                bench.reset();
                bench.setup.health = health.clone();
                let die = Arc::new(DieAt {
                    point,
                    nth,
                    reached: AtomicUsize::new(0),
                });
                bench.setup.failpoints = die.clone();
                upgrade(&mut bench);
                if die.reached.load(Ordering::Relaxed) < nth {
                    break;
                }
                deaths += 1;
            }
        }
    }
    println!("report: the agent died at {deaths} places and finished each time");
    assert!(deaths > 40, "{deaths}");
}

/// E-21: what was written and is right is neither written nor downloaded again.
#[test]
fn e21_a_resumed_write_downloads_only_what_is_missing() {
    let mut bench = Bench::new();
    bench.setup.failpoints = Arc::new(DieAt {
        point: Failpoint::ChunkWritten,
        nth: 9,
        reached: AtomicUsize::new(0),
    });
    let died = catch_unwind(AssertUnwindSafe(|| {
        let mut engine = bench.setup.engine(&bench.shared, Slot::A).unwrap();
        engine.prepare("op-1", bench.new.image()).map(|_| ())
    }));
    assert!(died.is_err());
    let half = bench.shared.disks().b;
    let right = half
        .chunks(4096)
        .zip(bench.new.raw.chunks(4096))
        .filter(|(slot, image)| slot == image)
        .count() as u64;
    assert_eq!(right, 9);
    bench.setup.failpoints = Arc::new(Unhindered);
    let mut engine = bench.setup.engine(&bench.shared, Slot::A).unwrap();
    engine.prepare("op-1", bench.new.image()).unwrap();
    let progress = engine.status().unwrap().progress;
    assert_eq!(progress.bytes_in_place, right * 4096);
    assert_eq!(progress.bytes_written, (super::CHUNKS as u64 - right) * 4096);
}
