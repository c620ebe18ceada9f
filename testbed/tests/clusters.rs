//! What a running cluster offers: rights, audit, namespaces, kubectl, other clusters beside it.

use k8s_openapi::api::{
    core::v1::{ConfigMap, Node},
    rbac::v1::PolicyRule,
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, ObjectMeta, PostParams},
    runtime::wait::await_condition,
};
use slipway_testbed::{WorkloadCluster, shared};

fn config_map(name: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    }
}

#[tokio::test]
async fn rights_are_enforced_and_writes_are_audited() {
    let cluster = shared("workload").await.unwrap();
    let namespace = cluster.namespace("rights").await.unwrap();
    let rules = vec![PolicyRule {
        api_groups: Some(vec![String::new()]),
        resources: Some(vec!["configmaps".to_owned()]),
        verbs: vec!["create".to_owned()],
        ..PolicyRule::default()
    }];
    let user = format!("writer-{namespace}");
    let client = cluster.client_with_rules(&user, rules).await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client, &namespace);
    maps.create(&PostParams::default(), &config_map("allowed"))
        .await
        .unwrap();
    let denied = maps.list(&ListParams::default()).await.unwrap_err();
    assert!(
        matches!(&denied, kube::Error::Api(status) if status.code == 403),
        "{denied}"
    );

    let writes = cluster.audit().writes_by_user(&user).unwrap();
    let seen: Vec<_> = writes
        .iter()
        .map(|write| {
            (
                write.verb.as_str(),
                write.object.name.as_str(),
                write.response.code,
            )
        })
        .collect();
    assert_eq!(seen, [("create", "allowed", 201)]);
}

#[tokio::test]
async fn several_groups_give_the_rights_of_each() {
    let cluster = shared("workload").await.unwrap();
    let stranger = cluster.client_as("someone", &["nobody", "no-one"]);
    assert!(
        Api::<Node>::all(stranger)
            .list(&ListParams::default())
            .await
            .is_err()
    );
    let master = cluster.client_as("someone", &["nobody", "system:masters"]);
    Api::<Node>::all(master)
        .list(&ListParams::default())
        .await
        .unwrap();
}

#[tokio::test]
async fn kwok_makes_annotated_nodes_ready() {
    let cluster = shared("workload").await.unwrap();
    let node: Node = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "kwok-1", "annotations": {"kwok.x-k8s.io/node": "fake"}},
    }))
    .unwrap();
    let nodes: Api<Node> = Api::all(cluster.client());
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let is_ready = |node: Option<&Node>| {
        let conditions = node
            .and_then(|node| node.status.as_ref()?.conditions.as_ref())
            .into_iter()
            .flatten();
        conditions
            .into_iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
    };
    await_condition(nodes, "kwok-1", is_ready).await.unwrap();
}

#[tokio::test]
async fn two_clusters_run_side_by_side_and_know_nothing_of_each_other() {
    let one = shared("workload").await.unwrap();
    let two = WorkloadCluster::builder().name("second").start().await.unwrap();
    let namespace = two.namespace("only-here").await.unwrap();
    let named = two.kubectl(&["get", "namespace", &namespace, "-o", "name"]).await;
    assert_eq!(named.unwrap().trim(), format!("namespace/{namespace}"));
    let missing = one.kubectl(&["get", "namespace", &namespace]).await.unwrap_err();
    assert!(missing.to_string().contains("not found"), "{missing}");

    let directory = two.description().directory.clone();
    let processes: Vec<u32> = two.description().processes.values().copied().collect();
    assert_eq!(processes.len(), 2);
    two.stop();
    assert!(!directory.exists());
    for process in processes {
        assert!(!std::path::Path::new(&format!("/proc/{process}")).exists());
    }
}

#[tokio::test]
async fn a_part_can_be_killed_and_started_again() {
    let cluster = WorkloadCluster::builder()
        .name("restarted")
        .start()
        .await
        .unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client(), "default");
    maps.create(&PostParams::default(), &config_map("kept"))
        .await
        .unwrap();
    cluster.process("kube-apiserver").unwrap().kill();
    assert!(maps.get("kept").await.is_err());
    cluster.restart("kube-apiserver").await.unwrap();
    assert_eq!(maps.get("kept").await.unwrap().name_any(), "kept");
    cluster.stop();
}
