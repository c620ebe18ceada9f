//! POST actions on clusters and pools.

use serde_json::{Value, json};

use super::{CLUSTER, POOL, check_idle, check_running, credentials, nodes};
use crate::{
    arm::{Context, accepted, read_body},
    arm_id::ArmId,
    azure::Azure,
    error_response::ErrorResponse,
    kinds::{self, STORAGE_ACCOUNT, WORKSPACE, polled, without_body},
    wire::Response,
};

pub fn act(
    azure: &mut Azure,
    id: &ArmId,
    word: &str,
    context: &Context<'_>,
) -> Result<Response, ErrorResponse> {
    let path = id.type_path().to_ascii_lowercase();
    if path.ends_with("/accessprofiles") && word.eq_ignore_ascii_case("listCredential") {
        return credentials::access_profile(azure, id, context);
    }
    let kind = kinds::find(&path);
    if let Some(group) = &id.group {
        let group_id = ArmId::resource_group(&id.subscription, group);
        if azure.state().resources.get(&group_id).is_none() {
            return Err(ErrorResponse::resource_group_not_found(group));
        }
    }
    let Some(resource) = azure.state.resources.get_mut(id) else {
        return Err(crate::arm::missing(kind, id));
    };
    match (kind.path, word) {
        (
            CLUSTER,
            "listClusterAdminCredential"
            | "listClusterUserCredential"
            | "listClusterMonitoringUserCredential",
        ) => credentials::list(azure, id, word, context),
        (STORAGE_ACCOUNT, "listKeys") => Ok(kinds::account_keys(id, resource)),
        (STORAGE_ACCOUNT, "regenerateKey") => {
            kinds::regenerate_key(id, resource, &Value::Object(read_body(context.request)?))
        }
        (WORKSPACE, "sharedKeys") => Ok(kinds::workspace_keys(id)),
        (CLUSTER, "start" | "stop") => power(azure, id, word, context),
        (CLUSTER, "rotateClusterCertificates" | "rotateServiceAccountSigningKeys") => {
            check_idle(azure, id, "write")?;
            check_running(azure, id, "write")?;
            azure.set_state(id, "Updating", context.now);
            if word == "rotateClusterCertificates"
                && let Some(cluster) = azure.state.resources.get_mut(id)
            {
                credentials::rotate(cluster);
            }
            Ok(run(azure, id, word, context))
        }
        (CLUSTER, "runCommand") => run_command(azure, id, context),
        (CLUSTER | POOL, "abort") => {
            if !azure.abort(id, context.now) {
                return Err(ErrorResponse::aks(
                    409,
                    "OperationNotAllowed",
                    format!("No operation runs on {} that could be aborted.", id.name()),
                ));
            }
            Ok(run(azure, id, "abort", context))
        }
        (POOL, "upgradeNodeImageVersion") => {
            check_idle(azure, id, "write")?;
            check_running(azure, id, "write")?;
            azure.set_state(id, "UpgradingNodeImageVersion", context.now);
            let kind = kinds::find(POOL);
            let acceptance = polled(202, true, true, None);
            Ok(accepted(
                azure,
                kind,
                id,
                kinds::Acceptance {
                    has_body: true,
                    ..acceptance
                },
                "upgrade",
                0,
                context,
            ))
        }
        (POOL, "deleteMachines") => delete_machines(azure, id, context),
        ("Microsoft.ContainerService/fleets", "listCredentials") => Ok(Response::json(
            200,
            &json!({"kubeconfigs": [{"name": "fleet", "value": "IA=="}]}),
        )),
        _ => Err(ErrorResponse::gateway(
            404,
            "InvalidResourceType",
            format!(
                "The action '{word}' is not known for the type '{}'.",
                id.type_path()
            ),
        )),
    }
}

/// Starts an operation that answers 202 without a body.
fn run(azure: &mut Azure, id: &ArmId, verb: &str, context: &Context<'_>) -> Response {
    let kind = kinds::find(&id.type_path());
    let acceptance = without_body(polled(202, true, true, None));
    accepted(azure, kind, id, acceptance, verb, 0, context)
}

fn power(
    azure: &mut Azure,
    id: &ArmId,
    word: &str,
    context: &Context<'_>,
) -> Result<Response, ErrorResponse> {
    check_idle(azure, id, "write")?;
    let (state, code, doing) = if word == "start" {
        ("Starting", "Running", "starting")
    } else {
        ("Stopping", "Stopped", "stopping")
    };
    let now = azure.state().resources.get(id).map(|cluster| {
        let power = cluster.properties().get("powerState").map(|power| &power["code"]);
        (
            cluster.state.clone(),
            power.and_then(Value::as_str).unwrap_or("Running").to_owned(),
        )
    });
    if let Some((provisioning, power)) = now
        && power == code
    {
        return Err(ErrorResponse::aks(
            409,
            "OperationNotAllowed",
            format!(
                "managed cluster is in Provisioning State({provisioning}) and Power State({power}), {doing} cannot be performed"
            ),
        ));
    }
    azure.set_state(id, state, context.now);
    let mut keys: Vec<String> = azure
        .state()
        .resources
        .of_kind(&id.key(), POOL)
        .into_iter()
        .map(|pool| pool.id.to_ascii_lowercase())
        .collect();
    keys.push(id.key());
    for key in keys {
        if let Some(resource) = azure.state.resources.by_key_mut(&key) {
            resource
                .properties_mut()
                .insert("powerState".to_owned(), json!({"code": code}));
        }
    }
    Ok(run(azure, id, word, context))
}

fn run_command(azure: &mut Azure, id: &ArmId, context: &Context<'_>) -> Result<Response, ErrorResponse> {
    let body = read_body(context.request)?;
    let Some(command) = body.get("command").and_then(Value::as_str) else {
        return Err(ErrorResponse::invalid_parameter(
            "command",
            "Required parameter command is missing (null).",
        ));
    };
    let result = json!({
        "id": azure.fresh_uuid().simple().to_string(),
        "properties": {
            "provisioningState": "Succeeded",
            "exitCode": 0,
            "startedAt": context.now.to_string(),
            "finishedAt": context.now.to_string(),
            "logs": format!("the simulator does not run commands: {command}\n"),
        },
    });
    let _ = id;
    Ok(Response::json(200, &result))
}

fn delete_machines(azure: &mut Azure, id: &ArmId, context: &Context<'_>) -> Result<Response, ErrorResponse> {
    check_idle(azure, id, "write")?;
    let body = read_body(context.request)?;
    let names: Vec<u64> = body
        .get("machineNames")
        .and_then(Value::as_array)
        .map(|names| {
            names
                .iter()
                .filter_map(|name| name.as_str()?.rsplit('_').next()?.parse().ok())
                .collect()
        })
        .unwrap_or_default();
    if names.is_empty() {
        return Err(ErrorResponse::invalid_parameter(
            "machineNames",
            "Required parameter machineNames is missing (null).",
        ));
    }
    let pool = azure.state.resources.get(id);
    if pool.is_some_and(|pool| pool.text("mode") == "System" && nodes::how_many(pool) <= names.len()) {
        return Err(ErrorResponse::invalid_parameter(
            "machineNames",
            format!(
                "Agent pool {} is of mode System and has to keep at least one node.",
                id.name()
            ),
        ));
    }
    azure.set_state(id, "Scaling", context.now);
    if let Some(pool) = azure.state.resources.get_mut(id) {
        nodes::remove_instances(pool, &names);
    }
    Ok(run(azure, id, "deleteMachines", context))
}
