//! How a managed cluster is shown: every API version, and the service over the years, leave something out.

use serde_json::{Map, Value, json};

use super::{POOL, is_preview, pool, since};
use crate::{
    azure::Azure,
    kinds::View,
    store::{Resource, object_mut},
};

pub fn present(azure: &Azure, resource: &Resource, view: &View<'_>, document: &mut Map<String, Value>) {
    document.insert("id".to_owned(), resource.arm_id().aks_spelling().into());
    document.insert(
        "type".to_owned(),
        "Microsoft.ContainerService/ManagedClusters".into(),
    );
    let pools: Vec<Value> = azure
        .state()
        .resources
        .of_kind(&resource.id.to_ascii_lowercase(), POOL)
        .into_iter()
        .map(|pool| pool::profile(pool, view))
        .collect();
    let (api, preview) = (view.api, is_preview(view.api));
    let current = api >= "2025" || (preview && api >= "2024-04");
    if !current {
        document.remove("kind");
    }
    // A cluster that is only being created has none yet.
    if preview && api >= "2024-04" && !(view.written && resource.state == "Creating") {
        document.insert("eTag".to_owned(), resource.etag.clone().into());
    }
    let properties = object_mut(document, "properties");
    properties.insert("agentPoolProfiles".to_owned(), pools.into());
    let mut hide = |keys: &[&str], hidden: bool| {
        if hidden {
            for key in keys {
                properties.remove(*key);
            }
        }
    };
    hide(
        &[
            "currentKubernetesVersion",
            "securityProfile",
            "storageProfile",
            "oidcIssuerProfile",
            "workloadAutoScalerProfile",
        ],
        api < "2022",
    );
    hide(&["resourceUID", "supportPlan"], api < "2023-06");
    hide(&["metricsProfile"], api < "2023-11");
    hide(&["bootstrapProfile"], !current);
    hide(
        &["nodeProvisioningProfile"],
        !(api >= "2025" || (preview && api >= "2023-11")),
    );
    if api < "2023-06" {
        object_mut(properties, "autoUpgradeProfile").remove("nodeOSUpgradeChannel");
    }
    if api < "2025"
        && let Some(nodes) = properties
            .get_mut("nodeProvisioningProfile")
            .and_then(Value::as_object_mut)
    {
        nodes.remove("defaultNodePools");
    }
    if preview && api >= "2023-11" {
        let mut plugins = json!({"karpenter": {"enableV2": true}});
        if api >= "2024-04" {
            plugins["azure-monitor-metrics-ccp"] = json!({"enableV2": true});
            plugins["live-patching-controller"] = json!({"enableV2": true});
            if since(view.now, 2025, 1) {
                plugins["static-egress-controller"] = json!({"enableV2": true});
            }
        }
        if api >= "2025-10" {
            plugins["gpu-provisioner"] = json!({"enableV2": true});
            plugins["kubelet-serving-csr-approver"] = json!({"enableV2": true});
        }
        properties.insert("controlPlanePluginProfiles".to_owned(), plugins);
        if let Some(storage) = properties
            .get_mut("storageProfile")
            .and_then(Value::as_object_mut)
        {
            object_mut(storage, "diskCSIDriver")
                .entry("version")
                .or_insert_with(|| "v1".into());
        }
    }
    if preview && api >= "2025-10" {
        properties.entry("enableFIPS").or_insert_with(|| false.into());
        properties
            .entry("hostedSystemProfile")
            .or_insert_with(|| json!({"enabled": false}));
    }
    gate_network(properties, view);
}

fn gate_network(properties: &mut Map<String, Value>, view: &View<'_>) {
    let (api, preview) = (view.api, is_preview(view.api));
    let network = object_mut(properties, "networkProfile");
    if api < "2022" {
        for key in ["ipFamilies", "podCidrs", "serviceCidrs"] {
            network.remove(key);
        }
    }
    if api < "2023-06" {
        network
            .entry("dockerBridgeCidr")
            .or_insert_with(|| "172.17.0.1/16".into());
        if let Some(balancer) = network
            .get_mut("loadBalancerProfile")
            .and_then(Value::as_object_mut)
        {
            balancer.remove("backendPoolType");
        }
    }
    if api < "2023-11" && network.get("networkPolicy") == Some(&json!("none")) {
        network.remove("networkPolicy");
    }
    if preview && api >= "2024-04" && since(view.now, 2025, 1) {
        network
            .entry("podLinkLocalAccess")
            .or_insert_with(|| "IMDS".into());
    }
}
