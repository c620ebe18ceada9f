//! The journeys of the fault sweep over both controllers: every call to the management cluster and to the workload cluster,
//! every fault, the same end. At every change: quorum, one host that initialises, secrets that stay.

use std::{sync::OnceLock, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use slipway_capi::secret::{
    Purpose,
    certificate::{self, CA_LIFETIME, KeyAlgorithm},
    key_pair_secret,
};
use slipway_kit::{
    journey::{Journey, Standing, User},
    objects::of_kind,
    sweep::{Extent, World},
};

use super::{
    driver::{NEW, OLD},
    environment::{Environment, NAMESPACE},
    extension::register,
};

/// Cas of the user, made once: making them is not what is tested, and takes long.
fn cas() -> &'static Vec<Secret> {
    static MADE: OnceLock<Vec<Secret>> = OnceLock::new();
    MADE.get_or_init(|| {
        [Purpose::ClusterCa, Purpose::ClientCa, Purpose::EtcdCa]
            .into_iter()
            .map(|purpose| {
                let pair = certificate::generate(
                    purpose,
                    "kubernetes",
                    KeyAlgorithm::EcdsaP256,
                    CA_LIFETIME,
                    Timestamp::UNIX_EPOCH,
                )
                .expect("a CA");
                key_pair_secret(NAMESPACE, "edge", purpose, None, &pair)
            })
            .collect()
    })
}

/// Whether the control plane says that it is what is asked for.
fn is_done(environment: &Environment, objects: &[Value], servers: u64, version: &str) -> bool {
    // k3s calls a server a voter one tick after it became one, and which server is chosen to go depends on that.
    let votes = |machine: &Value| {
        let conditions = machine["status"]["conditions"].as_array();
        conditions
            .into_iter()
            .flatten()
            .any(|condition| condition["type"] == "EtcdMemberHealthy" && condition["status"] == "True")
    };
    let machines: Vec<&Value> = of_kind(objects, "Machine")
        .filter(|machine| !machine["metadata"]["labels"]["cluster.x-k8s.io/control-plane"].is_null())
        .collect();
    let all_vote = machines.len() as u64 == servers && machines.into_iter().all(votes);
    let told = of_kind(objects, "KThreesControlPlane").any(|plane| {
        let status = &plane["status"];
        [
            "replicas",
            "readyReplicas",
            "updatedReplicas",
            "availableReplicas",
        ]
        .iter()
        .all(|field| status[*field] == servers)
            && status["ready"] == true
    });
    all_vote && told && environment.settled(usize::try_from(servers).unwrap_or_default(), version)
}

async fn until_done(environment: &Environment, world: &World, what: &str, servers: u64, version: &str) {
    world
        .until(what, |objects| is_done(environment, objects, servers, version))
        .await;
}

/// Servers, with CAs that are the user's.
async fn set_up(environment: &Environment, world: &World, servers: i32) {
    environment.set_up_namespace().await;
    for secret in cas() {
        environment
            .secrets()
            .create(&PostParams::default(), secret)
            .await
            .expect("a CA is stored");
    }
    world.begin();
    environment.set_up(servers, OLD).await;
}

static ONE: Standing<Environment> = Standing::after(|environment, world| {
    async move {
        set_up(environment, world, 1).await;
        until_done(environment, world, "created", 1, OLD).await;
    }
    .boxed()
});
static THREE: Standing<Environment> = Standing::after(|environment, world| {
    async move {
        set_up(environment, world, 3).await;
        until_done(environment, world, "created", 3, OLD).await;
    }
    .boxed()
});

/// One server, with CAs that the controller makes.
fn first<'a>(environment: &'a Environment, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        environment.set_up_namespace().await;
        world.begin();
        environment.set_up(1, OLD).await;
        until_done(environment, world, "created", 1, OLD).await;
    }
    .boxed()
}

fn three_and_a_worker<'a>(environment: &'a Environment, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        set_up(environment, world, 3).await;
        environment.create_worker("worker", OLD).await;
        until_done(environment, world, "created", 3, OLD).await;
        world
            .until("the worker joins", |_| {
                environment.model.lock().nodes.contains_key("worker")
            })
            .await;
    }
    .boxed()
}

/// One server to three and back to one.
fn scale<'a>(environment: &'a Environment, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        for replicas in [3, 1] {
            let patch = json!({"spec": {"replicas": replicas}});
            environment.patch_plane(patch).await.expect("it is scaled");
            until_done(environment, world, "scaled", replicas, OLD).await;
        }
    }
    .boxed()
}

/// To the next minor version: a second joins, the first leaves.
fn upgrade<'a>(environment: &'a Environment, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        let patch = json!({"spec": {"version": NEW}});
        environment.patch_plane(patch).await.expect("it is upgraded");
        until_done(environment, world, "upgraded", 1, NEW).await;
    }
    .boxed()
}

