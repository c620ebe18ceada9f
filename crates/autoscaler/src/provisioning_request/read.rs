//! ProvisioningRequests and their templates, kept up by watches; which pods consume them. Reads only.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodTemplate;
use kube::ResourceExt;
use slipway_packing::model::Pod;
use slipway_runtime::{Context, Informer, ObjectKey, Scope};

use super::book::{Booking, Class, Problem, State, consumed, key, pods, state};
use crate::api::{ProvisioningRequest, names::annotation};

/// Where the gate is on.
pub struct Requests {
    pub(crate) requests: Informer<ProvisioningRequest>,
    pub(crate) templates: Informer<PodTemplate>,
}

/// What requests come to for a plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Booked {
    /// In the order in which they were made.
    pub bookings: Vec<Booking>,
    /// Pods that consume what is not there, and why they get nothing.
    pub idle: Vec<(Pod, String)>,
}

impl Requests {
    pub fn start(context: &Context) -> Self {
        let scope = || Scope::of_namespace(&context.settings);
        Requests {
            requests: context.informers.get(scope()),
            templates: context.informers.get(scope()),
        }
    }

    pub async fn synced(&self) {
        tokio::join!(self.requests.synced(), self.templates.synced());
    }

    /// The pods of a request, or what is wrong with it.
    pub fn pods(&self, request: &ProvisioningRequest) -> Result<Vec<Pod>, Problem> {
        let namespace = request.namespace().unwrap_or_default();
        let named: BTreeMap<&str, Arc<PodTemplate>> = request
            .spec
            .pod_sets
            .iter()
            .filter_map(|set| {
                let name = set.pod_template_ref.name.as_str();
                let found = self.templates.get(&ObjectKey::namespaced(&namespace, name))?;
                Some((name, found))
            })
            .collect();
        pods(request, |name| named.get(name).map(Arc::as_ref))
    }

    /// What is booked and asked for. Pods that consume a request are taken out of those that wait: they get no nodes of their own.
    pub fn book(&self, waiting: Vec<Pod>, bound: &[Pod], now: Timestamp) -> (Vec<Pod>, Booked) {
        let mut all: Vec<Arc<ProvisioningRequest>> = self.requests.list();
        all.retain(|request| request.metadata.deletion_timestamp.is_none());
        all.sort_by_key(|request| (request.creation_timestamp().map(|made| made.0), key(request)));
        let mut ended = BTreeSet::new();
        let mut bookings = Vec::new();
        for request in &all {
            let (Some(class), state) = (Class::of(request), state(request, now)) else {
                continue;
            };
            if state == State::Ended {
                ended.insert(key(request));
            } else if let Ok(pods) = self.pods(request) {
                bookings.push(Booking {
                    key: key(request),
                    uid: request.uid().unwrap_or_default(),
                    class,
                    is_booked: matches!(state, State::Booked { .. }),
                    pods,
                });
            }
        }
        consume(bookings, waiting, bound, |key| ended.contains(key))
    }
}

/// Gives pods that are there the places that are booked for them. What is left waits for nodes as ever.
pub fn consume(
    mut bookings: Vec<Booking>,
    waiting: Vec<Pod>,
    bound: &[Pod],
    has_ended: impl Fn(&str) -> bool,
) -> (Vec<Pod>, Booked) {
    let mut idle = Vec::new();
    for pod in bound {
        if let Some(consumed) = consumed(pod)
            && let Some(booking) = bookings
                .iter_mut()
                .find(|booking| booking.is_booked && booking.key == consumed)
        {
            booking.consume(pod);
        }
    }
    let mut others = Vec::new();
    for pod in waiting {
        let Some(consumed) = consumed(&pod) else {
            others.push(pod);
            continue;
        };
        let why = match bookings.iter_mut().find(|booking| booking.key == consumed) {
            Some(booking) if booking.is_booked => {
                if booking.consume(&pod) {
                    continue;
                }
                "all of whose capacity is taken".to_owned()
            }
            Some(_) => "which is not provisioned yet".to_owned(),
            None if has_ended(&consumed) => format!(
                "whose capacity is kept no longer: make another request, or take the annotation {} off",
                annotation::CONSUMES
            ),
            None => format!(
                "which does not exist or cannot be used: see its conditions, or take the annotation {} off",
                annotation::CONSUMES
            ),
        };
        let why = format!("it consumes ProvisioningRequest {consumed}, {why}");
        idle.push((pod, why));
    }
    (others, Booked { bookings, idle })
}
