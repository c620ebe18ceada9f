//! A fake Cluster API core on the apiserver simulator, in virtual time: what core does to Clusters, MachinePools and
//! Machines and to the provider's objects they name. It finds those by their references and knows no provider.

pub mod kinds;
mod machines;

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde_json::{Value, json};
use slipway_apiserver_sim::Apiserver;
use slipway_runtime::Clock;

use crate::objects::{delete, is_deleting, merge, merge_status, name, of_kind, try_create};
pub use machines::{Hosts, NoHosts, PENDING_HOOKS, Settings, UPDATE_IN_PROGRESS};

/// How often core reconciles, where something changed.
const PERIOD: Duration = Duration::from_secs(1);

/// The fake core of one management cluster. Clones share it.
#[derive(Clone)]
pub struct FakeCore {
    server: Apiserver,
    clock: Clock,
    hosts: Arc<dyn Hosts>,
    pub settings: Arc<Mutex<Settings>>,
}

impl FakeCore {
    pub fn new(server: Apiserver, clock: Clock) -> Self {
        Self::with_hosts(server, clock, Arc::new(NoHosts))
    }

    /// One whose Machines have hosts behind them.
    pub fn with_hosts(server: Apiserver, clock: Clock, hosts: Arc<dyn Hosts>) -> Self {
        Self {
            server,
            clock,
            hosts,
            settings: Arc::default(),
        }
    }

    /// Reconciles whenever an object changed, for ever.
    pub async fn run(self) {
        let mut reconciled = 0;
        loop {
            if self.server.version() != reconciled {
                reconciled = self.server.version();
                self.reconcile().await;
            }
            tokio::time::sleep(PERIOD).await;
        }
    }

    /// Reconciles every Cluster, MachinePool and Machine once.
    pub async fn reconcile(&self) {
        // Cluster API's kinds and the providers': everything in a group of Cluster API.
        let objects: Vec<Value> = self.server.look(|objects| {
            let of_cluster_api = |object: &&Value| {
                let version = object["apiVersion"].as_str().unwrap_or_default();
                version.contains("cluster.x-k8s.io/")
            };
            objects.iter().filter(of_cluster_api).cloned().collect()
        });
        for cluster in of_kind(&objects, "Cluster") {
            if cluster["spec"]["paused"] == true {
                continue;
            }
            let machines_left = self.reconcile_machines_of(&objects, cluster).await;
            let pools_left = self.reconcile_pools_of(&objects, cluster).await;
            if !is_deleting(cluster) {
                self.reconcile_cluster(&objects, cluster).await;
            } else if !machines_left && !pools_left {
                self.delete_cluster(&objects, cluster).await;
            }
        }
        // Machines whose Cluster is gone still have to go.
        for machine in of_kind(&objects, "Machine") {
            if is_deleting(machine) && cluster_of(&objects, machine).is_none() {
                self.delete_machine(&objects, machine).await;
            }
        }
    }

    async fn reconcile_cluster(&self, objects: &[Value], cluster: &Value) {
        self.hold(cluster, "cluster.cluster.x-k8s.io").await;
        let control_plane = referenced(objects, cluster, "/spec/controlPlaneRef");
        let infrastructure = referenced(objects, cluster, "/spec/infrastructureRef");
        for object in [infrastructure, control_plane].into_iter().flatten() {
            self.own(object, cluster, name(cluster)).await;
        }
        let told = |object: Option<&Value>, fields: [&str; 2]| {
            object.is_some_and(|object| {
                fields
                    .iter()
                    .any(|field| object["status"].pointer(field) == Some(&json!(true)))
            })
        };
        let provisioned = told(infrastructure, ["/initialization/provisioned", "/ready"]);
        let initialized = told(
            control_plane,
            ["/initialization/controlPlaneInitialized", "/initialized"],
        );
        let known = &cluster["status"]["initialization"];
        let mut learnt = json!({});
        for (field, is_so) in [
            ("infrastructureProvisioned", provisioned),
            ("controlPlaneInitialized", initialized),
        ] {
            if is_so && known[field] != true {
                learnt[field] = json!(true);
            }
        }
        if learnt != json!({}) {
            merge_status(&self.server, cluster, json!({ "initialization": learnt })).await;
        }
        if cluster["spec"]["controlPlaneEndpoint"]["host"].is_null() {
            let endpoint = [infrastructure, control_plane]
                .into_iter()
                .flatten()
                .map(|object| &object["spec"]["controlPlaneEndpoint"])
                .find(|endpoint| endpoint["host"].is_string() && endpoint["port"].is_number());
            if let Some(endpoint) = endpoint {
                let patch = json!({"spec": {"controlPlaneEndpoint": endpoint}});
                merge(&self.server, cluster, patch).await;
            }
        }
    }

    /// The control plane first, then the infrastructure, then the Cluster itself.
    async fn delete_cluster(&self, objects: &[Value], cluster: &Value) {
        for reference in ["/spec/controlPlaneRef", "/spec/infrastructureRef"] {
            if let Some(object) = referenced(objects, cluster, reference) {
                if !is_deleting(object) {
                    delete(&self.server, object).await;
                }
                return;
            }
        }
        self.release(cluster).await;
    }

