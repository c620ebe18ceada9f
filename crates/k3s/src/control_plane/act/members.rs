//! What is asked of a workload cluster about the members of etcd: k3s removes one through its node.

use k8s_openapi::api::core::v1::Node as CoreNode;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use super::super::workload::{
    Connection, MEMBER, MEMBER_ADDRESS, PLACEHOLDER, REMOVE, REMOVE_IS_OURS, REMOVED,
};
use crate::error::{Error, unless_exists};

impl Connection {
    fn nodes(&self) -> Api<CoreNode> {
        Api::all(self.client.clone())
    }

    pub async fn remove_member(&self, node: &str) -> Result<(), Error> {
        let doing = format!("asking k3s to remove the etcd member of node {node}");
        let patch = json!({"metadata": {"annotations": {REMOVE: "true", REMOVE_IS_OURS: "true"}}});
        let (nodes, parameters, patch) = (self.nodes(), PatchParams::default(), Patch::Merge(&patch));
        self.within(doing, nodes.patch(node, &parameters, &patch))
            .await
            .map(|_| ())
    }

    /// A request of ours that no longer holds. k3s goes on trying until it is taken back.
    pub async fn withdraw_removal(&self, node: &str) -> Result<(), Error> {
        let doing = format!("taking back the request to remove the etcd member of node {node}");
        let patch = json!({"metadata": {"annotations": {REMOVE: null, REMOVE_IS_OURS: null}}});
        let (nodes, parameters, patch) = (self.nodes(), PatchParams::default(), Patch::Merge(&patch));
        self.within(doing, nodes.patch(node, &parameters, &patch))
            .await
            .map(|_| ())
    }

    /// A member without a node gets one to be removed through, which nothing is put on.
    pub async fn remove_orphan(&self, member: &str, address: &str) -> Result<(), Error> {
        let node: CoreNode = serde_json::from_value(json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": format!("etcd-orphan-{member}"),
                "labels": {
                    "node-role.kubernetes.io/etcd": "true",
                    "node-role.kubernetes.io/control-plane": "true",
                },
                "annotations": {
                    MEMBER: member,
                    MEMBER_ADDRESS: address,
                    REMOVE: "true",
                    PLACEHOLDER: "",
                },
            },
            "spec": {
                "unschedulable": true,
                "taints": [{"key": PLACEHOLDER, "effect": "NoExecute"}],
            },
        }))
        .map_err(|error| Error::Unusable {
            doing: format!("making a placeholder for etcd member {member}"),
            problem: error.to_string(),
        })?;
        let doing = format!("asking k3s to remove the etcd member {member}");
        let nodes = self.nodes();
        let create = async { unless_exists(nodes.create(&PostParams::default(), &node).await) };
        self.within(doing, create).await
    }

    pub async fn delete_placeholder(&self, node: &str) -> Result<(), Error> {
        let nodes = self.nodes();
        // k3s removes the member of a node that is deleted, unless it was removed before: nothing more is asked of it.
        let done = json!({"metadata": {"annotations": {REMOVE: null, REMOVED: node}}});
        let delete = async {
            match nodes
                .patch(node, &PatchParams::default(), &Patch::Merge(&done))
                .await
            {
                Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
                other => other?,
            };
            match nodes.delete(node, &DeleteParams::default()).await {
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
                other => other.map(|_| ()),
            }
        };
        self.within(format!("deleting the placeholder node {node}"), delete)
            .await
    }
}
