//! The clusters that test programs share: started once, handed over by environment, stopped at the end.

use std::{path::PathBuf, time::Instant};

use anyhow::{Context, Result};
use futures::future::try_join_all;
use slipway_testbed::{Cluster, Parts, shared};

pub struct SharedClusters {
    clusters: Vec<(Cluster, PathBuf)>,
}

impl SharedClusters {
    /// Builds the parts if need be, and starts every shared cluster side by side.
    pub fn start() -> Result<SharedClusters> {
        let parts = Parts::ready()?;
        let started = Instant::now();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("starting the async runtime")?;
        let starts = shared::NAMES.iter().map(|name| {
            let parts = parts.clone();
            async move {
                let cluster = shared::builder(name)?.parts(parts).start().await?;
                let description = cluster.describe().context("describing a shared cluster")?;
                Ok::<_, anyhow::Error>((cluster, description))
            }
        });
        let clusters = runtime.block_on(try_join_all(starts))?;
        println!(
            "started {} shared clusters in {:.0} s",
            clusters.len(),
            started.elapsed().as_secs_f64()
        );
        Ok(SharedClusters { clusters })
    }

    /// What tells a test program where they are.
    pub fn environment(&self) -> Vec<(String, PathBuf)> {
        self.clusters
            .iter()
            .map(|(cluster, description)| (shared::variable(cluster.name()), description.clone()))
            .collect()
    }

    /// Stops them; their logs stay when a test failed.
    pub fn stop(self, keep_logs: bool) {
        for (cluster, _) in self.clusters {
            if keep_logs {
                cluster.keep_logs();
            }
            cluster.stop();
        }
    }
}
