//! An AzureASOManagedControlPlane: the plans of many situations in a golden file.

use serde_json::{Value, json};
use slipway_aso::control_plane::{observe::Observed, plan::plan};

use super::{CLUSTER, absent, deleted, golden, held, now, present, recorded, standing};
use crate::life::world::managed_cluster;

const KIND: &str = "AzureASOManagedControlPlane";

fn with(metadata: &Value, spec: &Value, change: impl FnOnce(&mut Observed)) -> Observed {
    let admin = json!({"operatorSpec": {"secrets": {"adminCredentials": {"name": "fleet-kubeconfig", "key": "value"}}}});
    let mut desired = if spec["operatorSpec"].is_null() {
        admin
    } else {
        json!({})
    };
    json_patch::merge(&mut desired, spec);
    let mut observed = Observed {
        held: held(KIND, metadata, &[managed_cluster(&desired)]),
        cluster_name: "fleet".to_owned(),
        ..Observed::default()
    };
    change(&mut observed);
    observed
}

/// AKS has brought the cluster up.
fn up(observed: &mut Observed, patch: &Value) {
    standing(&mut observed.held, CLUSTER);
    let mut body = observed.held.states[&CLUSTER.to_lowercase()]
        .body()
        .expect("a body")
        .clone();
    body["properties"]["fqdn"] = json!("fleet.example");
    json_patch::merge(&mut body, patch);
    present(&mut observed.held, CLUSTER, &body);
}

/// Until AKS has brought the cluster up.
fn before() -> Vec<(&'static str, Observed)> {
    let none = json!({});
    vec![
        (
            "the Cluster has other infrastructure",
            with(&none, &none, |observed| {
                observed.other_infrastructure = Some("AzureCluster".to_owned());
            }),
        ),
        (
            "its resource group is not there yet",
            with(&none, &none, |observed| {
                absent(&mut observed.held, CLUSTER);
                observed.held.resources[0].missing = vec!["ResourceGroup \"fleet\"".to_owned()];
            }),
        ),
        (
            "a pool has no MachinePool yet",
            with(&none, &none, |observed| {
                absent(&mut observed.held, CLUSTER);
                let text = "AzureASOManagedMachinePool work: it has no MachinePool yet".to_owned();
                observed.held.resources[0].wait = Some(("WaitingForMachinePools".to_owned(), text));
            }),
        ),
        (
            "it is made",
            with(&none, &none, |observed| absent(&mut observed.held, CLUSTER)),
        ),
        (
            "it is being made",
            with(&none, &none, |observed| {
                recorded(&mut observed.held, CLUSTER);
                let body = json!({"properties": {"provisioningState": "Creating", "fqdn": "fleet.example"}});
                present(&mut observed.held, CLUSTER, &body);
            }),
        ),
    ]
}

/// A cluster that is there.
fn after() -> Vec<(&'static str, Observed)> {
    let none = json!({});
    let local = |name: &str| {
        json!({"disableLocalAccounts": true,
            "operatorSpec": {"secrets": {"userCredentials": {"name": name, "key": "value"}}}})
    };
    vec![
        (
            "it has come up",
            with(&none, &none, |observed| up(observed, &json!({}))),
        ),
        (
            "the next version",
            with(&none, &json!({"kubernetesVersion": "1.34.1"}), |observed| {
                up(observed, &json!({"properties": {"kubernetesVersion": "1.33.3"}}));
            }),
        ),
        (
            "the next version, and it is stopped",
            with(&none, &json!({"kubernetesVersion": "1.34.1"}), |observed| {
                up(
                    observed,
                    &json!({"properties": {"kubernetesVersion": "1.33.3", "powerState": {"code": "Stopped"}}}),
                );
            }),
        ),
        (
            "it vanished",
            with(&none, &none, |observed| {
                recorded(&mut observed.held, CLUSTER);
                absent(&mut observed.held, CLUSTER);
            }),
        ),
        (
            "it vanished, and is to be made again",
            with(
                &json!({"annotations": {"slipway.dev/recreate": "true"}}),
                &none,
                |observed| {
                    recorded(&mut observed.held, CLUSTER);
                    absent(&mut observed.held, CLUSTER);
                },
            ),
        ),
        (
            "no local accounts",
            with(&none, &local("fleet-user-kubeconfig"), |observed| {
                up(observed, &json!({}));
            }),
        ),
        (
            "no local accounts, and the kubeconfig of people under the name that Cluster API knows",
            with(&none, &local("fleet-kubeconfig"), |observed| {
                up(observed, &json!({}));
            }),
        ),
        (
            "deleted",
            with(&deleted(), &none, |observed| up(observed, &json!({}))),
        ),
        (
            "deleted: nothing was made",
            with(&deleted(), &none, |observed| absent(&mut observed.held, CLUSTER)),
        ),
    ]
}

#[test]
fn the_plan_of_a_control_plane() {
    let printed = before()
        .into_iter()
        .chain(after())
        .map(|(title, observed)| (title, plan(&observed, now()).to_string()))
        .collect();
    golden("control_plane.golden", printed);
}
