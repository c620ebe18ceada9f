//! The lock under which one machine initialises a cluster: a ConfigMap that names its holder, and that is released when
//! the cluster is initialised or the holder is gone.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams, Preconditions},
};
use serde_json::json;
use slipway_capi::{
    names::label,
    view::{Cluster, Machine},
};
use slipway_runtime::controller::Context;

use super::{owner::Owner, plan::Lock};
use crate::{
    api::KThreesConfig,
    error::{Error, unless_exists},
};

const LOCK_KEY: &str = "lock-information";

fn lock_name(cluster: &str) -> String {
    format!("{cluster}-lock")
}

fn locks(config: &KThreesConfig, context: &Context) -> Api<ConfigMap> {
    Api::namespaced(context.client.clone(), &config.namespace().unwrap_or_default())
}

pub(super) async fn read(config: &KThreesConfig, owner: &Owner, context: &Context) -> Result<Lock, Error> {
    let name = lock_name(&owner.cluster);
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

pub(super) async fn take(
    config: &KThreesConfig,
    owner: &Owner,
    cluster: &Cluster,
    context: &Context,
) -> Result<(), Error> {
    let name = lock_name(&owner.cluster);
    let lock: ConfigMap = serde_json::from_value(json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": config.namespace(),
            "labels": {(label::CLUSTER_NAME): owner.cluster},
            "ownerReferences": [{
                "apiVersion": "cluster.x-k8s.io/v1beta2",
                "kind": "Cluster",
                "name": owner.cluster,
                "uid": cluster.metadata.uid.clone().unwrap_or_default(),
            }],
        },
        "data": {(LOCK_KEY): json!({"machineName": owner.name}).to_string()},
    }))
    .map_err(|error| Error::Unusable {
        doing: "making the init lock".into(),
        problem: error.to_string(),
    })?;
    // Whoever comes second sees the first on its next look.
    unless_exists(locks(config, context).create(&PostParams::default(), &lock).await)
        .map_err(Error::api(format!("taking the init lock {name}")))
}

pub(super) async fn release(config: &KThreesConfig, cluster: &str, context: &Context) -> Result<(), Error> {
    let name = lock_name(cluster);
    let api = locks(config, context);
    let doing = || format!("releasing the init lock {name}");
    let Some(lock) = api.get_opt(&name).await.map_err(Error::api(doing()))? else {
        return Ok(());
    };
    let parameters = DeleteParams {
        preconditions: Some(Preconditions {
            uid: lock.metadata.uid,
            resource_version: lock.metadata.resource_version,
        }),
        ..DeleteParams::default()
    };
    match api.delete(&name, &parameters).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        // A conflict too is an error: whoever comes next looks again, and no lock is left behind.
        other => other.map(|_| ()).map_err(Error::api(doing())),
    }
}
