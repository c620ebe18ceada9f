//! The control plane: the servers of one cluster, and the etcd they keep together.
//!
//! KThreesControlPlane on the frame: joins `observe`, `plan`, `act` and `status`, keeps what outlives a reconcile, and
//! registers the controller.

pub mod act;
pub mod admit;
pub mod api;
pub mod health;
pub mod hook;
mod last_read;
mod leases;
pub mod liveness;
pub mod observe;
pub mod observed;
pub mod orphan;
pub mod ownership;
pub mod plan;
pub mod preflight;
pub mod probe;
pub mod quorum;
pub mod remediation;
mod retry;
pub mod rollout;
pub mod secrets;
pub mod select;
pub mod status;
pub mod sync;
pub mod upkeep;
pub mod workload;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::ApiResource;
use parking_lot::Mutex;
use slipway_capi::{
    condition::Condition,
    frame::{Attempt, Frame, Kind, Plan, ProgressOf, Subject},
    hook::HookClient,
    view::{Cluster, Machine},
};
use slipway_runtime::{
    Class, Classified, Metrics, ObjectKey, Outcome,
    controller::{Context, Controller, Registration},
    workload::Connector,
};

use self::{
    act::Executor,
    last_read::LastRead,
    observe::{Known, Snapshot, Source},
    observed::{InPlaceAnswer, Question},
    plan::Action,
    workload::Workloads,
};
use crate::{
    api::{
        FINALIZER, KThreesConfig, KThreesControlPlane, KThreesControlPlaneStatus, conditions::V1Beta2Status,
    },
    error::Error,
    reads::Reads,
};

/// What was done to a server is read before anything else is done.
const READ_AGAIN: Outcome = Outcome::InProgress(Duration::from_secs(1));

/// What the update extension said of each machine and when, and at which generation it was asked.
type Answers = (Option<i64>, BTreeMap<String, (Timestamp, InPlaceAnswer)>);

#[derive(Default)]
pub struct ControlPlanes {
    memory: Arc<Memory>,
    hooks: HookClient,
}

/// What outlives a reconcile, by control plane. It goes with its control plane.
#[derive(Default)]
struct Memory {
    workloads: Workloads,
    reads: Reads,
    answers: Mutex<HashMap<ObjectKey, Answers>>,
    last_reads: Mutex<HashMap<ObjectKey, LastRead>>,
    questions: Mutex<HashMap<ObjectKey, Question>>,
}

impl Memory {
    fn forget(&self, key: &ObjectKey) {
        self.workloads.forget(key);
        self.reads.forget(key);
        self.answers.lock().remove(key);
        self.last_reads.lock().remove(key);
        self.questions.lock().remove(key);
    }

    fn count_held(self: &Arc<Self>, metrics: &Metrics) {
        let count = |name: &str, count: fn(&Self) -> usize| {
            // The connections it holds know the metrics: each would keep the other.
            let memory = Arc::downgrade(self);
            metrics.count_held(name, move || memory.upgrade().as_deref().map_or(0, count));
        };
        count("k3s_connections", |memory| memory.workloads.connected());
        count("k3s_leases", |memory| memory.workloads.leases());
        count("k3s_secrets", |memory| memory.reads.len());
        count("k3s_update_answers", |memory| memory.answers.lock().len());
        count("k3s_last_reads", |memory| memory.last_reads.lock().len());
        count("k3s_questions", |memory| memory.questions.lock().len());
    }
}

pub type ControlPlaneReconciler = Frame<ControlPlanes>;

impl ControlPlanes {
    /// Connects to workload clusters by an injected connector.
    pub fn connecting_by(connector: Connector) -> Self {
        let memory = Memory {
            workloads: Workloads::new(connector),
            ..Memory::default()
        };
        Self {
            memory: Arc::new(memory),
            hooks: HookClient::default(),
        }
    }

    /// The same, with an injected client for update extensions.
    pub fn asking_by(mut self, hooks: HookClient) -> Self {
        self.hooks = hooks;
        self
    }
}

pub fn registration() -> Registration {
    registration_of(ControlPlanes::default())
}

