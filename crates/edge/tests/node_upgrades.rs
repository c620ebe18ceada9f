//! NodeUpgrades: stories in golden files, tables of single decisions, and random troubles at every step.

use jiff::SignedDuration;
use proptest::prelude::*;
use slipway_agent_api::{order::Order as CheckedOrder, proto::start_request::Verb};
use slipway_edge::{
    node_upgrade::{
        Action,
        api::{Distribution, OnDrainTimeout, Phase, Role},
        drain::Pods,
        facts::{Order, OrderState, Recorded},
    },
    orders,
};

use crate::{
    golden::golden,
    upgrade_world::{OLD_VERSION, World},
};

#[test]
fn a_worker_is_upgraded() {
    golden("worker.golden", &World::new().story());
}

#[test]
fn the_only_server_saves_its_etcd_first() {
    golden("only-server.golden", &World::single_server().story());
}

#[test]
fn a_server_of_kubeadm_runs_its_upgrade_after_the_switch() {
    let mut world = World::new();
    world.spec.role = Role::ControlPlane;
    world.spec.distribution = Distribution::Kubeadm;
    world.cluster.etcd_members = 3;
    golden("kubeadm-server.golden", &world.story());
}

/// The operator's half: the host says why it went back, and the upgrade says it on.
#[test]
fn e28_a_host_that_does_not_boot_the_image_is_rolled_back_with_the_reason() {
    let mut world = World::new();
    world.troubles.does_not_boot = true;
    golden("does-not-boot.golden", &world.story());
    assert_eq!(world.recorded.phase, Phase::RolledBack);
    assert_eq!(world.recorded.message, "slot B did not come up in 3 tries");
    // Another upgrade to the same image is refused by the host's memory, before anybody is drained.
    let mut again = World::new();
    again.host.quarantined.clone_from(&world.host.quarantined);
    golden("quarantined.golden", &again.story());
    assert_eq!(again.arms, 0);
}

#[test]
fn a_node_that_does_not_become_ready_goes_back() {
    let mut world = World::new();
    world.troubles.boots_never_to_be_ready = true;
    golden("never-ready.golden", &world.story());
    assert_eq!(world.recorded.phase, Phase::RolledBack);
    assert_eq!(world.recorded.message, "after 15 minutes the node is not ready");
    assert_eq!(world.node.kubelet_version, OLD_VERSION);
}

#[test]
fn e56_a_drain_that_a_budget_holds_up_says_so_and_uncordons_at_its_deadline() {
    let mut world = World::new();
    world.troubles.pods_never_leave = true;
    world.node.pods = Pods {
        to_evict: vec!["shop/db-0".to_owned()],
        held_back: [("shop/db-0".to_owned(), "db".to_owned())].into(),
        ..Pods::default()
    };
    world.until(Phase::Draining);
    world.pass(1);
    let draining = world.step();
    assert_eq!(
        draining.message, "PodDisruptionBudget db holds back Pod shop/db-0",
        "it is told who holds it up"
    );
    world.until(Phase::Prepared);
    assert!(world.node.cordoned_by_us.is_none() && world.arms == 0);
    let waits = world.step();
    assert_eq!(
        (waits.reason, waits.message.as_str()),
        ("DrainTimedOut", "the drain took longer than 30 minutes")
    );
    // An hour later it is tried again, and again.
    world.until(Phase::Draining);
    assert_eq!(
        world.now.duration_since(world.start),
        SignedDuration::from_mins(92)
    );
    // Whoever says so reboots with what is left.
    world.spec.drain.on_timeout = OnDrainTimeout::Reboot;
    world.until(Phase::Done);
    assert_eq!(world.arms, 1);
}

