//! Azure Service Operator's reconcile policies: what may be done to a resource in Azure. Pure.

use std::fmt;

use serde_json::{Value, json};

/// The annotation that sets the policy of one resource.
pub const RECONCILE_POLICY: &str = "serviceoperator.azure.com/reconcile-policy";

/// What may be done to a resource in Azure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// It is written and deleted.
    #[default]
    Manage,
    /// It is written, and stays when its object goes.
    DetachOnDelete,
    /// It is read and exported, never written nor deleted.
    Skip,
}

impl Policy {
    /// The policy of that name; `None` for one that does not exist, which counts as if none were named.
    pub fn by_name(name: &str) -> Option<Self> {
        Some(match name {
            "manage" => Self::Manage,
            "skip" => Self::Skip,
            "detach-on-delete" => Self::DetachOnDelete,
            _ => return None,
        })
    }

    pub fn writes(self) -> bool {
        self != Self::Skip
    }

    pub fn deletes(self) -> bool {
        self == Self::Manage
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Manage => "manage",
            Self::DetachOnDelete => "detach-on-delete",
            Self::Skip => "skip",
        })
    }
}

/// The same resources, managed where they are only read.
pub fn managed(resources: &[Value]) -> Vec<Value> {
    let mut resources = resources.to_vec();
    for resource in resources.iter_mut().filter(|resource| resource.is_object()) {
        let named = &resource["metadata"]["annotations"][RECONCILE_POLICY];
        let policy = named.as_str().and_then(Policy::by_name);
        if policy.is_none_or(|policy| !policy.writes()) {
            resource["metadata"]["annotations"][RECONCILE_POLICY] = json!(Policy::Manage.to_string());
        }
    }
    resources
}
