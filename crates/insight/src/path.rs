//! Reads fields by pointer, with `*` for every item.

use serde_json::Value;

/// Every value at a pointer.
pub fn all<'a>(object: &'a Value, pointer: &str) -> Vec<&'a Value> {
    let mut found = vec![object];
    for segment in pointer.split('/').skip(1) {
        let segment = segment.replace("~1", "/").replace("~0", "~");
        found = found
            .into_iter()
            .flat_map(|value| -> Vec<&Value> {
                match (segment.as_str(), value) {
                    ("*", Value::Array(items)) => items.iter().collect(),
                    ("*", Value::Object(fields)) => fields.values().collect(),
                    (name, Value::Object(fields)) => fields.get(name).into_iter().collect(),
                    (index, Value::Array(items)) => index
                        .parse()
                        .ok()
                        .and_then(|index: usize| items.get(index))
                        .into_iter()
                        .collect(),
                    _ => Vec::new(),
                }
            })
            .collect();
    }
    found
}

/// The text at a pointer, if there is any.
pub fn text<'a>(object: &'a Value, pointer: &str) -> Option<&'a str> {
    all(object, pointer)
        .into_iter()
        .find_map(Value::as_str)
        .filter(|text| !text.is_empty())
}

/// The text at the first pointer that has one.
pub fn first<'a>(object: &'a Value, pointers: &[&str]) -> Option<&'a str> {
    pointers.iter().find_map(|pointer| text(object, pointer))
}

pub fn number(object: &Value, pointer: &str) -> Option<i64> {
    all(object, pointer).into_iter().find_map(Value::as_i64)
}

pub fn time(object: &Value, pointer: &str) -> Option<jiff::Timestamp> {
    text(object, pointer)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_star_stands_for_every_item() {
        let object = json!({"a": [{"b": "x"}, {"b": "y"}, {}], "c/d": {"one": 1, "two": 2}, "empty": ""});
        assert_eq!(all(&object, "/a/*/b"), [&json!("x"), &json!("y")]);
        assert_eq!(text(&object, "/a/1/b"), Some("y"));
        assert_eq!(number(&object, "/c~1d/two"), Some(2));
        assert_eq!(all(&object, "/c~1d/*").len(), 2);
        assert_eq!(first(&object, &["/empty", "/a/*/b"]), Some("x"));
        assert!(all(&object, "/a/9/b").is_empty());
    }
}
