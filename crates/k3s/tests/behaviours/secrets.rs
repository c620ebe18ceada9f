//! Cas, tokens and kubeconfigs: the user's and ours, through renewals and replacements.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    ResourceExt,
    api::{DeleteParams, PostParams},
};
use serde_json::json;
use slipway_capi::secret::{
    Purpose,
    certificate::{self, CA_LIFETIME, CLIENT_LIFETIME, KeyAlgorithm},
    key_pair_secret,
    kubeconfig::{self, Administrator},
    read_key_pair,
};

use super::{base64_of, data};
use crate::{
    driver::{Driver, NEW, OLD},
    environment::{NAMESPACE, all, change, is_absent},
};

/// S-54: the kubeconfig is renewed before it ends, has the contract's type, and one the user supplied is left alone.
#[tokio::test(start_paused = true)]
async fn the_kubeconfig_is_renewed_and_the_users_is_not() {
    let mut driver = Driver::standing(1, NEW).await;
    let now = driver.context.clock.now();
    let ca = |name: &'static str| {
        let secrets = driver.secrets();
        async move { read_key_pair(&secrets.get(name).await.expect(name)).expect("a pair") }
    };
    let (server, client) = (ca("edge-ca").await, ca("edge-cca").await);
    let made = |at: Timestamp, url: &str| {
        Administrator {
            cluster: "edge",
            server: url,
            server_ca: &server.certificate,
            client_ca: &client,
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
    change(&driver.secrets(), "edge-kubeconfig", &put(&old)).await;
    driver.rounds(2).await;
    let renewed = driver.secrets().get("edge-kubeconfig").await.expect("it");
    assert_ne!(data(&renewed)["value"], base64_of(&old), "it is renewed");
    assert_eq!(renewed.type_.as_deref(), Some("cluster.x-k8s.io/secret"));
    let half = Duration::from_hours(24 * 182);
    assert!(!kubeconfig::needs_renewal(&renewed, half, now).expect("a certificate"));

    // The user's own: no owner, another endpoint, as old as it may be.
    driver
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
    driver
        .secrets()
        .create(&PostParams::default(), &own)
        .await
        .expect("the user's");
    driver.rounds(3).await;
    let kept = driver.secrets().get("edge-kubeconfig").await.expect("it");
    assert_eq!(data(&kept)["value"], base64_of(&text), "the user's is the user's");
}

/// S-55: the secrets outlive the first server and its configuration.
#[tokio::test(start_paused = true)]
async fn secrets_outlive_the_first_server() {
    let mut driver = Driver::standing(1, OLD).await;
    let first = driver.names().await.remove(0);
    let token = data(&driver.secrets().get("edge-token").await.expect("it"));
    driver.change_plane(json!({"version": NEW})).await;
    driver.until_settled(1, NEW).await;
    assert!(is_absent(&driver.configs(), &first).await);
    for name in ["edge-ca", "edge-cca", "edge-etcd", "edge-kubeconfig"] {
        driver.secrets().get(name).await.expect(name);
    }
    assert_eq!(
        data(&driver.secrets().get("edge-token").await.expect("it")),
        token
    );
}

async fn supply(driver: &Driver, purpose: Purpose, algorithm: KeyAlgorithm, with_key: bool, chain: &str) {
    let mut pair = certificate::generate(
        purpose,
        "of-the-user",
        algorithm,
        CA_LIFETIME,
        driver.context.clock.now(),
    )
    .expect("a CA");
    pair.certificate.push_str(chain);
    if !with_key {
        pair.key = None;
    }
    driver
        .secrets()
        .create(
            &PostParams::default(),
            &key_pair_secret(NAMESPACE, "edge", purpose, None, &pair),
        )
        .await
        .expect("the user supplies it");
}

/// S-56: CAs of the user, with EC keys and as a chain, are used as they are; one without its key keeps the first
/// server waiting until the key is there, and is enough afterwards.
#[tokio::test(start_paused = true)]
async fn authorities_of_the_user_are_used_as_they_are() {
    let mut driver = Driver::empty();
    driver.set_up_namespace().await;
    let root = certificate::generate(
        Purpose::ClusterCa,
        "root",
        KeyAlgorithm::EcdsaP256,
        CA_LIFETIME,
        driver.context.clock.now(),
    )
    .expect("a root")
    .certificate;
    supply(&driver, Purpose::ClusterCa, KeyAlgorithm::EcdsaP256, true, &root).await;
    supply(&driver, Purpose::ClientCa, KeyAlgorithm::EcdsaP256, true, "").await;
    supply(&driver, Purpose::EtcdCa, KeyAlgorithm::Rsa2048, false, "").await;
    driver.set_up(1, NEW).await;
    let given = all(&driver.secrets()).await;
    driver.rounds(6).await;
    assert!(
        driver.model.lock().hosts.is_empty(),
        "no server starts without the key"
    );
    let config = all(&driver.configs()).await.remove(0);
    let told = serde_json::to_string(&config.status).unwrap_or_default();
    assert!(told.contains("Secret edge-etcd has no key"), "{told}");

    // The whole pair, from where the user keeps it.
    driver
        .secrets()
        .delete("edge-etcd", &DeleteParams::default())
        .await
        .expect("it is replaced");
    supply(&driver, Purpose::EtcdCa, KeyAlgorithm::EcdsaP256, true, "").await;
    driver.until_settled(1, NEW).await;
    let name = driver.names().await.remove(0);
    let userdata = driver.userdata_of(&name);
    for line in root.lines().filter(|line| !line.is_empty()) {
        assert!(userdata.contains(line), "the whole chain is on the host");
    }
    for secret in given.iter().filter(|secret| secret.name_any() != "edge-etcd") {
        let kept = driver.secrets().get(&secret.name_any()).await.expect("it");
        assert_eq!(kept.data, secret.data);
        assert!(kept.owner_references().is_empty(), "it stays the user's");
    }
    let access = driver
        .secrets()
        .get("edge-kubeconfig")
        .await
        .expect("the kubeconfig");
    kubeconfig::read(&access).expect("it can be read");

    // The key goes back into its safe; joining needs none.
    for name in ["edge-ca", "edge-etcd"] {
        change(&driver.secrets(), name, &json!({"data": {"tls.key": null}})).await;
    }
    driver.change_plane(json!({"replicas": 3})).await;
    driver.until_settled(3, NEW).await;
}
