//! Carries what may change without a new server to running ones: labels and annotations of the machine, its
//! configuration and its host; limits, readiness gates and taints of the machine. Deleting ones are included. Writes
//! nothing where all of it is there and nothing too much is.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ApiResource;
use serde_json::{Value, json};
use slipway_capi::{apply, view::Machine};

use super::{
    act::Hands,
    create::{MANAGERS, propagated},
};
use crate::{api::KThreesConfig, error::Error};

/// Part of the spec of an object, as it is and as it should be.
#[derive(Default)]
struct Fields {
    present: BTreeMap<&'static str, Value>,
    wanted: BTreeMap<&'static str, Value>,
}

impl Hands<'_> {
    pub async fn sync(&self, name: &str) -> Result<(), Error> {
        let Some(machine) = self.scene.machines.get(name) else {
            return Ok(());
        };
        let fields = Fields {
            present: present(machine),
            wanted: propagated(&self.object.spec.machines()),
        };
        self.sync_one(&ApiResource::erase::<Machine>(&()), &machine.metadata, fields)
            .await?;
        // Nothing is gained by marking what goes away with its machine.
        if machine.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        if let Some(config) = self.scene.configs.get(name) {
            let resource = ApiResource::erase::<KThreesConfig>(&());
            self.sync_one(&resource, &config.metadata, Fields::default())
                .await?;
        }
        if let Some((resource, host)) = self.scene.hosts.get(name) {
            self.sync_one(resource, &host.metadata, Fields::default()).await?;
        }
        Ok(())
    }

    async fn sync_one(
        &self,
        resource: &ApiResource,
        metadata: &ObjectMeta,
        fields: Fields,
    ) -> Result<(), Error> {
        let (labels, annotations) = (self.labels(), self.annotations());
        let owned = owned(metadata);
        let keeps = |present: Option<&BTreeMap<String, String>>,
                     wanted: &BTreeMap<String, String>,
                     owned: &BTreeSet<String>| {
            wanted
                .iter()
                .all(|(key, value)| present.and_then(|present| present.get(key)) == Some(value))
                && owned.iter().all(|key| wanted.contains_key(key))
        };
        let same_fields = fields
            .wanted
            .iter()
            .all(|(field, wanted)| fields.present.get(field) == Some(wanted))
            && owned
                .fields
                .iter()
                .all(|field| fields.wanted.contains_key(field.as_str()));
        if keeps(metadata.labels.as_ref(), &labels, &owned.labels)
            && keeps(metadata.annotations.as_ref(), &annotations, &owned.annotations)
            && same_fields
        {
            return Ok(());
        }
        let (client, namespace) = (&self.context.client, self.namespace());
        let name = metadata.name.clone().unwrap_or_default();
        let now = self.context.clock.now();
        // What one manager wrote, or the creation was interrupted with, is brought over first: it could not be unset.
        let former = apply::migrate(&resource.api_version, metadata, MANAGERS, &[], now)
            .or_else(|| apply::release_metadata(metadata, MANAGERS));
        if let Some(patch) = former {
            apply::merge(client, resource, &namespace, &name, &patch).await?;
        }
        let mut intent = json!({
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": metadata.uid,
                "labels": labels,
                "annotations": annotations,
            },
        });
        for (field, value) in fields.wanted {
            intent["spec"][field] = value;
        }
        apply::apply(client, resource, MANAGERS.metadata, &intent, false).await?;
        Ok(())
    }
}

/// What of a machine's spec is carried, as it is.
fn present(machine: &Machine) -> BTreeMap<&'static str, Value> {
    let without_empty = |pairs: Vec<(&str, Value)>| -> Value {
        Value::Object(
            pairs
                .into_iter()
                .filter(|(_, value)| !value.is_null() && *value != "")
                .map(|(key, value)| (key.to_owned(), value))
                .collect(),
        )
    };
    let deletion = &machine.spec.deletion;
    let limits = without_empty(vec![
        (
            "nodeDrainTimeoutSeconds",
            json!(deletion.node_drain_timeout_seconds),
        ),
        (
            "nodeVolumeDetachTimeoutSeconds",
            json!(deletion.node_volume_detach_timeout_seconds),
        ),
        (
            "nodeDeletionTimeoutSeconds",
            json!(deletion.node_deletion_timeout_seconds),
        ),
    ]);
    let gates: Vec<Value> = machine
        .spec
        .readiness_gates
        .iter()
        .map(|gate| {
            without_empty(vec![
                ("conditionType", json!(gate.condition_type)),
                ("polarity", json!(gate.polarity)),
            ])
        })
        .collect();
    let taints: Vec<Value> = machine
        .spec
        .taints
        .iter()
        .map(|taint| {
            without_empty(vec![
                ("key", json!(taint.key)),
                ("value", json!(taint.value)),
                ("effect", json!(taint.effect)),
                ("propagation", json!(taint.propagation)),
            ])
        })
        .collect();
    BTreeMap::from([
        ("deletion", limits),
        ("readinessGates", json!(gates)),
        ("taints", json!(taints)),
    ])
}

/// What our manager of labels and annotations owns of an object.
#[derive(Default)]
struct Owned {
    labels: BTreeSet<String>,
    annotations: BTreeSet<String>,
    fields: BTreeSet<String>,
}

fn owned(metadata: &ObjectMeta) -> Owned {
    let entry = metadata.managed_fields.iter().flatten().find(|entry| {
        entry.manager.as_deref() == Some(MANAGERS.metadata)
            && entry.operation.as_deref() == Some("Apply")
            && entry.subresource.as_deref().unwrap_or_default().is_empty()
    });
    let Some(fields) = entry.and_then(|entry| entry.fields_v1.as_ref()) else {
        return Owned::default();
    };
    let keys = |value: &Value| -> BTreeSet<String> {
        value
            .as_object()
            .into_iter()
            .flat_map(serde_json::Map::keys)
            .filter_map(|key| key.strip_prefix("f:"))
            .map(ToOwned::to_owned)
            .collect()
    };
    Owned {
        labels: keys(&fields.0["f:metadata"]["f:labels"]),
        annotations: keys(&fields.0["f:metadata"]["f:annotations"]),
        fields: keys(&fields.0["f:spec"]),
    }
}
