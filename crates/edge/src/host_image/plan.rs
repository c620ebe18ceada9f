//! Which host fetches which image next: pure. An image belongs to the job that pinned it, so two jobs on one host leave each other's images alone;
//! what a job has begun and what it has is read from the hosts, so nothing is forgotten and an edit is seen at once.

use std::{collections::BTreeMap, fmt};

use jiff::Timestamp;
use slipway_agent_api::proto::Operation;
use slipway_capi::frame::Plan;
use slipway_slots::Digest;

use super::api::{CachedImage, HostFailure, HostImageSpec, HostImageStatus};
use crate::{
    api::resolve,
    node_upgrade::{facts::OrderState, plan::backoff, reading},
    window::{self, Opening},
};

/// The most failures that a status names.
const MOST_FAILURES: usize = 50;

#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub spec: HostImageSpec,
    pub is_deleting: bool,
    pub hosts: Vec<HostFacts>,
}

/// What one host says of this job.
#[derive(Clone, Debug, Default)]
pub struct HostFacts {
    pub name: String,
    pub is_selected: bool,
    /// `None`: it does not answer.
    pub cache: Option<CacheFacts>,
}

#[derive(Clone, Debug, Default)]
pub struct CacheFacts {
    /// Digests that are cached and pinned by this job.
    pub pinned: Vec<String>,
    /// The last order of this job for each image, by [`key`].
    pub orders: BTreeMap<String, Fetch>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    pub attempt: u32,
    pub state: OrderState,
    pub message: String,
    pub ended_at: Option<Timestamp>,
}

/// What makes two orders for an image the same: everything that the host is told about it.
pub fn key(image: &CachedImage) -> String {
    let told = format!(
        "{}\n{}\n{:?}",
        image.image.reference, image.image.digest, image.delivery
    );
    Digest::of(told.as_bytes()).short()
}

/// What the pins of every job begin with.
const OWNER: &str = "hostimage/";
/// The most of a name that a pin tells: hosts take so much of an owner.
const LONGEST_NAME: usize = 120;

/// Whose pin it is.
pub fn owner(namespace: &str, name: &str, uid: &str) -> String {
    let name: String = name.chars().take(LONGEST_NAME).collect();
    format!("{OWNER}{namespace}/{name}/{uid}")
}

/// The uid of the job whose pin it is, if it is a job's.
pub fn uid_of_owner(owner: &str) -> Option<&str> {
    Some(owner.strip_prefix(OWNER)?.rsplit_once('/')?.1)
}

/// What the operations of a job begin with, on every host.
pub fn prefix(uid: &str) -> String {
    format!("image-{uid}-")
}

/// The operation's id on the host.
pub fn operation_id(uid: &str, image: &CachedImage, attempt: u32) -> String {
    format!("{}{}-{attempt}", prefix(uid), key(image))
}

/// The last order of a job for each image, from a host's operations.
pub fn fetches(uid: &str, operations: &[Operation]) -> BTreeMap<String, Fetch> {
    let prefix = prefix(uid);
    let mut found: BTreeMap<String, Fetch> = BTreeMap::new();
    for operation in operations.iter().filter(|operation| operation.verb == "ensure") {
        let Some((key, attempt)) = operation
            .id
            .strip_prefix(&prefix)
            .and_then(|rest| rest.split_once('-'))
        else {
            continue;
        };
        let Ok(attempt) = attempt.parse() else {
            continue;
        };
        if found.get(key).is_none_or(|known| known.attempt < attempt) {
            let facts = reading::facts(operation, attempt);
            let fetch = Fetch {
                attempt,
                state: facts.state,
                message: facts.message,
                ended_at: facts.ended_at,
            };
            found.insert(key.to_owned(), fetch);
        }
    }
    found
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Fetch {
        host: String,
        image: CachedImage,
        attempt: u32,
    },
    Unpin {
        host: String,
        digest: String,
    },
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fetch {
                host,
                image,
                attempt: 1,
            } => write!(formatter, "fetch {} on {host}", image.image.short()),
            Self::Fetch { host, image, attempt } => write!(
                formatter,
                "fetch {} on {host} (try {attempt})",
                image.image.short()
            ),
            Self::Unpin { host, digest } => {
                let short = digest
                    .parse::<Digest>()
                    .map_or_else(|_| digest.clone(), |digest| digest.short());
                write!(formatter, "let go of {short} on {host}")
            }
        }
    }
}

/// What a host is at.
enum Standing<'a> {
    Unreachable,
    Complete,
    Running,
    /// The next image, and why; `None` until its time has come.
    Next(&'a CachedImage, u32, String),
    Later(Timestamp),
    Failed,
}

pub struct Decision {
    pub plan: Plan<Action>,
    /// Without conditions.
    pub status: HostImageStatus,
}

impl fmt::Display for Decision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = &self.status;
        writeln!(
            formatter,
            "{} hosts: {} complete, {} running, {} failed",
            status.hosts, status.complete, status.running, status.failed
        )?;
        write!(formatter, "{}", self.plan)
    }
}

