//! The fields of a pool.

use super::{Case, Mutation, plane};

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
    .set(Mutation::Sends(r#"{"additionalTags": {"team": "blue"}}"#, r#""blue""#))
    .change(Mutation::Sends(r#"{"additionalTags": {"team": "red"}}"#, r#""red""#))
    .unset(Mutation::Sends(r#"{"additionalTags": null}"#, "null")),
    pool("asoManagedClustersAgentPoolPatches[]", "/properties/upgradeSettings/maxSurge")
    .set(Mutation::Sends(r#"{"asoManagedClustersAgentPoolPatches": ["{\"spec\": {\"upgradeSettings\": {\"maxSurge\": \"33%\"}}}"]}"#, r#""33%""#))
    .change(Mutation::Sends(r#"{"asoManagedClustersAgentPoolPatches": ["{\"spec\": {\"upgradeSettings\": {\"maxSurge\": \"50%\"}}}"]}"#, r#""50%""#))
    .unset(Mutation::Sends(r#"{"asoManagedClustersAgentPoolPatches": null}"#, "null")),
    pool("nodeLabels{}", "/properties/nodeLabels/tier")
    .set(Mutation::Sends(r#"{"nodeLabels": {"tier": "web"}}"#, r#""web""#))
    .change(Mutation::Sends(r#"{"nodeLabels": {"tier": "data"}}"#, r#""data""#))
    .unset(Mutation::Sends(r#"{"nodeLabels": null}"#, "null")),
    pool("taints[].key", "/properties/nodeTaints")
    .set(Mutation::Sends(r#"{"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}"#, r#"["gpu=yes:NoSchedule"]"#))
    .change(Mutation::Sends(r#"{"taints": [{"key": "big", "value": "yes", "effect": "NoSchedule"}]}"#, r#"["big=yes:NoSchedule"]"#))
    .unset(Mutation::Sends(r#"{"taints": null}"#, "null")),
    pool("taints[].value", "/properties/nodeTaints")
    .set(Mutation::Sends(r#"{"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}"#, r#"["gpu=yes:NoSchedule"]"#))
    .change(Mutation::Sends(r#"{"taints": [{"key": "gpu", "value": "two", "effect": "NoSchedule"}]}"#, r#"["gpu=two:NoSchedule"]"#))
    .unset(Mutation::Sends(r#"{"taints": null}"#, "null")),
    pool("taints[].effect", "/properties/nodeTaints")
    .set(Mutation::Sends(r#"{"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}"#, r#"["gpu=yes:NoSchedule"]"#))
    .change(Mutation::Sends(r#"{"taints": [{"key": "gpu", "value": "yes", "effect": "NoExecute"}]}"#, r#"["gpu=yes:NoExecute"]"#))
    .unset(Mutation::Sends(r#"{"taints": null}"#, "null")),
    pool("scaleDownMode", "/properties/scaleDownMode")
    .set(Mutation::Sends(r#"{"scaleDownMode": "Deallocate"}"#, r#""Deallocate""#))
    .change(Mutation::Sends(r#"{"scaleDownMode": "Delete"}"#, r#""Delete""#))
    .unset(Mutation::Sends(r#"{"scaleDownMode": null}"#, r#""Delete""#)),
    pool("scaling.minSize", "/properties/minCount")
    .set(Mutation::Sends(r#"{"scaling": {"minSize": 1, "maxSize": 5}}"#, "1"))
    .change(Mutation::Sends(r#"{"scaling": {"minSize": 2}}"#, "2"))
    .unset(Mutation::Sends(r#"{"scaling": null}"#, "null")),
    pool("scaling.maxSize", "/properties/maxCount")
    .set(Mutation::Sends(r#"{"scaling": {"minSize": 1, "maxSize": 5}}"#, "5"))
    .change(Mutation::Sends(r#"{"scaling": {"maxSize": 7}}"#, "7"))
    .unset(Mutation::Sends(r#"{"scaling": null}"#, "null")),
    pool("mode", "/properties/mode")
    .change(Mutation::Sends(r#"{"mode": "System"}"#, r#""System""#))
    .unset(Mutation::Sends(r#"{"mode": "User"}"#, r#""User""#)),
    pool("enableFIPS", "/properties/enableFIPS")
    .set(Mutation::Sends(r#"{"enableFIPS": true}"#, "true"))
    .change(Mutation::Refused(r#"{"enableFIPS": false}"#, "field is immutable"))
    .unset(Mutation::Refused(r#"{"enableFIPS": null}"#, "unable to set an empty value if it was already set")),
    pool("enableEncryptionAtHost", "/properties/enableEncryptionAtHost")
    .set(Mutation::Refused(r#"{"enableEncryptionAtHost": true}"#, "cannot be enabled on a node pool that exists")),
    pool("subnetName", "/properties/vnetSubnetID")
    .set(Mutation::Sends(r#"{"subnetName": "fleet"}"#, r#""/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/fleet/providers/Microsoft.Network/virtualNetworks/fleet/subnets/fleet""#))
    .change(Mutation::Refused(r#"{"subnetName": "other"}"#, "field is immutable"))
    .unset(Mutation::Refused(r#"{"subnetName": null}"#, "unable to set an empty value if it was already set")),
    spot("spotMaxPrice", "/properties/spotMaxPrice")
    .set(Mutation::Sends(r#"{"spotMaxPrice": "0.5"}"#, "0.5"))
    .change(Mutation::Sends(r#"{"spotMaxPrice": "0.75"}"#, "0.75"))
    .unset(Mutation::Sends(r#"{"spotMaxPrice": null}"#, "null")),
];
