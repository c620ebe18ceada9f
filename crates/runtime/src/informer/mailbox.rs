//! What one subscriber has not read yet. It never makes the watch wait: changes of one object that pile up are
//! joined, so a slow subscriber costs at most one entry an object.

use std::{collections::VecDeque, sync::Arc};

use ahash::AHashMap;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::ObjectKey;

/// Where a change was learnt from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// A full list, or the state found when subscribing.
    Listed,
    /// A watch: somebody just did it.
    Live,
}

/// One object's change since the subscriber last heard of it.
#[derive(Debug)]
pub struct Delta<K> {
    pub key: ObjectKey,
    /// What the subscriber was last told, if anything.
    pub old: Option<Arc<K>>,
    /// What it is now; nothing if it is gone.
    pub new: Option<Arc<K>>,
    /// Its last state, if it is gone. It may never have been told as `new`.
    pub last: Option<Arc<K>>,
    pub origin: Origin,
}

/// A change, as one of three.
#[derive(Debug)]
pub enum Event<'a, K> {
    Added(&'a Arc<K>),
    Updated { old: &'a Arc<K>, new: &'a Arc<K> },
    Deleted(&'a Arc<K>),
}

impl<K> Delta<K> {
    pub fn event(&self) -> Event<'_, K> {
        match (&self.old, &self.new, &self.last) {
            (None, Some(new), _) => Event::Added(new),
            (Some(old), Some(new), _) => Event::Updated { old, new },
            (_, None, Some(last)) | (Some(last), None, None) => Event::Deleted(last),
            (None, None, None) => unreachable!("a change is about an object that was or is"),
        }
    }

    /// Every state this change tells of, for mapping it to what depends on any of them.
    pub fn objects(&self) -> impl Iterator<Item = &Arc<K>> {
        [&self.old, &self.new, &self.last].into_iter().flatten()
    }
}

#[derive(Debug)]
struct Pending<K> {
    old: Option<Arc<K>>,
    new: Option<Arc<K>>,
    last: Option<Arc<K>>,
    origin: Origin,
}

#[derive(Debug)]
struct State<K> {
    pending: AHashMap<ObjectKey, Pending<K>>,
    order: VecDeque<ObjectKey>,
    closed: bool,
}

/// A first list fills a mailbox as it never is again. Room for this many is kept.
const ROOM_KEPT: usize = 256;

impl<K> State<K> {
    fn give_room_back(&mut self) {
        if self.order.is_empty() && self.order.capacity() > ROOM_KEPT {
            self.order.shrink_to(ROOM_KEPT);
            self.pending.shrink_to(ROOM_KEPT);
        }
    }
}

#[derive(Debug)]
pub(super) struct Mailbox<K> {
    state: Mutex<State<K>>,
    arrived: Notify,
}

impl<K> Mailbox<K> {
    pub fn new() -> Self {
        Self {
            state: Mutex::new(State {
                pending: AHashMap::new(),
                order: VecDeque::new(),
                closed: false,
            }),
            arrived: Notify::new(),
        }
    }

    /// Puts in a change from `old` to `new`; for a deletion `last` is the final state.
    pub fn put(
        &self,
        key: &ObjectKey,
        old: Option<&Arc<K>>,
        new: Option<&Arc<K>>,
        last: Option<&Arc<K>>,
        origin: Origin,
    ) {
        let mut state = self.state.lock();
        if let Some(pending) = state.pending.get_mut(key) {
            pending.new = new.cloned();
            pending.last = last.cloned();
            pending.origin = pending.origin.max(origin);
        } else {
            state.order.push_back(key.clone());
            state.pending.insert(
                key.clone(),
                Pending {
                    old: old.cloned(),
                    new: new.cloned(),
                    last: last.cloned(),
                    origin,
                },
            );
        }
        drop(state);
        self.arrived.notify_one();
    }

    pub fn close(&self) {
        self.state.lock().closed = true;
        self.arrived.notify_one();
    }

    /// The next change, oldest first; nothing once the watch has stopped and all is read.
    pub async fn next(&self) -> Option<Delta<K>> {
        loop {
            {
                let mut state = self.state.lock();
                if let Some(key) = state.order.pop_front() {
                    let Pending {
                        old,
                        new,
                        last,
                        origin,
                    } = state
                        .pending
                        .remove(&key)
                        .expect("what is in the order is pending");
                    state.give_room_back();
                    return Some(Delta {
                        key,
                        old,
                        new,
                        last,
                        origin,
                    });
                }
                if state.closed {
                    return None;
                }
            }
            self.arrived.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::namespaced("default", name)
    }

    fn next(mailbox: &Mailbox<&'static str>) -> Option<Delta<&'static str>> {
        mailbox.next().now_or_never().flatten()
    }

    #[test]
    fn changes_of_one_object_are_joined_and_keep_their_place() {
        let mailbox = Mailbox::new();
        let (one, two, three) = (Arc::new("one"), Arc::new("two"), Arc::new("three"));
        mailbox.put(&key("a"), Some(&one), Some(&two), None, Origin::Listed);
        mailbox.put(&key("b"), None, Some(&one), None, Origin::Listed);
        mailbox.put(&key("a"), Some(&two), Some(&three), None, Origin::Live);
        let first = next(&mailbox).unwrap();
        assert_eq!(
            (first.key.name(), first.old, first.new, first.origin),
            ("a", Some(one), Some(three), Origin::Live)
        );
        assert_eq!(next(&mailbox).unwrap().key.name(), "b");
        assert!(next(&mailbox).is_none());
    }

    #[test]
    fn an_object_that_came_and_went_unread_is_told_as_deleted() {
        let mailbox = Mailbox::new();
        let (born, dead) = (Arc::new("born"), Arc::new("dead"));
        mailbox.put(&key("a"), None, Some(&born), None, Origin::Live);
        mailbox.put(&key("a"), Some(&born), None, Some(&dead), Origin::Live);
        let change = next(&mailbox).unwrap();
        assert!(matches!(change.event(), Event::Deleted(last) if **last == "dead"));
    }

    #[test]
    fn an_object_replaced_unread_is_told_as_updated() {
        let mailbox = Mailbox::new();
        let (first, second) = (Arc::new("first"), Arc::new("second"));
        mailbox.put(&key("a"), Some(&first), None, Some(&first), Origin::Live);
        mailbox.put(&key("a"), None, Some(&second), None, Origin::Live);
        let change = next(&mailbox).unwrap();
        assert!(
            matches!(change.event(), Event::Updated { old, new } if **old == "first" && **new == "second")
        );
        assert!(change.last.is_none());
    }

    #[tokio::test]
    async fn a_closed_mailbox_is_read_to_its_end() {
        let mailbox = Mailbox::new();
        mailbox.put(&key("a"), None, Some(&Arc::new("x")), None, Origin::Live);
        mailbox.close();
        assert!(mailbox.next().await.is_some());
        assert!(mailbox.next().await.is_none());
    }
}
