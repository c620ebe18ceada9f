//! One line of a case as a NodePool.

use slipway_packing::model::{Budget, NodePool, RepairAction, RepairPolicy};

use super::words;
use crate::cluster::{condition, pool};

/// `name req:ct=spot|od label:a=b taint:… limit:cpu=20 weight:50 budget:30% …`. As in the suites, the limit is 2000
/// CPUs unless the line says otherwise (`limit:` alone takes it away).
pub fn parse(words: &[&str]) -> NodePool {
    let mut pool = pool(words[0]);
    pool.spec.limits = words::amounts("cpu=2000");
    pool.spec.disruption.consolidate_after = Some("0s".to_owned());
    pool.spec.disruption.consolidation_policy = "WhenEmptyOrUnderutilized".to_owned();
    let template = &mut pool.spec.template;
    for word in &words[1..] {
        let (name, rest) = words::option(word);
        match name {
            "req" => template.spec.requirements.extend(words::requirements(rest)),
            "label" => template.metadata.labels.extend(words::label_map(rest)),
            "anno" => template.metadata.annotations.extend(words::label_map(rest)),
            "taint" => template.spec.taints.push(words::taint(rest)),
            "startup" => template.spec.startup_taints.push(words::taint(rest)),
            "limit" => pool.spec.limits = words::amounts(rest),
            "weight" => pool.spec.weight = Some(rest.parse().expect("a weight")),
            "replicas" => pool.spec.replicas = Some(rest.parse().expect("a number")),
            "grace" => template.spec.termination_grace_period = Some(rest.to_owned()),
            "after" => pool.spec.disruption.consolidate_after = Some(rest.to_owned()),
            "policy" => rest.clone_into(&mut pool.spec.disruption.consolidation_policy),
            "budget" => pool
                .spec
                .disruption
                .budgets
                .get_or_insert_default()
                .push(budget(rest)),
            "not-ready" => pool.status.conditions.push(condition("Ready", "False")),
            "deleting" => pool.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".to_owned()),
            other => panic!("unknown word for a pool: {other}"),
        }
    }
    pool
}

/// `BadNode=False after:30m because:^Hung$ grace:5m priority:90 reboot`
pub fn repair(words: &[&str]) -> RepairPolicy {
    let (kind, status) = words[0].split_once('=').expect("a condition and its status");
    let mut policy = RepairPolicy {
        condition_type: kind.to_owned(),
        condition_status: status.to_owned(),
        ..RepairPolicy::default()
    };
    for word in &words[1..] {
        let (name, rest) = words::option(word);
        match name {
            "after" => policy.toleration_duration = Some(rest.to_owned()),
            "because" => rest.clone_into(&mut policy.reason_regex),
            "grace" => policy.termination_grace_period = Some(rest.to_owned()),
            "priority" => policy.priority = rest.parse().expect("a priority"),
            "reboot" => policy.action = RepairAction::Reboot,
            other => panic!("unknown word for a repair: {other}"),
        }
    }
    policy
}

/// `30%`, then `;for=Drifted,Empty`, `;at=0_0_*_*_*` (blanks written as `_`), `;long=1h`
fn budget(text: &str) -> Budget {
    let mut fields = text.split(';');
    let mut budget = Budget {
        nodes: fields.next().expect("a number of nodes").to_owned(),
        ..Budget::default()
    };
    for field in fields {
        match field.split_once('=').expect("a field") {
            ("for", rest) => budget.reasons = Some(rest.split(',').map(str::to_owned).collect()),
            ("at", rest) => budget.schedule = Some(rest.replace('_', " ")),
            ("long", rest) => budget.duration = Some(rest.to_owned()),
            (other, _) => panic!("unknown word for a budget: {other}"),
        }
    }
    budget
}
