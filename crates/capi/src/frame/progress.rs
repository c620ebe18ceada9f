//! What the entries of a plan came to, and what follows from that: the error to tell, and when to reconcile again.

use std::{fmt, time::Duration};

use jiff::Timestamp;
use slipway_runtime::{Class, Classified, Next, Outcome};

use super::{Entry, Plan, What};

/// Why a reconcile failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure<E> {
    /// An action or a read of the kind.
    #[error(transparent)]
    Kind(E),
    /// A write of the frame: finalizer, move, status.
    #[error(transparent)]
    Frame(crate::Error),
    /// The plan says that it cannot go on.
    #[error("{reason}: {message}")]
    Blocked {
        reason: String,
        message: String,
        class: Class,
    },
    /// Each closer read gave a plan that needs a closer read.
    #[error("the plan could not be confirmed: what was read changes from read to read")]
    Unconfirmed,
}

impl<E: Classified> Classified for Failure<E> {
    fn class(&self) -> Class {
        match self {
            Self::Kind(error) => error.class(),
            Self::Frame(error) => error.class(),
            Self::Blocked { class, .. } => *class,
            Self::Unconfirmed => Class::Transient,
        }
    }
}

/// What became of one entry.
#[derive(Debug)]
pub enum Attempt<E> {
    /// An earlier entry is not done yet.
    Held,
    /// The entry is a wait.
    Waiting,
    Came(Outcome),
    Failed(Failure<E>),
}

impl<E> Attempt<E> {
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Came(Outcome::Done))
    }
}

/// A plan and what its entries came to.
#[derive(Debug)]
pub struct Progress<A, E> {
    plan: Plan<A>,
    attempts: Vec<Attempt<E>>,
    /// From here on the entries follow from what the earlier ones came to, and do not wait for them.
    planned: usize,
}

impl<A, E> Progress<A, E> {
    /// Nothing has been tried yet.
    pub fn new(plan: Plan<A>) -> Self {
        let attempts: Vec<_> = plan.entries.iter().map(|_| Attempt::Held).collect();
        Self {
            planned: attempts.len(),
            plan,
            attempts,
        }
    }

    pub fn plan(&self) -> &Plan<A> {
        &self.plan
    }

    /// Notes what an entry came to.
    pub fn note(&mut self, index: usize, attempt: Attempt<E>) {
        self.attempts[index] = attempt;
    }

    pub(super) fn append(&mut self, later: Plan<A>) {
        self.attempts.extend(later.entries.iter().map(|_| Attempt::Held));
        self.plan.append(later);
    }

    /// Entries with what they came to.
    pub fn entries(&self) -> impl Iterator<Item = (&Entry<A>, &Attempt<E>)> {
        self.plan.entries.iter().zip(&self.attempts)
    }

    /// The kind's own actions with what they came to.
    pub fn actions(&self) -> impl Iterator<Item = (&A, &Attempt<E>)> {
        self.entries()
            .filter_map(|(entry, attempt)| Some((entry.action()?, attempt)))
    }

    /// Whether everything that was planned is done, and nothing is waited for.
    pub fn is_done(&self) -> bool {
        self.attempts.iter().all(Attempt::is_done)
    }

    /// Whether the entry has to wait for one before it. What follows from outcomes waits for none of them.
    pub(super) fn is_held(&self, index: usize) -> bool {
        let Some(group) = self.plan.entries[index].group else {
            return false;
        };
        let first = if index < self.planned { 0 } else { self.planned };
        self.entries()
            .take(index)
            .skip(first)
            .any(|(entry, attempt)| entry.group.is_some_and(|earlier| earlier < group) && !attempt.is_done())
    }

    /// Whether the object was let go.
    pub(super) fn has_released(&self) -> bool {
        self.entries()
            .any(|(entry, attempt)| matches!(entry.what, What::ReleaseFinalizer) && attempt.is_done())
    }

    /// When to reconcile again because of what is under way or waited for.
    pub(super) fn next(&self, now: Timestamp) -> Next {
        let revisit = self
            .plan
            .revisit
            .as_ref()
            .map_or(Next::OnChange, |(after, _)| Next::After(*after));
        self.entries()
            .map(|(entry, attempt)| match (attempt, entry.as_wait()) {
                (Attempt::Came(outcome), _) => outcome.next(),
                (_, Some(wait)) => wait.until.map_or(Next::OnChange, |until| {
                    let left = Duration::try_from(until.duration_since(now)).unwrap_or_default();
                    Next::After(left.max(SOONEST))
                }),
                _ => Next::OnChange,
            })
            .fold(revisit, Next::earlier)
    }
}

/// A wait that is over as it is planned does not make a reconcile run in circles.
const SOONEST: Duration = Duration::from_millis(50);

impl<A, E: Classified> Progress<A, E> {
    /// All that went wrong, in order.
    pub fn classes(&self) -> impl Iterator<Item = Class> {
        self.entries()
            .filter_map(|(entry, attempt)| match (attempt, entry.as_wait()) {
                (Attempt::Failed(failure), _) => Some(failure.class()),
                (Attempt::Waiting, Some(wait)) => wait.class,
                _ => None,
            })
    }

