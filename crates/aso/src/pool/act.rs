//! The actions of an AzureASOManagedMachinePool.

use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use slipway_azure::{reconcile::Error, workload::nodes::Nodes};
use slipway_capi::{names::annotation, view::MachinePool};
use slipway_runtime::{Context, Outcome};

use super::{observe::ReconcileContext, plan::Action};
use crate::resources;

pub async fn act(
    action: &Action,
    reconcile: &mut ReconcileContext,
    nodes: &Nodes,
    context: &Context,
) -> Result<Outcome, Error> {
    let observed = &mut reconcile.observed;
    match action {
        Action::Resource(action) => {
            let engine = &mut reconcile.engine;
            return resources::act(action, &mut observed.pool, &mut observed.held, engine, context).await;
        }
        Action::SetReplicaManager(manager) => {
            let patch = json!({"metadata": {"annotations": {(annotation::REPLICAS_MANAGED_BY): manager}}});
            patch_machine_pool(observed.machine_pool.as_ref(), &patch, context).await?;
        }
        Action::FollowReplicas(count) => {
            let patch = json!({"spec": {"replicas": count}});
            patch_machine_pool(observed.machine_pool.as_ref(), &patch, context).await?;
        }
        Action::WriteProviderIds(ids) => {
            let patch = json!({"spec": {"providerIDList": ids}});
            let stored = context.patch(&observed.pool, &patch).await;
            observed.pool = stored.map_err(Error::api("writing the provider ids of the nodes"))?;
        }
        Action::PublishClusterInfo => {
            let publication = observed.workload.as_ref().and_then(|key| nodes.publication(key));
            if let Some(publication) = publication {
                publication.write().await?;
            }
        }
    }
    Ok(Outcome::Done)
}

async fn patch_machine_pool(
    pool: Option<&MachinePool>,
    patch: &Value,
    context: &Context,
) -> Result<(), Error> {
    let Some(pool) = pool else {
        return Ok(());
    };
    let name = pool.name_any();
    let api: Api<MachinePool> =
        Api::namespaced(context.client.clone(), &pool.namespace().unwrap_or_default());
    let stored = api
        .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .map_err(Error::api(format!("writing the replicas of MachinePool {name}")))?;
    context.writes().saw(&stored);
    Ok(())
}
