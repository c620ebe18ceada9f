//! A simulated cluster with a real API server behind it.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD};
use http::Method;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, Config, ResourceExt,
    config::{KubeConfigOptions, Kubeconfig},
    runtime::{
        conditions,
        wait::{Condition, await_condition},
    },
};
use serde_json::{Value, json};
use slipway_azure_sim::{Ca, Options, Request, Response, Server, Settings, Simulator, Speed};

use crate::fixture::{SUBSCRIPTION, cluster_body, pool_body, request};

/// Only a guard against hanging; the API server answers in milliseconds.
const LONG: Duration = Duration::from_mins(1);

fn send(simulator: &Simulator, request: &Request) -> Response {
    let response = simulator.handle(request);
    assert!(
        response.is_success(),
        "{} {:?}",
        response.status,
        response.body_json()
    );
    response
}

async fn until(api: &Api<Node>, name: &str, condition: impl Condition<Node>) -> Option<Node> {
    tokio::time::timeout(LONG, await_condition(api.clone(), name, condition))
        .await
        .unwrap_or_else(|_| panic!("node {name} did not get there"))
        .expect("the watch goes on")
}

#[tokio::test]
async fn nodes_come_and_go_with_pools_and_handed_out_kubeconfigs_work() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let real = slipway_testbed::shared("workload")
        .await
        .expect("a real API server");
    let simulator = Simulator::new(Settings {
        require_token: false,
        speed: Speed::Instant,
        ..Settings::default()
    });
    let server = Server::start(simulator.clone(), Ca::new().expect("a CA"), Options::default())
        .await
        .expect("free ports");
    let path = "/resourceGroups/rg/providers/Microsoft.ContainerService/managedClusters/backed";
    let id = format!("{SUBSCRIPTION}{path}");
    send(
        &simulator,
        &request(Method::PUT, "/resourceGroups/rg").json(&json!({"location": "westus3"})),
    );
    send(&simulator, &request(Method::PUT, path).json(&cluster_body()));
    let kubeconfig = std::fs::read_to_string(real.kubeconfig()).expect("readable");
    simulator.azure().back_cluster(&id, &kubeconfig);

    let nodes: Api<Node> = Api::all(real.client());
    let first = simulator.azure().nodes(&id);
    assert_eq!(first.len(), 2);
    for desired in &first {
        let found = until(&nodes, &desired.name, |node: Option<&Node>| node.is_some())
            .await
            .expect("a node");
        let spec = found.spec.as_ref().expect("a spec");
        assert_eq!(spec.provider_id.as_deref(), Some(desired.provider_id.as_str()));
        assert_eq!(found.labels()["kubernetes.azure.com/agentpool"], "p1");
        let status = found.status.as_ref().expect("a status");
        assert_eq!(
            status
                .node_info
                .as_ref()
                .map(|info| info.kubelet_version.as_str()),
            Some(format!("v{}", desired.version).as_str()),
            "kwok does not put its own version there"
        );
        assert_eq!(
            found.labels()["kubernetes.azure.com/cluster"],
            "MC_rg_backed_westus3"
        );
    }

    let pool = format!("{path}/agentPools/p2");
    send(&simulator, &request(Method::PUT, &pool).json(&pool_body(2)));
    let both = simulator.azure().nodes(&id);
    let added: Vec<_> = both.iter().filter(|node| node.pool == "p2").collect();
    assert_eq!(added.len(), 2);
    let mut identities = Vec::new();
    for desired in &added {
        let found = until(&nodes, &desired.name, |node: Option<&Node>| node.is_some())
            .await
            .expect("a node");
        identities.push(found.uid().expect("a uid"));
    }
    send(&simulator, &request(Method::PUT, &pool).json(&pool_body(1)));
    until(&nodes, &added[1].name, conditions::is_deleted(&identities[1])).await;
    assert!(nodes.get_opt(&added[0].name).await.expect("readable").is_some());

    let credentials: Value = send(
        &simulator,
        &request(Method::POST, &format!("{path}/listClusterAdminCredential")),
    )
    .body_json();
    let text = STANDARD
        .decode(
            credentials["kubeconfigs"][0]["value"]
                .as_str()
                .expect("a kubeconfig"),
        )
        .expect("base64");
    let handed_out = Kubeconfig::from_yaml(&String::from_utf8(text).expect("text")).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(handed_out, &KubeConfigOptions::default())
        .await
        .expect("usable");
    let theirs: Api<Node> = Api::all(Client::try_from(config).expect("a client"));
    assert!(theirs.get_opt(&first[0].name).await.expect("readable").is_some());

    let uid = nodes
        .get(&first[0].name)
        .await
        .expect("there")
        .uid()
        .expect("a uid");
    send(&simulator, &request(Method::DELETE, path));
    until(&nodes, &first[0].name, conditions::is_deleted(&uid)).await;
    server.stop().await;
}
