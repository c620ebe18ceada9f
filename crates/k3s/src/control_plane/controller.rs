//! The shell of the control plane: finalizer, pause, observe, plan, act, status.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt, api::ApiResource};
use parking_lot::Mutex;
use serde_json::{Value, json};
use slipway_capi::{
    condition, finalizer,
    hook::HookClient,
    names::{condition as names, reason},
    owner, paused,
    view::{Cluster, Machine},
};
use slipway_runtime::{
    Next, ObjectKey,
    controller::{Context, Controller, Reconciler, Registration},
    workload::Connector,
};

use super::{
    act::Hands,
    health,
    kept::Kept,
    observe::{self, Known, Scene, Source},
    observed::{InPlaceAnswer, Workload},
    plan::{self, Action, Plan},
    secrets, status,
    workload::Workloads,
};
use crate::{
    api::{
        CLUSTER_NETWORK_ANNOTATION, FINALIZER, INITIALIZED_ANNOTATION, KThreesConfig, KThreesControlPlane,
        conditions, conditions::V1Beta2Status,
    },
    error::Error,
    reads::{self, Reads},
};

/// While the workload cluster does not answer there is no event to wait for: this is when its state is told anew.
const UNREACHABLE_LOOK: Duration = Duration::from_secs(20);

/// How long a refusal of the update extension stands: it may have learnt since, and nothing tells.
const REFUSAL_STANDS: Duration = Duration::from_mins(5);

/// What the update extension said of each machine and when, and at which generation it was asked.
type Answers = (Option<i64>, BTreeMap<String, (Timestamp, InPlaceAnswer)>);

#[derive(Default)]
pub struct ControlPlaneReconciler {
    workloads: Workloads,
    reads: Reads,
    answers: Mutex<HashMap<ObjectKey, Answers>>,
    /// By control plane.
    kept: Mutex<HashMap<ObjectKey, Kept>>,
    hooks: HookClient,
}

impl ControlPlaneReconciler {
    /// One that connects to workload clusters in its own way.
    pub fn connecting_by(connector: Connector) -> Self {
        Self {
            workloads: Workloads::new(connector),
            ..Self::default()
        }
    }

    /// The same, asking update extensions in its own way.
    pub fn asking_by(mut self, hooks: HookClient) -> Self {
        self.hooks = hooks;
        self
    }
}

pub fn registration() -> Registration {
    registration_of(ControlPlaneReconciler::default())
}

/// The same with a reconciler that has its own way to workload clusters.
pub fn registration_of(reconciler: ControlPlaneReconciler) -> Registration {
    let secrets = ApiResource::erase::<Secret>(&());
    Controller::new("kthreescontrolplane", reconciler)
        .owns::<Machine>()
        // They bring nobody back; a look reads them where the watch shows them.
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
        .into_registration()
}

impl Reconciler for ControlPlaneReconciler {
    type Object = KThreesControlPlane;
    type Error = Error;

    async fn reconcile(&self, object: Arc<KThreesControlPlane>, context: &Context) -> Result<Next, Error> {
        let namespace = object.namespace().unwrap_or_default();
        let Some(name) = owner::owner_cluster_name(&object.metadata) else {
            return Ok(Next::OnChange);
        };
        let Some(cluster) = reads::cluster(&ObjectKey::namespaced(&namespace, name), context).await? else {
            return Ok(Next::OnChange);
        };
        let held = paused::paused(Some(&cluster), &object.metadata);
        if held.is_paused() {
            return self.tell_paused(&object, held, context).await;
        }
        let api: Api<KThreesControlPlane> = Api::namespaced(context.client.clone(), &namespace);
        if let Some(stored) = finalizer::ensure(&api, &object, FINALIZER).await? {
            context.writes().saw(&stored);
            return Ok(Next::After(Duration::from_millis(50)));
        }
        Box::pin(self.work(&object, &cluster, context)).await
    }
}

