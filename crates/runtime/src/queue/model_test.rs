//! The queue against a model simple enough to be right by reading: a list of requests that is searched from one
//! end to the other. Random operations in paused time; after each, both must agree on what is due.

use std::{collections::BTreeMap, time::Duration};

use futures::FutureExt;
use proptest::prelude::*;
use tokio::time::Instant;

use super::*;

const OBJECTS: usize = 4;

#[derive(Clone, Debug)]
enum Command {
    Add(usize, Priority),
    AddAfter(usize, u64, Priority),
    Fail(usize),
    Forget(usize),
    Take,
    Done(usize),
    GiveBack(usize, u64),
    Sleep(u64),
}

fn commands() -> impl Strategy<Value = Vec<Command>> {
    let priority = prop_oneof![Just(Priority::Low), Just(Priority::Normal), Just(Priority::High)];
    let command = prop_oneof![
        4 => (0..OBJECTS, priority.clone()).prop_map(|(object, priority)| Command::Add(object, priority)),
        3 => (0..OBJECTS, 0..50_u64, priority)
            .prop_map(|(object, after, priority)| Command::AddAfter(object, after, priority)),
        2 => (0..OBJECTS).prop_map(Command::Fail),
        1 => (0..OBJECTS).prop_map(Command::Forget),
        6 => Just(Command::Take),
        4 => (0..OBJECTS).prop_map(Command::Done),
        1 => (0..OBJECTS, 0..20_u64).prop_map(|(object, after)| Command::GiveBack(object, after)),
        3 => (1..40_u64).prop_map(Command::Sleep),
    ];
    prop::collection::vec(command, 0..120)
}

/// One object of the model. Times in milliseconds since the start.
#[derive(Clone, Copy, Debug, Default)]
struct Modelled {
    requested: Option<(u64, Priority)>,
    in_work: bool,
    failures: u32,
    started: Option<u64>,
    started_before: Option<u64>,
}

struct Model {
    objects: [Modelled; OBJECTS],
    min_interval: u64,
}

impl Model {
    fn add(&mut self, object: usize, due: u64, priority: Priority) {
        let requested = &mut self.objects[object].requested;
        *requested = Some(match *requested {
            None => (due, priority),
            Some((earlier, higher)) => (due.min(earlier), priority.max(higher)),
        });
    }

    fn fail(&mut self, object: usize, now: u64) {
        let failures = self.objects[object].failures;
        self.objects[object].failures += 1;
        let delay = (10_u64 << failures.min(20)).min(160);
        self.add(object, now + delay, Priority::Normal);
    }

    /// When an object may be handed out: not before it is requested, nor within its interval.
    fn due(&self, object: usize) -> Option<u64> {
        let modelled = self.objects[object];
        let (due, _) = modelled.requested.filter(|_| !modelled.in_work)?;
        Some(
            modelled
                .started
                .map_or(due, |started| due.max(started + self.min_interval)),
        )
    }

    fn ready(&self, now: u64) -> BTreeMap<usize, Priority> {
        (0..OBJECTS)
            .filter(|object| self.due(*object).is_some_and(|due| due <= now))
            .filter_map(|object| Some((object, self.objects[object].requested?.1)))
            .collect()
    }

    fn take(&mut self, object: usize, now: u64) {
        let modelled = &mut self.objects[object];
        modelled.requested = None;
        modelled.in_work = true;
        modelled.started_before = modelled.started.replace(now);
    }
}

fn name(object: usize) -> ObjectKey {
    ObjectKey::namespaced("default", &object.to_string())
}

