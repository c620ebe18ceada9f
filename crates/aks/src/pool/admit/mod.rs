//! Admission of AzureManagedMachinePools: what a pool must fulfil, and the handlers that fetch the facts.

pub mod update;

use std::sync::LazyLock;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{Api, Client, ResourceExt, api::ListParams};
use regex::Regex;
use serde_json::json;
use slipway_capi::{
    annotations::is_deleted_for_move,
    names::{annotation, label},
    view::Cluster,
};
use slipway_runtime::admission::{
    Admission, Change, Operation, Verdict,
    field::{FieldError, Path},
};

use crate::{
    admit::{
        existing,
        handler::{cluster_key, is_leaving, validating_with},
        names, patches,
    },
    api::{
        AzureManagedMachinePool, KubeletConfig, LABEL_AGENT_POOL_MODE, LinuxOsConfig, MODE_SYSTEM, PoolClass,
    },
};

/// What validation of a pool must know of its Cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OtherSystemPools {
    /// The object names no Cluster, or the Cluster is gone or being deleted.
    NotNeeded,
    /// The apiserver did not tell.
    Unreadable(String),
    /// How many other system pools the Cluster has that are not being deleted.
    Count(usize),
}

const PREFIX_PATTERN: &str = r"(?i)^/?subscriptions/[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}/resourcegroups/[^/]+/providers/microsoft\.network/publicipprefixes/[^/]+$";
const SUBNET_PATTERN: &str = "^[a-zA-Z0-9][a-zA-Z0-9._-]{0,78}[a-zA-Z0-9]$";
/// Labels below this are AKS's own.
pub const RESERVED_LABELS: &str = "kubernetes.azure.com";
/// The most nodes AKS takes in one pool.
pub const MOST_NODES: i64 = 1000;

static PREFIX: LazyLock<Regex> = LazyLock::new(|| Regex::new(PREFIX_PATTERN).expect("a pattern"));
static SUBNET: LazyLock<Regex> = LazyLock::new(|| Regex::new(SUBNET_PATTERN).expect("a pattern"));
static SYSCTL: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^(kernel\.shm.+|kernel\.msg.+|kernel\.sem|fs\.mqueue\..+|net\..+)$").expect("a pattern")
});
static PORTS: LazyLock<Regex> = LazyLock::new(|| Regex::new("^[0-9]+ [0-9]+$").expect("a pattern"));

/// Everything a new pool must fulfil.
pub fn validate(root: &Path, class: &PoolClass, object_name: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Some(pods) = class.max_pods.filter(|pods| !(10..=250).contains(pods)) {
        errors.push(FieldError::invalid(
            &root.child("maxPods"),
            pods,
            "MaxPods must be between 10 and 250",
        ));
    }
    let system = class.mode == MODE_SYSTEM;
    if system && class.os_type.as_deref().is_some_and(|system| system != "Linux") {
        errors.push(FieldError::forbidden(
            &root.child("osType"),
            "System node pool must have OSType 'Linux'",
        ));
    }
    errors.extend(name(root, class, object_name));
    errors.extend(node_labels(root, class));
    if let Some(id) = class.node_public_ip_prefix_id.as_deref() {
        if !PREFIX.is_match(id) {
            let detail = format!("resource ID must match {PREFIX_PATTERN:?}");
            errors.push(FieldError::invalid(
                &root.child("nodePublicIPPrefixID"),
                id,
                detail,
            ));
        }
        if class.enable_node_public_ip != Some(true) {
            errors.push(FieldError::invalid(
                &root.child("enableNodePublicIP"),
                json!(class.enable_node_public_ip),
                "must be set to true when NodePublicIPPrefixID is set",
            ));
        }
    }
    errors.extend(
        class
            .kubelet_config
            .as_ref()
            .and_then(|config| kubelet(&root.child("kubeletConfig"), config)),
    );
    if let Some(config) = &class.linux_os_config {
        errors.extend(linux(
            &root.child("linuxOSConfig"),
            config,
            class.kubelet_config.as_ref(),
        ));
    }
    if let Some(subnet) = class
        .subnet_name
        .as_deref()
        .filter(|subnet| !SUBNET.is_match(subnet))
    {
        let detail = format!("name of subnet doesn't match regex {SUBNET_PATTERN}");
        errors.push(FieldError::invalid(&root.child("subnetName"), subnet, detail));
    }
    if system && class.scale_set_priority.as_deref() == Some("Spot") {
        errors.push(FieldError::forbidden(
            &root.child("scaleSetPriority"),
            "AKS does not take Spot for a System node pool: its nodes can be taken away at any time",
        ));
    }
    errors.extend(always(root, class));
    errors
}

