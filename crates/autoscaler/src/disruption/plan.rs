//! From the cluster as it stands to the commands that may begin: pure but for the thread that the planning runs on. What packing
//! decides to save money is decided once more fifteen seconds later, before anything is done about it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use slipway_packing::{
    disrupt::{Command, Decision, Method, Outcome, Reason, disrupt_among},
    model::Snapshot,
    schedule,
};

use crate::{
    making::{Creation, Maker},
    options::Gates,
    watched::Observed,
};

/// How long a decision that saves money has to hold before it is carried out, as Karpenter has it.
pub const VALIDATED_AFTER: Duration = Duration::from_secs(15);

/// Decided, and to be decided once more.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    pub command: Command,
    pub due: Timestamp,
}

/// A command that begins, and the claims to make for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    pub command: Command,
    pub creations: Vec<Creation>,
}

/// What a look at the cluster comes to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Why nothing is done at all.
    pub waits: Option<String>,
    pub start: Vec<Start>,
    /// What is decided and waits to be decided once more.
    pub proposals: Vec<Proposal>,
    /// What was decided a while ago and no longer holds.
    pub dropped: Vec<Proposal>,
    /// Why Nodes stay.
    pub blocked: BTreeMap<String, String>,
    /// How many Nodes of each NodePool may go, by reason.
    pub allowed: BTreeMap<(String, Reason), usize>,
    /// How many Nodes could go, by method.
    pub eligible: BTreeMap<Reason, usize>,
    /// Time alone may change the answer: a budget holds something up.
    pub is_constrained: bool,
    /// Seconds that each method took.
    pub seconds: Vec<(Method, f64)>,
}

fn described(command: &Command) -> String {
    let what = match command.decision {
        Decision::Delete => "delete",
        Decision::Replace => "replace",
        Decision::TerminateFirst => "delete, before a replacement can come,",
        Decision::Reboot => "reboot",
    };
    let kinds: Vec<&str> = command
        .replacements
        .iter()
        .filter_map(|claim| claim.instance_types.iter().next().map(|name| &**name))
        .collect();
    let by = if kinds.is_empty() {
        String::new()
    } else {
        format!(" by {}", kinds.join(", "))
    };
    format!(
        "{what} {}{by} for being {} ({:?}), which saves {:.4} per hour",
        command.nodes.join(", "),
        command.reason.name(),
        command.method,
        command.savings
    )
}

impl fmt::Display for Plan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(why) = &self.waits {
            return writeln!(formatter, "wait: {why}");
        }
        if self.start.is_empty() && self.proposals.is_empty() && self.dropped.is_empty() {
            writeln!(formatter, "nothing to do")?;
        }
        for start in &self.start {
            writeln!(formatter, "{}", described(&start.command))?;
        }
        for proposal in &self.proposals {
            let what = described(&proposal.command);
            writeln!(formatter, "decide once more at {:.0}: {what}", proposal.due)?;
        }
        for proposal in &self.dropped {
            writeln!(formatter, "no longer holds: {}", described(&proposal.command))?;
        }
        for (node, why) in &self.blocked {
            writeln!(formatter, "{node} stays: {why}")?;
        }
        Ok(())
    }
}

/// Whether what a method decides is decided once more before it is done.
pub fn is_validated(method: Method) -> bool {
    match method {
        Method::Repair | Method::StaticDrift | Method::Drift => false,
        Method::Emptiness
        | Method::CostConsolidation
        | Method::MultiNodeConsolidation
        | Method::SingleNodeConsolidation => true,
    }
}

fn is_on(method: Method, gates: Gates) -> bool {
    match method {
        Method::Repair => gates.node_repair,
        Method::StaticDrift => gates.static_capacity,
        _ => true,
    }
}

/// Plans, on a thread that may take its time.
pub async fn decide(
    observed: Observed,
    proposals: Vec<Proposal>,
    gates: Gates,
    now: Timestamp,
) -> (Plan, Observed) {
    let planned = tokio::task::spawn_blocking(move || {
        let plan = plan(&observed, proposals, gates, now);
        (plan, observed)
    });
    planned.await.unwrap_or_else(|error| {
        let waits = Some(format!("planning failed: {error}"));
        let plan = Plan {
            waits,
            ..Plan::default()
        };
        (plan, Observed::default())
    })
}

