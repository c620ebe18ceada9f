//! The runtime extension as Cluster API calls it: requests as v1.14.2 writes them, over HTTPS, to the server that ships. Each replica is a
//! server of its own on one apiserver; none of them leads.

use std::{sync::Arc, time::Duration};

use rustls::pki_types::{CertificateDer, pem::PemObject};
use serde_json::{Value, json};
use slipway_agent_api::{Identity, ca::Ca, tls::Material};
use slipway_apiserver_sim::{
    Apiserver,
    faults::{Fault, Faults},
};
use slipway_edge::{
    api::{GROUP, INFRASTRUCTURE_GROUP, VERSION},
    hooks::serve::PLAN_GATE,
    provider,
};
use slipway_kit::{
    core::kinds,
    objects::{create, find, merge_status, of_kind},
};
use slipway_runtime::{
    Clock, Metrics,
    certificates::SelfSigned,
    server::{ClientCa, Listener, Protocol, Routes},
    settings::Gates,
};
use tokio_util::sync::CancellationToken;

const HOOKS: &str = "/hooks.runtime.cluster.x-k8s.io/v1alpha1";
const OLD: &str = "sha256:00000000000000000000000000000000000000000000000000000000000000aa";
const NEW: &str = "sha256:00000000000000000000000000000000000000000000000000000000000000bb";

