//! The actions of a pool: each is one idempotent call, or none where nothing differs.

use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use slipway_azure::{
    machine,
    reconcile::{Error, StepResult, StepStatus, step},
    takeover::{Progress, Takeover},
    workload::nodes::Nodes,
};
use slipway_capi::{names::annotation, view::MachinePool};
use slipway_runtime::{Context, Outcome};

use super::{
    observe::{ReconcileContext, workload_key},
    plan::Action,
};
use crate::{
    api::AzureManagedMachine,
    planning::{DesiredResource, SOON, TAKING_OVER},
    status,
};

/// What the annotation on a MachinePool says when AKS decides its replicas. The value is the one clusters already have.
const MANAGED: &str = "true";

pub async fn act(
    action: &Action,
    reconcile: &mut ReconcileContext,
    takeover: &Takeover,
    nodes: &Nodes,
    context: &Context,
) -> Result<Outcome, Error> {
    match action {
        Action::Detach => return detach(reconcile, takeover, context).await,
        Action::Record { id } => {
            let state = reconcile.observations.state_of(id);
            let now = context.clock.now();
            reconcile.records.ensure_mark(|| context.random.uuid());
            reconcile.records.intend(id, &reconcile.api_version, state, now);
            store_records(reconcile, context).await?;
        }
        Action::StoreRecords => store_records(reconcile, context).await?,
        Action::AcceptVanished { id } => {
            reconcile.records.vanished(id);
            let outcome = Outcome::InProgress(SOON);
            return settle(StepResult::waiting(status::vanished(id), outcome), reconcile);
        }
        Action::Ensure(desired) => {
            let result = ensure(desired, reconcile).await;
            return settle(result, reconcile);
        }
        Action::Delete { id } => {
            let result = delete(id, reconcile).await;
            return settle(result, reconcile);
        }
        Action::FollowReplicas { count } => {
            let patch = json!({
                "metadata": {"annotations": {(annotation::REPLICAS_MANAGED_BY): MANAGED}},
                "spec": {"replicas": count},
            });
            patch_machine_pool(reconcile.observed.machine_pool.as_ref(), &patch, context).await?;
        }
        Action::StopFollowingReplicas => {
            let patch = json!({"metadata": {"annotations": {(annotation::REPLICAS_MANAGED_BY): null}}});
            patch_machine_pool(reconcile.observed.machine_pool.as_ref(), &patch, context).await?;
        }
        Action::WriteProviderIds(ids) => {
            let patch = json!({"spec": {"providerIDList": ids}});
            patch_pool(
                reconcile,
                &patch,
                "writing the provider ids of the nodes",
                context,
            )
            .await?;
        }
        Action::Machine(action) => {
            let observed = &reconcile.observed;
            let owner = machine::act::Owner {
                pool: &observed.pool,
                id: &reconcile.id,
                cluster: &observed.cluster_name,
                machine_pool: observed
                    .machine_pool
                    .as_ref()
                    .and_then(|pool| pool.metadata.name.as_deref())
                    .unwrap_or_default(),
                fleet: &observed.fleet,
                arm: reconcile.session.as_ref().map(|session| &session.arm),
            };
            if let Some(asked) = machine::act::act::<AzureManagedMachine>(action, &owner, context).await? {
                return settle(asked, reconcile);
            }
        }
        Action::PublishClusterInfo => {
            if let Some(publication) = nodes.publication(&workload_key(&reconcile.observed)) {
                publication.write().await?;
            }
        }
    }
    Ok(Outcome::Done)
}

/// What a step came to: its words for the status, its outcome for the queue.
fn settle(result: StepResult, reconcile: &mut ReconcileContext) -> Result<Outcome, Error> {
    reconcile.step = Some(result.status);
    result.error.map_or(Ok(result.outcome), Err)
}

/// The next reconcile asks Azure, once nothing is left.
async fn detach(
    reconcile: &mut ReconcileContext,
    takeover: &Takeover,
    context: &Context,
) -> Result<Outcome, Error> {
    let observed = &reconcile.observed;
    let progress = takeover
        .detach(
            &observed.pool.metadata,
            &observed.cluster_name,
            &mut reconcile.records,
            context,
        )
        .await?;
    store_records(reconcile, context).await?;
    Ok(Outcome::InProgress(if progress == Progress::Free {
        SOON
    } else {
        TAKING_OVER
    }))
}

async fn store_records(reconcile: &mut ReconcileContext, context: &Context) -> Result<(), Error> {
    if let Some(patch) = reconcile.records.patch() {
        patch_pool(reconcile, &patch, "storing what was applied to Azure", context).await?;
        reconcile.records.stored();
    }
    Ok(())
}

async fn patch_pool(
    reconcile: &mut ReconcileContext,
    patch: &Value,
    doing: &str,
    context: &Context,
) -> Result<(), Error> {
    let stored = context
        .patch(&reconcile.observed.pool, patch)
        .await
        .map_err(Error::api(doing))?;
    reconcile.observed.pool.metadata = stored.metadata;
    reconcile.observed.pool.spec = stored.spec;
    Ok(())
}

async fn ensure(desired: &DesiredResource, reconcile: &mut ReconcileContext) -> StepResult {
    let Some(session) = &reconcile.session else {
        return StepResult::done(StepStatus::Done);
    };
    let result = step::ensure(
        &session.arm,
        &desired.id,
        &desired.manifest,
        &mut reconcile.observations,
        &mut reconcile.records,
        reconcile.max_age,
    )
    .await;
    reconcile.observed.state = reconcile.observations.state_of(&desired.id).clone();
    result
}

async fn delete(id: &str, reconcile: &mut ReconcileContext) -> StepResult {
    let Some(session) = &reconcile.session else {
        return StepResult::done(StepStatus::Deleted);
    };
    step::delete(
        &session.arm,
        id,
        &reconcile.api_version,
        &mut reconcile.observations,
        &mut reconcile.records,
    )
    .await
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
