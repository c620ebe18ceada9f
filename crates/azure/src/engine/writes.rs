//! Writes that Azure did not accept, and when the same may be sent again. The wait is kept by resource and by what is
//! sent, so it holds whatever wakes the object; another body, another credential or a success of a resource that the
//! refusal names ends it. Pure but for the lock around it; only in memory, so a restart costs one more attempt.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use slipway_runtime::Outcome;
use tokio::time::Instant;

use super::Ensured;
use crate::arm::{ArmError, ErrorResponse, ResourceId, RetryPolicy};

/// What is sent, and as whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Content([u8; 32]);

impl Content {
    pub fn of(body: &[u8], credential: &[u8; 32]) -> Self {
        Self(
            Sha256::new()
                .chain_update(body)
                .chain_update(credential)
                .finalize()
                .into(),
        )
    }
}

/// Why Azure did not accept a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    Refused(ErrorResponse),
    /// The answer was lost: it may have been accepted.
    Unreachable(String),
    Unreadable(String),
    /// Another operation holds the resource.
    Busy {
        message: String,
        after: Duration,
    },
    Throttled {
        after: Duration,
    },
}

/// How long the same is not sent again: the first wait, and the longest. Each wait is twice the one before.
fn waits(reason: &Reason) -> (Duration, Duration) {
    const fn seconds(first: u64, longest: u64) -> (Duration, Duration) {
        (Duration::from_secs(first), Duration::from_secs(longest))
    }
    match reason {
        Reason::Unreachable(_) | Reason::Unreadable(_) => seconds(5, 300),
        // Azure says when.
        Reason::Busy { after, .. } | Reason::Throttled { after } => (*after, *after),
        Reason::Refused(refusal) => match refusal.retry_policy {
            RetryPolicy::RetryAfter(after) => (after, after),
            RetryPolicy::RetrySoon => seconds(5, 300),
            RetryPolicy::Wait => seconds(20, 120),
            RetryPolicy::ReadAgain => seconds(2, 60),
            // Somebody grants something outside Kubernetes, and no event says so.
            RetryPolicy::Grant => seconds(30, 900),
            // Only a change of the object helps, or of something that Azure alone knows.
            RetryPolicy::Change => seconds(120, 3600),
        },
    }
}

fn wait(reason: &Reason, failures: u32) -> Duration {
    let (first, longest) = waits(reason);
    let first = first.max(Duration::from_secs(1));
    (first * 2u32.saturating_pow(failures.min(16))).min(longest.max(first))
}

#[derive(Debug)]
struct Attempt {
    content: Content,
    failures: u32,
    /// `None`: it was accepted, and its operation runs.
    reason: Option<Reason>,
    until: Instant,
}

/// A write that is not sent now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    reason: Reason,
    after: Duration,
}

