//! What happened to an object and to what is below it, in order: from its own times, its conditions, its writers and its events.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Id, Node, Objects, Tree, condition::conditions, path};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Happening {
    Created,
    /// A condition came to be what it is.
    Condition,
    Event,
    /// Somebody wrote to its spec or metadata last.
    Write,
    Deleted,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    pub at: Timestamp,
    pub object: Id,
    pub what: Happening,
    /// `Ready: True`, an event's reason, who wrote.
    pub title: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    pub warning: bool,
    /// How often, of an event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<i64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Timeline {
    /// The oldest first.
    pub entries: Vec<Entry>,
}

/// The timeline of everything in a tree.
pub fn timeline(objects: &Objects, tree: &Tree) -> Timeline {
    let mut ids = BTreeSet::new();
    tree.root.walk(&mut |node: &Node| {
        ids.insert(node.id.clone());
    });
    let mut entries: Vec<Entry> = Vec::new();
    for id in &ids {
        if let Some(object) = objects.get(id) {
            of_object(id, object, &mut entries);
        }
    }
    let is_here = |id: &Id| ids.contains(id);
    entries.extend(
        objects
            .events()
            .filter_map(|(_, event)| of_event(event, objects, is_here)),
    );
    in_order(entries)
}

/// The events of everything that was read.
pub fn events(objects: &Objects) -> Timeline {
    let is_here = |id: &Id| objects.get(id).is_some();
    let entries = objects
        .events()
        .filter_map(|(_, event)| of_event(event, objects, is_here));
    in_order(entries.collect())
}

fn in_order(mut entries: Vec<Entry>) -> Timeline {
    entries.sort_by(|left, right| {
        (left.at, &left.object, left.what, &left.title).cmp(&(
            right.at,
            &right.object,
            right.what,
            &right.title,
        ))
    });
    Timeline { entries }
}

fn of_object(id: &Id, object: &Value, entries: &mut Vec<Entry>) {
    let mut add = |at: Option<Timestamp>, what, title: String, text: String, warning| {
        entries.extend(at.map(|at| Entry {
            at,
            object: id.clone(),
            what,
            title,
            text,
            warning,
            count: None,
        }));
    };
    let plain = |title: &str| title.to_owned();
    add(
        path::time(object, "/metadata/creationTimestamp"),
        Happening::Created,
        plain("created"),
        String::new(),
        false,
    );
    add(
        path::time(object, "/metadata/deletionTimestamp"),
        Happening::Deleted,
        plain("deletion asked for"),
        String::new(),
        false,
    );
    for condition in conditions(object) {
        let title = format!("{}: {:?}", condition.name, condition.status);
        let text = match (condition.reason.as_str(), condition.message.as_str()) {
            (reason, "") => plain(reason),
            (reason, message) => format!("{reason}: {message}"),
        };
        add(condition.since, Happening::Condition, title, text, false);
    }
    for writer in path::all(object, "/metadata/managedFields/*") {
        // Whoever writes the status does so all the time.
        if path::text(writer, "/subresource").is_none()
            && let Some(manager) = path::text(writer, "/manager")
        {
            let title = format!("written by {manager}");
            add(
                path::time(writer, "/time"),
                Happening::Write,
                title,
                String::new(),
                false,
            );
        }
    }
}

/// An event, of either API, of an object that is here.
fn of_event(event: &Value, objects: &Objects, is_here: impl Fn(&Id) -> bool) -> Option<Entry> {
    let about = [&event["regarding"], &event["involvedObject"]]
        .into_iter()
        .find(|about| about.is_object())?;
    let named = crate::objects::reference(about, "")?;
    let object = Some(objects.as_known(named)).filter(is_here)?;
    let at = [
        "/series/lastObservedTime",
        "/deprecatedLastTimestamp",
        "/lastTimestamp",
        "/eventTime",
        "/metadata/creationTimestamp",
    ]
    .iter()
    .find_map(|pointer| path::time(event, pointer))?;
    let count = ["/series/count", "/deprecatedCount", "/count"]
        .iter()
        .find_map(|pointer| path::number(event, pointer));
    Some(Entry {
        at,
        object,
        what: Happening::Event,
        title: path::text(event, "/reason").unwrap_or_default().to_owned(),
        text: path::first(event, &["/note", "/message"])
            .unwrap_or_default()
            .to_owned(),
        warning: path::text(event, "/type") == Some("Warning"),
        count: count.filter(|count| *count > 1),
    })
}
