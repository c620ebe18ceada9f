//! Quorum is never lost by our doing: random schedules of faults, deletions, upgrades and scale operations, with every
//! single write judged (see `world`).

use std::time::Duration;

use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use slipway_k3s::{api::RolloutStrategyType, control_plane::observed::InPlaceAnswer};

use super::world::World;

/// S-1, S-2, S-4: what `World::reconcile` asserts after each write, over thousands of schedules.
#[test]
fn no_write_costs_quorum_over_random_schedules() {
    let full = std::env::var_os("SLIPWAY_TEST_FULL").is_some();
    let schedules: u64 = if full { 40_000 } else { 2_000 };
    let seed: u64 = std::env::var("SLIPWAY_TEST_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(20_260_101);
    let workers = std::thread::available_parallelism()
        .map_or(2, std::num::NonZero::get)
        .min(4) as u64;
    let (settled, lost): (u64, u64) = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..workers)
            .map(|worker| {
                scope.spawn(move || {
                    let mut counts = (0, 0);
                    for number in (worker..schedules).step_by(workers as usize) {
                        match schedule(seed.wrapping_add(number)) {
                            End::Settled => counts.0 += 1,
                            End::QuorumLostToFaults => counts.1 += 1,
                        }
                    }
                    counts
                })
            })
            .collect();
        handles
            .into_iter()
            .map(|handle| handle.join().expect("no schedule fails"))
            .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    });
    assert_eq!(settled + lost, schedules);
    assert!(
        settled > schedules / 2,
        "most schedules leave a plane that heals: {settled} of {schedules}"
    );
    println!(
        "report: k3s quorum: {schedules} schedules (seed {seed}), {settled} healed, {lost} lost quorum to faults alone"
    );
}

enum End {
    Settled,
    QuorumLostToFaults,
}

fn schedule(seed: u64) -> End {
    let mut random = StdRng::seed_from_u64(seed);
    let replicas = *[1usize, 3, 5, 7].choose(&mut random).expect("not empty");
    let mut world = World::settled(replicas);
    world.log.push(format!("seed {seed}, {replicas} servers"));
    world.desired.strategy = *[
        RolloutStrategyType::RollingUpdate,
        RolloutStrategyType::RollingUpdate,
        RolloutStrategyType::InPlace,
        RolloutStrategyType::External,
    ]
    .choose(&mut random)
    .expect("not empty");
    world.desired.max_surge = random.random_range(0..=1);
    for _ in 0..random.random_range(3..14) {
        event(&mut world, &mut random);
        for _ in 0..random.random_range(1..30) {
            // A fault shows on the leader's next tick; between the two nobody can know.
            world.step();
        }
    }
    // Faults end; what is broken stays broken and must be healed.
    world.glitch = false;
    world.next_fails = 0;
    world.forget_answers();
    if world.desired.strategy == RolloutStrategyType::External
        || matches!(world.in_place, InPlaceAnswer::Failed(_))
    {
        world.in_place = InPlaceAnswer::Can;
    }
    // A server that restarts for its update comes back by itself; one that faults took does not.
    for _ in 0..200 {
        if world.model.has_quorum() {
            break;
        }
        let before = world.model.members.clone();
        world.step();
        if !world.model.has_quorum() {
            assert_eq!(
                before,
                world.model.members,
                "seed {seed}: without quorum nothing is made worse\n{}",
                world.log.join("\n")
            );
        }
    }
    if !world.model.has_quorum() {
        return End::QuorumLostToFaults;
    }
    world.settle();
    if !world.model.has_quorum() {
        return End::QuorumLostToFaults;
    }
    let last = {
        let observed = world.observed();
        slipway_k3s::control_plane::plan::plan(&observed, world.now())
    };
    assert!(
        world.is_settled(),
        "seed {seed}: a plane with quorum settles; {} of {} voters are healthy, machines {:?}, wanted {}\n{}\n{last:?}",
        world.model.healthy_voters(),
        world.model.voters(),
        world.names(),
        world.desired.replicas,
        world.log.join("\n"),
    );
    End::Settled
}

fn event(world: &mut World, random: &mut StdRng) {
    let names = world.names();
    let some = |random: &mut StdRng| names.choose(random).cloned().unwrap_or_default();
    let tolerated = world.model.voters().saturating_sub(1) / 2;
    let down = world.model.voters() - world.model.healthy_voters();
    match random.random_range(0..12) {
        // Mostly faults the plane can stand, so that healing is what is tested.
        0 | 1 if down < tolerated => {
            let name = some(random);
            world.log.push(format!("{} kill {name}", world.now()));
            world.model.kill(&name);
        }
        2 if random.random_bool(0.1) => {
            let name = some(random);
            world.log.push(format!("{} kill {name} at any rate", world.now()));
            world.model.kill(&name);
        }
        3 => {
            let name = some(random);
            world.log.push(format!("{} revive {name}", world.now()));
            world.model.revive(&name);
        }
        4 | 5 => {
            let name = some(random);
            world.log.push(format!("{} somebody deletes {name}", world.now()));
            if names.len() > 1 {
                world.delete_machine(&name);
            }
        }
        6 => {
            let minor = random.random_range(33..37);
            world.desired.version = format!("v1.{minor}.1+k3s1");
            world.forget_answers();
            world
                .log
                .push(format!("{} upgrade to {}", world.now(), world.desired.version));
        }
        7 => {
            world.desired.replicas = *[1usize, 3, 5, 7].choose(random).expect("not empty");
            world
                .log
                .push(format!("{} scale to {}", world.now(), world.desired.replicas));
        }
        8 => {
            world.next_fails = random.random_range(0..2);
        }
        9 => {
            world.glitch = true;
            for _ in 0..random.random_range(1..20) {
                world.step();
            }
            world.glitch = false;
        }
        10 => {
            let name = some(random);
            if let Some(machine) = world.machines.get_mut(&name) {
                machine.delete_requested = true;
            }
        }
        11 => {
            world.in_place = [
                InPlaceAnswer::Can,
                InPlaceAnswer::Cannot(vec!["spec.version".into()]),
                InPlaceAnswer::Failed("busy".into()),
                InPlaceAnswer::Nobody,
            ]
            .choose(random)
            .cloned()
            .expect("not empty");
        }
        _ => world
            .model
            .advance(Duration::from_secs(random.random_range(1..120))),
    }
}
