//! The plan for a control plane: create with pools, update, delete in order; kubeconfigs of who uses the cluster. Pure.

mod connect;
mod delete;
mod desired;
mod observed;

use std::fmt;

use jiff::Timestamp;
use slipway_azure::{
    reconcile::{ResourceKind, ResourceState, records::Entry as RecordEntry, state_of, step},
    workload::kubeconfig::{self, KubeconfigKind},
};
use slipway_capi::frame::{Entry, Plan, Progress};
use slipway_runtime::ObjectKey;

use self::{
    delete::push_deletion,
    desired::{Treatment, desired, has_made_up_pool},
};
pub use self::{
    delete::unconfirmed_groups,
    desired::{DEFAULT_POOL_SIZE, OPTIONAL, has, id_of, kept, resources},
    observed::{Identity, Observed, PoolObject, RECREATE, endpoint, sign_in},
};
use crate::{
    planning::{DesiredResource, SOON, Unknown, Waiting, compare, is_stopped, wait},
    render::ids,
    status::{VANISHED, condition_of},
    version::with_v,
};

/// One idempotent call.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Keep the identity while this control plane needs it.
    HoldIdentity(ObjectKey),
    ReleaseIdentity(ObjectKey),
    /// Detach what another installation kept for the same resources.
    Detach,
    /// Note on the object what is about to be asked for: ids with the version of Azure's API.
    Record(Vec<(String, String)>),
    /// It was there and is gone, and nothing here deleted it: report that before it is made again.
    AcceptVanished {
        kind: ResourceKind,
        id: String,
    },
    /// Compare with Azure once more and send what differs.
    Ensure(DesiredResource),
    Delete {
        kind: ResourceKind,
        id: String,
    },
    /// Leave a resource group to the others that are in it.
    LeaveGroup {
        id: String,
    },
    /// Write where the API server answers.
    SetEndpoint {
        host: String,
        port: i32,
    },
    /// Fetch a kubeconfig from AKS and write its Secret.
    WriteKubeconfig {
        kind: KubeconfigKind,
        /// With a token, because nobody signs in without Entra.
        with_token: bool,
        replace: bool,
    },
    /// Write the CA of the kubeconfig into a Secret of its own, for nodes that are not AKS's own.
    WriteCa {
        replace: bool,
    },
    /// Note on the object what was applied.
    StoreRecords,
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HoldIdentity(key) => write!(formatter, "hold AzureClusterIdentity {key}"),
            Self::ReleaseIdentity(key) => write!(formatter, "release AzureClusterIdentity {key}"),
            Self::Detach => formatter.write_str("detach objects of Azure Service Operator"),
            Self::Record(resources) => {
                let ids: Vec<&str> = resources.iter().map(|(id, _)| id.as_str()).collect();
                write!(formatter, "record {}", ids.join(", "))
            }
            Self::AcceptVanished { kind, id } => write!(formatter, "report vanished {kind:?} {id}"),
            Self::Ensure(desired) => write!(formatter, "ensure {:?} {}", desired.kind, desired.id),
            Self::Delete { kind, id } => write!(formatter, "delete {kind:?} {id}"),
            Self::LeaveGroup { id } => write!(formatter, "leave ResourceGroup {id}"),
            Self::SetEndpoint { host, port } => write!(formatter, "set endpoint {host}:{port}"),
            Self::WriteKubeconfig { kind, replace, .. } => {
                let verb = if *replace { "replace" } else { "write" };
                match kind {
                    KubeconfigKind::Administrator => write!(formatter, "{verb} the kubeconfig"),
                    KubeconfigKind::User => write!(formatter, "{verb} the kubeconfig of people"),
                }
            }
            Self::WriteCa { replace: false } => formatter.write_str("write the CA"),
            Self::WriteCa { replace: true } => formatter.write_str("replace the CA"),
            Self::StoreRecords => formatter.write_str("store what was applied"),
        }
    }
}

pub fn plan(observed: &Observed, now: Timestamp) -> Plan<Action> {
    let mut plan = Plan::new();
    if !observed.is_deleting()
        && let Some(identity) = observed.identity.as_ref().filter(|identity| !identity.is_held)
    {
        let why = "it must not be deleted before the cluster that it signs in for";
        plan.then(Action::HoldIdentity(identity.key.clone()), why);
    }
    if observed.must_detach {
        let why = "nothing is asked of Azure while another installation may write the same resources";
        plan.then(Action::Detach, why);
        return plan;
    }
    if observed.is_deleting() {
        delete::delete(observed, &mut plan, now);
        return plan;
    }
    if let Some(problem) = &observed.problem {
        problem
            .block(&mut plan)
            .shown_in(condition_of(ResourceKind::ResourceGroup));
        return plan;
    }
    // Another's cluster is left alone with all that is around it, its kubeconfig included.
    let cluster_id = ids::managed_cluster(&observed.facts());
    if let Some(waiting) = observed.owned_by_another(&cluster_id) {
        wait(&mut plan, &waiting, now).shown_in(condition_of(ResourceKind::ManagedCluster));
        return plan;
    }
    connect::connect(observed, &mut plan, now);
    make(observed, &mut plan, now);
    plan
}

