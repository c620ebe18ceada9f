//! Managed clusters: life, defaults, refusals, credentials.

use base64::{Engine, engine::general_purpose::STANDARD};
use http::Method;
use serde_json::{Value, json};
use slipway_azure_sim::{Fault, Settings, Speed};

use crate::fixture::{Fixture, cluster_body, code, request};

#[test]
fn a_cluster_is_created_in_the_time_it_took_when_recorded() {
    let mut azure = Fixture::with_group();
    let path = "/resourceGroups/rg/providers/Microsoft.ContainerService/managedClusters/one";
    assert_eq!(code(&azure.get(path)), "ResourceNotFound");
    let created = azure.put(path, &cluster_body());
    assert_eq!(created.status, 201);
    assert!(created.header_text("retry-after").is_none(), "AKS sends none");
    assert!(created.header_text("location").is_none());
    let link = created
        .header_text("azure-asyncoperation")
        .expect("a link")
        .to_owned();
    let body = created.body_json();
    assert_eq!(body["properties"]["provisioningState"], "Creating");
    assert_eq!(body["type"], "Microsoft.ContainerService/ManagedClusters");
    assert!(
        body["id"]
            .as_str()
            .is_some_and(|id| id.contains("/resourcegroups/rg/"))
    );
    assert_eq!(body["properties"]["currentKubernetesVersion"], "1.33.5");
    assert_eq!(body["properties"]["nodeResourceGroup"], "MC_rg_one_westus3");
    let mut texts: Vec<String> = Vec::new();
    for _ in 0..40 {
        let status = azure.follow(&link).body_json()["status"]
            .as_str()
            .expect("a status")
            .to_owned();
        if texts.last() != Some(&status) {
            texts.push(status);
        }
        azure.pass(10);
    }
    assert_eq!(
        texts,
        [
            "InProgress",
            "ProvisioningNetworkResources",
            "ProvisioningControlPlane",
            "CreatingAgentPools: 0/2 nodes completed",
            "CreatingAgentPools: 2/2 nodes completed",
            "Succeeded"
        ]
    );
    let body = azure.get(path).body_json();
    assert_eq!(body["properties"]["provisioningState"], "Succeeded");
    assert_eq!(
        body["properties"]["agentPoolProfiles"][0]["provisioningState"],
        "Succeeded"
    );
    assert!(body["properties"]["identityProfile"]["kubeletidentity"]["clientId"].is_string());
    assert_eq!(azure.get("/resourceGroups/MC_rg_one_westus3").status, 200);
}

#[test]
fn empty_text_is_left_to_the_service_as_the_azure_cli_means_it() {
    let mut azure = Fixture::with_group();
    let path = "/resourceGroups/rg/providers/Microsoft.ContainerService/managedClusters/one";
    let mut body = cluster_body();
    body["properties"]["kubernetesVersion"] = "".into();
    body["properties"]["agentPoolProfiles"][0]["orchestratorVersion"] = "".into();
    let created = azure.put(path, &body);
    assert_eq!(created.status, 201, "{:?}", created.body_json());
    assert_eq!(
        created.body_json()["properties"]["agentPoolProfiles"][0]["orchestratorVersion"],
        "1.33"
    );
}

#[test]
fn an_identical_put_keeps_the_cluster_updating_for_minutes() {
    let mut azure = Fixture::with_group();
    let path = azure.cluster("one");
    let again = azure.put(&path, &cluster_body());
    assert_eq!(again.status, 200);
    assert_eq!(azure.state_of(&path), "Updating");
    let refused = azure.put(&path, &cluster_body());
    assert_eq!(
        (refused.status, code(&refused).as_str()),
        (409, "OperationNotAllowed")
    );
    assert!(
        refused.body_json()["message"]
            .as_str()
            .is_some_and(|text| text.contains("Another operation (Updating) is in progress"))
    );
    azure.pass(130);
    assert_eq!(azure.state_of(&path), "Updating");
    azure.pass(20);
    assert_eq!(azure.state_of(&path), "Succeeded");
}

