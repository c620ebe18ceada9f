//! The clusters that the objects of this one describe: a connection and a set of informers for each, started when
//! a cluster can be reached and stopped when it is gone, with nothing left behind.

use std::{
    collections::{HashMap, hash_map},
    fmt,
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use kube::{
    Client, Config,
    config::{AuthInfo, Kubeconfig},
};
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{Class, Classified, Informers, Metrics, ObjectKey, Random, client};

/// How often a cluster is asked whether it is there.
const PROBE_EVERY: Duration = Duration::from_secs(10);

/// A cluster that has not answered after this long did not.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// The `host` label of requests to workload clusters: one for all, because they come and go and a label stays.
const HOST_LABEL: &str = "workload-cluster";

/// Why a workload cluster cannot be connected to. Never repeats the kubeconfig, which is a secret.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("reading the kubeconfig of cluster {cluster}: it is not a valid kubeconfig")]
    Unreadable { cluster: ObjectKey },
    #[error(
        "reading the kubeconfig of cluster {cluster}: {field} would run or read something on this machine; \
         put the credential itself into the kubeconfig"
    )]
    Unsafe { cluster: ObjectKey, field: &'static str },
    #[error("connecting to cluster {cluster}: {source}")]
    Client { cluster: ObjectKey, source: kube::Error },
}

impl Classified for ConnectError {
    fn class(&self) -> Class {
        Class::Terminal
    }
}

/// Whether a cluster answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    pub reachable: Reachable,
    /// When it last answered.
    pub last_contact: Option<Instant>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reachable {
    /// Not asked yet.
    Unknown,
    Yes,
    /// Since when, and why.
    No {
        since: Instant,
        error: String,
    },
}

/// One connected workload cluster.
pub struct WorkloadCluster {
    pub key: ObjectKey,
    pub client: Client,
    pub informers: Informers,
    health: watch::Receiver<Health>,
    /// Of the kubeconfig, to notice that it changed without keeping it.
    fingerprint: u64,
    stopped: CancellationToken,
}

impl WorkloadCluster {
    pub fn health(&self) -> Health {
        self.health.borrow().clone()
    }

    /// Follows the health; ends when the cluster is disconnected.
    pub fn watch_health(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }

    /// Whether this connection was given up: the cluster is gone, or its kubeconfig changed.
    pub fn is_stopped(&self) -> bool {
        self.stopped.is_cancelled()
    }
}

impl fmt::Debug for WorkloadCluster {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("WorkloadCluster")
            .field("key", &self.key)
            .field("health", &*self.health.borrow())
            .finish_non_exhaustive()
    }
}

impl Drop for WorkloadCluster {
    fn drop(&mut self) {
        self.stopped.cancel();
    }
}

/// A client of a workload cluster: counted with all others, without retries, and with an end to every silence.
pub fn client(config: Config, metrics: &Metrics) -> Result<Client, kube::Error> {
    client::counted_client(config, HOST_LABEL, metrics)
}

/// Makes a client from a kubeconfig; a test makes one that goes elsewhere.
pub type Connector = Arc<dyn Fn(&ObjectKey, Kubeconfig) -> Result<Client, kube::Error> + Send + Sync>;

/// All connected workload clusters, by the key of their `Cluster` object. Clones share them.
#[derive(Clone)]
pub struct WorkloadClusters {
    inner: Arc<Inner>,
}

struct Inner {
    connector: Connector,
    metrics: Metrics,
    random: Random,
    stopped: CancellationToken,
    hasher: RandomState,
    clusters: Mutex<HashMap<ObjectKey, Arc<WorkloadCluster>>>,
}

impl WorkloadClusters {
    /// Connections last until they are given up, or until `stopped` is cancelled.
    pub fn new(metrics: Metrics, random: Random, stopped: CancellationToken) -> Self {
        let counted = metrics.clone();
        let connector: Connector = Arc::new(move |_, kubeconfig| {
            let config = Config::try_from(kubeconfig).map_err(kube::Error::InferKubeconfig)?;
            self::client(config, &counted)
        });
        Self::with_connector(connector, metrics, random, stopped)
    }

