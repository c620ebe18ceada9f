//! The agent as a service: orders come in, operations go on, people and managers look. What it works on is injected, so that a
//! simulated host is the same service over other parts.

mod addresses;
pub mod admission;
mod api;
mod blobs;
pub mod bootstrap;
mod chunks;
mod image_names;
mod images;
pub mod local;
pub mod machine;
pub mod maintenance;
pub mod operations;
mod prepare;
mod programs;
mod said;
mod shown;
mod slots;
mod speed;
mod verbs;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use slipway_agent_api::proto::{
    Operation, OperationState, StartRequest, agent_server::AgentServer, blobs_server::BlobsServer,
};
use slipway_agent_api::serve::Router;
use slipway_agent_api::tls::CurrentTls;
use slipway_agent_api::{Class, Problem, order::Order};
use tokio::task::AbortHandle;

use crate::cache::{Cache, RegistrySettings, ServiceFailpoints, remove_leftovers};
use crate::deliver::Deliveries;

pub use blobs::Serving;
pub use slots::Slots;

use addresses::Addresses;
use image_names::ImageNames;
use machine::Machine;
use operations::{End, Operations, Unfinished};

/// Between two tries to write the end of an operation.
const WRITE_AGAIN: Duration = Duration::from_secs(1);

/// What `wipe` does on this host.
#[derive(Clone, Debug, Default)]
pub struct WipePlan {
    pub commands: Vec<Vec<String>>,
    pub paths: Vec<PathBuf>,
}

/// What a host is made of.
pub struct Parts {
    pub name: String,
    pub fleet: String,
    pub state: PathBuf,
    /// `/`, but for tests and simulated hosts.
    pub root: PathBuf,
    /// Where bundles are.
    pub exchange: PathBuf,
    pub cache: Arc<Cache>,
    pub registries: RegistrySettings,
    pub slots: Option<Slots>,
    pub machine: Arc<dyn Machine>,
    pub deliveries: Deliveries,
    /// For fetching from hosts beside this one.
    pub tls: Option<Arc<CurrentTls>>,
    pub reboot_command: Vec<String>,
    pub tries: u8,
    pub wipe: WipePlan,
    /// What hosts beside this one get.
    pub serving: Serving,
    pub steps: Arc<dyn ServiceFailpoints>,
}

/// A host that takes orders.
pub struct Host {
    name: String,
    fleet: String,
    state: PathBuf,
    root: PathBuf,
    exchange: PathBuf,
    cache: Arc<Cache>,
    registries: RegistrySettings,
    slots: Option<Slots>,
    machine: Arc<dyn Machine>,
    deliveries: Deliveries,
    tls: Option<Arc<CurrentTls>>,
    reboot_command: Vec<String>,
    tries: u8,
    wipe: WipePlan,
    serving: Serving,
    operations: Operations,
    addresses: Arc<Addresses>,
    /// Tasks that keep addresses in turn with other hosts.
    keepers: Mutex<BTreeMap<String, AbortHandle>>,
    image_names: ImageNames,
    running: Mutex<BTreeMap<String, AbortHandle>>,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Host({})", self.name)
    }
}

