//! ProvisioningRequest: whether it is accepted, provisioned, failed, or its booking over. Nothing is made for it here: the provisioner
//! decides about its pods, all of them or none, and notes what it has decided.

pub mod book;
pub mod read;

use std::{convert::Infallible, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::PodTemplate, apimachinery::pkg::apis::meta::v1::Condition};
use kube::ResourceExt;
use slipway_capi::{
    condition::{self, Report, Status},
    frame::{Frame, Kind, Membership, Plan, ProgressOf, StatusOf, Subject},
};
use slipway_runtime::{Context, Controller, Informer, ObjectKey, Outcome, Scope, controller::Registration};

use self::{
    book::{Class, Problem, State, Verdict, has_ended, state, validity},
    read::Requests,
};
use crate::{
    Error,
    api::{
        ProvisioningRequest, ProvisioningRequestStatus,
        names::{AUTOSCALING_GROUP, condition as names},
    },
    memory::Memory,
    options::Options,
};

const BEING_MADE: &str = "CapacityIsBeingProvisioned";

/// What a status is made from.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub request: ProvisioningRequest,
    pub problem: Option<Problem>,
    /// What was decided about it last.
    pub verdict: Option<Verdict>,
}

#[derive(Debug)]
struct ProvisioningRequests {
    memory: Arc<Memory>,
}

impl Kind for ProvisioningRequests {
    type Object = ProvisioningRequest;
    type Observed = Observed;
    type Action = Infallible;
    type Error = Error;

    /// The kind is not Cluster API's and knows no pause.
    fn conditions(_: &mut StatusOf<Self>) -> Option<&mut Vec<Condition>> {
        None
    }

    async fn membership(
        &self,
        request: &ProvisioningRequest,
        context: &Context,
    ) -> Result<Membership, Error> {
        let class = request.spec.provisioning_class_name.as_str();
        Ok(if Options::of(&context.settings).is_dry_run {
            Membership::LeftAlone("nothing is written in a dry run")
        } else if class.ends_with(AUTOSCALING_GROUP) {
            Membership::Standalone
        } else {
            Membership::LeftAlone("its class is another provider's")
        })
    }

    async fn observe(
        &self,
        subject: &Subject<ProvisioningRequest>,
        context: &Context,
    ) -> Result<Observed, Error> {
        let request = subject.object.as_ref();
        let problem = match Class::of(request) {
            Some(_) => Requests::start(context).pods(request).err(),
            None => Some(Problem {
                reason: "UnsupportedClass",
                message: format!(
                    "there is no class {}: use {} or {}",
                    request.spec.provisioning_class_name,
                    crate::api::CHECK_CAPACITY,
                    crate::api::BEST_EFFORT_ATOMIC
                ),
            }),
        };
        Ok(Observed {
            problem,
            verdict: self
                .memory
                .verdict(&subject.key(), &request.uid().unwrap_or_default()),
            request: request.clone(),
        })
    }

    fn plan(observed: &Observed, now: Timestamp) -> Plan<Infallible> {
        plan(observed, now)
    }

    async fn act(
        &self,
        action: &Infallible,
        _: &Subject<ProvisioningRequest>,
        _: &mut Observed,
        _: &Context,
    ) -> Result<Outcome, Error> {
        match *action {}
    }

    fn status(observed: &Observed, _: &ProgressOf<Self>, now: Timestamp) -> StatusOf<Self> {
        status(observed, now)
    }
}

pub fn plan(observed: &Observed, now: Timestamp) -> Plan<Infallible> {
    let mut plan = Plan::new();
    let (until, why) = match state(&observed.request, now) {
        State::Asked { until } => (until, "it is tried until then"),
        State::Booked { until } => (until, "its capacity is kept until then"),
        State::Ended => return plan,
    };
    let left = Duration::try_from(until.duration_since(now)).unwrap_or_default();
    plan.revisit(left, why);
    plan
}

pub fn status(observed: &Observed, now: Timestamp) -> ProvisioningRequestStatus {
    let request = &observed.request;
    let mut status = request.status.clone().unwrap_or_default();
    let holds = |name: &str| {
        let found = condition::find(&status.conditions, name);
        found.is_some_and(|condition| condition.status == "True")
    };
    let reports = if has_ended(request) {
        Vec::new()
    } else if holds(names::PROVISIONED) {
        booked(observed, now).into_iter().collect()
    } else {
        asked(observed, &status.conditions, now)
    };
    for report in reports {
        condition::set(&mut status.conditions, &report, request.metadata.generation, now);
    }
    status
}

