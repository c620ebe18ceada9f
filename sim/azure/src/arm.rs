//! ARM itself: who may call, where a path leads, and the verbs every resource type shares.

use http::Method;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::{
    aks,
    arm_id::{ArmId, Target},
    arm_rules,
    azure::Azure,
    collection,
    entra::Claims,
    error_response::ErrorResponse,
    gate,
    kinds::{self, Acceptance, EtagForm, Kind, Missing, View},
    operation::Style,
    registration, roles,
    store::Resource,
    wire::{Request, Response},
    write,
};

/// A request that passed the gate.
pub struct Context<'a> {
    pub request: &'a Request,
    pub api: String,
    pub now: Timestamp,
    pub caller: Option<Claims>,
}

pub fn answer(azure: &mut Azure, request: &Request, now: Timestamp) -> Response {
    match gate::admit(azure, request, now) {
        Ok((context, target, limit)) => {
            let response = match dispatch(azure, &context, target.as_ref()) {
                Ok(response) => response,
                Err(refusal) => refusal.into_response(),
            };
            match limit {
                // ARM counts what it hands on; what it refuses itself carries no count.
                Some((header, left)) if response.header_text("x-ms-failure-cause").is_none() => {
                    response.with(header, &left.to_string())
                }
                _ => response,
            }
        }
        Err(refusal) => {
            let challenge = refusal.status == 401;
            let response = refusal.into_response();
            if challenge {
                let tenant = &azure.settings.tenant;
                return response.with(
                    "www-authenticate",
                    &format!(
                        "Bearer authorization_uri=\"https://login.microsoftonline.com/{tenant}\", error=\"invalid_token\", error_description=\"The authentication failed because of missing or invalid 'Authorization' header.\""
                    ),
                );
            }
            response
        }
    }
}

fn dispatch(
    azure: &mut Azure,
    context: &Context<'_>,
    target: Option<&Target>,
) -> Result<Response, ErrorResponse> {
    let request = context.request;
    match target {
        None => collection::outside_subscriptions(azure, context),
        Some(Target::Resource(id)) => {
            if let Some(response) = azure.poll(id, context)? {
                return Ok(response);
            }
            if let Some(response) = aks::computed(azure, id, context)? {
                return Ok(response);
            }
            roles::check(azure, context, id)?;
            match request.method {
                Method::GET => get(azure, id, context),
                Method::HEAD => Ok(head(azure, id)),
                Method::PUT => put(azure, id, context),
                Method::PATCH => patch(azure, id, context),
                Method::DELETE => delete(azure, id, context),
                _ => Err(not_allowed(request)),
            }
        }
        Some(Target::Under {
            parent,
            namespace,
            word,
        }) => match request.method {
            Method::POST => {
                roles::check_action(azure, context, parent, word)?;
                if word == "register" || word == "unregister" || namespace.is_empty() && word == "providers" {
                    return registration::act(azure, parent, namespace, word, context);
                }
                aks::act(azure, parent, word, context)
            }
            Method::GET => {
                roles::check(azure, context, parent)?;
                collection::list(azure, parent, namespace, word, context)
            }
            _ => Err(not_allowed(request)),
        },
    }
}

pub fn not_allowed(request: &Request) -> ErrorResponse {
    ErrorResponse::gateway(
        405,
        "HttpMethodNotAllowed",
        format!(
            "The http method '{}' is not supported at '{}'.",
            request.method, request.path
        ),
    )
}

pub fn missing(kind: &Kind, id: &ArmId) -> ErrorResponse {
    if id.providers.is_empty() {
        return ErrorResponse::resource_group_not_found(id.group.as_deref().unwrap_or_default());
    }
    match kind.missing {
        Missing::AgentPool => {
            let cluster = id.parent();
            let cluster = cluster.as_ref().map_or("", |cluster| cluster.name());
            ErrorResponse::with_body(
                404,
                json!({
                    "code": "NotFound",
                    "details": [{
                        "code": "Unspecified",
                        "message": "rpc error: code = NotFound desc = Agent Pool not found",
                    }],
                    "message": format!(
                        "Could not find the agentpool: {} in subscription: {}, resourceGroup: {}, resourceName: {cluster}.",
                        id.name(),
                        id.subscription,
                        id.group.as_deref().unwrap_or_default(),
                    ),
                    "subcode": "GetAgentPool_NotFound",
                }),
            )
        }
        Missing::Network => ErrorResponse::with_body(
            404,
            json!({"error": {"code": "NotFound", "message": format!("Resource {id} not found."), "details": []}}),
        ),
        Missing::Extension => ErrorResponse::with_body(
            404,
            json!({"error": {
                "code": "ResourceNotFound",
                "message": format!("Extension instance with name '{}' not found.", id.name()),
                "additionalInfo": [],
            }}),
        ),
        Missing::Provider(code) => ErrorResponse::new(
            404,
            code,
            format!("Could not find the given resource. Resource ID: \"{id}\"."),
        ),
        Missing::Parent => ErrorResponse::parent_not_found(id, "read"),
        Missing::Gateway => ErrorResponse::resource_not_found(id),
    }
}

