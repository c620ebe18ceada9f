//! The writes of static NodePools: claims that are made, and those that are too many.

use kube::ResourceExt;
use slipway_runtime::{Context, ObjectKey};

use super::plan::Plan;
use crate::{Error, memory::Memory, provisioner::create, watched::Watched};

pub(super) async fn act(
    plan: &Plan,
    watched: &Watched,
    memory: &Memory,
    context: &Context,
) -> Result<(), Error> {
    for creation in &plan.creations {
        let made = create(creation.clone(), context).await?;
        memory.metrics.claim_created(&made, false);
        tracing::info!(
            nodepool = creation.pool,
            nodeclaim = made.name_any(),
            object = %creation.object,
            "Created a NodeClaim of a static NodePool"
        );
    }
    for (pool, name) in &plan.deletions {
        let Some(claim) = watched.claims.get(&ObjectKey::cluster_scoped(name)) else {
            continue;
        };
        let deleted = context.delete(claim.as_ref()).await;
        deleted.map_err(Error::api(format!("deleting NodeClaim {name}")))?;
        memory.metrics.claim_disrupted(&claim, "scaled_down");
        tracing::info!(
            nodepool = pool,
            nodeclaim = name,
            "Deleted a NodeClaim that was too many"
        );
    }
    for (pool, count, why) in &plan.missing {
        let found = watched.pools.get(&ObjectKey::cluster_scoped(pool));
        let Some(found) = found else { continue };
        let note = format!("{count} of its replicas cannot be had: {why}");
        let uid = found.uid().unwrap_or_default();
        if memory.is_news(&uid, &note) {
            memory.note_reported(&uid, &note);
            context
                .events
                .warning(found.as_ref(), "InsufficientCapacity", "Provision", note);
        }
    }
    Ok(())
}
