//! The writes of a NodeClaim: to itself, to its Node, to that Node's pods, and, where it comes from a template, to its Machine.

mod machine;

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams, Preconditions},
};
use serde_json::{Value, json};
use slipway_packing::model::Taint;
use slipway_runtime::{Context, Outcome};

use crate::node_claim::{
    drain::PodRemoval,
    observe::{Assignment, Observed, read_taint},
    plan::{Action, EXCLUDED_FROM_BALANCERS},
};
use crate::{
    Error,
    api::names::{TERMINATION_FINALIZER, annotation, label, taint},
    lifecycle::NodeChange,
    memory::Memory,
};

/// How long until an eviction that a PodDisruptionBudget held back is tried again: nothing tells when it would be let through.
const EVICTION_RETRY: Duration = Duration::from_secs(10);

pub(super) async fn act(
    action: &Action,
    observed: &mut Observed,
    memory: &Memory,
    context: &Context,
) -> Result<Outcome, Error> {
    let name = observed.claim.name_any();
    match action {
        Action::Assign { object } => {
            let Assignment::Chosen { shape, .. } = &observed.assignment else {
                return Ok(Outcome::Done);
            };
            let metadata = json!({
                "labels": shape.claim_labels(),
                "annotations": {annotation::SCALABLE_RESOURCE: object.to_string()},
            });
            patch_claim(metadata, observed, context).await?;
        }
        Action::NameMachine { machine } => {
            let metadata = json!({"annotations": {annotation::MACHINE: machine}});
            patch_claim(metadata, observed, context).await?;
        }
        Action::StampDeadline { at } => {
            let metadata = json!({"annotations": {annotation::TERMINATION_TIMESTAMP: at.to_string()}});
            patch_claim(metadata, observed, context).await?;
        }
        Action::LetMachineGo => {
            let metadata = json!({"annotations": {annotation::DRAINED: "true"}});
            patch_claim(metadata, observed, context).await?;
            if !observed.nodes.is_empty() {
                memory.metrics.node_drained(&observed.claim);
            }
        }
        Action::GiveUp { reason } => {
            if reason.has_failed() {
                note_failure(observed, memory, context);
            }
            context
                .delete(&observed.claim)
                .await
                .map_err(Error::api(format!("deleting NodeClaim {name}")))?;
            memory.metrics.claim_disrupted(&observed.claim, reason.name());
        }
        Action::MakeMachine { object } => machine::make(object, observed, context).await?,
        Action::DeleteMachine { .. } => {
            if let Some(found) = &observed.machine {
                machine::delete(found, context).await?;
                memory
                    .metrics
                    .claim_terminated(&observed.claim, context.clock.now());
            }
        }
        Action::DeleteParts => machine::delete_parts(&observed.parts, context).await?,
        Action::SyncNode { node, change } => {
            patch_node(node, |node| synced(node, change), observed, context).await?;
            if change.labels.contains_key(label::REGISTERED) {
                memory.metrics.node_registered(&observed.claim);
            }
        }
        Action::TaintNode { node } => {
            let leaving = Taint {
                key: taint::DISRUPTED.to_owned(),
                value: String::new(),
                effect: "NoSchedule".to_owned(),
            };
            let change = NodeChange {
                labels: [(EXCLUDED_FROM_BALANCERS.to_owned(), "karpenter".to_owned())].into(),
                add_taints: vec![leaving],
                ..NodeChange::default()
            };
            patch_node(node, |node| synced(node, &change), observed, context).await?;
        }
        Action::ReleaseNode { node } => patch_node(node, released, observed, context).await?,
        Action::Drain(step) => return drain(step, memory, context).await,
    }
    Ok(Outcome::Done)
}

fn note_failure(observed: &Observed, memory: &Memory, context: &Context) {
    let claim = &observed.claim;
    if let Some(pool) = claim.labels().get(label::NODE_POOL) {
        memory.note_outcome(pool, &claim.uid().unwrap_or_default(), false);
    }
    if let Assignment::To { object, .. } = &observed.assignment {
        let why = format!("NodeClaim {} came to nothing", claim.name_any());
        memory.note_unavailable(object, &why, context.clock.now());
    }
}

/// The object's account and this write to the same claim: the version tells who came first.
async fn patch_claim(mut metadata: Value, observed: &mut Observed, context: &Context) -> Result<(), Error> {
    let claim = &observed.claim;
    metadata["resourceVersion"] = json!(claim.resource_version());
    let written = context
        .patch(claim, &json!({ "metadata": metadata }))
        .await
        .map_err(Error::api(format!("writing to NodeClaim {}", claim.name_any())))?;
    // What follows in the same plan goes on from here.
    observed.claim.metadata = written.metadata;
    Ok(())
}

