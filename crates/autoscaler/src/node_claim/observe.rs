//! Every read of a NodeClaim: the object it is assigned to or the one to choose, its Machine, its Node, and, once it is deleted,
//! the pods and volumes of that Node.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::{
    core::v1::{Node, PersistentVolumeClaim, Pod},
    storage::v1::VolumeAttachment,
};
use kube::{Api, ResourceExt};
use slipway_capi::{
    frame::Subject,
    view::{Machine, MachineDeployment, MachinePool, MachineSet},
};
use slipway_packing::model::{ResourceList, Taint};
use slipway_runtime::{Context, Informer, ObjectKey, Scope, informer::Index};

use super::drain::PodFacts;
use crate::{
    Error,
    accounting::{Group, waits_for},
    api::{
        ClusterAPINodeClass, NodeClaim, NodePool,
        names::{NODE_CLASS_GROUP, annotation, label},
    },
    cluster_api::{Reader, nodes_by_zone},
    group::Scalable,
    instances::{Choice, Demand, Reference, Shape, SourceKind, choose, describe, sizes},
    lifecycle::{Limits, NodeFacts},
    memory::Memory,
    options::Options,
    read,
    safety::Rival,
};

/// What a claim has to do with Cluster API's objects.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Assignment {
    /// It has none, and needs none any more.
    #[default]
    Unread,
    /// Nothing can be chosen: the text says why.
    NoClass(String),
    /// This one is to be chosen.
    Chosen {
        shape: Box<Shape>,
        why: String,
    },
    NoChoice(String),
    To {
        object: Reference,
        /// What its machines are like; none where it cannot be described any more.
        shape: Option<Box<Shape>>,
        /// Why Cluster API makes no Machine.
        stuck: Option<String>,
        /// What a claim without a Machine waits for.
        waits_for: String,
    },
    /// The object it was assigned to is gone.
    Gone(Reference),
}

/// What a plan is made from.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub claim: NodeClaim,
    pub rival: Option<Rival>,
    pub class: Option<Arc<ClusterAPINodeClass>>,
    pub assignment: Assignment,
    pub machine: Option<Arc<Machine>>,
    /// Its Nodes: one, if all is well.
    pub nodes: Vec<Arc<Node>>,
    /// Pods of its Node that have to leave first; only of a claim that is deleted.
    pub pods: Vec<PodFacts>,
    /// Volumes that are still attached to its Node.
    pub volumes: Vec<String>,
    pub limits: Limits,
    /// Its NodePool is frozen.
    pub is_frozen: bool,
}

impl Observed {
    pub fn shape(&self) -> Option<&Shape> {
        match &self.assignment {
            Assignment::To { shape, .. } => shape.as_deref(),
            _ => None,
        }
    }
}

pub(super) async fn observe(
    subject: &Subject<NodeClaim>,
    memory: &Memory,
    context: &Context,
) -> Result<Observed, Error> {
    let claim = subject.object.as_ref();
    let options = Options::of(&context.settings);
    let reader = Reader::new(context, memory);
    let now = context.clock.now();
    let classes: Informer<ClusterAPINodeClass> = context.informers.get(Scope::all());
    let class = classes.get(&ObjectKey::cluster_scoped(&claim.spec.node_class_ref.name));
    let uid = claim.uid().unwrap_or_default();
    let machine = {
        let mut found = reader.machines_of_claim(&uid);
        // One that stands before one that is on its way out.
        found.sort_by_key(|machine| (machine.is_deleting(), machine.name_any()));
        found.into_iter().next()
    };
    let assignment = assignment(claim, class.as_deref(), &reader, &options, context).await?;
    let options_of_object = match &assignment {
        Assignment::To { shape, .. } => shape
            .as_ref()
            .and_then(|shape| shape.options.max_node_provision_time),
        _ => None,
    };
    let nodes = machine
        .as_ref()
        .map(|machine| reader.nodes_of(machine))
        .unwrap_or_default();
    let mut observed = Observed {
        claim: claim.clone(),
        rival: reader.rival(now),
        limits: Limits::of(
            class.as_ref().and_then(|class| class.spec.deadlines.as_ref()),
            options_of_object,
        ),
        class,
        assignment,
        machine,
        nodes,
        pods: Vec::new(),
        volumes: Vec::new(),
        is_frozen: claim.labels().get(label::NODE_POOL).is_some_and(|pool| {
            let pools: Informer<NodePool> = context.informers.get(Scope::all());
            let pool = pools.get(&ObjectKey::cluster_scoped(pool));
            pool.is_some_and(|pool| pool.annotations().contains_key(annotation::FROZEN))
        }),
    };
    if subject.is_deleting()
        && let [node] = &observed.nodes[..]
    {
        let node = node.name_any();
        let pods = pods_of(&node, context);
        observed.volumes = volumes_of(&node, &pods, context);
        observed.pods = pods.iter().filter_map(|pod| PodFacts::of(pod)).collect();
    }
    Ok(observed)
}

