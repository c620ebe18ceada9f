//! What a plan says to somebody who asks: pure, text out.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
};

use slipway_packing::{
    labels::PACKING,
    model::{CandidateKind, NewClaim, PackingPolicy, Pod, PodRefusal, Snapshot},
    optimum, schedule,
};

use crate::{
    provisioner::plan::{Creation, Plan},
    safety::Rival,
};

/// What the new nodes cost by either policy, and what they cost at least.
#[derive(Clone, Debug, PartialEq)]
pub struct Priced {
    by_karpenter: (usize, f64),
    by_cost: (usize, f64),
    bound: f64,
    /// What the flag says; NodePools may say something else.
    policy: PackingPolicy,
}

impl Priced {
    pub fn of(snapshot: &Snapshot, pods: &[Pod]) -> Self {
        let mut ordinary = snapshot.clone();
        ordinary.options.packing = PackingPolicy::Karpenter;
        for pool in &mut ordinary.node_pools {
            pool.metadata.annotations.remove(PACKING);
        }
        let by_karpenter = schedule(&ordinary, pods).new_claims;
        let optimum = optimum::plan(snapshot, pods);
        let price = |claims: &[NewClaim]| claims.iter().map(|claim| claim.cheapest_price).sum();
        Priced {
            by_karpenter: (by_karpenter.len(), price(&by_karpenter)),
            by_cost: (optimum.plan.new_claims.len(), optimum.cost),
            bound: optimum.bound,
            policy: snapshot.options.packing,
        }
    }
}

impl fmt::Display for Priced {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of =
            |(nodes, cost): (usize, f64)| format!("{} at {cost:.4} per hour", counted(nodes, "new node"));
        let (this, other) = match self.policy {
            PackingPolicy::Karpenter => (("karpenter", self.by_karpenter), ("cost", self.by_cost)),
            PackingPolicy::Cost => (("cost", self.by_cost), ("karpenter", self.by_karpenter)),
        };
        writeln!(formatter, "policy {}: {}", this.0, of(this.1))?;
        writeln!(formatter, "policy {} would make {}", other.0, of(other.1))?;
        writeln!(
            formatter,
            "no plan for these pods costs less than {:.4} per hour",
            self.bound
        )
    }
}

/// Why nothing of it is done now, if so.
fn held_back(rival: Option<&Rival>) -> String {
    rival.map_or_else(String::new, |rival| {
        format!("Nothing is done now: {rival}.\nWithout it:\n")
    })
}

fn counted(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}

/// A pod that gets nothing: each reason once, with everybody who has it.
fn refusal(refusal: &PodRefusal) -> String {
    let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
    for candidate in &refusal.candidates {
        let what = match candidate.kind {
            CandidateKind::NodePool => format!("NodePool {}", candidate.name),
            CandidateKind::NewClaim => counted(candidate.count, "other new node"),
            CandidateKind::Node if candidate.count > 1 => counted(candidate.count, "node"),
            CandidateKind::Node => format!("node {}", candidate.name),
        };
        let own = format!("nodepool {}: ", candidate.name);
        let reason = candidate.reason.strip_prefix(&own).unwrap_or(&candidate.reason);
        match reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, who)) => who.push(what),
            None => reasons.push((reason, vec![what])),
        }
    }
    // The message is what the NodePools say, one after the other.
    let is_listed = refusal.candidates.iter().any(|candidate| {
        candidate.kind == CandidateKind::NodePool && refusal.message.contains(&candidate.reason)
    });
    let mut text = if is_listed {
        format!("{} gets no node:\n", refusal.pod)
    } else {
        format!("{} gets no node: {}\n", refusal.pod, refusal.message)
    };
    for (reason, who) in reasons {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {}: {reason}", who.join(", "));
    }
    text
}

fn creation(creation: &Creation) -> String {
    format!(
        "a new node of NodePool {}: {} from {}, at {} per hour\n  {}\n",
        creation.pool, creation.instance_type, creation.object, creation.price, creation.why
    )
}

/// What happens to one pod.
pub fn explain(pod: &str, waits: bool, rival: Option<&Rival>, plan: &Plan) -> String {
    let mut text = held_back(rival);
    if !waits {
        let _ = writeln!(text, "kube-scheduler has not given up on {pod} yet; if it did:");
    }
    let is_it = |one: &String| one == pod;
    if let Some(found) = plan.creations.iter().find(|one| one.pods.iter().any(is_it)) {
        let others = found.pods.len() - 1;
        let _ = write!(text, "{pod} gets {}", creation(found));
        match others {
            0 => {}
            1 => text.push_str("  1 other pod shares it\n"),
            _ => {
                let _ = writeln!(text, "  {others} other pods share it");
            }
        }
    } else if let Some((node, _)) = plan.placed.iter().find(|(_, pods)| pods.iter().any(is_it)) {
        let _ = writeln!(text, "{pod} needs no new node: there is room on {node}");
    } else if let Some(found) = plan.refused.iter().find(|one| one.pod == pod) {
        text.push_str(&refusal(found));
    } else if let Some(why) = &plan.waits {
        let _ = writeln!(text, "{pod} waits: {why}");
    } else {
        let _ = writeln!(
            text,
            "{pod} is not planned for: it belongs to a DaemonSet, is nominated to a node, or is on its way out"
        );
    }
    text
}

