//! ConversionReview v1 on the wire: which function converts an object, and the parts of it that no function may
//! change.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
};

use serde::Deserialize;
use serde_json::{Value, json};

use super::panic_message;
use crate::{Package, conversion::Convert};

/// Where CRDs send their objects, as with controller-runtime.
pub const CONVERSION_PATH: &str = "/convert";

/// The apiserver converts lists in one request.
pub const LIMIT: usize = 64 * 1024 * 1024;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    request: Option<Wire>,
}

#[derive(Deserialize)]
struct Wire {
    uid: String,
    #[serde(rename = "desiredAPIVersion")]
    desired_api_version: String,
    objects: Vec<Value>,
}

/// Conversion functions by group and kind.
#[derive(Default)]
pub struct Converters {
    by_kind: HashMap<(String, String), Convert>,
}

impl Converters {
    pub fn add(&mut self, package: &Package) {
        for conversion in &package.conversion {
            let crd = package
                .crds
                .iter()
                .find(|crd| crd.metadata.name.as_deref() == Some(&conversion.crd));
            let Some(crd) = crd else {
                tracing::error!(
                    crd = conversion.crd,
                    "Ignoring the conversion of a CRD that is not registered"
                );
                continue;
            };
            self.by_kind.insert(
                (crd.spec.group.clone(), crd.spec.names.kind.clone()),
                conversion.convert.clone(),
            );
        }
    }

    pub fn is_empty(&self) -> bool {
        self.by_kind.is_empty()
    }

    /// Answers one review, and says how many functions panicked. An error means that it cannot be read.
    pub fn answer(&self, bytes: &[u8]) -> Result<(Value, u64), String> {
        let review: Review = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if review.kind != "ConversionReview" || review.api_version != "apiextensions.k8s.io/v1" {
            return Err(format!(
                "expected an apiextensions.k8s.io/v1 ConversionReview, got {:?} of {:?}",
                review.kind, review.api_version
            ));
        }
        let request = review.request.ok_or("it has no request")?;
        let mut panics = 0;
        let converted: Result<Vec<Value>, String> = request
            .objects
            .into_iter()
            .map(|object| self.convert(object, &request.desired_api_version, &mut panics))
            .collect();
        let response = match converted {
            Ok(objects) => {
                json!({"uid": request.uid, "convertedObjects": objects, "result": {"status": "Success"}})
            }
            Err(message) => json!({
                "uid": request.uid,
                "convertedObjects": [],
                "result": {"status": "Failure", "message": message},
            }),
        };
        let review = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "ConversionReview",
            "response": response,
        });
        Ok((review, panics))
    }

    fn convert(&self, object: Value, desired: &str, panics: &mut u64) -> Result<Value, String> {
        let text = |pointer: &str| {
            object
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let (api_version, kind) = (text("/apiVersion").to_owned(), text("/kind").to_owned());
        let name = text("/metadata/name").to_owned();
        if api_version == desired {
            return Ok(object);
        }
        let (group, _) = api_version.split_once('/').unwrap_or_default();
        let (desired_group, _) = desired.split_once('/').unwrap_or_default();
        if group != desired_group {
            return Err(format!(
                "cannot convert {kind} {name:?} from {api_version} to {desired}: groups differ"
            ));
        }
        let convert = self
            .by_kind
            .get(&(group.to_owned(), kind.clone()))
            .ok_or_else(|| format!("no conversion is registered for {kind} of {group}"))?;
        let metadata = object.get("metadata").cloned().unwrap_or_else(|| json!({}));
        let mut converted = catch_unwind(AssertUnwindSafe(|| convert(object, desired)))
            .unwrap_or_else(|panic| {
                *panics += 1;
                tracing::error!(
                    kind,
                    name,
                    err = panic_message(&panic),
                    "Observed a panic in conversion"
                );
                Err("internal error: see the manager's logs".to_owned())
            })
            .map_err(|reason| {
                format!("cannot convert {kind} {name:?} from {api_version} to {desired}: {reason}")
            })?;
        keep_metadata(&mut converted, metadata)?;
        converted["apiVersion"] = json!(desired);
        converted["kind"] = json!(kind);
        Ok(converted)
    }
}

/// The apiserver refuses a conversion that changes metadata other than labels and annotations.
fn keep_metadata(converted: &mut Value, mut metadata: Value) -> Result<(), String> {
    let Value::Object(fields) = converted else {
        return Err("the conversion did not return an object".to_owned());
    };
    for changeable in ["annotations", "labels"] {
        let value = fields
            .get("metadata")
            .and_then(|metadata| metadata.get(changeable));
        match (value.cloned(), metadata.as_object_mut()) {
            (Some(value), Some(metadata)) => {
                metadata.insert(changeable.to_owned(), value);
            }
            (None, Some(metadata)) => {
                metadata.remove(changeable);
            }
            (_, None) => {}
        }
    }
    fields.insert("metadata".to_owned(), metadata);
    Ok(())
}
