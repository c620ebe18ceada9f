//! How far a ProvisioningRequest has come, and the pods that capacity is booked for. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{api::core::v1::PodTemplate, apimachinery::pkg::apis::meta::v1::Condition};
use kube::ResourceExt;
use serde_json::json;
use slipway_capi::condition;
use slipway_packing::{
    labels,
    model::{NewClaim, NodePool, Plan as Packed, Pod, Snapshot},
    resources::pod_requests,
    schedule,
};

use crate::{
    api::{
        BEST_EFFORT_ATOMIC, CHECK_CAPACITY, ProvisioningRequest,
        names::{annotation, condition as names},
    },
    capacity_buffer::resolve::virtual_pod,
    making::Maker,
    room::{Room, is_there},
    watched::Observed,
};

/// How long capacity is kept once it is there, as Cluster Autoscaler has it.
pub const BOOKED_FOR: Duration = Duration::from_mins(10);
/// How long a request is tried for, unless it says so itself.
pub const VALID_FOR: Duration = Duration::from_hours(7 * 24);
/// No request is planned for with more pods than these.
pub const MOST: i64 = 5_000;
/// Requests that are looked at together.
const AT_ONCE: usize = 10;

/// What may be done for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    CheckCapacity,
    Atomic,
}

impl Class {
    /// None of another autoscaler's.
    pub fn of(request: &ProvisioningRequest) -> Option<Self> {
        match request.spec.provisioning_class_name.as_str() {
            CHECK_CAPACITY => Some(Self::CheckCapacity),
            BEST_EFFORT_ATOMIC => Some(Self::Atomic),
            _ => None,
        }
    }
}

/// How far a request has come, by its own conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Capacity is looked for, until then.
    Asked { until: Timestamp },
    /// Its capacity is kept, until then.
    Booked { until: Timestamp },
    /// It failed, or its time is over.
    Ended,
}

fn after(moment: Timestamp, lasts: Duration) -> Timestamp {
    let lasts = SignedDuration::try_from(lasts).unwrap_or_default();
    moment.checked_add(lasts).unwrap_or(Timestamp::MAX)
}

/// How long it is tried, and what is wrong with what it says of that.
pub fn validity(request: &ProvisioningRequest) -> (Duration, Option<String>) {
    match request.spec.parameters.get("ValidUntilSeconds") {
        None => (VALID_FOR, None),
        Some(text) => match text.parse::<u64>() {
            Ok(seconds) => (Duration::from_secs(seconds), None),
            Err(_) => (
                VALID_FOR,
                Some(format!(
                    "parameter ValidUntilSeconds {text:?} is no number of seconds: it is tried for seven days"
                )),
            ),
        },
    }
}

fn holding<'a>(request: &'a ProvisioningRequest, name: &str) -> Option<&'a Condition> {
    let conditions = &request.status.as_ref()?.conditions;
    condition::find(conditions, name).filter(|condition| condition.status == "True")
}

/// Whether it says so itself that it failed or is over.
pub fn has_ended(request: &ProvisioningRequest) -> bool {
    [names::FAILED, names::BOOKING_EXPIRED, names::CAPACITY_REVOKED]
        .iter()
        .any(|name| holding(request, name).is_some())
}

pub fn state(request: &ProvisioningRequest, now: Timestamp) -> State {
    if has_ended(request) {
        return State::Ended;
    }
    if let Some(provisioned) = holding(request, names::PROVISIONED) {
        let until = after(provisioned.last_transition_time.0, BOOKED_FOR);
        return if until <= now {
            State::Ended
        } else {
            State::Booked { until }
        };
    }
    let made = request
        .metadata
        .creation_timestamp
        .as_ref()
        .map_or(now, |created| created.0);
    let until = after(made, validity(request).0);
    if until <= now {
        State::Ended
    } else {
        State::Asked { until }
    }
}

/// Why a request cannot be accepted as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub reason: &'static str,
    pub message: String,
}

/// The pods of a request, each with a name and uid that are the same every time. No pod that is there can have such a name.
pub fn pods<'a>(
    request: &ProvisioningRequest,
    template: impl Fn(&str) -> Option<&'a PodTemplate>,
) -> Result<Vec<Pod>, Problem> {
    let name = request.name_any();
    let key = key(request);
    let total: i64 = request.spec.pod_sets.iter().map(|set| i64::from(set.count)).sum();
    if total > MOST {
        return Err(Problem {
            reason: "TooManyPods",
            message: format!(
                "it asks for {total} pods, and no more than {MOST} are planned for: make several requests"
            ),
        });
    }
    let mut all = Vec::new();
    for (set, asked) in request.spec.pod_sets.iter().enumerate() {
        let named = &asked.pod_template_ref.name;
        let problem = |message: String| Problem {
            reason: "FailedToCreatePods",
            message,
        };
        let found = template(named).ok_or_else(|| {
            problem(format!(
                "there is no PodTemplate {named} in its namespace: create it"
            ))
        })?;
        let template = found.template.clone().unwrap_or_default();
        let metadata = json!({
            "namespace": request.namespace(),
            "labels": template.metadata.as_ref().and_then(|metadata| metadata.labels.clone()).unwrap_or_default(),
            "creationTimestamp": request.metadata.creation_timestamp,
            "annotations": {labels::BOOKED: key},
        });
        let example = virtual_pod(&template, metadata).map_err(|error| {
            problem(format!(
                "pods of PodTemplate {named} cannot be planned with: {error}"
            ))
        })?;
        for number in 1..=asked.count {
            let mut pod = example.clone();
            pod.metadata.name = format!("request {name} ({}/{number})", set + 1);
            pod.metadata.uid = format!("{}-{set}-{number}", request.uid().unwrap_or_default());
            all.push(pod);
        }
    }
    Ok(all)
}

