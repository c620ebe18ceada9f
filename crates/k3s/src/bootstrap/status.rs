//! What a KThreesConfig says of itself, under both forms of conditions. Pure.

use jiff::Timestamp;
use kube::ResourceExt;
use slipway_capi::{
    condition::{
        self, Condition, Report, Status,
        legacy::{self, LegacyReport, Severity},
    },
    frame::{Attempt, Progress},
};
use slipway_runtime::{Class, Classified};

use super::{
    observe::Observed,
    plan::{Action, Decision, decide},
    render::Role,
};
use crate::{
    api::{
        KThreesConfigStatus,
        conditions::{self, V1Beta2Status, reason},
    },
    bootstrap::api::ConfigInitialization,
    error::Error,
};

/// Where the metav1 conditions are.
pub(super) fn v1beta2(status: &mut KThreesConfigStatus) -> &mut Vec<Condition> {
    status
        .v1beta2
        .get_or_insert_with(V1Beta2Status::default)
        .conditions
        .get_or_insert_default()
}

pub(super) fn status(
    observed: &Observed,
    progress: &Progress<Action, Error>,
    now: Timestamp,
) -> KThreesConfigStatus {
    if observed.owner.is_none() {
        return observed.config.status.clone().unwrap_or_default();
    }
    let mut status = Writer {
        status: observed.config.status.clone().unwrap_or_default(),
        generation: observed.config.metadata.generation,
        now,
    };
    if let Decision::Exists { secret } = decide(&observed.situation) {
        status.done(&secret);
    }
    for (wait, message) in progress.plan().waits() {
        let severity = if wait.reason == reason::DATA_SECRET_GENERATION_FAILED {
            Severity::Warning
        } else {
            Severity::Info
        };
        status.waiting(&wait.reason, message, severity);
    }
    for (action, attempt) in progress.actions() {
        let Action::StoreData { role, .. } = action else {
            continue;
        };
        match attempt {
            Attempt::Came(outcome) if outcome.is_done() => {
                if *role == Role::Init {
                    status.set(&Report::new(
                        conditions::CERTIFICATES_AVAILABLE,
                        Status::True,
                        "Available",
                        "",
                    ));
                }
                status.done(&observed.config.name_any());
            }
            // What passes by itself is tried again before anybody reads it.
            Attempt::Failed(failure) if failure.class() == Class::Terminal => {
                let message = failure.to_string();
                status.waiting(reason::DATA_SECRET_GENERATION_FAILED, &message, Severity::Warning);
            }
            _ => {}
        }
    }
    status.summarize();
    if progress.classes().next().is_none() {
        status.status.observed_generation = observed.config.metadata.generation;
    }
    status.status
}

struct Writer {
    status: KThreesConfigStatus,
    generation: Option<i64>,
    now: Timestamp,
}

impl Writer {
    fn done(&mut self, secret: &str) {
        self.status.ready = Some(true);
        self.status.data_secret_name = Some(secret.to_owned());
        self.status.initialization = Some(ConfigInitialization {
            data_secret_created: Some(true),
        });
        self.set(&Report::new(
            conditions::DATA_SECRET_AVAILABLE,
            Status::True,
            "Available",
            "",
        ));
    }

    fn waiting(&mut self, reason: &str, message: &str, severity: Severity) {
        let report = Report::new(conditions::DATA_SECRET_AVAILABLE, Status::False, reason, message);
        self.set_both(&report, severity);
    }

    /// Sets a condition that is true.
    fn set(&mut self, report: &Report) {
        self.set_both(report, Severity::None);
    }

    fn set_both(&mut self, report: &Report, severity: Severity) {
        condition::set(v1beta2(&mut self.status), report, self.generation, self.now);
        let mut v1beta1 = conditions::to_legacy(self.status.conditions.as_deref().unwrap_or_default());
        let report = if report.status == Status::True {
            LegacyReport::good(&report.type_)
        } else {
            LegacyReport::bad(&report.type_, severity, &report.reason, report.message.clone())
        };
        legacy::set(&mut v1beta1, &report, self.now);
        self.status.conditions = Some(conditions::from_legacy(&v1beta1));
    }

    /// `Ready` says what `DataSecretAvailable` says.
    fn summarize(&mut self) {
        let Some(found) =
            condition::find(v1beta2(&mut self.status), conditions::DATA_SECRET_AVAILABLE).cloned()
        else {
            return;
        };
        let report = if found.status == "True" {
            Report::new(conditions::READY, Status::True, "Ready", "")
        } else {
            Report::new(conditions::READY, Status::False, &found.reason, found.message)
        };
        self.set_both(&report, Severity::Info);
    }
}
