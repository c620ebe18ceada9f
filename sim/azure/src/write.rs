//! PUT and PATCH: a body is filled in by its type, compared with what is there, saved, and worked on.

use serde_json::{Map, Value};

use crate::{
    aks,
    arm::{Context, accepted},
    arm_id::ArmId,
    arm_rules,
    azure::Azure,
    error_response::ErrorResponse,
    kinds::{self, Child, Draft, Kind},
    store::Resource,
    wire::Response,
};

fn check_location(
    id: &ArmId,
    kind: &Kind,
    old: Option<&Resource>,
    body: &mut Map<String, Value>,
) -> Result<(), ErrorResponse> {
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
            return Err(ErrorResponse::gateway(
                400,
                "LocationRequired",
                "The location property is required for this definition.",
            ));
        }
        (Some(sent), Some(old)) if sent != old.location() => {
            return Err(ErrorResponse::gateway(
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
            if old.is_none() {
                arm_rules::check_location(kind, &sent)?;
            }
            body.insert("location".to_owned(), sent.into());
        }
    }
    Ok(())
}

pub fn write(
    azure: &mut Azure,
    kind: &'static Kind,
    id: &ArmId,
    mut body: Map<String, Value>,
    context: &Context<'_>,
) -> Result<Response, ErrorResponse> {
    for key in ["id", "name", "type", "etag", "eTag", "systemData"] {
        body.remove(key);
    }
    let old = azure.state().resources.get(id).cloned();
    arm_rules::check_tags(&body)?;
    check_location(id, kind, old.as_ref(), &mut body)?;
    if kind.exclusive {
        aks::check_idle(azure, id, "write")?;
        aks::check_running(azure, id, "write")?;
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
                .collect::<Result<Children, ErrorResponse>>()?,
        ),
    };
    kinds::check_ranges(azure, kind, id, &body, embedded.as_deref())?;
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
fn completed(
    azure: &Azure,
    (id, path, body, _): Child,
    context: &Context<'_>,
) -> Result<Child, ErrorResponse> {
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