/// `namespace/name`.
pub fn key(request: &ProvisioningRequest) -> String {
    format!(
        "{}/{}",
        request.namespace().unwrap_or_default(),
        request.name_any()
    )
}

/// The request that a pod consumes, as `namespace/name`.
pub fn consumed(pod: &Pod) -> Option<String> {
    let annotations = &pod.metadata.annotations;
    let name = annotations
        .get(annotation::CONSUMES)
        .or_else(|| annotations.get(annotation::CONSUMES_FIRST))?;
    Some(format!("{}/{name}", pod.metadata.namespace))
}

/// A request with the pods that capacity is still needed for.
#[derive(Clone, Debug, PartialEq)]
pub struct Booking {
    pub key: String,
    pub uid: String,
    pub class: Class,
    pub is_booked: bool,
    pub pods: Vec<Pod>,
}

impl Booking {
    /// Pods that are there take the places of those that are not: like for like first. One that waits keeps its place. Says whether
    /// there was one.
    pub fn consume(&mut self, pod: &Pod) -> bool {
        let requests = pod_requests(pod);
        let is_virtual = |one: &Pod| !is_there(one);
        let alike = self
            .pods
            .iter()
            .position(|one| is_virtual(one) && pod_requests(one) == requests);
        let Some(place) = alike.or_else(|| self.pods.iter().position(is_virtual)) else {
            return false;
        };
        if pod.spec.node_name.is_empty() {
            let mut waits = pod.clone();
            waits
                .metadata
                .annotations
                .insert(labels::BOOKED.to_owned(), self.key.clone());
            self.pods[place] = waits;
        } else {
            self.pods.remove(place);
        }
        true
    }
}

/// What a plan says of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is capacity for all of its pods.
    Stands,
    /// All of it is there or on its way.
    Coming(Room),
    /// It cannot be had now, or no longer, and why.
    Missing(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stands => formatter.write_str("there is capacity for all of its pods"),
            Self::Coming(room) => room.fmt(formatter),
            Self::Missing(why) => write!(formatter, "there is no capacity for all of its pods: {why}"),
        }
    }
}

/// Verdicts by the key of their request, with its uid.
pub type Verdicts = BTreeMap<String, (String, Verdict)>;

/// Capacity that is spoken for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Held {
    pub pods: Vec<Pod>,
    pub verdicts: Verdicts,
    /// Requests for which nothing may be made.
    pub only_checked: BTreeSet<String>,
}

/// Decides which requests get capacity: those whose capacity is booked first, then the others in the order in which they were made. Each
/// gets all of it or none.
pub fn hold(observed: &Observed) -> Held {
    let mut held = Held::default();
    let bookings = &observed.booked.bookings;
    if bookings.is_empty() {
        return held;
    }
    let mut as_it_stands: Option<Snapshot> = None;
    let (booked, asked): (Vec<&Booking>, Vec<&Booking>) =
        bookings.iter().partition(|booking| booking.is_booked);
    for booking in booked.into_iter().chain(asked.into_iter().take(AT_ONCE)) {
        let mut pods = held.pods.clone();
        pods.extend(booking.pods.iter().cloned());
        let verdict = match booking.class {
            _ if booking.pods.is_empty() => Verdict::Stands,
            Class::CheckCapacity => {
                let snapshot = as_it_stands.get_or_insert_with(|| without_pools(&observed.snapshot));
                judge(booking, &schedule(snapshot, &pods), |_| Ok(()))
            }
            Class::Atomic => {
                let mut maker = Maker::new(observed);
                judge(booking, &schedule(&observed.snapshot, &pods), |claim| {
                    maker.make(claim).map(|_| ())
                })
            }
        };
        let is_held = match (&verdict, booking.class) {
            (Verdict::Stands, _) | (Verdict::Coming(_), Class::Atomic) => true,
            // A check is about what stands; what was booked stays booked while its node comes back.
            (Verdict::Coming(_), Class::CheckCapacity) => booking.is_booked,
            (Verdict::Missing(_), _) => false,
        };
        if is_held {
            held.pods = pods;
        }
        if booking.class == Class::CheckCapacity {
            held.only_checked.insert(booking.key.clone());
        }
        held.verdicts
            .insert(booking.key.clone(), (booking.uid.clone(), verdict));
    }
    held
}

/// The nodes that stand, and no way to make others.
fn without_pools(snapshot: &Snapshot) -> Snapshot {
    Snapshot {
        node_pools: Vec::<NodePool>::new(),
        ..snapshot.clone()
    }
}

/// What became of the pods of one request. `make` says whether a claim could be made.
fn judge(
    booking: &Booking,
    packed: &Packed,
    mut make: impl FnMut(&NewClaim) -> Result<(), String>,
) -> Verdict {
    let own: BTreeSet<String> = booking.pods.iter().map(|pod| pod.metadata.reference()).collect();
    let count = |pods: &[String]| pods.iter().filter(|pod| own.contains(*pod)).count();
    let refused = packed
        .unschedulable
        .iter()
        .find(|refusal| own.contains(&refusal.pod));
    if let Some(refusal) = refused {
        return Verdict::Missing(refusal.message.clone());
    }
    let mut room = Room::default();
    for node in &packed.existing {
        let pods = count(&node.pods);
        if node.initialized {
            room.stands += pods;
        } else {
            room.coming += pods;
        }
    }
    for claim in &packed.new_claims {
        // Claims of requests before it take room too.
        if let Err(why) = make(claim)
            && count(&claim.pods) > 0
        {
            return Verdict::Missing(why);
        }
        room.coming += count(&claim.pods);
    }
    if room.coming == 0 {
        Verdict::Stands
    } else {
        Verdict::Coming(room)
    }
}