    pub fn with_connector(
        connector: Connector,
        metrics: Metrics,
        random: Random,
        stopped: CancellationToken,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                connector,
                metrics,
                random,
                stopped,
                hasher: RandomState::new(),
                clusters: Mutex::default(),
            }),
        }
    }

    /// The connection to a cluster, made if there is none or if the kubeconfig is another one. Does not wait for
    /// the cluster to answer: see [`WorkloadCluster::health`].
    pub fn connect(&self, key: &ObjectKey, kubeconfig: &str) -> Result<Arc<WorkloadCluster>, ConnectError> {
        let fingerprint = self.inner.hasher.hash_one(kubeconfig);
        let mut clusters = self.inner.clusters.lock();
        if let Some(cluster) = clusters.get(key)
            && cluster.fingerprint == fingerprint
        {
            return Ok(Arc::clone(cluster));
        }
        let parsed = Kubeconfig::from_yaml(kubeconfig)
            .map_err(|_| ConnectError::Unreadable { cluster: key.clone() })?;
        if let Some(field) = reaches_into_this_machine(&parsed) {
            return Err(ConnectError::Unsafe {
                cluster: key.clone(),
                field,
            });
        }
        let client = (self.inner.connector)(key, parsed).map_err(|source| ConnectError::Client {
            cluster: key.clone(),
            source,
        })?;
        let cluster = Arc::new(self.start(key, client, fingerprint));
        match clusters.entry(key.clone()) {
            hash_map::Entry::Occupied(mut entry) => entry.insert(Arc::clone(&cluster)).stopped.cancel(),
            hash_map::Entry::Vacant(entry) => {
                entry.insert(Arc::clone(&cluster));
                self.inner.metrics.workload_clusters.inc();
            }
        }
        Ok(cluster)
    }

    fn start(&self, key: &ObjectKey, client: Client, fingerprint: u64) -> WorkloadCluster {
        let stopped = self.inner.stopped.child_token();
        let (sender, health) = watch::channel(Health {
            reachable: Reachable::Unknown,
            last_contact: None,
        });
        let probe = probe(client.clone(), sender, self.inner.random.fork());
        let ended = stopped.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = ended.cancelled() => {}
                () = probe => {}
            }
        });
        WorkloadCluster {
            key: key.clone(),
            informers: Informers::new(
                client.clone(),
                self.inner.metrics.clone(),
                self.inner.random.fork(),
                stopped.clone(),
            ),
            client,
            health,
            fingerprint,
            stopped,
        }
    }

    /// The connection to a cluster, if there is one.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<WorkloadCluster>> {
        self.inner.clusters.lock().get(key).cloned()
    }

    /// Gives up a connection: its informers stop, whoever still holds them.
    pub fn disconnect(&self, key: &ObjectKey) {
        if let Some(cluster) = self.inner.clusters.lock().remove(key) {
            cluster.stopped.cancel();
            self.inner.metrics.workload_clusters.dec();
        }
    }

    pub fn keys(&self) -> Vec<ObjectKey> {
        let mut keys: Vec<_> = self.inner.clusters.lock().keys().cloned().collect();
        keys.sort_unstable();
        keys
    }

    pub fn len(&self) -> usize {
        self.inner.clusters.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for WorkloadClusters {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.keys()).finish()
    }
}

/// A kubeconfig out of a Secret is foreign input: it may name an address and carry credentials, and nothing that
/// runs a program or reads a file here.
fn reaches_into_this_machine(kubeconfig: &Kubeconfig) -> Option<&'static str> {
    let of_user = |user: &AuthInfo| {
        [
            ("user.exec", user.exec.is_some()),
            ("user.auth-provider", user.auth_provider.is_some()),
            ("user.tokenFile", user.token_file.is_some()),
            ("user.client-certificate", user.client_certificate.is_some()),
            ("user.client-key", user.client_key.is_some()),
        ]
        .into_iter()
        .find_map(|(field, set)| set.then_some(field))
    };
    let users = kubeconfig
        .auth_infos
        .iter()
        .filter_map(|named| named.auth_info.as_ref());
    let clusters = kubeconfig
        .clusters
        .iter()
        .filter_map(|named| named.cluster.as_ref());
    users
        .filter_map(of_user)
        .chain(clusters.filter_map(|cluster| {
            cluster
                .certificate_authority
                .as_ref()
                .map(|_| "cluster.certificate-authority")
        }))
        .next()
}

