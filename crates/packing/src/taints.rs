//! Taints and tolerations, and the taints that only mean a node is still starting.

use crate::model::{Taint, Toleration};

pub const PREFER_NO_SCHEDULE: &str = "PreferNoSchedule";

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    if !toleration.effect.is_empty() && toleration.effect != taint.effect {
        return false;
    }
    if !toleration.key.is_empty() && toleration.key != taint.key {
        return false;
    }
    match toleration.operator.as_str() {
        "" | "Equal" => toleration.value == taint.value,
        "Exists" => true,
        operator @ ("Gt" | "Lt") => {
            let (Ok(limit), Ok(value)) = (toleration.value.parse::<i64>(), taint.value.parse::<i64>()) else {
                return false;
            };
            if operator == "Gt" {
                value > limit
            } else {
                value < limit
            }
        }
        _ => false,
    }
}

/// The first taint that nothing tolerates. A preference counts too, until relaxation adds a toleration for it.
pub fn untolerated<'a>(taints: &'a [Taint], tolerations: &[Toleration]) -> Option<&'a Taint> {
    taints
        .iter()
        .find(|taint| !tolerations.iter().any(|toleration| tolerates(toleration, taint)))
}

/// The toleration that preference relaxation ends with.
pub fn prefer_no_schedule_toleration() -> Toleration {
    Toleration {
        operator: "Exists".to_owned(),
        effect: PREFER_NO_SCHEDULE.to_owned(),
        ..Toleration::default()
    }
}

/// A taint that goes away by itself once the node has started.
pub fn is_ephemeral(taint: &Taint) -> bool {
    let named = |key: &str, effect: &str| taint.key == key && taint.effect == effect;
    named("node.kubernetes.io/not-ready", "NoSchedule")
        || named("node.kubernetes.io/not-ready", "NoExecute")
        || named("node.kubernetes.io/unreachable", "NoSchedule")
        || named("node.cloudprovider.kubernetes.io/uninitialized", "NoSchedule")
        || named("karpenter.sh/unregistered", "NoExecute")
        || named("karpenter.sh/rebooting", "NoSchedule")
        || taint.key.starts_with("readiness.k8s.io/")
}

/// Same key and effect: what Kubernetes takes for the same taint.
pub fn is_same(left: &Taint, right: &Taint) -> bool {
    left.key == right.key && left.effect == right.effect
}

pub(crate) fn display(taint: &Taint) -> String {
    if taint.value.is_empty() {
        format!("{}:{}", taint.key, taint.effect)
    } else {
        format!("{}={}:{}", taint.key, taint.value, taint.effect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(key: &str, value: &str, effect: &str) -> Taint {
        Taint {
            key: key.to_owned(),
            value: value.to_owned(),
            effect: effect.to_owned(),
        }
    }

    fn toleration(key: &str, operator: &str, value: &str, effect: &str) -> Toleration {
        Toleration {
            key: key.to_owned(),
            operator: operator.to_owned(),
            value: value.to_owned(),
            effect: effect.to_owned(),
            toleration_seconds: None,
        }
    }

    #[test]
    fn every_taint_needs_a_toleration() {
        let taints = [taint("a", "1", "NoSchedule"), taint("b", "", "NoExecute")];
        assert!(untolerated(&taints, &[]).is_some());
        assert_eq!(
            untolerated(&taints, &[toleration("a", "Equal", "1", "")]),
            Some(&taints[1])
        );
        assert_eq!(untolerated(&taints, &[toleration("", "Exists", "", "")]), None);
        assert_eq!(
            untolerated(&taints, &[toleration("", "Exists", "", "NoSchedule")]),
            Some(&taints[1])
        );
        assert_eq!(
            untolerated(&taints[..1], &[toleration("a", "", "2", "")]),
            Some(&taints[0])
        );
        assert_eq!(
            untolerated(
                &[taint("n", "5", "NoSchedule")],
                &[toleration("n", "Gt", "4", "")]
            ),
            None
        );
        assert!(
            untolerated(
                &[taint("n", "5", "NoSchedule")],
                &[toleration("n", "Lt", "5", "")]
            )
            .is_some()
        );
    }

    #[test]
    fn preferences_count_until_tolerated() {
        let preference = [taint("spare", "", PREFER_NO_SCHEDULE)];
        assert!(untolerated(&preference, &[]).is_some());
        assert_eq!(untolerated(&preference, &[prefer_no_schedule_toleration()]), None);
    }
}
