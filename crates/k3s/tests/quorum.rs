//! Quorum is never lost by our doing: random schedules of faults, deletions, upgrades and scale operations, with every
//! single write judged (see `world`).

use std::time::Duration;

use jiff::SignedDuration;
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use slipway_k3s::{api::RolloutStrategyType, control_plane::observed::InPlaceAnswer};

use slipway_k3s_sim::model;

use super::{
    truth::{Cause, Verdicts},
    world::World,
};

/// S-1, S-2, S-4: thousands of schedules, with every write and every loss of quorum judged by what is true in the simulator.
#[test]
fn no_write_costs_quorum_over_random_schedules() {
    let full = std::env::var_os("SLIPWAY_TEST_FULL").is_some();
    let number = |name: &str| std::env::var(name).ok().and_then(|number| number.parse().ok());
    let schedules: u64 = number("SLIPWAY_TEST_SCHEDULES").unwrap_or(if full { 100_000 } else { 400 });
    let seed: u64 = number("SLIPWAY_TEST_SEED").unwrap_or(20_260_101);
    let workers = std::thread::available_parallelism()
        .map_or(2, std::num::NonZero::get)
        .min(4) as u64;
    let started = std::time::Instant::now();
    let mut count = Count::default();
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..workers)
            .map(|worker| {
                scope.spawn(move || {
                    let mut count = Count::default();
                    for number in (worker..schedules).step_by(workers as usize) {
                        schedule(seed.wrapping_add(number), &mut count);
                    }
                    count
                })
            })
            .collect();
        for handle in handles {
            count.add(handle.join().expect("no schedule panics"));
        }
    });
    println!(
        "report: k3s quorum: {} schedules (seed {seed}; 1, 3, 5 servers: {:?}) in {:.1} s: {count}",
        count.schedules,
        count.sizes,
        started.elapsed().as_secs_f64(),
    );
    assert!(
        count.failures.is_empty(),
        "{} schedules failed, the first of them:\n{}",
        count.failures.len(),
        count.failures[..count.failures.len().min(5)].join("\n\n")
    );
    assert_eq!(count.schedules, schedules);
    assert_eq!(count.converged, schedules);
    assert_eq!(count.verdicts.living_removed, 0);
    assert_eq!(count.verdicts.losses(Cause::Ours), 0);
    assert_eq!(count.verdicts.unsafe_writes(Cause::Ours), 0);
    // A run in which nothing happens would prove nothing.
    assert!(count.verdicts.removals > schedules && count.verdicts.losses(Cause::Faults) > 0);
}

#[derive(Default)]
struct Count {
    schedules: u64,
    sizes: [u64; 3],
    /// Those whose first servers another provider made.
    taken_over: u64,
    converged: u64,
    /// Those that were without quorum until the hosts that faults took had their power back.
    power_came_back: u64,
    /// Those in which a person removed the annotation that a wait names, because a host never starts k3s.
    helped: u64,
    verdicts: Verdicts,
    failures: Vec<String>,
}

impl Count {
    fn add(&mut self, other: Self) {
        self.schedules += other.schedules;
        for (sum, size) in self.sizes.iter_mut().zip(other.sizes) {
            *sum += size;
        }
        self.taken_over += other.taken_over;
        self.converged += other.converged;
        self.power_came_back += other.power_came_back;
        self.helped += other.helped;
        self.verdicts.add(other.verdicts);
        self.failures.extend(other.failures);
    }
}

impl std::fmt::Display for Count {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let verdicts = &self.verdicts;
        write!(
            formatter,
            "{} converged, {} of them after power came back and {} after somebody let a host go that never started k3s, as \
             the wait asks; {} operations judged, {} unsafe by our doing; {} members \
             removed, {} of them living and to stay; quorum lost {} times: {} by faults alone, {} by a fault during a safe \
             change, {} by our doing; where no evidence could be had in time: {} unsafe writes and {} losses to a fault \
             between answer and write, {} and {} to one whose lease was renewed after the question; {} planes were another \
             provider's",
            self.converged,
            self.power_came_back,
            self.helped,
            verdicts.writes,
            verdicts.unsafe_writes(Cause::Ours),
            verdicts.removals,
            verdicts.living_removed,
            verdicts.losses.len(),
            verdicts.losses(Cause::Faults),
            verdicts.losses(Cause::FaultInChange),
            verdicts.losses(Cause::Ours),
            verdicts.unsafe_writes(Cause::Raced),
            verdicts.losses(Cause::Raced),
            verdicts.unsafe_writes(Cause::LeaseFresh),
            verdicts.losses(Cause::LeaseFresh),
            self.taken_over,
        )
    }
}

