//! An AzureASOManagedMachinePool: the plans of many situations in a golden file.

use serde_json::{Value, json};
use slipway_aso::{
    mutators::ReplicaManager,
    pool::{observe::Observed, plan::plan},
};
use slipway_azure::{ResourceId, reconcile::ResourceState};
use slipway_capi::view::MachinePool;

use super::{CLUSTER, absent, deleted, denied, golden, held, now, present, standing};
use crate::life::world::pool_manifests;

const KIND: &str = "AzureASOManagedMachinePool";

fn id() -> String {
    format!("{CLUSTER}/agentPools/work")
}

fn machine_pool(patch: &Value) -> MachinePool {
    let mut object = json!({"metadata": {"name": "work"}, "spec": {"replicas": 3}});
    json_patch::merge(&mut object, patch);
    serde_json::from_value(object).expect("a MachinePool")
}

fn with(metadata: &Value, spec: &Value, change: impl FnOnce(&mut Observed)) -> Observed {
    let manifests = pool_manifests("work", "System", 3, spec);
    let resources = manifests[1]["spec"]["resources"]
        .as_array()
        .expect("resources")
        .clone();
    let profiles = json!({"properties": {"agentPoolProfiles": [{"name": "work", "mode": "System"}]}});
    let mut observed = Observed {
        machine_pool: Some(machine_pool(&json!({}))),
        cluster_id: ResourceId::parse(CLUSTER).ok(),
        cluster_state: ResourceState::Present(profiles),
        replica_manager: Some(ReplicaManager::Kept),
        held: held(KIND, metadata, &resources),
        ..Observed::default()
    };
    change(&mut observed);
    observed
}

fn counted(observed: &mut Observed, patch: &Value) {
    standing(&mut observed.held, &id());
    let mut body = observed.held.states[&id().to_lowercase()]
        .body()
        .expect("a body")
        .clone();
    json_patch::merge(&mut body, patch);
    present(&mut observed.held, &id(), &body);
}

#[test]
fn the_plan_of_a_pool() {
    let none = json!({});
    let managed = json!({"metadata": {"annotations": {"cluster.x-k8s.io/replicas-managed-by": "aks"}}});
    let another = json!({"properties": {"agentPoolProfiles": [
        {"name": "work", "mode": "System"}, {"name": "other", "mode": "System"}]}});
    let situations: Vec<(&str, Observed)> = vec![
        (
            "no MachinePool yet",
            with(&none, &none, |observed| {
                absent(&mut observed.held, &id());
                let message = "no MachinePool owns the node pool yet".to_owned();
                observed.held.resources[0].wait = Some(("WaitingForMachinePool".to_owned(), message));
            }),
        ),
        (
            "a new pool",
            with(&none, &json!({"count": 3}), |observed| {
                absent(&mut observed.held, &id());
            }),
        ),
        (
            "two more nodes",
            with(&none, &json!({"count": 5}), |observed| {
                counted(observed, &json!({"properties": {"count": 3}}));
            }),
        ),
        (
            "two more nodes, and the cluster is stopped",
            with(&none, &json!({"count": 5}), |observed| {
                counted(observed, &json!({"properties": {"count": 3}}));
                observed.held.stopped = ResourceId::parse(CLUSTER).ok();
            }),
        ),
        (
            "a node came",
            with(&none, &none, |observed| {
                counted(observed, &json!({}));
                observed.provider_ids = Some(vec!["azure:///a".to_owned()]);
            }),
        ),
        (
            "the nodes cannot be listed",
            with(&none, &none, |observed| {
                counted(observed, &json!({}));
                observed.nodes_problem = Some(denied());
            }),
        ),
        (
            "AKS is to scale the pool",
            with(&none, &none, |observed| {
                counted(observed, &json!({}));
                observed.replica_manager = Some(ReplicaManager::Set("aks"));
            }),
        ),
        (
            "AKS scales the pool",
            with(&none, &none, |observed| {
                counted(observed, &json!({"properties": {"count": 7}}));
                observed.machine_pool = Some(machine_pool(&managed));
            }),
        ),
        (
            "AKS no longer scales the pool",
            with(&none, &none, |observed| {
                counted(observed, &json!({}));
                observed.replica_manager = Some(ReplicaManager::Removed);
            }),
        ),
        (
            "deleted: the last system pool",
            with(&deleted(), &none, |observed| counted(observed, &json!({}))),
        ),
        (
            "deleted: another system pool stays",
            with(&deleted(), &none, |observed| {
                counted(observed, &json!({}));
                observed.cluster_state = ResourceState::Present(another);
            }),
        ),
        (
            "deleted: with its cluster",
            with(&deleted(), &none, |observed| {
                counted(observed, &json!({}));
                observed.cluster_goes = true;
            }),
        ),
    ];
    let printed = situations
        .into_iter()
        .map(|(title, observed)| (title, plan(&observed, now()).to_string()))
        .collect();
    golden("pool.golden", printed);
}