impl ControlPlaneReconciler {
    async fn tell_paused(
        &self,
        object: &KThreesControlPlane,
        held: paused::Paused,
        context: &Context,
    ) -> Result<Next, Error> {
        let mut status = object.status.clone().unwrap_or_default();
        let list = status
            .v1beta2
            .get_or_insert_with(V1Beta2Status::default)
            .conditions
            .get_or_insert_default();
        let report = held.report("KThreesControlPlane");
        condition::set(list, &report, object.metadata.generation, context.clock.now());
        context
            .patch_status(object, &status)
            .await
            .map_err(Error::api("writing the Paused condition"))?;
        Ok(Next::OnChange)
    }

    async fn work(
        &self,
        object: &KThreesControlPlane,
        cluster: &Cluster,
        context: &Context,
    ) -> Result<Next, Error> {
        let key = ObjectKey::of(object);
        let initialized = observe::is_initialized(object, cluster);
        let deleting = object.metadata.deletion_timestamp.is_some();
        if !deleting && !initialized && record_network(object, cluster, context).await? {
            return Ok(Next::After(Duration::from_millis(50)));
        }
        let ready = cluster.infrastructure_provisioned() && cluster.spec.control_plane_endpoint.is_valid();
        let secrets = if deleting || !ready {
            secrets::Secrets {
                missing: Vec::new(),
                access: secrets::access(object, cluster, &self.reads, context).await?,
            }
        } else {
            secrets::ensure(object, cluster, initialized, &self.reads, context).await?
        };
        let now = context.clock.now();
        let answers = self.answers(&key, object.metadata.generation, now);
        let known = Known {
            object,
            cluster,
            secrets: &secrets,
            answers: &answers,
        };
        let look = async |source: Source<'_>| {
            observe::observe(source, known, &self.workloads, &self.reads, context).await
        };
        let kept = self
            .kept
            .lock()
            .remove(&key)
            .filter(|kept| kept.stands(object, now));
        if let Some(kept) = kept
            && let Some(mut scene) = look(Source::Watches(&kept)).await?
        {
            let mut plan = plan::plan(&scene.observed, now);
            if plan.actions.is_empty() && !plan.waiting.is_empty() {
                scene.look_closer(now).await;
                plan = plan::plan(&scene.observed, now);
            }
            if plan.actions.is_empty() {
                let hands = self.hands(object, cluster, &scene, context);
                self.tell(&hands, &plan).await?;
                self.kept.lock().insert(key, kept);
                return Ok(next(&scene, &plan));
            }
        }
        let Some(mut scene) = look(Source::Apiserver).await? else {
            return Ok(Next::OnChange);
        };
        let mut plan = plan::plan(&scene.observed, now);
        // What waits may wait for evidence that only a closer look gives.
        if !plan.actions.is_empty() || !plan.waiting.is_empty() {
            scene.look_closer(now).await;
            plan = plan::plan(&scene.observed, now);
        }
        tracing::debug!(control_plane = %key, ?plan, "Planned");
        let hands = self.hands(object, cluster, &scene, context);
        for name in scene.machines.keys() {
            hands.sync(name).await?;
        }
        let outcome = self.perform(&hands, &key, &plan).await;
        if plan.actions.contains(&Action::RemoveFinalizer) {
            self.workloads.forget(&key);
            self.reads.forget(&key);
            self.answers.lock().remove(&key);
            return outcome.map(|()| Next::OnChange);
        }
        let told = self.tell(&hands, &plan).await;
        outcome?;
        told?;
        if plan.actions.is_empty() {
            self.kept.lock().insert(key, Kept::of(object, &scene, now));
        }
        Ok(next(&scene, &plan))
    }

    fn hands<'hands>(
        &'hands self,
        object: &'hands KThreesControlPlane,
        cluster: &'hands Cluster,
        scene: &'hands Scene,
        context: &'hands Context,
    ) -> Hands<'hands> {
        Hands {
            object,
            cluster,
            scene,
            context,
            hooks: &self.hooks,
        }
    }

    async fn perform(&self, hands: &Hands<'_>, key: &ObjectKey, plan: &Plan) -> Result<(), Error> {
        for action in &plan.actions {
            match action {
                Action::AskInPlace { machine } => {
                    let answer = hands.ask_in_place(machine).await?;
                    // A failure is no answer: the extension is asked again.
                    let mut answers = self.answers.lock();
                    let entry = answers.entry(key.clone()).or_default();
                    entry.0 = hands.object.metadata.generation;
                    entry
                        .1
                        .insert(machine.clone(), (hands.context.clock.now(), answer));
                }
                Action::UpdateInPlace { machine } => {
                    hands.update_in_place(machine).await?;
                    self.answers.lock().remove(key);
                }
                action => hands.act(action).await?,
            }
        }
        Ok(())
    }

    fn answers(
        &self,
        key: &ObjectKey,
        generation: Option<i64>,
        now: Timestamp,
    ) -> BTreeMap<String, InPlaceAnswer> {
        let mut answers = self.answers.lock();
        let Some((asked_at, known)) = answers.get_mut(key) else {
            return BTreeMap::new();
        };
        if *asked_at != generation {
            known.clear();
        }
        known.retain(|_, (at, answer)| {
            !matches!(answer, InPlaceAnswer::Cannot(_)) || health::age(*at, now) < REFUSAL_STANDS
        });
        let told = known
            .iter()
            .map(|(machine, (_, answer))| (machine.clone(), answer.clone()))
            .collect();
        known.retain(|_, (_, answer)| !matches!(answer, InPlaceAnswer::Failed(_) | InPlaceAnswer::Nobody));
        told
    }

    /// Conditions of the machines, then the status of the control plane.
    async fn tell(&self, hands: &Hands<'_>, plan: &Plan) -> Result<(), Error> {
        let (object, scene, context) = (hands.object, hands.scene, hands.context);
        let now = context.clock.now();
        for server in &scene.observed.servers {
            let wanted = machine_conditions(hands, &server.name);
            if !wanted.is_empty() {
                hands
                    .apply_conditions(&server.name, "capi-kthreescontrolplane-health", &wanted)
                    .await?;
            }
        }
        let mut status = status::status(
            &scene.observed,
            plan,
            &object.status.clone().unwrap_or_default(),
            &hands.cluster.name_any(),
            object.metadata.generation,
            now,
        );
        let list = status
            .v1beta2
            .get_or_insert_with(V1Beta2Status::default)
            .conditions
            .get_or_insert_default();
        let not_paused = paused::paused(Some(hands.cluster), &object.metadata).report("KThreesControlPlane");
        condition::set(list, &not_paused, object.metadata.generation, now);
        if status.initialized && !object.annotations().contains_key(INITIALIZED_ANNOTATION) {
            let patch = json!({"metadata": {"annotations": {INITIALIZED_ANNOTATION: "true"}}});
            context
                .patch(object, &patch)
                .await
                .map_err(Error::api("noting that the control plane is initialised"))?;
        }
        context
            .patch_status(object, &status)
            .await
            .map_err(Error::api(format!(
                "writing the status of KThreesControlPlane {}",
                object.name_any()
            )))?;
        Ok(())
    }
}

