//! From a body Azure shows back to the status of an ASO-shaped object. Pure.

use serde_json::{Map, Value};

use super::{
    structs::{Form, Struct},
    table::{Mapping, Table},
};

/// The status the body stands for. What the version's status does not model is left out.
pub fn from_arm(mapping: &Mapping, body: &Value) -> Value {
    structure(Table::get().structure(mapping.status), body)
}

fn structure(structure: &Struct, body: &Value) -> Value {
    let mut status = Map::new();
    if structure.is_union {
        let likely = structure
            .fields
            .iter()
            .max_by_key(|field| (likeness(&field.form, body), std::cmp::Reverse(&field.name)));
        if let Some(field) = likely {
            status.insert(field.name.clone(), value(&field.form, body));
        }
        return Value::Object(status);
    }
    for field in &structure.fields {
        let place = match &field.below {
            Some(below) => body.get(below),
            None => Some(body),
        };
        let Some(found) = place.and_then(|place| place.get(&field.target)) else {
            continue;
        };
        if !found.is_null() {
            status.insert(field.name.clone(), value(&field.form, found));
        }
    }
    Value::Object(status)
}

/// How well a body fits a member of a union: what tells them apart is text that only one of them may have.
fn likeness(form: &Form, body: &Value) -> usize {
    let Form::Struct(index) = form else { return 0 };
    let structure = Table::get().structure(*index);
    let members = structure.fields.iter().filter_map(|field| {
        let found = match &field.below {
            Some(below) => body.get(below)?.get(&field.target)?,
            None => body.get(&field.target)?,
        };
        Some(match (&field.form, found) {
            (Form::Enum(known), Value::String(text)) if known.len() == 1 => {
                if known[0].eq_ignore_ascii_case(text) {
                    100
                } else {
                    0
                }
            }
            _ => 1,
        })
    });
    members.sum()
}

fn value(form: &Form, found: &Value) -> Value {
    match (form, found) {
        (Form::Struct(index), Value::Object(_)) => structure(Table::get().structure(*index), found),
        (Form::List(inner), Value::Array(items)) => {
            Value::Array(items.iter().map(|item| value(inner, item)).collect())
        }
        (Form::Map(inner), Value::Object(members)) => Value::Object(
            members
                .iter()
                .map(|(key, member)| (key.clone(), value(inner, member)))
                .collect(),
        ),
        // Azure is loose about case; Kubernetes is not.
        (Form::Enum(known), Value::String(text)) => Value::String(
            known
                .iter()
                .find(|known| known.eq_ignore_ascii_case(text))
                .unwrap_or(text)
                .clone(),
        ),
        _ => found.clone(),
    }
}
