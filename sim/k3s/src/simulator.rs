//! Many clusters in one process, each with a port of its own.

use std::{collections::BTreeMap, io, net::SocketAddr, sync::Arc};

use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{admin, cluster::Cluster, model::Timing, serve};

/// All clusters end with this value.
pub struct Simulator {
    timing: Timing,
    clusters: Mutex<BTreeMap<String, Arc<Cluster>>>,
    stop: CancellationToken,
}

impl Simulator {
    pub fn new(timing: Timing) -> Arc<Self> {
        Arc::new(Self {
            timing,
            clusters: Mutex::default(),
            stop: CancellationToken::new(),
        })
    }

    /// The cluster of this name; a new one has an endpoint, and no server behind it yet.
    pub async fn cluster(&self, name: &str) -> io::Result<Arc<Cluster>> {
        if let Some(cluster) = self.get(name) {
            return Ok(cluster);
        }
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let cluster = Arc::new(Cluster::new(name, listener.local_addr()?, self.timing));
        {
            let mut clusters = self.clusters.lock();
            if let Some(other) = clusters.get(name) {
                return Ok(Arc::clone(other));
            }
            clusters.insert(name.to_owned(), Arc::clone(&cluster));
        }
        tokio::spawn(serve::accept(Arc::clone(&cluster), listener));
        tokio::spawn(Arc::clone(&cluster).run());
        Ok(cluster)
    }

    pub fn get(&self, name: &str) -> Option<Arc<Cluster>> {
        self.clusters.lock().get(name).cloned()
    }

    pub fn clusters(&self) -> Vec<Arc<Cluster>> {
        self.clusters.lock().values().cloned().collect()
    }

    /// The cluster, its endpoint and all it holds are gone.
    pub fn remove(&self, name: &str) {
        if let Some(cluster) = self.clusters.lock().remove(name) {
            cluster.stop.cancel();
        }
    }

    /// Serves the admin interface on loopback, as long as the simulator lives.
    pub async fn serve_admin(self: &Arc<Self>) -> io::Result<SocketAddr> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        tokio::spawn(admin::serve(Arc::downgrade(self), listener, self.stop.clone()));
        Ok(address)
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        self.stop.cancel();
        for cluster in self.clusters.get_mut().values() {
            cluster.stop.cancel();
        }
    }
}
