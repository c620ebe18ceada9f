//! The fields of a pool.

use super::{Case, Step, plane};

const POOL: &str = "/agentPools/work";

const fn pool(field: &'static str, place: &'static str) -> Case {
    Case {
        kind: "AzureManagedMachinePool",
        object: "work",
        ..plane(field, POOL, place)
    }
}

/// A pool of spot machines.
const fn spot(field: &'static str, place: &'static str) -> Case {
    Case {
        object: "spot",
        resource: "/agentPools/spot",
        ..pool(field, place)
    }
}

pub const POOLS: &[Case] = &[
    pool("additionalTags{}", "/properties/tags/team")
    .set(Step::Sends(r#"{"additionalTags": {"team": "blue"}}"#, r#""blue""#))
    .change(Step::Sends(r#"{"additionalTags": {"team": "red"}}"#, r#""red""#))
    .unset(Step::Sends(r#"{"additionalTags": null}"#, "null")),
    pool("asoManagedClustersAgentPoolPatches[]", "/properties/upgradeSettings/maxSurge")
    .set(Step::Sends(r#"{"asoManagedClustersAgentPoolPatches": ["{\"spec\": {\"upgradeSettings\": {\"maxSurge\": \"33%\"}}}"]}"#, r#""33%""#))
    .change(Step::Sends(r#"{"asoManagedClustersAgentPoolPatches": ["{\"spec\": {\"upgradeSettings\": {\"maxSurge\": \"50%\"}}}"]}"#, r#""50%""#))
    .unset(Step::Sends(r#"{"asoManagedClustersAgentPoolPatches": null}"#, "null")),
    pool("nodeLabels{}", "/properties/nodeLabels/tier")
    .set(Step::Sends(r#"{"nodeLabels": {"tier": "web"}}"#, r#""web""#))
    .change(Step::Sends(r#"{"nodeLabels": {"tier": "data"}}"#, r#""data""#))
    .unset(Step::Sends(r#"{"nodeLabels": null}"#, "null")),
    pool("taints[].key", "/properties/nodeTaints")
    .set(Step::Sends(r#"{"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}"#, r#"["gpu=yes:NoSchedule"]"#))
    .change(Step::Sends(r#"{"taints": [{"key": "big", "value": "yes", "effect": "NoSchedule"}]}"#, r#"["big=yes:NoSchedule"]"#))
    .unset(Step::Sends(r#"{"taints": null}"#, "null")),
    pool("taints[].value", "/properties/nodeTaints")
    .set(Step::Sends(r#"{"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}"#, r#"["gpu=yes:NoSchedule"]"#))
    .change(Step::Sends(r#"{"taints": [{"key": "gpu", "value": "two", "effect": "NoSchedule"}]}"#, r#"["gpu=two:NoSchedule"]"#))
    .unset(Step::Sends(r#"{"taints": null}"#, "null")),
    pool("taints[].effect", "/properties/nodeTaints")
    .set(Step::Sends(r#"{"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}"#, r#"["gpu=yes:NoSchedule"]"#))
    .change(Step::Sends(r#"{"taints": [{"key": "gpu", "value": "yes", "effect": "NoExecute"}]}"#, r#"["gpu=yes:NoExecute"]"#))
    .unset(Step::Sends(r#"{"taints": null}"#, "null")),
    pool("scaleDownMode", "/properties/scaleDownMode")
    .set(Step::Sends(r#"{"scaleDownMode": "Deallocate"}"#, r#""Deallocate""#))
    .change(Step::Sends(r#"{"scaleDownMode": "Delete"}"#, r#""Delete""#))
    .unset(Step::Sends(r#"{"scaleDownMode": null}"#, r#""Delete""#)),
    pool("scaling.minSize", "/properties/minCount")
    .set(Step::Sends(r#"{"scaling": {"minSize": 1, "maxSize": 5}}"#, "1"))
    .change(Step::Sends(r#"{"scaling": {"minSize": 2}}"#, "2"))
    .unset(Step::Sends(r#"{"scaling": null}"#, "null")),
    pool("scaling.maxSize", "/properties/maxCount")
    .set(Step::Sends(r#"{"scaling": {"minSize": 1, "maxSize": 5}}"#, "5"))
    .change(Step::Sends(r#"{"scaling": {"maxSize": 7}}"#, "7"))
    .unset(Step::Sends(r#"{"scaling": null}"#, "null")),
    pool("mode", "/properties/mode")
    .change(Step::Sends(r#"{"mode": "System"}"#, r#""System""#))
    .unset(Step::Sends(r#"{"mode": "User"}"#, r#""User""#)),
    pool("enableFIPS", "/properties/enableFIPS")
    .set(Step::Sends(r#"{"enableFIPS": true}"#, "true"))
    .change(Step::Refused(r#"{"enableFIPS": false}"#, "field is immutable"))
    .unset(Step::Refused(r#"{"enableFIPS": null}"#, "unable to set an empty value if it was already set")),
    pool("enableEncryptionAtHost", "/properties/enableEncryptionAtHost")
    .set(Step::Refused(r#"{"enableEncryptionAtHost": true}"#, "cannot be enabled on a node pool that exists")),
    pool("subnetName", "/properties/vnetSubnetID")
    .set(Step::Sends(r#"{"subnetName": "fleet"}"#, r#""/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/fleet/providers/Microsoft.Network/virtualNetworks/fleet/subnets/fleet""#))
    .change(Step::Refused(r#"{"subnetName": "other"}"#, "field is immutable"))
    .unset(Step::Refused(r#"{"subnetName": null}"#, "unable to set an empty value if it was already set")),
    spot("spotMaxPrice", "/properties/spotMaxPrice")
    .set(Step::Sends(r#"{"spotMaxPrice": "0.5"}"#, "0.5"))
    .change(Step::Sends(r#"{"spotMaxPrice": "0.75"}"#, "0.75"))
    .unset(Step::Sends(r#"{"spotMaxPrice": null}"#, "null")),
];
