//! The hosts and the simulated K3s on them: a host boots by its userdata, the model's nodes are shown in the workload
//! cluster, and what the controller wrote onto them is restored.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Namespace, Node as CoreNode},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use slipway_k3s::control_plane::workload::PLACEHOLDER;
use slipway_k3s_sim::{
    Model, Node,
    model::{self, RejoinWait},
};
use slipway_kit::core::Hosts;
use slipway_runtime::Clock;

use super::{Environment, Recorder, note, objects::patch_status};

/// The hosts behind the machines, each with a K3s of the model.
pub(super) struct K3sHosts {
    pub model: Arc<Mutex<Model>>,
    pub recorder: Arc<Mutex<Recorder>>,
    pub clock: Clock,
}

impl Hosts for K3sHosts {
    fn has(&self, machine: &str) -> bool {
        self.model.lock().hosts.contains_key(machine)
    }

    fn node(&self, machine: &str) -> Option<bool> {
        self.model.lock().nodes.get(machine).map(|node| node.ready)
    }

    fn destroy(&self, machine: &str, last: bool) {
        let mut model = self.model.lock();
        let healthy = model.has_quorum();
        model.destroy(machine);
        let lost = !last && healthy && !model.has_quorum() && model.voters() > 0;
        model.delete_node(machine);
        if lost {
            self.violation(format!("S-1: the host of {machine} went and took quorum along"));
        }
    }

    fn upgrade(&self, machine: &str, version: &str) {
        self.model.lock().upgrade(machine, version);
    }

    fn boot(&self, name: &str, userdata: &str) {
        let version = userdata
            .split("INSTALL_K3S_VERSION=")
            .nth(1)
            .and_then(|rest| rest.split(' ').next())
            .expect("a version")
            .to_owned();
        let mut model = self.model.lock();
        if userdata.contains("k3s-install.sh agent") {
            if model.join_worker(name, &version) {
                self.recorder
                    .lock()
                    .userdata
                    .insert(name.to_owned(), userdata.to_owned());
            }
            return;
        }
        if !userdata.contains("cluster-cidr: 10.52.0.0/16") {
            drop(model);
            self.violation(format!("the Cluster's ranges are not honoured by {name}"));
            return;
        }
        if userdata.contains("datastore-endpoint: ") {
            // The model has no servers without etcd: the first keeps it, the others are nodes with a server's role.
            if model.members.is_empty() {
                model.initialize(name, &version);
            } else if model.join_worker(name, &version)
                && let Some(node) = model.nodes.get_mut(name)
            {
                node.labels
                    .insert("node-role.kubernetes.io/control-plane".into(), "true".into());
            }
            self.recorder
                .lock()
                .userdata
                .insert(name.to_owned(), userdata.to_owned());
            return;
        }
        if userdata.contains("cluster-init: true") {
            self.recorder.lock().initialised.push(name.to_owned());
            if !model.members.is_empty() {
                drop(model);
                self.violation(format!("S-15: {name} would initialise a second cluster"));
                return;
            }
            model.initialize(name, &version);
            self.recorder
                .lock()
                .userdata
                .insert(name.to_owned(), userdata.to_owned());
        } else if model.join(name, &version) {
            if userdata.contains("then sleep 86400; else sleep 600; fi'")
                && userdata.contains("'touch /var/lib/rancher/k3s/server/was-voter'")
            {
                let wait = RejoinWait {
                    learner: Duration::from_mins(10),
                    voter: Duration::from_hours(24),
                };
                model.delay_rejoin(name, wait);
            }
            self.recorder
                .lock()
                .userdata
                .insert(name.to_owned(), userdata.to_owned());
        }
    }
}

impl K3sHosts {
    fn violation(&self, what: String) {
        note(&self.recorder, self.clock, what);
    }
}

