//! NodeClaim: one node, from the request to its end. What its Machine costs in replicas is the business of the object it is
//! assigned to (`group`); here it is assigned, followed, drained and let go.

mod act;
pub mod disruption;
pub mod drain;
mod observe;
mod plan;
mod status;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{Node, PersistentVolumeClaim, Pod},
        storage::v1::VolumeAttachment,
    },
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::ResourceExt;
use slipway_capi::{
    frame::{Frame, Kind, Membership, Plan, ProgressOf, StatusOf, Subject},
    view::{Cluster, Machine, MachineDeployment, MachinePool, MachineSet},
};
use slipway_runtime::{Context, Controller, ObjectKey, Outcome, controller::Registration};

pub use self::{
    observe::{Assignment, Observed, Part, demand},
    plan::{Action, GiveUp, plan},
    status::status,
};
use crate::{
    Error,
    api::{
        ClusterAPINodeClass, NodeClaim, NodePool,
        names::{NODE_CLASS_GROUP, TERMINATION_FINALIZER, annotation, condition, label},
    },
    cluster_api::{Reader, lease_scope},
    group::Scalable,
    instances::Reference,
    memory::Memory,
    options::Options,
    safety,
};

#[derive(Debug)]
struct Claims {
    memory: Arc<Memory>,
}

impl Kind for Claims {
    type Object = NodeClaim;
    type Observed = Observed;
    type Action = Action;
    type Error = Error;

    fn finalizer(_: &NodeClaim) -> Option<&'static str> {
        Some(TERMINATION_FINALIZER)
    }

    /// Karpenter's kinds know no pause: its conditions are Karpenter's alone.
    fn conditions(_: &mut StatusOf<Self>) -> Option<&mut Vec<Condition>> {
        None
    }

    async fn membership(&self, claim: &NodeClaim, context: &Context) -> Result<Membership, Error> {
        Ok(if claim.spec.node_class_ref.group != NODE_CLASS_GROUP {
            Membership::LeftAlone("its NodeClass is another provider's")
        } else if Options::of(&context.settings).is_dry_run {
            Membership::LeftAlone("nothing is written in a dry run")
        } else {
            Membership::Standalone
        })
    }

    async fn observe(&self, subject: &Subject<NodeClaim>, context: &Context) -> Result<Observed, Error> {
        observe::observe(subject, &self.memory, context).await
    }

    fn plan(observed: &Observed, now: Timestamp) -> Plan<Action> {
        plan(observed, now)
    }

    async fn act(
        &self,
        action: &Action,
        _: &Subject<NodeClaim>,
        observed: &mut Observed,
        context: &Context,
    ) -> Result<Outcome, Error> {
        act::act(action, observed, &self.memory, context).await
    }

    fn status(observed: &Observed, _: &ProgressOf<Self>, now: Timestamp) -> StatusOf<Self> {
        status(observed, now)
    }

    fn remember(&self, _: &Subject<NodeClaim>, observed: Observed, _: &ProgressOf<Self>) {
        let claim = &observed.claim;
        let is_registered = claim
            .status
            .iter()
            .flat_map(|status| &status.conditions)
            .any(|one| one.type_ == condition::REGISTERED && one.status == "True");
        if let Some(pool) = claim.labels().get(label::NODE_POOL).filter(|_| is_registered) {
            let uid = claim.uid().unwrap_or_default();
            self.memory.note_outcome(pool, &uid, true);
        }
        let made = claim
            .metadata
            .creation_timestamp
            .as_ref()
            .filter(|_| is_registered);
        if let (Assignment::To { object, .. }, Some(made)) = (&observed.assignment, made) {
            self.memory.note_came(object, made.0);
        }
    }
}

fn key(claim: &NodeClaim) -> ObjectKey {
    ObjectKey::of(claim)
}

/// Claims on an object that have no Machine yet: what happens to the object is news to them.
fn waiting_on<K: Scalable>(object: &K, reader: &Reader<'_>) -> Vec<ObjectKey> {
    let metadata = object.meta();
    let named = Reference::new(
        K::KIND,
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default(),
    );
    let is_gone = metadata.deletion_timestamp.is_some();
    let claims = reader.claims_of(&named).into_iter();
    claims
        .filter(|claim| is_gone || !claim.annotations().contains_key(annotation::MACHINE))
        .map(|claim| key(&claim))
        .collect()
}

