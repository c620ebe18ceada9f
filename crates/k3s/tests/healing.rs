//! Plans for monitoring, healing, ownership and deletion.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use slipway_capi::frame::{Entry, What};
use slipway_k3s::control_plane::{
    observed::{Adoptable, Observed, RemediationRecord, Workload},
    plan::{Action, Why, plan},
    select,
};

use super::{
    judgement::{actions, mark, operations, says},
    world::World,
};

/// S-42: nothing of the proxy is read: nodes and the member list are all there is in what is observed.
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
    world.fault(|model| model.kill(&names[2]));
    world.model.advance(Duration::from_mins(1));
    let mut observed = world.observed();
    mark(&mut observed, &names[2]);
    for server in &mut observed.servers {
        server.outdated.clear();
    }
    let decision = slipway_k3s::control_plane::remediation::decide(&observed, world.now());
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
    let plan = plan(&observed, world.now());
    assert!(operations(&plan).is_empty(), "{plan:?}");
}

/// S-46: retry limits and periods, read from annotations alone.
#[test]
fn retries_are_limited_and_spaced() {
    let mut world = World::settled(3);
    let time = world.now();
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
    let plan = plan(&observed, world.now());
    assert!(operations(&plan).is_empty());
    says(&plan, "the only server cannot be replaced");
    assert!(
        plan.actions()
            .any(|action| matches!(action, Action::ExplainRemediation { impossible: true, .. }))
    );
}

/// S-48: two of five, one after the other.
#[test]
fn two_failures_of_five_heal_one_after_the_other() {
    let mut world = World::settled(5);
    let names = world.names();
    world.fault(|model| model.kill(&names[0]));
    world.fault(|model| model.kill(&names[1]));
    world.settle();
    assert!(world.is_settled(), "{}", world.log.join("\n"));
    assert!(!world.names().contains(&names[0]) && !world.names().contains(&names[1]));
}

/// S-49: two of three: nothing is deleted, and it recovers alone when one returns.
#[test]
fn two_failures_of_three_make_nothing_worse() {
    let mut world = World::settled(3);
    let names = world.names();
    world.fault(|model| model.kill(&names[0]));
    world.fault(|model| model.kill(&names[1]));
    for _ in 0..100 {
        let plan = world.step();
        assert!(operations(&plan).is_empty(), "{plan:?}");
    }
    assert_eq!(world.names(), names);
    // The health check of core does not know that the API is down.
    let mut observed = world.observed();
    mark(&mut observed, &names[0]);
    let plan = plan(&observed, world.now());
    assert!(operations(&plan).is_empty());
    says(&plan, "the members of etcd are not known");
    world.fault(|model| model.revive(&names[0]));
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
    let time = world.now();
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
        timestamp: world.now() - SignedDuration::from_hours(1),
        retry_count: 1,
    });
    let plan = world.reconcile();
    assert!(
        plan.actions().any(|action| *action == Action::ForgetRemediation),
        "{plan:?}"
    );
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
        operations(&plan(&observed, world.now()))[..],
        [Action::DeleteServer {
            why: Why::Remediation(_),
            ..
        }]
    ));
    observed.servers[0].deleted_at = Some(world.now());
    observed.servers[0].waiting_for_hook = true;
    assert_eq!(
        operations(&plan(&observed, world.now())),
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
        actions(&adopt("v1.34.0+k3s1", true, &observed)),
        [&Action::Adopt {
            machine: "stray".into()
        }]
    );
    says(
        &adopt("v1.31.0+k3s1", true, &observed),
        "more than one minor version from v1.33.1+k3s1",
    );
    says(&adopt("v1.33.0+k3s1", false, &observed), "is not a KThreesConfig");
    observed.foreign = vec!["theirs".into()];
    let refused = plan(&observed, world.now());
    assert!(actions(&refused).is_empty());
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
    let waiting = plan(&observed, world.now());
    assert!(actions(&waiting).is_empty());
    says(&waiting, "waiting for 2 worker machine(s) and pool(s)");
    observed.workers = 0;
    assert_eq!(
        plan(&observed, world.now()).actions().count(),
        3,
        "all servers at once"
    );
    for _ in 0..10 {
        world.step();
    }
    assert!(world.machines.is_empty(), "{}", world.log.join("\n"));
    let last = world.reconcile();
    assert!(
        matches!(
            last.entries[..],
            [Entry {
                what: What::ReleaseFinalizer,
                ..
            }]
        ),
        "{last}"
    );

    // Core does not finish Machines whose Cluster is gone: nothing is waited for then.
    observed.cluster.gone = true;
    let gone = plan(&observed, world.now());
    assert_eq!(gone.actions().count(), 3, "{gone}");
    assert!(matches!(gone.entries[3].what, What::ReleaseFinalizer), "{gone}");
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
    world.fault(|model| model.kill("server-2"));
    world.model.advance(Duration::from_secs(90));
    world.desired.replicas = 5;
    let plan = world.reconcile();
    says(
        &plan,
        "etcd member of machine server-2 is not alive: node server-2 is not ready",
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
