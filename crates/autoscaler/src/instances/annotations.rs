//! What Cluster Autoscaler's annotations on an object say, by the exact names and formats its users have written.

use std::{collections::BTreeMap, fmt};

use slipway_packing::{model::Taint, quantity::Quantity, taints::is_same, time::duration_seconds};

use super::source::Reference;

pub const CPU: &str = "capacity.cluster-autoscaler.kubernetes.io/cpu";
pub const MEMORY: &str = "capacity.cluster-autoscaler.kubernetes.io/memory";
pub const EPHEMERAL_DISK: &str = "capacity.cluster-autoscaler.kubernetes.io/ephemeral-disk";
pub const MAX_PODS: &str = "capacity.cluster-autoscaler.kubernetes.io/maxPods";
pub const GPU_TYPE: &str = "capacity.cluster-autoscaler.kubernetes.io/gpu-type";
pub const GPU_COUNT: &str = "capacity.cluster-autoscaler.kubernetes.io/gpu-count";
pub const DRA_DRIVER: &str = "capacity.cluster-autoscaler.kubernetes.io/dra-driver";
pub const CSI_DRIVER: &str = "capacity.cluster-autoscaler.kubernetes.io/csi-driver";
pub const LABELS: &str = "capacity.cluster-autoscaler.kubernetes.io/labels";
pub const TAINTS: &str = "capacity.cluster-autoscaler.kubernetes.io/taints";
pub const PRICE: &str = "capacity.cluster-autoscaler.kubernetes.io/price";

/// These follow `CAPI_GROUP`.
const MIN_SIZE: &str = "cluster-api-autoscaler-node-group-min-size";
const MAX_SIZE: &str = "cluster-api-autoscaler-node-group-max-size";
const CURRENT_PRICE: &str = "machine-current-price";
const OPTIONS: &str = "autoscaling-options-";
/// The group Cluster API had at first; its sizes are still read.
const FIRST_GROUP: &str = "cluster.k8s.io";

/// Something an object says wrongly, for a condition and an event on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub object: Reference,
    pub reason: FindingReason,
    /// What is wrong, with what, and what to write instead.
    pub message: String,
    /// Whether the object is left out. If not, it is used as if it had not said so.
    pub excludes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FindingReason {
    InvalidAnnotation,
    InvalidCapacity,
    CapacityUnknown,
    PriceUnknown,
    UndeclaredTaint,
}

impl FindingReason {
    pub fn name(self) -> &'static str {
        match self {
            Self::InvalidAnnotation => "InvalidAnnotation",
            Self::InvalidCapacity => "InvalidCapacity",
            Self::CapacityUnknown => "CapacityUnknown",
            Self::PriceUnknown => "PriceUnknown",
            Self::UndeclaredTaint => "UndeclaredTaint",
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{}: {} {}",
            self.object,
            self.reason.name(),
            self.message
        )
    }
}

/// Cluster Autoscaler's settings of one group. How long a node may take is the registration deadline of its claims; the others
/// are for disruption.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AutoscalingOptions {
    pub scale_down_utilization_threshold: Option<f64>,
    pub scale_down_gpu_utilization_threshold: Option<f64>,
    /// In seconds, as the three that follow.
    pub scale_down_unneeded_time: Option<f64>,
    pub scale_down_unready_time: Option<f64>,
    pub max_node_provision_time: Option<f64>,
}

/// Reads one object's annotations and notes what is wrong with them.
pub struct Reader<'a> {
    pub object: &'a Reference,
    pub annotations: &'a BTreeMap<String, String>,
    pub group: &'a str,
    pub findings: Vec<Finding>,
}

