//! One reconcile of one object, the same for every kind. The only writes here are those of the frame itself: finalizer,
//! move, status.

use std::{fmt, sync::Arc};

use kube::{Api, Resource, ResourceExt, core::object::HasStatus};
use slipway_runtime::{
    Class, Classified, Context, Informer, Next, ObjectKey, Outcome, Preview, Reconciler, Scope,
    plans::PlanKey,
    preview::{self, Effect},
};

use super::{
    Announcement, Attempt, Entry, Failure, Kind, Membership, Plan, Progress, ProgressOf, StatusOf, Subject,
    What, without_credentials,
};
use crate::{
    Error, annotations, condition, finalizer, names,
    paused::{Paused, paused},
    view::Cluster,
};

/// More closer reads than this do not end.
const MOST_CONFIRMATIONS: usize = 3;

/// Reconciles the objects of a kind.
#[derive(Debug, Default)]
pub struct Frame<K> {
    kind: K,
}

impl<K: Kind> Frame<K> {
    pub fn new(kind: K) -> Self {
        Self { kind }
    }
}

impl<K: Kind> Reconciler for Frame<K> {
    type Object = K::Object;
    type Error = Failure<K::Error>;

    async fn reconcile(&self, object: Arc<K::Object>, context: &Context) -> Result<Next, Failure<K::Error>> {
        let subject = match self.subject(object, context).await? {
            Ok(subject) => subject,
            Err(why) => {
                tracing::debug!("Left alone: {why}");
                return Ok(Next::OnChange);
            }
        };
        let object = subject.object.as_ref();
        let paused = paused(subject.cluster.as_deref(), object.meta());
        if paused.is_paused() {
            self.kind.pause(&subject, context).await.map_err(Failure::Kind)?;
            return ensure_paused::<K>(&subject, paused, context).await;
        }
        let holds = K::finalizer(object).is_some_and(|name| finalizer::has(object.meta(), name));
        if subject.is_deleting() && !holds {
            return Ok(Next::OnChange);
        }
        let first = of_frame::<K>(object);
        if !first.is_empty() {
            return carry_out::<K>(first, &subject, context).await;
        }
        self.work(&subject, paused, context).await
    }

    async fn preview(
        &self,
        object: Arc<K::Object>,
        unheld: bool,
        context: &Context,
    ) -> Result<Option<Preview>, Failure<K::Error>> {
        let object = if unheld {
            Arc::new(K::unheld(&object))
        } else {
            object
        };
        let subject = match self.subject(object, context).await? {
            Ok(subject) => subject,
            Err(why) => return Ok(Some(Preview::left_alone(why))),
        };
        let paused = paused(subject.cluster.as_deref(), subject.object.meta());
        let (_, plan) = self.planned(&subject, context).await?;
        Ok(Some(Preview {
            paused: paused
                .is_paused()
                .then(|| paused.report(&K::Object::kind(&())).message),
            left_alone: None,
            steps: plan.entries.iter().map(step::<K>).collect(),
        }))
    }

    fn forget(&self, key: &ObjectKey, context: &Context) {
        context.plans.forget(&plan_key::<K>(key));
        self.kind.forget(key, context);
    }
}

impl<K: Kind> Frame<K> {
    /// What is reconciled, with its Cluster. Otherwise there is nothing to do for it now, and the text says why.
    async fn subject(
        &self,
        object: Arc<K::Object>,
        context: &Context,
    ) -> Result<Result<Subject<K::Object>, String>, Failure<K::Error>> {
        let membership = self.kind.membership(&object, context).await;
        let cluster_name = match membership.map_err(Failure::Kind)? {
            Membership::Of(name) => Some(name),
            Membership::Standalone => None,
            Membership::LeftAlone(why) => return Ok(Err(why.to_owned())),
        };
        let cluster = match &cluster_name {
            Some(name) => cluster(object.meta().namespace.as_deref(), name, context).await?,
            None => None,
        };
        // Core makes the Cluster before it makes it an owner: one that is not there is on its way, or gone.
        if let Some(name) = &cluster_name
            && cluster.is_none()
            && object.meta().deletion_timestamp.is_none()
        {
            return Ok(Err(format!("its Cluster {name} is not there")));
        }
        Ok(Ok(Subject {
            object,
            cluster,
            cluster_name,
        }))
    }

