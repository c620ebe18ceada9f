//! What a pod asks for, counted as the kube-scheduler counts it: init containers, sidecars, pod overhead, pod-level
//! requests, and resizes under way.

use smallvec::SmallVec;

use crate::model::{Container, ContainerStatus, Pod, ResourceList};
use crate::quantity::Quantity;

pub const CPU: &str = "cpu";
pub const MEMORY: &str = "memory";
pub const PODS: &str = "pods";
/// The pseudo resource by which a pool limits its node count.
pub const NODES: &str = "nodes";

fn add(into: &mut ResourceList, list: &ResourceList) {
    for (name, quantity) in list {
        if let Some(present) = into.get_mut(name) {
            *present += *quantity;
        } else {
            into.insert(name.clone(), *quantity);
        }
    }
}

fn raise(into: &mut ResourceList, list: &ResourceList) {
    for (name, quantity) in list {
        match into.get_mut(name) {
            Some(present) if *quantity <= *present => {}
            Some(present) => *present = *quantity,
            None => {
                into.insert(name.clone(), *quantity);
            }
        }
    }
}

/// During a resize the node holds the larger of what is required and what is allocated; a resize that can never happen
/// leaves what is allocated.
fn effective(pod: &Pod, container: &Container, statuses: &[ContainerStatus]) -> ResourceList {
    let status = statuses.iter().find(|status| status.name == container.name);
    let Some((status, actual)) = status.and_then(|status| Some((status, status.resources.as_ref()?))) else {
        return container.resources.requests.clone();
    };
    let infeasible = pod
        .status
        .conditions
        .iter()
        .find(|condition| condition.kind == "PodResizePending")
        .is_some_and(|condition| condition.reason == "Infeasible");
    let mut result = actual.requests.clone();
    raise(&mut result, &status.allocated_resources);
    if !infeasible {
        raise(&mut result, &container.resources.requests);
    }
    result
}

/// The pod's requests without the slot it takes itself.
pub fn pod_requests(pod: &Pod) -> ResourceList {
    let mut total = ResourceList::new();
    for container in &pod.spec.containers {
        if pod.status.container_statuses.is_empty() {
            add(&mut total, &container.resources.requests);
        } else {
            add(
                &mut total,
                &effective(pod, container, &pod.status.container_statuses),
            );
        }
    }
    let mut sidecars = ResourceList::new();
    let mut starting = ResourceList::new();
    for container in &pod.spec.init_containers {
        if container.restart_policy.as_deref() == Some("Always") {
            let requests = effective(pod, container, &pod.status.init_container_statuses);
            add(&mut total, &requests);
            add(&mut sidecars, &requests);
            raise(&mut starting, &sidecars);
        } else {
            let mut requests = container.resources.requests.clone();
            add(&mut requests, &sidecars);
            raise(&mut starting, &requests);
        }
    }
    raise(&mut total, &starting);
    if let Some(pod_level) = &pod.spec.resources {
        for (name, quantity) in &pod_level.requests {
            if name == CPU || name == MEMORY || name.starts_with("hugepages-") {
                total.insert(name.clone(), *quantity);
            }
        }
    }
    add(&mut total, &pod.spec.overhead);
    total
}

/// Sums lists.
pub fn sum<'a>(lists: impl IntoIterator<Item = &'a ResourceList>) -> ResourceList {
    let mut total = ResourceList::new();
    for list in lists {
        add(&mut total, list);
    }
    total
}

/// Amounts by the index a [`ResourceTable`] gave their names, in billionths. Missing means none.
pub(crate) type Amounts = SmallVec<[i128; 6]>;

/// Names of resources as small integers.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResourceTable {
    names: Vec<String>,
}

impl ResourceTable {
    pub fn index(&mut self, name: &str) -> usize {
        self.names
            .iter()
            .position(|known| known == name)
            .unwrap_or_else(|| {
                self.names.push(name.to_owned());
                self.names.len() - 1
            })
    }

    pub fn name(&self, index: usize) -> &str {
        &self.names[index]
    }

    pub fn len(&self) -> usize {
        self.names.len()
    }

    pub fn amounts(&mut self, list: &ResourceList) -> Amounts {
        let mut amounts = Amounts::new();
        for (name, quantity) in list {
            let index = self.index(name);
            if amounts.len() <= index {
                amounts.resize(index + 1, 0);
            }
            amounts[index] = quantity.nanos();
        }
        amounts
    }
}

