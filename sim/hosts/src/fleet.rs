//! A manager's half and its hosts: a CA, tokens in memory, a port that hosts enrol and connect at.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use slipway_agent::cache::Waits;
use slipway_agent_api::ca::{Ca, CaPem};
use slipway_agent_api::client::{Direct, HostClient};
use slipway_agent_api::enrol::EnrolmentService;
use slipway_agent_api::proto::enrolment_server::EnrolmentServer;
use slipway_agent_api::serve::Router;
use slipway_agent_api::tls::{Callers, CurrentTls};
use slipway_agent_api::token::{JoinToken, TokenRecord, TokenStore};
use slipway_agent_api::tunnel::{Switchboard, serve_manager};
use slipway_agent_api::{Identity, Problem};
use slipway_slots::Digest;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

use crate::host::{Options, Reach, SimulatedHost};

pub const FLEET: &str = "simulated";

/// Tokens in memory: one replica of a manager that is never restarted.
#[derive(Clone, Default)]
pub struct Tokens(Arc<Mutex<BTreeMap<String, TokenRecord>>>);

impl Tokens {
    pub fn add(&self, record: TokenRecord) {
        self.0.lock().insert(record.id.clone(), record);
    }
}

#[async_trait]
impl TokenStore for Tokens {
    async fn get(&self, id: &str) -> Result<Option<TokenRecord>, Problem> {
        Ok(self.0.lock().get(id).cloned())
    }

    async fn claim(&self, record: &TokenRecord, key: Digest) -> Result<bool, Problem> {
        let mut records = self.0.lock();
        match records.get_mut(&record.id) {
            Some(kept) if kept.used_by.is_none() => {
                kept.used_by = Some(key);
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}

/// So many hosts join at once.
const AT_ONCE: usize = 16;

/// A manager and its hosts. Everything ends with it.
pub struct Fleet {
    pub ca: Arc<ArcSwap<Ca>>,
    pem: CaPem,
    pub tokens: Tokens,
    pub manager: String,
    pub board: Switchboard,
    operator: Arc<CurrentTls>,
    hosts: Mutex<BTreeMap<String, Arc<SimulatedHost>>>,
    server: JoinHandle<()>,
    folder: TempDir,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Fleet {
    /// Hosts' certificates live this long.
    pub async fn start(lifetime: Duration) -> io::Result<Self> {
        let now = Timestamp::now();
        let pem = Ca::generate(FLEET, now).map_err(io::Error::other)?;
        let open = |lifetime| Ca::open(FLEET, &pem, &[], lifetime).map_err(io::Error::other);
        let own = open(Duration::from_hours(24))?
            .issue(&Identity::Operator { fleet: FLEET.into() }, now)
            .map_err(io::Error::other)?;
        let ca = Arc::new(ArcSwap::from_pointee(open(lifetime)?));
        let operator = CurrentTls::new(&own, Callers::Anybody).map_err(io::Error::other)?;
        let tokens = Tokens::default();
        let enrolment = EnrolmentService {
            ca: ca.clone(),
            tokens: tokens.clone(),
            now: Timestamp::now,
        };
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let manager = listener.local_addr()?.to_string();
        let board = Switchboard::default();
        let server = tokio::spawn(serve_manager(
            listener,
            operator.clone(),
            FLEET.to_owned(),
            Router::new(FLEET).with(EnrolmentServer::new(enrolment)),
            board.clone(),
        ));
        Ok(Self {
            ca,
            pem,
            tokens,
            manager,
            board,
            operator,
            hosts: Mutex::default(),
            server,
            folder: tempfile::tempdir()?,
        })
    }

    /// Certificates from now on live this long.
    pub fn set_lifetime(&self, lifetime: Duration) -> io::Result<()> {
        let ca = Ca::open(FLEET, &self.pem, &[], lifetime).map_err(io::Error::other)?;
        self.ca.store(Arc::new(ca));
        Ok(())
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn token(&self, host: &str) -> JoinToken {
        let (token, record) = JoinToken::issue(
            host,
            self.ca.load().digest(),
            Timestamp::now(),
            SignedDuration::from_hours(1),
        );
        self.tokens.add(record);
        token
    }

    /// Certificates for somebody else than the operator.
    pub fn tls(&self, identity: &Identity) -> io::Result<Arc<CurrentTls>> {
        let material = self
            .ca
            .load()
            .issue(identity, Timestamp::now())
            .map_err(io::Error::other)?;
        CurrentTls::new(&material, Callers::WithCertificate).map_err(io::Error::other)
    }

    /// Makes a host, lets it join, and starts it.
    pub async fn add(&self, name: &str, options: Options) -> io::Result<Arc<SimulatedHost>> {
        let host = SimulatedHost::install(self.folder.path(), name, FLEET, &self.manager, options)?;
        host.join(&self.token(name)).await.map_err(io::Error::other)?;
        host.start().await?;
        self.hosts.lock().insert(name.to_owned(), host.clone());
        Ok(host)
    }

    /// Makes many: `box-0`, `box-1`, … Not all at once, because on a busy machine the last would wait longer than a connection may take.
    pub async fn add_many(
        self: &Arc<Self>,
        count: usize,
        options: &Options,
    ) -> io::Result<Vec<Arc<SimulatedHost>>> {
        let mut adding = JoinSet::new();
        let mut hosts = Vec::new();
        for number in 0..count {
            if adding.len() == AT_ONCE
                && let Some(added) = adding.join_next().await
            {
                hosts.push(added.map_err(io::Error::other)??);
            }
            let (fleet, options) = (self.clone(), options.clone());
            adding.spawn(async move { fleet.add(&format!("box-{number}"), options).await });
        }
        while let Some(added) = adding.join_next().await {
            hosts.push(added.map_err(io::Error::other)??);
        }
        Ok(hosts)
    }

    /// The operator's way to a host.
    pub fn client(&self, host: &SimulatedHost) -> HostClient {
        self.client_as(host, self.operator.clone())
    }

    pub fn client_as(&self, host: &SimulatedHost, tls: Arc<CurrentTls>) -> HostClient {
        match host.address() {
            Some(address) => HostClient::new(&host.name, Arc::new(Direct { address, tls })),
            None => HostClient::new(&host.name, Arc::new(self.board.clone())),
        }
    }

    /// Waits until a host behind NAT is connected.
    pub async fn connected(&self, host: &SimulatedHost) {
        if host.address().is_none() {
            self.has_connected(&host.name).await;
        }
    }

    /// Waits until the manager has a connection of this host.
    pub async fn has_connected(&self, name: &str) {
        let mut changes = self.board.changes();
        while self.board.channel(name).is_err() {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }
}

impl Options {
    /// A host on loopback with room for small images.
    pub fn new(installed: Arc<crate::NodeImage>) -> Self {
        Self {
            reach: Reach::Direct,
            quota: 64 << 20,
            installed,
            registries: slipway_agent::cache::RegistrySettings::default(),
            serving: slipway_agent::service::Serving::default(),
            waits: Waits {
                backoff: (Duration::from_millis(20), Duration::from_secs(1)),
                ..Waits::default()
            },
            system: None,
            away: Duration::ZERO,
            steps: Arc::new(slipway_agent::engine::Unhindered),
            failpoints: Arc::new(slipway_agent::engine::Unhindered),
        }
    }
}
