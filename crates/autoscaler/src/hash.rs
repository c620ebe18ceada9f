//! The hash of a NodePool's template, by which claims made from an older one are known. It has a version of its own: where
//! versions differ, claims are given the new hash instead of being drifted, so that a hand-over from Karpenter replaces nothing.

use slipway_packing::model::Taint;

use crate::api::NodeClaimTemplate;

/// `karpenter.sh/nodepool-hash-version`.
pub const VERSION: &str = "slipway-1";

/// Of everything in the template but its requirements, which are compared with the claim's labels instead.
pub fn hash(template: &NodeClaimTemplate) -> String {
    let sorted = |taints: &[Taint]| {
        let mut taints = taints.to_vec();
        taints.sort();
        taints
    };
    let spec = &template.spec;
    let text = serde_json::to_string(&(
        &template.metadata.labels,
        &template.metadata.annotations,
        sorted(&spec.taints),
        sorted(&spec.startup_taints),
        &spec.node_class_ref,
        &spec.termination_grace_period,
        &spec.expire_after,
    ))
    .unwrap_or_default();
    // FNV-1a: the same on every machine and in every build.
    let folded = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    folded.to_string()
}

/// Whether a claim was made from another template than the pool has now, given the hashes and versions on both.
pub fn is_drifted(pool: (&str, &str), claim: (Option<&str>, Option<&str>)) -> bool {
    let (pool_hash, pool_version) = pool;
    claim.1 == Some(pool_version) && claim.0.is_some_and(|hash| hash != pool_hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn template(change: impl FnOnce(&mut Value)) -> NodeClaimTemplate {
        let mut value = json!({
            "metadata": {"labels": {"a": "b"}},
            "spec": {
                "nodeClassRef": {"group": "g", "kind": "k", "name": "n"},
                "requirements": [],
                "taints": [{"key": "x", "effect": "NoSchedule"}, {"key": "y", "effect": "NoSchedule"}],
            },
        });
        change(&mut value);
        serde_json::from_value(value).expect("a template")
    }

    #[test]
    fn what_changes_a_node_changes_the_hash() {
        let before = hash(&template(|_| {}));
        let rows: [(&str, Value, bool); 8] = [
            ("/metadata/labels", json!({"a": "c"}), true),
            ("/metadata/annotations", json!({"a": "c"}), true),
            (
                "/spec/taints",
                json!([{"key": "x", "effect": "NoSchedule"}]),
                true,
            ),
            (
                "/spec/startupTaints",
                json!([{"key": "z", "effect": "NoExecute"}]),
                true,
            ),
            ("/spec/nodeClassRef/name", json!("other"), true),
            ("/spec/expireAfter", json!("1h"), true),
            (
                "/spec/taints",
                json!([{"key": "y", "effect": "NoSchedule"}, {"key": "x", "effect": "NoSchedule"}]),
                false,
            ),
            (
                "/spec/requirements",
                json!([{"key": "kubernetes.io/arch", "operator": "Exists"}]),
                false,
            ),
        ];
        for (pointer, value, differs) in rows {
            let changed = template(|whole| {
                let (parent, field) = pointer.rsplit_once('/').expect("a pointer");
                whole.pointer_mut(parent).expect("a parent")[field] = value;
            });
            assert_eq!(hash(&changed) != before, differs, "{pointer}");
        }
        // Written down, because claims carry it: a change of this number drifts every node there is.
        assert_eq!(before, "16338434770896146493");
    }

    #[test]
    fn another_version_drifts_nothing() {
        assert!(is_drifted(("1", VERSION), (Some("2"), Some(VERSION))));
        assert!(!is_drifted(("1", VERSION), (Some("1"), Some(VERSION))));
        assert!(
            !is_drifted(("1", VERSION), (Some("2"), Some("v3"))),
            "Karpenter's own"
        );
        assert!(!is_drifted(("1", VERSION), (None, None)));
    }
}
