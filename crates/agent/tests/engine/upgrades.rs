//! From one image to the next and back.

use slipway_agent::engine::Rest;
use slipway_slots::Slot;
use slipway_slots::boot::SlotBoot;
use slipway_slots::machine::{Health, Outcome};

use super::Bench;
use crate::support::boot_loader;
use crate::support::disks::Device;
use crate::support::host::Kind;
use crate::support::images::{TestImage, blocks};

#[test]
fn an_image_is_written_verified_armed_booted_and_confirmed_with_every_boot_store() {
    for kind in Kind::ALL {
        let mut bench = Bench::new();
        bench.setup.kind = kind;
        bench.shared.change(|disks| {
            disks.store = kind.bytes(&slipway_slots::boot::BootState::installed(Slot::A));
        });
        let mut engine = bench.setup.engine(&bench.shared, Slot::A).unwrap();
        engine.prepare("op-1", bench.new.image()).unwrap();
        assert!(bench.new.is_in(&bench.shared.disks().b));
        assert!(matches!(engine.activate("op-1", 3).unwrap(), Rest::Rebooting(_)));
        assert_eq!(boot_loader::boot(kind, &bench.shared), Some(Slot::B), "{kind:?}");
        let mut engine = bench.setup.engine(&bench.shared, Slot::B).unwrap();
        engine.run().unwrap();
        let status = engine.status().unwrap();
        assert_eq!(status.slots[1].boot, SlotBoot::Good, "{kind:?}");
        assert_eq!(
            status.slots[1].version.as_deref(),
            Some("2.0"),
            "from the slot's own bytes"
        );
        assert_eq!(status.last.unwrap().outcome, Outcome::Confirmed);
        // E-33: confirming again changes nothing.
        engine.confirm("op-1").unwrap();
    }
}

/// E-28: the boot loader returns by itself, the reason is kept, the image is quarantined on this host.
#[test]
fn e28_a_slot_that_never_comes_up_is_left_after_its_tries() {
    for kind in Kind::ALL {
        let mut bench = Bench::new();
        bench.setup.kind = kind;
        bench.shared.change(|disks| {
            disks.store = kind.bytes(&slipway_slots::boot::BootState::installed(Slot::A));
        });
        let mut engine = bench.setup.engine(&bench.shared, Slot::A).unwrap();
        engine.prepare("op-1", bench.new.image()).unwrap();
        engine.activate("op-1", 3).unwrap();
        for _ in 0..3 {
            assert_eq!(boot_loader::boot(kind, &bench.shared), Some(Slot::B), "{kind:?}");
        }
        assert_eq!(boot_loader::boot(kind, &bench.shared), Some(Slot::A), "{kind:?}");
        let mut engine = bench.setup.engine(&bench.shared, Slot::A).unwrap();
        engine.run().unwrap();
        let status = engine.status().unwrap();
        let Outcome::RolledBack { reason, .. } = status.last.unwrap().outcome else {
            panic!("{kind:?}: it was not rolled back")
        };
        assert_eq!(reason, "slot B did not come up in 3 tries");
        assert_eq!(status.slots[1].boot, SlotBoot::Unbootable);
        let refused = engine.prepare("op-2", bench.new.image()).unwrap_err().to_string();
        assert!(refused.contains("quarantined"), "{refused}");
    }
}

