//! The AKS provider: managed clusters, agent pools and what hangs on them.

mod actions;
mod cluster;
mod cluster_view;
mod credentials;
mod network_profile;
mod nodes;
mod policy;
mod pool;
mod refused;
mod refused_pool;
mod versions;
mod views;

use serde_json::{Map, Value, json};

pub use actions::act;
pub use nodes::{Node, cpus, nodes_of, remove_node_group, scale_set, set_count, set_power};
pub use policy::enable_addon;
pub use refused::{check_running, prefixes};
pub use views::{computed, computed_list, offered_versions};

use crate::{
    arm_id::ArmId,
    azure::Azure,
    error_response::ErrorResponse,
    kinds::{Draft, EtagForm, Kind, Missing, PLAIN, States, View, at_once, polled, without_body},
    operation::Operation,
    store::Resource,
};

pub const CLUSTER: &str = "Microsoft.ContainerService/managedClusters";
pub const POOL: &str = "Microsoft.ContainerService/managedClusters/agentPools";
pub const MAINTENANCE: &str = "Microsoft.ContainerService/managedClusters/maintenanceConfigurations";
const TRUSTED_ACCESS: &str = "Microsoft.ContainerService/managedClusters/trustedAccessRoleBindings";

pub const KINDS: &[Kind] = &[
    Kind {
        path: CLUSTER,
        create: polled(201, true, false, None),
        update: polled(200, true, false, None),
        // An identical PUT is work all the same: minutes of it.
        unchanged: polled(200, true, false, None),
        delete: polled(202, true, true, None),
        etag: EtagForm::Aks,
        exclusive: true,
        complete: cluster::complete,
        present: cluster_view::present,
        finish: cluster::finish,
        ..PLAIN
    },
    Kind {
        path: POOL,
        create: polled(201, true, false, None),
        update: polled(200, true, false, None),
        unchanged: polled(200, true, false, None),
        delete: polled(202, true, true, None),
        etag: EtagForm::Aks,
        located: false,
        exclusive: true,
        missing: Missing::AgentPool,
        parent_missing: Missing::Gateway,
        parent_first: true,
        complete: pool::complete,
        present: pool::present,
        ..PLAIN
    },
    Kind {
        path: MAINTENANCE,
        create: at_once(200),
        delete: without_body(at_once(200)),
        located: false,
        shows_state: false,
        missing: Missing::Provider("NotFound"),
        parent_missing: Missing::Gateway,
        complete: complete_maintenance,
        present: present_maintenance,
        ..PLAIN
    },
    Kind {
        path: TRUSTED_ACCESS,
        create: polled(201, true, false, None),
        update: polled(201, true, false, None),
        unchanged: polled(201, true, false, None),
        delete: polled(202, true, true, None),
        states: States {
            creating: "Updating",
            updating: "Updating",
            deleting: "Deleting",
        },
        located: false,
        missing: Missing::Provider("NotFound"),
        parent_missing: Missing::Gateway,
        parent_first: true,
        ..PLAIN
    },
];

/// The cluster an id is or lies under.
pub fn cluster_of(id: &ArmId) -> Option<ArmId> {
    let mut next = Some(id.clone());
    while let Some(id) = next {
        if id.type_path().eq_ignore_ascii_case(CLUSTER) {
            return Some(id);
        }
        next = id.parent().or_else(|| id.scope());
    }
    None
}

fn is_settled(state: &str) -> bool {
    matches!(state, "Succeeded" | "Failed" | "Canceled")
}

fn in_progress(what: &str, noun: &str) -> ErrorResponse {
    ErrorResponse::aks(
        409,
        "OperationNotAllowed",
        format!(
            "Operation is not allowed: Another {noun} ({what}) is in progress, please wait for it to finish before starting a new operation. See https://aka.ms/aks-pending-operation for more details"
        ),
    )
}

/// One operation at a time: on the cluster, or on each of its pools. A cluster can always be deleted.
pub fn check_idle(azure: &Azure, id: &ArmId, verb: &str) -> Result<(), ErrorResponse> {
    let Some(cluster_id) = cluster_of(id) else {
        return Ok(());
    };
    let resources = &azure.state().resources;
    let Some(cluster) = resources.get(&cluster_id) else {
        return Ok(());
    };
    let is_cluster = id.key() == cluster_id.key();
    if is_cluster && verb == "delete" && cluster.state != "Deleting" {
        return Ok(());
    }
    if !is_settled(&cluster.state) {
        return Err(in_progress(&cluster.state, "operation"));
    }
    let busy = resources
        .of_kind(&cluster_id.key(), POOL)
        .into_iter()
        .find(|pool| {
            !is_settled(&pool.state) && (is_cluster || pool.id.eq_ignore_ascii_case(&id.to_string()))
        });
    match busy {
        Some(pool) => Err(in_progress(
            &format!("{} - {}", pool.name(), pool.state),
            "agentpool operation",
        )),
        None => Ok(()),
    }
}

