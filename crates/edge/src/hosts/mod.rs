//! How hosts are spoken to: the port that controllers order through. What is behind it is the native agent ([`native`]), a virtual machine
//! of MOC ([`moc`]), or a simulated host in tests. Every call may be made twice: orders carry an id, and the same id is the same operation.

pub mod moc;
pub mod native;

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use jiff::Timestamp;
use slipway_agent_api::{
    Problem,
    proto::{self, Operation, StartRequest},
};
use slipway_runtime::workload::Connector;

use self::moc::MocPlace;
use crate::host::api::EdgeHost;

/// A host, and where it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostAddress {
    pub name: String,
    /// `host:port`; `None`: it connects to the manager.
    pub address: Option<String>,
    /// It is a virtual machine of MOC.
    pub moc: Option<MocPlace>,
}

impl HostAddress {
    pub fn of(host: &EdgeHost) -> Self {
        Self {
            name: host.metadata.name.clone().unwrap_or_default(),
            address: host.spec.address.clone(),
            moc: host.spec.moc().map(|moc| moc.place(host)),
        }
    }
}

/// Every host, each through the port of its platform.
pub struct EveryHost {
    pub native: Arc<dyn Hosts>,
    pub moc: Arc<dyn Hosts>,
}

impl EveryHost {
    fn of(&self, host: &HostAddress) -> &dyn Hosts {
        if host.moc.is_some() {
            self.moc.as_ref()
        } else {
            self.native.as_ref()
        }
    }
}

#[async_trait]
impl Hosts for EveryHost {
    async fn inventory(&self, host: &HostAddress) -> Result<proto::Host, Problem> {
        self.of(host).inventory(host).await
    }

    async fn operation(&self, host: &HostAddress, id: &str) -> Result<Option<Operation>, Problem> {
        self.of(host).operation(host, id).await
    }

    async fn operations(&self, host: &HostAddress) -> Result<Vec<Operation>, Problem> {
        self.of(host).operations(host).await
    }

    async fn images(&self, host: &HostAddress) -> Result<Vec<proto::Image>, Problem> {
        self.of(host).images(host).await
    }

    async fn start(&self, host: &HostAddress, order: StartRequest) -> Result<Operation, Problem> {
        self.of(host).start(host, order).await
    }

    async fn cancel(&self, host: &HostAddress, id: &str, generation: u64) -> Result<Operation, Problem> {
        self.of(host).cancel(host, id, generation).await
    }

    fn forget(&self, name: &str) {
        self.native.forget(name);
        self.moc.forget(name);
    }
}

/// The hosts of a fleet.
#[async_trait]
pub trait Hosts: Send + Sync + 'static {
    async fn inventory(&self, host: &HostAddress) -> Result<proto::Host, Problem>;

    /// `None`: the host has never accepted it, or has forgotten it.
    async fn operation(&self, host: &HostAddress, id: &str) -> Result<Option<Operation>, Problem>;

    async fn operations(&self, host: &HostAddress) -> Result<Vec<Operation>, Problem>;

    /// What is in its cache, and who needs it.
    async fn images(&self, host: &HostAddress) -> Result<Vec<proto::Image>, Problem>;

    /// Begins an operation, or joins the one of the same id.
    async fn start(&self, host: &HostAddress, order: StartRequest) -> Result<Operation, Problem>;

    /// Cuts an operation off. One that has ended stays as it is.
    async fn cancel(&self, host: &HostAddress, id: &str, generation: u64) -> Result<Operation, Problem>;

    /// The host is not asked any more: what is kept for it, such as a connection, ends.
    fn forget(&self, name: &str);
}

/// The hosts, and the number under which this process orders.
#[derive(Clone)]
pub struct Platform {
    pub hosts: Arc<dyn Hosts>,
    /// How workload clusters are connected to, where that is not as their kubeconfigs say.
    pub connector: Option<Connector>,
    generation: Arc<OnceLock<u64>>,
}

impl Platform {
    pub fn new(hosts: Arc<dyn Hosts>) -> Self {
        Self {
            hosts,
            connector: None,
            generation: Arc::default(),
        }
    }

    /// Connects to workload clusters by an injected connector.
    pub fn connecting_by(mut self, connector: Connector) -> Self {
        self.connector = Some(connector);
        self
    }

    /// A host follows the highest number it has seen, so it must grow with each leader. It is the time of the first order in
    /// milliseconds: a process orders only while it leads and ends when it no longer does. A count of leases would begin again after
    /// `clusterctl move`, and no host would follow the new manager.
    pub fn generation(&self, now: Timestamp) -> u64 {
        *self
            .generation
            .get_or_init(|| u64::try_from(now.as_millisecond()).unwrap_or(1).max(1))
    }
}