/// The ranges of the Cluster are kept before the first server exists; a cluster another provider initialised has none.
async fn record_network(
    object: &KThreesControlPlane,
    cluster: &Cluster,
    context: &Context,
) -> Result<bool, Error> {
    let record = observe::network_record(cluster);
    let has_servers = object
        .status
        .as_ref()
        .and_then(|status| status.replicas)
        .is_some_and(|replicas| replicas > 0);
    if record.is_empty() || has_servers || object.annotations().contains_key(CLUSTER_NETWORK_ANNOTATION) {
        return Ok(false);
    }
    let text = serde_json::to_string(&record).unwrap_or_default();
    let patch = json!({"metadata": {"annotations": {CLUSTER_NETWORK_ANNOTATION: text}}});
    context
        .patch(object, &patch)
        .await
        .map_err(Error::api("recording the ranges of the cluster"))?;
    Ok(true)
}

/// The conditions we keep on a machine, if they differ from what it has.
fn machine_conditions(hands: &Hands<'_>, name: &str) -> Vec<Value> {
    let observed = &hands.scene.observed;
    let now = hands.context.clock.now();
    let (Some(server), Some(machine)) = (
        observed.servers.iter().find(|server| server.name == name),
        hands.scene.machines.get(name),
    ) else {
        return Vec::new();
    };
    let mut told: Vec<(&str, &str, String, String)> = Vec::new();
    let reachable = observed.workload.view().is_some();
    let over = matches!(&observed.workload, Workload::Unreachable { since } if health::age(*since, now) > health::UNREACHABLE_GRACE);
    if reachable || over {
        let mut tell = |type_: &'static str, problem: Option<String>, bad: &str| {
            let (status, reason, message) = match problem {
                _ if over => (
                    "Unknown",
                    reason::CONNECTION_DOWN.to_owned(),
                    "the workload cluster does not answer".to_owned(),
                ),
                None => ("True", "Healthy".to_owned(), String::new()),
                Some(why) => ("False", bad.to_owned(), why),
            };
            told.push((type_, status, reason, message));
        };
        tell(
            conditions::AGENT_HEALTHY,
            status::agent_problem(&health::agent(server, observed)),
            conditions::reason::POD_FAILED,
        );
        if observed.desired.embedded_etcd {
            tell(
                conditions::ETCD_MEMBER_HEALTHY,
                status::member_problem(&health::member(server, observed, now)),
                conditions::reason::ETCD_MEMBER_UNHEALTHY,
            );
        }
    } else {
        // Within the grace period the last state stands; it is given again so that it stays ours.
        for type_ in [conditions::AGENT_HEALTHY, conditions::ETCD_MEMBER_HEALTHY] {
            if let Some(found) = machine
                .status
                .conditions
                .iter()
                .find(|found| found.type_ == type_)
            {
                let status = match found.status.as_str() {
                    "True" => "True",
                    "False" => "False",
                    _ => "Unknown",
                };
                told.push((type_, status, found.reason.clone(), found.message.clone()));
            }
        }
    }
    let why: Vec<String> = server.outdated.iter().map(ToString::to_string).collect();
    told.push(if machine.is_updating_in_place() {
        (
            names::UP_TO_DATE,
            "False",
            reason::UPDATING.into(),
            "being updated in place".into(),
        )
    } else if why.is_empty() {
        (
            names::UP_TO_DATE,
            "True",
            reason::UP_TO_DATE.into(),
            String::new(),
        )
    } else {
        (
            names::UP_TO_DATE,
            "False",
            reason::NOT_UP_TO_DATE.into(),
            why.join("; "),
        )
    });
    let same = told.iter().all(|(type_, status, reason, message)| {
        machine.status.conditions.iter().any(|found| {
            found.type_ == *type_
                && found.status == *status
                && found.reason == *reason
                && found.message == *message
        })
    });
    if same {
        return Vec::new();
    }
    told.into_iter()
        .map(|(type_, status, reason, message)| {
            json!({
                "type": type_,
                "status": status,
                "reason": reason,
                "message": message,
                "lastTransitionTime": hands.since(name, type_, status),
            })
        })
        .collect()
}

fn next(scene: &Scene, plan: &Plan) -> Next {
    let mut next = plan.look_again.map_or(Next::OnChange, Next::After);
    if plan.actions.iter().any(Action::is_operation)
        || plan
            .actions
            .iter()
            .any(|action| matches!(action, Action::AskInPlace { .. }))
    {
        next = next.earlier(Next::After(Duration::from_secs(1)));
    }
    if scene.observed.initialized && scene.observed.workload.view().is_none() {
        next = next.earlier(Next::After(UNREACHABLE_LOOK));
    }
    next
}