    /// The failure that counts: what passes by itself does not hide what does not.
    pub(super) fn into_failure(self) -> Option<Failure<E>> {
        let entries = self.plan.entries.into_iter().zip(self.attempts);
        let failures = entries.filter_map(|(entry, attempt)| match (attempt, entry.what) {
            (Attempt::Failed(failure), _) => Some(failure),
            (Attempt::Waiting, What::Wait(wait)) => wait.class.map(|class| Failure::Blocked {
                reason: wait.reason,
                message: entry.why,
                class,
            }),
            _ => None,
        });
        // Of equals the first: what comes later may have failed because of it.
        failures.min_by_key(|failure| rank(failure.class()))
    }
}

/// How much a failure counts; the least counts most.
fn rank(class: Class) -> u8 {
    match class {
        Class::Terminal => 0,
        Class::Denied => 1,
        Class::Transient => 2,
        Class::Throttled(_) => 3,
        Class::Conflict => 4,
    }
}

impl<A: fmt::Display, E: fmt::Display> fmt::Display for Progress<A, E> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.plan.print(formatter, |index| match &self.attempts[index] {
            Attempt::Held => " => held".to_owned(),
            Attempt::Waiting => String::new(),
            Attempt::Came(Outcome::Done) => " => done".to_owned(),
            Attempt::Came(Outcome::InProgress(after)) => format!(" => in progress, again in {after:?}"),
            Attempt::Came(Outcome::Throttled(after)) => format!(" => throttled, again in {after:?}"),
            Attempt::Failed(failure) => format!(" => failed: {failure}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("it did not work")]
    struct Broken(Class);

    impl Classified for Broken {
        fn class(&self) -> Class {
            self.0
        }
    }

    fn plan() -> Plan<&'static str> {
        let mut plan = Plan::new();
        plan.then("a", "");
        plan.beside("b", "");
        plan.then("c", "");
        plan.regardless("d", "");
        plan
    }

    #[test]
    fn a_later_group_waits_for_all_of_an_earlier_one() {
        let mut progress: Progress<_, Broken> = Progress::new(plan());
        assert!(!progress.is_held(0) && !progress.is_held(1) && progress.is_held(2) && !progress.is_held(3));
        progress.note(0, Attempt::Came(Outcome::Done));
        assert!(progress.is_held(2));
        progress.note(1, Attempt::Came(Outcome::Done));
        assert!(!progress.is_held(2));
        progress.note(1, Attempt::Failed(Failure::Kind(Broken(Class::Transient))));
        assert!(progress.is_held(2) && !progress.is_held(3));
    }

    #[test]
    fn what_passes_by_itself_does_not_hide_what_does_not() {
        let mut progress: Progress<_, Broken> = Progress::new(plan());
        progress.note(0, Attempt::Failed(Failure::Kind(Broken(Class::Transient))));
        progress.note(1, Attempt::Failed(Failure::Kind(Broken(Class::Denied))));
        progress.note(3, Attempt::Failed(Failure::Kind(Broken(Class::Conflict))));
        assert_eq!(
            progress.to_string(),
            "1. a => failed: it did not work\n1. b => failed: it did not work\n2. c => held\n-  d => failed: it did not work\n"
        );
        assert_eq!(progress.into_failure().unwrap().class(), Class::Denied);

        let mut blocked = plan();
        blocked.blocked("InvalidSpec", "mend it", Class::Terminal);
        let mut progress: Progress<_, Broken> = Progress::new(blocked);
        progress.note(0, Attempt::Failed(Failure::Kind(Broken(Class::Transient))));
        progress.note(4, Attempt::Waiting);
        assert_eq!(
            progress.into_failure().unwrap().to_string(),
            "InvalidSpec: mend it"
        );
    }

    #[test]
    fn the_earliest_of_all_waits_counts() {
        let now = Timestamp::UNIX_EPOCH;
        let mut waiting = plan();
        waiting.wait("Later", "").until(now + Duration::from_secs(9));
        let mut progress: Progress<_, Broken> = Progress::new(waiting.clone());
        progress.note(4, Attempt::Waiting);
        assert_eq!(progress.next(now), Next::After(Duration::from_secs(9)));
        let late = now + Duration::from_secs(20);
        assert_eq!(progress.next(late), Next::After(SOONEST), "never at once");
        progress.note(0, Attempt::Came(Outcome::InProgress(Duration::from_secs(4))));
        assert_eq!(progress.next(now), Next::After(Duration::from_secs(4)));
        waiting.revisit(Duration::from_secs(2), "nobody tells");
        assert_eq!(
            Progress::<_, Broken>::new(waiting).next(now),
            Next::After(Duration::from_secs(2))
        );
        assert_eq!(Progress::<_, Broken>::new(plan()).next(now), Next::OnChange);
    }
}