    /// What is observed, as closely as the plan made from it needs.
    async fn planned(
        &self,
        subject: &Subject<K::Object>,
        context: &Context,
    ) -> Result<(K::Observed, Plan<K::Action>), Failure<K::Error>> {
        let mut observed = self.kind.observe(subject, context).await.map_err(Failure::Kind)?;
        let mut plan = K::plan(&observed, context.clock.now());
        let mut confirmations = 0;
        while K::needs_confirmation(&observed, &plan) {
            if confirmations == MOST_CONFIRMATIONS {
                return Err(Failure::Unconfirmed);
            }
            confirmations += 1;
            observed = self
                .kind
                .confirm(subject, observed, context)
                .await
                .map_err(Failure::Kind)?;
            plan = K::plan(&observed, context.clock.now());
        }
        Ok((observed, plan))
    }

    async fn work(
        &self,
        subject: &Subject<K::Object>,
        paused: Paused,
        context: &Context,
    ) -> Result<Next, Failure<K::Error>> {
        let (mut observed, plan) = self.planned(subject, context).await?;
        let mut progress = Progress::new(plan);
        tracing::debug!(plan = %progress.plan(), "Planned");
        keep_plan::<K>(subject, progress.plan(), context);
        self.act(0, &mut progress, subject, &mut observed, context).await;
        // An object that was let go may be gone: there is nothing left to write to.
        if !progress.has_released() {
            let planned = progress.plan().entries.len();
            progress.append(K::follow_up(&observed, &progress));
            self.act(planned, &mut progress, subject, &mut observed, context)
                .await;
        }
        if !progress.plan().is_empty() {
            keep_plan::<K>(subject, &progress, context);
        }
        self.finish(progress, observed, subject, paused, context).await
    }

    /// Takes the actions from this one on, in order. What is not done holds up later groups.
    async fn act(
        &self,
        from: usize,
        progress: &mut ProgressOf<K>,
        subject: &Subject<K::Object>,
        observed: &mut K::Observed,
        context: &Context,
    ) {
        for index in from..progress.plan().entries.len() {
            if progress.is_held(index) {
                continue;
            }
            let entry = &progress.plan().entries[index];
            let result = match &entry.what {
                What::Do(action) => self
                    .kind
                    .act(action, subject, observed, context)
                    .await
                    .map_err(Failure::Kind),
                What::Wait(_) => {
                    announce(entry, None, subject.object.as_ref(), context);
                    progress.note(index, Attempt::Waiting);
                    continue;
                }
                what => write::<K>(what, subject, context).await.map_err(Failure::Frame),
            };
            let (what, why) = (entry.what.to_string(), entry.why.clone());
            match &result {
                Ok(outcome) => tracing::debug!(action = what, why, ?outcome, "Acted"),
                Err(error) => tracing::debug!(action = what, why, %error, "Failed to act"),
            }
            // What a request limit held back was not done.
            if matches!(result, Ok(Outcome::Done | Outcome::InProgress(_))) {
                let made = entry.action().and_then(|action| K::made(observed, action));
                announce(entry, made, subject.object.as_ref(), context);
            }
            progress.note(index, result.map_or_else(Attempt::Failed, Attempt::Came));
        }
    }

    /// Writes the status, tells what went wrong, and says when to reconcile again.
    async fn finish(
        &self,
        progress: ProgressOf<K>,
        observed: K::Observed,
        subject: &Subject<K::Object>,
        paused: Paused,
        context: &Context,
    ) -> Result<Next, Failure<K::Error>> {
        let now = context.clock.now();
        let written = if progress.has_released() {
            Ok(())
        } else {
            let status = K::status(&observed, &progress, now);
            write_status::<K>(subject, status, paused, context).await
        };
        self.kind.remember(subject, observed, &progress);
        let next = progress.next(now);
        match (progress.into_failure(), written) {
            (None, Ok(())) => Ok(next),
            (None, Err(error)) => Err(Failure::Frame(error)),
            (Some(failure), written) => {
                if let Err(error) = written {
                    tracing::debug!(%error, "Failed to write the status");
                }
                conclude(failure, next, subject.object.as_ref(), context)
            }
        }
    }
}

