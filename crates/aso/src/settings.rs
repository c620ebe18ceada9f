//! What the Secret `aso-controller-settings` says beside a credential. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::ByteString;
use slipway_azure::credential::Mode;

use crate::inline::Policy;

/// The settings of Azure Service Operator that mean something here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperatorSettings {
    /// `DEFAULT_RECONCILE_POLICY`: the policy of a resource that names none.
    pub default_policy: Policy,
    /// `AZURE_WORKLOAD_IDENTITY_AUTH_MODE`: what a namespace signs in with.
    pub identities: Option<Mode>,
    /// `AZURE_TARGET_NAMESPACES`: whose resources are made; empty: all.
    pub namespaces: BTreeSet<String>,
}

impl OperatorSettings {
    pub fn read(data: &BTreeMap<String, ByteString>) -> Self {
        let text = |key: &str| {
            let value = data.get(key).map(|value| String::from_utf8_lossy(&value.0));
            value.map(|value| value.trim().to_owned()).unwrap_or_default()
        };
        Self {
            // Azure Service Operator does not start with another word; here it counts as none.
            default_policy: Policy::by_name(&text("DEFAULT_RECONCILE_POLICY")).unwrap_or_default(),
            identities: Mode::by_name(&text("AZURE_WORKLOAD_IDENTITY_AUTH_MODE")),
            namespaces: text("AZURE_TARGET_NAMESPACES")
                .split(',')
                .map(|name| name.trim().to_owned())
                .filter(|name| !name.is_empty())
                .collect(),
        }
    }

    /// Whether resources of a namespace are made at all.
    pub fn serves(&self, namespace: &str) -> bool {
        self.namespaces.is_empty() || self.namespaces.contains(namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> OperatorSettings {
        let data = pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec())))
            .collect();
        OperatorSettings::read(&data)
    }

    #[test]
    fn what_means_something_here_is_read() {
        assert_eq!(read(&[]), OperatorSettings::default());
        let all = read(&[
            ("DEFAULT_RECONCILE_POLICY", "detach-on-delete\n"),
            ("AZURE_WORKLOAD_IDENTITY_AUTH_MODE", "relaxed"),
            ("AZURE_TARGET_NAMESPACES", "a, b,"),
            ("MAX_CONCURRENT_RECONCILES", "4"),
        ]);
        assert_eq!(all.default_policy, Policy::DetachOnDelete);
        assert_eq!(all.identities, Some(Mode::Relaxed));
        assert!(all.serves("b") && !all.serves("c"));
        assert!(read(&[]).serves("c"));
        let wrong = read(&[
            ("DEFAULT_RECONCILE_POLICY", "Detach"),
            ("AZURE_WORKLOAD_IDENTITY_AUTH_MODE", "loose"),
        ]);
        assert_eq!((wrong.default_policy, wrong.identities), (Policy::Manage, None));
    }
}
