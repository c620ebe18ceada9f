//! The actions for the operator's objects: each is one idempotent call, or a few that may be cut short anywhere.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api, ResourceExt,
    api::{DynamicObject, Patch, PatchParams},
};
use serde_json::json;
pub use slipway_azure::takeover::POLICY;
use slipway_azure::{
    reconcile::{Error, Records},
    takeover::{BEFORE_PAUSE, DetachStep, SKIP, take},
};
use slipway_runtime::Context;

use super::{NOTE, Operated, Operators, manifest::Application, object::OperatedObject, observe::Look};
use crate::api::ResourceName;

/// Under which the operator's objects are applied. It is the name that they may carry already.
const FIELD_MANAGER: &str = "capz-manager";

/// Gives the operator its object. A quiet one may write again only after it has what is asked for now.
pub async fn give(application: &Application, context: &Context) -> Result<DynamicObject, Error> {
    let api: Api<DynamicObject> =
        Api::namespaced_with(context.client.clone(), &application.namespace, &application.api);
    let name = &application.name;
    let parameters = PatchParams::apply(FIELD_MANAGER).force();
    let given = api
        .patch(name, &parameters, &Patch::Apply(&application.body))
        .await;
    let given = given.map_err(Error::api(format!("applying {} {name}", application.api.kind)))?;
    let Some(policy) = &application.resumes else {
        return Ok(given);
    };
    let resume = json!({"metadata": {"annotations": {(POLICY): policy, (BEFORE_PAUSE): null}}});
    let resumed = api
        .patch(name, &PatchParams::default(), &Patch::Merge(&resume))
        .await;
    resumed.map_err(Error::api(format!("resuming {} {name}", application.api.kind)))
}

fn api_of(operated: &Operated, context: &Context) -> Api<DynamicObject> {
    let namespace = operated.live.metadata().namespace.as_deref().unwrap_or_default();
    Api::namespaced_with(context.client.clone(), namespace, &operated.api)
}

/// Tells the operator to leave a resource alone, and notes on its object what it might do before. An object that is gone is fine.
pub async fn quiet(operated: &Operated, context: &Context) -> Result<Option<DynamicObject>, Error> {
    let before = operated.live.policy().unwrap_or_default();
    let patch = json!({"metadata": {
        "uid": operated.live.uid(),
        "annotations": {(POLICY): SKIP, (BEFORE_PAUSE): before},
    }});
    let name = operated.live.0.name_any();
    let told = api_of(operated, context)
        .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
        .await;
    match told {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        other => other.map(Some).map_err(Error::api(format!(
            "telling Azure Service Operator to leave {} {name} alone",
            operated.api.kind
        ))),
    }
}

/// Deletes an object of the operator. `release`: there is none to let go of it, and it is quiet.
pub async fn remove(operated: &Operated, release: bool, context: &Context) -> Result<(), Error> {
    let (api, kind) = (api_of(operated, context), operated.api.kind.as_str());
    if !operated.live.is_deleting() {
        take(&api, kind, &operated.live.0, DetachStep::Delete).await?;
    }
    if release {
        take(&api, kind, &operated.live.0, DetachStep::Release).await?;
    }
    Ok(())
}

/// Everything that the operator has of a paused holder is quiet: while it is moved, two operators may see it.
pub async fn pause(
    holder: &ObjectMeta,
    records: &Records,
    operators: &Operators,
    context: &Context,
) -> Result<(), Error> {
    let look = Look {
        namespace: holder.namespace.as_deref().unwrap_or_default(),
        operators,
        context,
    };
    for (_, entry) in records.entries() {
        let note = |name: &str| entry.notes.get(name).cloned().unwrap_or_default();
        if note(NOTE).is_empty() {
            continue;
        }
        let name = ResourceName {
            group: note("group"),
            version: note("version"),
            kind: note("kind"),
            name: note("name"),
        };
        let (_, found) = look.at(&name).await?;
        if let Some(found) = found
            && found.live.is_controlled_by(holder)
            && !found.live.is_quiet()
        {
            quiet(&found, context).await?;
        }
    }
    Ok(())
}

/// What an action left of an object, for the actions after it.
pub fn left(operated: &Operated, object: DynamicObject) -> Operated {
    Operated {
        live: OperatedObject(object),
        ..operated.clone()
    }
}
