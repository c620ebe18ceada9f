//! What is kept in order beside the servers themselves: the record of the network, the Secrets, labels and annotations, the
//! conditions of the Machines. Pure: what is planned here is in the plan like everything else.

use jiff::Timestamp;
use kube::ResourceExt;
use slipway_capi::{
    condition,
    names::{condition as names, reason},
    secret::Purpose,
    view::Machine,
};

use super::{
    health,
    observe::{self, Snapshot},
    observed::{Observed, Server, Workload},
    plan::{Action, Draft, MachineCondition, Part, Plan, servers},
    secrets, status, sync,
};
use crate::api::{CLUSTER_NETWORK_ANNOTATION, INITIALIZED_ANNOTATION, conditions};

/// The whole plan of a control plane.
pub fn plan(snapshot: &Snapshot, now: Timestamp) -> Plan {
    let mut plan = Draft::default();
    if let Some(record) = network(snapshot) {
        plan.entry(
            Action::RecordNetwork { record },
            "servers are made with the ranges the cluster was initialised with, whatever the Cluster says later",
        );
        // The configuration of servers follows from it: the change of the object enqueues it.
        return plan.finish();
    }
    for (action, why) in secrets::plan(snapshot) {
        plan.entry(action, why);
    }
    // The watches do not show who owns a field; what they show was in order when it was read.
    if snapshot.is_fresh && snapshot.cluster.is_some() {
        for (name, machine) in &snapshot.machines {
            synced(snapshot, name, machine, &mut plan);
        }
    }
    let mut plan = servers(&snapshot.observed, now, plan);
    for server in &snapshot.observed.servers {
        if let Some(machine) = snapshot.machines.get(&server.name) {
            set_conditions(&snapshot.observed, server, machine, now, &mut plan);
        }
    }
    report_rollout(snapshot, &mut plan);
    if status::answers(&snapshot.observed)
        && !snapshot.object.annotations().contains_key(INITIALIZED_ANNOTATION)
    {
        plan.regardless(Action::MarkInitialized, "the first server has answered");
    }
    plan.finish()
}

/// Says once when a rollout begins, with what differs, and once when no server is out of date any more.
fn report_rollout(snapshot: &Snapshot, plan: &mut Draft) {
    let observed = &snapshot.observed;
    if observed.deleting || observed.servers.is_empty() {
        return;
    }
    let v1beta2 = snapshot
        .object
        .status
        .as_ref()
        .and_then(|status| status.v1beta2.as_ref());
    let conditions = v1beta2.and_then(|v1beta2| v1beta2.conditions.as_deref());
    let Some(before) = condition::find(conditions.unwrap_or_default(), names::ROLLING_OUT) else {
        return;
    };
    let outdated: Vec<String> = observed.servers.iter().filter_map(outdated).collect();
    match (before.status == "True", outdated.is_empty()) {
        (false, false) => plan.report("RolloutStarted", outdated.join("; ")),
        (true, true) => {
            let version = &snapshot.object.spec.version;
            plan.report(
                "RolloutFinished",
                format!("no server is out of date any more: {version}"),
            );
        }
        _ => {}
    }
}

/// What is out of date of a server.
fn outdated(server: &Server) -> Option<String> {
    let why: Vec<String> = server.outdated.iter().map(ToString::to_string).collect();
    (!why.is_empty()).then(|| format!("machine {}: {}", server.name, why.join(", ")))
}

/// The ranges of the Cluster, kept before the first server exists; a cluster another provider initialised has none.
fn network(snapshot: &Snapshot) -> Option<String> {
    let object = &snapshot.object;
    let record = observe::network_record(snapshot.cluster.as_deref()?);
    let has_servers = object
        .status
        .as_ref()
        .and_then(|status| status.replicas)
        .is_some_and(|replicas| replicas > 0);
    let applies = !snapshot.observed.deleting
        && !snapshot.observed.initialized
        && !record.is_empty()
        && !has_servers
        && !object.annotations().contains_key(CLUSTER_NETWORK_ANNOTATION);
    applies.then(|| serde_json::to_string(&record).unwrap_or_default())
}

