//! The budget as arithmetic: token buckets that learn, waits that are kept, and a fair order. Pure; time is a
//! number that comes in.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use super::{BucketKey, PermitRequest, Priority, RateLimitFeedback};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Access {
    Read,
    Write,
    Delete,
}

impl Access {
    pub fn label(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Delete => "delete",
        }
    }
}

/// A bucket's size and how fast it fills again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    pub burst: f64,
    pub per_second: f64,
}

/// What is assumed before Azure's headers teach better.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Of a whole subscription: ARM's published 250/25 per second with bursts of 250/200, halved to leave room for people.
    pub subscription_read: Rate,
    pub subscription_write: Rate,
    /// Of one resource provider in a subscription: AKS answers lists with 500 at once and one a second after that,
    /// and single reads with 60; other providers take more.
    pub provider_read: Rate,
    pub provider_write: Rate,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            subscription_read: Rate {
                burst: 125.0,
                per_second: 12.5,
            },
            subscription_write: Rate {
                burst: 100.0,
                per_second: 5.0,
            },
            provider_read: Rate {
                burst: 60.0,
                per_second: 2.0,
            },
            provider_write: Rate {
                burst: 20.0,
                per_second: 1.0,
            },
        }
    }
}

impl Limits {
    /// All rates times a factor, as `--azure-request-budget` sets it.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        let scale = |rate: Rate| Rate {
            burst: (rate.burst * factor).max(1.0),
            per_second: (rate.per_second * factor).max(0.01),
        };
        Self {
            subscription_read: scale(self.subscription_read),
            subscription_write: scale(self.subscription_write),
            provider_read: scale(self.provider_read),
            provider_write: scale(self.provider_write),
        }
    }
}

#[derive(Clone, Debug)]
struct Bucket {
    rate: Rate,
    tokens: f64,
    at: Duration,
}

impl Bucket {
    fn new(rate: Rate, now: Duration) -> Self {
        Self {
            rate,
            tokens: rate.burst,
            at: now,
        }
    }

    fn refill(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.tokens = (self.tokens + passed * self.rate.per_second).min(self.rate.burst);
        self.at = now;
    }

    /// What must be left over for those who go first.
    fn reserve(&self, priority: Priority) -> f64 {
        match priority {
            Priority::Change | Priority::Operation => 0.0,
            Priority::Refresh => self.rate.burst * 0.25,
        }
    }

    /// How long until one request of this priority fits.
    fn wait(&self, priority: Priority) -> Duration {
        self.wait_behind(priority, 0)
    }

    /// The same for a request that lets so many others go first.
    fn wait_behind(&self, priority: Priority, ahead: usize) -> Duration {
        let missing = 1.0 + ahead as f64 + self.reserve(priority) - self.tokens;
        if missing <= 1e-9 {
            Duration::ZERO
        } else {
            Duration::from_secs_f64(missing / self.rate.per_second)
        }
    }
}

/// What a wait that Azure named holds for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Hold {
    Subscription(String, Access),
    Provider(BucketKey),
    Resource(String, Access),
}

pub type Ticket = u64;

#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    permit: PermitRequest,
}

/// The lines of a bucket. Among those that somebody waits for, clusters take turns whatever they ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Awaited,
    Refresh,
}

impl Rank {
    const ALL: [Self; 2] = [Self::Awaited, Self::Refresh];

    fn of(priority: Priority) -> Self {
        match priority {
            Priority::Change | Priority::Operation => Self::Awaited,
            Priority::Refresh => Self::Refresh,
        }
    }

    fn priority(self) -> Priority {
        match self {
            Self::Awaited => Priority::Change,
            Self::Refresh => Priority::Refresh,
        }
    }
}

/// One line: clusters take turns, however long their own lines are. In a cluster's own line changes go first.
#[derive(Debug, Default)]
struct Line {
    clusters: HashMap<Arc<str>, VecDeque<Waiting>>,
    order: VecDeque<Arc<str>>,
}

impl Line {
    fn push(&mut self, waiting: Waiting) {
        let cluster = Arc::clone(&waiting.permit.cluster);
        let line = self.clusters.entry(Arc::clone(&cluster)).or_default();
        if line.is_empty() {
            self.order.push_back(cluster);
        }
        let after = line.partition_point(|other| other.permit.priority <= waiting.permit.priority);
        line.insert(after, waiting);
    }

