//! The controller of one machine, for the kind of any provider. On the frame: joins `plan` and `status`. It writes nothing but the
//! status and the finalizer of its object.

use std::{convert::Infallible, marker::PhantomData};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::{
    Resource,
    core::{NamespaceResourceScope, object::HasStatus},
};
use slipway_capi::{
    frame::{Frame, Kind, Membership, Plan, ProgressOf, Subject},
    owner,
    view::Cluster,
};
use slipway_runtime::{
    Context, Informer, ObjectKey, Outcome, Scope,
    controller::{Controller, Registration, Writable},
};

use super::{Board, MachineStatus, plan, plan::Facts, status};
use crate::{caches::CachedObject, reconcile::Error};

/// A kind whose objects show the VMs of a kind of pools.
pub trait PoolMachine:
    CachedObject
    + Writable
    + Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + HasStatus<Status = MachineStatus>
{
    type Pool: CachedObject;

    /// Keeps an object until Azure no longer has its VM.
    const FINALIZER: &'static str;
    /// The name of its controller.
    const CONTROLLER: &'static str;

    /// An object of this name that shows this VM.
    fn showing(name: &str, provider_id: &str) -> Self;

    fn provider_id(&self) -> &str;
}

/// The pool that an object belongs to.
pub fn pool_key<M: PoolMachine>(metadata: &ObjectMeta) -> Option<ObjectKey> {
    let (group, kind) = (M::Pool::group(&()), M::Pool::kind(&()));
    let owner = owner::owner_of_kind(metadata, &group, &kind)?;
    Some(ObjectKey::new(metadata.namespace.as_deref(), &owner.name))
}

/// All objects of the kind.
pub fn objects<M: PoolMachine>(context: &Context) -> Informer<M> {
    context.informers.get(Scope::of_namespace(&context.settings))
}

struct Machines<M> {
    board: Board,
    kind: PhantomData<M>,
}

/// The controller of a kind of machines, which are told of by the pools' controller through the same board.
pub fn registration<M: PoolMachine>(board: &Board) -> Registration {
    let kind = Machines::<M> {
        board: board.clone(),
        kind: PhantomData,
    };
    Controller::new(M::CONTROLLER, Frame::new(kind))
        .watches::<Cluster>(|cluster, context| {
            let key = ObjectKey::of(cluster);
            let of_cluster =
                objects::<M>(context).index("cluster", |machine| owner::by_cluster(machine.meta()));
            keys(&of_cluster.get(&owner::key(key.namespace(), key.name())))
        })
        .watches::<M::Pool>(|pool, context| {
            let of_pool = by_pool::<M>(&objects(context));
            keys(&of_pool.get(&ObjectKey::of(pool).to_string()))
        })
        .triggered_by(board.trigger())
        .into_registration()
}

/// The objects by the pool they belong to.
pub fn by_pool<M: PoolMachine>(all: &Informer<M>) -> slipway_runtime::informer::Index<M> {
    all.index("pool", |machine| {
        let key = pool_key::<M>(machine.meta());
        key.map(|key| key.to_string()).into_iter().collect()
    })
}

fn keys<M: PoolMachine>(machines: &[std::sync::Arc<M>]) -> Vec<ObjectKey> {
    let keys = machines.iter().map(|machine| ObjectKey::of(machine.as_ref()));
    keys.collect()
}

/// What a reconcile observed.
pub struct Observed<M> {
    machine: M,
    facts: Facts,
}

impl<M: PoolMachine> Kind for Machines<M> {
    type Object = M;
    type Observed = Observed<M>;
    type Action = Infallible;
    type Error = Error;

    fn finalizer(_: &M) -> Option<&'static str> {
        Some(M::FINALIZER)
    }

    fn conditions(status: &mut MachineStatus) -> Option<&mut Vec<Condition>> {
        Some(&mut status.conditions)
    }

    async fn membership(&self, machine: &M, _: &Context) -> Result<Membership, Error> {
        Ok(Membership::by_owner_or_label(machine.meta()))
    }

    async fn observe(&self, subject: &Subject<M>, context: &Context) -> Result<Observed<M>, Error> {
        let machine = subject.object.as_ref();
        let key = pool_key::<M>(machine.meta());
        let pools: Informer<M::Pool> = context.informers.get(Scope::of_namespace(&context.settings));
        let pool = key.as_ref().and_then(|key| pools.get(key));
        let goes = |metadata: &ObjectMeta| metadata.deletion_timestamp.is_some();
        Ok(Observed {
            machine: machine.clone(),
            facts: Facts {
                is_deleting: subject.is_deleting(),
                cluster_goes: subject
                    .cluster
                    .as_ref()
                    .is_none_or(|cluster| goes(&cluster.metadata)),
                pool_goes: pool.is_none_or(|pool| goes(pool.meta())),
                told: key
                    .map(|key| self.board.of(&key, machine.provider_id()))
                    .unwrap_or_default(),
            },
        })
    }

    fn plan(observed: &Observed<M>, _: Timestamp) -> Plan<Infallible> {
        plan::plan(&observed.facts)
    }

    async fn act(
        &self,
        action: &Infallible,
        _: &Subject<M>,
        _: &mut Observed<M>,
        _: &Context,
    ) -> Result<Outcome, Error> {
        match *action {}
    }

    fn status(observed: &Observed<M>, progress: &ProgressOf<Self>, now: Timestamp) -> MachineStatus {
        let machine = &observed.machine;
        let before = machine.status().cloned().unwrap_or_default();
        let generation = machine.meta().generation;
        status::status(&before, &observed.facts, progress.plan(), generation, now)
    }
}
