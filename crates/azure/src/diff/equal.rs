//! When two values mean the same to Azure.

use serde_json::Value;

use crate::resource::Shape;

/// `West US 2` is `westus2`.
fn location(text: &str) -> String {
    text.chars()
        .filter(|character| !character.is_whitespace())
        .collect::<String>()
        .to_ascii_lowercase()
}

/// Whether a version asked for (`1.33`) is met by the one there is (`1.33.5`), with or without `v`.
fn version_met(desired: &str, found: &str) -> bool {
    let desired = desired.trim_start_matches('v');
    let found = found.trim_start_matches('v');
    found == desired
        || found
            .strip_prefix(desired)
            .is_some_and(|rest| rest.starts_with('.') && desired.matches('.').count() < 2)
}

/// Where the version that runs stands beside the version that was asked for.
fn running_version(key: &str) -> Option<&'static str> {
    match key {
        "kubernetesVersion" => Some("currentKubernetesVersion"),
        "orchestratorVersion" => Some("currentOrchestratorVersion"),
        _ => None,
    }
}

/// Whether `found` is what `desired` asks for. `siblings` is the object the value stands in, as observed.
pub(super) fn scalar(
    key: &str,
    desired: &Value,
    found: &Value,
    siblings: Option<&Value>,
    shape: Shape,
) -> bool {
    match (desired, found) {
        (Value::String(desired), Value::String(found)) => {
            if desired == found {
                return true;
            }
            if let Some(running) = running_version(key) {
                let running = siblings
                    .and_then(|siblings| siblings.get(running))
                    .and_then(Value::as_str);
                return version_met(desired, found)
                    || running.is_some_and(|running| version_met(desired, running));
            }
            let loose = shape.is_enum()
                || is_id(desired)
                || matches!(key, "type" | "name" | "tier" | "vmSize" | "principalType");
            if loose && desired.eq_ignore_ascii_case(found) {
                return true;
            }
            if key
                .to_ascii_lowercase()
                .trim_end_matches('s')
                .ends_with("location")
            {
                return location(desired) == location(found);
            }
            match key {
                "keyData" | "trustedCa" | "value" => desired.trim() == found.trim(),
                _ => number(desired).is_some_and(|desired| number(found) == Some(desired)),
            }
        }
        (Value::Number(desired), Value::Number(found)) => {
            // A disk size of 0 asks for the default.
            (key == "osDiskSizeGB" && desired.as_i64() == Some(0)) || desired.as_f64() == found.as_f64()
        }
        // Some providers answer with numbers and booleans as text, or the other way round.
        (Value::String(text), other) | (other, Value::String(text)) if !other.is_null() => {
            text.eq_ignore_ascii_case(&other.to_string())
        }
        _ => desired == found,
    }
}

/// `0.5` and `0.50`; only where there is a fraction, so that a tag `007` stays itself.
fn number(text: &str) -> Option<f64> {
    text.contains('.')
        .then(|| text.parse().ok())
        .flatten()
        .filter(|number: &f64| number.is_finite() && text.matches('.').count() == 1)
}

pub(super) fn is_id(text: &str) -> bool {
    let lower = text.get(..15).unwrap_or(text).to_ascii_lowercase();
    lower.starts_with("/subscriptions/") || lower.starts_with("/providers/")
}

/// What a provider takes and never shows, or shows empty: only the record can tell whether it changed.
pub(super) fn never_shown(arm_type: &str, pointer: &str) -> bool {
    arm_type.eq_ignore_ascii_case("Microsoft.KubernetesConfiguration/extensions")
        && (pointer == "/identity/type" || pointer.starts_with("/properties/configurationProtectedSettings"))
}

/// Lists whose order means something.
pub(super) fn is_ordered(key: &str) -> bool {
    matches!(key, "dnsServers" | "args" | "command")
}

/// What Azure adds to lists and maps of its own accord.
pub(super) fn added_by_azure(key: &str, element: &Value) -> bool {
    match key {
        "nodeTaints" => element
            .as_str()
            .is_some_and(|taint| taint.starts_with("kubernetes.azure.com/")),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_that_mean_the_same_are_equal() {
        let unknown = Shape::Unknown;
        let siblings = json!({"currentKubernetesVersion": "1.33.5"});
        for (key, desired, found, expected) in [
            ("kubernetesVersion", json!("1.33"), json!("1.33.5"), true),
            ("kubernetesVersion", json!("v1.33.5"), json!("1.33"), true),
            ("kubernetesVersion", json!("1.3"), json!("1.33"), false),
            ("kubernetesVersion", json!("1.34"), json!("1.33"), false),
            ("location", json!("West US 2"), json!("westus2"), true),
            (
                "id",
                json!("/subscriptions/A/resourceGroups/G"),
                json!("/subscriptions/a/resourcegroups/g"),
                true,
            ),
            ("dnsPrefix", json!("Aso"), json!("aso"), false),
            ("osDiskSizeGB", json!(0), json!(128), true),
            ("osDiskSizeGB", json!(64), json!(128), false),
            ("spotMaxPrice", json!(-1), json!(-1.0), true),
            (
                "scale-down-utilization-threshold",
                json!("0.5"),
                json!("0.50"),
                true,
            ),
            ("tag", json!("007"), json!("7"), false),
            ("skip-nodes-with-system-pods", json!(true), json!("True"), true),
        ] {
            assert_eq!(
                scalar(key, &desired, &found, Some(&siblings), unknown),
                expected,
                "{key}: {desired} {found}"
            );
        }
    }
}
