//! Plans for the situations that matter, each settled or refused for the reason it should be.

use std::time::Duration;

use slipway_k3s::{
    api::RolloutStrategyType,
    control_plane::{
        observed::{Hooks, InPlace, InPlaceAnswer, Observed, Workload},
        plan::{Action, Plan, Why, plan},
        select,
    },
};

use super::{
    judgement::{actions, mark, operations, says},
    world::World,
};

/// S-3: a learner blocks scaling, rollouts and remediation.
#[test]
fn a_learner_blocks_everything_until_it_votes() {
    let mut world = World::settled(3);
    world.desired.replicas = 5;
    let mut steps = 0;
    while world.model.members.iter().all(|member| !member.learner) {
        world.model.advance(Duration::from_secs(1));
        world.core();
        if steps < 3 {
            world.reconcile();
        }
        steps += 1;
        assert!(steps < 200, "a server joins");
    }
    world.core();
    let observed = world.observed();
    let plan = plan(&observed, world.now());
    assert!(operations(&plan).is_empty(), "{plan:?}");
    says(&plan, "have not become voters yet");
}

/// S-5: a member without machine and node is removed once, after a while, through k3s' own controller.
#[test]
fn an_orphaned_member_is_announced_and_removed_after_its_grace() {
    let mut world = World::settled(3);
    world.model.advance(Duration::from_mins(1));
    let name = world.names()[0].clone();
    // The machine is torn out without its hook, the host is gone, and its node was deleted while nobody led.
    world.machines.remove(&name);
    world.model.destroy(&name);
    world.model.nodes.remove(&name);
    let orphan = world
        .model
        .members
        .iter()
        .find(|member| member.host == name)
        .expect("its member")
        .name
        .clone();
    let first = world.reconcile();
    assert!(operations(&first).is_empty(), "{first:?}");
    assert!(
        matches!(actions(&first)[..], [Action::AnnounceOrphan { member, .. }] if *member == orphan),
        "it is announced first: {first:?}"
    );
    let second = world.reconcile();
    assert!(operations(&second).is_empty(), "{second:?}");
    says(&second, "has belonged to no machine and no node since");
    let mut removals = 0;
    for _ in 0..60 {
        let plan = world.step();
        removals += plan
            .actions()
            .filter(|action| matches!(action, Action::RemoveOrphan { member, .. } if *member == orphan))
            .count();
    }
    assert_eq!(removals, 1);
    assert!(world.is_settled(), "{}", world.log.join("\n"));
    assert!(
        world
            .model
            .nodes
            .keys()
            .all(|node| !node.starts_with("placeholder-")),
        "the placeholder is cleaned up"
    );
}

/// S-6: a member without a name is left alone: it is a machine's that starts, or k3s evicts it.
#[test]
fn an_unnamed_member_is_tolerated_and_waited_for() {
    let mut world = World::settled(3);
    assert!(world.model.join_and_die("stranger", "v1.33.1+k3s1"));
    world.model.destroy("stranger");
    world.desired.version = "v1.34.1+k3s1".into();
    let plan = world.reconcile();
    assert!(operations(&plan).is_empty(), "{plan:?}");
    says(&plan, "1 etcd member(s) have not become voters yet");
    world.settle();
    assert!(
        world.is_settled(),
        "k3s evicts it and the rollout goes on: {}",
        world.log.join("\n")
    );
}

/// S-7, S-8, S-9: machines deleted by hand, two at once, leave one after the other, each after its drain.
#[test]
fn machines_deleted_by_hand_leave_etcd_first_and_one_by_one() {
    let mut world = World::settled(5);
    assert!(
        world.machines.values().all(|machine| machine.hooks.ours),
        "the hook is there from creation"
    );
    let names = world.names();
    world.delete_machine(&names[0]);
    world.delete_machine(&names[1]);
    let plan = world.reconcile();
    assert!(operations(&plan).is_empty(), "nothing before the drain: {plan:?}");
    says(&plan, "waiting for the node of machine server-1 to be drained");
    world.core();
    let plan = world.reconcile();
    assert!(
        matches!(operations(&plan)[..], [Action::RemoveMember { .. }]),
        "{plan:?}"
    );
    let plan = world.reconcile();
    assert_eq!(
        operations(&plan),
        [&Action::ReleaseHook {
            machine: names[0].clone()
        }],
        "only then the host"
    );
    world.settle();
    assert!(world.is_settled(), "{}", world.log.join("\n"));
}