    /// Takes the next one `ready` agrees to. A cluster that took its turn goes to the end; one whose requests are
    /// all held back keeps its place and lets the others pass.
    fn take(&mut self, mut ready: impl FnMut(&PermitRequest) -> bool) -> Option<Waiting> {
        for position in 0..self.order.len() {
            let cluster = Arc::clone(&self.order[position]);
            let line = self.clusters.get_mut(&cluster)?;
            let Some(index) = line.iter().position(|waiting| ready(&waiting.permit)) else {
                continue;
            };
            let taken = line.remove(index);
            self.order.remove(position);
            if line.is_empty() {
                self.clusters.remove(&cluster);
            } else {
                self.order.push_back(cluster);
            }
            return taken;
        }
        None
    }

    /// How many have their turn before this one has, if nobody joins.
    fn ahead(&self, ticket: Ticket) -> Option<usize> {
        let (place, depth) = self.order.iter().enumerate().find_map(|(place, cluster)| {
            let line = self.clusters.get(cluster)?;
            let depth = line.iter().position(|waiting| waiting.ticket == ticket)?;
            Some((place, depth))
        })?;
        let before = self.order.iter().enumerate().map(|(other, cluster)| {
            let waiting = self.clusters.get(cluster).map_or(0, VecDeque::len);
            waiting.min(depth + usize::from(other < place))
        });
        Some(before.sum())
    }

    fn remove(&mut self, ticket: Ticket) -> bool {
        for (cluster, line) in &mut self.clusters {
            if let Some(index) = line.iter().position(|waiting| waiting.ticket == ticket) {
                line.remove(index);
                if line.is_empty() {
                    let cluster = Arc::clone(cluster);
                    self.clusters.remove(&cluster);
                    self.order.retain(|other| *other != cluster);
                }
                return true;
            }
        }
        false
    }

    fn turns(&self) -> impl Iterator<Item = &PermitRequest> {
        self.clusters.values().flatten().map(|waiting| &waiting.permit)
    }
}

/// The budget of all subscriptions.
#[derive(Debug)]
pub struct Model {
    limits: Limits,
    next: Ticket,
    subscriptions: HashMap<(String, Access), Bucket>,
    providers: HashMap<BucketKey, Bucket>,
    holds: HashMap<Hold, Duration>,
    lines: BTreeMap<(BucketKey, Rank), Line>,
}

/// ARM counts deletes on their own, at the same rate as writes.
fn pick(access: Access, read: Rate, write: Rate) -> Rate {
    match access {
        Access::Read => read,
        Access::Write | Access::Delete => write,
    }
}

