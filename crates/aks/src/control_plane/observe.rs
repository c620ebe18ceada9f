//! Every read of the control plane controller: the objects of the Cluster from the caches, its resources from the
//! subscription's view, its kubeconfig Secrets from the apiserver.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt};
use serde_json::json;
use slipway_azure::{
    ownership,
    reconcile::{
        Absence, Error, Observations, Records, ResourceKind, ResourceState,
        records::Entry,
        step::{self, read_age},
    },
    session::Session,
    workload::kubeconfig::KubeconfigKind,
};
use slipway_capi::{secret::Purpose, view::Cluster};
use slipway_runtime::{Context, ObjectKey};

use crate::{
    access::{Access, subscription},
    api::{AzureManagedCluster, AzureManagedControlPlane},
    caches::{Caches, claim},
    plan::control_plane::{Observed, id_of, resources},
    render::{self, ids},
};

/// Everything a reconcile works with.
pub struct ReconcileContext {
    pub observed: Observed,
    pub observations: Observations,
    pub records: Records,
    pub session: Session,
    pub administrator: Option<Secret>,
    pub user: Option<Secret>,
    pub ca: Option<Secret>,
    /// The version of Azure's API for each resource, by id in lower case.
    pub api_versions: BTreeMap<String, String>,
    pub max_age: Option<Duration>,
}

/// Whether people sign in to the cluster with Entra, and whether nobody else can.
pub fn sign_in(cluster: &ResourceState) -> (bool, bool) {
    let flag = |pointer: &str| {
        cluster
            .body()
            .and_then(|body| body.pointer(pointer))
            .is_some_and(|value| value == true)
    };
    (
        flag("/properties/aadProfile/managed"),
        flag("/properties/disableLocalAccounts"),
    )
}

/// What is known without asking Azure.
pub fn known(
    plane: &AzureManagedControlPlane,
    cluster_name: &str,
    cluster: Option<&Cluster>,
    pool_timeout: Duration,
    caches: &Caches,
    context: &Context,
) -> Result<Observed, Error> {
    let namespace = plane.metadata.namespace.as_deref();
    let infrastructure = cluster.and_then(|cluster| caches.infrastructure(&context.informers, cluster));
    let ranges = |pick: fn(&Cluster) -> &Vec<String>| cluster.map(pick).cloned().unwrap_or_default();
    Ok(Observed {
        cluster_name: cluster_name.to_owned(),
        subscription: subscription(plane)?,
        services: ranges(|cluster| &cluster.spec.cluster_network.services.cidr_blocks),
        pods: ranges(|cluster| &cluster.spec.cluster_network.pods.cidr_blocks),
        infrastructure: infrastructure.map(|found| AzureManagedCluster::clone(&found)),
        pools: caches.pool_objects(context, &ObjectKey::new(namespace, cluster_name)),
        plane: plane.clone(),
        pool_timeout,
        ..Observed::default()
    })
}

/// Observes everything.
pub async fn observe(
    mut observed: Observed,
    access: &Access,
    caches: &Caches,
    context: &Context,
) -> Result<ReconcileContext, Error> {
    let session = access
        .open(&observed.plane, &observed.cluster_name, context)
        .await?;
    let records = Records::of(&observed.plane.metadata);
    let max_age = read_age(&observed.plane.metadata);
    let deleting = observed.plane.metadata.deletion_timestamp.is_some();
    let facts = observed.facts();
    let mut desired: Vec<(String, String)> = Vec::new();
    for (_, manifest) in resources(&facts) {
        desired.push((id_of(&facts, &manifest), step::api_version(&manifest)?));
    }
    let cluster = json!({
        "apiVersion": render::api_version(&observed.plane),
        "kind": "ManagedCluster",
        "metadata": {"name": observed.plane.name_any()},
    });
    let cluster_id = ids::managed_cluster(&facts);
    desired.push((cluster_id.clone(), step::api_version(&cluster)?));
    desired.extend(
        records
            .made()
            .map(|(id, api_version)| (id.to_owned(), api_version.to_owned())),
    );
    let mut observations = Observations::default();
    let mut api_versions = BTreeMap::new();
    for (id, api_version) in desired {
        // What is to be made must not be somebody's already, nothing is to be left behind, and what existed has not
        // vanished because a list is old.
        let absence = if deleting || records.get(&id).is_none_or(Entry::existed) {
            Absence::Certain
        } else {
            Absence::Listed
        };
        observations
            .observe(&session.arm, &id, &api_version, absence, max_age)
            .await;
        api_versions.entry(id.to_lowercase()).or_insert(api_version);
    }
    for (id, state) in &observations.states {
        let others = caches.plane_claims(&context.informers, &observed.plane, id);
        let ownership = ownership::judge(&claim(&observed.plane, id), &others, &state.tags());
        if let Some(foreign) = ownership.foreign() {
            observed.foreign.insert(id.clone(), foreign.clone());
        }
        if state.is_absent() && records.get(id).is_some_and(Entry::existed) {
            observed.vanished.insert(id.clone());
        }
    }
    observed.states = observations.states.clone();
    observed.made = records
        .made()
        .filter_map(|(id, _)| Some((id.to_owned(), ResourceKind::of(id)?)))
        .collect();
    let (mut administrator, mut user, mut ca) = (None, None, None);
    if observed.has_come_up() && !deleting {
        let name = |kind: KubeconfigKind| kind.secret_name(&observed.cluster_name);
        administrator = secret(&observed, name(KubeconfigKind::Administrator), context).await?;
        if sign_in(observed.cluster_state()).0 {
            user = secret(&observed, name(KubeconfigKind::User), context).await?;
        }
        let name = Purpose::ClusterCa.secret_name(&observed.cluster_name);
        ca = secret(&observed, name, context).await?;
    }
    Ok(ReconcileContext {
        observed,
        observations,
        records,
        session,
        administrator,
        user,
        ca,
        api_versions,
        max_age,
    })
}

async fn secret(observed: &Observed, name: String, context: &Context) -> Result<Option<Secret>, Error> {
    let namespace = observed.plane.namespace().unwrap_or_default();
    Api::<Secret>::namespaced(context.client.clone(), &namespace)
        .get_opt(&name)
        .await
        .map_err(Error::api(format!("reading Secret {name}")))
}
