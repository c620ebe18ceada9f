//! By which conditions nodes are repaired: a file in Karpenter's own words, or what its providers usually have.

use std::{fs, path::Path};

use slipway_packing::{
    disrupt::check_repair_policies,
    model::{RepairAction, RepairPolicy},
};

/// A node that is not ready, or that nobody has heard of, for half an hour is replaced.
pub fn usual() -> Vec<RepairPolicy> {
    let policy = |status: &str, reason: &str| RepairPolicy {
        condition_type: "Ready".to_owned(),
        condition_status: status.to_owned(),
        reason_regex: reason.to_owned(),
        toleration_duration: Some("30m".to_owned()),
        priority: 50,
        action: RepairAction::Replace,
        ..RepairPolicy::default()
    };
    vec![policy("False", ""), policy("Unknown", ".*")]
}

/// Reads a list of policies, and says what is wrong with it.
pub fn read(path: &Path) -> Result<Vec<RepairPolicy>, String> {
    let text =
        fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    parse(&text).map_err(|why| format!("{}: {why}", path.display()))
}

fn parse(text: &str) -> Result<Vec<RepairPolicy>, String> {
    let policies: Vec<RepairPolicy> = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    check_repair_policies(&policies).map_err(|error| error.to_string())?;
    let reboots = policies
        .iter()
        .find(|policy| policy.action == RepairAction::Reboot);
    match reboots {
        Some(policy) => Err(format!(
            "the policy for {} reboots, and Cluster API cannot start a Machine again: let its action be Replace",
            policy.condition_type
        )),
        None => Ok(policies),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_policies_can_be_used() {
        assert_eq!(check_repair_policies(&usual()), Ok(()));
    }

    #[test]
    fn a_file_that_cannot_be_used_says_why() {
        let good = "- {conditionType: Ready, conditionStatus: Unknown, tolerationDuration: 10m, priority: 50, action: Replace}";
        assert_eq!(parse(good).map(|policies| policies.len()), Ok(1));
        for (text, why) in [
            (
                "- {conditionType: Ready, conditionStatus: Maybe, action: Replace}",
                "no status of a condition",
            ),
            (
                "- {conditionType: Ready, conditionStatus: Unknown, reasonRegex: x, action: Reboot}\n- {conditionType: Ready, conditionStatus: \"False\", action: Replace}",
                "cannot start a Machine again",
            ),
            ("nothing of the kind", ""),
        ] {
            let told = parse(text).expect_err(text);
            assert!(told.contains(why), "{told}");
        }
    }
}
