//! A control plane's own fields: what is plain, the autoscaler, who signs in, and security.

use super::{CLUSTER, Case, Mutation, plane};

const IDENTITY: &str = r#"{"identity": {"type": "UserAssigned", "userAssignedIdentityResourceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/ids/providers/Microsoft.ManagedIdentity/userAssignedIdentities/one"}}"#;

pub const PLAIN: &[Case] = &[
    plane("additionalTags{}", CLUSTER, "/tags/team")
        .set(Mutation::Sends(r#"{"additionalTags": {"team": "blue"}}"#, r#""blue""#))
        .change(Mutation::Sends(r#"{"additionalTags": {"team": "red"}}"#, r#""red""#))
        .unset(Mutation::Sends(r#"{"additionalTags": null}"#, "null")),
    plane(
        "asoManagedClusterPatches[]",
        CLUSTER,
        "/properties/storageProfile/blobCSIDriver/enabled",
    )
    .set(Mutation::Sends(
        r#"{"asoManagedClusterPatches": ["{\"spec\": {\"storageProfile\": {\"blobCSIDriver\": {\"enabled\": true}}}}"]}"#,
        "true",
    ))
    .change(Mutation::Sends(
        r#"{"asoManagedClusterPatches": ["{\"spec\": {\"storageProfile\": {\"blobCSIDriver\": {\"enabled\": false}}}}"]}"#,
        "false",
    ))
    .unset(Mutation::Sends(r#"{"asoManagedClusterPatches": null}"#, "null")),
    plane("sku.tier", CLUSTER, "/sku/tier")
        .set(Mutation::Sends(r#"{"sku": {"tier": "Standard"}}"#, r#""Standard""#))
        .change(Mutation::Sends(r#"{"sku": {"tier": "Premium"}}"#, r#""Premium""#))
        .unset(Mutation::Sends(r#"{"sku": null}"#, r#""Free""#)),
    plane(
        "addonProfiles[].config{}",
        CLUSTER,
        "/properties/addonProfiles/azurepolicy/config/version",
    )
    .beside(r#"{"addonProfiles": [{"name": "azurepolicy", "enabled": true}]}"#)
    .set(Mutation::Sends(
        r#"{"addonProfiles": [{"name": "azurepolicy", "enabled": true, "config": {"version": "v1"}}]}"#,
        r#""v1""#,
    ))
    .change(Mutation::Sends(
        r#"{"addonProfiles": [{"name": "azurepolicy", "enabled": true, "config": {"version": "v2"}}]}"#,
        r#""v2""#,
    ))
    .unset(Mutation::Sends(
        r#"{"addonProfiles": [{"name": "azurepolicy", "enabled": true}]}"#,
        "null",
    )),
    plane(
        "addonProfiles[].enabled",
        CLUSTER,
        "/properties/addonProfiles/azurepolicy/enabled",
    )
    .change(Mutation::Sends(
        r#"{"addonProfiles": [{"name": "azurepolicy", "enabled": false}]}"#,
        "false",
    ))
    .unset(Mutation::Refused(
        r#"{"addonProfiles": null}"#,
        "cannot remove addonProfile azurepolicy",
    )),
    plane("version", CLUSTER, "/properties/kubernetesVersion")
        .change(Mutation::Sends(r#"{"version": "v1.33.5"}"#, r#""1.33.5""#))
        .unset(Mutation::Refused(r#"{"version": "v1.33.3"}"#, "cannot be downgraded")),
    plane(
        "autoUpgradeProfile.upgradeChannel",
        CLUSTER,
        "/properties/autoUpgradeProfile/upgradeChannel",
    )
    .set(Mutation::Sends(
        r#"{"autoUpgradeProfile": {"upgradeChannel": "patch"}}"#,
        r#""patch""#,
    ))
    .change(Mutation::Sends(
        r#"{"autoUpgradeProfile": {"upgradeChannel": "none"}}"#,
        r#""none""#,
    ))
    .unset(Mutation::Refused(
        r#"{"autoUpgradeProfile": null}"#,
        "to disable auto upgrades set the channel to none",
    )),
    plane("enablePreviewFeatures", CLUSTER, "?api-version")
        .set(Mutation::Sends(
            r#"{"enablePreviewFeatures": true, "additionalTags": {"preview": "1"}}"#,
            r#""2024-04-02-preview""#,
        ))
        .change(Mutation::Sends(
            r#"{"enablePreviewFeatures": false, "additionalTags": {"preview": "2"}}"#,
            r#""2024-09-01""#,
        ))
        .unset(Mutation::Sends(
            r#"{"enablePreviewFeatures": null, "additionalTags": {"preview": null}}"#,
            r#""2024-09-01""#,
        )),
    plane(
        "kubeletUserAssignedIdentity",
        CLUSTER,
        "/properties/identityProfile/kubeletidentity/resourceId",
    )
    .beside(IDENTITY)
    .set(Mutation::Sends(r#"{"kubeletUserAssignedIdentity": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/ids/providers/Microsoft.ManagedIdentity/userAssignedIdentities/kubelet"}"#, r#""/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/ids/providers/Microsoft.ManagedIdentity/userAssignedIdentities/kubelet""#))
    .change(Mutation::Sends(r#"{"kubeletUserAssignedIdentity": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/ids/providers/Microsoft.ManagedIdentity/userAssignedIdentities/other"}"#, r#""/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/ids/providers/Microsoft.ManagedIdentity/userAssignedIdentities/other""#))
    .unset(Mutation::Sends(r#"{"kubeletUserAssignedIdentity": null}"#, "null")),
];

macro_rules! autoscaler {
    ($($field:literal, $flag:literal, $first:literal, $second:literal, $default:literal;)*) => {
        &[$(
            plane(
                concat!("autoscalerProfile.", $field),
                CLUSTER,
                concat!("/properties/autoScalerProfile/", $flag),
            )
            .beside(r#"{"autoscalerProfile": {}}"#)
            .set(Mutation::Sends(
                concat!(r#"{"autoscalerProfile": {""#, $field, r#"": ""#, $first, r#""}}"#),
                concat!("\"", $first, "\""),
            ))
            .change(Mutation::Sends(
                concat!(r#"{"autoscalerProfile": {""#, $field, r#"": ""#, $second, r#""}}"#),
                concat!("\"", $second, "\""),
            ))
            .unset(Mutation::Sends(
                concat!(r#"{"autoscalerProfile": {""#, $field, r#"": null}}"#),
                concat!("\"", $default, "\""),
            )),
        )*]
    };
}

pub const AUTOSCALER: &[Case] = autoscaler! {
    "balanceSimilarNodeGroups", "balance-similar-node-groups", "true", "false", "false";
    "expander", "expander", "least-waste", "priority", "random";
    "maxEmptyBulkDelete", "max-empty-bulk-delete", "20", "30", "10";
    "maxGracefulTerminationSec", "max-graceful-termination-sec", "300", "900", "600";
    "maxNodeProvisionTime", "max-node-provision-time", "20m", "30m", "15m";
    "maxTotalUnreadyPercentage", "max-total-unready-percentage", "30", "60", "45";
    "newPodScaleUpDelay", "new-pod-scale-up-delay", "10s", "20s", "0s";
    "okTotalUnreadyCount", "ok-total-unready-count", "5", "7", "3";
    "scaleDownDelayAfterAdd", "scale-down-delay-after-add", "20m", "30m", "10m";
    "scaleDownDelayAfterDelete", "scale-down-delay-after-delete", "20s", "30s", "10s";
    "scaleDownDelayAfterFailure", "scale-down-delay-after-failure", "5m", "7m", "3m";
    "scaleDownUnneededTime", "scale-down-unneeded-time", "15m", "20m", "10m";
    "scaleDownUnreadyTime", "scale-down-unready-time", "30m", "40m", "20m";
    "scaleDownUtilizationThreshold", "scale-down-utilization-threshold", "0.4", "0.6", "0.5";
    "scanInterval", "scan-interval", "20s", "30s", "10s";
    "skipNodesWithLocalStorage", "skip-nodes-with-local-storage", "true", "false", "false";
    "skipNodesWithSystemPods", "skip-nodes-with-system-pods", "false", "true", "true";
};

pub const SIGN_IN: &[Case] = &[
    plane(
        "aadProfile.adminGroupObjectIDs[]",
        CLUSTER,
        "/properties/aadProfile/adminGroupObjectIDs",
    )
    .set(Mutation::Sends(
        r#"{"aadProfile": {"managed": true, "adminGroupObjectIDs": ["33333333-3333-3333-3333-333333333333"]}}"#,
        r#"["33333333-3333-3333-3333-333333333333"]"#,
    ))
    .change(Mutation::Sends(
        r#"{"aadProfile": {"adminGroupObjectIDs": ["44444444-4444-4444-4444-444444444444"]}}"#,
        r#"["44444444-4444-4444-4444-444444444444"]"#,
    ))
    .unset(Mutation::Refused(r#"{"aadProfile": null}"#, "field cannot be nil, cannot disable AADProfile")),
    plane("disableLocalAccounts", CLUSTER, "/properties/disableLocalAccounts")
        .set(Mutation::Sends(r#"{"disableLocalAccounts": true}"#, "true"))
        .change(Mutation::Refused(r#"{"disableLocalAccounts": false}"#, "field is immutable"))
        .unset(Mutation::Refused(
            r#"{"disableLocalAccounts": null}"#,
            "unable to set an empty value if it was already set",
        )),
    plane("oidcIssuerProfile.enabled", CLUSTER, "/properties/oidcIssuerProfile/enabled")
        .set(Mutation::Sends(r#"{"oidcIssuerProfile": {"enabled": true}}"#, "true"))
        .change(Mutation::Refused(
            r#"{"oidcIssuerProfile": {"enabled": false}}"#,
            "cannot be disabled",
        ))
        .unset(Mutation::Refused(
            r#"{"oidcIssuerProfile": {"enabled": null}}"#,
            "cannot be disabled",
        )),
    plane(
        "apiServerAccessProfile.authorizedIPRanges[]",
        CLUSTER,
        "/properties/apiServerAccessProfile/authorizedIPRanges",
    )
    .set(Mutation::Sends(
        r#"{"apiServerAccessProfile": {"authorizedIPRanges": ["203.0.113.0/24"]}}"#,
        r#"["203.0.113.0/24"]"#,
    ))
    .change(Mutation::Sends(
        r#"{"apiServerAccessProfile": {"authorizedIPRanges": ["198.51.100.0/24", "203.0.113.7/32"]}}"#,
        r#"["198.51.100.0/24", "203.0.113.7/32"]"#,
    ))
    .unset(Mutation::Sends(r#"{"apiServerAccessProfile": {"authorizedIPRanges": null}}"#, "null")),
    plane("identity.type", CLUSTER, "/identity/type")
        .set(Mutation::Sends(IDENTITY, r#""UserAssigned""#))
        .change(Mutation::Sends(
            r#"{"identity": {"type": "SystemAssigned", "userAssignedIdentityResourceID": null}}"#,
            r#""SystemAssigned""#,
        ))
        .unset(Mutation::Sends(r#"{"identity": null}"#, r#""SystemAssigned""#)),
    plane(
        "identity.userAssignedIdentityResourceID",
        CLUSTER,
        "/identity/userAssignedIdentities",
    )
    .set(Mutation::Sends(IDENTITY, r#"{"/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/ids/providers/Microsoft.ManagedIdentity/userAssignedIdentities/one": {}}"#))
    .change(Mutation::Sends(r#"{"identity": {"userAssignedIdentityResourceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/ids/providers/Microsoft.ManagedIdentity/userAssignedIdentities/two"}}"#, r#"{"/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/ids/providers/Microsoft.ManagedIdentity/userAssignedIdentities/two": {}}"#))
    .unset(Mutation::Sends(
        r#"{"identity": {"type": "SystemAssigned", "userAssignedIdentityResourceID": null}}"#,
        "null",
    )),
];

const KMS: &str = r#"{"identity": {"type": "UserAssigned", "userAssignedIdentityResourceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/ids/providers/Microsoft.ManagedIdentity/userAssignedIdentities/one"}, "securityProfile": {"azureKeyVaultKms": {"enabled": true, "keyID": "https://vault.vault.azure.net/keys/a/1"}}}"#;
const VAULT: &str = r#"{"securityProfile": {"azureKeyVaultKms": {"keyVaultNetworkAccess": "Private", "keyVaultResourceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/vaults/providers/Microsoft.KeyVault/vaults/one"}}}"#;
const DEFENDER: &str = r#"{"securityProfile": {"defender": {"logAnalyticsWorkspaceResourceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/logs/providers/Microsoft.OperationalInsights/workspaces/one", "securityMonitoring": {"enabled": true}}}}"#;

pub const SECURITY: &[Case] = &[
    plane(
        "securityProfile.azureKeyVaultKms.enabled",
        CLUSTER,
        "/properties/securityProfile/azureKeyVaultKms/enabled",
    )
    .set(Mutation::Sends(KMS, "true"))
    .change(Mutation::Sends(
        r#"{"securityProfile": {"azureKeyVaultKms": {"enabled": false}}}"#,
        "false",
    ))
    .unset(Mutation::Refused(
        r#"{"securityProfile": {"azureKeyVaultKms": null}}"#,
        "to disable the profile please set Spec.SecurityProfile.AzureKeyVaultKms.Enabled to false",
    )),
    plane(
        "securityProfile.azureKeyVaultKms.keyID",
        CLUSTER,
        "/properties/securityProfile/azureKeyVaultKms/keyId",
    )
    .beside(KMS)
    .change(Mutation::Sends(
        r#"{"securityProfile": {"azureKeyVaultKms": {"keyID": "https://vault.vault.azure.net/keys/b/1"}}}"#,
        r#""https://vault.vault.azure.net/keys/b/1""#,
    )),
    plane(
        "securityProfile.azureKeyVaultKms.keyVaultNetworkAccess",
        CLUSTER,
        "/properties/securityProfile/azureKeyVaultKms/keyVaultNetworkAccess",
    )
    .set(Mutation::Sends(VAULT, r#""Private""#))
    .change(Mutation::Sends(
        r#"{"securityProfile": {"azureKeyVaultKms": {"keyVaultNetworkAccess": "Public", "keyVaultResourceID": null}}}"#,
        r#""Public""#,
    ))
    .unset(Mutation::Sends(
        r#"{"securityProfile": {"azureKeyVaultKms": {"keyVaultNetworkAccess": null}}}"#,
        r#""Public""#,
    )),
    plane(
        "securityProfile.azureKeyVaultKms.keyVaultResourceID",
        CLUSTER,
        "/properties/securityProfile/azureKeyVaultKms/keyVaultResourceId",
    )
    .set(Mutation::Sends(VAULT, r#""/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/vaults/providers/Microsoft.KeyVault/vaults/one""#))
    .change(Mutation::Sends(r#"{"securityProfile": {"azureKeyVaultKms": {"keyVaultResourceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/vaults/providers/Microsoft.KeyVault/vaults/two"}}}"#, r#""/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/vaults/providers/Microsoft.KeyVault/vaults/two""#))
    .unset(Mutation::Sends(
        r#"{"securityProfile": {"azureKeyVaultKms": {"keyVaultNetworkAccess": "Public", "keyVaultResourceID": null}}}"#,
        "null",
    )),
    plane(
        "securityProfile.defender.logAnalyticsWorkspaceResourceID",
        CLUSTER,
        "/properties/securityProfile/defender/logAnalyticsWorkspaceResourceId",
    )
    .set(Mutation::Sends(DEFENDER, r#""/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/logs/providers/Microsoft.OperationalInsights/workspaces/one""#))
    .change(Mutation::Sends(r#"{"securityProfile": {"defender": {"logAnalyticsWorkspaceResourceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/logs/providers/Microsoft.OperationalInsights/workspaces/two"}}}"#, r#""/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/logs/providers/Microsoft.OperationalInsights/workspaces/two""#))
    .unset(Mutation::Refused(
        r#"{"securityProfile": {"defender": null}}"#,
        "to disable defender please set Spec.SecurityProfile.Defender.SecurityMonitoring.Enabled to false",
    )),
    plane(
        "securityProfile.defender.securityMonitoring.enabled",
        CLUSTER,
        "/properties/securityProfile/defender/securityMonitoring/enabled",
    )
    .change(Mutation::Sends(
        r#"{"securityProfile": {"defender": {"securityMonitoring": {"enabled": false}}}}"#,
        "false",
    )),
    plane(
        "securityProfile.imageCleaner.enabled",
        CLUSTER,
        "/properties/securityProfile/imageCleaner/enabled",
    )
    .set(Mutation::Sends(
        r#"{"securityProfile": {"imageCleaner": {"enabled": true}}}"#,
        "true",
    ))
    .change(Mutation::Sends(
        r#"{"securityProfile": {"imageCleaner": {"enabled": false}}}"#,
        "false",
    ))
    .unset(Mutation::Refused(
        r#"{"securityProfile": {"imageCleaner": null}}"#,
        "to disable imageCleaner please set Spec.SecurityProfile.ImageCleaner.Enabled to false",
    )),
    plane(
        "securityProfile.imageCleaner.intervalHours",
        CLUSTER,
        "/properties/securityProfile/imageCleaner/intervalHours",
    )
    .beside(r#"{"securityProfile": {"imageCleaner": {"enabled": true}}}"#)
    .set(Mutation::Sends(
        r#"{"securityProfile": {"imageCleaner": {"intervalHours": 48}}}"#,
        "48",
    ))
    .change(Mutation::Sends(
        r#"{"securityProfile": {"imageCleaner": {"intervalHours": 72}}}"#,
        "72",
    ))
    .unset(Mutation::Sends(
        r#"{"securityProfile": {"imageCleaner": {"intervalHours": null}}}"#,
        "null",
    )),
    plane(
        "securityProfile.workloadIdentity.enabled",
        CLUSTER,
        "/properties/securityProfile/workloadIdentity/enabled",
    )
    .beside(r#"{"oidcIssuerProfile": {"enabled": true}}"#)
    .set(Mutation::Sends(
        r#"{"securityProfile": {"workloadIdentity": {"enabled": true}}}"#,
        "true",
    ))
    .change(Mutation::Sends(
        r#"{"securityProfile": {"workloadIdentity": {"enabled": false}}}"#,
        "false",
    ))
    .unset(Mutation::Refused(
        r#"{"securityProfile": {"workloadIdentity": null}}"#,
        "to disable workloadIdentity please set Spec.SecurityProfile.WorkloadIdentity.Enabled to false",
    )),
];
