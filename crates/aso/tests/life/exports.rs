//! What resources hand to Kubernetes.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::world::{
    World, apply, cluster, condition, create, group, managed_cluster, merge, pool_manifests, remove, resource,
};

fn identity() -> Value {
    resource(
        "managedidentity.azure.com/v1api20230131",
        "UserAssignedIdentity",
        "workload",
        &json!({
            "owner": {"name": "fleet"}, "location": "westus3",
            "operatorSpec": {
                "configMaps": {"clientId": {"name": "workload", "key": "client"}},
                "secrets": {"principalId": {"name": "workload", "key": "principal"}},
            },
        }),
    )
}

#[tokio::test(start_paused = true)]
async fn values_go_where_they_are_asked_for_and_are_put_back() {
    let world = World::new();
    let issuer = json!({
        "oidcIssuerProfile": {"enabled": true},
        "operatorSpec": {"configMaps": {"oidcIssuerProfile": {"name": "issuer", "key": "url"}}},
    });
    let trust = resource(
        "managedidentity.azure.com/v1api20230131",
        "FederatedIdentityCredential",
        "trust",
        &json!({
            "owner": {"name": "workload"}, "audiences": ["api://AzureADTokenExchange"],
            "issuerFromConfig": {"name": "issuer", "key": "url"}, "subject": "system:serviceaccount:default:app",
        }),
    );
    let mut all = cluster(&[group(), identity(), trust], &[managed_cluster(&issuer)]);
    all.extend(pool_manifests("system", "System", 1, &json!({})));
    apply(&world.server, &all).await;
    world.until_ready(&["system"]).await;
    let map = world.object("ConfigMap", "workload").expect("a ConfigMap");
    assert!(map["data"]["client"].is_string(), "{map}");
    assert_eq!(
        map["metadata"]["ownerReferences"][0]["kind"],
        "AzureASOManagedCluster"
    );
    let secret = world.object("Secret", "workload").expect("a Secret");
    let principal = STANDARD.decode(secret["data"]["principal"].as_str().expect("a value"));
    assert_eq!(principal.expect("base64").len(), 36);
    let url = world.object("ConfigMap", "issuer").expect("a ConfigMap")["data"]["url"].clone();
    assert!(url.as_str().expect("a url").starts_with("https://"), "{url}");
    let trust = world.document("/federatedIdentityCredentials/trust");
    assert_eq!(trust["properties"]["issuer"], url);
    world.assert_rests().await;

    let other = json!({"data": {"principal": STANDARD.encode("meddled")}});
    merge(&world.server, "Secret", "workload", other).await;
    world
        .until("put back", |world| {
            world.object("Secret", "workload").expect("a Secret")["data"]["principal"]
                != STANDARD.encode("meddled")
        })
        .await;
    remove(&world.server, "Secret", "fleet-kubeconfig").await;
    world
        .until("written again", |world| {
            world.object("Secret", "fleet-kubeconfig").is_some()
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn what_is_somebody_elses_stays_as_it_is_and_is_told() {
    let world = World::new();
    let theirs = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "workload", "namespace": "default"}, "data": {"client": "theirs"}});
    create(&world.server, &theirs).await;
    let mut all = cluster(&[group(), identity()], &[managed_cluster(&json!({}))]);
    all.extend(pool_manifests("system", "System", 1, &json!({})));
    apply(&world.server, &all).await;
    world
        .until("told", |world| {
            let infrastructure = world.infrastructure();
            condition(&infrastructure, "ResourcesReady")["reason"]
                == "FailedWritingAdditionalKubernetesObjects"
        })
        .await;
    let map = world.object("ConfigMap", "workload").expect("a ConfigMap");
    assert_eq!(map["data"]["client"], "theirs");
    remove(&world.server, "ConfigMap", "workload").await;
    world.until_ready(&["system"]).await;
}

