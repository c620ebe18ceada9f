//! Behaviours shown with both controllers at work on the stage, beyond the journeys of `component`.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use slipway_capi::secret::{
    Purpose,
    certificate::{self, AUTHORITY_LIFETIME, CLIENT_LIFETIME, KeyAlgorithm},
    key_pair_secret,
    kubeconfig::{self, Administrator},
    read_key_pair,
};
use slipway_k3s::api::KThreesConfig;

use super::{
    stage::{NAMESPACE, Stage, set_condition},
    theatre::{condition, create, patch_status},
};

const OLD: &str = "v1.33.4+k3s1";
const NEW: &str = "v1.34.1+k3s1";

fn data(secret: &Secret) -> Value {
    serde_json::to_value(&secret.data).unwrap_or_default()
}

async fn give_to_us(stage: &Stage, name: &str) {
    set_condition(&stage.machines(), name, "HealthCheckSucceeded", "False").await;
    set_condition(&stage.machines(), name, "OwnerRemediated", "False").await;
}

/// S-11: the server that leads etcd is the one that goes: leadership passes to a healthy member that stays, and the
/// victim never gets it back.
#[tokio::test(start_paused = true)]
async fn leadership_leaves_with_its_server_to_one_that_stays() {
    let mut stage = Stage::new(3, NEW).await;
    stage.until_settled(3, NEW).await;
    let victim = {
        let model = stage.model.lock();
        let leader = model.leader.expect("a leader");
        let member = model.members.iter().find(|member| member.id == leader);
        member.expect("the leader is a member").host.clone()
    };
    stage
        .machines()
        .delete(&victim, &DeleteParams::default())
        .await
        .expect("somebody deletes it");
    let mut seen_without = false;
    for _ in 0..30 {
        stage.round().await;
        let model = stage.model.lock();
        let gone = model.members.iter().all(|member| member.host != victim);
        let leader = model
            .members
            .iter()
            .find(|member| Some(member.id) == model.leader);
        if gone {
            seen_without = true;
            let leader = leader.expect("somebody leads at every moment after the victim left");
            assert!(leader.host != victim && !leader.learner && model.hosts[&leader.host].alive);
        }
    }
    assert!(seen_without, "the victim leaves");
    stage.until_settled(3, NEW).await;
}

/// S-16: a first machine that never comes up is remediated; its replacement initialises with the same secrets.
#[tokio::test(start_paused = true)]
async fn a_failed_first_machine_is_replaced_with_the_same_secrets() {
    let mut stage = Stage::new(1, NEW).await;
    stage.round().await;
    let first = stage.names().await.remove(0);
    stage.book.lock().broken.insert(first.clone());
    stage.rounds(4).await;
    let mut before = Vec::new();
    for name in ["edge-ca", "edge-cca", "edge-etcd", "edge-token"] {
        before.push(data(&stage.secrets().get(name).await.expect(name)));
    }
    give_to_us(&stage, &first).await;
    stage.until_settled(1, NEW).await;
    let names = stage.names().await;
    assert_ne!(names, vec![first]);
    assert_eq!(
        stage.book.lock().initialised,
        names,
        "the replacement initialises"
    );
    for (name, before) in ["edge-ca", "edge-cca", "edge-etcd", "edge-token"]
        .into_iter()
        .zip(before)
    {
        assert_eq!(
            data(&stage.secrets().get(name).await.expect(name)),
            before,
            "{name}"
        );
    }
    let userdata = stage.book.lock().userdata[&names[0]].clone();
    let token = stage.secrets().get("edge-token").await.expect("the token");
    let token = String::from_utf8(token.data.expect("data")["value"].0.clone()).expect("text");
    assert!(userdata.contains(&format!("token: {token}")));
}

/// S-31: a rollout asked for replaces machines older than its time once that has come, by either field.
#[tokio::test(start_paused = true)]
async fn a_rollout_asked_for_replaces_older_machines_once() {
    let mut stage = Stage::new(1, NEW).await;
    stage.until_settled(1, NEW).await;
    for field in ["rolloutAfter", "rollout"] {
        let names = stage.names().await;
        let at = stage.context.clock.now() + SignedDuration::from_mins(10);
        let at = Timestamp::from_second(at.as_second())
            .expect("a time")
            .to_string();
        let value = if field == "rollout" {
            json!({"after": at})
        } else {
            json!(at)
        };
        stage
            .patch_plane(json!({"spec": {field: value}}))
            .await
            .expect("it is asked for");
        stage.rounds(8).await;
        assert_eq!(stage.names().await, names, "{field}: not before its time");
        stage.pass(Duration::from_mins(10)).await;
        stage.rounds(30).await;
        let after = stage.names().await;
        assert!(after.len() == 1 && after != names, "{field}: replaced");
        stage.rounds(20).await;
        assert_eq!(stage.names().await, after, "{field}: once");
    }
}