/// Its capacity was there once.
fn booked(observed: &Observed, now: Timestamp) -> Option<Report> {
    if state(&observed.request, now) == State::Ended {
        return Some(Report::new(
            names::BOOKING_EXPIRED,
            Status::True,
            "CapacityReservationTimeExpired",
            "its capacity was kept for ten minutes",
        ));
    }
    match &observed.verdict {
        Some(Verdict::Missing(why)) => Some(Report::new(
            names::CAPACITY_REVOKED,
            Status::True,
            "CapacityIsLost",
            format!("its capacity is not there any more: {why}"),
        )),
        _ => None,
    }
}

/// Its capacity has not been there yet.
fn asked(observed: &Observed, known: &[Condition], now: Timestamp) -> Vec<Report> {
    let request = &observed.request;
    let (valid, mut note) = validity(request);
    let no_retry = request.spec.parameters.get("noRetry").map(String::as_str);
    let is_tried_once = no_retry == Some("true") && Class::of(request) == Some(Class::CheckCapacity);
    if let Some(other) = no_retry.filter(|text| !["true", "false"].contains(text)) {
        let wrong = format!("parameter noRetry {other:?} is neither true nor false: it is tried again");
        note = Some(note.map_or(wrong.clone(), |note| format!("{note}; {wrong}")));
    }
    let failed = |reason: &str, message: String| Report::new(names::FAILED, Status::True, reason, message);
    let accepted = match &observed.problem {
        Some(problem) => Report::new(
            names::ACCEPTED,
            Status::False,
            problem.reason,
            problem.message.clone(),
        ),
        None => Report::new(
            names::ACCEPTED,
            Status::True,
            names::ACCEPTED,
            note.unwrap_or_default(),
        ),
    };
    let mut reports = vec![accepted];
    let provisioned = |status: Status, reason: &str, message: String| {
        Report::new(names::PROVISIONED, status, reason, message)
    };
    let was_made =
        condition::find(known, names::PROVISIONED).is_some_and(|condition| condition.reason == BEING_MADE);
    let verdict = observed.verdict.as_ref().filter(|_| observed.problem.is_none());
    match (verdict, Class::of(request)) {
        (Some(Verdict::Stands), _) => {
            let reason = if was_made {
                "CapacityIsProvisioned"
            } else {
                "CapacityIsFound"
            };
            let message = "there is capacity for all of its pods".to_owned();
            reports.push(provisioned(Status::True, reason, message));
            return reports;
        }
        (Some(Verdict::Coming(room)), Some(Class::Atomic)) => {
            reports.push(provisioned(Status::False, BEING_MADE, room.to_string()));
        }
        (Some(Verdict::Coming(_) | Verdict::Missing(_)), _) if is_tried_once => {
            let why = verdict.map(ToString::to_string).unwrap_or_default();
            reports.push(provisioned(Status::False, "CapacityIsNotFound", why.clone()));
            reports.push(failed("CapacityIsNotFound", why));
            return reports;
        }
        (Some(verdict), _) => {
            let message = format!("{verdict}; it is tried again");
            reports.push(provisioned(Status::False, "CapacityIsNotFound", message));
        }
        (None, _) => {}
    }
    if state(request, now) == State::Ended {
        let message = format!("it was not provisioned within {} s", valid.as_secs());
        reports.push(failed("Expired", message));
    }
    reports
}

/// The requests that refer to a template.
fn referring(context: &Context, template: &PodTemplate) -> Vec<ObjectKey> {
    let requests: Informer<ProvisioningRequest> = context.informers.get(Scope::of_work(&context.settings));
    let name = template.name_any();
    let refers = |request: &Arc<ProvisioningRequest>| {
        let mut sets = request.spec.pod_sets.iter();
        request.namespace() == template.namespace() && sets.any(|set| set.pod_template_ref.name == name)
    };
    let found = requests.list().into_iter().filter(refers);
    found.map(|request| ObjectKey::of(request.as_ref())).collect()
}

pub fn registration(memory: &Arc<Memory>) -> Registration {
    let kind = ProvisioningRequests {
        memory: Arc::clone(memory),
    };
    let controller = Controller::new("provisioningrequest", Frame::new(kind))
        .triggered_by(&memory.planned_requests)
        .watches::<PodTemplate>(|template, context| referring(context, template))
        .into_registration();
    Options::only_with(controller, |gates| gates.provisioning_request)
}
