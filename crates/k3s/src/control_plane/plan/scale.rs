//! How many servers there are: one is added or taken away, if what is left keeps its quorum.

use jiff::Timestamp;

use super::{
    super::{
        hook,
        observed::{Observed, Server},
        preflight::{self, Operation},
        quorum::{self, MemberChange},
        select,
    },
    Action, Draft, WAITING, Why,
    update::outdated,
};

pub(super) fn scale(observed: &Observed, now: Timestamp, plan: Draft) -> Draft {
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

pub(super) fn create(observed: &Observed) -> Action {
    Action::CreateServer {
        failure_domain: select::failure_domain(observed),
        remediation_for: observed.remediation_in_progress.clone(),
    }
}

pub(super) fn grow(observed: &Observed, now: Timestamp, plan: Draft) -> Draft {
    if !observed.initialized {
        return plan.wait(
            "WaitingForFirstServer",
            "waiting for the first server to answer before others join",
        );
    }
    let (have, want) = (observed.servers.len(), observed.desired.replicas);
    let why = if have < want {
        "replicas are missing"
    } else {
        "outdated servers are replaced, and the replacement joins first"
    };
    add(observed, now, why, plan)
}

fn add(observed: &Observed, now: Timestamp, why: &str, mut plan: Draft) -> Draft {
    let have = observed.servers.len();
    match preflight::check(observed, now, Operation::Add) {
        Ok(()) => {
            plan.entry(create(observed), why)
                .changing("servers", have, have + 1);
            plan
        }
        Err(why) => plan.wait_all("PreflightChecks", why).again_in(WAITING),
    }
}

pub(super) fn shrink(observed: &Observed, now: Timestamp, server: &Server, why: Why, plan: Draft) -> Draft {
    if let Err(blockers) = preflight::check(observed, now, Operation::Remove(&server.name)) {
        return plan.wait_all("PreflightChecks", blockers).again_in(WAITING);
    }
    if observed.desired.embedded_etcd {
        // One without a member takes none along; the hook keeps its host until it is sure that none comes.
        let member = hook::member_of(server, observed);
        let refused = member.and_then(|member| {
            match quorum::project(observed, now, MemberChange::Remove(&member.name)) {
                None => Some("the members of etcd are not known".to_owned()),
                Some(projection) if !projection.holds() => Some(projection.to_string()),
                Some(_) => quorum::below_floor(observed, now, server, member),
            }
        });
        if let Some(why) = refused {
            return plan
                .wait(
                    "QuorumAtRisk",
                    format!("machine {} cannot be removed: {why}", server.name),
                )
                .again_in(WAITING);
        }
        if let Some(why) = member.and_then(|_| quorum::host_is_counted_on(observed, now, server)) {
            return add(
                observed,
                now,
                &format!("machine {} goes: {why}", server.name),
                plan,
            );
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
