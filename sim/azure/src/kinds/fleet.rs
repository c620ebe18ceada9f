//! Fleets, their members and update runs.

use serde_json::{Map, Value, json};

use super::{Draft, EtagForm, Kind, Missing, PLAIN, States, View, at_once, polled, without_body};
use crate::{
    aks::since,
    arm_id::ArmId,
    azure::Azure,
    error_response::ErrorResponse,
    operation::Links,
    store::{Resource, object_mut},
};

const FLEET: &str = "Microsoft.ContainerService/fleets";
const MEMBER: &str = "Microsoft.ContainerService/fleets/members";

pub const KINDS: &[Kind] = &[
    Kind {
        path: FLEET,
        create: polled(201, true, false, None),
        update: polled(200, true, false, None),
        unchanged: polled(200, true, false, None),
        // The one 202 that shows the resource.
        delete: super::Acceptance {
            has_body: true,
            links: Links {
                asynchronous_from: Some("2025"),
                ..polled(202, false, true, None).links
            },
            ..polled(202, false, true, None)
        },
        etag: EtagForm::Top,
        missing: Missing::Provider("ResourceNotFound"),
        complete: complete_fleet,
        present: present_fleet,
        finish: finish_fleet,
        ..PLAIN
    },
    Kind {
        path: MEMBER,
        create: polled(201, true, false, None),
        update: polled(200, true, false, None),
        unchanged: polled(200, true, false, None),
        delete: polled(202, true, true, None),
        states: States {
            creating: "Joining",
            updating: "Updating",
            deleting: "Leaving",
        },
        etag: EtagForm::Top,
        located: false,
        parent_first: true,
        missing: Missing::Provider("ResourceNotFound"),
        complete: complete_member,
        present: present_status,
        ..PLAIN
    },
    Kind {
        path: "Microsoft.ContainerService/fleets/updateRuns",
        create: at_once(201),
        delete: without_body(at_once(200)),
        etag: EtagForm::Top,
        located: false,
        parent_first: true,
        missing: Missing::Provider("ResourceNotFound"),
        complete: complete_update_run,
        present: present_system_data,
        ..PLAIN
    },
    Kind {
        path: "Microsoft.ContainerService/fleets/updateStrategies",
        complete: complete_strategy,
        ..SETTING
    },
    Kind {
        path: "Microsoft.ContainerService/fleets/autoUpgradeProfiles",
        complete: complete_profile,
        ..SETTING
    },
];

/// What is kept for a fleet and does nothing by itself.
const SETTING: Kind = Kind {
    create: at_once(201),
    delete: without_body(at_once(200)),
    etag: EtagForm::Top,
    located: false,
    parent_first: true,
    missing: Missing::Provider("ResourceNotFound"),
    present: present_system_data,
    ..PLAIN
};

fn present_system_data(_: &Azure, resource: &Resource, _: &View<'_>, document: &mut Map<String, Value>) {
    document.insert("systemData".to_owned(), super::system_data(resource));
}

/// Newer API versions tell which operation a fleet or a member went through last.
fn present_status(azure: &Azure, resource: &Resource, view: &View<'_>, document: &mut Map<String, Value>) {
    present_system_data(azure, resource, view, document);
    if let (true, Some(operation)) = (view.api >= "2025", resource.hidden.get("lastOperationId")) {
        object_mut(document, "properties").insert("status".to_owned(), json!({"lastOperationId": operation}));
    }
}

fn present_fleet(azure: &Azure, resource: &Resource, view: &View<'_>, document: &mut Map<String, Value>) {
    present_status(azure, resource, view, document);
    let hub = document
        .get_mut("properties")
        .and_then(|properties| properties.get_mut("hubProfile"))
        .and_then(Value::as_object_mut);
    if let Some(hub) = hub
        && view.api < "2024"
    {
        hub.remove("portalFqdn");
    }
}

