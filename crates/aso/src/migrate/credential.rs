//! From an AzureClusterIdentity to the Secret that inline resources sign in with. Pure.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use serde_json::Value;
use slipway_runtime::ObjectKey;

/// The Secret that an identity refers to.
pub fn secret_of(identity: &Value) -> Option<ObjectKey> {
    let reference = &identity["spec"]["clientSecret"];
    let name = reference["name"].as_str().filter(|name| !name.is_empty())?;
    let own = identity["metadata"]["namespace"].as_str();
    Some(ObjectKey::new(reference["namespace"].as_str().or(own), name))
}

fn text<'a>(identity: &'a Value, field: &str) -> &'a str {
    identity["spec"][field].as_str().unwrap_or_default()
}

/// What the Secret holds. `secret` is what the identity refers to.
pub fn data(
    identity: &Value,
    subscription: &str,
    secret: Option<&BTreeMap<String, ByteString>>,
) -> Result<BTreeMap<String, ByteString>, String> {
    let name = identity["metadata"]["name"].as_str().unwrap_or_default();
    let from = |key: &str| secret.and_then(|data| data.get(key)).cloned();
    let need = |key: &str| {
        from(key).ok_or_else(|| {
            let place = secret_of(identity).map_or_else(|| "none".to_owned(), |key| key.to_string());
            format!("the Secret of AzureClusterIdentity {name} ({place}) has no {key}: nothing can be copied from it")
        })
    };
    let mut data = BTreeMap::new();
    let mut put = |key: &str, value: ByteString| drop(data.insert(key.to_owned(), value));
    let plain = |text: &str| ByteString(text.as_bytes().to_vec());
    match text(identity, "type") {
        "ServicePrincipal" | "ManualServicePrincipal" => put("AZURE_CLIENT_SECRET", need("clientSecret")?),
        "ServicePrincipalCertificate" if text(identity, "certPath").is_empty() => {
            put("AZURE_CLIENT_CERTIFICATE", need("clientSecret")?);
            if let Some(password) = from("password") {
                put("AZURE_CLIENT_CERTIFICATE_PASSWORD", password);
            }
        }
        "WorkloadIdentity" => put("AUTH_MODE", plain("workloadidentity")),
        "UserAssignedMSI" => put("AUTH_MODE", plain("podidentity")),
        "UserAssignedIdentityCredential" => {
            let path = text(identity, "userAssignedIdentityCredentialsPath");
            put("AZURE_USER_ASSIGNED_IDENTITY_CREDENTIALS", plain(path));
        }
        "ServicePrincipalCertificate" => {
            return Err(format!(
                "AzureClusterIdentity {name} reads its certificate from a file of the manager: put it into a Secret (clientSecret) first"
            ));
        }
        other => {
            return Err(format!(
                "AzureClusterIdentity {name} signs in by {other:?}, which is not known"
            ));
        }
    }
    put("AZURE_SUBSCRIPTION_ID", plain(subscription));
    put("AZURE_TENANT_ID", plain(text(identity, "tenantID")));
    put("AZURE_CLIENT_ID", plain(text(identity, "clientID")));
    Ok(data)
}

/// What has to be done in Azure so that the identity may be used by inline resources.
pub fn caveat(identity: &Value, cluster: &ObjectKey) -> Option<String> {
    let name = identity["metadata"]["name"].as_str().unwrap_or_default();
    let namespace = cluster.namespace().unwrap_or_default();
    match text(identity, "type") {
        "WorkloadIdentity" => Some(format!(
            "AzureClusterIdentity {name} is a workload identity: inline resources sign in as ServiceAccount aso-workload of namespace {namespace}, so \
             create it, and federate the identity with the subject system:serviceaccount:{namespace}:aso-workload (docs/aso.md, Whose identity)"
        )),
        "UserAssignedMSI" | "UserAssignedIdentityCredential" => Some(format!(
            "AzureClusterIdentity {name} is an identity of the manager, and inline resources of namespace {namespace} may use it only with \
             --aso-workload-identity=relaxed (docs/aso.md, Whose identity)"
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn identity(type_: &str, extra: &Value) -> Value {
        let mut spec = json!({"type": type_, "tenantID": "t", "clientID": "c", "clientSecret": {"name": "sp", "namespace": "ids"}});
        for (key, value) in extra.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        json!({"metadata": {"name": "id", "namespace": "default"}, "spec": spec})
    }

    fn made(identity: &Value) -> Result<BTreeMap<String, String>, String> {
        let secret: BTreeMap<String, ByteString> = [("clientSecret", "s3cret"), ("password", "p")]
            .map(|(key, value)| (key.to_owned(), ByteString(value.as_bytes().to_vec())))
            .into();
        let data = data(identity, "sub", Some(&secret))?;
        let text = |value: ByteString| String::from_utf8(value.0).unwrap();
        Ok(data.into_iter().map(|(key, value)| (key, text(value))).collect())
    }

    #[test]
    fn every_type_of_identity_becomes_a_secret_or_says_why_not() {
        for (type_, key, value) in [
            ("ServicePrincipal", "AZURE_CLIENT_SECRET", "s3cret"),
            ("ManualServicePrincipal", "AZURE_CLIENT_SECRET", "s3cret"),
            (
                "ServicePrincipalCertificate",
                "AZURE_CLIENT_CERTIFICATE",
                "s3cret",
            ),
            ("WorkloadIdentity", "AUTH_MODE", "workloadidentity"),
            ("UserAssignedMSI", "AUTH_MODE", "podidentity"),
        ] {
            let data = made(&identity(type_, &json!({}))).unwrap();
            assert_eq!(data[key], value, "{type_}");
            assert_eq!(
                (
                    data["AZURE_SUBSCRIPTION_ID"].as_str(),
                    data["AZURE_CLIENT_ID"].as_str()
                ),
                ("sub", "c")
            );
        }
        let file = identity("ServicePrincipalCertificate", &json!({"certPath": "/certs/x"}));
        assert!(made(&file).unwrap_err().contains("a file of the manager"));
        assert!(
            made(&identity("New", &json!({})))
                .unwrap_err()
                .contains("\"New\"")
        );
        let error = data(&identity("ServicePrincipal", &json!({})), "sub", None).unwrap_err();
        assert!(
            error.contains("ids/sp") && error.contains("clientSecret"),
            "{error}"
        );
    }
}
