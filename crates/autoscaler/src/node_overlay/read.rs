//! NodeOverlays as the caches show them, judged over everything that NodePools can be given. Reads only.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use kube::ResourceExt;
use slipway_runtime::{Context, Informer, ObjectKey, Scope};

use crate::{
    api::{
        ClusterAPINodeClass, NodeClaim, NodeOverlay, NodePool,
        names::{NODE_CLASS_GROUP, label},
    },
    cluster_api::Reader,
    instances::{Overlays, PoolShapes, Shape},
    options::Options,
};

/// Whether a NodePool is ours, and stays.
pub fn is_ours(pool: &NodePool) -> bool {
    pool.spec.template.spec.node_class_ref.group == NODE_CLASS_GROUP
        && pool.metadata.deletion_timestamp.is_none()
}

/// Overlays over what each of these NodePools can be given, by its class.
pub fn judged(
    all: &[Arc<NodeOverlay>],
    pools: &[Arc<NodePool>],
    described: &BTreeMap<String, Vec<Shape>>,
) -> Overlays {
    let ours = pools.iter().filter(|pool| is_ours(pool));
    let named: Vec<(String, &Arc<NodePool>)> = ours.map(|pool| (pool.name_any(), pool)).collect();
    let seen: Vec<PoolShapes<'_>> = named
        .iter()
        .map(|(name, pool)| PoolShapes {
            name,
            labels: &pool.spec.template.metadata.labels,
            shapes: described
                .get(&pool.spec.template.spec.node_class_ref.name)
                .map_or(&[], Vec::as_slice),
        })
        .collect();
    Overlays::judge(all, &seen)
}

/// All of them, at this moment; none where the gate is off.
pub async fn overlays(reader: &Reader<'_>, options: &Options, context: &Context, now: Timestamp) -> Overlays {
    if !options.gates.node_overlay {
        return Overlays::default();
    }
    let scope = || Scope::of_namespace(&context.settings);
    let overlays: Informer<NodeOverlay> = context.informers.get(scope());
    let all = overlays.list();
    if all.is_empty() {
        return Overlays::default();
    }
    let classes: Informer<ClusterAPINodeClass> = context.informers.get(Scope::all());
    let pools: Informer<NodePool> = context.informers.get(scope());
    let pools = pools.list();
    let mut described: BTreeMap<String, Vec<Shape>> = BTreeMap::new();
    for pool in pools.iter().filter(|pool| is_ours(pool)) {
        let name = &pool.spec.template.spec.node_class_ref.name;
        if !described.contains_key(name)
            && let Some(class) = classes.get(&ObjectKey::cluster_scoped(name))
        {
            let found = reader.describe(&class, options, now).await;
            described.insert(name.clone(), found.shapes);
        }
    }
    judged(&all, &pools, &described)
}

/// Lays them over what a claim can be given.
pub async fn lay_over(
    claim: &NodeClaim,
    shapes: &mut [Shape],
    reader: &Reader<'_>,
    options: &Options,
    context: &Context,
) {
    let Some(name) = claim.labels().get(label::NODE_POOL) else {
        return;
    };
    let pools: Informer<NodePool> = context.informers.get(Scope::of_namespace(&context.settings));
    if let Some(pool) = pools.get(&ObjectKey::cluster_scoped(name)) {
        let overlays = overlays(reader, options, context, context.clock.now()).await;
        overlays.lay_over(name, &pool.spec.template.metadata.labels, shapes);
    }
}
