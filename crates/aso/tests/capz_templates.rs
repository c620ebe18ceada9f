//! The cluster templates that Cluster API Provider Azure publishes for this API, read from its module: their inline resources become the
//! requests that make the cluster.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use slipway_aso::{
    api::{AzureASOManagedCluster, AzureASOManagedControlPlane, AzureASOManagedMachinePool, crd::crds},
    inline::{Catalog, Inventory, Lookup, Policy, order},
    mutators::{
        Access, ClusterFacts, Pool, PoolFacts, Pools, Profiles, access, profiles, set_agent_pool,
        set_managed_cluster,
    },
};
use slipway_azure::resource::Put;
use slipway_capi::view::{Cluster, MachinePool, v1beta1};

use super::capz::{document, text};

const SUBSCRIPTION: &str = "00000000-0000-0000-0000-00000000000a";

/// Replaces `${NAME}` and `${NAME:=default}` as clusterctl does.
fn substituted(text: &str) -> String {
    let values = BTreeMap::from([
        ("CLUSTER_NAME", "fleet"),
        ("KUBERNETES_VERSION", "v1.31.2"),
        ("AZURE_LOCATION", "eastus"),
        ("AZURE_NODE_MACHINE_TYPE", "Standard_D2s_v3"),
        ("ASO_CREDENTIAL_SECRET_NAME", "sign-in"),
        ("CLUSTER_CLASS_NAME", "class"),
    ]);
    let mut text = text.to_owned();
    while let Some(start) = text.find("${") {
        let end = start + text[start..].find('}').expect("a closed variable");
        let inner = &text[start + 2..end];
        let (name, default) = inner.split_once(":=").unwrap_or((inner, ""));
        let value = values.get(name).copied().unwrap_or(default).to_owned();
        assert!(!value.is_empty(), "no value for {name}");
        text.replace_range(start..=end, &value);
    }
    text
}

fn documents(file: &str) -> Vec<Value> {
    substituted(&text(&format!("templates/{file}")))
        .split("\n---")
        .filter(|part| !part.trim().is_empty())
        .map(document)
        .collect()
}

fn of_kind<'a>(documents: &'a [Value], kind: &str) -> Vec<&'a Value> {
    documents.iter().filter(|found| found["kind"] == kind).collect()
}

fn read<T: serde::de::DeserializeOwned>(document: &Value) -> T {
    serde_json::from_value(document.clone()).unwrap_or_else(|error| panic!("{error}: {document}"))
}

/// What is asked of Azure, in order.
fn requests(resources: &[Value]) -> (Inventory, Vec<usize>, Vec<Put>) {
    let inventory = Inventory::read(resources, "default", Policy::Manage);
    assert_eq!(inventory.problems, []);
    let mut catalog = Catalog::default();
    for inline in &inventory.items {
        assert_eq!(inline.credential.as_deref(), Some("sign-in"));
        catalog.add(&inline.object, SUBSCRIPTION);
    }
    let lookup = Lookup {
        subscription: SUBSCRIPTION,
        ..Lookup::default()
    };
    let (order, problems) = order(&inventory.items);
    assert_eq!(problems, []);
    let puts: Vec<_> = order
        .iter()
        .map(|&index| catalog.put(&inventory.items[index], &lookup).expect("a request"))
        .collect();
    (inventory, order, puts)
}

fn assert_requests(puts: &[Put]) {
    let group = format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/fleet");
    let aks = format!("{group}/providers/Microsoft.ContainerService/managedClusters/fleet");
    let asked: Vec<_> = puts
        .iter()
        .map(|put| (put.id.as_str().to_owned(), put.mapping.api_version.as_str()))
        .collect();
    assert_eq!(
        asked,
        [
            (group, "2020-06-01"),
            (aks.clone(), "2024-09-01"),
            (format!("{aks}/agentPools/pool0"), "2024-09-01"),
            (format!("{aks}/agentPools/pool1"), "2024-09-01"),
        ]
    );
    assert_eq!(puts[0].body, json!({"name": "fleet", "location": "eastus"}));
    let pool = |name: &str, mode: &str| {
        json!({
            "name": name, "mode": mode, "type": "VirtualMachineScaleSets", "vmSize": "Standard_D2s_v3",
            "count": 2, "orchestratorVersion": "1.31.2",
        })
    };
    assert_eq!(
        puts[1].body,
        json!({
            "name": "fleet", "location": "eastus", "identity": {"type": "SystemAssigned"},
            "properties": {
                "dnsPrefix": "fleet", "kubernetesVersion": "1.31.2",
                "networkProfile": {"networkPlugin": "azure"},
                "servicePrincipalProfile": {"clientId": "msi"},
                "agentPoolProfiles": [pool("pool0", "System"), pool("pool1", "User")],
            },
        })
    );
    let mut properties = pool("pool1", "User");
    properties.as_object_mut().expect("an object").remove("name");
    assert_eq!(puts[3].body, json!({"name": "pool1", "properties": properties}));
}

