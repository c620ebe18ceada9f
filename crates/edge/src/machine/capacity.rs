//! What a node of a template will have, for scaling from zero: the least that any host it may get has. Pure.

use super::{
    api::{EdgeMachineSpec, EdgeMachineTemplateStatus, NodeInfo},
    claim::{Candidate, too_small},
};
use crate::selector;

/// Kubernetes' name for what a kernel calls itself.
pub fn architecture(kernel: &str) -> &str {
    match kernel {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "armv7l" => "arm",
        other => other,
    }
}

/// Empty while no host of that kind is known: nothing is promised then.
pub fn of_template(spec: &EdgeMachineSpec, hosts: &[Candidate]) -> EdgeMachineTemplateStatus {
    let known: Vec<_> = hosts
        .iter()
        .filter(|host| selector::selects(spec.host_selector.as_ref(), &host.labels))
        .filter(|host| too_small(spec.minimum.as_ref(), host.hardware.as_ref()).is_none())
        .filter_map(|host| host.hardware.as_ref())
        .filter(|hardware| hardware.processors > 0 && hardware.memory_mib > 0)
        .collect();
    let least = |of: fn(&crate::host::api::Hardware) -> u64| known.iter().map(|hardware| of(hardware)).min();
    let (Some(processors), Some(memory)) = (
        least(|hardware| u64::from(hardware.processors)),
        least(|hardware| hardware.memory_mib),
    ) else {
        return EdgeMachineTemplateStatus::default();
    };
    let first = known.first().map(|hardware| hardware.architecture.as_str());
    // Hosts of two kinds: nothing is said, rather than something wrong.
    let same = known
        .iter()
        .all(|hardware| Some(hardware.architecture.as_str()) == first);
    EdgeMachineTemplateStatus {
        capacity: [
            ("cpu".to_owned(), processors.to_string()),
            ("memory".to_owned(), format!("{memory}Mi")),
        ]
        .into(),
        node_info: first.filter(|_| same).map(|first| NodeInfo {
            architecture: architecture(first).to_owned(),
            operating_system: "linux".to_owned(),
        }),
    }
}
