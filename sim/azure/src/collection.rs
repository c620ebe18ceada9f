//! LIST answers with their pages, and what ARM tells outside of resources.

use http::Method;
use serde_json::{Value, json};

use crate::{
    aks,
    arm::{Context, not_allowed},
    arm_id::ArmId,
    azure::Azure,
    error_response::ErrorResponse,
    kinds::{self, View},
    registration,
    wire::Response,
};

/// The type a collection under `parent` holds.
pub fn kind_path(parent: &ArmId, namespace: &str, word: &str) -> String {
    if word.eq_ignore_ascii_case("resourceGroups") && namespace.is_empty() {
        return "Microsoft.Resources/resourceGroups".to_owned();
    }
    match parent.providers.last() {
        Some((own, _)) if own.eq_ignore_ascii_case(namespace) => {
            format!("{}/{word}", parent.type_path())
        }
        _ => format!("{namespace}/{word}"),
    }
}

pub fn list(
    azure: &Azure,
    parent: &ArmId,
    namespace: &str,
    word: &str,
    context: &Context<'_>,
) -> Result<Response, ErrorResponse> {
    if namespace.is_empty() && word.eq_ignore_ascii_case("providers") {
        return Ok(page(azure, registration::all(azure, parent), context));
    }
    if word == "providers" {
        return Ok(Response::json(200, &registration::one(azure, parent, namespace)));
    }
    if word.eq_ignore_ascii_case("kubernetesVersions") {
        return Ok(Response::json(200, &aks::offered_versions(&azure.settings)));
    }
    check_parent(azure, parent)?;
    let path = kind_path(parent, namespace, word);
    if let Some(items) = aks::computed_list(azure, parent, &path, context.request) {
        return Ok(page(azure, items, context));
    }
    if namespace.is_empty() && word.eq_ignore_ascii_case("resources") {
        let items = azure
            .state()
            .resources
            .below(&parent.key())
            .filter(|(_, resource)| {
                resource.arm_id().parent().is_none() && !resource.arm_id().providers.is_empty()
            })
            .map(|(_, resource)| {
                let mut item = json!({"id": resource.id, "name": resource.name(), "type": resource.kind});
                for key in ["location", "tags", "identity", "sku"] {
                    if let Some(value) = resource.document.get(key) {
                        item[key] = value.clone();
                    }
                }
                item
            })
            .collect();
        return Ok(page(azure, items, context));
    }
    let kind = kinds::find(&path);
    let view = View {
        api: &context.api,
        now: context.now,
        written: false,
    };
    let found = azure.state().resources.of_kind(&parent.key(), &path);
    let (from, to) = window(azure, found.len(), context);
    let items: Vec<Value> = found[from..to]
        .iter()
        .map(|resource| kind.show(azure, resource, &view))
        .collect();
    Ok(body(&items, to < found.len(), to, context))
}

fn check_parent(azure: &Azure, parent: &ArmId) -> Result<(), ErrorResponse> {
    let resources = &azure.state().resources;
    if let Some(group) = &parent.group
        && resources
            .get(&ArmId::resource_group(&parent.subscription, group))
            .is_none()
    {
        return Err(ErrorResponse::resource_group_not_found(group));
    }
    let is_place = parent
        .providers
        .last()
        .and_then(|(_, pairs)| pairs.last())
        .is_none_or(|(word, _)| word.eq_ignore_ascii_case("locations"));
    if !is_place && resources.get(parent).is_none() && aks::scale_set(azure, parent).is_none() {
        return Err(crate::arm::missing(kinds::find(&parent.type_path()), parent));
    }
    Ok(())
}

/// Which part of a list this request is about.
fn window(azure: &Azure, total: usize, context: &Context<'_>) -> (usize, usize) {
    let from = context
        .request
        .parameter("$skiptoken")
        .and_then(|token| usize::from_str_radix(&token, 16).ok())
        .unwrap_or(0)
        .min(total);
    let size = context
        .request
        .parameter("$top")
        .and_then(|top| top.parse().ok())
        .unwrap_or(azure.settings.page_size)
        .max(1);
    (from, (from + size).min(total))
}

pub fn page(azure: &Azure, items: Vec<Value>, context: &Context<'_>) -> Response {
    let total = items.len();
    let (from, to) = window(azure, total, context);
    let items: Vec<Value> = items.into_iter().skip(from).take(to - from).collect();
    body(&items, to < total, to, context)
}

fn body(items: &[Value], more: bool, next: usize, context: &Context<'_>) -> Response {
    let mut body = json!({"value": items});
    if more {
        let request = context.request;
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        for (key, value) in url::form_urlencoded::parse(request.query.as_bytes()) {
            if !key.eq_ignore_ascii_case("$skiptoken") {
                query.append_pair(&key, &value);
            }
        }
        // Hexadecimal, so that nobody takes it for a number to count with.
        query.append_pair("$skipToken", &format!("{next:x}"));
        body["nextLink"] = format!("https://{}{}?{}", request.authority, request.path, query.finish()).into();
    }
    Response::json(200, &body)
}

/// `/subscriptions`, `/tenants`, `/providers` and the cloud's metadata.
pub fn outside_subscriptions(azure: &Azure, context: &Context<'_>) -> Result<Response, ErrorResponse> {
    let request = context.request;
    if request.method != Method::GET {
        return Err(not_allowed(request));
    }
    let path = request.path.trim_end_matches('/').to_ascii_lowercase();
    let tenant = &azure.settings.tenant;
    match path.as_str() {
        "/subscriptions" => {
            let mut ids: Vec<&str> = azure
                .state()
                .resources
                .iter()
                .filter_map(|resource| resource.id.split('/').nth(2))
                .collect();
            ids.extend(azure.settings.subscriptions.iter().map(String::as_str));
            ids.sort_unstable();
            ids.dedup();
            let items = ids.into_iter().map(|id| subscription(id, tenant)).collect();
            Ok(page(azure, items, context))
        }
        "/tenants" => {
            let item = json!({"id": format!("/tenants/{tenant}"), "tenantId": tenant, "displayName": "Simulated", "tenantCategory": "Home"});
            Ok(page(azure, vec![item], context))
        }
        "/providers" => Ok(page(
            azure,
            registration::all(azure, &ArmId::subscription("")),
            context,
        )),
        "/metadata/endpoints" => {
            let host = &request.authority;
            Ok(Response::json(
                200,
                &json!([{
                    "name": "AzureCloud",
                    "authentication": {
                        "loginEndpoint": "https://login.microsoftonline.com",
                        "audiences": ["https://management.core.windows.net/", "https://management.azure.com/"],
                        "tenant": "common",
                        "identityProvider": "AAD",
                    },
                    "resourceManager": format!("https://{host}/"),
                    "suffixes": {},
                }]),
            ))
        }
        _ => Err(ErrorResponse::gateway(
            404,
            "InvalidResourceType",
            format!("The path '{}' is not known.", request.path),
        )),
    }
}

pub fn subscription(id: &str, tenant: &str) -> Value {
    json!({
        "id": format!("/subscriptions/{id}"),
        "subscriptionId": id,
        "tenantId": tenant,
        "displayName": "Simulated",
        "state": "Enabled",
        "authorizationSource": "RoleBased",
        "subscriptionPolicies": {
            "locationPlacementId": "Public_2014-09-01",
            "quotaId": "PayAsYouGo_2014-09-01",
            "spendingLimit": "Off",
        },
        "managedByTenants": [],
    })
}