/// What happens to these pods, beside those that wait already.
pub fn simulate(asked: &[String], already: usize, rival: Option<&Rival>, plan: &Plan) -> String {
    let mut text = held_back(rival);
    let beside = match already {
        0 => String::new(),
        1 => ", beside 1 that waits already".to_owned(),
        count => format!(", beside {count} that wait already"),
    };
    let without = match plan.refused.len() {
        1 => "1 pod gets none".to_owned(),
        count => format!("{count} pods get none"),
    };
    let _ = writeln!(
        text,
        "{}{beside}: {} at {} per hour together, {without}",
        counted(asked.len(), "pod"),
        counted(plan.creations.len(), "new node"),
        plan.price(),
    );
    let mut alike: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for one in &plan.creations {
        let (nodes, pods) = alike.entry(creation(one)).or_default();
        *nodes += 1;
        *pods += one.pods.len();
    }
    for (what, (nodes, pods)) in alike {
        let times = if nodes == 1 {
            "once".to_owned()
        } else {
            format!("{nodes} times")
        };
        let _ = write!(text, "{times}, for {}: {what}", counted(pods, "pod"));
    }
    for (node, pods) in &plan.placed {
        let find = if pods.len() == 1 { "finds" } else { "find" };
        let _ = writeln!(text, "{} {find} room on {node}", counted(pods.len(), "pod"));
    }
    let mut reasons: BTreeMap<&str, Vec<&PodRefusal>> = BTreeMap::new();
    for one in &plan.refused {
        reasons.entry(&one.message).or_default().push(one);
    }
    for alike in reasons.values() {
        text.push_str(&refusal(alike[0]));
        if alike.len() > 1 {
            let _ = writeln!(text, "  and {} more for the same reason", alike.len() - 1);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instances::Reference;
    use slipway_packing::model::{CandidateRefusal, RefusalReason};

    fn candidate(kind: CandidateKind, name: &str, count: usize, reason: &str) -> CandidateRefusal {
        CandidateRefusal {
            kind,
            name: name.to_owned(),
            count,
            reason: reason.to_owned(),
        }
    }

    fn plan() -> Plan {
        let made = Creation {
            claim: crate::api::NodeClaim::default(),
            pool: "general".to_owned(),
            object: Reference::new("MachineDeployment", "fleet", "workers"),
            instance_type: "m4".to_owned(),
            price: 0.25,
            why: "the cheapest of 2 that fit".to_owned(),
            pods: vec!["shop/a".to_owned(), "shop/b".to_owned()],
        };
        Plan {
            waits: None,
            creations: vec![made.clone(), made],
            placed: vec![("node-1".to_owned(), vec!["shop/c".to_owned()])],
            refused: vec![PodRefusal {
                pod: "shop/d".to_owned(),
                uid: String::new(),
                reason: RefusalReason::Unschedulable,
                message: "nodepool general: no instance type had enough resources".to_owned(),
                candidates: vec![
                    candidate(
                        CandidateKind::NodePool,
                        "general",
                        1,
                        "nodepool general: no instance type had enough resources",
                    ),
                    candidate(
                        CandidateKind::NewClaim,
                        "0",
                        2,
                        "no instance type had enough resources",
                    ),
                    candidate(CandidateKind::Node, "node-1", 3, "has not enough cpu"),
                ],
            }],
        }
    }

    #[test]
    fn a_pod_is_told_what_it_gets_and_why() {
        let plan = plan();
        let rows = [
            (
                "shop/a",
                "shop/a gets a new node of NodePool general: m4 from MachineDeployment/fleet/workers, at 0.25 per hour\n  \
                 the cheapest of 2 that fit\n  1 other pod shares it\n",
            ),
            ("shop/c", "shop/c needs no new node: there is room on node-1\n"),
            (
                "shop/d",
                "shop/d gets no node:\n  NodePool general, 2 other new nodes: no instance type had enough resources\n  \
                 3 nodes: has not enough cpu\n",
            ),
        ];
        for (pod, expected) in rows {
            assert_eq!(explain(pod, true, None, &plan), expected);
        }
        let early = explain("shop/c", false, None, &plan);
        assert!(
            early.starts_with("kube-scheduler has not given up on shop/c yet"),
            "{early}"
        );
    }

    #[test]
    fn both_policies_are_priced() {
        let priced = |policy| {
            let priced = Priced {
                by_karpenter: (3, 1.5),
                by_cost: (2, 1.25),
                bound: 1.2,
                policy,
            };
            priced.to_string()
        };
        assert_eq!(
            priced(PackingPolicy::Karpenter),
            "policy karpenter: 3 new nodes at 1.5000 per hour\n\
             policy cost would make 2 new nodes at 1.2500 per hour\n\
             no plan for these pods costs less than 1.2000 per hour\n"
        );
        assert!(priced(PackingPolicy::Cost).starts_with("policy cost: 2 new nodes at 1.2500"));
    }

    #[test]
    fn a_simulation_says_what_it_costs() {
        let asked = ["a", "b", "c", "d"].map(|name| format!("shop/{name}"));
        assert_eq!(
            simulate(&asked, 1, None, &plan()),
            "4 pods, beside 1 that waits already: 2 new nodes at 0.5 per hour together, 1 pod gets none\n\
             2 times, for 4 pods: a new node of NodePool general: m4 from MachineDeployment/fleet/workers, at 0.25 per hour\n  \
             the cheapest of 2 that fit\n\
             1 pod finds room on node-1\n\
             shop/d gets no node:\n  NodePool general, 2 other new nodes: no instance type had enough resources\n  \
             3 nodes: has not enough cpu\n"
        );
    }
}
