//! EdgeMachine: the host of a Machine. On the frame: joins `observe`, `plan`, `act` and `status`, and registers the controller.

mod act;
pub mod admit;
pub mod api;
pub mod capacity;
pub mod claim;
pub mod observe;
pub mod plan;
pub mod provider_id;
pub mod status;
pub mod template;

use jiff::Timestamp;
use kube::ResourceExt;
use slipway_capi::{
    condition::Condition,
    frame::{Frame, Kind, Membership, Plan, ProgressOf, Subject},
    owner,
    view::{Cluster, Machine},
};
use slipway_runtime::{Context, Controller, Informer, ObjectKey, Outcome, Scope, controller::Registration};

use self::{
    api::{EdgeMachine, EdgeMachineStatus},
    observe::Observed,
    plan::Action,
    provider_id::ProviderId,
};
use crate::{
    api::INFRASTRUCTURE_GROUP, cluster::api::EdgeCluster, error::Error, host::api::EdgeHost, hosts::Platform,
};

/// Keeps a machine until its host is wiped, or nobody waits for that any more.
pub const FINALIZER: &str = "edgemachine.infrastructure.cluster.x-k8s.io";
/// The host has run the bootstrap data. It is on the object because `clusterctl move` restores no status and a host does not remember
/// its operations for ever.
pub const BOOTSTRAPPED_ANNOTATION: &str = "edge.slipway.dev/bootstrapped";

/// On an EdgeCluster: the claim of the server that may hold its address before there is a lease of it.
pub const FIRST_SERVER_ANNOTATION: &str = "edge.slipway.dev/first-server";

/// What a claim of this machine has for its uid: that of the provider id, which outlives a move, and before it the object's own.
pub fn claim_uid(machine: &EdgeMachine) -> String {
    provider_id(machine)
        .map(|id| id.claim)
        .or_else(|| machine.uid())
        .unwrap_or_default()
}

pub fn provider_id(machine: &EdgeMachine) -> Option<ProviderId> {
    machine.spec.provider_id.as_deref()?.parse().ok()
}

struct EdgeMachines {
    platform: Platform,
}

pub fn registration(platform: &Platform) -> Registration {
    let kind = EdgeMachines {
        platform: platform.clone(),
    };
    Controller::new("edgemachine", Frame::new(kind))
        .watches::<Machine>(|machine, _| {
            let reference = &machine.spec.infrastructure_ref;
            let is_ours = reference.kind == "EdgeMachine" && reference.api_group == INFRASTRUCTURE_GROUP;
            let namespace = machine.metadata.namespace.as_deref();
            is_ours
                .then(|| ObjectKey::new(namespace, &reference.name))
                .into_iter()
                .collect()
        })
        .watches::<Cluster>(of_cluster)
        .watches::<EdgeHost>(of_host)
        // Who is the first to hold its address.
        .watches::<EdgeCluster>(of_edge_cluster)
        .into_registration()
}

fn of_cluster(cluster: &Cluster, context: &Context) -> Vec<ObjectKey> {
    let key = ObjectKey::of(cluster);
    let machines: Informer<EdgeMachine> = context.informers.get(Scope::of_namespace(&context.settings));
    let machines = machines
        .index("cluster", |machine| owner::by_cluster(&machine.metadata))
        .get(&owner::key(key.namespace(), key.name()));
    machines
        .iter()
        .map(|machine| ObjectKey::of(machine.as_ref()))
        .collect()
}

fn of_edge_cluster(cluster: &EdgeCluster, context: &Context) -> Vec<ObjectKey> {
    if cluster.spec.virtual_address.is_none() {
        return Vec::new();
    }
    let clusters: Informer<Cluster> = context.informers.get(Scope::of_namespace(&context.settings));
    let owners = owner::by_cluster(&cluster.metadata);
    let found = clusters.list();
    let of_it = found
        .iter()
        .filter(|one| owners.contains(&owner::key(one.namespace().as_deref(), &one.name_any())));
    of_it.flat_map(|one| of_cluster(one, context)).collect()
}

/// The machine that has the host or has chosen it, and every one that has none yet.
fn of_host(host: &EdgeHost, context: &Context) -> Vec<ObjectKey> {
    let machines: Informer<EdgeMachine> = context.informers.get(Scope::of_namespace(&context.settings));
    let by_host = machines.index("host", |machine| {
        vec![machine.spec.host_name.clone().unwrap_or_default()]
    });
    let claimed = host
        .spec
        .claim
        .iter()
        .map(|claim| ObjectKey::of(host).sibling(&claim.name));
    let mut found: Vec<ObjectKey> = [by_host.get(&host.name_any()), by_host.get("")]
        .iter()
        .flatten()
        .filter(|machine| machine.namespace() == host.namespace())
        .map(|machine| ObjectKey::of(machine.as_ref()))
        .chain(claimed)
        .collect();
    found.sort();
    found.dedup();
    found
}

impl Kind for EdgeMachines {
    type Object = EdgeMachine;
    type Observed = Observed;
    type Action = Action;
    type Error = Error;

    fn finalizer(_: &EdgeMachine) -> Option<&'static str> {
        Some(FINALIZER)
    }

    fn conditions(status: &mut EdgeMachineStatus) -> Option<&mut Vec<Condition>> {
        Some(&mut status.conditions)
    }

    async fn membership(&self, machine: &EdgeMachine, _: &Context) -> Result<Membership, Error> {
        Ok(Membership::by_owner_or_label(&machine.metadata))
    }

    async fn observe(&self, subject: &Subject<EdgeMachine>, context: &Context) -> Result<Observed, Error> {
        observe::observe(subject, &self.platform, context).await
    }

    fn plan(observed: &Observed, now: Timestamp) -> Plan<Action> {
        plan::plan(&observed.facts, now)
    }

    fn needs_confirmation(observed: &Observed, _: &Plan<Action>) -> bool {
        plan::needs_confirmation(&observed.facts)
    }

    async fn confirm(
        &self,
        subject: &Subject<EdgeMachine>,
        observed: Observed,
        context: &Context,
    ) -> Result<Observed, Error> {
        observe::confirm(subject, observed, &self.platform, context).await
    }

    async fn act(
        &self,
        action: &Action,
        _: &Subject<EdgeMachine>,
        observed: &mut Observed,
        context: &Context,
    ) -> Result<Outcome, Error> {
        act::act(action, observed, &self.platform, context).await
    }

    fn status(observed: &Observed, progress: &ProgressOf<Self>, now: Timestamp) -> EdgeMachineStatus {
        let machine = &observed.machine;
        let before = machine.status.clone().unwrap_or_default();
        status::status(
            &before,
            &observed.facts,
            progress.plan(),
            machine.metadata.generation,
            now,
        )
    }
}
