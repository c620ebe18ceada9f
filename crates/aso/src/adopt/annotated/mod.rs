//! Objects of Azure Service Operator that carry the annotation of adoption become Clusters and MachinePools: [`manifests`] makes the
//! objects of ours, [`act`] creates them. From then on they are as any others whose engine is the operator. Nothing is asked of Azure.

mod act;
mod manifests;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{FutureExt, future::select_all};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    ResourceExt,
    api::{DynamicObject, PartialObjectMeta},
};
use slipway_runtime::{
    Context, ObjectKey, Scope,
    controller::Registration,
    informer::{Informer, Subscription},
};
use tracing::warn;

use self::{
    act::{Adopter, Step},
    manifests::is_asked_for,
};
use crate::{
    command::objects::Objects,
    engine::Operators,
    mutators::{AGENT_POOL, CONTAINER_SERVICE, MANAGED_CLUSTER},
};

/// Nothing tells of a kind that is installed, or taken away.
const LOOK_FOR_KINDS: Duration = Duration::from_mins(10);
/// Nothing tells of what something waits for: it may be of any kind.
const TRY_AGAIN: Duration = Duration::from_secs(30);

/// The metadata of a kind, and what changes of it.
struct Watched {
    kind: &'static str,
    informer: Informer<PartialObjectMeta<DynamicObject>>,
    changes: Subscription<PartialObjectMeta<DynamicObject>>,
}

/// What was said last of an object, by its uid.
type Said = BTreeMap<String, String>;

pub fn registration() -> Registration {
    Registration {
        name: "azureasoadoption",
        run: Arc::new(|context: Context| {
            async move {
                let operators = Operators::default();
                let (mut watched, mut said) = (Vec::new(), Said::new());
                loop {
                    let again = match round(&operators, &mut watched, &mut said, &context).await {
                        Ok(again) => again,
                        Err(error) => {
                            warn!(%error, "Looking for objects of Azure Service Operator to adopt");
                            TRY_AGAIN
                        }
                    };
                    tokio::select! {
                        () = context.shutdown.cancelled() => return Ok(()),
                        () = changed(&mut watched) => {}
                        () = tokio::time::sleep(again) => {}
                    }
                }
            }
            .boxed()
        }),
    }
}

/// Until an object of the operator changes.
async fn changed(watched: &mut [Watched]) {
    let changes = watched.iter_mut().map(|one| one.changes.next().boxed());
    let changes: Vec<_> = changes.collect();
    if changes.is_empty() {
        return futures::future::pending().await;
    }
    let (change, ..) = select_all(changes).await;
    if change.is_none() {
        // The informers were stopped: so is this.
        futures::future::pending::<()>().await;
    }
}

/// Adopts whatever asks for it, and tells when to look again.
async fn round(
    operators: &Operators,
    watched: &mut Vec<Watched>,
    said: &mut Said,
    context: &Context,
) -> Result<Duration, String> {
    look_for_kinds(operators, watched, context).await?;
    let asking: Vec<(&'static str, Arc<PartialObjectMeta<DynamicObject>>)> = watched
        .iter()
        .flat_map(|one| {
            let kind = one.kind;
            one.informer.list().into_iter().map(move |object| (kind, object))
        })
        .filter(|(_, object)| is_asked_for(&object.metadata))
        .collect();
    said.retain(|uid, _| {
        asking
            .iter()
            .any(|(_, object)| object.metadata.uid.as_deref() == Some(uid.as_str()))
    });
    if asking.is_empty() {
        return Ok(LOOK_FOR_KINDS);
    }
    let objects = Objects::discover(&context.client).await?;
    let adopter = Adopter {
        operators,
        context,
        objects: &objects,
    };
    for (kind, object) in asking {
        let key = ObjectKey::new(object.metadata.namespace.as_deref(), &object.name_any());
        let step = if kind == MANAGED_CLUSTER {
            adopter.cluster(&key).await
        } else {
            adopter.pool(&key).await
        };
        let (warning, reason, note) = match step {
            Ok(Step::Found) => continue,
            Ok(Step::Made) => (
                false,
                "Adopted",
                "objects of Cluster API were made for it".to_owned(),
            ),
            Ok(Step::Waits(why)) => (true, "AdoptionWaits", why),
            Err(error) => (true, "AdoptionFailed", error),
        };
        let uid = object.metadata.uid.clone().unwrap_or_default();
        if said.insert(uid.clone(), note.clone()).as_ref() == Some(&note) {
            continue;
        }
        let regarding = ObjectReference {
            api_version: object.types.as_ref().map(|types| types.api_version.clone()),
            kind: Some(kind.to_owned()),
            name: Some(key.name().to_owned()),
            namespace: key.namespace().map(str::to_owned),
            uid: Some(uid),
            ..ObjectReference::default()
        };
        context.events.record(regarding, warning, reason, "Adopt", note);
    }
    Ok(TRY_AGAIN)
}

/// Watches the kinds that are installed.
async fn look_for_kinds(
    operators: &Operators,
    watched: &mut Vec<Watched>,
    context: &Context,
) -> Result<(), String> {
    for kind in [MANAGED_CLUSTER, AGENT_POOL] {
        let definition = operators
            .definition(CONTAINER_SERVICE, kind, context)
            .await
            .map_err(|error| error.to_string())?;
        let Some(definition) = definition else {
            watched.retain(|one| one.kind != kind);
            continue;
        };
        if watched.iter().any(|one| one.kind == kind) {
            continue;
        }
        let resource = definition.resource(CONTAINER_SERVICE, kind, "");
        let scope = Scope::of_namespace(&context.settings);
        let informer = context.informers.get_metadata(&resource, scope);
        watched.push(Watched {
            kind,
            changes: informer.subscribe(),
            informer,
        });
    }
    Ok(())
}
