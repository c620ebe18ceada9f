//! Single decisions of a NodeUpgrade, one row each: what stands, and what is next. The stories of `node_upgrades` go through most of them
//! on their way; what they never come by is here.

use jiff::SignedDuration;
use slipway_edge::node_upgrade::{
    api::{Distribution, Phase, Role},
    facts::{Order, OrderFacts, OrderState},
};

use crate::upgrade_world::{NEW, NEW_VERSION, World, slot};

/// What is decided, as `phase reason [actions]`.
fn told(world: &World) -> String {
    let decision = world.decide();
    let actions: Vec<String> = decision.plan.actions().map(ToString::to_string).collect();
    format!("{} {} [{}]", decision.phase, decision.reason, actions.join(", "))
}

fn order(world: &mut World, order: Order, state: OrderState, attempt: u32, minutes_ago: i64) {
    let at = world.now - SignedDuration::from_mins(minutes_ago);
    let given = OrderFacts {
        attempt,
        state,
        message: "it says so".to_owned(),
        percent: None,
        accepted_at: at,
        ended_at: (state != OrderState::Running).then_some(at),
    };
    world.host.orders.insert(order, given);
}

/// The image is cached and its slot written.
fn prepared(mut world: World) -> World {
    order(&mut world, Order::Ensure, OrderState::Succeeded, 1, 5);
    order(&mut world, Order::Prepare, OrderState::Succeeded, 2, 4);
    world.host.holds_slot = true;
    world.host.is_pinned = true;
    world.recorded.phase = Phase::Prepared;
    world
}

/// The host was told to boot the new slot, so many minutes ago.
fn armed(state: OrderState, minutes_ago: i64) -> World {
    let mut world = prepared(World::new());
    order(&mut world, Order::Arm, state, 1, minutes_ago);
    world.host.holds_slot = false;
    world.recorded.phase = Phase::Rebooting;
    let since = world.now - SignedDuration::from_mins(minutes_ago);
    if let Some(machine) = &mut world.machine {
        machine.kept_off_since = Some(since);
    }
    world
}

#[test]
fn etcd_is_saved_on_its_only_server_and_on_nobody_else() {
    assert_eq!(
        told(&prepared(World::single_server())),
        "Prepared Ordered [take its turn, order snapshot]"
    );
    let mut worker = prepared(World::single_server());
    worker.spec.role = Role::Worker;
    assert_eq!(
        told(&worker),
        "Draining Draining [take its turn, cordon the node]"
    );
    let mut one_of_three = prepared(World::single_server());
    one_of_three.cluster.etcd_members = 3;
    assert_eq!(
        told(&one_of_three),
        "Draining Draining [take its turn, cordon the node]"
    );
}

#[test]
fn a_slot_that_the_host_gave_up_is_written_again_under_another_number() {
    let mut world = prepared(World::new());
    world.host.holds_slot = false;
    assert_eq!(told(&world), "Preparing SlotGivenUp [order prepare (try 3)]");
}

#[test]
fn whoever_works_on_the_host_is_not_disturbed_and_a_quarantined_image_is_let_go_of() {
    let mut world = prepared(World::new());
    world.host.maintenance = Some("a disk".to_owned());
    assert_eq!(told(&world), "Prepared Maintenance []");
    world.host.quarantined = Some("it did not boot".to_owned());
    assert_eq!(
        told(&world),
        "Failed Quarantined [give up the prepared slot, let go of the cached image]"
    );
}

#[test]
fn an_order_that_was_interrupted_goes_on_under_its_number() {
    let mut world = World::new();
    order(&mut world, Order::Ensure, OrderState::Interrupted, 3, 1);
    assert_eq!(told(&world), "Caching Interrupted [order ensure (try 3)]");
    let mut world = armed(OrderState::Interrupted, 1);
    world.host.orders.get_mut(&Order::Arm).expect("given").attempt = 1;
    assert_eq!(told(&world), "Rebooting Rebooting [order arm]");
}

#[test]
fn a_reboot_that_takes_too_long_lets_health_checks_in() {
    assert_eq!(told(&armed(OrderState::Running, 1)), "Rebooting Rebooting []");
    let late = told(&armed(OrderState::Running, 600));
    assert_eq!(late, "Rebooting Overdue [let health checks of the machine go on]");
}

#[test]
fn a_host_that_goes_back_is_waited_for() {
    let mut world = armed(OrderState::Succeeded, 30);
    order(&mut world, Order::Rollback, OrderState::Running, 1, 1);
    assert_eq!(told(&world), "RollingBack RollingBack []");
    world.host.booted = Some(slot("B", NEW));
    order(&mut world, Order::Rollback, OrderState::Succeeded, 1, 1);
    assert_eq!(
        told(&world),
        "RollingBack RollingBack []",
        "it still runs the image"
    );
    order(&mut world, Order::Rollback, OrderState::Succeeded, 1, 600);
    assert!(
        told(&world).starts_with("Failed NotRolledBack ["),
        "{}",
        told(&world)
    );
    order(&mut world, Order::Rollback, OrderState::FailedForGood, 1, 1);
    assert!(
        told(&world).starts_with("Failed NotRolledBack ["),
        "{}",
        told(&world)
    );
}

#[test]
fn a_step_of_kubeadm_that_fails_for_good_takes_the_host_back() {
    let mut world = armed(OrderState::Succeeded, 3);
    world.spec.distribution = Distribution::Kubeadm;
    world.host.booted = Some(slot("B", NEW));
    order(&mut world, Order::Kubernetes, OrderState::FailedForNow, 1, 0);
    assert_eq!(told(&world), "Verifying Retrying []");
    order(&mut world, Order::Kubernetes, OrderState::FailedForGood, 1, 0);
    assert_eq!(
        told(&world),
        "RollingBack RollingBack [keep health checks off the machine, order rollback]"
    );
}

/// A host that runs the image already, and was not brought there by this upgrade, is not told to go back by it.
#[test]
fn what_this_upgrade_did_not_bring_is_not_taken_back() {
    let mut world = World::new();
    world.host.booted = Some(slot("A", NEW));
    assert_eq!(
        told(&world),
        "Verifying Verifying []",
        "the kubelet has time to report the version"
    );
    world.now += SignedDuration::from_hours(2);
    assert_eq!(told(&world), "Failed NotVerified []");
    NEW_VERSION.clone_into(&mut world.node.kubelet_version);
    assert_eq!(told(&world), "Done Upgraded []");
}