/// Runs one schedule, and counts what came of it.
fn schedule(seed: u64, count: &mut Count) {
    let mut random = StdRng::seed_from_u64(seed);
    let size = random.random_range(0..3);
    let replicas = [1usize, 3, 5][size];
    // Servers that another provider made stay until they are replaced.
    let taken_over = random.random_bool(0.1);
    let mut world = if taken_over {
        World::taken_over(replicas)
    } else {
        World::settled(replicas)
    };
    world.counts_verdicts = true;
    world.log.push(format!(
        "seed {seed}, {replicas} servers, taken over: {taken_over}"
    ));
    count.taken_over += u64::from(taken_over);
    count.schedules += 1;
    count.sizes[size] += 1;
    run(&mut world, &mut random);
    let (back, helped) = end_faults(&mut world);
    count.power_came_back += u64::from(back);
    count.helped += u64::from(helped);
    let ours = world.verdicts.losses(Cause::Ours)
        + world.verdicts.unsafe_writes(Cause::Ours)
        + world.verdicts.living_removed;
    let settled = world.is_settled();
    count.converged += u64::from(settled);
    if !settled || ours > 0 {
        let last = {
            let observed = world.observed();
            slipway_k3s::control_plane::plan::plan(&observed, world.now())
        };
        count.failures.push(format!(
            "seed {seed}: settled {settled}, verdicts against us {ours}; {} of {} voters are there, machines {:?}, desired {}, \
             {:?}\n{}\n{last:?}",
            world.model.healthy_voters(),
            world.model.voters(),
            world.names(),
            world.desired.replicas,
            world.model.members,
            world.log.join("\n"),
        ));
    }
    count.verdicts.add(std::mem::take(&mut world.verdicts));
}

/// Faults, deletions, upgrades and scale operations, one after the other.
fn run(world: &mut World, random: &mut StdRng) {
    world.desired.strategy = *[
        RolloutStrategyType::RollingUpdate,
        RolloutStrategyType::RollingUpdate,
        RolloutStrategyType::InPlace,
        RolloutStrategyType::External,
    ]
    .choose(random)
    .expect("not empty");
    world.desired.max_surge = random.random_range(0..=1);
    world.reaches_servers = random.random_bool(0.6);
    world.asks_kubelets = random.random_bool(0.8);
    // Where etcd does not stop a mistake it shows; where evidence comes late etcd is as strict as it really is.
    world.model.strict = !(world.reaches_servers || world.asks_kubelets) || random.random_bool(0.5);
    world.model.timing.annotations = Duration::from_secs(random.random_range(0..30));
    world.model.timing.shutdown = Duration::from_secs(random.random_range(1..60));
    for _ in 0..random.random_range(3..14) {
        world.slow_boot = SignedDuration::from_secs(if random.random_bool(0.1) {
            random.random_range(500..800)
        } else {
            random.random_range(5..90)
        });
        event(world, random);
        for _ in 0..random.random_range(1..30) {
            world.step_by(Duration::from_secs(random.random_range(1..=15)));
        }
    }
}

/// The faults end: what is broken stays broken and must be healed, and where quorum is lost, power comes back. Says whether it
/// had to, and whether somebody had to let a host go that never starts k3s.
fn end_faults(world: &mut World) -> (bool, bool) {
    world.glitch = false;
    world.next_fails = 0;
    world.strikes = None;
    world.slow_boot = SignedDuration::from_secs(45);
    let hosts: Vec<String> = world.model.hosts.keys().cloned().collect();
    for host in &hosts {
        world.fault(|model| model.mend(host));
    }
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
        world.step();
    }
    let back = !world.model.has_quorum();
    if back {
        for host in &hosts {
            world.fault(|model| model.revive(host));
        }
    }
    let mut helped = false;
    for _ in 0..20 {
        world.settle();
        if world.is_settled() || !world.person_helps() {
            break;
        }
        helped = true;
    }
    (back, helped)
}

fn event(world: &mut World, random: &mut StdRng) {
    let names = world.names();
    let some = |random: &mut StdRng| names.choose(random).cloned().unwrap_or_default();
    let tolerated = world.model.voters().saturating_sub(1) / 2;
    let down = world.model.voters() - world.model.healthy_voters();
    match random.random_range(0..18) {
        // Mostly faults the plane can stand, so that healing is what is tested.
        0 | 1 if down < tolerated => {
            let name = some(random);
            world.log.push(format!("{} kill {name}", world.now()));
            world.fault(|model| model.kill(&name));
        }
        2 if random.random_bool(0.1) => {
            let name = some(random);
            world.log.push(format!("{} kill {name} at any rate", world.now()));
            world.fault(|model| model.kill(&name));
        }
        3 => {
            let name = some(random);
            world.log.push(format!("{} revive {name}", world.now()));
            world.fault(|model| model.revive(&name));
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
            world.desired.replicas = *[1usize, 3, 5].choose(random).expect("not empty");
            world
                .log
                .push(format!("{} scale to {}", world.now(), world.desired.replicas));
        }
        8 => {
            world.next_fails = random.random_range(0..2);
        }
        9 => {
            world.log.push(format!("{} nobody answers", world.now()));
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
        12 if down < tolerated => {
            let name = some(random);
            world.log.push(format!("{} cut {name}", world.now()));
            world.fault(|model| model.cut(&name));
        }
        13 => {
            for name in &names {
                world.fault(|model| model.mend(name));
            }
        }
        14 => {
            let name = some(random);
            let label = ["node-role.kubernetes.io/control-plane", model::ETCD_ROLE]
                .choose(random)
                .expect("not empty");
            world
                .log
                .push(format!("{} {label} is taken off {name}", world.now()));
            world.model.remove_label(&name, label);
        }
        15 => {
            let name = some(random);
            world
                .log
                .push(format!("{} the annotation is taken off {name}", world.now()));
            world.model.annotate(&name, model::MEMBER_ANNOTATION, None);
        }
        16 => {
            world.log.push(format!("{} another manager", world.now()));
            world.restart_manager();
        }
        17 if down < tolerated => {
            // Removals are etcd's to refuse then; a real one does.
            world.model.strict = true;
            world.strikes = Some(some(random));
        }
        _ => {
            world.step_by(Duration::from_secs(random.random_range(1..120)));
        }
    }
}
