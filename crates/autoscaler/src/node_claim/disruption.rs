//! Whether a claim may be disrupted, and what for: drifted, consolidatable, and when a pod last came or went. Pure.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use slipway_capi::{names::label::MACHINE_TEMPLATE_HASH, view::Machine};
use slipway_packing::{
    requirement::RequirementSpec,
    requirements::{Requirements, Undefined},
    time::duration_seconds,
};

use super::observe::Observed;
use crate::{
    api::{
        ClusterAPINodeClass, DriftPolicy, NodeClaim,
        names::{annotation, condition},
    },
    hash,
    instances::{Refused, Source, admits},
    options::Options,
};

/// Pods that come or go within this time are one event, as Karpenter has it.
pub const EVENTS_WITHIN: SignedDuration = SignedDuration::from_secs(10);

/// When a pod last came to a Node, ended or was told to go. Those of DaemonSets come and go with the Node.
pub fn last_pod_event<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> Option<Timestamp> {
    pods.into_iter().filter_map(pod_event).max()
}

fn pod_event(pod: &Pod) -> Option<Timestamp> {
    let is_daemon = pod
        .owner_references()
        .iter()
        .any(|owner| owner.kind == "DaemonSet");
    if is_daemon {
        return None;
    }
    let status = pod.status.as_ref();
    let bound = status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .find(|one| one.type_ == "PodScheduled" && one.status == "True")
        .and_then(|one| one.last_transition_time.as_ref())
        .or_else(|| status.and_then(|status| status.start_time.as_ref()))
        .or(pod.metadata.creation_timestamp.as_ref())
        .map(|time| time.0);
    let ended = status
        .iter()
        .flat_map(|status| status.container_statuses.iter().flatten())
        .filter_map(|container| {
            container
                .state
                .as_ref()?
                .terminated
                .as_ref()?
                .finished_at
                .as_ref()
        })
        .map(|time| time.0)
        .max()
        .filter(|_| {
            let phase = status.and_then(|status| status.phase.as_deref());
            matches!(phase, Some("Succeeded" | "Failed"))
        });
    let told = pod.metadata.deletion_timestamp.as_ref().map(|gone_by| {
        let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
        gone_by
            .0
            .saturating_sub(SignedDuration::from_secs(grace))
            .unwrap_or(gone_by.0)
    });
    [bound, ended, told].into_iter().flatten().max()
}

/// Whether that is news, given what the claim says.
pub fn is_news(event: Timestamp, known: Option<Timestamp>) -> bool {
    known.is_none_or(|known| event > known && event.duration_since(known) >= EVENTS_WITHIN)
}

/// What disruption has to know of a claim.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Disruptable {
    pub is_consolidatable: bool,
    /// When it will be, if nothing happens on its Node.
    pub consolidatable_at: Option<Timestamp>,
    /// Karpenter's reason, and the details.
    pub drifted: Option<(&'static str, String)>,
    pub last_pod_event: Option<Timestamp>,
}

fn since(observed: &Observed, kind: &str) -> Option<Timestamp> {
    let conditions = observed.claim.status.iter().flat_map(|status| &status.conditions);
    let mut held = conditions.filter(|one| one.type_ == kind && one.status == "True");
    held.next().map(|one| one.last_transition_time.0)
}

pub fn disruptable(observed: &Observed, is_initialized: bool, now: Timestamp) -> Disruptable {
    let status = observed.claim.status.as_ref();
    let known = status
        .and_then(|status| status.last_pod_event_time.as_ref())
        .map(|time| time.0);
    let last_pod_event = match observed.pod_event {
        Some(event) if is_news(event, known) => Some(event),
        _ => known,
    };
    let mut result = Disruptable {
        last_pod_event,
        drifted: drift(observed),
        ..Disruptable::default()
    };
    let Some(pool) = observed.pool.as_ref().filter(|_| is_initialized) else {
        return result;
    };
    let after = pool.spec.disruption.consolidate_after.as_deref().unwrap_or("0s");
    let Some(after) =
        duration_seconds(after).and_then(|seconds| SignedDuration::try_from_secs_f64(seconds).ok())
    else {
        return result;
    };
    let began = last_pod_event
        .or_else(|| since(observed, condition::INITIALIZED))
        .unwrap_or(now);
    let at = began.saturating_add(after).unwrap_or(Timestamp::MAX);
    if at <= now {
        result.is_consolidatable = true;
    } else {
        result.consolidatable_at = Some(at);
    }
    result
}

