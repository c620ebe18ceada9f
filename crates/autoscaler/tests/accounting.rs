//! The account of claims, Machines and replicas: tables, and any order of faults.

use crate::world::{Autoscaler, Random, World, printed};

fn world(claims: usize) -> World {
    let mut world = World::new(7);
    for _ in 0..claims {
        world.claim();
    }
    world.settle(Autoscaler::Ours);
    assert_eq!(world.judge(), Ok(()));
    world
}

#[test]
fn from_claims_to_machines_and_back() {
    let mut world = World::new(1);
    let first = world.claim();
    world.claim();
    assert_eq!(printed(&world), "scale from 0 to 2: 2 claims need a Machine\n");
    world.reconcile(Autoscaler::Ours);
    assert_eq!(printed(&world), "", "asked once");
    world.cluster_api_times(2);
    assert_eq!(
        printed(&world),
        "bind Machine machine-3 to claim claim-1: it was made for the claim\n\
         bind Machine machine-4 to claim claim-2: it was made for the claim\n"
    );
    world.reconcile(Autoscaler::Ours);
    world.leave(&first);
    assert_eq!(
        printed(&world),
        "mark Machine machine-3 to go with claim claim-1: its claim is deleted\n",
        "the intent comes first"
    );
    world.reconcile(Autoscaler::Ours);
    assert_eq!(
        printed(&world),
        "scale from 2 to 1: 1 Machines are marked to go, and 1 are needed\n\
         note on claim claim-1 that replicas have fallen: its Machine can go\n\
         delete Machine machine-3: it is marked, and replicas do not ask for it\n"
    );
    world.reconcile(Autoscaler::Ours);
    assert_eq!(printed(&world), "", "replicas fall once");
    world.settle(Autoscaler::Ours);
    assert_eq!(
        (world.judge(), world.replicas, world.claims.len()),
        (Ok(()), 1, 1)
    );
}

/// Killed between the fall of replicas and the deletion: replicas do not fall again for the same Machine, while another one that
/// is to go is not marked yet. Cluster API would choose whom to delete, and could choose the one that stays.
#[test]
fn replicas_that_fell_before_a_crash_do_not_fall_again() {
    let mut world = world(3);
    let uids: Vec<String> = world.claims.iter().map(|claim| claim.uid.clone()).collect();
    world.leave(&uids[0]);
    world.reconcile(Autoscaler::Ours);
    world.replicas = 2;
    world.leave(&uids[1]);
    let printed = printed(&world);
    assert!(!printed.contains("scale"), "{printed}");
    assert!(printed.starts_with("mark Machine"), "{printed}");
    world.settle(Autoscaler::Ours);
    assert_eq!((world.judge(), world.replicas), (Ok(()), 1));
}

/// Machines that somebody asked for by hand stay, and are used before new ones are made.
#[test]
fn a_raise_by_hand_stays_and_is_used() {
    let mut world = world(1);
    world.replicas = 3;
    world.asked_by_others = 2;
    assert_eq!(printed(&world), "", "before its Machines are there");
    world.settle(Autoscaler::Ours);
    assert_eq!(
        (world.judge(), world.replicas, world.machines.len()),
        (Ok(()), 3, 3)
    );
    world.claim();
    world.settle(Autoscaler::Ours);
    assert_eq!(
        (world.judge(), world.replicas),
        (Ok(()), 3),
        "a Machine that was there is taken"
    );
}

/// Where others lower replicas below what claims need, they rise again.
#[test]
fn claims_count_more_than_a_fall_by_hand() {
    let mut world = world(3);
    world.replicas = 1;
    world.settle(Autoscaler::Ours);
    assert_eq!((world.judge(), world.replicas), (Ok(()), 3));
}

#[test]
fn a_rollouts_surge_asks_for_nothing() {
    let mut world = world(3);
    world.revision = 1;
    for _ in 0..40 {
        world.cluster_api();
        world.reconcile(Autoscaler::Ours);
        assert_eq!(world.replicas, 3);
    }
    assert_eq!(world.judge(), Ok(()));
    assert!(world.standing().all(|machine| machine.revision == 1));
}

