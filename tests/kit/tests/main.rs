//! The fault sweep on a small controller: a Boat keeps one ConfigMap per crew member and counts them in its
//! status; on deletion it takes them ashore before its finalizer goes.

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, CustomResource, CustomResourceExt, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use slipway_apiserver_sim::Apiserver;
use slipway_kit::{
    objects::create,
    sweep::{Extent, Scenario, World, sweep},
};
use slipway_runtime::{
    Clock, Context, Next,
    controller::{Controller, Reconciler, Registration},
};

#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "harbour.slipway.dev",
    version = "v1",
    kind = "Boat",
    namespaced,
    status = "BoatStatus"
)]
struct BoatSpec {
    #[serde(default)]
    crew: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
struct BoatStatus {
    #[serde(default)]
    afloat: bool,
}

const FINALIZER: &str = "harbour.slipway.dev/crew";

/// `careless` forgets the finalizer: the sweep must notice.
struct Crew {
    careless: bool,
}

impl Reconciler for Crew {
    type Object = Boat;
    type Error = kube::Error;

    async fn reconcile(&self, boat: Arc<Boat>, context: &Context) -> Result<Next, kube::Error> {
        let boats: Api<Boat> = Api::namespaced(context.client.clone(), "default");
        let cards: Api<ConfigMap> = Api::namespaced(context.client.clone(), "default");
        let name = boat.name_any();
        let merge = PatchParams::default();
        let aboard = cards
            .list(&ListParams::default().labels(&format!("boat={name}")))
            .await?;
        if boat.meta().deletion_timestamp.is_some() {
            for card in &aboard.items {
                match cards.delete(&card.name_any(), &DeleteParams::default()).await {
                    Err(kube::Error::Api(status)) if status.is_not_found() => {}
                    other => drop(other?),
                }
            }
            boats
                .patch(
                    &name,
                    &merge,
                    &Patch::Merge(json!({"metadata": {"finalizers": null}})),
                )
                .await?;
            return Ok(Next::OnChange);
        }
        if !self.careless && boat.finalizers().is_empty() {
            boats
                .patch(
                    &name,
                    &merge,
                    &Patch::Merge(json!({"metadata": {"finalizers": [FINALIZER]}})),
                )
                .await?;
            return Ok(Next::OnChange);
        }
        for member in &boat.spec.crew {
            let card = json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": format!("{name}-{member}"), "labels": {"boat": name}}});
            let apply = PatchParams::apply("harbour").force();
            cards
                .patch(&format!("{name}-{member}"), &apply, &Patch::Apply(card))
                .await?;
        }
        if boat.status.as_ref().is_none_or(|status| !status.afloat) {
            boats
                .patch_status(&name, &merge, &Patch::Merge(json!({"status": {"afloat": true}})))
                .await?;
        }
        Ok(Next::OnChange)
    }
}

struct Voyage {
    careless: bool,
}

fn afloat(objects: &[Value], desired: bool) -> bool {
    objects
        .iter()
        .any(|object| object["kind"] == "Boat" && object["status"]["afloat"] == true)
        == desired
}

impl Scenario for Voyage {
    fn name(&self) -> &'static str {
        "voyage"
    }

    fn prepare(&self, server: &Apiserver, _clock: Clock) {
        server.install(&[Boat::crd()], &[], &[]);
    }

    fn controllers(&self, _world: &World) -> Vec<Registration> {
        vec![
            Controller::new(
                "boat",
                Crew {
                    careless: self.careless,
                },
            )
            .into_registration(),
        ]
    }

    fn user<'a>(&'a self, world: &'a World) -> BoxFuture<'a, ()> {
        async move {
            for name in ["sloop", "yawl"] {
                let boat = json!({"apiVersion": "harbour.slipway.dev/v1", "kind": "Boat", "metadata": {"name": name},
                    "spec": {"crew": ["mate", "cook"]}});
                create(&world.server, &boat).await;
            }
            world
                .until("both afloat", |objects| {
                    objects
                        .iter()
                        .filter(|object| object["status"]["afloat"] == true)
                        .count()
                        == 2
                })
                .await;
            Api::<Boat>::namespaced(world.server.client(), "default")
                .delete("yawl", &DeleteParams::default())
                .await
                .expect("a user's delete without faults");
            world
                .until("one gone", |objects| {
                    objects.iter().filter(|object| object["kind"] == "Boat").count() == 1
                })
                .await;
            assert!(afloat(&world.server.objects(), true));
        }
        .boxed()
    }

    fn invariants(&self, objects: &[Value]) -> Result<(), String> {
        // A card never outlives its boat.
        for card in objects.iter().filter(|object| object["kind"] == "ConfigMap") {
            let owner = &card["metadata"]["labels"]["boat"];
            if !objects
                .iter()
                .any(|object| object["kind"] == "Boat" && object["metadata"]["name"] == *owner)
            {
                return Err(format!("{} has no boat", card["metadata"]["name"]));
            }
        }
        Ok(())
    }
}

#[test]
fn every_fault_at_every_call_ends_the_same() {
    let scenario: Arc<dyn Scenario> = Arc::new(Voyage { careless: false });
    sweep(&scenario, Extent::All).assert_clean();
}

#[test]
fn a_controller_that_forgets_its_finalizer_is_caught() {
    let scenario: Arc<dyn Scenario> = Arc::new(Voyage { careless: true });
    let report = sweep(&scenario, Extent::Runs(40));
    assert!(
        report
            .failures
            .iter()
            .any(|failure| failure.contains("has no boat")),
        "{report:?}"
    );
}
