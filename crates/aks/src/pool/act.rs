//! The actions of the pool controller: each is one idempotent call, or none where nothing differs.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use slipway_azure::{
    reconcile::{Error, StepResult, StepStatus, step},
    workload::nodes::{NodeListing, Nodes, from_scale_sets},
};
use slipway_capi::{
    names::annotation,
    secret::{Purpose, VALUE_KEY},
    view::MachinePool,
};
use slipway_runtime::{Context, ObjectKey};
use tokio::time::Instant;

use super::{
    controller::{Listing, Machines},
    observe::{ReconcileContext, machines_key},
};
use crate::{
    api::AzureManagedMachinePool,
    frame,
    plan::{DesiredResource, pool::scales},
};

/// How the machines of a pool that AKS scales are looked up again where its nodes cannot be watched: a machine that
/// went and another that came leave no trace in the pool.
const RELIST_SCALED: Duration = Duration::from_hours(1);
/// What the annotation on a MachinePool says when AKS decides its replicas. The value is the one clusters already have.
const MANAGED: &str = "true";

pub struct Executor<'a> {
    pub reconcile: ReconcileContext,
    pub context: &'a Context,
    pub nodes: &'a Nodes,
    pub machines: &'a Machines,
}

fn hash(ids: &[String]) -> u64 {
    let mut hasher = DefaultHasher::new();
    ids.hash(&mut hasher);
    hasher.finish()
}

