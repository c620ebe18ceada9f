//! What an agent says of its host, as it stands in the status of an EdgeHost: pure.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use slipway_agent_api::proto;

use super::api::{CacheStatus, EdgeHostStatus, Hardware, MaintenanceStatus, SlotStatus};

const MIB: u64 = 1 << 20;
/// The most problems that a status shows.
const MOST_PROBLEMS: usize = 20;

/// The status without its conditions. What changes all the time, like the bytes of a running download, is not in it.
pub fn status(host: &proto::Host) -> EdgeHostStatus {
    let booted = host.slots.iter().find(|slot| slot.name == host.booted_slot);
    EdgeHostStatus {
        agent_version: host.agent_version.clone(),
        boot_id: host.boot_id.clone(),
        hardware: host.hardware.as_ref().map(|hardware| Hardware {
            architecture: hardware.architecture.clone(),
            processors: hardware.processors,
            memory_mib: hardware.memory_bytes / MIB,
            kernel: hardware.kernel.clone(),
            system: hardware.system.clone(),
        }),
        slots: host
            .slots
            .iter()
            .map(|slot| SlotStatus {
                name: slot.name.clone(),
                boot: slot.boot.clone(),
                image: slot.digests.first().unwrap_or(&slot.image).clone(),
                version: slot.version.clone(),
                kubelet_version: slot.kubelet_version.clone(),
            })
            .collect(),
        booted_slot: host.booted_slot.clone(),
        kubelet_version: booted
            .map(|slot| slot.kubelet_version.clone())
            .unwrap_or_default(),
        cache: host.cache.as_ref().map(|cache| CacheStatus {
            used_mib: cache.used_bytes / MIB,
            quota_mib: cache.quota_bytes / MIB,
        }),
        addresses: host.addresses.clone(),
        maintenance: host.maintenance.as_ref().map(|held| MaintenanceStatus {
            by: held.by.clone(),
            reason: held.reason.clone(),
            since: Timestamp::from_millisecond(held.since).ok().map(Time),
        }),
        problems: host.problems.iter().take(MOST_PROBLEMS).cloned().collect(),
        conditions: Vec::new(),
    }
}