/// S-7: the hook of the community provider is honoured, ours is added to servers that have none.
#[test]
fn legacy_hooks_are_honoured_and_ours_is_added() {
    let mut world = World::settled(3);
    let name = world.names()[1].clone();
    let machine = world.machines.get_mut(&name).expect("the machine");
    machine.hooks = Hooks {
        ours: false,
        legacy: true,
        others: false,
    };
    let observed = world.observed();
    let first = plan(&observed, world.now());
    assert!(
        actions(&first).contains(&&Action::AddHook {
            machine: name.clone()
        }),
        "{first:?}"
    );
    world.delete_machine(&name);
    world.core();
    world.settle();
    assert!(world.is_settled());
}

/// S-8: another controller's hook comes first.
#[test]
fn the_hooks_of_others_are_waited_for() {
    let mut world = World::settled(3);
    let name = world.names()[0].clone();
    world.delete_machine(&name);
    world.core();
    let mut observed = world.observed();
    observed.servers[0].hooks.others = true;
    let plan = plan(&observed, world.now());
    assert!(operations(&plan).is_empty());
    says(&plan, "waits for the pre-terminate hook of another controller");
}

/// S-10: a deleted machine whose node is gone, or whose removal k3s took back, does not hang.
#[test]
fn deletion_goes_on_without_a_node_and_after_a_rejected_removal() {
    let mut world = World::settled(3);
    let name = world.names()[2].clone();
    world.delete_machine(&name);
    world.core();
    world.model.delete_node(&name);
    let plan = world.reconcile();
    assert_eq!(operations(&plan), [&Action::ReleaseHook { machine: name }]);
    world.settle();
    assert!(world.is_settled());

    let name = world.names()[0].clone();
    world.delete_machine(&name);
    world.core();
    let plan = world.reconcile();
    assert!(matches!(operations(&plan)[..], [Action::RemoveMember { .. }]));
    let mut observed = world.observed();
    if let Workload::Reachable(view) = &mut observed.workload {
        // As k3s leaves it when etcd refuses: the member is still there, the request is not.
        let node = view
            .nodes
            .iter_mut()
            .find(|node| node.name == name)
            .expect("the node");
        node.member = node.removed_member.take();
        let member = node.member.clone().expect("its name");
        view.members
            .as_mut()
            .expect("members")
            .push(slipway_k3s::control_plane::observed::Member {
                name: member,
                ..Default::default()
            });
    }
    let again = slipway_k3s::control_plane::plan::plan(&observed, world.now());
    assert!(
        matches!(operations(&again)[..], [Action::RemoveMember { .. }]),
        "asked again: {again:?}"
    );
}

/// S-12: authorities that are missing block a joining server; nothing else is made from them.
#[test]
fn missing_authorities_block_joining() {
    let mut world = World::settled(3);
    world.desired.replicas = 5;
    let mut observed = world.observed();
    observed.missing_secrets = vec!["secret c-etcd".into()];
    let plan = plan(&observed, world.now());
    assert!(operations(&plan).is_empty());
    says(&plan, "a server cannot join without secret c-etcd");
}

/// S-14: whatever point a controller stops at, the next one goes on: a plan holds no memory, so planning twice from
/// the same facts, or dropping any one write, ends the same.
#[test]
fn a_lost_write_is_made_again() {
    for lost in 0..12 {
        let mut world = World::settled(3);
        world.desired.version = "v1.34.1+k3s1".into();
        let mut writes = 0;
        for _ in 0..400 {
            world.model.advance(Duration::from_secs(15));
            world.core();
            let observed = world.observed();
            let planned = plan(&observed, world.now());
            if !operations(&planned).is_empty() {
                writes += 1;
                if writes == lost {
                    continue;
                }
            }
            world.reconcile();
        }
        assert!(world.is_settled(), "lost write {lost}:\n{}", world.log.join("\n"));
    }
}

