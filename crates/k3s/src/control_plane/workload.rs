//! The workload clusters: one connection and one watch on the servers' nodes each, kept as long as the kubeconfig
//! stays. Nothing is polled; a change of a node brings its control plane back.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node as CoreNode, Secret};
use kube::{
    Client, ResourceExt,
    api::ListParams,
    runtime::{WatchStreamExt, watcher},
};
use parking_lot::Mutex;
use serde_json::Value;
use slipway_capi::secret::{self, kubeconfig};
use slipway_runtime::{
    ObjectKey,
    controller::{Context, Trigger},
    workload::{Clients, Connector},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::observed::{Member, Node, VoterCondition, Workload};
use crate::error::Error;

/// Nodes of k3s servers; every k3s that is supported sets it, with or without the older role beside it.
const SERVER_SELECTOR: &str = "node-role.kubernetes.io/control-plane";
pub(super) const MEMBER: &str = "etcd.k3s.cattle.io/node-name";
pub(super) const MEMBER_ADDRESS: &str = "etcd.k3s.cattle.io/node-address";
const REMOVED: &str = "etcd.k3s.cattle.io/removed-node-name";
pub(super) const REMOVE: &str = "etcd.k3s.cattle.io/remove";
/// Marks a node we put there to have a member without a node removed.
pub const PLACEHOLDER: &str = "kthrees.controlplane.cluster.x-k8s.io/placeholder";
/// A cluster behind a dead route keeps nobody waiting for longer.
const CALL_TIMEOUT: Duration = Duration::from_secs(8);

/// What the watch has seen.
#[derive(Default)]
struct Seen {
    nodes: HashMap<String, Node>,
    synced: bool,
    failing_since: Option<Timestamp>,
}

/// One connected cluster.
pub struct Connection {
    pub(super) client: Client,
    supervisor: Client,
    kubeconfig_version: String,
    seen: Arc<Mutex<Seen>>,
    ghosts: Mutex<HashMap<String, Timestamp>>,
    _stop: DropGuard,
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
    authority: &Secret,
    token: &str,
    clients: &Clients,
) -> Result<(Client, Client), Error> {
    let access = kubeconfig::access(kubeconfig)?;
    let supervisor = access
        .clone()
        .trusting(&secret::read_key_pair(authority)?.certificate)
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
    Ok((
        client(&access, "the workload cluster")?,
        client(&supervisor, "the supervisor of the workload cluster")?,
    ))
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

    /// The connection of a control plane; a new one where the kubeconfig has changed.
    pub fn connect(
        &self,
        key: &ObjectKey,
        secret: &Secret,
        authority: &Secret,
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
        let (client, supervisor) = dial(key, secret, authority, token, &clients)?;
        let stop = CancellationToken::new();
        let seen = Arc::new(Mutex::new(Seen::default()));
        tokio::spawn(watch(
            client.clone(),
            Arc::clone(&seen),
            context.trigger(),
            key.clone(),
            context.clock,
            stop.clone(),
        ));
        let connection = Arc::new(Connection {
            client,
            supervisor,
            kubeconfig_version: version,
            seen,
            ghosts: Mutex::default(),
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
    seen: Arc<Mutex<Seen>>,
    trigger: Option<Trigger>,
    key: ObjectKey,
    clock: slipway_runtime::Clock,
    stop: CancellationToken,
) {
    let nodes: kube::Api<CoreNode> = kube::Api::all(client);
    let config = watcher::Config::default().labels(SERVER_SELECTOR);
    let mut stream = watcher(nodes, config).default_backoff().boxed();
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
                    apply(&mut seen, event) || was_failing
                }
                Err(error) => {
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
fn apply(seen: &mut Seen, event: watcher::Event<CoreNode>) -> bool {
    match event {
        watcher::Event::Init => {
            seen.nodes.clear();
            false
        }
        watcher::Event::InitApply(node) => {
            seen.nodes.insert(node.name_any(), read_node(&node));
            false
        }
        watcher::Event::InitDone => {
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
            before.as_ref().map(without_heartbeat) != Some(without_heartbeat(&facts))
        }
        watcher::Event::Delete(node) => seen.nodes.remove(&node.name_any()).is_some(),
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
        member: annotation(MEMBER),
        removed_member: annotation(REMOVED),
        removal_requested: annotation(REMOVE).is_some(),
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
    pub fn watched_nodes(&self) -> Result<Vec<Node>, Workload> {
        let seen = self.seen.lock();
        if let Some(since) = seen.failing_since {
            return Err(Workload::Unreachable { since });
        }
        if !seen.synced {
            return Err(Workload::Unknown);
        }
        Ok(in_order(seen.nodes.values().cloned()))
    }

    /// The servers' nodes as they are. A watch may be behind without knowing it: what is taken away is decided on these.
    pub async fn read_nodes(&self, now: Timestamp) -> Result<Vec<Node>, Workload> {
        let nodes: kube::Api<CoreNode> = kube::Api::all(self.client.clone());
        let selected = ListParams::default().labels(SERVER_SELECTOR);
        let doing = "reading the nodes of the workload cluster";
        match self.within(doing, nodes.list(&selected)).await {
            Ok(list) => Ok(in_order(list.items.iter().map(read_node))),
            Err(error) => {
                tracing::info!(%error, "What the watch shows cannot be confirmed");
                Err(Workload::Unreachable { since: now })
            }
        }
    }

    /// The members of etcd, and since when each belongs to nobody for whom `matched` holds.
    pub async fn members(&self, matched: impl Fn(&str) -> bool, now: Timestamp) -> Option<Vec<Member>> {
        let request = http::Request::get("/db/info").body(Vec::new()).ok()?;
        let answer = self.within(
            "listing the members of etcd",
            self.supervisor.request_text(request),
        );
        match answer.await {
            Ok(text) => parse_members(&text).map(|members| self.with_ghosts(members, matched, now)),
            Err(error) => {
                tracing::info!(%error, "The members of etcd are not known");
                None
            }
        }
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

    /// Notes since when each member has belonged to no machine.
    fn with_ghosts(
        &self,
        members: Vec<Member>,
        matched: impl Fn(&str) -> bool,
        now: Timestamp,
    ) -> Vec<Member> {
        let mut ghosts = self.ghosts.lock();
        ghosts.retain(|name, _| members.iter().any(|member| member.name == *name) && !matched(name));
        members
            .into_iter()
            .map(|mut member| {
                if !matched(&member.name) {
                    member.ghost_since = Some(*ghosts.entry(member.name.clone()).or_insert(now));
                }
                member
            })
            .collect()
    }
}

fn in_order(nodes: impl Iterator<Item = Node>) -> Vec<Node> {
    let mut nodes: Vec<Node> = nodes.collect();
    nodes.sort_by(|left, right| left.name.cmp(&right.name));
    nodes
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
                    ghost_since: None,
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
