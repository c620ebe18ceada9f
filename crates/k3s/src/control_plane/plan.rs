//! What to do next: pure, from what is known to at most one step that touches a server or its member. Every refusal
//! and every wait says why.

use std::time::Duration;

use jiff::Timestamp;

use super::{
    health,
    hook::{self, Progress},
    observed::{InPlace, InPlaceAnswer, Observed, RemediationRecord, Server, Workload},
    ownership,
    preflight::{self, Change},
    quorum::{self, Step},
    remediation::{self, Decision},
    select,
};
use crate::api::RolloutStrategyType;

/// How long a member is seen without a machine and without a node before it is taken for a ghost.
pub const GHOST_GRACE: Duration = Duration::from_mins(2);
/// How young a node is whose member may not have its name yet.
pub const YOUNG_NODE: Duration = Duration::from_secs(20);

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
        initialize: bool,
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
    },
    /// Ask k3s to remove a member that has no node, through a placeholder.
    RemoveGhost {
        member: String,
        address: String,
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
    /// Let the control plane object go.
    RemoveFinalizer,
}

impl Action {
    /// Whether the action changes the servers or the members of etcd: of those there is at most one at a time.
    pub fn is_operation(&self) -> bool {
        matches!(
            self,
            Self::CreateServer { .. }
                | Self::DeleteServer { .. }
                | Self::RemoveMember { .. }
                | Self::RemoveGhost { .. }
                | Self::ReleaseHook { .. }
                | Self::UpdateInPlace { .. }
        )
    }
}

/// What is done now, and what is waited for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub actions: Vec<Action>,
    /// Why nothing more is done now, for conditions and events.
    pub waiting: Vec<String>,
    /// Fields that keep an external rollout from going on.
    pub blocked_fields: Vec<String>,
    /// When to look again, where no event will tell.
    pub look_again: Option<Duration>,
}

impl Plan {
    pub(super) fn act(mut self, action: Action) -> Self {
        self.actions.push(action);
        self
    }

    pub(super) fn wait(mut self, why: impl Into<String>) -> Self {
        self.waiting.push(why.into());
        self
    }

    fn wait_all(mut self, why: Vec<String>) -> Self {
        self.waiting.extend(why);
        self
    }

    fn again_in(mut self, after: Duration) -> Self {
        self.look_again = Some(self.look_again.map_or(after, |present| present.min(after)));
        self
    }
}

pub fn plan(observed: &Observed, now: Timestamp) -> Plan {
    let plan = Plan::default();
    if observed.unseen_writes {
        return plan
            .wait("waiting to see the last change")
            .again_in(Duration::from_secs(1));
    }
    if observed.deleting {
        return ownership::plan_deletion(observed, plan);
    }
    if !observed.cluster.infrastructure_ready {
        return plan.wait("waiting for the cluster's infrastructure");
    }
    if !observed.cluster.endpoint_known {
        return plan.wait("waiting for Cluster.spec.controlPlaneEndpoint");
    }
    if !observed.foreign.is_empty() {
        return plan.wait(format!(
            "refusing to work beside another owner: control plane machines {} belong to somebody else",
            observed.foreign.join(", ")
        ));
    }
    if !observed.adoptable.is_empty() {
        return ownership::plan_adoption(observed, plan);
    }
    let mut plan = plan;
    for server in &observed.servers {
        // On every server from the start, so that whoever deletes one, its member leaves first.
        if !server.hooks.ours && !server.is_deleting() {
            plan = plan.act(Action::AddHook {
                machine: server.name.clone(),
            });
        }
        if server.health_check.ours_to_remediate && !server.health_check.failed && !server.is_deleting() {
            plan = plan.act(Action::ClearRemediationMark {
                machine: server.name.clone(),
            });
        }
    }
    if remediation::is_stale(observed) {
        plan = plan.act(Action::ForgetRemediation);
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
                plan = plan.act(Action::DeletePlaceholder {
                    node: node.name.clone(),
                });
            }
        }
    }
    operate(observed, now, plan)
}

