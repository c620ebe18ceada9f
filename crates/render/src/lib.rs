//! Everything that is installed, rendered from the registrations: CRDs, roles, webhook configurations, the Deployment,
//! clusterctl's files, the Helm chart and the reference pages. Pure but for [`Drift`], which compares and writes files:
//! registrations in, objects and files out.

mod chart;
mod deployment;
mod files;
mod health;
mod k9s;
mod local;
mod monitoring;
mod page;
mod reference;
mod roles;
mod webhooks;
pub mod yaml;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::EnvVar;
use serde_json::{Value, json};
use slipway_runtime::{Names, Package, PackageKind, RoleGrant, Rule, admission::Admission};

pub use self::{
    files::{Drift, files, repository},
    health::{health, rules as health_rules},
    k9s::k9s,
    local::local_objects,
    monitoring::monitoring,
    reference::reference,
};

/// The label by which clusterctl finds what belongs to a provider.
pub const PROVIDER_LABEL: &str = "cluster.x-k8s.io/provider";

/// What rendering needs to know beside the registrations.
#[derive(Clone, Debug)]
pub struct Release {
    /// With its `v`: `v0.1.0`.
    pub version: String,
    /// The manager's image.
    pub image: String,
}

/// Why something cannot be rendered: a mistake in a registration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    #[error("{version:?} is not a version like v1.2.3")]
    Version { version: String },
    #[error(
        "the image {image:?} names no registry, and clusterctl takes no such image: write it like \
         registry.example/slipway/manager:v1.2.3"
    )]
    Image { image: String },
    #[error("{crd}: its text contains \"${{\", which clusterctl would take for a variable")]
    Variable { crd: String },
    #[error("{identity}: conversion is registered for {crd}, which is not among its CRDs")]
    Conversion { identity: String, crd: String },
    #[error("{identity}: two providers disagree on its name prefix ({one} and {other})")]
    Prefix {
        identity: String,
        one: String,
        other: String,
    },
    #[error("{what} asks for the metric {metric}, which nobody registers")]
    Metric { what: String, metric: String },
    #[error("{what} cannot be written as JSON: {reason}")]
    Unwritable { what: String, reason: String },
}

/// One package as it is installed: what every provider adds to it, joined by identity.
#[derive(Debug)]
pub struct Bundle {
    pub identity: String,
    pub kind: PackageKind,
    pub prefix: String,
    /// As JSON, by name, with labels and conversion not yet added.
    crds: BTreeMap<String, Value>,
    converted: Vec<String>,
    names: Option<Names>,
    on_request: bool,
    rules: Vec<Rule>,
    role_grants: Vec<RoleGrant>,
    cluster_role: Option<&'static str>,
    admission: Vec<Admission>,
    has_hooks: bool,
    arguments: Vec<String>,
    environment: Vec<EnvVar>,
    pod_labels: BTreeMap<&'static str, &'static str>,
    volumes: Vec<Value>,
    volume_mounts: Vec<Value>,
    objects: Vec<Value>,
    /// Cluster templates by file name.
    templates: BTreeMap<&'static str, &'static str>,
}

/// A token of the manager's service account, as a file in its container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectedToken {
    pub audience: String,
    pub path: String,
}

