//! Plans, as tables: what was observed, and what is then done.

mod control_plane;
mod infrastructure;
mod pool;

use std::{collections::BTreeMap, fmt::Write};

use jiff::Timestamp;
use serde_json::{Value, json};
use slipway_aso::{
    inline::{Catalog, Inventory, Lookup, Policy, exports, order},
    resources::{Held, Resource},
};
use slipway_azure::{
    diff::Record,
    reconcile::{Records, ResourceState, planning::Problem},
};
use slipway_runtime::{Class, Classified};

pub const GROUP: &str = "/subscriptions/sub/resourceGroups/fleet";
pub const NETWORK: &str =
    "/subscriptions/sub/resourceGroups/fleet/providers/Microsoft.Network/virtualNetworks/fleet";
pub const CLUSTER: &str =
    "/subscriptions/sub/resourceGroups/fleet/providers/Microsoft.ContainerService/managedClusters/fleet";

pub fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().expect("a time")
}

pub fn deleted() -> Value {
    json!({"deletionTimestamp": "2026-01-01T00:00:00Z"})
}

/// What is known of these resources, with nothing asked of Azure. References lead to a resource group and a cluster.
pub fn held(kind: &str, metadata: &Value, manifests: &[Value]) -> Held {
    let mut object = json!({"name": "fleet", "namespace": "default", "uid": "own", "generation": 1});
    json_patch::merge(&mut object, metadata);
    let metadata = serde_json::from_value(object).expect("metadata");
    let inventory = Inventory::read(manifests, "default", Policy::Manage);
    let around = [
        super::life::world::group(),
        super::life::world::managed_cluster(&json!({})),
    ];
    let mut catalog = Catalog::default();
    for inline in inventory
        .items
        .iter()
        .chain(&Inventory::read(&around, "default", Policy::Manage).items)
    {
        catalog.add(&inline.object, "sub");
    }
    let lookup = Lookup {
        subscription: "sub",
        ..Lookup::default()
    };
    let (places, _) = order(&inventory.items);
    let mut resources: Vec<Resource> = places
        .iter()
        .map(|&place| {
            let inline = &inventory.items[place];
            Resource {
                name: inline.name(),
                index: inline.index,
                id: catalog.id_of(inline, "sub").ok(),
                put: catalog.put(inline, &lookup).ok(),
                after: inline
                    .references()
                    .filter_map(|reference| {
                        let meant = |&other: &usize| inventory.items[other].is_meant_by(reference);
                        places.iter().position(meant)
                    })
                    .collect(),
                exports: exports(inline).unwrap_or_default(),
                inline: Some(inline.clone()),
                ..Resource::default()
            }
        })
        .collect();
    resources.extend(inventory.problems.iter().map(|(name, problem)| Resource {
        name: name.clone(),
        index: 99,
        problem: Some(Problem {
            code: problem.reason().to_owned(),
            message: problem.to_string(),
            class: problem.class(),
        }),
        ..Resource::default()
    }));
    Held {
        object: format!("{kind} default/fleet"),
        records: Records::of(&metadata),
        metadata,
        cluster_name: "fleet".to_owned(),
        resources,
        ..Held::default()
    }
}

pub fn absent(held: &mut Held, id: &str) {
    held.states.insert(id.to_lowercase(), ResourceState::Absent);
}

pub fn present(held: &mut Held, id: &str, body: &Value) {
    held.states
        .insert(id.to_lowercase(), ResourceState::Present(body.clone()));
}

/// Notes a resource as made here with this body, and seen through.
pub fn recorded(held: &mut Held, id: &str) {
    let resource = held
        .resources
        .iter()
        .find(|one| one.id.as_ref().is_some_and(|found| found.as_str() == id));
    let (version, notes) = resource.map_or_else(
        || ("2024-03-01".to_owned(), BTreeMap::new()),
        |one| (one.api_version().to_owned(), one.notes()),
    );
    let sent = resource.and_then(|one| one.put.clone()).map(|put| {
        let mut record = Record::sent(&put.body, &put.secrets);
        record.settled = true;
        record
    });
    held.records.ensure_mark(|| "mark".to_owned());
    held.records
        .intend(id, &version, &ResourceState::Absent, Timestamp::UNIX_EPOCH);
    held.records.note(id, notes);
    if let Some(record) = sent {
        held.records.keep(id, record);
    }
}

/// A resource that is in Azure as it was made here.
pub fn standing(held: &mut Held, id: &str) {
    let found = held
        .resources
        .iter()
        .find(|one| one.id.as_ref().is_some_and(|found| found.as_str() == id));
    let mut body = found
        .and_then(|one| one.put.as_ref())
        .map_or_else(|| json!({}), |put| put.body.clone());
    body["properties"]["provisioningState"] = json!("Succeeded");
    body["tags"]["slipway.dev_owner"] = json!("mark");
    present(held, id, &body);
    recorded(held, id);
}

pub fn denied() -> Problem {
    Problem {
        code: "AuthorizationFailed".to_owned(),
        message: "the credential may not read it".to_owned(),
        class: Class::Denied,
    }
}

/// The printed plans of many situations are those of the golden file. `SLIPWAY_TEST_BLESS=1` writes it.
pub fn golden(file: &str, situations: Vec<(&str, String)>) {
    let mut text = String::new();
    for (title, plan) in situations {
        let plan = plan
            .replace(CLUSTER, "<cluster>")
            .replace(&CLUSTER.to_lowercase(), "<cluster>")
            .replace(NETWORK, "<network>")
            .replace(&NETWORK.to_lowercase(), "<network>")
            .replace(GROUP, "<group>")
            .replace(&GROUP.to_lowercase(), "<group>");
        let _ = writeln!(text, "## {title}\n{plan}");
    }
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/plans")
        .join(file);
    if std::env::var_os("SLIPWAY_TEST_BLESS").is_some() {
        std::fs::write(&path, &text).expect("the golden file is written");
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        text,
        expected,
        "run with SLIPWAY_TEST_BLESS=1 to accept {}",
        path.display()
    );
}