/// What a claim asks of a machine.
pub fn demand(claim: &NodeClaim) -> Demand {
    let taints = claim.spec.taints.iter().chain(&claim.spec.startup_taints);
    Demand {
        requirements: claim.spec.requirements.clone(),
        requests: claim
            .spec
            .resources
            .as_ref()
            .map(|resources| resources.requests.clone())
            .unwrap_or_default(),
        taints: taints.cloned().collect(),
    }
}

async fn assignment(
    claim: &NodeClaim,
    class: Option<&ClusterAPINodeClass>,
    reader: &Reader<'_>,
    options: &Options,
    context: &Context,
) -> Result<Assignment, Error> {
    let assigned = claim
        .annotations()
        .get(annotation::SCALABLE_RESOURCE)
        .and_then(|text| Reference::parse(text));
    if let Some(object) = assigned {
        return to(object, claim, class, reader, options, context).await;
    }
    let reference = &claim.spec.node_class_ref;
    let Some(class) = class.filter(|_| reference.group == NODE_CLASS_GROUP) else {
        return Ok(Assignment::NoClass(format!(
            "ClusterAPINodeClass {} does not exist",
            reference.name
        )));
    };
    if claim.metadata.deletion_timestamp.is_some() {
        return Ok(Assignment::Unread);
    }
    let described = reader.describe(class, options, context.clock.now()).await;
    let nodes: Informer<Node> = context.informers.get(Scope::of_namespace(&context.settings));
    let nodes = nodes.list();
    let zones = nodes_by_zone(nodes.iter().map(Arc::as_ref));
    Ok(match choose(&demand(claim), &described.shapes, &zones) {
        Ok(Choice { shape, why }) => Assignment::Chosen {
            shape: Box::new(shape.clone()),
            why,
        },
        Err(none) => Assignment::NoChoice(none.to_string()),
    })
}

async fn to(
    object: Reference,
    claim: &NodeClaim,
    class: Option<&ClusterAPINodeClass>,
    reader: &Reader<'_>,
    options: &Options,
    context: &Context,
) -> Result<Assignment, Error> {
    let Some(source) = reader.source(&object).await else {
        return Ok(if exists(&object, context).await? {
            Assignment::To {
                waits_for: format!("{object} is not known yet"),
                object,
                shape: None,
                stuck: None,
            }
        } else {
            Assignment::Gone(object)
        });
    };
    let settings = match class {
        Some(class) => reader.settings(class, options).await,
        None => crate::instances::Settings::default(),
    };
    let shape = match claim.metadata.deletion_timestamp {
        None => describe(&source, &settings).0.map(Box::new),
        Some(_) => None,
    };
    let mut group = Group::new(object.clone(), source.replicas);
    (group.min_size, group.max_size) = sizes(&source, &options.group);
    group.is_paused = source.is_paused;
    group.stuck = reader.stuck(&object);
    Ok(Assignment::To {
        waits_for: waits_for(&group),
        stuck: group.stuck,
        object,
        shape,
    })
}

