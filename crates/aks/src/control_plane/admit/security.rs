//! The security profile: what its parts need, and that they are switched off rather than left out.

use serde_json::json;
use slipway_runtime::admission::field::{FieldError, Path};

use crate::api::{ControlPlaneClass, SecurityProfile};

pub fn validate(root: &Path, class: &ControlPlaneClass) -> Vec<FieldError> {
    let Some(profile) = &class.security_profile else {
        return Vec::new();
    };
    let path = root.child("securityProfile");
    let mut errors = Vec::new();
    if let Some(kms) = &profile.azure_key_vault_kms {
        let at = path.child("azureKeyVaultKms").child("keyVaultResourceID");
        let brings_identity = class
            .identity
            .as_ref()
            .is_some_and(|identity| identity.type_.as_deref() == Some("UserAssigned"));
        let access = kms.key_vault_network_access.as_deref().unwrap_or("Public");
        let vault = kms.key_vault_resource_id.as_deref().unwrap_or_default();
        let problem = if !brings_identity {
            Some(
                "Spec.SecurityProfile.AzureKeyVaultKms can be set only when Spec.Identity.Type is UserAssigned",
            )
        } else if access == "Private" && vault.is_empty() {
            Some(
                "Spec.SecurityProfile.AzureKeyVaultKms.KeyVaultResourceID cannot be empty when Spec.SecurityProfile.AzureKeyVaultKms.KeyVaultNetworkAccess is Private",
            )
        } else if access == "Public" && !vault.is_empty() {
            Some(
                "Spec.SecurityProfile.AzureKeyVaultKms.KeyVaultResourceID should be empty when Spec.SecurityProfile.AzureKeyVaultKms.KeyVaultNetworkAccess is Public",
            )
        } else {
            None
        };
        errors.extend(
            problem.map(|problem| FieldError::invalid(&at, json!(kms.key_vault_resource_id), problem)),
        );
        if !matches!(access, "Public" | "Private") {
            errors.push(FieldError::not_supported(
                &path.child("azureKeyVaultKms").child("keyVaultNetworkAccess"),
                access,
                &["Public", "Private"],
            ));
        }
    }
    let issuer = class
        .oidc_issuer_profile
        .as_ref()
        .and_then(|issuer| issuer.enabled)
        .unwrap_or(false);
    if let Some(workload) = &profile.workload_identity
        && !issuer
    {
        errors.push(FieldError::invalid(
            &path.child("workloadIdentity"),
            json!(workload),
            "Spec.SecurityProfile.WorkloadIdentity cannot be enabled when Spec.OIDCIssuerProfile is disabled",
        ));
    }
    errors
}

type Part = (&'static str, fn(&SecurityProfile) -> bool, &'static str);

const PARTS: &[Part] = &[
    (
        "azureKeyVaultKms",
        |profile| profile.azure_key_vault_kms.is_some(),
        "cannot unset Spec.SecurityProfile.AzureKeyVaultKms profile to disable the profile please set Spec.SecurityProfile.AzureKeyVaultKms.Enabled to false",
    ),
    (
        "workloadIdentity",
        |profile| profile.workload_identity.is_some(),
        "cannot unset Spec.SecurityProfile.WorkloadIdentity, to disable workloadIdentity please set Spec.SecurityProfile.WorkloadIdentity.Enabled to false",
    ),
    (
        "imageCleaner",
        |profile| profile.image_cleaner.is_some(),
        "cannot unset Spec.SecurityProfile.ImageCleaner, to disable imageCleaner please set Spec.SecurityProfile.ImageCleaner.Enabled to false",
    ),
    (
        "defender",
        |profile| profile.defender.is_some(),
        "cannot unset Spec.SecurityProfile.Defender, to disable defender please set Spec.SecurityProfile.Defender.SecurityMonitoring.Enabled to false",
    ),
];

pub fn validate_update(root: &Path, old: &ControlPlaneClass, new: &ControlPlaneClass) -> Vec<FieldError> {
    let Some(old) = &old.security_profile else {
        return Vec::new();
    };
    PARTS
        .iter()
        .filter(|(_, is_set, _)| is_set(old) && !new.security_profile.as_ref().is_some_and(is_set))
        .map(|(name, _, problem)| {
            FieldError::invalid(&root.child("securityProfile").child(name), json!(null), *problem)
        })
        .collect()
}
