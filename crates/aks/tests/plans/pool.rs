//! Node pools: the plans of many situations in a golden file, and what the status says.

use serde_json::{Value, json};
use slipway_aks::{
    planning::{Problem, Unknown},
    pool::{
        plan::{Action, Observed, plan},
        status::status,
    },
};
use slipway_azure::{
    reconcile::{ResourceState, StepStatus},
    workload::cluster_info::ClusterInfo,
};
use slipway_runtime::Class;

use super::{NETWORK, golden, machine_pool, now, plane, pool};

fn body(patch: &Value) -> Value {
    let mut body = json!({"name": "pool", "properties": {"count": 3, "mode": "System", "provisioningState": "Succeeded", "orchestratorVersion": "1.31.0",
        "type": "VirtualMachineScaleSets", "vmSize": "small", "vnetSubnetID": format!("{NETWORK}/subnets/nodes")}});
    json_patch::merge(&mut body, patch);
    body
}

fn observed(state: ResourceState) -> Observed {
    Observed {
        pool: pool(&json!({}), &json!({})),
        machine_pool: Some(machine_pool(&json!({}))),
        plane: Some(plane(&json!({}), &json!({}), &json!({"initialized": true}))),
        cluster_name: "fleet".into(),
        subscription: "sub".into(),
        all_pools: Some(vec![body(&json!({}))]),
        state,
        is_recorded: true,
        ..Observed::default()
    }
}

fn here() -> ResourceState {
    ResourceState::Present(body(&json!({})))
}

fn with(state: ResourceState, change: impl FnOnce(&mut Observed)) -> Observed {
    let mut observed = observed(state);
    change(&mut observed);
    observed
}

/// A pool that is deleted, beside others in AKS.
fn deleted(state: ResourceState, others: Option<Vec<Value>>, change: impl FnOnce(&mut Observed)) -> Observed {
    with(state, |observed| {
        observed.pool = pool(&json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}), &json!({}));
        observed.all_pools = others;
        change(observed);
    })
}

fn other(patch: &Value) -> Value {
    let mut other = body(patch);
    other["name"] = json!("other");
    other
}

fn denied() -> Problem {
    Problem {
        code: "AuthorizationFailed".to_owned(),
        message: "the identity may not read the pool".to_owned(),
        class: Class::Denied,
    }
}

