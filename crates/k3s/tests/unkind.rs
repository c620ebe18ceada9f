//! What a real k3s did to a control plane that believed membership to be life: each way quorum was, or could have been,
//! lost by our doing, on a simulator that is as unkind.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use slipway_k3s::{
    api::RolloutStrategyType,
    control_plane::{
        hook::{self, Progress},
        liveness::Probe,
        observed::{Observed, RemediationRecord, Server, Workload},
        plan::{Action, Plan},
    },
};
use slipway_k3s_sim::model;

use super::{
    judgement::{operations, says},
    world::{OURS, World},
};

const SECONDS: Duration = Duration::from_secs(5);

/// Steps until something holds, and gives the plans that were made on the way.
fn until(world: &mut World, what: &str, holds: impl Fn(&World) -> bool) -> Vec<Plan> {
    let mut plans = Vec::new();
    for _ in 0..400 {
        if holds(world) {
            return plans;
        }
        plans.push(world.step_by(SECONDS));
    }
    panic!("never: {what}\n{}", world.log.join("\n"));
}

fn is_learner(world: &World, host: &str) -> bool {
    world
        .model
        .members
        .iter()
        .any(|member| member.host == host && member.learner)
}

/// S-7: a machine is deleted while its member is a learner: k3s promotes it, and its host runs on for half a minute. The host
/// is let go only when the member is gone from etcd.
#[test]
fn a_machine_deleted_as_a_learner_takes_no_quorum_along() {
    let mut world = World::settled(1);
    world.desired.replicas = 3;
    until(&mut world, "a learner", |world| is_learner(world, "server-2"));
    world.delete_machine("server-2");
    let plans = until(&mut world, "it is gone", |world| {
        !world.machines.contains_key("server-2")
    });
    let released = plans.iter().any(|plan| {
        plan.actions()
            .any(|action| matches!(action, Action::RemoveMember { .. } | Action::RemoveOrphan { .. }))
    });
    assert!(released, "its member left first");
    world.settle();
    assert!(world.is_settled(), "{}", world.log.join("\n"));
}

/// S-50: the same where a health check gave the machine up just as its k3s came to join.
#[test]
fn a_machine_given_up_as_it_joins_takes_no_quorum_along() {
    for boot in [585, 595, 600, 605, 615, 625] {
        let mut world = World::settled(1);
        world.desired.replicas = 3;
        world.slow_boot = SignedDuration::from_secs(boot);
        until(&mut world, "a second machine", |world| world.machines.len() == 2);
        world.slow_boot = SignedDuration::from_secs(45);
        world.settle();
        assert!(world.is_settled(), "{boot} s: {}", world.log.join("\n"));
    }
}

/// S-5: labels that somebody took off do not make a healthy server's member an orphan.
#[test]
fn a_node_without_its_labels_keeps_its_member() {
    let mut world = World::settled(3);
    let before = world.model.members.clone();
    for label in ["node-role.kubernetes.io/control-plane", model::ETCD_ROLE] {
        assert!(world.model.remove_label("server-2", label));
        for _ in 0..120 {
            let plan = world.step_by(SECONDS);
            assert_eq!(plan.actions().count(), 0, "{plan}");
        }
    }
    assert_eq!(world.model.members, before);
}

/// S-1: one of three loses its power, another's machine is deleted and the manager is killed, at once: the living one stays
/// until the dead one is replaced, and etcd never shrinks to one.
#[test]
fn a_living_server_is_not_taken_while_another_is_lost() {
    for reaches_servers in [true, false] {
        let mut world = World::settled(3);
        world.reaches_servers = reaches_servers;
        world.model.strict = true;
        world.fault(|model| model.kill("server-1"));
        world.delete_machine("server-2");
        world.restart_manager();
        let mut fewest = 3;
        let mut said = String::new();
        for _ in 0..600 {
            let plan = world.step_by(SECONDS);
            if world.machines.contains_key("server-1") {
                let taken = |action: &&Action| matches!(action, Action::RemoveMember { node, .. } if node == "server-2");
                assert!(!plan.actions().any(|action| taken(&action)), "{plan}");
                said.extend(plan.waits().map(|(_, why)| why));
            }
            fewest = fewest.min(world.model.voters());
        }
        assert!(said.contains("machine server-2 keeps its host"), "{said}");
        assert!(world.is_settled(), "{}", world.log.join("\n"));
        assert_eq!(fewest, 2, "{}", world.log.join("\n"));
    }
}