#[test]
fn the_published_template_becomes_a_cluster_with_its_pools() {
    let documents = documents("cluster-template-aks-aso.yaml");
    let cluster: v1beta1::Cluster = read(of_kind(&documents, "Cluster")[0]);
    let cluster = Cluster::from(cluster);
    let machine_pools: Vec<MachinePool> = of_kind(&documents, "MachinePool")
        .into_iter()
        .map(|found| MachinePool::from(read::<v1beta1::MachinePool>(found)))
        .collect();
    let infrastructure: AzureASOManagedCluster = read(of_kind(&documents, "AzureASOManagedCluster")[0]);
    let mut plane: AzureASOManagedControlPlane = read(of_kind(&documents, "AzureASOManagedControlPlane")[0]);
    let mut pools: Vec<AzureASOManagedMachinePool> = of_kind(&documents, "AzureASOManagedMachinePool")
        .into_iter()
        .map(read)
        .collect();
    assert_eq!((machine_pools.len(), pools.len()), (2, 2));

    // What Cluster API decides.
    let names: Vec<String> = pools
        .iter()
        .map(|pool| pool.metadata.name.clone().unwrap())
        .collect();
    let described: Vec<Pool<'_>> = (0..2)
        .map(|index| Pool {
            name: &names[index],
            resources: &pools[index].spec.resources,
            machine_pool: Some(&machine_pools[index]),
        })
        .collect();
    let written = Inventory::read(&plane.spec.resources, "default", Policy::Manage);
    let Profiles::Complete {
        profiles: found,
        left_out,
    } = profiles(&written.items[0].object.mapping, &described)
    else {
        panic!("the template has all that a cluster is made with")
    };
    assert_eq!(left_out, Vec::<String>::new());
    let facts = ClusterFacts {
        cluster: &cluster,
        version: &plane.spec.version,
        pools: Pools::AtCreation(&found),
    };
    set_managed_cluster(&mut plane.spec.resources, &facts).unwrap();
    for (pool, machine_pool) in pools.iter_mut().zip(&machine_pools) {
        let facts = PoolFacts {
            machine_pool,
            exists: false,
        };
        set_agent_pool(&mut pool.spec.resources, &facts).unwrap();
    }

    let resources: Vec<Value> = pools
        .iter()
        .flat_map(|pool| pool.spec.resources.clone())
        .chain(plane.spec.resources.clone())
        .chain(infrastructure.spec.resources.clone())
        .collect();
    let (inventory, order, puts) = requests(&resources);
    assert_requests(&puts);

    let Ok(Access::AsGiven { to, .. }) = access(&inventory.items[order[1]], None, "fleet") else {
        panic!("the administrator's kubeconfig is asked for")
    };
    assert_eq!(to.to_string(), "key \"value\" of Secret \"fleet-kubeconfig\"");
}

/// Members of a value that the schema does not have.
fn unknown(at: &str, value: &Value, schema: &Value, into: &mut Vec<String>) {
    if schema["x-kubernetes-preserve-unknown-fields"] == true {
        return;
    }
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                let path = format!("{at}.{name}");
                let below = match &schema["properties"][name] {
                    Value::Null => &schema["additionalProperties"],
                    known => known,
                };
                if below.is_object() {
                    unknown(&path, member, below, into);
                } else {
                    into.push(path);
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                unknown(&format!("{at}[]"), item, &schema["items"], into);
            }
        }
        _ => {}
    }
}

#[test]
fn every_field_of_the_published_templates_and_classes_is_in_our_schemas() {
    let definitions = crds();
    let mut checked = 0;
    for file in [
        "cluster-template-aks-aso.yaml",
        "cluster-template-aks-aso-clusterclass.yaml",
        "cluster-template-aks-aso-topology.yaml",
    ] {
        for document in documents(file) {
            let Some(crd) = definitions
                .iter()
                .find(|crd| document["kind"] == crd.spec.names.kind.as_str())
            else {
                continue;
            };
            let crd = json!(crd);
            let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            let mut found = Vec::new();
            unknown(
                "spec",
                &document["spec"],
                &schema["properties"]["spec"],
                &mut found,
            );
            assert_eq!(found, Vec::<String>::new(), "{file}: {}", document["kind"]);
            checked += 1;
        }
    }
    println!("report: aso templates: {checked} objects");
    assert!(checked >= 8, "only {checked} objects of this API");
}
