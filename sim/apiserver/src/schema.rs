//! Structural schemas: what of an object is kept, defaulted and accepted, and how its lists and maps merge.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, OnceLock},
};

use parking_lot::Mutex;
use regex::Regex;
use serde_json::{Value, json};

/// A view of one node of an OpenAPI schema. Absent schema means "anything goes": granular maps, atomic lists.
#[derive(Clone, Copy, Debug)]
pub struct Schema<'a>(Option<&'a Value>);

/// How the items of a list are told apart.
#[derive(Debug, PartialEq, Eq)]
pub enum ListKind<'a> {
    Atomic,
    Set,
    Map(Vec<&'a str>),
}

/// The part of ObjectMeta that merges by key.
fn metadata_schema() -> &'static Value {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {
            "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "finalizers": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "ownerReferences": {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["uid"],
                "items": {"type": "object", "x-kubernetes-map-type": "atomic"},
            },
        }})
    })
}

impl<'a> Schema<'a> {
    /// Nothing is known: every map merges, every list is one value.
    #[cfg(test)]
    pub const ANYTHING: Schema<'static> = Schema(None);

    pub fn new(schema: &'a Value) -> Self {
        if schema.is_null() {
            Self(None)
        } else {
            Self(Some(schema))
        }
    }

    /// The schema of one field. `metadata` at the root has Kubernetes' own.
    pub fn field(self, name: &str, at_root: bool) -> Schema<'a> {
        if at_root && name == "metadata" {
            return Schema(Some(metadata_schema()));
        }
        let Some(schema) = self.0 else { return Schema(None) };
        if let Some(field) = schema["properties"].get(name) {
            return Schema(Some(field));
        }
        match schema.get("additionalProperties") {
            Some(additional @ Value::Object(_)) => Schema(Some(additional)),
            _ => Schema(None),
        }
    }

    /// Whether the schema names this field (a struct's field, not a map's key).
    pub fn names(self, name: &str, at_root: bool) -> bool {
        (at_root && matches!(name, "apiVersion" | "kind" | "metadata"))
            || self
                .0
                .is_some_and(|schema| schema["properties"].get(name).is_some())
    }

    pub fn items(self) -> Schema<'a> {
        Schema(self.0.and_then(|schema| schema.get("items")))
    }

    pub fn list_kind(self) -> ListKind<'a> {
        let Some(schema) = self.0 else {
            return ListKind::Atomic;
        };
        match schema["x-kubernetes-list-type"].as_str() {
            Some("set") => ListKind::Set,
            Some("map") => ListKind::Map(
                schema["x-kubernetes-list-map-keys"]
                    .as_array()
                    .map(|keys| keys.iter().filter_map(Value::as_str).collect())
                    .unwrap_or_default(),
            ),
            _ => ListKind::Atomic,
        }
    }

    pub fn is_atomic_map(self) -> bool {
        self.0
            .is_some_and(|schema| schema["x-kubernetes-map-type"] == "atomic")
    }

    fn preserves_unknown(self) -> bool {
        self.0.is_none_or(|schema| {
            schema["x-kubernetes-preserve-unknown-fields"] == true
                || (schema.get("properties").is_none() && schema.get("additionalProperties").is_none())
        })
    }

    /// Drops what the schema does not name.
    pub fn prune(self, value: &mut Value, at_root: bool) {
        match value {
            Value::Object(map) => {
                if !self.preserves_unknown() {
                    let has_additional = self.0.is_some_and(|schema| {
                        !matches!(
                            schema.get("additionalProperties"),
                            None | Some(Value::Bool(false))
                        )
                    });
                    map.retain(|key, _| {
                        has_additional || self.names(key, at_root) || (at_root && key == "metadata")
                    });
                }
                for (key, inner) in map.iter_mut() {
                    if !(at_root && key == "metadata") {
                        self.field(key, at_root).prune(inner, false);
                    }
                }
            }
            Value::Array(items) => {
                for item in items {
                    self.items().prune(item, false);
                }
            }
            _ => {}
        }
    }

    /// Fills in defaults, inside what is there. A null that may not be null and has a default is replaced.
    pub fn default(self, value: &mut Value) {
        let Some(schema) = self.0 else { return };
        match value {
            Value::Object(map) => {
                if let Some(properties) = schema["properties"].as_object() {
                    for (name, property) in properties {
                        let replace = match map.get(name) {
                            None => true,
                            Some(Value::Null) => property["nullable"] != true,
                            Some(_) => false,
                        };
                        if replace && let Some(default) = property.get("default") {
                            map.insert(name.clone(), default.clone());
                        }
                    }
                }
                for (key, inner) in map.iter_mut() {
                    self.field(key, false).default(inner);
                }
            }
            Value::Array(items) => {
                for item in items {
                    self.items().default(item);
                }
            }
            _ => {}
        }
    }

    /// What is wrong with the value, in the apiserver's words.
    pub fn errors(self, value: &Value, path: &str, at_root: bool, errors: &mut Vec<String>) {
        let Some(schema) = self.0 else { return };
        if value.is_null() {
            if schema["nullable"] != true && !at_root {
                let expected = schema["type"].as_str().unwrap_or("object");
                errors.push(format!(
                    "{path}: Invalid value: \"null\": {path} in body must be of type {expected}: \"null\""
                ));
            }
            return;
        }
        if schema["x-kubernetes-int-or-string"] == true {
            if !value.is_string() && !value.is_i64() && !value.is_u64() {
                errors.push(format!("{path}: Invalid value: must be an integer or a string"));
            }
            return;
        }
        if let Some(expected) = schema["type"].as_str()
            && !has_type(value, expected)
        {
            let have = type_name(value);
            errors.push(format!(
                "{path}: Invalid value: \"{have}\": {path} in body must be of type {expected}: \"{have}\""
            ));
            return;
        }
        check_limits(schema, value, path, errors);
        match value {
            Value::Object(map) => {
                for required in schema["required"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                {
                    if !map.contains_key(required) {
                        errors.push(format!("{}: Required value", join(path, required)));
                    }
                }
                for (key, inner) in map {
                    if at_root && matches!(key.as_str(), "metadata" | "apiVersion" | "kind") {
                        continue;
                    }
                    self.field(key, at_root)
                        .errors(inner, &join(path, key), false, errors);
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.items()
                        .errors(item, &format!("{path}[{index}]"), false, errors);
                }
                self.check_unique(items, path, errors);
            }
            _ => {}
        }
    }

    fn check_unique(self, items: &[Value], path: &str, errors: &mut Vec<String>) {
        let identity = |item: &Value| -> Option<Value> {
            match self.list_kind() {
                ListKind::Atomic => None,
                ListKind::Set => Some(item.clone()),
                ListKind::Map(keys) => Some(Value::Object(
                    keys.iter()
                        .map(|key| ((*key).to_owned(), item[*key].clone()))
                        .collect(),
                )),
            }
        };
        let mut seen = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let Some(key) = identity(item) else { return };
            if seen.contains(&key) {
                errors.push(format!("{path}[{index}]: Duplicate value: {key}"));
            }
            seen.push(key);
        }
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

fn has_type(value: &Value, expected: &str) -> bool {
    match expected {
        "integer" => {
            value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
        }
        "number" => value.is_number(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => true,
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// The expression, compiled once for the whole process: compiling costs more than all the rest of a check.
fn compiled(pattern: &str) -> Option<Arc<Regex>> {
    static COMPILED: LazyLock<Mutex<HashMap<String, Option<Arc<Regex>>>>> = LazyLock::new(Mutex::default);
    let mut known = COMPILED.lock();
    if let Some(regex) = known.get(pattern) {
        return regex.clone();
    }
    let regex = Regex::new(pattern).ok().map(Arc::new);
    known.insert(pattern.to_owned(), regex.clone());
    regex
}

fn check_limits(schema: &Value, value: &Value, path: &str, errors: &mut Vec<String>) {
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        let list: Vec<String> = allowed.iter().map(ToString::to_string).collect();
        errors.push(format!(
            "{path}: Unsupported value: {value}: supported values: {}",
            list.join(", ")
        ));
    }
    let mut bound = |actual: f64, limit: &Value, too_far: fn(f64, f64) -> bool, what: &str| {
        if let Some(limit_number) = limit.as_f64()
            && too_far(actual, limit_number)
        {
            errors.push(format!(
                "{path}: Invalid value: {value}: {path} in body should {what} {limit}"
            ));
        }
    };
    if let Some(number) = value.as_f64() {
        bound(
            number,
            &schema["minimum"],
            |actual, limit| actual < limit,
            "be greater than or equal to",
        );
        bound(
            number,
            &schema["maximum"],
            |actual, limit| actual > limit,
            "be less than or equal to",
        );
    }
    if let Some(text) = value.as_str() {
        let length = text.chars().count() as f64;
        bound(
            length,
            &schema["minLength"],
            |actual, limit| actual < limit,
            "be at least",
        );
        bound(
            length,
            &schema["maxLength"],
            |actual, limit| actual > limit,
            "be at most",
        );
    }
    if let Some(items) = value.as_array() {
        bound(
            items.len() as f64,
            &schema["minItems"],
            |actual, limit| actual < limit,
            "have at least",
        );
        bound(
            items.len() as f64,
            &schema["maxItems"],
            |actual, limit| actual > limit,
            "have at most",
        );
    }
    if let Some(map) = value.as_object() {
        let entries = map.len() as f64;
        bound(
            entries,
            &schema["minProperties"],
            |actual, limit| actual < limit,
            "have at least",
        );
        bound(
            entries,
            &schema["maxProperties"],
            |actual, limit| actual > limit,
            "have at most",
        );
    }
    if let (Some(text), Some(pattern)) = (value.as_str(), schema["pattern"].as_str())
        && compiled(pattern).is_some_and(|regex| !regex.is_match(text))
    {
        errors.push(format!(
            "{path}: Invalid value: {value}: {path} in body should match '{pattern}'"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Value {
        json!({"type": "object", "properties": {"spec": {
            "type": "object",
            "required": ["size"],
            "properties": {
                "size": {"type": "integer", "minimum": 1},
                "mode": {"type": "string", "enum": ["a", "b"], "default": "a"},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                "nested": {"type": "object", "default": {}, "properties": {"depth": {"type": "integer", "default": 2}}},
            },
        }}})
    }

    #[test]
    fn unknown_fields_are_dropped_and_defaults_filled_in() {
        let schema = schema();
        let mut object = json!({"kind": "K", "metadata": {"name": "x"}, "extra": 1,
            "spec": {"size": 3, "unknown": true, "free": {"kept": 1}}});
        Schema::new(&schema).prune(&mut object, true);
        Schema::new(&schema).default(&mut object);
        assert_eq!(
            object,
            json!({"kind": "K", "metadata": {"name": "x"},
                "spec": {"size": 3, "free": {"kept": 1}, "mode": "a", "nested": {"depth": 2}}})
        );
    }

    #[test]
    fn every_violation_is_named_with_its_path() {
        let schema = schema();
        let mut errors = Vec::new();
        Schema::new(&schema).errors(&json!({"spec": {"mode": "c", "free": []}}), "", true, &mut errors);
        assert_eq!(
            errors,
            [
                "spec.size: Required value",
                "spec.free: Invalid value: \"array\": spec.free in body must be of type object: \"array\"",
                "spec.mode: Unsupported value: \"c\": supported values: \"a\", \"b\"",
            ]
        );
    }
}