impl Held {
    /// What a step comes to that would have sent it.
    pub fn ended(self, doing: &'static str, id: &ResourceId) -> Result<Ensured, ArmError> {
        let target = id.to_string();
        Err(match self.reason {
            Reason::Busy { message, .. } => {
                return Ok(Ensured::waiting(Outcome::InProgress(self.after), Some(message)));
            }
            Reason::Throttled { .. } => return Ok(Ensured::waiting(Outcome::Throttled(self.after), None)),
            Reason::Refused(refusal) => ArmError::Refused {
                doing,
                target,
                refusal,
            },
            Reason::Unreachable(reason) => ArmError::Unreachable {
                doing,
                target,
                reason,
            },
            Reason::Unreadable(reason) => ArmError::Unreadable {
                doing,
                target,
                reason,
            },
        })
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Writes(Arc<Mutex<HashMap<ResourceId, Attempt>>>);

impl Writes {
    /// Why this is not sent now, if it is not.
    pub fn held(&self, id: &ResourceId, content: Content, now: Instant) -> Option<Held> {
        let attempts = self.0.lock();
        let attempt = attempts.get(id).filter(|attempt| attempt.content == content)?;
        let after = attempt.until.checked_duration_since(now)?;
        (!after.is_zero()).then_some(())?;
        Some(Held {
            reason: attempt.reason.clone()?,
            after,
        })
    }

    /// It was sent and not accepted. A request limit keeps the reason that was there before it: what the user has to
    /// mend must not disappear behind it.
    pub fn failed(&self, id: &ResourceId, content: Content, mut reason: Reason, now: Instant) -> Held {
        let mut attempts = self.0.lock();
        let attempt = attempts.entry(id.clone()).or_insert(Attempt {
            content,
            failures: 0,
            reason: None,
            until: now,
        });
        if attempt.content != content {
            attempt.content = content;
            attempt.failures = 0;
            attempt.reason = None;
        }
        // A token may have run out in between; one that was fetched after a refusal did not.
        if let Reason::Refused(refusal) = &mut reason
            && refusal.status == 401
            && attempt.failures > 0
        {
            refusal.retry_policy = RetryPolicy::Grant;
        }
        let after = wait(&reason, attempt.failures);
        attempt.until = now + after;
        let passing = matches!(reason, Reason::Throttled { .. });
        if !passing {
            attempt.failures += 1;
        }
        if !(passing && attempt.reason.is_some()) {
            attempt.reason = Some(reason.clone());
        }
        Held {
            reason: attempt.reason.clone().unwrap_or(reason),
            after,
        }
    }

    /// It was accepted, and its operation runs.
    pub fn accepted(&self, id: &ResourceId, content: Content, now: Instant) {
        let mut attempts = self.0.lock();
        let attempt = attempts.entry(id.clone()).or_insert(Attempt {
            content,
            failures: 0,
            reason: None,
            until: now,
        });
        if attempt.content != content {
            attempt.failures = 0;
        }
        attempt.content = content;
        attempt.reason = None;
        attempt.until = now;
    }

    /// The operation that the last write started failed.
    pub fn operation_failed(&self, id: &ResourceId, error: &ArmError, now: Instant) {
        let content = self.0.lock().get(id).map(|attempt| attempt.content);
        if let (Some(content), Some(refusal)) = (content, error.refusal()) {
            self.failed(id, content, Reason::Refused(refusal.clone()), now);
        }
    }

    /// Nobody asks for the resource any more.
    pub fn forget(&self, id: &ResourceId) {
        self.0.lock().remove(id);
    }

    pub fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// The resource is as desired, or gone: what was refused because of it may be sent again.
    pub fn succeeded(&self, id: &ResourceId, now: Instant) {
        let mut attempts = self.0.lock();
        attempts.remove(id);
        for attempt in attempts.values_mut() {
            if let Some(Reason::Refused(refusal)) = &attempt.reason
                && refusal.message.to_ascii_lowercase().contains(id.key())
            {
                attempt.until = now;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> ResourceId {
        ResourceId::parse(&format!("/subscriptions/s/resourceGroups/{name}")).unwrap()
    }

    fn refused(status: u16, message: &str) -> Reason {
        let body = format!(r#"{{"error":{{"code":"Code","message":"{message}"}}}}"#);
        Reason::Refused(ErrorResponse::read(status, None, body.as_bytes()))
    }

    const SECRET: [u8; 32] = [1; 32];

    #[test]
    fn the_same_is_held_and_something_else_is_not() {
        let (writes, now) = (Writes::default(), Instant::now());
        let content = Content::of(b"a", &SECRET);
        assert_eq!(writes.held(&id("g"), content, now), None);
        let held = writes.failed(&id("g"), content, refused(400, "no"), now);
        assert_eq!(held.after, Duration::from_mins(2));
        let just_before = now + Duration::from_secs(119);
        assert!(writes.held(&id("g"), content, just_before).is_some());
        assert_eq!(writes.held(&id("g"), content, now + Duration::from_mins(2)), None);
        assert_eq!(
            writes.held(&id("g"), Content::of(b"b", &SECRET), now),
            None,
            "the spec changed"
        );
        assert_eq!(
            writes.held(&id("g"), Content::of(b"a", &[2; 32]), now),
            None,
            "the credential changed"
        );
        assert_eq!(writes.held(&id("h"), content, now), None, "another resource");
    }

    #[test]
    fn a_request_limit_does_not_hide_the_reason() {
        let (writes, now) = (Writes::default(), Instant::now());
        let content = Content::of(b"a", &SECRET);
        let reason = refused(400, "subnet is too small");
        writes.failed(&id("g"), content, reason.clone(), now);
        let after = Duration::from_mins(5);
        let held = writes.failed(&id("g"), content, Reason::Throttled { after }, now);
        assert_eq!(held, Held { reason, after });
        let alone = writes.failed(&id("h"), content, Reason::Throttled { after }, now);
        assert_eq!(alone.reason, Reason::Throttled { after });
    }

    #[test]
    fn waits_grow_to_an_end_and_begin_again_after_a_success() {
        let (writes, mut now) = (Writes::default(), Instant::now());
        let content = Content::of(b"a", &SECRET);
        let mut waits = Vec::new();
        for _ in 0..8 {
            let held = writes.failed(&id("g"), content, refused(500, "oops"), now);
            waits.push(held.after.as_secs());
            now += held.after;
        }
        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 300, 300]);
        writes.succeeded(&id("g"), now);
        let held = writes.failed(&id("g"), content, refused(500, "oops"), now);
        assert_eq!(held.after.as_secs(), 5);
    }

    #[test]
    fn a_second_refusal_to_sign_in_is_no_longer_a_matter_of_time() {
        let (writes, now) = (Writes::default(), Instant::now());
        let content = Content::of(b"a", &SECRET);
        let body = br#"{"error":{"code":"InvalidAuthenticationToken","message":"no"}}"#;
        let refused = || Reason::Refused(ErrorResponse::read(401, None, body));
        let retry_policy = |held: &Held| match &held.reason {
            Reason::Refused(refusal) => refusal.retry_policy,
            other => panic!("{other:?}"),
        };
        let first = writes.failed(&id("g"), content, refused(), now);
        assert_eq!(retry_policy(&first), RetryPolicy::RetrySoon);
        let second = writes.failed(&id("g"), content, refused(), now + first.after);
        assert_eq!(retry_policy(&second), RetryPolicy::Grant);
    }

    #[test]
    fn what_a_refusal_names_ends_the_wait_when_it_is_there() {
        let (writes, now) = (Writes::default(), Instant::now());
        let content = Content::of(b"a", &SECRET);
        let message = "/Subscriptions/s/resourceGroups/Net does not exist";
        writes.failed(&id("g"), content, refused(400, message), now);
        writes.succeeded(&id("other"), now);
        assert!(writes.held(&id("g"), content, now).is_some());
        writes.succeeded(&id("net"), now);
        assert_eq!(writes.held(&id("g"), content, now), None);
    }
}
