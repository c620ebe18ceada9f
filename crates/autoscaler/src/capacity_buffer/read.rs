//! Buffers and what they refer to, kept up by watches. Reads only.

use std::sync::Arc;

use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet, StatefulSet},
    core::v1::PodTemplate,
};
use kube::ResourceExt;
use slipway_packing::model::Pod;
use slipway_runtime::{Context, Informer, ObjectKey, Scope};

use super::resolve::{Shape, pods, resolve};
use crate::api::CapacityBuffer;

/// Where the gate is on.
pub struct Buffers {
    pub(crate) buffers: Informer<CapacityBuffer>,
    pub(crate) templates: Informer<PodTemplate>,
    pub(crate) deployments: Informer<Deployment>,
    pub(crate) stateful_sets: Informer<StatefulSet>,
    pub(crate) replica_sets: Informer<ReplicaSet>,
}

impl Buffers {
    pub fn start(context: &Context) -> Self {
        let scope = || Scope::of_namespace(&context.settings);
        let informers = &context.informers;
        Buffers {
            buffers: informers.get(scope()),
            templates: informers.get(scope()),
            deployments: informers.get(scope()),
            stateful_sets: informers.get(scope()),
            replica_sets: informers.get(scope()),
        }
    }

    pub async fn synced(&self) {
        tokio::join!(
            self.buffers.synced(),
            self.templates.synced(),
            self.deployments.synced(),
            self.stateful_sets.synced(),
            self.replica_sets.synced(),
        );
    }

    /// What a buffer refers to, as the caches show it.
    pub fn shape(&self, buffer: &CapacityBuffer) -> Shape {
        let namespace = buffer.namespace().unwrap_or_default();
        let key = |name: &str| ObjectKey::namespaced(&namespace, name);
        let spec = &buffer.spec;
        let found = match (&spec.pod_template_ref, &spec.scalable_ref) {
            (Some(template), _) => {
                let found = self.templates.get(&key(&template.name));
                found.map(|found| Shape::of_template(&found))
            }
            (None, Some(workload)) => {
                let key = key(&workload.name);
                match workload.kind.as_str() {
                    "Deployment" => self
                        .deployments
                        .get(&key)
                        .map(|found| Shape::of_deployment(&found)),
                    "StatefulSet" => self
                        .stateful_sets
                        .get(&key)
                        .map(|found| Shape::of_stateful_set(&found)),
                    "ReplicaSet" => self
                        .replica_sets
                        .get(&key)
                        .map(|found| Shape::of_replica_set(&found)),
                    _ => None,
                }
            }
            (None, None) => None,
        };
        found.unwrap_or_default()
    }

    /// The pods of all buffers that can be planned for.
    pub fn pods(&self) -> Vec<Pod> {
        let mut all: Vec<Arc<CapacityBuffer>> = self.buffers.list();
        all.retain(|buffer| buffer.metadata.deletion_timestamp.is_none());
        all.sort_by_key(|buffer| (buffer.namespace(), buffer.name_any()));
        all.iter()
            .filter_map(|buffer| Some(pods(buffer, &resolve(buffer, &self.shape(buffer)).ok()?)))
            .flatten()
            .collect()
    }
}
