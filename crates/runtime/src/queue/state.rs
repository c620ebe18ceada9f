//! The queue's rules, without waiting: what is due, in which order, and when to look again. Time comes in as an
//! argument.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use ahash::AHashMap;
use tokio::time::Instant;

use super::{Item, Limits, Priority};
use crate::{ObjectKey, Random};

/// Every so many items, the one that waits longest goes first whatever its priority, so that a stream of live
/// edits cannot starve the rest.
const FAIR_TURN: u32 = 8;

/// Room for this many objects is kept even when the queue is empty.
const ROOM_KEPT: usize = 1024;

/// Where an object is in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Neither waiting nor ready: in work, or only remembered.
    Nowhere,
    /// To be ready at a time.
    Waiting(Instant, u64),
    /// To be handed out, by priority and then by turn.
    Ready(Instant, u64),
}

#[derive(Debug)]
struct Entry {
    place: Place,
    priority: Priority,
    /// Asked for while in work: when it is due once the work is done.
    again: Option<(Instant, Priority)>,
    in_work: bool,
    failures: u32,
    started: Option<Instant>,
    started_before: Option<Instant>,
}

impl Entry {
    fn new() -> Self {
        Self {
            place: Place::Nowhere,
            priority: Priority::Low,
            again: None,
            in_work: false,
            failures: 0,
            started: None,
            started_before: None,
        }
    }
}

/// What a taker gets.
#[derive(Debug, PartialEq)]
pub(super) enum Popped {
    Item(Item),
    /// Nothing before this time.
    NotBefore(Instant),
    /// Nothing until something is added.
    Nothing,
}

/// How many items are ready, by priority.
pub(super) type Depths = [i64; 3];

#[derive(Debug)]
pub(super) struct State {
    limits: Limits,
    random: Random,
    entries: AHashMap<ObjectKey, Entry>,
    waiting: BTreeMap<(Instant, u64), ObjectKey>,
    ready: [BTreeMap<u64, ObjectKey>; 3],
    /// Objects remembered only for their minimum interval, in the order in which it ends.
    remembered: VecDeque<(Instant, ObjectKey)>,
    turn: u64,
    since_fair_turn: u32,
    tokens: f64,
    refilled: Option<Instant>,
    in_work: usize,
}

impl State {
    pub fn new(limits: Limits, random: Random) -> Self {
        Self {
            tokens: limits.rate.map_or(0.0, |rate| f64::from(rate.burst)),
            limits,
            random,
            entries: AHashMap::new(),
            waiting: BTreeMap::new(),
            ready: [BTreeMap::new(), BTreeMap::new(), BTreeMap::new()],
            remembered: VecDeque::new(),
            turn: 0,
            since_fair_turn: 0,
            refilled: None,
            in_work: 0,
        }
    }

    /// Asks for an object at a time. Of several requests the earliest time and the highest priority count.
    pub fn add(&mut self, key: &ObjectKey, priority: Priority, due: Instant, now: Instant) {
        self.forget_remembered(now);
        let entry = self.entries.entry(key.clone()).or_insert_with(Entry::new);
        if entry.in_work {
            entry.again = Some(match entry.again {
                None => (due, priority),
                Some((earlier, higher)) => (due.min(earlier), priority.max(higher)),
            });
            return;
        }
        let due = match (entry.started, self.limits.min_interval) {
            (Some(started), interval) => due.max(started + interval),
            (None, _) => due,
        };
        match entry.place {
            Place::Nowhere => {
                entry.priority = priority;
                self.place(key, due, now);
            }
            Place::Waiting(planned, turn) => {
                entry.priority = entry.priority.max(priority);
                if due < planned {
                    self.waiting.remove(&(planned, turn));
                    self.place(key, due, now);
                }
            }
            Place::Ready(_, turn) => {
                if priority > entry.priority {
                    self.ready[entry.priority.level()].remove(&turn);
                    self.ready[priority.level()].insert(turn, key.clone());
                    entry.priority = priority;
                }
            }
        }
    }

    /// Asks for an object again after a failure, later each time. Answers after how long.
    pub fn add_rate_limited(&mut self, key: &ObjectKey, priority: Priority, now: Instant) -> Duration {
        let entry = self.entries.entry(key.clone()).or_insert_with(Entry::new);
        let delay = self
            .limits
            .first_retry
            .saturating_mul(2_u32.saturating_pow(entry.failures.min(31)))
            .min(self.limits.longest_retry);
        entry.failures = entry.failures.saturating_add(1);
        let delay = self.random.jitter(delay, self.limits.jitter);
        self.add(key, priority, now + delay, now);
        delay
    }