/// S-16: a first machine that fails is replaced, and its replacement initialises.
#[test]
fn a_failed_first_machine_is_replaced_by_one_that_initialises() {
    let mut world = World::new(3);
    world.next_fails = 1;
    world.settle();
    assert!(world.is_settled(), "{}", world.log.join("\n"));
    let created = |line: &&String| line.contains("CreateServer");
    assert_eq!(world.log.iter().filter(created).count(), 4, "{:?}", world.log);
}

/// S-25: surge 1 adds before it deletes; surge 0 deletes first.
#[test]
fn surge_decides_which_comes_first() {
    for (surge, create_first) in [(1, true), (0, false)] {
        let mut world = World::settled(3);
        world.desired.max_surge = surge;
        world.desired.version = "v1.34.1+k3s1".into();
        let (mut most, mut least) = (3, 3);
        let first = world.reconcile();
        assert_eq!(
            matches!(operations(&first)[..], [Action::CreateServer { .. }]),
            create_first,
            "{first:?}"
        );
        for _ in 0..400 {
            world.step();
            most = most.max(world.model.voters());
            least = least.min(world.model.voters());
        }
        assert!(world.is_settled());
        assert_eq!((most, least), if create_first { (4, 3) } else { (3, 2) });
    }
}

/// S-26: outdated and marked, marked, outdated; then the fullest domain; then the oldest.
#[test]
fn the_next_server_to_go_is_chosen_in_order() {
    let mut world = World::settled(3);
    let mut observed = world.observed();
    let time = world.now();
    let pick = |observed: &Observed| select::to_remove(observed, time).map(|server| server.name.clone());
    assert_eq!(pick(&observed).as_deref(), Some("server-1"), "the oldest");
    observed.servers[1].failure_domain = Some("a".into());
    observed.servers[2].failure_domain = Some("a".into());
    assert_eq!(pick(&observed).as_deref(), Some("server-2"), "the fullest domain");
    observed.servers[0].outdated = vec![slipway_k3s::control_plane::observed::Outdated::RolloutAfter];
    assert_eq!(pick(&observed).as_deref(), Some("server-1"), "the outdated one");
    observed.servers[2].delete_requested = true;
    assert_eq!(pick(&observed).as_deref(), Some("server-3"), "the marked one");
    observed.servers[1].delete_requested = true;
    observed.servers[1].outdated = vec![slipway_k3s::control_plane::observed::Outdated::RolloutAfter];
    assert_eq!(
        pick(&observed).as_deref(),
        Some("server-2"),
        "the marked and outdated one"
    );
}

/// S-34: servers of both label eras in one cluster.
#[test]
fn a_rollout_crosses_the_change_of_role_labels() {
    let mut world = World::settled(3);
    for version in ["v1.34.1+k3s1", "v1.35.1+k3s1", "v1.36.1+k3s1"] {
        world.desired.version = version.into();
        world.settle();
        assert!(world.is_settled(), "{version}: {}", world.log.join("\n"));
    }
}

/// S-35: a spec that is set back in the middle of an upgrade converges.
#[test]
fn an_upgrade_that_is_taken_back_halfway_converges() {
    let mut world = World::settled(3);
    world.desired.version = "v1.34.1+k3s1".into();
    while world
        .machines
        .values()
        .filter(|machine| machine.version == "v1.34.1+k3s1")
        .count()
        < 2
    {
        world.step();
    }
    let versions: std::collections::BTreeSet<&str> = world
        .machines
        .values()
        .map(|machine| machine.version.as_str())
        .collect();
    assert_eq!(versions.len(), 2, "halfway: {versions:?}");
    world.desired.version = "v1.33.1+k3s1".into();
    world.settle();
    assert!(world.is_settled(), "{}", world.log.join("\n"));
}

