//! Node pools.

use serde_json::{Value, json};
use slipway_aks::{
    plan::{
        Action, Waiting,
        pool::{Observed, plan},
    },
    status::pool::status,
};
use slipway_azure::reconcile::{ResourceKind, ResourceState, StepStatus};

use super::{CLUSTER, machine_pool, now, plane, pool, printed};

fn body(patch: &Value) -> Value {
    let mut body = json!({"name": "pool", "properties": {"count": 3, "mode": "System", "provisioningState": "Succeeded", "orchestratorVersion": "1.31.0"}});
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
        ..Observed::default()
    }
}

fn id() -> String {
    format!("{CLUSTER}/agentPools/pool")
}

#[test]
fn a_pool_waits_for_what_it_needs() {
    let mut lonely = observed(ResourceState::Absent);
    lonely.machine_pool = None;
    assert_eq!(
        plan(&lonely, now()),
        [Action::Wait(Waiting::ForMachinePool { pool: "pool".into() })]
    );
    for plane in [
        None,
        Some(plane(&json!({}), &json!({}), &Value::Null)),
        Some(plane(
            &json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}),
            &json!({}),
            &json!({"initialized": true}),
        )),
    ] {
        let mut early = observed(ResourceState::Absent);
        early.plane = plane;
        assert_eq!(plan(&early, now()), [Action::Wait(Waiting::ForControlPlane)]);
    }
    assert_eq!(
        plan(&observed(ResourceState::Unknown), now()),
        [Action::Wait(Waiting::ForAzure { id: id() })]
    );
}

#[test]
fn a_pool_is_made_scaled_and_upgraded_by_one_step() {
    assert_eq!(
        printed(&plan(&observed(ResourceState::Absent), now())),
        [format!("ensure AgentPool {}", id())]
    );
    let mut grown = observed(ResourceState::Present(body(&json!({}))));
    grown.machine_pool = Some(machine_pool(&json!({"spec": {"replicas": 5}})));
    let actions = plan(&grown, now());
    assert_eq!(
        printed(&actions),
        [format!("ensure AgentPool {}", id()), "list nodes".to_owned()]
    );
    let Action::Ensure(desired) = &actions[0] else {
        panic!("{actions:?}")
    };
    assert_eq!(desired.kind, ResourceKind::AgentPool);
    assert_eq!(desired.manifest["spec"]["count"], 5);
    let mut emptied = observed(ResourceState::Present(body(&json!({}))));
    emptied.machine_pool = Some(machine_pool(&json!({"spec": {"replicas": 0}})));
    let Some(Action::Ensure(desired)) = plan(&emptied, now()).into_iter().next() else {
        panic!()
    };
    assert_eq!(
        desired.manifest["spec"]["count"], 1,
        "the last node of a system pool stays"
    );
    let mut above = observed(ResourceState::Absent);
    above.machine_pool = Some(machine_pool(
        &json!({"spec": {"template": {"spec": {"version": "v1.33.0"}}}}),
    ));
    assert!(matches!(
        plan(&above, now()).as_slice(),
        [Action::Wait(Waiting::ForTheUser(_))]
    ));
}

#[test]
fn replicas_follow_aks_where_aks_scales() {
    let managed = json!({"metadata": {"annotations": {"cluster.x-k8s.io/replicas-managed-by": "true"}}, "spec": {"replicas": 3}});
    let scaling = json!({"properties": {"enableAutoScaling": true, "count": 7}});
    for (state, machine, spec, expected) in [
        (
            &scaling,
            json!({}),
            json!({"scaling": {"minSize": 1, "maxSize": 9}}),
            Some("follow replicas 7"),
        ),
        (
            &json!({"properties": {"enableAutoScaling": true}}),
            managed.clone(),
            json!({"scaling": {}}),
            None,
        ),
        (&json!({}), managed, json!({}), Some("stop following replicas")),
        (&json!({}), json!({}), json!({}), None),
    ] {
        let mut observed = observed(ResourceState::Present(body(state)));
        observed.machine_pool = Some(machine_pool(&machine));
        observed.pool = pool(&json!({}), &spec);
        let actions = printed(&plan(&observed, now()));
        let mut desired = vec![format!("ensure AgentPool {}", id())];
        desired.extend(expected.map(str::to_owned));
        desired.push("list nodes".into());
        assert_eq!(actions, desired);
    }
}

#[test]
fn the_last_system_pool_is_never_deleted_while_the_cluster_lives() {
    let deleted = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
    let other = |patch: Value| {
        let mut other = body(&patch);
        other["name"] = json!("other");
        other
    };
    let here = || ResourceState::Present(body(&json!({})));
    let base = |state: ResourceState, pools: Option<Vec<Value>>| {
        let mut observed = observed(state);
        observed.pool = pool(&deleted, &json!({}));
        observed.all_pools = pools;
        observed
    };
    let wait = vec![Action::Wait(Waiting::ForAnotherSystemPool)];
    let delete = vec![Action::Delete {
        kind: ResourceKind::AgentPool,
        id: id(),
    }];
    let done = vec![Action::RemoveFinalizer];
    let mut cluster_goes = base(here(), None);
    cluster_goes.cluster_is_deleted = true;
    let mut no_plane = base(here(), None);
    no_plane.plane = None;
    let mut moved = base(here(), None);
    moved.pool = pool(
        &json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "annotations": {"clusterctl.cluster.x-k8s.io/delete-for-move": ""}}),
        &json!({}),
    );
    for (why, observed, expected) in vec![
        ("the last one", base(here(), Some(vec![body(&json!({}))])), &wait),
        ("not knowing is not having", base(here(), None), &wait),
        (
            "the other one goes too",
            base(
                here(),
                Some(vec![other(
                    json!({"properties": {"provisioningState": "Deleting"}}),
                )]),
            ),
            &wait,
        ),
        (
            "the other is a user pool",
            base(here(), Some(vec![other(json!({"properties": {"mode": "User"}}))])),
            &wait,
        ),
        (
            "another stays",
            base(here(), Some(vec![other(json!({}))])),
            &delete,
        ),
        (
            "a user pool",
            base(
                ResourceState::Present(body(&json!({"properties": {"mode": "User"}}))),
                Some(vec![]),
            ),
            &delete,
        ),
        ("gone already", base(ResourceState::Absent, None), &done),
        ("the Cluster goes", cluster_goes, &done),
        ("no control plane", no_plane, &done),
        ("moved", moved, &done),
    ] {
        assert_eq!(&plan(&observed, now()), expected, "{why}");
    }
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
