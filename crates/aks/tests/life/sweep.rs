//! Every fault at every call of a cluster's life: the same end, nothing orphaned in Azure, nothing of others touched.

use std::sync::{Arc, OnceLock};

use futures::{FutureExt, future::BoxFuture};
use parking_lot::Mutex;
use serde_json::{Value, json};
use slipway_azure_sim::{Settings, Simulator};
use slipway_memory::{
    Apiserver,
    sweep::{Scenario, World, sweep_sampled},
};
use slipway_runtime::controller::Registration;

use super::world::{
    SUBSCRIPTION, apply, controllers, core, find, holds, in_azure, install, manifests, merge, quick, remove,
    simulator, unreachable,
};

/// What a run's Azure is; made anew for every run, and outliving the processes in it.
#[derive(Default)]
struct Life {
    azure: Mutex<Option<(u64, Arc<Simulator>)>>,
}

static RUN: OnceLock<Mutex<u64>> = OnceLock::new();

impl Life {
    fn azure(&self, world: &World) -> Arc<Simulator> {
        let mut azure = self.azure.lock();
        let run = *RUN.get_or_init(Mutex::default).lock();
        if let Some((of, simulator)) = azure.as_ref()
            && *of == run
        {
            return Arc::clone(simulator);
        }
        let settings = Settings {
            throttling: false,
            ..quick()
        };
        let made = simulator(settings, world.clock);
        // Somebody else's, from before.
        let address = format!(
            "https://management.azure.com/subscriptions/{SUBSCRIPTION}/resourceGroups/theirs?api-version=2020-06-01"
        );
        let request = slipway_azure_sim::Request::new(http::Method::PUT, &address)
            .json(&json!({"location": "westus3"}));
        assert!(made.handle(&request).is_success());
        *azure = Some((run, Arc::clone(&made)));
        made
    }
}

fn ready(objects: &[Value], replicas: i64, version: &str) -> bool {
    let plane = find(objects, "AzureManagedControlPlane", "fleet");
    let settled = |object: &Value| {
        holds(object, "Ready") && object["status"]["observedGeneration"] == object["metadata"]["generation"]
    };
    plane.is_some_and(|plane| settled(&plane) && plane["status"]["version"] == version)
        && find(objects, "AzureManagedMachinePool", "work").is_some_and(|pool| {
            settled(&pool)
                && pool["status"]["replicas"] == replicas
                && pool["spec"]["providerIDList"]
                    .as_array()
                    .is_some_and(|ids| ids.len() as i64 == replicas)
        })
        && find(objects, "AzureManagedMachinePool", "system").is_some_and(|pool| settled(&pool))
}

impl Scenario for Life {
    fn name(&self) -> &'static str {
        "AKS cluster: create, scale, upgrade, delete"
    }

    fn prepare(&self, server: &Apiserver) {
        *RUN.get_or_init(Mutex::default).lock() += 1;
        install(server);
    }

    /// The control plane and its pools are reconciled side by side.
    fn is_ordered(&self) -> bool {
        false
    }

    fn controllers(&self, world: &World) -> Vec<Registration> {
        controllers(&self.azure(world), world.clock, &world.faults, &unreachable())
    }

    fn user<'a>(&'a self, world: &'a World) -> BoxFuture<'a, ()> {
        async move {
            let core = tokio::spawn(core(world.server.clone()));
            let spec = json!({"extensions": [{"name": "flux", "extensionType": "microsoft.flux"}]});
            let pools: &[(&str, &str, i32)] = &[("system", "System", 1), ("work", "User", 1)];
            apply(&world.server, &manifests(&spec, pools)).await;
            world.until("ready", |objects| ready(objects, 1, "v1.33.3")).await;
            merge(
                &world.server,
                "MachinePool",
                "work",
                json!({"spec": {"replicas": 3}}),
            )
            .await;
            world
                .until("scaled", |objects| ready(objects, 3, "v1.33.3"))
                .await;
            let upgrade = json!({"spec": {"version": "v1.34.1", "extensions": null}});
            merge(&world.server, "AzureManagedControlPlane", "fleet", upgrade).await;
            world
                .until("upgraded", |objects| ready(objects, 3, "v1.34.1"))
                .await;
            let azure = self.azure(world);
            world
                .until("the extension is gone", |_| {
                    !in_azure(&azure).iter().any(|id| id.contains("/extensions/"))
                })
                .await;
            remove(&world.server, "Cluster", "fleet").await;
            world
                .until("gone", |objects| {
                    find(objects, "Cluster", "fleet").is_none()
                        && find(objects, "AzureManagedControlPlane", "fleet").is_none()
                })
                .await;
            core.abort();
        }
        .boxed()
    }

    fn invariants(&self, objects: &[Value]) -> Result<(), String> {
        let Some(plane) = find(objects, "AzureManagedControlPlane", "fleet") else {
            return Ok(());
        };
        let has = |object: &Value, finalizer: &str| {
            object["metadata"]["finalizers"]
                .as_array()
                .into_iter()
                .flatten()
                .any(|one| one.as_str().is_some_and(|one| one.starts_with(finalizer)))
        };
        let ours = "azuremanagedcontrolplane.infrastructure.cluster.x-k8s.io";
        let initialized = plane["status"]["initialized"] == true;
        if initialized && plane["spec"]["controlPlaneEndpoint"].is_null() {
            return Err("initialized without an endpoint".to_owned());
        }
        if !plane["metadata"]["annotations"]["slipway.dev/azure-applied"].is_null() && !has(&plane, ours) {
            return Err("something was asked of Azure without a finalizer".to_owned());
        }
        Ok(())
    }

    fn end_state(&self, world: &World) -> Value {
        let azure = self.azure(world);
        let objects: Vec<Value> = world
            .server
            .objects()
            .into_iter()
            .map(slipway_memory::sweep::normalised)
            .collect();
        json!({"azure": in_azure(&azure), "objects": objects})
    }
}

#[test]
fn every_fault_ends_the_same() {
    let scenario: Arc<dyn Scenario> = Arc::new(Life::default());
    let report = sweep_sampled(&scenario, 1_997);
    report.assert_clean();
    assert!(
        report.calls > 50,
        "Azure's calls are counted too: {}",
        report.calls
    );
}
