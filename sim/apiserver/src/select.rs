//! Label and field selectors.

use serde_json::Value;

use crate::failure::{Answer, Failure};

#[derive(Clone, Debug)]
enum Requirement {
    Equals(String, String),
    NotEquals(String, String),
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Missing(String),
}

/// What a list or a watch is narrowed to.
#[derive(Clone, Debug, Default)]
pub struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<(String, String, bool)>,
}

impl Selector {
    pub fn parse(labels: Option<&str>, fields: Option<&str>) -> Answer<Self> {
        let mut selector = Self::default();
        for part in split_outside_parentheses(labels.unwrap_or_default()) {
            selector.labels.push(parse_label(part)?);
        }
        for part in fields
            .unwrap_or_default()
            .split(',')
            .filter(|part| !part.is_empty())
        {
            let (key, value, equal) = if let Some((key, value)) = part.split_once("!=") {
                (key, value, false)
            } else if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
                (key, value, true)
            } else {
                return Err(Failure::bad_request(format!("invalid field selector {part:?}")));
            };
            selector.fields.push((key.to_owned(), value.to_owned(), equal));
        }
        Ok(selector)
    }

    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub fn matches(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        let label = |key: &str| labels.get(key).and_then(Value::as_str);
        let labels_match = self.labels.iter().all(|requirement| match requirement {
            Requirement::Equals(key, value) => label(key) == Some(value),
            Requirement::NotEquals(key, value) => label(key) != Some(value),
            Requirement::In(key, values) => {
                label(key).is_some_and(|have| values.iter().any(|value| value == have))
            }
            Requirement::NotIn(key, values) => {
                !label(key).is_some_and(|have| values.iter().any(|value| value == have))
            }
            Requirement::Exists(key) => label(key).is_some(),
            Requirement::Missing(key) => label(key).is_none(),
        });
        labels_match
            && self.fields.iter().all(|(path, expected, equal)| {
                let found = path.split('.').fold(object, |value, key| &value[key]);
                let text = match found {
                    Value::String(text) => text.clone(),
                    Value::Null => String::new(),
                    other => other.to_string(),
                };
                (text == *expected) == *equal
            })
    }
}

/// `a in (b,c),d` is two requirements.
fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0);
    for (position, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..position].trim());
                start = position + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

fn parse_label(text: &str) -> Answer<Requirement> {
    let requirement = parse_requirement(text)?;
    let key = match &requirement {
        Requirement::Equals(key, _)
        | Requirement::NotEquals(key, _)
        | Requirement::In(key, _)
        | Requirement::NotIn(key, _)
        | Requirement::Exists(key)
        | Requirement::Missing(key) => key,
    };
    if key.is_empty() {
        return Err(Failure::bad_request(format!(
            "unable to parse requirement: {text:?}"
        )));
    }
    Ok(requirement)
}

fn parse_requirement(text: &str) -> Answer<Requirement> {
    let values = |list: &str| -> Vec<String> {
        list.trim()
            .trim_start_matches('(')
            .trim_end_matches(')')
            .split(',')
            .map(|v| v.trim().to_owned())
            .collect()
    };
    let own = |text: &str| text.trim().to_owned();
    if let Some((key, list)) = text.split_once(" notin ") {
        Ok(Requirement::NotIn(own(key), values(list)))
    } else if let Some((key, list)) = text.split_once(" in ") {
        Ok(Requirement::In(own(key), values(list)))
    } else if let Some((key, value)) = text.split_once("!=") {
        Ok(Requirement::NotEquals(own(key), own(value)))
    } else if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        Ok(Requirement::Equals(own(key), own(value)))
    } else if let Some(key) = text.strip_prefix('!') {
        Ok(Requirement::Missing(own(key)))
    } else if text.contains(char::is_whitespace) {
        Err(Failure::bad_request(format!(
            "unable to parse requirement: {text:?}"
        )))
    } else {
        Ok(Requirement::Exists(own(text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn matches(labels: &str, fields: &str) -> bool {
        let object =
            json!({"metadata": {"name": "a", "labels": {"tier": "web", "zone": ""}}, "spec": {"n": 3}});
        Selector::parse(Some(labels), Some(fields))
            .unwrap()
            .matches(&object)
    }

    #[test]
    fn labels_and_fields_select_as_kubernetes_does() {
        assert!(matches("tier=web", ""));
        assert!(matches("tier in (db, web),zone", "metadata.name=a"));
        assert!(!matches("tier notin (web)", ""));
        assert!(matches("other notin (web),!other,other!=x", ""));
        assert!(!matches("!tier", ""));
        assert!(matches("", "spec.n=3,metadata.name!=b"));
        assert!(!matches("", "metadata.name!=a"));
    }
}
