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
    azure::{NAMESPACE, SUBSCRIPTION},
};

use super::world::World;

const NEW: &str = "two";

/// One thing that a person does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Pause,
    /// Until the move block is gone.
    Wait,
    /// Into a namespace of its own.
    Adopt,
    /// Into the namespace where the old objects are, under another name.
    AdoptBeside,
    Confirm,
    Resume,
    Restart,
    DeleteCluster,
    DeleteInfrastructure,
    DeletePlane,
    DeleteMachinePools,
    DeletePools,
    FreePools,
    FreeMachinePools,
    FreePlane,
    FreeCluster,
}

use Deed::{
    Adopt, AdoptBeside, Confirm, DeleteCluster, DeleteInfrastructure, DeleteMachinePools, DeletePlane,
    DeletePools, FreeCluster, FreeMachinePools, FreePlane, FreePools, Pause, Restart, Resume, Wait,
};

/// The document's steps after the adoption, in its order.
const REST: [Deed; 9] = [
    DeleteCluster,
    DeleteInfrastructure,
    DeletePlane,
    DeleteMachinePools,
    DeletePools,
    FreePools,
    FreeMachinePools,
    FreePlane,
    FreeCluster,
];

fn with(first: &[Deed], rest: &[Deed]) -> Vec<Deed> {
    [first, rest].concat()
}

/// Every order that is tried, with a name.
fn orders() -> Vec<(String, Vec<Deed>)> {
    let mut orders: Vec<(String, Vec<Deed>)> = Vec::new();
    let mut add = |name: String, deeds: Vec<Deed>| orders.push((name, deeds));
    add(
        "as the document says".to_owned(),
        with(&[Pause, Wait, Adopt], &REST),
    );
    for turn in 1..REST.len() {
        let mut rest = REST;
        rest.rotate_left(turn);
        add(
            format!("the deletions turned by {turn}"),
            with(&[Pause, Wait, Adopt], &rest),
        );
    }
    let mut backwards = REST;
    backwards.reverse();
    add(
        "the deletions backwards".to_owned(),
        with(&[Pause, Wait, Adopt], &backwards),
    );
    for (number, deed) in REST.into_iter().enumerate() {
        let mut rest = REST.to_vec();
        rest.remove(number);
        add(format!("{deed:?} forgotten"), with(&[Pause, Wait, Adopt], &rest));
    }
    add(
        "nothing but deletions".to_owned(),
        with(&[Pause, Wait, Adopt], &REST[..5]),
    );
    add(
        "finalizers first".to_owned(),
        with(&with(&[Pause, Wait, Adopt], &REST[5..]), &REST[..5]),
    );
    add("without waiting".to_owned(), with(&[Pause, Adopt], &REST));
    add(
        "adopted before it is paused".to_owned(),
        with(&[Adopt, Pause, Wait], &REST),
    );
    add(
        "deleted before it is adopted".to_owned(),
        [&[Pause, Wait][..], &REST, &[Adopt]].concat(),
    );
    add(
        "deleted backwards before it is adopted".to_owned(),
        [&[Pause, Wait][..], &backwards, &[Adopt]].concat(),
    );
    add(
        "finalizers first, before it is adopted".to_owned(),
        [&[Pause, Wait][..], &REST[5..], &REST[..5], &[Adopt]].concat(),
    );
    add("never paused".to_owned(), with(&[Adopt], &REST));
    add("never paused, backwards".to_owned(), with(&[Adopt], &backwards));
    add(
        "never paused, finalizers first".to_owned(),
        with(&with(&[Adopt], &REST[5..]), &REST[..5]),
    );
    add(
        "never paused, only the Cluster".to_owned(),
        vec![Adopt, DeleteCluster],
    );
    add(
        "never paused, only the pools".to_owned(),
        vec![Adopt, DeleteMachinePools, DeletePools],
    );
    add(
        "never paused, only the control plane".to_owned(),
        vec![Adopt, DeletePlane],
    );
    add(
        "resumed after the deletions".to_owned(),
        with(&with(&[Pause, Wait, Adopt], &REST[..5]), &[Resume]),
    );
    add(
        "resumed between deletions and finalizers".to_owned(),
        [&[Pause, Wait, Adopt][..], &REST[..5], &[Resume], &REST[5..]].concat(),
    );
    add(
        "resumed before anything is deleted".to_owned(),
        with(&[Pause, Wait, Adopt, Resume], &REST),
    );
    add(
        "confirmed before the old ones are gone".to_owned(),
        with(&[Pause, Wait, Adopt, Confirm], &REST),
    );
    add(
        "confirmed, never paused".to_owned(),
        with(&[Adopt, Confirm], &REST),
    );
    add(
        "confirmed once the old ones are gone".to_owned(),
        with(&with(&[Pause, Wait, Adopt], &REST), &[Confirm]),
    );
    add(
        "the manager restarts between adoption and deletion".to_owned(),
        with(&[Pause, Wait, Adopt, Restart], &REST),
    );
    add(
        "the manager restarts in the middle of the deletions".to_owned(),
        [&[Pause, Wait, Adopt][..], &REST[..4], &[Restart], &REST[4..]].concat(),
    );
    add(
        "never paused, and the manager restarts".to_owned(),
        [&[Adopt][..], &[DeleteCluster, Restart]].concat(),
    );
    add(
        "adopted beside the old objects".to_owned(),
        with(&[Pause, Wait, AdoptBeside], &REST),
    );
    add(
        "adopted beside the old objects, never paused".to_owned(),
        with(&[AdoptBeside], &REST),
    );
    add(
        "adopted twice".to_owned(),
        with(&[Pause, Wait, Adopt, Adopt], &REST),
    );
    orders
}

