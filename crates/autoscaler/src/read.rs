//! From Cluster API's objects, as the contract's views show them, to the facts that instance types and accounting are made from.
//! Pure: the objects are given.

use std::collections::BTreeMap;

use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use kube::ResourceExt;
use serde_json::Value;
use slipway_capi::{
    names, owner, paused,
    view::{Cluster, Conditions, Machine, MachineDeployment, MachinePool, MachineSet, MachineTemplate},
};
use slipway_packing::{
    model::{ResourceList, Taint},
    quantity::Quantity,
};

use crate::{
    accounting,
    api::{
        NodeClaim,
        names::{annotation, label},
    },
    instances::{Infrastructure, LiveNode, Reference, Source, SourceKind},
    safety,
};

/// How a MachineDeployment numbers its MachineSets.
const REVISION: &str = "machinedeployment.clusters.x-k8s.io/revision";
/// How a MachineSet's condition goes on when its preflight checks fail or a template is missing.
const BLOCKED: &str = " is blocked because:";

fn of_template<K: kube::Resource<DynamicType = ()>>(
    object: &K,
    template: &MachineTemplate,
    cluster_name: &str,
    replicas: Option<i32>,
    cluster: Option<&Cluster>,
) -> Source {
    let metadata = object.meta();
    let reference = Reference::new(
        &K::kind(&()),
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default(),
    );
    let mut source = Source::new(reference, cluster_name);
    source.labels = metadata.labels.clone().unwrap_or_default();
    source.annotations = metadata.annotations.clone().unwrap_or_default();
    source.template_labels = template.metadata.labels.clone();
    source.template_taints = template
        .spec
        .taints
        .iter()
        .map(|taint| Taint {
            key: taint.key.clone(),
            value: taint.value.clone(),
            effect: taint.effect.clone(),
        })
        .collect();
    source.failure_domain.clone_from(&template.spec.failure_domain);
    source.replicas = replicas.unwrap_or(0);
    source.is_paused = paused::paused(cluster, metadata).is_paused();
    source.is_deleting = metadata.deletion_timestamp.is_some();
    source
}

pub fn machine_deployment(object: &MachineDeployment, cluster: Option<&Cluster>) -> Source {
    let spec = &object.spec;
    let mut source = of_template(object, &spec.template, &spec.cluster_name, spec.replicas, cluster);
    source.is_paused |= spec.paused == Some(true);
    source
}

pub fn machine_set(object: &MachineSet, cluster: Option<&Cluster>) -> Source {
    let spec = &object.spec;
    let mut source = of_template(object, &spec.template, &spec.cluster_name, spec.replicas, cluster);
    source.is_owned = object
        .owner_references()
        .iter()
        .any(|owner| owner.controller == Some(true));
    source
}

pub fn machine_pool(object: &MachinePool, cluster: Option<&Cluster>) -> Source {
    let spec = &object.spec;
    of_template(object, &spec.template, &spec.cluster_name, spec.replicas, cluster)
}

