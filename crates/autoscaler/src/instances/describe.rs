//! One object, described: capacity, labels, taints, price and limits of the machines that come from it.

use std::collections::BTreeMap;

use slipway_packing::{
    labels::{self, normalized},
    model::{Overhead, ResourceList, Taint},
    quantity::Quantity,
    resources::{CPU, MEMORY, PODS},
};

use super::{
    annotations::{self, AutoscalingOptions, Finding, FindingReason, Reader, is_label},
    price::{Price, PriceList},
    source::{Reference, Source},
};
use crate::startup::StartupTaints;

const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
/// What a kubelet takes if nobody says otherwise.
const DEFAULT_MAX_PODS: i64 = 110;
/// The domains of the labels that Cluster API passes on from Machines to Nodes; their subdomains too but for the first.
const NODE_ROLE: &str = "node-role.kubernetes.io";
const PASSED_ON: [&str; 2] = ["node-restriction.kubernetes.io", "node.cluster.x-k8s.io"];

/// What holds for every object of a NodeClass.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `CAPI_GROUP`.
    pub group: String,
    /// `CAPI_SCALE_ZERO_DEFAULT_ARCH`.
    pub default_architecture: String,
    pub prices: PriceList,
    /// What the NodeClass says that the system keeps.
    pub overhead: Overhead,
    /// Whether a live node knows better.
    pub learn_overhead: bool,
    /// Taints that pods need not tolerate, because they are gone once the node has started.
    pub startup_taints: StartupTaints,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            group: slipway_capi::names::GROUP.to_owned(),
            default_architecture: "amd64".to_owned(),
            prices: PriceList::default(),
            overhead: Overhead::default(),
            learn_overhead: true,
            startup_taints: StartupTaints::default(),
        }
    }
}

/// Devices that a driver hands out by resource claims. They are known and not planned with: pods that need them are refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Devices {
    pub driver: String,
    pub count: i64,
}

/// What a machine of the object is like.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    pub reference: Reference,
    /// The value of the instance type label, given or made up from the size.
    pub instance_type: String,
    /// Whether nobody named the instance type: a Node that has a name of its own keeps it.
    pub name_is_made_up: bool,
    /// Empty if nobody says where it is.
    pub zone: String,
    pub capacity_type: String,
    /// Every other label that a Node of it will have.
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    pub capacity: ResourceList,
    pub overhead: Overhead,
    pub volume_limits: BTreeMap<String, u32>,
    pub devices: Option<Devices>,
    pub price: Price,
    pub min_size: i32,
    pub max_size: Option<i32>,
    pub replicas: i32,
    pub options: AutoscalingOptions,
    /// Why no machine can be had of it now.
    pub unavailable: Option<String>,
}

impl Shape {
    /// What is left for pods.
    pub fn allocatable(&self) -> ResourceList {
        let overhead = self.overhead.total();
        let left = |(name, amount): (&String, &Quantity)| {
            let kept = overhead.get(name).copied().unwrap_or_default();
            (name.clone(), (*amount - kept).max(Quantity::ZERO))
        };
        self.capacity.iter().map(left).collect()
    }

    /// Labels that a claim on it gets, those of packing's offerings among them.
    pub fn claim_labels(&self) -> BTreeMap<String, String> {
        let mut all = self.labels.clone();
        all.insert(labels::INSTANCE_TYPE.to_owned(), self.instance_type.clone());
        all.insert(labels::CAPACITY_TYPE.to_owned(), self.capacity_type.clone());
        if !self.zone.is_empty() {
            all.insert(labels::ZONE.to_owned(), self.zone.clone());
        }
        all
    }
}