    /// Whether any MachinePool of this Cluster is left.
    async fn reconcile_pools_of(&self, objects: &[Value], cluster: &Value) -> bool {
        let mut left = false;
        for pool in of_kind(objects, "MachinePool").filter(|pool| is_of(pool, cluster)) {
            left = true;
            let infrastructure = referenced(objects, pool, "/spec/template/spec/infrastructureRef");
            if !is_deleting(cluster) && !is_deleting(pool) {
                self.hold(pool, "machinepool.cluster.x-k8s.io").await;
                if let Some(infrastructure) = infrastructure {
                    self.own(infrastructure, pool, name(cluster)).await;
                    self.show_machines(objects, pool, infrastructure).await;
                }
                continue;
            }
            if !is_deleting(pool) {
                delete(&self.server, pool).await;
            }
            match infrastructure {
                Some(infrastructure) if !is_deleting(infrastructure) => {
                    delete(&self.server, infrastructure).await;
                }
                Some(_) => {}
                None => self.release(pool).await,
            }
        }
        left
    }

    /// Makes a Machine for each object that a pool's infrastructure shows its machines by, as core does where the infrastructure
    /// names their kind.
    async fn show_machines(&self, objects: &[Value], pool: &Value, infrastructure: &Value) {
        let Some(kind) = infrastructure["status"]["infrastructureMachineKind"].as_str() else {
            return;
        };
        let of_pool = |object: &&Value| {
            let labels = &object["metadata"]["labels"];
            labels["cluster.x-k8s.io/pool-name"] == name(pool)
                && labels["cluster.x-k8s.io/cluster-name"] == pool["spec"]["clusterName"]
                && object["metadata"]["namespace"] == pool["metadata"]["namespace"]
        };
        let machines: Vec<&Value> = of_kind(objects, "Machine").filter(of_pool).collect();
        for shown in of_kind(objects, kind).filter(of_pool) {
            let is_its = |machine: &&&Value| machine["spec"]["infrastructureRef"]["name"] == name(shown);
            if machines.iter().any(|machine| is_its(&machine)) {
                continue;
            }
            let (group, _) = shown["apiVersion"]
                .as_str()
                .and_then(|version| version.split_once('/'))
                .unwrap_or_default();
            let machine = json!({"apiVersion": pool["apiVersion"], "kind": "Machine",
                "metadata": {"name": name(shown), "namespace": shown["metadata"]["namespace"],
                    "labels": {"cluster.x-k8s.io/pool-name": name(pool),
                        "cluster.x-k8s.io/cluster-name": pool["spec"]["clusterName"]},
                    "ownerReferences": [{"apiVersion": pool["apiVersion"], "kind": "MachinePool", "name": name(pool),
                        "uid": pool["metadata"]["uid"], "controller": true}]},
                "spec": {"clusterName": pool["spec"]["clusterName"], "bootstrap": {"dataSecretName": ""},
                    "infrastructureRef": {"apiGroup": group, "kind": kind, "name": name(shown)}}});
            try_create(&self.server, &machine).await;
        }
    }

    /// Sets core's finalizer where there is none.
    async fn hold(&self, object: &Value, finalizer: &str) {
        if object["metadata"]["finalizers"].is_null() {
            let patch = json!({"metadata": {"finalizers": [finalizer]}});
            merge(&self.server, object, patch).await;
        }
    }

    async fn release(&self, object: &Value) {
        let patch = json!({"metadata": {"finalizers": null}});
        merge(&self.server, object, patch).await;
    }

    /// Makes `owner` the controller of an object, and labels the object with its Cluster.
    async fn own(&self, object: &Value, owner: &Value, cluster: &str) {
        let owners = object["metadata"]["ownerReferences"].as_array();
        let mut owners = owners.cloned().unwrap_or_default();
        let uid = &owner["metadata"]["uid"];
        if is_deleting(object) || owners.iter().any(|one| one["uid"] == *uid) {
            return;
        }
        owners.push(
            json!({"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": name(owner),
            "uid": uid, "controller": true}),
        );
        let patch = json!({"metadata": {"labels": {"cluster.x-k8s.io/cluster-name": cluster},
            "ownerReferences": owners}});
        merge(&self.server, object, patch).await;
    }
}

/// What a reference of an object points at: by kind and name, in its own namespace.
fn referenced<'a>(objects: &'a [Value], from: &Value, pointer: &str) -> Option<&'a Value> {
    let reference = from.pointer(pointer)?;
    objects.iter().find(|object| {
        object["kind"] == reference["kind"]
            && object["metadata"]["name"] == reference["name"]
            && object["metadata"]["namespace"] == from["metadata"]["namespace"]
    })
}

fn is_of(object: &Value, cluster: &Value) -> bool {
    object["spec"]["clusterName"] == cluster["metadata"]["name"]
        && object["metadata"]["namespace"] == cluster["metadata"]["namespace"]
}

fn cluster_of<'a>(objects: &'a [Value], object: &Value) -> Option<&'a Value> {
    of_kind(objects, "Cluster").find(|cluster| is_of(object, cluster))
}
