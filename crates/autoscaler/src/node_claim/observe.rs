//! Every read of a NodeClaim: the object it is assigned to or the one to choose, its Machine, its Node, and, once it is deleted,
//! the pods and volumes of that Node.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::{Node, PersistentVolumeClaim, Pod},
        storage::v1::VolumeAttachment,
    },
    apimachinery::pkg::api::resource::Quantity,
};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject},
};
use slipway_capi::{
    frame::Subject,
    names::TEMPLATE_SUFFIX,
    reference,
    view::{Machine, MachineDeployment, MachinePool, MachineSet},
};
use slipway_packing::model::{ResourceList, Taint};
use slipway_runtime::{Context, Informer, ObjectKey, Scope, informer::Index};

use super::{
    disruption::{last_pod_event, machine_drifted},
    drain::PodFacts,
};
use crate::{
    Error,
    accounting::{Group, waits_for},
    api::{
        ClusterAPINodeClass, NodeClaim, NodePool,
        names::{NODE_CLASS_GROUP, TERMINATION_FINALIZER, annotation, label},
    },
    cluster_api::{Reader, nodes_by_zone},
    group::Scalable,
    instances::{Choice, Demand, Reference, Shape, SourceKind, choose, describe, sizes},
    lifecycle::{Limits, NodeFacts},
    memory::Memory,
    options::Options,
    read,
    safety::Rival,
    startup::StartupTaints,
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
        is_paused: bool,
    },
    /// The object it was assigned to is gone.
    Gone(Reference),
}