/// A cluster keeps at least one system pool.
pub fn check_delete(azure: &Azure, id: &ArmId) -> Result<(), ErrorResponse> {
    if !id.type_path().eq_ignore_ascii_case(POOL) {
        return Ok(());
    }
    let Some(cluster) = id.parent() else {
        return Ok(());
    };
    let others = azure
        .state()
        .resources
        .of_kind(&cluster.key(), POOL)
        .into_iter()
        .filter(|pool| !pool.id.eq_ignore_ascii_case(&id.to_string()))
        .any(|pool| pool.text("mode") == "System" && pool.state != "Deleting");
    let is_system = azure
        .state()
        .resources
        .get(id)
        .is_some_and(|pool| pool.text("mode") == "System");
    if is_system && !others {
        return Err(last_system_pool());
    }
    Ok(())
}

pub(crate) fn last_system_pool() -> ErrorResponse {
    ErrorResponse::aks(
        400,
        "OperationNotAllowed",
        "There has to be at least one system agent pool.",
    )
}

/// What the end of an operation means to clusters and pools: versions move, nodes come and go.
pub fn ended(azure: &mut Azure, operation: &Operation) {
    let Some(id) = ArmId::parse(&operation.target_id) else {
        return;
    };
    let Some(cluster) = cluster_of(&id) else {
        return;
    };
    // What failed or was aborted leaves versions and nodes where they are.
    let is_through = operation.failure.is_none() && operation.verb != "abort";
    let resources = &mut azure.state.resources;
    let mut keys: Vec<String> = resources
        .of_kind(&cluster.key(), POOL)
        .into_iter()
        .map(|pool| pool.id.to_ascii_lowercase())
        .collect();
    keys.push(cluster.key());
    for key in keys {
        if !key.starts_with(&operation.target) {
            continue;
        }
        if let Some(resource) = resources.by_key_mut(&key) {
            if resource.kind == POOL {
                nodes::end_surge(resource);
            }
            if !is_through {
                resource.hidden.remove("targetVersion");
                continue;
            }
            settle_version(resource);
            if resource.kind == POOL {
                nodes::follow_count(resource);
            }
        }
    }
}

/// The cluster a fleet member stands for.
fn member_cluster(azure: &Azure, member: &ArmId) -> Option<ArmId> {
    if !member
        .type_path()
        .eq_ignore_ascii_case("Microsoft.ContainerService/fleets/members")
    {
        return None;
    }
    ArmId::parse(azure.state().resources.get(member)?.text("clusterResourceId"))
}

/// A pool has one more machine while it is upgraded.
pub fn surging(azure: &mut Azure, pool: &ArmId, verb: &str) {
    if verb == "upgrade"
        && let Some(pool) = azure
            .state
            .resources
            .get_mut(pool)
            .filter(|pool| pool.kind == POOL)
    {
        nodes::surge(pool);
    }
}

/// A cluster is being updated while it joins a fleet.
pub fn joining(azure: &mut Azure, member: &ArmId, verb: &str) {
    let cluster = member_cluster(azure, member).filter(|_| verb == "create");
    if let Some(cluster) = cluster.and_then(|id| azure.state.resources.get_mut(&id))
        && cluster.operation.is_none()
    {
        "Updating".clone_into(&mut cluster.state);
    }
}

pub fn joined(azure: &mut Azure, operation: &Operation) {
    let cluster = ArmId::parse(&operation.target_id).and_then(|member| member_cluster(azure, &member));
    if let Some(cluster) = cluster.and_then(|id| azure.state.resources.get_mut(&id))
        && cluster.operation.is_none()
        && cluster.state == "Updating"
    {
        "Succeeded".clone_into(&mut cluster.state);
    }
}

/// An upgrade that is over shows its version as the current one.
fn settle_version(resource: &mut Resource) {
    let property = if resource.kind == POOL {
        "currentOrchestratorVersion"
    } else {
        "currentKubernetesVersion"
    };
    if let Some(version) = resource.hidden.remove("targetVersion") {
        resource.properties_mut().insert(property.to_owned(), version);
    }
}

fn complete_maintenance(draft: &mut Draft<'_>) -> Result<(), ErrorResponse> {
    refused::check_maintenance_name(draft.id.name())?;
    let today = draft.now.strftime("%Y-%m-%d").to_string();
    if let Some(window) = draft
        .properties()
        .get_mut("maintenanceWindow")
        .and_then(Value::as_object_mut)
    {
        window.entry("utcOffset").or_insert_with(|| "+00:00".into());
        window.entry("startDate").or_insert_with(|| today.into());
    }
    Ok(())
}

fn present_maintenance(_: &Azure, _: &Resource, _: &View<'_>, document: &mut Map<String, Value>) {
    document.remove("type");
}

/// A value at a path of keys.
pub(crate) fn at<'a>(object: &'a Map<String, Value>, path: &[&str]) -> Option<&'a Value> {
    let (first, rest) = path.split_first()?;
    rest.iter()
        .try_fold(object.get(*first)?, |value, key| value.get(*key))
}

pub(crate) fn boolean(object: &Map<String, Value>, path: &[&str]) -> bool {
    at(object, path).and_then(Value::as_bool).unwrap_or(false)
}

/// Whether the service already behaved in a way it did not always: answers changed over the years.
pub(crate) fn since(now: jiff::Timestamp, year: i16, month: i8) -> bool {
    let date = now.to_zoned(jiff::tz::TimeZone::UTC).date();
    (date.year(), date.month()) >= (year, month)
}

pub(crate) fn is_preview(api: &str) -> bool {
    api.ends_with("preview")
}

pub(crate) fn running() -> Value {
    json!({"code": "Running"})
}
