//! A cluster as a tree: each object once, below what made it or names it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use crate::progress::Counts;
use crate::{
    Catalogue, Condition, Id, Judgement, Kind, Link, Objects, Part, Progress, State, Status,
    condition::conditions,
    inline,
    objects::CLUSTER_LABEL,
    path,
    progress::{Finished, progress},
    state::{self, judge},
};

/// What is nested deeper than this is not Cluster API's.
const DEEPEST: usize = 24;
/// A group names this many of its members at most.
const NAMED: usize = 100;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tree {
    /// When it was so.
    pub at: Timestamp,
    pub root: Node,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    #[serde(flatten)]
    pub id: Id,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    pub part: Part,
    /// How its parent leads to it, where that is a field.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<i64>,
    /// The version that runs, and the one that is asked for where it is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<Counts>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    #[serde(flatten)]
    pub judgement: Judgement,
    /// What it waits for: those below or beside it that are not ready, if its reason leads to them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<Id>,
    /// Whether there is something to say of it.
    pub noteworthy: bool,
    /// It is referred to and is not there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub missing: bool,
    /// Further facts, with what they are called.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub facts: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// In place of several that are alike: their names; `name` is empty then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<String>,
    /// How many it stands for.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub count: usize,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<Node>,
}

fn one() -> usize {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde asks")]
fn is_one(count: &usize) -> bool {
    *count == 1
}

/// The tree below an object.
pub fn tree(objects: &Objects, catalogue: &Catalogue, root: &Id, now: Timestamp) -> Option<Tree> {
    objects.get(root)?;
    let placed = place(objects, catalogue, root);
    let maker = Maker {
        objects,
        catalogue,
        placed: &placed,
        now,
    };
    Some(Tree {
        at: now,
        root: maker.node(root, "", 0),
    })
}

/// The trees of everything that has this place, across clusters: the worst first, what is alike on one line, and nothing twice.
pub fn of_part(objects: &Objects, catalogue: &Catalogue, part: Part, now: Timestamp) -> Vec<Node> {
    let roots = objects.iter().map(|(id, _)| id);
    let roots = roots.filter(|id| catalogue.kind(id).part == part);
    let trees: Vec<Tree> = roots.filter_map(|id| tree(objects, catalogue, id, now)).collect();
    let mut nested = BTreeSet::new();
    for tree in &trees {
        for child in &tree.root.children {
            child.walk(&mut |node| {
                nested.insert(node.id.clone());
            });
        }
    }
    let whole: Vec<Node> = trees
        .iter()
        .filter(|tree| !nested.contains(&tree.root.id))
        .map(|tree| tree.noteworthy().root)
        .collect();
    let mut nodes = group(whole);
    nodes.sort_by(|left, right| (right.judgement.state, &left.id).cmp(&(left.judgement.state, &right.id)));
    nodes
}

/// Which objects stand below which, in the order in which they are shown, and how they are led to.
type Placed = BTreeMap<Id, Vec<(Id, String)>>;

fn place(objects: &Objects, catalogue: &Catalogue, root: &Id) -> Placed {
    let mut placed = Placed::new();
    let mut seen = BTreeSet::from([root.clone()]);
    expand(objects, catalogue, root, 0, &mut placed, &mut seen);
    // What no registration leads to: below its owner, or below the root.
    let mut left: BTreeSet<Id> = BTreeSet::new();
    if root.kind == "Cluster" {
        let labelled = objects.labelled(CLUSTER_LABEL, &root.name);
        left.extend(labelled.filter(|id| id.namespace == root.namespace).cloned());
    }
    let mut to_visit: Vec<Id> = seen.iter().chain(&left).cloned().collect();
    while let Some(id) = to_visit.pop() {
        for child in objects.owned(&id, "", "") {
            if !seen.contains(child) && left.insert(child.clone()) {
                to_visit.push(child.clone());
            }
        }
    }
    let mut left: Vec<Id> = left
        .into_iter()
        .filter(|id| !seen.contains(id) && !catalogue.kind(id).stands_alone)
        .collect();
    left.sort_by_key(|id| (catalogue.kind(id).part, id.clone()));
    let remaining: BTreeSet<&Id> = left.iter().collect();
    for id in &left {
        let owner = objects
            .owner(id)
            .filter(|owner| *owner != id && (seen.contains(*owner) || remaining.contains(owner)));
        let parent = owner.unwrap_or(root).clone();
        placed
            .entry(parent)
            .or_default()
            .push((id.clone(), String::new()));
    }
    placed
}

fn expand(
    objects: &Objects,
    catalogue: &Catalogue,
    id: &Id,
    depth: usize,
    placed: &mut Placed,
    seen: &mut BTreeSet<Id>,
) {
    if depth > DEEPEST {
        return;
    }
    for link in catalogue.kind(id).children {
        for found in objects.follow(id, *link) {
            // A template is named by many; it stands below the first.
            if found.id.kind == "Secret" || !seen.insert(found.id.clone()) {
                continue;
            }
            let by = match link {
                Link::Reference(_) | Link::Name { .. } => found.by,
                _ => String::new(),
            };
            placed.entry(id.clone()).or_default().push((found.id.clone(), by));
            expand(objects, catalogue, &found.id, depth + 1, placed, seen);
        }
    }
}

struct Maker<'a> {
    objects: &'a Objects,
    catalogue: &'a Catalogue,
    placed: &'a Placed,
    now: Timestamp,
}