async fn agree(commands: Vec<Command>, min_interval: u64) -> Result<(), TestCaseError> {
    let limits = Limits {
        first_retry: Duration::from_millis(10),
        longest_retry: Duration::from_millis(160),
        jitter: 0.0,
        min_interval: Duration::from_millis(min_interval),
        rate: None,
    };
    let queue = Queue::new("model", limits, Random::seeded(0), Metrics::new());
    let mut model = Model {
        objects: [Modelled::default(); OBJECTS],
        min_interval,
    };
    let mut items: BTreeMap<usize, Item> = BTreeMap::new();
    let start = Instant::now();
    let mut taken = 0;
    for command in commands {
        let now = start.elapsed().as_millis() as u64;
        match command {
            Command::Add(object, priority) => {
                queue.add(&name(object), priority);
                model.add(object, now, priority);
            }
            Command::AddAfter(object, after, priority) => {
                queue.add_after(&name(object), Duration::from_millis(after), priority);
                model.add(object, now + after, priority);
            }
            Command::Fail(object) => {
                queue.add_rate_limited(&name(object), Priority::Normal);
                model.fail(object, now);
            }
            Command::Forget(object) => {
                queue.forget(&name(object));
                model.objects[object].failures = 0;
            }
            Command::Take => {
                let ready = model.ready(now);
                match queue.next().now_or_never() {
                    None => prop_assert!(ready.is_empty(), "nothing came, due were {ready:?} at {now}"),
                    Some(item) => {
                        taken += 1;
                        let item = item.expect("the queue is not shut down");
                        let object: usize = item.key.name().parse().unwrap();
                        let priority = ready.get(&object);
                        prop_assert_eq!(priority, Some(&item.priority), "{} came at {}", object, now);
                        // Every eighth goes by age; all others go by priority.
                        if taken % 8 != 0 {
                            prop_assert_eq!(ready.values().max(), Some(&item.priority));
                        }
                        model.take(object, now);
                        items.insert(object, item);
                    }
                }
            }
            Command::Done(object) => {
                if let Some(item) = items.remove(&object) {
                    queue.done(&item, Duration::ZERO);
                    model.objects[object].in_work = false;
                }
            }
            Command::GiveBack(object, after) => {
                if let Some(item) = items.remove(&object) {
                    queue.give_back(&item, Duration::from_millis(after));
                    model.add(object, now + after, item.priority);
                    let modelled = &mut model.objects[object];
                    modelled.in_work = false;
                    modelled.started = modelled.started_before;
                }
            }
            Command::Sleep(milliseconds) => tokio::time::sleep(Duration::from_millis(milliseconds)).await,
        }
    }
    drain(&queue, &mut model, items, start).await
}

/// No request is lost: with all work ended, everything still requested comes, each at its very time, and then the
/// queue is empty but for what fails.
async fn drain(
    queue: &Queue,
    model: &mut Model,
    items: BTreeMap<usize, Item>,
    start: Instant,
) -> Result<(), TestCaseError> {
    for (object, item) in items {
        queue.done(&item, Duration::ZERO);
        model.objects[object].in_work = false;
    }
    while let Some(due) = (0..OBJECTS).filter_map(|object| model.due(object)).min() {
        let before = start.elapsed().as_millis() as u64;
        let item = tokio::time::timeout(Duration::from_secs(10), queue.next()).await;
        let item = item
            .map_err(|_| TestCaseError::fail("a wakeup was lost"))?
            .unwrap();
        let now = start.elapsed().as_millis() as u64;
        prop_assert_eq!(now, due.max(before), "{} came at the wrong time", item.key);
        let object: usize = item.key.name().parse().unwrap();
        prop_assert!(model.ready(now).contains_key(&object));
        model.take(object, now);
        queue.done(&item, Duration::ZERO);
        model.objects[object].in_work = false;
    }
    for object in 0..OBJECTS {
        queue.forget(&name(object));
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    prop_assert!(queue.next().now_or_never().is_none());
    prop_assert_eq!(queue.len(), 0, "something is kept of idle objects");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn the_queue_does_what_the_model_does(commands in commands(), min_interval in prop_oneof![Just(0), 1..60_u64]) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(agree(commands, min_interval))?;
    }
}
