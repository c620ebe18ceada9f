//! The only words for how work ended: what one action came to ([`Outcome`]), what kind of failure an error is
//! ([`Class`]), and when an object is reconciled again ([`Next`]).

use std::time::Duration;

/// What one action came to. Waiting is an outcome, never an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The world is as the action asks for.
    Done,
    /// Accepted and under way: requeue after this long, or earlier on a change.
    InProgress(Duration),
    /// Refused for now by a rate limit: not before this long.
    Throttled(Duration),
}

impl Outcome {
    pub fn is_done(self) -> bool {
        self == Self::Done
    }

    /// When the object must be reconciled again because of this outcome.
    pub fn next(self) -> Next {
        match self {
            Self::Done => Next::OnChange,
            Self::InProgress(after) | Self::Throttled(after) => Next::After(after),
        }
    }
}

/// The kind of a failure. It decides the requeue, the condition's reason and the metric's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Somebody else wrote first: read again, at once.
    Conflict,
    /// A rate limit said when to come back.
    Throttled(Duration),
    /// Expected to pass: retried with the object's exponential backoff.
    Transient,
    /// Only a change by the user can help: not retried before the object changes or the resync comes.
    Terminal,
    /// Permission is missing: retried slowly, because permissions are granted without an event.
    Denied,
}

impl Class {
    /// The value of the `class` label in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::Throttled(_) => "throttled",
            Self::Transient => "transient",
            Self::Terminal => "terminal",
            Self::Denied => "denied",
        }
    }
}

/// An error that knows its [`Class`].
pub trait Classified: std::error::Error + Send + Sync + 'static {
    fn class(&self) -> Class;
}

impl Classified for kube::Error {
    fn class(&self) -> Class {
        match self {
            Self::Api(status) => match status.code {
                409 => Class::Conflict,
                429 => Class::Throttled(Duration::from_secs(u64::from(
                    status
                        .details
                        .as_ref()
                        .map_or(1, |details| details.retry_after_seconds.max(1)),
                ))),
                401 | 403 => Class::Denied,
                400 | 422 => Class::Terminal,
                _ => Class::Transient,
            },
            _ => Class::Transient,
        }
    }
}

/// When an object is reconciled again, if nothing changes before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Only when something it depends on changes (and at the resync).
    OnChange,
    /// At the latest after this long.
    After(Duration),
}

impl Next {
    /// The earlier of the two.
    pub fn earlier(self, other: Self) -> Self {
        match (self, other) {
            (Self::OnChange, next) | (next, Self::OnChange) => next,
            (Self::After(left), Self::After(right)) => Self::After(left.min(right)),
        }
    }
}

/// What an error of the apiserver says to a person: its message, without the object it came in.
pub fn plain(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        kube::Error::Api(status) => format!("{} {}", status.code, status.reason),
        kube::Error::Service(source) => source.to_string(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earlier_wait_wins_and_any_wait_beats_none() {
        let short = Next::After(Duration::from_secs(1));
        let long = Next::After(Duration::from_secs(9));
        assert_eq!(long.earlier(short), short);
        assert_eq!(Next::OnChange.earlier(long), long);
        assert_eq!(long.earlier(Next::OnChange), long);
        assert_eq!(Next::OnChange.earlier(Next::OnChange), Next::OnChange);
    }

    #[test]
    fn api_errors_are_classified_by_status() {
        let error = |code: u16| {
            kube::Error::Api(Box::new(kube::core::Status {
                code,
                ..Default::default()
            }))
            .class()
        };
        assert_eq!(error(409), Class::Conflict);
        assert_eq!(error(429), Class::Throttled(Duration::from_secs(1)));
        assert_eq!(error(403), Class::Denied);
        assert_eq!(error(422), Class::Terminal);
        assert_eq!(error(500), Class::Transient);
    }
}