    /// The object succeeded: its next failure is its first.
    pub fn forget(&mut self, key: &ObjectKey) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.failures = 0;
            self.drop_if_idle(key);
        }
    }

    pub fn failures(&self, key: &ObjectKey) -> u32 {
        self.entries.get(key).map_or(0, |entry| entry.failures)
    }

    /// Takes the next item, if one is due and the rate allows it.
    pub fn take(&mut self, now: Instant) -> Popped {
        self.forget_remembered(now);
        self.ripen(now);
        let Some((level, turn)) = self.next_turn() else {
            return match self.waiting.first_key_value() {
                Some(((due, _), _)) => Popped::NotBefore(*due),
                None => Popped::Nothing,
            };
        };
        if let Some(allowed) = self.take_token(now) {
            return Popped::NotBefore(allowed);
        }
        self.since_fair_turn = (self.since_fair_turn + 1) % FAIR_TURN;
        let key = self.ready[level].remove(&turn).expect("it is the next");
        let entry = self.entries.get_mut(&key).expect("what is ready has an entry");
        let Place::Ready(since, _) = entry.place else {
            unreachable!("it was among the ready")
        };
        entry.place = Place::Nowhere;
        entry.in_work = true;
        entry.started_before = entry.started.replace(now);
        self.in_work += 1;
        Popped::Item(Item {
            key,
            priority: entry.priority,
            waited: now.saturating_duration_since(since),
        })
    }

    /// The work is done; what was asked for meanwhile is now due.
    pub fn done(&mut self, key: &ObjectKey, now: Instant) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        if !std::mem::take(&mut entry.in_work) {
            return;
        }
        self.in_work -= 1;
        if let Some((due, priority)) = entry.again.take() {
            self.add(key, priority, due, now);
        } else if !self.limits.min_interval.is_zero()
            && let Some(started) = entry.started
        {
            self.remembered
                .push_back((started + self.limits.min_interval, key.clone()));
        }
        self.drop_if_idle_at(key, now);
    }

    /// The item was taken and not worked on: it does not count for the minimum interval.
    pub fn give_back(&mut self, item: &Item, due: Instant, now: Instant) {
        if let Some(entry) = self.entries.get_mut(&item.key) {
            entry.started = entry.started_before.take();
        }
        self.add(&item.key, item.priority, due, now);
        self.done(&item.key, now);
    }

    pub fn depths(&self) -> Depths {
        [
            self.ready[0].len() as i64,
            self.ready[1].len() as i64,
            self.ready[2].len() as i64,
        ]
    }

    pub fn in_work(&self) -> usize {
        self.in_work
    }

    /// How many objects anything is kept for.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn started(&self) -> impl Iterator<Item = Instant> {
        self.entries
            .values()
            .filter(|entry| entry.in_work)
            .filter_map(|entry| entry.started)
    }

    fn place(&mut self, key: &ObjectKey, due: Instant, now: Instant) {
        let turn = self.turn;
        self.turn += 1;
        let entry = self.entries.get_mut(key).expect("only known keys are placed");
        if due <= now {
            entry.place = Place::Ready(now, turn);
            self.ready[entry.priority.level()].insert(turn, key.clone());
        } else {
            entry.place = Place::Waiting(due, turn);
            self.waiting.insert((due, turn), key.clone());
        }
    }

    /// Moves what has become due to the ready.
    fn ripen(&mut self, now: Instant) {
        while let Some(first) = self.waiting.first_entry() {
            let (due, _) = *first.key();
            if due > now {
                break;
            }
            let key = first.remove();
            self.place(&key, due, due);
        }
    }

    fn next_turn(&self) -> Option<(usize, u64)> {
        let mut firsts = (0..3)
            .rev()
            .filter_map(|level| Some((level, *self.ready[level].first_key_value()?.0)));
        if self.since_fair_turn == FAIR_TURN - 1 {
            firsts.min_by_key(|(_, turn)| *turn)
        } else {
            firsts.next()
        }
    }

    /// Takes one token of the overall rate; answers when there will be one if there is none.
    fn take_token(&mut self, now: Instant) -> Option<Instant> {
        let rate = self.limits.rate?;
        let elapsed = self
            .refilled
            .map_or(0.0, |refilled| (now - refilled).as_secs_f64());
        self.refilled = Some(now);
        self.tokens = (self.tokens + elapsed * rate.per_second).min(f64::from(rate.burst.max(1)));
        // A hair less than one is one: the wait below was computed with the same rounding.
        if self.tokens >= 1.0 - 1e-6 {
            self.tokens = (self.tokens - 1.0).max(0.0);
            return None;
        }
        let missing = (1.0 - self.tokens) / rate.per_second.max(1e-3);
        Some(now + Duration::from_secs_f64(missing).max(Duration::from_millis(1)))
    }

    fn forget_remembered(&mut self, now: Instant) {
        while let Some((until, key)) = self.remembered.front().cloned() {
            if until > now {
                break;
            }
            self.remembered.pop_front();
            self.drop_if_idle_at(&key, now);
        }
    }

    fn drop_if_idle(&mut self, key: &ObjectKey) {
        let idle = self.entries.get(key).is_some_and(|entry| {
            !entry.in_work
                && entry.failures == 0
                && entry.place == Place::Nowhere
                && (entry.started.is_none() || self.limits.min_interval.is_zero())
        });
        if idle {
            self.entries.remove(key);
            // The first list asks for every object at once; most of that room is never needed again.
            if self.entries.capacity() > ROOM_KEPT && self.entries.len() < self.entries.capacity() / 8 {
                let needed = self.entries.len() * 2;
                self.entries.shrink_to(needed);
            }
        }
    }

    fn drop_if_idle_at(&mut self, key: &ObjectKey, now: Instant) {
        if let Some(entry) = self.entries.get_mut(key)
            && !entry.in_work
            && entry
                .started
                .is_some_and(|started| started + self.limits.min_interval <= now)
        {
            entry.started = None;
        }
        self.drop_if_idle(key);
    }
}
