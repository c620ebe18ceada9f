//! The resources of all subscriptions, kept by id. A resource group is a resource like any other.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::arm_id::ArmId;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Resource {
    /// As first spelled by whoever created it.
    pub id: String,
    /// Canonical type, such as `Microsoft.ContainerService/managedClusters`.
    pub kind: String,
    pub state: String,
    /// Everything of the document but `id`, `name`, `type` and the provisioning state.
    pub document: Map<String, Value>,
    /// Facts the service keeps to itself.
    #[serde(default)]
    pub hidden: Map<String, Value>,
    /// The running operation, if any.
    pub operation: Option<String>,
    /// Position in order of creation.
    pub order: u64,
    pub etag: String,
    pub created: Timestamp,
    pub changed: Timestamp,
}

impl Resource {
    pub fn arm_id(&self) -> ArmId {
        ArmId::parse(&self.id).unwrap_or_else(|| ArmId::subscription(""))
    }

    pub fn name(&self) -> &str {
        self.id.rsplit('/').next().unwrap_or_default()
    }

    pub fn properties(&self) -> &Map<String, Value> {
        static EMPTY: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);
        self.document
            .get("properties")
            .and_then(Value::as_object)
            .unwrap_or(&EMPTY)
    }

    pub fn properties_mut(&mut self) -> &mut Map<String, Value> {
        object_mut(&mut self.document, "properties")
    }

    pub fn location(&self) -> &str {
        self.document
            .get("location")
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    pub fn text(&self, property: &str) -> &str {
        self.properties()
            .get(property)
            .and_then(Value::as_str)
            .unwrap_or_default()
    }
}

/// The object under `key`, made when it is missing or something else.
pub fn object_mut<'a>(parent: &'a mut Map<String, Value>, key: &str) -> &'a mut Map<String, Value> {
    let entry = parent.entry(key).or_insert_with(|| Value::Object(Map::new()));
    if !entry.is_object() {
        *entry = Value::Object(Map::new());
    }
    match entry {
        Value::Object(object) => object,
        _ => unreachable!("it was just made an object"),
    }
}

/// All resources by lower-case id, so that what lies under an id is one range; and their ids by type, so that a LIST
/// does not look at every resource there is.
#[derive(Clone, Debug, Default)]
pub struct Store {
    resources: BTreeMap<String, Resource>,
    by_kind: BTreeMap<String, BTreeSet<String>>,
}

impl Serialize for Store {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.resources.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Store {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut store = Self::default();
        for (key, resource) in BTreeMap::<String, Resource>::deserialize(deserializer)? {
            store.put(key, resource);
        }
        Ok(store)
    }
}

impl Store {
    pub fn get(&self, id: &ArmId) -> Option<&Resource> {
        self.resources.get(&id.key())
    }

    pub fn by_key(&self, key: &str) -> Option<&Resource> {
        self.resources.get(key)
    }

    pub fn by_key_mut(&mut self, key: &str) -> Option<&mut Resource> {
        self.resources.get_mut(key)
    }

    pub fn get_mut(&mut self, id: &ArmId) -> Option<&mut Resource> {
        self.resources.get_mut(&id.key())
    }

    pub fn insert(&mut self, id: &ArmId, resource: Resource) {
        self.put(id.key(), resource);
    }

    fn put(&mut self, key: String, resource: Resource) {
        let kind = resource.kind.to_ascii_lowercase();
        self.by_kind.entry(kind).or_default().insert(key.clone());
        self.resources.insert(key, resource);
    }

    /// Everything below an id, without the resource itself.
    pub fn below<'a>(&'a self, key: &str) -> impl Iterator<Item = (&'a String, &'a Resource)> + use<'a> {
        let prefix = format!("{key}/");
        self.resources
            .range(prefix.clone()..)
            .take_while(move |(key, _)| key.starts_with(&prefix))
    }

    /// Resources of one type below an id, in order of creation.
    pub fn of_kind<'a>(&'a self, key: &str, kind: &str) -> Vec<&'a Resource> {
        let prefix = format!("{key}/");
        let Some(keys) = self.by_kind.get(&kind.to_ascii_lowercase()) else {
            return Vec::new();
        };
        let mut found: Vec<&Resource> = keys
            .range(prefix.clone()..)
            .take_while(|key| key.starts_with(&prefix))
            .filter_map(|key| self.resources.get(key))
            .collect();
        found.sort_by_key(|resource| resource.order);
        found
    }

    /// Removes a resource with everything below it; tells what went.
    pub fn remove(&mut self, key: &str) -> Vec<Resource> {
        let mut keys: Vec<String> = self.below(key).map(|(key, _)| key.clone()).collect();
        keys.push(key.to_owned());
        let mut gone = Vec::new();
        for key in keys {
            if let Some(resource) = self.resources.remove(&key) {
                if let Some(keys) = self.by_kind.get_mut(&resource.kind.to_ascii_lowercase()) {
                    keys.remove(&key);
                }
                gone.push(resource);
            }
        }
        gone
    }

    pub fn iter(&self) -> impl Iterator<Item = &Resource> {
        self.resources.values()
    }

    pub fn len(&self) -> usize {
        self.resources.len()
    }

    pub fn is_empty(&self) -> bool {
        self.resources.is_empty()
    }
}
