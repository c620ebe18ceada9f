//! The budget's door: callers wait here for their turn, on tokio's clock.

use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until},
};

use super::{BucketKey, Limits, Model, PermitRequest, RateLimitFeedback, Ticket};
use crate::arm::Reply;

/// How long a place in line is kept after the object was to come back for it.
const KEPT: Duration = Duration::from_secs(20);

/// Rounding of the clock against the arithmetic.
const SLACK: Duration = Duration::from_millis(1);

/// Who stands in line: a request that comes back is known by what it is for.
type Key = (BucketKey, String, super::Priority, Arc<str>);

fn key(permit: &PermitRequest) -> Key {
    (
        permit.bucket.clone(),
        permit.resource.clone(),
        permit.priority,
        Arc::clone(&permit.cluster),
    )
}

/// A place in line whose caller went back to its queue.
#[derive(Debug)]
struct Reservation {
    ticket: Ticket,
    /// Whether its turn came meanwhile.
    granted: bool,
    /// When nobody is expected to come back for it any more.
    until: Duration,
}

#[derive(Debug)]
struct State {
    model: Model,
    start: Instant,
    callers: HashMap<Ticket, oneshot::Sender<()>>,
    kept: HashMap<Key, Reservation>,
}

impl State {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn pump(&mut self) {
        let now = self.now();
        let over: Vec<(Key, Reservation)> = self.kept.extract_if(|_, kept| kept.until <= now).collect();
        for ((bucket, ..), kept) in &over {
            self.let_go(bucket, kept, now);
        }
        for ticket in self.model.grant(now) {
            if let Some(caller) = self.callers.remove(&ticket) {
                // A caller that left in this moment gives its turn back when it is dropped.
                let _ = caller.send(());
            } else if let Some(kept) = self.kept.values_mut().find(|kept| kept.ticket == ticket) {
                kept.granted = true;
                kept.until = kept.until.max(now + KEPT);
            }
        }
    }

    /// Nobody comes for a kept place: its turn, or the place itself, goes to others.
    fn let_go(&mut self, bucket: &BucketKey, kept: &Reservation, now: Duration) {
        if kept.granted {
            self.model.give_back(bucket, now);
        } else {
            self.model.leave(kept.ticket);
        }
    }

    fn wake(&mut self) -> Option<Instant> {
        let now = self.now();
        let given_back = self.kept.values().map(|kept| kept.until).min();
        // A hair later than the exact moment, so that rounding never wakes a caller too early.
        self.model
            .wake(now)
            .into_iter()
            .chain(given_back)
            .min()
            .map(|at| self.start + at + Duration::from_micros(1))
    }

    /// The place of a request that stood in line before, or a new one. `None`: its turn has come meanwhile.
    fn place(&mut self, permit: &PermitRequest) -> Option<Ticket> {
        let now = self.now();
        match self.kept.remove(&key(permit)) {
            Some(Reservation {
                ticket,
                granted: false,
                ..
            }) => return Some(ticket),
            Some(_) if self.model.held(permit, now).is_zero() => return None,
            // Azure asked to wait since the turn came.
            Some(_) => self.model.give_back(&permit.bucket, now),
            None => {}
        }
        Some(self.model.join(permit.clone()))
    }

    /// Keeps the place of a caller that goes back to its queue; tells when to come again.
    fn keep(&mut self, ticket: Ticket, permit: &PermitRequest) -> Duration {
        let now = self.now();
        let after = self
            .model
            .wait_for(ticket, permit, now)
            .max(Duration::from_secs(1));
        self.callers.remove(&ticket);
        match self.kept.entry(key(permit)) {
            Entry::Occupied(_) => {
                self.model.leave(ticket);
            }
            Entry::Vacant(place) => {
                place.insert(Reservation {
                    ticket,
                    granted: false,
                    until: now + after + KEPT,
                });
            }
        }
        after
    }
}

/// Shared by everything that talks to Azure in this process.
#[derive(Clone)]
pub struct Budget(Arc<Mutex<State>>);

impl fmt::Debug for Budget {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Budget")
    }
}

impl Budget {
    pub fn new(limits: Limits) -> Self {
        Self(Arc::new(Mutex::new(State {
            model: Model::new(limits),
            start: Instant::now(),
            callers: HashMap::new(),
            kept: HashMap::new(),
        })))
    }

