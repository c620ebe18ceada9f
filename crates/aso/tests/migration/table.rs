//! The steps of Cluster API Provider Azure's document by hand, and every order and mistake in them: nothing is ever deleted in Azure, and
//! what does not work says what to do.

use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
};
use serde_json::{Value, json};
use slipway_aso::{
    adopt::command::{Adoption, confirm},
    command::objects::Objects,
};
use slipway_kit::{
    asker::asker,
    azure::{self, NAMESPACE, SUBSCRIPTION},
};

use super::{
    orders::{Deed, Order, orders},
    world::{Surroundings, World},
};
use crate::life::annotated::{ADOPT, is_ready};

pub const NEW: &str = "two";

pub struct ByHand {
    pub world: World,
    /// What commands refused, in their words.
    pub refused: Vec<String>,
}

fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

impl ByHand {
    pub fn old(&self, kind: &str) -> Api<DynamicObject> {
        let infrastructure = "infrastructure.cluster.x-k8s.io";
        let resource = match kind {
            "Cluster" => resource("cluster.x-k8s.io", "v1beta2", kind, "clusters"),
            "MachinePool" => resource("cluster.x-k8s.io", "v1beta2", kind, "machinepools"),
            _ => resource(
                infrastructure,
                "v1beta1",
                kind,
                &format!("{}s", kind.to_lowercase()),
            ),
        };
        Api::namespaced_with(self.world.server.client(), NAMESPACE, &resource)
    }

    pub async fn delete(&mut self, kind: &str) {
        let api = self.old(kind);
        for object in api.list(&ListParams::default()).await.expect("a list") {
            let name = object.metadata.name.unwrap_or_default();
            if name.starts_with("beside") {
                continue;
            }
            if let Err(error) = api.delete(&name, &DeleteParams::default()).await {
                self.refused.push(error.to_string());
            }
        }
    }

    pub async fn free(&mut self, kind: &str) {
        let api = self.old(kind);
        let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        for object in api.list(&ListParams::default()).await.expect("a list") {
            let name = object.metadata.name.unwrap_or_default();
            if !name.starts_with("beside") {
                let _ = api.patch(&name, &PatchParams::default(), &patch).await;
            }
        }
    }

    pub async fn pause(&self, paused: bool) {
        let patch = Patch::Merge(json!({"spec": {"paused": paused}}));
        let _ = self
            .old("Cluster")
            .patch("fleet", &PatchParams::default(), &patch)
            .await;
    }

    pub async fn adopt(&mut self, namespace: &str, name: Option<&str>) {
        let objects = Objects::discover(&self.world.server.client())
            .await
            .expect("kinds");
        let asker = asker(self.world.context());
        let adoption = Adoption {
            namespace: namespace.to_owned(),
            credential: Some("sign-in".to_owned()),
            name: name.map(str::to_owned),
        };
        let aks = "/resourceGroups/fleet/providers/Microsoft.ContainerService/managedClusters/fleet";
        let ids = [format!("/subscriptions/{SUBSCRIPTION}{aks}")];
        let adopted = match adoption.read(&objects, &asker, &ids).await {
            Ok(read) => adoption.apply(&objects, &asker, &read).await,
            Err(error) => Err(error),
        };
        if let Err(error) = adopted {
            self.refused.push(error);
        }
    }

    pub async fn confirm(&mut self) {
        let objects = Objects::discover(&self.world.server.client())
            .await
            .expect("kinds");
        let asker = asker(self.world.context());
        if let Err(error) = confirm(&objects, &asker, NEW, &["fleet".to_owned()]).await {
            self.refused.push(error);
        }
    }

    pub async fn wait(&self) {
        self.world
            .until("let go of", |world| {
                let objects = world.server.objects();
                let mut classic = objects.iter().filter(|one| {
                    one["kind"]
                        .as_str()
                        .is_some_and(|kind| kind.starts_with("AzureManaged"))
                });
                classic.all(|one| {
                    one["metadata"]["annotations"]
                        .get("clusterctl.cluster.x-k8s.io/block-move")
                        .is_none()
                })
            })
            .await;
    }

