//! The last plan of every object, as text, for whoever asks a running manager what it is about to do and why. Bounded:
//! a long plan is cut, and the plans that were kept longest go first. Kept in memory alone; nothing is read from it.

use std::{collections::HashMap, collections::VecDeque, fmt::Write, sync::Arc};

use jiff::Timestamp;
use parking_lot::Mutex;

use crate::ObjectKey;

/// More of one plan is cut off.
const LONGEST: usize = 2 * 1024;
/// All plans together, with their names. Beyond this the oldest go.
const MOST: usize = 10 * 1024 * 1024;
const CUT: &str = "\n… (cut)\n";

/// Which object a plan is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlanKey {
    pub group: String,
    pub kind: String,
    pub object: ObjectKey,
}

impl PlanKey {
    /// `<group>/<kind>/<namespace>/<name>`, as it stands in the address; without the namespace for a cluster-scoped kind.
    pub fn path(&self) -> String {
        format!("{}/{}/{}", self.group, self.kind, self.object)
    }

    fn size(&self) -> usize {
        self.group.len()
            + self.kind.len()
            + self.object.name().len()
            + self.object.namespace().map_or(0, str::len)
    }
}

#[derive(Clone, Debug)]
struct StoredPlan {
    at: Timestamp,
    text: String,
    /// Which entry of `order` is this one's; earlier entries of the same key are out of date.
    number: u64,
}

#[derive(Debug, Default)]
struct State {
    plans: HashMap<PlanKey, StoredPlan>,
    /// The oldest first.
    order: VecDeque<(u64, PlanKey)>,
    next: u64,
    size: usize,
}

impl State {
    fn remove(&mut self, key: &PlanKey) {
        if let Some(kept) = self.plans.remove(key) {
            self.size -= kept.text.len() + key.size();
        }
        // Entries without a plan are dropped from the front as they get there, and all at once when they are many.
        if self.order.len() > 64 && self.order.len() > 2 * self.plans.len() {
            let Self { plans, order, .. } = self;
            order.retain(|(number, key)| plans.get(key).is_some_and(|kept| kept.number == *number));
        }
    }

    fn drop_oldest(&mut self) {
        while let Some((number, key)) = self.order.pop_front() {
            if self.plans.get(&key).is_some_and(|kept| kept.number == number) {
                self.remove(&key);
                return;
            }
        }
    }
}

/// The plans of one manager. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Plans {
    state: Arc<Mutex<State>>,
}

impl Plans {
    /// Keeps the plan of an object in place of its last one.
    pub fn keep(&self, key: PlanKey, at: Timestamp, text: &str) {
        let text = shortened(text);
        let mut state = self.state.lock();
        state.remove(&key);
        let number = state.next;
        state.next += 1;
        state.size += text.len() + key.size();
        state.order.push_back((number, key.clone()));
        state.plans.insert(key, StoredPlan { at, text, number });
        while state.size > MOST && state.plans.len() > 1 {
            state.drop_oldest();
        }
    }

    /// The object is gone.
    pub fn forget(&self, key: &PlanKey) {
        self.state.lock().remove(key);
    }

    /// The plan at `<group>/<kind>/<namespace>/<name>`, with when it was made.
    pub fn show(&self, path: &str) -> Option<String> {
        let state = self.state.lock();
        let (_, kept) = state.plans.iter().find(|(key, _)| key.path() == path)?;
        Some(format!("planned at {}\n{}", kept.at, kept.text))
    }

    /// The paths of all plans, one a line, in order; below a prefix of whole segments if one is given.
    pub fn list(&self, prefix: &str) -> String {
        let state = self.state.lock();
        let mut paths: Vec<String> = state.plans.keys().map(PlanKey::path).collect();
        paths.sort_unstable();
        let mut text = String::new();
        for path in paths {
            let below = path
                .strip_prefix(prefix)
                .is_some_and(|rest| rest.starts_with('/'));
            if prefix.is_empty() || below {
                let _ = writeln!(text, "{path}");
            }
        }
        text
    }

    pub fn len(&self) -> usize {
        self.state.lock().plans.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn shortened(text: &str) -> String {
    if text.len() <= LONGEST {
        return text.to_owned();
    }
    let mut end = LONGEST - CUT.len();
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{CUT}", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> PlanKey {
        PlanKey {
            group: "toy.dev".to_owned(),
            kind: "Fleet".to_owned(),
            object: ObjectKey::namespaced("default", name),
        }
    }

    fn keep(plans: &Plans, name: &str, text: &str) {
        plans.keep(key(name), Timestamp::UNIX_EPOCH, text);
    }

    #[test]
    fn the_last_plan_is_shown_until_its_object_is_gone() {
        let plans = Plans::default();
        keep(&plans, "north", "first");
        keep(&plans, "north", "second");
        keep(&plans, "south", "third");
        let shown = plans.show("toy.dev/Fleet/default/north").unwrap();
        assert_eq!(shown, "planned at 1970-01-01T00:00:00Z\nsecond");
        assert_eq!(plans.show("toy.dev/Fleet/default/nor"), None);
        let both = "toy.dev/Fleet/default/north\ntoy.dev/Fleet/default/south\n";
        assert_eq!(plans.list(""), both);
        assert_eq!(plans.list("toy.dev/Fleet"), both);
        assert_eq!(plans.list("toy.dev/Fle"), "");
        plans.forget(&key("north"));
        plans.forget(&key("nobody"));
        assert_eq!(plans.show("toy.dev/Fleet/default/north"), None);
        assert_eq!(plans.list(""), "toy.dev/Fleet/default/south\n");
    }

    #[test]
    fn a_long_plan_is_cut_at_a_letter() {
        let plans = Plans::default();
        keep(&plans, "north", &"ü".repeat(2000));
        let shown = plans.show("toy.dev/Fleet/default/north").unwrap();
        let (_, text) = shown.split_once('\n').unwrap();
        assert!(text.ends_with(CUT) && text.len() <= LONGEST, "{}", text.len());
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many() {
        let plans = Plans::default();
        let text = "x".repeat(LONGEST);
        let many = MOST / LONGEST + 100;
        for number in 0..many {
            keep(&plans, &format!("f{number}"), &text);
            // Planned again and again: it is among the youngest.
            keep(&plans, "busy", "busy");
        }
        let state = plans.state.lock();
        assert!(
            state.size <= MOST && state.size > MOST - 2 * LONGEST,
            "{}",
            state.size
        );
        assert!(!state.plans.contains_key(&key("f0")));
        assert!(state.plans.contains_key(&key("busy")));
        assert!(state.plans.contains_key(&key(&format!("f{}", many - 1))));
        assert!(
            state.order.len() <= 2 * state.plans.len() + 64,
            "{}",
            state.order.len()
        );
        let held: usize = state
            .plans
            .iter()
            .map(|(key, kept)| kept.text.len() + key.size())
            .sum();
        assert_eq!(held, state.size);
    }
}
