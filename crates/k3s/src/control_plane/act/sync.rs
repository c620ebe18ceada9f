//! Brings labels, annotations and what never needs a new server to the objects of a running one.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ApiResource;
use serde_json::json;
use slipway_capi::{apply, view::Machine};

use super::{
    super::plan::Part,
    Executor,
    create::{MANAGERS, propagated},
};
use crate::{api::KThreesConfig, error::Error};

impl Executor<'_> {
    pub(super) async fn sync(&self, name: &str, part: Part) -> Result<(), Error> {
        let snapshot = &self.snapshot;
        let machine = snapshot.machines.get(name);
        let object: Option<(ApiResource, ObjectMeta)> = match part {
            Part::Machine => {
                machine.map(|machine| (ApiResource::erase::<Machine>(&()), machine.metadata.clone()))
            }
            Part::Config => snapshot
                .configs
                .get(name)
                .map(|config| (ApiResource::erase::<KThreesConfig>(&()), config.metadata.clone())),
            Part::InfraMachine => snapshot
                .infra_machines
                .get(name)
                .map(|(resource, found)| (resource.clone(), found.metadata.clone())),
        };
        let Some((resource, metadata)) = object else {
            return Ok(());
        };
        let (client, namespace) = (&self.context.client, self.namespace());
        let name = metadata.name.clone().unwrap_or_default();
        let now = self.context.clock.now();
        // What one manager wrote, or the creation was interrupted with, is brought over first: it could not be unset.
        let former = apply::migrate(&resource.api_version, &metadata, MANAGERS, &[], now)
            .or_else(|| apply::release_metadata(&metadata, MANAGERS));
        if let Some(patch) = former {
            apply::merge(client, &resource, &namespace, &name, &patch).await?;
        }
        let mut intent = json!({
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": metadata.uid,
                "labels": snapshot.server_labels(),
                "annotations": snapshot.server_annotations(),
            },
        });
        if part == Part::Machine {
            for (field, value) in propagated(&self.object.spec.machines()) {
                intent["spec"][field] = value;
            }
        }
        apply::apply(client, &resource, MANAGERS.metadata, &intent, false).await?;
        Ok(())
    }
}