/// The same with injected clients.
pub fn registration_of(kind: ControlPlanes) -> Registration {
    let secrets = ApiResource::erase::<Secret>(&());
    let memory = Arc::clone(&kind.memory);
    let inner = Controller::new("kthreescontrolplane", ControlPlaneReconciler::new(kind))
        .owns::<Machine>()
        // A change of them enqueues nobody; a reconcile reads them where the watch shows them.
        .watches::<KThreesConfig>(|_, _| Vec::new())
        .watches::<Cluster>(|cluster, _| {
            cluster
                .spec
                .control_plane_ref
                .iter()
                .filter(|reference| reference.kind == "KThreesControlPlane")
                .map(|reference| ObjectKey::new(cluster.metadata.namespace.as_deref(), &reference.name))
                .collect()
        })
        .watches_metadata(secrets, |secret, _| {
            secret
                .owner_references
                .iter()
                .flatten()
                .filter(|owner| owner.kind == "KThreesControlPlane")
                .map(|owner| ObjectKey::new(secret.namespace.as_deref(), &owner.name))
                .collect()
        })
        .into_registration();
    Registration {
        name: inner.name,
        run: Arc::new(move |context: Context| {
            memory.count_held(&context.metrics);
            (inner.run)(context)
        }),
    }
}

impl Kind for ControlPlanes {
    type Object = KThreesControlPlane;
    type Observed = Snapshot;
    type Action = Action;
    type Error = Error;

    fn finalizer(_: &KThreesControlPlane) -> Option<&'static str> {
        Some(FINALIZER)
    }

    fn conditions(status: &mut KThreesControlPlaneStatus) -> Option<&mut Vec<Condition>> {
        let v1beta2 = status.v1beta2.get_or_insert_with(V1Beta2Status::default);
        Some(v1beta2.conditions.get_or_insert_default())
    }

    async fn observe(
        &self,
        subject: &Subject<KThreesControlPlane>,
        context: &Context,
    ) -> Result<Snapshot, Error> {
        let key = subject.key();
        let now = context.clock.now();
        let answers = self.answers(&key, subject.object.metadata.generation, now);
        let last_read = self
            .memory
            .last_reads
            .lock()
            .remove(&key)
            .filter(|last_read| last_read.stands(&subject.object, now));
        if let Some(last_read) = last_read
            && let Some(snapshot) = self
                .read(Source::Watches(&last_read), subject, &answers, context)
                .await?
        {
            return Ok(Snapshot {
                last_read: Some(last_read),
                ..snapshot
            });
        }
        self.read_all(subject, &answers, context).await
    }

    fn plan(observed: &Snapshot, now: Timestamp) -> Plan<Action> {
        upkeep::plan(observed, now)
    }

    /// What is done to a server, or waits, is decided on what the apiservers and the servers themselves answer, and not on
    /// what watches show.
    fn needs_confirmation(observed: &Snapshot, plan: &Plan<Action>) -> bool {
        let decides = plan.actions().any(|action| !action.is_upkeep());
        (decides && !observed.is_fresh)
            || (!observed.is_confirmed && (decides || plan.waits().next().is_some()))
    }

    async fn confirm(
        &self,
        subject: &Subject<KThreesControlPlane>,
        observed: Snapshot,
        context: &Context,
    ) -> Result<Snapshot, Error> {
        let now = context.clock.now();
        let decides = upkeep::plan(&observed, now)
            .actions()
            .any(|action| !action.is_upkeep());
        if decides && !observed.is_fresh {
            let answers = observed.observed.in_place_answers;
            return self.read_all(subject, &answers, context).await;
        }
        Ok(Box::pin(observed.confirmed(now)).await)
    }

    async fn act(
        &self,
        action: &Action,
        subject: &Subject<KThreesControlPlane>,
        observed: &mut Snapshot,
        context: &Context,
    ) -> Result<Outcome, Error> {
        let mut executor = Executor {
            object: &subject.object,
            snapshot: observed,
            context,
            hooks: &self.hooks,
        };
        match action {
            Action::AskInPlace { machine } => {
                let answer = Box::pin(executor.ask_in_place(machine)).await?;
                // A failure is no answer: the extension is asked again.
                let mut answers = self.memory.answers.lock();
                let entry = answers.entry(subject.key()).or_default();
                entry.0 = subject.object.metadata.generation;
                entry.1.insert(machine.clone(), (context.clock.now(), answer));
            }
            Action::AskServers { operation } => {
                let question = Question {
                    operation: operation.clone(),
                    asked_at: context.clock.now(),
                };
                self.memory.questions.lock().insert(subject.key(), question);
            }
            Action::UpdateInPlace { machine } => {
                Box::pin(executor.update_in_place(machine)).await?;
                self.memory.answers.lock().remove(&subject.key());
            }
            action => Box::pin(executor.act(action)).await?,
        }
        if action.is_operation() {
            self.memory.questions.lock().remove(&subject.key());
        }
        let writes = action.is_operation() || matches!(action, Action::AskInPlace { .. });
        Ok(if writes { READ_AGAIN } else { Outcome::Done })
    }

    fn made(observed: &Snapshot, action: &Action) -> Option<String> {
        let created = observed.created.as_ref()?;
        matches!(action, Action::CreateServer { .. }).then(|| format!("Machine {created}"))
    }

    fn status(observed: &Snapshot, progress: &ProgressOf<Self>, now: Timestamp) -> KThreesControlPlaneStatus {
        // What a user has to mend.
        let failures: Vec<String> = progress
            .entries()
            .filter_map(|(_, attempt)| match attempt {
                Attempt::Failed(failure) if failure.class() == Class::Terminal => Some(failure.to_string()),
                _ => None,
            })
            .collect();
        status::status(
            &observed.observed,
            progress.plan(),
            &failures,
            &observed.object.status.clone().unwrap_or_default(),
            &observed.cluster_name,
            observed.object.metadata.generation,
            now,
        )
    }

    fn remember(
        &self,
        subject: &Subject<KThreesControlPlane>,
        mut observed: Snapshot,
        progress: &ProgressOf<Self>,
    ) {
        let in_order = progress.actions().all(|(action, attempt)| {
            attempt.is_done()
                && matches!(
                    action,
                    Action::SetMachineConditions { .. } | Action::MarkInitialized
                )
        });
        if in_order {
            let last_read = observed.last_read.take();
            let last_read = last_read.unwrap_or_else(|| LastRead::of(&observed));
            self.memory.last_reads.lock().insert(subject.key(), last_read);
        }
    }

    fn forget(&self, key: &ObjectKey, _: &Context) {
        self.memory.forget(key);
    }
}

