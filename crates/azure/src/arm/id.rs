//! ARM resource ids: read, compared without regard to case, and put together. Pure.

use std::{
    fmt,
    hash::{Hash, Hasher},
};

use serde::{Deserialize, Serialize};

/// The id of one ARM resource, e.g. `/subscriptions/…/resourceGroups/…/providers/Microsoft.Network/virtualNetworks/v`.
/// Two ids that differ only in case name the same resource.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ResourceId {
    text: String,
    key: String,
}

#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum IdError {
    #[error(
        "{0:?} is not an ARM resource id: it must look like /subscriptions/…/resourceGroups/…/providers/…"
    )]
    Malformed(String),
    #[error(
        "{0:?} cannot be part of an ARM resource id: a name has no slash, question mark, hash or control character"
    )]
    BadName(String),
}

fn segment(text: &str) -> Result<&str, IdError> {
    let bad = text.is_empty()
        || text == "."
        || text == ".."
        || text
            .chars()
            .any(|character| matches!(character, '/' | '?' | '#' | '%' | '\\') || character.is_control());
    if bad {
        Err(IdError::BadName(text.to_owned()))
    } else {
        Ok(text)
    }
}

impl ResourceId {
    pub fn parse(text: &str) -> Result<Self, IdError> {
        let text = text.trim_end_matches('/');
        let malformed = || IdError::Malformed(text.to_owned());
        let segments: Vec<&str> = text.strip_prefix('/').ok_or_else(malformed)?.split('/').collect();
        for part in &segments {
            segment(part)?;
        }
        let rooted = segments[0].eq_ignore_ascii_case("subscriptions")
            || segments[0].eq_ignore_ascii_case("providers");
        let after = segments
            .iter()
            .rposition(|part| part.eq_ignore_ascii_case("providers"));
        let whole = match after {
            // providers/Namespace/type/name[/type/name…]
            Some(position) => {
                let below = segments.len() - position - 1;
                below >= 3 && below % 2 == 1
            }
            None => segments.len().is_multiple_of(2),
        };
        if !rooted || !whole {
            return Err(malformed());
        }
        Ok(Self::trusted(text.to_owned()))
    }

    fn trusted(text: String) -> Self {
        let key = text.to_ascii_lowercase();
        Self { text, key }
    }

    pub fn resource_group(subscription: &str, name: &str) -> Result<Self, IdError> {
        Ok(Self::trusted(format!(
            "/subscriptions/{}/resourceGroups/{}",
            segment(subscription)?,
            segment(name)?
        )))
    }

    /// A resource of `kind` (`Microsoft.Network/virtualNetworks`) below this scope, or an extension of this resource.
    pub fn provided(&self, kind: &str, name: &str) -> Result<Self, IdError> {
        for part in kind.split('/') {
            segment(part)?;
        }
        Ok(Self::trusted(format!(
            "{}/providers/{kind}/{}",
            self.text,
            segment(name)?
        )))
    }