/// S-32: a server whose certificates end soon is replaced where that is asked for; the others stay.
#[tokio::test(start_paused = true)]
async fn a_server_whose_certificates_end_is_replaced() {
    let mut stage = Stage::new(3, NEW).await;
    stage.until_settled(3, NEW).await;
    let names = stage.names().await;
    let soon = stage.context.clock.now() + SignedDuration::from_hours(24 * 20);
    let patch = json!({"metadata": {"annotations":
        {"machine.cluster.x-k8s.io/certificates-expiry": soon.to_string()}}});
    stage
        .machines()
        .patch(&names[1], &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .expect("it is told");
    stage.rounds(6).await;
    assert_eq!(stage.names().await, names, "nobody asked for it");
    stage
        .patch_plane(json!({"spec": {"rolloutBefore": {"certificatesExpiryDays": 30}}}))
        .await
        .expect("it is asked for");
    stage.rounds(40).await;
    stage.until_settled(3, NEW).await;
    let after = stage.names().await;
    assert!(!after.contains(&names[1]), "the one that ends is replaced");
    assert!(
        after.contains(&names[0]) && after.contains(&names[2]),
        "the others stay"
    );
}

/// S-37: while a ClusterClass is about to bring a version nothing is scaled; its present step is not waited for.
#[tokio::test(start_paused = true)]
async fn a_version_on_its_way_from_the_topology_is_waited_for() {
    let mut stage = Stage::new(1, OLD).await;
    stage.until_settled(1, OLD).await;
    let patch = json!({"spec": {"topology": {"version": NEW}}});
    stage
        .clusters()
        .patch("edge", &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .expect("the topology moves on");
    stage
        .patch_plane(json!({"spec": {"replicas": 3}}))
        .await
        .expect("it is scaled");
    stage.rounds(6).await;
    assert_eq!(stage.servers().await.len(), 1);
    let told = stage.plane_condition("ScalingUp").await;
    assert!(
        told["message"]
            .as_str()
            .unwrap_or_default()
            .contains(&format!("waiting for the version {NEW} to be propagated")),
        "{told}"
    );
    let step = json!({"metadata": {"annotations": {"topology.internal.cluster.x-k8s.io/upgrade-step": OLD}}});
    stage
        .clusters()
        .patch("edge", &PatchParams::default(), &Patch::Merge(&step))
        .await
        .expect("the present version is a step");
    stage.until_settled(3, OLD).await;
}

/// S-40: a workload cluster that stops answering keeps its state for the grace period, then becomes unknown; nothing
/// fails meanwhile, nothing is replaced, and an answer is seen within a minute.
#[tokio::test(start_paused = true)]
async fn an_unreachable_cluster_keeps_its_state_for_a_while() {
    let mut stage = Stage::new(3, NEW).await;
    stage.until_settled(3, NEW).await;
    let names = stage.names().await;
    stage.book.lock().unreachable = true;
    stage.workload.cut_watches();
    stage.rounds(6).await;
    let machine = stage.machine(&names[0]).await;
    assert_eq!(
        condition(&machine, "AgentHealthy")["status"],
        "True",
        "90 s are in the grace"
    );
    let plane = stage
        .planes()
        .get("edge")
        .await
        .expect("it")
        .status
        .expect("a status");
    assert!(plane.ready, "the last state stands");
    let requests = stage.book.lock().workload_requests;
    stage.rounds(8).await;
    for name in &names {
        let machine = stage.machine(name).await;
        for type_ in ["AgentHealthy", "EtcdMemberHealthy"] {
            assert_eq!(
                condition(&machine, type_)["status"],
                "Unknown",
                "{type_} after the grace"
            );
        }
    }
    let plane = stage
        .planes()
        .get("edge")
        .await
        .expect("it")
        .status
        .expect("a status");
    assert!(!plane.ready);
    assert_eq!(stage.plane_condition("Available").await["status"], "False");
    let asked = stage.book.lock().workload_requests - requests;
    assert!(asked <= 24, "{asked} requests in two minutes are a storm");
    stage.book.lock().unreachable = false;
    stage.rounds(4).await;
    let machine = stage.machine(&names[0]).await;
    assert_eq!(
        condition(&machine, "AgentHealthy")["status"],
        "True",
        "an answer is seen"
    );
    assert_eq!(stage.plane_condition("Available").await["status"], "True");
    assert_eq!(stage.names().await, names);
}

/// S-43: an alarm of etcd is told and blocks a rollout; a dead server beside it is still replaced.
#[tokio::test(start_paused = true)]
async fn an_alarm_blocks_a_rollout_and_no_remediation() {
    let mut stage = Stage::new(3, OLD).await;
    stage.until_settled(3, OLD).await;
    let names = stage.names().await;
    stage
        .model
        .lock()
        .hosts
        .get_mut(&names[0])
        .expect("the host")
        .alarm = true;
    stage.rounds(3).await;
    let told = condition(&stage.machine(&names[0]).await, "EtcdMemberHealthy");
    assert!(
        told["status"] == "False" && told["message"].as_str().unwrap_or_default().contains("NOSPACE"),
        "{told}"
    );
    stage
        .patch_plane(json!({"spec": {"version": NEW}}))
        .await
        .expect("an upgrade is asked for");
    stage.rounds(8).await;
    assert_eq!(stage.names().await, names, "the rollout waits");
    let told = stage.plane_condition("RollingOut").await;
    assert!(told.to_string().contains("NOSPACE"), "{told}");
    stage.model.lock().kill(&names[1]);
    stage.rounds(5).await;
    give_to_us(&stage, &names[1]).await;
    stage.rounds(20).await;
    assert!(
        !stage.names().await.contains(&names[1]),
        "the dead one is replaced"
    );
    assert!(stage.model.lock().has_quorum());
}

/// S-54: the kubeconfig is renewed before it ends, has the contract's type, and one the user supplied is left alone.
#[tokio::test(start_paused = true)]
async fn the_kubeconfig_is_renewed_and_the_users_is_not() {
    let mut stage = Stage::new(1, NEW).await;
    stage.until_settled(1, NEW).await;
    let now = stage.context.clock.now();
    let authority = |name: &'static str| {
        let secrets = stage.secrets();
        async move { read_key_pair(&secrets.get(name).await.expect(name)).expect("a pair") }
    };
    let (server, client) = (authority("edge-ca").await, authority("edge-cca").await);
    let made = |at: Timestamp, url: &str| {
        Administrator {
            cluster: "edge",
            server: url,
            server_authority: &server.certificate,
            client_authority: &client,
            algorithm: KeyAlgorithm::EcdsaP256,
            lifetime: CLIENT_LIFETIME,
        }
        .kubeconfig(at)
        .expect("a kubeconfig")
    };
    let old = made(
        now - SignedDuration::from_hours(24 * 200),
        "https://10.9.9.9:6443",
    );
    let put = |text: &str| json!({"data": {"value": base64_of(text)}});
    stage
        .secrets()
        .patch(
            "edge-kubeconfig",
            &PatchParams::default(),
            &Patch::Merge(&put(&old)),
        )
        .await
        .expect("it has become old");
    stage.rounds(2).await;
    let renewed = stage.secrets().get("edge-kubeconfig").await.expect("it");
    assert_ne!(data(&renewed)["value"], base64_of(&old), "it is renewed");
    assert_eq!(renewed.type_.as_deref(), Some("cluster.x-k8s.io/secret"));
    let half = Duration::from_hours(24 * 182);
    assert!(!kubeconfig::needs_renewal(&renewed, half, now).expect("a certificate"));

    // The user's own: no owner, another endpoint, as old as it may be.
    stage
        .secrets()
        .delete("edge-kubeconfig", &DeleteParams::default())
        .await
        .expect("it is deleted");
    let text = made(
        now - SignedDuration::from_hours(24 * 300),
        "https://10.1.1.1:6443",
    );
    let own: Secret = serde_json::from_value(json!({
        "metadata": {"name": "edge-kubeconfig", "labels": {"cluster.x-k8s.io/cluster-name": "edge"}},
        "type": "cluster.x-k8s.io/secret", "data": {"value": base64_of(&text)}}))
    .expect("a secret");
    stage
        .secrets()
        .create(&PostParams::default(), &own)
        .await
        .expect("the user's");
    stage.rounds(3).await;
    let kept = stage.secrets().get("edge-kubeconfig").await.expect("it");
    assert_eq!(data(&kept)["value"], base64_of(&text), "the user's is the user's");
}

fn base64_of(text: &str) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(text)
}