    async fn act(&mut self, deed: Deed) {
        use Deed::{
            Adopt, AdoptBeside, AdoptByAnnotation, Confirm, DeleteCluster, DeleteInfrastructure,
            DeleteMachinePools, DeletePlane, DeletePools, FreeCluster, FreeMachinePools, FreePlane,
            FreePools, Pause, Restart, Resume, SecondManager, Wait,
        };
        match deed {
            Pause => self.pause(true).await,
            Resume => self.pause(false).await,
            Wait => self.wait().await,
            Adopt => self.adopt(NEW, None).await,
            AdoptByAnnotation => self.adopt_by_annotation().await,
            SecondManager => self.world.start(),
            AdoptBeside => self.adopt(NAMESPACE, Some("beside")).await,
            Confirm => self.confirm().await,
            Restart => {
                self.world.kill().await;
                self.world.start();
            }
            DeleteCluster => self.delete("Cluster").await,
            DeleteInfrastructure => self.delete("AzureManagedCluster").await,
            DeletePlane => self.delete("AzureManagedControlPlane").await,
            DeleteMachinePools => self.delete("MachinePool").await,
            DeletePools => self.delete("AzureManagedMachinePool").await,
            FreePools => self.free("AzureManagedMachinePool").await,
            FreeMachinePools => self.free("MachinePool").await,
            FreePlane => self.free("AzureManagedControlPlane").await,
            FreeCluster => self.free("Cluster").await,
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
    }

    /// Objects of the operator as a user of it imports them, with the annotation of adoption.
    async fn adopt_by_annotation(&self) {
        let azure = |end: &str| self.world.document(end);
        let aks = azure("managedClusters/fleet");
        let make = |kind: &str, name: &str, spec: Value| {
            let version = if kind == "ResourceGroup" {
                "resources.azure.com/v1api20200601"
            } else {
                "containerservice.azure.com/v1api20240901"
            };
            json!({"apiVersion": version, "kind": kind, "spec": spec, "metadata": {"name": name, "namespace": NEW,
                "annotations": {"serviceoperator.azure.com/credential-from": "sign-in", (ADOPT): "true"}}})
        };
        let profile = |name: &str| {
            let pool = &azure(&format!("agentPools/{name}"))["properties"];
            json!({"mode": pool["mode"], "count": pool["count"], "vmSize": pool["vmSize"], "type": pool["type"]})
        };
        let mut all = vec![
            make("ResourceGroup", "fleet", json!({"location": "westus3"})),
            make(
                "ManagedCluster",
                "fleet",
                json!({"owner": {"name": "fleet"}, "location": "westus3", "dnsPrefix": aks["properties"]["dnsPrefix"],
                    "identity": {"type": aks["identity"]["type"]}}),
            ),
        ];
        for pool in ["system", "user"] {
            let mut spec = profile(pool);
            spec["azureName"] = json!(pool);
            spec["owner"] = json!({"name": "fleet"});
            all.push(make("ManagedClustersAgentPool", &format!("fleet-{pool}"), spec));
        }
        azure::apply(&self.world.server, &all).await;
        self.world
            .until("looked at by the operator", |world| {
                let objects = world.server.objects();
                let operated = objects.iter().filter(|one| {
                    one["apiVersion"]
                        .as_str()
                        .is_some_and(|version| version.contains(".azure.com/"))
                });
                operated.clone().count() == 4 && operated.clone().all(is_ready)
            })
            .await;
        tokio::time::sleep(Duration::from_mins(5)).await;
    }

    /// What somebody reads who looks: what does not go, what is not ready, and what commands and events said.
    fn read(&self) -> (Vec<String>, Vec<String>) {
        let objects = self.world.server.objects();
        let conditions = |object: &Value| {
            let newer = object["status"]["v1beta2"]["conditions"].as_array().cloned();
            let own = object["status"]["conditions"].as_array().cloned();
            newer.into_iter().chain(own).flatten().collect::<Vec<Value>>()
        };
        let mut left = Vec::new();
        for object in &objects {
            let kind = object["kind"].as_str().unwrap_or_default();
            if !kind.starts_with("Azure") || kind == "AzureClusterIdentity" {
                continue;
            }
            let conditions = conditions(object);
            let find = |name: &str, status: &str| {
                conditions
                    .iter()
                    .find(|one| one["type"] == name && one["status"] == status)
            };
            let leaves = !object["metadata"]["deletionTimestamp"].is_null();
            let said = find("Paused", "True")
                .filter(|_| leaves)
                .or_else(|| find("Ready", "False"));
            let said = said.map_or_else(String::new, |one| {
                one["message"].as_str().unwrap_or_default().to_owned()
            });
            // What is there and well is not read.
            if leaves || !said.is_empty() {
                let metadata = &object["metadata"];
                left.push(format!(
                    "{kind} {}/{}: {said}",
                    metadata["namespace"].as_str().unwrap_or_default(),
                    metadata["name"].as_str().unwrap_or_default()
                ));
            }
        }
        let events = self.world.context().events.recorded();
        let events = events
            .iter()
            .filter(|event| event.warning && event.reason.starts_with("Adoption"));
        let told = events.map(|event| event.note.clone());
        (left, self.refused.iter().cloned().chain(told).collect())
    }
}

pub async fn standing(surroundings: Surroundings) -> ByHand {
    let world = World::standing_in(surroundings).await;
    let client = world.server.client();
    let namespace: Namespace =
        serde_json::from_value(json!({"metadata": {"name": NEW}})).expect("a namespace");
    let _ = Api::<Namespace>::all(client.clone())
        .create(&PostParams::default(), &namespace)
        .await;
    for place in [NEW, NAMESPACE] {
        let secrets: Api<k8s_openapi::api::core::v1::Secret> = Api::namespaced(client.clone(), place);
        let text = |value: &str| k8s_openapi::ByteString(value.as_bytes().to_vec());
        let secret: Value = json!({"metadata": {"name": "sign-in", "namespace": place}, "data": {
            "AZURE_SUBSCRIPTION_ID": text(SUBSCRIPTION), "AZURE_TENANT_ID": text(slipway_kit::azure::TENANT),
            "AZURE_CLIENT_ID": text(slipway_kit::azure::CLIENT), "AZURE_CLIENT_SECRET": text("right")}});
        let secret = serde_json::from_value(secret).expect("a secret");
        secrets
            .create(&PostParams::default(), &secret)
            .await
            .expect("a secret");
    }
    ByHand {
        world,
        refused: Vec::new(),
    }
}

async fn try_one(order: &Order) -> usize {
    let name = &order.name;
    let mut hands = standing(order.surroundings).await;
    let in_azure = hands.world.in_azure();
    for deed in &order.deeds {
        hands.act(*deed).await;
    }
    tokio::time::sleep(Duration::from_hours(1)).await;
    let writes = hands.world.writes();
    let deletions: Vec<&String> = writes
        .iter()
        .filter(|write| write.starts_with("DELETE"))
        .collect();
    assert!(deletions.is_empty(), "{name}: {deletions:?}");
    assert_eq!(hands.world.in_azure(), in_azure, "{name}");
    let (left, told) = hands.read();
    println!("{name}: left {left:?}, told {told:?}");
    for line in &left {
        assert!(
            !line.ends_with(": "),
            "{name}: what is left says nothing: {line}\n{told:?}"
        );
    }
    let all = left
        .iter()
        .chain(&told)
        .cloned()
        .collect::<Vec<String>>()
        .join("\n");
    for words in order.says {
        assert!(all.contains(words), "{name}: nothing says {words:?}: {all}");
    }
    left.len() + told.len()
}

#[tokio::test(start_paused = true)]
async fn whatever_goes_wrong_by_hand_nothing_is_deleted_in_azure() {
    let orders = orders();
    assert!(orders.len() >= 40, "{} orders", orders.len());
    // All of them take minutes.
    let every = if std::env::var_os("SLIPWAY_TEST_FULL").is_some() {
        1
    } else {
        7
    };
    let (mut told, mut tried) = (0, 0);
    for order in orders.iter().step_by(every) {
        tried += 1;
        told += try_one(order).await;
    }
    println!(
        "report: migration by hand: {tried} of {} orders, {told} messages that say what to do, 0 deletions in Azure",
        orders.len()
    );
}