/// What a change makes of a Node. Taints are one list, so the version is named.
fn synced(node: &Node, change: &NodeChange) -> Value {
    let mut patch =
        json!({"metadata": {"resourceVersion": node.resource_version(), "labels": change.labels}});
    if change.add_finalizer {
        let mut finalizers = node.finalizers().to_vec();
        finalizers.push(TERMINATION_FINALIZER.to_owned());
        patch["metadata"]["finalizers"] = json!(finalizers);
    }
    if !change.add_taints.is_empty() || !change.remove_taints.is_empty() {
        let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
        let is_removed = |taint: &&k8s_openapi::api::core::v1::Taint| {
            let read = read_taint(taint);
            change
                .remove_taints
                .iter()
                .any(|removed| removed.key == read.key && removed.effect == read.effect)
        };
        let mut kept: Vec<Value> = taints
            .filter(|taint| !is_removed(taint))
            .map(|taint| json!(taint))
            .collect();
        kept.extend(change.add_taints.iter().map(|taint| json!(taint)));
        patch["spec"] = json!({ "taints": kept });
    }
    patch
}

/// The Node without our finalizer.
fn released(node: &Node) -> Value {
    let kept: Vec<&String> = node
        .finalizers()
        .iter()
        .filter(|finalizer| *finalizer != TERMINATION_FINALIZER)
        .collect();
    json!({"metadata": {"resourceVersion": node.resource_version(), "finalizers": kept}})
}

async fn patch_node(
    name: &str,
    patch: impl FnOnce(&Node) -> Value,
    observed: &Observed,
    context: &Context,
) -> Result<(), Error> {
    let Some(node) = observed.nodes.iter().find(|node| node.name_any() == name) else {
        return Ok(());
    };
    context
        .patch(node.as_ref(), &patch(node))
        .await
        .map_err(Error::api(format!("writing to Node {name}")))?;
    Ok(())
}

async fn drain(step: &PodRemoval, memory: &Memory, context: &Context) -> Result<Outcome, Error> {
    let (PodRemoval::Evict { pod, uid } | PodRemoval::Delete { pod, uid, .. }) = step;
    let Some((namespace, name)) = pod.split_once('/') else {
        return Ok(Outcome::Done);
    };
    let api: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
    // This very pod, and not one that has since taken its name.
    let mut parameters = DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(uid.clone()),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    let answer = match step {
        PodRemoval::Evict { .. } => {
            // Written out: `Api::evict` sends its options under a name that the apiserver passes over.
            let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction",
                "metadata": {"name": name, "namespace": namespace}, "deleteOptions": parameters});
            let parameters = PostParams::default();
            let answer = api
                .create_subresource("eviction", name, &parameters, &eviction)
                .await;
            answer.map(|_: Value| ())
        }
        PodRemoval::Delete { grace_seconds, .. } => {
            parameters.grace_period_seconds = Some(u32::try_from(*grace_seconds).unwrap_or(0));
            api.delete(name, &parameters).await.map(|_| ())
        }
    };
    if let PodRemoval::Evict { .. } = step {
        memory.metrics.eviction_answered(match &answer {
            Ok(()) => 200,
            Err(kube::Error::Api(status)) => status.code,
            Err(_) => 500,
        });
    }
    if answer.is_ok() {
        memory.metrics.pod_drained(match step {
            PodRemoval::Evict { .. } => "",
            PodRemoval::Delete { .. } => "Forceful Termination",
        });
    }
    let pod = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(namespace.to_owned()),
        name: Some(name.to_owned()),
        uid: Some(uid.clone()),
        ..ObjectReference::default()
    };
    let tell = |warning: bool, reason: &str, note: String| {
        context.events.record(pod.clone(), warning, reason, "Evict", note);
    };
    match (&answer, step) {
        (Ok(()), PodRemoval::Evict { .. }) => tell(false, "Evicted", "Evicted pod".to_owned()),
        (Err(kube::Error::Api(status)), _) if status.code == 429 => {
            tell(
                true,
                "FailedDraining",
                format!("Failed to drain: {}", status.message),
            );
        }
        _ => {}
    }
    match answer {
        // Gone, or another by now.
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(Outcome::Done),
        Err(kube::Error::Api(status)) if status.code == 429 => Ok(Outcome::InProgress(EVICTION_RETRY)),
        other => other
            .map(|()| Outcome::Done)
            .map_err(Error::api(step.to_string())),
    }
}
