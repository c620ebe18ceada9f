//! ClusterAPINodeClass: what its objects come to. Nothing is made for it; its status says what can be had, and what is written
//! wrongly on an object is told there.

mod act;

use std::{fmt, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{ConfigMap, Node},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{ResourceExt, api::DynamicObject};
use slipway_capi::{
    condition::{self, Report, Status},
    frame::{Frame, Kind, Membership, Plan, ProgressOf, StatusOf, Subject},
    view::{Cluster, Machine, MachineDeployment, MachinePool, MachineSet},
};
use slipway_runtime::{Context, Controller, Informer, ObjectKey, Outcome, Scope, controller::Registration};

use crate::{
    Error,
    api::{ClusterAPINodeClass, ClusterAPINodeClassStatus, NodeClaim, names::condition as names},
    cluster_api::{self, Described, Reader},
    instances::Finding,
    memory::Memory,
    options::Options,
};

/// How many refused objects and findings a message lists.
const LISTED: usize = 5;

/// A kind that is not installed is looked for this often: nobody says when it comes, because definitions are not watched.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// What a plan is made from.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub class: ClusterAPINodeClass,
    pub described: Described,
    /// Findings that nobody was told of yet.
    pub news: Vec<Finding>,
}

/// An event on the object that a finding is about.
#[derive(Clone, Debug, PartialEq)]
pub struct Warn(pub Finding);

impl fmt::Display for Warn {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "warn on {}", self.0.object)
    }
}

#[derive(Debug)]
struct Classes {
    memory: Arc<Memory>,
}

impl Kind for Classes {
    type Object = ClusterAPINodeClass;
    type Observed = Observed;
    type Action = Warn;
    type Error = Error;

    fn conditions(status: &mut StatusOf<Self>) -> Option<&mut Vec<Condition>> {
        Some(&mut status.conditions)
    }

    async fn membership(&self, _: &ClusterAPINodeClass, context: &Context) -> Result<Membership, Error> {
        Ok(if Options::of(&context.settings).is_dry_run {
            Membership::LeftAlone("nothing is written in a dry run")
        } else {
            Membership::Standalone
        })
    }

    async fn observe(
        &self,
        subject: &Subject<ClusterAPINodeClass>,
        context: &Context,
    ) -> Result<Observed, Error> {
        let options = Options::of(&context.settings);
        let reader = Reader::new(context, &self.memory);
        let described = reader
            .describe(&subject.object, &options, context.clock.now())
            .await;
        let classes: Informer<ClusterAPINodeClass> = context.informers.get(Scope::of_work(&context.settings));
        if let Some(templates) = reader.template_kind(&subject.object) {
            let (scope, classes) = (Scope::of_namespace(&context.settings), classes.clone());
            context.watch(&templates, scope, move |_: &DynamicObject| classes.keys());
        }
        if let Some(key) = cluster_api::price_list(&subject.object) {
            let scope = cluster_api::price_scope(key);
            context.watch(&(), scope, move |_: &ConfigMap| classes.keys());
        }
        let is_news = |finding: &&Finding| {
            let object = finding.object.to_string();
            self.memory.is_news(&object, &finding.message)
        };
        Ok(Observed {
            class: subject.object.as_ref().clone(),
            news: described.findings.iter().filter(is_news).cloned().collect(),
            described,
        })
    }

    fn plan(observed: &Observed, _: Timestamp) -> Plan<Warn> {
        plan(observed)
    }

    async fn act(
        &self,
        action: &Warn,
        _: &Subject<ClusterAPINodeClass>,
        _: &mut Observed,
        context: &Context,
    ) -> Result<Outcome, Error> {
        act::warn(&action.0, &self.memory, context);
        Ok(Outcome::Done)
    }

    fn status(observed: &Observed, _: &ProgressOf<Self>, now: Timestamp) -> StatusOf<Self> {
        status(observed, now)
    }
}

pub fn plan(observed: &Observed) -> Plan<Warn> {
    let mut plan = Plan::new();
    for finding in &observed.news {
        plan.regardless(Warn(finding.clone()), &finding.message);
    }
    if observed.described.is_unknown {
        plan.revisit(LOOK_AGAIN, "the kind of its objects is not installed");
    }
    plan
}

