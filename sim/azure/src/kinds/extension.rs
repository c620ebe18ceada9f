//! Cluster extensions and Flux configurations: extension resources on a managed cluster.

use serde_json::{Map, Value, json};

use super::{Draft, Kind, Missing, PLAIN, View, polled};
use crate::{azure::Azure, operation::Style, refusal::Refusal, store::Resource};

pub const KINDS: &[Kind] = &[
    Kind {
        path: "Microsoft.KubernetesConfiguration/extensions",
        complete: complete_extension,
        present: present_extension,
        ..EXTENSION
    },
    Kind {
        path: "Microsoft.KubernetesConfiguration/fluxConfigurations",
        complete: complete_flux,
        present: present_flux,
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
    missing: Missing::Provider("ResourceNotFound"),
    parent_missing: Missing::Gateway,
    ..PLAIN
};

#[expect(clippy::unnecessary_wraps, reason = "one signature for every type")]
fn complete_extension(draft: &mut Draft<'_>) -> Result<(), Refusal> {
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
    Ok(())
}

fn present_extension(_: &Azure, resource: &Resource, _: &View<'_>, document: &mut Map<String, Value>) {
    document.insert("systemData".to_owned(), super::system_data(resource));
}

#[expect(clippy::unnecessary_wraps, reason = "one signature for every type")]
fn complete_flux(draft: &mut Draft<'_>) -> Result<(), Refusal> {
    for (key, value) in [
        ("scope", json!("cluster")),
        ("namespace", json!("default")),
        ("suspend", json!(false)),
    ] {
        draft.fill(key, value);
    }
    Ok(())
}

fn present_flux(_: &Azure, resource: &Resource, _: &View<'_>, document: &mut Map<String, Value>) {
    document.insert("systemData".to_owned(), super::system_data(resource));
}