impl Reader<'_> {
    /// Empty means absent, as Cluster Autoscaler has it.
    fn text(&self, key: &str) -> Option<&str> {
        self.annotations
            .get(key)
            .map(|value| value.trim())
            .filter(|value| !value.is_empty())
    }

    pub fn note(&mut self, reason: FindingReason, excludes: bool, message: String) {
        self.findings.push(Finding {
            object: self.object.clone(),
            reason,
            message,
            excludes,
        });
    }

    fn wrong(&mut self, key: &str, value: &str, excludes: bool, problem: &str) {
        let message = format!("annotation {key} is {value:?}, and {problem}");
        self.note(FindingReason::InvalidAnnotation, excludes, message);
    }

    /// A Kubernetes quantity; zero is the same as none.
    pub fn quantity(&mut self, key: &str) -> Option<Quantity> {
        let text = self.text(key)?.to_owned();
        match text.parse::<Quantity>() {
            Ok(quantity) if quantity.is_negative() => {
                self.wrong(key, &text, true, "an amount cannot be negative");
                None
            }
            Ok(quantity) => (!quantity.is_zero()).then_some(quantity),
            Err(error) => {
                self.wrong(key, &text, true, &error.to_string());
                None
            }
        }
    }

    /// A whole number; zero is the same as none.
    pub fn count(&mut self, key: &str) -> Option<i64> {
        let text = self.text(key)?.to_owned();
        match text.parse::<i64>() {
            Ok(count) if count >= 0 => (count > 0).then_some(count),
            _ => {
                self.wrong(
                    key,
                    &text,
                    true,
                    "a whole number that is not negative is expected",
                );
                None
            }
        }
    }

    pub fn name(&self, key: &str) -> Option<String> {
        self.text(key).map(str::to_owned)
    }

    /// Least and most replicas. Without a most there is no limit; a most of zero takes no node.
    pub fn sizes(&mut self) -> (i32, Option<i32>) {
        let mut read = |name: &str| -> Option<i32> {
            let keys = [self.group, FIRST_GROUP].map(|group| format!("{group}/{name}"));
            let key = keys.into_iter().find(|key| self.annotations.contains_key(key))?;
            let text = self.annotations[&key].clone();
            match text.trim().parse::<i32>() {
                Ok(size) if size >= 0 => Some(size),
                _ => {
                    self.wrong(
                        &key,
                        &text,
                        true,
                        "a whole number that is not negative is expected",
                    );
                    None
                }
            }
        };
        let (least, most) = (read(MIN_SIZE).unwrap_or(0), read(MAX_SIZE));
        if let Some(most) = most.filter(|most| *most < least) {
            let key = format!("{}/{MAX_SIZE}", self.group);
            self.wrong(
                &key,
                &most.to_string(),
                true,
                &format!("the least size is {least}: raise it or lower that"),
            );
        }
        (least, most)
    }

    /// Whether the object asks an autoscaler to scale it.
    pub fn names_a_most(&self) -> bool {
        [self.group, FIRST_GROUP]
            .iter()
            .any(|group| self.annotations.contains_key(&format!("{group}/{MAX_SIZE}")))
    }

    /// `key=value,key=value`. An entry that is none is left out, the others count.
    pub fn labels(&mut self) -> BTreeMap<String, String> {
        let Some(text) = self.text(LABELS).map(str::to_owned) else {
            return BTreeMap::new();
        };
        let mut labels = BTreeMap::new();
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            match entry.split_once('=') {
                Some((key, value)) if is_label(key, value) => {
                    labels.insert(key.to_owned(), value.to_owned());
                }
                _ => self.wrong(
                    LABELS,
                    &text,
                    false,
                    &format!("{entry:?} is not key=value with a valid label"),
                ),
            }
        }
        labels
    }

    /// `key=value:Effect,key:Effect`, over the template's: the same key and effect is replaced, others are added.
    pub fn taints(&mut self, template: &[Taint]) -> Vec<Taint> {
        let mut taints = template.to_vec();
        let text = self.text(TAINTS).unwrap_or_default().to_owned();
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let Some(taint) = parse_taint(entry) else {
                self.wrong(
                    TAINTS,
                    &text,
                    true,
                    &format!("{entry:?} is not key=value:NoSchedule, :PreferNoSchedule or :NoExecute"),
                );
                continue;
            };
            match taints.iter_mut().find(|known| is_same(known, &taint)) {
                Some(known) => *known = taint,
                None => taints.push(taint),
            }
        }
        taints
    }

    /// `driver=limit,driver=limit`; zero is no limit.
    pub fn volume_limits(&mut self) -> BTreeMap<String, u32> {
        let text = self.text(CSI_DRIVER).unwrap_or_default().to_owned();
        let mut limits = BTreeMap::new();
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let parsed = entry
                .split_once('=')
                .and_then(|(driver, limit)| Some((driver.trim(), limit.trim().parse::<u32>().ok()?)))
                .filter(|(driver, _)| !driver.is_empty());
            match parsed {
                Some((_, 0)) => {}
                Some((driver, limit)) => {
                    limits.insert(driver.to_owned(), limit);
                }
                None => self.wrong(
                    CSI_DRIVER,
                    &text,
                    true,
                    &format!("{entry:?} is not driver=limit with a whole number"),
                ),
            }
        }
        limits
    }

    /// Per hour. A price that is none is said, and the next source counts.
    pub fn price(&mut self) -> Option<f64> {
        for key in [PRICE.to_owned(), format!("{}/{CURRENT_PRICE}", self.group)] {
            let Some(text) = self.text(&key).map(str::to_owned) else {
                continue;
            };
            match text.parse::<f64>() {
                Ok(price) if price.is_finite() && price >= 0.0 => return Some(price),
                _ => self.wrong(&key, &text, false, "a price per hour such as 0.12 is expected"),
            }
        }
        None
    }

    pub fn options(&mut self) -> AutoscalingOptions {
        let mut read = |name: &str, is_duration: bool| -> Option<f64> {
            let key = format!("{}/{OPTIONS}{name}", self.group);
            let text = self.text(&key)?.to_owned();
            let (value, expected) = if is_duration {
                (duration_seconds(&text), "a duration such as 10m is expected")
            } else {
                (text.parse().ok(), "a number such as 0.5 is expected")
            };
            let value = value.filter(|value: &f64| value.is_finite() && *value >= 0.0);
            if value.is_none() {
                self.wrong(&key, &text, false, expected);
            }
            value
        };
        AutoscalingOptions {
            scale_down_utilization_threshold: read("scaledownutilizationthreshold", false),
            scale_down_gpu_utilization_threshold: read("scaledowngpuutilizationthreshold", false),
            scale_down_unneeded_time: read("scaledownunneededtime", true),
            scale_down_unready_time: read("scaledownunreadytime", true),
            max_node_provision_time: read("maxnodeprovisiontime", true),
        }
    }
}