impl ControlPlanes {
    async fn read(
        &self,
        source: Source<'_>,
        subject: &Subject<KThreesControlPlane>,
        answers: &BTreeMap<String, InPlaceAnswer>,
        context: &Context,
    ) -> Result<Option<Snapshot>, Error> {
        let question = self.memory.questions.lock().get(&subject.key()).cloned();
        let known = Known {
            subject,
            answers,
            question: question.as_ref(),
        };
        Box::pin(observe::observe(
            source,
            known,
            &self.memory.workloads,
            &self.memory.reads,
            context,
        ))
        .await
    }

    async fn read_all(
        &self,
        subject: &Subject<KThreesControlPlane>,
        answers: &BTreeMap<String, InPlaceAnswer>,
        context: &Context,
    ) -> Result<Snapshot, Error> {
        let read = self.read(Source::Apiserver, subject, answers, context).await?;
        read.ok_or_else(|| Error::Unusable {
            doing: "reading the servers of a control plane".into(),
            problem: "they cannot be told apart".into(),
        })
    }

    fn answers(
        &self,
        key: &ObjectKey,
        generation: Option<i64>,
        now: Timestamp,
    ) -> BTreeMap<String, InPlaceAnswer> {
        let mut answers = self.memory.answers.lock();
        let Some((asked_at, known)) = answers.get_mut(key) else {
            return BTreeMap::new();
        };
        if *asked_at != generation {
            known.clear();
        }
        known.retain(|_, (at, answer)| {
            answer
                .stands()
                .is_none_or(|stands| health::age(*at, now) < stands)
        });
        known
            .iter()
            .map(|(machine, (_, answer))| (machine.clone(), answer.clone()))
            .collect()
    }
}
