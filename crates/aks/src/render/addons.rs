//! Fleet membership and cluster extensions.

use serde_json::{Value, json};

use super::{Facts, ids, set, text};
use crate::api::Extension;

pub fn fleet_member(facts: &Facts<'_>) -> Option<Value> {
    let member = facts.plane.spec.class.fleets_member.as_ref()?;
    let name = text(member.name.as_ref()).unwrap_or(facts.cluster_name);
    let mut spec = json!({
        "azureName": name,
        "owner": {"armId": ids::fleet(facts, member)},
        "clusterResourceReference": {"armId": ids::managed_cluster(facts)},
    });
    set(&mut spec, "group", text(member.group.as_ref()));
    Some(json!({
        "apiVersion": "containerservice.azure.com/v1api20230315preview",
        "kind": "FleetsMember",
        "metadata": {"name": name},
        "spec": spec,
    }))
}

pub fn extensions(facts: &Facts<'_>) -> Vec<Value> {
    facts
        .plane
        .spec
        .class
        .extensions
        .iter()
        .map(|extension| render(facts, extension))
        .collect()
}

fn render(facts: &Facts<'_>, extension: &Extension) -> Value {
    let mut spec = json!({
        "azureName": extension.name,
        "owner": {"armId": ids::managed_cluster(facts)},
        "extensionType": extension.extension_type,
        "autoUpgradeMinorVersion": extension.auto_upgrade_minor_version.unwrap_or(true),
    });
    set(&mut spec, "releaseTrain", text(extension.release_train.as_ref()));
    set(&mut spec, "version", text(extension.version.as_ref()));
    if !extension.configuration_settings.is_empty() {
        spec["configurationSettings"] = json!(extension.configuration_settings);
    }
    if let Some(plan) = &extension.plan {
        let mut body = json!({});
        set(&mut body, "name", text(plan.name.as_ref()));
        set(&mut body, "product", text(plan.product.as_ref()));
        set(&mut body, "promotionCode", text(plan.promotion_code.as_ref()));
        set(&mut body, "publisher", text(plan.publisher.as_ref()));
        set(&mut body, "version", text(plan.version.as_ref()));
        spec["plan"] = body;
    }
    if let Some(identity) = text(extension.identity.as_ref()) {
        spec["identity"] = json!({"type": identity});
    }
    if let Some(identity) = text(extension.aks_assigned_identity_type.as_ref()) {
        spec["aksAssignedIdentity"] = json!({"type": identity});
    }
    if let Some(scope) = &extension.scope {
        spec["scope"] = if scope.scope_type == "Namespace" {
            json!({"namespace": {"targetNamespace": scope.target_namespace}})
        } else {
            json!({"cluster": {"releaseNamespace": scope.release_namespace}})
        };
    }
    json!({
        "apiVersion": "kubernetesconfiguration.azure.com/v1api20241101",
        "kind": "Extension",
        "metadata": {"name": extension.name.to_lowercase()},
        "spec": spec,
    })
}
