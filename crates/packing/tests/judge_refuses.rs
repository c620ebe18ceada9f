//! The independent checker is only worth something if it refuses: plans and commands spoilt on purpose, each in one way.

use slipway_packing::disrupt::{Command, Method};
use slipway_packing::labels::{CAPACITY_TYPE, HOSTNAME, ZONE};
use slipway_packing::model::{Plan, Pod, Snapshot};
use slipway_packing::requirement::Operator;

use crate::cluster::{Cluster, copies, default_types, labelled, pod, pool_with, requirement};
use crate::constraints::{With, spread, term};
use crate::{judge, judged};

const WEB: [(&str, &str); 1] = [("app", "web")];

/// A plan for some pods, and what the checker says once it is spoilt.
fn said(pods: &[Pod], spoil: impl Fn(&mut Plan)) -> String {
    let zone = requirement(ZONE, Operator::In, &["test-zone-1", "test-zone-2"]);
    let cluster = Cluster::new(vec![pool_with("default", vec![zone])], default_types());
    let mut plan = judged::schedule(&cluster.snapshot, pods);
    spoil(&mut plan);
    judge::problems(&cluster.snapshot, pods, &plan).join("\n")
}

fn set_zones(plan: &mut Plan, claim: usize, zones: &[&str]) {
    let claim = &mut plan.new_claims[claim];
    claim.requirements.retain(|own| own.key != ZONE);
    claim.requirements.push(requirement(ZONE, Operator::In, zones));
}

#[test]
fn plans_that_break_a_rule() {
    let small = || pod("one", &[("cpu", "1")]);
    let lost = said(&[small()], |plan| plan.new_claims.clear());
    assert!(lost.contains("not every pod is decided once"), "{lost}");
    let twice = said(&[small()], |plan| {
        let again = plan.new_claims[0].clone();
        plan.new_claims.push(again);
    });
    assert!(twice.contains("not every pod is decided once"), "{twice}");
    let large = said(&[pod("one", &[("cpu", "3")])], |plan| {
        plan.new_claims[0].instance_types = vec!["small-instance-type".to_owned()].into();
    });
    assert!(large.contains("nothing on offer holds"), "{large}");
    let elsewhere = said(&[small().selecting(ZONE, "test-zone-1")], |plan| {
        set_zones(plan, 0, &["test-zone-2"]);
    });
    assert!(elsewhere.contains("node selection"), "{elsewhere}");
    let outside = said(&[small()], |plan| set_zones(plan, 0, &["test-zone-3"]));
    assert!(outside.contains("its pool does not allow its"), "{outside}");
    let nowhere = said(&[small()], |plan| {
        let claim = &mut plan.new_claims[0];
        claim.requirements.retain(|own| own.key != CAPACITY_TYPE);
        let required = requirement(CAPACITY_TYPE, Operator::In, &["reserved"]);
        claim.requirements.push(required);
    });
    assert!(nowhere.contains("nothing it lists is on offer"), "{nowhere}");
}

#[test]
fn plans_that_ignore_other_pods() {
    let joined = |plan: &mut Plan| {
        let mut last = plan.new_claims.pop().expect("several claims");
        plan.new_claims[0].pods.append(&mut last.pods);
    };
    let apart = copies("apart", 2, &labelled("", &[], &WEB).apart(term(HOSTNAME, &WEB)));
    let together = said(&apart, joined);
    assert!(together.contains("share a kubernetes.io/hostname"), "{together}");
    let even = copies("even", 4, &labelled("", &[], &WEB).spread(spread(ZONE, 1, &WEB)));
    let skewed = said(&even, |plan| {
        for claim in 0..plan.new_claims.len() {
            set_zones(plan, claim, &["test-zone-1"]);
        }
    });
    assert!(skewed.contains("test-zone-1 is 4 ahead"), "{skewed}");
    let near = copies("near", 30, &labelled("", &[], &WEB).near(term(ZONE, &WEB)));
    let split = said(&near, |plan| {
        set_zones(plan, 0, &["test-zone-1"]);
        set_zones(plan, 1, &["test-zone-2"]);
    });
    assert!(split.contains("started again"), "{split}");
}

fn consolidation() -> (Snapshot, Command) {
    let mut pool = pool_with(
        "default",
        vec![requirement(CAPACITY_TYPE, Operator::In, &["on-demand"])],
    );
    pool.spec.disruption.consolidation_policy = "WhenEmptyOrUnderutilized".to_owned();
    pool.spec.disruption.consolidate_after = Some("0s".to_owned());
    let mut cluster = Cluster::new(vec![pool], crate::cluster::types(8));
    let node = cluster.add_node("default", "fake-it-7", "test-zone-1", "on-demand");
    cluster.run(labelled("one", &[("cpu", "1")], &WEB), &node);
    let outcome = judged::disrupt(&cluster.snapshot, &[], Method::SingleNodeConsolidation);
    (cluster.snapshot, outcome.command.expect("a smaller node will do"))
}

#[test]
fn commands_that_lose_something() {
    let said = |spoil: &dyn Fn(&mut Command)| {
        let (snapshot, mut command) = consolidation();
        spoil(&mut command);
        judge::command_problems(&snapshot, &[], &command).join("\n")
    };
    assert_eq!(said(&|_| {}), "");
    let lost = said(&|command| command.replacements[0].pods.clear());
    assert!(lost.contains("default/one has nowhere to go"), "{lost}");
    let unknown = said(&|command| command.nodes.push("another".to_owned()));
    assert!(unknown.contains("there is no node another"), "{unknown}");
    let tiny = said(&|command| {
        command.replacements[0].instance_types = vec!["fake-it-0".to_owned()].into();
    });
    assert!(tiny.contains("nothing on offer holds"), "{tiny}");
    let dear = said(&|command| command.savings = -1.0);
    assert!(dear.contains("-1 is saved"), "{dear}");
}
