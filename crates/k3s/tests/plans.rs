//! Plans for the situations that matter, each settled or refused for the reason it should be.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use slipway_k3s::{
    api::RolloutStrategyType,
    control_plane::{
        observed::{Adoptable, Hooks, InPlace, InPlaceAnswer, Observed, RemediationRecord, Workload},
        plan::{Action, Plan, Why, plan},
        select,
    },
};

use super::world::World;

fn operations(plan: &Plan) -> Vec<&Action> {
    plan.actions
        .iter()
        .filter(|action| action.is_operation())
        .collect()
}

fn says(plan: &Plan, text: &str) {
    assert!(
        plan.waiting.iter().any(|why| why.contains(text)),
        "{text:?} is not in {plan:?}"
    );
}

fn now(world: &World) -> Timestamp {
    world.now()
}

/// Marks a server as failed, the way a health check does.
fn mark(observed: &mut Observed, name: &str) {
    let server = observed
        .servers
        .iter_mut()
        .find(|server| server.name == name)
        .expect("the server");
    server.health_check.failed = true;
    server.health_check.ours_to_remediate = true;
}

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
    let plan = plan(&observed, now(&world));
    assert!(operations(&plan).is_empty(), "{plan:?}");
    says(&plan, "have not become voters yet");
}

/// S-5: a member without machine and node is removed once, after a while, through k3s' own controller.
#[test]
fn a_ghost_is_removed_after_its_grace() {
    let mut world = World::settled(3);
    world.model.advance(Duration::from_mins(1));
    let name = world.names()[0].clone();
    // The machine is torn out without its hook, the host is gone, and its node was deleted while nobody led.
    world.machines.remove(&name);
    world.model.destroy(&name);
    world.model.nodes.remove(&name);
    let ghost = world
        .model
        .members
        .iter()
        .find(|member| member.host == name)
        .expect("its member")
        .name
        .clone();
    let first = world.reconcile();
    assert!(operations(&first).is_empty(), "{first:?}");
    says(&first, "belongs to no machine since");
    let mut removals = 0;
    for _ in 0..60 {
        let plan = world.step();
        removals += plan
            .actions
            .iter()
            .filter(|action| matches!(action, Action::RemoveGhost { member, .. } if *member == ghost))
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
    let first = plan(&observed, now(&world));
    assert!(
        first.actions.contains(&Action::AddHook {
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
    let plan = plan(&observed, now(&world));
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
    let again = slipway_k3s::control_plane::plan::plan(&observed, now(&world));
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
    let plan = plan(&observed, now(&world));
    assert!(operations(&plan).is_empty());
    says(&plan, "a server cannot join without secret c-etcd");
}

/// S-13: nothing is done on top of a write that is not seen yet.
#[test]
fn a_write_that_is_not_seen_yet_is_waited_for() {
    let mut world = World::settled(3);
    world.desired.replicas = 5;
    let mut observed = world.observed();
    observed.unseen_writes = true;
    let plan = plan(&observed, now(&world));
    assert!(plan.actions.is_empty());
    says(&plan, "waiting to see the last change");
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
            let planned = plan(&observed, now(&world));
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
    let created: Vec<&String> = world
        .log
        .iter()
        .filter(|line| line.contains("initialize: true"))
        .collect();
    assert_eq!(created.len(), 2, "{created:?}");
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
            most = most.max(world.machines.len());
            least = least.min(world.machines.len());
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
    let time = now(&world);
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
    let waiting = plan(&observed, now(&world));
    assert!(operations(&waiting).is_empty());
    says(
        &waiting,
        "waiting for the version v1.35.1+k3s1 to be propagated from Cluster.spec.topology",
    );
    observed.cluster.upgrade_step = Some(world.desired.version.clone());
    assert!(matches!(
        operations(&plan(&observed, now(&world)))[..],
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
    assert_eq!(last.blocked_fields, ["spec.files"]);
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
        operations(&plan(&observed, now(&world))),
        [&Action::UpdateInPlace {
            machine: name.clone()
        }]
    );
    observed.servers[1].in_place = InPlace::Updating;
    let waiting = plan(&observed, now(&world));
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
        operations(&plan(&observed, now(&world)))[..],
        [Action::DeleteServer {
            why: Why::Remediation(_),
            ..
        }]
    ));
}

/// S-42: nothing of the proxy is looked at: nodes and the member list are all there is in what is observed.
#[test]
fn operations_need_no_etcd_proxy() {
    let mut world = World::settled(3);
    world.desired.replicas = 5;
    assert!(matches!(
        operations(&world.reconcile())[..],
        [Action::CreateServer { .. }]
    ));
}

/// S-43: an alarm blocks a rollout, not a remediation.
#[test]
fn an_alarm_blocks_rollouts_but_not_remediation() {
    let mut world = World::settled(3);
    let names = world.names();
    for name in &names {
        world.model.hosts.get_mut(name).expect("the host").alarm = true;
    }
    world.model.advance(Duration::from_secs(30));
    world.desired.version = "v1.34.1+k3s1".into();
    let blocked = world.reconcile();
    assert!(operations(&blocked).is_empty());
    says(&blocked, "alarm:NOSPACE");
    world.model.kill(&names[2]);
    world.model.advance(Duration::from_mins(1));
    let mut observed = world.observed();
    mark(&mut observed, &names[2]);
    for server in &mut observed.servers {
        server.outdated.clear();
    }
    let decision = slipway_k3s::control_plane::remediation::decide(&observed, now(&world));
    let text = format!("{decision:?}");
    assert!(
        !text.contains("quorum"),
        "an alarm does not count as a lost voter: {text}"
    );
}

/// S-45: only machines whose remediation is ours.
#[test]
fn machines_of_another_remediator_are_left_alone() {
    let mut world = World::settled(3);
    let mut observed = world.observed();
    observed.servers[0].health_check.failed = true;
    let plan = plan(&observed, now(&world));
    assert!(operations(&plan).is_empty(), "{plan:?}");
}

/// S-46: retry limits and periods, read from annotations alone.
#[test]
fn retries_are_limited_and_spaced() {
    let mut world = World::settled(3);
    let time = now(&world);
    let ask = |observed: &Observed| slipway_k3s::control_plane::remediation::decide(observed, time);
    let mut observed = world.observed();
    let name = observed.servers[0].name.clone();
    mark(&mut observed, &name);
    if let Workload::Reachable(view) = &mut observed.workload {
        view.nodes[0].ready = false;
    }
    observed.desired.remediation.max_retry = Some(2);
    observed.desired.remediation.retry_period = Duration::from_mins(10);
    let with = |seconds_ago: i64, retries: i32, observed: &Observed| {
        let mut observed = observed.clone();
        observed.servers[0].remediation_for = Some(RemediationRecord {
            machine: "first".into(),
            timestamp: time - SignedDuration::from_secs(seconds_ago),
            retry_count: retries,
        });
        format!("{:?}", ask(&observed))
    };
    assert!(with(60, 0, &observed).contains("less than 600 s ago (retryPeriod)"));
    assert!(with(700, 0, &observed).contains("retry_count: 1"));
    assert!(with(700, 2, &observed).contains("replaced 2 times already (maxRetry)"));
    assert!(
        with(3700, 2, &observed).contains("retry_count: 0"),
        "past minHealthyPeriod it is another failure"
    );
}

/// S-47: the only server is not replaced, and it is said why.
#[test]
fn the_only_server_is_not_replaced() {
    let mut world = World::settled(1);
    let mut observed = world.observed();
    mark(&mut observed, "server-1");
    let plan = plan(&observed, now(&world));
    assert!(operations(&plan).is_empty());
    says(&plan, "the only server cannot be replaced");
    assert!(
        plan.actions
            .iter()
            .any(|action| matches!(action, Action::ExplainRemediation { impossible: true, .. }))
    );
}

/// S-48: two of five, one after the other.
#[test]
fn two_failures_of_five_heal_one_after_the_other() {
    let mut world = World::settled(5);
    let names = world.names();
    world.model.kill(&names[0]);
    world.model.kill(&names[1]);
    world.settle();
    assert!(world.is_settled(), "{}", world.log.join("\n"));
    assert!(!world.names().contains(&names[0]) && !world.names().contains(&names[1]));
}

/// S-49: two of three: nothing is deleted, and it recovers alone when one returns.
#[test]
fn two_failures_of_three_make_nothing_worse() {
    let mut world = World::settled(3);
    let names = world.names();
    world.model.kill(&names[0]);
    world.model.kill(&names[1]);
    for _ in 0..100 {
        let plan = world.step();
        assert!(operations(&plan).is_empty(), "{plan:?}");
    }
    assert_eq!(world.names(), names);
    // The health check of core does not know that the API is down.
    let mut observed = world.observed();
    mark(&mut observed, &names[0]);
    let plan = plan(&observed, now(&world));
    assert!(operations(&plan).is_empty());
    says(&plan, "the members of etcd are not known");
    world.model.revive(&names[0]);
    world.settle();
    assert!(world.is_settled(), "{}", world.log.join("\n"));
}

/// S-50: a machine that never got a node is replaced, whatever etcd looks like around it.
#[test]
fn a_machine_that_never_got_a_node_is_replaced() {
    let mut world = World::settled(3);
    world.desired.replicas = 5;
    world.next_fails = 1;
    world.settle();
    assert!(world.is_settled(), "{}", world.log.join("\n"));
}

/// S-51: what a person asked for, then what never got a node, then the most broken.
#[test]
fn the_most_broken_machine_is_replaced_first() {
    let mut world = World::settled(5);
    let mut observed = world.observed();
    let time = now(&world);
    for name in ["server-1", "server-3", "server-4", "server-5"] {
        mark(&mut observed, name);
    }
    let pick = |observed: &Observed| select::to_remediate(observed, time).map(|server| server.name.clone());
    assert_eq!(pick(&observed).as_deref(), Some("server-1"), "the oldest");
    if let Workload::Reachable(view) = &mut observed.workload {
        view.nodes
            .iter_mut()
            .find(|node| node.name == "server-4")
            .expect("the node")
            .ready = false;
    }
    assert_eq!(pick(&observed).as_deref(), Some("server-4"), "the broken one");
    observed.servers[4].node = None;
    assert_eq!(
        pick(&observed).as_deref(),
        Some("server-5"),
        "the one without a node"
    );
    observed.servers[2].remediate_requested = true;
    assert_eq!(pick(&observed).as_deref(), Some("server-3"), "the requested one");
}

/// S-52: a record that outlived its remediation is forgotten.
#[test]
fn a_stale_remediation_is_forgotten() {
    let mut world = World::settled(3);
    world.remediation = Some(RemediationRecord {
        machine: "gone".into(),
        timestamp: now(&world) - SignedDuration::from_hours(1),
        retry_count: 1,
    });
    let plan = world.reconcile();
    assert!(plan.actions.contains(&Action::ForgetRemediation), "{plan:?}");
    assert_eq!(world.remediation, None);
}

/// S-53: an external datastore: no etcd logic, remediation works.
#[test]
fn an_external_datastore_is_remediated_without_etcd() {
    let mut world = World::settled(3);
    world.desired.embedded_etcd = false;
    let mut observed = world.observed();
    if let Workload::Reachable(view) = &mut observed.workload {
        view.members = None;
        view.nodes[0].ready = false;
    }
    mark(&mut observed, "server-1");
    assert!(matches!(
        operations(&plan(&observed, now(&world)))[..],
        [Action::DeleteServer {
            why: Why::Remediation(_),
            ..
        }]
    ));
    observed.servers[0].deleted_at = Some(now(&world));
    observed.servers[0].waiting_for_hook = true;
    assert_eq!(
        operations(&plan(&observed, now(&world))),
        [&Action::ReleaseHook {
            machine: "server-1".into()
        }]
    );
}

/// S-57: machines near enough are adopted; others and other owners are refused with the reason.
#[test]
fn adoption_is_for_k3s_machines_within_one_minor() {
    let mut world = World::settled(3);
    let mut observed = world.observed();
    let adopt = |version: &str, is_k3s: bool, observed: &Observed| {
        let mut observed = observed.clone();
        observed.adoptable = vec![Adoptable {
            name: "stray".into(),
            version: Some(version.into()),
            is_k3s,
        }];
        plan(&observed, Timestamp::UNIX_EPOCH)
    };
    assert_eq!(
        adopt("v1.34.0+k3s1", true, &observed).actions,
        [Action::Adopt {
            machine: "stray".into()
        }]
    );
    says(
        &adopt("v1.31.0+k3s1", true, &observed),
        "more than one minor version from v1.33.1+k3s1",
    );
    says(&adopt("v1.33.0+k3s1", false, &observed), "is not a KThreesConfig");
    observed.foreign = vec!["theirs".into()];
    let refused = plan(&observed, now(&world));
    assert!(refused.actions.is_empty());
    says(&refused, "control plane machines theirs belong to somebody else");
}

/// S-60: deletion waits for workers, lets hooks go, and needs neither infrastructure nor workload cluster.
#[test]
fn deletion_waits_for_workers_and_needs_nothing_else() {
    let mut world = World::settled(3);
    world.deleting = true;
    let mut observed = world.observed();
    observed.cluster.infrastructure_ready = false;
    observed.workload = Workload::Unknown;
    observed.workers = 2;
    let waiting = plan(&observed, now(&world));
    assert!(waiting.actions.is_empty());
    says(&waiting, "waiting for 2 worker machine(s) and pool(s)");
    observed.workers = 0;
    assert_eq!(
        plan(&observed, now(&world)).actions.len(),
        3,
        "all servers at once"
    );
    for _ in 0..10 {
        world.step();
    }
    assert!(world.machines.is_empty(), "{}", world.log.join("\n"));
    assert_eq!(world.reconcile().actions, [Action::RemoveFinalizer]);
}

/// S-61: new servers spread over the failure domains, and a rollout brings the balance back.
#[test]
fn servers_spread_over_failure_domains() {
    let mut world = World::new(3);
    world.failure_domains = vec!["a".into(), "b".into(), "c".into()];
    world.settle();
    let domains = |world: &World| {
        let mut domains: Vec<String> = world
            .machines
            .values()
            .filter_map(|machine| machine.failure_domain.clone())
            .collect();
        domains.sort();
        domains
    };
    assert_eq!(domains(&world), ["a", "b", "c"]);
    for machine in world.machines.values_mut() {
        machine.failure_domain = Some("a".into());
    }
    world.desired.version = "v1.34.1+k3s1".into();
    world.settle();
    assert!(world.is_settled());
    assert_eq!(domains(&world), ["a", "b", "c"]);
}

/// S-44: waits name the machine and the reason.
#[test]
fn waits_name_the_machine() {
    let mut world = World::settled(3);
    world.model.kill("server-2");
    world.model.advance(Duration::from_secs(90));
    world.desired.replicas = 5;
    let plan = world.reconcile();
    says(
        &plan,
        "node of machine server-2 is not ready: Kubelet stopped posting node status.",
    );
}

/// All servers of an initialised plane gone is never answered with an empty cluster of the same name.
#[test]
fn a_lost_plane_is_not_started_anew() {
    let mut world = World::settled(1);
    world.machines.clear();
    let plan = world.reconcile();
    assert!(operations(&plan).is_empty(), "{plan:?}");
    says(&plan, "all servers of an initialised control plane are gone");
}
