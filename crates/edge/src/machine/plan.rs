//! What an EdgeMachine does next, and why: pure. It waits for what Cluster API's contract says, gets a host, gives it its bootstrap data and
//! says how that went; deleted, it returns the host and waits until nothing of it is left there.

use std::{fmt, time::Duration};

use jiff::{SignedDuration, Timestamp};
use slipway_capi::frame::Plan;

use super::{
    claim::{Asking, Candidate, Decision, decide},
    provider_id::ProviderId,
};

/// Reasons that core knows.
const WAITING_FOR_INFRASTRUCTURE: &str = "WaitingForClusterInfrastructureReady";
const WAITING_FOR_BOOTSTRAP_DATA: &str = "WaitingForBootstrapData";
pub const NOT_PROVISIONED: &str = "NotProvisioned";

/// How long a deleted machine waits for its host to be wiped. After that the host alone remembers: it stays unclaimable until it is.
const WIPED_WITHIN: SignedDuration = SignedDuration::from_mins(10);
/// The host tells only whoever asks.
const ASKED_AGAIN: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub namespace: String,
    pub asking: Asking,
    pub hosts: Vec<Candidate>,
    /// Hosts and machine were read at the apiserver, and not from a watch.
    pub is_confirmed: bool,
    /// A Machine owns it.
    pub is_owned: bool,
    pub is_cluster_provisioned: bool,
    /// Its control plane answers, or did once.
    pub is_initialized: bool,
    /// The Secret with the bootstrap data, once core names it.
    pub bootstrap_secret: Option<String>,
    pub provider_id: Option<String>,
    pub bootstrap: Bootstrap,
    /// That the host has run it is noted on the machine.
    pub is_recorded: bool,
    /// The address that the servers of its cluster hold in turn, where it is one of them.
    pub address: Option<AddressFacts>,
    pub deleted_at: Option<Timestamp>,
}

/// What is known of the address that servers hold in turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressFacts {
    /// The EdgeCluster that has it.
    pub cluster: String,
    /// The claim of the server that was the first to hold it, or is to be.
    pub first: Option<String>,
    /// A host has that claim, or had it and is not wiped yet.
    pub first_is_there: bool,
    /// How far the host is with the order.
    pub order: AddressOrder,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AddressOrder {
    #[default]
    NotOrdered,
    Accepted,
    Failed(String),
    Unreachable(String),
}

/// How far the host is with the bootstrap data of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Bootstrap {
    #[default]
    NotOrdered,
    Running,
    /// The agent was restarted under it, and has forgotten the data: the same order goes on.
    Interrupted,
    Succeeded,
    /// It is not run again: what it left behind is not known.
    Failed(String),
    /// The host does not take it now: a person works on it, or something else runs.
    Refused(String),
    Unreachable(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Write the host's name into the machine, over the version that was read.
    Choose {
        host: String,
    },
    /// Take it out.
    Drop {
        host: String,
    },
    /// Write the machine into the host, over the version that was read.
    Take {
        host: String,
    },
    /// Mark the claim as released.
    Return {
        host: String,
    },
    WriteProviderId {
        id: ProviderId,
    },
    /// Read the bootstrap data and give it to the host.
    OrderBootstrap {
        host: String,
        secret: String,
    },
    /// Write into the EdgeCluster that this server is the first to hold its address, over the version that was read.
    BeFirst {
        cluster: String,
    },
    /// Let the host take part in holding the address of its cluster.
    OrderAddress {
        host: String,
        first: bool,
    },
    /// Note on the machine that its host has run it.
    RecordBootstrap,
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Choose { host } => write!(formatter, "choose host {host}"),
            Self::Drop { host } => write!(formatter, "give up the choice of host {host}"),
            Self::Take { host } => write!(formatter, "take host {host}"),
            Self::Return { host } => write!(formatter, "return host {host}"),
            Self::WriteProviderId { id } => write!(formatter, "write provider id {id}"),
            Self::OrderBootstrap { host, secret } => {
                write!(
                    formatter,
                    "give host {host} the bootstrap data of Secret {secret}"
                )
            }
            Self::BeFirst { cluster } => {
                write!(
                    formatter,
                    "note in EdgeCluster {cluster} that this server is the first to hold its address"
                )
            }
            Self::OrderAddress { host, first: true } => {
                write!(
                    formatter,
                    "let host {host} hold the address of its cluster, as the first"
                )
            }
            Self::OrderAddress { host, first: false } => {
                write!(
                    formatter,
                    "let host {host} hold the address of its cluster in its turn"
                )
            }
            Self::RecordBootstrap => formatter.write_str("note that the bootstrap data was run"),
        }
    }
}

/// Whether what is next rests on reads that may be stale and is too much for that.
pub fn needs_confirmation(facts: &Facts) -> bool {
    !facts.is_confirmed
        && match decide(&facts.asking, &facts.hosts) {
            Decision::Held { .. } => {
                matches!(facts.bootstrap, Bootstrap::NotOrdered | Bootstrap::Interrupted)
            }
            Decision::Lost { .. } => true,
            _ => false,
        }
}

