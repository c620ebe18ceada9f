//! One simulated cluster: the membership model, an apiserver in memory that shows its nodes, and the hosts that boot
//! into it. What is written to nodes is taken back to the model, where k3s' own controllers act on it.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use slipway_apiserver_sim::Apiserver;
use slipway_runtime::Clock;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{
    carry::{take_back, to_show},
    certificates::{self, Cas},
    cloud_config::{self, Bootstrap, Config, Role},
    model::{Model, Timing},
    node::Registration,
    userdata::{Instance, Unreadable},
};

const TLS: &str = "/var/lib/rancher/k3s/server/tls";

/// What the platform knows of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    pub name: String,
    pub provider_id: String,
    pub failure_domain: Option<String>,
    /// The k3s the image brings along, for a host that downloads none.
    pub image_version: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub capacity: BTreeMap<String, String>,
}

/// Why k3s does not come up on a host; it stays down until it is booted again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BootError {
    #[error(transparent)]
    Userdata(#[from] Unreadable),
    #[error("no version of k3s is named, and the image brings none")]
    NoVersion,
    #[error("an external datastore is not simulated")]
    Datastore,
    #[error("the userdata starts a cluster of its own, and this one runs already")]
    SecondCluster,
    #[error("{0}")]
    Ca(&'static str),
    #[error("the userdata joins {0}, and this cluster answers at {1}")]
    WrongServer(String, String),
    #[error("the token is not this cluster's")]
    WrongToken,
    #[error("critical configuration value mismatch between servers: {0}")]
    Critical(&'static str),
    #[error("there is a node called {0} already")]
    DuplicateName(String),
}

/// What the first server decided for the cluster.
struct Identity {
    token: String,
    agent_token: String,
    ca: String,
    critical: BTreeMap<&'static str, String>,
    tls: Arc<rustls::ServerConfig>,
}

pub(crate) struct HostRecord {
    pub(crate) node: String,
    pub(crate) registration: Registration,
    /// Connections that end with the server.
    up: CancellationToken,
}

struct Waiting {
    machine: Machine,
    bootstrap: Bootstrap,
}

pub(crate) struct State {
    pub(crate) model: Model,
    pub(crate) apiserver: Apiserver,
    identity: Option<Identity>,
    pub(crate) hosts: BTreeMap<String, HostRecord>,
    /// Joins that k3s tries again: another server is still a learner, or nobody answers.
    waiting: Vec<Waiting>,
    failures: BTreeMap<String, BootError>,
    /// The revision of each node that the apiserver shows.
    pub(crate) shown: BTreeMap<String, u64>,
    /// The leases that the apiserver shows.
    pub(crate) leases: BTreeMap<String, Timestamp>,
    turn: usize,
    had_quorum: bool,
    quorum_losses: u64,
    left_behind: Vec<String>,
}

impl State {
    fn new(timing: Timing) -> Self {
        let mut model = Model::new(Timestamp::now());
        model.timing = timing;
        Self {
            model,
            apiserver: Apiserver::new(Clock::system()),
            identity: None,
            hosts: BTreeMap::new(),
            waiting: Vec::new(),
            failures: BTreeMap::new(),
            shown: BTreeMap::new(),
            leases: BTreeMap::new(),
            turn: 0,
            had_quorum: false,
            quorum_losses: 0,
            left_behind: Vec::new(),
        }
    }

    /// Lets the time pass that has passed.
    fn catch_up(&mut self) {
        let passed = Timestamp::now().duration_since(self.model.now);
        self.model.advance(Duration::try_from(passed).unwrap_or_default());
    }
}

/// One cluster. It ends with the simulator that made it.
pub struct Cluster {
    pub name: String,
    pub endpoint: SocketAddr,
    timing: Timing,
    state: Mutex<State>,
    /// One at a time carries changes between the model and the apiserver.
    carrier: tokio::sync::Mutex<()>,
    changed: Notify,
    requests: Mutex<BTreeMap<String, BTreeMap<String, u64>>>,
    pub(crate) stop: CancellationToken,
}

/// Where a connection goes: to one server that is up.
pub(crate) struct Backend {
    pub tls: Arc<rustls::ServerConfig>,
    pub up: CancellationToken,
}

impl Cluster {
    pub(crate) fn new(name: &str, endpoint: SocketAddr, timing: Timing) -> Self {
        Self {
            name: name.to_owned(),
            endpoint,
            timing,
            state: Mutex::new(State::new(timing)),
            carrier: tokio::sync::Mutex::default(),
            changed: Notify::new(),
            requests: Mutex::default(),
            stop: CancellationToken::new(),
        }
    }

    /// Boots a host with its userdata. One that runs already is left alone.
    pub fn boot(&self, machine: &Machine, userdata: &str) -> Result<(), BootError> {
        let instance = Instance {
            hostname: machine.name.clone(),
            instance_id: machine.name.clone(),
            zone: machine.failure_domain.clone(),
        };
        self.start(machine, || cloud_config::read(userdata, &instance))
    }

    /// k3s is installed on a host by a command that somebody ran there, with the files that lie there by then. One that runs already is
    /// left alone.
    pub fn install(
        &self,
        machine: &Machine,
        files: BTreeMap<String, Vec<u8>>,
        command: &str,
    ) -> Result<(), BootError> {
        self.start(machine, || Bootstrap::of(files, &[command.to_owned()]))
    }

    fn start(
        &self,
        machine: &Machine,
        bootstrap: impl FnOnce() -> Result<Bootstrap, Unreadable>,
    ) -> Result<(), BootError> {
        let mut state = self.state.lock();
        if state.hosts.contains_key(&machine.name)
            || state.waiting.iter().any(|one| one.machine.name == machine.name)
        {
            return Ok(());
        }
        let booted = bootstrap()
            .map_err(BootError::from)
            .and_then(|bootstrap| self.try_boot(&mut state, machine, bootstrap));
        match &booted {
            Ok(()) => {
                state.failures.remove(&machine.name);
            }
            Err(error) => {
                state.failures.insert(machine.name.clone(), error.clone());
            }
        }
        drop(state);
        self.changed.notify_one();
        booted
    }

    fn try_boot(
        &self,
        state: &mut State,
        machine: &Machine,
        mut bootstrap: Bootstrap,
    ) -> Result<(), BootError> {
        bootstrap.version = bootstrap.version.or_else(|| machine.image_version.clone());
        if bootstrap.version.is_none() {
            return Err(BootError::NoVersion);
        }
        let config = &bootstrap.config;
        if config.datastore {
            return Err(BootError::Datastore);
        }
        if bootstrap.role == Role::Server && config.cluster_init {
            if state.identity.is_some() {
                return Err(BootError::SecondCluster);
            }
            state.identity = Some(found(&bootstrap)?);
            state.catch_up();
            let version = bootstrap.version.clone().unwrap_or_default();
            let node = node_name(machine, config);
            state.model.initialize(&node, &version);
            register(state, machine, config, node);
            return Ok(());
        }
        self.check_join(state, &bootstrap)?;
        state.waiting.push(Waiting {
            machine: machine.clone(),
            bootstrap,
        });
        Ok(())
    }

    /// What a joining host is asked for; a cluster that does not answer yet is asked again later.
    fn check_join(&self, state: &State, bootstrap: &Bootstrap) -> Result<(), BootError> {
        let config = &bootstrap.config;
        let expected = format!("https://{}", self.endpoint);
        let server = config.server.clone().unwrap_or_default();
        if server.trim_end_matches('/') != expected {
            return Err(BootError::WrongServer(server, expected));
        }
        let Some(identity) = &state.identity else {
            return Ok(());
        };
        let secret = config.token.rsplit(':').next().unwrap_or_default();
        let is_known =
            secret == identity.token || (bootstrap.role == Role::Agent && secret == identity.agent_token);
        if !is_known {
            return Err(BootError::WrongToken);
        }
        if bootstrap.role == Role::Server {
            let keys = identity.critical.keys().chain(config.critical.keys());
            for key in keys {
                if identity.critical.get(key) != config.critical.get(key) {
                    return Err(BootError::Critical(key));
                }
            }
        }
        Ok(())
    }

    /// k3s on waiting hosts tries again.
    fn join_waiting(&self, state: &mut State) {
        if state.identity.is_none() {
            return;
        }
        let mut still = Vec::new();
        for one in std::mem::take(&mut state.waiting) {
            if let Err(error) = self.check_join(state, &one.bootstrap) {
                state.failures.insert(one.machine.name.clone(), error);
                continue;
            }
            let node = node_name(&one.machine, &one.bootstrap.config);
            if state.model.nodes.contains_key(&node) {
                let error = BootError::DuplicateName(node);
                state.failures.insert(one.machine.name.clone(), error);
                continue;
            }
            let version = one.bootstrap.version.clone().unwrap_or_default();
            let joined = match one.bootstrap.role {
                Role::Server => state.model.join(&node, &version),
                Role::Agent => state.model.join_worker(&node, &version),
            };
            if joined {
                let wait = one.bootstrap.rejoin_wait();
                state.model.delay_rejoin(&node, wait);
                register(state, &one.machine, &one.bootstrap.config, node);
            } else {
                still.push(one);
            }
        }
        state.waiting = still;
    }

    /// The host loses power: its connections end, nothing of it answers.
    pub fn kill(&self, machine: &str) -> bool {
        self.with_host(machine, |model, record| {
            model.kill(&record.node);
            record.up.cancel();
        })
    }

    /// The host comes back with its disk.
    pub fn revive(&self, machine: &str) -> bool {
        let stop = self.stop.clone();
        self.with_host(machine, move |model, record| {
            model.revive(&record.node);
            record.up = stop.child_token();
        })
    }

    /// The host's network fails: it runs, and neither reaches nor is reached.
    pub fn cut(&self, machine: &str) -> bool {
        self.with_host(machine, |model, record| {
            model.cut(&record.node);
            record.up.cancel();
        })
    }

    /// The host's network is back.
    pub fn mend(&self, machine: &str) -> bool {
        let stop = self.stop.clone();
        self.with_host(machine, move |model, record| {
            model.mend(&record.node);
            record.up = stop.child_token();
        })
    }

    /// k3s is replaced on the same host.
    pub fn upgrade(&self, machine: &str, version: &str) -> bool {
        self.with_host(machine, |model, record| model.upgrade(&record.node, version))
    }

    fn with_host(&self, machine: &str, change: impl FnOnce(&mut Model, &mut HostRecord)) -> bool {
        let mut state = self.state.lock();
        state.catch_up();
        let State { model, hosts, .. } = &mut *state;
        let found = hosts.get_mut(machine).map(|record| change(model, record));
        drop(state);
        self.changed.notify_one();
        found.is_some()
    }

    /// The host and its disk are gone. With the last server the cluster's data is gone too.
    pub fn destroy(&self, machine: &str) {
        let mut state = self.state.lock();
        state.catch_up();
        state.waiting.retain(|one| one.machine.name != machine);
        state.failures.remove(machine);
        if let Some(record) = state.hosts.remove(machine) {
            record.up.cancel();
            let is_member = state
                .model
                .members
                .iter()
                .any(|member| member.host == record.node);
            if is_member && state.model.voters() > 1 {
                state.left_behind.push(machine.to_owned());
            }
            state.model.destroy(&record.node);
        }
        if state.identity.is_some() && !state.model.hosts.values().any(|host| host.server) {
            state.apiserver.cut_watches();
            let waiting = std::mem::take(&mut state.waiting);
            *state = State::new(self.timing);
            state.waiting = waiting;
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Looks at the model.
    pub fn look<T>(&self, look: impl FnOnce(&Model) -> T) -> T {
        let mut state = self.state.lock();
        state.catch_up();
        look(&state.model)
    }

    /// Hosts on which k3s did not come up, and why.
    pub fn failures(&self) -> BTreeMap<String, BootError> {
        self.state.lock().failures.clone()
    }

    /// How often etcd has lost its quorum.
    pub fn quorum_losses(&self) -> u64 {
        self.state.lock().quorum_losses
    }

    /// Hosts that went while etcd still counted on them.
    pub fn left_behind(&self) -> Vec<String> {
        self.state.lock().left_behind.clone()
    }

    /// Whether the cluster's servers reach the kubelet of a node.
    pub fn reaches_kubelet(&self, node: &str) -> bool {
        let state = self.state.lock();
        state
            .model
            .hosts
            .get(node)
            .is_some_and(crate::model::Host::is_connected)
    }

    /// Machines whose k3s is up, or was until it was killed, with the name of its node.
    pub fn hosts(&self) -> BTreeMap<String, String> {
        let state = self.state.lock();
        let named = |(name, record): (&String, &HostRecord)| (name.clone(), record.node.clone());
        state.hosts.iter().map(named).collect()
    }

    /// How often each client asked for what.
    pub fn requests(&self) -> BTreeMap<String, BTreeMap<String, u64>> {
        self.requests.lock().clone()
    }

    pub(crate) fn count(&self, agent: &str, what: &str) {
        let mut requests = self.requests.lock();
        let of_agent = requests.entry(agent.to_owned()).or_default();
        *of_agent.entry(what.to_owned()).or_default() += 1;
    }

    /// A server for the next connection, in turn.
    pub(crate) fn next_backend(&self) -> Option<Backend> {
        let mut state = self.state.lock();
        state.turn += 1;
        let up: Vec<&HostRecord> = state
            .hosts
            .values()
            .filter(|record| {
                let host = state.model.hosts.get(&record.node);
                host.is_some_and(|host| host.server && host.is_connected())
            })
            .collect();
        let record = up.get(state.turn % up.len().max(1))?;
        Some(Backend {
            tls: Arc::clone(&state.identity.as_ref()?.tls),
            up: record.up.clone(),
        })
    }

    /// The apiserver, as long as etcd lets it read.
    pub(crate) fn apiserver(&self) -> Option<Apiserver> {
        let state = self.state.lock();
        state.model.has_quorum().then(|| state.apiserver.clone())
    }

    pub(crate) fn is_server_token(&self, token: &str) -> bool {
        let state = self.state.lock();
        state.identity.as_ref().is_some_and(|known| known.token == token)
    }

    pub(crate) fn ca(&self) -> String {
        let state = self.state.lock();
        state
            .identity
            .as_ref()
            .map_or_else(String::new, |known| known.ca.clone())
    }

    pub(crate) fn version(&self) -> String {
        let state = self.state.lock();
        let servers = state.model.hosts.values().filter(|host| host.server);
        servers.map(|host| host.version.clone()).min().unwrap_or_default()
    }

    /// `/db/info`, as the supervisor answers it.
    pub(crate) fn members(&self) -> Option<Value> {
        let state = self.state.lock();
        if !state.model.has_quorum() {
            return None;
        }
        let members: Vec<Value> = state.model.members.iter().map(member).collect();
        Some(json!({ "members": members }))
    }

    pub(crate) fn node_written(&self) {
        self.changed.notify_one();
    }

    /// Carries changes between the model and the apiserver until the cluster is stopped.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = self.changed.notified() => {}
                () = tokio::time::sleep(self.timing.tick) => {}
            }
            self.carry().await;
        }
    }

    async fn carry(&self) {
        let _one = self.carrier.lock().await;
        // Each round can make the next one necessary; a handful is more than enough.
        for _ in 0..5 {
            let (apiserver, changes) = {
                let mut state = self.state.lock();
                state.catch_up();
                let has_quorum = state.model.has_quorum();
                if state.had_quorum && !has_quorum {
                    state.quorum_losses += 1;
                    state.apiserver.cut_watches();
                }
                state.had_quorum = has_quorum;
                self.join_waiting(&mut state);
                if !has_quorum && !state.model.has_quorum() {
                    return;
                }
                take_back(&mut state);
                (state.apiserver.clone(), to_show(&mut state))
            };
            if changes.is_empty() {
                return;
            }
            for change in changes {
                change.apply(&apiserver).await;
            }
        }
    }
}

fn member(member: &crate::model::Member) -> Value {
    let mut shown = json!({
        "ID": member.id,
        "name": member.name,
        "peerURLs": [format!("https://{}:2380", member.address)],
        "clientURLs": [format!("https://{}:2379", member.address)],
    });
    if member.learner {
        shown["isLearner"] = json!(true);
    }
    shown
}

fn node_name(machine: &Machine, config: &Config) -> String {
    config.node_name.clone().unwrap_or_else(|| machine.name.clone())
}

fn register(state: &mut State, machine: &Machine, config: &Config, node: String) {
    let address = state.model.hosts.get(&node).map(|host| host.address.clone());
    state.hosts.insert(
        machine.name.clone(),
        HostRecord {
            registration: Registration::new(machine, config, &address.unwrap_or_default()),
            node,
            up: CancellationToken::new(),
        },
    );
}

/// What the first server's userdata makes of the cluster.
fn found(bootstrap: &Bootstrap) -> Result<Identity, BootError> {
    let config = &bootstrap.config;
    let file = |name: &str| -> String {
        let content = bootstrap.files.get(&format!("{TLS}/{name}"));
        String::from_utf8_lossy(content.map_or(&[][..], Vec::as_slice)).into_owned()
    };
    let (certificate, key, clients) = (
        file("server-ca.crt"),
        file("server-ca.key"),
        file("client-ca.crt"),
    );
    let cas = Cas {
        server_certificate: &certificate,
        server_key: &key,
        client_certificate: &clients,
    };
    let tls = certificates::tls(&cas, &config.tls_names).map_err(BootError::Ca)?;
    let agent_token = config.agent_token.clone().unwrap_or_else(|| config.token.clone());
    Ok(Identity {
        token: config.token.clone(),
        agent_token,
        ca: certificate,
        critical: config.critical.clone(),
        tls: Arc::new(tls),
    })
}
