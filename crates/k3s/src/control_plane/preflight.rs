//! What must be true before a server is added, removed or updated: one change at a time, on a plane that is whole.

use jiff::Timestamp;

use super::{
    health::{self, Agent, MemberHealth},
    observed::Observed,
    quorum::{self, MemberChange},
};

/// Why a change waits. Each is a sentence that names the machine, for conditions and events.
pub type Blockers = Vec<String>;

/// Which change is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation<'name> {
    Add,
    /// A server is added because one that is being deleted cannot go before.
    Replace,
    /// The named server is left out of the checks: it is the one that goes.
    Remove(&'name str),
    /// All servers must be whole, the named one included.
    Update(&'name str),
}

impl Operation<'_> {
    fn adds(self) -> bool {
        matches!(self, Self::Add | Self::Replace)
    }
}

pub fn check(observed: &Observed, now: Timestamp, change: Operation<'_>) -> Result<(), Blockers> {
    if observed.servers.is_empty() {
        return Ok(());
    }
    let mut blockers = Vec::new();
    if let Some(version) = awaited_topology_version(observed) {
        blockers.push(format!(
            "waiting for the version {version} to be propagated from Cluster.spec.topology"
        ));
    }
    if change.adds() && !observed.missing_secrets.is_empty() {
        blockers.push(format!(
            "a server cannot join without {}",
            observed.missing_secrets.join(", ")
        ));
    }
    let deleting: Vec<&str> = observed
        .servers
        .iter()
        .filter(|server| server.is_deleting())
        .map(|server| server.name.as_str())
        .collect();
    if !deleting.is_empty() && change != Operation::Replace {
        blockers.push(format!(
            "waiting for machines to be deleted: {}",
            deleting.join(", ")
        ));
    }
    if !blockers.is_empty() {
        return Err(blockers);
    }

    if change.adds()
        && observed.desired.embedded_etcd
        && let Some(view) = observed.workload.view()
    {
        // etcd would refuse the join, or count on one more that is not there.
        let not_alive = quorum::not_alive(observed, view, now);
        if !not_alive.is_empty() {
            return Err(not_alive);
        }
    }
    let whole = whole_blockers(observed, now, change);
    if whole.is_empty() {
        return Ok(());
    }
    if change.adds() && observed.remediation_in_progress.is_some() {
        return relaxed(observed, now);
    }
    Err(whole)
}

/// The version a ClusterClass is about to bring, if it is another one than the present.
pub fn awaited_topology_version(observed: &Observed) -> Option<&str> {
    let desired = observed.cluster.topology_version.as_deref()?;
    let step = observed
        .cluster
        .upgrade_step
        .as_deref()
        .filter(|step| !step.is_empty());
    let version = observed.desired.version.as_str();
    (desired != version && step != Some(version)).then(|| step.unwrap_or(desired))
}

fn whole_blockers(observed: &Observed, now: Timestamp, change: Operation<'_>) -> Blockers {
    let mut blockers = Vec::new();
    let excluded = match change {
        Operation::Remove(name) => Some(name),
        Operation::Add | Operation::Replace | Operation::Update(_) => None,
    };
    for server in observed
        .servers
        .iter()
        .filter(|server| Some(server.name.as_str()) != excluded)
        .filter(|server| !(change == Operation::Replace && server.is_deleting()))
    {
        let name = &server.name;
        match health::agent(server, observed) {
            Agent::Healthy => {}
            Agent::Provisioning => {
                blockers.push(format!("machine {name} has no node yet"));
                continue;
            }
            Agent::NodeMissing(node) => {
                blockers.push(format!("node {node} of machine {name} does not exist"));
                continue;
            }
            Agent::NotReady(reason) => {
                blockers.push(format!("node of machine {name} is not ready: {reason}"));
                continue;
            }
            Agent::Unknown => {
                blockers.push(format!("the state of machine {name} is not known"));
                continue;
            }
        }
        if !observed.desired.embedded_etcd {
            continue;
        }
        match health::member(server, observed, now) {
            MemberHealth::Voter => {}
            MemberHealth::Alarmed(alarm) => {
                blockers.push(format!(
                    "etcd member of machine {name} has raised an alarm: {alarm}"
                ));
            }
            MemberHealth::Learner => {
                blockers.push(format!("etcd member of machine {name} is still a learner"));
            }
            MemberHealth::Unhealthy(why) => {
                blockers.push(format!("etcd member of machine {name} is unhealthy: {why}"));
            }
            MemberHealth::NotAMember => blockers.push(format!("machine {name} is not a member of etcd yet")),
            MemberHealth::Unknown => blockers.push(format!("the etcd member of machine {name} is not known")),
        }
    }
    if observed.desired.embedded_etcd
        && let Some(view) = observed.workload.view()
    {
        let learners = quorum::learners(view);
        if learners > 0 {
            blockers.push(format!("{learners} etcd member(s) have not become voters yet"));
        }
        for member in quorum::unmatched(observed, view) {
            blockers.push(format!("etcd member {} belongs to no machine", member.name));
        }
    }
    blockers
}

/// While a replacement is due, a plane that is not whole may grow if the worst case still leaves it quorum.
fn relaxed(observed: &Observed, now: Timestamp) -> Result<(), Blockers> {
    if quorum::voting_servers(observed, now, "") == 0 {
        return Err(vec![
            "a replacement needs at least one healthy server to join".into(),
        ]);
    }
    // A replacement that is already on its way must arrive or be given up first.
    if let Some(server) = observed
        .servers
        .iter()
        .find(|server| server.node.is_none() && !server.health_check.failed && !server.is_deleting())
    {
        return Err(vec![format!("machine {} has no node yet", server.name)]);
    }
    if !observed.desired.embedded_etcd {
        return Ok(());
    }
    match quorum::project(observed, now, MemberChange::Add) {
        None => Err(vec!["the members of etcd are not known".into()]),
        Some(projection) if projection.learners > 0 => Err(vec![format!(
            "{} etcd member(s) have not become voters yet",
            projection.learners
        )]),
        Some(projection) if !projection.holds() => Err(vec![format!(
            "adding a server could cost etcd its quorum: {projection}"
        )]),
        Some(_) => Ok(()),
    }
}
