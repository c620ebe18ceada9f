//! Reads one object of a list or watch so that a malformed one does not stop the others.

use std::borrow::Cow;

use kube::{
    Resource,
    api::ObjectMeta,
    core::{ApiResource, DynamicResourceScope},
};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};

use super::tree::Tree;
use crate::ObjectKey;

/// What is known of an object that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    pub key: ObjectKey,
    pub uid: String,
    pub resource_version: String,
    /// Why it could not be read. Text out of the object is left out, because it may be a secret.
    pub error: String,
}

/// An object, or what is left of it. Never fails to parse as long as it is JSON.
#[derive(Clone, Debug)]
pub(super) enum Guarded<K> {
    Sound(Box<K>),
    Malformed {
        metadata: Box<ObjectMeta>,
        error: String,
    },
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let tree = Tree::deserialize(deserializer)?;
        Ok(match K::deserialize(&tree) {
            Ok(object) => Self::Sound(Box::new(object)),
            Err(error) => Self::Malformed {
                metadata: Box::new(identity(&tree)),
                error: without_quoted_text(&error.to_string()),
            },
        })
    }
}

/// Which object it is, as far as it says so.
fn identity(tree: &Tree<'_>) -> ObjectMeta {
    let metadata = tree.get("metadata");
    let text = |name: &str| {
        let found = metadata.and_then(|metadata| metadata.get(name));
        found.and_then(Tree::as_str).map(str::to_owned)
    };
    ObjectMeta {
        name: text("name"),
        namespace: text("namespace"),
        uid: text("uid"),
        resource_version: text("resourceVersion"),
        ..ObjectMeta::default()
    }
}

/// Scoped at run time, so that one type can be watched in one namespace or in all, whatever its own scope is.
impl<K: Resource> Resource for Guarded<K> {
    type DynamicType = K::DynamicType;
    type Scope = DynamicResourceScope;

    fn metadata_api() -> bool {
        K::metadata_api()
    }

    fn kind(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dynamic)
    }

    fn group(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dynamic)
    }

    fn version(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dynamic)
    }

    fn plural(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dynamic)
    }

    fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Sound(object) => object.meta(),
            Self::Malformed { metadata, .. } => metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Self::Sound(object) => object.meta_mut(),
            Self::Malformed { metadata, .. } => metadata,
        }
    }
}

/// The kind as text for labels and logs.
pub(super) fn describe<K: Resource>(dynamic: &K::DynamicType) -> ApiResource {
    ApiResource::erase::<K>(dynamic)
}

/// A parser quotes the value it did not expect; its shape says enough.
fn without_quoted_text(message: &str) -> String {
    let mut text = String::with_capacity(message.len());
    let mut characters = message.chars();
    while let Some(character) = characters.next() {
        text.push(character);
        if character != '"' {
            continue;
        }
        text.push('…');
        while let Some(quoted) = characters.next() {
            match quoted {
                '\\' => {
                    characters.next();
                }
                '"' => {
                    text.push('"');
                    break;
                }
                _ => {}
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Pod;

    fn read(text: &str) -> Guarded<Pod> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_sound_object_loses_only_its_managed_fields() {
        let Guarded::Sound(pod) = read(
            r#"{"metadata":{"name":"a","labels":{"x":"y"},"managedFields":[{"manager":"m"}]},"spec":{"containers":[]}}"#,
        ) else {
            panic!("it is sound")
        };
        assert!(pod.metadata.managed_fields.is_none());
        assert_eq!(pod.metadata.labels.as_ref().unwrap()["x"], "y");
        assert!(pod.spec.is_some());
    }

    #[test]
    fn a_malformed_object_keeps_its_name_and_not_its_secrets() {
        let Guarded::Malformed { metadata, error } = read(
            r#"{"metadata":{"name":"a","namespace":"b","resourceVersion":"7"},"spec":{"containers":"s3cr\"et"}}"#,
        ) else {
            panic!("it is malformed")
        };
        assert_eq!(metadata.name.as_deref(), Some("a"));
        assert_eq!(metadata.resource_version.as_deref(), Some("7"));
        assert!(error.contains("invalid type: string \"…\""), "{error}");
        assert!(!error.contains("s3cr"), "{error}");
    }

    #[test]
    fn nothing_that_is_json_fails_the_list_it_is_in() {
        for text in [
            "null",
            "[]",
            "7",
            r#"{"metadata":7}"#,
            r#"{"metadata":{"name":7}}"#,
        ] {
            let _ = read(text);
        }
        let malformed = read(r#"{"metadata":{"name":"a","labels":[1]}}"#);
        assert_eq!(malformed.meta().name.as_deref(), Some("a"));
    }
}
