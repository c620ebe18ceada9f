//! The actions of a config: each is one idempotent call. The only place that writes.

use std::time::Duration;

use kube::{
    ResourceExt,
    api::{DeleteParams, PostParams, Preconditions},
};
use slipway_capi::secret::store;
use slipway_runtime::{Outcome, controller::Context};

use super::{
    lock,
    observe::{Observed, Userdata},
    owner::Owner,
    plan::Action,
};
use crate::error::{Error, unless_exists};

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
    let (config, cluster) = (&observed.config, &owner.cluster);
    Ok(store::bootstrap_data(&context.client, config, cluster, "cloud-config", userdata).await?)
}
