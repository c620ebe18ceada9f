//! The writes of a Node: its finalizer, and the deletion of its claim.

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde_json::json;
use slipway_runtime::Context;

use super::{Action, Observed};
use crate::{Error, api::names::TERMINATION_FINALIZER};

pub(super) async fn act(
    action: &Action,
    node: &Node,
    observed: &Observed,
    context: &Context,
) -> Result<(), Error> {
    match action {
        Action::DeleteClaim => {
            let Some(claim) = &observed.claim else {
                return Ok(());
            };
            let doing = format!("deleting NodeClaim {}", claim.name_any());
            context.delete(claim.as_ref()).await.map_err(Error::api(doing))
        }
        Action::Release => {
            let kept: Vec<&String> = node
                .finalizers()
                .iter()
                .filter(|finalizer| *finalizer != TERMINATION_FINALIZER)
                .collect();
            let patch = json!({"metadata": {"resourceVersion": node.resource_version(), "finalizers": kept}});
            let doing = format!("writing to Node {}", node.name_any());
            match context.patch(node, &patch).await {
                // It went meanwhile.
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
                written => written.map(|_| ()).map_err(Error::api(doing)),
            }
        }
    }
}