#[tokio::test(start_paused = true)]
async fn without_local_accounts_the_kubeconfig_has_a_token_that_is_renewed() {
    let world = World::new();
    let disabled = |name: &str| {
        managed_cluster(&json!({
            "disableLocalAccounts": true, "aadProfile": {"managed": true, "enableAzureRBAC": true},
            "operatorSpec": {"secrets": {"userCredentials": {"name": name, "key": "value"}}},
        }))
    };
    let mut all = cluster(&[group()], &[disabled("fleet-kubeconfig")]);
    all.extend(pool_manifests("system", "System", 1, &json!({})));
    apply(&world.server, &all).await;
    world
        .until("told", |world| {
            condition(&world.plane(), "KubeconfigReady")["reason"] == "CredentialsNotUsable"
        })
        .await;
    let plane = world.plane();
    let message = condition(&plane, "Ready")["message"].as_str().expect("a message");
    assert!(message.contains("fleet-user-kubeconfig"), "{message}");
    world
        .replace_resources(
            "AzureASOManagedControlPlane",
            "fleet",
            &[disabled("fleet-user-kubeconfig")],
        )
        .await;
    world.until_ready(&["system"]).await;
    let text = |name: &str| {
        let secret = world.object("Secret", name).expect(name);
        let value = secret["data"]["value"].as_str().expect("a value").to_owned();
        String::from_utf8(STANDARD.decode(value).expect("base64")).expect("text")
    };
    let first = text("fleet-kubeconfig");
    assert!(first.contains("token:") && !first.contains("exec:"), "{first}");
    assert!(text("fleet-user-kubeconfig").contains("exec:"), "as AKS gives it");
    tokio::time::sleep(std::time::Duration::from_mins(40)).await;
    assert_ne!(text("fleet-kubeconfig"), first, "renewed before it ends");
}

#[tokio::test(start_paused = true)]
async fn expressions_give_values_over_what_azure_shows() {
    let world = World::new();
    let with = |pool: &str| {
        managed_cluster(&json!({
            "oidcIssuerProfile": {"enabled": true},
            "operatorSpec": {
                "configMapExpressions": [
                    {"name": "facts", "key": "endpoint", "value": "'https://' + self.status.fqdn + ':443'"},
                    {"name": "pools", "value": pool}],
                "secretExpressions": [
                    {"name": "hidden", "key": "issuer", "value": "self.status.oidcIssuerProfile.issuerURL"}],
            },
        }))
    };
    let mut all = cluster(
        &[group()],
        &[with("{'first': self.status.agentPoolProfile[0].name}")],
    );
    all.extend(pool_manifests("system", "System", 1, &json!({})));
    apply(&world.server, &all).await;
    // One that gives nothing is told, and keeps neither the cluster nor the others from being made.
    world
        .until("told", |world| {
            let plane = world.plane();
            let ready = condition(&plane, "ResourcesReady");
            ready["reason"] == "FailedWritingAdditionalKubernetesObjects"
                && ready["message"].as_str().is_some_and(|text| {
                    text.contains("spec.resources[0].spec.operatorSpec.configMapExpressions[1]")
                        && text.contains("finds no agentPoolProfile in what Azure shows")
                })
                && world.object("ConfigMap", "facts").is_some()
        })
        .await;
    assert_eq!(world.object("ConfigMap", "pools"), None);
    let mended = with("{'first': self.status.agentPoolProfiles[0].name}");
    world
        .replace_resources("AzureASOManagedControlPlane", "fleet", &[mended])
        .await;
    world.until_ready(&["system"]).await;
    let fqdn = world.document("/managedClusters/fleet")["properties"]["fqdn"].clone();
    let facts = world.object("ConfigMap", "facts").expect("a ConfigMap");
    let endpoint = format!("https://{}:443", fqdn.as_str().expect("a name"));
    assert_eq!(facts["data"], json!({"endpoint": endpoint}));
    let pools = world.object("ConfigMap", "pools").expect("a ConfigMap");
    assert_eq!(pools["data"], json!({"first": "system"}));
    let hidden = world.object("Secret", "hidden").expect("a Secret");
    let issuer = STANDARD.decode(hidden["data"]["issuer"].as_str().expect("a value"));
    assert!(issuer.expect("base64").starts_with(b"https://"));
    assert_eq!(
        hidden["metadata"]["ownerReferences"][0]["kind"],
        "AzureASOManagedControlPlane"
    );
    world.assert_rests().await;
}

fn secret_text(world: &World, name: &str, key: &str) -> Option<String> {
    let secret = world.object("Secret", name)?;
    let bytes = STANDARD.decode(secret["data"][key].as_str()?).ok()?;
    String::from_utf8(bytes).ok()
}

