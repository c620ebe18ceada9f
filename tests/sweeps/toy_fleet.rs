//! The toy provider's own controllers, webhooks and conversion under the fault sweep: a fleet is created, scaled up and
//! down, paused, changed while paused, taken up again and deleted.

use std::{collections::BTreeSet, sync::Arc};

use futures::{FutureExt, future::BoxFuture};
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};
use slipway_apiserver_sim::Apiserver;
use slipway_kit::{
    core::kinds,
    objects::{self, create, of_kind},
    sweep::{Extent, Scenario, World, sweep, sweep_sampled},
};
use slipway_runtime::{Clock, controller::Registration};
use slipway_tests::toy;

/// Where the apiserver in memory keeps what the test makes.
const NAMESPACE: &str = "default";

fn api(world: &World, group: &str, kind: &str) -> Api<DynamicObject> {
    objects::api(&world.server, NAMESPACE, &format!("{group}/v1beta2"), kind)
}

async fn merge(api: &Api<DynamicObject>, patch: Value) -> i64 {
    let changed = api
        .patch("north", &PatchParams::default(), &Patch::Merge(patch))
        .await
        .expect("a user's patch without faults");
    changed.metadata.generation.expect("custom resources have one")
}

/// Whether the fleet has a condition that is true of this generation.
fn holds(objects: &[Value], condition: &str, generation: i64) -> bool {
    of_kind(objects, "Fleet")
        .flat_map(|fleet| fleet["status"]["conditions"].as_array().into_iter().flatten())
        .any(|one| {
            one["type"] == condition && one["status"] == "True" && one["observedGeneration"] == generation
        })
}

fn is_ready(objects: &[Value], vessels: usize, generation: i64) -> bool {
    holds(objects, "Ready", generation) && of_kind(objects, "Vessel").count() == vessels
}

struct Voyage {
    annotations: Value,
}

impl Scenario for Voyage {
    fn name(&self) -> &'static str {
        "toy fleet: create, scale, pause, delete"
    }

    fn prepare(&self, server: &Apiserver, _clock: Clock) {
        let package = toy::provider().packages.remove(0);
        server.install(&kinds::of_core(), &[], &[]);
        server.install(&package.crds, &package.conversion, &package.admission);
    }

    fn controllers(&self, _world: &World) -> Vec<Registration> {
        toy::provider().packages.remove(0).controllers
    }

    fn user<'a>(&'a self, world: &'a World) -> BoxFuture<'a, ()> {
        async move {
            let clusters = api(world, "cluster.x-k8s.io", "Cluster");
            let fleets = api(world, toy::api::GROUP, "Fleet");
            let cluster = json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
                "metadata": {"name": "north"},
                "spec": {"infrastructureRef": {"apiGroup": toy::api::GROUP, "kind": "Fleet", "name": "north"}}});
            let uid = create(&world.server, &cluster).await.metadata.uid;
            let fleet = json!({"apiVersion": format!("{}/v1beta2", toy::api::GROUP), "kind": "Fleet",
                "metadata": {"name": "north", "annotations": self.annotations,
                    "labels": {"cluster.x-k8s.io/cluster-name": "north"},
                    "ownerReferences": [{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
                        "name": "north", "uid": uid}]},
                "spec": {"vessels": 1}});
            let mut generation = create(&world.server, &fleet).await.metadata.generation.unwrap_or_default();
            world
                .until("one vessel afloat", |objects| is_ready(objects, 1, generation))
                .await;
            for vessels in [3, 2] {
                generation = merge(&fleets, json!({"spec": {"vessels": vessels}})).await;
                world
                    .until("scaled", |objects| is_ready(objects, vessels, generation))
                    .await;
            }

            // Two kinds have two watches, and either may lag. A pause holds from when the fleet says so, not before.
            merge(&clusters, json!({"spec": {"paused": true}})).await;
            world
                .until("paused", |objects| holds(objects, "Paused", generation))
                .await;
            let paused = merge(&fleets, json!({"spec": {"vessels": 3}})).await;
            world
                .until("seen while paused", |objects| holds(objects, "Paused", paused))
                .await;
            assert_eq!(
                of_kind(&world.server.objects(), "Vessel").count(),
                2,
                "nothing is done while paused"
            );
            merge(&clusters, json!({"spec": {"paused": false}})).await;
            world
                .until("taken up again", |objects| is_ready(objects, 3, paused))
                .await;

            fleets
                .delete("north", &DeleteParams::default())
                .await
                .expect("a user's delete without faults");
            world
                .until("gone", |objects| of_kind(objects, "Fleet").next().is_none())
                .await;
        }
        .boxed()
    }

    fn invariants(&self, objects: &[Value]) -> Result<(), String> {
        let mut numbers = BTreeSet::new();
        for vessel in of_kind(objects, "Vessel") {
            let name = &vessel["metadata"]["name"];
            let owner = &vessel["metadata"]["ownerReferences"][0]["uid"];
            let Some(fleet) = of_kind(objects, "Fleet").find(|fleet| fleet["metadata"]["uid"] == *owner)
            else {
                return Err(format!("vessel {name} outlives its fleet"));
            };
            let finalizers = fleet["metadata"]["finalizers"].as_array();
            if !finalizers.into_iter().flatten().any(|one| one == toy::FINALIZER) {
                return Err(format!("vessel {name} is there before its fleet's finalizer"));
            }
            if !numbers.insert((owner.to_string(), vessel["spec"]["number"].to_string())) {
                return Err(format!("vessel {name} is there twice"));
            }
        }
        Ok(())
    }
}

#[test]
fn every_fault_ends_the_same() {
    let scenario: Arc<dyn Scenario> = Arc::new(Voyage {
        annotations: json!({}),
    });
    sweep_sampled(&scenario, 120).assert_clean();
}

#[test]
fn a_fleet_without_its_finalizer_is_caught() {
    let scenario: Arc<dyn Scenario> = Arc::new(Voyage {
        annotations: json!({toy::MISBEHAVE: "careless"}),
    });
    let report = sweep(&scenario, Extent::Baseline);
    assert!(
        report
            .failures
            .iter()
            .any(|failure| failure.contains("before its fleet's finalizer")),
        "{report:?}"
    );
}
