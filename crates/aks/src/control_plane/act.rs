//! The actions of a control plane: each is one idempotent call, or none where nothing differs.

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::{Value, json};
use slipway_azure::{
    reconcile::{Error, StepResult, StepStatus, step},
    takeover::{Progress, Takeover},
    workload::{
        joining,
        kubeconfig::{self, KubeconfigKind, SecretEntry},
        stored::StoredSecret,
    },
};
use slipway_capi::{finalizer, owner, secret::VALUE_KEY};
use slipway_runtime::{Context, ObjectKey, Outcome};

use super::{observe::ReconcileContext, plan::Action};
use crate::{
    access::identity_finalizer,
    api::{AzureClusterIdentity, AzureManagedControlPlane},
    planning::{DesiredResource, SOON, TAKING_OVER},
    render::ids,
    status,
};

pub async fn act(
    action: &Action,
    reconcile: &mut ReconcileContext,
    takeover: &Takeover,
    context: &Context,
) -> Result<Outcome, Error> {
    match action {
        Action::HoldIdentity(key) => hold_identity(key, &reconcile.observed.plane, context).await?,
        Action::ReleaseIdentity(key) => release_identity(key, &reconcile.observed.plane, context).await?,
        Action::Detach => return detach(reconcile, takeover, context).await,
        Action::Record(resources) => {
            let records = &mut reconcile.observed.records;
            records.ensure_mark(|| context.random.uuid());
            for (id, api_version) in resources {
                let state = reconcile.observations.state_of(id);
                records.intend(id, api_version, state, context.clock.now());
            }
            store_records(reconcile, context).await?;
        }
        Action::StoreRecords => store_records(reconcile, context).await?,
        Action::AcceptVanished { id, .. } => {
            reconcile.observed.records.vanished(id);
            let outcome = Outcome::InProgress(SOON);
            return settle(id, StepResult::waiting(status::vanished(id), outcome), reconcile);
        }
        Action::Ensure(desired) => {
            let result = ensure(desired, reconcile).await;
            return settle(&desired.id, result, reconcile);
        }
        Action::Delete { id, .. } => {
            let result = delete(id, reconcile).await;
            return settle(id, result, reconcile);
        }
        Action::LeaveGroup { id } => {
            reconcile.observed.records.forget(id);
            return settle(id, StepResult::done(StepStatus::Deleted), reconcile);
        }
        Action::SetEndpoint { host, port } => {
            let patch = json!({"spec": {"controlPlaneEndpoint": {"host": host, "port": port}}});
            patch_plane(reconcile, &patch, "writing the control plane endpoint", context).await?;
        }
        Action::WriteKubeconfig {
            kind,
            with_token,
            replace,
        } => write_kubeconfig(reconcile, *kind, *with_token, *replace, context).await?,
        Action::WriteCa { replace } => write_ca(reconcile, *replace, context).await?,
    }
    Ok(Outcome::Done)
}

/// What a step came to: its words for the status, its outcome for the queue.
fn settle(id: &str, result: StepResult, reconcile: &mut ReconcileContext) -> Result<Outcome, Error> {
    reconcile.steps.insert(id.to_lowercase(), result.status);
    reconcile.observed.states = reconcile.observations.states.clone();
    result.error.map_or(Ok(result.outcome), Err)
}

fn identities(key: &ObjectKey, context: &Context) -> Api<AzureClusterIdentity> {
    Api::namespaced(context.client.clone(), key.namespace().unwrap_or_default())
}

/// Marks the identity as in use, so that it is not deleted before the cluster that needs it to be deleted.
async fn hold_identity(
    key: &ObjectKey,
    plane: &AzureManagedControlPlane,
    context: &Context,
) -> Result<(), Error> {
    let api = identities(key, context);
    let found = api.get_opt(key.name()).await;
    let found = found.map_err(Error::api(format!("reading AzureClusterIdentity {key}")))?;
    if let Some(identity) = found {
        let stored = finalizer::ensure(&api, &identity, &identity_finalizer(plane)).await?;
        if let Some(stored) = stored {
            context.writes().saw(&stored);
        }
    }
    Ok(())
}

