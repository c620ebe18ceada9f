//! Somebody who meddles with a life that would have gone well: the sweep is not blind to what it guards.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use http::Method;
use jiff::Timestamp;
use serde_json::{Value, json};
use slipway_apiserver_sim::{
    Apiserver,
    sweep::{Extent, Scenario, World, sweep},
};
use slipway_runtime::controller::Registration;

use super::{
    sweep::{Act, Life, THEIRS, ask},
    world::merge,
};

/// Somebody who does what a broken controller would, after a life without faults.
struct Meddler {
    life: Arc<Life>,
    does: fn(&Life, &World) -> BoxFuture<'static, ()>,
}

impl Scenario for Meddler {
    fn name(&self) -> &'static str {
        "AKS: somebody meddles"
    }
    fn begins_at(&self) -> Timestamp {
        self.life.begins_at()
    }
    fn prepare(&self, server: &Apiserver) {
        self.life.prepare(server);
    }
    fn controllers(&self, world: &World) -> Vec<Registration> {
        self.life.controllers(world)
    }
    fn user<'a>(&'a self, world: &'a World) -> BoxFuture<'a, ()> {
        async move {
            self.life.user(world).await;
            (self.does)(&self.life, world).await;
        }
        .boxed()
    }
    fn invariants(&self, objects: &[Value]) -> Result<(), String> {
        self.life.invariants(objects)
    }
    fn end_state(&self, world: &World) -> Value {
        self.life.end_state(world)
    }
}

/// The sweep is not blind to what it guards.
#[test]
fn what_is_orphaned_and_what_is_taken_from_others_is_caught() {
    let caught = |does, what: &str| {
        let life = Life::of(Act::Scale, "AKS: meddled with");
        let scenario: Arc<dyn Scenario> = Arc::new(Meddler { life, does });
        let report = sweep(&scenario, Extent::Baseline);
        assert!(
            report.failures.iter().any(|failure| failure.contains(what)),
            "{what}: {report:?}"
        );
    };
    caught(
        |_, world| {
            let server = world.server.clone();
            async move {
                let torn = json!({"metadata": {"finalizers": null}});
                merge(&server, "AzureManagedControlPlane", "fleet", torn).await;
            }
            .boxed()
        },
        "is orphaned",
    );
    caught(
        |life, world| {
            let (azure, server) = (life.azure(), world.server.clone());
            async move {
                ask(&azure, Method::DELETE, THEIRS[1], &Value::Null);
                tokio::time::sleep(Duration::from_hours(1)).await;
                let seen = json!({"metadata": {"labels": {"seen": "yes"}}});
                merge(&server, "AzureManagedControlPlane", "fleet", seen).await;
            }
            .boxed()
        },
        "is not ours and is gone",
    );
    caught(
        |life, world| {
            life.moving.store(true, Ordering::SeqCst);
            let server = world.server.clone();
            async move {
                merge(&server, "MachinePool", "work", json!({"spec": {"replicas": 2}})).await;
                tokio::time::sleep(Duration::from_mins(10)).await;
                merge(&server, "MachinePool", "work", json!({"spec": {"replicas": 1}})).await;
            }
            .boxed()
        },
        "while the cluster is moved",
    );
}
