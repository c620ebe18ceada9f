//! The objects behind the servers: Machines, KThreesConfigs, InfraMachines and MachinePools, from the apiserver or the watches.

use std::sync::Arc;

use kube::{
    Api,
    api::{ApiResource, DynamicObject, ListParams},
};
use slipway_capi::{
    owner,
    view::{Machine, MachinePool},
};
use slipway_runtime::{Informer, ObjectKey, Scope, controller::Context};

use crate::{api::KThreesConfig, error::Error, reads::Reads};

/// The index of machines by their Cluster.
const BY_CLUSTER: &str = "cluster";

pub(super) fn shown_machines(namespace: &str, cluster: &str, context: &Context) -> Vec<Machine> {
    let informer: Informer<Machine> = context.informers.get(Scope::of_namespace(&context.settings));
    let of_cluster = informer.index(BY_CLUSTER, |machine| owner::by_cluster(&machine.metadata));
    let shown = of_cluster.get(&owner::key(Some(namespace), cluster));
    shown.into_iter().map(Arc::unwrap_or_clone).collect()
}

pub(super) fn shown_config(machine: &Machine, namespace: &str, context: &Context) -> Option<KThreesConfig> {
    let reference = machine.spec.bootstrap.config_ref.as_ref()?;
    let informer: Informer<KThreesConfig> = context.informers.get(Scope::of_namespace(&context.settings));
    let shown = informer.get(&ObjectKey::namespaced(namespace, &reference.name))?;
    Some(Arc::unwrap_or_clone(shown))
}

pub(super) async fn count_pools(namespace: &str, selector: &str, context: &Context) -> Result<usize, Error> {
    let pools = Api::<MachinePool>::namespaced(context.client.clone(), namespace)
        .list(&ListParams::default().labels(selector))
        .await;
    match pools {
        Ok(pools) => Ok(pools.items.len()),
        // The kind is not installed everywhere.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(0),
        Err(error) => Err(Error::api("listing machine pools")(error)),
    }
}

pub(super) async fn config_of(
    machine: &Machine,
    namespace: &str,
    context: &Context,
) -> Result<Option<KThreesConfig>, Error> {
    let Some(reference) = &machine.spec.bootstrap.config_ref else {
        return Ok(None);
    };
    Api::<KThreesConfig>::namespaced(context.client.clone(), namespace)
        .get_opt(&reference.name)
        .await
        .map_err(Error::api(format!("reading KThreesConfig {}", reference.name)))
}

/// The InfraMachine; one that cannot be read says nothing.
pub(super) async fn infra_machine_of(
    machine: &Machine,
    namespace: &str,
    reads: &Reads,
    context: &Context,
) -> Option<(ApiResource, DynamicObject)> {
    let reference = &machine.spec.infrastructure_ref;
    let read = async {
        let resource = reads.kind(reference, context).await?;
        let found = Api::<DynamicObject>::namespaced_with(context.client.clone(), namespace, &resource)
            .get_opt(&reference.name)
            .await
            .map_err(Error::api(format!(
                "reading {} {}",
                reference.kind, reference.name
            )))?;
        if found.is_none() {
            reads.doubt_kind(reference);
        }
        Ok::<_, Error>(found.map(|found| (resource, found)))
    };
    match read.await {
        Ok(found) => found,
        Err(error) => {
            tracing::info!(machine = machine.metadata.name, %error, "The InfraMachine of a machine cannot be read");
            None
        }
    }
}