/// What must hold after a change too, because what it is about can change.
pub fn always(root: &Path, class: &PoolClass) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Some(scaling) = &class.scaling {
        let path = root.child("scaling");
        let least = scaling.min_size.unwrap_or(0);
        let most = scaling.max_size.unwrap_or(MOST_NODES);
        for (name, value) in [("minSize", scaling.min_size), ("maxSize", scaling.max_size)] {
            if let Some(value) = value.filter(|value| !(0..=MOST_NODES).contains(value)) {
                errors.push(FieldError::invalid(
                    &path.child(name),
                    value,
                    format!("must be between 0 and {MOST_NODES}"),
                ));
            }
        }
        if least > most {
            errors.push(FieldError::invalid(
                &path.child("minSize"),
                least,
                "must not be greater than maxSize",
            ));
        }
        if class.mode == MODE_SYSTEM && scaling.min_size == Some(0) {
            errors.push(FieldError::invalid(
                &path.child("minSize"),
                0,
                "must be at least 1 for a System node pool",
            ));
        }
    }
    errors.extend(names::nodes(root, class));
    errors.extend(spot_price(root, class));
    errors.extend(patches::validate(
        &root.child("asoManagedClustersAgentPoolPatches"),
        &class.aso_managed_clusters_agent_pool_patches,
    ));
    errors
}

/// A price as AKS takes it: a number above zero, or -1 for the on-demand price.
pub fn price(price: &IntOrString) -> Option<f64> {
    match price {
        IntOrString::Int(price) => Some(f64::from(*price)),
        IntOrString::String(text) => {
            let (digits, factor) = match text.char_indices().last()? {
                (end, 'm') => (&text[..end], 1e-3),
                (end, 'u') => (&text[..end], 1e-6),
                (end, 'n') => (&text[..end], 1e-9),
                (end, 'k') => (&text[..end], 1e3),
                _ => (text.as_str(), 1.0),
            };
            digits.parse::<f64>().ok().map(|number| number * factor)
        }
    }
    .filter(|number| number.is_finite())
}

fn spot_price(root: &Path, class: &PoolClass) -> Option<FieldError> {
    let stated = class.spot_max_price.as_ref()?;
    let path = root.child("spotMaxPrice");
    if class.scale_set_priority.as_deref() != Some("Spot") {
        return Some(FieldError::forbidden(
            &path,
            "can only be set when scaleSetPriority is Spot",
        ));
    }
    let right = price(stated).is_some_and(|price| price > 0.0 || (price + 1.0).abs() < f64::EPSILON);
    (!right).then(|| {
        FieldError::invalid(
            &path,
            json!(stated),
            "must be greater than zero, or -1 for the on-demand price",
        )
    })
}

fn name(root: &Path, class: &PoolClass, object_name: &str) -> Option<FieldError> {
    let path = root.child("name");
    let (name, what) = match class.name.as_deref().filter(|name| !name.is_empty()) {
        Some(name) => (name, "spec.name"),
        None => (object_name, "when spec.name is empty, metadata.name"),
    };
    let windows = class.os_type.as_deref() == Some("Windows");
    let (system, longest) = if windows { ("Windows", 6) } else { ("Linux", 12) };
    if name.len() > longest {
        return Some(FieldError::invalid(
            &path,
            name,
            format!("For OSType {system}, {what} can not be longer than {longest} characters."),
        ));
    }
    if name.is_empty() {
        return None;
    }
    if !name.starts_with(|first: char| first.is_ascii_lowercase()) {
        return Some(FieldError::invalid(
            &path,
            name,
            format!("{what} must begin with a lowercase letter."),
        ));
    }
    let plain = name
        .chars()
        .all(|character| character.is_ascii_lowercase() || character.is_ascii_digit());
    (!plain).then(|| {
        FieldError::invalid(
            &path,
            name,
            format!("{what} may only contain lowercase alphanumeric characters."),
        )
    })
}