/// S-1: a request to remove a member that no longer holds is taken back.
#[test]
fn a_request_that_no_longer_holds_is_withdrawn() {
    let mut world = World::settled(3);
    world.model.strict = true;
    world.delete_machine("server-2");
    world.fault(|model| model.kill("server-1"));
    // As a process that died between its decision and the fault left it.
    world.model.annotate("server-2", OURS, Some("true"));
    world
        .model
        .annotate("server-2", model::REMOVE_ANNOTATION, Some("true"));
    assert_eq!(world.model.voters(), 3, "etcd refuses it");
    world.core();
    let plan = world.reconcile();
    assert!(
        plan.actions()
            .any(|action| matches!(action, Action::WithdrawRemoval { node, .. } if node == "server-2")),
        "{plan:?}"
    );
    let annotations = &world.model.nodes["server-2"].annotations;
    assert!(!annotations.contains_key(model::REMOVE_ANNOTATION));

    // What a person asked for on a server that stays is the person's.
    let mut world = World::settled(3);
    world.fault(|model| model.kill("server-1"));
    world
        .model
        .annotate("server-2", model::REMOVE_ANNOTATION, Some("false"));
    let plan = world.step_by(SECONDS);
    assert!(
        !plan
            .actions()
            .any(|action| matches!(action, Action::WithdrawRemoval { .. })),
        "{plan:?}"
    );
}

/// S-44: one of three is cut off, then comes a rollout: no server is made whose join etcd would refuse, and within seconds it
/// is said which server is the reason.
#[test]
fn a_server_that_is_cut_off_blocks_a_rollout_and_is_named() {
    for (reaches_servers, within) in [(true, 5), (false, 30)] {
        let mut world = World::settled(3);
        world.reaches_servers = reaches_servers;
        world.model.strict = true;
        world.fault(|model| model.cut("server-1"));
        world.step_by(Duration::from_secs(within));
        world.desired.version = "v1.34.1+k3s1".into();
        let plan = world.reconcile();
        assert!(operations(&plan).is_empty(), "{plan:?}");
        says(&plan, "etcd member of machine server-1 is not alive");
        for _ in 0..30 {
            let plan = world.step_by(SECONDS);
            assert!(operations(&plan).is_empty(), "{plan:?}");
        }
        world.fault(|model| model.mend("server-1"));
        world.settle();
        assert!(world.is_settled(), "{}", world.log.join("\n"));
    }
}

/// S-10: a node whose member annotation has not been written yet does not let its host go: the member is there.
#[test]
fn a_late_annotation_keeps_the_host() {
    let mut world = World::settled(1);
    world.model.timing.annotations = Duration::from_mins(2);
    world.desired.replicas = 3;
    until(&mut world, "a node without annotations", |world| {
        world
            .machines
            .get("server-2")
            .is_some_and(|machine| machine.node.is_some())
    });
    assert!(
        !world.model.nodes["server-2"]
            .annotations
            .contains_key(model::MEMBER_ANNOTATION)
    );
    world.delete_machine("server-2");
    until(&mut world, "its host was let go", |world| {
        world
            .machines
            .get("server-2")
            .is_none_or(|machine| !machine.hooks.ours)
    });
    assert!(
        world.model.members.iter().all(|member| member.host != "server-2"),
        "{}",
        world.log.join("\n")
    );
    world.settle();
    assert!(world.is_settled(), "{}", world.log.join("\n"));
}

/// S-15: a control plane that was initialised makes no first server again, whatever it remembers of a remediation.
#[test]
fn nothing_is_initialised_twice() {
    let mut world = World::settled(1);
    world.machines.clear();
    world.remediation = Some(RemediationRecord {
        machine: "server-1".into(),
        timestamp: world.now(),
        retry_count: 0,
    });
    let plan = world.reconcile();
    assert!(operations(&plan).is_empty(), "{plan:?}");
    says(&plan, "no first server is made a second time");
}