/// Asks for the version again and again. It takes no permission, and any answer is one.
async fn probe(client: Client, health: watch::Sender<Health>, random: Random) {
    loop {
        let answer = match timeout(PROBE_TIMEOUT, client.apiserver_version()).await {
            Ok(Ok(_) | Err(kube::Error::Api(_))) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer within {} s", PROBE_TIMEOUT.as_secs())),
        };
        health.send_if_modified(|health| {
            let before = health.reachable.clone();
            match answer {
                Ok(()) => {
                    health.last_contact = Some(Instant::now());
                    health.reachable = Reachable::Yes;
                }
                Err(error) => {
                    let since = match &health.reachable {
                        Reachable::No { since, .. } => *since,
                        _ => Instant::now(),
                    };
                    health.reachable = Reachable::No { since, error };
                }
            }
            health.reachable != before
        });
        sleep(random.jitter(PROBE_EVERY, 0.1)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Informer, Scope, test_server::TestServer};
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    const MAPS: &str = "/api/v1/configmaps";

    fn kubeconfig(user: &str) -> String {
        format!(
            r#"{{"apiVersion":"v1","kind":"Config","current-context":"c",
            "clusters":[{{"name":"c","cluster":{{"server":"https://127.0.0.1:1"}}}}],
            "users":[{{"name":"u","user":{user}}}],
            "contexts":[{{"name":"c","context":{{"cluster":"c","user":"u"}}}}]}}"#
        )
    }

    fn clusters(server: &TestServer) -> (WorkloadClusters, Metrics) {
        let (server, metrics) = (server.clone(), Metrics::new());
        let connector: Connector = Arc::new(move |_, _| Ok(server.client()));
        let clusters = WorkloadClusters::with_connector(
            connector,
            metrics.clone(),
            Random::seeded(5),
            CancellationToken::new(),
        );
        (clusters, metrics)
    }

    #[tokio::test(start_paused = true)]
    async fn clusters_come_and_go_and_leave_nothing_behind() {
        let server = TestServer::new();
        server.put(MAPS, json!({"metadata": {"name": "a", "namespace": "default"}}));
        let (clusters, metrics) = clusters(&server);
        let tasks_before = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        for _ in 0..3 {
            let mut held = Vec::new();
            for number in 0..50 {
                let key = ObjectKey::namespaced("default", &format!("cluster-{number}"));
                let cluster = clusters.connect(&key, &kubeconfig(r#"{"token":"t"}"#)).unwrap();
                let informer: Informer<ConfigMap> = cluster.informers.get(Scope::all());
                informer.synced().await;
                assert_eq!(informer.len(), 1);
                held.push((cluster, informer));
            }
            assert_eq!((clusters.len(), server.watches()), (50, 50));
            for key in clusters.keys() {
                clusters.disconnect(&key);
            }
            sleep(Duration::from_secs(1)).await;
            assert_eq!(server.watches(), 0, "stopped although somebody still reads");
            assert!(
                held.iter()
                    .all(|(cluster, _)| cluster.is_stopped() && cluster.informers.tasks() == 0)
            );
            drop(held);
            sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(
            tokio::runtime::Handle::current().metrics().num_alive_tasks(),
            tasks_before
        );
        let text = metrics.encode();
        for line in [
            "slipway_workload_clusters 0",
            r#"slipway_informers{kind="ConfigMap"} 0"#,
            r#"slipway_informer_objects{kind="ConfigMap"} 0"#,
        ] {
            assert!(text.contains(line), "{line} is not in:\n{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_kubeconfig_replaces_the_connection() {
        let (clusters, metrics) = clusters(&TestServer::new());
        let key = ObjectKey::namespaced("default", "a");
        let first = clusters.connect(&key, &kubeconfig(r#"{"token":"one"}"#)).unwrap();
        let same = clusters.connect(&key, &kubeconfig(r#"{"token":"one"}"#)).unwrap();
        assert!(Arc::ptr_eq(&first, &same));
        let second = clusters.connect(&key, &kubeconfig(r#"{"token":"two"}"#)).unwrap();
        assert!(first.is_stopped() && !second.is_stopped());
        assert!(metrics.encode().contains("slipway_workload_clusters 1"));
    }

    #[tokio::test(start_paused = true)]
    async fn health_follows_the_cluster() {
        let server = TestServer::new();
        let (clusters, _) = clusters(&server);
        let key = ObjectKey::namespaced("default", "a");
        let cluster = clusters.connect(&key, &kubeconfig(r#"{"token":"t"}"#)).unwrap();
        assert_eq!(cluster.health().reachable, Reachable::Unknown);
        let mut health = cluster.watch_health();
        health.changed().await.unwrap();
        assert_eq!(cluster.health().reachable, Reachable::Yes);
        server.set_down(true);
        health.changed().await.unwrap();
        let down = cluster.health();
        assert!(matches!(&down.reachable, Reachable::No { error, .. } if error.contains("refused")));
        assert!(down.last_contact.is_some());
        sleep(Duration::from_mins(1)).await;
        assert_eq!(cluster.health().last_contact, down.last_contact);
        server.set_down(false);
        health.changed().await.unwrap();
        assert_eq!(cluster.health().reachable, Reachable::Yes);
    }

    #[tokio::test(start_paused = true)]
    async fn a_kubeconfig_that_reaches_into_this_machine_is_refused() {
        let (clusters, _) = clusters(&TestServer::new());
        let key = ObjectKey::namespaced("default", "a");
        for (user, field) in [
            (
                r#"{"exec":{"apiVersion":"client.authentication.k8s.io/v1","command":"sh"}}"#,
                "user.exec",
            ),
            (r#"{"tokenFile":"/var/run/secrets/token"}"#, "user.tokenFile"),
            (r#"{"client-key":"/etc/key"}"#, "user.client-key"),
        ] {
            let error = clusters.connect(&key, &kubeconfig(user)).unwrap_err();
            assert!(error.to_string().contains(field), "{error}");
        }
        let error = clusters.connect(&key, "clusters: [s3cret").unwrap_err();
        assert_eq!(
            error.to_string(),
            "reading the kubeconfig of cluster default/a: it is not a valid kubeconfig"
        );
        assert!(clusters.is_empty());
    }
}
