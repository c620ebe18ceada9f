//! Reads that mostly need no request. A Machine is taken as its watch shows it; a Secret is kept as long as the watch on its
//! metadata shows the version that was read; which version of a kind to use is asked for now and then. Where a watch does
//! not run or has not seen an object, the apiserver is asked. Nothing that decides whether a server is made or goes is read
//! this way; that nothing is to be decided may be (`control_plane::last_read`).

use std::{collections::HashMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, api::ApiResource};
use parking_lot::Mutex;
use slipway_capi::{
    reference,
    view::{Machine, ObjectReference},
};
use slipway_runtime::{Informer, ObjectKey, Scope, controller::Context};

use crate::{control_plane::health, error::Error};

/// Another version of a kind comes with another release of its provider, which is no hurry either.
const KIND_STANDS: Duration = Duration::from_mins(10);

pub async fn machine(key: &ObjectKey, context: &Context) -> Result<Option<Arc<Machine>>, Error> {
    let informer: Informer<Machine> = context.informers.get(Scope::of_namespace(&context.settings));
    if let Some(shown) = informer.get(key) {
        return Ok(Some(shown));
    }
    let api: Api<Machine> = Api::namespaced(context.client.clone(), key.namespace().unwrap_or_default());
    let found = api
        .get_opt(key.name())
        .await
        .map_err(Error::api(format!("reading Machine {}", key.name())))?;
    Ok(found.map(Arc::new))
}

/// What was read for the control planes, and may still be true.
#[derive(Default)]
pub struct Reads {
    /// By control plane and name.
    secrets: Mutex<HashMap<ObjectKey, HashMap<String, Secret>>>,
    /// By group and kind, with when it was asked for.
    kinds: Mutex<HashMap<(String, String), (Timestamp, ApiResource)>>,
}

impl Reads {
    /// A Secret in the namespace of a control plane.
    pub async fn secret(
        &self,
        control_plane: &ObjectKey,
        name: &str,
        context: &Context,
    ) -> Result<Option<Secret>, Error> {
        let resource = ApiResource::erase::<Secret>(&());
        let informer = context
            .informers
            .get_metadata(&resource, Scope::of_namespace(&context.settings));
        let shown = informer
            .get(&control_plane.sibling(name))
            .and_then(|shown| shown.metadata.resource_version.clone());
        if shown.is_some() {
            let kept = self.secrets.lock();
            let kept = kept.get(control_plane).and_then(|kept| kept.get(name));
            if let Some(kept) = kept
                && kept.metadata.resource_version == shown
            {
                return Ok(Some(kept.clone()));
            }
        }
        let namespace = control_plane.namespace().unwrap_or_default();
        let found = Api::<Secret>::namespaced(context.client.clone(), namespace)
            .get_opt(name)
            .await
            .map_err(Error::api(format!("reading Secret {name}")))?;
        let mut secrets = self.secrets.lock();
        let kept = secrets.entry(control_plane.clone()).or_default();
        match &found {
            Some(found) => kept.insert(name.to_owned(), found.clone()),
            None => kept.remove(name),
        };
        Ok(found)
    }

    /// The resource a reference points to.
    pub async fn kind(&self, reference: &ObjectReference, context: &Context) -> Result<ApiResource, Error> {
        let key = (reference.api_group.clone(), reference.kind.clone());
        let now = context.clock.now();
        if let Some((asked_at, resource)) = self.kinds.lock().get(&key)
            && health::age(*asked_at, now) < KIND_STANDS
        {
            return Ok(resource.clone());
        }
        let (resource, _) = reference::resolve(&context.client, reference).await?;
        self.kinds.lock().insert(key, (now, resource.clone()));
        Ok(resource)
    }

    /// An object that is not there may be there under another version.
    pub fn doubt_kind(&self, of: &ObjectReference) {
        self.kinds.lock().remove(&(of.api_group.clone(), of.kind.clone()));
    }

    /// How many control planes Secrets are kept for.
    pub fn len(&self) -> usize {
        self.secrets.lock().len()
    }

    pub fn forget(&self, control_plane: &ObjectKey) {
        self.secrets.lock().remove(control_plane);
    }
}
