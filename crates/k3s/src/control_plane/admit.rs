//! Defaulting and validation of KThreesControlPlane and its template. What k3s would refuse on the host, or what would
//! cost quorum, is refused here, with the field and the rule; only changes are judged.

use slipway_runtime::admission::{
    Change, Verdict,
    field::{FieldError, Path},
};

use super::api::{KThreesControlPlaneTemplateResourceSpec, RemediationStrategy, RolloutBefore};
use crate::{
    api::{
        AgentToken, KThreesControlPlane, KThreesControlPlaneSpec, KThreesControlPlaneStatus,
        KThreesControlPlaneTemplate, MachineTemplate, RolloutStrategy, RolloutStrategyType,
    },
    bootstrap::admit::{config_spec_errors, default_config_spec, only_new},
    duration,
    version::Version,
};

/// The fewest days a certificate may have left for a rollout to still be able to finish.
const FEWEST_EXPIRY_DAYS: i32 = 7;

pub fn default_control_plane(object: &mut KThreesControlPlane, _old: Option<&KThreesControlPlane>) {
    object.spec.replicas.get_or_insert(1);
    default_config_spec(object.spec.kthrees_config_spec.get_or_insert_default());
    if let Some(reference) = object
        .spec
        .machine_template
        .as_mut()
        .and_then(|template| template.infrastructure_ref.as_mut())
        && reference.namespace.as_deref().unwrap_or_default().is_empty()
    {
        reference.namespace.clone_from(&object.metadata.namespace);
    }
}

pub fn validate_control_plane(change: &Change<KThreesControlPlane>) -> Verdict {
    let Some(new) = &change.new else {
        return Verdict::allowed();
    };
    let mut warnings = Vec::new();
    let mut errors = spec_errors(new, &mut warnings);
    if let Some(old) = &change.old {
        errors = only_new(errors, &spec_errors(old, &mut Vec::new()));
        // An object on its way out is not changed any more than by losing its finalizer.
        if new.metadata.deletion_timestamp.is_none() {
            errors.extend(transition_errors(old, new));
        }
    }
    Verdict::from_errors(errors, warnings)
}

pub fn validate_control_plane_template(change: &Change<KThreesControlPlaneTemplate>) -> Verdict {
    let path = Path::new("spec").child("template").child("spec");
    let errors = |template: &KThreesControlPlaneTemplate, warnings: &mut Vec<String>| {
        template_errors(&template.spec.template.spec, &path, warnings)
    };
    let Some(new) = &change.new else {
        return Verdict::allowed();
    };
    let mut warnings = Vec::new();
    let mut found = errors(new, &mut warnings);
    if let Some(old) = &change.old {
        found = only_new(found, &errors(old, &mut Vec::new()));
    }
    Verdict::from_errors(found, warnings)
}

fn template_errors(
    spec: &KThreesControlPlaneTemplateResourceSpec,
    path: &Path,
    warnings: &mut Vec<String>,
) -> Vec<FieldError> {
    let mut errors = config_spec_errors(
        &spec.kthrees_config_spec.clone().unwrap_or_default(),
        &path.child("kthreesConfigSpec"),
        warnings,
    );
    shared_errors(
        spec.rollout_strategy.as_ref(),
        spec.rollout_before.as_ref(),
        spec.remediation_strategy.as_ref(),
        path,
        &mut errors,
    );
    machine_errors(
        &spec.machine_template.clone().unwrap_or_default(),
        &path.child("machineTemplate"),
        &mut errors,
    );
    errors
}

