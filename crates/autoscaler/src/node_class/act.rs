//! Tells of what is written wrongly on an object, once.

use k8s_openapi::api::core::v1::ObjectReference;
use slipway_capi::names;
use slipway_runtime::Context;

use crate::{
    instances::{Finding, SourceKind},
    memory::Memory,
};

pub fn warn(finding: &Finding, memory: &Memory, context: &Context) {
    let object = &finding.object;
    let api_version = match object.kind {
        SourceKind::Template(_) => None,
        _ => Some(format!("{}/{}", names::GROUP, names::VERSION)),
    };
    let kind = object
        .kind
        .template()
        .map_or(object.kind.name(), |(kind, _)| kind);
    let regarding = ObjectReference {
        api_version,
        kind: Some(kind.to_owned()),
        namespace: Some(object.namespace.clone()),
        name: Some(object.name.clone()),
        ..ObjectReference::default()
    };
    memory.management.events(context).record(
        regarding,
        true,
        finding.reason.name(),
        "Describe",
        finding.message.clone(),
    );
    memory.note_reported(&object.to_string(), &finding.message);
}