#[test]
fn e19_health_checks_are_kept_off_while_it_reboots_and_no_longer_than_the_deadline() {
    let mut world = World::new();
    world.troubles.reboots_take_minutes = 6;
    let mut phases = Vec::new();
    while !world.recorded.phase.is_terminal() {
        world.step();
        let kept = world
            .machine
            .as_ref()
            .is_some_and(|machine| machine.kept_off_since.is_some());
        if kept && phases.last() != Some(&world.recorded.phase) {
            phases.push(world.recorded.phase);
        }
        world.pass(1);
    }
    assert_eq!(
        phases,
        [Phase::Rebooting],
        "a six-minute reboot, and nothing but that"
    );
    // A host that does not come back is checked like any other after the deadline.
    let mut lost = World::new();
    lost.troubles.reboots_take_minutes = 600;
    lost.until(Phase::Rebooting);
    let armed = lost.now;
    while lost
        .machine
        .as_ref()
        .is_some_and(|machine| machine.kept_off_since.is_some())
    {
        lost.pass(1);
        lost.step();
    }
    assert_eq!(lost.now.duration_since(armed), SignedDuration::from_mins(20));
    assert_eq!(lost.recorded.phase, Phase::Rebooting);
}

#[test]
fn e20_a_machine_that_is_deleted_in_the_middle_ends_its_upgrade() {
    for phase in [
        Phase::Caching,
        Phase::Preparing,
        Phase::Draining,
        Phase::Rebooting,
    ] {
        let mut world = World::new();
        world.until(phase);
        if let Some(machine) = &mut world.machine {
            machine.is_deleting = true;
        }
        let decision = world.step();
        assert_eq!(decision.phase, Phase::Cancelled, "{phase}");
        assert_eq!(decision.message, "Machine m-1 is being deleted");
        assert!(world.node.cordoned_by_us.is_none(), "{phase}");
        let written = matches!(phase, Phase::Preparing | Phase::Draining);
        assert_eq!(
            world.abandoned, written,
            "{phase}: a slot that was prepared is given up"
        );
    }
}

#[test]
fn a_newer_upgrade_takes_its_place_unless_the_host_reboots_already() {
    let mut world = World::new();
    world.until(Phase::Draining);
    world.newer = Some("m-1-newer".to_owned());
    golden("superseded.golden", &world.story());
    assert!(world.abandoned && world.arms == 0);
    // What the host was told to boot decides about itself first.
    let mut rebooting = World::new();
    rebooting.until(Phase::Rebooting);
    rebooting.newer = Some("m-1-newer".to_owned());
    rebooting.story();
    assert_eq!(rebooting.recorded.phase, Phase::Done);
}

#[test]
fn what_holds_up_a_drain_uncordons_the_node_meanwhile() {
    for hold in [
        |world: &mut World| world.is_halted = true,
        |world: &mut World| world.host.maintenance = Some("new fan".to_owned()),
        |world: &mut World| world.is_reachable = false,
    ] {
        let mut world = World::new();
        world.troubles.pods_never_leave = true;
        world.until(Phase::Draining);
        hold(&mut world);
        let decision = world.step();
        assert_eq!(decision.phase, Phase::Prepared, "{}", decision.message);
        assert!(world.node.cordoned_by_us.is_none(), "{}", decision.message);
    }
}

/// E-55: applications of the cluster are a gate for whoever is next, and not for who is on its way.
#[test]
fn e55_what_is_not_well_is_waited_for_by_name_before_the_drain_and_not_after() {
    let ill = || vec!["Deployment shop/front is not available: 1 of 3 Pods are".to_owned()];
    let mut world = World::new();
    world.unhealthy = ill();
    world.until(Phase::Prepared);
    for _ in 0..60 {
        world.pass(1);
        let waits = world.step();
        assert_eq!(
            (waits.phase, waits.reason, waits.message.as_str()),
            (
                Phase::Prepared,
                "NotHealthy",
                "Deployment shop/front is not available: 1 of 3 Pods are"
            )
        );
    }
    assert!(!world.node.is_cordoned && !world.has_place);
    world.unhealthy.clear();
    world.until(Phase::Draining);
    world.unhealthy = ill();
    world.until(Phase::Done);
}

