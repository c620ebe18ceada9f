//! The answer to `UpdateMachine`: pure. The work is a NodeUpgrade's; the answer says how far it is, and whether one has to be made. The
//! name of the upgrade follows from what the machine is to become, so a thousand calls, from two replicas, make one.

use serde_json::{Value, json};
use slipway_capi::hook::{
    self,
    types::{FAILURE, SUCCESS, UpdateMachineRequest},
};
use slipway_slots::Digest;

use super::{can_update::read, change};
use crate::{
    api::Image,
    node_upgrade::api::{Distribution, NodeUpgradeSpec, Phase, Role},
};

/// When Cluster API asks again.
const AGAIN_SECONDS: i32 = 15;
/// How long a name may be that more is appended to.
const LONGEST_NAME: usize = 240;

/// What a machine is to become, as the request says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub namespace: String,
    pub machine: String,
    pub version: String,
    pub image: Image,
    pub distribution: Distribution,
    /// Of version and image: an upgrade is for one of these.
    pub hash: String,
}

/// What is known of the machine itself; a request says neither uid nor node nor host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    pub machine_uid: String,
    pub is_control_plane: bool,
    pub has_node: bool,
    pub host: Option<String>,
    pub policy: Option<String>,
    /// Why no upgrade is begun now.
    pub held: Option<String>,
    /// The NodeUpgrades of this machine.
    pub upgrades: Vec<KnownUpgrade>,
}

impl Known {
    /// The upgrade that makes of the machine what it is to become.
    pub fn upgrade_to(&self, target: &Target) -> Option<&KnownUpgrade> {
        self.upgrades
            .iter()
            .find(|upgrade| upgrade.machine_uid == self.machine_uid && upgrade.hash == target.hash)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownUpgrade {
    pub name: String,
    pub machine_uid: String,
    pub hash: String,
    pub phase: Phase,
    pub message: String,
    pub percent: Option<u32>,
}

/// What to do to NodeUpgrades before the answer is given.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ensure {
    pub create: Option<(String, NodeUpgradeSpec)>,
    /// Ended, and in the way of doing the same again.
    pub delete: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub ensure: Ensure,
    pub response: Value,
}

pub fn going_on(message: impl Into<String>) -> Value {
    json!({"status": SUCCESS, "message": message.into(), "retryAfterSeconds": AGAIN_SECONDS})
}

fn done() -> Value {
    json!({"status": SUCCESS, "message": "", "retryAfterSeconds": 0})
}

pub fn failed(message: impl Into<String>) -> Value {
    json!({"status": FAILURE, "message": message.into(), "retryAfterSeconds": 0})
}

/// Reads the request; the error is the answer.
pub fn target(request: &Value) -> Result<Target, Value> {
    let asked: UpdateMachineRequest = read(request, hook::UPDATE_MACHINE).map_err(|mut answer| {
        answer["retryAfterSeconds"] = 0.into();
        answer
    })?;
    let desired = asked.desired;
    let text = |object: &Value, pointer: &str| {
        object
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let machine = text(&desired.machine, "/metadata/name");
    if !change::is_edge(&desired.infrastructure_machine) {
        let kind = text(&desired.infrastructure_machine, "/kind");
        return Err(failed(format!(
            "Machine {machine} is on a {kind}, and only EdgeMachines are updated in place by this extension"
        )));
    }
    let image = Image {
        reference: text(&desired.infrastructure_machine, "/spec/image/reference"),
        digest: text(&desired.infrastructure_machine, "/spec/image/digest"),
    };
    let version = text(&desired.machine, "/spec/version");
    if image.digest.is_empty() || version.is_empty() {
        return Err(failed(format!(
            "Machine {machine} needs a version, and its EdgeMachine an image, to be updated in place"
        )));
    }
    let is_kubeadm = desired
        .bootstrap_config
        .as_ref()
        .is_some_and(|config| config["kind"] == "KubeadmConfig");
    let hash = Digest::of(format!("{version}\n{}\n{}", image.reference, image.digest).as_bytes());
    Ok(Target {
        namespace: text(&desired.machine, "/metadata/namespace"),
        machine,
        version,
        image,
        distribution: if is_kubeadm {
            Distribution::Kubeadm
        } else {
            Distribution::K3s
        },
        hash: hash.short(),
    })
}

/// The upgrade's name: of the machine and what it is to become.
pub fn name(target: &Target, machine_uid: &str) -> String {
    let machine: String = target.machine.chars().take(LONGEST_NAME).collect();
    let own = Digest::of(format!("{machine_uid}/{}", target.hash).as_bytes());
    format!("{}-{}", machine.trim_end_matches(['-', '.']), &own.short()[..8])
}

pub fn answer(target: &Target, known: &Known) -> Answer {
    let nothing = |response| Answer {
        ensure: Ensure::default(),
        response,
    };
    match known.upgrade_to(target) {
        None => begin(target, known),
        Some(upgrade) => match upgrade.phase {
            Phase::Done => nothing(done()),
            Phase::RolledBack => nothing(failed(format!("rolled back: {}", upgrade.message))),
            Phase::Failed => nothing(failed(upgrade.message.clone())),
            // It was called off and is asked for again: it is made again when it is gone.
            Phase::Superseded | Phase::Cancelled => Answer {
                ensure: Ensure {
                    create: None,
                    delete: vec![upgrade.name.clone()],
                },
                response: going_on("the upgrade begins again"),
            },
            phase => nothing(going_on(told(phase, upgrade))),
        },
    }
}

/// What Cluster API shows to people. It changes with the phase and every twentieth of it, and not more often.
fn told(phase: Phase, upgrade: &KnownUpgrade) -> String {
    let percent = upgrade
        .percent
        .map(|percent| format!(" {} %", percent.min(100) / 5 * 5))
        .unwrap_or_default();
    match phase {
        Phase::Pending => "the upgrade begins".to_owned(),
        Phase::Caching => format!("fetching the image{percent}"),
        Phase::Preparing => format!("writing the new slot{percent}"),
        _ => {
            let word = phase.to_string().to_lowercase();
            if upgrade.message.is_empty() {
                word
            } else {
                format!("{word}: {}", upgrade.message)
            }
        }
    }
}

fn begin(target: &Target, known: &Known) -> Answer {
    let wait = |message: &str| Answer {
        ensure: Ensure::default(),
        response: going_on(message),
    };
    let Some(host) = &known.host else {
        return wait("the machine has no host yet");
    };
    if !known.has_node {
        return wait("the machine has no node yet");
    }
    if let Some(why) = &known.held {
        return wait(why);
    }
    // What is done would be taken for done when the machine is to become the same again, after something else in between.
    let ended: Vec<String> = known
        .upgrades
        .iter()
        .filter(|upgrade| upgrade.phase == Phase::Done)
        .map(|upgrade| upgrade.name.clone())
        .collect();
    let spec = NodeUpgradeSpec {
        machine_name: target.machine.clone(),
        machine_uid: known.machine_uid.clone(),
        host_name: host.clone(),
        image: target.image.clone(),
        version: target.version.clone(),
        desired_hash: target.hash.clone(),
        role: if known.is_control_plane {
            Role::ControlPlane
        } else {
            Role::Worker
        },
        distribution: target.distribution,
        policy_name: known.policy.clone(),
        ..NodeUpgradeSpec::default()
    };
    Answer {
        ensure: Ensure {
            create: Some((name(target, &known.machine_uid), spec)),
            delete: ended,
        },
        response: going_on("the upgrade begins"),
    }
}