pub fn node_labels(root: &Path, class: &PoolClass) -> Option<FieldError> {
    let reserved = class
        .node_labels
        .keys()
        .find(|key| key.starts_with(RESERVED_LABELS))?;
    Some(FieldError::invalid(
        &root.child("nodeLabels"),
        reserved.as_str(),
        format!("Node pool label key must not start with {RESERVED_LABELS}"),
    ))
}

fn kubelet(path: &Path, config: &KubeletConfig) -> Option<FieldError> {
    if let Some(period) = config
        .cpu_cfs_quota_period
        .as_deref()
        .filter(|period| !period.ends_with("ms"))
    {
        return Some(FieldError::invalid(
            &path.child("cpuCfsQuotaPeriod"),
            period,
            "must be a string value in milliseconds with a 'ms' suffix, e.g., '100ms'",
        ));
    }
    if let (Some(low), Some(high)) = (config.image_gc_low_threshold, config.image_gc_high_threshold)
        && low > high
    {
        return Some(FieldError::invalid(
            &path.child("imageGcLowThreshold"),
            low,
            format!(
                "must not be greater than ImageGcHighThreshold, ImageGcLowThreshold={low}, ImageGcHighThreshold={high}"
            ),
        ));
    }
    let refused = config
        .allowed_unsafe_sysctls
        .iter()
        .find(|name| !SYSCTL.is_match(name))?;
    Some(FieldError::invalid(
        &path.child("allowedUnsafeSysctls"),
        json!(config.allowed_unsafe_sysctls),
        format!("{refused} is not a supported AllowedUnsafeSysctls configuration"),
    ))
}

fn linux(path: &Path, config: &LinuxOsConfig, kubelet: Option<&KubeletConfig>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Some(size) = config.swap_file_size_mb
        && kubelet.and_then(|kubelet| kubelet.fail_swap_on).unwrap_or(true)
    {
        errors.push(FieldError::invalid(
            &path.child("swapFileSizeMB"),
            size,
            "KubeletConfig.FailSwapOn must be set to false to enable swap file on nodes",
        ));
    }
    let ports = config
        .sysctls
        .as_ref()
        .and_then(|sysctls| sysctls.net_ipv4_ip_local_port_range.as_deref());
    let Some(ports) = ports else { return errors };
    let path = path.child("sysctls").child("netIpv4IPLocalPortRange");
    if !PORTS.is_match(ports) {
        errors.push(FieldError::invalid(
            &path,
            ports,
            "LinuxOSConfig.Sysctls.NetIpv4IpLocalPortRange must be of the format \"<int> <int>\"",
        ));
        return errors;
    }
    // A number too long to be read is out of every range.
    let mut numbers = ports
        .split(' ')
        .map(|port| port.parse::<u64>().unwrap_or(u64::MAX));
    let (first, last) = (
        numbers.next().unwrap_or_default(),
        numbers.next().unwrap_or_default(),
    );
    if !(1024..=60999).contains(&first) {
        errors.push(FieldError::invalid(
            &path,
            ports,
            format!("first port of NetIpv4IpLocalPortRange={first} must be in between [1024 - 60999]"),
        ));
    }
    if !(32768..=65000).contains(&last) {
        errors.push(FieldError::invalid(
            &path,
            ports,
            format!("last port of NetIpv4IpLocalPortRange={last} must be in between [32768 -65000]"),
        ));
    }
    if first > last {
        errors.push(FieldError::invalid(
            &path,
            ports,
            format!(
                "first port of NetIpv4IpLocalPortRange={first} cannot be greater than last port of NetIpv4IpLocalPortRange={last}"
            ),
        ));
    }
    errors
}