/// One replica, and who calls it.
struct Replica {
    base: String,
    caller: reqwest::Client,
    stop: CancellationToken,
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Replica {
    async fn start(client: kube::Client, gates: Gates) -> Self {
        Self::speaking(client, gates, &[b"h2", b"http/1.1"]).await
    }

    async fn speaking(client: kube::Client, gates: Gates, protocols: &[&[u8]]) -> Self {
        Self::called_by(client, gates, protocols, None, None).await
    }

    /// Whose certificates callers need, and the one that this caller shows.
    async fn called_by(
        client: kube::Client,
        gates: Gates,
        protocols: &[&[u8]],
        client_ca: Option<&str>,
        shown: Option<&Material>,
    ) -> Self {
        let pair = SelfSigned::generate(&["127.0.0.1".to_owned()]).expect("a certificate");
        let certificates = Arc::new(pair.certificates().expect("its files"));
        let client_ca = client_ca.map(|pem| ClientCa::from_pem(pem.as_bytes()).expect("a CA"));
        let protocol =
            Protocol::tls_for(certificates, rustls::ALL_VERSIONS, &[], client_ca.as_ref()).expect("TLS");
        let listener = Listener::bind("127.0.0.1:0", "--webhook-port")
            .await
            .expect("a port");
        let base = format!("https://{}{HOOKS}", listener.address());
        let package = provider::extension();
        let routes = Routes::new([&package], client, &gates, &Metrics::new())
            .require_certificates_for_hooks(client_ca.is_some());
        let routes = Arc::new(routes);
        let stop = CancellationToken::new();
        tokio::spawn(listener.serve(
            protocol,
            move |request| routes.clone().answer(request),
            stop.clone(),
        ));
        let mut roots = rustls::RootCertStore::empty();
        let ca = CertificateDer::from_pem_slice(pair.ca.as_bytes()).expect("a CA");
        roots.add(ca).expect("a root");
        let tls = rustls::ClientConfig::builder().with_root_certificates(roots);
        let mut tls = match shown {
            None => tls.with_no_client_auth(),
            Some(shown) => tls
                .with_client_auth_cert(shown.chain.clone(), shown.key.clone_key())
                .expect("a certificate and its key"),
        };
        tls.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        let caller = reqwest::Client::builder().tls_backend_preconfigured(tls);
        Self {
            base,
            caller: caller.build().expect("a client"),
            stop,
        }
    }

    /// As Go sends it: no Content-Type, and how long it waits in the query.
    async fn send(&self, path: &str, body: impl Into<reqwest::Body>) -> reqwest::Response {
        let url = format!("{}/{path}?timeout=10s", self.base);
        self.caller.post(url).body(body).send().await.expect("an answer")
    }

    async fn post(&self, path: &str, body: impl Into<reqwest::Body>) -> Value {
        let answer = self.send(path, body).await;
        assert_eq!(answer.status(), 200);
        serde_json::from_slice(&answer.bytes().await.expect("a body")).expect("JSON")
    }

    async fn update(&self, version: &str, digest: &str) -> Value {
        self.post("updatemachine/update-machine", update(version, digest))
            .await
    }
}

/// The objects of a request, key by key as Go writes them.
fn objects(version: &str, digest: &str) -> String {
    format!(
        r#"{{"machine":{{"kind":"Machine","apiVersion":"cluster.x-k8s.io/v1beta2","metadata":{{"name":"m-1","namespace":"default","labels":{{"cluster.x-k8s.io/cluster-name":"north"}},"annotations":{{"slipway.dev/update-strategy":"External"}}}},"spec":{{"clusterName":"north","bootstrap":{{"configRef":{{"kind":"KThreesConfig","name":"m-1","apiGroup":"bootstrap.cluster.x-k8s.io"}},"dataSecretName":"m-1"}},"infrastructureRef":{{"kind":"EdgeMachine","name":"m-1","apiGroup":"infrastructure.cluster.x-k8s.io"}},"version":"{version}","providerID":"edge://default/box-1/uid"}}}},"infrastructureMachine":{{"apiVersion":"infrastructure.cluster.x-k8s.io/v1alpha1","kind":"EdgeMachine","metadata":{{"annotations":{{"cluster.x-k8s.io/cloned-from-name":"workers"}},"name":"m-1","namespace":"default"}},"spec":{{"hostName":"box-1","image":{{"digest":"{digest}","reference":"registry.example.com/nodes/k3s"}},"providerID":"edge://default/box-1/uid"}}}},"bootstrapConfig":{{"apiVersion":"bootstrap.cluster.x-k8s.io/v1beta2","kind":"KThreesConfig","metadata":{{"name":"m-1","namespace":"default"}},"spec":{{"version":"{version}"}}}}}}"#
    )
}

fn update(version: &str, digest: &str) -> String {
    let desired = objects(version, digest);
    format!(
        r#"{{"kind":"UpdateMachineRequest","apiVersion":"hooks.runtime.cluster.x-k8s.io/v1alpha1","desired":{desired}}}"#
    )
}

fn can_update() -> String {
    let (current, desired) = (objects("v1.34.2+k3s1", OLD), objects("v1.34.3+k3s1", NEW));
    format!(
        r#"{{"kind":"CanUpdateMachineRequest","apiVersion":"hooks.runtime.cluster.x-k8s.io/v1alpha1","current":{current},"desired":{desired}}}"#
    )
}

/// A machine on a host, in a cluster that Cluster API has told to update it.
async fn world() -> Apiserver {
    let server = Apiserver::new(Clock::system());
    server.install(&kinds::of_core(), &[], &[]);
    let package = provider::provider().packages.swap_remove(0);
    server.install(&package.crds, &package.conversion, &package.admission);
    create(
        &server,
        &json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "metadata": {"name": "m-1"},
        "spec": {"clusterName": "north", "version": "v1.34.3+k3s1",
            "infrastructureRef": {"apiGroup": INFRASTRUCTURE_GROUP, "kind": "EdgeMachine", "name": "m-1"}}}),
    )
    .await;
    create(
        &server,
        &json!({"apiVersion": format!("{INFRASTRUCTURE_GROUP}/{VERSION}"), "kind": "EdgeMachine",
            "metadata": {"name": "m-1"}, "spec": {"hostName": "box-1"}}),
    )
    .await;
    let machine = server.look(|objects| find(objects, "Machine", "m-1").cloned());
    let status = json!({"nodeRef": {"name": "m-1"}});
    merge_status(&server, &machine.expect("a machine"), status).await;
    server
}

fn upgrades(server: &Apiserver) -> Vec<Value> {
    server.look(|objects| of_kind(objects, "NodeUpgrade").cloned().collect())
}

async fn report(server: &Apiserver, status: Value) {
    for upgrade in upgrades(server) {
        merge_status(server, &upgrade, status.clone()).await;
    }
}

async fn cluster_upgrade(server: &Apiserver, spec: Value) {
    let mut whole = json!({"clusterName": "north", "version": "v1.34.3+k3s1", "images": [
        {"version": "v1.34.3+k3s1", "reference": "registry.example.com/nodes/k3s", "digest": NEW}]});
    for (key, value) in spec.as_object().expect("fields") {
        whole[key] = value.clone();
    }
    create(
        server,
        &json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "ClusterUpgrade", "metadata": {"name": "to-3"},
            "spec": whole}),
    )
    .await;
}

