//! What core and a MachineHealthCheck do to Machines: own their configs and infrastructure, copy what that says, hand over
//! bootstrap data, tell their nodes, judge, update in place and delete them.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{FakeCore, is_of, referenced};
use crate::objects::{
    api, condition, delete, is_deleting, merge, merge_status, name, of_kind, set_condition,
};

pub const PENDING_HOOKS: &str = "runtime.cluster.x-k8s.io/pending-hooks";
pub const UPDATE_IN_PROGRESS: &str = "in-place-updates.internal.cluster.x-k8s.io/update-in-progress";

/// The hosts that Machines stand for.
pub trait Hosts: Send + Sync {
    /// Whether the host of this Machine has booted.
    fn has(&self, machine: &str) -> bool;

    /// Boots the host of a Machine with its bootstrap data.
    fn boot(&self, machine: &str, data: &str);

    /// Whether the Machine's node is ready; `None` where it has none.
    fn node(&self, machine: &str) -> Option<bool>;

    /// Takes the host away. `last` where the whole Cluster goes.
    fn destroy(&self, machine: &str, last: bool);

    /// Restarts the host with another version.
    fn upgrade(&self, machine: &str, version: &str);
}

/// For clusters without Machines.
pub struct NoHosts;

impl Hosts for NoHosts {
    fn has(&self, _: &str) -> bool {
        false
    }
    fn boot(&self, _: &str, _: &str) {}
    fn node(&self, _: &str) -> Option<bool> {
        None
    }
    fn destroy(&self, _: &str, _: bool) {}
    fn upgrade(&self, _: &str, _: &str) {}
}

/// What a test decides about Machines.
#[derive(Clone, Default)]
pub struct Settings {
    /// Machines whose host never comes up.
    pub broken: BTreeSet<String>,
    /// A MachineHealthCheck hands unhealthy Machines over after this long.
    pub health_check_after: Option<Duration>,
    /// Updates in place are left to the test.
    pub leaves_updates: bool,
    unhealthy_since: BTreeMap<String, Timestamp>,
}

impl Settings {
    /// Machines that have been unhealthy for longer than the health check waits.
    pub fn due(&self, now: Timestamp) -> Vec<String> {
        let Some(after) = self.health_check_after else {
            return Vec::new();
        };
        let after = jiff::SignedDuration::try_from(after).unwrap_or_default();
        let unhealthy = self.unhealthy_since.iter();
        unhealthy
            .filter(|(_, since)| now.duration_since(**since) >= after)
            .map(|(name, _)| name.clone())
            .collect()
    }
}

impl FakeCore {
    /// Whether any Machine of this Cluster is left.
    pub(super) async fn reconcile_machines_of(&self, objects: &[Value], cluster: &Value) -> bool {
        let mut left = false;
        for machine in of_kind(objects, "Machine").filter(|machine| is_of(machine, cluster)) {
            left = true;
            if self.is_paused(machine).await {
                continue;
            }
            if is_deleting(machine) {
                self.delete_machine(objects, machine).await;
            } else {
                self.reconcile_machine(objects, machine).await;
            }
        }
        left
    }

    /// Nothing is done for a Machine that somebody paused, but to say so.
    async fn is_paused(&self, machine: &Value) -> bool {
        let annotations = machine["metadata"]["annotations"].as_object();
        let paused = annotations.is_some_and(|all| all.contains_key("cluster.x-k8s.io/paused"));
        if paused && condition(machine, "Paused")["status"] != "True" {
            set_condition(&self.server, machine, "Paused", "True", "Paused").await;
        }
        paused
    }

    async fn reconcile_machine(&self, objects: &[Value], machine: &Value) {
        let machine_name = name(machine);
        self.hold(machine, "machine.cluster.x-k8s.io").await;
        let cluster = machine["spec"]["clusterName"].as_str().unwrap_or_default();
        if let Some(infrastructure) = referenced(objects, machine, "/spec/infrastructureRef") {
            self.own(infrastructure, machine, cluster).await;
            self.learn(machine, infrastructure).await;
        }
        if let Some(config) = referenced(objects, machine, "/spec/bootstrap/configRef") {
            self.own(config, machine, cluster).await;
            self.boot(machine, config).await;
        }
        let ready = self.hosts.node(machine_name);
        if let Some(ready) = ready {
            if machine["status"]["nodeRef"].is_null() {
                let node = json!({"nodeRef": {"name": machine_name}});
                merge_status(&self.server, machine, node).await;
            }
            let status = if ready { "True" } else { "False" };
            for type_ in ["Ready", "Available"] {
                if condition(machine, type_)["status"] != status {
                    set_condition(&self.server, machine, type_, status, "Told").await;
                }
            }
        }
        self.check_health(machine, ready).await;
        if !self.settings.lock().leaves_updates
            && !machine["metadata"]["annotations"][PENDING_HOOKS].is_null()
        {
            self.finish_update(objects, machine).await;
            let version = machine["spec"]["version"].as_str().unwrap_or_default();
            self.hosts.upgrade(machine_name, version);
        }
    }

