//! The state of one resource as Azure shows it. Pure.

use std::collections::BTreeMap;

use serde_json::Value;

/// What is known of a resource.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ResourceState {
    /// Azure did not tell, or has not been asked.
    #[default]
    Unknown,
    Absent,
    /// As Azure shows it.
    Present(Value),
}

impl ResourceState {
    pub fn body(&self) -> Option<&Value> {
        match self {
            Self::Present(body) => Some(body),
            _ => None,
        }
    }

    pub fn is_absent(&self) -> bool {
        *self == Self::Absent
    }

    /// A text of the resource's properties.
    pub fn property(&self, name: &str) -> Option<&str> {
        let value = self.body()?.get("properties")?.get(name)?.as_str()?;
        (!value.is_empty()).then_some(value)
    }

    pub fn provisioning_state(&self) -> Option<&str> {
        self.property("provisioningState")
    }

    pub fn tags(&self) -> BTreeMap<String, String> {
        self.body().map(tags_of).unwrap_or_default()
    }
}

/// The tags in a resource's body.
pub fn tags_of(body: &Value) -> BTreeMap<String, String> {
    let tags = body.get("tags").and_then(Value::as_object);
    tags.into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

/// The state of the resource with this id, from states kept by id in lower case: Azure's ids differ in case from time to
/// time.
pub fn state_of<'a>(states: &'a BTreeMap<String, ResourceState>, id: &str) -> &'a ResourceState {
    static UNKNOWN: ResourceState = ResourceState::Unknown;
    states.get(&id.to_lowercase()).unwrap_or(&UNKNOWN)
}
