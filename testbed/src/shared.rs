//! Clusters that tests share. `SLIPWAY_TESTBED_<NAME>` names a description of a cluster that already runs; without
//! it this process starts its own, once, and keeps it until it ends.

use std::{collections::BTreeMap, sync::Arc};

use tokio::sync::{Mutex, OnceCell};

use crate::cluster::{Builder, Cluster, Description, ManagementCluster, StartError, WorkloadCluster};

/// The shared clusters there are.
pub const NAMES: [&str; 3] = ["plain", "capi", "workload"];

static SHARED: Mutex<BTreeMap<String, Arc<OnceCell<Arc<Cluster>>>>> = Mutex::const_new(BTreeMap::new());

/// The environment variable that hands a shared cluster to a test program.
pub fn variable(name: &str) -> String {
    format!("SLIPWAY_TESTBED_{}", name.to_uppercase().replace('-', "_"))
}

/// How a shared cluster is built:
/// `plain` is Kubernetes alone, `capi` has Cluster API with the kubeadm providers and kwok, and `workload` is an
/// API server with kwok for nodes to appear in.
pub fn builder(name: &str) -> Result<Builder, StartError> {
    let builder = match name {
        "plain" => ManagementCluster::builder().scheduler(false),
        "capi" => ManagementCluster::builder().cluster_api().kubeadm().kwok(),
        "workload" => WorkloadCluster::builder().kwok(),
        _ => {
            return Err(StartError::UnknownShared {
                name: name.to_owned(),
                known: NAMES.join(", "),
            });
        }
    };
    Ok(builder.name(name))
}

/// The shared cluster called `name`. What is global in a cluster belongs to a cluster of its own; everything else
/// is kept apart by namespace ([`Cluster::namespace`]).
pub async fn shared(name: &str) -> Result<Arc<Cluster>, StartError> {
    let cell = SHARED.lock().await.entry(name.to_owned()).or_default().clone();
    let cluster = cell
        .get_or_try_init(|| async { start_or_attach(name).await.map(Arc::new) })
        .await?;
    // Shown with a test that fails.
    eprintln!(
        "testbed: the logs of cluster {name} are in {}",
        cluster.description().logs.display()
    );
    Ok(cluster.clone())
}

async fn start_or_attach(name: &str) -> Result<Cluster, StartError> {
    let builder = builder(name)?;
    let variable = variable(name);
    let Some(path) = std::env::var_os(&variable) else {
        return builder.start().await;
    };
    let attach = || -> std::io::Result<Cluster> {
        let description: Description = serde_json::from_slice(&std::fs::read(&path)?)?;
        Cluster::attach(description)
    };
    attach().map_err(|error| StartError::Attach {
        variable,
        path: path.to_string_lossy().into_owned(),
        detail: error.to_string(),
    })
}
