//! Field sets: which fields a manager owns. The same model as the real apiserver's `managedFields`, so that two
//! appliers of one object see each other's ownership as they would there.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::schema::{ListKind, Schema};

/// One step of a path, in its `managedFields` spelling: `f:name`, `k:{"type":"Ready"}`, `v:"item"`.
pub type PathElement = String;

/// A set of field paths, as a tree. `member` says that the path to this node is itself in the set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet {
    pub member: bool,
    pub children: BTreeMap<PathElement, FieldSet>,
}

impl FieldSet {
    pub fn is_empty(&self) -> bool {
        !self.member && self.children.values().all(Self::is_empty)
    }

    fn insert(&mut self, path: &[PathElement]) {
        let mut node = self;
        for step in path {
            node = node.children.entry(step.clone()).or_default();
        }
        node.member = true;
    }

    pub fn union(&mut self, other: &Self) {
        self.member |= other.member;
        for (step, child) in &other.children {
            self.children.entry(step.clone()).or_default().union(child);
        }
    }

    pub fn difference(&self, other: &Self) -> Self {
        let mut result = Self {
            member: self.member && !other.member,
            children: BTreeMap::new(),
        };
        for (step, child) in &self.children {
            let left = match other.children.get(step) {
                Some(removed) => child.difference(removed),
                None => child.clone(),
            };
            if !left.is_empty() {
                result.children.insert(step.clone(), left);
            }
        }
        result
    }

    pub fn intersection(&self, other: &Self) -> Self {
        let mut result = Self {
            member: self.member && other.member,
            children: BTreeMap::new(),
        };
        for (step, child) in &self.children {
            if let Some(common) = other.children.get(step).map(|there| child.intersection(there))
                && !common.is_empty()
            {
                result.children.insert(step.clone(), common);
            }
        }
        result
    }

    /// Every member path, parents before children.
    pub fn paths(&self) -> Vec<Vec<PathElement>> {
        let mut paths = Vec::new();
        self.collect(&mut Vec::new(), &mut paths);
        paths
    }

    fn collect(&self, path: &mut Vec<PathElement>, paths: &mut Vec<Vec<PathElement>>) {
        if self.member {
            paths.push(path.clone());
        }
        for (step, child) in &self.children {
            path.push(step.clone());
            child.collect(path, paths);
            path.pop();
        }
    }

    /// The `fieldsV1` form.
    pub fn to_json(&self) -> Value {
        let mut map = Map::new();
        if self.member && !self.children.is_empty() {
            map.insert(".".to_owned(), Value::Object(Map::new()));
        }
        for (step, child) in &self.children {
            map.insert(step.clone(), child.to_json());
        }
        Value::Object(map)
    }

    pub fn from_json(value: &Value) -> Self {
        let mut root = Self::read(value);
        root.member = false;
        root
    }

    fn read(value: &Value) -> Self {
        let empty = Map::new();
        let map = value.as_object().unwrap_or(&empty);
        let mut set = Self {
            member: map.is_empty() || map.contains_key("."),
            children: BTreeMap::new(),
        };
        for (step, child) in map.iter().filter(|(step, _)| *step != ".") {
            set.children.insert(step.clone(), Self::read(child));
        }
        set
    }

    /// Drops what nobody can own: identity and bookkeeping.
    pub fn without_bookkeeping(mut self) -> Self {
        self.children.remove("f:apiVersion");
        self.children.remove("f:kind");
        if let Some(metadata) = self.children.get_mut("f:metadata") {
            metadata.member = false;
            for name in [
                "name",
                "namespace",
                "uid",
                "creationTimestamp",
                "generation",
                "generateName",
                "resourceVersion",
                "managedFields",
                "selfLink",
                "deletionTimestamp",
                "deletionGracePeriodSeconds",
            ] {
                metadata.children.remove(&format!("f:{name}"));
            }
            if metadata.is_empty() {
                self.children.remove("f:metadata");
            }
        }
        self
    }
}