/// The group, the parent and the scope must be there before anything else is looked at.
fn check_above(azure: &Azure, kind: &Kind, id: &ArmId, verb: &str) -> Result<(), ErrorResponse> {
    let resources = &azure.state().resources;
    if id.providers.is_empty() {
        return Ok(());
    }
    if kind.parent_first && verb != "write" {
        check_parent(azure, kind, id, verb)?;
    }
    if let Some(group) = &id.group {
        let group_id = ArmId::resource_group(&id.subscription, group);
        let Some(found) = resources.get(&group_id) else {
            return Err(ErrorResponse::resource_group_not_found(group));
        };
        if found.state == "Deleting" && verb == "write" {
            return Err(ErrorResponse::gateway(
                409,
                "ResourceGroupBeingDeleted",
                format!(
                    "The resource group '{group}' is in deprovisioning state and cannot perform this operation."
                ),
            ));
        }
    }
    check_parent(azure, kind, id, verb)
}

fn check_parent(azure: &Azure, kind: &Kind, id: &ArmId, verb: &str) -> Result<(), ErrorResponse> {
    if kind.orphan {
        return Ok(());
    }
    let above = id
        .parent()
        .or_else(|| id.scope().filter(|scope| !scope.providers.is_empty()));
    match above {
        Some(above) if azure.state().resources.get(&above).is_none() => Err(match kind.parent_missing {
            Missing::Parent => ErrorResponse::parent_not_found(id, verb),
            _ => ErrorResponse::resource_not_found(&above),
        }),
        _ => Ok(()),
    }
}

fn get(azure: &Azure, id: &ArmId, context: &Context<'_>) -> Result<Response, ErrorResponse> {
    let kind = kinds::find(&id.type_path());
    check_above(azure, kind, id, "read")?;
    let Some(resource) = azure.state().resources.get(id) else {
        return Err(missing(kind, id));
    };
    let view = View {
        api: &context.api,
        now: context.now,
        written: false,
    };
    let mut response = Response::json(200, &kind.show(azure, resource, &view));
    match kind.etag {
        EtagForm::Network => response = response.with("etag", &format!("W/\"{}\"", resource.etag)),
        EtagForm::Plain => response = response.with("etag", &resource.etag),
        EtagForm::None | EtagForm::Top | EtagForm::Aks => {}
    }
    Ok(response)
}

fn head(azure: &Azure, id: &ArmId) -> Response {
    let found = azure.state().resources.get(id).is_some();
    Response::empty(if found { 204 } else { 404 })
}

/// Drops nulls everywhere: to ARM they are the same as nothing.
pub fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(object) => Value::Object(
            object
                .into_iter()
                .filter(|(_, value)| !value.is_null())
                .map(|(key, value)| (key, without_nulls(value)))
                .collect(),
        ),
        Value::Array(list) => Value::Array(list.into_iter().map(without_nulls).collect()),
        other => other,
    }
}

pub fn read_body(request: &Request) -> Result<Map<String, Value>, ErrorResponse> {
    match request.body_json() {
        Ok(Value::Object(object)) => match without_nulls(Value::Object(object)) {
            Value::Object(object) => Ok(object),
            _ => Ok(Map::new()),
        },
        Ok(_) => Err(ErrorResponse::gateway(
            400,
            "InvalidRequestContent",
            "The request content was invalid: a JSON object is required in the body.",
        )),
        Err(error) => Err(ErrorResponse::bad_json(&error)),
    }
}

fn bare_etag(text: &str) -> &str {
    text.trim().trim_start_matches("W/").trim_matches('"')
}

