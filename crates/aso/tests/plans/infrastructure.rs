//! An AzureASOManagedCluster: the plans of many situations in a golden file.

use serde_json::{Value, json};
use slipway_aso::{
    api::Endpoint,
    cluster::{observe::Observed, plan::plan},
};
use slipway_azure::{ownership::Foreign, reconcile::planning::Unknown};

use super::{GROUP, NETWORK, absent, deleted, denied, golden, held, now, present, recorded, standing};
use crate::life::world::{group, network, resource};

const KIND: &str = "AzureASOManagedCluster";

fn with(metadata: &Value, manifests: &[Value], change: impl FnOnce(&mut Observed)) -> Observed {
    let mut observed = Observed {
        held: held(KIND, metadata, manifests),
        endpoint: Some(Endpoint {
            host: "aks.example".to_owned(),
            port: 443,
        }),
        ..Observed::default()
    };
    observed.object.spec.control_plane_endpoint = observed.endpoint.clone();
    change(&mut observed);
    observed
}

fn annotated(mut manifest: Value, name: &str, value: &str) -> Value {
    manifest["metadata"]["annotations"][name] = json!(value);
    manifest
}

const POLICY: &str = "serviceoperator.azure.com/reconcile-policy";

/// Resources that are made, and changed.
fn made() -> Vec<(&'static str, Observed)> {
    let both = || vec![network(), group()];
    vec![
        (
            "the Cluster has another control plane",
            with(&json!({}), &both(), |observed| {
                observed.other_control_plane = Some("KubeadmControlPlane".to_owned());
            }),
        ),
        (
            "nothing is there, and the network is written before its group",
            with(&json!({}), &both(), |observed| {
                absent(&mut observed.held, GROUP);
                absent(&mut observed.held, NETWORK);
                observed.endpoint = None;
            }),
        ),
        (
            "the group is there",
            with(&json!({}), &both(), |observed| {
                standing(&mut observed.held, GROUP);
                absent(&mut observed.held, NETWORK);
            }),
        ),
        (
            "all is well",
            with(&json!({}), &both(), |observed| {
                standing(&mut observed.held, GROUP);
                standing(&mut observed.held, NETWORK);
            }),
        ),
        (
            "the API server answers elsewhere",
            with(&json!({}), &[], |observed| {
                observed.object.spec.control_plane_endpoint = None;
            }),
        ),
        (
            "a policy has changed",
            with(
                &json!({}),
                &[annotated(group(), POLICY, "detach-on-delete")],
                |observed| {
                    let mut before = held(KIND, &json!({}), &[group()]);
                    standing(&mut before, GROUP);
                    observed.held.records = before.records;
                    observed.held.states = before.states;
                },
            ),
        ),
        (
            "the network was changed by others",
            with(&json!({}), &both(), |observed| {
                standing(&mut observed.held, GROUP);
                standing(&mut observed.held, NETWORK);
                let mut body = observed.held.states[&NETWORK.to_lowercase()]
                    .body()
                    .expect("a body")
                    .clone();
                body["properties"]["addressSpace"]["addressPrefixes"] = json!(["10.0.0.0/9"]);
                present(&mut observed.held, NETWORK, &body);
            }),
        ),
    ]
}

/// What keeps resources from being made.
fn kept_back() -> Vec<(&'static str, Observed)> {
    let both = || vec![network(), group()];
    let mut misspelt = network();
    misspelt["spec"]["adressSpace"] = json!({});
    vec![
        (
            "a resource cannot be read, another is made",
            with(&json!({}), &[misspelt, group()], |observed| {
                absent(&mut observed.held, GROUP);
            }),
        ),
        (
            "the credential may not read",
            with(&json!({}), &[group()], |observed| {
                observed.held.resources[0].problem = Some(denied());
            }),
        ),
        (
            "Azure did not answer",
            with(&json!({}), &[group()], |observed| {
                let unknown = Unknown::Failed(denied());
                observed.held.unknown.insert(GROUP.to_lowercase(), unknown);
            }),
        ),
        (
            "the group is another's",
            with(&json!({}), &both(), |observed| {
                present(&mut observed.held, GROUP, &json!({}));
                absent(&mut observed.held, NETWORK);
                let object = "AzureASOManagedCluster default/other".to_owned();
                let foreign = Foreign::Marked { object };
                observed.held.foreign.insert(GROUP.to_lowercase(), foreign);
            }),
        ),
        (
            "an Azure Service Operator runs",
            with(&json!({}), &[group()], |observed| {
                absent(&mut observed.held, GROUP);
                let object = "ResourceGroup default/fleet of Azure Service Operator".to_owned();
                observed.held.resources[0].operated_by = Some(object);
            }),
        ),
        (
            "skipped, and not there",
            with(&json!({}), &[annotated(group(), POLICY, "skip")], |observed| {
                absent(&mut observed.held, GROUP);
            }),
        ),
        (
            "the network vanished",
            with(&json!({}), &both(), |observed| {
                standing(&mut observed.held, GROUP);
                recorded(&mut observed.held, NETWORK);
                absent(&mut observed.held, NETWORK);
            }),
        ),
    ]
}