    /// Waits for a turn if it comes within `timeout`. If not, the caller is told when to come back through its own queue,
    /// so that no worker stands here while others have work, and keeps its place in line meanwhile.
    pub async fn acquire(&self, permit: &PermitRequest, timeout: Duration) -> Result<(), Duration> {
        let deadline = Instant::now() + timeout + SLACK;
        let (sender, mut receiver) = oneshot::channel();
        let ticket = {
            let mut state = self.0.lock();
            state.pump();
            let Some(ticket) = state.place(permit) else {
                return Ok(());
            };
            state.callers.insert(ticket, sender);
            state.pump();
            ticket
        };
        let mut place = Waiter {
            budget: self,
            ticket,
            bucket: &permit.bucket,
            used: false,
        };
        loop {
            let wake = {
                let mut state = self.0.lock();
                let now = state.now();
                let (moment, wait) = (Instant::now(), state.model.wait_for(ticket, permit, now));
                let waits =
                    state.callers.contains_key(&ticket) && (moment >= deadline || moment + wait > deadline);
                if waits {
                    place.used = true;
                    return Err(state.keep(ticket, permit));
                }
                state.wake().unwrap_or(deadline).min(deadline)
            };
            tokio::select! {
                biased;
                _ = &mut receiver => {
                    place.used = true;
                    return Ok(());
                }
                () = sleep_until(wake) => self.0.lock().pump(),
            }
        }
    }

    /// How long a request would wait that came now.
    pub fn expected_wait(&self, permit: &PermitRequest) -> Duration {
        let mut state = self.0.lock();
        state.pump();
        let now = state.now();
        let ticket = state.model.join(permit.clone());
        let wait = state.model.wait_for(ticket, permit, now);
        state.model.leave(ticket);
        wait
    }

    pub fn learn(&self, permit: &PermitRequest, reply: &Reply) {
        self.take_in(permit, &RateLimitFeedback::from_reply(reply));
    }

    pub fn take_in(&self, permit: &PermitRequest, feedback: &RateLimitFeedback) {
        let mut state = self.0.lock();
        let now = state.now();
        state.model.learn(permit, feedback, now);
    }

    /// Keeps a turn that was given for the request it is meant for; it finds it when it comes within [`KEPT`].
    pub fn hold(&self, permit: &PermitRequest) {
        let mut state = self.0.lock();
        let now = state.now();
        let kept = Reservation {
            ticket: 0,
            granted: true,
            until: now + KEPT,
        };
        if let Some(other) = state.kept.insert(key(permit), kept) {
            state.let_go(&permit.bucket, &other, now);
        }
    }

    /// What is left by bucket, and how many stand in line.
    pub fn sample(&self) -> (Vec<(BucketKey, f64)>, usize) {
        let mut state = self.0.lock();
        let now = state.now();
        (state.model.remaining(now), state.model.waiting())
    }

    pub fn waiting(&self) -> usize {
        self.0.lock().model.waiting()
    }
}

