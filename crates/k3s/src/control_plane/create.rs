//! Making a server: its configuration, its host and its machine; and carrying what may change to running ones.

use kube::{
    Api, ResourceExt,
    api::{DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use slipway_capi::{names::label, owner, reference, template};

use super::{act::Hands, observed::RemediationRecord};
use crate::{
    api::{
        BOOTSTRAP_GROUP, FIELD_MANAGER, KThreesConfig, METADATA_FIELD_MANAGER, PRE_TERMINATE_HOOK,
        REMEDIATION_FOR_ANNOTATION, SERVER_CONFIGURATION_ANNOTATION,
    },
    duration,
    error::{Error, unless_exists},
};

impl Hands<'_> {
    /// Labels of everything that belongs to a server.
    fn labels(&self) -> std::collections::BTreeMap<String, String> {
        let mut labels = self
            .object
            .spec
            .machines()
            .metadata
            .and_then(|metadata| metadata.labels)
            .unwrap_or_default();
        labels.insert(label::CLUSTER_NAME.into(), self.cluster.name_any());
        labels.insert(label::CONTROL_PLANE.into(), String::new());
        // cluster-api-k3s leaves the value empty; a value would be a difference on every machine it made.
        labels.insert(label::CONTROL_PLANE_NAME.into(), String::new());
        labels
    }

    /// The name of the next server: that of one whose making was interrupted, else a new one.
    async fn next_name(&self) -> Result<String, Error> {
        let selector = format!(
            "{}={},{}",
            label::CLUSTER_NAME,
            self.cluster.name_any(),
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
                && !self.scene.machines.contains_key(&config.name_any())
                && !self.scene.machines.values().any(|machine| {
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

    /// Configuration, host, machine: each is left alone if it is already there.
    pub(super) async fn create_server(
        &self,
        failure_domain: Option<&str>,
        remediation_for: Option<&RemediationRecord>,
    ) -> Result<(), Error> {
        let namespace = self.namespace();
        let name = self.next_name().await?;
        let Some(controller) = owner::controller_reference(self.object) else {
            return Ok(());
        };
        // The machine becomes the controller of both; until then they are ours, without the flag.
        let mut plain = controller.clone();
        plain.controller = None;
        plain.block_owner_deletion = None;

        let mut config = KThreesConfig::new(&name, self.scene.config.clone());
        config.metadata.namespace = Some(namespace.clone());
        config.metadata.labels = Some(self.labels());
        config.metadata.annotations = self
            .object
            .spec
            .machines()
            .metadata
            .and_then(|metadata| metadata.annotations);
        config.metadata.owner_references = Some(vec![plain.clone()]);
        unless_exists(self.context.create(&config).await)
            .map_err(Error::api(format!("creating KThreesConfig {name}")))?;

        let source = reference::get(&self.context.client, &namespace, &self.scene.template)
            .await?
            .ok_or_else(|| Error::Unusable {
                doing: format!("creating the host of {name}"),
                problem: format!(
                    "{} {} does not exist",
                    self.scene.template.kind, self.scene.template.name
                ),
            })?;
        let source = serde_json::to_value(&source).unwrap_or_default();
        let host = template::clone(
            &source,
            &template::NewObject {
                name: name.clone(),
                namespace: namespace.clone(),
                cluster_name: self.cluster.name_any(),
                owner: Some(plain),
                labels: self.labels(),
                annotations: std::collections::BTreeMap::new(),
            },
        )?;
        let host: DynamicObject = serde_json::from_value(host).map_err(|error| Error::Unusable {
            doing: format!("creating the host of {name}"),
            problem: error.to_string(),
        })?;
        let kind = host.types.clone().unwrap_or_default();
        let group = owner::group_of(&kind.api_version).to_owned();
        let (resource, _) = reference::resolve_kind(&self.context.client, &group, &kind.kind).await?;
        unless_exists(
            Api::<DynamicObject>::namespaced_with(self.context.client.clone(), &namespace, &resource)
                .create(&PostParams::default(), &host)
                .await,
        )
        .map_err(Error::api(format!("creating {} {name}", kind.kind)))?;

        let machine = self.machine(
            &name,
            &group,
            &kind.kind,
            failure_domain,
            remediation_for,
            &controller,
        )?;
        unless_exists(
            self.machines()
                .create(
                    &PostParams {
                        field_manager: Some(FIELD_MANAGER.into()),
                        ..PostParams::default()
                    },
                    &machine,
                )
                .await,
        )
        .map_err(Error::api(format!("creating Machine {name}")))?;
        self.context.events.normal(
            self.object,
            "ServerCreated",
            "Create",
            format!("Created Machine {name}"),
        );
        Ok(())
    }

    /// Carries labels, annotations and limits of the template to a running machine, a deleting one included. Writes
    /// nothing if it has them.
    pub async fn sync(&self, name: &str) -> Result<(), Error> {
        let Some(machine) = self.scene.machines.get(name) else {
            return Ok(());
        };
        let template = self.object.spec.machines();
        let labels = self.labels();
        let annotations = template
            .metadata
            .as_ref()
            .and_then(|metadata| metadata.annotations.clone())
            .unwrap_or_default();
        let has = |present: Option<&std::collections::BTreeMap<String, String>>,
                   wanted: &std::collections::BTreeMap<String, String>| {
            wanted
                .iter()
                .all(|(key, value)| present.and_then(|present| present.get(key)) == Some(value))
        };
        let limits = deletion(&template);
        let present = &machine.spec.deletion;
        let same_limits = limits.as_ref().is_none_or(|limits| {
            [
                ("nodeDrainTimeoutSeconds", present.node_drain_timeout_seconds),
                (
                    "nodeVolumeDetachTimeoutSeconds",
                    present.node_volume_detach_timeout_seconds,
                ),
                (
                    "nodeDeletionTimeoutSeconds",
                    present.node_deletion_timeout_seconds,
                ),
            ]
            .into_iter()
            .all(|(field, value)| {
                limits
                    .get(field)
                    .is_none_or(|wanted| Some(wanted) == value.map(Value::from).as_ref())
            })
        });
        if has(machine.metadata.labels.as_ref(), &labels)
            && has(machine.metadata.annotations.as_ref(), &annotations)
            && same_limits
        {
            return Ok(());
        }
        let mut body = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2",
            "kind": "Machine",
            "metadata": {
                "name": name,
                "namespace": self.namespace(),
                "labels": labels,
                "annotations": annotations,
            },
        });
        if let Some(limits) = limits {
            body["spec"] = json!({"deletion": limits});
        }
        self.machines()
            .patch(
                name,
                &PatchParams::apply(METADATA_FIELD_MANAGER).force(),
                &Patch::Apply(&body),
            )
            .await
            .map(|_| ())
            .map_err(Error::api(format!(
                "carrying labels and limits to Machine {name}"
            )))
    }

    fn machine(
        &self,
        name: &str,
        group: &str,
        kind: &str,
        failure_domain: Option<&str>,
        remediation_for: Option<&RemediationRecord>,
        controller: &k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference,
    ) -> Result<DynamicObject, Error> {
        let machines = self.object.spec.machines();
        let mut annotations = machines
            .metadata
            .as_ref()
            .and_then(|metadata| metadata.annotations.clone())
            .unwrap_or_default();
        annotations.insert(PRE_TERMINATE_HOOK.into(), String::new());
        annotations.insert(
            SERVER_CONFIGURATION_ANNOTATION.into(),
            serde_json::to_string(&self.scene.config.server()).unwrap_or_default(),
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
                "labels": self.labels(),
                "annotations": annotations,
                "ownerReferences": [controller],
            },
            "spec": {
                "clusterName": self.cluster.name_any(),
                "version": self.object.spec.version,
                "bootstrap": {"configRef": {"apiGroup": BOOTSTRAP_GROUP, "kind": "KThreesConfig", "name": name}},
                "infrastructureRef": {"apiGroup": group, "kind": kind, "name": name},
            },
        });
        if let Some(domain) = failure_domain {
            body["spec"]["failureDomain"] = domain.into();
        }
        if let Some(deletion) = deletion(&machines) {
            body["spec"]["deletion"] = deletion;
        }
        if let Some(contract) = &machines.spec {
            if let Some(gates) = &contract.readiness_gates {
                body["spec"]["readinessGates"] = json!(gates);
            }
            if let Some(taints) = &contract.taints {
                body["spec"]["taints"] = json!(taints);
            }
        }
        serde_json::from_value(body).map_err(|error| Error::Unusable {
            doing: format!("creating Machine {name}"),
            problem: error.to_string(),
        })
    }
}

/// The limits on deleting a machine, in the shape of the newer Machine; the newer fields win.
pub fn deletion(machines: &crate::api::MachineTemplate) -> Option<Value> {
    let newer = machines
        .spec
        .as_ref()
        .and_then(|spec| spec.deletion.clone())
        .unwrap_or_default();
    let seconds = |newer: Option<i32>, older: &Option<String>| {
        newer.or_else(|| {
            older
                .as_deref()
                .and_then(duration::parse)
                .and_then(|parsed| i32::try_from(parsed.as_secs()).ok())
        })
    };
    let fields = [
        (
            "nodeDrainTimeoutSeconds",
            seconds(newer.node_drain_timeout_seconds, &machines.node_drain_timeout),
        ),
        (
            "nodeVolumeDetachTimeoutSeconds",
            seconds(
                newer.node_volume_detach_timeout_seconds,
                &machines.node_volume_detach_timeout,
            ),
        ),
        (
            "nodeDeletionTimeoutSeconds",
            seconds(
                newer.node_deletion_timeout_seconds,
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
