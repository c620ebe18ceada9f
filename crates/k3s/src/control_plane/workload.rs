//! The workload clusters: one connection, a watch on the nodes and one on each server's lease, kept as long as the
//! kubeconfig stays. Nothing is polled; a change of a server's node brings its control plane back.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node as CoreNode, Secret};
use kube::{Client, ResourceExt, api::ListParams, runtime::watcher};
use parking_lot::Mutex;
use serde_json::Value;
use slipway_capi::secret::{self, kubeconfig};
use slipway_runtime::{
    ObjectKey,
    controller::{Context, Trigger},
    workload::{Clients, Connector},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    health,
    leases::{Caller, Leases},
    liveness::{ADDRESS_KNOWN, Kubelet, Probe},
    observed::{Member, Node, Server, VoterCondition, Workload},
    orphan::Ledger,
    probe::{self, Answer, Prober},
    retry,
};
use crate::error::Error;

/// What k3s gives the nodes of its servers. None alone decides: whoever may write nodes may take them off.
const SERVER_LABELS: [&str; 2] = ["node-role.kubernetes.io/control-plane", ETCD_ROLE];
pub(super) const ETCD_ROLE: &str = "node-role.kubernetes.io/etcd";
pub(super) const MEMBER: &str = "etcd.k3s.cattle.io/node-name";
pub(super) const MEMBER_ADDRESS: &str = "etcd.k3s.cattle.io/node-address";
pub(super) const REMOVED: &str = "etcd.k3s.cattle.io/removed-node-name";
pub(super) const REMOVE: &str = "etcd.k3s.cattle.io/remove";
/// Beside the request to remove a member: it was us who asked.
pub(super) const REMOVE_IS_OURS: &str = "kthrees.controlplane.cluster.x-k8s.io/remove-requested";
/// Core writes the name of a node's machine here.
const MACHINE: &str = "cluster.x-k8s.io/machine";
/// Marks a node we put there to have a member without a node removed.
pub const PLACEHOLDER: &str = "kthrees.controlplane.cluster.x-k8s.io/placeholder";
/// A cluster behind a dead route keeps nobody waiting for longer.
const CALL_TIMEOUT: Duration = Duration::from_secs(8);
/// A cluster that comes up or comes back is found this soon.
const SLOWEST_RETRY: Duration = Duration::from_secs(12);

/// What the watch has seen.
#[derive(Default)]
struct NodeCache {
    nodes: HashMap<String, Node>,
    /// A list that is under way.
    listed: HashMap<String, Node>,
    synced: bool,
    failing_since: Option<Timestamp>,
}

/// One connected cluster.
pub struct Connection {
    pub(super) client: Client,
    supervisor: Client,
    prober: Prober,
    kubeconfig_version: String,
    seen: Arc<Mutex<NodeCache>>,
    leases: Arc<Leases>,
    orphans: Mutex<Ledger>,
    /// Addresses at which nobody answers, and since when.
    silent: Mutex<HashMap<IpAddr, Timestamp>>,
    /// Addresses at which a server has answered.
    answered: Mutex<BTreeSet<IpAddr>>,
    _stop: DropGuard,
}

/// The ways to one cluster: its apiserver, its supervisor, and each server's own API.
struct Ways {
    client: Client,
    supervisor: Client,
    prober: Prober,
}

/// All connected clusters, by the key of their control plane.
#[derive(Default)]
pub struct Workloads {
    connections: Mutex<HashMap<ObjectKey, Arc<Connection>>>,
    connector: Option<Connector>,
}

/// A client of the apiserver and one of the supervisor, which knows its own users: the token opens what a client
/// certificate does not.
fn dial(
    key: &ObjectKey,
    kubeconfig: &Secret,
    ca: &Secret,
    token: &str,
    clients: &Clients,
) -> Result<Ways, Error> {
    let access = kubeconfig::access(kubeconfig)?;
    let supervisor = access
        .clone()
        .trusting(&secret::read_key_pair(ca)?.certificate)
        .map_err(|refused| Error::Unusable {
            doing: "connecting to the supervisor of the workload cluster".to_owned(),
            problem: refused.to_string(),
        })?
        .as_user("server", token);
    let client = |access, name: &str| {
        clients
            .connect(key, access)
            .map_err(Error::api(format!("connecting to {name}")))
    };
    Ok(Ways {
        client: client(&access, "the workload cluster")?,
        supervisor: client(&supervisor, "the supervisor of the workload cluster")?,
        prober: Prober {
            clients: clients.clone(),
            key: key.clone(),
            access,
        },
    })
}