    /// Copies what the contract lets core copy from the infrastructure, once it is provisioned.
    async fn learn(&self, machine: &Value, infrastructure: &Value) {
        let provisioned = &infrastructure["status"]["initialization"]["provisioned"];
        if *provisioned != true || machine["status"]["initialization"]["infrastructureProvisioned"] == true {
            return;
        }
        let id = &infrastructure["spec"]["providerID"];
        merge(&self.server, machine, json!({"spec": {"providerID": id}})).await;
        let learnt = json!({"initialization": {"infrastructureProvisioned": true},
            "addresses": infrastructure["status"]["addresses"]});
        merge_status(&self.server, machine, learnt).await;
    }

    /// Hands the bootstrap data over to the host, once.
    async fn boot(&self, machine: &Value, config: &Value) {
        let Some(secret) = config["status"]["dataSecretName"].as_str() else {
            return;
        };
        if machine["spec"]["bootstrap"]["dataSecretName"].is_null() {
            let patch = json!({"spec": {"bootstrap": {"dataSecretName": secret}}});
            merge(&self.server, machine, patch).await;
        }
        if self.hosts.has(name(machine)) || self.settings.lock().broken.contains(name(machine)) {
            return;
        }
        let namespace = machine["metadata"]["namespace"].as_str().unwrap_or_default();
        let secrets = api(&self.server, namespace, "v1", "Secret");
        let Some(secret) = secrets.get_opt(secret).await.expect("an answer") else {
            return;
        };
        let data: k8s_openapi::ByteString =
            serde_json::from_value(secret.data["data"]["value"].clone()).expect("bootstrap data");
        let data = String::from_utf8(data.0).expect("bootstrap data is text");
        self.hosts.boot(name(machine), &data);
    }

    /// A MachineHealthCheck, where the test has one.
    async fn check_health(&self, machine: &Value, ready: Option<bool>) {
        let (machine_name, now) = (name(machine), self.clock.now());
        let due = {
            let mut settings = self.settings.lock();
            if settings.health_check_after.is_none() {
                return;
            }
            let healthy = ready == Some(true) || (ready.is_none() && !settings.broken.contains(machine_name));
            if healthy {
                settings.unhealthy_since.remove(machine_name);
            } else {
                let since = settings.unhealthy_since.entry(machine_name.to_owned());
                since.or_insert(now);
            }
            settings.due(now).iter().any(|one| one == machine_name)
        };
        if due && condition(machine, "HealthCheckSucceeded")["status"] != "False" {
            for type_ in ["HealthCheckSucceeded", "OwnerRemediated"] {
                set_condition(&self.server, machine, type_, "False", "Told").await;
            }
        }
    }

    /// A Machine that is being deleted: the hooks, the host, then the Machine and what it owns.
    pub(super) async fn delete_machine(&self, objects: &[Value], machine: &Value) {
        let hooks = machine["metadata"]["annotations"].as_object();
        let waits_for = hooks
            .into_iter()
            .flat_map(|annotations| annotations.keys())
            .find_map(|key| {
                let before = [
                    ("pre-drain.delete.hook", "WaitingForPreDrainHook"),
                    ("pre-terminate.delete.hook", "WaitingForPreTerminateHook"),
                ];
                let hook = before.into_iter().find(|(prefix, _)| key.starts_with(prefix))?;
                Some(hook.1)
            });
        if let Some(waiting) = waits_for {
            if condition(machine, "Deleting")["reason"] != waiting {
                set_condition(&self.server, machine, "Deleting", "True", waiting).await;
            }
            return;
        }
        let control_plane = of_kind(objects, "Cluster")
            .find(|cluster| is_of(machine, cluster))
            .and_then(|cluster| referenced(objects, cluster, "/spec/controlPlaneRef"));
        self.hosts
            .destroy(name(machine), control_plane.is_none_or(is_deleting));
        self.settings.lock().unhealthy_since.remove(name(machine));
        // What its provider holds goes before the Machine.
        let infrastructure = referenced(objects, machine, "/spec/infrastructureRef");
        if let Some(held) = infrastructure.filter(|one| !one["metadata"]["finalizers"].is_null()) {
            if !is_deleting(held) {
                delete(&self.server, held).await;
            }
            return;
        }
        self.release(machine).await;
        for object in owned(objects, machine) {
            delete(&self.server, object).await;
        }
    }

    /// Core's last writes of an update in place.
    pub async fn finish_update(&self, objects: &[Value], machine: &Value) {
        let done = json!({"metadata": {"annotations": {UPDATE_IN_PROGRESS: null}}});
        for object in owned(objects, machine) {
            merge(&self.server, object, done.clone()).await;
        }
        let done = json!({"metadata": {"annotations": {UPDATE_IN_PROGRESS: null, PENDING_HOOKS: null}}});
        merge(&self.server, machine, done).await;
    }
}

/// The config and the infrastructure of a Machine.
fn owned<'a>(objects: &'a [Value], machine: &'a Value) -> impl Iterator<Item = &'a Value> {
    ["/spec/bootstrap/configRef", "/spec/infrastructureRef"]
        .into_iter()
        .filter_map(|pointer| referenced(objects, machine, pointer))
}
