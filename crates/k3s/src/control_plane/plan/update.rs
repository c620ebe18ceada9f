//! How servers are brought up to date: replaced one after the other, or updated in place where an extension can.

use jiff::Timestamp;

use super::{
    super::{
        hook,
        observed::{InPlaceAnswer, Observed, Outdated, Server},
        preflight::{self, Operation},
        quorum::{self, MemberChange},
        select,
    },
    Action, Draft, WAITING, Why,
    scale::{grow, shrink},
};
use crate::api::RolloutStrategyType;

/// Why a server is rolled.
pub(super) fn outdated(server: &Server) -> String {
    let reasons: Vec<String> = server.outdated.iter().map(ToString::to_string).collect();
    reasons.join("; ")
}

pub(super) fn roll_out(observed: &Observed, now: Timestamp, plan: Draft) -> Draft {
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
            .all(Outdated::can_be_in_place);
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
    if let Err(blockers) = preflight::check(observed, now, Operation::Update(&server.name)) {
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
            Some(member) => match quorum::project(observed, now, MemberChange::Restart(&member.name)) {
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
    let answer = observed.in_place_answers.get(&server.name);
    let again = answer.and_then(InPlaceAnswer::stands).unwrap_or(WAITING);
    match answer {
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
            .again_in(again),
        Some(InPlaceAnswer::Cannot(fields)) if external => plan
            .wait(
                "OnlyReplaceable",
                format!(
                    "machine {} cannot be updated in place, and the strategy External forbids to replace it: {}",
                    server.name,
                    fields.join(", ")
                ),
            )
            .again_in(again),
        Some(InPlaceAnswer::Nobody) if external => plan
            .wait(
                "NoUpdateExtension",
                format!(
                    "machine {} waits for an update extension: none is registered, and the strategy External forbids to \
                     replace it",
                    server.name
                ),
            )
            .again_in(again),
        Some(InPlaceAnswer::Cannot(_) | InPlaceAnswer::Nobody) => replace(observed, now, server, plan),
    }
}
