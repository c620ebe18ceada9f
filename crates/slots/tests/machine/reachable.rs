//! Every state that agent, boot loader, crashes and people can bring a host to, breadth first; and from each of them
//! the way to rest.

use std::collections::{HashSet, VecDeque};

use slipway_slots::Slot;
use slipway_slots::machine::{
    Action, Health, Outcome, Progress, accept, activate, cancel, confirm, roll_back,
};

use super::world::{Content, World, digest, epoch};

const VERSIONS: [&str; 2] = ["2.0", "3.0"];

/// Everything that can happen next.
fn successors(world: &World) -> Vec<World> {
    let mut next = Vec::new();
    let mut add = |change: &dyn Fn(&mut World)| {
        let mut world = world.clone();
        change(&mut world);
        next.push(world);
    };
    let decision = world.decide();
    let healths = match decision.action {
        Action::CheckHealth => vec![Health::Passed, Health::Failed("kubelet is not ready".into())],
        _ => vec![Health::Unknown],
    };
    for health in healths {
        add(&|world| world.perform(&decision.action, &health));
    }
    match decision.action {
        Action::Write => {
            let target = world
                .ledger
                .current
                .as_ref()
                .map(|current| current.operation.target);
            let target = target.expect("a write has a target");
            // Killed half way, half way with the power, or out of sources.
            add(&|world| {
                world.contents[target] = Content::Garbage;
                world.agent_restart();
            });
            add(&|world| {
                world.contents[target] = Content::Garbage;
                world.power_cycle(false);
            });
            add(&|world| {
                world.contents[target] = Content::Garbage;
                world.volatile.written = Some(Err("no source has the right bytes".into()));
            });
        }
        Action::Verify => {
            let target = world
                .ledger
                .current
                .as_ref()
                .map(|current| current.operation.target);
            let target = target.expect("a verification has a target");
            // A bit flipped since it was written.
            add(&|world| {
                world.contents[target] = Content::Garbage;
                world.perform(&Action::Verify, &Health::Unknown);
            });
        }
        _ => {}
    }
    add(&World::agent_restart);
    add(&|world| world.power_cycle(false));
    add(&|world| world.power_cycle(true));
    add(&|world| {
        world.ledger = slipway_slots::machine::Ledger::default();
        world.power_cycle(false);
    });
    // People: at any time, about any operation.
    let facts = world.facts();
    let done = world.ledger.history.len() + usize::from(world.ledger.current.is_some());
    for (at, version) in VERSIONS.iter().enumerate() {
        let id = format!("op-{version}");
        if at >= done
            && let Ok(Some(entry)) = accept(&facts, &id, digest(version), version, epoch(version))
        {
            add(&|world| {
                world.volatile = slipway_slots::machine::Volatile::default();
                world.ledger.apply(&entry);
            });
        }
        if let Ok(Some(entry)) = activate(&facts, &id, 2) {
            add(&|world| world.ledger.apply(&entry));
        }
        if let Ok(Some(entry)) = cancel(&facts, &id) {
            add(&|world| world.ledger.apply(&entry));
        }
        if confirm(&facts, &id) == Ok(true) {
            add(&|world| world.volatile.health = Health::Passed);
        }
    }
    if done < 3
        && let Ok(Some(entry)) = roll_back(&facts, "asked for")
    {
        add(&|world| world.ledger.apply(&entry));
    }
    next
}

/// With nothing else going wrong, every state comes to rest, and the operation with it.
fn converges(world: &World) {
    let mut world = world.clone();
    for _ in 0..60 {
        world.check();
        let decision = world.decide();
        match decision.action {
            Action::Wait if world.volatile.rebooting => world.power_cycle(false),
            Action::Wait => {
                let prepared = world
                    .ledger
                    .current
                    .as_ref()
                    .is_none_or(|current| current.progress == Progress::Verified);
                assert!(prepared, "an operation was forgotten: {world:#?}");
                return;
            }
            Action::Recover => panic!("recovery without damage: {}: {world:#?}", decision.reason),
            action => world.perform(&action, &Health::Passed),
        }
    }
    panic!("it does not come to rest: {world:#?}");
}

#[test]
fn e22_every_reachable_state_points_to_a_verified_slot_and_comes_to_rest() {
    let start = World::installed("1.0");
    let mut known = HashSet::from([format!("{start:?}")]);
    let mut queue = VecDeque::from([start]);
    let mut transitions = 0_u64;
    let (mut rolled_back, mut confirmed, mut on_b) = (0, 0, 0);
    while let Some(world) = queue.pop_front() {
        world.check();
        converges(&world);
        on_b += u64::from(world.booted == Some(Slot::B));
        for ended in &world.ledger.history {
            match ended.outcome {
                Outcome::Confirmed => confirmed += 1,
                Outcome::RolledBack { .. } => {
                    rolled_back += 1;
                    assert!(
                        world.ledger.quarantined.contains_key(&ended.operation.image),
                        "an image that failed is not quarantined: {world:#?}"
                    );
                }
                _ => {}
            }
        }
        for next in successors(&world) {
            transitions += 1;
            if known.insert(format!("{next:?}")) {
                queue.push_back(next);
            }
        }
    }
    println!(
        "report: {} reachable states, {transitions} transitions, all safe and all come to rest",
        known.len()
    );
    assert!(
        rolled_back > 0 && confirmed > 0 && on_b > 0,
        "the walk went nowhere"
    );
}
