//! The clusters that the objects of this one describe: a connection, a set of informers and, where asked for, sets of
//! controllers for each, started when a cluster can be reached and stopped when it is gone, with nothing left behind.

mod access;
mod clients;
mod controllers;
mod split;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, hash_map},
    fmt,
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use kube::Client;
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use self::controllers::SetLocks;
pub use self::{
    access::{Access, AccessParts, Refused},
    clients::{Clients, Connector, NoAnswer},
    split::split,
};
use crate::{Class, Classified, Context, Informers, Metrics, ObjectKey, Random};

/// How often a cluster is asked whether it is there.
const PROBE_EVERY: Duration = Duration::from_secs(10);

/// A cluster that has not answered after this long did not.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a workload cluster cannot be connected to. Never repeats the kubeconfig, which is a secret.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("reading the kubeconfig of cluster {cluster}: {source}")]
    Refused { cluster: ObjectKey, source: Refused },
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
    /// The sets of controllers that run in it, by name.
    sets: Mutex<HashMap<&'static str, CancellationToken>>,
    set_locks: SetLocks,
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

/// All connected workload clusters, by the key of their `Cluster` object. Clones share them.
#[derive(Clone)]
pub struct WorkloadClusters {
    inner: Arc<Inner>,
}

struct Inner {
    clients: Clients,
    metrics: Metrics,
    random: Random,
    stopped: CancellationToken,
    hasher: RandomState,
    clusters: Mutex<HashMap<ObjectKey, Arc<WorkloadCluster>>>,
    set_locks: SetLocks,
}

impl WorkloadClusters {
    /// Connections last until they are given up, or until the manager stops.
    pub fn of(context: &Context) -> Self {
        Self::with(Clients::of(context), context)
    }

    /// The same with clients that are made in another way.
    pub fn with(clients: Clients, context: &Context) -> Self {
        Self {
            inner: Arc::new(Inner {
                clients,
                metrics: context.metrics.clone(),
                random: context.random.fork(),
                stopped: context.shutdown.child_token(),
                hasher: RandomState::new(),
                clusters: Mutex::default(),
                set_locks: SetLocks::default(),
            }),
        }
    }

    /// The connection to a cluster, made if there is none or if the kubeconfig is another one. Does not wait for
    /// the cluster to answer: see [`WorkloadCluster::health`].
    pub fn connect(&self, key: &ObjectKey, kubeconfig: &str) -> Result<Arc<WorkloadCluster>, ConnectError> {
        let fingerprint = self.inner.hasher.hash_one(kubeconfig);
        self.connect_once(key, fingerprint, || Access::from_text(kubeconfig))
    }

    /// The same with an access that was made before, e.g. from a file. It is told apart by its address alone, so another
    /// kubeconfig of the same cluster needs a [`WorkloadClusters::disconnect`] first.
    pub fn connect_to(&self, key: &ObjectKey, access: &Access) -> Result<Arc<WorkloadCluster>, ConnectError> {
        let fingerprint = self.inner.hasher.hash_one(access.url());
        self.connect_once(key, fingerprint, || Ok(access.clone()))
    }

    fn connect_once(
        &self,
        key: &ObjectKey,
        fingerprint: u64,
        access: impl FnOnce() -> Result<Access, Refused>,
    ) -> Result<Arc<WorkloadCluster>, ConnectError> {
        let mut clusters = self.inner.clusters.lock();
        if let Some(cluster) = clusters.get(key)
            && cluster.fingerprint == fingerprint
        {
            return Ok(Arc::clone(cluster));
        }
        let access = access().map_err(|source| ConnectError::Refused {
            cluster: key.clone(),
            source,
        })?;
        let client = self
            .inner
            .clients
            .connect(key, &access)
            .map_err(|source| ConnectError::Client {
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
            sets: Mutex::default(),
            set_locks: self.inner.set_locks.clone(),
        }
    }

    /// The connection to a cluster, if there is one.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<WorkloadCluster>> {
        self.inner.clusters.lock().get(key).cloned()
    }

    /// Gives up a connection: its informers and controllers stop, whoever still holds them.
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
