//! Accepted and ignored is a bug: every leaf of the specs, changed on its own, changes a manifest that goes to Azure, or
//! is on the reviewed list below with the reason why it does not.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use slipway_aks::{
    api::{AzureManagedControlPlane, AzureManagedMachinePool, crd::crds},
    render::{Facts, PoolFacts, addons, agent_pool, managed_cluster, network},
};

/// Leaves that reach no manifest, and why.
const NOT_SENT: &[(&str, &str, &str)] = &[
    (
        "plane",
        ".azureEnvironment",
        "chooses the cloud that is spoken to",
    ),
    ("plane", ".controlPlaneEndpoint", "written by the controller"),
    ("plane", ".identityRef", "chooses the credentials"),
    ("plane", ".machineTemplate", "empty"),
    (
        "plane",
        ".subscriptionID",
        "becomes the subscription of every id, which the controller resolves",
    ),
    ("pool", ".providerIDList", "written by the controller"),
];

pub fn spec_schema(plural: &str) -> Value {
    let crd = crds()
        .into_iter()
        .find(|crd| crd.spec.names.plural == plural)
        .expect(plural);
    json!(crd)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].clone()
}

/// A value for every leaf of a schema. The first of two variants differs from the second in every leaf.
pub fn sample(at: &str, schema: &Value, variant: usize) -> Value {
    if let Some(choices) = schema["enum"].as_array() {
        // Where there is one choice, the other is not to choose.
        return choices.get(variant).cloned().unwrap_or_default();
    }
    if at.ends_with("Patches[]") {
        return json!(format!("{{\"spec\": {{\"patched{variant}\": true}}}}"));
    }
    if at == ".sshPublicKey" {
        return json!(["a2V5", "a2V6"][variant]);
    }
    if schema["x-kubernetes-int-or-string"] == true {
        return json!(format!("0.{}", variant + 1));
    }
    match schema["type"].as_str() {
        Some("boolean") => json!(variant == 0),
        Some("integer") => {
            let least = schema["minimum"].as_f64().unwrap_or(40.0) as i64;
            json!(least + 1 + variant as i64)
        }
        Some("string") => json!(format!("{at}#{variant}")),
        Some("array") => json!([sample(&format!("{at}[]"), &schema["items"], variant)]),
        Some("object") if schema["additionalProperties"].is_object() => {
            json!({"{}": sample(&format!("{at}{{}}"), &schema["additionalProperties"], variant)})
        }
        Some("object") => schema["properties"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, property)| (name.clone(), sample(&format!("{at}.{name}"), property, variant)))
            .collect::<Map<_, _>>()
            .into(),
        other => panic!("{at} is {other:?}"),
    }
}

/// JSON pointers of all leaves.
pub fn leaves(at: &str, value: &Value, into: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields
            .iter()
            .for_each(|(name, field)| leaves(&format!("{at}/{name}"), field, into)),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .for_each(|(index, item)| leaves(&format!("{at}/{index}"), item, into)),
        _ => into.push(at.to_owned()),
    }
}

/// Everything that goes to Azure for a control plane and a pool with these specs.
fn outgoing(plane: &Value, pool: &Value) -> String {
    json!(manifests(plane, pool)).to_string()
}

pub fn manifests(plane: &Value, pool: &Value) -> Vec<Value> {
    let plane: AzureManagedControlPlane =
        serde_json::from_value(json!({"metadata": {"name": "plane"}, "spec": plane}))
            .expect("a control plane");
    let pool: AzureManagedMachinePool =
        serde_json::from_value(json!({"metadata": {"name": "pool"}, "spec": pool})).expect("a pool");
    let facts = Facts {
        plane: &plane,
        cluster_name: "fleet",
        subscription: "sub",
        services: Some("10.0.0.0/16"),
        pods: None,
    };
    let pools = [PoolFacts {
        class: &pool.spec.class,
        azure_name: pool.azure_name(),
        replicas: 50,
        version: None,
        existing: None,
    }];
    let mut all = network::resource_groups(&facts);
    all.push(network::virtual_network(&facts));
    all.push(network::subnet(&facts));
    all.push(managed_cluster(&facts, None, Some(&pools)).expect("a cluster"));
    all.push(agent_pool(&facts, &pools[0]).expect("a pool"));
    all.extend(network::private_endpoints(&facts));
    all.extend(addons::fleet_member(&facts));
    all.extend(addons::extensions(&facts));
    all
}

