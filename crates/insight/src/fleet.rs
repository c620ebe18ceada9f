//! All clusters, one row each, and how many are how.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    Basis, Catalogue, Eta, Id, Judgement, Link, Objects, Part, Progress, State,
    condition::conditions,
    objects::CLUSTER_LABEL,
    path,
    progress::{Counts, progress},
    state::{judge, seconds},
    tree::{finished_of, versions},
};

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    #[serde(flatten)]
    pub id: Id,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub class: String,
    /// What its infrastructure and its control plane are.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub infrastructure: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub control_plane: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<i64>,
    /// Machines of the control plane, and of the workers: as they should be, and asked for.
    pub control_plane_machines: Machines,
    pub worker_machines: Machines,
    #[serde(flatten)]
    pub judgement: Judgement,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Machines {
    pub ready: i64,
    pub desired: i64,
}

/// How many clusters are how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RollUp {
    pub clusters: usize,
    pub ready: usize,
    pub progressing: usize,
    pub waiting: usize,
    pub stuck: usize,
    pub paused: usize,
    pub machines: Machines,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fleet {
    pub at: Timestamp,
    pub rows: Vec<Row>,
    pub roll_up: RollUp,
}

/// Every Cluster there is, by namespace and name.
pub fn fleet(objects: &Objects, catalogue: &Catalogue, now: Timestamp) -> Fleet {
    let clusters = objects.of_kind("cluster.x-k8s.io", "Cluster");
    let mut rows: Vec<Row> = clusters
        .filter_map(|id| row(objects, catalogue, id, now))
        .collect();
    rows.sort_by(|left, right| {
        (&left.id.namespace, &left.id.name).cmp(&(&right.id.namespace, &right.id.name))
    });
    let mut roll_up = RollUp::default();
    for row in &rows {
        roll_up.clusters += 1;
        match row.judgement.state {
            State::Ready => roll_up.ready += 1,
            State::Progressing => roll_up.progressing += 1,
            State::Waiting => roll_up.waiting += 1,
            State::Stuck => roll_up.stuck += 1,
        }
        roll_up.paused += usize::from(row.judgement.paused);
        for machines in [row.control_plane_machines, row.worker_machines] {
            roll_up.machines.ready += machines.ready;
            roll_up.machines.desired += machines.desired;
        }
    }
    Fleet {
        at: now,
        rows,
        roll_up,
    }
}

/// The row of one Cluster, if it is there.
pub fn row(objects: &Objects, catalogue: &Catalogue, id: &Id, now: Timestamp) -> Option<Row> {
    let object = objects.get(id)?;
    let named = |at| {
        objects
            .follow(id, Link::Reference(at))
            .into_iter()
            .next()
            .map(|found| found.id)
    };
    let infrastructure = named("/spec/infrastructureRef");
    let control_plane = named("/spec/controlPlaneRef");
    let of_cluster: Vec<&Id> = objects
        .labelled(CLUSTER_LABEL, &id.name)
        .filter(|other| other.namespace == id.namespace)
        .collect();
    let workers = of_cluster
        .iter()
        .copied()
        .filter(|other| catalogue.kind(other).part == Part::Workers);
    let counted: Vec<&Id> = control_plane.iter().chain(workers).collect();
    let mut parts = Vec::new();
    let (mut control_plane_machines, mut worker_machines) = (Machines::default(), Machines::default());
    for part in counted {
        let Some(found) = objects.get(part) else { continue };
        let kind = catalogue.kind(part);
        let judgement = judge(found, catalogue, now);
        if let Some(counts) = Counts::of(found, &kind) {
            let machines = if Some(part) == control_plane.as_ref() {
                &mut control_plane_machines
            } else {
                &mut worker_machines
            };
            machines.desired += counts.desired.unwrap_or(0);
            machines.ready += counts.ready.or(counts.available).unwrap_or(0);
        }
        let below = objects.owned(part, "", "");
        let (running, desired) = versions(found, &kind);
        let version = desired.or(running);
        let machines = of_cluster
            .iter()
            .filter(|other| {
                below.contains(*other) || objects.owner(other).is_some_and(|owner| below.contains(&owner))
            })
            .filter(|other| catalogue.kind(other).part == Part::Machine)
            .filter_map(|other| objects.get(other));
        let finished = finished_of(machines, catalogue, version.as_deref());
        parts.extend(progress(
            found,
            &kind,
            &judgement,
            &conditions(found),
            &finished,
            catalogue,
            now,
        ));
    }
    let shown = control_plane
        .as_ref()
        .and_then(|id| Some((objects.get(id)?, catalogue.kind(id))));
    let (version, desired_version) = shown.map_or((None, None), |(found, kind)| versions(found, &kind));
    let kind_of = |id: &Option<Id>| id.as_ref().map(|id| id.kind.clone()).unwrap_or_default();
    Some(Row {
        id: id.clone(),
        class: path::first(object, &["/spec/topology/classRef/name", "/spec/topology/class"])
            .unwrap_or_default()
            .to_owned(),
        infrastructure: kind_of(&infrastructure),
        control_plane: kind_of(&control_plane),
        version: version.or_else(|| path::text(object, "/spec/topology/version").map(str::to_owned)),
        desired_version,
        age_seconds: path::time(object, "/metadata/creationTimestamp").map(|created| seconds(created, now)),
        control_plane_machines,
        worker_machines,
        judgement: judge(object, catalogue, now),
        progress: together(parts),
    })
}

/// The progress of all parts as one: done when the last of them is.
fn together(mut parts: Vec<Progress>) -> Option<Progress> {
    if parts.len() < 2 {
        return parts.pop();
    }
    let unit = "parts".to_owned();
    let same = parts.iter().all(|part| part.unit == parts[0].unit);
    let done = parts.iter().map(|part| part.done).sum();
    let total = parts.iter().map(|part| part.total).sum();
    let unknown = parts.iter().find(|part| part.eta.basis == Basis::Unknown);
    let eta = match unknown {
        Some(part) => Eta::unknown(part.eta.why.clone()),
        None => parts
            .iter()
            .map(|part| part.eta.clone())
            .max_by_key(|eta| eta.at)?,
    };
    let unit = if same { parts[0].unit.clone() } else { unit };
    Some(Progress {
        text: format!("{done} of {total} {unit}"),
        done,
        total,
        unit,
        since: parts.iter().filter_map(|part| part.since).min(),
        eta,
    })
}