/// Nobody is at the other end.
async fn without_apiserver() -> kube::Client {
    let free = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let address = free.local_addr().expect("an address");
    drop(free);
    let config = kube::Config::new(format!("http://{address}").parse().expect("an address"));
    kube::Client::try_from(config).expect("a client")
}

/// A CA, and a certificate of it for whoever calls.
fn caller_of_a_ca() -> (String, Material) {
    let now = jiff::Timestamp::now();
    let pem = Ca::generate("core", now).expect("a CA");
    let ca = Ca::open("core", &pem, &[], Duration::from_hours(1)).expect("a CA");
    let caller = Identity::Operator {
        fleet: "core".to_owned(),
    };
    let issued = ca.issue(&caller, now).expect("a certificate");
    (pem.certificate, issued)
}

/// E-5: where callers need a certificate, nobody without one of the right CA reaches a handler.
#[tokio::test]
async fn e5_only_a_caller_with_a_certificate_of_the_named_ca_reaches_a_handler() {
    let server = world().await;
    let (ca, core) = caller_of_a_ca();
    let (_, foreign) = caller_of_a_ca();
    let replica = async |shown: Option<&Material>| {
        let (client, protocols) = (server.client(), [b"http/1.1".as_slice()]);
        Replica::called_by(client, Gates::default(), &protocols, Some(&ca), shown).await
    };
    let path = "updatemachine/update-machine";
    let request = || update("v1.34.3+k3s1", NEW);
    let nobody = replica(None).await;
    assert_eq!(nobody.send(path, request()).await.status(), 403);
    let foreign = replica(Some(&foreign)).await;
    let url = format!("{}/{path}?timeout=10s", foreign.base);
    let refused = foreign.caller.post(url).body(request()).send().await;
    assert!(
        refused.is_err(),
        "a certificate of another CA ends the connection"
    );
    assert!(upgrades(&server).is_empty(), "no handler ran");
    let core = replica(Some(&core)).await;
    assert_eq!(core.post(path, request()).await["status"], "Success");
    assert_eq!(upgrades(&server).len(), 1);
}

#[tokio::test]
async fn e1_e2_discovery_names_three_handlers_that_fail_closed_over_both_protocols() {
    let request = r#"{"kind":"DiscoveryRequest","apiVersion":"hooks.runtime.cluster.x-k8s.io/v1alpha1"}"#;
    let handler = |hook: &str, name: &str| {
        json!({"name": name, "timeoutSeconds": 10, "failurePolicy": "Fail",
            "requestHook": {"apiVersion": "hooks.runtime.cluster.x-k8s.io/v1alpha1", "hook": hook}})
    };
    let three = vec![
        handler("CanUpdateMachine", "can-update-machine"),
        handler("CanUpdateMachineSet", "can-update-machineset"),
        handler("UpdateMachine", "update-machine"),
    ];
    let client = without_apiserver().await;
    for (protocols, version) in [
        (&[b"h2".as_slice()], reqwest::Version::HTTP_2),
        (&[b"http/1.1".as_slice()], reqwest::Version::HTTP_11),
    ] {
        let replica = Replica::speaking(client.clone(), Gates::default(), protocols).await;
        let answer = replica.send("discovery", request).await;
        assert_eq!((answer.version(), answer.status().as_u16()), (version, 200));
        let answer: Value = serde_json::from_slice(&answer.bytes().await.expect("a body")).expect("JSON");
        assert_eq!(
            (&answer["status"], &answer["handlers"]),
            (&json!("Success"), &json!(three))
        );
    }
    let gates = Gates::default().with(PLAN_GATE.name, true);
    let answer = Replica::start(client, gates)
        .await
        .post("discovery", request)
        .await;
    let four = handler("GenerateUpgradePlan", "generate-upgrade-plan");
    assert_eq!(answer["handlers"][3], four);
}