#[expect(clippy::unnecessary_wraps, reason = "one signature for every type")]
fn complete_strategy(draft: &mut Draft<'_>) -> Result<(), ErrorResponse> {
    let stages = draft
        .properties()
        .get_mut("strategy")
        .and_then(|strategy| strategy.get_mut("stages"))
        .and_then(Value::as_array_mut);
    for stage in stages.into_iter().flatten().filter_map(Value::as_object_mut) {
        stage.entry("afterStageWaitInSeconds").or_insert_with(|| 0.into());
    }
    Ok(())
}

#[expect(clippy::unnecessary_wraps, reason = "one signature for every type")]
fn complete_profile(draft: &mut Draft<'_>) -> Result<(), ErrorResponse> {
    draft.fill("disabled", false.into());
    Ok(())
}

#[expect(clippy::unnecessary_wraps, reason = "one signature for every type")]
fn complete_fleet(draft: &mut Draft<'_>) -> Result<(), ErrorResponse> {
    let kept = draft
        .old
        .and_then(|old| old.properties().get("hubProfile").cloned());
    if let (Some(Value::Object(kept)), Some(hub)) = (
        kept,
        draft
            .properties()
            .get_mut("hubProfile")
            .and_then(Value::as_object_mut),
    ) {
        for (key, value) in kept {
            hub.entry(key).or_insert(value);
        }
    }
    Ok(())
}

/// The hub has an address and a version once it stands.
fn finish_fleet(resource: &mut Resource) {
    let (location, unique) = (resource.location().to_owned(), resource.etag.replace('-', ""));
    if let Some(hub) = resource
        .properties_mut()
        .get_mut("hubProfile")
        .and_then(Value::as_object_mut)
    {
        let prefix = hub
            .get("dnsPrefix")
            .and_then(Value::as_str)
            .unwrap_or("fleet")
            .to_owned();
        hub.entry("fqdn")
            .or_insert_with(|| format!("{prefix}-{}.hcp.{location}.azmk8s.io", &unique[..8]).into());
        hub.entry("portalFqdn")
            .or_insert_with(|| format!("{prefix}-{}.portal.hcp.{location}.azmk8s.io", &unique[..8]).into());
        hub.entry("kubernetesVersion").or_insert_with(|| "1.33.5".into());
    }
}

fn complete_member(draft: &mut Draft<'_>) -> Result<(), ErrorResponse> {
    let cluster = draft
        .properties()
        .get("clusterResourceId")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    if draft
        .old
        .is_some_and(|old| !old.text("clusterResourceId").eq_ignore_ascii_case(&cluster))
    {
        return Err(ErrorResponse::new(
            400,
            "PropertyChangeNotAllowed",
            "Changing property 'clusterResourceId' is not allowed.",
        ));
    }
    let found = ArmId::parse(&cluster).is_some_and(|id| draft.azure.state().resources.get(&id).is_some());
    if !found {
        return Err(ErrorResponse::new(
            400,
            "ClusterResourceNotFound",
            format!("The cluster '{cluster}' that should join the fleet could not be found."),
        ));
    }
    Ok(())
}

fn complete_update_run(draft: &mut Draft<'_>) -> Result<(), ErrorResponse> {
    let not_started = json!({"state": "NotStarted"});
    let fleet = draft.id.parent().map(|fleet| fleet.key()).unwrap_or_default();
    let members: Vec<Value> = draft
        .azure
        .state()
        .resources
        .of_kind(&fleet, MEMBER)
        .into_iter()
        .map(|member| {
            json!({
                "clusterResourceId": member.text("clusterResourceId"),
                "name": member.name(),
                "status": not_started,
            })
        })
        .collect();
    let is_checked = since(draft.now, 2025, 1);
    if members.is_empty() && is_checked {
        return Err(ErrorResponse::new(
            409,
            "UpdateRunTargetingEmptyFleet",
            "The fleet has no member that the update run could update.",
        ));
    }
    let stages = json!([{
        "name": "default",
        "status": not_started,
        "groups": [{"name": "default", "status": not_started, "members": members}],
    }]);
    draft.own("status", || {
        let mut status = json!({"stages": stages, "status": not_started});
        if is_checked {
            status["nodeImageSelection"] = json!({});
        }
        status
    });
    Ok(())
}
