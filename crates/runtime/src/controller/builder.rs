//! Says what a controller works on, what brings an object back to it, and how fast it goes.

use std::{sync::Arc, time::Duration};

use futures::FutureExt;
use kube::{
    Resource, ResourceExt,
    api::{ApiResource, DynamicObject, ObjectMeta, PartialObjectMeta},
};
use serde::Serialize;

use super::{
    Context, Reconciler, Registration, Trigger,
    run::{self, Source},
};
use crate::{
    ObjectKey,
    informer::{Informer, Informers, Object, Scope},
    queue::{Limits, Rate},
};

/// How a controller goes about its work.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// A reconcile that takes longer is stopped, counted and tried again later.
    pub reconcile_timeout: Duration,
    /// How long reconciles in work may take to end after shutdown.
    pub shutdown_grace: Duration,
    /// When permission was missing: how long until it is tried again.
    pub denied_retry: Duration,
    pub limits: Limits,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            reconcile_timeout: Duration::from_mins(5),
            shutdown_grace: Duration::from_secs(20),
            denied_retry: Duration::from_mins(1),
            limits: Limits::default(),
        }
    }
}

/// A controller being described. [`Controller::into_registration`] makes it part of a provider.
pub struct Controller<R: Reconciler> {
    name: &'static str,
    reconciler: Arc<R>,
    kept_as_text: Vec<fn(&Informers)>,
    sources: Vec<Source>,
    triggers: Vec<Trigger>,
    options: Options,
}

impl<R: Reconciler> Controller<R> {
    /// The name is the kind in lower case.
    pub fn new(name: &'static str, reconciler: R) -> Self {
        Self {
            name,
            reconciler: Arc::new(reconciler),
            kept_as_text: Vec::new(),
            sources: Vec::new(),
            triggers: Vec::new(),
            options: Options::default(),
        }
    }

    /// Objects of this kind are kept as text ([`Informers::keep_as_text`]), whoever looks at them.
    pub fn keeps_as_text<K: Object + Serialize>(mut self) -> Self {
        self.kept_as_text.push(Informers::keep_as_text::<K>);
        self
    }

    /// A change of a child enqueues the object that controls it (`ownerReferences` with `controller: true`).
    pub fn owns<Child>(self) -> Self
    where
        Child: Object + Resource<DynamicType = ()>,
    {
        let owner_kind = R::Object::kind(&()).into_owned();
        let owner_group = R::Object::group(&()).into_owned();
        self.watches::<Child>(move |child, _| {
            controlling_owner(child.meta(), &owner_group, &owner_kind)
                .into_iter()
                .collect()
        })
    }

    /// A change of another object enqueues the objects it is mapped to; both its old and its new state are.
    pub fn watches<Other>(
        self,
        map: impl Fn(&Other, &Context) -> Vec<ObjectKey> + Send + Sync + 'static,
    ) -> Self
    where
        Other: Object + Resource<DynamicType = ()>,
    {
        self.watches_in::<Other>(Scope::of_namespace, map)
    }

    /// The same with a narrower scope, e.g. a label selector.
    pub fn watches_in<Other>(
        mut self,
        scope: impl Fn(&crate::Settings) -> Scope + Send + Sync + 'static,
        map: impl Fn(&Other, &Context) -> Vec<ObjectKey> + Send + Sync + 'static,
    ) -> Self
    where
        Other: Object + Resource<DynamicType = ()>,
    {
        let map = Arc::new(map);
        self.sources.push(Source::new(move |context, queue| {
            let informer: Informer<Other> = context.informers.get(scope(&context.settings));
            let (map, context) = (Arc::clone(&map), context.clone());
            run::feed(informer, queue, move |other| map(other, &context))
        }));
        self
    }

    /// The same for a kind of which only the metadata matters, e.g. Secrets.
    pub fn watches_metadata(
        mut self,
        resource: ApiResource,
        map: impl Fn(&ObjectMeta, &Context) -> Vec<ObjectKey> + Send + Sync + 'static,
    ) -> Self {
        let map = Arc::new(map);
        self.sources.push(Source::new(move |context, queue| {
            let informer: Informer<PartialObjectMeta<DynamicObject>> = context
                .informers
                .get_metadata(&resource, Scope::of_namespace(&context.settings));
            let (map, context) = (Arc::clone(&map), context.clone());
            run::feed(informer, queue, move |other| map(&other.metadata, &context))
        }));
        self
    }

    /// Whoever holds the trigger can ask for objects.
    pub fn triggered_by(mut self, trigger: &Trigger) -> Self {
        self.triggers.push(trigger.clone());
        self
    }

    pub fn reconcile_timeout(mut self, timeout: Duration) -> Self {
        self.options.reconcile_timeout = timeout;
        self
    }

    /// An object is not reconciled again sooner than this after it was.
    pub fn min_interval(mut self, interval: Duration) -> Self {
        self.options.limits.min_interval = interval;
        self
    }

    /// The waits between tries of a failing object.
    pub fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.options.limits.first_retry = first;
        self.options.limits.longest_retry = longest;
        self
    }

    /// At most this many reconciles a second, all objects together.
    pub fn rate(mut self, rate: Rate) -> Self {
        self.options.limits.rate = Some(rate);
        self
    }

    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    pub fn into_registration(self) -> Registration {
        let name = self.name;
        let controller = Arc::new(self);
        Registration {
            name,
            run: Arc::new(move |context: Context| {
                let controller = Arc::clone(&controller);
                async move {
                    for keep_as_text in &controller.kept_as_text {
                        keep_as_text(&context.informers);
                    }
                    run::run(
                        controller.name,
                        Arc::clone(&controller.reconciler),
                        &controller.sources,
                        &controller.triggers,
                        controller.options,
                        context,
                    )
                    .await;
                    Ok(())
                }
                .boxed()
            }),
        }
    }
}

/// The object of this kind that controls a child.
fn controlling_owner(child: &ObjectMeta, group: &str, kind: &str) -> Option<ObjectKey> {
    let owner = child
        .owner_references
        .iter()
        .flatten()
        .find(|owner| owner.controller == Some(true))?;
    // Any version of the group: an owner reference keeps the version it was written with.
    let owner_group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
    (owner.kind == kind && owner_group == group)
        .then(|| ObjectKey::new(child.namespace.as_deref(), &owner.name))
}

/// Whether the change of an object itself is somebody's edit: anything but its status and its version.
pub(super) fn is_edit<K: Resource>(old: &K, new: &K) -> bool {
    let (old_meta, new_meta) = (old.meta(), new.meta());
    // Kinds without a generation (ConfigMap, Secret) may have changed anywhere.
    new_meta.generation.is_none()
        || old_meta.generation != new_meta.generation
        || old_meta.uid != new_meta.uid
        || old_meta.deletion_timestamp != new_meta.deletion_timestamp
        || old.labels() != new.labels()
        || old.annotations() != new.annotations()
        || old.finalizers() != new.finalizers()
        || old.owner_references() != new.owner_references()
}
