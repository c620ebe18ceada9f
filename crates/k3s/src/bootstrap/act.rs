//! The actions of a config: each is one idempotent call. The only place that writes.

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use secrecy::ExposeSecret;
use serde_json::json;
use slipway_capi::{owner as ownership, secret};
use slipway_runtime::{Outcome, controller::Context};

use super::{
    lock,
    observe::{Observed, Userdata},
    owner::Owner,
    plan::Action,
};
use crate::{
    api::KThreesConfig,
    error::{Error, unless_exists},
};

/// The lock is not watched: who holds it now is read soon.
const READ_LOCK_AGAIN: Outcome = Outcome::InProgress(Duration::from_millis(100));

pub(super) async fn act(action: &Action, observed: &Observed, context: &Context) -> Result<Outcome, Error> {
    let Some(owner) = &observed.owner else {
        return Ok(Outcome::Done);
    };
    match action {
        Action::TakeLock => take_lock(observed, owner, context)
            .await
            .map(|()| READ_LOCK_AGAIN),
        Action::BreakLock { .. } => release_lock(observed, owner, context)
            .await
            .map(|()| READ_LOCK_AGAIN),
        Action::ReleaseLock => release_lock(observed, owner, context)
            .await
            .map(|()| Outcome::Done),
        Action::StoreData { .. } => store_data(observed, owner, context).await.map(|()| Outcome::Done),
    }
}

async fn take_lock(observed: &Observed, owner: &Owner, context: &Context) -> Result<(), Error> {
    let config = &observed.config;
    let namespace = config.namespace().unwrap_or_default();
    let lock = lock::held_by(owner, &namespace, &observed.cluster_uid)?;
    // Whoever comes second sees the first on its next reconcile.
    unless_exists(
        lock::locks(config, context)
            .create(&PostParams::default(), &lock)
            .await,
    )
    .map_err(Error::api(format!(
        "taking the init lock {}",
        lock::name(&owner.cluster)
    )))
}

async fn release_lock(observed: &Observed, owner: &Owner, context: &Context) -> Result<(), Error> {
    let name = lock::name(&owner.cluster);
    let api = lock::locks(&observed.config, context);
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
        // A conflict too is an error: the next reconcile reads the lock again, and none is left behind.
        other => other.map(|_| ()).map_err(Error::api(doing())),
    }
}

async fn store_data(observed: &Observed, owner: &Owner, context: &Context) -> Result<(), Error> {
    let Userdata::Made(userdata) = &observed.userdata else {
        return Ok(());
    };
    let data = data_secret(&observed.config, &owner.cluster, userdata.expose_secret());
    let config = &observed.config;
    let namespace = config.namespace().unwrap_or_default();
    let name = config.name_any();
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), &namespace);
    let doing = || format!("storing the bootstrap data of {namespace}/{name}");
    match secrets.create(&PostParams::default(), &data).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => {
            let present = secrets.get(&name).await.map_err(Error::api(doing()))?;
            if !ownership::is_controlled_by(&present.metadata, &config.metadata) {
                return Err(Error::Unusable {
                    doing: doing(),
                    problem: format!(
                        "Secret {name} exists and belongs to somebody else: delete or rename it"
                    ),
                });
            }
            let patch = json!({"data": data.data});
            secrets
                .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
                .await
                .map_err(Error::api(doing()))?;
            Ok(())
        }
        Err(error) => Err(Error::api(doing())(error)),
    }
}

fn data_secret(config: &KThreesConfig, cluster: &str, userdata: &str) -> Secret {
    secret::cluster_secret(
        &config.namespace().unwrap_or_default(),
        cluster,
        &config.name_any(),
        ownership::controller_reference(config),
        [
            (secret::VALUE_KEY, userdata.as_bytes().to_vec()),
            ("format", b"cloud-config".to_vec()),
        ],
    )
}