impl Workloads {
    pub fn new(connector: Connector) -> Self {
        Self {
            connections: Mutex::default(),
            connector: Some(connector),
        }
    }

    pub fn forget(&self, key: &ObjectKey) {
        self.connections.lock().remove(key);
    }

    /// How many clusters are connected.
    pub fn connected(&self) -> usize {
        self.connections.lock().len()
    }

    /// How many leases are watched.
    pub fn leases(&self) -> usize {
        let connections = self.connections.lock();
        connections
            .values()
            .map(|connection| connection.leases.len())
            .sum()
    }

    /// The connection of a control plane; a new one where the kubeconfig has changed.
    pub fn connect(
        &self,
        key: &ObjectKey,
        secret: &Secret,
        ca: &Secret,
        token: &str,
        context: &Context,
    ) -> Result<Arc<Connection>, Error> {
        let version = secret.metadata.resource_version.clone().unwrap_or_default();
        if let Some(connection) = self.connections.lock().get(key)
            && connection.kubeconfig_version == version
        {
            return Ok(Arc::clone(connection));
        }
        let clients = Clients::of(context).connecting_by(self.connector.clone());
        let ways = dial(key, secret, ca, token, &clients)?;
        let stop = CancellationToken::new();
        let seen = Arc::new(Mutex::new(NodeCache::default()));
        let caller = Caller {
            trigger: context.trigger(),
            key: key.clone(),
            clock: context.clock,
        };
        let leases = Arc::new(Leases::new(ways.client.clone(), caller));
        tokio::spawn(watch(
            ways.client.clone(),
            Arc::clone(&seen),
            Arc::clone(&leases),
            context.trigger(),
            key.clone(),
            context.clock,
            stop.clone(),
        ));
        let connection = Arc::new(Connection {
            client: ways.client,
            supervisor: ways.supervisor,
            prober: ways.prober,
            kubeconfig_version: version,
            seen,
            leases,
            orphans: Mutex::default(),
            silent: Mutex::default(),
            answered: Mutex::default(),
            _stop: stop.drop_guard(),
        });
        self.connections
            .lock()
            .insert(key.clone(), Arc::clone(&connection));
        Ok(connection)
    }
}

async fn watch(
    client: Client,
    seen: Arc<Mutex<NodeCache>>,
    leases: Arc<Leases>,
    trigger: Option<Trigger>,
    key: ObjectKey,
    clock: slipway_runtime::Clock,
    stop: CancellationToken,
) {
    let nodes: kube::Api<CoreNode> = kube::Api::all(client);
    let mut stream = retry::watch(watcher(nodes, watcher::Config::default()), SLOWEST_RETRY);
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => return,
            event = stream.next() => event,
        };
        let Some(event) = event else { return };
        let changed = {
            let mut seen = seen.lock();
            match event {
                Ok(event) => {
                    let was_failing = seen.failing_since.take().is_some();
                    apply(&mut seen, event, &leases) || was_failing
                }
                Err(error) => {
                    seen.listed.clear();
                    let first = seen.failing_since.is_none();
                    seen.failing_since.get_or_insert_with(|| clock.now());
                    if first {
                        tracing::info!(control_plane = %key, %error, "The workload cluster does not answer");
                    }
                    first
                }
            }
        };
        if changed && let Some(trigger) = &trigger {
            trigger.fire(&key);
        }
    }
}

/// Whether the event changed anything a decision is made by.
fn apply(seen: &mut NodeCache, event: watcher::Event<CoreNode>, leases: &Leases) -> bool {
    let concerns = |node: &Node| node.is_server || leases.is_followed(&node.name);
    match event {
        watcher::Event::Init => false,
        watcher::Event::InitApply(node) => {
            seen.listed.insert(node.name_any(), read_node(&node));
            false
        }
        watcher::Event::InitDone => {
            seen.nodes = std::mem::take(&mut seen.listed);
            seen.synced = true;
            true
        }
        watcher::Event::Apply(node) => {
            let facts = read_node(&node);
            let without_heartbeat = |node: &Node| {
                let mut node = node.clone();
                if let Some(voter) = &mut node.voter {
                    voter.heartbeat = Timestamp::UNIX_EPOCH;
                }
                node
            };
            let before = seen.nodes.insert(node.name_any(), facts.clone());
            (concerns(&facts) || before.as_ref().is_some_and(concerns))
                && before.as_ref().map(without_heartbeat) != Some(without_heartbeat(&facts))
        }
        watcher::Event::Delete(node) => seen
            .nodes
            .remove(&node.name_any())
            .is_some_and(|node| concerns(&node)),
    }
}

