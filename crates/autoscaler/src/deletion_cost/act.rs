//! The writes of pod deletion costs: two annotations of a pod, the cost and that it is ours.

use futures::{StreamExt, stream};
use serde_json::json;
use slipway_packing::labels::{OWN_DELETION_COST, POD_DELETION_COST};
use slipway_runtime::Context;

use super::plan::{Plan, Write};
use crate::{memory::Memory, watched::Watched};

/// Writes at the same time.
const AT_ONCE: usize = 10;

/// Says whether all of it is written, as far as there is a pod to write to.
pub(super) async fn act(plan: &Plan, watched: &Watched, memory: &Memory, context: &Context) -> bool {
    let mut is_done = true;
    let mut written = stream::iter(plan.writes.clone())
        .map(|write| async move { written(&write, watched, context).await })
        .buffer_unordered(AT_ONCE);
    while let Some(result) = written.next().await {
        memory.metrics.deletion_costs.written(result);
        is_done &= matches!(result, "updated" | "skipped_notfound");
    }
    is_done
}

/// Writes to one pod as it was seen; says how that ended, in Karpenter's words.
async fn written(write: &Write, watched: &Watched, context: &Context) -> &'static str {
    let seen = watched.pod(&write.namespace, &write.name);
    let Some(pod) = seen.filter(|pod| pod.metadata.uid.as_ref() == Some(&write.uid)) else {
        return "skipped_notfound";
    };
    let cost = write.cost.map(|cost| cost.to_string());
    // Whoever wrote a cost in between has the last word.
    let patch = json!({"metadata": {"resourceVersion": pod.metadata.resource_version,
        "annotations": {POD_DELETION_COST: cost, OWN_DELETION_COST: cost}}});
    match context.patch(pod.as_ref(), &patch).await {
        Ok(_) => "updated",
        Err(kube::Error::Api(status)) if status.code == 404 => "skipped_notfound",
        Err(kube::Error::Api(status)) if status.code == 409 => "skipped_conflict",
        Err(error) => {
            let Write { namespace, name, .. } = write;
            tracing::warn!(%error, namespace, pod = name, "A deletion cost was not written, and will be");
            "error"
        }
    }
}
