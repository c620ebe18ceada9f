//! One object of Cluster API that machines come from, as far as instance types and accounting read it.

use std::{collections::BTreeMap, fmt};

use slipway_packing::model::{ResourceList, Taint};

use crate::api::ScalableResourceType;

/// What kind of object it is. Machines of a template are made one by one; of the others by replicas.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SourceKind {
    MachineDeployment,
    MachineSet,
    MachinePool,
    /// An infrastructure machine template, by its kind and group (`EdgeMachineTemplate.infrastructure.cluster.x-k8s.io`).
    Template(String),
}

impl SourceKind {
    /// The type of object that a NodeClass names.
    pub fn of_type(resource: &ScalableResourceType) -> Self {
        match Self::of(&resource.kind) {
            Self::Template(kind) => Self::Template(format!("{kind}.{}", resource.group)),
            known => known,
        }
    }

    /// Kind and group, if it is a template.
    pub fn template(&self) -> Option<(&str, &str)> {
        match self {
            Self::Template(named) => named.split_once('.'),
            _ => None,
        }
    }

    /// The kind of this name in Cluster API's own group; every other name is a template's.
    pub fn of(kind: &str) -> Self {
        match kind {
            "MachineDeployment" => Self::MachineDeployment,
            "MachineSet" => Self::MachineSet,
            "MachinePool" => Self::MachinePool,
            other => Self::Template(other.to_owned()),
        }
    }

    pub fn name(&self) -> &str {
        match self {
            Self::MachineDeployment => "MachineDeployment",
            Self::MachineSet => "MachineSet",
            Self::MachinePool => "MachinePool",
            Self::Template(kind) => kind,
        }
    }
}

/// Names an object. Its text is what claims carry (`Kind/namespace/name`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reference {
    pub kind: SourceKind,
    pub namespace: String,
    pub name: String,
}

impl fmt::Display for Reference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}/{}", self.kind.name(), self.namespace, self.name)
    }
}

impl Reference {
    pub fn new(kind: &str, namespace: &str, name: &str) -> Self {
        Reference {
            kind: SourceKind::of(kind),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    /// Reads the text that claims carry.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let (kind, namespace, name) = (parts.next()?, parts.next()?, parts.next()?);
        let is_whole = parts.next().is_none() && ![kind, namespace, name].contains(&"");
        is_whole.then(|| Reference::new(kind, namespace, name))
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    pub reference: Reference,
    pub cluster_name: String,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// Labels of the Machines; Cluster API passes some of them on to Nodes.
    pub template_labels: BTreeMap<String, String>,
    /// Taints that Cluster API puts on the Nodes.
    pub template_taints: Vec<Taint>,
    /// Where the Machines are put.
    pub failure_domain: String,
    pub replicas: i32,
    /// By annotation, by its own field, or by its Cluster.
    pub is_paused: bool,
    pub is_deleting: bool,
    /// A MachineSet of a MachineDeployment, whose replicas are that one's.
    pub is_owned: bool,
    pub infrastructure: Infrastructure,
    /// A Node that came from it and is ready.
    pub live: Option<LiveNode>,
}

impl Source {
    pub fn new(reference: Reference, cluster_name: &str) -> Self {
        Source {
            reference,
            cluster_name: cluster_name.to_owned(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            template_labels: BTreeMap::new(),
            template_taints: Vec::new(),
            failure_domain: String::new(),
            replicas: 0,
            is_paused: false,
            is_deleting: false,
            is_owned: false,
            infrastructure: Infrastructure::default(),
            live: None,
        }
    }
}

/// `status` of the infrastructure machine template, where its provider fills it in.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Infrastructure {
    /// As written: a provider may write what is no quantity.
    pub capacity: BTreeMap<String, String>,
    pub architecture: String,
    pub operating_system: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct LiveNode {
    pub labels: BTreeMap<String, String>,
    pub capacity: ResourceList,
    pub allocatable: ResourceList,
}