/// An entry of a plan, for who asks ahead.
fn step<K: Kind>(entry: &Entry<K::Action>) -> preview::PreviewStep {
    let effect = match &entry.what {
        What::Wait(wait) if wait.class.is_some() => Effect::Blocked,
        What::Wait(_) => Effect::Wait,
        What::Do(_) if K::changes_outside(entry) => Effect::Outside,
        _ => Effect::Inside,
    };
    let changes = entry.differences.iter().map(|difference| preview::PreviewChange {
        path: difference.path.clone(),
        from: without_credentials(&difference.from).into_owned(),
        to: without_credentials(&difference.to).into_owned(),
    });
    preview::PreviewStep {
        what: entry.what.to_string(),
        why: entry.why.clone(),
        effect,
        changes: changes.collect(),
    }
}

/// A Cluster as the watch shows it. Where no watch runs, the apiserver is asked.
async fn cluster<E>(
    namespace: Option<&str>,
    name: &str,
    context: &Context,
) -> Result<Option<Arc<Cluster>>, Failure<E>> {
    let clusters: Informer<Cluster> = context.informers.get(Scope::of_namespace(&context.settings));
    if clusters.is_synced() {
        return Ok(clusters.get(&ObjectKey::new(namespace, name)));
    }
    let api: Api<Cluster> = Api::namespaced(context.client.clone(), namespace.unwrap_or_default());
    let found = api.get_opt(name).await.map_err(Error::api(format!(
        "reading Cluster {}",
        ObjectKey::new(namespace, name)
    )));
    Ok(found.map_err(Failure::Frame)?.map(Arc::new))
}

/// Records the event of an entry, if it has one, with the name of what it made.
fn announce<A: fmt::Display, O: Resource<DynamicType = ()>>(
    entry: &Entry<A>,
    made: Option<String>,
    object: &O,
    context: &Context,
) {
    if let Some(Announcement { reason, warning }) = entry.event {
        let regarding = object.object_ref(&());
        let made = made.map_or_else(String::new, |made| format!(" ({made})"));
        let note = format!("{}{made}", entry.note());
        context
            .events
            .record(regarding, warning, reason, "Reconcile", note);
    }
}

/// Tells what a user has to mend. A failure that is not tried again by itself must not end what is polled for.
fn conclude<O, E>(failure: Failure<E>, next: Next, object: &O, context: &Context) -> Result<Next, Failure<E>>
where
    O: Resource<DynamicType = ()>,
    E: Classified,
{
    if !matches!(failure.class(), Class::Terminal | Class::Denied) {
        return Err(failure);
    }
    context
        .events
        .warning(object, "ReconcileError", "Reconcile", failure.to_string());
    if next == Next::OnChange {
        return Err(failure);
    }
    tracing::error!(error = %failure, "Reconcile failed, and goes on with the rest");
    Ok(next)
}

/// What is stored before anything is made, or instead of anything else.
fn of_frame<K: Kind>(object: &K::Object) -> Plan<K::Action> {
    let metadata = object.meta();
    let mut plan = Plan::new();
    if metadata.deletion_timestamp.is_some() {
        if annotations::is_deleted_for_move(metadata) {
            plan.release_finalizer(
                "clusterctl move deletes the object here, and what it stands for lives on",
            );
        }
        return plan;
    }
    if let Some(name) = K::finalizer(object).filter(|name| !finalizer::has(metadata, name)) {
        plan.of_frame(
            What::AddFinalizer(name),
            "nothing is made that could be left behind",
        );
    }
    if K::BLOCKS_MOVE && !annotations::blocks_move(metadata) {
        plan.of_frame(What::BlockMove, "the object is worked on until it is paused");
    }
    plan
}

/// Carries out a plan of the frame's own entries. The object's change enqueues it.
async fn carry_out<K: Kind>(
    plan: Plan<K::Action>,
    subject: &Subject<K::Object>,
    context: &Context,
) -> Result<Next, Failure<K::Error>> {
    tracing::debug!(plan = %plan, "Planned");
    keep_plan::<K>(subject, &plan, context);
    for entry in &plan.entries {
        write::<K>(&entry.what, subject, context)
            .await
            .map_err(Failure::Frame)?;
    }
    Ok(Next::OnChange)
}