impl Environment {
    /// Shows those of the model's nodes that changed in the workload cluster.
    pub(super) async fn copy_nodes(&self) {
        let (revision, nodes): (u64, BTreeMap<String, Value>) = {
            let model = self.model.lock();
            let nodes = model.nodes.iter();
            let nodes = nodes.map(|(name, node)| {
                let address = model.hosts.get(name).map(|host| host.address.clone());
                (name.clone(), node_json(name, node, address))
            });
            (model.revision, nodes.collect())
        };
        let (_, copied) = std::mem::replace(&mut self.recorder.lock().copied, (revision, nodes.clone()));
        let api: Api<CoreNode> = Api::all(self.workload.client());
        for name in copied.keys().filter(|name| !nodes.contains_key(*name)) {
            let _ = api.delete(name, &DeleteParams::default()).await;
        }
        for (name, mut body) in nodes {
            if copied.get(&name) == Some(&body) {
                continue;
            }
            let present = api.get_opt(&name).await.expect("an answer");
            match present {
                None => {
                    let node: CoreNode = serde_json::from_value(body.clone()).expect("a node");
                    api.create(&PostParams::default(), &node)
                        .await
                        .expect("a node is created");
                }
                Some(present) => {
                    // What k3s took away goes away.
                    for key in [
                        model::MEMBER_ANNOTATION,
                        model::ADDRESS_ANNOTATION,
                        model::REMOVE_ANNOTATION,
                    ] {
                        if present.annotations().contains_key(key)
                            && body["metadata"]["annotations"].get(key).is_none()
                        {
                            body["metadata"]["annotations"][key] = Value::Null;
                        }
                    }
                    let patch = json!({"metadata": {"labels": body["metadata"]["labels"],
                        "annotations": body["metadata"]["annotations"]}});
                    api.patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
                        .await
                        .expect("a node is written");
                }
            }
            let status = json!({"status": body["status"]});
            api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status))
                .await
                .expect("a node's status");
        }
    }

    /// Says where the machines are once their node is known, as the platform does.
    pub(super) async fn tell_addresses(&self) {
        let hosts: BTreeMap<String, String> = {
            let (model, recorder) = (self.model.lock(), self.recorder.lock());
            model
                .hosts
                .iter()
                .filter(|(name, _)| !recorder.addressed.contains(*name))
                .map(|(name, host)| (name.clone(), host.address.clone()))
                .collect()
        };
        if hosts.is_empty() {
            return;
        }
        for machine in self.servers().await {
            let name = machine.name_any();
            if let Some(address) = hosts.get(&name)
                && !machine.data["status"]["nodeRef"].is_null()
            {
                let addresses = json!({"addresses": [{"type": "InternalIP", "address": address}]});
                patch_status(&self.machines(), &name, addresses).await;
                self.recorder.lock().addressed.insert(name);
            }
        }
    }

    /// Shows the renewals of the kubelets' leases.
    pub(super) async fn copy_leases(&self) {
        let leases: BTreeMap<String, Timestamp> = {
            let model = self.model.lock();
            let nodes = model.nodes.iter();
            nodes
                .filter_map(|(name, node)| Some((name.clone(), node.lease?)))
                .collect()
        };
        let before = std::mem::replace(&mut self.recorder.lock().leases, leases.clone());
        if before.is_empty() && !leases.is_empty() {
            let namespace: Namespace =
                serde_json::from_value(json!({"metadata": {"name": "kube-node-lease"}}))
                    .expect("a namespace");
            let _ = Api::all(self.workload.client())
                .create(&PostParams::default(), &namespace)
                .await;
        }
        let api: Api<Lease> = Api::namespaced(self.workload.client(), "kube-node-lease");
        for (name, renewed) in leases {
            if before.get(&name) == Some(&renewed) {
                continue;
            }
            let body = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
                "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": format!("{renewed:.6}")}});
            let parameters = PatchParams::apply("kubelet").force();
            api.patch(&name, &parameters, &Patch::Apply(&body))
                .await
                .expect("a lease is renewed");
        }
    }

    /// Brings what the controller wrote onto nodes back to the model, where k3s' own controllers act on it.
    pub(super) async fn take_annotations(&self) {
        let api: Api<CoreNode> = Api::all(self.workload.client());
        let nodes = api.list(&ListParams::default()).await.expect("nodes").items;
        let shown: Vec<String> = {
            let recorder = self.recorder.lock();
            let requested =
                |node: &Value| !node["metadata"]["annotations"][model::REMOVE_ANNOTATION].is_null();
            let copied = recorder.copied.1.iter();
            copied
                .filter(|(_, node)| requested(node))
                .map(|(name, _)| name.clone())
                .collect()
        };
        for node in &nodes {
            let name = node.name_any();
            let lost = {
                let mut model = self.model.lock();
                let healthy = model.has_quorum();
                if !model.nodes.contains_key(&name) {
                    let labels = node.labels().clone();
                    if labels.contains_key("node-role.kubernetes.io/etcd")
                        && node.annotations().contains_key(PLACEHOLDER)
                    {
                        model.create_node(&name, labels, node.annotations().clone());
                    }
                } else if node.annotations().contains_key(model::REMOVE_ANNOTATION)
                    && !model.nodes[&name]
                        .annotations
                        .contains_key(model::REMOVE_ANNOTATION)
                    && !model.nodes[&name]
                        .annotations
                        .contains_key(model::REMOVED_ANNOTATION)
                {
                    model.annotate(&name, model::REMOVE_ANNOTATION, Some("true"));
                } else if !node.annotations().contains_key(model::REMOVE_ANNOTATION)
                    && shown.contains(&name)
                    && model.nodes[&name]
                        .annotations
                        .contains_key(model::REMOVE_ANNOTATION)
                {
                    // It was shown, and somebody took it back.
                    model.annotate(&name, model::REMOVE_ANNOTATION, None);
                }
                healthy && !model.has_quorum()
            };
            if lost {
                self.violation(format!("S-1: removing the member of {name} cost quorum"));
            }
        }
        let mut model = self.model.lock();
        let placed: Vec<String> = model
            .nodes
            .iter()
            .filter(|(_, node)| node.annotations.contains_key(PLACEHOLDER))
            .map(|(name, _)| name.clone())
            .collect();
        for name in placed {
            if !nodes.iter().any(|node| node.name_any() == name) {
                model.annotate(&name, model::REMOVE_ANNOTATION, None);
                model.annotate(&name, model::REMOVED_ANNOTATION, Some(&name));
                model.delete_node(&name);
            }
        }
    }
}