#[test]
fn versions_are_checked_before_the_node_is_drained() {
    let told = |change: fn(&mut World)| {
        let mut world = World::new();
        change(&mut world);
        let text = world.story();
        assert_eq!(world.arms, 0);
        text.lines().next().expect("a decision").to_owned()
    };
    assert_eq!(
        told(|world| world.node.kubelet_version = "v1.34.9+k3s1".to_owned()),
        "+0 min  Failed: v1.34.3+k3s1 is older than v1.34.9+k3s1: set allowDowngrade if that is meant"
    );
    assert_eq!(
        told(|world| {
            world.spec.role = Role::ControlPlane;
            world.node.kubelet_version = "v1.32.0+k3s1".to_owned();
        }),
        "+0 min  Failed: v1.32.0+k3s1 cannot become v1.34.3+k3s1 in one go: control planes go one minor version at a time"
    );
    // A worker ahead of its control plane is prepared, and waits for it.
    let mut ahead = World::new();
    ahead.cluster.control_plane = "v1.33.0+k3s1".parse().ok();
    ahead.until(Phase::Prepared);
    let waits = ahead.step();
    assert_eq!(waits.reason, "VersionSkew");
    assert!(
        waits.message.ends_with("upgrade the control plane first"),
        "{}",
        waits.message
    );
    ahead.cluster.control_plane = "v1.34.3+k3s1".parse().ok();
    ahead.story();
    assert_eq!(ahead.recorded.phase, Phase::Done);
}

#[test]
fn an_only_server_of_kubeadm_without_a_way_to_save_etcd_is_not_touched() {
    let mut world = World::single_server();
    world.spec.distribution = Distribution::Kubeadm;
    world.story();
    assert_eq!((world.recorded.phase, world.arms), (Phase::Failed, 0));
    assert!(world.recorded.message.contains("spec.snapshotCommand"));
}

#[test]
fn a_fetch_that_fails_is_tried_again_and_one_that_cannot_succeed_is_not() {
    let mut world = World::new();
    world.troubles.fetches_fail = 3;
    world.story();
    assert_eq!(world.recorded.phase, Phase::Done);
    assert_eq!(world.host.orders[&Order::Ensure].attempt, 4);
    for order in [Order::Ensure, Order::Prepare] {
        let mut world = World::new();
        world.troubles.order_fails_for_good = Some(order);
        world.story();
        assert_eq!(
            (world.recorded.phase, world.arms),
            (Phase::Failed, 0),
            "{order:?}"
        );
        assert!(world.recorded.message.ends_with("failed: it does not fit"));
    }
}

/// What is ordered is what the agent takes, for every order there is.
#[test]
fn orders_are_as_the_agents_protocol_asks() {
    let mut world = World::single_server();
    world.spec.distribution = Distribution::Kubeadm;
    world.spec.version = "v1.34.3".to_owned();
    world.spec.snapshot_command = vec!["save-etcd".to_owned()];
    let facts = world.facts();
    for order in Order::ALL {
        let reason = "the node is\nnot ready ".repeat(60);
        let request = orders::of_upgrade(&facts, order, 2, 7, &reason);
        let checked = CheckedOrder::check(request).unwrap_or_else(|problem| panic!("{order:?}: {problem}"));
        assert_eq!(checked.id, format!("up-{}-2", order.name()));
        assert_eq!((checked.host.as_str(), checked.generation), ("box-1", 7));
    }
    let step = |is_applied| {
        let mut facts = facts.clone();
        facts.cluster.is_applied = is_applied;
        match orders::of_upgrade(&facts, Order::Kubernetes, 1, 1, "").verb {
            Some(Verb::KubernetesStep(step)) => format!("{step:?}"),
            other => panic!("{other:?}"),
        }
    };
    assert!(
        step(false).contains("v1.34.3"),
        "the first server applies the version"
    );
    assert!(
        !step(true).contains("v1.34.3"),
        "the others take it from the cluster"
    );
}

/// One thing that happens between two decisions.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    Nothing,
    Minutes(i64),
    HostAway,
    HostBack,
    AgentRestarts,
    /// `clusterctl move`, or somebody's hand: the status is gone.
    StatusLost,
    ManagerRestarts,
    /// Something that the policy wants to be well is not.
    NotHealthy(bool),
    GateCloses,
    GateOpens,
    Maintenance(bool),
    /// The n-th action of the next plan never arrives, nor do those after it.
    ActionLost(usize),
    PodsStay(bool),
    MachineDeleted,
    Newer,
}