/// What follows from what the actions came to.
pub fn follow_up<E>(observed: &Observed, progress: &Progress<Action, E>) -> Plan<Action> {
    let mut plan = Plan::new();
    if observed.records.patch().is_some() {
        plan.then(
            Action::StoreRecords,
            "a field that is removed later is found by it",
        );
    }
    let is_written = |kind: KubeconfigKind| {
        let of_kind = |action: &Action| matches!(action, Action::WriteKubeconfig { kind: written, .. } if *written == kind);
        let mut actions = progress.actions();
        actions.any(|(action, attempt)| of_kind(action) && attempt.is_done())
    };
    let written = connect::kubeconfigs(observed)
        .into_iter()
        .filter(|kind| is_written(*kind));
    for kind in written {
        let stored = match kind {
            KubeconfigKind::Administrator => observed.administrator.as_ref(),
            KubeconfigKind::User => observed.user.as_ref(),
        };
        connect::renew_token(&mut plan, stored.and_then(kubeconfig::renewal));
        if kind == KubeconfigKind::Administrator {
            connect::write_ca(observed, &mut plan);
        }
    }
    if !observed.had_come_up && observed.has_come_up() {
        plan.revisit(
            SOON,
            "the cluster has come up: its endpoint and kubeconfigs are next",
        );
    }
    let mut actions = progress.actions().peekable();
    if observed.is_deleting() && actions.peek().is_some() && actions.all(|(_, attempt)| attempt.is_done()) {
        plan.revisit(SOON, "what waited for it is next");
    }
    plan
}

/// What is not recorded yet of what is asked for: nothing we make is ever unknown to us.
fn unrecorded(observed: &Observed, resources: &[(DesiredResource, Treatment)]) -> Vec<(String, String)> {
    let has_mark = observed.records.mark().is_some();
    resources
        .iter()
        .filter(|(resource, treatment)| {
            *treatment == Treatment::Ensure && !observed.is_vanished(&resource.id)
        })
        .filter_map(|(resource, _)| {
            let api_version = step::api_version(&resource.manifest).ok()?;
            let is_recorded = |entry: &RecordEntry| entry.api_version == api_version && has_mark;
            let is_known = observed.records.get(&resource.id).is_some_and(is_recorded);
            (!is_known).then(|| (resource.id.clone(), api_version))
        })
        .collect()
}

fn make(observed: &Observed, plan: &mut Plan<Action>, now: Timestamp) {
    let (resources, waiting) = desired(observed, now);
    let unrecorded = unrecorded(observed, &resources);
    if !unrecorded.is_empty() {
        plan.then(
            Action::Record(unrecorded),
            "nothing is made that is not known to be ours",
        );
    }
    let named: Vec<String> = resources
        .iter()
        .map(|(resource, _)| resource.id.to_lowercase())
        .collect();
    let mut ranks = Ranks { plan, last: None };
    for (resource, treatment) in resources {
        match treatment {
            Treatment::Ensure => ensure(observed, &mut ranks, resource, now),
            Treatment::UseAsItIs => {}
            Treatment::Refuse => {
                if let Some(waiting) = observed.owned_by_another(&resource.id) {
                    ranks.wait(resource.kind, &waiting, now);
                }
            }
            Treatment::Unknown => {
                let unknown = observed.unknown(&resource.id);
                ranks.wait_for_azure(resource.kind, &resource.id, unknown, now);
            }
        }
    }
    if let Some(Waiting::ForSystemPool { until }) = waiting {
        warn_of_default_pool(observed, &mut ranks, until, now);
        return;
    }
    if let Some(waiting) = waiting {
        let is_new = matches!(waiting, Waiting::Vanished { .. })
            && !observed.has_reported(ResourceKind::ManagedCluster);
        let entry = ranks.wait(ResourceKind::ManagedCluster, &waiting, now);
        if is_new {
            entry.warned(VANISHED);
        }
        return;
    }
    // What the spec no longer names goes, if we made it.
    for (id, kind) in observed.made() {
        if OPTIONAL.contains(&kind) && !named.iter().any(|known| known == id) {
            push_deletion(
                observed,
                &mut ranks,
                (kind, id, true),
                "the spec no longer names it",
                now,
            );
        }
    }
}

