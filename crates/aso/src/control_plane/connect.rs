//! Where the API server answers and with which Secrets one signs in to it. Pure.

use jiff::Timestamp;
use slipway_azure::{
    reconcile::ResourceState,
    workload::{joining, stored::Verdict},
};
use slipway_capi::{
    names::label,
    secret::{Purpose, VALUE_KEY},
};

use super::observe::Observed;
use crate::{
    api::Endpoint,
    inline::{Credential, Destination, Problem, Source, Store},
    mutators::{Access, MANAGED_CLUSTER, access},
    resources::{Ca, Outgoing, Resource, StoredExport},
};

/// Where every AKS API server answers.
const PORT: i32 = 443;

/// The name under which AKS shows the API server: the private one where there is one.
pub fn endpoint(cluster: &ResourceState) -> Option<Endpoint> {
    let host = ["privateFQDN", "fqdn"]
        .iter()
        .find_map(|name| cluster.property(name))?;
    Some(Endpoint {
        host: host.to_owned(),
        port: PORT,
    })
}

impl Observed {
    pub fn managed_cluster(&self) -> Option<&Resource> {
        self.held.first(MANAGED_CLUSTER)
    }

    pub fn cluster_state(&self) -> &ResourceState {
        self.held.state_of_first(MANAGED_CLUSTER)
    }

    /// Whether AKS has ever brought the cluster up: it says so, or it said so when the endpoint was stored.
    pub fn has_come_up(&self) -> bool {
        let found = self.cluster_state();
        let status = self.plane.status.as_ref();
        found.body().is_some()
            && (status.is_some_and(|status| status.control_plane_endpoint.is_some())
                || found.provisioning_state() == Some("Succeeded"))
    }

    /// Where the API server answers, once AKS has brought the cluster up.
    pub fn endpoint(&self) -> Option<Endpoint> {
        self.has_come_up()
            .then(|| endpoint(self.cluster_state()))
            .flatten()
    }

    /// The Secret that Cluster API reads.
    fn known_secret(&self) -> Destination {
        Destination {
            store: Store::Secret,
            name: Purpose::Kubeconfig.secret_name(&self.cluster_name),
            key: VALUE_KEY.to_owned(),
        }
    }

    /// How Cluster API reaches the cluster, as its manifest and AKS say.
    pub fn access(&self) -> Option<Result<Access, Problem>> {
        let inline = self.managed_cluster()?.inline.as_ref()?;
        Some(access(inline, self.cluster_state().body(), &self.cluster_name))
    }

    /// What is to be done about the kubeconfigs of the cluster: those that its manifest asks for, and the one that Cluster API
    /// reads.
    pub fn kubeconfigs(&self, now: Timestamp) -> Vec<Outgoing> {
        let (Some(resource), Some(endpoint)) = (self.managed_cluster(), self.endpoint()) else {
            return Vec::new();
        };
        let is_ours = resource
            .id
            .as_ref()
            .is_some_and(|id| self.held.foreign(id).is_none() && resource.operated_by.is_none());
        let Some(Ok(access)) = self.access().filter(|_| is_ours) else {
            return Vec::new();
        };
        let mut desired: Vec<((Credential, bool), Destination)> = resource
            .exports
            .iter()
            .filter_map(|export| match export.source {
                Source::Kubeconfig(credential) => Some(((credential, false), export.to.clone())),
                _ => None,
            })
            .collect();
        let known = self.known_secret();
        let how = match access {
            Access::AsGiven { credential, .. } => (credential, false),
            Access::WithToken { .. } => (Credential::User, true),
        };
        let is_delivered = resource.delivered.iter().any(|export| export.to == known);
        if !is_delivered && !desired.iter().any(|(_, to)| *to == known) {
            desired.push((how, known));
        }
        let server = format!("{}:{}", endpoint.host, endpoint.port);
        desired
            .iter()
            .filter_map(|(how, to)| self.held.outgoing_kubeconfig(resource, *how, to, &server, now))
            .collect()
    }

    /// The kubeconfig that Azure Service Operator writes, where Cluster API would not find it.
    pub fn unclaimed(&self) -> Option<String> {
        let known = self.known_secret();
        let resource = self.managed_cluster()?;
        let is_delivered = resource.delivered.iter().any(|export| export.to == known);
        let stored = self.held.stored.get(&(known.store, known.name.clone()))?;
        let labels = stored.metadata.labels.as_ref();
        let is_labelled = labels.and_then(|all| all.get(label::CLUSTER_NAME)) == Some(&self.cluster_name);
        let is_ours = slipway_capi::owner::is_controlled_by(&stored.metadata, &self.held.metadata);
        let is_anothers = slipway_capi::owner::controller_of(&stored.metadata).is_some() && !is_ours;
        (is_delivered && !is_anothers && !(is_labelled && is_ours)).then_some(known.name)
    }

    /// What is to be done about the Secret with the cluster's CA, which nodes that are not AKS's own join by.
    pub fn ca(&self) -> Option<(Ca, &'static str)> {
        let known = self.known_secret();
        let kubeconfig = self.held.stored.get(&(known.store, known.name))?;
        let pem = kubeconfig.kubeconfig(&known.key).ca?;
        let name = Purpose::ClusterCa.secret_name(&self.cluster_name);
        let stored = self.held.stored.get(&(Store::Secret, name.clone()));
        let found = stored.map(StoredExport::ca);
        let (why, replace) =
            match joining::judge(found.as_ref(), &self.held.metadata, &self.cluster_name, &pem) {
                Verdict::Write(why) => (why, false),
                Verdict::Replace(why) => (why, true),
                Verdict::Good(_) | Verdict::Foreign => return None,
            };
        Some((Ca { name, pem, replace }, why))
    }

    /// Whether the Secret that Cluster API reads holds a kubeconfig of ours.
    pub fn has_kubeconfig(&self) -> bool {
        let known = self.known_secret();
        let stored = self.held.stored.get(&(known.store, known.name));
        stored.is_some_and(|stored| {
            slipway_capi::owner::is_controlled_by(&stored.metadata, &self.held.metadata)
                && stored.kubeconfig(&known.key).is_readable
        })
    }
}
