//! What has been read, when, and whether that is still good enough. Pure; time is a number that comes in.

use std::{collections::HashMap, sync::Arc, time::Duration};

use serde_json::{Value, json};

use crate::arm::{ResourceId, provisioning_state};

/// One list that shows many resources at once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Listing {
    /// Lower case.
    pub resource_type: String,
    pub api_version: String,
}

/// What is known, and whether it has to be asked again.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    /// Good enough.
    Present(Arc<Value>),
    /// A fresh list does not show it.
    Absent,
    /// Ask for this resource alone.
    Get,
    /// List all of its type.
    List(Listing),
}

/// A resource as a list or a read of its own showed it. Thousands of bodies rest here and few are read, so they are
/// kept as text: a tree of values takes many times the room.
#[derive(Debug)]
pub struct Shown {
    id: ResourceId,
    body: Box<str>,
    /// It is not on its way somewhere.
    settled: bool,
}

impl Shown {
    /// The resource, and the children its body shows in full.
    pub fn all(id: &ResourceId, body: &Value) -> Vec<Self> {
        let children = children(id, body);
        let children = children.iter().map(|(id, body)| Self::one(id, body));
        children.chain([Self::one(id, body)]).collect()
    }

    /// What a list shows: an item without an id is no resource.
    pub fn listed(item: &Value) -> Vec<Self> {
        match item.get("id").and_then(Value::as_str).map(ResourceId::parse) {
            Some(Ok(id)) => Self::all(&id, item),
            _ => Vec::new(),
        }
    }

    fn one(id: &ResourceId, body: &Value) -> Self {
        let settled = provisioning_state(body).is_none_or(|state| {
            ["succeeded", "failed", "canceled"]
                .iter()
                .any(|end| state.eq_ignore_ascii_case(end))
        });
        Self {
            id: id.clone(),
            body: body.to_string().into(),
            settled,
        }
    }
}

#[derive(Debug)]
struct Entry {
    body: Box<str>,
    settled: bool,
    read: Duration,
}

impl Entry {
    /// It was a value before, so it is one again.
    fn body(&self) -> Option<Arc<Value>> {
        serde_json::from_str(&self.body).ok().map(Arc::new)
    }
}

/// How soon a resource that is on its way somewhere is read again.
const MOVING: Duration = Duration::from_secs(15);
/// How long a list that was refused is not tried again.
const REFUSED: Duration = Duration::from_hours(1);

/// Everything read of one subscription under one identity.
#[derive(Debug, Default)]
pub struct Index {
    entries: HashMap<(String, String), Entry>,
    lists: HashMap<Listing, Duration>,
    refused: HashMap<Listing, Duration>,
    /// When we last changed a resource: what was read before tells nothing any more.
    changed: HashMap<String, Duration>,
}

/// Where a type is listed: resource groups and whatever stands directly in one.
fn listing(id: &ResourceId, api_version: &str) -> Option<Listing> {
    let parts = id.as_str().split('/').count();
    let listed = match id.provider() {
        "Microsoft.Resources" => parts == 5,
        _ => parts == 9 && id.resource_group_name().is_some(),
    };
    listed.then(|| Listing {
        resource_type: id.resource_type().to_ascii_lowercase(),
        api_version: api_version.to_owned(),
    })
}

/// The list of the parent that also shows this child: a cluster's pools, a network's subnets.
fn parent_listing(id: &ResourceId, api_version: &str) -> Option<Listing> {
    let child = id.resource_type().to_ascii_lowercase();
    matches!(
        child.as_str(),
        "microsoft.containerservice/managedclusters/agentpools" | "microsoft.network/virtualnetworks/subnets"
    )
    .then(|| listing(&id.parent()?, api_version))
    .flatten()
}

impl Index {
    fn changed_since(&self, id: &ResourceId, read: Duration) -> bool {
        self.changed.get(id.key()).is_some_and(|changed| *changed >= read)
    }

    /// What to do to know the resource no older than `max_age`.
    pub fn find(&self, id: &ResourceId, api_version: &str, max_age: Duration, now: Duration) -> Found {
        let listing = listing(id, api_version)
            .or_else(|| parent_listing(id, api_version))
            .filter(|listing| {
                self.refused
                    .get(listing)
                    .is_none_or(|refused| now.saturating_sub(*refused) > REFUSED)
            });
        let entry = self.entries.get(&(id.key().to_owned(), api_version.to_owned()));
        if let Some(entry) = entry {
            if self.changed_since(id, entry.read) {
                return Found::Get;
            }
            let allowed = if entry.settled {
                max_age
            } else {
                max_age.min(MOVING)
            };
            if now.saturating_sub(entry.read) <= allowed {
                return entry.body().map_or(Found::Get, Found::Present);
            }
            if !entry.settled {
                return Found::Get;
            }
        } else if self.changed.contains_key(id.key()) {
            return Found::Get;
        }
        match listing {
            None => Found::Get,
            Some(listing) => match self.lists.get(&listing) {
                Some(at)
                    if now.saturating_sub(*at) <= max_age
                        && entry.is_none()
                        && !self.changed_since(id, *at) =>
                {
                    Found::Absent
                }
                _ => Found::List(listing),
            },
        }
    }

