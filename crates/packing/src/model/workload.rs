//! The whole input: the cluster as it stands, and the pods that wait.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::{
    CsiNode, InstanceType, LabelSelector, Node, NodeClaim, NodePool, ObjectMeta, PersistentVolume,
    PersistentVolumeClaim, Pod, RepairPolicy, StorageClass, StringMap, TopologySpreadConstraint,
};

/// The workload file: a snapshot and the pods to place, in one JSON object.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Workload {
    #[serde(flatten)]
    pub snapshot: Snapshot,
    /// Pods to place. One that is also in `boundPods` (same uid) is moved: it does not count where it runs now.
    pub pods: Vec<Pod>,
}

/// Written out because a derived `flatten` would hold everything but the pods twice while it reads.
impl<'de> Deserialize<'de> for Workload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Workload;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a workload object")
            }

            fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<Workload, A::Error> {
                let mut pods = Vec::new();
                let apart = PodsApart {
                    access,
                    pods: &mut pods,
                };
                let snapshot = Snapshot::deserialize(MapAccessDeserializer::new(apart))?;
                pods.shrink_to_fit();
                Ok(Workload { snapshot, pods })
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

/// Passes every field on but `pods`.
struct PodsApart<'p, A> {
    access: A,
    pods: &'p mut Vec<Pod>,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for PodsApart<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        while let Some(key) = self.access.next_key::<String>()? {
            if key == "pods" {
                *self.pods = self.access.next_value()?;
            } else {
                return seed.deserialize(key.into_deserializer()).map(Some);
            }
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.access.next_value_seed(seed)
    }
}

/// The cluster as it stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Snapshot {
    pub node_pools: Vec<NodePool>,
    /// By NodePool name.
    pub instance_types: BTreeMap<String, Vec<InstanceType>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<Node>,
    /// Joined to nodes by provider ID; one without a node is capacity on its way.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub node_claims: Vec<NodeClaim>,
    /// Names of nodes that are already being taken away, beyond those that carry a deletion timestamp.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deleting_nodes: Vec<String>,
    /// Names of nodes that pods were promised to lately: they are left alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nominated_nodes: Vec<String>,
    /// Names of nodes on which room is kept for pods to come: they are not empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub buffered_nodes: Vec<String>,
    /// Why a node is not emptied to save money, by its name; drift and repair do not ask.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub kept_nodes: BTreeMap<String, String>,
    /// What is added to UTC for the schedules of a NodePool's budgets, by its name: UTC where it is absent, and null where nobody knows.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub budget_time_zones: BTreeMap<String, Option<Vec<UtcOffset>>>,
    /// Which offering a node is, by the name of its claim, where the node's labels do not say it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub offerings: BTreeMap<String, OfferingOf>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bound_pods: Vec<Pod>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub daemon_sets: Vec<DaemonSet>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub persistent_volume_claims: Vec<PersistentVolumeClaim>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub persistent_volumes: Vec<PersistentVolume>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub storage_classes: Vec<StorageClass>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub csi_nodes: Vec<CsiNode>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<Namespace>,
    /// Services and controllers give default spread constraints their selectors.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<Service>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub controllers: Vec<Controller>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pod_disruption_budgets: Vec<PodDisruptionBudget>,
    /// Which conditions make a node unhealthy, and what is done then; without any no node is repaired.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub repair_policies: Vec<RepairPolicy>,
    /// When nodes were rebooted to repair them (RFC 3339), by the name of their claim.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub reboots: BTreeMap<String, Vec<String>>,
    pub options: Options,
}

/// What a time zone adds to UTC from a moment on, both in seconds. Of several the later ones come last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UtcOffset {
    pub from: i64,
    pub seconds: i64,
}

