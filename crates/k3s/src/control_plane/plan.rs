//! What to do next: pure, from what is known to at most one step that touches a server or its member. Every refusal
//! and every wait says why.

use std::time::Duration;

use jiff::Timestamp;

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

/// A host that was let go may start k3s again before it is gone: its member is looked for this often.
const GOING_HOST: Duration = Duration::from_secs(5);

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
                | Self::RemoveOrphan { .. }
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
        for (node, member) in withdrawn(observed, view, now) {
            plan = plan.act(Action::WithdrawRemoval { node, member });
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
fn operate(observed: &Observed, now: Timestamp, plan: Plan) -> Plan {
    let mut plan = plan;
    match orphan::decide(observed, now) {
        Some(Ok(action @ Action::AnnounceOrphan { .. })) => {
            plan = plan.act(action).again_in(Duration::from_secs(15));
        }
        Some(Ok(action)) => return plan.act(action),
        Some(Err(why)) => plan = plan.wait(why).again_in(Duration::from_secs(15)),
        None => {}
    }
    match hook::decide(observed, now) {
        Progress::Act(action) => return plan.act(action),
        Progress::Wait(why) => {
            let going = observed.servers.iter().any(Server::is_going);
            let after = if going {
                GOING_HOST
            } else {
                Duration::from_secs(15)
            };
            return plan.wait(why).again_in(after);
        }
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
    let staying = observed
        .servers
        .iter()
        .filter(|server| !server.is_deleting())
        .count();
    // Where all that stay are enough, it is something else that must come first, and the wait says what.
    if replaced || staying >= observed.desired.replicas {
        return plan.again_in(Duration::from_secs(15));
    }
    match preflight::check(observed, now, Change::Replace) {
        Ok(()) => plan.act(create(observed)),
        Err(why) => plan.wait_all(why).again_in(Duration::from_secs(15)),
    }
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
            // A first server would look like the same cluster with nothing in it.
            if observed.desired.embedded_etcd {
                return plan.wait(
                    "all servers of an initialised control plane are gone, and the cluster's state with them: no first \
                     server is made a second time; delete the Cluster, or restore it from a snapshot as docs/k3s/quorum.md \
                     says",
                );
            }
        }
        return plan.act(create(observed));
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

fn grow(observed: &Observed, now: Timestamp, plan: Plan) -> Plan {
    if !observed.initialized {
        return plan.wait("waiting for the first server to answer before others join");
    }
    match preflight::check(observed, now, Change::Add) {
        Ok(()) => plan.act(create(observed)),
        Err(why) => plan.wait_all(why).again_in(Duration::from_secs(15)),
    }
}

fn shrink(observed: &Observed, now: Timestamp, server: &Server, why: Why, plan: Plan) -> Plan {
    if let Err(blockers) = preflight::check(observed, now, Change::Remove(&server.name)) {
        return plan.wait_all(blockers).again_in(Duration::from_secs(15));
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
                .wait(format!("machine {} cannot be removed: {why}", server.name))
                .again_in(Duration::from_secs(15));
        }
    }
    if quorum::voting_servers(observed, now, &server.name) == 0 {
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
                .wait(format!("machine {} cannot be restarted: {why}", server.name))
                .again_in(Duration::from_secs(15));
        }
    } else if observed.desired.embedded_etcd {
        plan = plan.wait(format!(
            "machine {} is the only server: the cluster does not answer while it restarts",
            server.name
        ));
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
