//! What to do next: pure, from what is known to at most one step that touches a server or its member. Every refusal
//! and every wait says why.

use std::{fmt, time::Duration};

use jiff::Timestamp;
use slipway_capi::{
    frame::{self, Entry},
    secret::Purpose,
};

use super::{
    hook::{self, Progress},
    observed::{InPlace, InPlaceAnswer, Observed, RemediationRecord, Server, View, Workload},
    orphan, ownership,
    preflight::{self, Change},
    quorum::{self, Change as Projected},
    remediation::{self, Decision},
    select,
};
use crate::api::RolloutStrategyType;

pub type Plan = frame::Plan<Action>;

/// A host that was let go may start k3s again before it is gone: its member is looked for this often.
const GOING_HOST: Duration = Duration::from_secs(5);
/// What a wait is for (a join, a promotion, evidence of life) is not always told by an event.
const WAITING: Duration = Duration::from_secs(15);
/// The infrastructure template is not watched.
const TEMPLATE: Duration = Duration::from_mins(1);
/// While the workload cluster does not answer there is no event to wait for.
const UNREACHABLE: Duration = Duration::from_secs(20);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    ScaleDown,
    Rollout,
    Remediation(RemediationRecord),
}

/// One idempotent call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Take over a control-plane machine that belongs to nobody.
    Adopt {
        machine: String,
    },
    /// Put our pre-terminate hook onto a server that has none of ours.
    AddHook {
        machine: String,
    },
    /// Forget a remediation whose replacement exists.
    ForgetRemediation,
    /// Take back the remediation mark of a machine that is healthy again.
    ClearRemediationMark {
        machine: String,
    },
    /// Say on the machine why it is not replaced.
    ExplainRemediation {
        machine: String,
        impossible: bool,
        reason: String,
    },
    CreateServer {
        failure_domain: Option<String>,
        remediation_for: Option<RemediationRecord>,
    },
    DeleteServer {
        machine: String,
        why: Why,
    },
    /// Ask k3s to remove a member, through its node.
    RemoveMember {
        node: String,
        member: String,
        /// The machine that is being deleted, if it is its member.
        machine: Option<String>,
    },
    /// Take back a request to remove a member that no longer holds.
    WithdrawRemoval {
        node: String,
        member: String,
    },
    /// Say that a member is nobody's and will be removed.
    AnnounceOrphan {
        member: String,
        address: String,
    },
    /// Ask k3s to remove a member that has no node, through a placeholder.
    RemoveOrphan {
        member: String,
        address: String,
        machine: Option<String>,
    },
    /// Take away a placeholder that has done its work.
    DeletePlaceholder {
        node: String,
    },
    /// Let the host of a deleted server go.
    ReleaseHook {
        machine: String,
    },
    /// Ask the update extension whether it can bring a server up to date.
    AskInPlace {
        machine: String,
    },
    /// Start, or carry on, an update in place.
    UpdateInPlace {
        machine: String,
    },
    /// Keep the Cluster's ranges with the control plane, before the first server exists.
    RecordNetwork {
        record: String,
    },
    /// Note that the first server has answered: status does not survive a move.
    MarkInitialized,
    /// Make a CA of the cluster, and never again once servers trust it.
    MakeAuthority {
        purpose: Purpose,
    },
    /// Make the token that servers or agents join with.
    MakeToken {
        secret: String,
    },
    /// Become the owner of a Secret that would go with the first server's configuration.
    TakeOverSecret {
        secret: String,
    },
    /// Make, or make again, the administrator's kubeconfig.
    WriteKubeconfig {
        renew: bool,
    },
    /// Bring labels, annotations and what never needs a new server to an object of a running one.
    Sync {
        machine: String,
        part: Part,
    },
    /// Set the conditions we keep on a Machine.
    SetMachineConditions {
        machine: String,
        conditions: Vec<MachineCondition>,
    },
}

/// Which object of a server is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Machine,
    Config,
    InfraMachine,
}