async fn release_identity(
    key: &ObjectKey,
    plane: &AzureManagedControlPlane,
    context: &Context,
) -> Result<(), Error> {
    let api = identities(key, context);
    let found = api.get_opt(key.name()).await;
    let found = found.map_err(Error::api(format!("reading AzureClusterIdentity {key}")))?;
    let Some(patch) =
        found.and_then(|identity| finalizer::drop_entry(&identity.metadata, &identity_finalizer(plane)))
    else {
        return Ok(());
    };
    let patch = Patch::<()>::Json(patch);
    match api.patch(key.name(), &PatchParams::default(), &patch).await {
        Ok(stored) => {
            context.writes().saw(&stored);
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        // The list of finalizers changed meanwhile: the next reconcile finds the entry where it is then.
        Err(kube::Error::Api(status)) if status.code == 422 => Err(slipway_capi::Error::Changed {
            doing: format!("releasing AzureClusterIdentity {key}"),
        }
        .into()),
        Err(error) => Err(Error::api(format!("releasing AzureClusterIdentity {key}"))(error)),
    }
}

/// The next reconcile asks Azure, once nothing is left.
async fn detach(
    reconcile: &mut ReconcileContext,
    takeover: &Takeover,
    context: &Context,
) -> Result<Outcome, Error> {
    let observed = &mut reconcile.observed;
    let progress = takeover
        .detach(
            &observed.plane.metadata,
            &observed.cluster_name,
            &mut observed.records,
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
    if let Some(patch) = reconcile.observed.records.patch() {
        patch_plane(reconcile, &patch, "storing what was applied to Azure", context).await?;
        reconcile.observed.records.stored();
    }
    Ok(())
}

async fn patch_plane(
    reconcile: &mut ReconcileContext,
    patch: &Value,
    doing: &str,
    context: &Context,
) -> Result<(), Error> {
    let stored = context
        .patch(&reconcile.observed.plane, patch)
        .await
        .map_err(Error::api(doing))?;
    reconcile.observed.plane.metadata = stored.metadata;
    reconcile.observed.plane.spec = stored.spec;
    Ok(())
}

async fn ensure(desired: &DesiredResource, reconcile: &mut ReconcileContext) -> StepResult {
    let Some(session) = &reconcile.session else {
        return StepResult::done(StepStatus::Done);
    };
    step::ensure(
        &session.arm,
        &desired.id,
        &desired.manifest,
        &mut reconcile.observations,
        &mut reconcile.observed.records,
        reconcile.max_age,
    )
    .await
}

async fn delete(id: &str, reconcile: &mut ReconcileContext) -> StepResult {
    let Some(session) = &reconcile.session else {
        return StepResult::done(StepStatus::Deleted);
    };
    let api_version = reconcile.api_versions.get(&id.to_lowercase());
    let mut result = step::delete(
        &session.arm,
        id,
        api_version.map_or("", String::as_str),
        &mut reconcile.observations,
        &mut reconcile.observed.records,
    )
    .await;
    let stays = reconcile.observed.plane.metadata.deletion_timestamp.is_none();
    if stays && result.status == StepStatus::Deleted {
        // Deleted because the spec no longer names it: the rest of the kind is what counts.
        result.status = StepStatus::Done;
    }
    result
}

async fn write_kubeconfig(
    reconcile: &mut ReconcileContext,
    kind: KubeconfigKind,
    with_token: bool,
    replace: bool,
    context: &Context,
) -> Result<(), Error> {
    let Some(made) = fetch(reconcile, kind, with_token, context).await? else {
        return Ok(());
    };
    let observed = &mut reconcile.observed;
    let patch = kubeconfig::patch(&made, &observed.cluster_name);
    let found = match kind {
        KubeconfigKind::Administrator => &mut observed.administrator,
        KubeconfigKind::User => &mut observed.user,
    };
    store(found.as_ref(), &made, &patch, replace, context).await?;
    *found = Some(StoredSecret::kubeconfig(&made));
    Ok(())
}

/// The Secret for a kubeconfig that AKS hands out now.
async fn fetch(
    reconcile: &ReconcileContext,
    kind: KubeconfigKind,
    with_token: bool,
    context: &Context,
) -> Result<Option<Secret>, Error> {
    let observed = &reconcile.observed;
    let (Some(session), Some((host, port))) = (&reconcile.session, observed.endpoint()) else {
        return Ok(None);
    };
    let id = ids::managed_cluster(&observed.facts());
    let api_version = reconcile.api_versions.get(&id.to_lowercase());
    let api_version = api_version.map_or("", String::as_str);
    let fetched = kubeconfig::fetch(session, &id, api_version, kind, with_token).await?;
    let place = SecretEntry {
        namespace: &observed.plane.namespace().unwrap_or_default(),
        cluster: &observed.cluster_name,
        secret: &kind.secret_name(&observed.cluster_name),
        key: VALUE_KEY,
    };
    let made = owner::controller_reference(&observed.plane).and_then(|controller| {
        kubeconfig::make(
            &place,
            controller,
            &format!("{host}:{port}"),
            &fetched.text,
            fetched.token.as_ref().map(|token| (token, context.clock.now())),
        )
    });
    made.map(Some).ok_or(Error::NoKubeconfig {
        action: "listClusterCredential",
    })
}

async fn write_ca(reconcile: &mut ReconcileContext, replace: bool, context: &Context) -> Result<(), Error> {
    let observed = &mut reconcile.observed;
    let ca = observed
        .administrator
        .as_ref()
        .and_then(|stored| stored.ca.as_deref());
    let (Some(ca), Some(controller)) = (ca, owner::controller_reference(&observed.plane)) else {
        return Ok(());
    };
    let namespace = observed.plane.namespace().unwrap_or_default();
    let made = joining::make(&namespace, &observed.cluster_name, controller, ca);
    let patch = joining::patch(&made, &observed.cluster_name);
    store(observed.ca.as_ref(), &made, &patch, replace, context).await?;
    observed.ca = Some(StoredSecret::ca(&made));
    Ok(())
}

async fn store(
    found: Option<&StoredSecret>,
    made: &Secret,
    patch: &Value,
    replace: bool,
    context: &Context,
) -> Result<(), Error> {
    let name = made.name_any();
    let api: Api<Secret> = Api::namespaced(context.client.clone(), &made.namespace().unwrap_or_default());
    let found = match found {
        Some(found) if replace => {
            let same = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: found.metadata.uid.clone(),
                    resource_version: None,
                }),
                ..DeleteParams::default()
            };
            match api.delete(&name, &same).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                other => {
                    other.map_err(Error::api(format!("replacing Secret {name}")))?;
                }
            }
            None
        }
        other => other,
    };
    let stored = match found {
        None => api.create(&PostParams::default(), made).await,
        Some(_) => {
            api.patch(&name, &PatchParams::default(), &Patch::Merge(patch))
                .await
        }
    }
    .map_err(Error::api(format!("writing Secret {name}")))?;
    context.writes().saw(&stored);
    Ok(())
}