/// How the items of a merging list are named. `None` for atomic lists.
pub fn item_step(kind: &ListKind<'_>, item: &Value) -> Option<PathElement> {
    match kind {
        ListKind::Atomic => None,
        ListKind::Set => Some(format!("v:{item}")),
        ListKind::Map(keys) => {
            let key: Map<String, Value> = keys
                .iter()
                .filter(|key| item.get(**key).is_some())
                .map(|key| ((*key).to_owned(), item[*key].clone()))
                .collect();
            Some(format!("k:{}", Value::Object(key)))
        }
    }
}

/// Every field an applied configuration names.
pub fn fields_of(value: &Value, schema: Schema<'_>) -> FieldSet {
    let mut set = FieldSet::default();
    walk(value, schema, true, &mut Vec::new(), &mut set);
    set.without_bookkeeping()
}

fn walk(value: &Value, schema: Schema<'_>, at_root: bool, path: &mut Vec<PathElement>, set: &mut FieldSet) {
    match value {
        Value::Object(map) if !schema.is_atomic_map() => {
            for (name, inner) in map {
                path.push(format!("f:{name}"));
                walk(inner, schema.field(name, at_root), false, path, set);
                let empty = inner.is_null() || inner.as_object().is_some_and(Map::is_empty);
                if empty || !schema.names(name, at_root) {
                    set.insert(path);
                }
                path.pop();
            }
        }
        Value::Array(items) if schema.list_kind() != ListKind::Atomic => {
            let kind = schema.list_kind();
            for item in items {
                path.push(item_step(&kind, item).unwrap_or_default());
                walk(item, schema.items(), false, path, set);
                set.insert(path);
                path.pop();
            }
        }
        _ => set.insert(path),
    }
}

/// What changed between two objects.
#[derive(Debug, Default)]
pub struct Comparison {
    /// Added or changed.
    pub written: FieldSet,
    pub removed: FieldSet,
}

pub fn compare(before: &Value, after: &Value, schema: Schema<'_>) -> Comparison {
    let mut comparison = Comparison::default();
    compare_at(before, after, schema, true, &mut Vec::new(), &mut comparison);
    comparison.written = comparison.written.without_bookkeeping();
    comparison.removed = comparison.removed.without_bookkeeping();
    comparison
}

fn compare_at(
    before: &Value,
    after: &Value,
    schema: Schema<'_>,
    at_root: bool,
    path: &mut Vec<PathElement>,
    out: &mut Comparison,
) {
    if before == after {
        return;
    }
    let empty = Map::new();
    match (before, after) {
        (Value::Object(_) | Value::Null, Value::Object(_)) | (Value::Object(_), Value::Null)
            if !schema.is_atomic_map() =>
        {
            let left = before.as_object().unwrap_or(&empty);
            let right = after.as_object().unwrap_or(&empty);
            if left.is_empty() && right.is_empty() {
                mark(before, after, path, out);
                return;
            }
            for name in left
                .keys()
                .chain(right.keys().filter(|name| !left.contains_key(*name)))
            {
                path.push(format!("f:{name}"));
                let absent = Value::Null;
                let (old, new) = (
                    left.get(name).unwrap_or(&absent),
                    right.get(name).unwrap_or(&absent),
                );
                compare_at(old, new, schema.field(name, at_root), false, path, out);
                path.pop();
            }
        }
        (Value::Array(_) | Value::Null, Value::Array(_)) | (Value::Array(_), Value::Null)
            if schema.list_kind() != ListKind::Atomic =>
        {
            let kind = schema.list_kind();
            let index = |value: &Value| -> Vec<(PathElement, Value)> {
                let items = value.as_array().cloned().unwrap_or_default();
                items
                    .into_iter()
                    .map(|item| (item_step(&kind, &item).unwrap_or_default(), item))
                    .collect()
            };
            let (left, right) = (index(before), index(after));
            for (step, old) in &left {
                path.push(step.clone());
                match right.iter().find(|(other, _)| other == step) {
                    Some((_, new)) => compare_at(old, new, schema.items(), false, path, out),
                    None => {
                        out.removed.insert(path);
                        compare_at(old, &Value::Null, schema.items(), false, path, out);
                    }
                }
                path.pop();
            }
            for (step, new) in right
                .iter()
                .filter(|(step, _)| !left.iter().any(|(other, _)| other == step))
            {
                path.push(step.clone());
                out.written.insert(path);
                compare_at(&Value::Null, new, schema.items(), false, path, out);
                path.pop();
            }
        }
        _ => mark(before, after, path, out),
    }
}

