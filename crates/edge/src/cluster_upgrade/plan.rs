//! What a ClusterUpgrade writes next, and why: pure, from what stands. Versions are taken one stop after the other; at each stop the
//! control plane goes first and the workers follow, the canary before the others. Of a Cluster with a topology nothing but its
//! topology is written: everything else is the topology controller's.

use std::fmt;

use slipway_capi::frame::Plan;

use super::api::{ClusterUpgradePhase as Phase, ClusterUpgradeSpec};
use crate::{
    api::Image,
    upgrade_policy::{
        api::UpgradePolicySpec,
        path::{self, Journey},
    },
    version::Version,
};

#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub spec: ClusterUpgradeSpec,
    pub policy: UpgradePolicySpec,
    /// It names a policy that is not there.
    pub is_policy_missing: bool,
    /// `None`: there is no such Cluster.
    pub cluster: Option<ClusterFacts>,
    /// Why the fleet is stopped.
    pub halted: Option<String>,
}

#[derive(Clone, Debug, Default)]
pub struct ClusterFacts {
    /// What the topology asks for, where there is one.
    pub topology: Option<Asked>,
    pub control_plane: MachinesFacts,
    pub deployments: Vec<MachinesFacts>,
    pub is_paused: bool,
}

/// A version and an image that somebody asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    pub version: String,
    pub image: Option<Image>,
}

/// Who takes a version now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    /// Workers may skip it.
    ControlPlane,
    /// The control plane is there.
    Workers,
    /// The version stays and the image changes.
    Everybody,
}

/// A control plane or a MachineDeployment.
#[derive(Clone, Debug, Default)]
pub struct MachinesFacts {
    pub name: String,
    pub asked: Asked,
    pub replicas: i32,
    /// How many run what is asked for, kubelets included.
    pub up_to_date: i32,
    pub available: i32,
    /// The oldest version that a machine of it runs.
    pub oldest: Option<Version>,
}

impl MachinesFacts {
    fn is_at(&self, asked: &Asked) -> bool {
        self.asked == *asked
    }

    /// Every machine runs what is asked for, and is there.
    fn is_settled(&self) -> bool {
        self.up_to_date >= self.replicas && self.available >= self.replicas
    }

    fn progress(&self) -> String {
        format!("{} of {} machines are up to date", self.up_to_date, self.replicas)
    }
}

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
    if let Some(message) = &facts.halted {
        return waiting(Phase::Halted, Some(&stop), "Halted", message.clone());
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
        Some(topology) => by_topology(cluster, topology, &stop),
        None => machine_by_machine(facts, cluster, who, &stop),
    }
}

/// The version that is to be taken now, with its image. `None`: all have been.
fn stop(facts: &Facts, cluster: &ClusterFacts) -> Result<Option<(Who, Asked)>, String> {
    let parse = |text: &str| {
        text.parse::<Version>()
            .map_err(|error| format!("{text:?}: {error}"))
    };
    let to = parse(&facts.spec.version)?;
    let image_of = |version: &Version| -> Result<Asked, String> {
        let found = facts
            .spec
            .images
            .iter()
            .find(|image| image.version == version.to_string());
        let found = found.ok_or_else(|| {
            format!("spec.images has no image of {version}, which is on the way to {to}: add it")
        })?;
        Ok(Asked {
            version: found.version.clone(),
            image: Some(found.image.clone()),
        })
    };
    let oldest_of = |machines: &MachinesFacts| match machines.oldest.clone() {
        Some(version) => Ok(version),
        None => parse(&machines.asked.version),
    };
    // A stop that was asked for is finished before the next one.
    let under_way = match &cluster.topology {
        Some(topology) => topology.clone(),
        None => cluster.control_plane.asked.clone(),
    };
    let everybody = || std::iter::once(&cluster.control_plane).chain(&cluster.deployments);
    let control_plane = oldest_of(&cluster.control_plane)?;
    let mut workers: Option<Version> = None;
    for deployment in cluster
        .deployments
        .iter()
        .filter(|deployment| deployment.replicas > 0)
    {
        let version = oldest_of(deployment)?;
        if workers
            .as_ref()
            .is_none_or(|known| version.compare(known) == std::cmp::Ordering::Less)
        {
            workers = Some(version);
        }
    }
    let asked = parse(&under_way.version)?;
    let is_under_way =
        facts.spec.images.iter().any(|image| {
            image.version == under_way.version && Some(&image.image) == under_way.image.as_ref()
        });
    // A topology takes its workers along, and is not told of the next version before they are there.
    let is_settled = match &cluster.topology {
        Some(topology) => everybody().all(|machines| machines.is_at(topology) && machines.is_settled()),
        None => cluster.control_plane.is_settled(),
    };
    if is_under_way && !is_settled {
        return Ok(Some((Who::ControlPlane, image_of(&asked)?)));
    }
    let known: Vec<Version> = facts
        .spec
        .images
        .iter()
        .map(|image| image.version.as_str())
        .chain(facts.policy.known_versions.iter().map(String::as_str))
        .filter_map(|version| version.parse().ok())
        .collect();
    let mandatory: Vec<Version> = facts
        .policy
        .mandatory_versions
        .iter()
        .filter_map(|version| version.parse().ok())
        .collect();
    let path = path::plan(&Journey {
        control_plane: &control_plane,
        workers: workers.as_ref(),
        to: &to,
        mandatory: &mandatory,
        known: &known,
    })
    .map_err(|error| error.to_string())?;
    // Workers that have to follow before the control plane goes on.
    let behind = path
        .workers
        .iter()
        .find(|version| version.compare(&control_plane) != std::cmp::Ordering::Greater);
    if let Some(version) = behind {
        return Ok(Some((Who::Workers, image_of(version)?)));
    }
    match path.control_plane.first() {
        Some(version) => Ok(Some((Who::ControlPlane, image_of(version)?))),
        // The same version with another image is an upgrade as well.
        None => {
            let last = image_of(&to)?;
            let is_done = everybody().all(|machines| machines.is_at(&last) && machines.is_settled());
            Ok((!is_done).then_some((Who::Everybody, last)))
        }
    }
}

fn by_topology(cluster: &ClusterFacts, topology: &Asked, stop: &Asked) -> Decision {
    let Some(image) = stop.image.clone() else {
        return waiting(Phase::Blocked, Some(stop), "NoImage", "the stop has no image");
    };
    if topology == stop {
        let left: Vec<String> = std::iter::once(&cluster.control_plane)
            .chain(&cluster.deployments)
            .filter(|machines| !(machines.is_at(stop) && machines.is_settled()))
            .map(|machines| {
                if machines.is_at(stop) {
                    format!("{}: {}", machines.name, machines.progress())
                } else {
                    format!("{} waits its turn", machines.name)
                }
            })
            .collect();
        return waiting(
            Phase::Workers,
            Some(stop),
            "RollingOut",
            format!("the topology rolls out: {}", left.join("; ")),
        );
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
        return waiting(
            Phase::ControlPlane,
            Some(stop),
            "RollingOut",
            format!("the control plane rolls out: {}", control_plane.progress()),
        );
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
            return waiting(phase, Some(stop), "RollingOut", message);
        }
    }
    waiting(
        Phase::Workers,
        Some(stop),
        "NotYetSeen",
        "the workers do not report the version yet",
    )
}