fn parse_taint(text: &str) -> Option<Taint> {
    let (left, effect) = text.rsplit_once(':')?;
    let (key, value) = left.split_once('=').unwrap_or((left, ""));
    let is_taint = is_label(key, value) && ["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect);
    is_taint.then(|| Taint {
        key: key.to_owned(),
        value: value.to_owned(),
        effect: effect.to_owned(),
    })
}

/// Whether the apiserver would take it for a label: an optional DNS prefix and a name, and a value.
pub fn is_label(key: &str, value: &str) -> bool {
    let name_like = |text: &str| {
        let edge = |character: Option<char>| character.is_some_and(|it| it.is_ascii_alphanumeric());
        text.len() <= 63
            && edge(text.chars().next())
            && edge(text.chars().next_back())
            && text
                .chars()
                .all(|it| it.is_ascii_alphanumeric() || "-_.".contains(it))
    };
    let is_domain = |text: &str| {
        text.len() <= 253
            && text.split('.').all(|part| {
                name_like(part)
                    && !part.contains(['_', '.'])
                    && !part.chars().any(|it| it.is_ascii_uppercase())
            })
    };
    let is_key = match key.split_once('/') {
        Some((domain, name)) => is_domain(domain) && name_like(name),
        None => name_like(key),
    };
    is_key && (value.is_empty() || name_like(value))
}
