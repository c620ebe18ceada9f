//! Reads one object of a list or watch so that a malformed one does not stop the others.

use std::borrow::Cow;

use kube::{
    Resource,
    api::ObjectMeta,
    core::{ApiResource, DynamicResourceScope},
};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::Value;

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
        let mut value = Value::deserialize(deserializer)?;
        let mut metadata = ObjectMeta::default();
        if let Some(found) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            // Often the larger half of an object, and of no use to a reader of it.
            found.remove("managedFields");
            let text = |name: &str| found.get(name).and_then(Value::as_str).map(str::to_owned);
            metadata.name = text("name");
            metadata.namespace = text("namespace");
            metadata.uid = text("uid");
            metadata.resource_version = text("resourceVersion");
        }
        Ok(match serde_json::from_value(value) {
            Ok(object) => Self::Sound(Box::new(object)),
            Err(error) => Self::Malformed {
                metadata: Box::new(metadata),
                error: without_quoted_text(&error.to_string()),
            },
        })
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
