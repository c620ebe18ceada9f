//! What is known of an object's inline resources, and what follows from it alone. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::ApiResource;
use serde_json::Value;
use slipway_azure::{
    ResourceId,
    credential::SecretName,
    ownership::{Foreign, mark_of},
    reconcile::{
        Records, ResourceState,
        planning::{Problem, RECREATE, Unknown},
        records::Entry,
        state_of,
    },
    resource::{Put, Reference},
};

use super::{export::StoredExport, fetched::Times};
use crate::{
    api::{ResourceName, ResourceStatus},
    engine::{self, Choice, Operated, Standing},
    inline::{Export, Expression, Inline, Policy, Store},
    mutators::{AGENT_POOL, CONTAINER_SERVICE, MANAGED_CLUSTER},
};

/// One inline resource.
#[derive(Clone, Debug, Default)]
pub struct Resource {
    pub name: ResourceName,
    /// Where it stands in `spec.resources`.
    pub index: usize,
    /// As it is to be, with what Cluster API decides in it; `None`: it cannot be read.
    pub inline: Option<Inline>,
    pub id: Option<ResourceId>,
    /// The request that makes it so; `None`: `problem` says why there is none.
    pub put: Option<Put>,
    pub problem: Option<Problem>,
    /// Something of Cluster API that has to come first: reason and message.
    pub wait: Option<(String, String)>,
    /// The resources of the same object that it refers to, by their place in [`Held::resources`].
    pub after: Vec<usize>,
    /// What it refers to in other objects that is not there yet, as a user reads it.
    pub missing: Vec<String>,
    /// The Secret it signs in with.
    pub credential: Option<SecretName>,
    /// The object of a running Azure Service Operator that stands for the same resource.
    pub operated_by: Option<String>,
    pub exports: Vec<Export>,
    pub expressions: Vec<Expression>,
    /// Who writes it, and why.
    pub choice: Choice,
    /// How Azure Service Operator stands to its kind.
    pub standing: Standing,
    /// Where the operator's object for it is, or would be.
    pub api: Option<ApiResource>,
    /// As it is to be, in the form of the operator's objects.
    pub manifest: Value,
    /// What it refers to that the operator has no object for.
    pub elsewhere: Vec<(Reference, ResourceId)>,
    /// What the operator writes to Secrets and ConfigMaps.
    pub delivered: Vec<Export>,
    /// What is noted of its engine beside its record.
    pub engine_notes: BTreeMap<&'static str, &'static str>,
    /// Whether it is noted as ours to delete, whoever made it.
    pub owned: bool,
}

impl Resource {
    /// How it is called in messages.
    pub fn display(&self) -> String {
        let kind = if self.name.kind.is_empty() {
            "resource"
        } else {
            &self.name.kind
        };
        format!("{kind} {}", self.name.name)
    }

    pub fn policy(&self) -> Policy {
        self.inline.as_ref().map_or(Policy::Skip, |inline| inline.policy)
    }

    pub fn is(&self, kind: &str) -> bool {
        self.name.group == CONTAINER_SERVICE && self.name.kind == kind
    }

    pub fn is_managed_cluster(&self) -> bool {
        self.is(MANAGED_CLUSTER)
    }

    pub fn is_agent_pool(&self) -> bool {
        self.is(AGENT_POOL)
    }

    pub fn api_version(&self) -> &str {
        self.inline
            .as_ref()
            .map_or("", |inline| inline.object.mapping.api_version.as_str())
    }

    /// What is noted beside its record: by then its manifest may be gone.
    pub fn notes(&self) -> BTreeMap<String, String> {
        let mut notes = BTreeMap::from([
            ("kind".to_owned(), self.name.kind.clone()),
            ("group".to_owned(), self.name.group.clone()),
            ("version".to_owned(), self.name.version.clone()),
            ("name".to_owned(), self.name.name.clone()),
        ]);
        for (name, value) in &self.engine_notes {
            notes.insert((*name).to_owned(), (*value).to_owned());
        }
        if let Some(inline) = &self.inline {
            if inline.policy != Policy::Manage {
                notes.insert("policy".to_owned(), inline.policy.to_string());
            }
            if inline.protected {
                notes.insert("protected".to_owned(), "true".to_owned());
            }
            if let Some(name) = &inline.credential {
                notes.insert("credential".to_owned(), name.clone());
            }
        }
        notes
    }
}

/// A resource that was made or changed and is no longer in the spec, or all of them when the object goes.
#[derive(Clone, Debug)]
pub struct Leftover {
    pub name: ResourceName,
    pub id: ResourceId,
    pub api_version: String,
    pub policy: Policy,
    pub protected: bool,
}

