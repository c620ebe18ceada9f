//! Making a server: its KThreesConfig, its InfraMachine and its Machine. All three are applied by the manager of specs, which
//! then lets go of labels and annotations: those belong to the manager that keeps them in step (`sync`).

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Api, ResourceExt,
    api::{ApiResource, ListParams},
};
use serde_json::{Value, json};
use slipway_capi::{
    apply::{self, FieldManagers},
    names::label,
    owner, reference, template,
    view::Machine,
};

use super::{super::observed::RemediationRecord, Executor};
use crate::{
    api::{
        BOOTSTRAP_GROUP, FIELD_MANAGER, KThreesConfig, METADATA_FIELD_MANAGER, MachineTemplate,
        PRE_TERMINATE_HOOK, REMEDIATION_FOR_ANNOTATION, SERVER_CONFIGURATION_ANNOTATION,
        STAYS_OUT_ANNOTATION,
    },
    duration,
    error::Error,
};

/// Who writes the objects of a server.
pub const MANAGERS: FieldManagers = FieldManagers {
    spec: FIELD_MANAGER,
    metadata: METADATA_FIELD_MANAGER,
};

impl Executor<'_> {
    /// The name of the next server: that of one whose making was interrupted, else a new one.
    async fn next_name(&self) -> Result<String, Error> {
        let selector = format!(
            "{}={},{}",
            label::CLUSTER_NAME,
            self.snapshot.cluster_name,
            label::CONTROL_PLANE
        );
        let configs = Api::<KThreesConfig>::namespaced(self.context.client.clone(), &self.namespace())
            .list(&ListParams::default().labels(&selector))
            .await
            .map_err(Error::api("listing the servers' configurations"))?;
        let uid = self.object.uid().unwrap_or_default();
        let interrupted = configs.items.into_iter().find(|config| {
            config.owner_references().iter().any(|owner| owner.uid == uid)
                && config.metadata.deletion_timestamp.is_none()
                && owner::owner_machine_name(&config.metadata).is_none()
                && !self.snapshot.machines.contains_key(&config.name_any())
                && !self.snapshot.machines.values().any(|machine| {
                    machine
                        .spec
                        .bootstrap
                        .config_ref
                        .as_ref()
                        .is_some_and(|reference| reference.name == config.name_any())
                })
        });
        Ok(interrupted.map_or_else(
            || {
                format!(
                    "{}-{}",
                    self.object.name_any(),
                    self.context.random.name_suffix(5)
                )
            },
            |config| config.name_any(),
        ))
    }

    /// The infrastructure template, which the user names.
    async fn template(&self) -> Result<Value, Error> {
        let reference = &self.snapshot.template;
        let missing = |problem: String| Error::Unusable {
            doing: "creating a server".into(),
            problem: format!("{problem}; see spec.machineTemplate.spec.infrastructureRef"),
        };
        match reference::get(&self.context.client, &self.namespace(), reference).await {
            Ok(Some(found)) => Ok(serde_json::to_value(&found).unwrap_or_default()),
            Ok(None) => Err(missing(format!(
                "{} {} does not exist",
                reference.kind, reference.name
            ))),
            Err(slipway_capi::Error::Api {
                source: kube::Error::Api(status),
                ..
            }) if status.code == 404 => Err(missing(format!(
                "the kind {} of the group {:?} is not installed",
                reference.kind, reference.api_group
            ))),
            Err(error) => Err(error.into()),
        }
    }

    /// Configuration, InfraMachine, Machine: the same writes again if they were interrupted. Gives the Machine's name.
    pub(super) async fn create_server(
        &self,
        failure_domain: Option<&str>,
        remediation_for: Option<&RemediationRecord>,
    ) -> Result<Option<String>, Error> {
        let client = &self.context.client;
        let namespace = self.namespace();
        // First, so that nothing is left of a server that cannot be made.
        let source = self.template().await?;
        let name = self.next_name().await?;
        let Some(controller) = owner::controller_reference(self.object) else {
            return Ok(None);
        };
        // The machine becomes the controller of both; until then they are ours, without the flag.
        let mut plain = controller.clone();
        plain.controller = None;
        plain.block_owner_deletion = None;

        let mut config = KThreesConfig::new(&name, self.snapshot.config.clone());
        config.metadata.namespace = Some(namespace.clone());
        config.metadata.labels = Some(self.snapshot.server_labels());
        config.metadata.annotations = Some(self.snapshot.server_annotations());
        config.metadata.owner_references = Some(vec![plain.clone()]);
        let config = serde_json::to_value(&config).unwrap_or_default();
        apply::create(
            client,
            &ApiResource::erase::<KThreesConfig>(&()),
            MANAGERS,
            &config,
        )
        .await?;

        let infra_machine = template::clone(
            &source,
            &template::NewObject {
                name: name.clone(),
                namespace: namespace.clone(),
                cluster_name: self.snapshot.cluster_name.clone(),
                owner: Some(plain),
                labels: self.snapshot.server_labels(),
                annotations: self.snapshot.server_annotations(),
            },
        )?;
        let group = owner::group_of(infra_machine["apiVersion"].as_str().unwrap_or_default()).to_owned();
        let kind = infra_machine["kind"].as_str().unwrap_or_default().to_owned();
        let (resource, _) = reference::resolve_kind(client, &group, &kind).await?;
        apply::create(client, &resource, MANAGERS, &infra_machine).await?;

        let machine = self.machine(
            &name,
            (&group, &kind),
            failure_domain,
            remediation_for,
            &controller,
        );
        apply::create(client, &ApiResource::erase::<Machine>(&()), MANAGERS, &machine).await?;
        Ok(Some(name))
    }

    fn machine(
        &self,
        name: &str,
        (group, kind): (&str, &str),
        failure_domain: Option<&str>,
        remediation_for: Option<&RemediationRecord>,
        controller: &OwnerReference,
    ) -> Value {
        let mut annotations = self.snapshot.server_annotations();
        annotations.insert(PRE_TERMINATE_HOOK.into(), String::new());
        annotations.insert(STAYS_OUT_ANNOTATION.into(), String::new());
        annotations.insert(
            SERVER_CONFIGURATION_ANNOTATION.into(),
            serde_json::to_string(&self.snapshot.config.server()).unwrap_or_default(),
        );
        if let Some(record) = remediation_for {
            annotations.insert(
                REMEDIATION_FOR_ANNOTATION.into(),
                serde_json::to_string(record).unwrap_or_default(),
            );
        }
        let mut body = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2",
            "kind": "Machine",
            "metadata": {
                "name": name,
                "namespace": self.namespace(),
                "labels": self.snapshot.server_labels(),
                "annotations": annotations,
                "ownerReferences": [controller],
            },
            "spec": {
                "clusterName": self.snapshot.cluster_name,
                "version": self.object.spec.version,
                "bootstrap": {"configRef": {"apiGroup": BOOTSTRAP_GROUP, "kind": "KThreesConfig", "name": name}},
                "infrastructureRef": {"apiGroup": group, "kind": kind, "name": name},
            },
        });
        if let Some(domain) = failure_domain {
            body["spec"]["failureDomain"] = domain.into();
        }
        for (field, value) in propagated(&self.object.spec.machines()) {
            body["spec"][field] = value;
        }
        body
    }
}