#[test]
fn sizes_hold_and_surplus_claims_are_given_back() {
    let mut world = world(2);
    world.max_size = Some(3);
    for _ in 0..4 {
        world.claim();
    }
    let account = slipway_autoscaler::accounting::account(&world.group());
    assert_eq!(account.unplaced.len(), 3, "{account:?}");
    assert_eq!(account.unplaced[0], "claim-6", "the youngest are given back");
    world.settle(Autoscaler::Ours);
    assert_eq!(
        (world.judge(), world.replicas, world.claims.len()),
        (Ok(()), 3, 3)
    );
    world.min_size = 3;
    let uid = world.claims[0].uid.clone();
    world.leave(&uid);
    world.settle(Autoscaler::Ours);
    assert_eq!(
        (world.judge(), world.replicas, world.claims.len()),
        (Ok(()), 3, 2),
        "its Machine went, replicas stay"
    );
}

/// A claim whose Machine never came does not leave a replica behind.
#[test]
fn a_claim_deleted_before_its_machine_came() {
    let mut world = world(1);
    let late = world.claim();
    world.is_down = true;
    world.reconcile(Autoscaler::Ours);
    world.leave(&late);
    for _ in 0..5 {
        world.reconcile(Autoscaler::Ours);
    }
    assert_eq!(world.claims.len(), 2, "it waits for what may still come");
    world.is_down = false;
    world.settle(Autoscaler::Ours);
    assert_eq!((world.judge(), world.replicas), (Ok(()), 1));
    // Where Cluster API says that it makes none, the replica is taken back.
    let late = world.claim();
    world.is_stuck = true;
    world.reconcile(Autoscaler::Ours);
    world.leave(&late);
    world.reconcile(Autoscaler::Ours);
    assert_eq!(world.replicas, 1);
    world.reconcile(Autoscaler::Ours);
    assert_eq!(world.claims.len(), 1);
}

/// A Machine that failed before it was bound is no claim's that lives, and goes with the one it was made for.
#[test]
fn a_machine_that_failed_before_it_was_bound_goes_with_its_claim() {
    let mut world = World::new(1);
    let claim = world.claim();
    world.reconcile(Autoscaler::Ours);
    world.cluster_api_times(2);
    let planned = |world: &World| -> Vec<String> {
        let mut group = world.group();
        for machine in &mut group.machines {
            machine.has_failed = true;
        }
        let account = slipway_autoscaler::accounting::account(&group);
        account.steps.iter().map(ToString::to_string).collect()
    };
    assert_eq!(planned(&world), [""; 0]);
    world.leave(&claim);
    let steps = planned(&world);
    assert!(
        steps
            .iter()
            .any(|step| step.starts_with("bind Machine machine-2 to claim claim-1")),
        "{steps:?}"
    );
}

/// A claim that was deleted without its finalizer leaves a Machine that nobody has: the next claim takes it, or it goes.
#[test]
fn leaked_machines_are_adopted_or_collected() {
    let mut adopted = world(2);
    adopted.claims.remove(0);
    adopted.claim();
    adopted.settle(Autoscaler::Ours);
    assert_eq!(
        (adopted.judge(), adopted.replicas, adopted.machines.len()),
        (Ok(()), 2, 2)
    );
    let mut collected = world(2);
    collected.claims.remove(0);
    collected.settle(Autoscaler::Ours);
    assert_eq!((collected.judge(), collected.replicas), (Ok(()), 1));
}

#[test]
fn paused_objects_are_left_alone() {
    let mut world = world(2);
    world.is_paused = true;
    let uid = world.claims[0].uid.clone();
    world.leave(&uid);
    world.claim();
    world.claim();
    for _ in 0..10 {
        world.reconcile(Autoscaler::Ours);
        world.cluster_api();
    }
    assert_eq!((world.replicas, world.standing().count()), (2, 2));
    let account = slipway_autoscaler::accounting::account(&world.group());
    assert!(
        account
            .waiting
            .iter()
            .any(|(_, why)| why == "MachineDeployment/fleet/workers is paused"),
        "{account:?}"
    );
    world.is_paused = false;
    world.settle(Autoscaler::Ours);
    assert_eq!((world.judge(), world.replicas), (Ok(()), 3));
}

#[derive(Clone, Debug)]
enum Event {
    Claim,
    Leave(usize),
    LoseClaim(usize),
    ClusterApi(usize),
    /// On a view so many events old, broken off after so many writes: a crash between any two.
    Reconcile {
        lag: usize,
        writes: usize,
    },
    Pause(bool),
    Down(bool),
    Stuck(bool),
    HealthCheck(usize),
    Rollout,
    ByHand(i32),
}

