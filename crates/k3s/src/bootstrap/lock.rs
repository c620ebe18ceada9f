//! The lock under which one machine initialises a cluster: a ConfigMap that names its holder, and that is released when
//! the cluster is initialised or the holder is gone.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, ResourceExt};
use serde_json::json;
use slipway_capi::{names::label, view::Machine};
use slipway_runtime::controller::Context;

use super::{owner::Owner, plan::Lock};
use crate::{api::KThreesConfig, error::Error};

const LOCK_KEY: &str = "lock-information";

pub(super) fn name(cluster: &str) -> String {
    format!("{cluster}-lock")
}

pub(super) fn locks(config: &KThreesConfig, context: &Context) -> Api<ConfigMap> {
    Api::namespaced(context.client.clone(), &config.namespace().unwrap_or_default())
}

pub(super) async fn read(config: &KThreesConfig, owner: &Owner, context: &Context) -> Result<Lock, Error> {
    let name = name(&owner.cluster);
    let Some(lock) = locks(config, context)
        .get_opt(&name)
        .await
        .map_err(Error::api(format!("reading the init lock {name}")))?
    else {
        return Ok(Lock::Free);
    };
    let holder = lock
        .data
        .and_then(|data| serde_json::from_str::<serde_json::Value>(data.get(LOCK_KEY)?).ok())
        .and_then(|information| information["machineName"].as_str().map(ToOwned::to_owned))
        .unwrap_or_default();
    if holder == owner.name && owner.is_server {
        return Ok(Lock::Ours);
    }
    let machine = Api::<Machine>::namespaced(context.client.clone(), &config.namespace().unwrap_or_default())
        .get_opt(&holder)
        .await
        .map_err(Error::api(format!(
            "reading Machine {holder}, which holds the init lock"
        )))?;
    Ok(match machine {
        Some(machine) if !machine.is_deleting() => Lock::Theirs(holder),
        _ => Lock::Abandoned(holder),
    })
}

/// The lock in the hands of this owner. It belongs to the Cluster and goes with it.
pub(super) fn held_by(owner: &Owner, namespace: &str, cluster_uid: &str) -> Result<ConfigMap, Error> {
    serde_json::from_value(json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name(&owner.cluster),
            "namespace": namespace,
            "labels": {(label::CLUSTER_NAME): owner.cluster},
            "ownerReferences": [{
                "apiVersion": "cluster.x-k8s.io/v1beta2",
                "kind": "Cluster",
                "name": owner.cluster,
                "uid": cluster_uid,
            }],
        },
        "data": {(LOCK_KEY): json!({"machineName": owner.name}).to_string()},
    }))
    .map_err(|error| Error::Unusable {
        doing: "making the init lock".into(),
        problem: error.to_string(),
    })
}
