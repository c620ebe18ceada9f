//! What Azure Policy does to a cluster by itself: an assignment of the subscription enables the add-on, in a write of
//! its own that nobody asked the cluster's owner about.

use serde_json::json;
use uuid::Uuid;

use super::POOL;
use crate::{azure::Azure, store::object_mut};

/// Enables the add-on on a cluster; false when there is no such cluster.
pub fn enable_addon(azure: &mut Azure, cluster: &str) -> bool {
    let key = cluster.to_ascii_lowercase();
    let Some(resource) = azure.state.resources.by_key_mut(&key) else {
        return false;
    };
    let (name, group) = (
        resource.name().to_owned(),
        resource.text("nodeResourceGroup").to_owned(),
    );
    let subscription = resource.arm_id().subscription.clone();
    let made_up = |what: &str| Uuid::new_v5(&Uuid::NAMESPACE_OID, format!("{key}/policy/{what}").as_bytes());
    let identity = json!({
        "resourceId": format!(
            "/subscriptions/{subscription}/resourcegroups/{group}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/azurepolicy-{name}"
        ),
        "clientId": made_up("client").to_string(),
        "objectId": made_up("object").to_string(),
    });
    object_mut(resource.properties_mut(), "addonProfiles").insert(
        "azurepolicy".to_owned(),
        json!({"enabled": true, "config": null, "identity": identity}),
    );
    // It writes back the whole cluster as it read it, and with it what was only understood before.
    let pools: Vec<String> = azure
        .state
        .resources
        .of_kind(&key, POOL)
        .into_iter()
        .map(|pool| pool.id.to_ascii_lowercase())
        .collect();
    for pool in pools {
        if let Some(pool) = azure.state.resources.by_key_mut(&pool) {
            pool.properties_mut()
                .entry("enableAutoScaling")
                .or_insert_with(|| false.into());
        }
    }
    azure.note_change(key);
    true
}
