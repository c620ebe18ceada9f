//! The view of Machine.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{ObjectReference, resource};
use crate::{
    in_place,
    names::{annotation, label},
};

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Machine {
    pub metadata: ObjectMeta,
    pub spec: MachineSpec,
    pub status: MachineStatus,
}

resource!(
    Machine,
    "cluster.x-k8s.io",
    "v1beta2",
    "machines",
    NamespaceResourceScope
);

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct MachineSpec {
    pub cluster_name: String,
    pub bootstrap: Bootstrap,
    pub infrastructure_ref: ObjectReference,
    pub version: String,
    #[serde(rename = "providerID")]
    pub provider_id: String,
    pub failure_domain: String,
    pub min_ready_seconds: Option<i32>,
    pub readiness_gates: Vec<ReadinessGate>,
    pub deletion: MachineDeletion,
    pub taints: Vec<MachineTaint>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Bootstrap {
    pub config_ref: Option<ObjectReference>,
    pub data_secret_name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ReadinessGate {
    pub condition_type: String,
    pub polarity: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct MachineDeletion {
    pub node_drain_timeout_seconds: Option<i32>,
    pub node_volume_detach_timeout_seconds: Option<i32>,
    pub node_deletion_timeout_seconds: Option<i32>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct MachineTaint {
    pub key: String,
    pub value: String,
    pub effect: String,
    pub propagation: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct MachineStatus {
    pub conditions: Vec<Condition>,
    pub initialization: Initialization,
    pub node_ref: Option<NodeReference>,
    pub node_info: MachineNodeInfo,
    pub addresses: Vec<MachineAddress>,
    pub failure_domain: String,
    pub phase: String,
    pub certificates_expiry_date: Option<Time>,
    pub observed_generation: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Initialization {
    pub infrastructure_provisioned: Option<bool>,
    pub bootstrap_data_secret_created: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeReference {
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct MachineNodeInfo {
    pub kubelet_version: String,
    #[serde(rename = "machineID")]
    pub machine_id: String,
    #[serde(rename = "systemUUID")]
    pub system_uuid: String,
    pub architecture: String,
    pub operating_system: String,
    pub os_image: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct MachineAddress {
    #[serde(rename = "type")]
    pub type_: String,
    pub address: String,
}

impl Machine {
    pub fn is_control_plane(&self) -> bool {
        has_key(self.metadata.labels.as_ref(), label::CONTROL_PLANE)
    }

    pub fn node_name(&self) -> Option<&str> {
        self.status
            .node_ref
            .as_ref()
            .map(|node| node.name.as_str())
            .filter(|name| !name.is_empty())
    }

    pub fn infrastructure_provisioned(&self) -> bool {
        self.status.initialization.infrastructure_provisioned == Some(true)
    }

    pub fn bootstrap_data_secret_created(&self) -> bool {
        self.status.initialization.bootstrap_data_secret_created == Some(true)
    }

    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether the user asked for this Machine to be the next one deleted.
    pub fn is_marked_for_deletion(&self) -> bool {
        has_key(self.metadata.annotations.as_ref(), annotation::DELETE_MACHINE)
    }

    pub fn is_marked_for_remediation(&self) -> bool {
        has_key(self.metadata.annotations.as_ref(), annotation::REMEDIATE_MACHINE)
    }

    /// Whether an update in place was decided or is to be called for.
    pub fn is_updating_in_place(&self) -> bool {
        in_place::is_update_in_progress(&self.metadata)
    }
}

fn has_key(map: Option<&std::collections::BTreeMap<String, String>>, key: &str) -> bool {
    map.is_some_and(|map| map.contains_key(key))
}