pub fn plan(observed: &Observed, proposals: Vec<Proposal>, gates: Gates, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    if let Some(rival) = observed.rival.as_ref().filter(|rival| rival.until > now) {
        plan.waits = Some(rival.to_string());
        return plan;
    }
    let mut search = Search::new(observed);
    let (due, early): (Vec<Proposal>, Vec<Proposal>) =
        proposals.into_iter().partition(|proposal| proposal.due <= now);
    for proposal in &early {
        search.take(&proposal.command);
    }
    plan.proposals = early;
    for proposal in due {
        match search.holds(&proposal.command) {
            Some(start) => {
                search.take(&start.command);
                plan.start.push(start);
            }
            None => plan.dropped.push(proposal),
        }
    }
    let due = now
        .checked_add(SignedDuration::try_from(VALIDATED_AFTER).unwrap_or_default())
        .unwrap_or(Timestamp::MAX);
    for method in Method::ALL {
        // What has begun changes the cluster: the rest is decided when it is there to be seen.
        let is_another_cluster = plan.start.iter().any(|start| !start.creations.is_empty());
        if is_another_cluster || !is_on(method, gates) {
            continue;
        }
        let started = tokio::time::Instant::now();
        let outcome = search.ask(method, None);
        plan.seconds.push((method, started.elapsed().as_secs_f64()));
        plan.is_constrained |= outcome.constrained_by_budgets;
        for (pool, allowed) in &outcome.allowed {
            let key = (pool.clone(), method.reason());
            plan.allowed.insert(key, *allowed);
        }
        let nodes = outcome.commands().map(|command| command.nodes.len());
        *plan.eligible.entry(method.reason()).or_default() += nodes.sum::<usize>();
        plan.blocked.extend(outcome.blocked.clone());
        for command in outcome.commands() {
            match search.start(command.clone()) {
                Err(why) => {
                    let nodes = command.nodes.iter();
                    plan.blocked.extend(nodes.map(|node| (node.clone(), why.clone())));
                }
                Ok(_) if is_validated(method) => {
                    search.take(command);
                    plan.proposals.push(Proposal {
                        command: command.clone(),
                        due,
                    });
                }
                Ok(start) => {
                    search.take(command);
                    plan.start.push(start);
                }
            }
        }
    }
    plan
}

/// Decides a command that is about to begin once more, over a cluster that was read past the caches.
pub fn confirm(observed: &Observed, command: &Command, now: Timestamp) -> Option<Start> {
    let is_rivalled = observed.rival.as_ref().is_some_and(|rival| rival.until > now);
    if is_rivalled {
        return None;
    }
    Search::new(observed).holds(command)
}

struct Search<'a> {
    observed: &'a Observed,
    snapshot: Snapshot,
    maker: Maker<'a>,
}

impl<'a> Search<'a> {
    fn new(observed: &'a Observed) -> Self {
        let mut snapshot = observed.snapshot.clone();
        // Pods that will find a place on a node keep it.
        if !observed.pods.is_empty() {
            let placed = schedule(&snapshot, &observed.pods).existing;
            snapshot
                .nominated_nodes
                .extend(placed.into_iter().map(|node| node.node));
        }
        Search {
            observed,
            snapshot,
            maker: Maker::new(observed),
        }
    }

    /// The nodes of a command are spoken for.
    fn take(&mut self, command: &Command) {
        self.snapshot.deleting_nodes.extend(command.nodes.iter().cloned());
    }

    fn ask(&self, method: Method, among: Option<&BTreeSet<String>>) -> Outcome {
        let waiting = &self.observed.pods[..self.observed.waiting];
        disrupt_among(&self.snapshot, waiting, method, among)
    }

    /// What is left of a command, if it still holds: never another node than before.
    fn holds(&mut self, command: &Command) -> Option<Start> {
        let nodes: BTreeSet<String> = command.nodes.iter().cloned().collect();
        let found = self.ask(command.method, Some(&nodes));
        let found = found
            .commands()
            .find(|found| found.decision == command.decision || found.decision == Decision::Delete)?;
        self.start(found.clone()).ok()
    }

    /// The command with the claims that it needs.
    fn start(&mut self, command: Command) -> Result<Start, String> {
        if command.decision == Decision::Reboot {
            return Err("Cluster API cannot start a Machine again: use a policy that replaces it".to_owned());
        }
        let mut creations = Vec::new();
        for new in &command.replacements {
            creations.extend(self.maker.make(new)?);
        }
        if creations.len() < command.replacements.len() {
            return Err("the NodePool of a replacement is gone".to_owned());
        }
        Ok(Start { command, creations })
    }
}
