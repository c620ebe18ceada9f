//! Writes JSON values as YAML, always the same way: keys in a fixed order, anything that could be misread quoted.

use std::fmt::Write as _;

use serde_json::{Map, Value};

/// One document.
pub fn document(value: &Value) -> String {
    let mut text = String::new();
    block(value, 0, &mut text);
    text
}

/// Several documents, as `kubectl` and clusterctl read them.
pub fn documents(values: &[Value]) -> String {
    let mut text = String::new();
    for value in values {
        text.push_str("---\n");
        block(value, 0, &mut text);
    }
    text
}

fn indentation(depth: usize, text: &mut String) {
    text.extend(std::iter::repeat_n("  ", depth));
}

/// What people look for first comes first; the rest by the alphabet.
fn ordered(map: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let rank = |key: &str| {
        ["apiVersion", "kind", "metadata", "name", "namespace"]
            .iter()
            .position(|first| *first == key)
            .unwrap_or(usize::MAX)
    };
    let mut entries: Vec<_> = map.iter().collect();
    entries.sort_by(|(left, _), (right, _)| (rank(left), left).cmp(&(rank(right), right)));
    entries
}

/// A value that starts on a line of its own.
fn block(value: &Value, depth: usize, text: &mut String) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (index, (key, value)) in ordered(map).into_iter().enumerate() {
                if index > 0 {
                    indentation(depth, text);
                }
                entry(key, value, depth, text);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    indentation(depth, text);
                }
                text.push_str("- ");
                block(item, depth + 1, text);
            }
        }
        other => {
            text.push_str(&inline(other));
            text.push('\n');
        }
    }
}

fn entry(key: &str, value: &Value, depth: usize, text: &mut String) {
    text.push_str(&string(key));
    text.push(':');
    match value {
        Value::Object(map) if !map.is_empty() => {
            text.push('\n');
            indentation(depth + 1, text);
            block(value, depth + 1, text);
        }
        Value::Array(items) if !items.is_empty() => {
            text.push('\n');
            indentation(depth, text);
            block(value, depth, text);
        }
        other => {
            text.push(' ');
            text.push_str(&inline(other));
            text.push('\n');
        }
    }
}

fn inline(value: &Value) -> String {
    match value {
        Value::String(text) => string(text),
        // Only empty ones arrive here.
        Value::Object(_) => "{}".to_owned(),
        Value::Array(_) => "[]".to_owned(),
        other => other.to_string(),
    }
}

/// A plain scalar where no reader can take it for anything else, else JSON's quotes, which are YAML's too.
fn string(text: &str) -> String {
    let starts =
        text.starts_with(|character: char| character.is_ascii_alphabetic() || "/_".contains(character));
    let plain = text
        .chars()
        .all(|character| character.is_ascii_alphanumeric() || "_./-".contains(character));
    let word = text.to_ascii_lowercase();
    let reserved = ["true", "false", "yes", "no", "on", "off", "null", "y", "n"].contains(&word.as_str());
    if starts && plain && !reserved {
        return text.to_owned();
    }
    let mut quoted = String::from('"');
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            '\r' => quoted.push_str("\\r"),
            // Not printable, or a line break to some readers.
            '\u{0}'..='\u{1f}'
            | '\u{7f}'..='\u{9f}'
            | '\u{2028}'
            | '\u{2029}'
            | '\u{feff}'
            | '\u{fffe}'
            | '\u{ffff}' => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(character));
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn it_reads_like_a_manifest() {
        let value = json!({
            "spec": {"b": [{"name": "x", "args": ["--a=b", "on"]}, []], "a": {}, "m": 1.5, "t": true, "z": null},
            "metadata": {"namespace": "s", "labels": {"k/v": "1"}, "name": "north"},
            "kind": "K",
            "apiVersion": "v1",
        });
        assert_eq!(
            document(&value),
            "apiVersion: v1\nkind: K\nmetadata:\n  name: north\n  namespace: s\n  labels:\n    k/v: \"1\"\nspec:\n  a: {}\n  \
             b:\n  - name: x\n    args:\n    - \"--a=b\"\n    - \"on\"\n  - []\n  m: 1.5\n  t: true\n  z: null\n"
        );
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "\\PC{0,20}".prop_map(Value::from),
            "[a-z:#\\-\\n\\t \"'{}$\\[\\]&*!|>%@`~0-9.]{0,12}".prop_map(Value::from),
            prop::sample::select(vec![
                "true",
                "No",
                "~",
                "null",
                "1e3",
                "0x1f",
                "-",
                "",
                "- a",
                "a: b",
                "2026-11-16"
            ])
            .prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map("[a-zA-Z0-9/.: -]{0,8}", inner, 0..5)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(value in any_json()) {
            let text = document(&value);
            let read: Value = serde_saphyr::from_str(&text)
                .map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
            prop_assert_eq!(read, value, "{}", text);
        }
    }
}
