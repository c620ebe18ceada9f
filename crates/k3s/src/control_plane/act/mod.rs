//! One action, one idempotent call (or a few that can be made again from the start). The only place that writes.

mod create;
mod in_place;
mod members;
mod secrets;
mod sync;

use kube::{
    Api, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, Preconditions},
};
use serde_json::{Value, json};
use slipway_capi::{hook::HookClient, names::condition, owner, view::Machine};
use slipway_runtime::controller::Context;

use super::{
    observe::Snapshot,
    plan::{Action, MachineCondition, Why},
    workload::Connection,
};
use crate::{
    api::{
        CLUSTER_NETWORK_ANNOTATION, INITIALIZED_ANNOTATION, KThreesControlPlane, LEGACY_PRE_TERMINATE_HOOK,
        MEMBER_REMOVAL_ANNOTATION, PRE_TERMINATE_HOOK, REMEDIATION_IN_PROGRESS_ANNOTATION,
    },
    error::Error,
};

pub use create::{MANAGERS, propagated};

/// What acting needs.
pub struct Executor<'reconcile> {
    pub object: &'reconcile KThreesControlPlane,
    pub snapshot: &'reconcile mut Snapshot,
    pub context: &'reconcile Context,
    pub hooks: &'reconcile HookClient,
}

fn machine_resource() -> ApiResource {
    ApiResource::erase::<Machine>(&())
}