/// E-29 and E-32: health checks that fail bring the version before back, with their reason.
#[test]
fn e29_e32_an_unhealthy_system_returns_to_the_version_before() {
    let mut bench = Bench::new();
    let mut engine = bench.setup.engine(&bench.shared, Slot::A).unwrap();
    engine.prepare("op-1", bench.new.image()).unwrap();
    engine.activate("op-1", 3).unwrap();
    boot_loader::boot(Kind::Records, &bench.shared);
    bench.setup.health = Health::Failed("unit k3s.service: exit status: 3".into());
    let mut engine = bench.setup.engine(&bench.shared, Slot::B).unwrap();
    assert!(matches!(engine.run().unwrap(), Rest::Rebooting(_)));
    assert_eq!(boot_loader::boot(Kind::Records, &bench.shared), Some(Slot::A));
    let mut engine = bench.setup.engine(&bench.shared, Slot::A).unwrap();
    engine.run().unwrap();
    let status = engine.status().unwrap();
    assert_eq!(status.slots[0].version.as_deref(), Some("1.0"));
    assert!(format!("{:?}", status.last).contains("unit k3s.service"));
    // E-33: too late.
    let refused = engine.confirm("op-1").unwrap_err().to_string();
    assert!(refused.contains("rolled back"), "{refused}");
    // E-31: a good image afterwards boots the first time.
    bench.setup.health = Health::Passed;
    let next = TestImage::build("3.0", 3, blocks(super::CHUNKS, 3, &[]));
    engine.prepare("op-2", next.image()).unwrap();
    engine.activate("op-2", 1).unwrap();
    assert_eq!(boot_loader::boot(Kind::Records, &bench.shared), Some(Slot::B));
    let mut engine = bench.setup.engine(&bench.shared, Slot::B).unwrap();
    engine.run().unwrap();
    assert_eq!(engine.history().last().unwrap().outcome, Outcome::Confirmed);
}

/// E-38: nothing is written and nothing downloaded, not even the index: there may be no source at all.
#[test]
fn e38_an_unchanged_image_costs_no_write_and_no_download() {
    let bench = Bench::new();
    let size = bench.shared.disks().b.len();
    bench.shared.change(|disks| disks.b = bench.new.slot(size));
    let mut engine = bench.setup.engine(&bench.shared, Slot::A).unwrap();
    engine.prepare("op-1", bench.new.image_from(Vec::new())).unwrap();
    assert_eq!(bench.shared.written(Device::B), 0);
    let progress = engine.status().unwrap().progress;
    assert_eq!(progress.bytes_downloaded, 0);
    assert_eq!(progress.bytes_in_place, progress.bytes_total);
    assert_eq!(progress.bytes_done, progress.bytes_total);
    assert_eq!(progress.bytes_written, 0);
}

/// A label that says so is not believed: one byte is wrong, and its block is written.
#[test]
fn e38_a_slot_that_only_claims_to_hold_the_image_is_written() {
    let bench = Bench::new();
    let size = bench.shared.disks().b.len();
    bench.shared.change(|disks| {
        disks.b = bench.new.slot(size);
        disks.b[9000] ^= 1;
    });
    let mut engine = bench.setup.engine(&bench.shared, Slot::A).unwrap();
    engine.prepare("op-1", bench.new.image()).unwrap();
    assert!(bench.new.is_in(&bench.shared.disks().b));
    assert_eq!(bench.shared.written(Device::B), 4096);
}

/// E-30: power that fails before the health checks have decided costs a try and is no failure.
#[test]
fn e30_power_loss_before_the_health_decision_costs_a_try() {
    for kind in Kind::ALL {
        let mut bench = Bench::new();
        bench.setup.kind = kind;
        bench.shared.change(|disks| {
            disks.store = kind.bytes(&slipway_slots::boot::BootState::installed(Slot::A));
        });
        let mut engine = bench.setup.engine(&bench.shared, Slot::A).unwrap();
        engine.prepare("op-1", bench.new.image()).unwrap();
        engine.activate("op-1", 3).unwrap();
        for left in [2, 1] {
            assert_eq!(boot_loader::boot(kind, &bench.shared), Some(Slot::B), "{kind:?}");
            // The agent starts, and the power fails before it has decided.
            let mut engine = bench.setup.engine(&bench.shared, Slot::B).unwrap();
            let standing = engine.status().unwrap().standing;
            assert!(standing.contains("on trial"), "{kind:?}: {standing}");
            let state = kind.read(&bench.shared.disks().store).state.unwrap();
            assert_eq!(state.slots.b, SlotBoot::Trial { left, of: 3 }, "{kind:?}");
            assert!(engine.history().is_empty(), "{kind:?}: it is decided");
        }
        assert_eq!(boot_loader::boot(kind, &bench.shared), Some(Slot::B), "{kind:?}");
        let mut engine = bench.setup.engine(&bench.shared, Slot::B).unwrap();
        engine.run().unwrap();
        assert_eq!(
            engine.history().last().unwrap().outcome,
            Outcome::Confirmed,
            "{kind:?}"
        );
    }
}

