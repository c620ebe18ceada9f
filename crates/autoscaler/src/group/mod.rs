//! The account of one MachineDeployment, MachineSet or MachinePool: its claims, Machines and replicas, kept one to one. One
//! reconcile at a time settles it, and whatever takes a claim away from the object, or lets a deleted claim go, is decided here:
//! so nothing is scaled for a claim that has just left.
//!
//! The objects are core's, so they are read as views and never written whole; the frame, which owns an object's status, is not
//! for them. The shape is the same: observe, plan, act.

mod act;
mod observe;
mod plan;

use std::{marker::PhantomData, sync::Arc};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Resource, ResourceExt, core::NamespaceResourceScope};
use slipway_capi::{
    names, owner,
    view::{Cluster, Machine, MachineDeployment, MachinePool, MachineSet},
};
use slipway_runtime::{
    Context, Controller, Informer, Next, ObjectKey, Reconciler, Scope, controller::Registration, informer,
    plans::PlanKey,
};

pub use self::{
    observe::Observed,
    plan::{Action, plan},
};
use crate::{
    Error,
    api::{NodeClaim, names::annotation},
    cluster_api::{Reader, lease_scope, made_by},
    instances::{Reference, Source},
    memory::Memory,
    options::Options,
    read, safety,
};

/// Machines and claims come many at once: they are accounted for together.
const GATHER: std::time::Duration = std::time::Duration::from_millis(250);

/// An object whose replicas are Machines.
pub trait Scalable: informer::Object + Resource<DynamicType = (), Scope = NamespaceResourceScope> {
    const KIND: &'static str;
    /// The controller's name.
    const NAME: &'static str;
    /// The label of its Machines.
    const LABEL: &'static str;

    fn source(&self, cluster: Option<&Cluster>) -> Source;

    fn cluster_name(&self) -> &str;

    /// The revision that new Machines are made of, and why none are made although there are too few.
    fn progress(&self, reader: &Reader<'_>) -> (String, Option<String>);
}

impl Scalable for MachineDeployment {
    const KIND: &'static str = "MachineDeployment";
    const NAME: &'static str = "autoscaler-machinedeployment";
    const LABEL: &'static str = names::label::MACHINE_DEPLOYMENT_NAME;

    fn source(&self, cluster: Option<&Cluster>) -> Source {
        read::machine_deployment(self, cluster)
    }

    fn cluster_name(&self) -> &str {
        &self.spec.cluster_name
    }

    fn progress(&self, reader: &Reader<'_>) -> (String, Option<String>) {
        let sets = reader.sets_of(self);
        read::current_set(self, sets.iter().map(Arc::as_ref))
    }
}

impl Scalable for MachineSet {
    const KIND: &'static str = "MachineSet";
    const NAME: &'static str = "autoscaler-machineset";
    const LABEL: &'static str = names::label::MACHINE_SET_NAME;

    fn source(&self, cluster: Option<&Cluster>) -> Source {
        read::machine_set(self, cluster)
    }

    fn cluster_name(&self) -> &str {
        &self.spec.cluster_name
    }

    fn progress(&self, _: &Reader<'_>) -> (String, Option<String>) {
        let labels = &self.spec.template.metadata.labels;
        let revision = labels.get(names::label::MACHINE_TEMPLATE_HASH).cloned();
        (revision.unwrap_or_default(), read::blocked(self))
    }
}

impl Scalable for MachinePool {
    const KIND: &'static str = "MachinePool";
    const NAME: &'static str = "autoscaler-machinepool";
    const LABEL: &'static str = names::label::MACHINE_POOL_NAME;

    fn source(&self, cluster: Option<&Cluster>) -> Source {
        read::machine_pool(self, cluster)
    }

    fn cluster_name(&self) -> &str {
        &self.spec.cluster_name
    }

