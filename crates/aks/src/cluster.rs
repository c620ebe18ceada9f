//! The AzureManagedCluster controller: the infrastructure of a Cluster is provisioned when its control plane's API
//! server has an address. It makes nothing in Azure, so it holds nothing back when it is deleted.

use std::sync::Arc;

use kube::ResourceExt;
use serde_json::json;
use slipway_azure::reconcile::Error;
use slipway_capi::{
    condition::{self, Report, Status},
    marks,
    names::{condition as names, reason},
    owner, paused,
    view::Cluster,
};
use slipway_runtime::{
    Next, ObjectKey,
    controller::{Context, Controller, Reconciler, Registration},
};

use crate::{
    api::{
        AzureManagedCluster, AzureManagedControlPlane, Endpoint, InfrastructureInitialization,
        NewerConditions,
    },
    caches::Caches,
    control_plane::controller::prepared,
};

const KIND: &str = "AzureManagedCluster";

#[derive(Clone, Debug, Default)]
pub struct ClusterReconciler {
    caches: Caches,
}

pub fn registration() -> Registration {
    let caches = Caches::default();
    let of_plane = caches.clone();
    let inner = Controller::new(
        "azuremanagedcluster",
        ClusterReconciler {
            caches: caches.clone(),
        },
    )
    .watches::<Cluster>(|cluster, _| Caches::infrastructure_key(cluster).into_iter().collect())
    .watches::<AzureManagedControlPlane>(move |plane, context| {
        owner::cluster_name(&plane.metadata)
            .map(|name| ObjectKey::new(plane.metadata.namespace.as_deref(), name))
            .and_then(|key| of_plane.cluster(&context.informers, &key))
            .and_then(|cluster| Caches::infrastructure_key(&cluster))
            .into_iter()
            .collect()
    })
    .into_registration();
    prepared(inner, caches)
}

/// What is said when the address is not there yet.
fn ready(endpoint: Option<&Endpoint>) -> Report {
    if endpoint.is_some() {
        Report::new(names::READY, Status::True, reason::READY, "")
    } else {
        Report::new(
            names::READY,
            Status::False,
            reason::NOT_READY,
            "the control plane has no API server yet",
        )
    }
}

impl Reconciler for ClusterReconciler {
    type Object = AzureManagedCluster;
    type Error = Error;

    async fn reconcile(&self, object: Arc<AzureManagedCluster>, context: &Context) -> Result<Next, Error> {
        let deleting = object.metadata.deletion_timestamp.is_some();
        if deleting || marks::is_externally_managed(&object.metadata) {
            return Ok(Next::OnChange);
        }
        let Some(name) = owner::owner_cluster_name(&object.metadata) else {
            return Ok(Next::OnChange);
        };
        let key = ObjectKey::new(object.metadata.namespace.as_deref(), name);
        let Some(cluster) = self.caches.cluster(&context.informers, &key) else {
            return Ok(Next::OnChange);
        };
        let held = paused::paused(Some(&cluster), &object.metadata);
        let mut object = AzureManagedCluster::clone(&object);
        let plane = self.caches.plane(&context.informers, &cluster);
        let endpoint = plane.and_then(|plane| plane.spec.control_plane_endpoint.clone());
        if !held.is_paused()
            && let Some(endpoint) = &endpoint
            && object.spec.control_plane_endpoint.as_ref() != Some(endpoint)
        {
            let patch = json!({"spec": {"controlPlaneEndpoint": endpoint}});
            object = context
                .patch(&object, &patch)
                .await
                .map_err(Error::api("writing the control plane endpoint"))?;
        }
        let mut status = object.status.clone().unwrap_or_default();
        let (generation, now) = (object.metadata.generation, context.clock.now());
        let list = &mut status
            .newer
            .get_or_insert_with(NewerConditions::default)
            .conditions;
        condition::set(list, &held.report(KIND), generation, now);
        if !held.is_paused() {
            condition::set(list, &ready(endpoint.as_ref()), generation, now);
            let before = status
                .initialization
                .as_ref()
                .and_then(|before| before.provisioned)
                == Some(true);
            let provisioned = before || endpoint.is_some();
            status.ready = Some(provisioned);
            status.initialization = Some(InfrastructureInitialization {
                provisioned: provisioned.then_some(true),
            });
        }
        context
            .patch_status(&object, &status)
            .await
            .map_err(Error::api(format!(
                "writing the status of {KIND} {}",
                object.name_any()
            )))?;
        Ok(Next::OnChange)
    }
}