/// Nothing is touched while paused, `clusterctl move` may go on, and the condition says so.
async fn ensure_paused<K: Kind>(
    subject: &Subject<K::Object>,
    paused: Paused,
    context: &Context,
) -> Result<Next, Failure<K::Error>> {
    let object = subject.object.as_ref();
    if K::BLOCKS_MOVE && annotations::blocks_move(object.meta()) {
        let mut plan = Plan::new();
        plan.of_frame(What::UnblockMove, "the object is paused");
        carry_out::<K>(plan, subject, context).await?;
    }
    let status = object.status().cloned().unwrap_or_default();
    write_status::<K>(subject, status, paused, context)
        .await
        .map_err(Failure::Frame)?;
    Ok(Next::OnChange)
}

/// One write of the frame.
async fn write<K: Kind>(
    what: &What<K::Action>,
    subject: &Subject<K::Object>,
    context: &Context,
) -> Result<Outcome, Error> {
    let object = subject.object.as_ref();
    let metadata = object.meta();
    let name = || format!("{} {}", K::Object::kind(&()), subject.key());
    match what {
        What::AddFinalizer(finalizer) => {
            if let Some(patch) = finalizer::add(metadata, finalizer) {
                let doing = format!("adding the finalizer to {}", name());
                let stored = context.patch_json(object, &patch).await;
                stored.map_err(|error| Error::patching(doing, error))?;
            }
        }
        What::ReleaseFinalizer => {
            let patch = K::finalizer(object)
                .and_then(|finalizer| finalizer::remove(metadata, finalizer, Outcome::Done));
            if let Some(patch) = patch {
                let doing = format!("removing the finalizer of {}", name());
                match context.patch_json(object, &patch).await {
                    // Gone is what was asked for.
                    Err(kube::Error::Api(status)) if status.code == 404 => {}
                    other => drop(other.map_err(|error| Error::patching(doing, error))?),
                }
            }
        }
        What::BlockMove | What::UnblockMove => {
            let blocks = matches!(what, What::BlockMove);
            if let Some(patch) = annotations::block_move(metadata, blocks) {
                let doing = if blocks { "holding back" } else { "allowing" };
                let stored = context.patch(object, &patch).await;
                stored.map_err(Error::api(format!("{doing} the move of {}", name())))?;
            }
        }
        What::Do(_) | What::Report(_) | What::Wait(_) => {}
    }
    Ok(Outcome::Done)
}

/// Writes the status with the `Paused` condition in it, if it differs.
async fn write_status<K: Kind>(
    subject: &Subject<K::Object>,
    mut status: StatusOf<K>,
    paused: Paused,
    context: &Context,
) -> Result<(), Error> {
    let object = subject.object.as_ref();
    let kind = K::Object::kind(&());
    if let Some(conditions) = K::conditions(&mut status) {
        let (generation, now) = (object.meta().generation, context.clock.now());
        condition::set(conditions, &paused.report(&kind), generation, now);
        condition::check_count(conditions)?;
    }
    let doing = format!("writing the status of {kind} {}", object.name_any());
    let became_ready = is_ready::<K>(status.clone()) && !object.status().cloned().is_some_and(is_ready::<K>);
    context
        .patch_status(object, &status)
        .await
        .map_err(Error::api(doing))?;
    if became_ready {
        tracing::info!(kind = %kind, object = %subject.key(), "Became ready");
    }
    Ok(())
}

fn is_ready<K: Kind>(mut status: StatusOf<K>) -> bool {
    K::conditions(&mut status).is_some_and(|conditions| says_ready(conditions))
}

/// Control planes may say `Available` where others say `Ready`.
pub(super) fn says_ready(conditions: &[condition::Condition]) -> bool {
    let find = |type_: &str| condition::find(conditions, type_);
    let ready = find(names::condition::READY).or_else(|| find(names::condition::AVAILABLE));
    ready.is_some_and(|ready| ready.status == "True")
}

fn plan_key<K: Kind>(object: &ObjectKey) -> PlanKey {
    PlanKey {
        group: K::Object::group(&()).into_owned(),
        kind: K::Object::kind(&()).into_owned(),
        object: object.clone(),
    }
}

/// Keeps the plan for whoever asks the manager.
fn keep_plan<K: Kind>(subject: &Subject<K::Object>, plan: &impl fmt::Display, context: &Context) {
    let key = plan_key::<K>(&subject.key());
    context.plans.keep(key, context.clock.now(), &plan.to_string());
}
