//! Answers that are worked out rather than kept: upgrade profiles, offered versions, machines, scale sets.

use http::Method;
use serde_json::{Value, json};

use super::{CLUSTER, POOL, credentials, nodes, versions};
use crate::{
    arm::Context,
    arm_id::ArmId,
    azure::Azure,
    collection,
    error_response::ErrorResponse,
    settings::Settings,
    wire::{Request, Response},
};

/// GET of something that only looks like a resource.
pub fn computed(azure: &Azure, id: &ArmId, context: &Context<'_>) -> Result<Option<Response>, ErrorResponse> {
    if context.request.method != Method::GET {
        return Ok(None);
    }
    if id.providers.is_empty() && id.group.is_none() {
        let body = collection::subscription(&id.subscription, &azure.settings.tenant);
        return Ok(Some(Response::json(200, &body)));
    }
    let path = id.type_path().to_ascii_lowercase();
    let above = id.parent();
    let found = match path.as_str() {
        "microsoft.containerservice/managedclusters/upgradeprofiles" => {
            above.and_then(|cluster| upgrade_profile(azure, &cluster))
        }
        "microsoft.containerservice/managedclusters/agentpools/upgradeprofiles" => {
            above.and_then(|pool| pool_upgrade_profile(azure, &pool))
        }
        "microsoft.containerservice/managedclusters/accessprofiles" => {
            return credentials::access_profile(azure, id, context).map(Some);
        }
        "microsoft.containerservice/managedclusters/agentpools/machines" => above.and_then(|pool| {
            nodes::pool_machines(azure, &pool)
                .into_iter()
                .find(|machine| machine["name"].as_str() == Some(id.name()))
        }),
        "microsoft.compute/virtualmachinescalesets" => nodes::scale_set(azure, id),
        "microsoft.compute/virtualmachinescalesets/virtualmachines" => above.and_then(|set| {
            nodes::machines(azure, &set, false)
                .into_iter()
                .find(|machine| machine["instanceId"].as_str() == Some(id.name()))
        }),
        "microsoft.resourcehealth/availabilitystatuses" => id.scope().and_then(|scope| {
            azure.state().resources.get(&scope).map(|resource| {
                json!({
                    "id": id.to_string(),
                    "name": "current",
                    "type": "Microsoft.ResourceHealth/AvailabilityStatuses",
                    "location": resource.location(),
                    "properties": {
                        "availabilityState": "Available",
                        "title": "Available",
                        "summary": "There aren't any known Azure platform problems affecting this resource.",
                        "reasonType": "",
                        "occuredTime": resource.changed.to_string(),
                        "reasonChronicity": "Persistent",
                        "reportedTime": context.now.to_string(),
                    },
                })
            })
        }),
        "microsoft.features/providers/features"
        | "microsoft.features/featureproviders/subscriptionfeatureregistrations" => Some(json!({
            "id": id.to_string(),
            "name": id.name(),
            "type": "Microsoft.Features/providers/features",
            "properties": {"state": "Registered"},
        })),
        _ => return Ok(None),
    };
    match found {
        Some(found) => Ok(Some(Response::json(200, &found))),
        None => Err(ErrorResponse::resource_not_found(id)),
    }
}