struct ByHand {
    world: World,
    /// What commands refused, in their words.
    refused: Vec<String>,
}

fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

impl ByHand {
    fn old(&self, kind: &str) -> Api<DynamicObject> {
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

    async fn delete(&mut self, kind: &str) {
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

    async fn free(&mut self, kind: &str) {
        let api = self.old(kind);
        let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        for object in api.list(&ListParams::default()).await.expect("a list") {
            let name = object.metadata.name.unwrap_or_default();
            if !name.starts_with("beside") {
                let _ = api.patch(&name, &PatchParams::default(), &patch).await;
            }
        }
    }

    async fn pause(&self, paused: bool) {
        let patch = Patch::Merge(json!({"spec": {"paused": paused}}));
        let _ = self
            .old("Cluster")
            .patch("fleet", &PatchParams::default(), &patch)
            .await;
    }

    async fn adopt(&mut self, namespace: &str, name: Option<&str>) {
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

    async fn confirm(&mut self) {
        let objects = Objects::discover(&self.world.server.client())
            .await
            .expect("kinds");
        let asker = asker(self.world.context());
        if let Err(error) = confirm(&objects, &asker, NEW, &["fleet".to_owned()]).await {
            self.refused.push(error);
        }
    }

    async fn wait(&self) {
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
        match deed {
            Pause => self.pause(true).await,
            Resume => self.pause(false).await,
            Wait => self.wait().await,
            Adopt => self.adopt(NEW, None).await,
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

    /// What somebody sees who looks at old objects that are deleted and do not go.
    fn says(&self) -> Vec<String> {
        let objects = self.world.server.objects();
        let left = objects.iter().filter(|object| {
            let kind = object["kind"].as_str().unwrap_or_default();
            let is_leaving = !object["metadata"]["deletionTimestamp"].is_null();
            is_leaving && kind.starts_with("AzureManaged") && object["metadata"]["namespace"] == NAMESPACE
        });
        left.map(|object| {
            let conditions = object["status"]["v1beta2"]["conditions"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            let said = conditions
                .iter()
                .find(|one| one["type"] == "Paused" && one["status"] == "True");
            let said = said.or_else(|| {
                conditions
                    .iter()
                    .find(|one| one["type"] == "Ready" && one["status"] != "True")
            });
            let text = said.map_or_else(String::new, |one| {
                one["message"].as_str().unwrap_or_default().to_owned()
            });
            format!(
                "{} {}: {text}",
                object["kind"].as_str().unwrap_or_default(),
                object["metadata"]["name"].as_str().unwrap_or_default()
            )
        })
        .collect()
    }
}

async fn standing() -> ByHand {
    let world = World::standing().await;
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
    for (name, deeds) in orders.iter().step_by(every) {
        tried += 1;
        let mut hands = standing().await;
        let in_azure = hands.world.in_azure();
        for deed in deeds {
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
        let says = hands.says();
        for line in &says {
            assert!(
                !line.ends_with(": "),
                "{name}: what is left says nothing: {line}\n{:?}",
                hands.refused
            );
            told += 1;
        }
        println!("{name}: left {says:?}, refused {:?}", hands.refused);
    }
    println!(
        "report: migration by hand: {tried} of {} orders, {told} objects that say why they are left, 0 deletions in Azure",
        orders.len()
    );
}