impl Executor<'_> {
    pub(super) fn namespace(&self) -> String {
        self.object.namespace().unwrap_or_default()
    }

    pub(super) fn machines(&self) -> Api<DynamicObject> {
        Api::namespaced_with(
            self.context.client.clone(),
            &self.namespace(),
            &machine_resource(),
        )
    }

    fn connection(&self) -> Result<&Connection, Error> {
        self.snapshot
            .connection
            .as_deref()
            .ok_or_else(|| Error::Unusable {
                doing: "asking k3s to remove an etcd member".into(),
                problem: "the workload cluster is not connected".into(),
            })
    }

    async fn patch_machine(&self, machine: &str, patch: &Value, doing: &str) -> Result<(), Error> {
        self.machines()
            .patch(machine, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .map(|_| ())
            .map_err(Error::api(format!("{doing} Machine {machine}")))
    }

    /// On the machine first: once its member is gone nothing else tells that it ever had one.
    async fn note_removal(&self, machine: Option<&str>, member: &str) -> Result<(), Error> {
        let Some(machine) = machine else { return Ok(()) };
        let patch = json!({"metadata": {"annotations": {MEMBER_REMOVAL_ANNOTATION: member}}});
        self.patch_machine(machine, &patch, "noting the removal of the etcd member of")
            .await
    }

    async fn annotate_self(&self, key: &str, value: Option<String>) -> Result<(), Error> {
        let patch = json!({"metadata": {"annotations": {key: value}}});
        self.context
            .patch(self.object, &patch)
            .await
            .map(|_| ())
            .map_err(Error::api(format!(
                "annotating KThreesControlPlane {}",
                self.object.name_any()
            )))
    }

    pub async fn act(&mut self, action: &Action) -> Result<(), Error> {
        match action {
            Action::Adopt { machine } => self.adopt(machine).await,
            Action::AddHook { machine } => {
                let patch = json!({"metadata": {"annotations": {PRE_TERMINATE_HOOK: ""}}});
                self.patch_machine(machine, &patch, "adding the pre-terminate hook to")
                    .await
            }
            Action::ReleaseHook { machine } => {
                let patch = json!({"metadata": {"annotations": {
                    PRE_TERMINATE_HOOK: null,
                    LEGACY_PRE_TERMINATE_HOOK: null,
                }}});
                self.patch_machine(machine, &patch, "removing the pre-terminate hook of")
                    .await
            }
            Action::ForgetRemediation => self.annotate_self(REMEDIATION_IN_PROGRESS_ANNOTATION, None).await,
            Action::ClearRemediationMark { machine } => self.set_remediated(machine, None).await,
            Action::ExplainRemediation {
                machine,
                impossible,
                reason,
            } => {
                let word = if *impossible {
                    "CannotBeRemediated"
                } else {
                    "RemediationDeferred"
                };
                self.set_remediated(machine, Some((word, reason.as_str()))).await
            }
            Action::CreateServer {
                failure_domain,
                remediation_for,
                ..
            } => {
                let made = self
                    .create_server(failure_domain.as_deref(), remediation_for.as_ref())
                    .await?;
                self.snapshot.created = made;
                if remediation_for.is_some() {
                    self.annotate_self(REMEDIATION_IN_PROGRESS_ANNOTATION, None)
                        .await?;
                }
                Ok(())
            }
            Action::DeleteServer { machine, why } => self.delete_server(machine, why).await,
            Action::RemoveMember {
                node,
                member,
                machine,
            } => {
                self.note_removal(machine.as_deref(), member).await?;
                self.connection()?.remove_member(node).await
            }
            Action::WithdrawRemoval { node, .. } => self.connection()?.withdraw_removal(node).await,
            Action::AnnounceOrphan { member, .. } => {
                // The event of the plan says it.
                self.connection()?.announced(member);
                Ok(())
            }
            Action::RemoveOrphan {
                member,
                address,
                machine,
            } => {
                self.note_removal(machine.as_deref(), member).await?;
                self.connection()?.remove_orphan(member, address).await
            }
            Action::DeletePlaceholder { node } => self.connection()?.delete_placeholder(node).await,
            Action::AskInPlace { machine } | Action::UpdateInPlace { machine } => Err(Error::Unusable {
                doing: format!("updating Machine {machine} in place"),
                problem: "handled by the in-place module".into(),
            }),
            // Whoever remembers what was asked does it.
            Action::AskServers { .. } => Ok(()),
            Action::RecordNetwork { record } => {
                self.annotate_self(CLUSTER_NETWORK_ANNOTATION, Some(record.clone()))
                    .await
            }
            Action::MarkInitialized => {
                self.annotate_self(INITIALIZED_ANNOTATION, Some("true".into()))
                    .await
            }
            Action::MakeCa { purpose } => self.make_ca(*purpose).await,
            Action::MakeToken { secret } => self.make_token(secret).await,
            Action::TakeOverSecret { secret } => self.take_over_secret(secret).await,
            Action::WriteKubeconfig { .. } => self.write_kubeconfig().await,
            Action::Sync { machine, part } => self.sync(machine, *part).await,
            Action::SetMachineConditions { machine, conditions } => {
                self.set_machine_conditions(machine, conditions).await
            }
        }
    }

    async fn set_machine_conditions(
        &self,
        machine: &str,
        conditions: &[MachineCondition],
    ) -> Result<(), Error> {
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|condition| {
                json!({
                    "type": condition.type_,
                    "status": condition.status,
                    "reason": condition.reason,
                    "message": condition.message,
                    "lastTransitionTime": self.since(machine, condition.type_, condition.status),
                })
            })
            .collect();
        self.apply_conditions(machine, "capi-kthreescontrolplane-health", &conditions)
            .await
    }

    async fn adopt(&self, machine: &str) -> Result<(), Error> {
        let present = self
            .machines()
            .get(machine)
            .await
            .map_err(Error::api(format!("reading Machine {machine}")))?;
        let Some(controller) = owner::controller_reference(self.object) else {
            return Ok(());
        };
        let mut owners = present.metadata.owner_references.clone().unwrap_or_default();
        owners.push(controller);
        let patch = json!({"metadata": {
            "resourceVersion": present.metadata.resource_version,
            "ownerReferences": owners,
            "annotations": {PRE_TERMINATE_HOOK: ""},
        }});
        self.patch_machine(machine, &patch, "adopting").await
    }

    /// `OwnerRemediated` belongs to whoever remediates, which is us.
    async fn set_remediated(&self, machine: &str, why: Option<(&str, &str)>) -> Result<(), Error> {
        let conditions: Vec<Value> = why
            .into_iter()
            .map(|(reason, message)| {
                json!({
                    "type": condition::OWNER_REMEDIATED,
                    "status": "False",
                    "reason": reason,
                    "message": message,
                    "lastTransitionTime": self.since(machine, condition::OWNER_REMEDIATED, "False"),
                })
            })
            .collect();
        if conditions.is_empty() {
            return self.drop_condition(machine, condition::OWNER_REMEDIATED).await;
        }
        self.apply_conditions(machine, "capi-kthreescontrolplane-remediation", &conditions)
            .await
    }

    /// Since when a machine's condition has had a status.
    pub fn since(&self, machine: &str, type_: &str, status: &str) -> String {
        let stored = self
            .snapshot
            .machines
            .get(machine)
            .and_then(|machine| {
                machine
                    .status
                    .conditions
                    .iter()
                    .find(|found| found.type_ == type_)
            })
            .filter(|found| found.status == status);
        let now = self.context.clock.now();
        let at = stored.map_or(now, |found| found.last_transition_time.0);
        jiff::Timestamp::from_second(at.as_second())
            .unwrap_or(at)
            .to_string()
    }

    pub async fn apply_conditions(
        &self,
        machine: &str,
        manager: &str,
        conditions: &[Value],
    ) -> Result<(), Error> {
        let body = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2",
            "kind": "Machine",
            "metadata": {"name": machine, "namespace": self.namespace()},
            "status": {"conditions": conditions},
        });
        self.machines()
            .patch_status(
                machine,
                &PatchParams::apply(manager).force(),
                &Patch::Apply(&body),
            )
            .await
            // The next reconcile may read what the watch shows.
            .map(|stored| {
                let writes = self.context.writes();
                writes.saw_dynamic(&stored, &machine_resource(), None);
            })
            .map_err(Error::api(format!("writing conditions of Machine {machine}")))
    }

    async fn drop_condition(&self, machine: &str, type_: &str) -> Result<(), Error> {
        let Some(present) = self.snapshot.machines.get(machine) else {
            return Ok(());
        };
        let kept: Vec<_> = present
            .status
            .conditions
            .iter()
            .filter(|found| found.type_ != type_)
            .collect();
        let patch = json!({
            "metadata": {"resourceVersion": present.metadata.resource_version},
            "status": {"conditions": kept},
        });
        self.machines()
            .patch_status(machine, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .map(|_| ())
            .map_err(Error::api(format!("clearing {type_} of Machine {machine}")))
    }

    async fn delete_server(&self, machine: &str, why: &Why) -> Result<(), Error> {
        if let Why::Remediation(record) = why {
            // First the record: a machine that is gone without one would be replaced without counting.
            let text = serde_json::to_string(record).unwrap_or_default();
            self.annotate_self(REMEDIATION_IN_PROGRESS_ANNOTATION, Some(text))
                .await?;
        }
        let uid = self
            .snapshot
            .machines
            .get(machine)
            .and_then(|machine| machine.metadata.uid.clone());
        let parameters = DeleteParams {
            preconditions: uid.map(|uid| Preconditions {
                uid: Some(uid),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match self.machines().delete(machine, &parameters).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => other
                .map(|_| ())
                .map_err(Error::api(format!("deleting Machine {machine}"))),
        }
    }
}