fn read_node(node: &CoreNode) -> Node {
    let annotation = |key: &str| node.annotations().get(key).cloned();
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let condition = |type_: &str| {
        conditions
            .into_iter()
            .flatten()
            .find(|condition| condition.type_ == type_)
    };
    let ready = condition("Ready");
    let address = node
        .status
        .iter()
        .flat_map(|status| status.addresses.iter().flatten())
        .find(|address| address.type_ == "InternalIP")
        .map(|address| address.address.clone());
    let is_server = SERVER_LABELS
        .iter()
        .any(|label| node.labels().contains_key(*label))
        || [MEMBER, REMOVED, REMOVE]
            .iter()
            .any(|key| node.annotations().contains_key(*key))
        || condition("EtcdIsVoter").is_some();
    Node {
        name: node.name_any(),
        ready: ready.is_some_and(|ready| ready.status == "True"),
        not_ready_reason: ready
            .and_then(|ready| ready.message.clone())
            .unwrap_or_else(|| "the node reports no Ready condition".into()),
        registered_at: node
            .metadata
            .creation_timestamp
            .as_ref()
            .map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        kubelet_version: node
            .status
            .as_ref()
            .and_then(|status| status.node_info.as_ref())
            .map(|info| info.kubelet_version.clone()),
        lease: None,
        kubelet: Kubelet::NotAsked,
        address,
        machine: annotation(MACHINE),
        is_server,
        has_etcd_role: node.labels().contains_key(ETCD_ROLE),
        member: annotation(MEMBER),
        removed_member: annotation(REMOVED),
        removal_requested: annotation(REMOVE).is_some(),
        removal_is_ours: annotation(REMOVE_IS_OURS).is_some(),
        voter: condition("EtcdIsVoter").map(|voter| VoterCondition {
            status: voter.status == "True",
            reason: voter.reason.clone().unwrap_or_default(),
            message: voter.message.clone().unwrap_or_default(),
            heartbeat: voter
                .last_heartbeat_time
                .as_ref()
                .map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        }),
        placeholder: annotation(PLACEHOLDER).is_some(),
    }
}

impl Connection {
    /// The servers' nodes as the watch shows them, or why it does not.
    pub fn watched_nodes(&self, servers: &[Server]) -> Result<Vec<Node>, Workload> {
        self.follow(servers);
        let seen = self.seen.lock();
        if let Some(since) = seen.failing_since {
            return Err(Workload::Unreachable { since });
        }
        if !seen.synced {
            return Err(Workload::Unknown);
        }
        Ok(self.of_servers(seen.nodes.values().cloned(), servers))
    }

    /// The servers' nodes as they are. A watch may be behind without knowing it: what is taken away is decided on these.
    pub async fn read_nodes(&self, servers: &[Server], now: Timestamp) -> Result<Vec<Node>, Workload> {
        let nodes: kube::Api<CoreNode> = kube::Api::all(self.client.clone());
        let doing = "reading the nodes of the workload cluster";
        let list = match self.within(doing, nodes.list(&ListParams::default())).await {
            Ok(list) => list,
            Err(error) => {
                tracing::info!(%error, "What the watch shows cannot be confirmed");
                return Err(Workload::Unreachable { since: now });
            }
        };
        for node in servers.iter().filter_map(|server| server.node.as_deref()) {
            let leases = self.leases.api();
            if let Ok(Some(lease)) = self.within("reading a lease", leases.get_opt(node)).await {
                self.leases.note(node, &lease, now);
            }
        }
        let mut nodes = self.of_servers(list.items.iter().map(read_node), servers);
        // Where every server answered at its own address there is nothing more to learn.
        if nodes
            .iter()
            .any(|node| !node.placeholder && !answered(node, servers))
        {
            probe::ask_kubelets(&self.client, &mut nodes).await;
        }
        Ok(nodes)
    }

    /// The leases of the servers' nodes are watched, and those of nodes that servers left behind.
    fn follow(&self, servers: &[Server]) {
        let seen = self.seen.lock();
        let known = seen
            .nodes
            .values()
            .filter(|node| node.is_server && !node.placeholder)
            .map(|node| node.name.as_str());
        let named = servers.iter().filter_map(|server| server.node.as_deref());
        let names: BTreeSet<&str> = known.chain(named).collect();
        self.leases.follow(names.into_iter());
    }

    fn of_servers(&self, nodes: impl Iterator<Item = Node>, servers: &[Server]) -> Vec<Node> {
        let named = |node: &Node| {
            servers
                .iter()
                .any(|server| server.node.as_deref() == Some(node.name.as_str()))
        };
        let mut nodes: Vec<Node> = nodes.filter(|node| node.is_server || named(node)).collect();
        for node in &mut nodes {
            node.lease = self.leases.of(&node.name);
        }
        nodes.sort_by(|left, right| left.name.cmp(&right.name));
        nodes
    }