/// What of its notes an entry of the record says.
pub fn leftover(id: &str, entry: &Entry) -> Option<Leftover> {
    let id = ResourceId::parse(id).ok()?;
    let note = |name: &str| entry.notes.get(name).cloned().unwrap_or_default();
    let kind = note("kind");
    Some(Leftover {
        name: ResourceName {
            group: note("group"),
            version: note("version"),
            kind: if kind.is_empty() { id.resource_type() } else { kind },
            name: if note("name").is_empty() {
                id.name().to_owned()
            } else {
                note("name")
            },
        },
        api_version: entry.api_version.clone(),
        policy: Policy::by_name(&note("policy")).unwrap_or_default(),
        protected: note("protected") == "true",
        id,
    })
}

/// The Secret that a recorded resource signs in with, if its manifest named one.
pub fn noted_credential(entry: &Entry) -> Option<&str> {
    entry.notes.get("credential").map(String::as_str)
}

/// Everything that is known of an object's resources.
#[derive(Clone, Debug, Default)]
pub struct Held {
    /// Kind, namespace and name, as a user reads it.
    pub object: String,
    pub metadata: ObjectMeta,
    pub cluster_name: String,
    /// In the order of making; those that cannot be read or wait for each other come last.
    pub resources: Vec<Resource>,
    /// What is recorded on the object of what was made and applied.
    pub records: Records,
    /// What is in Azure, by id in lower case.
    pub states: BTreeMap<String, ResourceState>,
    /// Why the state of a resource is not known, or what Azure is at work on, by id in lower case.
    pub unknown: BTreeMap<String, Unknown>,
    /// What belongs to another, by id in lower case.
    pub foreign: BTreeMap<String, Foreign>,
    /// What keeps a recorded resource from being asked about, by id in lower case.
    pub sign_in_problems: BTreeMap<String, Problem>,
    /// The AKS clusters of others in a resource group that is to be deleted, by the group's id in lower case.
    pub others_in_groups: BTreeMap<String, Vec<String>>,
    /// The AKS cluster that is stopped: what stands in it takes no changes.
    pub stopped: Option<ResourceId>,
    /// The Secrets and ConfigMaps that values go to, where they exist.
    pub stored: BTreeMap<(Store, String), StoredExport>,
    /// Values that Azure shows elsewhere than in the resource's own body, by id in lower case and name of the export.
    pub values: BTreeMap<(String, String), String>,
    /// When Azure was last asked for keys, where that is not in their Secret.
    pub asked: Times,
    /// How old keys may be before Azure is asked for them again.
    pub key_read_age: Duration,
    /// The Secrets by which resources sign in as the manager, on trust.
    pub borrowing: BTreeSet<String>,
    /// What is wrong with the object as a whole.
    pub problem: Option<Problem>,
    /// How each resource stood before.
    pub before: Vec<ResourceStatus>,
    /// The objects of Azure Service Operator that are there for its resources.
    pub operated: BTreeMap<engine::Key, Operated>,
    /// Whether an operator runs, as far as that was looked at.
    pub operator: Standing,
    /// By which the object controls what it makes.
    pub controller: Option<OwnerReference>,
    /// What the operator's objects of this namespace refer to.
    pub needed: BTreeSet<engine::Key>,
}

impl Held {
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    pub fn state(&self, id: &ResourceId) -> &ResourceState {
        state_of(&self.states, id.key())
    }

    pub fn unknown(&self, id: &ResourceId) -> Option<&Unknown> {
        self.unknown.get(id.key())
    }

    pub fn foreign(&self, id: &ResourceId) -> Option<&Foreign> {
        self.foreign.get(id.key())
    }

    /// The first resource of a kind of AKS.
    pub fn first(&self, kind: &str) -> Option<&Resource> {
        let of_kind = |resource: &&Resource| resource.is(kind);
        self.resources
            .iter()
            .filter(of_kind)
            .min_by_key(|resource| resource.index)
    }

    /// The state of the first resource of a kind of AKS.
    pub fn state_of_first(&self, kind: &str) -> &ResourceState {
        static UNKNOWN: ResourceState = ResourceState::Unknown;
        let id = self.first(kind).and_then(|resource| resource.id.as_ref());
        id.map_or(&UNKNOWN, |id| self.state(id))
    }

    /// Whether a change of ours was seen through to its end: then the resource existed.
    pub fn has_existed(&self, id: &ResourceId) -> bool {
        self.records.get(id.key()).is_some_and(Entry::existed)
    }

