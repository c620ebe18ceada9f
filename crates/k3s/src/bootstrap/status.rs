//! What a KThreesConfig says of itself, under both forms of conditions.

use kube::ResourceExt;
use slipway_capi::condition::{
    self, Report, Status,
    legacy::{self, LegacyReport, Severity},
};
use slipway_runtime::controller::Context;

use crate::{
    api::{
        KThreesConfig, KThreesConfigStatus,
        conditions::{self, V1Beta2Status},
        config::ConfigInitialization,
    },
    error::Error,
};

pub(super) fn done(
    status: &mut KThreesConfigStatus,
    config: &KThreesConfig,
    secret: &str,
    context: &Context,
) {
    status.ready = Some(true);
    status.data_secret_name = Some(secret.to_owned());
    status.initialization = Some(ConfigInitialization {
        data_secret_created: Some(true),
    });
    let report = Report::new(conditions::DATA_SECRET_AVAILABLE, Status::True, "Available", "");
    set(
        status,
        config,
        context,
        &report,
        Some(&LegacyReport::good(conditions::DATA_SECRET_AVAILABLE)),
    );
}

pub(super) fn waiting(
    status: &mut KThreesConfigStatus,
    config: &KThreesConfig,
    reason: &str,
    message: &str,
    severity: Severity,
    context: &Context,
) {
    let report = Report::new(conditions::DATA_SECRET_AVAILABLE, Status::False, reason, message);
    let legacy = LegacyReport::bad(conditions::DATA_SECRET_AVAILABLE, severity, reason, message);
    set(status, config, context, &report, Some(&legacy));
}

pub(super) fn set(
    status: &mut KThreesConfigStatus,
    config: &KThreesConfig,
    context: &Context,
    report: &Report,
    legacy: Option<&LegacyReport>,
) {
    let now = context.clock.now();
    let newer = status
        .v1beta2
        .get_or_insert_with(V1Beta2Status::default)
        .conditions
        .get_or_insert_default();
    condition::set(newer, report, config.metadata.generation, now);
    if let Some(legacy) = legacy {
        let mut older = conditions::to_legacy(status.conditions.as_deref().unwrap_or_default());
        legacy::set(&mut older, legacy, now);
        status.conditions = Some(conditions::from_legacy(&older));
    }
}

pub(super) fn summarize(status: &mut KThreesConfigStatus, config: &KThreesConfig, context: &Context) {
    let available = status
        .v1beta2
        .as_ref()
        .and_then(|newer| newer.conditions.as_ref())
        .and_then(|list| condition::find(list, conditions::DATA_SECRET_AVAILABLE).cloned());
    let (report, legacy) = match available {
        Some(found) if found.status == "True" => (
            Report::new(conditions::READY, Status::True, "Ready", ""),
            LegacyReport::good(conditions::READY),
        ),
        Some(found) => (
            Report::new(
                conditions::READY,
                Status::False,
                &found.reason,
                found.message.clone(),
            ),
            LegacyReport::bad(conditions::READY, Severity::Info, &found.reason, found.message),
        ),
        None => return,
    };
    set(status, config, context, &report, Some(&legacy));
}

pub(super) async fn store(
    config: &KThreesConfig,
    status: &KThreesConfigStatus,
    context: &Context,
) -> Result<(), Error> {
    context
        .patch_status(config, status)
        .await
        .map(|_| ())
        .map_err(Error::api(format!(
            "writing the status of KThreesConfig {}",
            config.name_any()
        )))
}
