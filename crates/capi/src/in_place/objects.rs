//! A Machine with its InfraMachine and bootstrap config: as they are stored, and as an update in place is to leave them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject},
};
use serde_json::{Map, Value, json};

use super::Resources;
use crate::{Error, hook::types::MachineObjects, names::annotation, reference, template, view::Machine};

/// Reads a Machine and its objects. The bootstrap config is read at the given version, the InfraMachine at that of the
/// contract.
pub async fn read(
    client: &Client,
    machine: &Machine,
    bootstrap_config: ApiResource,
) -> Result<(Resources, MachineObjects), Error> {
    let namespace = machine.metadata.namespace.as_deref().unwrap_or_default();
    let name = machine.metadata.name.as_deref().unwrap_or_default();
    let infrastructure = &machine.spec.infrastructure_ref;
    let (infrastructure_machine, _) = reference::resolve(client, infrastructure).await?;
    let config = machine.spec.bootstrap.config_ref.as_ref();
    let resources = Resources {
        machine: ApiResource::erase::<Machine>(&()),
        infrastructure_machine,
        bootstrap_config: config.map(|_| bootstrap_config),
    };
    let mut objects = MachineObjects {
        machine: get(client, &resources.machine, namespace, name).await?,
        ..MachineObjects::default()
    };
    if let (Some(config), Some(resource)) = (config, &resources.bootstrap_config) {
        objects.bootstrap_config = Some(get(client, resource, namespace, &config.name).await?);
    }
    let resource = &resources.infrastructure_machine;
    objects.infrastructure_machine = get(client, resource, namespace, &infrastructure.name).await?;
    Ok((resources, objects))
}

async fn get(client: &Client, resource: &ApiResource, namespace: &str, name: &str) -> Result<Value, Error> {
    let doing = format!("reading {} {namespace}/{name}", resource.kind);
    let found = Api::<DynamicObject>::namespaced_with(client.clone(), namespace, resource)
        .get(name)
        .await
        .map_err(Error::api(doing))?;
    let mut value = serde_json::to_value(&found).unwrap_or_default();
    value["apiVersion"] = resource.api_version.clone().into();
    value["kind"] = resource.kind.clone().into();
    Ok(value)
}

/// What an update in place is to make of the objects of a Machine.
#[derive(Clone, Debug)]
pub struct Changes<'a> {
    pub controller: Option<OwnerReference>,
    /// Fields of the Machine's spec beside its references, such as `version`.
    pub machine: Map<String, Value>,
    /// The spec of the bootstrap config.
    pub bootstrap_config: Value,
    /// The template the InfraMachine would be cloned from.
    pub infrastructure_template: &'a Value,
}

/// The objects as the update is to leave them: what its controller decides, and nothing that others have written.
pub fn desired(current: &MachineObjects, changes: &Changes<'_>) -> MachineObjects {
    let spec = &current.machine["spec"];
    let mut machine = named(&current.machine);
    machine["spec"] = json!({
        "clusterName": spec["clusterName"],
        "bootstrap": {"configRef": spec["bootstrap"]["configRef"]},
        "infrastructureRef": spec["infrastructureRef"],
    });
    if let Some(domain) = spec.get("failureDomain") {
        machine["spec"]["failureDomain"] = domain.clone();
    }
    for (field, value) in &changes.machine {
        machine["spec"][field] = value.clone();
    }
    if let Some(controller) = &changes.controller {
        machine["metadata"]["ownerReferences"] = json!([controller]);
    }

    let bootstrap_config = current.bootstrap_config.as_ref().map(|config| {
        let mut desired = named(config);
        desired["spec"] = changes.bootstrap_config.clone();
        desired
    });

    let source = changes.infrastructure_template;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut infrastructure_machine = named(&current.infrastructure_machine);
    infrastructure_machine["spec"] = source["spec"]["template"]["spec"].clone();
    // What the InfraMachine's own controller has put into its spec stays.
    if let Some(id) = current.infrastructure_machine["spec"].get("providerID") {
        infrastructure_machine["spec"]["providerID"] = id.clone();
    }
    let kind = template::group_kind(&text(&source["apiVersion"]), &text(&source["kind"]));
    infrastructure_machine["metadata"]["annotations"] = json!({
        annotation::CLONED_FROM_NAME: source["metadata"]["name"],
        annotation::CLONED_FROM_GROUP_KIND: kind,
    });
    MachineObjects {
        machine,
        infrastructure_machine,
        bootstrap_config,
    }
}

/// The same object with nothing but its name. The uid keeps an apply from recreating one that was deleted meanwhile.
fn named(object: &Value) -> Value {
    let metadata = &object["metadata"];
    json!({
        "apiVersion": object["apiVersion"],
        "kind": object["kind"],
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(kind: &str, spec: &Value) -> Value {
        json!({"apiVersion": "a/v1", "kind": kind,
            "metadata": {"name": "m", "namespace": "n", "uid": "1", "labels": {"l": "1"},
                "annotations": {"a": "1"}, "resourceVersion": "7"},
            "spec": spec, "status": {"x": 1}})
    }

    #[test]
    fn an_update_changes_what_its_controller_decides_and_nothing_else() {
        let current = MachineObjects {
            machine: stored(
                "Machine",
                &json!({"clusterName": "edge", "version": "v1.35.0", "failureDomain": "a", "providerID": "p",
                    "bootstrap": {"configRef": {"name": "m"}, "dataSecretName": "m"}, "infrastructureRef": {"name": "m"}}),
            ),
            infrastructure_machine: stored("EdgeMachine", &json!({"image": 1, "providerID": "p"})),
            bootstrap_config: Some(stored("KThreesConfig", &json!({"files": [1]}))),
        };
        let template = json!({"apiVersion": "i.dev/v1", "kind": "EdgeMachineTemplate", "metadata": {"name": "t2"},
            "spec": {"template": {"spec": {"image": 2}}}});
        let changes = Changes {
            controller: Some(OwnerReference {
                name: "cp".into(),
                ..OwnerReference::default()
            }),
            machine: [("version".to_owned(), json!("v1.36.0"))].into_iter().collect(),
            bootstrap_config: json!({"files": [2]}),
            infrastructure_template: &template,
        };
        let desired = desired(&current, &changes);
        assert_eq!(
            desired.machine["spec"],
            json!({"clusterName": "edge", "version": "v1.36.0", "failureDomain": "a",
                "bootstrap": {"configRef": {"name": "m"}}, "infrastructureRef": {"name": "m"}})
        );
        assert_eq!(desired.machine["metadata"]["ownerReferences"][0]["name"], "cp");
        assert_eq!(
            desired.infrastructure_machine,
            json!({"apiVersion": "a/v1", "kind": "EdgeMachine",
                "metadata": {"name": "m", "namespace": "n", "uid": "1", "annotations": {
                    "cluster.x-k8s.io/cloned-from-name": "t2",
                    "cluster.x-k8s.io/cloned-from-groupkind": "EdgeMachineTemplate.i.dev"}},
                "spec": {"image": 2, "providerID": "p"}})
        );
        assert_eq!(
            desired.bootstrap_config,
            Some(json!({"apiVersion": "a/v1", "kind": "KThreesConfig",
                "metadata": {"name": "m", "namespace": "n", "uid": "1"}, "spec": {"files": [2]}}))
        );
    }
}