/// Describes an object. Without a shape one of the findings says why it is left out.
pub fn describe(source: &Source, settings: &Settings) -> (Option<Shape>, Vec<Finding>) {
    let mut reader = Reader {
        object: &source.reference,
        annotations: &source.annotations,
        group: &settings.group,
        findings: Vec::new(),
    };
    let capacity = capacity(source, &mut reader);
    let devices = devices(&mut reader);
    let mut known = labels_of(source, settings, &mut reader);
    let taints = reader
        .taints(&source.template_taints)
        .into_iter()
        .filter(|taint| !settings.startup_taints.covers(taint))
        .collect();
    let volume_limits = reader.volume_limits();
    let (min_size, max_size) = reader.sizes();
    let options = reader.options();
    let said_price = reader.price();

    let zone = known.remove(labels::ZONE).unwrap_or_default();
    let capacity_type = known.remove(labels::CAPACITY_TYPE).unwrap_or_else(|| {
        let interruptible = source
            .template_labels
            .contains_key(slipway_capi::names::label::INTERRUPTIBLE);
        let kind = if interruptible {
            labels::CAPACITY_SPOT
        } else {
            labels::CAPACITY_ON_DEMAND
        };
        kind.to_owned()
    });
    let given_name = known.remove(labels::INSTANCE_TYPE);
    let name_is_made_up = given_name.is_none();
    let instance_type = given_name.unwrap_or_else(|| size_name(&capacity));
    let price = said_price
        .or_else(|| settings.prices.find(&instance_type, &zone, &capacity_type))
        .map_or_else(|| Price::guess(&capacity), Price::Known);
    let can_be_used = !reader.findings.iter().any(|finding| finding.excludes);
    if can_be_used && matches!(price, Price::Guessed(_)) {
        reader.note(
            FindingReason::PriceUnknown,
            false,
            format!(
                "no price is known for its machines, so they are ordered by size; set {} or list it in the NodeClass's price list",
                annotations::PRICE
            ),
        );
    }
    let shape = Shape {
        reference: source.reference.clone(),
        instance_type,
        name_is_made_up,
        zone,
        capacity_type,
        labels: known,
        taints,
        overhead: overhead(source, settings),
        capacity,
        volume_limits,
        devices,
        price,
        min_size,
        max_size,
        replicas: source.replicas,
        options,
        unavailable: unavailable(source, max_size),
    };
    (can_be_used.then_some(shape), reader.findings)
}

/// The annotation first, then what the infrastructure provider says, then what a live node has.
fn capacity(source: &Source, reader: &mut Reader<'_>) -> ResourceList {
    let mut capacity: ResourceList = source
        .live
        .iter()
        .flat_map(|live| live.capacity.iter())
        .map(|(name, amount)| (name.clone(), *amount))
        .collect();
    for (name, text) in &source.infrastructure.capacity {
        match text.parse::<Quantity>() {
            Ok(amount) if !amount.is_negative() => {
                capacity.insert(name.clone(), amount);
            }
            _ => reader.note(
                FindingReason::InvalidCapacity,
                true,
                format!(
                    "status.capacity of its machine template says {name} {text:?}, which is no amount; annotations on the object \
                     itself would count before it"
                ),
            ),
        }
    }
    let annotated = [
        (CPU, reader.quantity(annotations::CPU)),
        (MEMORY, reader.quantity(annotations::MEMORY)),
        (EPHEMERAL_STORAGE, reader.quantity(annotations::EPHEMERAL_DISK)),
        (
            PODS,
            reader.count(annotations::MAX_PODS).map(Quantity::from_units),
        ),
    ];
    for (name, amount) in annotated {
        if let Some(amount) = amount {
            capacity.insert(name.to_owned(), amount);
        }
    }
    let count = reader.count(annotations::GPU_COUNT);
    let kind = reader.name(annotations::GPU_TYPE);
    match (count, kind) {
        (Some(count), Some(kind)) => {
            capacity.insert(kind, Quantity::from_units(count));
        }
        (Some(_), None) if reader.name(annotations::DRA_DRIVER).is_none() => reader.note(
            FindingReason::InvalidAnnotation,
            false,
            format!(
                "annotation {} counts devices that nobody names; add {}, e.g. nvidia.com/gpu",
                annotations::GPU_COUNT,
                annotations::GPU_TYPE
            ),
        ),
        _ => {}
    }
    if capacity.get(PODS).is_none_or(|pods| pods.is_zero()) {
        capacity.insert(PODS.to_owned(), Quantity::from_units(DEFAULT_MAX_PODS));
    }
    let is_missing = |name: &&str| capacity.get(name).is_none_or(|amount| amount.is_zero());
    let missing: Vec<&str> = [CPU, MEMORY]
        .into_iter()
        .filter(|name| is_missing(name))
        .collect();
    if !missing.is_empty() && !reader.findings.iter().any(|finding| finding.excludes) {
        reader.note(
            FindingReason::CapacityUnknown,
            true,
            format!(
                "nothing says how much {} its machines have: set {} and {}, or use an infrastructure provider that fills in \
                 status.capacity of its machine templates",
                missing.join(" and "),
                annotations::CPU,
                annotations::MEMORY
            ),
        );
    }
    capacity
}