/// Whether an object that the cache does not show is there all the same.
async fn exists(object: &Reference, context: &Context) -> Result<bool, Error> {
    async fn found<K: Scalable>(object: &Reference, context: &Context) -> Result<bool, Error> {
        let api: Api<K> = Api::namespaced(context.client.clone(), &object.namespace);
        let found = api.get_opt(&object.name).await;
        Ok(found.map_err(Error::api(format!("reading {object}")))?.is_some())
    }
    match object.kind {
        SourceKind::MachineDeployment => found::<MachineDeployment>(object, context).await,
        SourceKind::MachineSet => found::<MachineSet>(object, context).await,
        SourceKind::MachinePool => found::<MachinePool>(object, context).await,
        SourceKind::Template(_) => Ok(true),
    }
}

fn pods_of(node: &str, context: &Context) -> Vec<Arc<Pod>> {
    let pods: Informer<Pod> = context.informers.get(Scope::of_namespace(&context.settings));
    let by_node: Index<Pod> = pods.index("autoscaler/node", |pod| {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        node.into_iter().collect()
    });
    by_node.get(node)
}

/// Volumes that are attached to a Node for pods that are drained. Those of pods that go with the node stay until then.
fn volumes_of(node: &str, pods: &[Arc<Pod>], context: &Context) -> Vec<String> {
    let attachments: Informer<VolumeAttachment> = context.informers.get(Scope::all());
    let claims: Informer<PersistentVolumeClaim> =
        context.informers.get(Scope::of_namespace(&context.settings));
    let staying: Vec<String> = pods
        .iter()
        .filter(|pod| PodFacts::of(pod).is_none())
        .flat_map(|pod| {
            let namespace = pod.namespace().unwrap_or_default();
            let spec = pod.spec.clone().unwrap_or_default();
            let named = spec.volumes.into_iter().flatten();
            let claims = claims.clone();
            named.filter_map(move |volume| {
                let name = volume.persistent_volume_claim?.claim_name;
                let claim = claims.get(&ObjectKey::namespaced(&namespace, &name))?;
                claim.spec.as_ref()?.volume_name.clone()
            })
        })
        .collect();
    attachments
        .list()
        .iter()
        .filter(|attachment| attachment.spec.node_name == node)
        .filter_map(|attachment| attachment.spec.source.persistent_volume_name.clone())
        .filter(|volume| !staying.contains(volume))
        .collect()
}

/// A Node as the lifecycle reads it.
pub fn node_facts(node: &Node) -> NodeFacts {
    let live = read::live_node(node);
    let spec = node.spec.clone().unwrap_or_default();
    let amounts = |node: &Node| -> ResourceList {
        let list = node.status.as_ref().and_then(|status| status.allocatable.clone());
        list.into_iter()
            .flatten()
            .filter_map(|(name, amount)| Some((name, amount.0.parse().ok()?)))
            .collect()
    };
    NodeFacts {
        name: node.name_any(),
        labels: node.labels().clone(),
        taints: spec
            .taints
            .into_iter()
            .flatten()
            .map(|taint| read_taint(&taint))
            .collect(),
        is_ready: live.is_some(),
        allocatable: amounts(node),
    }
}

pub fn read_taint(taint: &k8s_openapi::api::core::v1::Taint) -> Taint {
    Taint {
        key: taint.key.clone(),
        value: taint.value.clone().unwrap_or_default(),
        effect: taint.effect.clone(),
    }
}

/// Labels of a claim that its Node gets. An instance type whose name we made up yields to the Node's own.
pub fn labels_for_node(observed: &Observed) -> BTreeMap<String, String> {
    let mut labels = observed.claim.labels().clone();
    let is_made_up = observed.shape().is_some_and(|shape| shape.name_is_made_up);
    let has_its_own = |key: &str| observed.nodes.iter().any(|node| node.labels().contains_key(key));
    if is_made_up && has_its_own(label::INSTANCE_TYPE) {
        labels.remove(label::INSTANCE_TYPE);
    }
    labels
}