pub fn decide(facts: &Facts, now: Timestamp) -> Decision {
    let mut plan = Plan::new();
    let mut hosts: Vec<&HostFacts> = facts.hosts.iter().collect();
    hosts.sort_by(|one, other| one.name.cmp(&other.name));
    for host in &hosts {
        let_go(facts, host, &mut plan);
    }
    if facts.is_deleting {
        // Pins on hosts that do not answer are let go of by their EdgeHost, when they do.
        plan.release_finalizer("no host that answers keeps an image for it");
        return Decision {
            plan,
            status: HostImageStatus::default(),
        };
    }
    let mut status = HostImageStatus::default();
    let selected: Vec<&HostFacts> = hosts.into_iter().filter(|host| host.is_selected).collect();
    status.hosts = selected.len();
    let mut waiting = Vec::new();
    let mut again: Option<Timestamp> = None;
    for host in &selected {
        failures(&facts.spec, host, &mut status.failures);
        match standing(&facts.spec, host, now) {
            Standing::Complete => status.complete += 1,
            Standing::Running => status.running += 1,
            Standing::Failed => status.failed += 1,
            Standing::Next(image, attempt, why) => waiting.push((host.name.clone(), image, attempt, why)),
            Standing::Later(time) => again = Some(again.map_or(time, |known| known.min(time))),
            Standing::Unreachable => {}
        }
    }
    status.failures.truncate(MOST_FAILURES);
    begin(facts, waiting, selected.len(), &mut status, now, &mut plan);
    if let Some(time) = again {
        plan.wait("Retrying", "a host that failed is tried again")
            .until(time);
    }
    Decision { plan, status }
}

/// Images that are not on the list any more, or not for this host.
fn let_go(facts: &Facts, host: &HostFacts, plan: &mut Plan<Action>) {
    let Some(cache) = &host.cache else {
        return;
    };
    for digest in &cache.pinned {
        let is_listed = facts
            .spec
            .images
            .iter()
            .any(|image| image.image.digest == *digest);
        let why = if facts.is_deleting {
            "the HostImage is deleted"
        } else if !host.is_selected {
            "the host is not selected any more"
        } else if !is_listed {
            "the image is not on the list any more"
        } else {
            continue;
        };
        let action = Action::Unpin {
            host: host.name.clone(),
            digest: digest.clone(),
        };
        plan.beside(action, why);
    }
}

fn standing<'a>(spec: &'a HostImageSpec, host: &HostFacts, now: Timestamp) -> Standing<'a> {
    let Some(cache) = &host.cache else {
        return Standing::Unreachable;
    };
    let missing = || {
        spec.images
            .iter()
            .filter(|image| !cache.pinned.contains(&image.image.digest))
    };
    let order = |image: &CachedImage| cache.orders.get(&key(image));
    if missing().any(|image| order(image).is_some_and(|order| order.state == OrderState::Running)) {
        return Standing::Running;
    }
    let mut later: Option<Timestamp> = None;
    let mut is_complete = true;
    for image in missing() {
        is_complete = false;
        let Some(order) = order(image) else {
            return Standing::Next(image, 1, "the host does not have it".to_owned());
        };
        match order.state {
            OrderState::FailedForGood | OrderState::Running => {}
            OrderState::Interrupted => {
                return Standing::Next(
                    image,
                    order.attempt,
                    "the agent was restarted under it".to_owned(),
                );
            }
            // It had it, and somebody took it away.
            OrderState::Succeeded => {
                return Standing::Next(
                    image,
                    order.attempt + 1,
                    "the host does not have it any more".to_owned(),
                );
            }
            OrderState::FailedForNow => {
                let again = order
                    .ended_at
                    .unwrap_or(now)
                    .checked_add(backoff(order.attempt))
                    .unwrap_or(Timestamp::MAX);
                if now >= again {
                    let why = format!("the last try failed: {}", order.message);
                    return Standing::Next(image, order.attempt + 1, why);
                }
                later = Some(later.map_or(again, |known| known.min(again)));
            }
        }
    }
    match later {
        _ if is_complete => Standing::Complete,
        Some(time) => Standing::Later(time),
        None => Standing::Failed,
    }
}

fn failures(spec: &HostImageSpec, host: &HostFacts, found: &mut Vec<HostFailure>) {
    let Some(cache) = &host.cache else {
        return;
    };
    for image in &spec.images {
        let failed = cache.orders.get(&key(image)).filter(|order| {
            matches!(order.state, OrderState::FailedForGood | OrderState::FailedForNow)
                && !cache.pinned.contains(&image.image.digest)
        });
        found.extend(failed.map(|order| HostFailure {
            host: host.name.clone(),
            image: image.image.digest.clone(),
            message: order.message.clone(),
        }));
    }
}

/// Begins on as many hosts as may run at once.
fn begin(
    facts: &Facts,
    waiting: Vec<(String, &CachedImage, u32, String)>,
    selected: usize,
    status: &mut HostImageStatus,
    now: Timestamp,
    plan: &mut Plan<Action>,
) {
    if waiting.is_empty() {
        return;
    }
    let most = facts
        .spec
        .parallelism
        .as_ref()
        .map_or(1, |amount| resolve(amount, selected).unwrap_or(1));
    if facts.spec.paused || most == 0 {
        plan.wait(
            "Paused",
            format!("{} hosts wait: the HostImage is paused", waiting.len()),
        );
        return;
    }
    if let Opening::Closed { until } = window::opening(&facts.spec.windows, now) {
        let entry = plan.wait(
            "OutsideWindow",
            format!("{} hosts wait for the next window", waiting.len()),
        );
        if let Some(until) = until {
            entry.until(until);
        }
        return;
    }
    let free = most.saturating_sub(status.running);
    let left = waiting.len().saturating_sub(free);
    for (host, image, attempt, why) in waiting.into_iter().take(free) {
        status.running += 1;
        let action = Action::Fetch {
            host,
            image: image.clone(),
            attempt,
        };
        plan.beside(action, why);
    }
    if left > 0 {
        plan.wait(
            "InLine",
            format!("{left} hosts wait: at most {most} fetch at once"),
        );
    }
}