/// S-5: a server that joined by hand and is off for a while comes back to its member.
#[test]
fn a_server_that_joined_by_hand_keeps_its_member_while_it_is_off() {
    let mut world = World::settled(3);
    assert!(world.model.join("by-hand", "v1.33.1+k3s1"));
    world.step_by(Duration::from_mins(1));
    assert_eq!(world.model.voters(), 4);
    world.fault(|model| model.kill("by-hand"));
    for _ in 0..240 {
        let plan = world.step_by(SECONDS);
        assert!(operations(&plan).is_empty(), "{plan:?}");
    }
    world.fault(|model| model.revive("by-hand"));
    world.step_by(Duration::from_mins(1));
    assert_eq!((world.model.voters(), world.model.healthy_voters()), (4, 4));
}

/// S-38: no server is restarted for its update while another has just died, however ready its node still looks.
#[test]
fn nothing_is_restarted_in_the_grace_of_a_dead_node() {
    let mut world = World::settled(3);
    world.desired.strategy = RolloutStrategyType::InPlace;
    world.desired.version = "v1.34.1+k3s1".into();
    world.fault(|model| model.kill("server-3"));
    assert!(world.model.nodes["server-3"].ready, "nobody has noticed yet");
    for _ in 0..6 {
        let plan = world.step_by(SECONDS);
        assert!(operations(&plan).is_empty(), "{plan:?}");
    }
    world.settle();
    assert!(world.is_settled(), "{}", world.log.join("\n"));
}

/// S-36: k3s on a host whose member was removed starts again and joins again before the host is gone. It is removed again:
/// the one server that is left keeps its quorum.
#[test]
fn a_host_that_joins_again_on_its_way_out_takes_no_quorum_along() {
    let mut world = World::taken_over(3);
    world.model.timing.shutdown = Duration::from_secs(45);
    world.desired.replicas = 1;
    world.settle();
    assert!(world.is_settled(), "{}", world.log.join("\n"));
    let again = world.log.iter().filter(|line| line.contains("RemoveOrphan"));
    assert!(again.count() > 0, "{}", world.log.join("\n"));
}

/// S-36: a host that we told how to boot does not join again before it is gone, also while nobody can ask.
#[test]
fn a_host_of_ours_does_not_join_again_while_nobody_can_ask() {
    let mut world = World::settled(3);
    world.desired.replicas = 1;
    settle_with_nobody_to_ask(&mut world);
}

/// S-36: a host that another provider made may join again while nobody can ask, so it is let go only where etcd stands that: one
/// more server is made first. Scaled down, deleted by hand and rolled out.
#[test]
fn a_host_of_another_provider_may_join_again_while_nobody_can_ask() {
    let mut scaled = World::taken_over(3);
    scaled.desired.replicas = 1;
    let mut deleted = World::taken_over(1);
    deleted.delete_machine("server-1");
    let mut rolled = World::taken_over(1);
    rolled.desired.version = "v1.34.1+k3s1".into();
    for mut world in [scaled, deleted, rolled] {
        settle_with_nobody_to_ask(&mut world);
        assert!(
            !world.names().contains(&"server-1".to_owned()),
            "{}",
            world.log.join("\n")
        );
    }
}

/// From the release of each host until it is gone nobody answers, and k3s has the time to join again and to be promoted.
fn settle_with_nobody_to_ask(world: &mut World) {
    world.model.timing.shutdown = Duration::from_mins(4);
    let going = |world: &World| world.machines.values().any(|machine| machine.gone_at.is_some());
    for _ in 0..40 {
        while !going(world) && !world.is_settled() {
            world.step_by(SECONDS);
        }
        world.glitch = true;
        while going(world) {
            world.step_by(SECONDS);
        }
        world.glitch = false;
        if world.is_settled() {
            break;
        }
    }
    assert!(world.is_settled(), "{}", world.log.join("\n"));
    assert!(world.model.has_quorum(), "{}", world.log.join("\n"));
}

/// S-1: a server that was cut off, came back for seconds and died is not taken for alive because its lease is fresh: it answered
/// at its address before, and does not now.
#[test]
fn a_server_that_came_back_for_seconds_is_not_taken_for_alive() {
    let mut world = World::settled(5);
    world.asks_kubelets = false;
    // Every server has answered once.
    world.step_by(SECONDS);
    world.fault(|model| model.cut("server-3"));
    world.delete_machine("server-4");
    for _ in 0..18 {
        world.step_by(SECONDS);
    }
    world.fault(|model| model.mend("server-3"));
    // Its kubelet renews its lease, its node is ready again, and nobody asks before it is gone.
    world.model.advance(Duration::from_secs(16));
    world.fault(|model| model.kill("server-3"));
    let plan = world.reconcile();
    assert!(operations(&plan).is_empty(), "{plan:?}");
    says(&plan, "does not answer any more");
}

