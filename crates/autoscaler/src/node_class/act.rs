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
    let regarding = ObjectReference {
        api_version,
        kind: Some(object.kind.name().to_owned()),
        namespace: Some(object.namespace.clone()),
        name: Some(object.name.clone()),
        ..ObjectReference::default()
    };
    context.events.record(
        regarding,
        true,
        finding.reason.name(),
        "Describe",
        finding.message.clone(),
    );
    memory.note_reported(&object.to_string(), &finding.message);
}