/// One condition of a Machine, without its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineCondition {
    pub type_: &'static str,
    pub status: &'static str,
    pub reason: String,
    pub message: String,
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Adopt { machine } => write!(formatter, "adopt Machine {machine}"),
            Self::AddHook { machine } => write!(formatter, "add the pre-terminate hook to Machine {machine}"),
            Self::ForgetRemediation => formatter.write_str("forget the last remediation"),
            Self::ClearRemediationMark { machine } => {
                write!(formatter, "clear OwnerRemediated of Machine {machine}")
            }
            Self::ExplainRemediation { machine, reason, .. } => {
                write!(
                    formatter,
                    "set OwnerRemediated of Machine {machine} to False ({reason})"
                )
            }
            Self::CreateServer { failure_domain, .. } => match failure_domain {
                Some(domain) => write!(formatter, "create a server in failure domain {domain}"),
                None => formatter.write_str("create a server"),
            },
            Self::DeleteServer { machine, .. } => write!(formatter, "delete Machine {machine}"),
            Self::RemoveMember { node, member, .. } => {
                write!(formatter, "remove etcd member {member} through node {node}")
            }
            Self::WithdrawRemoval { member, .. } => {
                write!(formatter, "withdraw the request to remove etcd member {member}")
            }
            Self::AnnounceOrphan { member, address } => {
                write!(
                    formatter,
                    "announce the removal of orphaned etcd member {member} at {address}"
                )
            }
            Self::RemoveOrphan { member, .. } => {
                write!(formatter, "remove etcd member {member} through a placeholder")
            }
            Self::DeletePlaceholder { node } => write!(formatter, "delete placeholder node {node}"),
            Self::ReleaseHook { machine } => write!(formatter, "release the host of Machine {machine}"),
            Self::AskInPlace { machine } => {
                write!(formatter, "ask the update extension about Machine {machine}")
            }
            Self::UpdateInPlace { machine } => write!(formatter, "update Machine {machine} in place"),
            Self::RecordNetwork { record } => write!(formatter, "record the cluster's ranges {record}"),
            Self::MarkInitialized => formatter.write_str("mark the control plane as initialised"),
            Self::MakeAuthority { purpose } => write!(formatter, "make the CA {}", purpose.as_str()),
            Self::MakeToken { secret } => write!(formatter, "make the token in Secret {secret}"),
            Self::TakeOverSecret { secret } => write!(formatter, "take over Secret {secret}"),
            Self::WriteKubeconfig { renew: false } => formatter.write_str("make the kubeconfig"),
            Self::WriteKubeconfig { renew: true } => formatter.write_str("renew the kubeconfig"),
            Self::Sync { machine, part } => match part {
                Part::Machine => write!(formatter, "sync Machine {machine}"),
                Part::Config => write!(formatter, "sync the KThreesConfig of Machine {machine}"),
                Part::InfraMachine => write!(formatter, "sync the InfraMachine of Machine {machine}"),
            },
            Self::SetMachineConditions { machine, .. } => {
                write!(formatter, "set conditions of Machine {machine}")
            }
        }
    }
}

impl Action {
    /// Whether the action changes the servers or the members of etcd: of those there is at most one at a time.
    pub fn is_operation(&self) -> bool {
        matches!(
            self,
            Self::CreateServer { .. }
                | Self::DeleteServer { .. }
                | Self::RemoveMember { .. }
                | Self::RemoveOrphan { .. }
                | Self::ReleaseHook { .. }
                | Self::UpdateInPlace { .. }
        )
    }

    /// Whether the action changes nothing that a server or its member depends on: what the watches show is enough for it.
    pub fn is_upkeep(&self) -> bool {
        matches!(
            self,
            Self::RecordNetwork { .. }
                | Self::MarkInitialized
                | Self::MakeAuthority { .. }
                | Self::MakeToken { .. }
                | Self::TakeOverSecret { .. }
                | Self::WriteKubeconfig { .. }
                | Self::Sync { .. }
                | Self::SetMachineConditions { .. }
        )
    }
}

/// What is decided so far. In the plan the waits come last: they hold up nothing.
#[derive(Default)]
pub struct Draft {
    plan: Plan,
    waits: Vec<(&'static str, String)>,
}

impl Draft {
    pub(super) fn act(mut self, action: Action, why: impl Into<String>) -> Self {
        self.entry(action, why);
        self
    }

    pub(super) fn entry(&mut self, action: Action, why: impl Into<String>) -> &mut Entry<Action> {
        if matches!(action, Action::CreateServer { .. }) {
            self.plan.revisit(
                TEMPLATE,
                "nobody tells when an infrastructure template that is missing comes",
            );
        }
        self.plan.then(action, why)
    }