    /// Nobody asks for the resource any more.
    pub fn forget(&mut self, id: &ResourceId) {
        self.entries.retain(|(known, _), _| known != id.key());
        self.changed.remove(id.key());
    }

    /// What was seen last, whatever happened since.
    pub fn last(&self, id: &ResourceId, api_version: &str) -> Option<Arc<Value>> {
        let key = (id.key().to_owned(), api_version.to_owned());
        self.entries.get(&key).and_then(Entry::body)
    }

    /// A list was read; it was asked for at `asked`.
    pub fn listed(&mut self, listing: &Listing, items: Vec<Shown>, asked: Duration) {
        self.entries.retain(|(id, version), entry| {
            let shown = *version == listing.api_version
                && ResourceId::parse(id).is_ok_and(|id| {
                    id.resource_type().eq_ignore_ascii_case(&listing.resource_type)
                        || parent_listing(&id, version).as_ref() == Some(listing)
                });
            !(shown && entry.read < asked)
        });
        self.insert(items, &listing.api_version, asked);
        self.lists.insert(listing.clone(), asked);
        self.refused.remove(listing);
    }

    /// The identity may not list this type: its resources are read one by one.
    pub fn list_refused(&mut self, listing: &Listing, now: Duration) {
        self.refused.insert(listing.clone(), now);
    }

    /// One resource was read; it was asked for at `asked`.
    pub fn read(&mut self, id: &ResourceId, api_version: &str, body: Option<&Value>, asked: Duration) {
        match body {
            Some(body) => self.insert(Shown::all(id, body), api_version, asked),
            None => {
                self.entries
                    .remove(&(id.key().to_owned(), api_version.to_owned()));
            }
        }
        // A read that was asked for after our change shows it.
        if self.changed.get(id.key()).is_some_and(|changed| *changed < asked) {
            self.changed.remove(id.key());
        }
    }

    fn insert(&mut self, shown: Vec<Shown>, api_version: &str, read: Duration) {
        for Shown { id, body, settled } in shown {
            let key = (id.key().to_owned(), api_version.to_owned());
            if self.entries.get(&key).is_none_or(|entry| entry.read <= read) {
                self.entries.insert(key, Entry { body, settled, read });
            }
        }
    }

    /// We changed the resource, or something happened to it: it and its parent must be read again.
    pub fn touch(&mut self, id: &ResourceId, now: Duration) {
        self.changed.insert(id.key().to_owned(), now);
        if let Some(parent) = id.parent()
            && parent.provider() == id.provider()
        {
            self.changed.insert(parent.key().to_owned(), now);
        }
    }
}

