//! What a ClusterUpgrade writes next, and why: pure, from what stands. Versions are taken one stop after the other; at each stop the
//! control plane goes first and the workers follow, the canary before the others. Of a Cluster with a topology nothing but its
//! topology is written: everything else is the topology controller's.

use std::fmt;

use slipway_capi::frame::Plan;

use super::{
    api::ClusterUpgradePhase as Phase,
    facts::{Asked, ClusterFacts, Facts, MachinesFacts},
    halt::halted,
    stop::{Who, stop},
};
use crate::{api::Image, node_upgrade::fleet::NOT_HEALTHY};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// `spec.topology.version` and the image's variable.
    WriteTopology { version: String, image: Image },
    /// A template like the one in use, with the image; and the reference to it, with the version.
    WriteControlPlane { version: String, image: Image },
    WriteDeployment {
        name: String,
        version: String,
        image: Image,
    },
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WriteTopology { version, image } => {
                write!(
                    formatter,
                    "set the topology to {version}, image {}",
                    image.short()
                )
            }
            Self::WriteControlPlane { version, image } => {
                write!(
                    formatter,
                    "set the control plane to {version}, image {}",
                    image.short()
                )
            }
            Self::WriteDeployment { name, version, image } => write!(
                formatter,
                "set MachineDeployment {name} to {version}, image {}",
                image.short()
            ),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub phase: Phase,
    /// The version that is being taken.
    pub stop: Option<String>,
    pub message: String,
    pub plan: Plan<Action>,
}

impl fmt::Display for Decision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stop = self.stop.as_deref().unwrap_or("-");
        writeln!(formatter, "{:?} at {stop}: {}", self.phase, self.message)?;
        write!(formatter, "{}", self.plan)
    }
}

fn waiting(phase: Phase, stop: Option<&Asked>, reason: &str, message: impl Into<String>) -> Decision {
    let message = message.into();
    let mut plan = Plan::new();
    plan.wait(reason, message.clone());
    Decision {
        phase,
        stop: stop.map(|stop| stop.version.clone()),
        message,
        plan,
    }
}

/// Machines are on their way to what was written. What keeps them from going on is told with it.
fn rolling_out(facts: &Facts, phase: Phase, stop: &Asked, message: String) -> Decision {
    let digest = stop.image.as_ref().map(|image| &image.digest);
    let held = facts.upgrades.iter().find_map(|upgrade| {
        let is_on_its_way = Some(&upgrade.digest) == digest && !upgrade.is_deleting;
        let why = upgrade.waits_for_health.as_ref().filter(|_| is_on_its_way)?;
        Some(format!("{message}; machine {} waits: {why}", upgrade.machine))
    });
    match held {
        Some(held) => waiting(phase, Some(stop), NOT_HEALTHY, held),
        None => waiting(phase, Some(stop), "RollingOut", message),
    }
}

pub fn decide(facts: &Facts) -> Decision {
    let Some(cluster) = &facts.cluster else {
        let message = format!("there is no Cluster {}", facts.spec.cluster_name);
        return waiting(Phase::Pending, None, "NoCluster", message);
    };
    if facts.is_policy_missing {
        let name = facts.spec.policy_name.as_deref().unwrap_or_default();
        let message = format!("there is no UpgradePolicy {name}: nobody knows when hosts may be disturbed");
        return waiting(Phase::Blocked, None, "NoPolicy", message);
    }
    if cluster.control_plane.asked.version.is_empty() {
        let message = format!(
            "Cluster {} has no control plane with a version that could be written",
            facts.spec.cluster_name
        );
        return waiting(Phase::Blocked, None, "NoControlPlane", message);
    }
    let stop = match stop(facts, cluster) {
        Ok(stop) => stop,
        Err(message) => return waiting(Phase::Blocked, None, "NoPath", message),
    };
    let Some((who, stop)) = stop else {
        return Decision {
            phase: Phase::Done,
            stop: Some(facts.spec.version.clone()),
            message: format!("every machine runs {}", facts.spec.version),
            plan: Plan::new(),
        };
    };
    if let Some(message) = halted(facts) {
        return waiting(Phase::Halted, Some(&stop), "Halted", message);
    }
    if facts.spec.paused || cluster.is_paused {
        let what = if facts.spec.paused {
            "ClusterUpgrade"
        } else {
            "Cluster"
        };
        return waiting(
            Phase::Paused,
            Some(&stop),
            "Paused",
            format!("the {what} is paused"),
        );
    }
    match &cluster.topology {
        Some(topology) => by_topology(facts, cluster, topology, &stop),
        None => machine_by_machine(facts, cluster, who, &stop),
    }
}