impl Maker<'_> {
    fn node(&self, id: &Id, by: &str, depth: usize) -> Node {
        let kind = self.catalogue.kind(id);
        let Some(object) = self.objects.get(id) else {
            return self.missing(id, by, &kind);
        };
        let below = self.placed.get(id).filter(|_| depth < DEEPEST);
        let mut children: Vec<Node> = below
            .into_iter()
            .flatten()
            .map(|(child, by)| self.node(child, by, depth + 1))
            .collect();
        if let Some(inline) = &kind.inline {
            let held = inline::nodes(id, object, inline, self.catalogue);
            // Some are objects as well, and then stand here for themselves.
            children.extend(
                held.into_iter()
                    .filter(|node| self.objects.get(&node.id).is_none()),
            );
        }
        let judgement = judge(object, self.catalogue, self.now);
        let conditions = conditions(object);
        let (version, desired_version) = versions(object, &kind);
        let mut machines = Vec::new();
        for child in &children {
            collect_machines(child, &mut machines);
        }
        let machines = machines.into_iter().filter_map(|id| self.objects.get(id));
        let target = desired_version.as_deref().or(version.as_deref());
        let finished = finished_of(machines, self.catalogue, target);
        let progress = progress(
            object,
            &kind,
            &judgement,
            &conditions,
            &finished,
            self.catalogue,
            self.now,
        );
        let created = path::time(object, "/metadata/creationTimestamp");
        let facts = kind
            .facts
            .iter()
            .filter_map(|(name, at)| Some(((*name).to_owned(), shown(path::all(object, at).first()?)?)))
            .collect();
        let noteworthy = judgement.state != State::Ready
            || judgement.paused
            || judgement.deleting
            || progress.is_some()
            || (version.is_some() && desired_version.is_some());
        Node {
            id: id.clone(),
            api_version: path::text(object, "/apiVersion").unwrap_or_default().to_owned(),
            part: kind.part,
            by: by.to_owned(),
            created,
            age_seconds: created.map(|created| state::seconds(created, self.now)),
            version,
            desired_version,
            counts: Counts::of(object, &kind),
            progress,
            waits_for: self.waits_for(id, &kind, &judgement),
            judgement,
            noteworthy,
            missing: false,
            facts,
            conditions,
            members: Vec::new(),
            count: 1,
            children,
        }
    }

    fn missing(&self, id: &Id, by: &str, kind: &Kind) -> Node {
        let judgement = match self.objects.unreadable(id) {
            Some(why) => Judgement::own(State::Waiting, state::NOT_READABLE, why.to_owned()),
            None => Judgement::own(State::Stuck, state::NOT_FOUND, format!("{by} names it")),
        };
        Node {
            by: by.to_owned(),
            judgement,
            noteworthy: true,
            missing: true,
            ..Node::bare(id.clone(), kind.part)
        }
    }

    fn waits_for(&self, id: &Id, kind: &Kind, judgement: &Judgement) -> Vec<Id> {
        if judgement.state == State::Ready {
            return Vec::new();
        }
        let links = self.catalogue.elsewhere(kind, &id.kind, judgement);
        let mut found: Vec<Id> = Vec::new();
        for link in links.into_iter().flatten() {
            for reference in self.objects.follow(id, link) {
                let is_waited_for = match self.objects.get(&reference.id) {
                    Some(object) => judge(object, self.catalogue, self.now).state != State::Ready,
                    None => reference.id.kind != "Secret",
                };
                if is_waited_for && reference.id != *id && !found.contains(&reference.id) {
                    found.push(reference.id);
                }
            }
        }
        found.truncate(NAMED);
        found
    }
}

/// The machines right below, past what only stands between.
fn collect_machines<'a>(node: &'a Node, found: &mut Vec<&'a Id>) {
    match node.part {
        Part::Machine => found.push(&node.id),
        Part::Between => node
            .children
            .iter()
            .for_each(|child| collect_machines(child, found)),
        _ => {}
    }
}