/// What a user left open in a pool or a template of one.
pub(crate) fn default_class(class: &mut PoolClass, name: &str) {
    if class.name.as_deref().unwrap_or_default().is_empty() {
        class.name = Some(name.to_owned());
    }
    class.os_type.get_or_insert_with(|| "Linux".to_owned());
}

/// What a user left open and the schema cannot fill in.
pub fn default(pool: &mut AzureManagedMachinePool) {
    let (name, mode) = (pool.name_any(), pool.spec.class.mode.clone());
    pool.labels_mut().insert(LABEL_AGENT_POOL_MODE.to_owned(), mode);
    default_class(&mut pool.spec.class, &name);
}

pub fn verdict(change: &Change<AzureManagedMachinePool>, others: &OtherSystemPools) -> Verdict {
    let root = Path::new("spec");
    match (&change.old, &change.new) {
        (Some(old), None) => {
            let guarded = old.spec.class.mode == MODE_SYSTEM && !is_deleted_for_move(&old.metadata);
            match update::keeps_last_system_pool(others) {
                Err(message) if guarded => Verdict::Forbidden { message },
                _ => Verdict::allowed(),
            }
        }
        (_, Some(new)) if is_leaving(new) => Verdict::allowed(),
        (Some(old), Some(new)) => Verdict::from_errors(
            update::validate_pool(
                &root,
                (&old.spec.class, &new.spec.class),
                &new.name_any(),
                existing::of_pool(old),
                others,
            ),
            Vec::new(),
        ),
        (None, Some(new)) => {
            Verdict::from_errors(validate(&root, &new.spec.class, &new.name_any()), Vec::new())
        }
        (None, None) => Verdict::allowed(),
    }
}

async fn other_system_pools(change: &Change<AzureManagedMachinePool>, client: &Client) -> OtherSystemPools {
    let Some(old) = &change.old else {
        return OtherSystemPools::NotNeeded;
    };
    let stops = old.spec.class.mode == MODE_SYSTEM
        && change
            .new
            .as_ref()
            .is_none_or(|new| new.spec.class.mode != MODE_SYSTEM);
    let Some((namespace, cluster)) = cluster_key(old).filter(|_| stops) else {
        return OtherSystemPools::NotNeeded;
    };
    if old.annotations().contains_key(annotation::DELETE_FOR_MOVE) {
        return OtherSystemPools::NotNeeded;
    }
    match Api::<Cluster>::namespaced(client.clone(), &namespace)
        .get_opt(&cluster)
        .await
    {
        Ok(None) => return OtherSystemPools::NotNeeded,
        Ok(Some(cluster)) if cluster.metadata.deletion_timestamp.is_some() => {
            return OtherSystemPools::NotNeeded;
        }
        Ok(Some(_)) => {}
        Err(error) => {
            return OtherSystemPools::Unreadable(format!("reading Cluster {namespace}/{cluster}: {error}"));
        }
    }
    let selector = format!(
        "{}={cluster},{LABEL_AGENT_POOL_MODE}={MODE_SYSTEM}",
        label::CLUSTER_NAME
    );
    let pools: Api<AzureManagedMachinePool> = Api::namespaced(client.clone(), &namespace);
    match pools.list(&ListParams::default().labels(&selector)).await {
        Ok(list) => OtherSystemPools::Count(
            list.items
                .iter()
                .filter(|pool| {
                    pool.name_any() != old.name_any() && pool.metadata.deletion_timestamp.is_none()
                })
                .count(),
        ),
        Err(error) => OtherSystemPools::Unreadable(format!(
            "listing the system pools of {namespace}/{cluster}: {error}"
        )),
    }
}

pub fn defaulting() -> Admission {
    Admission::defaulting::<AzureManagedMachinePool>(|new, _| default(new))
}

pub fn validating() -> Admission {
    validating_with::<AzureManagedMachinePool, _>(
        &[Operation::Create, Operation::Update, Operation::Delete],
        |_, change, client| async move {
            let others = other_system_pools(&change, &client).await;
            verdict(&change, &others)
        },
    )
}