/// If-Match and If-None-Match as AKS and Network document them.
fn check_preconditions(request: &Request, id: &ArmId, old: Option<&Resource>) -> Result<(), ErrorResponse> {
    if let Some(desired) = request.header_text("if-match") {
        let holds = match old {
            None => false,
            Some(_) if desired.trim() == "*" => true,
            Some(old) => bare_etag(desired) == old.etag,
        };
        if !holds {
            return Err(ErrorResponse::etag_mismatch(id, desired));
        }
    }
    if let Some(unwanted) = request.header_text("if-none-match") {
        let hits = old.is_some_and(|old| unwanted.trim() == "*" || bare_etag(unwanted) == old.etag);
        if hits {
            return Err(ErrorResponse::etag_mismatch(id, unwanted));
        }
    }
    Ok(())
}

fn put(azure: &mut Azure, id: &ArmId, context: &Context<'_>) -> Result<Response, ErrorResponse> {
    let kind = kinds::find(&id.type_path());
    arm_rules::check_group_name(id)?;
    check_above(azure, kind, id, "write")?;
    let body = read_body(context.request)?;
    check_preconditions(context.request, id, azure.state().resources.get(id))?;
    write::write(azure, kind, id, body, context)
}

/// PATCH: tags and whatever else is sent, laid over what is there.
fn patch(azure: &mut Azure, id: &ArmId, context: &Context<'_>) -> Result<Response, ErrorResponse> {
    let kind = kinds::find(&id.type_path());
    check_above(azure, kind, id, "write")?;
    let Some(old) = azure.state().resources.get(id) else {
        return Err(missing(kind, id));
    };
    check_preconditions(context.request, id, Some(old))?;
    let mut body = old.document.clone();
    for (key, value) in read_body(context.request)? {
        if key == "properties" {
            let properties = crate::store::object_mut(&mut body, "properties");
            if let Value::Object(sent) = value {
                properties.extend(sent);
            }
        } else {
            body.insert(key, value);
        }
    }
    write::write(azure, kind, id, body, context)
}

/// Starts the operation a write asked for and answers.
pub fn accepted(
    azure: &mut Azure,
    kind: &'static Kind,
    id: &ArmId,
    acceptance: Acceptance,
    verb: &str,
    nodes: u64,
    context: &Context<'_>,
) -> Response {
    let started = azure.start(kind, id, acceptance, verb, nodes, context);
    let view = View {
        api: &context.api,
        now: context.now,
        written: true,
    };
    let mut response = match azure.state().resources.get(id) {
        Some(resource) if acceptance.has_body => {
            Response::json(acceptance.status, &kind.show(azure, resource, &view))
        }
        _ if kind.style == Style::PrivateDns => Response::json(acceptance.status, &json!({})),
        _ => Response::empty(acceptance.status),
    };
    if let Some((operation, location)) = started {
        response = operation.announce(response, acceptance.links, &context.request.authority, &location);
    }
    if kind.links_itself && acceptance.status == 201 {
        response = response.with("location", &format!("https://{}{id}", context.request.authority));
    }
    if kind.style == Style::Network && kind.create.runs && !acceptance.runs {
        // A write that changed nothing still names an operation, one that is already over.
        let id = azure.fresh_uuid().to_string();
        let subscription = context.request.path.split('/').nth(2).unwrap_or_default();
        let url = format!(
            "https://{}/subscriptions/{subscription}/providers/Microsoft.Network/locations/none/operations/{id}?api-version={}",
            context.request.authority, context.api
        );
        response = response.with("azure-asyncoperation", &url);
    }
    response
}

fn delete(azure: &mut Azure, id: &ArmId, context: &Context<'_>) -> Result<Response, ErrorResponse> {
    let kind = kinds::find(&id.type_path());
    check_above(azure, kind, id, "delete")?;
    let Some(resource) = azure.state().resources.get(id) else {
        return if id.providers.is_empty() {
            Err(missing(kind, id))
        } else {
            Ok(Response::empty(204))
        };
    };
    check_preconditions(context.request, id, Some(resource))?;
    if kind.exclusive {
        aks::check_idle(azure, id, "delete")?;
        aks::check_running(azure, id, "delete")?;
    }
    aks::check_delete(azure, id)?;
    crate::references::check_unused(azure, id)?;
    if !kind.delete.runs {
        let view = View {
            api: &context.api,
            now: context.now,
            written: false,
        };
        let shown = kind.delete.has_body.then(|| kind.show(azure, resource, &view));
        azure.remove(&id.key());
        return Ok(shown.map_or_else(
            || Response::empty(kind.delete.status),
            |shown| Response::json(kind.delete.status, &shown),
        ));
    }
    azure.set_state(id, kind.states.deleting, context.now);
    Ok(accepted(azure, kind, id, kind.delete, "delete", 0, context))
}