    /// A child of this resource, e.g. `agentPools`, `pool1`.
    pub fn child(&self, kind: &str, name: &str) -> Result<Self, IdError> {
        Ok(Self::trusted(format!(
            "{}/{}/{}",
            self.text,
            segment(kind)?,
            segment(name)?
        )))
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The form to compare and to look up by.
    pub fn key(&self) -> &str {
        &self.key
    }

    pub fn name(&self) -> &str {
        self.text.rsplit('/').next().unwrap_or_default()
    }

    fn after(&self, word: &str) -> Option<&str> {
        let mut parts = self.text.split('/');
        parts.find(|part| part.eq_ignore_ascii_case(word))?;
        parts.next()
    }

    pub fn subscription(&self) -> Option<&str> {
        self.after("subscriptions")
    }

    pub fn resource_group_name(&self) -> Option<&str> {
        self.after("resourceGroups")
    }

    /// The resource provider that serves it; a resource group is served by `Microsoft.Resources`.
    pub fn provider(&self) -> &str {
        let mut found = "Microsoft.Resources";
        let mut parts = self.text.split('/');
        while let Some(part) = parts.next() {
            if part.eq_ignore_ascii_case("providers") {
                found = parts.next().unwrap_or(found);
            }
        }
        found
    }

    /// The ARM type, e.g. `Microsoft.ContainerService/managedClusters/agentPools`.
    pub fn resource_type(&self) -> String {
        let parts: Vec<&str> = self.text.split('/').collect();
        match parts
            .iter()
            .rposition(|part| part.eq_ignore_ascii_case("providers"))
        {
            Some(position) => {
                let mut kind = parts.get(position + 1).copied().unwrap_or_default().to_owned();
                for name in parts[position + 2..].iter().step_by(2) {
                    kind.push('/');
                    kind.push_str(name);
                }
                kind
            }
            None if self.resource_group_name().is_some() => "Microsoft.Resources/resourceGroups".to_owned(),
            None => "Microsoft.Resources/subscriptions".to_owned(),
        }
    }

    /// The resource this one is a child or extension of, if it is one.
    pub fn parent(&self) -> Option<Self> {
        let parts: Vec<&str> = self.text.split('/').collect();
        let position = parts
            .iter()
            .rposition(|part| part.eq_ignore_ascii_case("providers"))?;
        let keep = if parts.len() - position > 4 {
            parts.len() - 2
        } else {
            position
        };
        (keep > 2).then(|| Self::trusted(parts[..keep].join("/")))
    }
}

impl PartialEq for ResourceId {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for ResourceId {}

impl Hash for ResourceId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

impl fmt::Display for ResourceId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl fmt::Debug for ResourceId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl TryFrom<String> for ResourceId {
    type Error = IdError;

    fn try_from(text: String) -> Result<Self, IdError> {
        Self::parse(&text)
    }
}

impl From<ResourceId> for String {
    fn from(id: ResourceId) -> Self {
        id.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: &str = "/subscriptions/s/resourceGroups/g/providers/Microsoft.ContainerService/managedClusters/c/agentPools/p";

    #[test]
    fn a_child_knows_its_parts_and_its_parent() {
        let pool = ResourceId::parse(POOL).unwrap();
        assert_eq!(pool.name(), "p");
        assert_eq!(pool.subscription(), Some("s"));
        assert_eq!(pool.resource_group_name(), Some("g"));
        assert_eq!(pool.provider(), "Microsoft.ContainerService");
        assert_eq!(
            pool.resource_type(),
            "Microsoft.ContainerService/managedClusters/agentPools"
        );
        let cluster = pool.parent().unwrap();
        assert_eq!(cluster.name(), "c");
        let group = cluster.parent().unwrap();
        assert_eq!(group, ResourceId::resource_group("S", "G").unwrap());
        assert_eq!(group.parent(), None);
        assert_eq!(group.provider(), "Microsoft.Resources");
        let extension = cluster
            .provided("Microsoft.KubernetesConfiguration/extensions", "flux")
            .unwrap();
        assert_eq!(extension.provider(), "Microsoft.KubernetesConfiguration");
        assert_eq!(extension.parent(), Some(cluster));
    }

    #[test]
    fn case_does_not_tell_two_ids_apart() {
        let lower = ResourceId::parse(&POOL.to_ascii_lowercase()).unwrap();
        assert_eq!(lower, ResourceId::parse(POOL).unwrap());
    }

    #[test]
    fn what_could_reach_another_resource_is_refused() {
        let group = ResourceId::resource_group("s", "g").unwrap();
        for name in ["", "..", "a/b", "a?api-version=1", "a#b", "a%2fb", "a\nb"] {
            assert_eq!(
                group.provided("Microsoft.Network/virtualNetworks", name),
                Err(IdError::BadName(name.to_owned())),
            );
        }
        for id in [
            "subscriptions/s",
            "/subscriptions",
            "/subscriptions/s/resourceGroups",
            "/a/b",
            "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/virtualNetworks",
        ] {
            assert!(ResourceId::parse(id).is_err(), "{id}");
        }
    }
}