    /// Whether a resource was there and is gone, though nothing here deleted it.
    pub fn is_vanished(&self, id: &ResourceId) -> bool {
        self.state(id).is_absent() && self.has_existed(id)
    }

    /// Whether the user asked for a vanished AKS cluster to be created again, empty.
    pub fn recreates(&self) -> bool {
        let annotations = self.metadata.annotations.as_ref();
        annotations.is_some_and(|all| all.get(RECREATE).is_some_and(|value| value == "true"))
    }

    /// Whether what depends on a resource can be made: it is there, it is not another's, and Azure has made it once.
    pub fn is_there(&self, resource: &Resource) -> bool {
        let Some(id) = &resource.id else { return false };
        let usable = resource.policy() == Policy::Skip || self.foreign(id).is_none();
        let state = self.state(id);
        usable
            && state.body().is_some()
            && (matches!(state.provisioning_state(), None | Some("Succeeded")) || self.has_existed(id))
    }

    /// Whether a resource is ours to delete: we made it or have written to it. A node pool belongs to its cluster.
    pub fn is_ours(&self, id: &ResourceId) -> bool {
        if self.foreign(id).is_some() {
            return false;
        }
        let made = self.records.get(id.key()).is_some_and(|entry| entry.made);
        let tags = self.state(id).tags();
        let marked = mark_of(&tags).is_some() && mark_of(&tags) == self.records.mark();
        let is_pool = id.resource_type().to_ascii_lowercase().ends_with("/agentpools");
        made || marked || is_pool
    }

    /// Where a resource of the spec is in Azure, if the spec has come to say otherwise. Nothing in Azure changes its name or its
    /// owner, and a slip of the pen must not delete what is there.
    pub fn stands_elsewhere(&self, resource: &Resource) -> Option<ResourceId> {
        if resource.id.is_none() || !resource.policy().writes() {
            return None;
        }
        let is_it = |one: &Leftover| {
            (&one.name.group, &one.name.kind, &one.name.name)
                == (&resource.name.group, &resource.name.kind, &resource.name.name)
        };
        let is_there = |one: &Leftover| self.has_existed(&one.id) && !self.state(&one.id).is_absent();
        let mut found = self.leftovers().into_iter();
        found.find(|one| is_it(one) && is_there(one)).map(|one| one.id)
    }

    /// Whether what is known of a resource is stored on the object.
    pub fn is_noted(&self, resource: &Resource) -> bool {
        let Some(entry) = resource.id.as_ref().and_then(|id| self.records.get(id.key())) else {
            return false;
        };
        let is_same = entry.api_version == resource.api_version() && entry.notes == resource.notes();
        self.records.mark().is_some() && is_same && (entry.made || !resource.owned)
    }

    /// Whether an object of the operator refers to a resource.
    pub fn is_needed(&self, resource: &Resource) -> bool {
        let name = &resource.name;
        let key = (name.group.clone(), name.kind.clone(), name.name.clone());
        self.needed.contains(&key)
    }

    /// The operator's objects of ours for what the spec no longer names.
    pub fn operated_leftovers(&self) -> impl Iterator<Item = &Operated> {
        self.operated.values().filter(|one| {
            let is_named = |resource: &Resource| {
                let (left, right) = (&resource.name, &one.name);
                (&left.group, &left.kind, &left.name) == (&right.group, &right.kind, &right.name)
            };
            one.live.is_controlled_by(&self.metadata) && !self.resources.iter().any(is_named)
        })
    }

    /// Whether the operator still has an object for something recorded, or for what that stands in: it is the operator's to delete.
    pub fn is_operated(&self, id: &ResourceId) -> bool {
        let ours = self
            .operated
            .values()
            .filter(|one| one.live.is_controlled_by(&self.metadata));
        ours.filter_map(|one| one.live.id()).any(|above| {
            let rest = id.key().strip_prefix(above.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }

    /// What is recorded and no longer in the spec.
    pub fn leftovers(&self) -> Vec<Leftover> {
        let named: BTreeSet<&str> = self
            .resources
            .iter()
            .filter_map(|resource| Some(resource.id.as_ref()?.key()))
            .collect();
        self.records
            .entries()
            .filter(|(id, _)| !named.contains(id))
            .filter_map(|(id, entry)| leftover(id, entry))
            .filter(|one| {
                self.operated_leftovers()
                    .all(|left| left.live.id().as_deref() != Some(one.id.key()))
            })
            .collect()
    }
}
