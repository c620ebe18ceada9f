//! The parts of Cluster API's core and of the health check: machines are owned, given their data, judged, updated in
//! place and deleted.

use kube::{
    ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
};
use serde_json::json;

use super::{
    PENDING_HOOKS, Theatre, UPDATE_IN_PROGRESS,
    objects::{apply_condition, condition, patch_status, set_condition},
};

impl Theatre {
    /// What core and the hosts do by themselves.
    pub(super) async fn core(&self) {
        let tell = self.management.look(|objects| {
            let said = |kind: &str, field: &str| {
                objects.iter().any(|object| {
                    object["kind"] == kind && object["status"].pointer(field) == Some(&json!(true))
                })
            };
            said("KThreesControlPlane", "/initialized")
                && !said("Cluster", "/initialization/controlPlaneInitialized")
        });
        if tell {
            patch_status(
                &self.clusters(),
                "edge",
                json!({"initialization": {"infrastructureProvisioned": true, "controlPlaneInitialized": true}}),
            )
            .await;
        }
        for machine in self
            .machines()
            .list(&ListParams::default())
            .await
            .expect("machines")
            .items
        {
            if machine.metadata.deletion_timestamp.is_some() {
                self.finish_deletion(&machine).await;
            } else {
                self.tend(&machine).await;
            }
        }
    }

    async fn tend(&self, machine: &DynamicObject) {
        let name = machine.name_any();
        if machine.finalizers().is_empty() {
            let patch = json!({"metadata": {"finalizers": ["machine.cluster.x-k8s.io"]}});
            let _ = self
                .machines()
                .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
                .await;
        }
        // One that has booted has all it needs of its config.
        let booted = !machine.data["spec"]["bootstrap"]["dataSecretName"].is_null()
            && self.model.lock().hosts.contains_key(&name);
        if !booted && let Some(config) = self.configs().get_opt(&name).await.expect("a config") {
            let owned = config
                .owner_references()
                .iter()
                .any(|owner| owner.kind == "Machine" && Some(&owner.uid) == machine.metadata.uid.as_ref());
            if !owned {
                let patch = json!({"metadata": {"ownerReferences": [{"apiVersion": "cluster.x-k8s.io/v1beta2",
                    "kind": "Machine", "name": name, "uid": machine.metadata.uid, "controller": true}]}});
                let _ = self
                    .configs()
                    .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
                    .await;
            }
            if let Some(secret) = config.status.and_then(|status| status.data_secret_name) {
                if machine.data["spec"]["bootstrap"]["dataSecretName"].is_null() {
                    let patch = json!({"spec": {"bootstrap": {"dataSecretName": secret}}});
                    let _ = self
                        .machines()
                        .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
                        .await;
                }
                self.boot(&name, &secret).await;
            }
        }
        let ready = self.model.lock().nodes.get(&name).map(|node| node.ready);
        if let Some(ready) = ready {
            if machine.data["status"]["nodeRef"].is_null() {
                patch_status(&self.machines(), &name, json!({"nodeRef": {"name": name}})).await;
            }
            let status = if ready { "True" } else { "False" };
            for type_ in ["Ready", "Available"] {
                if condition(machine, type_)["status"] != status {
                    set_condition(&self.machines(), &name, type_, status).await;
                }
            }
        }
        self.check_health(machine, ready).await;
        if self.book.lock().plays_updates {
            self.play_update(machine).await;
        }
    }

    /// A MachineHealthCheck, where the book says so.
    async fn check_health(&self, machine: &DynamicObject, ready: Option<bool>) {
        let name = machine.name_any();
        let now = self.clock.now();
        if self.book.lock().health_check_after.is_none() {
            return;
        }
        let healthy = ready == Some(true) || (ready.is_none() && !self.book.lock().broken.contains(&name));
        let due = {
            let mut book = self.book.lock();
            if healthy {
                book.unhealthy_since.remove(&name);
            } else {
                book.unhealthy_since.entry(name.clone()).or_insert(now);
            }
            book.due(now).contains(&name)
        };
        if due && condition(machine, "HealthCheckSucceeded")["status"] != "False" {
            set_condition(&self.machines(), &name, "HealthCheckSucceeded", "False").await;
            set_condition(&self.machines(), &name, "OwnerRemediated", "False").await;
        }
    }

    /// A machine that is being deleted: the drain, the hooks, the host, the node, the machine.
    pub async fn finish_deletion(&self, machine: &DynamicObject) {
        let name = machine.name_any();
        if machine
            .annotations()
            .keys()
            .any(|key| key.starts_with("pre-terminate.delete.hook"))
        {
            if condition(machine, "Deleting")["reason"] != "WaitingForPreTerminateHook" {
                let told = json!({"type": "Deleting", "status": "True", "reason": "WaitingForPreTerminateHook",
                    "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
                apply_condition(&self.machines(), &name, "core-deleting", told).await;
            }
            return;
        }
        let plane = self.planes().get_opt("edge").await.expect("an answer");
        let going = plane.is_none_or(|plane| plane.metadata.deletion_timestamp.is_some());
        let lost = {
            let mut model = self.model.lock();
            let healthy = model.has_quorum();
            model.destroy(&name);
            let lost = !going && healthy && !model.has_quorum() && model.voters() > 0;
            model.delete_node(&name);
            lost
        };
        if lost {
            self.violation(format!("S-1: the host of {name} went and took quorum along"));
        }
        self.book.lock().unhealthy_since.remove(&name);
        let patch = json!({"metadata": {"finalizers": null}});
        let _ = self
            .machines()
            .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
            .await;
        let _ = self.configs().delete(&name, &DeleteParams::default()).await;
        let _ = self.hosts().delete(&name, &DeleteParams::default()).await;
    }

    /// Core's part of an update in place where every extension says yes at once: the host restarts with the version its
    /// machine has now, then the marks go.
    async fn play_update(&self, machine: &DynamicObject) {
        let name = machine.name_any();
        if !machine.annotations().contains_key(PENDING_HOOKS) {
            return;
        }
        self.finish_update(machine).await;
        let version = machine.data["spec"]["version"].as_str().unwrap_or_default();
        let mut model = self.model.lock();
        model.upgrade(&name, version);
    }

    /// Core's last writes of an update in place.
    pub async fn finish_update(&self, machine: &DynamicObject) {
        let name = machine.name_any();
        let done = json!({"metadata": {"annotations": {UPDATE_IN_PROGRESS: null}}});
        let _ = self
            .configs()
            .patch(&name, &PatchParams::default(), &Patch::Merge(&done))
            .await;
        let _ = self
            .hosts()
            .patch(&name, &PatchParams::default(), &Patch::Merge(&done))
            .await;
        let done = json!({"metadata": {"annotations": {UPDATE_IN_PROGRESS: null, PENDING_HOOKS: null}}});
        let _ = self
            .machines()
            .patch(&name, &PatchParams::default(), &Patch::Merge(&done))
            .await;
    }
}