/// S-55: the secrets outlive the first server and its configuration.
#[tokio::test(start_paused = true)]
async fn secrets_outlive_the_first_server() {
    let mut stage = Stage::new(1, OLD).await;
    stage.until_settled(1, OLD).await;
    let first = stage.names().await.remove(0);
    let token = data(&stage.secrets().get("edge-token").await.expect("it"));
    stage
        .patch_plane(json!({"spec": {"version": NEW}}))
        .await
        .expect("it is upgraded");
    stage.until_settled(1, NEW).await;
    assert!(
        stage
            .configs()
            .get_opt(&first)
            .await
            .expect("an answer")
            .is_none()
    );
    for name in ["edge-ca", "edge-cca", "edge-etcd", "edge-kubeconfig"] {
        stage.secrets().get(name).await.expect(name);
    }
    assert_eq!(data(&stage.secrets().get("edge-token").await.expect("it")), token);
}

/// S-55: what `clusterctl move` carries, specs without status under new uids, is enough to go on: no machine is replaced,
/// nothing is initialised again, no secret is made.
#[tokio::test(start_paused = true)]
async fn a_moved_cluster_goes_on_where_it_was() {
    let mut stage = Stage::new(3, OLD).await;
    stage.until_settled(3, OLD).await;
    let names = stage.names().await;
    let pause = |paused: bool| json!({"spec": {"paused": paused}});
    stage
        .clusters()
        .patch("edge", &PatchParams::default(), &Patch::Merge(&pause(true)))
        .await
        .expect("it is paused for the move");
    let objects = stage.management.objects();

    let mut target = Stage::empty();
    target.take_over(&stage);
    target.set_up_namespace().await;
    // Owners come before what they own, as clusterctl orders them.
    let order = [
        "Cluster",
        "HostMachineTemplate",
        "KThreesControlPlane",
        "Machine",
        "KThreesConfig",
        "HostMachine",
        "Secret",
    ];
    let mut uids = std::collections::BTreeMap::new();
    for kind in order {
        for object in objects.iter().filter(|object| object["kind"] == kind) {
            let mut copy = object.clone();
            copy.as_object_mut().expect("an object").remove("status");
            let metadata = copy["metadata"].as_object_mut().expect("metadata");
            for field in [
                "uid",
                "resourceVersion",
                "generation",
                "creationTimestamp",
                "managedFields",
            ] {
                metadata.remove(field);
            }
            for owner in metadata
                .get_mut("ownerReferences")
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten()
            {
                let key = format!("{}/{}", owner["kind"], owner["name"]);
                owner["uid"] = uids.get(&key).cloned().expect("its owner was moved before");
            }
            let api_version = copy["apiVersion"].as_str().expect("a version").to_owned();
            let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
            let made = create(&target.dynamic(group, version, kind), copy.clone()).await;
            let key = format!("{}/{}", copy["kind"], copy["metadata"]["name"]);
            uids.insert(key, json!(made.metadata.uid));
        }
    }
    patch_status(
        &target.clusters(),
        "edge",
        json!({"initialization": {"infrastructureProvisioned": true}}),
    )
    .await;
    let secrets = |list: Vec<Secret>| -> Vec<Value> {
        list.iter()
            .map(|secret| json!([secret.name_any(), secret.data]))
            .collect()
    };
    let before = secrets(
        target
            .secrets()
            .list(&ListParams::default())
            .await
            .expect("secrets")
            .items,
    );
    target.rounds(3).await;
    target
        .clusters()
        .patch("edge", &PatchParams::default(), &Patch::Merge(&pause(false)))
        .await
        .expect("it goes on");
    target.rounds(12).await;
    assert_eq!(target.names().await, names, "no machine is replaced");
    assert!(
        target.book.lock().initialised.is_empty(),
        "nothing is initialised again"
    );
    assert_eq!(
        secrets(
            target
                .secrets()
                .list(&ListParams::default())
                .await
                .expect("secrets")
                .items
        ),
        before
    );
    let status = target
        .planes()
        .get("edge")
        .await
        .expect("it")
        .status
        .expect("a status");
    assert!(status.initialized && status.ready);
    assert_eq!(
        (status.ready_replicas, status.up_to_date_replicas),
        (Some(3), Some(3))
    );
    for config in target
        .configs()
        .list(&ListParams::default())
        .await
        .expect("configs")
        .items
    {
        let status = config.status.expect("a status");
        assert_eq!(status.ready, Some(true));
    }
    // And it can still be worked with.
    target
        .patch_plane(json!({"spec": {"version": NEW}}))
        .await
        .expect("it is upgraded");
    target.until_settled(3, NEW).await;
}