#[test]
fn older_api_versions_say_in_progress_and_show_fewer_fields() {
    let mut azure = Fixture::with_group();
    let path = "/resourceGroups/rg/providers/Microsoft.ContainerService/managedClusters/one";
    let mut old = request(Method::PUT, path).json(&cluster_body());
    old.query = "api-version=2023-02-01".to_owned();
    let created = azure.send(&old);
    assert!(created.body_json()["properties"].get("resourceUID").is_none());
    let link = created
        .header_text("azure-asyncoperation")
        .expect("a link")
        .to_owned();
    assert!(link.contains("api-version=2016-03-30"));
    assert_eq!(azure.follow(&link).body_json()["status"], "InProgress");
}

#[test]
fn versions_go_up_one_minor_at_a_time() {
    let mut azure = Fixture::with_group();
    let path = azure.cluster("one");
    let mut body = cluster_body();
    body["properties"]["kubernetesVersion"] = "1.35".into();
    assert_eq!(code(&azure.put(&path, &body)), "OperationNotAllowed");
    body["properties"]["kubernetesVersion"] = "1.34".into();
    let upgrade = azure.put(&path, &body).body_json();
    assert_eq!(upgrade["properties"]["provisioningState"], "Upgrading");
    assert_eq!(upgrade["properties"]["currentKubernetesVersion"], "1.33.5");
    azure.pass(600);
    let upgraded = azure.get(&path).body_json();
    assert_eq!(upgraded["properties"]["currentKubernetesVersion"], "1.34.2");
    assert_eq!(
        upgraded["properties"]["agentPoolProfiles"][0]["currentOrchestratorVersion"],
        "1.33.5"
    );
}

#[test]
fn what_is_set_once_cannot_change() {
    let mut azure = Fixture::with_group();
    let path = azure.cluster("one");
    let changes: [(&str, Value); 3] = [
        ("/properties/dnsPrefix", json!("other")),
        ("/properties/nodeResourceGroup", json!("other")),
        ("/properties/agentPoolProfiles/0/vmSize", json!("Standard_D4s_v5")),
    ];
    for (pointer, value) in changes {
        let mut body = cluster_body();
        let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
        body.pointer_mut(parent).expect("there")[key] = value;
        let refused = azure.put(&path, &body);
        assert_eq!(
            (refused.status, code(&refused).as_str()),
            (400, "PropertyChangeNotAllowed"),
            "{pointer}"
        );
    }
    let mut body = cluster_body();
    body["location"] = "eastus".into();
    assert_eq!(code(&azure.put(&path, &body)), "InvalidResourceLocation");
}

#[test]
fn quota_is_refused_before_anything_is_made() {
    let mut azure = Fixture::with(Settings {
        require_token: false,
        cpu_quota: [("westus3".to_owned(), 3)].into(),
        ..Settings::default()
    });
    azure.put("/resourceGroups/rg", &json!({"location": "westus3"}));
    let path = "/resourceGroups/rg/providers/Microsoft.ContainerService/managedClusters/one";
    assert_eq!(
        code(&azure.put(path, &cluster_body())),
        "ErrCode_InsufficientVCPUQuota"
    );
    assert_eq!(azure.get(path).status, 404);
}

#[test]
fn etags_guard_writes() {
    let mut azure = Fixture::with_group();
    let path = azure.cluster("one");
    let preview = |method: Method| {
        let mut request = request(method, &path);
        request.query = "api-version=2025-10-02-preview".to_owned();
        request
    };
    let etag = azure.send(&preview(Method::GET)).body_json()["eTag"]
        .as_str()
        .expect("an etag")
        .to_owned();
    let wrong = azure.send(
        &preview(Method::PUT)
            .json(&cluster_body())
            .header("if-match", "\"nope\""),
    );
    assert_eq!((wrong.status, code(&wrong).as_str()), (412, "PreconditionFailed"));
    let taken = azure.send(
        &preview(Method::PUT)
            .json(&cluster_body())
            .header("if-none-match", "*"),
    );
    assert_eq!(taken.status, 412);
    let right = azure.send(
        &preview(Method::PUT)
            .json(&cluster_body())
            .header("if-match", &etag),
    );
    assert_eq!(right.status, 200);
    azure.pass(600);
    assert_ne!(
        azure.send(&preview(Method::GET)).body_json()["eTag"],
        json!(etag),
        "even a no-op PUT changes it"
    );
}

