//! The writes of an account. Each names the version it was decided on, so the apiserver refuses it where that is out of date.

use k8s_openapi::api::autoscaling::v1::Scale;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
    core::Request,
};
use serde_json::{Value, json};
use slipway_capi::{
    frame::{Plan, What},
    names,
};
use slipway_runtime::{Context, Next};

use super::{Action, Observed, Scalable};
use crate::{
    Error, accounting,
    api::names::{annotation, label},
    memory::Memory,
};

/// Takes the actions in order. The first that fails ends it: what follows rests on it.
pub async fn act<K: Scalable>(
    plan: Plan<Action>,
    observed: &Observed<K>,
    memory: &Memory,
    context: &Context,
) -> Result<Next, Error> {
    let mut next = Next::OnChange;
    for entry in &plan.entries {
        match &entry.what {
            What::Do(action) => {
                take(action, observed, memory, context).await?;
                tracing::info!(object = %observed.group.reference, %action, why = entry.why, "Acted");
            }
            What::Wait(wait) => {
                if let Some(until) = wait.until {
                    let left = until.duration_since(context.clock.now());
                    next = Next::After(std::time::Duration::try_from(left).unwrap_or_default());
                }
            }
            _ => {}
        }
    }
    Ok(next)
}

async fn take<K: Scalable>(
    action: &Action,
    observed: &Observed<K>,
    memory: &Memory,
    context: &Context,
) -> Result<(), Error> {
    let done = json!("true");
    match action {
        Action::Account(step) => match step {
            accounting::Action::Bind { machine, claim } => {
                let labels = json!({"labels": {label::CLAIM: claim}});
                patch_machine(machine, labels, observed, context).await
            }
            accounting::Action::Release { machine } => {
                let labels = json!({"labels": {label::CLAIM: null}});
                patch_machine(machine, labels, observed, context).await
            }
            accounting::Action::Mark { machine, claim } => {
                let annotations = json!({"annotations": {
                    annotation::DELETED_WITH: claim,
                    names::annotation::DELETE_MACHINE: "karpenter",
                    names::annotation::EXCLUDE_NODE_DRAINING: "karpenter",
                    names::annotation::EXCLUDE_WAIT_FOR_VOLUME_DETACH: "karpenter",
                }});
                patch_machine(machine, annotations, observed, context).await
            }
            accounting::Action::Scale { to, .. } => scale(*to, observed, context).await,
            accounting::Action::Note { claim } => {
                let annotations = json!({annotation::GAVE_BACK: done});
                patch_claim(claim, annotations, observed, context).await
            }
            accounting::Action::Delete { machine } => delete_machine(machine, observed, context).await,
        },
        Action::Settle { claim } => {
            patch_claim(claim, json!({annotation::SETTLED: done}), observed, context).await?;
            if let Some(settled) = observed.claims.get(claim) {
                memory.metrics.claim_terminated(settled, context.clock.now());
            }
            Ok(())
        }
        Action::Unassign { claim } => {
            let annotations = json!({annotation::SCALABLE_RESOURCE: null});
            patch_claim(claim, annotations, observed, context).await
        }
    }
}

async fn patch_machine<K>(
    name: &str,
    mut metadata: Value,
    observed: &Observed<K>,
    context: &Context,
) -> Result<(), Error> {
    let Some(machine) = observed.machines.get(name) else {
        return Ok(());
    };
    metadata["resourceVersion"] = json!(machine.resource_version());
    context
        .patch_dynamic(machine.as_ref(), &(), &json!({ "metadata": metadata }))
        .await
        .map_err(Error::api(format!("writing to Machine {name}")))?;
    Ok(())
}

async fn patch_claim<K>(
    uid: &str,
    annotations: Value,
    observed: &Observed<K>,
    context: &Context,
) -> Result<(), Error> {
    let Some(claim) = observed.claims.get(uid) else {
        return Ok(());
    };
    let patch =
        json!({"metadata": {"annotations": annotations, "resourceVersion": claim.resource_version()}});
    context
        .patch(claim.as_ref(), &patch)
        .await
        .map_err(Error::api(format!("writing to NodeClaim {}", claim.name_any())))?;
    Ok(())
}

async fn delete_machine<K>(name: &str, observed: &Observed<K>, context: &Context) -> Result<(), Error> {
    let Some(machine) = observed.machines.get(name) else {
        return Ok(());
    };
    context
        .delete_dynamic(machine.as_ref(), &())
        .await
        .map_err(Error::api(format!("deleting Machine {name}")))
}

/// Through the scale subresource, as Cluster Autoscaler does it: the object's other fields are somebody else's.
async fn scale<K: Scalable>(to: i32, observed: &Observed<K>, context: &Context) -> Result<(), Error> {
    let object = observed.object.as_ref();
    let doing = || format!("scaling {} to {to}", observed.group.reference);
    let version = object.meta().resource_version.clone();
    let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"replicas": to}});
    let request = Request::new(K::url_path(&(), object.meta().namespace.as_deref()))
        .patch_subresource(
            "scale",
            &object.name_any(),
            &PatchParams::default(),
            &Patch::Merge(&patch),
        )
        .map_err(|error| Error::api(doing())(kube::Error::BuildRequest(error)))?;
    let scaled: Scale = context
        .client
        .request(request)
        .await
        .map_err(Error::api(doing()))?;
    // The answer names the version of the object itself: the next reconcile waits until the caches have it.
    let mut written = object.clone();
    written.meta_mut().resource_version = scaled.metadata.resource_version;
    context.writes().saw_dynamic(&written, &(), version.as_deref());
    Ok(())
}