impl Executor<'_> {
    pub async fn intend(&mut self, desired: &DesiredResource) -> Result<(), Error> {
        let state = self.reconcile.observations.state_of(&desired.id);
        self.reconcile
            .records
            .intend(&desired.id, &self.reconcile.api_version, state);
        self.store_records().await
    }

    pub async fn store_records(&mut self) -> Result<(), Error> {
        if let Some(patch) = self.reconcile.records.patch() {
            let stored = self
                .patch_pool(&patch, "storing what was applied to Azure")
                .await?;
            self.reconcile.observed.pool.metadata = stored.metadata;
            self.reconcile.records.stored();
        }
        Ok(())
    }

    async fn patch_pool(&self, patch: &Value, doing: &str) -> Result<AzureManagedMachinePool, Error> {
        self.context
            .patch(&self.reconcile.observed.pool, patch)
            .await
            .map_err(Error::api(doing))
    }

    pub async fn ensure(&mut self, desired: &DesiredResource) -> StepResult {
        let Some(session) = &self.reconcile.session else {
            return StepResult::done(StepStatus::Done);
        };
        let result = step::ensure(
            &session.arm,
            &desired.id,
            &desired.manifest,
            &mut self.reconcile.observations,
            &mut self.reconcile.records,
            self.reconcile.max_age,
        )
        .await;
        let pool = &self.reconcile.observed.pool;
        frame::tell_sent(pool, "node pool", &desired.id, &result, self.context);
        self.reconcile.observed.state = self.reconcile.observations.state_of(&desired.id).clone();
        result
    }

    pub async fn delete(&mut self, id: &str) -> StepResult {
        let Some(session) = &self.reconcile.session else {
            return StepResult::done(StepStatus::Deleted);
        };
        let version = self.reconcile.api_version.clone();
        step::delete(
            &session.arm,
            id,
            &version,
            &mut self.reconcile.observations,
            &mut self.reconcile.records,
        )
        .await
    }

    /// AKS scales the pool: the MachinePool says so and carries AKS's count.
    pub async fn follow_replicas(&self, count: i32) -> Result<(), Error> {
        let Some(pool) = &self.reconcile.observed.machine_pool else {
            return Ok(());
        };
        let patch = json!({
            "metadata": {"annotations": {(annotation::REPLICAS_MANAGED_BY): MANAGED}},
            "spec": {"replicas": count},
        });
        self.patch_machine_pool(pool, &patch).await
    }

    pub async fn stop_following(&self) -> Result<(), Error> {
        let Some(pool) = &self.reconcile.observed.machine_pool else {
            return Ok(());
        };
        let patch = json!({"metadata": {"annotations": {(annotation::REPLICAS_MANAGED_BY): null}}});
        self.patch_machine_pool(pool, &patch).await
    }

    async fn patch_machine_pool(&self, pool: &MachinePool, patch: &Value) -> Result<(), Error> {
        let name = pool.name_any();
        let api: Api<MachinePool> =
            Api::namespaced(self.context.client.clone(), &pool.namespace().unwrap_or_default());
        let stored = api
            .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .map_err(Error::api(format!("writing the replicas of MachinePool {name}")))?;
        self.context.writes().saw(&stored);
        Ok(())
    }

    /// Writes the provider ids of the pool's nodes, if they can be told and differ.
    pub async fn list_nodes(&mut self) -> Result<(), Error> {
        let Some(ids) = self.provider_ids().await? else {
            return Ok(());
        };
        if ids == self.reconcile.observed.pool.spec.provider_id_list {
            return Ok(());
        }
        let patch = json!({"spec": {"providerIDList": ids}});
        let stored = self
            .patch_pool(&patch, "writing the provider ids of the nodes")
            .await?;
        self.reconcile.observed.pool.metadata = stored.metadata;
        self.reconcile.observed.pool.spec = stored.spec;
        Ok(())
    }

    async fn provider_ids(&self) -> Result<Option<Vec<String>>, Error> {
        let pool = &self.reconcile.observed.pool;
        let key = ObjectKey::of(pool);
        match self.told(&key).await? {
            NodeListing::Nodes(ids) => return Ok(Some(ids)),
            NodeListing::Pending => return Ok(None),
            NodeListing::Unreachable => {}
        }
        let (Some(session), Some(group)) = (&self.reconcile.session, &self.reconcile.node_group) else {
            return Ok(None);
        };
        // While AKS still works on the pool its machines come and go: they are listed when it is done.
        if self.reconcile.observed.state.provisioning_state() != Some("Succeeded") {
            return Ok(None);
        }
        let state = machines_key(&self.reconcile.observed.state);
        let scaled = scales(&self.reconcile.observed.state);
        let listed = self.machines.lock().get(&key).cloned();
        // A list that is no longer ours was emptied, or the pool is another of the same name.
        let current = listed.is_some_and(|listing| {
            Some(listing.state) == state
                && listing.written == hash(&pool.spec.provider_id_list)
                && (!scaled || listing.at.elapsed() < RELIST_SCALED)
        });
        if current {
            return Ok(None);
        }
        let ids = from_scale_sets(&session.arm, group, pool.azure_name()).await?;
        if let Some(state) = state {
            let listing = Listing {
                state,
                written: hash(&ids),
                at: Instant::now(),
            };
            self.machines.lock().insert(key, listing);
        }
        Ok(Some(ids))
    }

    /// What the workload cluster says of the pool's nodes.
    async fn told(&self, key: &ObjectKey) -> Result<NodeListing, Error> {
        let observed = &self.reconcile.observed;
        let namespace = observed.pool.meta().namespace.clone().unwrap_or_default();
        let name = Purpose::Kubeconfig.secret_name(&observed.cluster_name);
        let secret = Api::<Secret>::namespaced(self.context.client.clone(), &namespace)
            .get_opt(&name)
            .await
            .map_err(Error::api(format!("reading Secret {name}")))?;
        let text = secret
            .as_ref()
            .and_then(|secret| secret.data.as_ref()?.get(VALUE_KEY))
            .and_then(|bytes| std::str::from_utf8(&bytes.0).ok());
        let Some(text) = text else {
            return Ok(NodeListing::Unreachable);
        };
        let cluster = ObjectKey::namespaced(&namespace, &observed.cluster_name);
        let group = self.reconcile.node_group.as_deref();
        let pool = observed.pool.azure_name();
        Ok(self.nodes.of_pool(&cluster, text, pool, group, key, self.context))
    }
}
