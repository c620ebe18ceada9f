//! Container images where Kubernetes takes them: k3s' images folder, and containerd. An image stays there as long as it is
//! pinned.

mod containerd;
mod k3s;

use std::sync::Arc;

use slipway_agent_api::Problem;
use slipway_slots::Digest;

use crate::cache::Cache;
use crate::service::machine::Machine;

pub use containerd::Containerd;
pub use k3s::K3sFolder;

/// Where this host delivers to.
#[derive(Clone, Debug, Default)]
pub struct Deliveries {
    pub k3s: Option<K3sFolder>,
    pub containerd: Option<Containerd>,
}

impl Deliveries {
    /// Takes away what is no longer pinned.
    pub async fn tidy(&self, cache: &Arc<Cache>, machine: &dyn Machine) -> Result<(), Problem> {
        if let Some(k3s) = &self.k3s {
            k3s.tidy(cache)?;
        }
        if let Some(containerd) = &self.containerd {
            containerd.tidy(cache, machine).await?;
        }
        Ok(())
    }
}

/// Pinned images stay where they were delivered; others may be taken away by whoever cleans up there.
fn is_pinned(cache: &Cache, digest: &Digest) -> bool {
    cache
        .image(digest)
        .is_some_and(|record| record.is_pinned(cache.now()))
}