/// D (S-1): where nothing but leases can be read, a server that was cut off a moment before a rollout was asked for has a lease
/// that is still fresh. Nothing is made or taken before its lease was renewed after that, and it is named.
#[test]
fn a_server_cut_off_a_moment_before_is_not_taken_for_alive() {
    let mut world = World::settled(3);
    world.reaches_servers = false;
    world.asks_kubelets = false;
    world.step_by(SECONDS);
    world.fault(|model| model.cut("server-2"));
    world.desired.version = "v1.34.1+k3s1".into();
    for second in 0..120 {
        let plan = world.step_by(Duration::from_secs(1));
        assert!(operations(&plan).is_empty(), "{second} s: {plan}");
        says(&plan, "server-2");
    }
    world.fault(|model| model.mend("server-2"));
    world.settle();
    assert!(world.is_settled(), "{}", world.log.join("\n"));
}

/// Two of five servers are being deleted, nothing tells the node or the address of either, and etcd has one member that may be the one's
/// or the other's.
fn two_that_leave_over_one_member() -> (Observed, Timestamp, String) {
    let mut world = World::settled(5);
    let member = world.model.nodes["server-5"].annotations[model::MEMBER_ANNOTATION].clone();
    let other = world.model.nodes["server-4"].annotations[model::MEMBER_ANNOTATION].clone();
    let mut observed = world.observed();
    observed.desired.replicas = 3;
    for server in &mut observed.servers {
        if ["server-4", "server-5"].contains(&server.name.as_str()) {
            server.deleted_at = Some(world.now());
            server.waiting_for_hook = true;
            server.node = None;
            server.addresses.clear();
            server.probe = Probe::NotTried;
        }
    }
    let Workload::Reachable(view) = &mut observed.workload else {
        panic!("{:?}", observed.workload);
    };
    view.nodes
        .retain(|node| node.name != "server-4" && node.name != "server-5");
    let members = view.members.as_mut().expect("members");
    members.retain(|one| one.name != other);
    (observed, world.now(), member)
}

/// S-8: neither of two deleted servers waits for the other because of a member that is one of theirs: it leaves. Which of them it was
/// nothing tells, so no host is let go because of it.
#[test]
fn two_deleted_servers_do_not_wait_for_each_other() {
    let (mut observed, now, member) = two_that_leave_over_one_member();
    let Progress::Act(action, why) = hook::decide(&observed, now) else {
        panic!("{:?}", hook::decide(&observed, now));
    };
    let Action::RemoveOrphan {
        member: left,
        machine,
        ..
    } = &action
    else {
        panic!("{action:?}");
    };
    assert_eq!((left, machine), (&member, &None), "{why}");

    // With it gone, the first is let go because etcd stands it, not because its member has left.
    let Workload::Reachable(view) = &mut observed.workload else {
        panic!("{:?}", observed.workload);
    };
    view.members
        .as_mut()
        .expect("members")
        .retain(|one| one.name != member);
    match hook::decide(&observed, now) {
        Progress::Act(Action::ReleaseHook { machine }, why) => {
            assert_eq!(machine, "server-4");
            assert!(why.contains("even if its host still joins"), "{why}");
        }
        other => panic!("{other:?}"),
    }
}

/// S-8: as long as somebody who stays, or is not as far yet, may be the owner of the member, it is left alone.
#[test]
fn a_member_that_may_belong_to_one_that_stays_is_left_alone() {
    let stays: fn(&mut Server) = |server| server.deleted_at = None;
    let drains: fn(&mut Server) = |server| server.waiting_for_hook = false;
    let kept: fn(&mut Server) = |server| server.hooks.others = true;
    for change in [stays, drains, kept] {
        let (mut observed, now, member) = two_that_leave_over_one_member();
        let last = observed.servers.last_mut().expect("server-5");
        assert_eq!(last.name, "server-5");
        change(last);
        match hook::decide(&observed, now) {
            Progress::Wait(why) => assert!(why.contains(&member), "{why}"),
            other => panic!("{other:?}"),
        }
    }
}
