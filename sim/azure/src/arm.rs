//! ARM itself: who may call, where a path leads, and the verbs every resource type shares.

use http::Method;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::{
    aks,
    arm_id::{ArmId, Target, parse_path},
    azure::Azure,
    collection,
    entra::{Claims, TokenProblem},
    kinds::{self, Acceptance, Child, Draft, EtagForm, Kind, Missing, View},
    refusal::Refusal,
    registration, roles,
    store::Resource,
    throttle::Call,
    wire::{Request, Response},
};

/// A request that passed the gate.
pub struct Context<'a> {
    pub request: &'a Request,
    pub api: String,
    pub now: Timestamp,
    pub caller: Option<Claims>,
}

pub fn answer(azure: &mut Azure, request: &Request, now: Timestamp) -> Response {
    match admit(azure, request, now) {
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

type Admitted<'a> = (Context<'a>, Option<Target>, Option<(&'static str, u64)>);

/// The gate: token, API version, request limits.
fn admit<'a>(azure: &mut Azure, request: &'a Request, now: Timestamp) -> Result<Admitted<'a>, Refusal> {
    let caller = authenticate(azure, request, now)?;
    let target = parse_path(&request.path);
    let Some(api) = request.parameter("api-version").filter(|api| !api.is_empty()) else {
        return Err(Refusal::missing_api_version());
    };
    let limit = match &target {
        None => None,
        Some(target) => {
            let (id, kind, is_list) = match target {
                Target::Resource(id) => (Some(id), id.type_path().to_ascii_lowercase(), false),
                Target::Under {
                    parent,
                    namespace,
                    word,
                } => (
                    Some(parent),
                    collection::kind_path(parent, namespace, word).to_ascii_lowercase(),
                    true,
                ),
            };
            let call = Call {
                method: &request.method,
                subscription: id.map_or("", |id| id.subscription.as_str()),
                id,
                is_operation: kind.contains("/operations") || kind.contains("/operationresults"),
                kind: &kind,
                is_list,
            };
            let settings = azure.settings.clone();
            Some(azure.throttle.admit(&settings, &call, now)?)
        }
    };
    Ok((
        Context {
            request,
            api,
            now,
            caller,
        },
        target,
        limit,
    ))
}

fn authenticate(azure: &Azure, request: &Request, now: Timestamp) -> Result<Option<Claims>, Refusal> {
    let token = request
        .header_text("authorization")
        .and_then(|header| header.strip_prefix("Bearer "));
    let Some(token) = token else {
        if !azure.settings.require_token {
            return Ok(None);
        }
        return Err(Refusal::gateway(
            401,
            "AuthenticationFailed",
            "Authentication failed. The 'Authorization' header is missing.",
        ));
    };
    match azure.state().directory.read_token(token, now) {
        Ok(claims) => {
            let audience = claims.audience.trim_end_matches('/');
            let known = [
                "management.azure.com",
                "management.core.windows.net",
                "management.usgovcloudapi.net",
                "management.core.usgovcloudapi.net",
                "management.chinacloudapi.cn",
                "management.core.chinacloudapi.cn",
            ];
            let is_ours =
                known.iter().any(|host| audience.contains(host)) || audience.contains(&request.authority);
            if !is_ours {
                return Err(Refusal::gateway(
                    401,
                    "InvalidAuthenticationTokenAudience",
                    format!(
                        "The access token has been obtained for wrong audience or resource '{audience}'. It should exactly match with one of the allowed audiences 'https://management.core.windows.net/','https://management.azure.com/'."
                    ),
                ));
            }
            Ok(Some(claims))
        }
        Err(_) if !azure.settings.require_token => Ok(None),
        Err(TokenProblem::Malformed) => Err(Refusal::gateway(
            401,
            "InvalidAuthenticationToken",
            "The access token is invalid.",
        )),
        Err(TokenProblem::Expired { at }) => Err(Refusal::gateway(
            401,
            "ExpiredAuthenticationToken",
            format!(
                "The access token expiry UTC time '{}' is earlier than current UTC time '{now}'.",
                Timestamp::from_second(at).unwrap_or(now)
            ),
        )),
    }
}

fn dispatch(azure: &mut Azure, context: &Context<'_>, target: Option<&Target>) -> Result<Response, Refusal> {
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

pub fn not_allowed(request: &Request) -> Refusal {
    Refusal::gateway(
        405,
        "HttpMethodNotAllowed",
        format!(
            "The http method '{}' is not supported at '{}'.",
            request.method, request.path
        ),
    )
}

pub fn missing(kind: &Kind, id: &ArmId) -> Refusal {
    if id.providers.is_empty() {
        return Refusal::resource_group_not_found(id.group.as_deref().unwrap_or_default());
    }
    match kind.missing {
        Missing::AgentPool => {
            let cluster = id.parent();
            let cluster = cluster.as_ref().map_or("", |cluster| cluster.name());
            Refusal::with_body(
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
        Missing::Network => Refusal::with_body(
            404,
            json!({"error": {"code": "NotFound", "message": format!("Resource {id} not found."), "details": []}}),
        ),
        Missing::Extension => Refusal::with_body(
            404,
            json!({"error": {
                "code": "ResourceNotFound",
                "message": format!("Extension instance with name '{}' not found.", id.name()),
                "additionalInfo": [],
            }}),
        ),
        Missing::Provider(code) => Refusal::new(
            404,
            code,
            format!("Could not find the given resource. Resource ID: \"{id}\"."),
        ),
        Missing::Parent => Refusal::parent_not_found(id, "read"),
        Missing::Gateway => Refusal::resource_not_found(id),
    }
}

/// The group, the parent and the scope must be there before anything else is looked at.
fn check_above(azure: &Azure, kind: &Kind, id: &ArmId, verb: &str) -> Result<(), Refusal> {
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
            return Err(Refusal::resource_group_not_found(group));
        };
        if found.state == "Deleting" && verb == "write" {
            return Err(Refusal::gateway(
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

fn check_parent(azure: &Azure, kind: &Kind, id: &ArmId, verb: &str) -> Result<(), Refusal> {
    let above = id
        .parent()
        .or_else(|| id.scope().filter(|scope| !scope.providers.is_empty()));
    match above {
        Some(above) if azure.state().resources.get(&above).is_none() => Err(match kind.parent_missing {
            Missing::Parent => Refusal::parent_not_found(id, verb),
            _ => Refusal::resource_not_found(&above),
        }),
        _ => Ok(()),
    }
}

fn get(azure: &Azure, id: &ArmId, context: &Context<'_>) -> Result<Response, Refusal> {
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
    if kind.etag == EtagForm::Network {
        response = response.with("etag", &format!("W/\"{}\"", resource.etag));
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

pub fn read_body(request: &Request) -> Result<Map<String, Value>, Refusal> {
    match request.body_json() {
        Ok(Value::Object(object)) => match without_nulls(Value::Object(object)) {
            Value::Object(object) => Ok(object),
            _ => Ok(Map::new()),
        },
        Ok(_) => Err(Refusal::gateway(
            400,
            "InvalidRequestContent",
            "The request content was invalid: a JSON object is required in the body.",
        )),
        Err(error) => Err(Refusal::bad_json(&error)),
    }
}

fn bare_etag(text: &str) -> &str {
    text.trim().trim_start_matches("W/").trim_matches('"')
}

/// If-Match and If-None-Match as AKS and Network document them.
fn check_preconditions(request: &Request, id: &ArmId, old: Option<&Resource>) -> Result<(), Refusal> {
    if let Some(wanted) = request.header_text("if-match") {
        let holds = match old {
            None => false,
            Some(_) if wanted.trim() == "*" => true,
            Some(old) => bare_etag(wanted) == old.etag,
        };
        if !holds {
            return Err(Refusal::etag_mismatch(id, wanted));
        }
    }
    if let Some(unwanted) = request.header_text("if-none-match") {
        let hits = old.is_some_and(|old| unwanted.trim() == "*" || bare_etag(unwanted) == old.etag);
        if hits {
            return Err(Refusal::etag_mismatch(id, unwanted));
        }
    }
    Ok(())
}

fn check_location(
    id: &ArmId,
    kind: &Kind,
    old: Option<&Resource>,
    body: &mut Map<String, Value>,
) -> Result<(), Refusal> {
    let is_top = id.parent().is_none() && id.providers.len() <= 1;
    if !kind.located || !is_top || kind.path.is_empty() {
        return Ok(());
    }
    let sent = body
        .get("location")
        .and_then(Value::as_str)
        .map(|location| location.replace(' ', "").to_ascii_lowercase())
        .filter(|location| !location.is_empty());
    match (sent, old) {
        (None, Some(old)) => {
            body.insert("location".to_owned(), old.location().into());
        }
        (None, None) => {
            return Err(Refusal::gateway(
                400,
                "LocationRequired",
                "The location property is required for this definition.",
            ));
        }
        (Some(sent), Some(old)) if sent != old.location() => {
            return Err(Refusal::gateway(
                409,
                "InvalidResourceLocation",
                format!(
                    "The resource '{}' already exists in location '{}' in resource group '{}'. A resource with the same name cannot be created in location '{sent}'. Please select a new resource name.",
                    id.name(),
                    old.location(),
                    id.group.as_deref().unwrap_or_default()
                ),
            ));
        }
        (Some(sent), _) => {
            body.insert("location".to_owned(), sent.into());
        }
    }
    Ok(())
}

fn put(azure: &mut Azure, id: &ArmId, context: &Context<'_>) -> Result<Response, Refusal> {
    let kind = kinds::find(&id.type_path());
    check_above(azure, kind, id, "write")?;
    let body = read_body(context.request)?;
    check_preconditions(context.request, id, azure.state().resources.get(id))?;
    write(azure, kind, id, body, context)
}

/// PATCH: tags and whatever else is sent, laid over what is there.
fn patch(azure: &mut Azure, id: &ArmId, context: &Context<'_>) -> Result<Response, Refusal> {
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
    write(azure, kind, id, body, context)
}

fn write(
    azure: &mut Azure,
    kind: &'static Kind,
    id: &ArmId,
    mut body: Map<String, Value>,
    context: &Context<'_>,
) -> Result<Response, Refusal> {
    for key in ["id", "name", "type", "etag", "eTag", "systemData"] {
        body.remove(key);
    }
    let old = azure.state().resources.get(id).cloned();
    check_location(id, kind, old.as_ref(), &mut body)?;
    if kind.exclusive {
        aks::check_idle(azure, id, "write")?;
    }
    if let Some(properties) = body.get_mut("properties").and_then(Value::as_object_mut) {
        properties.remove("provisioningState");
    }
    let embedded = match take_embedded(kind, id, &mut body) {
        None => None,
        Some(children) => Some(
            children
                .into_iter()
                .map(|child| completed(azure, child, context))
                .collect::<Result<Children, Refusal>>()?,
        ),
    };
    let mut draft = Draft {
        azure,
        id,
        old: old.as_ref(),
        now: context.now,
        body,
        hidden: old.as_ref().map(|old| old.hidden.clone()).unwrap_or_default(),
        verb: if old.is_some() { "update" } else { "create" },
        state: None,
        nodes: 0,
        children: Vec::new(),
    };
    (kind.complete)(&mut draft)?;
    let Draft {
        body,
        hidden,
        verb,
        state,
        nodes,
        mut children,
        ..
    } = draft;
    children.extend(embedded.iter().flatten().cloned());
    let unchanged = old
        .as_ref()
        .is_some_and(|old| same_document(kind, &old.document, &body) && old.state == "Succeeded")
        && children_same(azure, &children)
        && embedded_same(azure, kind, id, embedded.as_ref());
    let acceptance = match (&old, unchanged) {
        (None, _) => kind.create,
        (Some(_), true) => kind.unchanged,
        (Some(_), false) => kind.update,
    };
    let state = match (acceptance.runs, verb) {
        (false, _) => "Succeeded",
        (true, _) if state.is_some() => state.unwrap_or_default(),
        (true, "create") => kind.states.creating,
        (true, _) => kind.states.updating,
    };
    if embedded.is_some() {
        azure.remove_embedded(kind, id, &children);
    }
    azure.save(
        id,
        kind,
        old.as_ref(),
        body,
        hidden,
        state,
        context.now,
        unchanged,
    );
    for child in children {
        let runs = kinds::find(child.1).create.runs;
        azure.save_child(child, if runs { state } else { "Succeeded" }, context.now);
    }
    Ok(accepted(azure, kind, id, acceptance, verb, nodes, context))
}

type Children = Vec<Child>;

/// Takes lists of child resources out of a parent's body. `None` when the type has none.
fn take_embedded(kind: &'static Kind, id: &ArmId, body: &mut Map<String, Value>) -> Option<Children> {
    if kind.embedded.is_empty() {
        return None;
    }
    let mut children = Vec::new();
    let properties = crate::store::object_mut(body, "properties");
    for (property, path) in kind.embedded {
        let Some(Value::Array(list)) = properties.remove(*property) else {
            continue;
        };
        let word = path.rsplit('/').next().unwrap_or_default();
        for entry in list {
            let Value::Object(mut entry) = entry else { continue };
            let Some(name) = entry.get("name").and_then(Value::as_str).map(str::to_owned) else {
                continue;
            };
            for key in ["id", "name", "type", "etag"] {
                entry.remove(key);
            }
            if let Some(properties) = entry.get_mut("properties").and_then(Value::as_object_mut) {
                properties.remove("provisioningState");
            }
            children.push((id.child(word, &name), *path, entry, Map::new()));
        }
    }
    Some(children)
}

/// To the network provider tags are nothing that has to be worked on.
fn same_document(kind: &Kind, old: &Map<String, Value>, new: &Map<String, Value>) -> bool {
    if kind.style != crate::operation::Style::Network {
        return old == new;
    }
    let without_tags = |document: &Map<String, Value>| {
        let mut document = document.clone();
        document.remove("tags");
        document
    };
    without_tags(old) == without_tags(new)
}

fn children_same(azure: &Azure, children: &Children) -> bool {
    children.iter().all(|(id, _, body, _)| {
        azure
            .state()
            .resources
            .get(id)
            .is_some_and(|old| old.document == *body)
    })
}

/// Fills in a child that came in its parent's body, as if it had been written itself.
fn completed(azure: &Azure, (id, path, body, _): Child, context: &Context<'_>) -> Result<Child, Refusal> {
    let old = azure.state().resources.get(&id);
    let mut draft = Draft {
        azure,
        id: &id,
        old,
        now: context.now,
        body,
        hidden: old.map(|old| old.hidden.clone()).unwrap_or_default(),
        verb: if old.is_some() { "update" } else { "create" },
        state: None,
        nodes: 0,
        children: Vec::new(),
    };
    (kinds::find(path).complete)(&mut draft)?;
    let Draft { body, hidden, .. } = draft;
    Ok((id, path, body, hidden))
}

fn embedded_same(azure: &Azure, kind: &Kind, id: &ArmId, embedded: Option<&Children>) -> bool {
    let Some(embedded) = embedded else { return true };
    kind.embedded.iter().all(|(_, path)| {
        azure
            .state()
            .resources
            .of_kind(&id.key(), path)
            .iter()
            .all(|old| {
                embedded
                    .iter()
                    .any(|(child, ..)| child.key() == old.id.to_ascii_lowercase())
            })
    })
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
        _ => Response::empty(acceptance.status),
    };
    if let Some((operation, location)) = started {
        response = operation.announce(response, acceptance.links, &context.request.authority, &location);
    }
    if kind.links_itself && acceptance.status == 201 {
        response = response.with("location", &format!("https://{}{id}", context.request.authority));
    }
    if kind.style == crate::operation::Style::Network && kind.create.runs && !acceptance.runs {
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

fn delete(azure: &mut Azure, id: &ArmId, context: &Context<'_>) -> Result<Response, Refusal> {
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