/// Infrastructure or bootstrap configuration of one Machine.
#[derive(Clone, Debug)]
pub struct Part {
    pub resource: ApiResource,
    pub object: DynamicObject,
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
    /// What was made for its Machine, if that is not there: only of a deleted claim on a template.
    pub parts: Vec<Part>,
    pub limits: Limits,
    pub foreign_taints: StartupTaints,
    pub pool: Option<Arc<NodePool>>,
    /// Its NodePool is frozen.
    pub is_frozen: bool,
    /// When a pod last came to its Node or left it.
    pub pod_event: Option<Timestamp>,
    /// Why its Machine is no longer what its NodeClass would give.
    pub drifted_from: Option<String>,
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
    let pool = claim.labels().get(label::NODE_POOL).and_then(|pool| {
        let pools: Informer<NodePool> = context.informers.get(Scope::all());
        pools.get(&ObjectKey::cluster_scoped(pool))
    });
    let mut observed = Observed {
        claim: claim.clone(),
        rival: reader.rival(now),
        limits: Limits::of(
            class.as_ref().and_then(|class| class.spec.deadlines.as_ref()),
            options_of_object,
        ),
        foreign_taints: options.startup_taints.clone(),
        class,
        assignment,
        machine,
        nodes,
        pods: Vec::new(),
        volumes: Vec::new(),
        parts: Vec::new(),
        is_frozen: pool
            .as_ref()
            .is_some_and(|pool| pool.annotations().contains_key(annotation::FROZEN)),
        pool,
        pod_event: None,
        drifted_from: None,
    };
    if !subject.is_deleting() {
        observed.drifted_from = drifted_from(&observed, &reader, &options).await;
        if let [node] = &observed.nodes[..] {
            let pods = pods_of(&node.name_any(), context);
            observed.pod_event = last_pod_event(pods.iter().map(Arc::as_ref));
        }
    }
    if subject.is_deleting() && claim.annotations().contains_key(annotation::DRAINED) {
        read_again(&mut observed, context).await?;
    }
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

async fn drifted_from(observed: &Observed, reader: &Reader<'_>, options: &Options) -> Option<String> {
    let (class, machine) = (observed.class.as_deref()?, observed.machine.as_deref()?);
    let Assignment::To { object, .. } = &observed.assignment else {
        return None;
    };
    let source = reader.source(object, Some(class), options).await;
    let revision = reader.revision(object);
    machine_drifted(class, source.as_ref(), machine, revision.as_deref(), options)
}

/// Before a claim on a template goes: whether its Machine or what was made for it is there, past the caches.
async fn read_again(observed: &mut Observed, context: &Context) -> Result<(), Error> {
    let claim = &observed.claim;
    let assigned = claim
        .annotations()
        .get(annotation::SCALABLE_RESOURCE)
        .and_then(|text| Reference::parse(text));
    let Some((object, (kind, group))) = assigned
        .as_ref()
        .and_then(|object| Some((object, object.kind.template()?)))
    else {
        return Ok(());
    };
    let (name, namespace) = (claim.name_any(), object.namespace.as_str());
    let machines: Api<Machine> = Api::namespaced(context.client.clone(), namespace);
    let machine = machines
        .get_opt(&name)
        .await
        .map_err(Error::api(format!("reading Machine {namespace}/{name}")))?;
    observed.machine = machine.map(Arc::new);
    if observed.machine.is_some() {
        return Ok(());
    }
    let bootstrap = observed
        .class
        .as_ref()
        .and_then(|class| class.spec.machine_template.as_ref())
        .map(|from| {
            (
                from.bootstrap_ref.api_group.as_str(),
                from.bootstrap_ref.kind.as_str(),
            )
        });
    let mut parts = Vec::new();
    for (group, kind) in [(group, kind)].into_iter().chain(bootstrap) {
        let kind = kind.strip_suffix(TEMPLATE_SUFFIX).unwrap_or(kind);
        let (resource, _) = match reference::resolve_kind(&context.client, group, kind).await {
            // A provider that is gone left nothing.
            Err(slipway_capi::Error::Api {
                source: kube::Error::Api(status),
                ..
            }) if status.code == 404 => continue,
            found => found?,
        };
        let api: Api<DynamicObject> = Api::namespaced_with(context.client.clone(), namespace, &resource);
        let found = api
            .get_opt(&name)
            .await
            .map_err(Error::api(format!("reading {kind} {namespace}/{name}")))?;
        let is_ours = |object: &DynamicObject| object.labels().get(label::CLAIM) == claim.uid().as_ref();
        parts.extend(found.filter(is_ours).map(|object| Part { resource, object }));
    }
    observed.parts = parts;
    Ok(())
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
    if let Some((machine, object)) = reader.handed_over(claim)
        && let Some(shape) = described
            .shapes
            .iter()
            .find(|shape| shape.reference.to_string() == object)
    {
        return Ok(Assignment::Chosen {
            shape: Box::new(shape.clone()),
            why: format!("Machine {}, which it names, came from it", machine.name_any()),
        });
    }
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
    let Some(source) = reader.source(&object, class, options).await else {
        return Ok(if exists(&object, reader, context).await? {
            Assignment::To {
                waits_for: format!("{object} is not known yet"),
                object,
                shape: None,
                stuck: None,
                is_paused: false,
            }
        } else {
            Assignment::Gone(object)
        });
    };
    let settings = match class {
        Some(class) => reader.settings(class, options).await.0,
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
        is_paused: group.is_paused,
        object,
        shape,
    })
}

/// Whether an object that the cache does not show is there all the same.
async fn exists(object: &Reference, reader: &Reader<'_>, context: &Context) -> Result<bool, Error> {
    async fn found<K: Scalable>(object: &Reference, context: &Context) -> Result<bool, Error> {
        let api: Api<K> = Api::namespaced(context.client.clone(), &object.namespace);
        let found = api.get_opt(&object.name).await;
        Ok(found.map_err(Error::api(format!("reading {object}")))?.is_some())
    }
    match object.kind {
        SourceKind::MachineDeployment => found::<MachineDeployment>(object, context).await,
        SourceKind::MachineSet => found::<MachineSet>(object, context).await,
        SourceKind::MachinePool => found::<MachinePool>(object, context).await,
        // As long as the kind cannot be listed, nobody knows.
        SourceKind::Template(_) => {
            let (kind, group) = object.kind.template().unwrap_or_default();
            Ok(reader.templates(group, kind).await.is_none())
        }
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
    let status = node.status.clone().unwrap_or_default();
    let amounts = |list: Option<BTreeMap<String, Quantity>>| -> ResourceList {
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
        capacity: amounts(status.capacity),
        allocatable: amounts(status.allocatable),
        has_finalizer: node
            .finalizers()
            .iter()
            .any(|finalizer| finalizer == TERMINATION_FINALIZER),
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