/// E-31: nothing of an earlier rollback is left in any boot store that would keep the next good image from booting.
#[test]
fn e31_a_good_image_boots_the_first_time_after_a_rollback() {
    for kind in Kind::ALL {
        let mut bench = Bench::new();
        bench.setup.kind = kind;
        bench.shared.change(|disks| {
            disks.store = kind.bytes(&slipway_slots::boot::BootState::installed(Slot::A));
        });
        let mut engine = bench.setup.engine(&bench.shared, Slot::A).unwrap();
        engine.prepare("op-1", bench.new.image()).unwrap();
        engine.activate("op-1", 3).unwrap();
        for _ in 0..3 {
            assert_eq!(boot_loader::boot(kind, &bench.shared), Some(Slot::B), "{kind:?}");
        }
        assert_eq!(boot_loader::boot(kind, &bench.shared), Some(Slot::A), "{kind:?}");
        let next = TestImage::build("3.0", 3, blocks(super::CHUNKS, 3, &[]));
        let mut engine = bench.setup.engine(&bench.shared, Slot::A).unwrap();
        engine.run().unwrap();
        engine.prepare("op-2", next.image()).unwrap();
        engine.activate("op-2", 3).unwrap();
        assert_eq!(boot_loader::boot(kind, &bench.shared), Some(Slot::B), "{kind:?}");
        let mut engine = bench.setup.engine(&bench.shared, Slot::B).unwrap();
        engine.run().unwrap();
        assert_eq!(
            engine.history().last().unwrap().outcome,
            Outcome::Confirmed,
            "{kind:?}"
        );
        // E-32: the version before is the one that ran, not the one before that.
        let status = engine.status().unwrap();
        assert_eq!(status.slots[0].version.as_deref(), Some("1.0"), "{kind:?}");
    }
}

/// E-33: confirming again changes nothing; confirming what was rolled back is refused.
#[test]
fn e33_confirming_twice_is_nothing_and_too_late_is_refused() {
    let mut bench = Bench::new();
    bench.setup.health = Health::Unknown;
    let mut engine = bench.setup.engine(&bench.shared, Slot::A).unwrap();
    engine.prepare("op-1", bench.new.image()).unwrap();
    engine.activate("op-1", 1).unwrap();
    let on_trial = {
        boot_loader::boot(Kind::Records, &bench.shared);
        bench.shared.disks()
    };
    let mut engine = bench.setup.engine(&bench.shared, Slot::B).unwrap();
    engine.confirm("op-1").unwrap();
    let confirmed = bench.shared.disks();
    engine.confirm("op-1").unwrap();
    assert!(
        bench.shared.disks() == confirmed,
        "the second time changed something"
    );
    bench.shared.change(|disks| *disks = on_trial);
    assert_eq!(boot_loader::boot(Kind::Records, &bench.shared), Some(Slot::A));
    let mut engine = bench.setup.engine(&bench.shared, Slot::A).unwrap();
    engine.run().unwrap();
    let refused = engine.confirm("op-1").unwrap_err().to_string();
    assert!(refused.contains("rolled back"), "{refused}");
}

/// Blocks that are the same are skipped and counted; what the running slot has is copied, not downloaded.
#[test]
fn identical_blocks_are_skipped_and_the_running_slot_is_a_seed() {
    let bench = Bench::new();
    // A third of the new image is in the slot already.
    bench
        .shared
        .change(|disks| disks.b[..5 * 4096].copy_from_slice(&bench.new.raw[..5 * 4096]));
    let mut engine = bench.setup.engine(&bench.shared, Slot::A).unwrap();
    engine.prepare("op-1", bench.new.image()).unwrap();
    let progress = engine.status().unwrap().progress;
    assert_eq!(progress.bytes_in_place, 5 * 4096);
    assert_eq!(progress.bytes_written, 11 * 4096);
    assert_eq!(progress.bytes_done, progress.bytes_total);
    let label = 64 * 1024;
    assert_eq!(bench.shared.written(Device::B), 11 * 4096 + label);
}