fn synced(snapshot: &Snapshot, name: &str, machine: &Machine, plan: &mut Draft) {
    let mut parts = vec![(Part::Machine, &machine.metadata)];
    // Nothing is gained by marking what goes away with its machine.
    if machine.metadata.deletion_timestamp.is_none() {
        parts.extend(
            snapshot
                .configs
                .get(name)
                .map(|config| (Part::Config, &config.metadata)),
        );
        parts.extend(
            snapshot
                .infra_machines
                .get(name)
                .map(|(_, infra)| (Part::InfraMachine, &infra.metadata)),
        );
    }
    for (part, metadata) in parts {
        let differences = sync::differences(snapshot, part, machine, metadata);
        if differences.is_empty() {
            continue;
        }
        let action = Action::Sync {
            machine: name.to_owned(),
            part,
        };
        let entry = plan.entry(action, "it changes without a new server");
        entry.differences.extend(differences);
    }
}

/// The conditions we keep on a machine, if they differ from what it has.
fn set_conditions(observed: &Observed, server: &Server, machine: &Machine, now: Timestamp, plan: &mut Draft) {
    let conditions = machine_conditions(observed, server, machine, now);
    let stored = |type_: &str| {
        machine
            .status
            .conditions
            .iter()
            .find(|found| found.type_ == type_)
    };
    let differs = |desired: &&MachineCondition| {
        stored(desired.type_).is_none_or(|found| {
            found.status != desired.status
                || found.reason != desired.reason
                || found.message != desired.message
        })
    };
    let changed: Vec<MachineCondition> = conditions.iter().filter(differs).cloned().collect();
    if changed.is_empty() {
        return;
    }
    let action = Action::SetMachineConditions {
        machine: server.name.clone(),
        conditions,
    };
    let entry = plan.regardless(action, "the machine says what is known of its server");
    for condition in changed {
        let from = stored(condition.type_).map_or("(none)", |found| found.status.as_str());
        let to = format!("{} ({})", condition.status, condition.reason);
        entry.changing(format!("status.conditions[{}]", condition.type_), from, to);
    }
}

fn machine_conditions(
    observed: &Observed,
    server: &Server,
    machine: &Machine,
    now: Timestamp,
) -> Vec<MachineCondition> {
    let mut found = Vec::new();
    let reachable = observed.workload.view().is_some();
    let over = matches!(&observed.workload, Workload::Unreachable { since } if health::age(*since, now) > health::UNREACHABLE_GRACE);
    if reachable || over {
        let of = |type_: &'static str, problem: Option<String>, bad: &str| {
            let (status, reason, message) = match problem {
                _ if over => (
                    "Unknown",
                    reason::CONNECTION_DOWN.to_owned(),
                    "the workload cluster does not answer".to_owned(),
                ),
                None => ("True", "Healthy".to_owned(), String::new()),
                Some(why) => ("False", bad.to_owned(), why),
            };
            MachineCondition {
                type_,
                status,
                reason,
                message,
            }
        };
        found.push(of(
            conditions::AGENT_HEALTHY,
            status::agent_problem(&health::agent(server, observed)),
            conditions::reason::POD_FAILED,
        ));
        if observed.desired.embedded_etcd {
            found.push(of(
                conditions::ETCD_MEMBER_HEALTHY,
                status::member_problem(&health::member(server, observed, now)),
                conditions::reason::ETCD_MEMBER_UNHEALTHY,
            ));
        }
    } else {
        // Within the grace period the last state stands; it is given again so that it stays ours.
        let types = [conditions::AGENT_HEALTHY, conditions::ETCD_MEMBER_HEALTHY];
        let stored = machine.status.conditions.iter();
        found.extend(stored.filter_map(|stored| {
            Some(MachineCondition {
                type_: types.into_iter().find(|type_| *type_ == stored.type_)?,
                status: match stored.status.as_str() {
                    "True" => "True",
                    "False" => "False",
                    _ => "Unknown",
                },
                reason: stored.reason.clone(),
                message: stored.message.clone(),
            })
        }));
    }
    let why: Vec<String> = server.outdated.iter().map(ToString::to_string).collect();
    let (status, reason, message) = if machine.is_updating_in_place() {
        ("False", reason::UPDATING, "being updated in place".to_owned())
    } else if why.is_empty() {
        ("True", reason::UP_TO_DATE, String::new())
    } else {
        ("False", reason::NOT_UP_TO_DATE, why.join("; "))
    };
    found.push(MachineCondition {
        type_: names::UP_TO_DATE,
        status,
        reason: reason.to_owned(),
        message,
    });
    found
}

/// The Secrets that hold CAs.
pub(super) fn purposes(embedded_etcd: bool) -> Vec<Purpose> {
    let mut purposes = vec![Purpose::ClusterCa, Purpose::ClientCa];
    if embedded_etcd {
        purposes.push(Purpose::EtcdCa);
    }
    purposes
}
