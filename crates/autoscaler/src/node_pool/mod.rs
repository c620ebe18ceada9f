//! NodePool: what its nodes come to, whether its NodeClass is ready, and the hash by which claims of an older template are known.

mod act;

use std::{fmt, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use slipway_capi::{
    condition::{self, Report, Status},
    frame::{Frame, Kind, Membership, Plan, ProgressOf, StatusOf, Subject},
};
use slipway_packing::{
    disrupt::budget_problem,
    model::{Budget, ResourceList},
    quantity::Quantity,
    resources,
};
use slipway_runtime::{Context, Controller, Informer, ObjectKey, Outcome, Scope, controller::Registration};

use crate::{
    Error,
    api::{
        ClusterAPINodeClass, NodeClaim, NodePool, NodePoolStatus,
        names::{NODE_CLASS_GROUP, annotation, condition as names, label},
    },
    cluster_api::Reader,
    hash,
    memory::Memory,
    options::Options,
    safety::Breaker,
    time_zone,
};

/// What a plan is made from.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub pool: NodePool,
    pub class: Option<Arc<ClusterAPINodeClass>>,
    pub claims: Vec<Arc<NodeClaim>>,
    pub breaker: Breaker,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Writes the hash of the template and its version to the pool.
    StampPool { hash: String },
    /// Gives a claim that was hashed another way the pool's hash, so that it is not taken for one of an older template.
    StampClaim { claim: String, hash: String },
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StampPool { hash } => write!(formatter, "note hash {hash}"),
            Self::StampClaim { claim, hash } => write!(formatter, "note hash {hash} on NodeClaim {claim}"),
        }
    }
}

#[derive(Debug)]
struct Pools {
    memory: Arc<Memory>,
}

impl Kind for Pools {
    type Object = NodePool;
    type Observed = Observed;
    type Action = Action;
    type Error = Error;

    /// Karpenter's kinds know no pause: its conditions are Karpenter's alone.
    fn conditions(_: &mut StatusOf<Self>) -> Option<&mut Vec<Condition>> {
        None
    }

    async fn membership(&self, pool: &NodePool, context: &Context) -> Result<Membership, Error> {
        Ok(
            if pool.spec.template.spec.node_class_ref.group != NODE_CLASS_GROUP {
                Membership::LeftAlone("its NodeClass is another provider's")
            } else if Options::of(&context.settings).is_dry_run {
                Membership::LeftAlone("nothing is written in a dry run")
            } else {
                Membership::Standalone
            },
        )
    }

    async fn observe(&self, subject: &Subject<NodePool>, context: &Context) -> Result<Observed, Error> {
        let pool = subject.object.as_ref();
        let classes: Informer<ClusterAPINodeClass> = context.informers.get(Scope::all());
        let class = &pool.spec.template.spec.node_class_ref.name;
        Ok(Observed {
            class: classes.get(&ObjectKey::cluster_scoped(class)),
            claims: Reader::new(context, &self.memory).claims_of_pool(&pool.name_any()),
            breaker: self.memory.breaker(&pool.name_any()),
            pool: pool.clone(),
        })
    }

    fn plan(observed: &Observed, _: Timestamp) -> Plan<Action> {
        plan(observed)
    }

    async fn act(
        &self,
        action: &Action,
        _: &Subject<NodePool>,
        observed: &mut Observed,
        context: &Context,
    ) -> Result<Outcome, Error> {
        act::act(action, observed, context).await
    }

    fn status(observed: &Observed, _: &ProgressOf<Self>, now: Timestamp) -> StatusOf<Self> {
        status(observed, now)
    }

    fn remember(&self, _: &Subject<NodePool>, observed: Observed, _: &ProgressOf<Self>) {
        let pool = &observed.pool;
        let resources = used(&observed.claims);
        self.memory
            .metrics
            .pool_measured(&pool.name_any(), &pool.spec.limits, &resources);
    }
}

fn version<K: ResourceExt>(object: &K) -> Option<&str> {
    let version = object.annotations().get(annotation::NODE_POOL_HASH_VERSION);
    version.map(String::as_str)
}

pub fn plan(observed: &Observed) -> Plan<Action> {
    let mut plan = Plan::new();
    let pool = &observed.pool;
    if pool.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    let hash = hash::hash(&pool.spec.template);
    let known = pool.annotations().get(annotation::NODE_POOL_HASH);
    // Claims first: once the pool has the new version, those with another could be of any template.
    for claim in observed
        .claims
        .iter()
        .filter(|claim| version(claim.as_ref()) != Some(hash::VERSION))
    {
        let action = Action::StampClaim {
            claim: claim.name_any(),
            hash: hash.clone(),
        };
        if plan.is_empty() {
            plan.then(
                action,
                "it was hashed another way, and is taken for one of this template",
            );
        } else {
            plan.beside(
                action,
                "it was hashed another way, and is taken for one of this template",
            );
        }
    }
    if known != Some(&hash) || version(pool) != Some(hash::VERSION) {
        plan.then(
            Action::StampPool { hash },
            "claims of an older template are known by it",
        );
    }
    plan
}