/// Everything wrong with the object as it is.
fn spec_errors(object: &KThreesControlPlane, warnings: &mut Vec<String>) -> Vec<FieldError> {
    let path = Path::new("spec");
    let spec = &object.spec;
    let config = spec.config();
    let mut errors = config_spec_errors(&config, &path.child("kthreesConfigSpec"), warnings);
    errors.extend(replicas_error(
        spec.desired_replicas(),
        config.has_embedded_etcd(),
        &path.child("replicas"),
    ));
    match spec.version.parse::<Version>() {
        Err(error) => errors.push(FieldError::invalid(
            &path.child("version"),
            spec.version.as_str(),
            error.to_string(),
        )),
        Ok(_) if !spec.version.contains("+k3s") => warnings.push(format!(
            "spec.version: {version} names no release of k3s: those end with a revision, e.g. {version}+k3s1",
            version = spec.version
        )),
        Ok(_) => {}
    }
    if let Some(version) = config.version.as_deref().filter(|version| !version.is_empty())
        && version != spec.version
    {
        errors.push(FieldError::invalid(
            &path.child("kthreesConfigSpec").child("version"),
            version,
            format!(
                "must be absent or equal to spec.version ({}): servers run what spec.version says",
                spec.version
            ),
        ));
    }
    shared_errors(
        spec.rollout_strategy.as_ref(),
        spec.rollout_before.as_ref(),
        spec.remediation_strategy.as_ref(),
        &path,
        &mut errors,
    );
    if spec.strategy() == RolloutStrategyType::RollingUpdate
        && spec.max_surge() == 0
        && spec.desired_replicas() < 3
    {
        errors.push(FieldError::invalid(
            &path.child("rolloutStrategy").child("rollingUpdate").child("maxSurge"),
            0,
            "needs at least 3 replicas: with fewer, deleting a server before its replacement joined loses quorum; \
             use maxSurge 1 or the type InPlace",
        ));
    }
    let machine_path = path.child("machineTemplate");
    let machines = spec.machines();
    machine_errors(&machines, &machine_path, &mut errors);
    infrastructure_errors(
        &machines,
        object.metadata.namespace.as_deref().unwrap_or_default(),
        &machine_path,
        &mut errors,
    );
    errors
}

/// Why a control plane cannot have so many servers.
pub fn replicas_error(replicas: i32, embedded_etcd: bool, path: &Path) -> Option<FieldError> {
    if replicas < 1 {
        return Some(FieldError::invalid(path, replicas, "must be at least 1"));
    }
    (embedded_etcd && replicas % 2 == 0).then(|| {
        FieldError::invalid(
            path,
            replicas,
            "must be odd with embedded etcd: an even number tolerates no more failures than one less",
        )
    })
}

fn shared_errors(
    strategy: Option<&RolloutStrategy>,
    before: Option<&RolloutBefore>,
    remediation: Option<&RemediationStrategy>,
    path: &Path,
    errors: &mut Vec<FieldError>,
) {
    if let Some(surge) = strategy
        .and_then(|strategy| strategy.rolling_update.as_ref())
        .and_then(|rolling| rolling.max_surge.as_ref())
    {
        use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
        let (shown, valid) = match surge {
            IntOrString::Int(surge) => (serde_json::Value::from(*surge), (0..=1).contains(surge)),
            IntOrString::String(surge) => (surge.as_str().into(), matches!(surge.as_str(), "0" | "1")),
        };
        if !valid {
            errors.push(FieldError::invalid(
                &path
                    .child("rolloutStrategy")
                    .child("rollingUpdate")
                    .child("maxSurge"),
                shown,
                "must be 0 or 1",
            ));
        }
    }
    if let Some(days) = before.and_then(|before| before.certificates_expiry_days)
        && days < FEWEST_EXPIRY_DAYS
    {
        errors.push(FieldError::invalid(
            &path.child("rolloutBefore").child("certificatesExpiryDays"),
            days,
            format!("must be at least {FEWEST_EXPIRY_DAYS}, or the rollout may come too late"),
        ));
    }
    if let Some(remediation) = remediation {
        let path = path.child("remediationStrategy");
        if let Some(retries) = remediation.max_retry.filter(|retries| *retries < 0) {
            errors.push(FieldError::invalid(
                &path.child("maxRetry"),
                retries,
                "must not be negative",
            ));
        }
        duration_error(
            remediation.retry_period.as_deref(),
            &path.child("retryPeriod"),
            errors,
        );
        duration_error(
            remediation.min_healthy_period.as_deref(),
            &path.child("minHealthyPeriod"),
            errors,
        );
    }
}

