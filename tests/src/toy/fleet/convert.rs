//! Conversion of a Fleet. What v1beta1 cannot hold travels in an annotation.

use serde_json::{Value, json};

const HARBOUR: &str = "toy.slipway.dev/harbour";

fn rename(spec: &mut Value, from: &str, to: &str) {
    if let Some(fields) = spec.as_object_mut()
        && let Some(value) = fields.remove(from)
    {
        fields.insert(to.to_owned(), value);
    }
}

pub fn convert(mut fleet: Value, desired: &str) -> Result<Value, String> {
    if !fleet["spec"].is_object() {
        fleet["spec"] = json!({});
    }
    match desired.rsplit('/').next() {
        Some("v1beta1") => {
            rename(&mut fleet["spec"], "vessels", "ships");
            let harbour = fleet["spec"]
                .as_object_mut()
                .and_then(|spec| spec.remove("harbour"));
            if let Some(harbour) = harbour {
                fleet["metadata"]["annotations"][HARBOUR] = harbour;
            }
        }
        Some("v1beta2") => {
            rename(&mut fleet["spec"], "ships", "vessels");
            let annotations = fleet
                .pointer_mut("/metadata/annotations")
                .and_then(Value::as_object_mut);
            if let Some(annotations) = annotations {
                let harbour = annotations.remove(HARBOUR);
                let is_empty = annotations.is_empty();
                if let Some(harbour) = harbour {
                    fleet["spec"]["harbour"] = harbour;
                }
                if is_empty && let Some(metadata) = fleet["metadata"].as_object_mut() {
                    metadata.remove("annotations");
                }
            }
        }
        _ => return Err(format!("there is no version {desired}")),
    }
    Ok(fleet)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back_is_the_same() {
        for spec in [
            json!({"vessels": 3, "harbour": "north"}),
            json!({"vessels": 3}),
            json!({}),
        ] {
            let fleet = json!({"metadata": {"name": "a"}, "spec": spec});
            let down = convert(fleet.clone(), "g/v1beta1").unwrap();
            assert_eq!(down["spec"].get("vessels"), None);
            assert_eq!(convert(down, "g/v1beta2").unwrap(), fleet);
        }
    }
}
