//! The objects that were read, and how one finds another among them. Secrets are dropped, whoever hands them in.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Link, path};

/// Which object. Kinds are known by group and kind, never by a version.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Id {
    pub group: String,
    pub kind: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    pub name: String,
}

impl Id {
    pub fn new(group: &str, kind: &str, namespace: &str, name: &str) -> Self {
        Self {
            group: group.to_owned(),
            kind: kind.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    pub fn of(object: &Value) -> Self {
        let text = |pointer| path::text(object, pointer).unwrap_or_default();
        Self::new(
            group_of(text("/apiVersion")),
            text("/kind"),
            text("/metadata/namespace"),
            text("/metadata/name"),
        )
    }

    /// As kubectl takes it: `machine.cluster.x-k8s.io`.
    pub fn resource(&self) -> String {
        let kind = self.kind.to_lowercase();
        if self.group.is_empty() {
            kind
        } else {
            format!("{kind}.{}", self.group)
        }
    }
}

/// `Kind/name`, as the command line takes and shows it.
impl fmt::Display for Id {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.kind, self.name)
    }
}

pub fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

/// What an object names: perhaps without its group or namespace, and perhaps nothing that exists.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    pub id: Id,
    /// The field that names it, or what leads to it otherwise.
    pub by: String,
}

/// The reference in a field, if it is one.
pub fn reference(value: &Value, namespace: &str) -> Option<Id> {
    let kind = path::text(value, "/kind")?;
    let name = path::text(value, "/name")?;
    let group = path::first(value, &["/apiGroup", "/group"])
        .or_else(|| path::text(value, "/apiVersion").map(group_of))
        .unwrap_or_default();
    let namespace = path::text(value, "/namespace").unwrap_or(namespace);
    Some(Id::new(group, kind, namespace, name))
}

/// Objects by what they are and by what leads to them.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    all: BTreeMap<Id, Value>,
    by_uid: BTreeMap<String, Id>,
    by_owner: BTreeMap<String, BTreeSet<Id>>,
    by_kind: BTreeMap<(String, String), BTreeSet<Id>>,
    by_label: BTreeMap<(String, String), BTreeSet<Id>>,
    events: BTreeMap<Id, Value>,
    /// Kinds that could not be read, and why.
    unreadable: BTreeMap<(String, String), String>,
}

/// On everything of a Cluster.
pub(crate) const CLUSTER_LABEL: &str = "cluster.x-k8s.io/cluster-name";

impl Objects {
    pub fn new(objects: impl IntoIterator<Item = Value>) -> Self {
        let mut found = Self::default();
        for object in objects {
            found.insert(object);
        }
        found
    }

    /// Puts one in, in place of what it was before.
    pub fn insert(&mut self, object: Value) {
        let id = Id::of(&object);
        if id.kind == "Event" {
            self.events.insert(id, object);
            return;
        }
        if id.kind == "Secret" || id.kind.is_empty() || id.name.is_empty() {
            return;
        }
        self.remove(&id);
        if let Some(uid) = path::text(&object, "/metadata/uid") {
            self.by_uid.insert(uid.to_owned(), id.clone());
        }
        for uid in owner_uids(&object) {
            self.by_owner.entry(uid).or_default().insert(id.clone());
        }
        for label in labels(&object) {
            self.by_label.entry(label).or_default().insert(id.clone());
        }
        let kind = (id.group.clone(), id.kind.clone());
        self.by_kind.entry(kind).or_default().insert(id.clone());
        self.all.insert(id, object);
    }

    pub fn remove(&mut self, id: &Id) {
        if id.kind == "Event" {
            self.events.remove(id);
            return;
        }
        let Some(old) = self.all.remove(id) else { return };
        if let Some(uid) = path::text(&old, "/metadata/uid") {
            self.by_uid.remove(uid);
        }
        for uid in owner_uids(&old) {
            self.by_owner.get_mut(&uid).map(|ids| ids.remove(id));
        }
        for label in labels(&old) {
            self.by_label.get_mut(&label).map(|ids| ids.remove(id));
        }
        let kind = (id.group.clone(), id.kind.clone());
        self.by_kind.get_mut(&kind).map(|ids| ids.remove(id));
    }

