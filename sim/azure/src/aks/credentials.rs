//! Kubeconfigs as AKS hands them out: with a client certificate or token, or with a plugin that fetches one. A
//! cluster backed by a real API server hands out configurations that reach it.

use base64::{Engine, engine::general_purpose::STANDARD};
use http::Method;
use serde_json::{Value, json};

use super::boolean;
use crate::{
    arm::Context, arm_id::ArmId, azure::Azure, error_response::ErrorResponse, store::Resource, wire::Response,
};

/// The Entra application every AKS API server trusts.
pub const AKS_SERVER_APPLICATION: &str = "6dae42f8-4368-4678-94ff-3960e28e3630";
const AKS_CLIENT_APPLICATION: &str = "80faf920-1908-4b52-b5ef-a8e7bedfc67a";

/// How a kubeconfig identifies its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum User {
    /// The certificate or token of the cluster itself.
    Local,
    /// `kubelogin` as a credential plugin.
    Plugin,
    /// The auth provider of old kubectl versions.
    Provider,
}

pub fn list(azure: &Azure, id: &ArmId, word: &str, context: &Context<'_>) -> Result<Response, ErrorResponse> {
    let Some(cluster) = azure.state().resources.get(id) else {
        return Err(ErrorResponse::resource_not_found(id));
    };
    let (name, user) = pick(cluster, word, context)?;
    let text = kubeconfig(azure, cluster, user, name == "clusterAdmin");
    Ok(Response::json(
        200,
        &json!({"kubeconfigs": [{"name": name, "value": STANDARD.encode(text)}]}),
    ))
}

/// `accessProfiles/{clusterAdmin|clusterUser}/listCredential`, the older form of the same.
pub fn access_profile(azure: &Azure, id: &ArmId, context: &Context<'_>) -> Result<Response, ErrorResponse> {
    let cluster_id = id.parent().unwrap_or_else(|| id.clone());
    let Some(cluster) = azure.state().resources.get(&cluster_id) else {
        return Err(ErrorResponse::resource_not_found(&cluster_id));
    };
    let word = if id.name().eq_ignore_ascii_case("clusterAdmin") {
        "listClusterAdminCredential"
    } else {
        "listClusterUserCredential"
    };
    let (_, user) = pick(cluster, word, context)?;
    let mut body = json!({
        "id": id.to_string(),
        "name": id.name(),
        "type": "Microsoft.ContainerService/ManagedClusters/AccessProfiles",
        "location": cluster.location(),
    });
    if context.request.method == Method::POST {
        let text = kubeconfig(azure, cluster, user, word.contains("Admin"));
        body["properties"] = json!({"kubeConfig": STANDARD.encode(text)});
    }
    Ok(Response::json(200, &body))
}

/// How often the certificates of a cluster were rotated: what is handed out before is of no use after.
const ROTATIONS: &str = "certificateRotations";

fn rotations(cluster: &Resource) -> u64 {
    cluster.hidden.get(ROTATIONS).and_then(Value::as_u64).unwrap_or(0)
}

pub fn rotate(cluster: &mut Resource) {
    let next = rotations(cluster) + 1;
    cluster.hidden.insert(ROTATIONS.to_owned(), next.into());
}

fn pick(
    cluster: &Resource,
    word: &str,
    context: &Context<'_>,
) -> Result<(&'static str, User), ErrorResponse> {
    let uses_entra = boolean(cluster.properties(), &["aadProfile", "managed"]);
    let local_disabled = boolean(cluster.properties(), &["disableLocalAccounts"]);
    if cluster.state == "Creating" {
        return Err(ErrorResponse::aks(
            409,
            "NotFinished",
            format!(
                "Credentials of {} are not available before it is created.",
                cluster.name()
            ),
        ));
    }
    let name = match word {
        "listClusterAdminCredential" => "clusterAdmin",
        "listClusterMonitoringUserCredential" => "clusterMonitoringUser",
        _ => "clusterUser",
    };
    if local_disabled && (name != "clusterUser" || !uses_entra) {
        return Err(ErrorResponse::aks(
            400,
            "BadRequest",
            "Getting static credential is not allowed because this cluster is set to disable local accounts.",
        ));
    }
    if name != "clusterUser" || !uses_entra {
        return Ok((name, User::Local));
    }
    match context.request.parameter("format").as_deref() {
        Some("azure") => Ok((name, User::Provider)),
        Some("exec") | None => Ok((name, User::Plugin)),
        Some(other) => Err(ErrorResponse::invalid_parameter(
            "format",
            format!("The value '{other}' of parameter format is invalid: allowed are 'azure' and 'exec'."),
        )),
    }
}

fn kubeconfig(azure: &Azure, cluster: &Resource, user: User, admin: bool) -> String {
    let name = cluster.name();
    let group = cluster.arm_id().group.unwrap_or_default();
    let person = if admin {
        format!("clusterAdmin_{group}_{name}")
    } else {
        format!("clusterUser_{group}_{name}")
    };
    let generation = rotations(cluster) + 1;
    let backing: Value = azure
        .backing_of(&cluster.id)
        .and_then(|text| serde_saphyr::from_str(text).ok())
        .unwrap_or(Value::Null);
    let cluster_part = if let Value::Object(found) = &backing["clusters"][0]["cluster"] {
        Value::Object(found.clone())
    } else {
        let host = ["fqdn", "privateFQDN"]
            .into_iter()
            .map(|key| cluster.text(key))
            .find(|host| !host.is_empty())
            .unwrap_or_default()
            .to_owned();
        json!({
            "certificate-authority-data": STANDARD.encode(format!("simulated CA {generation} of {name}\n")),
            "server": format!("https://{host}:443"),
        })
    };
    let tenant = &azure.settings.tenant;
    let user_part = match user {
        User::Local => match &backing["users"][0]["user"] {
            Value::Object(found) => Value::Object(found.clone()),
            _ => json!({
                "client-certificate-data": STANDARD.encode(format!("simulated certificate {generation} of {person}\n")),
                "client-key-data": STANDARD.encode(format!("simulated key {generation} of {person}\n")),
                "token": cluster.etag.replace('-', ""),
            }),
        },
        User::Plugin => json!({"exec": {
            "apiVersion": "client.authentication.k8s.io/v1beta1",
            "command": "kubelogin",
            "args": [
                "get-token", "--environment", "AzurePublicCloud", "--server-id", AKS_SERVER_APPLICATION,
                "--client-id", AKS_CLIENT_APPLICATION, "--tenant-id", tenant, "--login", "devicecode",
            ],
            "env": null,
            "installHint": "\nkubelogin is not installed which is required to connect to AAD enabled cluster.\n\nTo learn more, please go to https://aka.ms/aks/kubelogin\n",
            "provideClusterInfo": false,
        }}),
        User::Provider => json!({"auth-provider": {
            "name": "azure",
            "config": {
                "apiserver-id": AKS_SERVER_APPLICATION,
                "client-id": AKS_CLIENT_APPLICATION,
                "config-mode": "1",
                "environment": "AzurePublicCloud",
                "tenant-id": tenant,
            },
        }}),
    };
    // Both forms name their context after the cluster; the Azure CLI adds `-admin` itself.
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"cluster": cluster_part, "name": name}],
        "contexts": [{"context": {"cluster": name, "user": person}, "name": name}],
        "current-context": name,
        "preferences": {},
        "users": [{"name": person, "user": user_part}],
    });
    // JSON is YAML; block style is what people expect to see.
    serde_saphyr::to_string(&config).unwrap_or_else(|_| config.to_string())
}
