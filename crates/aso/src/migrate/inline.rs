//! The inline objects of a Cluster that is migrated: what Azure shows of what the classic objects asked for, under their names. Pure.

use serde_json::{Value, json};
use slipway_azure::{ownership, reconcile::records::ADOPT};

use super::{
    MIGRATED_FROM,
    facts::{Facts, Pool},
    observe::Recorded,
};
use crate::{
    adopt::{
        ADOPTED_POLICY, Found, FoundCluster,
        manifests::{Wishes, manifests},
    },
    command::objects::{
        CLASSIC_CLUSTER, CLASSIC_PLANE, CLASSIC_POOL, INLINE_CLUSTER, INLINE_PLANE, INLINE_POOL, KindName,
    },
    inline::Policy,
    mutators::{AGENT_POOL, MANAGED_CLUSTER},
};

/// What stands around a cluster: it goes with it only if it was made for it.
const AROUND: &[&str] = &[
    "ResourceGroup",
    "VirtualNetwork",
    "VirtualNetworksSubnet",
    "PrivateEndpoint",
];

/// The tag of what was made for a Cluster, before its name.
const LIFECYCLE: &str = "sigs.k8s.io_cluster-api-provider-azure_cluster_";

/// What of that which was read the classic objects had to do with.
fn ours(found: &FoundCluster, recorded: &Recorded) -> FoundCluster {
    let is_ours = |one: &&Found| {
        let of_cluster = [MANAGED_CLUSTER, AGENT_POOL, "ResourceGroup"].contains(&one.kind.as_str());
        of_cluster || recorded.ids.contains(&one.id.to_lowercase())
    };
    FoundCluster {
        resources: found.resources.iter().filter(is_ours).cloned().collect(),
        ..FoundCluster::default()
    }
}

/// Whether a resource goes with the Cluster.
fn is_owned(found: &Found, recorded: &Recorded, cluster: &str) -> bool {
    if !AROUND.contains(&found.kind.as_str()) {
        return true;
    }
    let tag = |name: &str| found.spec.get("tags").and_then(|tags| tags[name].as_str());
    if tag(&format!("{LIFECYCLE}{cluster}")) == Some("owned") {
        return true;
    }
    let mark = tag(ownership::TAG);
    let is_marked = mark.is_some() && mark == recorded.mark.as_deref();
    is_marked || recorded.made.contains(&found.id.to_lowercase())
}

/// The objects, under the names of the classic ones. An error names a pool that AKS does not have.
pub fn objects(
    facts: &Facts,
    found: &FoundCluster,
    recorded: &Recorded,
    credential: &str,
    core: &str,
) -> Result<Vec<Value>, String> {
    let found = ours(found, recorded);
    let wishes = Wishes {
        namespace: facts.key().namespace().unwrap_or_default().to_owned(),
        credential: Some(credential.to_owned()),
        name: None,
        core: core.to_owned(),
    };
    let made = manifests(&found, &wishes)?;
    let of_kind = |kind: KindName| made.iter().filter(move |object| object["kind"] == kind.kind);
    let mut objects = Vec::new();
    for (kind, from, name) in [
        (INLINE_CLUSTER, CLASSIC_CLUSTER, &facts.infrastructure.name),
        (INLINE_PLANE, CLASSIC_PLANE, &facts.plane.name),
    ] {
        let object = of_kind(kind)
            .next()
            .ok_or_else(|| format!("nothing was read for an {}", kind.kind))?;
        objects.push(named(object, name, from, recorded.mark.as_deref()));
    }
    for pool in &facts.pools {
        let azure_name = azure_name(pool);
        let object = of_kind(INLINE_POOL)
            .find(|object| object["spec"]["resources"][0]["spec"]["azureName"] == azure_name)
            .ok_or_else(|| {
                format!(
                    "AKS has no node pool {azure_name}, which AzureManagedMachinePool {} stands for: wait until it is made, or delete its MachinePool",
                    pool.pair.name
                )
            })?;
        objects.push(named(object, &pool.pair.name, CLASSIC_POOL, None));
    }
    for object in &mut objects {
        let resources = object["spec"]["resources"].as_array_mut();
        for resource in resources.into_iter().flatten() {
            let id = resource["spec"]["azureName"].clone();
            let read = found
                .resources
                .iter()
                .find(|one| resource["kind"] == one.kind && ends_with(&one.id, &id));
            let owned = read.is_none_or(|read| is_owned(read, recorded, facts.name()));
            let policy = if owned {
                Policy::Manage
            } else {
                Policy::DetachOnDelete
            };
            resource["metadata"]["annotations"][ADOPTED_POLICY] = json!(policy.to_string());
        }
    }
    Ok(objects)
}

fn ends_with(id: &str, name: &Value) -> bool {
    name.as_str()
        .is_some_and(|name| id.rsplit('/').next().is_some_and(|last| last == name))
}

/// The name that the classic pool has in AKS.
fn azure_name(pool: &Pool) -> &str {
    let spec = pool
        .pair
        .classic
        .as_ref()
        .and_then(|object| object.value["spec"]["name"].as_str());
    spec.filter(|name| !name.is_empty()).unwrap_or(&pool.pair.name)
}

fn named(object: &Value, name: &str, from: KindName, mark: Option<&str>) -> Value {
    let mut object = object.clone();
    object["metadata"]["name"] = json!(name);
    object["metadata"]["annotations"] = json!({(MIGRATED_FROM): from.kind});
    // What the classic object wrote is the inline one's to write, once it is managed.
    if let Some(mark) = mark {
        object["metadata"]["annotations"][ADOPT] = json!(mark);
    }
    object
}
