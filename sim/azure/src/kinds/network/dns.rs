//! Private DNS zones and their links to networks.

use serde_json::{Map, Value};

use crate::{
    azure::Azure,
    error_response::ErrorResponse,
    kinds::{Draft, EtagForm, Kind, Missing, PLAIN, View, polled},
    operation::Style,
    store::{Resource, object_mut},
};

const ZONE: &str = "Microsoft.Network/privateDnsZones";
const LINK: &str = "Microsoft.Network/privateDnsZones/virtualNetworkLinks";

pub const DNS: Kind = Kind {
    style: Style::PrivateDns,
    create: polled(202, true, true, Some(30)),
    update: polled(202, true, true, Some(30)),
    unchanged: polled(202, true, true, Some(30)),
    delete: polled(202, true, true, Some(30)),
    etag: EtagForm::Plain,
    located: false,
    missing: Missing::Gateway,
    ..PLAIN
};

pub const KINDS: &[Kind] = &[
    Kind {
        path: ZONE,
        present: present_zone,
        ..DNS
    },
    Kind {
        path: LINK,
        complete: complete_link,
        ..DNS
    },
];

fn present_zone(azure: &Azure, resource: &Resource, _: &View<'_>, document: &mut Map<String, Value>) {
    let links = azure
        .state()
        .resources
        .of_kind(&resource.id.to_ascii_lowercase(), LINK);
    let registering = links
        .iter()
        .filter(|link| link.properties().get("registrationEnabled") == Some(&Value::Bool(true)))
        .count();
    let properties = object_mut(document, "properties");
    for (key, value) in [
        ("maxNumberOfRecordSets", 25_000),
        ("maxNumberOfVirtualNetworkLinks", 1_000),
        ("maxNumberOfVirtualNetworkLinksWithRegistration", 100),
        ("numberOfRecordSets", 1),
        ("numberOfVirtualNetworkLinks", links.len()),
        ("numberOfVirtualNetworkLinksWithRegistration", registering),
    ] {
        properties.insert(key.to_owned(), value.into());
    }
}

fn complete_link(draft: &mut Draft<'_>) -> Result<(), ErrorResponse> {
    super::check_references(draft)?;
    draft.fill("registrationEnabled", false.into());
    draft.own("virtualNetworkLinkState", || "Completed".into());
    Ok(())
}
