//! EdgeHost.

// Columns of the same type share an attribute's text, which the lint takes for a repetition.
#![allow(clippy::duplicated_attributes)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use slipway_moc::session::{CLOUD_PORT, Endpoint, LOGIN_PORT};

use crate::{api::rule, hosts::moc::MocPlace};

/// A machine on site that has joined. Its name is the host's name in the agent's certificates.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "edge.slipway.dev",
    version = "v1alpha1",
    kind = "EdgeHost",
    plural = "edgehosts",
    category = "edge",
    shortname = "eh",
    namespaced,
    status = "EdgeHostStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn(name = "Claim", type_ = "string", json_path = ".spec.claim.name"),
    printcolumn(name = "Slot", type_ = "string", json_path = ".status.bootedSlot"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.kubeletVersion"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 10
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules()))]
pub struct EdgeHostSpec {
    /// Where its agent listens, as host:port. A host behind NAT has none: it connects to the manager.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxLength" = 300))]
    pub address: Option<String>,
    /// What it is, where it is not a machine with an agent of its own that is reached over the network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub platform: Option<HostPlatform>,
    /// The failure domain it is in.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 256))]
    pub failure_domain: Option<String>,
    /// Why nothing is to be done to it that can be felt. While this is set it is not claimed, upgraded or rebooted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 256))]
    pub maintenance: Option<String>,
    /// Who has it. Written by the provider. It is in the spec because `clusterctl move` restores no status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<Claim>,
}

/// Whose machine it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostPlatform {
    /// A virtual machine of MOC, the Microsoft On-premises Cloud.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moc: Option<MocHost>,
}

/// A virtual machine of MOC. In its guest runs `slipway-agent guest`; what boots is a disk made from an image of the gallery.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MocHost {
    /// The cloud agent as its certificate names it, with a port where that is not 55000, e.g. cloud.example.com.
    #[schemars(extend("minLength" = 1, "maxLength" = 253))]
    pub cloud_agent: String,
    /// The port at which the cloud agent takes logins (default 65000).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 1, "maximum" = 65535))]
    pub login_port: Option<u16>,
    /// The location whose gallery has the images.
    #[schemars(extend("minLength" = 1, "maxLength" = 253))]
    pub location: String,
    /// The group of the virtual machine and its disks.
    #[schemars(extend("minLength" = 1, "maxLength" = 253))]
    pub group: String,
    #[schemars(extend("minLength" = 1, "maxLength" = 253))]
    pub virtual_machine: String,
    /// The storage container of images and disks; MOC chooses one if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 253))]
    pub container: Option<String>,
    /// Where the gallery has images from that it does not have yet, with {digest} for the hexadecimal digits of the image's digest. If absent, somebody imports them.
    #[serde(rename = "imageURL", default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 1024))]
    pub image_url: Option<String>,
    /// A Secret of this namespace with an identity's login file under `login`, or with the file that logging in writes under `wssdconfig`.
    #[schemars(extend("minLength" = 1, "maxLength" = 253))]
    pub credentials_secret_name: String,
}

impl EdgeHostSpec {
    /// Its virtual machine of MOC, if it is one.
    pub fn moc(&self) -> Option<&MocHost> {
        self.platform.as_ref()?.moc.as_ref()
    }
}

impl MocHost {
    pub fn place(&self, host: &EdgeHost) -> MocPlace {
        let (name, port) = cloud_agent(&self.cloud_agent);
        MocPlace {
            namespace: host.metadata.namespace.clone().unwrap_or_default(),
            secret: self.credentials_secret_name.clone(),
            cloud: Endpoint {
                host: name.to_owned(),
                cloud_port: port.unwrap_or(CLOUD_PORT),
                login_port: self.login_port.unwrap_or(LOGIN_PORT),
            },
            location: self.location.clone(),
            group: self.group.clone(),
            machine: self.virtual_machine.clone(),
            container: self.container.clone(),
            image_url: self.image_url.clone(),
        }
    }
}

/// Name and port.
pub fn cloud_agent(text: &str) -> (&str, Option<u16>) {
    let Some((name, port)) = text.rsplit_once(':') else {
        return (text, None);
    };
    match port.parse() {
        Ok(port) if port > 0 => (name.trim_start_matches('[').trim_end_matches(']'), Some(port)),
        _ => (text, None),
    }
}

/// Who has a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// The EdgeMachine, in the host's namespace.
    pub name: String,
    /// Which EdgeMachine of that name: the one that had this uid when it took the host.
    pub uid: String,
    /// The machine has let go of it; the host is wiped, and then the claim goes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub released: bool,
}

fn rules() -> Value {
    json!([
        rule(
            "!has(self.claim) || !has(oldSelf.claim) || self.claim.uid == oldSelf.claim.uid",
            "claim cannot go from one machine to another: the host is wiped in between",
        ),
        rule(
            "!has(self.claim) || !has(oldSelf.claim) || !has(oldSelf.claim.released) || !oldSelf.claim.released || \
             (has(self.claim.released) && self.claim.released)",
            "claim.released cannot be taken back: the host is being wiped",
        ),
    ])
}

/// What the agent says of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct EdgeHostStatus {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub agent_version: String,
    /// Of this run of its kernel.
    #[serde(rename = "bootID", skip_serializing_if = "String::is_empty")]
    pub boot_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hardware: Option<Hardware>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slots: Vec<SlotStatus>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub booted_slot: String,
    /// The kubelet of the image that runs.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kubelet_version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheStatus>,
    /// From which it speaks to other machines.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// A person on site works on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maintenance: Option<MaintenanceStatus>,
    /// What a person should know.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Hardware {
    pub architecture: String,
    pub processors: u32,
    #[serde(rename = "memoryMiB")]
    pub memory_mib: u64,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kernel: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub system: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct SlotStatus {
    pub name: String,
    /// good, trial or unbootable.
    pub boot: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub image: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kubelet_version: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct CacheStatus {
    #[serde(rename = "usedMiB")]
    pub used_mib: u64,
    #[serde(rename = "quotaMiB")]
    pub quota_mib: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct MaintenanceStatus {
    pub by: String,
    pub reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}
