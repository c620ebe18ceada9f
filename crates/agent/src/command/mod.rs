//! Commands on this host: what is run, its limits, and how it ended. `ssh` runs the same on a node.
//!
//! A command gets a process group of its own, and the whole group ends with it or with its time. Its output is handed on
//! as it comes, up to a limit.

mod local;
mod reboot;

use std::{fmt, time::Duration};

use tokio::sync::mpsc;

pub use local::run;
pub use reboot::{BootId, Interrupted, Running};

/// What to run and within which limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// The program and its arguments; no shell is between.
    pub argv: Vec<String>,
    pub environment: Vec<(String, String)>,
    /// After this the whole process group is ended.
    pub time_limit: Duration,
    /// Bytes of output, of both streams together, that are handed on; the rest is read and dropped.
    pub output_limit: usize,
    /// The command is meant to end in a reboot: losing the machine under it is no failure.
    pub may_reboot: bool,
}

impl Command {
    pub fn new(argv: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            environment: Vec::new(),
            time_limit: Duration::from_mins(1),
            output_limit: 1 << 20,
            may_reboot: false,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// What is told while a command runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Output(Stream, Vec<u8>),
    /// The limit is reached; nothing more of the output follows.
    Truncated,
}

pub type Events = mpsc::Sender<Event>;

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Exited {
        code: i32,
    },
    /// By a signal that we did not send; its name without `SIG`, or its number.
    Signaled {
        signal: String,
    },
    /// We ended it.
    TimedOut {
        after: Duration,
    },
    /// The machine restarts, and the command was meant to make it do so.
    Rebooting,
    /// Nobody knows how it ended.
    Lost {
        reason: String,
    },
    /// It never ran.
    NotStarted {
        reason: String,
    },
}

impl Outcome {
    pub fn is_success(&self) -> bool {
        matches!(self, Self::Exited { code: 0 } | Self::Rebooting)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited { code } => write!(f, "exited with {code}"),
            Self::Signaled { signal } => write!(f, "was ended by signal {signal}"),
            Self::TimedOut { after } => {
                write!(
                    f,
                    "did not end within {} s and was ended with all its processes",
                    after.as_secs_f32()
                )
            }
            Self::Rebooting => write!(f, "restarts the machine"),
            Self::Lost { reason } => write!(f, "was lost sight of: {reason}"),
            Self::NotStarted { reason } => write!(f, "could not be started: {reason}"),
        }
    }
}

/// Hands on output up to the limit, and says once that it is reached.
pub(crate) struct Limited {
    events: Events,
    left: usize,
    told: bool,
}

impl Limited {
    pub(crate) fn new(events: Events, limit: usize) -> Self {
        Self {
            events,
            left: limit,
            told: false,
        }
    }

    /// Waits for a slow receiver; one that is gone is no reason to stop the command.
    pub(crate) async fn hand_on(&mut self, stream: Stream, bytes: &[u8]) {
        let length = bytes.len().min(self.left);
        self.left -= length;
        if length > 0 {
            let _ = self
                .events
                .send(Event::Output(stream, bytes[..length].to_vec()))
                .await;
        }
        if length < bytes.len() && !self.told {
            self.told = true;
            let _ = self.events.send(Event::Truncated).await;
        }
    }
}
