//! Actions on clusters and pools that are not writes: power, certificates, abort, images and single machines.

use base64::{Engine, engine::general_purpose::STANDARD};
use http::Method;
use serde_json::{Value, json};
use slipway_azure_sim::Response;

use crate::fixture::{Fixture, SUBSCRIPTION, cluster_body, code, pool_body, request};

/// What the operation an answer links to says now.
fn operation(azure: &mut Fixture, response: &Response) -> Value {
    let link = response
        .header_text("azure-asyncoperation")
        .expect("a link to the operation")
        .to_owned();
    azure.follow(&link).body_json()
}

fn message(response: &Response) -> String {
    let body = response.body_json();
    let text = body["message"].as_str().or(body["error"]["message"].as_str());
    text.unwrap_or_default().to_owned()
}

#[test]
fn a_cluster_is_stopped_and_started_with_its_pools() {
    let mut azure = Fixture::with_group();
    let cluster = azure.cluster("one");
    let again = azure.post(&format!("{cluster}/start"));
    assert_eq!(again.status, 409, "it runs already");
    let stopped = azure.post(&format!("{cluster}/stop"));
    assert_eq!(stopped.status, 202);
    assert_eq!(operation(&mut azure, &stopped)["status"], "InProgress");
    assert_eq!(azure.state_of(&cluster), "Stopping");
    let refused = azure.put(&format!("{cluster}/agentPools/p2"), &pool_body(1));
    assert_eq!(code(&refused), "OperationNotAllowed");
    azure.pass(900);
    assert_eq!(operation(&mut azure, &stopped)["status"], "Succeeded");
    let seen = azure.get(&cluster).body_json();
    assert_eq!(seen["properties"]["provisioningState"], "Succeeded");
    assert_eq!(seen["properties"]["powerState"]["code"], "Stopped");
    let pool = azure.get(&format!("{cluster}/agentPools/p1")).body_json();
    assert_eq!(pool["properties"]["powerState"]["code"], "Stopped");
    assert_eq!(
        message(&azure.post(&format!("{cluster}/stop"))),
        "managed cluster is in Provisioning State(Succeeded) and Power State(Stopped), stopping cannot be performed"
    );

    assert_eq!(azure.post(&format!("{cluster}/start")).status, 202);
    assert_eq!(azure.state_of(&cluster), "Starting");
    azure.pass(900);
    let seen = azure.get(&cluster).body_json();
    assert_eq!(seen["properties"]["powerState"]["code"], "Running");
    assert_eq!(
        seen["properties"]["agentPoolProfiles"][0]["powerState"]["code"],
        "Running"
    );
}

#[test]
fn rotated_certificates_make_kubeconfigs_worthless() {
    let mut azure = Fixture::with_group();
    let cluster = azure.cluster("one");
    let admin = format!("{cluster}/listClusterAdminCredential");
    let kubeconfig = |azure: &mut Fixture| {
        let body = azure.post(&admin).body_json();
        let text = body["kubeconfigs"][0]["value"].as_str().expect("a kubeconfig");
        STANDARD.decode(text).expect("base64")
    };
    let before = kubeconfig(&mut azure);
    assert_eq!(kubeconfig(&mut azure), before);
    let rotation = azure.post(&format!("{cluster}/rotateClusterCertificates"));
    assert_eq!(rotation.status, 202);
    assert_eq!(azure.state_of(&cluster), "Updating");
    let refused = azure.put(&cluster, &cluster_body());
    assert_eq!(
        (refused.status, code(&refused).as_str()),
        (409, "OperationNotAllowed")
    );
    azure.pass(1_800);
    assert_eq!(operation(&mut azure, &rotation)["status"], "Succeeded");
    assert_eq!(azure.state_of(&cluster), "Succeeded");
    assert_ne!(kubeconfig(&mut azure), before);

    let keys = azure.post(&format!("{cluster}/rotateServiceAccountSigningKeys"));
    assert_eq!(keys.status, 202);
    azure.pass(1_800);
    assert_eq!(azure.state_of(&cluster), "Succeeded");
}