/// LIST of what is not kept as resources.
pub fn computed_list(azure: &Azure, parent: &ArmId, path: &str, request: &Request) -> Option<Vec<Value>> {
    let settings = &azure.settings;
    match path.to_ascii_lowercase().as_str() {
        "microsoft.compute/virtualmachinescalesets" => Some(match &parent.group {
            Some(_) => nodes::scale_sets(azure, parent),
            None => azure
                .state()
                .resources
                .of_kind(&parent.key(), CLUSTER)
                .into_iter()
                .flat_map(|cluster| {
                    let group =
                        ArmId::resource_group(&parent.subscription, cluster.text("nodeResourceGroup"));
                    nodes::scale_sets(azure, &group)
                })
                .collect(),
        }),
        "microsoft.compute/virtualmachinescalesets/virtualmachines" => {
            let viewed = request.parameter("$expand").as_deref() == Some("instanceView");
            Some(nodes::machines(azure, parent, viewed))
        }
        "microsoft.containerservice/managedclusters/agentpools/machines" => {
            Some(nodes::pool_machines(azure, parent))
        }
        "microsoft.containerservice/managedclusters/availableagentpoolversions" => {
            let current = azure
                .state()
                .resources
                .get(parent)
                .map(|cluster| cluster.text("currentKubernetesVersion").to_owned())
                .unwrap_or_default();
            Some(
                versions::offered(settings)
                    .into_iter()
                    .filter(|version| versions::check_skew(version, &current).is_ok())
                    .map(|version| json!({"kubernetesVersion": version}))
                    .collect(),
            )
        }
        _ => None,
    }
}

fn upgrade_profile(azure: &Azure, id: &ArmId) -> Option<Value> {
    let cluster = azure.state().resources.get(id)?;
    let current = cluster.text("currentKubernetesVersion");
    let upgrades = shown_upgrades(&azure.settings, current);
    let pools: Vec<Value> = azure
        .state()
        .resources
        .of_kind(&id.key(), POOL)
        .into_iter()
        .map(|pool| {
            json!({
                "kubernetesVersion": pool.text("currentOrchestratorVersion"),
                "name": pool.name(),
                "osType": pool.text("osType"),
                "upgrades": upgrades,
            })
        })
        .collect();
    Some(json!({
        "id": format!("{}/upgradeprofiles/default", id.aks_spelling()),
        "name": "default",
        "type": "Microsoft.ContainerService/managedClusters/upgradeprofiles",
        "properties": {
            "controlPlaneProfile": {
                "kubernetesVersion": current,
                "osType": "Linux",
                "upgrades": upgrades,
            },
            "agentPoolProfiles": pools,
        },
    }))
}

fn pool_upgrade_profile(azure: &Azure, id: &ArmId) -> Option<Value> {
    let pool = azure.state().resources.get(id)?;
    let current = pool.text("currentOrchestratorVersion");
    Some(json!({
        "id": format!("{}/upgradeprofiles/default", id.aks_spelling()),
        "name": "default",
        "type": "Microsoft.ContainerService/managedClusters/agentPools/upgradeProfiles",
        "properties": {
            "kubernetesVersion": current,
            "osType": pool.text("osType"),
            "latestNodeImageVersion": pool.text("nodeImageVersion"),
            "upgrades": shown_upgrades(&azure.settings, current),
        },
    }))
}

fn shown_upgrades(settings: &Settings, current: &str) -> Vec<Value> {
    versions::upgrades(settings, current)
        .into_iter()
        .map(|version| json!({"kubernetesVersion": version, "isPreview": false}))
        .collect()
}

/// `locations/{location}/kubernetesVersions`: minors with their patches and where each can go.
pub fn offered_versions(settings: &Settings) -> Value {
    let mut minors: Vec<String> = versions::offered(settings)
        .iter()
        .map(|version| versions::minor(version))
        .collect();
    minors.dedup();
    let values: Vec<Value> = minors
        .into_iter()
        .map(|minor| {
            let patches: serde_json::Map<String, Value> = versions::offered(settings)
                .into_iter()
                .filter(|version| versions::minor(version) == minor)
                .map(|version| {
                    let upgrades = versions::upgrades(settings, &version);
                    (version, json!({"upgrades": upgrades}))
                })
                .collect();
            let is_default = minor == settings.default_kubernetes_version;
            let mut value = json!({
                "version": minor,
                "capabilities": {"supportPlan": ["KubernetesOfficial"]},
                "patchVersions": patches,
            });
            if is_default {
                value["isDefault"] = true.into();
            }
            value
        })
        .collect();
    json!({"values": values})
}