/// The children a parent's body shows in full.
fn children(id: &ResourceId, body: &Value) -> Vec<(ResourceId, Value)> {
    let list = |pointer: &str| {
        body.pointer(pointer)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
    };
    let kind = id.resource_type().to_ascii_lowercase();
    match kind.as_str() {
        "microsoft.containerservice/managedclusters" => list("/properties/agentPoolProfiles")
            .filter_map(|profile| {
                let name = profile.get("name")?.as_str()?;
                let child = id.child("agentPools", name).ok()?;
                let mut properties = profile.clone();
                properties.as_object_mut()?.remove("name");
                let body = json!({
                    "id": child.as_str(),
                    "name": name,
                    "type": "Microsoft.ContainerService/managedClusters/agentPools",
                    "properties": properties,
                });
                Some((child, body))
            })
            .collect(),
        "microsoft.network/virtualnetworks" => list("/properties/subnets")
            .filter_map(|subnet| {
                let child = id.child("subnets", subnet.get("name")?.as_str()?).ok()?;
                Some((child, subnet.clone()))
            })
            .collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const API: &str = "2024-09-01";
    const MINUTE: Duration = Duration::from_mins(1);

    fn cluster(name: &str) -> ResourceId {
        ResourceId::resource_group("s", "g")
            .unwrap()
            .provided("Microsoft.ContainerService/managedClusters", name)
            .unwrap()
    }

    fn body(name: &str, state: &str) -> Value {
        json!({"id": cluster(name).as_str().to_lowercase(), "name": name, "properties": {
            "provisioningState": state, "agentPoolProfiles": [{"name": "p", "count": 2, "provisioningState": "Succeeded"}]}})
    }

    fn shown(items: &[Value]) -> Vec<Shown> {
        items.iter().flat_map(Shown::listed).collect()
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn one_list_serves_all_clusters_and_their_pools() {
        let mut index = Index::default();
        let one = cluster("one");
        let Found::List(listing) = index.find(&one, API, MINUTE, seconds(0)) else {
            panic!("nothing is known yet")
        };
        index.listed(
            &listing,
            shown(&[body("one", "Succeeded"), body("two", "Succeeded")]),
            seconds(0),
        );
        for name in ["one", "two"] {
            assert!(matches!(
                index.find(&cluster(name), API, MINUTE, seconds(60)),
                Found::Present(_)
            ));
            let pool = cluster(name).child("agentPools", "p").unwrap();
            let Found::Present(body) = index.find(&pool, API, MINUTE, seconds(60)) else {
                panic!("the cluster's body shows its pools")
            };
            assert_eq!(body["properties"]["count"], 2);
        }
        assert_eq!(
            index.find(&cluster("three"), API, MINUTE, seconds(60)),
            Found::Absent
        );
        assert_eq!(
            index.find(&one, API, MINUTE, seconds(61)),
            Found::List(listing.clone())
        );
        // Another api-version has other bodies.
        assert!(matches!(
            index.find(&one, "2025-08-01", MINUTE, seconds(1)),
            Found::List(_)
        ));
        index.listed(&listing, shown(&[body("two", "Succeeded")]), seconds(70));
        assert_eq!(
            index.find(&one, API, MINUTE, seconds(71)),
            Found::Absent,
            "what a list no longer shows is gone"
        );
        assert_eq!(
            index.find(&one.child("agentPools", "p").unwrap(), API, MINUTE, seconds(71)),
            Found::Absent
        );
    }

    #[test]
    fn our_own_change_makes_older_reads_worthless() {
        let mut index = Index::default();
        let id = cluster("one");
        let pool = id.child("agentPools", "p").unwrap();
        index.read(&id, API, Some(&body("one", "Succeeded")), seconds(0));
        index.touch(&pool, seconds(5));
        assert_eq!(index.find(&pool, API, MINUTE, seconds(6)), Found::Get);
        assert_eq!(
            index.find(&id, API, MINUTE, seconds(6)),
            Found::Get,
            "the parent shows the pool"
        );
        // A read that was already on its way when we changed it does not count.
        index.read(&id, API, Some(&body("one", "Succeeded")), seconds(4));
        assert_eq!(index.find(&id, API, MINUTE, seconds(7)), Found::Get);
        index.read(&id, API, Some(&body("one", "Updating")), seconds(8));
        assert!(matches!(
            index.find(&id, API, MINUTE, seconds(9)),
            Found::Present(_)
        ));
    }

    #[test]
    fn what_moves_is_read_alone_and_often_and_what_rests_is_not() {
        let mut index = Index::default();
        let id = cluster("one");
        index.read(&id, API, Some(&body("one", "Updating")), seconds(0));
        assert!(matches!(
            index.find(&id, API, MINUTE * 60, seconds(15)),
            Found::Present(_)
        ));
        assert_eq!(index.find(&id, API, MINUTE * 60, seconds(16)), Found::Get);
        index.read(&id, API, Some(&body("one", "Succeeded")), seconds(20));
        assert!(matches!(
            index.find(&id, API, MINUTE * 60, seconds(3000)),
            Found::Present(_)
        ));
    }

    #[test]
    fn what_no_list_shows_or_may_not_be_listed_is_read_alone() {
        let mut index = Index::default();
        let extension = cluster("one")
            .provided("Microsoft.KubernetesConfiguration/extensions", "x")
            .unwrap();
        assert_eq!(index.find(&extension, API, MINUTE, seconds(0)), Found::Get);
        let Found::List(listing) = index.find(&cluster("one"), API, MINUTE, seconds(0)) else {
            panic!("a cluster is listed")
        };
        index.list_refused(&listing, seconds(0));
        assert_eq!(index.find(&cluster("one"), API, MINUTE, seconds(10)), Found::Get);
        assert!(matches!(
            index.find(&cluster("one"), API, MINUTE, seconds(4000)),
            Found::List(_)
        ));
    }
}