/// Up to eighty events of a seed: much of what happens all the time, little of what happens rarely.
fn events(random: &mut Random) -> Vec<Event> {
    let count = 1 + random.below(80);
    (0..count)
        .map(|_| match random.below(32) {
            0..4 => Event::Claim,
            4..7 => Event::Leave(random.below(8)),
            7 => Event::LoseClaim(random.below(8)),
            8..15 => Event::ClusterApi(1 + random.below(3)),
            15..26 => Event::Reconcile {
                lag: random.below(4),
                writes: random.below(6),
            },
            26 => Event::Pause(random.below(2) == 0),
            27 => Event::Down(random.below(2) == 0),
            28 => Event::Stuck(random.below(2) == 0),
            29 => Event::HealthCheck(random.below(8)),
            30 => Event::Rollout,
            _ => Event::ByHand(i32::try_from(random.below(5)).unwrap_or(0) - 2),
        })
        .collect()
}

fn happen(world: &mut World, past: &[World], event: &Event) {
    match event {
        // The bound keeps claims within what the object may have at all.
        Event::Claim if world.claims.len() < 7 => drop(world.claim()),
        Event::Claim => {}
        Event::Leave(place) => {
            if let Some(uid) = world.claims.get(*place).map(|claim| claim.uid.clone()) {
                world.leave(&uid);
            }
        }
        Event::LoseClaim(place) => {
            if *place < world.claims.len() {
                world.claims.remove(*place);
            }
        }
        Event::ClusterApi(times) => world.cluster_api_times(*times),
        Event::Reconcile { lag, writes } => {
            let view = if *lag == 0 {
                world.clone()
            } else {
                past[past.len().saturating_sub(*lag)].clone()
            };
            world.reconcile_on(&view, *writes);
        }
        Event::Pause(is_paused) => world.is_paused = *is_paused,
        Event::Down(is_down) => world.is_down = *is_down,
        Event::Stuck(is_stuck) => world.is_stuck = *is_stuck,
        Event::HealthCheck(place) => world.delete_from_outside(*place),
        Event::Rollout => world.revision += 1,
        Event::ByHand(by) => {
            let to = (world.replicas + by).clamp(world.min_size, 8);
            world.asked_by_others += (to - world.replicas).max(0);
            world.replicas = to;
            world.version += 1;
        }
    }
}

fn run(seed: u64, min_size: i32, events: &[Event]) -> Result<(), String> {
    let mut world = World::new(seed);
    world.min_size = min_size;
    world.max_size = Some(8);
    world.replicas = min_size;
    world.asked_by_others = min_size;
    let mut past = vec![world.clone()];
    for event in events {
        happen(&mut world, &past, event);
        past.push(world.clone());
    }
    world.is_paused = false;
    world.is_down = false;
    world.is_stuck = false;
    // A claim that was lost took no replica with it: what it leaves is nobody's, and may stay.
    world.asked_by_others += i32::try_from(
        events
            .iter()
            .filter(|event| matches!(event, Event::LoseClaim(_)))
            .count(),
    )
    .unwrap_or(0);
    world.settle(Autoscaler::Ours);
    world.judge().map_err(|wrong| format!("{wrong}\n{world:#?}"))
}

/// The events that are left when none can be taken away without the failure going too.
fn smallest(seed: u64, min_size: i32, mut events: Vec<Event>) -> Vec<Event> {
    let mut place = 0;
    while place < events.len() {
        let mut fewer = events.clone();
        fewer.remove(place);
        if run(seed, min_size, &fewer).is_err() {
            events = fewer;
        } else {
            place += 1;
        }
    }
    events
}

/// Whatever Cluster API, users and crashes do, and however far a view lags: in the end claims and Machines are one to one, no
/// Machine of a claim that stays was deleted by us, and no write left the object's sizes.
#[test]
fn claims_and_machines_end_one_to_one() {
    let (first, count) = match std::env::var("SLIPWAY_TEST_FULL") {
        Ok(_) => (1_000_000, 100_000),
        Err(_) => (0, 2_000),
    };
    for seed in first..first + count {
        let mut random = Random::new(seed);
        let min_size = i32::try_from(random.below(3)).unwrap_or(0);
        let events = events(&mut random);
        if let Err(wrong) = run(seed, min_size, &events) {
            let least = smallest(seed, min_size, events);
            let again = run(seed, min_size, &least).err().unwrap_or_default();
            panic!("seed {seed}, at least {min_size} replicas: {wrong}\nwith {least:#?}: {again}");
        }
    }
    println!("report: autoscaler accounting: {count} schedules from seed {first}, all one to one in the end");
}