impl Model {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            next: 0,
            subscriptions: HashMap::new(),
            providers: HashMap::new(),
            holds: HashMap::new(),
            lines: BTreeMap::new(),
        }
    }

    /// Gets in line.
    pub fn join(&mut self, permit: PermitRequest) -> Ticket {
        self.next += 1;
        let ticket = self.next;
        self.lines
            .entry((permit.bucket.clone(), Rank::of(permit.priority)))
            .or_default()
            .push(Waiting { ticket, permit });
        ticket
    }

    /// Leaves the line; false if the turn was already given.
    pub fn leave(&mut self, ticket: Ticket) -> bool {
        self.lines.values_mut().any(|line| line.remove(ticket))
    }

    fn buckets(&mut self, bucket: &BucketKey, now: Duration) -> (&mut Bucket, &mut Bucket) {
        let limits = self.limits;
        let subscription = self
            .subscriptions
            .entry((bucket.subscription.clone(), bucket.access))
            .or_insert_with(|| {
                Bucket::new(
                    pick(bucket.access, limits.subscription_read, limits.subscription_write),
                    now,
                )
            });
        let provider = self.providers.entry(bucket.clone()).or_insert_with(|| {
            Bucket::new(
                pick(bucket.access, limits.provider_read, limits.provider_write),
                now,
            )
        });
        subscription.refill(now);
        provider.refill(now);
        (subscription, provider)
    }

    fn held_for(holds: &HashMap<Hold, Duration>, permit: &PermitRequest, now: Duration) -> Duration {
        let bucket = &permit.bucket;
        [
            Hold::Subscription(bucket.subscription.clone(), bucket.access),
            Hold::Provider(bucket.clone()),
            Hold::Resource(permit.resource.clone(), bucket.access),
        ]
        .iter()
        .filter_map(|hold| holds.get(hold))
        .map(|until| until.saturating_sub(now))
        .max()
        .unwrap_or_default()
    }

    /// Gives turns to all who can go now: clusters in rotation, and refreshes after all that somebody waits for.
    pub fn grant(&mut self, now: Duration) -> Vec<Ticket> {
        self.holds.retain(|_, until| *until > now);
        let mut granted = Vec::new();
        for rank in Rank::ALL {
            let priority = rank.priority();
            let keys: Vec<BucketKey> = self
                .lines
                .keys()
                .filter(|(_, other)| *other == rank)
                .map(|(bucket, _)| bucket.clone())
                .collect();
            for bucket in keys {
                loop {
                    let (subscription, provider) = self.buckets(&bucket, now);
                    if !subscription.wait(priority).is_zero() || !provider.wait(priority).is_zero() {
                        break;
                    }
                    let Some(line) = self.lines.get_mut(&(bucket.clone(), rank)) else {
                        break;
                    };
                    let holds = &self.holds;
                    let Some(taken) = line.take(|permit| Self::held_for(holds, permit, now).is_zero()) else {
                        break;
                    };
                    let (subscription, provider) = self.buckets(&bucket, now);
                    subscription.tokens -= 1.0;
                    provider.tokens -= 1.0;
                    granted.push(taken.ticket);
                }
            }
        }
        self.lines.retain(|_, line| !line.order.is_empty());
        granted
    }

    /// The earliest time somebody in line might go.
    pub fn wake(&mut self, now: Duration) -> Option<Duration> {
        let keys: Vec<(BucketKey, Rank)> = self.lines.keys().cloned().collect();
        let mut earliest: Option<Duration> = None;
        for (key, rank) in keys {
            let priority = rank.priority();
            let (subscription, provider) = self.buckets(&key, now);
            let bucket = subscription.wait(priority).max(provider.wait(priority));
            let held = self.lines[&(key, rank)]
                .turns()
                .map(|permit| Self::held_for(&self.holds, permit, now))
                .min()
                .unwrap_or_default();
            let wait = bucket.max(held);
            earliest = Some(earliest.map_or(wait, |other| other.min(wait)));
        }
        earliest.map(|wait| now + wait)
    }

    /// How long until this turn comes, if nobody joins who goes first.
    pub fn wait_for(&mut self, ticket: Ticket, permit: &PermitRequest, now: Duration) -> Duration {
        let held = self.held(permit, now);
        let (priority, rank) = (permit.priority, Rank::of(permit.priority));
        let ahead: usize = self
            .lines
            .iter()
            .filter(|((bucket, other), _)| *bucket == permit.bucket && *other <= rank)
            .map(|((_, other), line)| {
                if *other == rank {
                    line.ahead(ticket).unwrap_or_default()
                } else {
                    line.turns().count()
                }
            })
            .sum();
        let (subscription, provider) = self.buckets(&permit.bucket, now);
        subscription
            .wait_behind(priority, ahead)
            .max(provider.wait_behind(priority, ahead))
            .max(held)
    }

    /// How long Azure asked to wait with this.
    pub fn held(&self, permit: &PermitRequest, now: Duration) -> Duration {
        Self::held_for(&self.holds, permit, now)
    }

    /// A turn that was given but not used goes back.
    pub fn give_back(&mut self, bucket: &BucketKey, now: Duration) {
        let (subscription, provider) = self.buckets(bucket, now);
        subscription.tokens = (subscription.tokens + 1.0).min(subscription.rate.burst);
        provider.tokens = (provider.tokens + 1.0).min(provider.rate.burst);
    }

    /// Takes in what an answer said about the limits.
    pub fn learn(&mut self, permit: &PermitRequest, feedback: &RateLimitFeedback, now: Duration) {
        let bucket = &permit.bucket;
        let (subscription, provider) = self.buckets(bucket, now);
        if let Some(remaining) = feedback.subscription_remaining {
            subscription.tokens = subscription.tokens.min(f64::from(remaining));
        }
        if let Some(remaining) = feedback.provider_remaining {
            provider.tokens = provider.tokens.min(f64::from(remaining));
        }
        if let Some((scope, after)) = &feedback.hold {
            let hold = match scope {
                super::headers::Scope::Subscription => {
                    Hold::Subscription(bucket.subscription.clone(), bucket.access)
                }
                super::headers::Scope::Provider => Hold::Provider(bucket.clone()),
                super::headers::Scope::Resource => Hold::Resource(permit.resource.clone(), bucket.access),
            };
            let until = self.holds.entry(hold).or_default();
            *until = (*until).max(now + *after);
        }
    }

    /// What may be sent at once, by bucket: the scarcer of what the provider and the subscription have left.
    pub fn remaining(&mut self, now: Duration) -> Vec<(BucketKey, f64)> {
        let mut keys: Vec<BucketKey> = self.providers.keys().cloned().collect();
        keys.sort();
        keys.into_iter()
            .map(|bucket| {
                let (subscription, provider) = self.buckets(&bucket, now);
                let left = subscription.tokens.min(provider.tokens).max(0.0);
                (bucket, left)
            })
            .collect()
    }

    /// How many stand in line.
    pub fn waiting(&self) -> usize {
        self.lines.values().map(|line| line.turns().count()).sum()
    }
}