async fn supply(stage: &Stage, purpose: Purpose, algorithm: KeyAlgorithm, with_key: bool, chain: &str) {
    let mut pair = certificate::generate(
        purpose,
        "of-the-user",
        algorithm,
        AUTHORITY_LIFETIME,
        stage.context.clock.now(),
    )
    .expect("an authority");
    pair.certificate.push_str(chain);
    if !with_key {
        pair.key = None;
    }
    stage
        .secrets()
        .create(
            &PostParams::default(),
            &key_pair_secret(NAMESPACE, "edge", purpose, None, &pair),
        )
        .await
        .expect("the user supplies it");
}

/// S-56: authorities of the user, with EC keys and as a chain, are used as they are; one without its key keeps the first
/// server waiting until the key is there, and is enough afterwards.
#[tokio::test(start_paused = true)]
async fn authorities_of_the_user_are_used_as_they_are() {
    let mut stage = Stage::empty();
    stage.set_up_namespace().await;
    let root = certificate::generate(
        Purpose::ClusterCa,
        "root",
        KeyAlgorithm::EcdsaP256,
        AUTHORITY_LIFETIME,
        stage.context.clock.now(),
    )
    .expect("a root")
    .certificate;
    supply(&stage, Purpose::ClusterCa, KeyAlgorithm::EcdsaP256, true, &root).await;
    supply(&stage, Purpose::ClientCa, KeyAlgorithm::EcdsaP256, true, "").await;
    supply(&stage, Purpose::EtcdCa, KeyAlgorithm::Rsa2048, false, "").await;
    stage.set_up(1, NEW).await;
    let given = stage
        .secrets()
        .list(&ListParams::default())
        .await
        .expect("secrets")
        .items;
    stage.rounds(6).await;
    assert!(
        stage.model.lock().hosts.is_empty(),
        "no server starts without the key"
    );
    let config = stage
        .configs()
        .list(&ListParams::default())
        .await
        .expect("configs")
        .items
        .remove(0);
    let told = serde_json::to_string(&config.status).unwrap_or_default();
    assert!(told.contains("Secret edge-etcd has no key"), "{told}");

    // The whole pair, from where the user keeps it.
    stage
        .secrets()
        .delete("edge-etcd", &DeleteParams::default())
        .await
        .expect("it is replaced");
    supply(&stage, Purpose::EtcdCa, KeyAlgorithm::EcdsaP256, true, "").await;
    stage.until_settled(1, NEW).await;
    let name = stage.names().await.remove(0);
    let userdata = stage.book.lock().userdata[&name].clone();
    for line in root.lines().filter(|line| !line.is_empty()) {
        assert!(userdata.contains(line), "the whole chain is on the host");
    }
    for secret in given.iter().filter(|secret| secret.name_any() != "edge-etcd") {
        let kept = stage.secrets().get(&secret.name_any()).await.expect("it");
        assert_eq!(kept.data, secret.data);
        assert!(kept.owner_references().is_empty(), "it stays the user's");
    }
    let access = stage
        .secrets()
        .get("edge-kubeconfig")
        .await
        .expect("the kubeconfig");
    kubeconfig::read(&access).expect("it can be read");

    // The key goes back into its safe; joining needs none.
    for name in ["edge-ca", "edge-etcd"] {
        stage
            .secrets()
            .patch(
                name,
                &PatchParams::default(),
                &Patch::Merge(&json!({"data": {"tls.key": null}})),
            )
            .await
            .expect("the key is taken away");
    }
    stage
        .patch_plane(json!({"spec": {"replicas": 3}}))
        .await
        .expect("it is scaled");
    stage.until_settled(3, NEW).await;
}