/// Why a claim is no longer what is asked for. One without a Machine is not looked at.
fn drift(observed: &Observed) -> Option<(&'static str, String)> {
    let machine = observed.machine.as_ref()?;
    let claim = &observed.claim;
    if let Some(pool) = &observed.pool {
        let note = |annotations: &std::collections::BTreeMap<String, String>, key: &str| {
            annotations.get(key).cloned()
        };
        let of_pool = (
            note(pool.annotations(), annotation::NODE_POOL_HASH),
            note(pool.annotations(), annotation::NODE_POOL_HASH_VERSION),
        );
        let of_claim = (
            note(claim.annotations(), annotation::NODE_POOL_HASH),
            note(claim.annotations(), annotation::NODE_POOL_HASH_VERSION),
        );
        if let (Some(hash), Some(version)) = &of_pool
            && hash::is_drifted((hash, version), (of_claim.0.as_deref(), of_claim.1.as_deref()))
        {
            let message = format!("the template of NodePool {} has changed", pool.name_any());
            return Some(("NodePoolDrifted", message));
        }
        if let Some(why) = requirements_drifted(claim, &pool.spec.template.spec.requirements) {
            return Some(("RequirementsDrifted", why));
        }
    }
    let why = observed.drifted_from.as_ref()?;
    Some((
        "NodeClassDrifted",
        format!("Machine {}: {why}", machine.name_any()),
    ))
}

/// What the NodePool asks for and the claim is not. A label that no machine has, although the claim was made with that very
/// requirement, is nobody's drift: the next claim would lack it too.
fn requirements_drifted(claim: &NodeClaim, asked: &[RequirementSpec]) -> Option<String> {
    let (labels, own) = (
        Requirements::from_labels(claim.labels()),
        Requirements::from_specs(&claim.spec.requirements),
    );
    asked.iter().find_map(|spec| {
        let asked = Requirements::from_specs([spec]);
        let met = if labels.get(&spec.key).is_none() && own.get(&spec.key).is_some() {
            own.intersects(&asked)
        } else {
            labels.compatible(&asked, Undefined::Denied)
        };
        met.err().map(|error| error.to_string())
    })
}

/// Why a Machine is no longer what its claim's NodeClass would give.
pub(super) fn machine_drifted(
    class: &ClusterAPINodeClass,
    source: Option<&Source>,
    machine: &Machine,
    revision: Option<&str>,
    options: &Options,
) -> Option<String> {
    let source = source?;
    let admitted = admits(&class.spec, &options.scope, &options.group, source);
    let taken_no_more = match admitted {
        // Whoever opts an object out has not asked for its machines to be replaced.
        Ok(()) | Err(Refused::NotOptedIn | Refused::Owned | Refused::Deleting) => None,
        Err(refused) => Some(refused),
    };
    if let Some(refused) = taken_no_more {
        let (class, object) = (class.name_any(), &source.reference);
        return Some(format!(
            "ClusterAPINodeClass {class} no longer takes {object}: {refused}"
        ));
    }
    if source.reference.kind.template().is_some() {
        let asked = class
            .spec
            .machine_template
            .as_ref()
            .map(|template| &template.version);
        let has = &machine.spec.version;
        return asked
            .filter(|asked| *asked != has)
            .map(|asked| format!("it has version {has}, and {asked} is asked for"));
    }
    let follows = class.spec.drift_policy != Some(DriftPolicy::Autoscaler);
    let (revision, own) = (revision?, machine.labels().get(MACHINE_TEMPLATE_HASH)?);
    (!follows && !revision.is_empty() && revision != own).then(|| {
        format!(
            "it was made from revision {own}, and {} makes {revision}",
            source.reference
        )
    })
}
