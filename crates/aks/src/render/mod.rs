//! From the objects to the Azure resources they stand for, in the form that Azure Service Operator gave them. Pure: the
//! same objects and facts give the same manifests, which are compared with Azure before anything is sent.

pub mod addons;
pub mod agent_pool;
pub mod ids;
pub mod managed_cluster;
pub mod network;
pub mod patch;
pub mod tags;

use serde_json::Value;

use crate::api::{AzureManagedControlPlane, PoolClass};

pub use agent_pool::agent_pool;
pub use managed_cluster::managed_cluster;

/// Why a manifest cannot be made. All of these are the user's to mend.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    #[error(
        "AKS cannot make cluster {0} without a system node pool: create an AzureManagedMachinePool with mode System, or set spec.defaultPoolTemplate of the AzureManagedCluster"
    )]
    NoSystemPool(String),
    #[error("{field}[{index}] is not a merge patch: {problem}")]
    Patch {
        field: &'static str,
        index: usize,
        problem: String,
    },
    #[error("the Cluster's service range {0:?} is not in CIDR form")]
    ServiceRange(String),
    #[error("spec.sshPublicKey is not base64 of text")]
    SshKey,
    #[error(
        "node pool {pool} wants Kubernetes {desired}, which is above the control plane's {control_plane}: upgrade the control plane first"
    )]
    PoolAboveControlPlane {
        pool: String,
        desired: String,
        control_plane: String,
    },
}

impl From<RenderError> for slipway_azure::reconcile::Error {
    fn from(error: RenderError) -> Self {
        Self::InvalidSpec(error.to_string())
    }
}

/// What a control plane's resources need from elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    pub plane: &'a AzureManagedControlPlane,
    /// The Cluster's name, which ownership tags carry.
    pub cluster_name: &'a str,
    /// The spec's subscription, or that of the identity.
    pub subscription: &'a str,
    pub services: Option<&'a str>,
    pub pods: Option<&'a str>,
}

/// One node pool to be.
#[derive(Clone, Copy, Debug)]
pub struct PoolFacts<'a> {
    pub class: &'a PoolClass,
    /// Its name in AKS.
    pub azure_name: &'a str,
    pub replicas: i32,
    /// The MachinePool's version, if it has one.
    pub version: Option<&'a str>,
    /// The pool as AKS shows it.
    pub existing: Option<&'a Value>,
}

/// The version of AKS's API that a control plane and its pools speak.
pub(crate) fn api_version(plane: &AzureManagedControlPlane) -> &'static str {
    if plane.spec.class.enable_preview_features == Some(true) {
        "containerservice.azure.com/v1api20240402preview"
    } else {
        "containerservice.azure.com/v1api20240901"
    }
}

/// Puts a value where there is one: an absent field is left to Azure, never sent as null.
fn set<T: Into<Value>>(object: &mut Value, name: &str, value: Option<T>) {
    if let Some(value) = value {
        object[name] = value.into();
    }
}

/// Puts a list where it has items.
fn set_list(object: &mut Value, name: &str, list: &[String]) {
    if !list.is_empty() {
        object[name] = list.into();
    }
}

/// `None` for text that is absent or empty.
fn text(value: Option<&String>) -> Option<&str> {
    value.map(String::as_str).filter(|value| !value.is_empty())
}