/// Azure is asked for credentials when an expression over them has to be evaluated, and not again while all stays as it is.
#[tokio::test(start_paused = true)]
async fn expressions_over_credentials_ask_azure_only_for_what_changed() {
    let mut world = World::new();
    let with = |first: &str| {
        managed_cluster(&json!({"operatorSpec": {"secretExpressions": [
            {"name": "people", "key": "config", "value": first},
            {"name": "people", "value": "{'server': self.status.fqdn, 'admin': secret.adminCredentials}"}]}}))
    };
    let mut all = cluster(&[group()], &[with("secret.userCredentials")]);
    all.extend(pool_manifests("system", "System", 1, &json!({})));
    apply(&world.server, &all).await;
    world.until_ready(&["system"]).await;
    let text = |world: &World, key: &str| secret_text(world, "people", key).unwrap_or_default();
    assert!(
        text(&world, "config").contains("kind: Config"),
        "{}",
        text(&world, "config")
    );
    assert!(text(&world, "admin").contains("client-certificate-data"));
    assert!(text(&world, "server").ends_with(".azmk8s.io"));
    world.assert_rests().await;
    let asked = |world: &World| {
        (
            world.count("POST", "listClusterUserCredential"),
            world.count("POST", "listClusterAdminCredential"),
        )
    };
    let before = asked(&world);
    world.kill().await;
    world.start();
    world.until_ready(&["system"]).await;
    tokio::time::sleep(std::time::Duration::from_mins(5)).await;
    assert_eq!(
        asked(&world),
        before,
        "a restart asks for nothing that was asked within the hour"
    );

    let meddled = json!({"data": {"admin": STANDARD.encode("meddled")}});
    merge(&world.server, "Secret", "people", meddled).await;
    world
        .until("put back", |world| {
            text(world, "admin").contains("client-certificate-data")
        })
        .await;
    assert_eq!(asked(&world), (before.0, before.1 + 1), "only what was changed");

    world
        .replace_resources(
            "AzureASOManagedControlPlane",
            "fleet",
            &[with("'# ' + secret.userCredentials")],
        )
        .await;
    world
        .until("another", |world| text(world, "config").starts_with("# "))
        .await;
    world
        .replace_resources("AzureASOManagedControlPlane", "fleet", &[with("secret.password")])
        .await;
    world
        .until("told", |world| {
            let plane = world.plane();
            let message = condition(&plane, "Ready")["message"].as_str().unwrap_or_default();
            message.contains("secretExpressions[0].value: refers to secret.password")
                && message.contains("use one of adminCredentials, userCredentials")
        })
        .await;
}

/// A storage account that hands out both of its keys, one by name and one by expression.
fn account() -> Value {
    resource(
        "storage.azure.com/v1api20230101",
        "StorageAccount",
        "fleetaccount",
        &json!({
            "owner": {"name": "fleet"}, "location": "westus3", "kind": "StorageV2", "accessTier": "Hot",
            "sku": {"name": "Standard_LRS"},
            "operatorSpec": {
                "secrets": {"key1": {"name": "account", "key": "first"}},
                "configMaps": {"blobEndpoint": {"name": "account", "key": "blob"}},
                "secretExpressions": [{"name": "account", "key": "line", "value": "'AccountKey=' + secret.key2"}],
            },
        }),
    )
}

/// Keys of kinds that have nothing to do with clusters, by name and by expression.
#[tokio::test(start_paused = true)]
async fn keys_of_other_kinds_are_exported() {
    let world = World::new();
    let mut all = cluster(&[group(), account()], &[managed_cluster(&json!({}))]);
    all.extend(pool_manifests("system", "System", 1, &json!({})));
    apply(&world.server, &all).await;
    world.until_ready(&["system"]).await;
    world
        .until("exported", |world| {
            let line = secret_text(world, "account", "line");
            line.is_some_and(|text| text.starts_with("AccountKey="))
                && secret_text(world, "account", "first").is_some()
        })
        .await;
    let map = world.object("ConfigMap", "account").expect("a ConfigMap");
    assert!(
        map["data"]["blob"]
            .as_str()
            .is_some_and(|url| url.starts_with("https://fleetaccount.blob."))
    );
    assert_eq!(world.count("POST", "/listKeys"), 1, "once for all of them");
    world.assert_rests().await;
}