fn missing(
    kind: &str,
    plural: &str,
    adjust: fn(&mut Value, &str),
    send: &dyn Fn(&Value) -> String,
) -> Vec<String> {
    let schema = spec_schema(plural);
    let (first, second) = (sample("", &schema, 0), sample("", &schema, 1));
    let mut pointers = Vec::new();
    leaves("", &first, &mut pointers);
    let mut problems = Vec::new();
    let mut used = BTreeSet::new();
    let mut sent = 0;
    for pointer in &pointers {
        let path = pointer.replace("/0", "[]").replace('/', ".");
        let mut before = first.clone();
        adjust(&mut before, &path);
        let mut after = before.clone();
        *after.pointer_mut(pointer).expect("a leaf") = second.pointer(pointer).expect("a leaf").clone();
        assert!(before != after, "{path} has only one sample");
        let reaches = send(&before) != send(&after);
        let listed = NOT_SENT
            .iter()
            .find(|(of, start, _)| *of == kind && path.starts_with(start));
        match (reaches, listed) {
            (false, None) => problems.push(format!("{kind}{path} is accepted and reaches no manifest")),
            (true, Some((_, start, _))) => problems.push(format!(
                "{kind}{path} reaches a manifest and is listed as {start}"
            )),
            (false, Some((_, start, _))) => _ = used.insert(*start),
            (true, None) => sent += 1,
        }
    }
    println!(
        "report: aks completeness: {kind}: {} leaves, {sent} sent, {} listed exceptions",
        pointers.len(),
        used.len()
    );
    problems
}

#[test]
fn every_leaf_of_a_control_plane_is_sent() {
    let pool = json!({"mode": "System", "sku": "small"});
    let problems = missing(
        "plane",
        "azuremanagedcontrolplanes",
        |plane, path| {
            // Fields that count only beside another choice.
            if path.ends_with("userAssignedIdentityResourceID") {
                plane["identity"]["type"] = json!("UserAssigned");
            }
            if path.ends_with("targetNamespace") {
                plane["extensions"][0]["scope"]["scopeType"] = json!("Namespace");
            }
            // A user's patch of a field would hide the field.
            plane["version"] = json!("v1.31.0");
        },
        &|plane| outgoing(plane, &pool),
    );
    // The one leaf that the adjustment fixes is shown here.
    let mut plane = sample("", &spec_schema("azuremanagedcontrolplanes"), 0);
    plane["version"] = json!("v1.31.0");
    let before = outgoing(&plane, &pool);
    plane["version"] = json!("v1.32.0");
    assert_ne!(before, outgoing(&plane, &pool));
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn every_leaf_of_a_pool_is_sent() {
    let plane = json!({
        "version": "v1.31.0", "location": "westus", "resourceGroupName": "group", "identityRef": {},
        "virtualNetwork": {"name": "network", "cidrBlock": "10.0.0.0/8", "subnet": {"name": "nodes", "cidrBlock": "10.240.0.0/16"}}
    });
    let problems = missing("pool", "azuremanagedmachinepools", |_, _| {}, &|pool| {
        // Seen beside a system pool, so that its own mode may be either.
        let spec: AzureManagedMachinePool =
            serde_json::from_value(json!({"metadata": {"name": "pool"}, "spec": pool})).expect("a pool");
        let plane: AzureManagedControlPlane =
            serde_json::from_value(json!({"metadata": {"name": "plane"}, "spec": plane}))
                .expect("a control plane");
        let facts = Facts {
            plane: &plane,
            cluster_name: "fleet",
            subscription: "sub",
            services: None,
            pods: None,
        };
        let facts_of_pool = PoolFacts {
            class: &spec.spec.class,
            azure_name: spec.azure_name(),
            replicas: 50,
            version: None,
            existing: None,
        };
        agent_pool(&facts, &facts_of_pool).expect("a pool").to_string()
    });
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
