//! What pods ask for and what types hold, as the checker counts it.

use slipway_packing::model::{InstanceType, Pod, ResourceList};
use slipway_packing::quantity::Quantity;

pub fn allocatable(kind: &InstanceType) -> ResourceList {
    let mut amounts = kind.capacity.clone();
    for (resource, kept) in kind.overhead.total() {
        *amounts.entry(resource).or_default() -= kept;
    }
    amounts
}

pub fn add(into: &mut ResourceList, list: &ResourceList) {
    for (resource, amount) in list {
        *into.entry(resource.clone()).or_default() += *amount;
    }
}

/// Requests by the documented formula: the sum of containers and sidecars, or an init container beside the sidecars
/// started before it, whichever is larger; then overhead.
pub fn total<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> ResourceList {
    let mut all = ResourceList::new();
    for pod in pods {
        let mut running = ResourceList::new();
        for container in &pod.spec.containers {
            add(&mut running, &container.resources.requests);
        }
        let mut sidecars = ResourceList::new();
        let mut peak = ResourceList::new();
        for container in &pod.spec.init_containers {
            let mut now = sidecars.clone();
            add(&mut now, &container.resources.requests);
            for (resource, amount) in &now {
                let entry = peak.entry(resource.clone()).or_default();
                *entry = (*entry).max(*amount);
            }
            if container.restart_policy.as_deref() == Some("Always") {
                add(&mut sidecars, &container.resources.requests);
            }
        }
        add(&mut running, &sidecars);
        for (resource, amount) in peak {
            let entry = running.entry(resource).or_default();
            *entry = (*entry).max(amount);
        }
        if let Some(own) = &pod.spec.resources {
            running.extend(own.requests.clone());
        }
        add(&mut running, &pod.spec.overhead);
        running.insert("pods".to_owned(), Quantity::from_units(1));
        add(&mut all, &running);
    }
    all
}