/// S-57: machines that lost their owner are adopted; machines of another owner are refused with a condition.
#[tokio::test(start_paused = true)]
async fn machines_are_adopted_and_mixed_ownership_is_refused() {
    let mut stage = Stage::new(3, NEW).await;
    stage.until_settled(3, NEW).await;
    let names = stage.names().await;
    for name in &names {
        let patch = json!({"metadata": {"ownerReferences": null}});
        stage
            .machines()
            .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .expect("it loses its owner");
    }
    stage.rounds(4).await;
    assert_eq!(stage.names().await, names, "none is replaced");
    for machine in stage.servers().await {
        let owner = machine.owner_references().first().cloned().expect("an owner");
        assert_eq!(
            (owner.kind.as_str(), owner.controller),
            ("KThreesControlPlane", Some(true))
        );
    }
    assert_eq!(stage.plane_condition("MachinesOwned").await["status"], "True");

    let foreign = json!({"metadata": {"ownerReferences": [{"apiVersion": "controlplane.cluster.x-k8s.io/v1beta2",
        "kind": "KubeadmControlPlane", "name": "other", "uid": "another", "controller": true}]}});
    stage
        .machines()
        .patch(&names[0], &PatchParams::default(), &Patch::Merge(&foreign))
        .await
        .expect("somebody takes it");
    stage
        .patch_plane(json!({"spec": {"version": "v1.34.2+k3s1"}}))
        .await
        .expect("an upgrade is asked for");
    stage.rounds(8).await;
    assert_eq!(stage.names().await, names, "nothing is done beside another owner");
    let told = stage.plane_condition("MachinesOwned").await;
    assert_eq!(told["reason"], "MixedOwnership", "{told}");
    assert!(
        told["message"].as_str().unwrap_or_default().contains(&names[0]),
        "{told}"
    );
}

