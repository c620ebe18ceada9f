//! One page for one custom resource: its versions, and every field of the stored one with its type and meaning.

use std::fmt::Write as _;

use serde_json::Value;

use super::cell;

pub struct Page {
    pub kind: String,
    pub path: String,
    pub text: String,
}

pub fn page(crd: &Value, package: &str) -> Page {
    let spec = &crd["spec"];
    let text_of = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let kind = text_of(&spec["names"]["kind"]);
    let group = text_of(&spec["group"]);
    let name = text_of(&crd["metadata"]["name"]);
    let versions: Vec<&Value> = spec["versions"].as_array().into_iter().flatten().collect();
    let mut text = format!(
        "# {kind}\n\n`{group}`, {}, in package `{package}`.\n\n",
        text_of(&spec["scope"]).to_lowercase()
    );
    for version in &versions {
        let flag = |name: &str| version[name] == true;
        let mut notes = Vec::new();
        if flag("storage") {
            notes.push("stored");
        }
        if !flag("served") {
            notes.push("not served");
        }
        if flag("deprecated") {
            notes.push("deprecated");
        }
        let notes = if notes.is_empty() {
            String::new()
        } else {
            format!(" ({})", notes.join(", "))
        };
        let _ = writeln!(text, "- `{group}/{}`{notes}", text_of(&version["name"]));
    }
    let stored = versions.iter().find(|version| version["storage"] == true);
    if let Some(version) = stored {
        let schema = &version["schema"]["openAPIV3Schema"];
        for part in ["spec", "status"] {
            let schema = &schema["properties"][part];
            if schema.is_null() {
                continue;
            }
            let _ = write!(
                text,
                "\n## {part}\n\n| field | type | what it is |\n|---|---|---|\n"
            );
            fields(schema, part, &mut text);
        }
        rules(schema, "", &mut text);
    }
    Page {
        kind,
        path: format!("resources/{name}.md"),
        text,
    }
}

/// A row for each field below a schema, parents before children.
fn fields(schema: &Value, path: &str, text: &mut String) {
    let required: Vec<&str> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        let mut notes = vec![type_of(field)];
        if required.contains(&name.as_str()) {
            notes.push("required".to_owned());
        }
        if !field["default"].is_null() {
            notes.push(format!("default `{}`", field["default"]));
        }
        let description = field["description"].as_str().unwrap_or_default();
        let _ = writeln!(
            text,
            "| `{path}` | {} | {} |",
            notes.join(", "),
            cell(description)
        );
        let (mut inner, mut path) = (field, path);
        loop {
            if !inner["items"].is_null() {
                inner = &inner["items"];
                path.push_str("[]");
            } else if inner["additionalProperties"].is_object() {
                inner = &inner["additionalProperties"];
                path.push_str(".*");
            } else {
                break;
            }
        }
        fields(inner, &path, text);
    }
}

fn type_of(field: &Value) -> String {
    if let Some(values) = field["enum"].as_array() {
        let values: Vec<String> = values
            .iter()
            .filter(|value| !value.is_null())
            .map(|value| {
                format!(
                    "`{}`",
                    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
                )
            })
            .collect();
        return values.join(" or ");
    }
    if field["x-kubernetes-int-or-string"] == true {
        return "integer or string".to_owned();
    }
    match field["type"].as_str() {
        Some("array") => format!("list of {}", type_of(&field["items"])),
        Some("object") if field["additionalProperties"].is_object() => {
            format!("map of {}", type_of(&field["additionalProperties"]))
        }
        Some("string") if field["format"] == "date-time" => "time".to_owned(),
        Some(name) => name.to_owned(),
        None => "any".to_owned(),
    }
}

/// What the schema itself refuses, in its own words.
fn rules(schema: &Value, path: &str, text: &mut String) {
    let mut found = Vec::new();
    collect_rules(schema, path, &mut found);
    if found.is_empty() {
        return;
    }
    text.push_str("\n## Rules\n\n| where | rule | message |\n|---|---|---|\n");
    for (path, rule, message) in found {
        let _ = writeln!(text, "| `{path}` | `{}` | {} |", cell(&rule), cell(&message));
    }
}

fn collect_rules(schema: &Value, path: &str, found: &mut Vec<(String, String, String)>) {
    for rule in schema["x-kubernetes-validations"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let text = |name: &str| rule[name].as_str().unwrap_or_default().to_owned();
        let place = if path.is_empty() { "." } else { path };
        found.push((place.to_owned(), text("rule"), text("message")));
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        collect_rules(field, &path, found);
    }
    if schema["items"].is_object() {
        collect_rules(&schema["items"], &format!("{path}[]"), found);
    }
    if schema["additionalProperties"].is_object() {
        collect_rules(&schema["additionalProperties"], &format!("{path}.*"), found);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_maps_enums_and_rules_are_written_out() {
        let crd = json!({
            "metadata": {"name": "boats.example.dev"},
            "spec": {"group": "example.dev", "scope": "Namespaced", "names": {"kind": "Boat"}, "versions": [
                {"name": "v1", "served": true, "storage": false, "deprecated": true},
                {"name": "v2", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"properties": {"spec": {
                    "properties": {
                        "crew": {"type": "array", "items": {"type": "object", "properties": {
                            "rank": {"enum": ["mate", "captain", null], "type": "string", "default": "mate"}}}},
                        "cargo": {"type": "object", "additionalProperties": {"type": "string"}},
                    },
                    "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "is fixed"}],
                }}}}},
            ]},
        });
        let text = page(&crd, "infrastructure-toy").text;
        for line in [
            "- `example.dev/v1` (deprecated)",
            "- `example.dev/v2` (stored)",
            "| `spec.crew` | list of object |  |",
            "| `spec.crew[].rank` | `mate` or `captain`, default `\"mate\"` |  |",
            "| `spec.cargo` | map of string |  |",
            "| `spec` | `self == oldSelf` | is fixed |",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