fn trouble() -> impl Strategy<Value = Trouble> {
    prop_oneof![
        6 => Just(Trouble::Nothing),
        4 => (1..40_i64).prop_map(Trouble::Minutes),
        1 => Just(Trouble::HostAway),
        2 => Just(Trouble::HostBack),
        1 => Just(Trouble::AgentRestarts),
        2 => Just(Trouble::StatusLost),
        2 => Just(Trouble::ManagerRestarts),
        2 => any::<bool>().prop_map(Trouble::NotHealthy),
        1 => Just(Trouble::GateCloses),
        2 => Just(Trouble::GateOpens),
        1 => any::<bool>().prop_map(Trouble::Maintenance),
        3 => (0..3_usize).prop_map(Trouble::ActionLost),
        1 => any::<bool>().prop_map(Trouble::PodsStay),
        1 => Just(Trouble::MachineDeleted),
        1 => Just(Trouble::Newer),
    ]
}

fn meet(world: &mut World, trouble: Trouble) {
    match trouble {
        Trouble::Nothing | Trouble::ActionLost(_) => {}
        Trouble::Minutes(minutes) => world.pass(minutes),
        Trouble::HostAway => world.is_reachable = false,
        Trouble::HostBack => world.is_reachable = true,
        Trouble::AgentRestarts => world.restart_agent(),
        Trouble::StatusLost => world.recorded = Recorded::default(),
        Trouble::ManagerRestarts => world.has_place = false,
        Trouble::NotHealthy(not) => {
            world.unhealthy = not
                .then(|| "Node box-3 is not ready".to_owned())
                .into_iter()
                .collect();
        }
        Trouble::GateCloses => world.is_halted = true,
        Trouble::GateOpens => world.is_halted = false,
        Trouble::Maintenance(on) => world.host.maintenance = on.then(|| "new fan".to_owned()),
        Trouble::PodsStay(stay) => world.troubles.pods_never_leave = stay,
        Trouble::MachineDeleted => {
            if let Some(machine) = &mut world.machine {
                machine.is_deleting = true;
            }
        }
        Trouble::Newer => world.newer = Some("m-1-newer".to_owned()),
    }
}

/// What holds after every decision that was carried out.
fn rules(world: &World, was_lost: bool) {
    let phase = world.recorded.phase;
    assert!(world.arms <= 1, "a host is armed once");
    let is_kept_off = world
        .machine
        .as_ref()
        .is_some_and(|machine| machine.kept_off_since.is_some());
    if !was_lost {
        assert!(
            phase.disturbs() || world.node.cordoned_by_us.is_none(),
            "{phase} with a node that is cordoned"
        );
        assert!(
            !is_kept_off || matches!(phase, Phase::Rebooting | Phase::Verifying | Phase::RollingBack),
            "{phase} with health checks kept off"
        );
    }
    let is_going = world.machine.as_ref().is_some_and(|machine| machine.is_deleting);
    if world.boots_at.is_some() && is_kept_off && !is_going {
        assert!(!phase.is_terminal(), "{phase} in the middle of a reboot");
    }
    if phase == Phase::Done {
        assert_eq!(world.node.kubelet_version, world.spec.version);
    }
    if phase == Phase::RolledBack {
        assert_eq!(world.node.kubelet_version, OLD_VERSION);
        assert!(!world.recorded.message.is_empty(), "a rollback says why");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, failure_persistence: None, ..ProptestConfig::default() })]

    /// Restarts, lost writes and lost statuses at every phase: nothing is done twice, and every end leaves host, node and machine clean.
    #[test]
    fn e16_whatever_happens_it_ends_and_leaves_nothing_behind(
        troubles in proptest::collection::vec(trouble(), 0..60),
        does_not_boot in any::<bool>(),
        never_ready in any::<bool>(),
        only_server in any::<bool>(),
    ) {
        let mut world = if only_server { World::single_server() } else { World::new() };
        world.troubles.does_not_boot = does_not_boot;
        world.troubles.boots_never_to_be_ready = never_ready;
        for trouble in troubles {
            meet(&mut world, trouble);
            let decision = world.decide();
            let lost = match trouble {
                Trouble::ActionLost(number) => decision.plan.actions().nth(number).cloned(),
                _ => None,
            };
            world.act(&decision, |action| Some(action) == lost.as_ref());
            rules(&world, lost.is_some());
            world.pass(1);
        }
        // The troubles end, and so does the upgrade.
        world.is_reachable = true;
        world.is_halted = false;
        world.unhealthy.clear();
        world.host.maintenance = None;
        world.troubles.pods_never_leave = false;
        let mut steps = 0;
        while !(world.recorded.phase.is_terminal() && world.is_clean()) {
            world.step();
            rules(&world, false);
            world.pass(1);
            steps += 1;
            prop_assert!(steps < 400, "it never ends: {:?}", world.recorded);
        }
        prop_assert_eq!(world.decide().plan.actions().cloned().collect::<Vec<Action>>(), []);
        let is_going = world.machine.as_ref().is_some_and(|machine| machine.is_deleting);
        if !is_going && world.newer.is_none() && !does_not_boot && !never_ready {
            prop_assert_eq!(world.recorded.phase, Phase::Done);
        }
        if world.host.orders.get(&Order::Arm).is_some_and(|order| order.state == OrderState::Succeeded) && !is_going {
            let expected = if does_not_boot || never_ready { Phase::RolledBack } else { Phase::Done };
            // A host that was away when its status was lost and a newer upgrade came is left to that one.
            let is_left = world.newer.is_some() && world.recorded.phase == Phase::Superseded;
            prop_assert!(world.recorded.phase == expected || is_left, "{:?}", world.recorded);
        }
    }
}