    fn progress(&self, _: &Reader<'_>) -> (String, Option<String>) {
        (String::new(), None)
    }
}

/// Keeps the accounts of one kind.
struct Accountant<K> {
    memory: Arc<Memory>,
    kind: PhantomData<fn() -> K>,
}

impl<K: Scalable> Accountant<K> {
    fn key(object: &K) -> PlanKey {
        PlanKey {
            group: K::group(&()).into_owned(),
            kind: K::KIND.to_owned(),
            object: ObjectKey::of(object),
        }
    }
}

impl<K: Scalable> Reconciler for Accountant<K> {
    type Object = K;
    type Error = Error;

    async fn reconcile(&self, object: Arc<K>, context: &Context) -> Result<Next, Error> {
        let options = Options::of(&context.settings);
        let reader = Reader::new(context, &self.memory);
        let mut observed = observe::from_caches(object, &reader, &options, context.clock.now());
        // Most objects of a cluster have nothing to do with us.
        if options.is_dry_run || observed.is_not_ours() {
            return Ok(Next::OnChange);
        }
        let (mut planned, mut account) = plan(&observed, context.clock.now());
        if account.needs_confirmation {
            let Some(confirmed) = observe::past_the_caches(&observed, &reader, &options, context).await?
            else {
                return Ok(Next::OnChange);
            };
            observed = confirmed;
            (planned, account) = plan(&observed, context.clock.now());
        }
        if let Some(why) = plan::no_machine(&observed, &account) {
            self.memory
                .note_unavailable(&observed.group.reference, &why, context.clock.now());
        }
        let text = planned.to_string();
        tracing::debug!(plan = %text, "Planned");
        context
            .plans
            .keep(Self::key(observed.object.as_ref()), context.clock.now(), &text);
        act::act(planned, &observed, &self.memory, context).await
    }

    fn forget(&self, key: &ObjectKey, context: &Context) {
        context.plans.forget(&PlanKey {
            group: K::group(&()).into_owned(),
            kind: K::KIND.to_owned(),
            object: key.clone(),
        });
    }
}

fn keys_of<K: Scalable>(texts: impl IntoIterator<Item = String>) -> Vec<ObjectKey> {
    texts
        .into_iter()
        .filter_map(|text| Reference::parse(&text))
        .filter(|reference| reference.kind.name() == K::KIND)
        .map(|reference| ObjectKey::namespaced(&reference.namespace, &reference.name))
        .collect()
}

fn registration<K: Scalable>(memory: &Arc<Memory>) -> Registration {
    let reconciler = Accountant::<K> {
        memory: Arc::clone(memory),
        kind: PhantomData,
    };
    let mut controller = Controller::new(K::NAME, reconciler)
        .min_interval(GATHER)
        .watches::<NodeClaim>(|claim, _| {
            keys_of::<K>(claim.annotations().get(annotation::SCALABLE_RESOURCE).cloned())
        })
        .watches::<Machine>(|machine, _| keys_of::<K>(made_by(machine)))
        .watches::<MachineSet>(|set, _| {
            let is_ours = K::KIND == "MachineDeployment";
            let owner = owner::controller_of(&set.metadata).filter(|owner| is_ours && owner.kind == K::KIND);
            owner
                .map(|owner| ObjectKey::new(set.metadata.namespace.as_deref(), &owner.name))
                .into_iter()
                .collect()
        })
        .watches::<Cluster>(|cluster, context| {
            let objects: Informer<K> = context.informers.get(Scope::of_work(&context.settings));
            let is_of = |object: &Arc<K>| {
                object.meta().namespace == cluster.metadata.namespace
                    && object.cluster_name() == cluster.name_any()
            };
            let of_cluster = objects.list().into_iter().filter(is_of);
            of_cluster.map(|object| ObjectKey::of(object.as_ref())).collect()
        });
    for (name, _) in safety::LEASES {
        controller = controller.watches_in::<Lease>(move |_| lease_scope(name), |_, _| Vec::new());
    }
    controller.into_registration()
}

/// The controllers that keep accounts.
pub fn registrations(memory: &Arc<Memory>) -> Vec<Registration> {
    vec![
        registration::<MachineDeployment>(memory),
        registration::<MachineSet>(memory),
        registration::<MachinePool>(memory),
    ]
}