#[test]
fn an_aborted_operation_leaves_a_canceled_resource_that_can_be_written_again() {
    let mut azure = Fixture::with_group();
    let cluster = azure.cluster("one");
    let nothing = azure.post(&format!("{cluster}/abort"));
    assert_eq!(
        (nothing.status, code(&nothing).as_str()),
        (409, "OperationNotAllowed")
    );

    let pool = format!("{cluster}/agentPools/p2");
    let creation = azure.put(&pool, &pool_body(3));
    azure.pass(5);
    let abort = azure.post(&format!("{pool}/abort"));
    assert_eq!(abort.status, 202);
    assert_eq!(azure.state_of(&pool), "Canceling");
    let told = operation(&mut azure, &creation);
    assert_eq!(told["status"], "Failed");
    assert_eq!(told["error"]["code"], "OperationAborted");
    azure.pass(600);
    assert_eq!(operation(&mut azure, &abort)["status"], "Succeeded");
    assert_eq!(azure.state_of(&pool), "Canceled");
    assert_eq!(azure.put(&pool, &pool_body(3)).status, 200);
    azure.pass(600);
    assert_eq!(azure.state_of(&pool), "Succeeded");

    azure.put(&cluster, &cluster_body());
    assert_eq!(azure.post(&format!("{cluster}/abort")).status, 202);
    azure.pass(600);
    assert_eq!(azure.state_of(&cluster), "Canceled");
}

#[test]
fn a_pool_gets_a_newer_image() {
    let mut azure = Fixture::with_group();
    let cluster = azure.cluster("one");
    let pool = format!("{cluster}/agentPools/p1");
    let started = azure.post(&format!("{pool}/upgradeNodeImageVersion"));
    assert_eq!(started.status, 202);
    assert_eq!(
        started.body_json()["properties"]["provisioningState"],
        "UpgradingNodeImageVersion"
    );
    azure.pass(3_600);
    assert_eq!(azure.state_of(&pool), "Succeeded");
}

#[test]
fn single_machines_are_deleted_and_the_count_follows() {
    let mut azure = Fixture::with_group();
    let cluster = azure.cluster("one");
    let pool = format!("{cluster}/agentPools/p1");
    let machines = azure.get(&format!("{pool}/machines")).body_json();
    let names: Vec<String> = machines["value"]
        .as_array()
        .expect("machines")
        .iter()
        .map(|machine| machine["name"].as_str().expect("a name").to_owned())
        .collect();
    assert_eq!(names.len(), 2);
    let delete = |names: &Value| {
        request(Method::POST, &format!("{pool}/deleteMachines")).json(&json!({"machineNames": names}))
    };
    let empty = azure.send(&delete(&json!([])));
    assert_eq!((empty.status, code(&empty).as_str()), (400, "InvalidParameter"));
    assert_eq!(azure.send(&delete(&json!([names[0]]))).status, 202);
    azure.pass(600);
    let id = format!("{SUBSCRIPTION}{cluster}");
    let left = azure.azure.nodes(&id);
    assert_eq!(left.len(), 1);
    let rest = azure.get(&format!("{pool}/machines")).body_json();
    assert_eq!(rest["value"][0]["name"], names[1].as_str());
    assert_eq!(azure.get(&pool).body_json()["properties"]["count"], 1);
}

#[test]
fn commands_are_answered_and_said_not_to_run() {
    let mut azure = Fixture::with_group();
    let cluster = azure.cluster("one");
    let path = format!("{cluster}/runCommand");
    let missing = azure.send(&request(Method::POST, &path).json(&json!({})));
    assert_eq!(
        (missing.status, code(&missing).as_str()),
        (400, "InvalidParameter")
    );
    let answer = azure.send(&request(Method::POST, &path).json(&json!({"command": "kubectl get nodes"})));
    assert_eq!(answer.status, 200);
    let logs = answer.body_json()["properties"]["logs"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    assert!(logs.contains("does not run commands"), "{logs}");
}

#[test]
fn the_older_form_of_credentials_gives_the_same() {
    let mut azure = Fixture::with_group();
    let cluster = azure.cluster("one");
    let new = azure
        .post(&format!("{cluster}/listClusterAdminCredential"))
        .body_json();
    let old = azure
        .post(&format!("{cluster}/accessProfiles/clusterAdmin/listCredential"))
        .body_json();
    assert_eq!(old["properties"]["kubeConfig"], new["kubeconfigs"][0]["value"]);
}

#[test]
fn an_unknown_action_is_refused_by_name() {
    let mut azure = Fixture::with_group();
    let cluster = azure.cluster("one");
    let refused = azure.post(&format!("{cluster}/launch"));
    assert_eq!(refused.status, 404);
    assert!(message(&refused).contains("launch"));
}