/// The version that runs, and the one asked for if that is another. Where only one is known it is that one.
pub(crate) fn versions(object: &Value, kind: &Kind) -> (Option<String>, Option<String>) {
    let running = path::first(object, kind.running).map(str::to_owned);
    let desired = path::first(object, kind.desired).map(str::to_owned);
    let plain = |text: &str| text.trim_start_matches('v').to_owned();
    match (running, desired) {
        (None, desired) => (desired, None),
        (Some(running), Some(desired)) if plain(&running) != plain(&desired) => {
            (Some(running), Some(desired))
        }
        (running, _) => (running, None),
    }
}

/// When the machines that are as they should be became ready.
pub(crate) fn finished_of<'a>(
    machines: impl Iterator<Item = &'a Value>,
    catalogue: &Catalogue,
    version: Option<&str>,
) -> Vec<Finished> {
    machines
        .filter(|machine| {
            let (running, desired) = versions(machine, &catalogue.kind(&Id::of(machine)));
            desired.is_none() && version.is_none_or(|version| running.as_deref() == Some(version))
        })
        .filter_map(|machine| {
            let all = conditions(machine);
            let ready = all
                .iter()
                .find(|one| one.name == "Ready" && one.status == Status::True);
            ready?.since.map(Finished)
        })
        .collect()
}

fn shown(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if text.is_empty() => None,
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

impl Tree {
    /// What is worth looking at: the structure of the cluster, everything of which there is something to say, and the rest as
    /// numbers.
    pub fn noteworthy(&self) -> Self {
        let mut root = self.root.clone();
        root.children = reduce_all(&self.root.children);
        Self { at: self.at, root }
    }
}

impl Node {
    /// Of which nothing is known but what it is.
    pub(crate) fn bare(id: Id, part: Part) -> Self {
        Self {
            id,
            api_version: String::new(),
            part,
            by: String::new(),
            created: None,
            age_seconds: None,
            version: None,
            desired_version: None,
            counts: None,
            progress: None,
            judgement: Judgement::ready(),
            waits_for: Vec::new(),
            noteworthy: false,
            missing: false,
            facts: BTreeMap::new(),
            conditions: Vec::new(),
            members: Vec::new(),
            count: 1,
            children: Vec::new(),
        }
    }

    /// This one and all below it.
    pub fn walk<'a>(&'a self, visit: &mut impl FnMut(&'a Self)) {
        visit(self);
        for child in &self.children {
            child.walk(visit);
        }
    }
}

fn reduce_all(children: &[Node]) -> Vec<Node> {
    let reduced = children.iter().flat_map(reduce).collect();
    group(reduced)
}

fn reduce(node: &Node) -> Vec<Node> {
    let children = reduce_all(&node.children);
    let says_more = node.noteworthy && !children.iter().any(|child| child.noteworthy);
    let stays = match node.part {
        // What stands between is of interest where it is the one that fails.
        Part::Between => node.missing || node.judgement.state == State::Stuck && says_more,
        Part::Detail | Part::Template | Part::Host | Part::Upgrade => node.noteworthy || !children.is_empty(),
        _ => true,
    };
    if !stays {
        return children;
    }
    vec![Node {
        children,
        ..node.clone()
    }]
}

/// Machines and hosts that are alike, and have nothing of note below them, become one line.
fn group(nodes: Vec<Node>) -> Vec<Node> {
    let mut found: Vec<Node> = Vec::new();
    for node in nodes {
        let alike = |other: &&mut Node| {
            let same_words = other.judgement.state == State::Ready
                || (other.judgement.reason == node.judgement.reason
                    && other.judgement.message == node.judgement.message);
            other.children.is_empty()
                && other.id.kind == node.id.kind
                && other.id.group == node.id.group
                && other.judgement.state == node.judgement.state
                && other.noteworthy == node.noteworthy
                && other.judgement.deleting == node.judgement.deleting
                && other.version == node.version
                && other.desired_version == node.desired_version
                && same_words
        };
        let can_be =
            node.children.is_empty() && matches!(node.part, Part::Machine | Part::Host | Part::Detail);
        match found.iter_mut().find(alike).filter(|_| can_be) {
            Some(group) => {
                if group.count == 1 {
                    group.members = vec![std::mem::take(&mut group.id.name)];
                    group.conditions.clear();
                    group.facts.clear();
                    group.waits_for.clear();
                }
                group.count += 1;
                if group.members.len() < NAMED {
                    group.members.push(node.id.name);
                }
                group.created = group.created.min(node.created);
                group.age_seconds = group.age_seconds.max(node.age_seconds);
                group.judgement.since = group.judgement.since.max(node.judgement.since);
            }
            None => found.push(node),
        }
    }
    found
}