/// Nobody tells when a key is rotated, so keys are read again like what no list shows, and written only where they changed.
#[tokio::test(start_paused = true)]
async fn a_rotated_key_is_followed_with_one_call_an_hour() {
    const HOUR: std::time::Duration = std::time::Duration::from_hours(1);
    let mut world = World::new();
    let mut all = cluster(&[group(), account()], &[managed_cluster(&json!({}))]);
    all.extend(pool_manifests("system", "System", 1, &json!({})));
    apply(&world.server, &all).await;
    world.until_ready(&["system"]).await;
    world
        .until("exported", |world| {
            secret_text(world, "account", "first").is_some()
                && secret_text(world, "account", "line").is_some()
        })
        .await;
    tokio::time::sleep(HOUR).await;
    let keys = |world: &World| ["first", "line"].map(|key| secret_text(world, "account", key));
    let written = |world: &World| world.object("Secret", "account").expect("a Secret")["metadata"].clone();
    let (before, stored) = (keys(&world), written(&world));
    world.simulator.azure().forget_requests();
    tokio::time::sleep(6 * HOUR).await;
    let asked = world.count("POST", "/listKeys");
    println!("report: aso keys: {asked} calls in six hours for two keys of one account");
    assert!((5..=6).contains(&asked), "{asked} calls in six hours");
    assert_eq!(written(&world), stored, "a key that stays is not written");

    let path = "/resourceGroups/fleet/providers/Microsoft.Storage/storageAccounts/fleetaccount/regenerateKey";
    world.ask(http::Method::POST, path, Some(&json!({"keyName": "key2"})));
    assert_eq!(keys(&world), before, "nobody has told");
    tokio::time::sleep(HOUR + std::time::Duration::from_mins(1)).await;
    let after = keys(&world);
    assert_eq!(after[0], before[0], "the other key");
    assert_ne!(after[1], before[1], "the key that was rotated");

    // The next process knows when Azure was asked for what is stored.
    world.simulator.azure().forget_requests();
    world.kill().await;
    world.start();
    world.until_ready(&["system"]).await;
    tokio::time::sleep(std::time::Duration::from_mins(5)).await;
    let again = world.count("POST", "/listKeys");
    assert!(again <= 1, "{again} calls after a restart");
    tokio::time::sleep(std::time::Duration::from_mins(30)).await;
    assert_eq!(world.count("POST", "/listKeys"), again);
}

/// Labels and annotations of destinations, as they are written or by expression, on what is made at once, by asking, and for a
/// kubeconfig.
#[tokio::test(start_paused = true)]
async fn destinations_are_labelled() {
    let world = World::new();
    let identity = |labels: &Value| {
        let mut identity = identity();
        identity["spec"]["operatorSpec"] = json!({
            "configMaps": {"clientId": {"name": "workload", "key": "client", "labels": labels,
                "annotations": {"note": "an identity"}}},
            "secrets": {"subscriptionId": {"name": "workload", "key": "subscription", "labels": labels}},
        });
        identity
    };
    let mut account = account();
    let keys = &mut account["spec"]["operatorSpec"];
    keys["secrets"]["key1"]["annotations"] = json!({"note": "first"});
    keys["secretExpressions"][0]["labels"] = json!({"place": "self.spec.location"});
    let mut plane = managed_cluster(&json!({}));
    plane["spec"]["operatorSpec"] = json!({"secrets": {"adminCredentials":
        {"name": "fleet-kubeconfig", "key": "value", "labels": {"argocd.argoproj.io/secret-type": "cluster"}}}});
    let mut all = cluster(
        &[group(), identity(&json!({"team": "a"})), account.clone()],
        &[plane],
    );
    all.extend(pool_manifests("system", "System", 1, &json!({})));
    apply(&world.server, &all).await;
    world.until_ready(&["system"]).await;
    let about = |world: &World, kind: &str, name: &str| {
        world
            .object(kind, name)
            .map(|one| one["metadata"].clone())
            .unwrap_or_default()
    };
    world
        .until("labelled", |world| {
            about(world, "Secret", "account")["labels"]["place"] == "westus3"
                && about(world, "Secret", "account")["annotations"]["note"] == "first"
                && about(world, "Secret", "fleet-kubeconfig")["labels"]["argocd.argoproj.io/secret-type"]
                    == "cluster"
        })
        .await;
    let kubeconfig = about(&world, "Secret", "fleet-kubeconfig");
    assert_eq!(kubeconfig["labels"]["cluster.x-k8s.io/cluster-name"], "fleet");
    let map = about(&world, "ConfigMap", "workload");
    assert_eq!(
        (&map["labels"]["team"], &map["annotations"]["note"]),
        (&json!("a"), &json!("an identity"))
    );
    assert_eq!(
        secret_text(&world, "workload", "subscription").as_deref(),
        Some(slipway_kit::azure::SUBSCRIPTION)
    );
    world.assert_rests().await;

    // What others set stays, what is meddled with is put back, and what is taken out of the spec goes.
    let meddled = json!({"metadata": {"labels": {"team": "z", "theirs": "x"}}});
    merge(&world.server, "Secret", "workload", meddled).await;
    world
        .until("put back", |world| {
            about(world, "Secret", "workload")["labels"]["team"] == "a"
        })
        .await;
    world
        .replace_resources(
            "AzureASOManagedCluster",
            "fleet",
            &[group(), identity(&json!({})), account],
        )
        .await;
    world
        .until("taken away", |world| {
            let labels = &about(world, "Secret", "workload")["labels"];
            labels["team"].is_null() && labels["theirs"] == "x"
        })
        .await;
    assert!(about(&world, "ConfigMap", "workload")["labels"]["team"].is_null());
    world.until_ready(&["system"]).await;
}
