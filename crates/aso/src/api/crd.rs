//! The CustomResourceDefinitions: what the types say, finished for the apiserver. Both versions have one schema, so the
//! apiserver converts between them by itself.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion,
};
use kube::CustomResourceExt;
use serde_json::{Value, json};

use super::{
    AzureASOManagedCluster, AzureASOManagedClusterTemplate, AzureASOManagedControlPlane,
    AzureASOManagedControlPlaneTemplate, AzureASOManagedMachinePool, AzureASOManagedMachinePoolTemplate,
    GROUP,
};

/// Every CustomResourceDefinition of this provider.
pub fn crds() -> Vec<CustomResourceDefinition> {
    [
        AzureASOManagedCluster::crd(),
        AzureASOManagedClusterTemplate::crd(),
        AzureASOManagedControlPlane::crd(),
        AzureASOManagedControlPlaneTemplate::crd(),
        AzureASOManagedMachinePool::crd(),
        AzureASOManagedMachinePoolTemplate::crd(),
    ]
    .into_iter()
    .map(finish)
    .collect()
}

/// Adds the contracts that the kind fulfils and the older version, and takes away what the types alone would add: with
/// `nullable` an explicit null would be kept, and a default would be stored that nobody wrote.
fn finish(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    let labels = crd.metadata.labels.get_or_insert_default();
    for contract in ["v1beta1", "v1beta2"] {
        labels.insert(format!("cluster.x-k8s.io/{contract}"), "v1beta1".to_owned());
    }
    crd.spec.names.list_kind = Some(format!("{}List", crd.spec.names.kind));
    let mut value = json!(crd);
    let schema = &mut value["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    // An object without a spec is let in: it has no resources, and a condition says what is missing.
    if let Some(fields) = schema.as_object_mut() {
        fields.remove("required");
    }
    plain(schema);
    if !crd.spec.names.kind.ends_with("Template") {
        schema["properties"]["spec"]["default"] = json!({});
    }
    let mut crd: CustomResourceDefinition =
        serde_json::from_value(value).expect("a definition stays one without `nullable` and defaults");
    let older = older(&crd.spec.versions[0], &crd.spec.names.kind);
    crd.spec.versions.insert(0, older);
    crd
}

/// The version that manifests were first written in.
fn older(version: &CustomResourceDefinitionVersion, kind: &str) -> CustomResourceDefinitionVersion {
    CustomResourceDefinitionVersion {
        name: "v1alpha1".to_owned(),
        storage: false,
        deprecated: Some(true),
        deprecation_warning: Some(format!(
            "{GROUP}/v1alpha1 {kind} is deprecated: use {GROUP}/v1beta1, which is the same"
        )),
        ..version.clone()
    }
}

fn plain(schema: &mut Value) {
    let Value::Object(fields) = schema else { return };
    fields.remove("nullable");
    fields.remove("default");
    if let Some(Value::Object(properties)) = fields.get_mut("properties") {
        properties.values_mut().for_each(plain);
    }
    for nested in ["items", "additionalProperties"] {
        if let Some(nested) = fields.get_mut(nested) {
            plain(nested);
        }
    }
}
