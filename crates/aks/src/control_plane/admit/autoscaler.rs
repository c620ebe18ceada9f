//! The autoscaler's settings, which AKS takes as text of many forms.

use slipway_runtime::admission::field::{FieldError, Path};

use crate::api::{AutoscalerProfile, ControlPlaneClass};

const PROBLEM: &str = "invalid value";

fn is_count(text: &str) -> bool {
    text.parse::<i64>().is_ok_and(|count| count >= 0)
}

fn digits_and(text: &str, unit: char) -> bool {
    text.strip_suffix(unit)
        .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

fn is_minutes(text: &str) -> bool {
    text.is_empty() || digits_and(text, 'm')
}

fn is_seconds(text: &str) -> bool {
    text.is_empty() || digits_and(text, 's')
}

/// A duration as Go writes it: `1h30m`, `1.5s`, `-2ms`, `0`.
fn is_duration(text: &str) -> bool {
    let mut rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    if text.is_empty() || rest == "0" {
        return true;
    }
    while !rest.is_empty() {
        let number = rest
            .find(|character: char| !character.is_ascii_digit() && character != '.')
            .unwrap_or(rest.len());
        let (number, after) = rest.split_at(number);
        let dots = number.matches('.').count();
        if number.is_empty() || dots > 1 || number == "." {
            return false;
        }
        let Some(unit) = ["ns", "us", "µs", "μs", "ms", "s", "m", "h"]
            .into_iter()
            .find(|unit| {
                after.strip_prefix(unit).is_some_and(|rest| {
                    rest.is_empty() || rest.starts_with(|c: char| c.is_ascii_digit() || c == '.')
                })
            })
        else {
            return false;
        };
        rest = &after[unit.len()..];
    }
    !text.ends_with(['+', '-'])
}

fn is_percentage(text: &str) -> bool {
    text.parse::<i64>().is_ok_and(|value| (0..=100).contains(&value))
}

fn is_fraction(text: &str) -> bool {
    text.parse::<f64>()
        .is_ok_and(|value| (0.0..=1.0).contains(&value))
}

/// The field, where it is, and what it must be.
type Check = (
    &'static str,
    fn(&AutoscalerProfile) -> Option<&String>,
    fn(&str) -> bool,
);

const CHECKS: &[Check] = &[
    (
        "maxEmptyBulkDelete",
        |p| p.max_empty_bulk_delete.as_ref(),
        is_count,
    ),
    (
        "maxGracefulTerminationSec",
        |p| p.max_graceful_termination_sec.as_ref(),
        is_count,
    ),
    (
        "maxNodeProvisionTime",
        |p| p.max_node_provision_time.as_ref(),
        is_minutes,
    ),
    (
        "maxTotalUnreadyPercentage",
        |p| p.max_total_unready_percentage.as_ref(),
        is_percentage,
    ),
    (
        "newPodScaleUpDelay",
        |p| p.new_pod_scale_up_delay.as_ref(),
        is_duration,
    ),
    (
        "okTotalUnreadyCount",
        |p| p.ok_total_unready_count.as_ref(),
        is_count,
    ),
    ("scanInterval", |p| p.scan_interval.as_ref(), is_seconds),
    (
        "scaleDownDelayAfterAdd",
        |p| p.scale_down_delay_after_add.as_ref(),
        is_minutes,
    ),
    (
        "scaleDownDelayAfterDelete",
        |p| p.scale_down_delay_after_delete.as_ref(),
        is_seconds,
    ),
    (
        "scaleDownDelayAfterFailure",
        |p| p.scale_down_delay_after_failure.as_ref(),
        is_minutes,
    ),
    (
        "scaleDownUnneededTime",
        |p| p.scale_down_unneeded_time.as_ref(),
        is_minutes,
    ),
    (
        "scaleDownUnreadyTime",
        |p| p.scale_down_unready_time.as_ref(),
        is_minutes,
    ),
    (
        "scaleDownUtilizationThreshold",
        |p| p.scale_down_utilization_threshold.as_ref(),
        is_fraction,
    ),
];

pub fn validate(root: &Path, class: &ControlPlaneClass) -> Vec<FieldError> {
    let Some(profile) = &class.autoscaler_profile else {
        return Vec::new();
    };
    let path = root.child("autoscalerProfile");
    CHECKS
        .iter()
        .filter_map(|(name, value, is_right)| {
            let value = value(profile).filter(|value| !is_right(value))?;
            Some(FieldError::invalid(&path.child(name), value.as_str(), PROBLEM))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        for good in ["", "0", "10s", "1h30m", "1.5s", "-2ms", "100µs", ".5h", "3ns"] {
            assert!(is_duration(good), "{good}");
        }
        for bad in ["10", "s", "1x", "1h30", "-", "1..5s", ".", "1 h", "1mm"] {
            assert!(!is_duration(bad), "{bad}");
        }
    }
}