fn on_node(node: &str, provider_id: Option<&str>, leaving: bool, reader: &Reader<'_>) -> Vec<ObjectKey> {
    let claim = reader.claim_of_node(node, provider_id);
    claim
        .filter(|claim| !leaving || claim.metadata.deletion_timestamp.is_some())
        .map(|claim| key(&claim))
        .into_iter()
        .collect()
}

/// A pod on its way out may be what a deleted claim waits for; on a claim that stays pods that come and go are noted, not each
/// of many at once.
fn of_pod_event(node: &str, pod: &Pod, reader: &Reader<'_>) -> Vec<ObjectKey> {
    let Some(claim) = reader.claim_of_node(node, None) else {
        return Vec::new();
    };
    let status = claim.status.as_ref();
    let known = status.and_then(|status| status.last_pod_event_time.as_ref());
    let is_noted = disruption::last_pod_event([pod])
        .is_none_or(|event| !disruption::is_news(event, known.map(|time| time.0)));
    if claim.metadata.deletion_timestamp.is_none() && is_noted {
        return Vec::new();
    }
    vec![key(&claim)]
}

pub fn registration(memory: &Arc<Memory>) -> Registration {
    let shared = || Arc::clone(memory);
    let (of_machine, of_node, of_pod, of_volume) = (shared(), shared(), shared(), shared());
    let (of_deployment, of_set, of_pool, of_class) = (shared(), shared(), shared(), shared());
    let of_node_pool = shared();
    let mut controller = Controller::new("nodeclaim", Frame::new(Claims { memory: shared() }))
        .watches::<Machine>(move |machine, context| {
            let reader = Reader::new(context, &of_machine);
            let uid = machine.labels().get(label::CLAIM);
            let claim = uid.and_then(|uid| reader.claim_of_uid(uid));
            claim.map(|claim| key(&claim)).into_iter().collect()
        })
        .watches::<Node>(move |node, context| {
            let id = node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref());
            on_node(&node.name_any(), id, false, &Reader::new(context, &of_node))
        })
        .watches::<Pod>(move |pod, context| {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            let reader = Reader::new(context, &of_pod);
            node.map(|node| of_pod_event(node, pod, &reader))
                .unwrap_or_default()
        })
        .watches::<VolumeAttachment>(move |attachment, context| {
            let reader = Reader::new(context, &of_volume);
            on_node(&attachment.spec.node_name, None, true, &reader)
        })
        .watches::<MachineDeployment>(move |object, context| {
            waiting_on(object, &Reader::new(context, &of_deployment))
        })
        .watches::<MachineSet>(move |set, context| waiting_on(set, &Reader::new(context, &of_set)))
        .watches::<MachinePool>(move |pool, context| waiting_on(pool, &Reader::new(context, &of_pool)))
        .watches::<ClusterAPINodeClass>(move |class, context| {
            let claims = Reader::new(context, &of_class).claims().list().into_iter();
            let seen = format!("{:?}", class.metadata.generation);
            let is_new = of_class.is_new(format!("ClusterAPINodeClass/{}", class.name_any()), seen);
            let waits = |claim: &Arc<NodeClaim>| {
                claim.spec.node_class_ref.name == class.name_any()
                    && (is_new || !claim.annotations().contains_key(annotation::SCALABLE_RESOURCE))
            };
            claims.filter(waits).map(|claim| key(&claim)).collect()
        })
        .watches::<NodePool>(move |pool, context| {
            // Its status changes with every claim, and says nothing to them.
            let annotations = pool.annotations();
            let seen = format!(
                "{:?} {:?} {}",
                pool.metadata.generation,
                annotations.get(annotation::NODE_POOL_HASH),
                annotations.contains_key(annotation::FROZEN)
            );
            if !of_node_pool.is_new(format!("NodePool/{}", pool.name_any()), seen) {
                return Vec::new();
            }
            let reader = Reader::new(context, &of_node_pool);
            let claims = reader.claims_of_pool(&pool.name_any());
            claims.iter().map(|claim| key(claim)).collect()
        })
        // These are only read.
        .watches::<Cluster>(|_, _| Vec::new())
        .watches::<PersistentVolumeClaim>(|_, _| Vec::new());
    for (name, _) in safety::LEASES {
        controller = controller.watches_in::<Lease>(move |_| lease_scope(name), |_, _| Vec::new());
    }
    controller.into_registration()
}