/// At most one operation.
fn operate(observed: &Observed, now: Timestamp, plan: Plan) -> Plan {
    let mut plan = plan;
    match ghost(observed, now) {
        Some(Ok(action)) => return plan.act(action),
        Some(Err(why)) => plan = plan.wait(why).again_in(Duration::from_secs(15)),
        None => {}
    }
    match hook::decide(observed, now) {
        Progress::Act(action) => return plan.act(action),
        Progress::Wait(why) => return plan.wait(why).again_in(Duration::from_secs(15)),
        Progress::Stuck(why) => return unstick(observed, now, plan.wait(why)),
        Progress::Idle => {}
    }
    if let Some(server) = observed
        .servers
        .iter()
        .find(|server| server.in_place == InPlace::HalfTriggered)
    {
        return plan.act(Action::UpdateInPlace {
            machine: server.name.clone(),
        });
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
        return plan.wait(format!("machine {} is being updated in place", server.name));
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
fn unstick(observed: &Observed, now: Timestamp, plan: Plan) -> Plan {
    let (plan, replaced) = remediate(observed, now, plan);
    if replaced || observed.servers.iter().any(|server| !server.is_deleting()) {
        return plan.again_in(Duration::from_secs(15));
    }
    let settled = observed
        .workload
        .view()
        .is_some_and(|view| quorum::learners(view) == 0 && quorum::unmatched(observed, view).is_empty());
    if settled && observed.missing_secrets.is_empty() && quorum::healthy_servers(observed, now, "") > 0 {
        return plan.act(create(observed, false));
    }
    plan.again_in(Duration::from_secs(15))
}

/// Adds what remediation wants, and says whether that is an operation.
fn remediate(observed: &Observed, now: Timestamp, mut plan: Plan) -> (Plan, bool) {
    match remediation::decide(observed, now) {
        Decision::Nothing => {}
        Decision::Replace { machine, record } => {
            let action = Action::DeleteServer {
                machine,
                why: Why::Remediation(record),
            };
            return (plan.act(action), true);
        }
        Decision::Deferred { machine, reason } => {
            plan = plan
                .act(Action::ExplainRemediation {
                    machine: machine.clone(),
                    impossible: false,
                    reason: reason.clone(),
                })
                .wait(format!("machine {machine} is not replaced yet: {reason}"))
                .again_in(Duration::from_secs(15));
        }
        Decision::Impossible { machine, reason } => {
            plan = plan
                .act(Action::ExplainRemediation {
                    machine: machine.clone(),
                    impossible: true,
                    reason: reason.clone(),
                })
                .wait(format!("machine {machine} cannot be replaced: {reason}"));
        }
    }
    (plan, false)
}

fn scale(observed: &Observed, now: Timestamp, plan: Plan) -> Plan {
    let (have, want) = (observed.servers.len(), observed.desired.replicas);
    if have == 0 {
        if !observed.missing_secrets.is_empty() {
            return plan.wait(format!(
                "the first server cannot start without {}",
                observed.missing_secrets.join(", ")
            ));
        }
        if observed.initialized {
            // Starting anew would look like the same cluster with nothing in it.
            if observed.remediation_in_progress.is_none() && observed.desired.embedded_etcd {
                return plan.wait(
                    "all servers of an initialised control plane are gone, and the cluster's state with them; \
                     delete the Cluster, or restore the machines",
                );
            }
        }
        return plan.act(create(observed, true));
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

fn create(observed: &Observed, initialize: bool) -> Action {
    Action::CreateServer {
        initialize,
        failure_domain: select::failure_domain(observed),
        remediation_for: observed.remediation_in_progress.clone(),
    }
}

fn grow(observed: &Observed, now: Timestamp, plan: Plan) -> Plan {
    if !observed.initialized {
        return plan.wait("waiting for the first server to answer before others join");
    }
    match preflight::check(observed, now, Change::Add) {
        Ok(()) => plan.act(create(observed, false)),
        Err(why) => plan.wait_all(why).again_in(Duration::from_secs(15)),
    }
}

fn shrink(observed: &Observed, now: Timestamp, server: &Server, why: Why, plan: Plan) -> Plan {
    if let Err(blockers) = preflight::check(observed, now, Change::Remove(&server.name)) {
        return plan.wait_all(blockers).again_in(Duration::from_secs(15));
    }
    if observed.desired.embedded_etcd {
        let member = hook::member_of(server, observed);
        let step = Step {
            remove: member.as_deref(),
            distrust_unmatched: server.node.is_none(),
            ..Step::default()
        };
        match quorum::project(observed, now, step) {
            None => return plan.wait("the members of etcd are not known"),
            Some(projection) if !projection.holds() => {
                return plan.wait(format!("machine {} cannot be removed: {projection}", server.name));
            }
            Some(_) => {}
        }
    }
    if quorum::healthy_servers(observed, now, &server.name) == 0 {
        return plan.wait(format!(
            "machine {} cannot be removed: no other server is healthy",
            server.name
        ));
    }
    plan.act(Action::DeleteServer {
        machine: server.name.clone(),
        why,
    })
}

fn roll_out(observed: &Observed, now: Timestamp, plan: Plan) -> Plan {
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
        let reasons: Vec<String> = server.outdated.iter().map(ToString::to_string).collect();
        let mut plan = plan.wait(format!(
            "machine {} can only be replaced, which the strategy External forbids: {}",
            server.name,
            reasons.join("; ")
        ));
        plan.blocked_fields = reasons;
        return plan;
    }
    replace(observed, now, server, plan)
}

fn replace(observed: &Observed, now: Timestamp, server: &Server, plan: Plan) -> Plan {
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

fn update_in_place(observed: &Observed, now: Timestamp, server: &Server, plan: Plan) -> Plan {
    if let Err(blockers) = preflight::check(observed, now, Change::Update(&server.name)) {
        return plan.wait_all(blockers).again_in(Duration::from_secs(15));
    }
    let voters = observed
        .workload
        .view()
        .and_then(|view| view.members.as_ref())
        .map_or(0, |members| {
            members.iter().filter(|member| !member.learner).count()
        });
    if observed.desired.embedded_etcd && voters > 1 {
        let member = hook::member_of(server, observed);
        let step = Step {
            restart: member.as_deref(),
            ..Step::default()
        };
        match quorum::project(observed, now, step) {
            Some(projection) if projection.holds() => {}
            Some(projection) => {
                return plan.wait(format!(
                    "machine {} cannot be restarted: {projection}",
                    server.name
                ));
            }
            None => return plan.wait("the members of etcd are not known"),
        }
    }
    let external = observed.desired.strategy == RolloutStrategyType::External;
    match observed.in_place_answers.get(&server.name) {
        None => plan.act(Action::AskInPlace {
            machine: server.name.clone(),
        }),
        Some(InPlaceAnswer::Can) => plan.act(Action::UpdateInPlace {
            machine: server.name.clone(),
        }),
        Some(InPlaceAnswer::Failed(why)) => plan
            .wait(format!("the update extension failed for machine {}: {why}", server.name))
            .again_in(Duration::from_secs(30)),
        Some(InPlaceAnswer::Cannot(fields)) if external => {
            let why = format!(
                "machine {} cannot be updated in place, and the strategy External forbids to replace it: {}",
                server.name,
                fields.join(", ")
            );
            // The extension may learn what it could not; nothing tells when.
            let mut plan = plan.wait(why).again_in(Duration::from_mins(5));
            plan.blocked_fields.clone_from(fields);
            plan
        }
        Some(InPlaceAnswer::Nobody) if external => plan
            .wait(format!(
                "machine {} waits for an update extension: none is registered, and the strategy External forbids to \
                 replace it",
                server.name
            ))
            .again_in(Duration::from_mins(1)),
        Some(InPlaceAnswer::Cannot(_) | InPlaceAnswer::Nobody) => replace(observed, now, server, plan),
    }
}

/// A member nobody has a machine or a living node for: removed, one at a time, when it has been so for a while and
/// nothing is on its way that it could belong to.
fn ghost(observed: &Observed, now: Timestamp) -> Option<Result<Action, String>> {
    if !observed.desired.embedded_etcd || !observed.initialized {
        return None;
    }
    let view = observed.workload.view()?;
    let coming = observed
        .servers
        .iter()
        .any(|server| server.node.is_none() && !server.is_deleting());
    let young = view
        .nodes
        .iter()
        .any(|node| !node.placeholder && health::age(node.registered_at, now) < YOUNG_NODE);
    let mut candidates: Vec<_> = quorum::unmatched(observed, view)
        .into_iter()
        .filter(|member| {
            view.nodes
                .iter()
                .filter(|node| !node.placeholder)
                .all(|node| node.member.as_deref() != Some(member.name.as_str()) || !node.ready)
        })
        .collect();
    candidates.sort_by_key(|member| member.name.clone());
    let member = candidates.first()?;
    if coming || young {
        return Some(Err(format!(
            "etcd member {} belongs to no machine; a machine is still on its way",
            member.name
        )));
    }
    let since = member.ghost_since.unwrap_or(now);
    if health::age(since, now) < GHOST_GRACE {
        return Some(Err(format!(
            "etcd member {} belongs to no machine since {since}",
            member.name
        )));
    }
    match hook::remove_unmatched(member, view, observed, now) {
        Ok(Progress::Act(action)) => Some(Ok(action)),
        Ok(Progress::Wait(why) | Progress::Stuck(why)) | Err(why) => Some(Err(why)),
        Ok(Progress::Idle) => None,
    }
}
