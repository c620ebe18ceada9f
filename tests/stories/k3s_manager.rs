//! The K3s manager as a process of its own, under the roles it declares. The stories that share a cluster share it.

use std::{ops::Deref, path::Path, sync::Arc};

use anyhow::Result;
use serde_json::Value;
use slipway_kit::manager::{Manager, Setup, roles};
use slipway_testbed::{Cluster, shared};
use tokio::sync::OnceCell;

pub const BINARY: &str = env!("CARGO_BIN_EXE_slipway-k3s");
pub const USER: &str = "slipway-k3s";

/// A running manager and its cluster.
pub struct K3sManager {
    pub cluster: Arc<Cluster>,
    manager: Manager,
}

impl Deref for K3sManager {
    type Target = Manager;

    fn deref(&self) -> &Manager {
        &self.manager
    }
}

/// The roles, and the namespaces they are in, as they are declared.
pub fn declared_roles() -> Result<Vec<Value>> {
    roles::declared(&slipway_k3s::provider().packages)
}

/// The manager of the cluster that stories share; started by whoever comes first.
pub async fn of_shared_cluster() -> Result<&'static K3sManager> {
    static MANAGER: OnceCell<K3sManager> = OnceCell::const_new();
    MANAGER
        .get_or_try_init(|| async {
            let cluster = shared("capi").await?;
            K3sManager::start(cluster).await
        })
        .await
}

impl K3sManager {
    /// Installs roles, CRDs and webhooks, and starts a manager under those roles.
    pub async fn start(cluster: Arc<Cluster>) -> Result<K3sManager> {
        let folder = cluster.description().directory.join("k3s-manager");
        roles::install(&cluster, &slipway_k3s::provider().packages, USER).await?;
        let setup = Setup::new(&cluster, Path::new(BINARY), &folder, USER, None)?.with(["-v=4"]);
        setup.install(&cluster).await?;
        let manager = setup.start("manager").await?;
        Ok(K3sManager { cluster, manager })
    }
}