pub(crate) fn amount(amounts: &Amounts, index: usize) -> i128 {
    amounts.get(index).copied().unwrap_or(0)
}

pub(crate) fn add_amounts(into: &mut Amounts, other: &Amounts) {
    if into.len() < other.len() {
        into.resize(other.len(), 0);
    }
    for (amount, other) in into.iter_mut().zip(other) {
        *amount += other;
    }
}

pub(crate) fn subtract_amounts(from: &mut Amounts, other: &Amounts) {
    if from.len() < other.len() {
        from.resize(other.len(), 0);
    }
    for (amount, other) in from.iter_mut().zip(other) {
        *amount -= other;
    }
}

/// Prints a list as `cpu=2, memory=1Gi`.
pub(crate) fn display(list: &ResourceList) -> String {
    let shown: Vec<String> = list
        .iter()
        .map(|(name, quantity)| format!("{name:?}:\"{quantity}\""))
        .collect();
    format!("{{{}}}", shown.join(","))
}

/// One, as a quantity.
pub(crate) const ONE: Quantity = Quantity::from_units(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Condition, PodSpec, PodStatus, ResourceRequirements};

    fn list(cpu: &str, memory: &str) -> ResourceList {
        ResourceList::from([
            (CPU.to_owned(), cpu.parse().expect("a quantity")),
            (MEMORY.to_owned(), memory.parse().expect("a quantity")),
        ])
    }

    fn container(cpu: &str, memory: &str, restart_policy: Option<&str>) -> Container {
        Container {
            name: format!("{cpu}-{memory}"),
            resources: ResourceRequirements {
                requests: list(cpu, memory),
                ..Default::default()
            },
            restart_policy: restart_policy.map(str::to_owned),
            ..Default::default()
        }
    }

    fn pod(init: Vec<Container>, main: Vec<Container>) -> Pod {
        Pod {
            spec: PodSpec {
                init_containers: init,
                containers: main,
                ..Default::default()
            },
            ..Default::default()
        }
    }

    #[test]
    fn init_containers_raise_and_sidecars_add() {
        // A large init container decides; it runs beside the sidecars started before it, not those after.
        let with_init = pod(
            vec![container("4", "1Gi", None)],
            vec![container("1", "2Gi", None)],
        );
        assert_eq!(pod_requests(&with_init), list("4", "2Gi"));
        let sidecar_first = pod(
            vec![container("1", "1Gi", Some("Always")), container("3", "1Gi", None)],
            vec![container("1", "1Gi", None)],
        );
        assert_eq!(pod_requests(&sidecar_first), list("4", "2Gi"));
        let sidecar_last = pod(
            vec![container("3", "1Gi", None), container("1", "1Gi", Some("Always"))],
            vec![container("1", "1Gi", None)],
        );
        assert_eq!(pod_requests(&sidecar_last), list("3", "2Gi"));
    }

    #[test]
    fn overhead_and_pod_level_requests() {
        let mut with_overhead = pod(vec![], vec![container("1", "1Gi", None)]);
        with_overhead.spec.overhead = list("2", "1Gi");
        assert_eq!(pod_requests(&with_overhead), list("3", "2Gi"));
        with_overhead.spec.resources = Some(ResourceRequirements {
            requests: list("5", "5Gi"),
            ..Default::default()
        });
        assert_eq!(pod_requests(&with_overhead), list("7", "6Gi"));
    }

    #[test]
    fn a_resize_counts_the_larger_unless_it_cannot_happen() {
        let mut resizing = pod(vec![], vec![container("2", "2Gi", None)]);
        resizing.status = PodStatus {
            container_statuses: vec![ContainerStatus {
                name: "2-2Gi".to_owned(),
                allocated_resources: list("1", "3Gi"),
                resources: Some(ResourceRequirements {
                    requests: list("1", "1Gi"),
                    ..Default::default()
                }),
            }],
            ..Default::default()
        };
        assert_eq!(pod_requests(&resizing), list("2", "3Gi"));
        resizing.status.conditions.push(Condition {
            kind: "PodResizePending".to_owned(),
            reason: "Infeasible".to_owned(),
            ..Default::default()
        });
        assert_eq!(pod_requests(&resizing), list("1", "3Gi"));
    }
}
