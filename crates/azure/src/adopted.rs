//! Which resources other objects of this management cluster stand for, asked when an object is deleted: what another one has adopted is
//! not deleted in Azure. Objects of inline resources say in their status where they are; one that is to take over says so from its
//! first moment.

use std::collections::BTreeMap;

use kube::{
    Api,
    api::{DynamicObject, ListParams},
};
use serde_json::Value;
use slipway_runtime::Context;

use crate::{
    ownership::Foreign,
    reconcile::{Error, records::ADOPT},
    rivals::RivalKinds,
};

/// An object that is deleted: its own uid, the mark of what it wrote, and the resources that it asks about.
#[derive(Clone, Copy, Debug)]
pub struct Leaver<'a> {
    pub uid: Option<&'a str>,
    pub mark: Option<&'a str>,
    pub ids: &'a [String],
}

/// Who stands for which resource, by id in lower case. Objects that are being deleted themselves do not count.
pub async fn adopted(leaver: Leaver<'_>, context: &Context) -> Result<BTreeMap<String, Foreign>, Error> {
    let mut found = BTreeMap::new();
    for (kind, plural) in RivalKinds::Inline.all() {
        let resource = RivalKinds::resource(kind, plural);
        let api: Api<DynamicObject> = match &context.settings.namespace {
            Some(namespace) => Api::namespaced_with(context.client.clone(), namespace, &resource),
            None => Api::all_with(context.client.clone(), &resource),
        };
        let list = match api.list(&ListParams::default()).await {
            Ok(list) => list.items,
            // The kind is not installed.
            Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
            Err(error) => return Err(Error::api(format!("listing {kind}s"))(error)),
        };
        for object in list {
            let metadata = &object.metadata;
            if metadata.deletion_timestamp.is_some() || metadata.uid.as_deref() == leaver.uid {
                continue;
            }
            let name = format!(
                "{kind} {}/{}",
                metadata.namespace.as_deref().unwrap_or_default(),
                metadata.name.as_deref().unwrap_or_default()
            );
            let lines = object.data.pointer("/status/resources").and_then(Value::as_array);
            let told = lines.into_iter().flatten().filter_map(|line| line["id"].as_str());
            let adopts = metadata.annotations.as_ref().and_then(|all| all.get(ADOPT));
            let takes_over = adopts.is_some() && adopts.map(String::as_str) == leaver.mark;
            // Before it has a status it is not known which of them it stands for.
            let all = leaver.ids.iter().map(String::as_str).filter(|_| takes_over);
            for id in told.chain(all) {
                let by = Foreign::Adopted { object: name.clone() };
                found.entry(id.to_lowercase()).or_insert(by);
            }
        }
    }
    Ok(found)
}