/// An offering by its name, zone and capacity type, and what it costs; a zone that is empty is none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OfferingOf {
    pub instance_type: String,
    pub zone: String,
    pub capacity_type: String,
    /// Several offerings may differ in nothing else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DaemonSet {
    pub metadata: ObjectMeta,
    pub spec: DaemonSetSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DaemonSetSpec {
    /// The pod template; a live pod of the set found among `boundPods` is used in its place, because admission may
    /// have changed its requests.
    pub template: Pod,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Namespace {
    pub metadata: ObjectMeta,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Service {
    pub metadata: ObjectMeta,
    pub spec: ServiceSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<StringMap>,
}

/// A ReplicationController, ReplicaSet or StatefulSet: its selector.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Controller {
    pub api_version: String,
    pub kind: String,
    pub metadata: ObjectMeta,
    pub spec: ControllerSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ControllerSpec {
    /// A label selector; a ReplicationController's plain map is given as `matchLabels`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodDisruptionBudget {
    pub metadata: ObjectMeta,
    pub spec: PodDisruptionBudgetSpec,
    pub status: PodDisruptionBudgetStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodDisruptionBudgetSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_available: Option<IntOrString>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unhealthy_pod_eviction_policy: Option<String>,
}

/// A number, or a text such as `10%`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum IntOrString {
    Number(i64),
    Text(String),
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodDisruptionBudgetStatus {
    pub disruptions_allowed: i32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PreferencePolicy {
    #[default]
    Respect,
    Ignore,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MinValuesPolicy {
    #[default]
    Strict,
    BestEffort,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReservedOfferingMode {
    /// Wait for reserved capacity rather than take something else. What provisioning does.
    #[default]
    Strict,
    /// Take something else. What disruption's simulations do.
    Fallback,
}

/// What decides which nodes are created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PackingPolicy {
    /// As Karpenter does.
    #[default]
    Karpenter,
    /// What costs least, and never more than Karpenter's way.
    Cost,
}

impl PackingPolicy {
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "karpenter" => Some(PackingPolicy::Karpenter),
            "cost" => Some(PackingPolicy::Cost),
            _ => None,
        }
    }
}

/// What a node less and a pod that stays where it is are worth, per hour, to the policy `cost`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PackingWeights {
    pub node: f64,
    pub eviction: f64,
}

/// The least that a consolidation has to save: both hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MinimumSavings {
    pub per_hour: f64,
    /// Of what the nodes cost that go.
    pub percent: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Options {
    pub packing: PackingPolicy,
    pub packing_weights: PackingWeights,
    pub preference_policy: PreferencePolicy,
    pub min_values_policy: MinValuesPolicy,
    pub reserved_capacity: bool,
    pub reserved_offering_mode: ReservedOfferingMode,
    pub spot_to_spot_consolidation: bool,
    /// A drifted node goes first where its replacement cannot come before: into its place in a full reservation, or into a
    /// static NodePool at its limit.
    pub terminate_first_drift: bool,
    /// The same for unhealthy nodes.
    pub terminate_first_repair: bool,
    /// What consolidation has to save, or it is not worth it.
    pub minimum_savings: MinimumSavings,
    /// Most instance types a claim may list.
    pub max_instance_types: usize,
    /// Pods with resource claims are refused, as long as dynamic resources are not simulated.
    pub ignore_dynamic_resources: bool,
    /// The moment the decision is made (RFC 3339). Only what depends on time reads it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub now: Option<String>,
    /// The label that names a reservation.
    pub reservation_label: String,
    /// Labels the provider resolves, beyond Karpenter's own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub well_known_labels: Vec<String>,
    /// Spread constraints for pods that bring none; their selector is deduced.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub default_topology_spread: Vec<TopologySpreadConstraint>,
    /// Drivers whose volumes no node of the provider can attach: pods that need them are left alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unsupported_provisioners: Vec<String>,
    /// The same for labels in the allowed topologies of a storage class.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unsupported_topology_keys: Vec<String>,
    pub improvements: Improvements,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            packing: PackingPolicy::default(),
            packing_weights: PackingWeights::default(),
            preference_policy: PreferencePolicy::default(),
            min_values_policy: MinValuesPolicy::default(),
            reserved_capacity: true,
            reserved_offering_mode: ReservedOfferingMode::default(),
            spot_to_spot_consolidation: false,
            terminate_first_drift: false,
            terminate_first_repair: false,
            minimum_savings: MinimumSavings::default(),
            max_instance_types: 600,
            ignore_dynamic_resources: true,
            now: None,
            reservation_label: "karpenter.sh/reservation-id".to_owned(),
            well_known_labels: Vec::new(),
            default_topology_spread: Vec::new(),
            unsupported_provisioners: Vec::new(),
            unsupported_topology_keys: Vec::new(),
            improvements: Improvements::default(),
        }
    }
}

/// Where Slipway can do better than Karpenter. All off gives Karpenter's outcomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Improvements {
    /// Count `limits.nodes` down inside a batch too.
    pub exact_node_limits: bool,
    /// Among pools of equal weight take the one whose cheapest offering costs least.
    pub price_aware: bool,
    /// Fill the fullest claim that fits instead of the emptiest.
    pub tighter_packing: bool,
    /// The emptiest existing host counts for hostname spread, as it does for the kube-scheduler.
    pub hostname_spread_as_kube_scheduler: bool,
    /// Pin the domain of an anti-affine pod at once, so that one batch can fill every zone.
    pub commit_domains_early: bool,
    /// Replace several nodes by several cheaper ones.
    pub many_to_many_consolidation: bool,
    /// A replacement comes before its node goes, so it has to find room in the limits beside it.
    pub replacements_within_limits: bool,
    /// The cheapest offering that fits is what is launched, so a replacement costs that and no more.
    pub cheapest_is_launched: bool,
    /// Nodes that have been busy within `consolidateAfter` stay, but take pods of nodes that are consolidated.
    pub busy_destinations: bool,
}
