//! The labels Karpenter knows: which are well known, which aliases they have, and which no user may set.

pub const HOSTNAME: &str = "kubernetes.io/hostname";
pub const ZONE: &str = "topology.kubernetes.io/zone";
pub const REGION: &str = "topology.kubernetes.io/region";
pub const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";
pub const ARCHITECTURE: &str = "kubernetes.io/arch";
pub const OPERATING_SYSTEM: &str = "kubernetes.io/os";
pub const WINDOWS_BUILD: &str = "node.kubernetes.io/windows-build";
pub const NODE_POOL: &str = "karpenter.sh/nodepool";
pub const INITIALIZED: &str = "karpenter.sh/initialized";
pub const REGISTERED: &str = "karpenter.sh/registered";
pub const CAPACITY_TYPE: &str = "karpenter.sh/capacity-type";

pub const CAPACITY_SPOT: &str = "spot";
pub const CAPACITY_ON_DEMAND: &str = "on-demand";
pub const CAPACITY_RESERVED: &str = "reserved";

pub const DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";
/// On a NodePool: the policy that decides which nodes are created for it, `karpenter` or `cost`.
pub const PACKING: &str = "slipway.dev/packing";
pub const DO_NOT_REPAIR: &str = "karpenter.sh/do-not-repair";
pub const DISRUPTION_COST: &str = "karpenter.sh/disruption-cost";
pub const POD_DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
/// On a pod: the deletion cost that was written there because of its node, and that says nothing about the pod.
pub const OWN_DELETION_COST: &str = "karpenter.cluster.x-k8s.io/pod-deletion-cost";

const RESTRICTED_DOMAIN: &str = "karpenter.sh";

const WELL_KNOWN: [&str; 8] = [
    NODE_POOL,
    ZONE,
    REGION,
    INSTANCE_TYPE,
    ARCHITECTURE,
    OPERATING_SYSTEM,
    CAPACITY_TYPE,
    WINDOWS_BUILD,
];

/// The name under which a label is compared: deprecated aliases stand for their successors.
pub fn normalized(key: &str) -> &str {
    match key {
        "failure-domain.beta.kubernetes.io/zone" => ZONE,
        "failure-domain.beta.kubernetes.io/region" => REGION,
        "beta.kubernetes.io/arch" => ARCHITECTURE,
        "beta.kubernetes.io/os" => OPERATING_SYSTEM,
        "beta.kubernetes.io/instance-type" => INSTANCE_TYPE,
        other => other,
    }
}

/// A label whose value the node will get from its instance, so that a pod may ask for it although the pool is silent.
pub fn is_well_known(key: &str, extra: &[String]) -> bool {
    WELL_KNOWN.contains(&key) || extra.iter().any(|known| known == key)
}

/// Why a pod may not select on this label, if it may not.
pub fn restriction(key: &str, extra_well_known: &[String]) -> Option<String> {
    if is_well_known(key, extra_well_known) {
        return None;
    }
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let restricted = domain == RESTRICTED_DOMAIN
        || domain
            .strip_suffix(RESTRICTED_DOMAIN)
            .is_some_and(|rest| rest.ends_with('.'))
        || key == HOSTNAME;
    restricted.then(|| {
        let mut known: Vec<&str> =
            WELL_KNOWN.iter().copied().chain(extra_well_known.iter().map(String::as_str)).collect();
        known.sort_unstable();
        format!(
            "using label {key} is not allowed as it might interfere with the internal provisioning logic; specify a \
             well known label: [{}], or a custom label that does not use a restricted domain: [{RESTRICTED_DOMAIN}]",
            known.join(" ")
        )
    })
}
