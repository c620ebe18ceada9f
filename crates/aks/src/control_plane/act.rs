//! The actions of the control plane controller: each is one idempotent call, or none where nothing differs.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::{Value, json};
use slipway_azure::{
    ArmError, Priority, ResourceId,
    reconcile::{Error, ResourceKind, StepResult, StepStatus, step},
    workload::{
        joining,
        kubeconfig::{self, KubeconfigKind, Verdict},
    },
};
use slipway_capi::owner;
use slipway_runtime::{Context, Outcome};

use super::observe::{ReconcileContext, sign_in};
use crate::{
    frame,
    plan::{Action, DesiredResource, control_plane::endpoint},
    render::ids,
    status,
};

/// What became of the kubeconfigs.
#[derive(Debug, Default)]
pub struct Written {
    pub administrator: bool,
    /// When the first token in them is renewed.
    pub renew: Option<Timestamp>,
}

pub struct Executor<'a> {
    pub reconcile: ReconcileContext,
    pub context: &'a Context,
}

impl Executor<'_> {
    /// Notes what is going to be asked for before it is, so that nothing we make is ever unknown to us.
    pub async fn intend(&mut self, plan: &[Action]) -> Result<(), Error> {
        for action in plan {
            let Action::Ensure(desired) = action else { continue };
            let api_version = step::api_version(&desired.manifest)?;
            self.reconcile.records.ensure_mark(|| self.context.random.uuid());
            self.reconcile.records.intend(
                &desired.id,
                &api_version,
                self.reconcile.observations.state_of(&desired.id),
                self.context.clock.now(),
            );
        }
        self.store_records().await
    }

    /// Stores what was applied, if it changed.
    pub async fn store_records(&mut self) -> Result<(), Error> {
        if let Some(patch) = self.reconcile.records.patch() {
            let stored = self
                .context
                .patch(&self.reconcile.observed.plane, &patch)
                .await
                .map_err(Error::api("storing what was applied to Azure"))?;
            self.reconcile.observed.plane.metadata = stored.metadata;
            self.reconcile.records.stored();
        }
        Ok(())
    }

    pub async fn ensure(&mut self, desired: &DesiredResource) -> StepResult {
        let result = step::ensure(
            &self.reconcile.session.arm,
            &desired.id,
            &desired.manifest,
            &mut self.reconcile.observations,
            &mut self.reconcile.records,
            self.reconcile.max_age,
        )
        .await;
        let (plane, kind) = (&self.reconcile.observed.plane, format!("{:?}", desired.kind));
        frame::tell_sent(plane, &kind, &desired.id, &result, self.context);
        result
    }

    /// A resource of ours vanished: it is reported, and made again in the next reconcile.
    pub fn accept_vanished(&mut self, kind: ResourceKind, id: &str) -> StepResult {
        self.report_vanished(kind, id);
        self.reconcile.records.vanished(id);
        StepResult::waiting(status::vanished(id), Outcome::InProgress(frame::SOON))
    }

    /// The event for a resource that vanished, once.
    pub fn report_vanished(&self, kind: ResourceKind, id: &str) {
        let plane = &self.reconcile.observed.plane;
        frame::report_vanished(plane, status::condition_of(kind), id, self.context);
    }

    pub async fn delete(&mut self, kind: ResourceKind, id: &str) -> StepResult {
        let key = id.to_lowercase();
        let api_version = self.reconcile.api_versions.get(&key).cloned().unwrap_or_default();
        if kind == ResourceKind::ResourceGroup {
            match self.others_in(id).await {
                Ok(others) if others.is_empty() => {}
                Ok(others) => {
                    let note = format!("{id} stays: it also holds {}", others.join(", "));
                    self.context.events.warning(
                        &self.reconcile.observed.plane,
                        "ResourceGroupInUse",
                        "Delete",
                        note,
                    );
                    self.reconcile.records.forget(id);
                    return StepResult::done(StepStatus::Deleted);
                }
                Err(error) => return StepResult::failed(error),
            }
        }
        step::delete(
            &self.reconcile.session.arm,
            id,
            &api_version,
            &mut self.reconcile.observations,
            &mut self.reconcile.records,
        )
        .await
    }

    /// The AKS clusters in a resource group: by the time the group goes, ours is gone.
    async fn others_in(&self, group: &str) -> Result<Vec<String>, Error> {
        let observed = &self.reconcile.observed;
        let cluster = ids::managed_cluster(&observed.facts());
        let api_version = self
            .reconcile
            .api_versions
            .get(&cluster.to_lowercase())
            .cloned()
            .unwrap_or_default();
        let path = format!("{group}/providers/Microsoft.ContainerService/managedClusters");
        let scope = ResourceId::parse(&cluster).map_err(ArmError::from)?;
        let arm = &self.reconcile.session.arm;
        let listed = arm
            .client()
            .list(&scope, &path, &api_version, Priority::Change)
            .await;
        let found = match listed {
            Err(ArmError::Refused { refusal, .. }) if refusal.status == 404 => Vec::new(),
            other => other?,
        };
        Ok(found
            .iter()
            .filter_map(|item| item["id"].as_str())
            .filter(|id| !id.eq_ignore_ascii_case(&cluster))
            .map(str::to_owned)
            .collect())
    }

    /// Writes where the API server answers.
    pub async fn set_endpoint(&mut self, host: &str, port: i32) -> Result<(), Error> {
        let patch = json!({"spec": {"controlPlaneEndpoint": {"host": host, "port": port}}});
        let stored = self
            .context
            .patch(&self.reconcile.observed.plane, &patch)
            .await
            .map_err(Error::api("writing the control plane endpoint"))?;
        self.reconcile.observed.plane.metadata = stored.metadata;
        self.reconcile.observed.plane.spec = stored.spec;
        Ok(())
    }

    /// Brings both kubeconfig Secrets up to date.
    pub async fn write_kubeconfigs(&mut self, now: Timestamp) -> Result<Written, Error> {
        let cluster = self.reconcile.observed.cluster_state();
        let (entra, only_entra) = sign_in(cluster);
        let Some((host, port)) = endpoint(&self.reconcile.observed.plane, cluster) else {
            return Ok(Written::default());
        };
        let endpoint = format!("{host}:{port}");
        let mut written = Written::default();
        let mut kinds = vec![(KubeconfigKind::Administrator, self.reconcile.administrator.take())];
        if entra {
            kinds.push((KubeconfigKind::User, self.reconcile.user.take()));
        }
        let mut ca = None;
        for (kind, found) in kinds {
            let observed = &self.reconcile.observed;
            let plane = &observed.plane.metadata;
            let verdict = kubeconfig::judge(found.as_ref(), plane, &observed.cluster_name, &endpoint, now);
            let (renew, stored) = match verdict {
                Verdict::Foreign => (None, None),
                Verdict::Good(renew) => (renew, found),
                Verdict::Write | Verdict::Replace => {
                    let with_token = kind == KubeconfigKind::Administrator && only_entra;
                    let made = self.fetch(kind, with_token, &endpoint, now).await?;
                    let patch = kubeconfig::patch(&made, &observed.cluster_name);
                    self.store(found.as_ref(), &made, &patch, verdict == Verdict::Replace)
                        .await?;
                    match kubeconfig::judge(Some(&made), plane, &observed.cluster_name, &endpoint, now) {
                        Verdict::Good(renew) => (renew, Some(made)),
                        _ => (None, Some(made)),
                    }
                }
            };
            if kind == KubeconfigKind::Administrator {
                ca = stored.as_ref().and_then(kubeconfig::ca);
            }
            written.administrator |= kind == KubeconfigKind::Administrator;
            written.renew = [written.renew, renew].into_iter().flatten().min();
        }
        if let Some(ca) = ca {
            self.write_ca(&ca).await?;
        }
        Ok(written)
    }

    /// Brings the Secret of the cluster's CA up to date.
    async fn write_ca(&mut self, ca: &[u8]) -> Result<(), Error> {
        let found = self.reconcile.ca.take();
        let observed = &self.reconcile.observed;
        let plane = &observed.plane.metadata;
        let verdict = joining::judge(found.as_ref(), plane, &observed.cluster_name, ca);
        let Some(controller) = owner::controller_reference(&observed.plane)
            .filter(|_| matches!(verdict, Verdict::Write | Verdict::Replace))
        else {
            return Ok(());
        };
        let namespace = observed.plane.namespace().unwrap_or_default();
        let made = joining::make(&namespace, &observed.cluster_name, controller, ca);
        let patch = joining::patch(&made, &observed.cluster_name);
        self.store(found.as_ref(), &made, &patch, verdict == Verdict::Replace)
            .await
    }

    /// The Secret for a kubeconfig that AKS hands out now.
    async fn fetch(
        &self,
        kind: KubeconfigKind,
        with_token: bool,
        endpoint: &str,
        now: Timestamp,
    ) -> Result<Secret, Error> {
        let observed = &self.reconcile.observed;
        let id = ids::managed_cluster(&observed.facts());
        let api_version = self
            .reconcile
            .api_versions
            .get(&id.to_lowercase())
            .map_or("", String::as_str);
        let fetched = kubeconfig::fetch(&self.reconcile.session, &id, api_version, kind, with_token).await?;
        owner::controller_reference(&observed.plane)
            .and_then(|controller| {
                kubeconfig::make(
                    &observed.plane.namespace().unwrap_or_default(),
                    &observed.cluster_name,
                    kind,
                    controller,
                    endpoint,
                    &fetched.text,
                    fetched.token.as_ref().map(|token| (token, now)),
                )
            })
            .ok_or(Error::NoKubeconfig {
                action: "listClusterCredential",
            })
    }

    async fn store(
        &self,
        found: Option<&Secret>,
        made: &Secret,
        patch: &Value,
        replace: bool,
    ) -> Result<(), Error> {
        let namespace = made.namespace().unwrap_or_default();
        let name = made.name_any();
        let api: Api<Secret> = Api::namespaced(self.context.client.clone(), &namespace);
        let doing = format!("writing Secret {name}");
        let found = match found {
            Some(found) if replace => {
                let same = DeleteParams {
                    preconditions: Some(Preconditions {
                        uid: found.uid(),
                        resource_version: None,
                    }),
                    ..DeleteParams::default()
                };
                match api.delete(&name, &same).await {
                    Err(kube::Error::Api(status)) if status.code == 404 => {}
                    other => {
                        other.map_err(Error::api(format!("replacing Secret {name}")))?;
                    }
                }
                None
            }
            other => other,
        };
        let stored = match found {
            None => api.create(&PostParams::default(), made).await,
            Some(_) => {
                api.patch(&name, &PatchParams::default(), &Patch::Merge(patch))
                    .await
            }
        }
        .map_err(Error::api(doing))?;
        self.context.writes().saw(&stored);
        Ok(())
    }
}

/// Actions of one group do not wait for each other; those of a later group wait for all of an earlier one.
pub fn group(kind: ResourceKind) -> u8 {
    match kind {
        ResourceKind::ResourceGroup => 0,
        ResourceKind::VirtualNetwork => 1,
        ResourceKind::Subnet => 2,
        ResourceKind::ManagedCluster => 3,
        ResourceKind::PrivateEndpoint | ResourceKind::FleetMember | ResourceKind::Extension => 4,
        ResourceKind::AgentPool => 5,
    }
}
