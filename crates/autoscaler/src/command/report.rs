//! What a plan says to somebody who asks: pure, text out.

use std::{collections::BTreeMap, fmt::Write as _};

use slipway_packing::model::{CandidateKind, PodRefusal};

use crate::{
    provisioner::plan::{Creation, Plan},
    safety::Rival,
};

/// Why nothing of it is done now, if so.
fn held_back(rival: Option<&Rival>) -> String {
    rival.map_or_else(String::new, |rival| {
        format!("Nothing is done now: {rival}.\nWithout it:\n")
    })
}

fn refusal(refusal: &PodRefusal) -> String {
    let mut text = format!("{} gets no node: {}\n", refusal.pod, refusal.message);
    for candidate in &refusal.candidates {
        let what = match candidate.kind {
            CandidateKind::NodePool => format!("NodePool {}", candidate.name),
            CandidateKind::NewClaim => format!("new node {}", candidate.name),
            CandidateKind::Node if candidate.count > 1 => format!("{} nodes", candidate.count),
            CandidateKind::Node => format!("node {}", candidate.name),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {what}: {}", candidate.reason);
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
        if others > 0 {
            let _ = writeln!(text, "  {others} other pods share it");
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
        count => format!(", beside {count} that wait already"),
    };
    let refused = plan.refused.len();
    let _ = writeln!(
        text,
        "{} pods{beside}: {} new nodes at {} per hour together, {refused} pods get none",
        asked.len(),
        plan.creations.len(),
        plan.price(),
    );
    let mut alike: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for one in &plan.creations {
        let (nodes, pods) = alike.entry(creation(one)).or_default();
        *nodes += 1;
        *pods += one.pods.len();
    }
    for (what, (nodes, pods)) in alike {
        let _ = write!(text, "{nodes} times, for {pods} pods: {what}");
    }
    for (node, pods) in &plan.placed {
        let _ = writeln!(text, "{} pods find room on {node}", pods.len());
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
                message: "no NodePool takes it".to_owned(),
                candidates: vec![CandidateRefusal {
                    kind: CandidateKind::NodePool,
                    name: "general".to_owned(),
                    count: 1,
                    reason: "64 of cpu are asked for and it has 4".to_owned(),
                }],
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
                 the cheapest of 2 that fit\n  1 other pods share it\n",
            ),
            ("shop/c", "shop/c needs no new node: there is room on node-1\n"),
            (
                "shop/d",
                "shop/d gets no node: no NodePool takes it\n  NodePool general: 64 of cpu are asked for and it has 4\n",
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
    fn a_simulation_says_what_it_costs() {
        let asked = ["a", "b", "c", "d"].map(|name| format!("shop/{name}"));
        assert_eq!(
            simulate(&asked, 1, None, &plan()),
            "4 pods, beside 1 that wait already: 2 new nodes at 0.5 per hour together, 1 pods get none\n\
             2 times, for 4 pods: a new node of NodePool general: m4 from MachineDeployment/fleet/workers, at 0.25 per hour\n  \
             the cheapest of 2 that fit\n\
             1 pods find room on node-1\n\
             shop/d gets no node: no NodePool takes it\n  NodePool general: 64 of cpu are asked for and it has 4\n"
        );
    }
}