/// An infrastructure machine template, which stands for its Machines itself. It belongs to the Cluster that the NodeClass names.
pub fn machine_template(
    kind: &SourceKind,
    template: &Value,
    cluster_name: &str,
    cluster: Option<&Cluster>,
) -> Option<Source> {
    let text = |pointer: &str| {
        template
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
    if [namespace, name].contains(&"") {
        return None;
    }
    let map = |pointer: &str| -> BTreeMap<String, String> {
        template
            .pointer(pointer)
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
            .collect()
    };
    let reference = Reference {
        kind: kind.clone(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    let mut source = Source::new(reference, cluster_name);
    source.labels = map("/metadata/labels");
    source.annotations = map("/metadata/annotations");
    source.template_labels = map("/spec/template/metadata/labels");
    source.is_deleting = template
        .pointer("/metadata/deletionTimestamp")
        .is_some_and(Value::is_string);
    let is_annotated = source.annotations.contains_key(names::annotation::PAUSED);
    source.is_paused = is_annotated || cluster.is_some_and(Cluster::is_paused);
    source.infrastructure = infrastructure(template);
    Some(source)
}

/// What an infrastructure machine template says in its status.
pub fn infrastructure(template: &Value) -> Infrastructure {
    let text = |pointer: &str| {
        let found = template.pointer(pointer).and_then(Value::as_str);
        found.unwrap_or_default().to_owned()
    };
    let capacity = template.pointer("/status/capacity").and_then(Value::as_object);
    Infrastructure {
        capacity: capacity
            .into_iter()
            .flatten()
            .map(|(name, amount)| {
                let written = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
                (name.clone(), written)
            })
            .collect(),
        architecture: text("/status/nodeInfo/architecture"),
        operating_system: text("/status/nodeInfo/operatingSystem"),
    }
}

/// A NodeClaim as accounting reads it.
pub fn claim(claim: &NodeClaim) -> accounting::Claim {
    let created = claim.metadata.creation_timestamp.as_ref();
    let mut fact = accounting::Claim::new(
        claim.metadata.uid.as_deref().unwrap_or_default(),
        created.map_or(jiff::Timestamp::UNIX_EPOCH, |time| time.0),
    );
    let annotations = claim.annotations();
    fact.name = claim.name_any();
    fact.state = match (
        &claim.metadata.deletion_timestamp,
        annotations.contains_key(annotation::DRAINED),
    ) {
        (None, _) => accounting::ClaimState::Live,
        (Some(_), false) => accounting::ClaimState::Draining,
        (Some(_), true) => accounting::ClaimState::Leaving,
    };
    fact.machine = annotations
        .get(annotation::MACHINE)
        .and_then(|named| named.rsplit('/').next())
        .map(str::to_owned);
    fact.gave_back = annotations.contains_key(annotation::GAVE_BACK);
    fact
}

/// A Lease as safety reads it. One that names no duration lasts as long as Kubernetes' own do.
pub fn lease(lease: &Lease) -> safety::Lease {
    const USUAL: u64 = 15;
    let spec = lease.spec.clone().unwrap_or_default();
    let seconds = spec
        .lease_duration_seconds
        .and_then(|seconds| u64::try_from(seconds).ok())
        .unwrap_or(USUAL);
    safety::Lease {
        namespace: lease.namespace().unwrap_or_default(),
        name: lease.name_any(),
        holder: spec.holder_identity.unwrap_or_default(),
        acquired: spec.acquire_time.map(|time| time.0),
        renewed: spec.renew_time.map(|time| time.0),
        lasts: std::time::Duration::from_secs(seconds),
    }
}

/// A Node from which more can be learnt than its object says, if it is ready.
pub fn live_node(node: &Node) -> Option<LiveNode> {
    let status = node.status.as_ref()?;
    let is_ready = status
        .conditions
        .iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let amounts = |list: &Option<
        BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>,
    >|
     -> ResourceList {
        list.iter()
            .flatten()
            .filter_map(|(name, amount)| Some((name.clone(), amount.0.parse::<Quantity>().ok()?)))
            .collect()
    };
    is_ready.then(|| LiveNode {
        labels: node.labels().clone(),
        capacity: amounts(&status.capacity),
        allocatable: amounts(&status.allocatable),
    })
}

/// A Machine as accounting reads it.
pub fn machine(machine: &Machine) -> accounting::Machine {
    let labels = machine.labels();
    let created = machine.metadata.creation_timestamp.as_ref();
    let mut fact = accounting::Machine::new(
        &machine.name_any(),
        created.map_or(jiff::Timestamp::UNIX_EPOCH, |time| time.0),
    );
    fact.revision = labels
        .get(names::label::MACHINE_TEMPLATE_HASH)
        .cloned()
        .unwrap_or_default();
    fact.claim = labels.get(label::CLAIM).cloned();
    fact.deleted_with = machine.annotations().get(annotation::DELETED_WITH).cloned();
    fact.is_deleting = machine.is_deleting();
    fact.has_failed = machine.status.phase == "Failed";
    fact
}

/// The revision new Machines of a MachineDeployment are made of, and why it makes none, if it says so.
pub fn current_set<'a>(
    deployment: &MachineDeployment,
    sets: impl IntoIterator<Item = &'a MachineSet>,
) -> (String, Option<String>) {
    let number = |set: &MachineSet| {
        set.annotations()
            .get(REVISION)
            .and_then(|text| text.parse::<i64>().ok())
            .unwrap_or(0)
    };
    let newest = sets
        .into_iter()
        .filter(|set| owner::is_controlled_by(&set.metadata, &deployment.metadata))
        .max_by_key(|set| number(set));
    let Some(set) = newest else {
        return (String::new(), None);
    };
    let revision = set
        .labels()
        .get(names::label::MACHINE_TEMPLATE_HASH)
        .cloned()
        .unwrap_or_default();
    (revision, blocked(set))
}

/// Why a MachineSet makes no Machines although it has too few.
pub fn blocked(set: &MachineSet) -> Option<String> {
    let scaling = set.condition(names::condition::SCALING_UP)?;
    let (_, why) = scaling.message.split_once(BLOCKED)?;
    (scaling.status == "True").then(|| why.trim().trim_start_matches("* ").replace("\n* ", "; "))
}