fn node_json(name: &str, node: &Node, address: Option<String>) -> Value {
    let addresses: Vec<Value> = address
        .into_iter()
        .map(|address| json!({"type": "InternalIP", "address": address}))
        .collect();
    let time = |at: Timestamp| at.to_string();
    let mut conditions = vec![
        json!({"type": "Ready", "status": if node.ready { "True" } else { "False" },
        "reason": "Kubelet", "message": "Kubelet stopped posting node status.",
        "lastHeartbeatTime": time(node.ready_since), "lastTransitionTime": time(node.ready_since)}),
    ];
    if let Some(voter) = &node.voter {
        conditions.push(
            json!({"type": "EtcdIsVoter", "status": if voter.status { "True" } else { "False" },
            "reason": voter.reason, "message": voter.message,
            "lastHeartbeatTime": time(voter.heartbeat), "lastTransitionTime": time(voter.transition)}),
        );
    }
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": node.labels, "annotations": node.annotations},
        "spec": {"providerID": node.provider_id},
        "status": {"conditions": conditions, "addresses": addresses, "nodeInfo": {
            "kubeletVersion": node.kubelet_version, "architecture": "", "bootID": "", "containerRuntimeVersion": "",
            "kernelVersion": "", "kubeProxyVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": ""}}})
}
