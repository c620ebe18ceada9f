//! Operations and the generation, on disk before they count. One file an operation; secrets are in none.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use jiff::Timestamp;
use prost::Message;
use serde::{Deserialize, Serialize};
use slipway_agent_api::client::has_ended;
use slipway_agent_api::order::Order;
use slipway_agent_api::proto::{
    self, CommandResult, Operation, OperationState, Progress, StartRequest, Upgrade, start_request::Verb,
};
use slipway_agent_api::{Class, Problem};
use slipway_slots::Digest;
use tokio::sync::watch;

use super::admission::{Admission, Known, Standing, State, admit, fence};
use super::maintenance::Maintenance;
use super::said::Said;
use super::shown::{Shown, forget_output};
use crate::cache::{ServiceFailpoint, ServiceFailpoints, replace_file};

/// How many ended operations are remembered.
const REMEMBERED: usize = 500;

/// What is on disk of an operation.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Record {
    /// The operation without its output, as the protocol has it.
    operation: String,
    digest: Digest,
    /// The kernel's run in which it was accepted,
    boot: String,
    /// and the slot that ran then.
    #[serde(default)]
    slot: String,
    /// Its success is that the machine starts again.
    #[serde(default)]
    reboots: bool,
    /// The order, where it goes on by itself after a restart: it holds no secret then.
    order: Option<String>,
}

struct Entry {
    record: Record,
    shown: watch::Sender<Shown>,
}

impl Entry {
    fn new(record: Record, operation: Operation) -> Self {
        let said = Said::default();
        Self {
            record,
            shown: watch::Sender::new(Shown { operation, said }),
        }
    }

    fn operation(&self) -> Operation {
        self.shown.borrow().operation.clone()
    }
}

/// All operations of the host.
pub struct Operations {
    folder: PathBuf,
    host: String,
    state: PathBuf,
    boot: String,
    steps: Arc<dyn ServiceFailpoints>,
    inner: parking_lot::Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    generation: u64,
    entries: BTreeMap<String, Entry>,
    exclusive: Option<String>,
}

/// What the last agent left.
#[derive(Debug)]
pub struct Unfinished {
    pub id: String,
    pub verb: String,
    /// The machine was started again since it was accepted.
    pub rebooted: bool,
    /// That is what was ordered.
    pub reboots: bool,
    /// The slot that ran when it was accepted.
    pub slot: String,
    /// What to do again.
    pub order: Option<StartRequest>,
}

fn problem(doing: &str, error: &io::Error) -> Problem {
    Problem::new(Class::Transient, "Disk", format!("{doing}: {error}"))
}

fn now() -> i64 {
    Timestamp::now().as_millisecond()
}

/// The order as it is kept for a restart. One with credentials is not: they are on no disk, and it is sent again with them.
fn kept_order(order: &Order, request: &StartRequest) -> Option<String> {
    let kept = order.nature().resumes && !order.has_credentials();
    kept.then(|| BASE64_STANDARD.encode(request.encode_to_vec()))
}

/// How an operation ended.
#[derive(Clone, Debug)]
pub struct End {
    pub state: OperationState,
    pub message: String,
    pub digest: Option<Digest>,
    pub command: Option<CommandResult>,
    pub problem: Option<Problem>,
    pub upgrade: Option<Upgrade>,
}

impl End {
    pub fn succeeded(message: impl Into<String>) -> Self {
        Self {
            state: OperationState::Succeeded,
            message: message.into(),
            digest: None,
            command: None,
            problem: None,
            upgrade: None,
        }
    }

    pub fn failed(state: OperationState, problem: Problem) -> Self {
        Self {
            state,
            message: problem.message.clone(),
            digest: None,
            command: None,
            problem: Some(problem),
            upgrade: None,
        }
    }

    pub fn cancelled() -> Self {
        Self {
            state: OperationState::Cancelled,
            ..Self::succeeded("cancelled")
        }
    }
}