/// What of a Machine's spec is carried to running machines: it never needs a new one.
pub fn propagated(machines: &MachineTemplate) -> BTreeMap<&'static str, Value> {
    let mut fields = BTreeMap::new();
    if let Some(deletion) = deletion(machines) {
        fields.insert("deletion", deletion);
    }
    if let Some(contract) = &machines.spec {
        if let Some(gates) = contract
            .readiness_gates
            .as_ref()
            .filter(|gates| !gates.is_empty())
        {
            fields.insert("readinessGates", json!(gates));
        }
        if let Some(taints) = contract.taints.as_ref().filter(|taints| !taints.is_empty()) {
            fields.insert("taints", json!(taints));
        }
    }
    fields
}

/// The limits on deleting a machine, in the shape of the v1beta2 Machine; the v1beta2 fields win.
fn deletion(machines: &MachineTemplate) -> Option<Value> {
    let v1beta2 = machines
        .spec
        .as_ref()
        .and_then(|spec| spec.deletion.clone())
        .unwrap_or_default();
    let seconds = |v1beta2: Option<i32>, v1beta1: &Option<String>| {
        v1beta2.or_else(|| {
            v1beta1
                .as_deref()
                .and_then(duration::parse)
                .and_then(|parsed| i32::try_from(parsed.as_secs()).ok())
        })
    };
    let fields = [
        (
            "nodeDrainTimeoutSeconds",
            seconds(v1beta2.node_drain_timeout_seconds, &machines.node_drain_timeout),
        ),
        (
            "nodeVolumeDetachTimeoutSeconds",
            seconds(
                v1beta2.node_volume_detach_timeout_seconds,
                &machines.node_volume_detach_timeout,
            ),
        ),
        (
            "nodeDeletionTimeoutSeconds",
            seconds(
                v1beta2.node_deletion_timeout_seconds,
                &machines.node_deletion_timeout,
            ),
        ),
    ];
    let map: serde_json::Map<String, Value> = fields
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?.into())))
        .collect();
    (!map.is_empty()).then_some(Value::Object(map))
}