#[test]
fn credentials_follow_the_cluster_s_accounts() {
    let mut azure = Fixture::with_group();
    let path = azure.cluster("one");
    let config = |response: &slipway_azure_sim::Response| {
        let text = response.body_json()["kubeconfigs"][0]["value"]
            .as_str()
            .expect("a kubeconfig")
            .to_owned();
        String::from_utf8(STANDARD.decode(text).expect("base64")).expect("text")
    };
    let admin = azure.post(&format!("{path}/listClusterAdminCredential"));
    assert!(config(&admin).contains("clusterAdmin_rg_one"));
    let mut body = cluster_body();
    body["properties"]["disableLocalAccounts"] = true.into();
    assert_eq!(code(&azure.put(&path, &body)), "InvalidParameter");
    body["properties"]["aadProfile"] = json!({"managed": true});
    azure.put(&path, &body);
    azure.pass(600);
    let refused = azure.post(&format!("{path}/listClusterAdminCredential"));
    assert_eq!(refused.status, 400);
    assert!(
        refused.body_json()["message"]
            .as_str()
            .is_some_and(|text| text.contains("disable local accounts"))
    );
    let user = azure.post(&format!("{path}/listClusterUserCredential?format=exec"));
    assert!(config(&user).contains("kubelogin"));
    let user = azure.post(&format!("{path}/listClusterUserCredential?format=azure"));
    assert!(config(&user).contains("auth-provider"));
}

#[test]
fn a_cluster_goes_with_its_pools_and_its_node_group() {
    let mut azure = Fixture::with_group();
    let path = azure.cluster("one");
    let deleted = azure.delete(&path);
    assert_eq!(deleted.status, 202);
    assert!(deleted.body.is_empty());
    assert!(deleted.header_text("location").is_some());
    let child = azure.delete(&format!("{path}/agentPools/p1"));
    assert_eq!(
        (child.status, code(&child).as_str()),
        (409, "OperationNotAllowed")
    );
    azure.pass(600);
    assert_eq!(code(&azure.get(&path)), "ResourceNotFound");
    assert_eq!(azure.get("/resourceGroups/MC_rg_one_westus3").status, 404);
    assert_eq!(azure.delete(&path).status, 204);
}

#[test]
fn faults_hit_the_call_they_were_set_for() {
    let mut azure = Fixture::with_group();
    let path = azure.cluster("one");
    azure.azure.add_fault(Fault {
        method: "GET".to_owned(),
        path: "managedclusters/one".to_owned(),
        first: 2,
        status: Some(503),
        ..Fault::default()
    });
    let statuses: Vec<u16> = (0..3).map(|_| azure.get(&path).status).collect();
    assert_eq!(statuses, [200, 503, 200]);
    azure.azure.add_fault(Fault {
        method: "PUT".to_owned(),
        operation_error: Some(json!({"code": "ReconcileVMSSAgentPoolFailed", "message": "no room"})),
        drop_connection: true,
        ..Fault::default()
    });
    let lost = azure.put(&path, &cluster_body());
    assert!(lost.delivery.dropped);
    azure.pass(600);
    assert_eq!(
        azure.state_of(&path),
        "Failed",
        "the work was done although nobody heard"
    );
}

#[test]
fn instant_speed_ends_an_operation_at_the_first_look() {
    let mut azure = Fixture::with(Settings {
        require_token: false,
        speed: Speed::Instant,
        ..Settings::default()
    });
    azure.put("/resourceGroups/rg", &json!({"location": "westus3"}));
    let path = "/resourceGroups/rg/providers/Microsoft.ContainerService/managedClusters/one";
    let created = azure.put(path, &cluster_body());
    assert_eq!(created.body_json()["properties"]["provisioningState"], "Creating");
    let link = created
        .header_text("azure-asyncoperation")
        .expect("a link")
        .to_owned();
    assert_eq!(azure.follow(&link).body_json()["status"], "Succeeded");
    assert_eq!(azure.state_of(path), "Succeeded");
}
