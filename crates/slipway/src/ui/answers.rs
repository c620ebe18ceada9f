//! What the page asks, and the model's answer as JSON. Reads what is known, and nothing else.

use std::collections::BTreeMap;

use http::StatusCode;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};
use slipway_insight::{
    Entry, Explanation, Id, Node, Objects, Part, Row, Timeline, Tree, events, explain, fleet, of_part, row,
    timeline, tree,
};

use super::live::Live;

/// Of a timeline the newest are sent.
const ENTRIES: usize = 600;
/// Of hosts and the like.
const NODES: usize = 1_000;

/// Why there is no answer, with the code that says so.
pub type Refusal = (StatusCode, String);

pub type Query = BTreeMap<String, String>;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer<T> {
    at: Timestamp,
    revision: u64,
    /// Kinds that the caller may not list.
    unreadable: Vec<Value>,
    #[serde(flatten)]
    body: T,
}

#[derive(Serialize)]
struct OfCluster {
    row: Option<Row>,
    tree: Tree,
    explanation: Option<Explanation>,
    timeline: Timeline,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct OfObject {
    node: Node,
    /// Whether its manager can be asked what it would do.
    has_plan: bool,
    explanation: Option<Explanation>,
    timeline: Timeline,
}

#[derive(Serialize)]
struct OfPart {
    nodes: Vec<Node>,
    rows: Vec<Row>,
}

/// The answer to a question.
pub fn answer(live: &Live, question: &str, query: &Query) -> Result<Vec<u8>, Refusal> {
    let now = Timestamp::now();
    // Before it is looked, so that what changes meanwhile is asked for once more.
    let revision = live.revision();
    live.read(|objects| match question {
        "fleet" => written(
            objects,
            now,
            revision,
            json!({"fleet": fleet(objects, &live.catalogue, now)}),
        ),
        "cluster" => written(objects, now, revision, of_cluster(live, objects, query, now)?),
        "object" => written(objects, now, revision, of_object(live, objects, query, now)?),
        "kinds" => written(objects, now, revision, of_kinds(live, objects, query, now)?),
        "events" => written(
            objects,
            now,
            revision,
            json!({"timeline": newest(events(objects))}),
        ),
        _ => Err((
            StatusCode::NOT_FOUND,
            format!("there is nothing at /api/{question}"),
        )),
    })
}

fn written(
    objects: &Objects,
    at: Timestamp,
    revision: u64,
    body: impl Serialize,
) -> Result<Vec<u8>, Refusal> {
    let unreadable = objects.all_unreadable();
    let unreadable = unreadable.map(|(group, kind, why)| json!({"group": group, "kind": kind, "why": why}));
    let answer = Answer {
        at,
        revision,
        unreadable: unreadable.collect(),
        body,
    };
    serde_json::to_vec(&answer).map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

fn of_cluster(live: &Live, objects: &Objects, query: &Query, now: Timestamp) -> Result<OfCluster, Refusal> {
    let catalogue = &live.catalogue;
    let id = Id::new(
        "cluster.x-k8s.io",
        "Cluster",
        of(query, "namespace"),
        of(query, "name"),
    );
    let whole = tree(objects, catalogue, &id, now).ok_or_else(|| missing(objects, &id))?;
    let timeline = newest(timeline(objects, &whole));
    Ok(OfCluster {
        row: row(objects, catalogue, &id, now),
        tree: if of(query, "all") == "true" {
            whole
        } else {
            whole.noteworthy()
        },
        explanation: explain(objects, catalogue, &id, now),
        timeline,
    })
}

/// What the manager would do with an object. It is asked only when somebody wants to know.
pub async fn plan(live: &Live, query: &Query) -> Result<Vec<u8>, Refusal> {
    let id = named(query);
    live.read(|objects| match objects.get(&id) {
        Some(_) => Ok(()),
        None => Err(missing(objects, &id)),
    })?;
    let plan = match live.plan(&id).await {
        Ok(preview) => json!({"preview": preview}),
        Err(why) => json!({ "why": why }),
    };
    let answer = json!({"at": Timestamp::now(), "plan": plan});
    serde_json::to_vec(&answer).map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

/// What NodePools cost, and the least that they could.
pub async fn cost(live: &Live) -> Result<Vec<u8>, Refusal> {
    let cost = match live.cost().await {
        Ok(cost) => json!({"cost": cost}),
        Err(why) => json!({ "why": why }),
    };
    let answer = json!({"at": Timestamp::now(), "answer": cost});
    serde_json::to_vec(&answer).map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

fn named(query: &Query) -> Id {
    Id::new(
        of(query, "group"),
        of(query, "kind"),
        of(query, "namespace"),
        of(query, "name"),
    )
}

fn of_object(live: &Live, objects: &Objects, query: &Query, now: Timestamp) -> Result<OfObject, Refusal> {
    let id = named(query);
    let mut tree = tree(objects, &live.catalogue, &id, now).ok_or_else(|| missing(objects, &id))?;
    tree.root.children.clear();
    Ok(OfObject {
        explanation: explain(objects, &live.catalogue, &id, now),
        timeline: newest(timeline(objects, &tree)),
        has_plan: live.has_plan(&id),
        node: tree.root,
    })
}

fn of_kinds(live: &Live, objects: &Objects, query: &Query, now: Timestamp) -> Result<OfPart, Refusal> {
    let part = match of(query, "part") {
        "upgrade" => Part::Upgrade,
        "autoscaling" => Part::Autoscaling,
        "host" => Part::Host,
        other => return Err((StatusCode::NOT_FOUND, format!("there is no view of {other:?}"))),
    };
    let mut nodes = of_part(objects, &live.catalogue, part, now);
    nodes.truncate(NODES);
    let mut rows = Vec::new();
    if part == Part::Upgrade {
        rows = fleet(objects, &live.catalogue, now).rows;
        rows.retain(|row| row.progress.is_some() || row.desired_version.is_some());
    }
    Ok(OfPart { nodes, rows })
}

fn newest(mut timeline: Timeline) -> Timeline {
    let entries: &mut Vec<Entry> = &mut timeline.entries;
    entries.drain(..entries.len().saturating_sub(ENTRIES));
    timeline
}

fn missing(objects: &Objects, id: &Id) -> Refusal {
    let place = if id.namespace.is_empty() {
        String::new()
    } else {
        format!(" in namespace {}", id.namespace)
    };
    match objects.unreadable(id) {
        Some(why) => (
            StatusCode::NOT_FOUND,
            format!("you may not read {}: {why}", id.kind),
        ),
        None => (
            StatusCode::NOT_FOUND,
            format!("there is no {} {}{place}, or it is gone", id.kind, id.name),
        ),
    }
}

fn of<'a>(query: &'a Query, name: &str) -> &'a str {
    query.get(name).map_or("", String::as_str)
}
