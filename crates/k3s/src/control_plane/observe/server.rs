//! One server: pure, from its Machine and what that was made from to facts.

use jiff::{SignedDuration, Timestamp};
use kube::api::DynamicObject;
use slipway_capi::{
    annotations, in_place,
    names::{annotation, condition},
    template,
    view::{Conditions, Machine, ObjectReference},
};

use super::super::{
    liveness::Probe,
    observed::{HealthCheck, Hooks, InPlace, Outdated, RemediationRecord, Server},
    rollout::{self, Desired, Made},
};
use crate::api::{
    KThreesConfig, KThreesConfigSpec, KThreesControlPlane, LEGACY_HOOK_VALUE, LEGACY_PRE_TERMINATE_HOOK,
    MEMBER_REMOVAL_ANNOTATION, PRE_TERMINATE_HOOK, REMEDIATION_FOR_ANNOTATION, STAYS_OUT_ANNOTATION,
};

/// How long k3s makes the certificates of a server valid, counted from its start.
const LEAF_LIFETIME: SignedDuration = SignedDuration::from_hours(365 * 24);

/// What a machine was made from.
pub(super) struct Objects<'objects> {
    pub config: Option<&'objects KThreesConfig>,
    pub infra_machine: Option<&'objects DynamicObject>,
}

fn created_at(machine: &Machine) -> Timestamp {
    let created = machine.metadata.creation_timestamp.as_ref();
    created.map_or(Timestamp::UNIX_EPOCH, |time| time.0)
}

/// How a server differs from what is desired.
fn outdated(
    machine: &Machine,
    made: &Objects<'_>,
    object: &KThreesControlPlane,
    desired: &KThreesConfigSpec,
    template: &ObjectReference,
    now: Timestamp,
) -> Vec<Outdated> {
    let created_at = created_at(machine);
    let cloned = made.infra_machine.and_then(|object| {
        let annotations = object.metadata.annotations.as_ref()?;
        Some((
            annotations.get(annotation::CLONED_FROM_NAME)?.clone(),
            annotations.get(annotation::CLONED_FROM_GROUP_KIND)?.clone(),
        ))
    });
    let group_kind = template::group_kind(&format!("{}/v1", template.api_group), &template.kind);
    let annotations = machine.metadata.annotations.as_ref();
    let expiry = annotations
        .and_then(|annotations| annotations.get(annotation::CERTIFICATES_EXPIRY))
        .and_then(|text| text.parse().ok())
        .or(machine
            .status
            .certificates_expiry_date
            .as_ref()
            .map(|time| time.0))
        .or_else(|| created_at.checked_add(LEAF_LIFETIME).ok());
    rollout::differences(
        &Made {
            created_at,
            version: Some(machine.spec.version.as_str()).filter(|version| !version.is_empty()),
            config: made.config.map(|config| &config.spec),
            cloned_from: cloned.as_ref().map(|(name, kind)| (name.as_str(), kind.as_str())),
            certificates_expire_at: expiry,
        },
        &Desired {
            version: &object.spec.version,
            config: desired,
            template: (&template.name, &group_kind),
            rollout_after: object.spec.effective_rollout_after(),
            certificates_expiry_days: object
                .spec
                .rollout_before
                .as_ref()
                .and_then(|before| before.certificates_expiry_days),
        },
        now,
    )
}

pub(super) fn server(
    machine: &Machine,
    made: &Objects<'_>,
    object: &KThreesControlPlane,
    desired: &KThreesConfigSpec,
    template: &ObjectReference,
    now: Timestamp,
) -> Server {
    let metadata = &machine.metadata;
    let annotations = metadata.annotations.clone().unwrap_or_default();
    let created_at = created_at(machine);
    let outdated = outdated(machine, made, object, desired, template, now);
    let is = |type_: &str, status: &str| {
        machine
            .condition(type_)
            .is_some_and(|found| found.status == status)
    };
    let legacy = annotations
        .get(LEGACY_PRE_TERMINATE_HOOK)
        .is_some_and(|value| value == LEGACY_HOOK_VALUE);
    let others = annotations::other_pre_terminate_hooks(metadata, PRE_TERMINATE_HOOK)
        .into_iter()
        .any(|hook| !(legacy && hook == LEGACY_PRE_TERMINATE_HOOK));
    Server {
        name: metadata.name.clone().unwrap_or_default(),
        created_at,
        deleted_at: metadata.deletion_timestamp.as_ref().map(|time| time.0),
        version: Some(machine.spec.version.clone()).filter(|version| !version.is_empty()),
        node: machine.node_name().map(ToOwned::to_owned),
        failure_domain: Some(machine.spec.failure_domain.clone()).filter(|domain| !domain.is_empty()),
        ready: is(condition::READY, "True"),
        available: is(condition::AVAILABLE, "True"),
        health_check: HealthCheck {
            failed: is(condition::HEALTH_CHECK_SUCCEEDED, "False"),
            ours_to_remediate: is(condition::OWNER_REMEDIATED, "False"),
        },
        remediate_requested: machine.is_marked_for_remediation(),
        delete_requested: machine.is_marked_for_deletion(),
        hooks: Hooks {
            ours: annotations.contains_key(PRE_TERMINATE_HOOK),
            legacy,
            others,
        },
        waiting_for_hook: machine.condition(condition::DELETING).is_some_and(|deleting| {
            deleting.status == "True" && deleting.reason == "WaitingForPreTerminateHook"
        }),
        in_place: if in_place::is_half_triggered(metadata) {
            InPlace::HalfTriggered
        } else if in_place::is_update_in_progress(metadata) {
            InPlace::Updating
        } else {
            InPlace::No
        },
        remediation_for: record(annotations.get(REMEDIATION_FOR_ANNOTATION)),
        outdated,
        addresses: machine
            .status
            .addresses
            .iter()
            .filter(|address| matches!(address.type_.as_str(), "InternalIP" | "ExternalIP"))
            .map(|address| address.address.clone())
            .collect(),
        has_bootstrap_data: machine.spec.bootstrap.data_secret_name.is_some(),
        removal_asked: annotations.contains_key(MEMBER_REMOVAL_ANNOTATION),
        stays_out: annotations.contains_key(STAYS_OUT_ANNOTATION),
        probe: Probe::NotTried,
    }
}

pub(super) fn record(text: Option<&String>) -> Option<RemediationRecord> {
    serde_json::from_str(text?).ok()
}