/// What these claims come to.
fn used(claims: &[Arc<NodeClaim>]) -> ResourceList {
    let amounts = claims.iter().filter_map(|claim| claim.status.as_ref());
    let capacities: Vec<_> = amounts.map(|status| &status.capacity).collect();
    let mut used = resources::sum(capacities);
    let nodes = i64::try_from(claims.len()).unwrap_or(i64::MAX);
    used.insert(resources::NODES.to_owned(), Quantity::from_units(nodes));
    used
}

/// What is wrong with its budgets, which the API server could not see. Nodes are made for it all the same.
fn problems(pool: &NodePool) -> Vec<String> {
    let budgets = pool.spec.disruption.budgets.iter().flatten().enumerate();
    let mut problems: Vec<String> = budgets
        .filter_map(|(index, budget)| {
            let budget = Budget {
                nodes: budget.nodes.clone(),
                reasons: budget.reasons.clone(),
                schedule: budget.schedule.clone(),
                duration: budget.duration.clone(),
            };
            Some(format!(
                "spec.disruption.budgets[{index}]: {}",
                budget_problem(&budget)?
            ))
        })
        .collect();
    problems.extend(time_zone::problem(pool));
    problems
}

pub fn status(observed: &Observed, now: Timestamp) -> NodePoolStatus {
    let Observed {
        pool, class, claims, ..
    } = observed;
    let mut status = pool.status.clone().unwrap_or_default();
    status.resources = used(claims);
    status.nodes = Some(i64::try_from(claims.len()).unwrap_or(i64::MAX));
    status.node_class_observed_generation = class.as_ref().and_then(|class| class.metadata.generation);
    let name = &pool.spec.template.spec.node_class_ref.name;
    let ready = class.as_ref().and_then(|class| {
        let conditions = &class.status.as_ref()?.conditions;
        condition::find(conditions, names::READY).cloned()
    });
    let class_ready = match (class, ready) {
        (None, _) => Report::new(
            names::NODE_CLASS_READY,
            Status::False,
            "NodeClassNotFound",
            format!("ClusterAPINodeClass {name} does not exist"),
        ),
        (Some(_), Some(ready)) if ready.status == "True" => {
            Report::new(names::NODE_CLASS_READY, Status::True, names::NODE_CLASS_READY, "")
        }
        (Some(_), Some(ready)) => Report::new(
            names::NODE_CLASS_READY,
            Status::False,
            "NodeClassNotReady",
            format!("ClusterAPINodeClass {name}: {}", ready.message),
        ),
        (Some(_), None) => Report::new(
            names::NODE_CLASS_READY,
            Status::Unknown,
            "NodeClassReadinessUnknown",
            format!("nothing is known of ClusterAPINodeClass {name} yet"),
        ),
    };
    let of_pool = Report::new(
        names::READY,
        class_ready.status,
        if class_ready.status == Status::True {
            names::READY
        } else {
            "UnhealthyDependents"
        },
        class_ready.message.clone(),
    );
    let healthy = match observed.breaker.open() {
        Some(why) => Report::new(
            names::NODE_REGISTRATION_HEALTHY,
            Status::False,
            "RegistrationFailed",
            format!("{why}; one machine at a time is made until they register again"),
        ),
        None => Report::new(
            names::NODE_REGISTRATION_HEALTHY,
            Status::True,
            names::NODE_REGISTRATION_HEALTHY,
            "",
        ),
    };
    let problems = problems(pool);
    let valid = if problems.is_empty() {
        Report::new(
            names::VALIDATION_SUCCEEDED,
            Status::True,
            names::VALIDATION_SUCCEEDED,
            "",
        )
    } else {
        let message = format!(
            "{}; nothing is disrupted by it until that is mended",
            problems.join("; ")
        );
        Report::new(
            names::VALIDATION_SUCCEEDED,
            Status::False,
            "NodePoolValidationFailed",
            message,
        )
    };
    for report in [valid, class_ready, healthy, of_pool] {
        condition::set(&mut status.conditions, &report, pool.metadata.generation, now);
    }
    status
}

pub fn registration(memory: &Arc<Memory>) -> Registration {
    let kind = Pools {
        memory: Arc::clone(memory),
    };
    Controller::new("nodepool", Frame::new(kind))
        .min_interval(std::time::Duration::from_secs(1))
        .watches::<NodeClaim>(|claim, _| {
            let pool = claim.labels().get(label::NODE_POOL);
            pool.map(|pool| ObjectKey::cluster_scoped(pool))
                .into_iter()
                .collect()
        })
        .watches::<ClusterAPINodeClass>(|class, context| {
            let pools: Informer<NodePool> = context.informers.get(Scope::of_work(&context.settings));
            let name = class.name_any();
            let is_of = |pool: &Arc<NodePool>| pool.spec.template.spec.node_class_ref.name == name;
            let of_class = pools.list().into_iter().filter(is_of);
            of_class.map(|pool| ObjectKey::of(pool.as_ref())).collect()
        })
        .into_registration()
}
