//! Installs what a manager outside the cluster needs: CRDs, then the webhooks in front of them.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams},
    runtime::{conditions, wait::await_condition},
};

/// A hang guard: a CRD is served within milliseconds.
const SERVED_DEADLINE: Duration = Duration::from_mins(1);

/// Why local objects could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error("installing {what}: {source}")]
    Apply { what: String, source: Box<kube::Error> },
    #[error("the CRD {name} was installed but is not served after a minute; look at its conditions")]
    NotServed { name: String },
}

/// Applies what `slipway_render::local_objects` renders server-side, and waits until every CRD is served before its webhooks follow.
pub async fn apply(client: &kube::Client, objects: &[DynamicObject]) -> Result<(), InstallError> {
    let parameters = PatchParams::apply("slipway-up").force();
    let is_crd = |object: &DynamicObject| {
        object
            .types
            .as_ref()
            .is_some_and(|types| types.kind == "CustomResourceDefinition")
    };
    for crds in [true, false] {
        let chosen: Vec<&DynamicObject> = objects.iter().filter(|object| is_crd(object) == crds).collect();
        for object in &chosen {
            let types = object.types.clone().unwrap_or_default();
            let (name, wrong) = (object.name_any(), |source| InstallError::Apply {
                what: format!("{} {}", types.kind, object.name_any()),
                source: Box::new(source),
            });
            let (group, version) = types
                .api_version
                .split_once('/')
                .unwrap_or(("", &types.api_version));
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &types.kind));
            let api: Api<DynamicObject> = match object.namespace() {
                Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
                None => Api::all_with(client.clone(), &resource),
            };
            api.patch(&name, &parameters, &Patch::Apply(object))
                .await
                .map_err(wrong)?;
        }
        if crds {
            for name in chosen.iter().map(|object| object.name_any()) {
                let api: Api<CustomResourceDefinition> = Api::all(client.clone());
                let served = await_condition(api, &name, conditions::is_crd_established());
                if !matches!(tokio::time::timeout(SERVED_DEADLINE, served).await, Ok(Ok(_))) {
                    return Err(InstallError::NotServed { name });
                }
            }
        }
    }
    Ok(())
}
