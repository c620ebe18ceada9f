//! From a snapshot and pods that wait to the claims to make: pure but for the thread that the planning runs on. Each claim is
//! assigned to the object that its machine will come from, so that nothing has to be chosen later.

use std::{collections::BTreeSet, fmt};

use jiff::Timestamp;
use slipway_packing::{
    labels,
    model::{Plan as Packed, Pod, PodRefusal, RefusalReason},
    schedule,
};

pub use crate::making::Creation;
use crate::{
    capacity_buffer::resolve::buffer_of,
    making::Maker,
    provisioning_request::book::{Held, Verdict, Verdicts, hold},
    room::{Counter, Rooms, is_there},
    watched::Observed,
};

/// What one round comes to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Why nothing is done at all.
    pub waits: Option<String>,
    pub creations: Vec<Creation>,
    /// Pods that will find a place on nodes that are there or on their way: node or claim, and pods.
    pub placed: Vec<(String, Vec<String>)>,
    pub refused: Vec<PodRefusal>,
    /// What becomes of the pods of buffers.
    pub rooms: Rooms,
    /// What is decided about requests.
    pub verdicts: Verdicts,
}

impl Plan {
    pub fn creates(&self) -> bool {
        !self.creations.is_empty()
    }

    /// What the new machines cost together, per hour.
    pub fn price(&self) -> f64 {
        self.creations.iter().map(|creation| creation.price).sum()
    }

    /// Whether there is less than is to be kept or was asked for.
    pub fn is_short(&self) -> bool {
        let is_missing = |(_, verdict): &(String, Verdict)| matches!(verdict, Verdict::Missing(_));
        self.rooms.values().any(|room| room.refused > 0) || self.verdicts.values().any(is_missing)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(why) = &self.waits {
            return writeln!(formatter, "wait: {why}");
        }
        let is_empty = self.creations.is_empty() && self.placed.is_empty() && self.refused.is_empty();
        if is_empty && self.rooms.is_empty() && self.verdicts.is_empty() {
            writeln!(formatter, "nothing to do")?;
        }
        for creation in &self.creations {
            writeln!(
                formatter,
                "create a claim of NodePool {} on {}, {} at {} per hour: for {}",
                creation.pool,
                creation.object,
                creation.instance_type,
                creation.price,
                some(&creation.pods)
            )?;
        }
        for (node, pods) in &self.placed {
            writeln!(formatter, "nothing for {}: there is room on {node}", some(pods))?;
        }
        for refusal in &self.refused {
            writeln!(formatter, "nothing for {}: {}", refusal.pod, refusal.message)?;
        }
        for (buffer, room) in &self.rooms {
            writeln!(formatter, "CapacityBuffer {buffer}: {room}")?;
        }
        for (request, (_, verdict)) in &self.verdicts {
            writeln!(formatter, "ProvisioningRequest {request}: {verdict}")?;
        }
        Ok(())
    }
}

/// The first few pods, and how many more there are.
fn some(pods: &[String]) -> String {
    const SHOWN: usize = 3;
    let mut text = pods[..pods.len().min(SHOWN)].join(", ");
    if pods.len() > SHOWN {
        text = format!("{text} and {} more", pods.len() - SHOWN);
    }
    text
}

/// Plans, on a thread that may take its time.
pub async fn decide(observed: Observed, now: Timestamp) -> Plan {
    let planned = tokio::task::spawn_blocking(move || plan(&observed, now)).await;
    planned.unwrap_or_else(|error| Plan {
        waits: Some(format!("planning failed: {error}")),
        ..Plan::default()
    })
}

pub fn plan(observed: &Observed, now: Timestamp) -> Plan {
    if let Some(rival) = observed.rival.as_ref().filter(|rival| rival.until > now) {
        return Plan {
            waits: Some(rival.to_string()),
            ..Plan::default()
        };
    }
    let booked = &observed.booked;
    let everybody = [
        observed.pods.len(),
        observed.room.len(),
        booked.bookings.len(),
        booked.idle.len(),
    ];
    if everybody.iter().all(|count| *count == 0) {
        return Plan::default();
    }
    let held = hold(observed);
    let packed = schedule(&observed.snapshot, &observed.everybody(&held.pods));
    let mut plan = assign(observed, &held, packed);
    let idle = booked.idle.iter();
    plan.refused
        .extend(idle.map(|(pod, why)| refusal(&pod.metadata.reference(), why)));
    plan.verdicts = held.verdicts;
    plan
}

fn refusal(pod: &str, why: &str) -> PodRefusal {
    PodRefusal {
        pod: pod.to_owned(),
        uid: String::new(),
        reason: RefusalReason::Unschedulable,
        message: why.to_owned(),
        candidates: Vec::new(),
    }
}

/// The request that a pod which is not there is for.
fn request_of(pod: &Pod) -> Option<&str> {
    let booked = pod.metadata.annotations.get(labels::BOOKED);
    booked.filter(|_| !is_there(pod)).map(String::as_str)
}

/// Chooses the object of each claim. Each choice takes room that the next no longer has.
fn assign(observed: &Observed, held: &Held, mut packed: Packed) -> Plan {
    let mut rooms = Counter::new(&observed.room, buffer_of);
    let mut requests = Counter::new(&held.pods, request_of);
    rooms.take_out(&mut packed);
    requests.take_out(&mut packed);
    let mut result = Plan {
        placed: packed
            .existing
            .into_iter()
            .map(|node| (node.node, node.pods))
            .collect(),
        refused: packed.unschedulable,
        ..Plan::default()
    };
    let mut maker = Maker::new(observed);
    // Requests that get nothing made: those that only ask whether there is something, and those of which a part cannot be made.
    let mut without: BTreeSet<&str> = held.only_checked.iter().map(String::as_str).collect();
    for new in packed.new_claims {
        match maker.make(&new) {
            Ok(creation) => {
                rooms.make(&new);
                result.creations.extend(creation);
            }
            Err(why) => {
                without.extend(new.pods.iter().filter_map(|pod| requests.owner(pod)));
                let there = new
                    .pods
                    .iter()
                    .filter(|pod| !rooms.refuse(pod, &why) && requests.owner(pod).is_none());
                result.refused.extend(there.map(|pod| refusal(pod, &why)));
            }
        }
    }
    let is_without = |pod: &String| requests.owner(pod).is_some_and(|of| without.contains(of));
    result
        .creations
        .retain(|creation| !creation.pods.iter().all(is_without));
    result.rooms = rooms.rooms;
    result
}
