//! The writes: the condition of a Cluster, and our kinds in a workload cluster.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use slipway_capi::{
    condition::{self, Report},
    view::Cluster,
};
use slipway_runtime::Context;

use super::plan::{CONDITION, Definitions};
use crate::{Error, api::crd};

/// Who applies: what is no longer applied goes.
const MANAGER: &str = "slipway-autoscaler";
/// On a definition that was installed from here, and so is kept up from here.
const INSTALLED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", MANAGER);

/// Makes the condition say this, or takes it away. The others in the list are other people's, so it is applied by itself.
pub async fn tell(cluster: &Cluster, report: Option<&Report>, context: &Context) -> Result<(), Error> {
    let known = condition::find(&cluster.status.conditions, CONDITION).cloned();
    let generation = cluster.metadata.generation;
    let mut conditions: Vec<_> = known.iter().cloned().collect();
    let differs = match report {
        Some(report) => condition::set(&mut conditions, report, generation, context.clock.now()),
        None => !std::mem::take(&mut conditions).is_empty(),
    };
    if !differs {
        return Ok(());
    }
    let (namespace, name) = (cluster.namespace().unwrap_or_default(), cluster.name_any());
    let applied = json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": {"name": name, "namespace": namespace}, "status": {"conditions": conditions}});
    let clusters: Api<Cluster> = Api::namespaced(context.client.clone(), &namespace);
    let parameters = PatchParams::apply(MANAGER).force();
    let written = clusters
        .patch_status(&name, &parameters, &Patch::Apply(&applied))
        .await
        .map_err(Error::api(format!(
            "saying on Cluster {namespace}/{name} how its scaling is"
        )))?;
    let before = cluster.metadata.resource_version.as_deref();
    context.writes().saw_dynamic(&written, &(), before);
    Ok(())
}

fn is_served(definition: &CustomResourceDefinition) -> bool {
    let conditions = definition
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|one| one.type_ == "Established" && one.status == "True")
}

/// Whether our kinds are served in the versions that we speak.
pub async fn look(client: &Client) -> Result<Definitions, Error> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut missing = Vec::new();
    for ours in crd::crds() {
        let name = ours.name_any();
        let found = api.get_opt(&name).await.map_err(Error::api(format!(
            "looking for the CRD {name} in the workload cluster"
        )))?;
        let speaks = |found: &CustomResourceDefinition| {
            let mut spoken = ours.spec.versions.iter().map(|version| &version.name);
            spoken.all(|spoken| {
                let mut served = found.spec.versions.iter().filter(|version| version.served);
                served.any(|version| version.name == *spoken)
            })
        };
        if !found
            .as_ref()
            .is_some_and(|found| is_served(found) && speaks(found))
        {
            missing.push(name);
        }
    }
    Ok(if missing.is_empty() {
        Definitions::Served
    } else {
        Definitions::Missing(missing)
    })
}

/// Installs our kinds, and brings those up to date that were installed from here. Those of anybody else stay as they are.
pub async fn install(client: &Client) -> Result<(), Error> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for mut ours in crd::crds() {
        let name = ours.name_any();
        let found = api.get_opt(&name).await.map_err(Error::api(format!(
            "looking for the CRD {name} in the workload cluster"
        )))?;
        let is_anothers = |found: &CustomResourceDefinition| {
            found
                .labels()
                .get(INSTALLED_BY.0)
                .is_none_or(|by| by != INSTALLED_BY.1)
        };
        if found.as_ref().is_some_and(is_anothers) {
            continue;
        }
        ours.labels_mut()
            .insert(INSTALLED_BY.0.to_owned(), INSTALLED_BY.1.to_owned());
        let mut applied: Value = serde_json::to_value(&ours).unwrap_or_default();
        applied["apiVersion"] = json!("apiextensions.k8s.io/v1");
        applied["kind"] = json!("CustomResourceDefinition");
        api.patch(
            &name,
            &PatchParams::apply(MANAGER).force(),
            &Patch::Apply(&applied),
        )
        .await
        .map_err(Error::api(format!(
            "installing the CRD {name} in the workload cluster"
        )))?;
    }
    Ok(())
}
