//! From a body Azure shows back to the status of an ASO-shaped object. Pure.

use serde_json::{Map, Value};

use super::table::{Form, Mapping, Struct, Table};

/// The status the body stands for. What the version's status does not model is left out.
pub fn from_arm(mapping: &Mapping, body: &Value) -> Value {
    structure(Table::get().structure(mapping.status), body)
}

fn structure(structure: &Struct, body: &Value) -> Value {
    let nested = structure
        .properties
        .as_deref()
        .and_then(|properties| body.get(properties));
    let mut status = Map::new();
    for field in &structure.fields {
        let place = if field.nested { nested } else { Some(body) };
        let Some(found) = place.and_then(|place| place.get(&field.target)) else {
            continue;
        };
        if !found.is_null() {
            status.insert(field.name.clone(), value(&field.form, found));
        }
    }
    Value::Object(status)
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