/// S-36: one server becomes two and one again; the only healthy voter is never the one that leaves.
#[test]
fn a_single_server_is_upgraded_through_a_second() {
    let mut world = World::settled(1);
    world.desired.version = "v1.34.1+k3s1".into();
    let mut most = 1;
    for _ in 0..100 {
        world.step();
        most = most.max(world.machines.len());
        assert!(world.model.has_quorum());
    }
    assert_eq!(most, 2);
    assert!(world.is_settled());
}

/// S-36: a replacement that never comes up costs nothing.
#[test]
fn a_single_server_survives_a_replacement_that_never_comes_up() {
    let mut world = World::settled(1);
    world.desired.version = "v1.34.1+k3s1".into();
    world.next_fails = 2;
    world.settle();
    assert!(world.is_settled(), "{}", world.log.join("\n"));
}

/// S-37: a ClusterClass that is about to bring a version is waited for; its present step is not.
#[test]
fn a_version_on_its_way_from_the_topology_is_waited_for() {
    let mut world = World::settled(3);
    world.desired.replicas = 5;
    let mut observed = world.observed();
    observed.cluster.topology_version = Some("v1.35.1+k3s1".into());
    let waiting = plan(&observed, world.now());
    assert!(operations(&waiting).is_empty());
    says(
        &waiting,
        "waiting for the version v1.35.1+k3s1 to be propagated from Cluster.spec.topology",
    );
    observed.cluster.upgrade_step = Some(world.desired.version.clone());
    assert!(matches!(
        operations(&plan(&observed, world.now()))[..],
        [Action::CreateServer { .. }]
    ));
}

/// S-38: in place where the extension covers the change, also with a single server; replaced where it does not.
#[test]
fn servers_are_updated_in_place_one_at_a_time() {
    for replicas in [1, 3] {
        let mut world = World::settled(replicas);
        let before = world.names();
        world.desired.strategy = RolloutStrategyType::InPlace;
        world.desired.version = "v1.34.1+k3s1".into();
        world.settle();
        assert!(world.is_settled(), "{}", world.log.join("\n"));
        assert_eq!(world.names(), before, "no machine was replaced");
    }
    let mut world = World::settled(3);
    let before = world.names();
    world.desired.strategy = RolloutStrategyType::InPlace;
    world.in_place = InPlaceAnswer::Cannot(vec!["spec.files".into()]);
    world.desired.version = "v1.34.1+k3s1".into();
    world.settle();
    assert!(world.is_settled());
    assert!(
        world.names().iter().all(|name| !before.contains(name)),
        "all machines were replaced"
    );
}

/// S-38: an external rollout that is not covered waits, and says for which fields.
#[test]
fn an_external_rollout_never_replaces() {
    let mut world = World::settled(3);
    let before = world.names();
    world.desired.strategy = RolloutStrategyType::External;
    world.in_place = InPlaceAnswer::Cannot(vec!["spec.files".into()]);
    world.desired.version = "v1.34.1+k3s1".into();
    let mut last = Plan::default();
    for _ in 0..50 {
        last = world.step();
    }
    assert_eq!(world.names(), before);
    says(&last, "the strategy External forbids to replace it: spec.files");
}

/// S-38: a half-triggered update is carried to its end before anything else, and remediation still works beside one.
#[test]
fn a_half_triggered_update_goes_on_and_a_stuck_one_can_be_remediated() {
    let mut world = World::settled(3);
    let mut observed = world.observed();
    observed.servers[1].in_place = InPlace::HalfTriggered;
    let name = observed.servers[1].name.clone();
    assert_eq!(
        operations(&plan(&observed, world.now())),
        [&Action::UpdateInPlace {
            machine: name.clone()
        }]
    );
    observed.servers[1].in_place = InPlace::Updating;
    let waiting = plan(&observed, world.now());
    assert!(operations(&waiting).is_empty());
    mark(&mut observed, &name);
    if let Workload::Reachable(view) = &mut observed.workload {
        view.nodes
            .iter_mut()
            .find(|node| node.name == name)
            .expect("the node")
            .ready = false;
    }
    assert!(matches!(
        operations(&plan(&observed, world.now()))[..],
        [Action::DeleteServer {
            why: Why::Remediation(_),
            ..
        }]
    ));
}