/// The first few of a list, and how many more there are.
fn listed(all: &[String]) -> String {
    let mut text = all[..all.len().min(LISTED)].join("; ");
    if all.len() > LISTED {
        text = format!("{text}; and {} more", all.len() - LISTED);
    }
    text
}

pub fn status(observed: &Observed, now: Timestamp) -> ClusterAPINodeClassStatus {
    let Observed { class, described, .. } = observed;
    let mut status = class.status.clone().unwrap_or_default();
    let count = |number: usize| Some(i32::try_from(number).unwrap_or(i32::MAX));
    status.scalable_resources = count(described.taken);
    let mut types: Vec<&str> = described
        .shapes
        .iter()
        .map(|shape| shape.instance_type.as_str())
        .collect();
    types.sort_unstable();
    types.dedup();
    status.instance_types = count(types.len());
    let wrong: Vec<String> = described
        .findings
        .iter()
        .filter(|finding| finding.excludes)
        .map(ToString::to_string)
        .collect();
    let valid = if wrong.is_empty() && described.price_problems.is_empty() {
        Report::new(
            names::VALIDATION_SUCCEEDED,
            Status::True,
            names::VALIDATION_SUCCEEDED,
            "",
        )
    } else if wrong.is_empty() {
        let problems = listed(&described.price_problems);
        let message = format!("prices are missing, so machines without one are ordered by size: {problems}");
        Report::new(
            names::VALIDATION_SUCCEEDED,
            Status::False,
            "InvalidPriceList",
            message,
        )
    } else {
        let message = format!("objects are left out: {}", listed(&wrong));
        Report::new(
            names::VALIDATION_SUCCEEDED,
            Status::False,
            "InvalidScalableResources",
            message,
        )
    };
    let ready = if !described.shapes.is_empty() {
        Report::new(names::READY, Status::True, names::READY, "")
    } else if described.taken > 0 {
        let message = format!("none of its objects can be used: {}", listed(&wrong));
        Report::new(names::READY, Status::False, "NoInstanceTypes", message)
    } else {
        let resource = class.spec.scalable_resource.clone().unwrap_or_default();
        let refused: Vec<String> = described
            .refused
            .iter()
            .map(|(object, why)| format!("{object}: {why}"))
            .collect();
        let message = if described.is_unknown {
            format!(
                "{} of {} is not installed, or may not be listed",
                resource.kind, resource.group
            )
        } else if refused.is_empty() {
            format!("there is no {}", resource.kind)
        } else {
            format!("it takes none of {} objects: {}", refused.len(), listed(&refused))
        };
        Report::new(names::READY, Status::False, "NoScalableResources", message)
    };
    for report in [valid, ready] {
        condition::set(&mut status.conditions, &report, class.metadata.generation, now);
    }
    status
}

/// Every NodeClass: any of them may take the object.
fn all(context: &Context) -> Vec<ObjectKey> {
    let classes: Informer<ClusterAPINodeClass> = context.informers.get(Scope::of_work(&context.settings));
    classes.keys()
}

/// What matters of a Node is learnt once: when the first of an object is ready.
fn on_ready(node: &Node, context: &Context) -> Vec<ObjectKey> {
    if crate::read::live_node(node).is_some()
        && node.labels().contains_key(crate::api::names::label::REGISTERED)
    {
        all(context)
    } else {
        Vec::new()
    }
}

pub fn registration(memory: &Arc<Memory>) -> Registration {
    let kind = Classes {
        memory: Arc::clone(memory),
    };
    Controller::new("clusterapinodeclass", Frame::new(kind))
        .min_interval(Duration::from_secs(1))
        .watches::<MachineDeployment>(|_, context| all(context))
        .watches::<MachineSet>(|_, context| all(context))
        .watches::<MachinePool>(|_, context| all(context))
        .watches::<Node>(on_ready)
        // These are only read.
        .watches::<Cluster>(|_, _| Vec::new())
        .watches::<Machine>(|_, _| Vec::new())
        .watches::<NodeClaim>(|_, _| Vec::new())
        .into_registration()
}