/// A pool that admission refused never comes: that is said long before a pool is made that nobody asked for.
fn warn_of_default_pool(observed: &Observed, ranks: &mut Ranks<'_>, until: Timestamp, now: Timestamp) {
    let warning = until.checked_sub(observed.pool_timeout * 4 / 5).unwrap_or(until);
    let entry = ranks.wait(
        ResourceKind::ManagedCluster,
        &Waiting::ForSystemPool { until },
        now,
    );
    if now < warning {
        entry.until(warning);
    } else {
        entry.warned("WaitingForSystemPool");
    }
}

/// A resource is made as it should be, or made again after its loss was reported.
fn ensure(observed: &Observed, ranks: &mut Ranks<'_>, desired: DesiredResource, now: Timestamp) {
    let (kind, id) = (desired.kind, desired.id.clone());
    if observed.is_vanished(&id) {
        let why = "Azure no longer has it, and nothing here deleted it: it is made again";
        ranks
            .act(kind, Action::AcceptVanished { kind, id }, why)
            .warned(VANISHED);
        return;
    }
    let (state, record) = (state_of(&observed.states, &id), observed.records.record(&id));
    let unknown = observed.unknown(&id);
    if kind == ResourceKind::ManagedCluster && is_stopped(state) {
        ranks.wait(kind, &Waiting::ForStart { id }, now);
        return;
    }
    let Some(comparison) = compare(&desired, &observed.subscription, state, unknown, record) else {
        return;
    };
    let runs = upgraded(observed, state)
        .filter(|_| kind == ResourceKind::ManagedCluster && comparison.is_settling());
    let why = runs.as_ref().map_or(comparison.why.clone(), |version| {
        format!("Kubernetes {version} runs")
    });
    let entry = ranks.act(kind, Action::Ensure(desired), why);
    comparison.describe(entry);
    if runs.is_some() {
        entry.announced("Upgraded");
    }
    if kind == ResourceKind::ManagedCluster && state.is_absent() && has_made_up_pool(observed, now) {
        let why =
            "no AzureManagedMachinePool of mode System came in time: the cluster gets one node of its own";
        entry.why = format!("{}; {why}", entry.why);
        entry.warned("DefaultSystemPool");
    }
}

/// The version that runs now, if the status shows another.
fn upgraded(observed: &Observed, cluster: &ResourceState) -> Option<String> {
    let running = with_v(cluster.property("currentKubernetesVersion")?);
    let before = observed.plane.status.as_ref()?.version.as_deref()?;
    (before != running).then_some(running)
}

/// Entries for resources in Azure. Those of one rank do not wait for each other; those of the next wait for all of them.
struct Ranks<'a> {
    plan: &'a mut Plan<Action>,
    last: Option<u8>,
}

impl Ranks<'_> {
    /// Places an entry that was just added.
    fn place(&mut self, kind: ResourceKind) -> &mut Entry<Action> {
        let rank = rank(kind);
        let is_beside = self.last == Some(rank);
        self.last = Some(rank);
        let before = self
            .plan
            .entries
            .iter()
            .rev()
            .skip(1)
            .filter_map(|entry| entry.group)
            .max();
        let index = self.plan.entries.len() - 1;
        let entry = &mut self.plan.entries[index];
        if is_beside && let Some(before) = before {
            entry.in_group(before);
        }
        entry.shown_in(condition_of(kind))
    }

    fn act(&mut self, kind: ResourceKind, action: Action, why: impl Into<String>) -> &mut Entry<Action> {
        self.plan.then(action, why);
        self.place(kind)
    }

    fn wait(&mut self, kind: ResourceKind, waiting: &Waiting, now: Timestamp) -> &mut Entry<Action> {
        wait(self.plan, waiting, now);
        self.place(kind)
    }

    fn wait_for_azure(&mut self, kind: ResourceKind, id: &str, unknown: Option<&Unknown>, now: Timestamp) {
        unknown.unwrap_or(&Unknown::Silent).wait(self.plan, id, now);
        self.place(kind);
    }
}

/// In which order resources are made. They are deleted in the opposite one.
fn rank(kind: ResourceKind) -> u8 {
    match kind {
        ResourceKind::ResourceGroup => 0,
        ResourceKind::VirtualNetwork => 1,
        ResourceKind::Subnet => 2,
        ResourceKind::ManagedCluster => 3,
        ResourceKind::PrivateEndpoint | ResourceKind::FleetMember | ResourceKind::Extension => 4,
        ResourceKind::AgentPool => 5,
    }
}
