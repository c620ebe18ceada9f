//! Cluster extensions and Flux configurations: extension resources on a managed cluster.

use serde_json::{Map, Value, json};

use super::{Draft, Kind, Missing, PLAIN, View, polled};
use crate::{aks::since, azure::Azure, error_response::ErrorResponse, operation::Style, store::Resource};

pub const KINDS: &[Kind] = &[
    Kind {
        path: "Microsoft.KubernetesConfiguration/extensions",
        parent_first: true,
        complete: complete_extension,
        present: present_extension,
        finish: finish_extension,
        ..EXTENSION
    },
    Kind {
        path: "Microsoft.KubernetesConfiguration/fluxConfigurations",
        complete: complete_flux,
        present: present_flux,
        finish: finish_flux,
        ..EXTENSION
    },
];

const EXTENSION: Kind = Kind {
    style: Style::Extension,
    create: polled(201, true, true, None),
    update: polled(200, true, true, None),
    unchanged: polled(200, true, true, None),
    delete: polled(202, true, false, None),
    located: false,
    missing: Missing::Extension,
    parent_missing: Missing::Gateway,
    ..PLAIN
};

#[expect(clippy::unnecessary_wraps, reason = "one signature for every type")]
fn complete_extension(draft: &mut Draft<'_>) -> Result<(), ErrorResponse> {
    // Protected settings go in and never come out.
    if let Some(Value::Object(settings)) = draft.properties().remove("configurationProtectedSettings") {
        let names: Map<String, Value> = settings.keys().map(|key| (key.clone(), "".into())).collect();
        draft
            .properties()
            .insert("configurationProtectedSettings".to_owned(), Value::Object(names));
    }
    for (key, value) in [
        ("autoUpgradeMinorVersion", json!(true)),
        ("releaseTrain", json!("Stable")),
        ("configurationSettings", json!({})),
        ("configurationProtectedSettings", json!({})),
        ("statuses", json!([])),
        ("isSystemExtension", json!(false)),
    ] {
        draft.fill(key, value);
    }
    let kind = draft
        .properties()
        .get("extensionType")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let namespace = kind.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
    draft.fill(
        "scope",
        json!({"cluster": {"releaseNamespace": format!("{namespace}-system")}}),
    );
    let kept = draft
        .old
        .and_then(|old| old.properties().get("currentVersion").cloned());
    if let Some(kept) = kept {
        draft.fill("currentVersion", kept);
    }
    Ok(())
}

fn finish_extension(resource: &mut Resource) {
    let version = resource.properties().get("version").cloned();
    let principal = resource.etag.clone();
    let properties = resource.properties_mut();
    properties.insert(
        "currentVersion".to_owned(),
        version.unwrap_or_else(|| "1.15.1".into()),
    );
    properties
        .entry("aksAssignedIdentity")
        .or_insert_with(|| json!({"type": null, "principalId": principal, "tenantId": null}));
}

/// This provider does not know who asked.
fn anonymous(resource: &Resource) -> Value {
    json!({
        "createdBy": null,
        "createdByType": null,
        "createdAt": resource.created.to_string(),
        "lastModifiedBy": null,
        "lastModifiedByType": null,
        "lastModifiedAt": resource.changed.to_string(),
    })
}

fn present_extension(azure: &Azure, resource: &Resource, view: &View<'_>, document: &mut Map<String, Value>) {
    document.insert("systemData".to_owned(), anonymous(resource));
    // The identity was shown to whoever asked for it, and by its own name after that; since 2026 by its own name only.
    if view.written && !since(view.now, 2026, 1) {
        if let Some(identity) = document.get_mut("identity").and_then(Value::as_object_mut) {
            identity.insert("principalId".to_owned(), resource.etag.clone().into());
        }
    } else {
        document.remove("identity");
    }
    let properties = crate::store::object_mut(document, "properties");
    for key in ["version", "currentVersion", "aksAssignedIdentity"] {
        properties.entry(key).or_insert(Value::Null);
    }
    if let Some(identity) = properties
        .get_mut("aksAssignedIdentity")
        .and_then(Value::as_object_mut)
        && since(view.now, 2026, 1)
    {
        identity.insert("tenantId".to_owned(), azure.settings.tenant.clone().into());
    }
}