impl Operations {
    /// Reads what the last agent left; the second value is what it did not finish.
    pub fn open(
        state: &Path,
        host: &str,
        boot: &str,
        steps: Arc<dyn ServiceFailpoints>,
    ) -> io::Result<(Self, Vec<Unfinished>)> {
        let folder = state.join("operations");
        fs::create_dir_all(&folder)?;
        let generation = match fs::read(state.join("generation")) {
            Ok(bytes) => {
                let text = str::from_utf8(&bytes).ok().map(str::trim);
                text.and_then(|text| text.parse().ok()).ok_or_else(|| {
                    io::Error::new(
                        io::ErrorKind::InvalidData,
                        "the generation on disk cannot be read: remove the file `generation` once no other manager gives orders",
                    )
                })?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
        let mut entries = BTreeMap::new();
        let mut unfinished = Vec::new();
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let read = fs::read(&path)
                .ok()
                .and_then(|bytes| serde_json::from_slice::<Record>(&bytes).ok())
                .and_then(|record| {
                    let bytes = BASE64_STANDARD.decode(&record.operation).ok()?;
                    Some((Operation::decode(bytes.as_slice()).ok()?, record))
                });
            let Some((mut operation, record)) = read else {
                // Half a write that was cut off: the order was never accepted.
                fs::remove_file(&path)?;
                continue;
            };
            if !has_ended(&operation) {
                // Above every number that was shown and not written.
                operation.sequence = ((operation.sequence >> 32) + 1) << 32;
                let order = record.order.as_ref().and_then(|order| {
                    let bytes = BASE64_STANDARD.decode(order).ok()?;
                    StartRequest::decode(bytes.as_slice()).ok()
                });
                unfinished.push(Unfinished {
                    id: operation.id.clone(),
                    verb: operation.verb.clone(),
                    rebooted: record.boot != boot,
                    reboots: record.reboots,
                    slot: record.slot.clone(),
                    order,
                });
            }
            entries.insert(operation.id.clone(), Entry::new(record, operation));
        }
        let operations = Self {
            folder,
            host: host.to_owned(),
            state: state.to_owned(),
            boot: boot.to_owned(),
            steps,
            inner: parking_lot::Mutex::new(Inner {
                generation,
                entries,
                exclusive: None,
            }),
        };
        Ok((operations, unfinished))
    }

    pub fn generation(&self) -> u64 {
        self.inner.lock().generation
    }

    fn raise(&self, inner: &mut Inner, generation: u64) -> Result<(), Problem> {
        if generation > inner.generation {
            replace_file(&self.state.join("generation"), generation.to_string().as_bytes())
                .map_err(|error| problem("writing the generation", &error))?;
            inner.generation = generation;
            self.steps.reached(ServiceFailpoint::FenceWritten);
        }
        Ok(())
    }

    fn write(&self, record: &Record, id: &str) -> io::Result<()> {
        replace_file(
            &self.folder.join(format!("{id}.json")),
            &serde_json::to_vec(record)?,
        )
    }

    /// Accepts an order: durable when it returns. The second value says that somebody must carry it out.
    pub fn accept(&self, request: &StartRequest, slot: &str) -> Result<(Operation, Option<Order>), Problem> {
        let order = Order::check(request.clone())?;
        let maintenance = Maintenance::read(&self.state);
        let mut inner = self.inner.lock();
        let known = inner.entries.get(&order.id).map(|entry| {
            let shown = entry.shown.borrow();
            Known {
                digest: entry.record.digest,
                state: match shown.operation.state() {
                    OperationState::Interrupted => State::Interrupted,
                    _ if has_ended(&shown.operation) => State::Ended,
                    _ => State::Live,
                },
            }
        });
        let standing = Standing {
            host: &self.host,
            generation: inner.generation,
            known,
            exclusive: inner.exclusive.as_deref(),
            maintenance: maintenance.as_ref(),
        };
        let admission = admit(&order, &standing)?;
        self.raise(&mut inner, order.generation)?;
        if admission == Admission::Join {
            return Ok((inner.entries[&order.id].operation(), None));
        }
        let nature = order.nature();
        let sequence = inner
            .entries
            .get(&order.id)
            .map_or(0, |entry| entry.shown.borrow().operation.sequence);
        let operation = Operation {
            id: order.id.clone(),
            verb: nature.name.to_owned(),
            generation: order.generation,
            state: OperationState::Accepted.into(),
            sequence: sequence + 1,
            accepted_at: now(),
            message: "accepted".to_owned(),
            ..Operation::default()
        };
        let record = Record {
            operation: BASE64_STANDARD.encode(operation.encode_to_vec()),
            digest: order.digest,
            boot: self.boot.clone(),
            slot: slot.to_owned(),
            reboots: match &order.verb {
                Verb::Reboot(_) => true,
                Verb::RunCommand(run) => run.may_reboot,
                _ => false,
            },
            order: kept_order(&order, request),
        };
        self.write(&record, &order.id)
            .map_err(|error| problem("writing the operation", &error))?;
        self.steps.reached(ServiceFailpoint::OperationAccepted);
        if nature.exclusive {
            inner.exclusive = Some(order.id.clone());
        }
        match inner.entries.get_mut(&order.id) {
            Some(entry) => {
                entry.record = record;
                // What an earlier run said is not this one's.
                entry.shown.send_replace(Shown {
                    operation: operation.clone(),
                    said: Said::default(),
                });
            }
            None => {
                let entry = Entry::new(record, operation.clone());
                inner.entries.insert(order.id.clone(), entry);
            }
        }
        self.forget_old(&mut inner);
        Ok((operation, Some(order)))
    }

    /// Takes up an operation that the last agent left; it was accepted then.
    pub fn resume(&self, request: &StartRequest) -> Result<Order, Problem> {
        let order = Order::check(request.clone())?;
        if order.nature().exclusive {
            self.inner.lock().exclusive = Some(order.id.clone());
        }
        Ok(order)
    }

    fn forget_old(&self, inner: &mut Inner) {
        let mut ended: Vec<_> = inner
            .entries
            .iter()
            .filter(|(_, entry)| has_ended(&entry.shown.borrow().operation))
            .map(|(id, entry)| (entry.shown.borrow().operation.ended_at, id.clone()))
            .collect();
        if ended.len() <= REMEMBERED {
            return;
        }
        ended.sort_unstable();
        for (_, id) in &ended[..ended.len() - REMEMBERED] {
            inner.entries.remove(id);
            // What stays on disk by an error is found and forgotten later.
            let _ = fs::remove_file(self.folder.join(format!("{id}.json")));
        }
    }

    pub fn get(&self, id: &str) -> Option<Operation> {
        let inner = self.inner.lock();
        inner.entries.get(id).map(Entry::operation)
    }

    pub fn list(&self) -> Vec<Operation> {
        let inner = self.inner.lock();
        inner.entries.values().map(Entry::operation).collect()
    }

    pub fn watch(&self, id: &str) -> Option<watch::Receiver<Shown>> {
        let inner = self.inner.lock();
        inner.entries.get(id).map(|entry| entry.shown.subscribe())
    }

    /// Whether orders of this generation count; for calls that are no operations.
    pub fn fence(&self, generation: u64) -> Result<(), Problem> {
        let mut inner = self.inner.lock();
        fence(generation, inner.generation)?;
        self.raise(&mut inner, generation)
    }

    /// Shows how far it is; not on disk.
    pub fn report(&self, id: &str, message: &str, progress: Option<Progress>) {
        let inner = self.inner.lock();
        if let Some(entry) = inner.entries.get(id) {
            entry.shown.send_if_modified(|Shown { operation, .. }| {
                let changed = operation.state() != OperationState::Running
                    || operation.message != message
                    || operation.progress != progress;
                if changed {
                    operation.set_state(OperationState::Running);
                    message.clone_into(&mut operation.message);
                    operation.progress = progress;
                    operation.sequence += 1;
                }
                changed
            });
        }
    }

    /// Shows what a program of it said; not on disk.
    pub fn said(&self, id: &str, bytes: &[u8]) {
        let inner = self.inner.lock();
        if let Some(entry) = inner.entries.get(id) {
            entry.shown.send_modify(|shown| {
                shown.said.append(bytes);
                shown.operation.sequence += 1;
            });
        }
    }

    /// The end of an operation: on disk first, then shown. What cannot be written has not ended; the caller tries again.
    pub fn end(&self, id: &str, end: &End) -> io::Result<()> {
        let mut inner = self.inner.lock();
        let Some(entry) = inner.entries.get_mut(id) else {
            return Ok(());
        };
        let mut operation = entry.operation();
        // It was cancelled in its last moment, or the other way round: what was told first holds.
        if has_ended(&operation) {
            return Ok(());
        }
        operation.set_state(end.state);
        operation.message.clone_from(&end.message);
        operation.digest = end.digest.map(|digest| digest.to_string()).unwrap_or_default();
        operation.problem = end.problem.as_ref().map(Problem::to_proto);
        operation.upgrade.clone_from(&end.upgrade);
        operation.ended_at = now();
        operation.sequence += 1;
        let record = Record {
            operation: BASE64_STANDARD.encode(operation.encode_to_vec()),
            order: None,
            ..entry.record.clone()
        };
        self.write(&record, id)?;
        self.steps.reached(ServiceFailpoint::OperationEnded);
        entry.record = record;
        // Output is in no file: it may hold a secret.
        operation.command.clone_from(&end.command);
        entry.shown.send_modify(|shown| shown.operation = operation);
        if inner.exclusive.as_deref() == Some(id) {
            inner.exclusive = None;
        }
        forget_output(inner.entries.values().map(|entry| &entry.shown));
        Ok(())
    }
}

impl From<crate::cache::Progress> for proto::Progress {
    fn from(progress: crate::cache::Progress) -> Self {
        Self {
            bytes_done: progress.done,
            bytes_total: progress.total,
            bytes_upstream: progress.upstream,
            bytes_peers: progress.peers,
            ..Self::default()
        }
    }
}
