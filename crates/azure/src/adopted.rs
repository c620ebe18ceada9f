//! Which resources other objects of this management cluster stand for, asked when an object is deleted: what another one has adopted is
//! not deleted in Azure. Objects of inline resources say in their status where they are.

use std::collections::BTreeMap;

use kube::{
    Api,
    api::{ApiResource, DynamicObject, ListParams},
    core::GroupVersionKind,
};
use serde_json::Value;
use slipway_runtime::Context;

use crate::{ownership::Foreign, reconcile::Error};

const GROUP: &str = "infrastructure.cluster.x-k8s.io";
/// Kind and plural of those that hold inline resources.
const HOLDERS: [(&str, &str); 3] = [
    ("AzureASOManagedCluster", "azureasomanagedclusters"),
    ("AzureASOManagedControlPlane", "azureasomanagedcontrolplanes"),
    ("AzureASOManagedMachinePool", "azureasomanagedmachinepools"),
];

/// Who stands for which resource, by id in lower case. Objects that are being deleted themselves do not count, nor does the one with
/// this uid.
pub async fn adopted(own: Option<&str>, context: &Context) -> Result<BTreeMap<String, Foreign>, Error> {
    let mut found = BTreeMap::new();
    for (kind, plural) in HOLDERS {
        let versioned = GroupVersionKind::gvk(GROUP, "v1beta1", kind);
        let resource = ApiResource::from_gvk_with_plural(&versioned, plural);
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
            if metadata.deletion_timestamp.is_some() || metadata.uid.as_deref() == own {
                continue;
            }
            let name = format!(
                "{kind} {}/{}",
                metadata.namespace.as_deref().unwrap_or_default(),
                metadata.name.as_deref().unwrap_or_default()
            );
            let lines = object.data.pointer("/status/resources").and_then(Value::as_array);
            for id in lines.into_iter().flatten().filter_map(|line| line["id"].as_str()) {
                let by = Foreign::Adopted { object: name.clone() };
                found.entry(id.to_lowercase()).or_insert(by);
            }
        }
    }
    Ok(found)
}