#[expect(clippy::unnecessary_wraps, reason = "one signature for every type")]
fn complete_flux(draft: &mut Draft<'_>) -> Result<(), ErrorResponse> {
    for (key, value) in [
        ("scope", json!("cluster")),
        ("namespace", json!("default")),
        ("suspend", json!(false)),
        ("waitForReconciliation", json!(false)),
        ("configurationProtectedSettings", json!({})),
    ] {
        draft.fill(key, value);
    }
    if let Some(repository) = draft
        .properties()
        .get_mut("gitRepository")
        .and_then(Value::as_object_mut)
    {
        for key in ["timeoutInSeconds", "syncIntervalInSeconds"] {
            repository.entry(key).or_insert_with(|| 600.into());
        }
    }
    for (name, entry) in draft
        .properties()
        .get_mut("kustomizations")
        .and_then(Value::as_object_mut)
        .into_iter()
        .flatten()
    {
        let Some(entry) = entry.as_object_mut() else {
            continue;
        };
        for (key, value) in [
            ("name", json!(name)),
            ("path", json!("")),
            ("timeoutInSeconds", json!(600)),
            ("syncIntervalInSeconds", json!(600)),
            ("prune", json!(false)),
            ("force", json!(false)),
            ("wait", json!(true)),
        ] {
            entry.entry(key).or_insert(value);
        }
    }
    Ok(())
}

/// Once it was applied, a configuration tells how its source and its parts are doing.
fn finish_flux(resource: &mut Resource) {
    let (name, at) = (resource.name().to_owned(), resource.changed.to_string());
    let namespace = resource.text("namespace").to_owned();
    let branch = resource
        .properties()
        .get("gitRepository")
        .and_then(|repository| repository["repositoryRef"]["branch"].as_str())
        .unwrap_or("main")
        .to_owned();
    let revision = format!("{branch}@sha1:{}", resource.etag.replace('-', ""));
    let condition = |kind: &str| {
        json!({
            "lastTransitionTime": at,
            "message": format!("stored artifact for revision '{revision}'"),
            "reason": "Succeeded",
            "status": "True",
            "type": kind,
        })
    };
    let status = |name: String, kind: &str, conditions: [&str; 2]| {
        json!({
            "name": name,
            "namespace": namespace,
            "kind": kind,
            "complianceState": "Compliant",
            "appliedBy": null,
            "statusConditions": conditions.map(condition),
            "helmReleaseProperties": null,
        })
    };
    let mut statuses = vec![status(
        name.clone(),
        "GitRepository",
        ["Ready", "ArtifactInStorage"],
    )];
    let parts: Vec<String> = resource
        .properties()
        .get("kustomizations")
        .and_then(Value::as_object)
        .map(|parts| parts.keys().cloned().collect())
        .unwrap_or_default();
    statuses.extend(
        parts
            .into_iter()
            .map(|part| status(format!("{name}-{part}"), "Kustomization", ["Ready", "Healthy"])),
    );
    let properties = resource.properties_mut();
    for (key, value) in [
        ("repositoryPublicKey", json!("")),
        ("sourceUpdatedAt", json!(at)),
        ("statusUpdatedAt", json!(at)),
        ("sourceSyncedCommitId", json!(revision)),
        ("complianceState", json!("Compliant")),
        ("errorMessage", json!("")),
        ("statuses", json!(statuses)),
    ] {
        properties.insert(key.to_owned(), value);
    }
}

fn present_flux(_: &Azure, resource: &Resource, view: &View<'_>, document: &mut Map<String, Value>) {
    document.insert("systemData".to_owned(), anonymous(resource));
    let properties = crate::store::object_mut(document, "properties");
    let is_newer = view.api >= "2024";
    for key in [
        "bucket",
        "azureBlob",
        "repositoryPublicKey",
        "sourceUpdatedAt",
        "statusUpdatedAt",
        "sourceSyncedCommitId",
        "complianceState",
        "errorMessage",
        "reconciliationWaitDuration",
    ] {
        properties.entry(key).or_insert(Value::Null);
    }
    if is_newer {
        properties.entry("ociRepository").or_insert(Value::Null);
    }
    properties.entry("statuses").or_insert_with(|| json!([]));
    if let Some(repository) = properties.get_mut("gitRepository").and_then(Value::as_object_mut) {
        for key in ["sshKnownHosts", "httpsUser", "httpsCACert", "localAuthRef"] {
            repository.entry(key).or_insert(Value::Null);
        }
        let reference = crate::store::object_mut(repository, "repositoryRef");
        for key in ["branch", "tag", "semver", "commit"] {
            reference.entry(key).or_insert(Value::Null);
        }
    }
    for entry in properties
        .get_mut("kustomizations")
        .and_then(Value::as_object_mut)
        .into_iter()
        .flat_map(|entries| entries.values_mut())
        .filter_map(Value::as_object_mut)
    {
        for key in ["dependsOn", "retryIntervalInSeconds", "postBuild"] {
            entry.entry(key).or_insert(Value::Null);
        }
    }
}