pub fn plan(facts: &Facts, now: Timestamp) -> Plan<Action> {
    let mut plan = Plan::new();
    if facts.asking.is_deleting {
        delete(facts, now, &mut plan);
        return plan;
    }
    if !facts.is_owned {
        plan.wait("WaitingForOwner", "no Machine owns it yet");
        return plan;
    }
    if !facts.asking.is_bound {
        if !facts.is_cluster_provisioned {
            plan.wait(
                WAITING_FOR_INFRASTRUCTURE,
                "the infrastructure of the Cluster is not provisioned yet",
            );
            return plan;
        }
        if facts.bootstrap_secret.is_none() {
            plan.wait(
                WAITING_FOR_BOOTSTRAP_DATA,
                "there is no bootstrap data yet, so no host is claimed",
            );
            return plan;
        }
    }
    match decide(&facts.asking, &facts.hosts) {
        Decision::Choose { host, why } => {
            plan.then(Action::Choose { host }, why);
        }
        Decision::Drop { host, why } => {
            plan.then(Action::Drop { host }, why);
        }
        Decision::Take { host, why } => {
            plan.then(Action::Take { host }, why).announced("Claiming");
        }
        Decision::Return { host, why } => {
            plan.then(Action::Return { host }, why).announced("Releasing");
        }
        Decision::Lost { host, why } => {
            plan.wait("HostLost", format!("host {host} is lost: {why}"));
        }
        Decision::Wait { reason, message } => {
            plan.wait(reason, message);
        }
        Decision::Held { host } => bootstrap(facts, &host, &mut plan),
        Decision::Nothing => {}
    }
    plan
}

/// The host is the machine's.
fn bootstrap(facts: &Facts, host: &str, plan: &mut Plan<Action>) {
    if facts.provider_id.as_deref().unwrap_or_default().is_empty() {
        let id = ProviderId {
            namespace: facts.namespace.clone(),
            host: host.to_owned(),
            claim: facts.asking.uid.clone(),
        };
        plan.then(
            Action::WriteProviderId { id },
            "from here on the machine is on this host and no other",
        );
    }
    let order = |secret: &String| Action::OrderBootstrap {
        host: host.to_owned(),
        secret: secret.clone(),
    };
    if facts.bootstrap == Bootstrap::NotOrdered && !takes_part(facts, host, plan) {
        return;
    }
    match (&facts.bootstrap, &facts.bootstrap_secret) {
        (Bootstrap::NotOrdered, Some(secret)) => {
            plan.then(order(secret), "the host has not run it yet");
        }
        (Bootstrap::Interrupted, Some(secret)) => {
            plan.then(
                order(secret),
                "the agent was restarted under it, and the same order goes on",
            );
        }
        (Bootstrap::NotOrdered | Bootstrap::Interrupted, None) => {
            plan.wait(WAITING_FOR_BOOTSTRAP_DATA, "the bootstrap data is not there");
        }
        (Bootstrap::Running, _) => {
            plan.wait("Bootstrapping", format!("host {host} runs its bootstrap data"));
            plan.revisit(ASKED_AGAIN, "the host tells only whoever asks");
        }
        (Bootstrap::Refused(why), _) => {
            plan.wait(
                "HostBusy",
                format!("host {host} does not take the bootstrap data now: {why}"),
            );
        }
        (Bootstrap::Failed(why), _) => {
            plan.wait(
                "BootstrapFailed",
                format!("the bootstrap data failed on host {host}: {why}"),
            );
        }
        (Bootstrap::Unreachable(why), _) => {
            plan.wait("HostUnreachable", format!("host {host} does not answer: {why}"));
            plan.revisit(ASKED_AGAIN, "nobody tells when it does");
        }
        (Bootstrap::Succeeded, _) if facts.is_recorded => {}
        (Bootstrap::Succeeded, _) => {
            plan.then(Action::RecordBootstrap, format!("host {host} has run it"))
                .announced("Bootstrapped");
        }
    }
}

/// A server takes part in holding the address of its cluster before it is made one. True when it does.
fn takes_part(facts: &Facts, host: &str, plan: &mut Plan<Action>) -> bool {
    let Some(address) = &facts.address else {
        return true;
    };
    match &address.order {
        AddressOrder::Accepted => return true,
        AddressOrder::Failed(why) => {
            plan.wait(
                "AddressRefused",
                format!("host {host} does not take part in holding the address of its cluster: {why}"),
            );
            plan.revisit(ASKED_AGAIN, "nobody tells when it does");
            return false;
        }
        AddressOrder::Unreachable(why) => {
            plan.wait("HostUnreachable", format!("host {host} does not answer: {why}"));
            plan.revisit(ASKED_AGAIN, "nobody tells when it does");
            return false;
        }
        AddressOrder::NotOrdered => {}
    }
    // At most one server may hold it without a lease, so its name is written down before it does; another one follows when nothing is
    // left of it on any host.
    let own = facts.asking.uid.as_str();
    let is_first = address.first.as_deref() == Some(own);
    let there_is_one = facts.is_initialized || address.first_is_there;
    if !is_first && !there_is_one {
        plan.then(
            Action::BeFirst {
                cluster: address.cluster.clone(),
            },
            "the cluster has no other server",
        );
        return false;
    }
    plan.then(
        Action::OrderAddress {
            host: host.to_owned(),
            first: is_first,
        },
        "the servers hold the address of their cluster in turn",
    );
    true
}

fn delete(facts: &Facts, now: Timestamp, plan: &mut Plan<Action>) {
    match decide(&facts.asking, &facts.hosts) {
        Decision::Return { host, why } => {
            plan.then(Action::Return { host }, why).announced("Releasing");
        }
        Decision::Wait { reason, message } => {
            let deadline = facts
                .deleted_at
                .unwrap_or(now)
                .checked_add(WIPED_WITHIN)
                .unwrap_or(Timestamp::MAX);
            if now < deadline {
                plan.wait(reason, message).until(deadline);
            } else {
                plan.release_finalizer(format!(
                    "{message} for longer than {} minutes; it cannot be claimed before it is",
                    WIPED_WITHIN.as_mins()
                ))
                .warned("NotWiped");
            }
        }
        _ => {
            plan.release_finalizer("no host has anything of it");
        }
    }
}