    pub(super) fn wait(mut self, reason: &'static str, why: impl Into<String>) -> Self {
        self.waits.push((reason, why.into()));
        self
    }

    fn wait_all(mut self, reason: &'static str, why: Vec<String>) -> Self {
        self.waits.extend(why.into_iter().map(|why| (reason, why)));
        self
    }

    fn again_in(mut self, after: Duration) -> Self {
        self.plan
            .revisit(after, "no event tells when what is waited for has come");
        self
    }

    pub(super) fn release_finalizer(mut self, why: &str) -> Self {
        self.plan.release_finalizer(why);
        self
    }

    /// An action that waits for nobody.
    pub(super) fn regardless(&mut self, action: Action, why: &str) -> &mut Entry<Action> {
        self.plan.regardless(action, why)
    }

    pub(super) fn finish(mut self) -> Plan {
        for (reason, why) in self.waits {
            self.plan.wait(reason, why);
        }
        self.plan
    }
}

/// What is done about the servers and the members of etcd.
pub fn plan(observed: &Observed, now: Timestamp) -> Plan {
    servers(observed, now, Draft::default()).finish()
}

pub(super) fn servers(observed: &Observed, now: Timestamp, mut plan: Draft) -> Draft {
    if observed.initialized && observed.workload.view().is_none() {
        plan.plan.revisit(
            UNREACHABLE,
            "the workload cluster does not answer, and nobody tells when it does",
        );
    }
    if observed.deleting {
        return ownership::plan_deletion(observed, plan);
    }
    if !observed.cluster.infrastructure_ready {
        return plan.wait(
            "WaitingForInfrastructure",
            "waiting for the cluster's infrastructure",
        );
    }
    if !observed.cluster.endpoint_known {
        return plan.wait(
            "WaitingForEndpoint",
            "waiting for Cluster.spec.controlPlaneEndpoint",
        );
    }
    if !observed.foreign.is_empty() {
        return plan.wait(
            "MixedOwnership",
            format!(
                "refusing to work beside another owner: control plane machines {} belong to somebody else",
                observed.foreign.join(", ")
            ),
        );
    }
    if !observed.adoptable.is_empty() {
        return ownership::plan_adoption(observed, plan);
    }
    for server in &observed.servers {
        let machine = server.name.clone();
        // On every server from the start, so that whoever deletes one, its member leaves first.
        if !server.hooks.ours && !server.is_deleting() {
            plan = plan.act(
                Action::AddHook { machine },
                "whoever deletes the machine, its etcd member leaves first",
            );
        }
        let machine = server.name.clone();
        if server.health_check.ours_to_remediate && !server.health_check.failed && !server.is_deleting() {
            plan = plan.act(
                Action::ClearRemediationMark { machine },
                "its health check succeeds again",
            );
        }
    }
    if remediation::is_stale(observed) {
        plan = plan.act(
            Action::ForgetRemediation,
            "no machine is missing because of it any more",
        );
    }
    if let Workload::Reachable(view) = &observed.workload {
        for node in view.nodes.iter().filter(|node| node.placeholder) {
            let done = node.removed_member.is_some()
                || !node.removal_requested
                || !view
                    .members
                    .iter()
                    .flatten()
                    .any(|member| Some(member.name.as_str()) == node.member.as_deref());
            if done {
                plan = plan.act(
                    Action::DeletePlaceholder {
                        node: node.name.clone(),
                    },
                    "the member it stands for is gone",
                );
            }
        }
        for (node, member) in withdrawn(observed, view, now) {
            plan = plan.act(
                Action::WithdrawRemoval { node, member },
                "the machine stays, or its member may not leave any more",
            );
        }
    }
    operate(observed, now, plan)
}

/// Requests of ours that no longer hold: the machine stays, or its member may not leave any more.
fn withdrawn(observed: &Observed, view: &View, now: Timestamp) -> Vec<(String, String)> {
    let requested = view
        .nodes
        .iter()
        .filter(|node| node.removal_requested && node.removal_is_ours && !node.placeholder);
    requested
        .filter_map(|node| {
            let member = node.member.as_ref()?;
            let listed = view.members.iter().flatten().any(|entry| entry.name == *member);
            let server = observed
                .servers
                .iter()
                .find(|server| server.node.as_ref() == Some(&node.name))?;
            let holds = server.is_deleting()
                && !matches!(hook::decide_one(server, observed, now), Progress::Stuck(_));
            (listed && !holds).then(|| (node.name.clone(), member.clone()))
        })
        .collect()
}

/// At most one operation.
fn operate(observed: &Observed, now: Timestamp, plan: Draft) -> Draft {
    let mut plan = plan;
    match orphan::decide(observed, now) {
        Some(Ok((action @ Action::AnnounceOrphan { .. }, why))) => {
            plan = plan.act(action, why).again_in(WAITING);
        }
        Some(Ok((action, why))) => return plan.act(action, why),
        Some(Err(why)) => plan = plan.wait("OrphanedEtcdMember", why).again_in(WAITING),
        None => {}
    }
    match hook::decide(observed, now) {
        Progress::Act(action, why) => return plan.act(action, why),
        Progress::Wait(why) => {
            let going = observed.servers.iter().any(Server::is_going);
            let after = if going { GOING_HOST } else { WAITING };
            return plan.wait("WaitingForDeletion", why).again_in(after);
        }
        Progress::Stuck(why) => return unstick(observed, now, plan.wait("QuorumAtRisk", why)),
        Progress::Idle => {}
    }
    if let Some(server) = observed
        .servers
        .iter()
        .find(|server| server.in_place == InPlace::HalfTriggered)
    {
        return plan.act(
            Action::UpdateInPlace {
                machine: server.name.clone(),
            },
            "its update was begun, and is carried to its end",
        );
    }
    let (plan, replaced) = remediate(observed, now, plan);
    if replaced {
        return plan;
    }
    if let Some(server) = observed
        .servers
        .iter()
        .find(|server| server.in_place == InPlace::Updating)
    {
        return plan.wait(
            "UpdatingInPlace",
            format!("machine {} is being updated in place", server.name),
        );
    }
    let outdated = observed
        .servers
        .iter()
        .any(|server| server.is_outdated() && !server.is_deleting());
    if outdated && observed.initialized {
        return roll_out(observed, now, plan);
    }
    scale(observed, now, plan)
}

/// A server somebody deleted cannot go: a dead one is taken away first, or a replacement joins first.
fn unstick(observed: &Observed, now: Timestamp, plan: Draft) -> Draft {
    let (plan, replaced) = remediate(observed, now, plan);
    let staying = observed
        .servers
        .iter()
        .filter(|server| !server.is_deleting())
        .count();
    // Where all that stay are enough, it is something else that must come first, and the wait says what.
    if replaced || staying >= observed.desired.replicas {
        return plan.again_in(WAITING);
    }
    match preflight::check(observed, now, Change::Replace) {
        Ok(()) => plan.act(
            create(observed),
            "a server that is being deleted cannot go before its replacement has joined",
        ),
        Err(why) => plan.wait_all("PreflightChecks", why).again_in(WAITING),
    }
}

/// Adds what remediation wants, and says whether that is an operation.
fn remediate(observed: &Observed, now: Timestamp, mut plan: Draft) -> (Draft, bool) {
    match remediation::decide(observed, now) {
        Decision::Nothing => {}
        Decision::Replace { machine, record } => {
            let action = Action::DeleteServer {
                machine,
                why: Why::Remediation(record),
            };
            return (plan.act(action, "its health check failed"), true);
        }
        Decision::Deferred { machine, reason } => {
            let told = format!("machine {machine} is not replaced yet: {reason}");
            plan = explain(plan, machine, false, reason)
                .wait("RemediationDeferred", told)
                .again_in(WAITING);
        }
        Decision::Impossible { machine, reason } => {
            let told = format!("machine {machine} cannot be replaced: {reason}");
            plan = explain(plan, machine, true, reason).wait("CannotBeRemediated", told);
        }
    }
    (plan, false)
}

fn explain(plan: Draft, machine: String, impossible: bool, reason: String) -> Draft {
    let action = Action::ExplainRemediation {
        machine,
        impossible,
        reason,
    };
    plan.act(action, "whoever asked for it reads it there")
}

fn scale(observed: &Observed, now: Timestamp, plan: Draft) -> Draft {
    let (have, want) = (observed.servers.len(), observed.desired.replicas);
    if have == 0 {
        if !observed.missing_secrets.is_empty() {
            return plan.wait(
                "MissingSecrets",
                format!(
                    "the first server cannot start without {}",
                    observed.missing_secrets.join(", ")
                ),
            );
        }
        // A first server would look like the same cluster with nothing in it.
        if observed.initialized && observed.desired.embedded_etcd {
            return plan.wait(
                "StateLost",
                "all servers of an initialised control plane are gone, and the cluster's state with them: no first server is \
                 made a second time; delete the Cluster, or restore it from a snapshot as docs/k3s/quorum.md says",
            );
        }
        return plan.act(create(observed), "there is no server yet");
    }
    if have < want {
        return grow(observed, now, plan);
    }
    if have > want {
        let Some(server) = select::to_remove(observed, now) else {
            return plan;
        };
        return shrink(observed, now, server, Why::ScaleDown, plan);
    }
    plan
}

fn create(observed: &Observed) -> Action {
    Action::CreateServer {
        failure_domain: select::failure_domain(observed),
        remediation_for: observed.remediation_in_progress.clone(),
    }
}

fn grow(observed: &Observed, now: Timestamp, mut plan: Draft) -> Draft {
    if !observed.initialized {
        return plan.wait(
            "WaitingForFirstServer",
            "waiting for the first server to answer before others join",
        );
    }
    let (have, want) = (observed.servers.len(), observed.desired.replicas);
    match preflight::check(observed, now, Change::Add) {
        Ok(()) => {
            let why = if have < want {
                "replicas are missing"
            } else {
                "outdated servers are replaced, and the replacement joins first"
            };
            plan.entry(create(observed), why)
                .changing("servers", have, have + 1);
            plan
        }
        Err(why) => plan.wait_all("PreflightChecks", why).again_in(WAITING),
    }
}

fn shrink(observed: &Observed, now: Timestamp, server: &Server, why: Why, plan: Draft) -> Draft {
    if let Err(blockers) = preflight::check(observed, now, Change::Remove(&server.name)) {
        return plan.wait_all("PreflightChecks", blockers).again_in(WAITING);
    }
    if observed.desired.embedded_etcd {
        // One without a member takes none along; the hook keeps its host until it is sure that none comes.
        let member = hook::member_of(server, observed);
        let refused =
            member.and_then(
                |member| match quorum::project(observed, now, Projected::Remove(&member.name)) {
                    None => Some("the members of etcd are not known".to_owned()),
                    Some(projection) if !projection.holds() => Some(projection.to_string()),
                    Some(_) => quorum::below_floor(observed, now, server, member),
                },
            );
        if let Some(why) = refused {
            return plan
                .wait(
                    "QuorumAtRisk",
                    format!("machine {} cannot be removed: {why}", server.name),
                )
                .again_in(WAITING);
        }
    }
    if quorum::voting_servers(observed, now, &server.name) == 0 {
        return plan.wait(
            "QuorumAtRisk",
            format!(
                "machine {} cannot be removed: no other server is healthy",
                server.name
            ),
        );
    }
    let have = observed.servers.len();
    let because = match why {
        Why::ScaleDown => format!(
            "{have} servers are there, {} are desired",
            observed.desired.replicas
        ),
        Why::Rollout => outdated(server),
        Why::Remediation(_) => "its health check failed".to_owned(),
    };
    let mut plan = plan;
    let action = Action::DeleteServer {
        machine: server.name.clone(),
        why,
    };
    plan.entry(action, because).changing("servers", have, have - 1);
    plan
}

/// Why a server is rolled.
fn outdated(server: &Server) -> String {
    let reasons: Vec<String> = server.outdated.iter().map(ToString::to_string).collect();
    reasons.join("; ")
}

fn roll_out(observed: &Observed, now: Timestamp, plan: Draft) -> Draft {
    let in_place = observed.desired.strategy != RolloutStrategyType::RollingUpdate;
    if in_place && observed.servers.len() < observed.desired.replicas {
        return grow(observed, now, plan);
    }
    if in_place && observed.servers.len() > observed.desired.replicas {
        // One too many goes before any is restarted.
        return match select::to_remove(observed, now) {
            Some(server) => shrink(observed, now, server, Why::Rollout, plan),
            None => plan,
        };
    }
    let up_to_date = observed
        .servers
        .iter()
        .filter(|server| !server.is_outdated())
        .count();
    let candidate = if in_place && up_to_date < observed.desired.replicas {
        select::to_update(observed, now)
    } else {
        select::to_remove(observed, now)
    };
    let Some(server) = candidate else {
        return plan;
    };
    let external = observed.desired.strategy == RolloutStrategyType::External;
    let eligible = in_place
        && up_to_date < observed.desired.replicas
        // A mark for deletion asks for a replacement, which an external rollout never makes.
        && (external || !server.delete_requested)
        && !server.remediate_requested
        && server
            .outdated
            .iter()
            .all(super::observed::Outdated::can_be_in_place);
    if eligible {
        return update_in_place(observed, now, server, plan);
    }
    if external && up_to_date < observed.desired.replicas {
        return plan.wait(
            "OnlyReplaceable",
            format!(
                "machine {} can only be replaced, which the strategy External forbids: {}",
                server.name,
                outdated(server)
            ),
        );
    }
    replace(observed, now, server, plan)
}

fn replace(observed: &Observed, now: Timestamp, server: &Server, plan: Draft) -> Draft {
    // With fewer than three, a server can only be taken away after its replacement has joined.
    let surge = if observed.desired.replicas < 3 {
        1
    } else {
        observed.desired.max_surge
    };
    if observed.servers.len() < observed.desired.replicas + surge {
        return grow(observed, now, plan);
    }
    shrink(observed, now, server, Why::Rollout, plan)
}

fn update_in_place(observed: &Observed, now: Timestamp, server: &Server, plan: Draft) -> Draft {
    if let Err(blockers) = preflight::check(observed, now, Change::Update(&server.name)) {
        return plan.wait_all("PreflightChecks", blockers).again_in(WAITING);
    }
    let voters = observed
        .workload
        .view()
        .and_then(|view| view.members.as_ref())
        .map_or(0, |members| {
            members.iter().filter(|member| !member.learner).count()
        });
    let mut plan = plan;
    if observed.desired.embedded_etcd && voters > 1 {
        let refused = match hook::member_of(server, observed) {
            None => Some("its etcd member is not known".to_owned()),
            Some(member) => match quorum::project(observed, now, Projected::Restart(&member.name)) {
                None => Some("the members of etcd are not known".to_owned()),
                Some(projection) if !projection.holds() => Some(projection.to_string()),
                Some(_) => quorum::below_floor(observed, now, server, member),
            },
        };
        if let Some(why) = refused {
            return plan
                .wait(
                    "QuorumAtRisk",
                    format!("machine {} cannot be restarted: {why}", server.name),
                )
                .again_in(WAITING);
        }
    }
    let only = observed.desired.embedded_etcd && voters <= 1;
    let external = observed.desired.strategy == RolloutStrategyType::External;
    match observed.in_place_answers.get(&server.name) {
        None => plan.act(
            Action::AskInPlace {
                machine: server.name.clone(),
            },
            outdated(server),
        ),
        Some(InPlaceAnswer::Can) => {
            let mut why = "the update extension can".to_owned();
            if only {
                why.push_str("; it is the only server, so the cluster does not answer while it restarts");
            }
            let action = Action::UpdateInPlace {
                machine: server.name.clone(),
            };
            let entry = plan.entry(action, why);
            for outdated in &server.outdated {
                if let Some((path, from, to)) = outdated.difference() {
                    entry.changing(path, from, to);
                }
            }
            plan
        }
        Some(InPlaceAnswer::Failed(why)) => plan
            .wait(
                "UpdateExtensionFailed",
                format!("the update extension failed for machine {}: {why}", server.name),
            )
            .again_in(Duration::from_secs(30)),
        // The extension may learn what it could not; nothing tells when.
        Some(InPlaceAnswer::Cannot(fields)) if external => plan
            .wait(
                "OnlyReplaceable",
                format!(
                    "machine {} cannot be updated in place, and the strategy External forbids to replace it: {}",
                    server.name,
                    fields.join(", ")
                ),
            )
            .again_in(Duration::from_mins(5)),
        Some(InPlaceAnswer::Nobody) if external => plan
            .wait(
                "NoUpdateExtension",
                format!(
                    "machine {} waits for an update extension: none is registered, and the strategy External forbids to \
                     replace it",
                    server.name
                ),
            )
            .again_in(Duration::from_mins(1)),
        Some(InPlaceAnswer::Cannot(_) | InPlaceAnswer::Nobody) => replace(observed, now, server, plan),
    }
}