/// S-57: a machine too far away in version is refused, and the condition says which.
#[tokio::test(start_paused = true)]
async fn a_machine_of_a_distant_version_is_not_adopted() {
    let mut stage = Stage::new(1, NEW).await;
    let orphan = create(
        &stage.machines(),
        json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
            "metadata": {"name": "orphan", "namespace": NAMESPACE, "labels": {
                "cluster.x-k8s.io/cluster-name": "edge", "cluster.x-k8s.io/control-plane": ""}},
            "spec": {"clusterName": "edge", "version": "v1.31.1+k3s1", "bootstrap": {"configRef": {
                "apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KThreesConfig", "name": "orphan"}}}}),
    )
    .await;
    stage.rounds(4).await;
    assert_eq!(
        stage.names().await,
        vec![orphan.name_any()],
        "and none is made beside it"
    );
    let told = stage.plane_condition("MachinesOwned").await;
    assert_eq!(told["reason"], "AdoptionRefused");
    assert!(
        told["message"].as_str().unwrap_or_default().contains("orphan"),
        "{told}"
    );
}

/// S-61: servers spread over the failure domains, and stay spread through a rollout.
#[tokio::test(start_paused = true)]
async fn servers_spread_over_failure_domains() {
    let mut stage = Stage::new(3, OLD).await;
    let domain = |name: &str, control_plane: bool| json!({"name": name, "controlPlane": control_plane});
    patch_status(
        &stage.clusters(),
        "edge",
        json!({"failureDomains": [domain("a", true), domain("b", true), domain("c", true), domain("d", false)]}),
    )
    .await;
    let domains = |machines: Vec<DynamicObject>| -> Vec<String> {
        let mut found: Vec<String> = machines
            .iter()
            .map(|machine| {
                machine.data["spec"]["failureDomain"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned()
            })
            .collect();
        found.sort();
        found
    };
    stage.until_settled(3, OLD).await;
    assert_eq!(domains(stage.servers().await), ["a", "b", "c"]);
    stage
        .patch_plane(json!({"spec": {"version": NEW}}))
        .await
        .expect("it is upgraded");
    stage.until_settled(3, NEW).await;
    assert_eq!(domains(stage.servers().await), ["a", "b", "c"]);
}

/// S-24: the config of a machine pool gets the version of the pool's template, and its data is made once the control
/// plane is there.
#[tokio::test(start_paused = true)]
async fn a_machine_pool_gets_its_bootstrap_data() {
    let mut stage = Stage::new(1, NEW).await;
    stage.until_settled(1, NEW).await;
    let pool = create(
        &stage.dynamic("cluster.x-k8s.io", "v1beta2", "MachinePool"),
        json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachinePool",
            "metadata": {"name": "pool", "namespace": NAMESPACE},
            "spec": {"clusterName": "edge", "template": {"spec": {"clusterName": "edge", "version": "v1.34.0+k3s1",
                "bootstrap": {"configRef": {"apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KThreesConfig", "name": "pool"}}}}}}),
    )
    .await;
    let config: KThreesConfig = serde_json::from_value(json!({
        "metadata": {"name": "pool", "namespace": NAMESPACE,
            "labels": {"cluster.x-k8s.io/cluster-name": "edge"},
            "ownerReferences": [{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachinePool", "name": "pool",
                "uid": pool.metadata.uid, "controller": true}]},
        "spec": {"agentConfig": {"nodeLabels": ["tier=pool"]}}}))
    .expect("a config");
    stage
        .configs()
        .create(&PostParams::default(), &config)
        .await
        .expect("it is created");
    stage.rounds(2).await;
    let secret = stage.secrets().get("pool").await.expect("the data");
    let userdata = String::from_utf8(secret.data.expect("data")["value"].0.clone()).expect("text");
    assert!(
        userdata.contains("INSTALL_K3S_VERSION=v1.34.0+k3s1"),
        "{userdata}"
    );
    assert!(userdata.contains("- tier=pool") && userdata.contains("k3s-install.sh agent"));
    let status = stage
        .configs()
        .get("pool")
        .await
        .expect("it")
        .status
        .expect("a status");
    assert_eq!(status.data_secret_name.as_deref(), Some("pool"));
}