#[test]
fn the_plan_of_a_pool() {
    let scaled = |patch: &Value, machine: Value, spec: Value| {
        with(ResourceState::Present(body(patch)), |observed| {
            observed.machine_pool = Some(machine_pool(&machine));
            observed.pool = pool(&json!({}), &spec);
        })
    };
    let managed = json!({"metadata": {"annotations": {"cluster.x-k8s.io/replicas-managed-by": "true"}}, "spec": {"replicas": 3}});
    let situations = vec![
        (
            "objects of another installation may be there",
            with(here(), |observed| observed.must_detach = true),
        ),
        (
            "no MachinePool yet",
            with(ResourceState::Absent, |observed| observed.machine_pool = None),
        ),
        (
            "no control plane",
            with(ResourceState::Absent, |observed| observed.plane = None),
        ),
        (
            "the control plane is not initialized",
            with(ResourceState::Absent, |observed| {
                observed.plane = Some(plane(&json!({}), &json!({}), &Value::Null));
            }),
        ),
        (
            "the identity may not read",
            with(ResourceState::Unknown, |observed| {
                observed.problem = Some(denied());
            }),
        ),
        ("Azure has not told", observed(ResourceState::Unknown)),
        (
            "Azure is busy",
            with(ResourceState::Unknown, |observed| {
                observed.unknown = Some(Unknown::Busy {
                    progress: "Scaling".to_owned(),
                    after: std::time::Duration::from_secs(30),
                });
            }),
        ),
        (
            "the request limit is reached",
            with(ResourceState::Unknown, |observed| {
                observed.unknown = Some(Unknown::Throttled(std::time::Duration::from_secs(30)));
            }),
        ),
        (
            "a version above the control plane's",
            with(ResourceState::Absent, |observed| {
                let version = json!({"spec": {"template": {"spec": {"version": "v1.33.0"}}}});
                observed.machine_pool = Some(machine_pool(&version));
            }),
        ),
        (
            "a new pool",
            with(ResourceState::Absent, |observed| observed.is_recorded = false),
        ),
        (
            "made, and being created",
            observed(ResourceState::Present(body(
                &json!({"properties": {"provisioningState": "Creating"}}),
            ))),
        ),
        (
            "two more nodes",
            with(here(), |observed| {
                observed.machine_pool = Some(machine_pool(&json!({"spec": {"replicas": 5}})));
            }),
        ),
        (
            "a node came",
            with(here(), |observed| {
                observed.provider_ids = Some(vec!["azure:///a".to_owned()]);
            }),
        ),
        (
            "the nodes cannot be listed",
            with(here(), |observed| observed.nodes_problem = Some(denied())),
        ),
        (
            "nodes of others would not find the API server",
            with(here(), |observed| observed.cluster_info = ClusterInfo::Missing),
        ),
        (
            "nodes of others would find another API server",
            with(here(), |observed| {
                observed.cluster_info = ClusterInfo::Differs {
                    path: "data.kubeconfig clusters[0].cluster.server",
                    from: "https://before:443".to_owned(),
                    to: "https://now:443".to_owned(),
                };
            }),
        ),
        (
            "AKS scales the pool",
            scaled(
                &json!({"properties": {"enableAutoScaling": true, "count": 7}}),
                json!({}),
                json!({"scaling": {"minSize": 1, "maxSize": 9}}),
            ),
        ),
        (
            "AKS no longer scales the pool",
            scaled(&json!({}), managed, json!({})),
        ),
        (
            "deleted: the last system pool",
            deleted(here(), Some(vec![body(&json!({}))]), |_| {}),
        ),
        (
            "deleted: not knowing of another is not having",
            deleted(here(), None, |_| {}),
        ),
        (
            "deleted: the other one goes too",
            deleted(
                here(),
                Some(vec![other(
                    &json!({"properties": {"provisioningState": "Deleting"}}),
                )]),
                |_| {},
            ),
        ),
        (
            "deleted: the other is a user pool",
            deleted(
                here(),
                Some(vec![other(&json!({"properties": {"mode": "User"}}))]),
                |_| {},
            ),
        ),
        (
            "deleted: another system pool stays",
            deleted(here(), Some(vec![other(&json!({}))]), |_| {}),
        ),
        (
            "deleted: a user pool",
            deleted(
                ResourceState::Present(body(&json!({"properties": {"mode": "User"}}))),
                Some(vec![]),
                |_| {},
            ),
        ),
        (
            "deleted: gone already",
            deleted(ResourceState::Absent, None, |_| {}),
        ),
        (
            "deleted: Azure has not told",
            deleted(ResourceState::Unknown, None, |_| {}),
        ),
        (
            "deleted: the Cluster goes, and nobody can sign in",
            deleted(ResourceState::Unknown, None, |observed| {
                observed.cluster_is_deleted = true;
                observed.problem = Some(denied());
            }),
        ),
        (
            "deleted: no control plane",
            deleted(here(), None, |observed| observed.plane = None),
        ),
    ];
    let printed = situations
        .iter()
        .map(|(title, observed)| (*title, plan(observed, now()).to_string()))
        .collect();
    golden("pool.golden", printed);
}

#[test]
fn the_last_node_of_a_system_pool_stays() {
    let emptied = with(here(), |observed| {
        observed.machine_pool = Some(machine_pool(&json!({"spec": {"replicas": 0}})));
    });
    let plan = plan(&emptied, now());
    let Some(Action::Ensure(desired)) = plan.actions().next() else {
        panic!("{plan}")
    };
    assert_eq!(desired.manifest["spec"]["count"], 1);
}

#[test]
fn a_pool_is_ready_when_aks_has_its_nodes() {
    for (why, state, step, ready, replicas) in [
        ("done", body(&json!({})), StepStatus::Done, true, Some(3)),
        (
            "too few",
            body(&json!({"properties": {"count": 2}})),
            StepStatus::Done,
            false,
            Some(2),
        ),
        (
            "moving",
            body(&json!({"properties": {"provisioningState": "Scaling"}})),
            StepStatus::Done,
            false,
            Some(3),
        ),
        (
            "failed",
            body(&json!({})),
            StepStatus::Failed {
                code: "SkuNotAvailable".into(),
                message: "none".into(),
                terminal: true,
            },
            false,
            Some(3),
        ),
    ] {
        let status = status(&observed(ResourceState::Present(state)), &step, now());
        assert_eq!((status.ready, status.replicas), (Some(ready), replicas), "{why}");
        let provisioned = status
            .initialization
            .and_then(|initialization| initialization.provisioned);
        assert_eq!(provisioned, ready.then_some(true), "{why}");
    }
    let mut scaling = observed(ResourceState::Present(body(
        &json!({"properties": {"enableAutoScaling": true, "count": 8}}),
    )));
    scaling.pool = pool(&json!({}), &json!({"scaling": {"minSize": 1, "maxSize": 9}}));
    assert_eq!(
        status(&scaling, &StepStatus::Done, now()).ready,
        Some(true),
        "AKS's own count is what is desired"
    );
}
