//! What a ClusterUpgrade is decided from: everything that was read, and nothing else. What follows from it alone is beside it.

use jiff::Timestamp;

use super::api::ClusterUpgradeSpec;
use crate::{api::Image, upgrade_policy::api::UpgradePolicySpec, version::Version};

#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub spec: ClusterUpgradeSpec,
    pub policy: UpgradePolicySpec,
    /// It names a policy that is not there.
    pub is_policy_missing: bool,
    /// `None`: there is no such Cluster.
    pub cluster: Option<ClusterFacts>,
    /// Of the cluster's machines.
    pub upgrades: Vec<HostUpgradeFacts>,
}

#[derive(Clone, Debug, Default)]
pub struct ClusterFacts {
    /// What the topology asks for, where there is one.
    pub topology: Option<Asked>,
    pub control_plane: MachinesFacts,
    pub deployments: Vec<MachinesFacts>,
    pub is_paused: bool,
}

impl ClusterFacts {
    /// The control plane, then the MachineDeployments.
    pub fn everybody(&self) -> impl Iterator<Item = &MachinesFacts> {
        std::iter::once(&self.control_plane).chain(&self.deployments)
    }
}

/// A version and an image that somebody asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    pub version: String,
    pub image: Option<Image>,
}

/// A control plane or a MachineDeployment.
#[derive(Clone, Debug, Default)]
pub struct MachinesFacts {
    pub name: String,
    pub asked: Asked,
    pub replicas: i32,
    /// How many are up to date, as their owner counts.
    pub counted: i32,
    /// It counts by its spec as it is now.
    pub is_current: bool,
    pub available: i32,
    pub machines: Vec<MachineFacts>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineFacts {
    /// What its kubelet reports; empty while it reports nothing.
    pub version: String,
    /// What its EdgeMachine asks for.
    pub image: Option<Image>,
    /// Cluster API has not finished to update it in place.
    pub is_updating: bool,
}

/// A NodeUpgrade.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostUpgradeFacts {
    pub machine: String,
    pub digest: String,
    pub policy_name: Option<String>,
    pub created: Option<Timestamp>,
    /// Its host ran the image and left it.
    pub went_back: bool,
    pub is_deleting: bool,
    /// What the policy wants to be well and is not, where its turn has come and waits for that.
    pub waits_for_health: Option<String>,
}

impl MachinesFacts {
    pub fn is_at(&self, asked: &Asked) -> bool {
        self.asked == *asked
    }

    /// How many run what is asked for. A machine is up to date where its owner says so of the spec as it is now, its host has the image
    /// and its kubelet the version: an owner may count by an older spec than it has observed.
    pub fn up_to_date(&self) -> i32 {
        if !self.is_current {
            return 0;
        }
        let is_new = |machine: &&MachineFacts| {
            machine.version == self.asked.version && machine.image == self.asked.image && !machine.is_updating
        };
        let running = self.machines.iter().filter(is_new).count();
        self.counted.min(i32::try_from(running).unwrap_or(i32::MAX))
    }

    /// The oldest version that a machine of it runs.
    pub fn oldest(&self) -> Option<Version> {
        let versions = self
            .machines
            .iter()
            .filter_map(|machine| machine.version.parse::<Version>().ok());
        versions.min_by(Version::compare)
    }

    /// Every machine runs what is asked for, and is there.
    pub fn is_settled(&self) -> bool {
        self.up_to_date() >= self.replicas && self.available >= self.replicas
    }

    pub fn progress(&self) -> String {
        format!(
            "{} of {} machines are up to date",
            self.up_to_date(),
            self.replicas
        )
    }
}