/// S-53: an external datastore: its connection string reaches the servers from the secret, no authority of etcd is made,
/// and an even number of servers heals without a look at etcd.
#[tokio::test(start_paused = true)]
async fn an_external_datastore_is_used_and_healed() {
    let spec = json!({"kthreesConfigSpec": {"serverConfig": {"datastore": {
        "endpointFrom": {"secret": {"name": "database", "key": "url"}}, "caFile": "/etc/database.crt"}}}});
    let mut stage = Stage::with(2, NEW, spec).await;
    stage.rounds(3).await;
    assert!(stage.model.lock().hosts.is_empty(), "the secret is waited for");
    let secret = serde_json::from_value(json!({"metadata": {"name": "database"},
        "data": {"url": base64_of("postgres://fleet:hunter2@10.0.0.9/k3s")}}))
    .expect("a secret");
    stage
        .secrets()
        .create(&PostParams::default(), &secret)
        .await
        .expect("it is created");
    for _ in 0..40 {
        stage.round().await;
        if stage.model.lock().nodes.len() == 2 {
            break;
        }
    }
    stage.rounds(3).await;
    let names = stage.names().await;
    assert_eq!(names.len(), 2);
    let userdata = stage.book.lock().userdata[&names[0]].clone();
    assert!(
        userdata.contains("datastore-endpoint: postgres://fleet:hunter2@10.0.0.9/k3s")
            && userdata.contains("datastore-cafile: /etc/database.crt"),
        "{userdata}"
    );
    assert!(
        stage
            .secrets()
            .get_opt("edge-etcd")
            .await
            .expect("an answer")
            .is_none()
    );
    let plane = serde_json::to_string(&stage.planes().get("edge").await.expect("it")).unwrap_or_default();
    assert!(
        !plane.contains("hunter2"),
        "the password is nowhere in the status"
    );
    let keeper = stage.model.lock().members[0].host.clone();
    let victim = names
        .iter()
        .find(|name| **name != keeper)
        .expect("the other")
        .clone();
    stage.model.lock().kill(&victim);
    stage.rounds(5).await;
    give_to_us(&stage, &victim).await;
    for _ in 0..30 {
        stage.round().await;
        let names = stage.names().await;
        if names.len() == 2 && !names.contains(&victim) && stage.model.lock().nodes.len() == 2 {
            break;
        }
    }
    let names = stage.names().await;
    assert!(
        names.len() == 2 && !names.contains(&victim),
        "the dead one is replaced: {names:?}"
    );
}

/// S-33: labels, annotations, taints and gates reach machine, configuration and host, and what leaves the template
/// leaves them; the hook and what others wrote stays.
#[tokio::test(start_paused = true)]
async fn what_leaves_the_template_leaves_the_objects() {
    let mut stage = Stage::new(1, NEW).await;
    stage.until_settled(1, NEW).await;
    let name = stage.names().await.remove(0);
    let theirs = json!({"metadata": {"labels": {"theirs": "stays"}}});
    stage
        .machines()
        .patch(&name, &PatchParams::default(), &Patch::Merge(&theirs))
        .await
        .expect("somebody labels it");
    let template = json!({"metadata": {"labels": {"tier": "gold", "rack": "7"}, "annotations": {"note": "a"}},
        "spec": {"taints": [{"key": "edge", "effect": "NoSchedule", "propagation": "Always"}],
            "readinessGates": [{"conditionType": "Calibrated"}], "deletion": {"nodeDrainTimeoutSeconds": 60}}});
    stage
        .patch_plane(json!({"spec": {"machineTemplate": template}}))
        .await
        .expect("it is changed");
    stage.rounds(3).await;
    let machine = stage.machine(&name).await;
    assert_eq!(machine.data["spec"]["taints"][0]["key"], "edge");
    assert_eq!(
        machine.data["spec"]["readinessGates"][0]["conditionType"],
        "Calibrated"
    );
    assert_eq!(machine.data["spec"]["deletion"]["nodeDrainTimeoutSeconds"], 60);
    let labels = |object: &kube::api::ObjectMeta| object.labels.clone().unwrap_or_default();
    let config = stage.configs().get(&name).await.expect("the config");
    let host = stage.hosts().get(&name).await.expect("the host");
    for metadata in [&machine.metadata, &config.metadata, &host.metadata] {
        assert_eq!(labels(metadata)["tier"], "gold");
        assert_eq!(metadata.annotations.clone().unwrap_or_default()["note"], "a");
    }
    let version = stage.management.version();
    stage.rounds(3).await;
    assert_eq!(stage.management.version(), version, "at rest nothing is written");

    let template = json!({"metadata": {"labels": {"rack": null}, "annotations": {"note": null}},
        "spec": {"taints": null, "deletion": null}});
    stage
        .patch_plane(json!({"spec": {"machineTemplate": template}}))
        .await
        .expect("it is changed");
    stage.rounds(3).await;
    let machine = stage.machine(&name).await;
    let config = stage.configs().get(&name).await.expect("the config");
    let host = stage.hosts().get(&name).await.expect("the host");
    for metadata in [&machine.metadata, &config.metadata, &host.metadata] {
        assert_eq!(labels(metadata)["tier"], "gold");
        assert!(!labels(metadata).contains_key("rack"), "{metadata:?}");
        assert!(
            !metadata
                .annotations
                .clone()
                .unwrap_or_default()
                .contains_key("note")
        );
    }
    assert_eq!(labels(&machine.metadata)["theirs"], "stays");
    assert!(
        machine
            .annotations()
            .contains_key("pre-terminate.delete.hook.machine.cluster.x-k8s.io/k3s-cleanup")
    );
    assert_eq!(stage.names().await, vec![name], "nothing is replaced");
}