fn duration_error(text: Option<&str>, path: &Path, errors: &mut Vec<FieldError>) {
    if let Some(text) = text
        && duration::parse(text).is_none()
    {
        errors.push(FieldError::invalid(
            path,
            text,
            "must be a duration such as 10m or 1h30m",
        ));
    }
}

fn machine_errors(machines: &MachineTemplate, path: &Path, errors: &mut Vec<FieldError>) {
    for (name, text) in [
        ("nodeDrainTimeout", &machines.node_drain_timeout),
        ("nodeVolumeDetachTimeout", &machines.node_volume_detach_timeout),
        ("nodeDeletionTimeout", &machines.node_deletion_timeout),
    ] {
        duration_error(text.as_deref(), &path.child(name), errors);
    }
    if let Some(deletion) = machines.spec.as_ref().and_then(|spec| spec.deletion.as_ref()) {
        let path = path.child("spec").child("deletion");
        for (name, seconds) in [
            ("nodeDrainTimeoutSeconds", deletion.node_drain_timeout_seconds),
            (
                "nodeVolumeDetachTimeoutSeconds",
                deletion.node_volume_detach_timeout_seconds,
            ),
            (
                "nodeDeletionTimeoutSeconds",
                deletion.node_deletion_timeout_seconds,
            ),
        ] {
            if let Some(seconds) = seconds.filter(|seconds| *seconds < 0) {
                errors.push(FieldError::invalid(
                    &path.child(name),
                    seconds,
                    "must not be negative",
                ));
            }
        }
    }
}

fn infrastructure_errors(
    machines: &MachineTemplate,
    namespace: &str,
    path: &Path,
    errors: &mut Vec<FieldError>,
) {
    if let Some(reference) = machines
        .spec
        .as_ref()
        .and_then(|spec| spec.infrastructure_ref.as_ref())
    {
        let path = path.child("spec").child("infrastructureRef");
        for (name, value) in [
            ("apiGroup", &reference.api_group),
            ("kind", &reference.kind),
            ("name", &reference.name),
        ] {
            if value.is_empty() {
                errors.push(FieldError::required(
                    &path.child(name),
                    "names the infrastructure template",
                ));
            }
        }
        return;
    }
    let path = path.child("infrastructureRef");
    let Some(reference) = &machines.infrastructure_ref else {
        errors.push(FieldError::required(
            &path,
            "names the infrastructure template of the servers",
        ));
        return;
    };
    for (name, value) in [
        ("apiVersion", &reference.api_version),
        ("kind", &reference.kind),
        ("name", &reference.name),
    ] {
        if value.as_deref().unwrap_or_default().is_empty() {
            errors.push(FieldError::required(
                &path.child(name),
                "names the infrastructure template",
            ));
        }
    }
    if let Some(elsewhere) = reference
        .namespace
        .as_deref()
        .filter(|elsewhere| !elsewhere.is_empty() && !namespace.is_empty() && *elsewhere != namespace)
    {
        errors.push(FieldError::invalid(
            &path.child("namespace"),
            elsewhere,
            format!("must be the namespace of the control plane ({namespace})"),
        ));
    }
}

/// What may not become of the old object.
fn transition_errors(old: &KThreesControlPlane, new: &KThreesControlPlane) -> Vec<FieldError> {
    let path = Path::new("spec");
    let mut errors = Vec::new();
    if old.spec.version != new.spec.version {
        errors.extend(version_error(old, new, &path.child("version")));
    }
    let status = old.status.clone().unwrap_or_default();
    if has_servers(&status) {
        errors.extend(critical_errors(
            &old.spec,
            &new.spec,
            &path.child("kthreesConfigSpec").child("serverConfig"),
        ));
    }
    errors
}