impl Host {
    /// Reads what the last agent left, and goes on with it. Must be called in a runtime.
    pub fn open(parts: Parts) -> std::io::Result<Arc<Self>> {
        let boot = parts.machine.boot_id();
        std::fs::create_dir_all(&parts.state)?;
        // What an export left that the end of the last agent cut off.
        let folders = [Some(&parts.exchange), Some(&parts.state)];
        let delivered = parts.deliveries.k3s.as_ref().map(|k3s| &k3s.0);
        for folder in folders.into_iter().chain([delivered]).flatten() {
            remove_leftovers(folder)?;
        }
        let addresses = Arc::new(Addresses::open(&parts.state, &boot)?);
        let image_names = ImageNames::open(&parts.state)?;
        let (operations, unfinished) = Operations::open(&parts.state, &parts.name, &boot, parts.steps)?;
        let host = Arc::new(Self {
            name: parts.name,
            fleet: parts.fleet,
            state: parts.state,
            root: parts.root,
            exchange: parts.exchange,
            cache: parts.cache,
            registries: parts.registries,
            slots: parts.slots,
            machine: parts.machine,
            deliveries: parts.deliveries,
            tls: parts.tls,
            reboot_command: parts.reboot_command,
            tries: parts.tries,
            wipe: parts.wipe,
            serving: parts.serving,
            operations,
            addresses,
            keepers: Mutex::default(),
            image_names,
            running: Mutex::default(),
        });
        for left in unfinished {
            host.settle(left);
        }
        for share in host.addresses.shares() {
            host.keep(share);
        }
        Ok(host)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// What this host serves.
    pub fn router(self: &Arc<Self>) -> Router {
        Router::new(&self.fleet)
            .with(AgentServer::new(api::Api(self.clone())))
            .with(BlobsServer::new(blobs::BlobService::new(self.clone())))
    }

    /// Cuts off everything that runs, as the end of the process would: the next agent settles it.
    pub fn stop(&self) {
        for (_, task) in std::mem::take(&mut *self.keepers.lock()) {
            task.abort();
        }
        for (_, task) in std::mem::take(&mut *self.running.lock()) {
            task.abort();
        }
    }

    /// Takes away images whose time is over and what is too much, and pins in containerd and files for k3s that nobody needs
    /// any more; called now and then.
    pub async fn sweep(&self) {
        if let Err(error) = self.cache.sweep() {
            tracing::warn!("sweeping the cache: {error}");
        }
        if let Err(problem) = self.deliveries.tidy(&self.cache, self.machine.as_ref()).await {
            tracing::warn!("tidying up: {problem}");
        }
    }

    fn booted_slot(&self) -> String {
        let status = self.slots.as_ref().and_then(Slots::status);
        status
            .and_then(|status| status.booted)
            .map(|slot| slot.to_string())
            .unwrap_or_default()
    }

    /// An operation that the end of the last agent cut off.
    fn settle(self: &Arc<Self>, left: Unfinished) {
        let booted = self.booted_slot();
        let end = if left.rebooted && left.reboots {
            Some(End::succeeded("the host was started again"))
        } else if left.rebooted && left.verb == "rollback" && booted != left.slot {
            // Once more would leave the slot that was asked for.
            Some(End::succeeded(format!("the host runs slot {booted}")))
        } else {
            None
        };
        let end = match (end, left.order.map(|request| self.operations.resume(&request))) {
            (Some(end), _) => end,
            (None, Some(Ok(order))) => {
                tracing::info!(operation = left.id, verb = left.verb, "going on after a restart");
                self.spawn(order);
                return;
            }
            (None, _) => {
                let message = if left.rebooted {
                    "the machine was started again while it ran; nobody knows how far it came"
                } else {
                    "the agent ended while it ran; nobody knows how far it came"
                };
                let problem = Problem::new(Class::Transient, "Interrupted", message);
                End::failed(OperationState::Interrupted, problem)
            }
        };
        let host = self.clone();
        tokio::spawn(async move { host.finish(&left.id, &end).await });
    }

    /// Writes and shows how an operation ended, as soon as the disk takes it.
    async fn finish(&self, id: &str, end: &End) {
        while let Err(error) = self.operations.end(id, end) {
            tracing::error!(
                operation = id,
                "the end of the operation cannot be written: {error}"
            );
            let message = format!("it is over, and that cannot be written: {error}");
            self.operations.report(id, &message, None);
            tokio::time::sleep(WRITE_AGAIN).await;
        }
    }

    fn start(self: &Arc<Self>, request: &StartRequest) -> Result<Operation, Problem> {
        let (operation, order) = self.operations.accept(request, &self.booted_slot())?;
        if let Some(order) = order {
            tracing::info!(
                operation = order.id,
                verb = operation.verb,
                generation = order.generation,
                "accepted"
            );
            self.spawn(order);
        }
        Ok(operation)
    }

    fn spawn(self: &Arc<Self>, order: Order) {
        let host = self.clone();
        let id = order.id.clone();
        // The lock is held until the handle is kept: a fast operation must not end before that.
        let mut running = self.running.lock();
        let task = tokio::spawn(async move {
            let id = order.id.clone();
            host.operations.report(&id, "running", None);
            let end = match host.carry_out(&id, &order.verb).await {
                Ok(done) => End {
                    digest: done.digest,
                    command: done.command,
                    upgrade: done.upgrade.map(|upgrade| host.with_digests(upgrade)),
                    ..End::succeeded(done.message)
                },
                Err(not_done) => {
                    tracing::warn!(operation = id, "failed: {}", not_done.problem);
                    End {
                        command: not_done.command,
                        ..End::failed(OperationState::Failed, not_done.problem)
                    }
                }
            };
            host.finish(&id, &end).await;
            host.running.lock().remove(&id);
        });
        running.insert(id, task.abort_handle());
    }

    async fn cancel(&self, id: &str, generation: u64) -> Result<Operation, Problem> {
        self.operations.fence(generation)?;
        let unknown = || {
            Problem::new(
                Class::Terminal,
                "UnknownOperation",
                format!("operation {id} is not known here"),
            )
        };
        let operation = self.operations.get(id).ok_or_else(unknown)?;
        if slipway_agent_api::client::has_ended(&operation) {
            return Ok(operation);
        }
        if ["prepare", "arm", "confirm", "rollback", "give_up"].contains(&operation.verb.as_str()) {
            return Err(Problem::new(
                Class::Conflict,
                "NotCancelled",
                format!(
                    "{} cannot be cut off: order a rollback when it has ended",
                    operation.verb
                ),
            ));
        }
        let task = self.running.lock().remove(id);
        if let Some(task) = task {
            task.abort();
            self.finish(id, &End::cancelled()).await;
        }
        self.operations.get(id).ok_or_else(unknown)
    }
}
