//! Follows what was read by watches, and shows it again when something has changed.

use std::{
    collections::BTreeSet,
    io::{IsTerminal, Write, stdout},
    time::Duration,
};

use futures::{
    StreamExt,
    stream::{BoxStream, SelectAll},
};
use kube::runtime::{
    WatchStreamExt,
    watcher::{self, Event, watcher},
};
use serde_json::Value;
use slipway_insight::{Id, Objects};
use tokio::time::{Instant, timeout, timeout_at};

use super::{
    collect::{self, Source},
    connect::Connection,
};

/// What changes within this time is shown together.
const TOGETHER: Duration = Duration::from_millis(200);
/// Ages and estimates move on without a change.
const AT_LEAST: Duration = Duration::from_secs(10);

/// What a watch says, of plain objects. The number is its source's.
enum WatchChange {
    Listing(usize),
    Listed(usize, Value),
    Complete(usize),
    Is(usize, Value),
    Gone(Value),
    Failed(String),
}

/// The watches of everything that was read.
#[derive(Default)]
pub struct Watching {
    changes: SelectAll<BoxStream<'static, WatchChange>>,
    /// By source: what it has shown, and what it shows while it lists again.
    known: Vec<(BTreeSet<Id>, BTreeSet<Id>)>,
    /// Why nothing new comes, if so.
    pub problem: Option<String>,
}

impl Watching {
    /// Watches those of the sources that are not watched yet.
    pub fn begin(&mut self, connection: &Connection, sources: &[Source]) {
        for (number, source) in sources.iter().enumerate().skip(self.known.len()) {
            let mut config = watcher::Config::default();
            config.label_selector.clone_from(&source.labels);
            config.field_selector = source.name.as_ref().map(|name| format!("metadata.name={name}"));
            let api = collect::api(connection, &source.served, &source.namespace);
            let served = source.served.clone();
            let changes = watcher(api, config)
                .default_backoff()
                .map(move |event| match event {
                    Ok(Event::Init) => WatchChange::Listing(number),
                    Ok(Event::InitApply(object)) => {
                        WatchChange::Listed(number, collect::plain(&served, object))
                    }
                    Ok(Event::InitDone) => WatchChange::Complete(number),
                    Ok(Event::Apply(object)) => WatchChange::Is(number, collect::plain(&served, object)),
                    Ok(Event::Delete(object)) => WatchChange::Gone(collect::plain(&served, object)),
                    Err(error) => {
                        WatchChange::Failed(format!("{} cannot be watched: {error}", served.resource.plural))
                    }
                });
            self.changes.push(changes.boxed());
            self.known.push((BTreeSet::new(), BTreeSet::new()));
        }
    }

    /// Waits until something has changed, for a while at most.
    pub async fn changed(&mut self, objects: &mut Objects) {
        let Ok(first) = timeout(AT_LEAST, self.changes.next()).await else {
            return;
        };
        let Some(first) = first else {
            // There is nothing to watch: only time passes.
            tokio::time::sleep(AT_LEAST).await;
            return;
        };
        self.take(first, objects);
        let end = Instant::now() + TOGETHER;
        while let Ok(Some(change)) = timeout_at(end, self.changes.next()).await {
            self.take(change, objects);
        }
    }

    fn take(&mut self, change: WatchChange, objects: &mut Objects) {
        match change {
            WatchChange::Failed(why) => {
                self.problem = Some(why);
                return;
            }
            WatchChange::Listing(number) => self.known[number].1.clear(),
            WatchChange::Listed(number, object) => {
                self.known[number].1.insert(Id::of(&object));
                objects.insert(object);
            }
            WatchChange::Complete(number) => {
                let (known, listed) = &mut self.known[number];
                for gone in known.difference(listed) {
                    objects.remove(gone);
                }
                *known = std::mem::take(listed);
            }
            WatchChange::Is(number, object) => {
                self.known[number].0.insert(Id::of(&object));
                objects.insert(object);
            }
            WatchChange::Gone(object) => objects.remove(&Id::of(&object)),
        }
        self.problem = None;
    }
}

/// On a terminal each view takes the place of the last; in a file they follow each other.
#[derive(Default)]
pub struct Screen {
    last: String,
}

impl Screen {
    pub fn show(&mut self, text: &str, problem: Option<&str>) -> Result<(), String> {
        let text = match problem {
            Some(problem) => format!("{text}\n{}\n", super::terminal::plain(problem)),
            None => text.to_owned(),
        };
        if text == self.last {
            return Ok(());
        }
        let mut out = stdout().lock();
        let written = if out.is_terminal() {
            write!(out, "\x1b[H\x1b[2J\x1b[3J{text}")
        } else if self.last.is_empty() {
            write!(out, "{text}")
        } else {
            write!(out, "---\n{text}")
        };
        self.last = text;
        written
            .and_then(|()| out.flush())
            .map_err(|error| format!("the output ended: {error}"))
    }
}