/// E-39 (local half): no number goes down while it is watched.
#[test]
fn e39_progress_only_grows_and_ends_at_its_total() {
    let bench = Bench::new();
    let mut engine = bench.setup.engine(&bench.shared, Slot::A).unwrap();
    let watch = engine.watch();
    let watcher = std::thread::spawn(move || {
        let mut last = watch.progress();
        let mut changes = 0;
        while last.bytes_total == 0 || last.bytes_done < last.bytes_total {
            let now = watch.progress();
            if last.bytes_total > 0 {
                assert!(now.bytes_done >= last.bytes_done && now.bytes_downloaded >= last.bytes_downloaded);
                assert_eq!(now.bytes_total, last.bytes_total);
                changes += usize::from(now != last);
            }
            last = now;
            std::thread::yield_now();
        }
        (last, changes)
    });
    engine.prepare("op-1", bench.new.image()).unwrap();
    let (last, _) = watcher.join().unwrap();
    assert_eq!(last.bytes_done, bench.new.manifest.size());
}

/// E-40: another operation is refused while one is under way; the same one is joined.
#[test]
fn e40_one_operation_at_a_time() {
    let bench = Bench::new();
    let other = TestImage::build("3.0", 3, blocks(super::CHUNKS, 3, &[]));
    let mut engine = bench.setup.engine(&bench.shared, Slot::A).unwrap();
    engine.prepare("op-1", bench.new.image()).unwrap();
    let refused = engine.prepare("op-2", other.image()).unwrap_err().to_string();
    assert!(refused.contains("operation op-1 is under way"), "{refused}");
    let refused = engine.prepare("op-1", other.image()).unwrap_err().to_string();
    assert!(refused.contains("an id of its own"), "{refused}");
    engine.prepare("op-1", bench.new.image()).unwrap();
    engine.cancel("op-1").unwrap();
    engine.prepare("op-2", other.image()).unwrap();
    assert!(other.is_in(&bench.shared.disks().b));
}

/// The epoch survives a wiped data partition: the boot store has it, and so has the booted slot's label.
#[test]
fn the_epoch_survives_a_wiped_journal_in_every_boot_store() {
    for kind in Kind::ALL {
        let mut bench = Bench::new();
        bench.setup.kind = kind;
        bench.shared.change(|disks| {
            disks.store = kind.bytes(&slipway_slots::boot::BootState::installed(Slot::A));
        });
        let mut engine = bench.setup.engine(&bench.shared, Slot::A).unwrap();
        engine.prepare("op-1", bench.new.image()).unwrap();
        engine.activate("op-1", 3).unwrap();
        boot_loader::boot(kind, &bench.shared);
        bench.setup.engine(&bench.shared, Slot::B).unwrap().run().unwrap();
        bench.shared.change(|disks| disks.journal.clear());
        let mut engine = bench.setup.engine(&bench.shared, Slot::B).unwrap();
        let refused = engine.prepare("op-2", bench.old.image()).unwrap_err().to_string();
        assert!(
            refused.contains("epoch 1; this host takes none below 2"),
            "{kind:?}: {refused}"
        );
    }
}

/// E-34: both slots are unusable: the agent says so and still answers.
#[test]
fn e34_without_a_usable_slot_the_agent_asks_for_a_person() {
    let bench = Bench::new();
    let mut engine = slipway_agent::engine::Engine::open(bench.setup.host(&bench.shared, None)).unwrap();
    assert!(matches!(engine.run().unwrap(), Rest::Recovery(_)));
    assert!(
        engine
            .status()
            .unwrap()
            .standing
            .contains("does not run from slot A or B")
    );
}