/// Resources that leave the spec, and values that go to Kubernetes.
fn taken_out() -> Vec<(&'static str, Observed)> {
    vec![
        (
            "the network is taken out of the spec",
            with(&json!({}), &[group()], |observed| {
                standing(&mut observed.held, GROUP);
                standing(&mut observed.held, NETWORK);
            }),
        ),
        (
            "the group is taken out of the spec, and the network is in it",
            with(&json!({}), &[network()], |observed| {
                standing(&mut observed.held, GROUP);
                standing(&mut observed.held, NETWORK);
            }),
        ),
        (
            "values are to be written",
            with(
                &json!({}),
                &[resource(
                    "managedidentity.azure.com/v1api20230131",
                    "UserAssignedIdentity",
                    "id",
                    &json!({"owner": {"name": "fleet"}, "location": "l", "operatorSpec": {"configMaps": {
                    "clientId": {"name": "id", "key": "client"}}}}),
                )],
                |observed| {
                    let id = observed.held.resources[0].id.clone().expect("an id");
                    standing(&mut observed.held, id.as_str());
                    let mut body = observed.held.states[id.key()].body().expect("a body").clone();
                    body["properties"]["clientId"] = json!("c");
                    present(&mut observed.held, id.as_str(), &body);
                },
            ),
        ),
    ]
}

/// The object is deleted.
fn deletions() -> Vec<(&'static str, Observed)> {
    let both = || vec![network(), group()];
    vec![
        (
            "deleted: the network goes with its group",
            with(&deleted(), &both(), |observed| {
                standing(&mut observed.held, GROUP);
                standing(&mut observed.held, NETWORK);
            }),
        ),
        (
            "deleted: the group is skipped",
            with(
                &deleted(),
                &[annotated(group(), POLICY, "skip"), network()],
                |observed| {
                    present(&mut observed.held, GROUP, &json!({}));
                    standing(&mut observed.held, NETWORK);
                },
            ),
        ),
        (
            "deleted: the network is protected",
            with(
                &deleted(),
                &[
                    annotated(network(), "slipway.dev/deletion-protection", "true"),
                    group(),
                ],
                |observed| {
                    standing(&mut observed.held, GROUP);
                    standing(&mut observed.held, NETWORK);
                },
            ),
        ),
        (
            "deleted: a cluster of others is in the group",
            with(&deleted(), &[group()], |observed| {
                standing(&mut observed.held, GROUP);
                let others = vec![format!(
                    "{GROUP}/providers/Microsoft.ContainerService/managedClusters/other"
                )];
                observed
                    .held
                    .others_in_groups
                    .insert(GROUP.to_lowercase(), others);
            }),
        ),
        (
            "deleted: it was there before",
            with(&deleted(), &[group()], |observed| {
                present(&mut observed.held, GROUP, &json!({}));
            }),
        ),
        (
            "deleted: nobody can sign in",
            with(&deleted(), &[group()], |observed| {
                recorded(&mut observed.held, GROUP);
                observed
                    .held
                    .sign_in_problems
                    .insert(GROUP.to_lowercase(), denied());
            }),
        ),
        (
            "deleted: nobody can sign in, and the user lets go",
            with(
                &json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "annotations": {"slipway.dev/orphan": "true"}}),
                &[group()],
                |observed| {
                    recorded(&mut observed.held, GROUP);
                    observed
                        .held
                        .sign_in_problems
                        .insert(GROUP.to_lowercase(), denied());
                },
            ),
        ),
        (
            "deleted: all is gone",
            with(&deleted(), &[group()], |observed| {
                recorded(&mut observed.held, GROUP);
                absent(&mut observed.held, GROUP);
            }),
        ),
    ]
}

#[test]
fn the_plan_of_infrastructure() {
    let printed = [made(), kept_back(), taken_out(), deletions()]
        .into_iter()
        .flatten()
        .map(|(title, observed)| (title, plan(&observed, now()).to_string()))
        .collect();
    golden("infrastructure.golden", printed);
}