impl Bundle {
    /// Joins packages of the same identity, in order of identity.
    pub fn join<'package>(
        packages: impl IntoIterator<Item = &'package Package>,
    ) -> Result<Vec<Self>, RenderError> {
        let mut bundles: BTreeMap<String, Self> = BTreeMap::new();
        for package in packages {
            let identity = package.identity();
            let bundle = bundles.entry(identity.clone()).or_insert_with(|| Self {
                identity: identity.clone(),
                kind: package.kind,
                prefix: package.prefix(),
                crds: BTreeMap::new(),
                converted: Vec::new(),
                names: package.names,
                on_request: package.on_request,
                rules: Vec::new(),
                role_grants: Vec::new(),
                cluster_role: None,
                admission: Vec::new(),
                has_hooks: false,
                arguments: Vec::new(),
                environment: Vec::new(),
                pod_labels: BTreeMap::new(),
                volumes: Vec::new(),
                volume_mounts: Vec::new(),
                objects: Vec::new(),
                templates: BTreeMap::new(),
            });
            bundle.add(package)?;
        }
        Ok(bundles.into_values().collect())
    }

    fn add(&mut self, package: &Package) -> Result<(), RenderError> {
        if package.prefix() != self.prefix {
            return Err(RenderError::Prefix {
                identity: self.identity.clone(),
                one: self.prefix.clone(),
                other: package.prefix(),
            });
        }
        for crd in &package.crds {
            let name = crd.metadata.name.clone().unwrap_or_default();
            let value = serde_json::to_value(crd).map_err(|error| RenderError::Unwritable {
                what: name.clone(),
                reason: error.to_string(),
            })?;
            if value.to_string().contains("${") {
                return Err(RenderError::Variable { crd: name });
            }
            self.crds.insert(name, value);
        }
        for conversion in &package.conversion {
            if !self.crds.contains_key(&conversion.crd) {
                return Err(RenderError::Conversion {
                    identity: self.identity.clone(),
                    crd: conversion.crd.clone(),
                });
            }
            self.converted.push(conversion.crd.clone());
        }
        self.rules.extend(package.rbac.iter().copied());
        self.role_grants.extend(package.role_grants.iter().copied());
        self.cluster_role = self.cluster_role.or(package.cluster_role);
        self.admission.extend(package.admission.iter().cloned());
        self.has_hooks |= !package.hooks.is_empty();
        self.arguments.extend(package.arguments.iter().cloned());
        self.environment.extend(package.environment.iter().cloned());
        self.pod_labels.extend(package.pod_labels.iter().copied());
        // Two providers of one package may both need the same volume.
        for (volumes, added) in [
            (&mut self.volumes, &package.volumes),
            (&mut self.volume_mounts, &package.volume_mounts),
        ] {
            let new: Vec<Value> = added
                .iter()
                .filter(|volume| !volumes.contains(volume))
                .cloned()
                .collect();
            volumes.extend(new);
        }
        self.objects.extend(package.objects.iter().cloned());
        self.templates.extend(package.templates.iter().copied());
        Ok(())
    }

    /// The namespace everything of the package lives in.
    pub fn namespace(&self) -> String {
        match self.names {
            Some(names) => names.namespace.to_owned(),
            None => format!("{}-system", self.prefix),
        }
    }

    /// The service account of its manager.
    pub fn service_account(&self) -> String {
        self.workload("manager")
    }

    /// The name of what makes up its workload: its own, or else the prefix with `otherwise`.
    fn workload(&self, otherwise: &str) -> String {
        match self.names {
            Some(names) => names.workload.to_owned(),
            None => self.named(otherwise),
        }
    }

    /// Tokens of that account that are projected into the manager's Pods.
    pub fn projected_tokens(&self) -> Vec<ProjectedToken> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut tokens = Vec::new();
        for mount in &self.volume_mounts {
            let volume = self.volumes.iter().find(|volume| volume["name"] == mount["name"]);
            let sources = volume.and_then(|volume| volume["projected"]["sources"].as_array());
            for token in sources
                .into_iter()
                .flatten()
                .map(|source| &source["serviceAccountToken"])
            {
                if token.is_object() {
                    tokens.push(ProjectedToken {
                        audience: text(&token["audience"]),
                        path: format!("{}/{}", text(&mount["mountPath"]), text(&token["path"])),
                    });
                }
            }
        }
        tokens
    }

    /// What clusterctl keeps of a package that it installed: nothing for one that ships otherwise.
    pub fn inventory(&self, version: &str) -> Option<Value> {
        if self.kind == PackageKind::HelmOnly {
            return None;
        }
        let name = self.identity.strip_prefix(&format!("{}-", self.kind.prefix()));
        Some(json!({
            "apiVersion": "clusterctl.cluster.x-k8s.io/v1alpha3",
            "kind": "Provider",
            "metadata": {
                "name": self.identity,
                "namespace": self.namespace(),
                "labels": {
                    "clusterctl.cluster.x-k8s.io": "",
                    "clusterctl.cluster.x-k8s.io/core": "inventory",
                    PROVIDER_LABEL: self.identity,
                },
            },
            "providerName": name,
            "type": self.kind.clusterctl_type(),
            "version": version,
        }))
    }

    /// Labels of all its objects that it takes over from what it replaces.
    fn labels(&self) -> &'static [(&'static str, &'static str)] {
        self.names.map_or(&[], |names| names.labels)
    }

    fn named(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    /// Whether anybody calls this manager.
    fn is_called(&self) -> bool {
        !self.admission.is_empty() || !self.converted.is_empty() || self.has_hooks
    }

    /// Every object of the package, in the order they are applied.
    pub fn objects(&self, release: &Release) -> Vec<Value> {
        let namespace = self.namespace();
        let mut objects = vec![json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": namespace, "labels": {"control-plane": "controller-manager"}},
        })];
        objects.extend(self.crds(webhooks::Caller::Service(self)));
        objects.push(json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": self.service_account(), "namespace": namespace},
        }));
        objects.extend(roles::roles(self));
        for object in &self.objects {
            let mut object = object.clone();
            if !is_cluster_scoped(&object) {
                object["metadata"]["namespace"] = json!(namespace);
            }
            objects.push(object);
        }
        if self.is_called() {
            objects.push(deployment::service(self));
        }
        objects.extend(deployment::deployment(self, release));
        if self.names.is_some() {
            objects.push(deployment::metrics_service(self));
        }
        if self.is_called() {
            objects.extend(deployment::certificate(self));
        }
        objects.extend(webhooks::configurations(self, webhooks::Caller::Service(self)));
        objects.extend(webhooks::extension_config(self, webhooks::Caller::Service(self)));
        for object in &mut objects {
            object["metadata"]["labels"][PROVIDER_LABEL] = json!(self.identity);
            for (name, value) in self.labels() {
                object["metadata"]["labels"][*name] = json!(value);
            }
        }
        objects
    }

    /// The CRDs, converted by whom `caller` names.
    fn crds(&self, caller: webhooks::Caller<'_>) -> Vec<Value> {
        self.crds
            .iter()
            .map(|(name, crd)| {
                let mut crd = crd.clone();
                if self.converted.contains(name) {
                    crd["spec"]["conversion"] = caller.conversion();
                    if let Some(annotations) = caller.annotations() {
                        for (key, value) in annotations {
                            crd["metadata"]["annotations"][key] = json!(value);
                        }
                    }
                }
                crd
            })
            .collect()
    }
}

/// Kinds a provider may add that have no namespace.
fn is_cluster_scoped(object: &Value) -> bool {
    let kind = object["kind"].as_str().unwrap_or_default();
    [
        "ClusterRole",
        "ClusterRoleBinding",
        "CustomResourceDefinition",
        "ExtensionConfig",
        "MutatingWebhookConfiguration",
        "Namespace",
        "PriorityClass",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "ValidatingWebhookConfiguration",
    ]
    .contains(&kind)
}

#[cfg(test)]
mod tests;
