//! A machine pool with machines: it makes hosts until there are as many as its MachinePool asks for, and lets Machines go that are
//! too many, those first that Cluster API's annotation names. Core makes a Machine for every host.

use std::{collections::BTreeMap, time::Duration};

use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use serde_json::json;

use super::{
    World,
    api::{TestHostMachine, TestHostMachinePool, TestHostMachineSpec},
    backend::BackendError,
    kwok::ignore_missing,
    reconcile::{CLUSTER_NAME, is_annotated_paused, owner},
};

/// By which core and the hosts know whose pool's a machine is.
pub const POOL_NAME: &str = "cluster.x-k8s.io/pool-name";
const DELETE_FIRST: &str = "cluster.x-k8s.io/delete-machine";
/// Hosts that come and go are seen by their own changes; this is for what is missed.
const AGAIN: Duration = Duration::from_secs(1);

pub async fn pool(world: &World, name: &str) -> Result<Option<Duration>, BackendError> {
    let pools: Api<TestHostMachinePool> = world.api();
    let Some(pool) = pools.get_opt(name).await? else {
        return Ok(None);
    };
    if pool.metadata.deletion_timestamp.is_some() || is_annotated_paused(&pool) {
        return Ok(None);
    }
    let Some(owner) = owner(world, &pool, "MachinePool").await? else {
        return Ok(None);
    };
    let replicas = usize::try_from(owner.data["spec"]["replicas"].as_i64().unwrap_or(0)).unwrap_or(0);
    let selector = ListParams::default().labels(&format!("{POOL_NAME}={}", owner.name_any()));
    let hosts = world.api::<TestHostMachine>().list(&selector).await?.items;
    let machines = world.core("Machine").list(&selector).await?.items;
    let machine_of = |host: &TestHostMachine| machines.iter().find(|one| one.name_any() == host.name_any());
    let is_leaving = |host: &TestHostMachine| {
        host.metadata.deletion_timestamp.is_some()
            || machine_of(host).is_some_and(|machine| machine.metadata.deletion_timestamp.is_some())
    };
    let mut standing: Vec<&TestHostMachine> = hosts.iter().filter(|host| !is_leaving(host)).collect();
    for _ in standing.len()..replicas {
        make(world, &pool, &owner).await?;
    }
    standing.sort_by_key(|host| {
        let machine = machine_of(host);
        let is_first = machine.is_some_and(|one| one.annotations().contains_key(DELETE_FIRST));
        (!is_first, host.name_any())
    });
    for surplus in standing.iter().take(standing.len().saturating_sub(replicas)) {
        let name = surplus.name_any();
        ignore_missing(
            world
                .core("Machine")
                .delete(&name, &DeleteParams::default())
                .await,
        )?;
    }
    tell(&pools, &pool, &standing).await?;
    Ok(Some(AGAIN))
}

async fn make(world: &World, pool: &TestHostMachinePool, owner: &DynamicObject) -> Result<(), BackendError> {
    let cluster = owner.data["spec"]["clusterName"].as_str().unwrap_or_default();
    let labels: BTreeMap<String, String> = [
        (POOL_NAME.to_owned(), owner.name_any()),
        (CLUSTER_NAME.to_owned(), cluster.to_owned()),
    ]
    .into();
    let host = TestHostMachine {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", pool.name_any())),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        spec: TestHostMachineSpec {
            capacity: pool.spec.capacity.clone(),
            node_labels: pool.spec.node_labels.clone(),
            ..TestHostMachineSpec::default()
        },
        status: None,
    };
    world
        .api::<TestHostMachine>()
        .create(&PostParams::default(), &host)
        .await?;
    Ok(())
}

/// What core reads of a pool, if it is news.
async fn tell(
    pools: &Api<TestHostMachinePool>,
    pool: &TestHostMachinePool,
    standing: &[&TestHostMachine],
) -> Result<(), BackendError> {
    let name = pool.name_any();
    let mut ids: Vec<String> = standing
        .iter()
        .filter_map(|host| host.spec.provider_id.clone())
        .collect();
    ids.sort();
    if pool.spec.provider_id_list != ids {
        let spec = json!({"spec": {"providerIDList": ids}});
        pools
            .patch(&name, &PatchParams::default(), &Patch::Merge(&spec))
            .await?;
    }
    let replicas = i32::try_from(standing.len()).unwrap_or(i32::MAX);
    let is_told = pool.status.as_ref().is_some_and(|status| {
        status.initialization.provisioned && status.ready && status.replicas == replicas
    });
    if !is_told {
        let status = json!({"status": {"initialization": {"provisioned": true}, "ready": true, "replicas": replicas,
            "infrastructureMachineKind": "TestHostMachine"}});
        pools
            .patch_status(&name, &PatchParams::default(), &Patch::Merge(&status))
            .await?;
    }
    Ok(())
}
