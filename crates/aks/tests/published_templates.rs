//! The cluster templates that CAPZ publishes for its managed API, read from its module: our schema has every field
//! they use, and our admission lets every object in.

use serde_json::{Value, json};
use slipway_aks::{
    api::{
        AzureClusterIdentity, AzureManagedControlPlane, AzureManagedControlPlaneTemplate,
        AzureManagedMachinePool, AzureManagedMachinePoolTemplate, crd::crds,
    },
    control_plane::{
        self,
        admit::{ClusterNetworkFact, defaults},
    },
    control_plane_template, identity,
    pool::{self, admit::OtherSystemPools},
    pool_template,
};
use slipway_runtime::admission::{Change, Operation, Verdict};

use super::drop_in::capz;

/// Replaces `${NAME}` and `${NAME:=default}` as clusterctl does, one level of defaults deep.
fn substituted(text: &str) -> String {
    let mut text = text.replace("${AZURE_RESOURCE_GROUP:=${CLUSTER_NAME}}", "group");
    while let Some(start) = text.find("${") {
        let end = start + text[start..].find('}').expect("a closed variable");
        let inner = &text[start + 2..end];
        let value = match inner.split_once(":=") {
            Some((_, default)) => default.to_owned(),
            None if inner == "KUBERNETES_VERSION" => "v1.31.0".to_owned(),
            None if inner == "AZURE_SUBSCRIPTION_ID" => "00000000-0000-0000-0000-00000000000a".to_owned(),
            None => "name".to_owned(),
        };
        text.replace_range(start..=end, &value);
    }
    text
}

fn documents(file: &str) -> Vec<Value> {
    let path = capz().join("templates").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let text = substituted(&text);
    text.split("\n---")
        .filter(|part| !part.trim().is_empty())
        .map(|part| serde_saphyr::from_str(part).unwrap_or_else(|error| panic!("{file}: {error}\n{part}")))
        .collect()
}

/// Fields of a value that the schema does not have.
fn unknown(at: &str, value: &Value, schema: &Value, into: &mut Vec<String>) {
    match value {
        Value::Object(fields) if schema["additionalProperties"].is_object() => {
            for (name, field) in fields {
                unknown(
                    &format!("{at}.{name}"),
                    field,
                    &schema["additionalProperties"],
                    into,
                );
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                match schema["properties"].get(name) {
                    Some(property) => unknown(&format!("{at}.{name}"), field, property, into),
                    None => into.push(format!("{at}.{name}")),
                }
            }
        }
        Value::Array(items) => items
            .iter()
            .for_each(|item| unknown(&format!("{at}[]"), item, &schema["items"], into)),
        _ => {}
    }
}

fn created<K: serde::de::DeserializeOwned>(object: &Value) -> Change<K> {
    Change {
        operation: Operation::Create,
        dry_run: false,
        user: String::new(),
        old: None,
        new: Some(serde_json::from_value(object.clone()).unwrap_or_else(|error| panic!("{error}: {object}"))),
    }
}

fn admitted(object: &Value) -> Verdict {
    match object["kind"].as_str().unwrap_or_default() {
        "AzureManagedControlPlane" => {
            let mut change: Change<AzureManagedControlPlane> = created(object);
            change
                .new
                .iter_mut()
                .for_each(|new| defaults::control_plane(new, None, || Err("not here".into())));
            control_plane::admit::verdict(&change, &ClusterNetworkFact::NoCluster, false)
        }
        "AzureManagedControlPlaneTemplate" => {
            let mut change: Change<AzureManagedControlPlaneTemplate> = created(object);
            change
                .new
                .iter_mut()
                .for_each(control_plane_template::admit::default);
            control_plane_template::admit::verdict(&change, &ClusterNetworkFact::NoCluster, false)
        }
        "AzureManagedMachinePool" => {
            let mut change: Change<AzureManagedMachinePool> = created(object);
            change.new.iter_mut().for_each(pool::admit::default);
            pool::admit::verdict(&change, &OtherSystemPools::NotNeeded)
        }
        "AzureManagedMachinePoolTemplate" => {
            let mut change: Change<AzureManagedMachinePoolTemplate> = created(object);
            change.new.iter_mut().for_each(pool_template::admit::default);
            pool_template::admit::verdict(&change, false)
        }
        "AzureClusterIdentity" => identity::admit::verdict(&created::<AzureClusterIdentity>(object)),
        _ => Verdict::allowed(),
    }
}

#[test]
fn the_published_templates_are_let_in() {
    let definitions: Vec<Value> = crds().iter().map(|crd| json!(crd)).collect();
    let mut ours = 0;
    let mut problems = Vec::new();
    for file in [
        "cluster-template-aks.yaml",
        "cluster-template-aks-clusterclass.yaml",
        "cluster-template-aks-topology.yaml",
    ] {
        for object in documents(file) {
            let kind = object["kind"].as_str().unwrap_or_default().to_owned();
            let Some(crd) = definitions
                .iter()
                .find(|crd| crd["spec"]["names"]["kind"] == kind.as_str())
            else {
                continue;
            };
            ours += 1;
            let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
            let mut fields = Vec::new();
            unknown("spec", &object["spec"], schema, &mut fields);
            problems.extend(
                fields
                    .iter()
                    .map(|field| format!("{file}: {kind} has {field}, and our schema does not")),
            );
            match admitted(&object) {
                Verdict::Allowed { .. } => {}
                refused => problems.push(format!(
                    "{file}: {kind} {}: {refused:?}",
                    object["metadata"]["name"]
                )),
            }
        }
    }
    println!("report: aks published templates: {ours} objects let in");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(ours >= 8, "only {ours} objects of ours were found");
}