/// The same on the machine that is there.
fn upgrade_in_place<'a>(environment: &'a Environment, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        // Nobody looks at its certificate.
        let client_config = json!({"url": "https://updates.local", "caBundle": "bm9ib2R5"});
        register(environment, &client_config).await;
        let patch = json!({"spec": {"version": NEW, "rolloutStrategy": {"type": "InPlace"}}});
        let names = || async {
            let servers = environment.servers().await;
            servers.iter().map(ResourceExt::name_any).collect::<Vec<_>>()
        };
        let before = names().await;
        environment.patch_plane(patch).await.expect("it is upgraded");
        until_done(environment, world, "upgraded in place", 1, NEW).await;
        assert_eq!(names().await, before, "no machine is replaced");
    }
    .boxed()
}

/// One of three servers dies.
fn heal<'a>(environment: &'a Environment, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        environment.core.settings.lock().health_check_after = Some(Duration::from_mins(5));
        // Not the first one: which name that has differs between runs.
        let first = environment.recorder.lock().initialised.clone();
        let victim = environment
            .servers()
            .await
            .iter()
            .map(ResourceExt::name_any)
            .find(|name| !first.contains(name))
            .expect("a server that joined");
        environment.model.lock().kill(&victim);
        world
            .until("the dead one is gone", |objects| {
                of_kind(objects, "Machine").all(|machine| machine["metadata"]["name"] != victim)
            })
            .await;
        until_done(environment, world, "healed", 3, OLD).await;
    }
    .boxed()
}

fn delete<'a>(environment: &'a Environment, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        environment
            .planes()
            .delete("edge", &DeleteParams::default())
            .await
            .expect("it is deleted");
        world
            .until("gone", |objects| {
                of_kind(objects, "KThreesControlPlane").next().is_none()
                    && of_kind(objects, "Machine").next().is_none()
            })
            .await;
    }
    .boxed()
}

/// S-14, S-15: the first server, with CAs that are made.
#[test]
fn the_first_server_comes_up_whatever_fails() {
    Journey::new("k3s: the first server", first).assert_clean();
}

/// S-13, S-14: three servers and a worker.
#[test]
fn three_servers_and_a_worker_come_up_whatever_fails() {
    Journey::new("k3s: three servers and a worker", three_and_a_worker).assert_clean();
}

/// S-14: the controllers start over a cluster that stands, and leave it as it is.
#[test]
fn starting_over_a_standing_cluster_changes_nothing_whatever_fails() {
    Journey::start_over(&THREE, "k3s: the controllers start over three servers").assert_clean();
}

/// S-13, S-14: scaling up and down.
#[test]
fn scaling_ends_the_same_whatever_fails() {
    Journey::from(&ONE, "k3s: one server, three, one", scale).assert_clean();
}

/// S-13, S-14: an upgrade.
#[test]
fn an_upgrade_ends_the_same_whatever_fails() {
    Journey::from(&ONE, "k3s: one server to the next minor version", upgrade).assert_clean();
}

/// S-15: whatever happens while the lock is released, it does not stay behind.
#[test]
fn no_lock_is_left_behind() {
    let report = Journey::from(&ONE, "k3s: the init lock", upgrade).sweep(Extent::At("DELETE configmaps"));
    assert!(report.runs > 1, "the lock is released on the way");
    report.assert_clean();
}

/// S-14, S-38: an upgrade on the machine that is there.
#[test]
fn an_upgrade_in_place_ends_the_same_whatever_fails() {
    Journey::from(&ONE, "k3s: one server upgraded in place", upgrade_in_place).assert_clean();
}

/// S-14: healing.
#[test]
fn healing_ends_the_same_whatever_fails() {
    Journey::from(&THREE, "k3s: one of three servers dies", heal).assert_clean();
}

/// S-14: deletion.
#[test]
fn deletion_ends_the_same_whatever_fails() {
    Journey::from(&THREE, "k3s: three servers deleted", delete).assert_clean();
}

/// A controller that makes CAs again is caught: the sweep is not blind to what it guards.
#[test]
fn a_secret_made_anew_is_caught() {
    let meddled: User<Environment> = |environment, world| {
        async move {
            first(environment, world).await;
            let patch = json!({"data": {"value": "YW5ldw=="}});
            Api::<Secret>::namespaced(world.server.client(), NAMESPACE)
                .patch("edge-token", &PatchParams::default(), &Patch::Merge(&patch))
                .await
                .expect("the token is changed");
        }
        .boxed()
    };
    Journey::new("k3s: somebody makes the token again", meddled)
        .assert_caught("Secret edge-token was made again");
}