fn mark(before: &Value, after: &Value, path: &[PathElement], out: &mut Comparison) {
    if after.is_null() && !before.is_null() {
        out.removed.insert(path);
    } else {
        out.written.insert(path);
    }
}

/// Lays `over` on `under` by the schema's merge rules.
pub fn merge(under: &Value, over: &Value, schema: Schema<'_>, at_root: bool) -> Value {
    match (under, over) {
        (Value::Object(left), Value::Object(right)) if !schema.is_atomic_map() => {
            let mut result = left.clone();
            for (name, new) in right {
                let merged = match left.get(name) {
                    Some(old) => merge(old, new, schema.field(name, at_root), false),
                    None => new.clone(),
                };
                result.insert(name.clone(), merged);
            }
            Value::Object(result)
        }
        (Value::Array(left), Value::Array(right)) if schema.list_kind() != ListKind::Atomic => {
            let kind = schema.list_kind();
            let mut result = left.clone();
            for new in right {
                let step = item_step(&kind, new);
                match result.iter_mut().find(|old| item_step(&kind, old) == step) {
                    Some(old) => *old = merge(old, new, schema.items(), false),
                    None => result.push(new.clone()),
                }
            }
            Value::Array(result)
        }
        _ => over.clone(),
    }
}

/// Takes the paths of `set` out of the object, children first; containers left empty by it go too.
pub fn remove(value: &mut Value, set: &FieldSet, schema: Schema<'_>, at_root: bool) {
    for (step, child) in &set.children {
        if let Some(name) = step.strip_prefix("f:") {
            let Some(map) = value.as_object_mut() else {
                continue;
            };
            let Some(inner) = map.get_mut(name) else { continue };
            remove(inner, child, schema.field(name, at_root), false);
            let emptied = !child.children.is_empty()
                && (inner.as_object().is_some_and(Map::is_empty)
                    || inner.as_array().is_some_and(Vec::is_empty));
            if (child.member && child.children.is_empty()) || (emptied && name != "metadata") {
                map.remove(name);
            }
        } else {
            let kind = schema.list_kind();
            let Some(items) = value.as_array_mut() else {
                continue;
            };
            if child.member {
                items.retain(|item| item_step(&kind, item).as_ref() != Some(step));
            } else if let Some(item) = items
                .iter_mut()
                .find(|item| item_step(&kind, item).as_ref() == Some(step))
            {
                remove(item, child, schema.items(), false);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn field_sets_survive_their_json_form() {
        let object = json!({"spec": {"a": 1, "list": [1, 2], "map": {}}, "metadata": {"labels": {"x": "y"}}});
        let set = fields_of(&object, Schema::ANYTHING);
        assert_eq!(FieldSet::from_json(&set.to_json()), set);
    }

    #[test]
    fn lists_with_keys_are_owned_item_by_item() {
        let schema = json!({"properties": {"status": {"properties": {"conditions": {
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
            "items": {"properties": {"type": {}, "status": {}}}}}}}});
        let schema = Schema::new(&schema);
        let before = json!({"status": {"conditions": [{"type": "A", "status": "True"}]}});
        let after = json!({"status": {"conditions": [{"type": "A", "status": "False"}, {"type": "B", "status": "True"}]}});
        let written: Vec<String> = compare(&before, &after, schema)
            .written
            .paths()
            .iter()
            .map(|p| p.join("/"))
            .collect();
        assert_eq!(
            written,
            [
                r#"f:status/f:conditions/k:{"type":"A"}/f:status"#,
                r#"f:status/f:conditions/k:{"type":"B"}"#,
                r#"f:status/f:conditions/k:{"type":"B"}/f:status"#,
                r#"f:status/f:conditions/k:{"type":"B"}/f:type"#,
            ]
        );
        assert_eq!(merge(&before, &after, schema, true), after);
    }
}
