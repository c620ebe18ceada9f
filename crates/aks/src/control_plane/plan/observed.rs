//! What the plan of a control plane is made from, and what follows from it alone.

use std::{collections::BTreeMap, time::Duration};

pub use slipway_azure::reconcile::planning::RECREATE;
use slipway_azure::{
    ownership::Foreign,
    reconcile::{Records, ResourceKind, ResourceState, records::Entry as RecordEntry, state_of},
    workload::stored::StoredSecret,
};
use slipway_capi::view::MachinePool;
use slipway_runtime::ObjectKey;

use crate::{
    api::{AzureManagedCluster, AzureManagedControlPlane, AzureManagedMachinePool},
    planning::{Problem, Unknown, Waiting, has_reason},
    render::{Facts, ids, tags},
    status::{VANISHED, condition_of},
};

/// Where every AKS API server answers.
const PORT: i32 = 443;

/// The identity a control plane signs in with, as far as it is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub key: ObjectKey,
    /// Whether it carries this control plane's finalizer.
    pub is_held: bool,
}

/// A pool object and the MachinePool that owns it.
#[derive(Clone, Debug, Default)]
pub struct PoolObject {
    pub pool: AzureManagedMachinePool,
    pub machine_pool: Option<MachinePool>,
}

/// What the plan is made from.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub plane: AzureManagedControlPlane,
    pub cluster_name: String,
    /// The spec's subscription, or that of the identity.
    pub subscription: String,
    pub services: Vec<String>,
    pub pods: Vec<String>,
    pub infrastructure: Option<AzureManagedCluster>,
    pub pools: Vec<PoolObject>,
    /// What is in Azure, by id in lower case.
    pub states: BTreeMap<String, ResourceState>,
    /// Why the state of a resource is not known, or what Azure is at work on, by id in lower case.
    pub unknown: BTreeMap<String, Unknown>,
    /// What is recorded on the object of what was made and applied.
    pub records: Records,
    /// What belongs to another, by id in lower case.
    pub foreign: BTreeMap<String, Foreign>,
    /// How long to wait for a pool object before a default pool is made.
    pub pool_timeout: Duration,
    /// Another installation may still hold objects for the same resources: Azure was not asked.
    pub must_detach: bool,
    pub identity: Option<Identity>,
    /// What kept Azure from being asked: the identity, its secret or the settings are not right.
    pub problem: Option<Problem>,
    pub administrator: Option<StoredSecret>,
    pub user: Option<StoredSecret>,
    pub ca: Option<StoredSecret>,
    /// The AKS clusters of others in a resource group that is to be deleted, by the group's id in lower case; absent:
    /// Azure was not asked.
    pub others_in_groups: BTreeMap<String, Vec<String>>,
    /// Whether AKS had brought the cluster up when the plan was made.
    pub had_come_up: bool,
}

impl Observed {
    pub fn facts(&self) -> Facts<'_> {
        Facts {
            plane: &self.plane,
            cluster_name: &self.cluster_name,
            subscription: &self.subscription,
            services: self.services.first().map(String::as_str),
            pods: self.pods.first().map(String::as_str),
        }
    }

    pub fn cluster_state(&self) -> &ResourceState {
        state_of(&self.states, &ids::managed_cluster(&self.facts()))
    }

    pub(super) fn is_ours(&self, id: &str) -> bool {
        tags::is_owned(&state_of(&self.states, id).tags(), &self.cluster_name) && self.foreign(id).is_none()
    }

    /// Why a resource is another's.
    pub fn foreign(&self, id: &str) -> Option<&Foreign> {
        self.foreign.get(&id.to_lowercase())
    }

    /// The wait for whoever owns a resource.
    pub(super) fn owned_by_another(&self, id: &str) -> Option<Waiting> {
        self.foreign(id).map(|foreign| Waiting::OwnedByAnother {
            id: id.to_owned(),
            foreign: foreign.clone(),
        })
    }

    /// Whether the user asked for a vanished AKS cluster to be created again, empty.
    pub(super) fn recreates(&self) -> bool {
        let annotations = self.plane.metadata.annotations.as_ref();
        annotations.is_some_and(|all| all.get(RECREATE).is_some_and(|value| value == "true"))
    }

    /// What we made in Azure, by id in lower case.
    pub fn made(&self) -> impl Iterator<Item = (&str, ResourceKind)> {
        self.records
            .made()
            .filter_map(|(id, _)| Some((id, ResourceKind::of(id)?)))
    }

    pub(super) fn made_by_us(&self, id: &str) -> bool {
        self.records.get(id).is_some_and(|entry| entry.made) && self.foreign(id).is_none()
    }

    /// Whether a resource was there and is gone, though nothing here deleted it.
    pub(super) fn is_vanished(&self, id: &str) -> bool {
        state_of(&self.states, id).is_absent() && self.records.get(id).is_some_and(RecordEntry::existed)
    }

    pub(super) fn is_deleting(&self) -> bool {
        self.plane.metadata.deletion_timestamp.is_some()
    }

    pub(super) fn unknown(&self, id: &str) -> Option<&Unknown> {
        self.unknown.get(&id.to_lowercase())
    }

    /// Whether the condition already says that its resource vanished.
    pub(super) fn has_reported(&self, kind: ResourceKind) -> bool {
        let status = self.plane.status.as_ref();
        let v1beta2 = status.and_then(|status| status.v1beta2.as_ref());
        has_reason(v1beta2, condition_of(kind), VANISHED)
    }

    /// Where the API server answers, once AKS has brought the cluster up.
    pub fn endpoint(&self) -> Option<(String, i32)> {
        self.has_come_up()
            .then(|| endpoint(&self.plane, self.cluster_state()))
            .flatten()
    }

    /// Whether AKS has ever brought the cluster up: it says so, or it said so when the endpoint was stored.
    pub fn has_come_up(&self) -> bool {
        let found = self.cluster_state();
        found.body().is_some()
            && (self.plane.spec.control_plane_endpoint.is_some()
                || found.provisioning_state() == Some("Succeeded"))
    }
}

/// The name under which AKS shows the API server: the private one where there is no public one.
pub fn endpoint(plane: &AzureManagedControlPlane, cluster: &ResourceState) -> Option<(String, i32)> {
    let profile = plane.spec.class.api_server_access_profile.as_ref();
    let private = profile.is_some_and(|profile| {
        profile.enable_private_cluster == Some(true)
            && profile.enable_private_cluster_public_fqdn != Some(true)
    });
    let names = if private {
        ["privateFQDN", "fqdn"]
    } else {
        ["fqdn", "privateFQDN"]
    };
    let host = names.iter().find_map(|name| cluster.property(name))?;
    Some((host.to_owned(), PORT))
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
