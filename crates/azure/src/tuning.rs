//! The knobs: how often Azure is read, how old a read may be, how many requests are allowed, and the flags that
//! set them. CAPZ's tuning flags are accepted under their own names.

use std::time::Duration;

use slipway_runtime::duration;

/// How hard Azure is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuning {
    /// How old a read may be at rest before all resources of a subscription are listed again.
    pub max_read_age: Duration,
    /// How old the read of a resource that no list shows (an extension, a role assignment) may be.
    pub child_read_age: Duration,
    /// How long one call may take.
    pub call_timeout: Duration,
    /// How long a call may stand in line for the budget before its object goes back to the queue.
    pub budget_timeout: Duration,
    /// The share of Azure's published limits that is used, as a factor on the defaults.
    pub budget: f64,
    /// How long to wait before looking again at something that is under way and names no time.
    pub requeue: Duration,
    pub user_agent_suffix: Option<String>,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            max_read_age: Duration::from_mins(10),
            child_read_age: Duration::from_hours(1),
            call_timeout: Duration::from_mins(1),
            // As many workers as there are can stand in line: that long, and every read gets its turn.
            budget_timeout: Duration::from_secs(30),
            budget: 1.0,
            requeue: Duration::from_secs(15),
            user_agent_suffix: None,
        }
    }
}

#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum TuningError {
    #[error("--{flag}={value}: {reason}")]
    BadValue {
        flag: String,
        value: String,
        reason: String,
    },
}

/// The annotation by which one object asks for a fresher view of Azure than the rest.
pub const READ_AGE_ANNOTATION: &str = "slipway.dev/azure-max-read-age";

const READ_AGE: &str = "azure-max-read-age";
const CHILD_AGE: &str = "azure-child-read-age";
const BUDGET: &str = "azure-request-budget";
const AGENT: &str = "azure-user-agent-suffix";
const CALL: &str = "api-call-timeout";
const REQUEUE: &str = "reconciler-requeue";
const SERVICE: &str = "service-reconcile-timeout";
const WHOLE: &str = "reconcile-timeout";
const DEBOUNCE: &str = "debouncing-timer";

/// The flags of `slipway manager` that tune the work with Azure.
pub fn flags() -> Vec<clap::Arg> {
    let flag =
        |name: &'static str, help: &'static str| clap::Arg::new(name).long(name).num_args(1).help(help);
    vec![
        flag(READ_AGE, "How old a read of Azure may be at rest").default_value("10m"),
        flag(
            CHILD_AGE,
            "How old a read of a resource may be that no list of Azure shows",
        )
        .default_value("1h"),
        flag(
            BUDGET,
            "The request budget of a subscription, as a factor on the default",
        )
        .default_value("1"),
        flag(AGENT, "Text to add to the user agent of Azure requests"),
        // CAPZ bounds a call at 2 s, which a PUT of a managed cluster (5 to 8 s) never meets.
        flag(CALL, "How long one call to Azure may take").default_value("1m"),
        flag(REQUEUE, "When to poll again what is under way").default_value("15s"),
        flag(
            SERVICE,
            "How long a read may wait for the request budget; a change goes back to the queue after a second",
        )
        .default_value("30s"),
        flag(
            WHOLE,
            "Accepted for CAPZ's manifests; no reconcile waits for Azure",
        )
        .default_value("90m")
        .hide(true),
        flag(
            DEBOUNCE,
            "Accepted for CAPZ's manifests; the queue spaces an object's reconciles",
        )
        .default_value("10s")
        .hide(true),
    ]
}

impl Tuning {
    /// Reads the flags; `get` is the value a flag was given.
    pub fn from_flags<'v>(get: impl Fn(&str) -> Option<&'v str>) -> Result<Self, TuningError> {
        let defaults = Self::default();
        let bad = |flag: &str, value: &str, reason: String| TuningError::BadValue {
            flag: flag.to_owned(),
            value: value.to_owned(),
            reason,
        };
        let time = |flag: &str, default: Duration| match get(flag) {
            None => Ok(default),
            Some(text) => match duration::parse(text) {
                Ok(time) if time.is_zero() => Err(bad(flag, text, "must be longer than nothing".to_owned())),
                Ok(time) => Ok(time),
                Err(error) => Err(bad(flag, text, error.to_string())),
            },
        };
        for accepted in [WHOLE, DEBOUNCE] {
            time(accepted, Duration::from_secs(1))?;
        }
        let budget = match get(BUDGET) {
            None => defaults.budget,
            Some(text) => text
                .parse::<f64>()
                .ok()
                .filter(|factor| factor.is_finite() && *factor > 0.0 && *factor <= 100.0)
                .ok_or_else(|| {
                    bad(
                        BUDGET,
                        text,
                        "must be a number above 0 and at most 100".to_owned(),
                    )
                })?,
        };
        Ok(Self {
            max_read_age: time(READ_AGE, defaults.max_read_age)?,
            child_read_age: time(CHILD_AGE, defaults.child_read_age)?,
            call_timeout: time(CALL, defaults.call_timeout)?,
            budget_timeout: time(SERVICE, defaults.budget_timeout)?,
            requeue: time(REQUEUE, defaults.requeue)?,
            budget,
            user_agent_suffix: get(AGENT).filter(|text| !text.is_empty()).map(str::to_owned),
        })
    }

    /// The read age an object asks for by annotation.
    pub fn read_age_of(annotation: &str) -> Result<Duration, TuningError> {
        duration::parse(annotation).map_err(|error| TuningError::BadValue {
            flag: READ_AGE_ANNOTATION.to_owned(),
            value: annotation.to_owned(),
            reason: error.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str]) -> Result<Tuning, TuningError> {
        let command = clap::Command::new("manager").args(flags());
        let matches = command
            .try_get_matches_from(std::iter::once("manager").chain(arguments.iter().copied()))
            .expect("the flags are accepted");
        Tuning::from_flags(|flag| matches.get_one::<String>(flag).map(String::as_str))
    }

    #[test]
    fn capzs_flags_are_accepted_and_defaults_agree() {
        assert_eq!(read(&[]).unwrap(), Tuning::default());
        let tuned = read(&[
            "--api-call-timeout=2s",
            "--service-reconcile-timeout=12s",
            "--reconcile-timeout=90m",
            "--reconciler-requeue=20s",
            "--debouncing-timer=10s",
            "--azure-max-read-age=1m30s",
            "--azure-request-budget=0.5",
        ])
        .unwrap();
        assert_eq!(tuned.call_timeout, Duration::from_secs(2));
        assert_eq!(tuned.budget_timeout, Duration::from_secs(12));
        assert_eq!(tuned.max_read_age, Duration::from_secs(90));
        assert!((tuned.budget - 0.5).abs() < f64::EPSILON);
    }

    #[test]
    fn a_value_that_makes_no_sense_is_named() {
        for arguments in [
            "--azure-request-budget=-1",
            "--api-call-timeout=soon",
            "--azure-max-read-age=0s",
        ] {
            let error = read(&[arguments]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{arguments}: ")), "{error}");
        }
    }
}