/// What a host answers in the agent's protocol is what the upgrade is decided from: states, not words.
#[test]
fn a_hosts_answers_become_facts() {
    use slipway_agent_api::proto::{self, OperationState, ProblemClass, UpgradeState};
    use slipway_edge::node_upgrade::{
        facts::{Order, OrderState},
        reading::{Answers, reached},
    };

    let upgrade = |id: &str, state: UpgradeState, reason: &str| proto::Upgrade {
        id: id.to_owned(),
        slot: "B".to_owned(),
        state: state.into(),
        reason: reason.to_owned(),
        ..proto::Upgrade::default()
    };
    let operation = |id: &str, state: OperationState, class: Option<ProblemClass>| proto::Operation {
        id: id.to_owned(),
        state: state.into(),
        accepted_at: 1_000,
        problem: class.map(|class| proto::Problem {
            class: class.into(),
            ..proto::Problem::default()
        }),
        progress: Some(proto::Progress {
            bytes_done: 3,
            bytes_total: 4,
            ..proto::Progress::default()
        }),
        ..proto::Operation::default()
    };
    let mut host = proto::Host {
        booted_slot: "A".to_owned(),
        slots: vec![proto::Slot {
            name: "A".to_owned(),
            boot: "good".to_owned(),
            image: "sha256:old".to_owned(),
            ..proto::Slot::default()
        }],
        quarantined: vec![proto::QuarantinedImage {
            digest: "sha256:new".to_owned(),
            reason: "it did not come up".to_owned(),
            ..proto::QuarantinedImage::default()
        }],
        ..proto::Host::default()
    };
    let operations = [
        operation(
            "uid-1-ensure-1",
            OperationState::Failed,
            Some(ProblemClass::Transient),
        ),
        operation("uid-1-ensure-2", OperationState::Running, None),
        operation(
            "uid-1-prepare-1",
            OperationState::Failed,
            Some(ProblemClass::Terminal),
        ),
        operation("uid-1-arm-1", OperationState::Interrupted, None),
        // Of another upgrade whose id begins alike, and of nobody.
        operation("uid-10-arm-9", OperationState::Succeeded, None),
        operation("uid-1-dance-1", OperationState::Succeeded, None),
    ];
    let images = [proto::Image {
        digest: "sha256:new".to_owned(),
        users: vec![proto::ImageUser {
            kind: "pin".to_owned(),
            name: "uid-1".to_owned(),
            until: 0,
        }],
        ..proto::Image::default()
    }];
    let facts = |host: &proto::Host| {
        let answers = Answers {
            host,
            operations: &operations,
            images: &images,
            maintenance: None,
        };
        reached(answers, "uid-1", "sha256:new")
    };
    let told = facts(&host);
    assert!(told.runs("sha256:old") && told.is_pinned && !told.holds_slot);
    assert_eq!(told.quarantined.as_deref(), Some("it did not come up"));
    let states: Vec<_> = told
        .orders
        .iter()
        .map(|(order, facts)| (*order, facts.attempt, facts.state, facts.percent))
        .collect();
    assert_eq!(
        states,
        [
            (Order::Ensure, 2, OrderState::Running, Some(75)),
            (Order::Prepare, 1, OrderState::FailedForGood, Some(75)),
            (Order::Arm, 1, OrderState::Interrupted, Some(75)),
        ]
    );
    for (state, holds, left) in [
        (UpgradeState::Writing, true, None),
        (UpgradeState::Prepared, true, None),
        (UpgradeState::Armed, true, None),
        (UpgradeState::GivenUp, false, None),
        (UpgradeState::RolledBack, false, Some("too slow")),
    ] {
        // The same upgrade may be prepared again after it was given up: the last one counts.
        host.upgrades = vec![
            upgrade("uid-1", UpgradeState::GivenUp, ""),
            upgrade("uid-1", state, "too slow"),
            upgrade("uid-2", UpgradeState::Failed, "another"),
        ];
        let told = facts(&host);
        assert_eq!(
            (told.holds_slot, told.left_because.as_deref()),
            (holds, left),
            "{state:?}"
        );
    }
    // A slot that runs on trial is not one that is held for later.
    host.upgrades = vec![upgrade("uid-1", UpgradeState::Armed, "")];
    host.booted_slot = "B".to_owned();
    assert!(!facts(&host).holds_slot);
}

