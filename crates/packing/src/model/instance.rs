//! Instance types and where they are offered.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::ResourceList;
use crate::requirement::RequirementSpec;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceType {
    pub name: String,
    pub requirements: Vec<RequirementSpec>,
    pub capacity: ResourceList,
    #[serde(skip_serializing_if = "Overhead::is_empty")]
    pub overhead: Overhead,
    pub offerings: Vec<Offering>,
    /// How many volumes can be attached, by CSI driver.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub volume_attachment_limits: BTreeMap<String, u32>,
}

/// What the system keeps for itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Overhead {
    #[serde(skip_serializing_if = "ResourceList::is_empty")]
    pub kube_reserved: ResourceList,
    #[serde(skip_serializing_if = "ResourceList::is_empty")]
    pub system_reserved: ResourceList,
    #[serde(skip_serializing_if = "ResourceList::is_empty")]
    pub eviction_threshold: ResourceList,
}

impl Overhead {
    pub fn is_empty(&self) -> bool {
        self.kube_reserved.is_empty() && self.system_reserved.is_empty() && self.eviction_threshold.is_empty()
    }

    pub fn total(&self) -> ResourceList {
        let mut total = ResourceList::new();
        for list in [
            &self.kube_reserved,
            &self.system_reserved,
            &self.eviction_threshold,
        ] {
            for (name, quantity) in list {
                *total.entry(name.clone()).or_default() += *quantity;
            }
        }
        total
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Offering {
    /// Always names the zone and the capacity type, for reserved capacity also the reservation.
    pub requirements: Vec<RequirementSpec>,
    /// Per hour.
    pub price: f64,
    pub available: bool,
    /// Free slots of a reservation; read for reserved offerings only.
    #[serde(skip_serializing_if = "is_zero")]
    pub reservation_capacity: u32,
    /// Replaces amounts of the type's capacity for this offering.
    #[serde(skip_serializing_if = "ResourceList::is_empty")]
    pub capacity_override: ResourceList,
    /// Replaces amounts of the type's overhead for this offering.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overhead_override: Option<Overhead>,
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(value: &u32) -> bool {
    *value == 0
}

impl Default for Offering {
    fn default() -> Self {
        Offering {
            requirements: Vec::new(),
            price: 0.0,
            available: true,
            reservation_capacity: 0,
            capacity_override: ResourceList::new(),
            overhead_override: None,
        }
    }
}