fn devices(reader: &mut Reader<'_>) -> Option<Devices> {
    let driver = reader.name(annotations::DRA_DRIVER)?;
    // Whether the count is one was said where the capacity was read.
    let count = reader.name(annotations::GPU_COUNT)?.parse().ok()?;
    Some(Devices { driver, count })
}

/// Annotation over what Cluster API passes on over what a live node has over what can be known of every machine.
fn labels_of(source: &Source, settings: &Settings, reader: &mut Reader<'_>) -> BTreeMap<String, String> {
    let mut known = BTreeMap::new();
    known.insert(
        labels::ARCHITECTURE.to_owned(),
        settings.default_architecture.clone(),
    );
    known.insert(labels::OPERATING_SYSTEM.to_owned(), "linux".to_owned());
    let learnt = [
        labels::ARCHITECTURE,
        labels::OPERATING_SYSTEM,
        labels::INSTANCE_TYPE,
        labels::ZONE,
        labels::REGION,
    ];
    for (key, value) in source.live.iter().flat_map(|live| &live.labels) {
        let key = normalized(key);
        if learnt.contains(&key) && !value.is_empty() {
            known.insert(key.to_owned(), value.clone());
        }
    }
    let infrastructure = [
        (labels::ARCHITECTURE, &source.infrastructure.architecture),
        (labels::OPERATING_SYSTEM, &source.infrastructure.operating_system),
        (labels::ZONE, &source.failure_domain),
    ];
    for (key, value) in infrastructure {
        if !value.is_empty() && is_label(key, value) {
            known.insert(key.to_owned(), value.clone());
        }
    }
    for (key, value) in &source.template_labels {
        if is_passed_on(key) {
            known.insert(normalized(key).to_owned(), value.clone());
        }
    }
    for (key, value) in reader.labels() {
        known.insert(normalized(&key).to_owned(), value);
    }
    known.remove(labels::HOSTNAME);
    known
}

fn is_passed_on(key: &str) -> bool {
    let domain = key.split('/').next().unwrap_or_default();
    domain == NODE_ROLE
        || PASSED_ON.iter().any(|known| {
            domain == *known || domain.strip_suffix(known).is_some_and(|rest| rest.ends_with('.'))
        })
}

fn overhead(source: &Source, settings: &Settings) -> Overhead {
    let Some(live) = source.live.as_ref().filter(|_| settings.learn_overhead) else {
        return settings.overhead.clone();
    };
    let kept: ResourceList = live
        .capacity
        .iter()
        .filter_map(|(name, capacity)| {
            let kept = *capacity - *live.allocatable.get(name)?;
            (!kept.is_zero() && !kept.is_negative()).then(|| (name.clone(), kept))
        })
        .collect();
    Overhead {
        kube_reserved: kept,
        ..Overhead::default()
    }
}

fn unavailable(source: &Source, max_size: Option<i32>) -> Option<String> {
    if source.is_paused {
        return Some("it is paused".to_owned());
    }
    let most = max_size.filter(|most| source.replicas >= *most)?;
    Some(format!("it has {} of at most {most} replicas", source.replicas))
}

/// A name for machines that nobody named, so that equal ones are one type.
fn size_name(capacity: &ResourceList) -> String {
    let named = |name: &str| capacity.get(name).map(ToString::to_string).unwrap_or_default();
    let mut text = format!("{}cpu-{}", named(CPU), named(MEMORY));
    for (name, amount) in capacity.iter().filter(|(name, _)| name.contains('/')) {
        text = format!("{text}-{amount}x{}", name.rsplit('/').next().unwrap_or_default());
    }
    let mut text: String = text
        .chars()
        .map(|it| {
            if it.is_ascii_alphanumeric() {
                it.to_ascii_lowercase()
            } else {
                '-'
            }
        })
        .take(63)
        .collect();
    while text.ends_with('-') {
        text.pop();
    }
    text
}
