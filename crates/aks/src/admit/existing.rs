//! What of an object exists in Azure, told from the object alone: the record of what was sent, which goes along in a
//! move, and what its status and its endpoint say of objects that were taken over and never written since.

use kube::api::ObjectMeta;

use slipway_azure::reconcile::records::Records;

use crate::api::{AzureManagedControlPlane, AzureManagedMachinePool};

/// How much there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Nothing: every field may still change.
    Nothing,
    /// A resource group or a network, and no AKS cluster: what says where they are is fixed.
    Surroundings,
    /// The AKS cluster or pool itself.
    Made,
}

fn recorded(metadata: &ObjectMeta, kind: &str) -> Existing {
    let records = Records::of(metadata);
    let mut found = Existing::Nothing;
    for id in records.sent() {
        if id.contains(kind) {
            return Existing::Made;
        }
        found = Existing::Surroundings;
    }
    found
}

pub fn of_control_plane(plane: &AzureManagedControlPlane) -> Existing {
    let endpoint = plane.spec.control_plane_endpoint.as_ref();
    let answers = plane.status.as_ref().is_some_and(|status| {
        status.ready == Some(true)
            || status.initialized == Some(true)
            || status
                .version
                .as_deref()
                .is_some_and(|version| !version.is_empty())
    });
    if answers || endpoint.is_some_and(|endpoint| !endpoint.host.is_empty()) {
        return Existing::Made;
    }
    recorded(&plane.metadata, "/managedclusters/")
}

pub fn of_pool(pool: &AzureManagedMachinePool) -> Existing {
    let stands = pool.status.as_ref().is_some_and(|status| {
        status.ready == Some(true)
            || status.replicas.is_some_and(|replicas| replicas > 0)
            || status
                .initialization
                .as_ref()
                .is_some_and(|initialization| initialization.provisioned == Some(true))
    });
    if stands || !pool.spec.provider_id_list.is_empty() {
        return Existing::Made;
    }
    recorded(&pool.metadata, "/agentpools/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use slipway_azure::reconcile::records::ANNOTATION;

    fn plane(records: &serde_json::Value) -> AzureManagedControlPlane {
        let mut plane = AzureManagedControlPlane::default();
        plane.metadata.annotations = Some([(ANNOTATION.to_owned(), records.to_string())].into());
        plane
    }

    #[test]
    fn a_refused_request_leaves_nothing() {
        let refused = json!({"/subscriptions/s/resourcegroups/g/providers/microsoft.containerservice/managedclusters/c":
            {"apiVersion": "2024-09-01", "made": true}});
        assert_eq!(of_control_plane(&plane(&refused)), Existing::Nothing);
    }

    #[test]
    fn what_was_sent_exists() {
        let record = json!({"sent": {}});
        let group = json!({"/subscriptions/s/resourcegroups/g": {"apiVersion": "1", "record": record}});
        assert_eq!(of_control_plane(&plane(&group)), Existing::Surroundings);
        let cluster = json!({"/subscriptions/s/resourcegroups/g/providers/microsoft.containerservice/managedclusters/c":
            {"apiVersion": "1", "record": record}});
        assert_eq!(of_control_plane(&plane(&cluster)), Existing::Made);
    }

    #[test]
    fn what_was_taken_over_exists() {
        let mut plane = AzureManagedControlPlane::default();
        assert_eq!(of_control_plane(&plane), Existing::Nothing);
        plane.spec.control_plane_endpoint = Some(crate::api::Endpoint {
            host: "c.hcp".to_owned(),
            port: 443,
        });
        assert_eq!(of_control_plane(&plane), Existing::Made);
    }
}