    /// A kind could not be read: that one of its objects is not here says nothing.
    pub fn cannot_read(&mut self, group: &str, kind: &str, why: impl Into<String>) {
        self.unreadable
            .insert((group.to_owned(), kind.to_owned()), why.into());
    }

    /// A kind could be read after all.
    pub fn can_read(&mut self, group: &str, kind: &str) {
        self.unreadable.remove(&(group.to_owned(), kind.to_owned()));
    }

    /// Group, kind and why, of those that could not be read.
    pub fn all_unreadable(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        let all = self.unreadable.iter();
        all.map(|((group, kind), why)| (group.as_str(), kind.as_str(), why.as_str()))
    }

    /// Why the kind of an object could not be read, if so.
    pub fn unreadable(&self, id: &Id) -> Option<&str> {
        let found = self.unreadable.get(&(id.group.clone(), id.kind.clone()));
        found.map(String::as_str)
    }

    pub fn get(&self, id: &Id) -> Option<&Value> {
        self.all.get(id)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Id, &Value)> {
        self.all.iter()
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub fn events(&self) -> impl Iterator<Item = (&Id, &Value)> {
        self.events.iter()
    }

    /// Everything of a kind; of any group if that is empty and the kind is not of the core group.
    pub fn of_kind(&self, group: &str, kind: &str) -> impl Iterator<Item = &Id> {
        self.by_kind
            .get(&(group.to_owned(), kind.to_owned()))
            .into_iter()
            .flatten()
    }

    /// Those that have it as an owner, of this kind, or of any if both are empty.
    pub fn owned(&self, id: &Id, group: &str, kind: &str) -> Vec<&Id> {
        let uid = self
            .all
            .get(id)
            .and_then(|object| path::text(object, "/metadata/uid"));
        uid.and_then(|uid| self.by_owner.get(uid))
            .into_iter()
            .flatten()
            .filter(|child| kind.is_empty() || (child.group == group && child.kind == kind))
            .collect()
    }

    /// Its owner: the controller, or else the first that is here.
    pub fn owner(&self, id: &Id) -> Option<&Id> {
        let object = self.all.get(id)?;
        let owners = path::all(object, "/metadata/ownerReferences/*");
        let controller = owners.iter().find(|owner| owner["controller"] == true);
        controller
            .into_iter()
            .chain(owners.iter())
            .filter_map(|owner| owner["uid"].as_str())
            .find_map(|uid| self.by_uid.get(uid))
    }

    /// Those of a Cluster by its label.
    pub fn labelled(&self, label: &str, value: &str) -> impl Iterator<Item = &Id> {
        self.by_label
            .get(&(label.to_owned(), value.to_owned()))
            .into_iter()
            .flatten()
    }

    /// The Cluster that an object belongs to: itself, by its label, by a field, or by its owners.
    pub fn cluster_of(&self, id: &Id) -> Option<Id> {
        const CLUSTER: (&str, &str) = ("cluster.x-k8s.io", "Cluster");
        let mut at = id.clone();
        for _ in 0..8 {
            if (at.group.as_str(), at.kind.as_str()) == CLUSTER {
                return Some(at);
            }
            let object = self.all.get(&at)?;
            let named = object["metadata"]["labels"][CLUSTER_LABEL]
                .as_str()
                .or_else(|| path::text(object, "/spec/clusterName"));
            if let Some(name) = named {
                let cluster = Id::new(CLUSTER.0, CLUSTER.1, &at.namespace, name);
                return self.all.contains_key(&cluster).then_some(cluster);
            }
            at = self.owner(&at)?.clone();
        }
        None
    }

    /// What a link leads to, whether it is here or not.
    pub fn follow(&self, id: &Id, link: Link) -> Vec<Reference> {
        let Some(object) = self.all.get(id) else {
            return Vec::new();
        };
        let by_link = |ids: Vec<&Id>, by: &str| -> Vec<Reference> {
            ids.into_iter()
                .map(|id| Reference {
                    id: id.clone(),
                    by: by.to_owned(),
                })
                .collect()
        };
        let in_namespace = |child: &&Id| {
            id.namespace.is_empty() || child.namespace.is_empty() || child.namespace == id.namespace
        };
        match link {
            Link::Reference(at) => path::all(object, at)
                .into_iter()
                .filter_map(|value| reference(value, &id.namespace))
                .map(|id| Reference {
                    id: self.as_known(id),
                    by: field(at),
                })
                .collect(),
            Link::Name { group, kind, at } => path::all(object, at)
                .into_iter()
                .filter_map(|value| {
                    let name = value.as_str().or_else(|| path::text(value, "/name"))?;
                    let namespace = path::text(value, "/namespace").unwrap_or(&id.namespace);
                    (!name.is_empty()).then(|| Id::new(group, kind, namespace, name))
                })
                .map(|id| Reference {
                    id: self.as_known(id),
                    by: field(at),
                })
                .collect(),
            Link::Owned { group, kind } => by_link(self.owned(id, group, kind), "owner"),
            Link::Labelled { group, kind, label } => {
                let of_kind = |child: &&Id| child.group == group && child.kind == kind;
                let found = self
                    .labelled(label, &id.name)
                    .filter(of_kind)
                    .filter(in_namespace);
                by_link(found.collect(), label)
            }
            Link::Naming { group, kind, at } => {
                let names_it = |child: &&Id| {
                    let values = self.all.get(*child).map(|child| path::all(child, at));
                    values.into_iter().flatten().any(|value| {
                        value.as_str() == Some(&id.name)
                            || reference(value, &child.namespace)
                                .is_some_and(|named| named.kind == id.kind && named.name == id.name)
                    })
                };
                let found = self.of_kind(group, kind).filter(in_namespace).filter(names_it);
                by_link(found.collect(), &field(at))
            }
            Link::OfCluster(at) => match self.cluster_of(id) {
                Some(cluster) => self
                    .follow(&cluster, Link::Reference(at))
                    .into_iter()
                    .filter(|found| found.id != *id)
                    .collect(),
                _ => Vec::new(),
            },
            Link::Cluster => {
                let cluster = self.cluster_of(id).filter(|cluster| cluster != id);
                cluster
                    .map(|id| Reference {
                        id,
                        by: "cluster".to_owned(),
                    })
                    .into_iter()
                    .collect()
            }
            Link::Owner => by_link(self.owner(id).into_iter().collect(), "owner"),
        }
    }

    /// A reference may leave out the group or name a namespace where the kind has none.
    pub(crate) fn as_known(&self, id: Id) -> Id {
        if self.all.contains_key(&id) {
            return id;
        }
        let without = Id {
            namespace: String::new(),
            ..id.clone()
        };
        if self.all.contains_key(&without) {
            return without;
        }
        if id.group.is_empty() {
            let other = self.all.keys().find(|known| {
                known.kind == id.kind
                    && known.name == id.name
                    && (known.namespace == id.namespace || known.namespace.is_empty())
            });
            if let Some(other) = other {
                return other.clone();
            }
        }
        id
    }

    /// The object that a person means by `KIND/NAME`: any spelling of the kind, and a prefix of its group if there are several.
    pub fn find(&self, kind: &str, name: &str, namespace: Option<&str>) -> Vec<&Id> {
        let (kind, group) = kind.split_once('.').unwrap_or((kind, ""));
        self.all
            .keys()
            .filter(|id| {
                id.name == name
                    && id.kind.eq_ignore_ascii_case(kind)
                    && id.group.starts_with(group)
                    && namespace.is_none_or(|namespace| id.namespace.is_empty() || id.namespace == namespace)
            })
            .collect()
    }
}

/// `/spec/infrastructureRef` as people write it.
fn field(pointer: &str) -> String {
    pointer
        .trim_start_matches('/')
        .replace("/*", "[]")
        .replace('/', ".")
}

fn owner_uids(object: &Value) -> Vec<String> {
    path::all(object, "/metadata/ownerReferences/*/uid")
        .into_iter()
        .filter_map(|uid| uid.as_str().map(str::to_owned))
        .collect()
}

fn labels(object: &Value) -> Vec<(String, String)> {
    let labels = object["metadata"]["labels"].as_object();
    labels
        .into_iter()
        .flatten()
        .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(kind: &str, name: &str, more: &Value) -> Value {
        let mut object = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": kind,
            "metadata": {"name": name, "namespace": "shop", "uid": format!("{kind}-{name}")},
        });
        for (field, value) in more.as_object().into_iter().flatten() {
            match field.as_str() {
                "labels" | "ownerReferences" => object["metadata"][field] = value.clone(),
                _ => object[field] = value.clone(),
            }
        }
        object
    }

    fn id(kind: &str, name: &str) -> Id {
        Id::new("cluster.x-k8s.io", kind, "shop", name)
    }

    #[test]
    fn secrets_are_dropped_and_links_lead_to_objects() {
        let objects = Objects::new([
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "token", "namespace": "shop"}}),
            object(
                "Cluster",
                "a",
                &json!({"spec": {"infrastructureRef":
                {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "Boat", "name": "a"}}}),
            ),
            object(
                "Machine",
                "m",
                &json!({
                    "labels": {CLUSTER_LABEL: "a"},
                    "ownerReferences": [{"uid": "Cluster-a", "kind": "Cluster", "name": "a"}],
                }),
            ),
            object("Machine", "other", &json!({"spec": {"clusterName": "a"}})),
        ]);
        assert_eq!(objects.len(), 3);
        let cluster = id("Cluster", "a");
        let boat = objects.follow(&cluster, Link::Reference("/spec/infrastructureRef"));
        assert_eq!(
            boat[0].id,
            Id::new("infrastructure.cluster.x-k8s.io", "Boat", "shop", "a")
        );
        assert_eq!(boat[0].by, "spec.infrastructureRef");
        let machine = Link::Owned {
            group: "cluster.x-k8s.io",
            kind: "Machine",
        };
        assert_eq!(objects.follow(&cluster, machine)[0].id, id("Machine", "m"));
        let naming = Link::Naming {
            group: "cluster.x-k8s.io",
            kind: "Machine",
            at: "/spec/clusterName",
        };
        assert_eq!(objects.follow(&cluster, naming)[0].id, id("Machine", "other"));
        assert_eq!(objects.cluster_of(&id("Machine", "other")), Some(cluster.clone()));
        let of_cluster = Link::OfCluster("/spec/infrastructureRef");
        assert_eq!(objects.follow(&id("Machine", "m"), of_cluster)[0].id, boat[0].id);
        assert_eq!(objects.find("machine", "m", None), [&id("Machine", "m")]);
        assert_eq!(objects.find("machine.infrastructure", "m", None), [] as [&Id; 0]);
    }

    #[test]
    fn an_object_that_is_put_in_again_is_there_once() {
        let mut objects = Objects::new([object("Machine", "m", &json!({"labels": {CLUSTER_LABEL: "a"}}))]);
        objects.insert(object("Machine", "m", &json!({"labels": {CLUSTER_LABEL: "b"}})));
        assert_eq!(objects.labelled(CLUSTER_LABEL, "a").count(), 0);
        assert_eq!(objects.labelled(CLUSTER_LABEL, "b").count(), 1);
        assert_eq!(objects.len(), 1);
    }
}
