//! What is accepted and cannot work: an AKS cluster that waits, says why in a condition, and becomes ready, or goes, once the
//! mistake is undone.

use http::Method;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};
use slipway_azure_sim::{Application, Settings, Speed};
use slipway_insight::{Actor, Id};
use slipway_kit::{
    azure::{CLIENT, ask},
    core::kinds::INFRASTRUCTURE,
    mistakes::Mistake,
    objects::{self, condition, create},
};

use crate::{
    aks_world::{INFRASTRUCTURE_VERSION, NAMESPACE, PLANE, POOL, World, identity, manifests, pool},
    why::{self, stuck},
};

const AREA: &str = "AKS: what is accepted and cannot work";
const CLUSTER: &str = "/resourceGroups/fleet/providers/Microsoft.ContainerService/managedClusters/fleet";

fn mistake(what: &str, sees: &str, why: &str, undo: &str) -> Mistake {
    Mistake {
        area: AREA,
        what: what.to_owned(),
        sees: without_ids(sees),
        why: Some(without_ids(why)),
        undo: undo.to_owned(),
    }
}

/// Ids that differ from run to run are left out.
pub fn without_ids(text: &str) -> String {
    let id =
        regex::Regex::new("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}").expect("a pattern");
    let mark = regex::Regex::new(r"\b[0-9a-f]{32}\b").expect("a pattern");
    mark.replace_all(&id.replace_all(text, "…"), "…").into_owned()
}

pub async fn see() -> Vec<Mistake> {
    let mut seen = Vec::new();
    seen.extend(signing_in().await);
    seen.extend(refused_by_azure().await);
    seen.extend(later().await);
    seen.extend(others().await);
    seen
}

/// Identities that are missing or cannot sign in.
async fn signing_in() -> Vec<Mistake> {
    let mut seen = Vec::new();

    let world = World::new();
    world.apply_secret("right").await;
    world.apply(&manifests(&json!({}), &json!({}))).await;
    let sees = world.seen(PLANE, "fleet", "Ready").await;
    let why = world.why(&stuck("AzureClusterIdentity/fleet", "create it"));
    world.apply(&[identity()]).await;
    world.until_ready().await;
    seen.push(mistake(
        "an AzureClusterIdentity that does not exist",
        &sees,
        &why,
        "create it; the cluster goes on by itself",
    ));

    let world = World::new();
    world.apply_secret("right").await;
    let mut foreign = identity();
    foreign["spec"]["allowedNamespaces"] = json!({"list": ["other"]});
    world.apply(&[foreign]).await;
    world.apply(&manifests(&json!({}), &json!({}))).await;
    let sees = world.seen(PLANE, "fleet", "Ready").await;
    let why = world.why(
        &stuck(
            "AzureManagedControlPlane/fleet",
            "AzureClusterIdentity default/fleet",
        )
        .by(Actor::Operator),
    );
    let all = json!({"spec": {"allowedNamespaces": {"list": [NAMESPACE]}}});
    world.must_merge("AzureClusterIdentity", "fleet", all).await;
    world.until_ready().await;
    seen.push(mistake(
        "an identity that this namespace may not use",
        &sees,
        &why,
        "add the namespace to the identity's `allowedNamespaces`",
    ));

    let world = World::new();
    world.apply(&[identity()]).await;
    world.apply(&manifests(&json!({}), &json!({}))).await;
    let sees = world.seen(PLANE, "fleet", "Ready").await;
    let why = world.why(&stuck(
        "AzureManagedControlPlane/fleet",
        "Secret default/fleet-secret",
    ));
    world.apply_secret("right").await;
    world.until_ready().await;
    seen.push(mistake(
        "an identity whose Secret does not exist",
        &sees,
        &why,
        "create the Secret; the cluster goes on by itself",
    ));

    let world = World::with(Settings {
        speed: Speed::Times(20.0),
        open_sign_in: false,
        ..Settings::default()
    });
    let application = Application::new(CLIENT).secret("right");
    world.simulator.azure().directory_mut().register(application);
    world.apply_secret("wrong").await;
    world.apply(&[identity()]).await;
    world.apply(&manifests(&json!({}), &json!({}))).await;
    let sees = world.seen(PLANE, "fleet", "Ready").await;
    let why = world.why(&stuck("AzureManagedControlPlane/fleet", "Secret"));
    world.apply_secret("right").await;
    world.until_ready().await;
    seen.push(mistake(
        "a client secret that is wrong or has run out",
        &sees,
        &why,
        "write the right one into the Secret; nothing has to be restarted",
    ));

    let world = World::new();
    world.apply_secret("right").await;
    world.apply(&manifests(&json!({}), &json!({}))).await;
    let sees = world.seen(PLANE, "fleet", "Ready").await;
    let why = world.why(&stuck("AzureClusterIdentity/fleet", "create it"));
    world.delete("Cluster", "fleet").await.expect("it can be deleted");
    world.until_gone().await;
    seen.push(mistake(
        "a cluster that never signed in, and is not needed",
        &sees,
        &why,
        "delete the Cluster: nothing was made in Azure, so it goes at once",
    ));
    seen
}

