//! What the actions of an upgrade are in the agent's protocol: pure. Ids and contents are the same for the same try, so an order
//! may be sent as often as anybody likes.

use slipway_agent_api::{
    client::has_ended,
    order::nature,
    proto::{
        AddressLease, Arm, Delivery, Ensure, GiveUp, HoldAddress, ImageReference, KubeadmUpgrade,
        KubernetesStep, Operation, Prepare, Rollback, RunBootstrap, RunCommand, StartRequest, TagPolicy,
        Unpin, Wipe, kubernetes_step::Step as KubernetesStepKind, start_request::Verb,
    },
};

use crate::{
    api::Image,
    cluster::api::VirtualAddress,
    host::{api::Claim, release},
    machine::provider_id::ProviderId,
    node_upgrade::{
        api::{NodeUpgradeSpec, Role},
        facts::{Facts, Order},
        plan::snapshot_command,
    },
};

/// The most of a reason that a host keeps.
const LONGEST_REASON: usize = 512;
/// Of an apiserver that names none.
const DEFAULT_PORT: u32 = 6443;
const SNAPSHOT_SECONDS: u32 = 900;
const SNAPSHOT_OUTPUT: u32 = 16 << 10;

/// The order of an upgrade, for its host. `reason`: why it goes back.
pub fn of_upgrade(facts: &Facts, order: Order, attempt: u32, generation: u64, reason: &str) -> StartRequest {
    let (spec, id) = (&facts.spec, &facts.id);
    let verb = match order {
        Order::Ensure => Verb::Ensure(ensure(&spec.image, id, Delivery::None)),
        Order::Prepare => Verb::Prepare(Prepare {
            upgrade: id.clone(),
            digest: spec.image.digest.clone(),
            ..Prepare::default()
        }),
        Order::Snapshot => Verb::RunCommand(RunCommand {
            argv: snapshot_command(spec, id),
            time_limit_seconds: SNAPSHOT_SECONDS,
            output_limit_bytes: SNAPSHOT_OUTPUT,
            ..RunCommand::default()
        }),
        Order::Arm => Verb::Arm(Arm {
            upgrade: id.clone(),
            tries: spec.tries.unwrap_or(0),
        }),
        Order::Kubernetes => Verb::KubernetesStep(kubeadm(spec, facts.cluster.is_applied)),
        Order::Rollback => Verb::Rollback(Rollback {
            reason: plain(reason),
        }),
    };
    StartRequest {
        operation_id: order.id(id, attempt),
        generation,
        host: spec.host_name.clone(),
        verb: Some(verb),
    }
}

/// The first server applies the version, every other node takes it from the cluster.
fn kubeadm(spec: &NodeUpgradeSpec, is_applied: bool) -> KubernetesStep {
    let applies = spec.role == Role::ControlPlane && !is_applied;
    KubernetesStep {
        step: Some(KubernetesStepKind::KubeadmUpgrade(KubeadmUpgrade {
            apply_version: if applies {
                spec.version.clone()
            } else {
                String::new()
            },
        })),
    }
}

/// An image in the host's cache, kept by this owner.
pub fn ensure(image: &Image, owner: &str, delivery: Delivery) -> Ensure {
    Ensure {
        image: Some(ImageReference {
            reference: image.reference.clone(),
            digest: image.digest.clone(),
            tag_policy: TagPolicy::DigestOnly.into(),
        }),
        pin_owner: owner.to_owned(),
        delivery: delivery.into(),
        ..Ensure::default()
    }
}

/// An image that this owner does not need any more.
pub fn unpin(digest: &str, owner: &str) -> Verb {
    Verb::Unpin(Unpin {
        digest: digest.to_owned(),
        owner: owner.to_owned(),
    })
}

/// A slot that was prepared for this upgrade and is never booted.
pub fn give_up(upgrade: &str) -> Verb {
    Verb::GiveUp(GiveUp {
        upgrade: upgrade.to_owned(),
    })
}

/// An order that takes something back. Its id counts the tries, because one that failed stays so: an end that is still under way is
/// joined, and after one that has ended comes the next.
pub fn taking_back(
    upgrade: &str,
    verb: Verb,
    host: &str,
    known: &[Operation],
    generation: u64,
) -> StartRequest {
    let prefix = format!("{upgrade}-{}-", nature(&verb).name);
    let tries = known
        .iter()
        .filter_map(|operation| {
            let attempt: u32 = operation.id.strip_prefix(&prefix)?.parse().ok()?;
            Some((attempt, has_ended(operation)))
        })
        .max();
    let attempt = match tries {
        None => 1,
        Some((attempt, ended)) => attempt + u32::from(ended),
    };
    StartRequest {
        operation_id: format!("{prefix}{attempt}"),
        generation,
        host: host.to_owned(),
        verb: Some(verb),
    }
}

/// The wipe of a claim that was released.
pub fn wipe(host: &str, claim: &Claim, attempt: u32, generation: u64) -> StartRequest {
    StartRequest {
        operation_id: release::operation_id(claim, attempt),
        generation,
        host: host.to_owned(),
        verb: Some(Verb::Wipe(Wipe {
            confirm_host: host.to_owned(),
        })),
    }
}

/// The operation's id on the host: one bootstrap for one claim.
pub fn bootstrap_id(claim_uid: &str) -> String {
    format!("bootstrap-{claim_uid}")
}

/// The bootstrap data of the machine that has the host.
pub fn bootstrap(id: &ProviderId, data: Vec<u8>, generation: u64) -> StartRequest {
    StartRequest {
        operation_id: bootstrap_id(&id.claim),
        generation,
        host: id.host.clone(),
        verb: Some(Verb::RunBootstrap(RunBootstrap {
            data,
            provider_id: id.to_string(),
            ..RunBootstrap::default()
        })),
    }
}

/// What it is called on the host: a server takes part once.
pub fn address_id(claim_uid: &str) -> String {
    format!("address-{claim_uid}")
}

/// The lease in the workload cluster of whose turn it is.
const LEASE: (&str, &str) = ("kube-system", "slipway-virtual-address");
/// Where K3s and kubeadm put an administrator's kubeconfig.
const KUBECONFIGS: [&str; 2] = ["/etc/rancher/k3s/k3s.yaml", "/etc/kubernetes/admin.conf"];

/// The address that the servers of a cluster hold in turn; `first`: there is no other server yet.
pub fn hold_address(id: &ProviderId, address: &VirtualAddress, first: bool, generation: u64) -> StartRequest {
    let kubeconfigs = match &address.kubeconfig {
        Some(path) => vec![path.clone()],
        None => KUBECONFIGS.map(str::to_owned).to_vec(),
    };
    StartRequest {
        operation_id: address_id(&id.claim),
        generation,
        host: id.host.clone(),
        verb: Some(Verb::HoldAddress(HoldAddress {
            address: address.address.clone(),
            interface: address.interface.clone(),
            lease: Some(AddressLease {
                namespace: LEASE.0.to_owned(),
                name: LEASE.1.to_owned(),
                kubeconfigs,
                port: address
                    .port
                    .and_then(|port| u32::try_from(port).ok())
                    .unwrap_or(DEFAULT_PORT),
                first,
            }),
        })),
    }
}

/// A reason as hosts take it: on one line, and not too long.
fn plain(reason: &str) -> String {
    let line: String = reason
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect();
    let end = (0..=LONGEST_REASON.min(line.len()))
        .rev()
        .find(|end| line.is_char_boundary(*end))
        .unwrap_or(0);
    line[..end].to_owned()
}