    /// Asks each server's own API; those without an address are left out.
    pub async fn probe(&self, servers: &mut [Server], port: u16, now: Timestamp) {
        let asked = servers.iter().map(|server| async {
            let mut probe = Probe::NotTried;
            for address in server.addresses.iter().filter_map(|text| text.parse().ok()) {
                probe = match self.prober.ask(address, port).await {
                    Answer::Ready => Probe::Ready,
                    Answer::NotReady(why) => Probe::NotReady(why),
                    Answer::Silence => {
                        let since = *self.silent.lock().entry(address).or_insert(now);
                        let answered_before = self.answered.lock().contains(&address)
                            && health::age(since, now) < ADDRESS_KNOWN;
                        Probe::NoAnswer {
                            since,
                            answered_before,
                        }
                    }
                };
                if probe.is_answer() {
                    self.silent.lock().remove(&address);
                    self.answered.lock().insert(address);
                    break;
                }
            }
            probe
        });
        let answers = futures::future::join_all(asked).await;
        for (server, probe) in servers.iter_mut().zip(answers) {
            server.probe = probe;
        }
        let known: BTreeSet<IpAddr> = servers
            .iter()
            .flat_map(|server| &server.addresses)
            .filter_map(|text| text.parse().ok())
            .collect();
        self.silent.lock().retain(|address, _| known.contains(address));
        self.answered.lock().retain(|address| known.contains(address));
    }

    /// The members of etcd, and since when each has been nobody's.
    pub async fn members(&self, servers: &[Server], nodes: &[Node], now: Timestamp) -> Option<Vec<Member>> {
        let request = http::Request::get("/db/info").body(Vec::new()).ok()?;
        let answer = self.within(
            "listing the members of etcd",
            self.supervisor.request_text(request),
        );
        match answer.await {
            Ok(text) => {
                let members = parse_members(&text)?;
                Some(self.orphans.lock().note(members, servers, nodes, now))
            }
            Err(error) => {
                tracing::info!(%error, "The members of etcd are not known");
                None
            }
        }
    }

    /// Remembers that the removal of an orphaned member was announced.
    pub fn announced(&self, member: &str) {
        self.orphans.lock().announce(member);
    }

    /// A request that ends.
    pub(super) async fn within<T>(
        &self,
        doing: impl Into<String>,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, Error> {
        match tokio::time::timeout(CALL_TIMEOUT, request).await {
            Ok(answer) => answer.map_err(Error::api(doing)),
            Err(_) => Err(Error::Silent { doing: doing.into() }),
        }
    }
}

/// Whether the server of a node answered at its own address.
fn answered(node: &Node, servers: &[Server]) -> bool {
    servers
        .iter()
        .any(|server| server.node.as_ref() == Some(&node.name) && server.probe.is_answer())
}

/// Reads `/db/info`.
pub fn parse_members(text: &str) -> Option<Vec<Member>> {
    let value: Value = serde_json::from_str(text).ok()?;
    let members = value.get("members")?.as_array()?;
    Some(
        members
            .iter()
            .map(|member| {
                let peer = member["peerURLs"][0].as_str().unwrap_or_default();
                Member {
                    name: member["name"].as_str().unwrap_or_default().to_owned(),
                    learner: member["isLearner"].as_bool().unwrap_or(false),
                    address: host_of(peer).to_owned(),
                    ..Member::default()
                }
            })
            .collect(),
    )
}

fn host_of(url: &str) -> &str {
    let authority = url
        .split("://")
        .nth(1)
        .unwrap_or(url)
        .split('/')
        .next()
        .unwrap_or_default();
    match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.rsplit_once(':').map_or(authority, |(host, _)| host),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_read_as_k3s_writes_them() {
        let text = r#"{"members":[{"ID":1,"name":"a-1","peerURLs":["https://10.0.0.1:2380"],"clientURLs":["https://10.0.0.1:2379"]},
            {"ID":2,"peerURLs":["https://[fd00::2]:2380"],"isLearner":true}]}"#;
        let members = parse_members(text).expect("members");
        assert_eq!(
            (
                members[0].name.as_str(),
                members[0].learner,
                members[0].address.as_str()
            ),
            ("a-1", false, "10.0.0.1")
        );
        assert_eq!(
            (
                members[1].name.as_str(),
                members[1].learner,
                members[1].address.as_str()
            ),
            ("", true, "fd00::2")
        );
        assert_eq!(parse_members("<html>"), None);
        assert_eq!(parse_members("{}"), None);
    }
}