#[tokio::test]
async fn e4_what_cannot_be_read_is_no_answer_that_decides_anything() {
    let server = world().await;
    let replica = Replica::start(server.client(), Gates::default()).await;
    for path in [
        "canupdatemachine/can-update-machine",
        "updatemachine/update-machine",
    ] {
        for body in [
            "",
            "{",
            "[]",
            "{\"kind\":\"UpdateMachineRequest\",\"desired\":1}",
            "{}",
        ] {
            let answer = replica.send(path, body).await;
            let is_refused = answer.status() == 400;
            let text = answer.text().await.expect("a body");
            assert!(
                is_refused || text.contains(r#""status":"Failure""#),
                "{path} {body}: {text}"
            );
        }
        let large = vec![b' '; (20 << 20) + 1];
        assert_eq!(replica.send(path, large).await.status(), 413);
    }
    assert_eq!(upgrades(&server), Vec::<Value>::new());
}

#[tokio::test]
async fn e9_e10_questions_are_answered_the_same_without_the_apiserver() {
    let (server, request) = (world().await, can_update());
    let path = "canupdatemachine/can-update-machine";
    let with = Replica::start(server.client(), Gates::default()).await;
    let without = Replica::start(without_apiserver().await, Gates::default()).await;
    let bytes = async |replica: &Replica| {
        replica
            .send(path, request.clone())
            .await
            .bytes()
            .await
            .expect("a body")
    };
    let answer = bytes(&with).await;
    assert_eq!(answer, bytes(&without).await);
    let answer: Value = serde_json::from_slice(&answer).expect("JSON");
    assert_eq!(
        (
            &answer["status"],
            &answer["infrastructureMachinePatch"]["patchType"]
        ),
        (&json!("Success"), &json!("JSONPatch"))
    );
}

#[tokio::test]
async fn e11_e12_two_replicas_called_at_once_make_one_upgrade() {
    let server = world().await;
    let one = Replica::start(server.client(), Gates::default()).await;
    let other = Replica::start(server.client(), Gates::default()).await;
    let calls = (0..100).map(|call| if call % 2 == 0 { &one } else { &other });
    let answers = futures::future::join_all(calls.map(|replica| replica.update("v1.34.3+k3s1", NEW))).await;
    let begins = json!({"status": "Success", "message": "the upgrade begins", "retryAfterSeconds": 15});
    assert_eq!(answers, vec![begins; 100]);
    let [upgrade] = &upgrades(&server)[..] else {
        panic!("one upgrade: {:?}", upgrades(&server));
    };
    let machine = server
        .look(|objects| find(objects, "Machine", "m-1").cloned())
        .expect("there");
    let (spec, uid) = (&upgrade["spec"], &machine["metadata"]["uid"]);
    assert_eq!(
        (
            &spec["machineName"],
            &spec["machineUID"],
            &spec["hostName"],
            &spec["version"],
            &spec["image"]["digest"]
        ),
        (
            &json!("m-1"),
            uid,
            &json!("box-1"),
            &json!("v1.34.3+k3s1"),
            &json!(NEW)
        )
    );
    assert_eq!(upgrade["metadata"]["ownerReferences"][0]["uid"], *uid);
    assert_eq!(
        upgrade["metadata"]["labels"]["cluster.x-k8s.io/cluster-name"],
        "north"
    );
}

#[tokio::test]
async fn e13_progress_is_told_by_every_replica_and_another_target_takes_the_place() {
    let server = world().await;
    let one = Replica::start(server.client(), Gates::default()).await;
    let other = Replica::start(server.client(), Gates::default()).await;
    one.update("v1.34.3+k3s1", NEW).await;
    for (status, message, again) in [
        (
            json!({"phase": "Caching", "percent": 43}),
            "fetching the image 40 %",
            15,
        ),
        (
            json!({"phase": "Prepared", "percent": null, "message": "wave one is not finished"}),
            "prepared: wave one is not finished",
            15,
        ),
        (json!({"phase": "Done", "message": "it runs"}), "", 0),
    ] {
        report(&server, status).await;
        let expected = json!({"status": "Success", "message": message, "retryAfterSeconds": again});
        assert_eq!(one.update("v1.34.3+k3s1", NEW).await, expected);
        assert_eq!(other.update("v1.34.3+k3s1", NEW).await, expected);
    }
    let first = upgrades(&server).remove(0);
    other.update("v1.34.4+k3s1", OLD).await;
    let [second] = &upgrades(&server)[..] else {
        panic!("the one that was done has gone");
    };
    assert_ne!(second["metadata"]["name"], first["metadata"]["name"]);
    report(
        &server,
        json!({"phase": "RolledBack", "message": "slot B did not come up"}),
    )
    .await;
    assert_eq!(
        one.update("v1.34.4+k3s1", OLD).await,
        json!({"status": "Failure", "message": "rolled back: slot B did not come up", "retryAfterSeconds": 0})
    );
    // What was called off begins again, and no replica deletes what the other has made since.
    report(&server, json!({"phase": "Cancelled", "message": ""})).await;
    let again = futures::future::join(one.update("v1.34.4+k3s1", OLD), other.update("v1.34.4+k3s1", OLD));
    let (answer, _) = again.await;
    assert_eq!(answer["retryAfterSeconds"], 15);
    one.update("v1.34.4+k3s1", OLD).await;
    let [third] = &upgrades(&server)[..] else {
        panic!("made again: {:?}", upgrades(&server));
    };
    assert_ne!(third["metadata"]["uid"], second["metadata"]["uid"]);
}

#[tokio::test]
async fn e15_trouble_with_the_apiserver_is_waited_for_and_what_is_missing_is_told() {
    let server = world().await;
    let waits = json!({"status": "Success", "message": "the apiserver of the management cluster is waited for",
        "retryAfterSeconds": 15});
    for call in 0..5 {
        let faults = Faults::none().at(call, Fault::ServerError);
        let replica = Replica::start(server.client_with(faults), Gates::default()).await;
        assert_eq!(replica.update("v1.34.3+k3s1", NEW).await, waits, "call {call}");
    }
    let gone =
        update("v1.34.3+k3s1", NEW).replace(r#""name":"m-1","namespace""#, r#""name":"m-9","namespace""#);
    let replica = Replica::start(server.client(), Gates::default()).await;
    let answer = replica.post("updatemachine/update-machine", gone).await;
    assert_eq!(answer["message"], "there is no Machine m-9 in namespace default");
    assert_eq!(
        replica.update("v1.34.3+k3s1", NEW).await["message"],
        "the upgrade begins"
    );
    assert_eq!(upgrades(&server).len(), 1);
}

#[tokio::test]
async fn e55_a_paused_upgrade_begins_nothing_and_its_policy_goes_along() {
    let server = world().await;
    cluster_upgrade(&server, json!({"paused": true, "policyName": "slow"})).await;
    let replica = Replica::start(server.client(), Gates::default()).await;
    assert_eq!(
        replica.update("v1.34.3+k3s1", NEW).await,
        json!({"status": "Success", "message": "ClusterUpgrade to-3 is paused", "retryAfterSeconds": 15})
    );
    assert_eq!(upgrades(&server), Vec::<Value>::new());
    let paused = server.look(|objects| find(objects, "ClusterUpgrade", "to-3").cloned());
    slipway_kit::objects::merge(
        &server,
        &paused.expect("there"),
        json!({"spec": {"paused": false}}),
    )
    .await;
    replica.update("v1.34.3+k3s1", NEW).await;
    assert_eq!(upgrades(&server)[0]["spec"]["policyName"], "slow");
}

#[tokio::test]
async fn e58_a_chained_upgrade_goes_over_the_versions_of_its_policy() {
    let server = world().await;
    let gates = Gates::default().with(PLAN_GATE.name, true);
    let replica = Replica::start(server.client(), gates).await;
    let request = r#"{"kind":"GenerateUpgradePlanRequest","apiVersion":"hooks.runtime.cluster.x-k8s.io/v1alpha1","cluster":{"kind":"Cluster","apiVersion":"cluster.x-k8s.io/v1beta2","metadata":{"name":"north","namespace":"default"},"spec":{"topology":{"classRef":{"name":"edge"},"version":"v1.36.1"}}},"fromControlPlaneKubernetesVersion":"v1.34.2","fromWorkersKubernetesVersion":"v1.34.2","toKubernetesVersion":"v1.36.1"}"#;
    let path = "generateupgradeplan/generate-upgrade-plan";
    let answer = replica.post(path, request).await;
    assert_eq!(answer["status"], "Failure", "no version of v1.35 is known");
    cluster_upgrade(&server, json!({"policyName": "slow"})).await;
    let answer = replica.post(path, request).await;
    assert_eq!(
        answer["message"],
        "there is no UpgradePolicy slow in namespace default, which upgrades of Cluster north go by"
    );
    create(
        &server,
        &json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "UpgradePolicy", "metadata": {"name": "slow"},
            "spec": {"mandatoryVersions": ["v1.35.4"]}}),
    )
    .await;
    let steps = |versions: &[&str]| {
        json!(
            versions
                .iter()
                .map(|version| json!({"version": version}))
                .collect::<Vec<_>>()
        )
    };
    assert_eq!(
        replica.post(path, request).await,
        json!({"status": "Success", "controlPlaneUpgrades": steps(&["v1.35.4", "v1.36.1"]),
            "workersUpgrades": steps(&["v1.35.4", "v1.36.1"])})
    );
}