fn has_servers(status: &KThreesControlPlaneStatus) -> bool {
    status.initialized
        || status
            .initialization
            .as_ref()
            .is_some_and(|initialization| initialization.control_plane_initialized == Some(true))
        || status.replicas.unwrap_or(0) > 0
}

fn version_error(old: &KThreesControlPlane, new: &KThreesControlPlane, path: &Path) -> Option<FieldError> {
    let desired: Version = new.spec.version.parse().ok()?;
    let status = old.status.clone().unwrap_or_default();
    let running: Vec<Version> = status
        .versions
        .iter()
        .flatten()
        .map(|entry| entry.version.as_str())
        .chain(status.version.as_deref())
        .filter_map(|version| version.parse().ok())
        .collect();
    // Going back to what some server still runs is the way out of an upgrade that does not work.
    if running
        .iter()
        .any(|version| version.to_string() == desired.to_string())
    {
        return None;
    }
    let before: Version = old.spec.version.parse().ok()?;
    let lowest = running.into_iter().chain([before.clone()]).min()?;
    let invalid = |detail: String| Some(FieldError::invalid(path, new.spec.version.as_str(), detail));
    if lowest.minors_to(&desired) > 1 {
        return invalid(format!(
            "skips a minor version: servers run {lowest}, go to v{}.{} first",
            lowest.major,
            lowest.minor + 1
        ));
    }
    if before.minors_to(&desired) < 0 {
        return invalid(format!(
            "is a minor version below {before} and no server runs it: etcd and the apiserver cannot go back"
        ));
    }
    None
}

/// Values k3s requires to be equal on all servers: a rollout that changes one can never finish.
fn critical_errors(
    old: &KThreesControlPlaneSpec,
    new: &KThreesControlPlaneSpec,
    path: &Path,
) -> Vec<FieldError> {
    let (old, new) = (old.config().server(), new.config().server());
    let text = |value: &Option<String>| value.clone().filter(|value| !value.is_empty());
    let mut errors = Vec::new();
    let mut refuse = |name: &str, changed: bool, why: &str| {
        if changed {
            errors.push(FieldError::forbidden(&path.child(name), why));
        }
    };
    let same =
        "cannot change while servers exist: k3s refuses a server whose value differs from the running ones'";
    refuse(
        "clusterCidr",
        text(&old.cluster_cidr) != text(&new.cluster_cidr),
        same,
    );
    refuse(
        "serviceCidr",
        text(&old.service_cidr) != text(&new.service_cidr),
        same,
    );
    refuse(
        "clusterDNS",
        text(&old.cluster_dns) != text(&new.cluster_dns),
        same,
    );
    refuse(
        "clusterDomain",
        text(&old.cluster_domain) != text(&new.cluster_domain),
        same,
    );
    refuse(
        "disableCloudController",
        old.disable_cloud_controller.unwrap_or(true) != new.disable_cloud_controller.unwrap_or(true),
        same,
    );
    let disables = |components: &Option<Vec<String>>, name: &str| {
        components
            .iter()
            .flatten()
            .any(|component| component.trim() == name)
    };
    refuse(
        "disableComponents",
        disables(&old.disable_components, "servicelb") != disables(&new.disable_components, "servicelb"),
        "cannot gain or lose servicelb while servers exist: k3s refuses a server whose value differs from the \
         running ones'",
    );
    refuse(
        "agentToken",
        old.agent_token.unwrap_or(AgentToken::Shared) != new.agent_token.unwrap_or(AgentToken::Shared),
        "can be set only before the first server exists: running workers hold the other token",
    );
    refuse(
        "datastore",
        old.datastore.is_some() != new.datastore.is_some(),
        "cannot be added or removed while servers exist: their state would stay behind",
    );
    errors
}
