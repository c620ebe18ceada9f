//! Asks a controller for objects from outside Kubernetes: a finished cloud operation, a message of an agent.

use std::{collections::BTreeMap, fmt, sync::Arc};

use parking_lot::Mutex;

use crate::{
    ObjectKey,
    queue::{Priority, Queue},
};

/// Created by whoever will fire it and given to a controller with `triggered_by`. What is fired before the
/// controller runs is kept for it.
#[derive(Clone, Default)]
pub struct Trigger {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    queue: Option<Queue>,
    early: BTreeMap<ObjectKey, Priority>,
}

impl Trigger {
    pub fn new() -> Self {
        Self::default()
    }

    pub(super) fn attached(queue: Queue) -> Self {
        let trigger = Self::new();
        trigger.attach(queue);
        trigger
    }

    /// Asks for an object as soon as possible.
    pub fn fire(&self, key: &ObjectKey) {
        let mut state = self.state.lock();
        match &state.queue {
            Some(queue) => queue.add(key, Priority::Normal),
            None => {
                state.early.insert(key.clone(), Priority::Normal);
            }
        }
    }

    pub(super) fn attach(&self, queue: Queue) {
        let mut state = self.state.lock();
        for (key, priority) in std::mem::take(&mut state.early) {
            queue.add(&key, priority);
        }
        state.queue = Some(queue);
    }

    /// The controller has stopped; what is fired from here on waits for the next one.
    pub(super) fn detach(&self) {
        self.state.lock().queue = None;
    }
}

impl fmt::Debug for Trigger {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Trigger").finish_non_exhaustive()
    }
}