/// Orders name an image as a registry does, slots by their signed manifest. An agent tells both; one that does not is understood by the
/// upgrade that brought the image, and refuses what is in quarantine itself.
#[test]
fn a_slot_is_known_by_what_orders_call_its_image() {
    use slipway_agent_api::proto::{self, UpgradeState};
    use slipway_edge::node_upgrade::reading::{Answers, reached};

    let host = |digests: &[&str], upgrades: Vec<proto::Upgrade>| proto::Host {
        booted_slot: "B".to_owned(),
        slots: vec![proto::Slot {
            name: "B".to_owned(),
            boot: "good".to_owned(),
            image: "sha256:signed".to_owned(),
            digests: digests.iter().map(|digest| (*digest).to_owned()).collect(),
            ..proto::Slot::default()
        }],
        quarantined: vec![proto::QuarantinedImage {
            digest: "sha256:signed".to_owned(),
            reason: "it did not come up".to_owned(),
            digests: digests.iter().map(|digest| (*digest).to_owned()).collect(),
        }],
        upgrades,
        ..proto::Host::default()
    };
    let upgrade = |id: &str| proto::Upgrade {
        id: id.to_owned(),
        image: "sha256:signed".to_owned(),
        slot: "B".to_owned(),
        state: UpgradeState::Confirmed.into(),
        ..proto::Upgrade::default()
    };
    for (host, is_it) in [
        (host(&["sha256:pushed"], vec![]), true),
        (host(&["sha256:first", "sha256:pushed"], vec![]), true),
        (host(&["sha256:other"], vec![]), false),
        // Agents of before.
        (host(&[], vec![upgrade("uid-1")]), true),
        (host(&[], vec![upgrade("uid-2")]), false),
        (host(&[], vec![]), false),
    ] {
        let answers = Answers {
            host: &host,
            operations: &[],
            images: &[],
            maintenance: None,
        };
        let told = reached(answers, "uid-1", "sha256:pushed");
        assert_eq!(told.runs("sha256:pushed"), is_it, "{host:?}");
        assert_eq!(told.has_booted("sha256:pushed"), is_it);
        assert_eq!(told.quarantined.is_some(), is_it);
    }
    // An empty slot of an agent of before is nobody's.
    let mut empty = host(
        &[],
        vec![proto::Upgrade {
            image: String::new(),
            ..upgrade("uid-1")
        }],
    );
    empty.slots[0].image.clear();
    let answers = Answers {
        host: &empty,
        operations: &[],
        images: &[],
        maintenance: None,
    };
    assert!(!reached(answers, "uid-1", "sha256:pushed").has_booted("sha256:pushed"));
}