/// S-48, S-49: two of five die and are replaced one after the other; two of three die and nothing is made worse.
#[tokio::test(start_paused = true)]
async fn two_of_five_heal_and_two_of_three_are_left_alone() {
    let mut stage = Stage::new(5, NEW).await;
    stage.until_settled(5, NEW).await;
    stage.book.lock().health_check_after = Some(Duration::from_mins(3));
    let names = stage.names().await;
    for name in &names[..2] {
        stage.model.lock().kill(name);
    }
    stage.until_settled(5, NEW).await;
    let after = stage.names().await;
    assert!(!after.contains(&names[0]) && !after.contains(&names[1]));

    let mut stage = Stage::new(3, NEW).await;
    stage.until_settled(3, NEW).await;
    let names = stage.names().await;
    for name in &names[..2] {
        stage.model.lock().kill(name);
        give_to_us(&stage, name).await;
    }
    stage.workload.cut_watches();
    stage.rounds(40).await;
    assert_eq!(stage.names().await, names, "nothing is deleted without quorum");
    for machine in stage.servers().await {
        assert!(machine.metadata.deletion_timestamp.is_none());
    }
    // One returns, and the plane heals alone.
    stage.model.lock().revive(&names[0]);
    set_condition(&stage.machines(), &names[0], "HealthCheckSucceeded", "True").await;
    stage.until_settled(3, NEW).await;
    let after = stage.names().await;
    assert!(
        after.contains(&names[0]) && !after.contains(&names[1]),
        "{after:?}"
    );
}

/// S-46: limits on retries hold across restarts of the controller: they are read from the objects alone.
#[tokio::test(start_paused = true)]
async fn retries_are_limited_across_restarts() {
    let spec = json!({"remediationStrategy": {"maxRetry": 1, "retryPeriod": "5m", "minHealthyPeriod": "2h"}});
    let mut stage = Stage::with(3, NEW, spec).await;
    stage.until_settled(3, NEW).await;
    let mut victim = stage.names().await.remove(0);
    stage.model.lock().kill(&victim);
    stage.rounds(4).await;
    give_to_us(&stage, &victim).await;
    let mut replaced = 0;
    for _ in 0..2 {
        // Every replacement fails too.
        let before = stage.names().await;
        for _ in 0..40 {
            stage.round().await;
            stage.restart();
            let fresh: Vec<String> = stage
                .names()
                .await
                .into_iter()
                .filter(|name| !before.contains(name))
                .collect();
            if let Some(name) = fresh.into_iter().next() {
                victim = name;
                replaced += 1;
                stage.book.lock().broken.insert(victim.clone());
                break;
            }
        }
        give_to_us(&stage, &victim).await;
    }
    assert_eq!(replaced, 2, "the first replacement and one retry");
    stage.rounds(60).await;
    assert!(
        stage.names().await.contains(&victim),
        "maxRetry is reached: it is not replaced again"
    );
    let told = condition(&stage.machine(&victim).await, "OwnerRemediated");
    assert!(
        told["message"].as_str().unwrap_or_default().contains("maxRetry"),
        "{told}"
    );
}

/// S-5, S-10: a server whose machine, host and node are torn out leaves a ghost; it is removed, and the plane is whole.
#[tokio::test(start_paused = true)]
async fn a_ghost_is_removed_and_its_placeholder_too() {
    let mut stage = Stage::new(3, NEW).await;
    stage.until_settled(3, NEW).await;
    let name = stage.names().await.remove(0);
    {
        let mut model = stage.model.lock();
        model.destroy(&name);
        // Its node went while nobody led.
        model.nodes.remove(&name);
        model.revision += 1;
    }
    let torn = json!({"metadata": {"finalizers": null, "annotations":
        {"pre-terminate.delete.hook.machine.cluster.x-k8s.io/k3s-cleanup": null}}});
    stage
        .machines()
        .patch(&name, &PatchParams::default(), &Patch::Merge(&torn))
        .await
        .expect("it is torn out");
    stage
        .machines()
        .delete(&name, &DeleteParams::default())
        .await
        .expect("it is deleted");
    stage.until_settled(3, NEW).await;
    stage.rounds(4).await;
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(stage.workload.client());
    let left: Vec<String> = nodes
        .list(&ListParams::default())
        .await
        .expect("nodes")
        .items
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    assert!(left.iter().all(|node| !node.contains("ghost")), "{left:?}");
}
