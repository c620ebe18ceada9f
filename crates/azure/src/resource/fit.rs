//! A value as far as a version knows it: what one api-version says of a pool, in the words of another. Pure.

use serde_json::{Map, Value};

use super::{
    structs::Form,
    table::{Mapping, Table},
};

impl Mapping {
    /// A value as far as a field of this version's spec can hold it, and what of it was left out, by path. A version
    /// outside the table is taken to have every field.
    pub fn fit(&self, field: &str, value: &Value) -> (Value, Vec<String>) {
        let mut left_out = Vec::new();
        let known = Table::get().structure(self.spec).field(field);
        let fitted = match known {
            _ if !self.exact => value.clone(),
            Some(known) => fit(&known.form, value, field, &mut left_out),
            None => {
                left_out.push(field.to_owned());
                Value::Null
            }
        };
        (fitted, left_out)
    }
}

fn fit(form: &Form, value: &Value, path: &str, left_out: &mut Vec<String>) -> Value {
    match (form, value) {
        (Form::List(inner), Value::Array(items)) => items
            .iter()
            .enumerate()
            .map(|(index, item)| fit(inner, item, &format!("{path}[{index}]"), left_out))
            .collect(),
        (Form::Map(inner), Value::Object(members)) => members
            .iter()
            .map(|(key, member)| {
                (
                    key.clone(),
                    fit(inner, member, &format!("{path}.{key}"), left_out),
                )
            })
            .collect::<Map<_, _>>()
            .into(),
        (Form::Struct(index), Value::Object(members)) => {
            let structure = Table::get().structure(*index);
            let mut kept = Map::new();
            for (name, member) in members {
                let here = format!("{path}.{name}");
                match structure.field(name) {
                    Some(field) => {
                        kept.insert(name.clone(), fit(&field.form, member, &here, left_out));
                    }
                    None => left_out.push(here),
                }
            }
            Value::Object(kept)
        }
        _ => value.clone(),
    }
}