fn by_topology(facts: &Facts, cluster: &ClusterFacts, topology: &Asked, stop: &Asked) -> Decision {
    let Some(image) = stop.image.clone() else {
        return waiting(Phase::Blocked, Some(stop), "NoImage", "the stop has no image");
    };
    if topology == stop {
        let left: Vec<String> = cluster
            .everybody()
            .filter(|machines| !(machines.is_at(stop) && machines.is_settled()))
            .map(|machines| {
                if machines.is_at(stop) {
                    format!("{}: {}", machines.name, machines.progress())
                } else {
                    format!("{} waits its turn", machines.name)
                }
            })
            .collect();
        let message = format!("the topology rolls out: {}", left.join("; "));
        return rolling_out(facts, Phase::Workers, stop, message);
    }
    let mut plan = Plan::new();
    let action = Action::WriteTopology {
        version: stop.version.clone(),
        image,
    };
    plan.then(action, "it is the next version on the way")
        .changing("spec.topology.version", &topology.version, &stop.version)
        .announced("UpgradingTopology");
    Decision {
        phase: Phase::ControlPlane,
        stop: Some(stop.version.clone()),
        message: "the topology is told".to_owned(),
        plan,
    }
}

fn machine_by_machine(facts: &Facts, cluster: &ClusterFacts, who: Who, stop: &Asked) -> Decision {
    let Some(image) = stop.image.clone() else {
        return waiting(Phase::Blocked, Some(stop), "NoImage", "the stop has no image");
    };
    let control_plane = &cluster.control_plane;
    let told = |phase, message: String, plan| Decision {
        phase,
        stop: Some(stop.version.clone()),
        message,
        plan,
    };
    if who != Who::Workers && !control_plane.is_at(stop) {
        let mut plan = Plan::new();
        let action = Action::WriteControlPlane {
            version: stop.version.clone(),
            image,
        };
        plan.then(action, "the control plane goes first")
            .changing("spec.version", &control_plane.asked.version, &stop.version)
            .announced("UpgradingControlPlane");
        return told(Phase::ControlPlane, "the control plane is told".to_owned(), plan);
    }
    if !control_plane.is_settled() {
        let message = format!("the control plane rolls out: {}", control_plane.progress());
        return rolling_out(facts, Phase::ControlPlane, stop, message);
    }
    if who == Who::ControlPlane {
        return waiting(
            Phase::ControlPlane,
            Some(stop),
            "NotYetSeen",
            "the control plane's machines do not report the version yet",
        );
    }
    let is_canary = |deployment: &MachinesFacts| facts.spec.canary.as_deref() == Some(&deployment.name);
    let (canary, rest): (Vec<_>, Vec<_>) = cluster.deployments.iter().partition(|one| is_canary(one));
    for (phase, group, why) in [
        (Phase::Canary, canary, "the canary goes before the other workers"),
        (Phase::Workers, rest, "the control plane and the canary run it"),
    ] {
        let mut plan = Plan::new();
        for deployment in group.iter().filter(|deployment| !deployment.is_at(stop)) {
            let action = Action::WriteDeployment {
                name: deployment.name.clone(),
                version: stop.version.clone(),
                image: image.clone(),
            };
            plan.beside(action, why)
                .changing(
                    "spec.template.spec.version",
                    &deployment.asked.version,
                    &stop.version,
                )
                .announced("UpgradingWorkers");
        }
        if !plan.is_empty() {
            let message = if phase == Phase::Canary {
                "the canary is told".to_owned()
            } else {
                "the workers are told".to_owned()
            };
            return told(phase, message, plan);
        }
        let left: Vec<String> = group
            .iter()
            .filter(|deployment| !deployment.is_settled())
            .map(|deployment| format!("{}: {}", deployment.name, deployment.progress()))
            .collect();
        if !left.is_empty() {
            let who = if phase == Phase::Canary {
                "canary"
            } else {
                "workers"
            };
            let message = format!("the {who} roll out: {}", left.join("; "));
            return rolling_out(facts, phase, stop, message);
        }
    }
    waiting(
        Phase::Workers,
        Some(stop),
        "NotYetSeen",
        "the workers do not report the version yet",
    )
}