/// A place in line that is given up when its caller goes away.
struct Waiter<'a> {
    budget: &'a Budget,
    ticket: Ticket,
    bucket: &'a BucketKey,
    used: bool,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if self.used {
            return;
        }
        let mut state = self.budget.0.lock();
        let called = state.callers.remove(&self.ticket).is_none();
        if !state.model.leave(self.ticket) && called {
            let now = state.now();
            state.model.give_back(self.bucket, now);
        }
        state.pump();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::{Access, Priority, Rate, headers::Scope};

    fn permit(cluster: &str, priority: Priority) -> PermitRequest {
        PermitRequest {
            bucket: BucketKey {
                subscription: "s".into(),
                provider: "microsoft.containerservice".into(),
                access: Access::Write,
            },
            resource: format!("/subscriptions/s/{cluster}"),
            priority,
            cluster: Arc::from(cluster),
        }
    }

    fn slow() -> Limits {
        let rate = Rate {
            burst: 1.0,
            per_second: 1.0,
        };
        Limits {
            subscription_read: rate,
            subscription_write: rate,
            provider_read: rate,
            provider_write: rate,
        }
    }

    const LONG: Duration = Duration::from_hours(1);

    #[tokio::test(start_paused = true)]
    async fn a_named_wait_is_kept_to_the_second() {
        for (scope, neighbour_waits) in [(Scope::Provider, true), (Scope::Resource, false)] {
            let budget = Budget::new(Limits::default());
            budget
                .acquire(&permit("a", Priority::Change), LONG)
                .await
                .unwrap();
            budget.take_in(
                &permit("a", Priority::Change),
                &RateLimitFeedback {
                    hold: Some((scope, Duration::from_secs(36))),
                    ..RateLimitFeedback::default()
                },
            );
            let start = Instant::now();
            budget
                .acquire(&permit("b", Priority::Change), LONG)
                .await
                .unwrap();
            assert_eq!(start.elapsed().as_secs() == 36, neighbour_waits, "{scope:?}");
            budget
                .acquire(&permit("a", Priority::Change), LONG)
                .await
                .unwrap();
            assert_eq!(start.elapsed().as_secs(), 36, "{scope:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_noisy_neighbour_does_not_starve_the_others() {
        let budget = Budget::new(slow());
        let served = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = tokio::task::JoinSet::new();
        let ask = |cluster: &'static str, tasks: &mut tokio::task::JoinSet<()>| {
            let (budget, served) = (budget.clone(), Arc::clone(&served));
            tasks.spawn(async move {
                budget
                    .acquire(&permit(cluster, Priority::Change), LONG)
                    .await
                    .unwrap();
                served.lock().push(cluster);
            });
        };
        for _ in 0..100 {
            ask("noisy", &mut tasks);
        }
        tokio::time::advance(Duration::from_millis(1)).await;
        for _ in 0..5 {
            ask("quiet", &mut tasks);
            ask("calm", &mut tasks);
        }
        tasks.join_all().await;
        let served = served.lock();
        let last = |cluster| served.iter().rposition(|other| *other == cluster).unwrap();
        // In rotation each of the three gets every third turn: five turns of the two quiet ones are over by turn 16.
        assert!(last("quiet") <= 16 && last("calm") <= 16, "{served:?}");
        assert_eq!(served.len(), 110);
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_user_waits_for_goes_before_a_refresh() {
        let budget = Budget::new(Limits {
            provider_write: Rate {
                burst: 4.0,
                per_second: 1.0,
            },
            ..Limits::default()
        });
        for _ in 0..4 {
            budget
                .acquire(&permit("a", Priority::Change), LONG)
                .await
                .unwrap();
        }
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = tokio::task::JoinSet::new();
        for priority in [Priority::Refresh, Priority::Operation, Priority::Change] {
            let (budget, order) = (budget.clone(), Arc::clone(&order));
            tasks.spawn(async move {
                budget.acquire(&permit("a", priority), LONG).await.unwrap();
                order.lock().push(priority);
            });
        }
        tasks.join_all().await;
        assert_eq!(
            *order.lock(),
            [Priority::Change, Priority::Operation, Priority::Refresh]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_whose_turn_is_far_is_told_when_to_come_back_at_once() {
        let budget = Budget::new(slow());
        let first = permit("a", Priority::Change);
        budget.acquire(&first, LONG).await.unwrap();
        budget.take_in(
            &first,
            &RateLimitFeedback {
                hold: Some((Scope::Subscription, Duration::from_secs(100))),
                ..RateLimitFeedback::default()
            },
        );
        let start = Instant::now();
        let after = budget.acquire(&first, Duration::from_secs(10)).await.unwrap_err();
        assert_eq!((start.elapsed().as_secs(), after.as_secs()), (0, 100));
    }

    fn resource(cluster: &str, name: usize) -> PermitRequest {
        PermitRequest {
            resource: format!("/subscriptions/s/{cluster}/{name}"),
            ..permit(cluster, Priority::Change)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_goes_back_to_the_queue_keeps_its_place_and_clusters_take_turns() {
        let budget = Budget::new(slow());
        let soon = Duration::ZERO;
        budget.acquire(&resource("a", 0), soon).await.unwrap();
        for (name, seconds) in (1..=30).zip(1..) {
            let after = budget.acquire(&resource("a", name), soon).await.unwrap_err();
            assert_eq!(after.as_secs(), seconds, "the turn of {name}");
        }
        // Another cluster's first request is second in line, and not thirty-first.
        let after = budget.acquire(&resource("b", 0), soon).await.unwrap_err();
        assert_eq!(after.as_secs(), 2);
        // Whoever comes when a turn is due does not get it: it is kept for those who were there before.
        tokio::time::advance(Duration::from_millis(1_010)).await;
        budget.acquire(&resource("a", 31), soon).await.unwrap_err();
        budget.acquire(&resource("a", 1), soon).await.unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        budget.acquire(&resource("c", 0), soon).await.unwrap_err();
        budget.acquire(&resource("b", 0), soon).await.unwrap();
        budget.acquire(&resource("a", 2), soon).await.unwrap_err();
        assert_eq!(budget.waiting(), 31);
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_about_an_operation_takes_its_turn_beside_anothers_changes() {
        let budget = Budget::new(slow());
        let soon = Duration::ZERO;
        budget.acquire(&resource("a", 0), soon).await.unwrap();
        for name in 1..=30 {
            budget.acquire(&resource("a", name), soon).await.unwrap_err();
        }
        for (cluster, seconds) in [("b", 2), ("a", 32)] {
            let question = permit(cluster, Priority::Operation);
            assert_eq!(budget.expected_wait(&question).as_secs(), seconds, "{cluster}");
            let after = budget.acquire(&question, soon).await.unwrap_err();
            assert_eq!(
                after.as_secs(),
                seconds,
                "{cluster}: in its own line changes go first"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_that_is_held_is_used_by_its_request_or_goes_to_others() {
        let budget = Budget::new(slow());
        let soon = Duration::ZERO;
        budget.acquire(&resource("a", 0), soon).await.unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        budget.acquire(&resource("a", 1), soon).await.unwrap();
        budget.hold(&resource("a", 1));
        budget.acquire(&resource("b", 0), soon).await.unwrap_err();
        budget.acquire(&resource("a", 1), soon).await.unwrap();
        // The next turn is held too, and nobody comes for it.
        tokio::time::advance(Duration::from_secs(1)).await;
        budget.acquire(&resource("b", 0), soon).await.unwrap();
        budget.hold(&resource("b", 0));
        let start = Instant::now();
        budget.acquire(&resource("c", 0), LONG).await.unwrap();
        budget.acquire(&resource("c", 1), LONG).await.unwrap();
        assert_eq!(start.elapsed().as_secs(), 2, "turns go on meanwhile");
        tokio::time::advance(KEPT).await;
        budget.acquire(&resource("c", 2), soon).await.unwrap();
        assert_eq!(budget.waiting(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_nobody_comes_for_goes_to_the_next() {
        let budget = Budget::new(slow());
        budget.acquire(&resource("a", 0), Duration::ZERO).await.unwrap();
        for name in 1..=2 {
            budget
                .acquire(&resource("a", name), Duration::ZERO)
                .await
                .unwrap_err();
        }
        let start = Instant::now();
        budget.acquire(&resource("b", 0), LONG).await.unwrap();
        assert_eq!(start.elapsed().as_secs(), 2, "the second in rotation");
        tokio::time::advance(KEPT * 2).await;
        budget.acquire(&resource("c", 0), Duration::ZERO).await.unwrap();
        assert_eq!(budget.waiting(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_goes_away_gives_its_turn_back() {
        let budget = Budget::new(slow());
        budget
            .acquire(&permit("a", Priority::Change), LONG)
            .await
            .unwrap();
        let leaving = permit("b", Priority::Change);
        let timed = tokio::time::timeout(Duration::from_millis(500), budget.acquire(&leaving, LONG)).await;
        assert!(timed.is_err());
        assert_eq!(budget.waiting(), 0);
        let start = Instant::now();
        budget
            .acquire(&permit("c", Priority::Change), LONG)
            .await
            .unwrap();
        assert!(start.elapsed() <= Duration::from_millis(501));
    }

    #[tokio::test(start_paused = true)]
    async fn a_remaining_count_near_zero_slows_refreshes_first() {
        let budget = Budget::new(Limits::default());
        let change = permit("a", Priority::Change);
        budget.take_in(
            &change,
            &RateLimitFeedback {
                subscription_remaining: Some(3),
                ..RateLimitFeedback::default()
            },
        );
        budget.acquire(&change, Duration::ZERO).await.unwrap();
        assert!(
            budget
                .acquire(&permit("a", Priority::Refresh), Duration::ZERO)
                .await
                .is_err()
        );
        budget.acquire(&change, Duration::ZERO).await.unwrap();
    }
}
