//! Hosts that run the simulated K3s: each boots by reading its bootstrap data as a real one would.

use std::sync::Arc;

use async_trait::async_trait;
use slipway_k3s_sim::{Machine, Simulator};

use super::{
    api::Endpoint,
    backend::{Backend, BackendError, Booting},
};

/// A simulator's clusters by the `namespace/name` of their Cluster.
pub struct SimulatedK3s {
    simulator: Arc<Simulator>,
}

impl SimulatedK3s {
    pub fn new(simulator: Arc<Simulator>) -> Self {
        Self { simulator }
    }
}

#[async_trait]
impl Backend for SimulatedK3s {
    async fn endpoint(&self, cluster: &str) -> Result<Endpoint, BackendError> {
        let cluster = self.simulator.cluster(cluster).await?;
        Ok(Endpoint {
            host: cluster.endpoint.ip().to_string(),
            port: i32::from(cluster.endpoint.port()),
        })
    }

    async fn boot(&self, host: &Booting) -> Result<(), BackendError> {
        let userdata = String::from_utf8_lossy(&host.bootstrap_data);
        let machine = Machine {
            name: host.name.clone(),
            provider_id: host.provider_id.clone(),
            failure_domain: host.failure_domain.clone(),
            image_version: Some(host.version.clone()),
            labels: host.labels.clone(),
            capacity: host.capacity.clone(),
        };
        let cluster = self.simulator.cluster(&host.cluster).await?;
        cluster
            .boot(&machine, &userdata)
            .map_err(|error| BackendError::Refused(error.to_string()))
    }

    async fn destroy(&self, cluster: &str, host: &str) -> Result<(), BackendError> {
        if let Some(cluster) = self.simulator.get(cluster) {
            cluster.destroy(host);
        }
        Ok(())
    }

    async fn set_alive(&self, cluster: &str, host: &str, alive: bool) -> Result<(), BackendError> {
        let found = self.simulator.get(cluster).is_some_and(|cluster| {
            if alive {
                cluster.revive(host)
            } else {
                cluster.kill(host)
            }
        });
        if found {
            Ok(())
        } else {
            Err(BackendError::Refused(format!(
                "no host {host} runs in cluster {cluster}"
            )))
        }
    }
}