/// A cluster or pool that Azure refuses, and the change that it takes.
async fn refused(
    what: &str,
    plane: Value,
    system_pool: Value,
    settings: Option<Settings>,
    (kind, name): (&str, &str),
    (right, names): (Value, Option<&'static str>),
    undo: &str,
) -> Mistake {
    let world = settings.map_or_else(World::new, World::with);
    world.apply_secret("right").await;
    world.apply(&[identity()]).await;
    world.apply(&manifests(&plane, &system_pool)).await;
    let sees = world.seen(PLANE, "fleet", "Ready").await;
    let why = names.map(|names| world.why(&stuck("AzureManagedControlPlane/fleet", names)));
    world.must_merge(kind, name, json!({"spec": right})).await;
    world.until_ready().await;
    Mistake {
        why: why.as_deref().map(without_ids),
        ..mistake(what, &sees, "", undo)
    }
}

async fn refused_by_azure() -> Vec<Mistake> {
    let none = || json!({});
    let fleet = (PLANE, "fleet");
    let quick = || Settings {
        speed: Speed::Times(20.0),
        ..Settings::default()
    };
    vec![
        refused(
            "a version that AKS does not offer",
            json!({"version": "v1.99.0"}),
            none(),
            None,
            fleet,
            (json!({"version": "v1.33.3"}), Some("1.99.0")),
            "write one that it offers; until AKS has taken one, any can be written",
        )
        .await,
        refused(
            "a location that does not exist",
            json!({"location": "westus33"}),
            none(),
            None,
            fleet,
            (json!({"location": "westus3"}), Some("westus33")),
            "write one that does: nothing exists yet, so it may change",
        )
        .await,
        refused(
            "a machine size that does not exist",
            none(),
            json!({"sku": "Standard_Nope"}),
            None,
            (POOL, "system"),
            (json!({"sku": "Standard_D2s_v3"}), Some("AgentPoolProfile:system")),
            "write one that does: the pool does not exist yet, so it may change",
        )
        .await,
        refused(
            "a machine size too small for system pods",
            none(),
            json!({"sku": "Standard_B1s"}),
            None,
            (POOL, "system"),
            (json!({"sku": "Standard_D2s_v3"}), Some("Nodepool name: system")),
            "choose one with two cores and four GB",
        )
        .await,
        refused(
            "a zone that the location does not have",
            none(),
            json!({"availabilityZones": ["4"]}),
            None,
            (POOL, "system"),
            (json!({"availabilityZones": ["1"]}), Some("resource 'system'")),
            "choose one of those listed: the pool does not exist yet, so it may change",
        )
        .await,
        refused(
            "an identity for the cluster that does not exist",
            json!({"identity": {"type": "UserAssigned", "userAssignedIdentityResourceID":
                "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/fleet/providers/Microsoft.ManagedIdentity/userAssignedIdentities/none"}}),
            none(),
            None,
            fleet,
            (json!({"identity": null}), None),
            "create it in Azure, or leave the field out",
        )
        .await,
        {
            let mut settings = quick();
            settings.cpu_quota.insert("westus3".to_owned(), 4);
            let world = World::with(settings);
            world.apply_secret("right").await;
            world.apply(&[identity()]).await;
            let mut all = manifests(&json!({}), &json!({}));
            all[3]["spec"]["replicas"] = json!(5);
            world.apply(&all).await;
            let sees = world.seen(PLANE, "fleet", "Ready").await;
            let why = world.why(&stuck("AzureManagedControlPlane/fleet", "quota").by(Actor::Cloud));
            world
                .must_merge("MachinePool", "system", json!({"spec": {"replicas": 1}}))
                .await;
            world.until_ready().await;
            mistake(
                "more nodes than the quota allows",
                &sees,
                &why,
                "ask for fewer, or raise the quota; both go on by themselves",
            )
        },
    ]
}

/// What goes wrong with a cluster that works.
async fn later() -> Vec<Mistake> {
    let mut seen = Vec::new();

    let world = World::standing().await;
    world
        .must_merge(PLANE, "fleet", json!({"spec": {"version": "v1.35.0"}}))
        .await;
    let sees = world.seen(PLANE, "fleet", "Ready").await;
    let why = world.why(&stuck("AzureManagedControlPlane/fleet", "1.35.0"));
    world
        .must_merge(PLANE, "fleet", json!({"spec": {"version": "v1.33.3"}}))
        .await;
    world.until_ready().await;
    seen.push(mistake(
        "an upgrade that skips a minor version",
        &sees,
        &why,
        "write the version that it runs, or one of those listed",
    ));

    let world = World::standing().await;
    world
        .apply(&pool("work", "User", 1, &json!({"sku": "Standard_Nope"})))
        .await;
    let sees = world.seen(POOL, "work", "Ready").await;
    let why = world.why(&stuck("AzureManagedMachinePool/work", "AgentPoolProfile:work"));
    world
        .must_merge(POOL, "work", json!({"spec": {"sku": "Standard_D2s_v3"}}))
        .await;
    world
        .until("a pool that is ready", |world| {
            let pool = world.object(POOL, "work").unwrap_or_default();
            slipway_kit::objects::holds(&pool, "Ready")
        })
        .await;
    seen.push(mistake(
        "a new pool of a size that does not exist",
        &sees,
        &why,
        "write one that does: the pool does not exist yet, so it may change",
    ));

    let world = World::standing().await;
    world
        .must_merge("Cluster", "fleet", json!({"spec": {"paused": true}}))
        .await;
    world
        .must_merge("MachinePool", "system", json!({"spec": {"replicas": 2}}))
        .await;
    world
        .until("paused", |world| {
            paused(&world.object(POOL, "system").unwrap_or_default())["status"] == "True"
        })
        .await;
    tokio::time::sleep(std::time::Duration::from_mins(30)).await;
    let pool_now = world.object(POOL, "system").unwrap_or_default();
    assert_eq!(pool_now["status"]["replicas"], 1, "{pool_now:#}");
    let said = paused(&pool_now);
    let why = world.why(&stuck("Cluster/fleet", "spec.paused"));
    world
        .must_merge("Cluster", "fleet", json!({"spec": {"paused": false}}))
        .await;
    world
        .until("scaled", |world| {
            world.object(POOL, "system").unwrap_or_default()["status"]["replicas"] == 2
        })
        .await;
    seen.push(mistake(
        "a change while the Cluster is paused",
        &format!(
            "`Paused` True, `{}`: {}",
            said["reason"].as_str().unwrap_or_default(),
            said["message"].as_str().unwrap_or_default()
        ),
        &why,
        "unpause it: `spec.paused: false`; the change follows",
    ));
    seen
}

/// The condition by which an object says that it is left alone; it has the newer form only.
fn paused(object: &Value) -> Value {
    let conditions = object["status"]["v1beta2"]["conditions"].as_array();
    let found = conditions
        .into_iter()
        .flatten()
        .find(|one| one["type"] == "Paused");
    found.cloned().unwrap_or_default()
}

/// Clusters that get in each other's way, and what somebody did in Azure.
async fn others() -> Vec<Mistake> {
    let mut seen = Vec::new();

    let world = World::standing().await;
    world.simulator.azure().settings.require_token = false;
    ask(&world.simulator, Method::DELETE, CLUSTER, None);
    let sees = world.seen(PLANE, "fleet", "Ready").await;
    let why = world.why(&stuck("AzureManagedControlPlane/fleet", "slipway.dev/recreate").by(Actor::Operator));
    let again = json!({"metadata": {"annotations": {"slipway.dev/recreate": "true"}}});
    world.must_merge(PLANE, "fleet", again).await;
    world.until_ready().await;
    seen.push(mistake(
        "the AKS cluster deleted in the portal",
        &sees,
        &why,
        "annotate the control plane `slipway.dev/recreate: \"true\"` for a new, empty one, or delete the Cluster",
    ));
    seen.push(rival().await);
    seen
}

/// Two Clusters of one name and resource group, in two namespaces.
async fn rival() -> Mistake {
    const OTHER: &str = "other";
    let world = World::standing().await;
    let namespaces: Api<Namespace> = Api::all(world.server.client());
    let namespace = serde_json::from_value(json!({"metadata": {"name": OTHER}})).expect("a namespace");
    namespaces
        .create(&PostParams::default(), &namespace)
        .await
        .expect("a namespace");
    let mut second = Value::Null;
    for mut manifest in manifests(&json!({}), &json!({})) {
        manifest["metadata"]["namespace"] = json!(OTHER);
        match manifest["kind"].as_str() {
            Some("Cluster") => {
                let made = create(&world.server, &manifest).await;
                second = json!({"apiVersion": manifest["apiVersion"], "kind": "Cluster", "name": "fleet",
                    "uid": made.metadata.uid, "controller": true});
            }
            Some(PLANE) => {
                manifest["metadata"]["labels"] = json!({"cluster.x-k8s.io/cluster-name": "fleet"});
                manifest["metadata"]["ownerReferences"] = json!([second]);
                create(&world.server, &manifest).await;
            }
            _ => {}
        }
    }
    let find = |world: &World| {
        let objects = world.server.objects();
        objects
            .into_iter()
            .find(|object| object["kind"] == PLANE && object["metadata"]["namespace"] == OTHER)
    };
    let said = |world: &World| {
        let plane = find(world).unwrap_or_default();
        condition(&plane, "ManagedClusterRunning").clone()
    };
    world
        .until("refused", |world| said(world)["reason"] == "OwnedByAnother")
        .await;
    let said = said(&world);
    let second = Id::new(INFRASTRUCTURE, PLANE, OTHER, "fleet");
    let expected = stuck(
        "AzureManagedControlPlane/fleet",
        "AzureManagedControlPlane default/fleet",
    );
    let why = why::of(&world.server, world.clock, &second, &expected);
    let planes = objects::api(&world.server, OTHER, INFRASTRUCTURE_VERSION, PLANE);
    planes
        .delete("fleet", &DeleteParams::default())
        .await
        .expect("it can be deleted");
    world.until("gone", |world| find(world).is_none()).await;
    assert_eq!(
        world.simulator.azure().count("DELETE", "/"),
        0,
        "nothing was deleted in Azure"
    );
    world.until_ready().await;
    mistake(
        "a second Cluster of the same name and resource group, in another namespace",
        &format!(
            "`ManagedClusterRunning` False, `OwnedByAnother`: {}",
            said["message"].as_str().unwrap_or_default()
        ),
        &why,
        "delete the second, which deletes nothing in Azure; or give it another resource group",
    )
}
