//! Whether a server's etcd member is alive, by evidence that ends when its host ends: the renewals of its Node's lease, the
//! Node's Ready condition, and what its own API and its kubelet answer. Pure. What k3s says of membership (`EtcdIsVoter`,
//! `/db/info`) is no such evidence: a voter that lost its power keeps both.

use std::time::Duration;

use jiff::Timestamp;

use super::{
    health::age,
    observed::{Node, Observed, Server},
};

/// A kubelet renews its lease every ten seconds: two in a row were missed.
pub const LEASE_OVERDUE: Duration = Duration::from_secs(20);
/// How long silence at an address where a server has answered speaks against it, however fresh its lease: after that the
/// network is another one.
pub const ADDRESS_KNOWN: Duration = Duration::from_mins(10);
/// As long as a lease is valid: from then on the node controller stops trusting the kubelet too.
pub const LEASE_EXPIRED: Duration = Duration::from_secs(40);

/// What is known of a server's life. What is not known to be alive counts as failed wherever quorum is counted; what is not
/// known to be dead is never removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Liveness {
    Alive,
    /// Nothing speaks against it; what would speak for it has not been seen yet, as after a start of the manager.
    NotYetKnown(String),
    Unknown(String),
    Dead(String),
}

impl Liveness {
    /// Why it is not known to be alive.
    pub fn problem(&self) -> Option<&str> {
        match self {
            Self::Alive => None,
            Self::NotYetKnown(why) | Self::Unknown(why) | Self::Dead(why) => Some(why),
        }
    }

    /// What speaks against its being alive.
    pub fn evidence_against(&self) -> Option<&str> {
        match self {
            Self::Alive | Self::NotYetKnown(_) => None,
            Self::Unknown(why) | Self::Dead(why) => Some(why),
        }
    }
}

/// The renewals of a Node's lease, timed by our own clock as they were seen: clocks of hosts are not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// When it was last seen to be renewed, or first seen at all.
    pub silent_since: Timestamp,
    /// Whether a renewal was seen. Until then the host may have died long ago.
    pub renewed: bool,
}

/// What a server's own API answered to `/readyz`, which includes its etcd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Probe {
    /// No decision needed it, or the machine has no address.
    #[default]
    NotTried,
    Ready,
    /// Something answers, and it is not ready.
    NotReady(String),
    /// No server of this cluster has answered there since then. The network may not lead there at all: a lease that is
    /// renewed after that outweighs it, unless the server has answered there before.
    NoAnswer {
        since: Timestamp,
        answered_before: bool,
    },
}

/// What a node's kubelet answered through the cluster's endpoint. k3s runs its kubelet and its etcd in one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kubelet {
    /// No decision needed it, or no kubelet of a server can be asked this way.
    #[default]
    NotAsked,
    Answers,
    /// The cluster cannot reach it, and it reaches another server's.
    Silent,
}

impl Probe {
    pub fn is_answer(&self) -> bool {
        matches!(self, Self::Ready | Self::NotReady(_))
    }
}

pub fn of_server(server: &Server, observed: &Observed, now: Timestamp) -> Liveness {
    match &server.probe {
        Probe::Ready => return Liveness::Alive,
        Probe::NotReady(why) => {
            return Liveness::Unknown(format!(
                "the server of machine {} is not ready: {why}",
                server.name
            ));
        }
        Probe::NotTried | Probe::NoAnswer { .. } => {}
    }
    let Some(name) = server.node.as_deref() else {
        return Liveness::Unknown(format!("machine {} has no node yet", server.name));
    };
    match observed.workload.view().and_then(|view| view.node(name)) {
        None => Liveness::Unknown(format!("node {name} does not exist")),
        Some(node) => of_node(node, &server.probe, now),
    }
}

/// Whether anything says that a server may live, for those who would take it: less than being alive, which is for those who
/// would rely on it.
pub fn may_live(server: &Server, observed: &Observed, now: Timestamp) -> bool {
    let node = server
        .node
        .as_deref()
        .and_then(|name| observed.workload.view()?.node(name));
    let Some(node) = node else {
        return true;
    };
    let renewed = node
        .lease
        .is_some_and(|lease| age(lease.silent_since, now) <= LEASE_OVERDUE);
    server.probe.is_answer()
        || match node.kubelet {
            Kubelet::Answers => true,
            Kubelet::Silent => false,
            Kubelet::NotAsked => renewed,
        }
}

/// By the node; `probe` says nothing, or that nobody answers at the server's address.
pub fn of_node(node: &Node, probe: &Probe, now: Timestamp) -> Liveness {
    let name = &node.name;
    let silence = node.lease.map(|lease| age(lease.silent_since, now));
    let overdue = silence > Some(LEASE_OVERDUE);
    // Whatever else keeps the node from being ready, the process that has the member runs and reaches the cluster.
    if node.kubelet == Kubelet::Answers && !overdue {
        return Liveness::Alive;
    }
    if !node.ready {
        return match (&node.lease, silence) {
            (Some(lease), Some(silence)) if silence >= LEASE_EXPIRED && node.kubelet != Kubelet::Answers => {
                Liveness::Dead(format!(
                    "node {name} is not ready and its lease has not been renewed since {}",
                    lease.silent_since
                ))
            }
            _ => Liveness::Unknown(format!("node {name} is not ready")),
        };
    }
    if node.kubelet == Kubelet::Silent {
        return Liveness::Unknown(format!("the cluster does not reach the kubelet of node {name}"));
    }
    match &node.lease {
        Some(lease) if overdue => Liveness::Unknown(format!(
            "the lease of node {name} has not been renewed since {}",
            lease.silent_since
        )),
        None => Liveness::NotYetKnown(format!("the lease of node {name} has not been seen")),
        Some(lease) if !lease.renewed => Liveness::NotYetKnown(format!(
            "the lease of node {name} has not been seen to be renewed yet"
        )),
        // Only a renewal after the silence began shows that the network does not lead there, and that the host lives.
        Some(lease) => match probe {
            // The network leads there, so the server came back from a silence and is silent again, or never came back.
            Probe::NoAnswer {
                since,
                answered_before: true,
            } => Liveness::Unknown(format!(
                "the server of node {name} does not answer any more, since {since}"
            )),
            Probe::NoAnswer { since, .. } if lease.silent_since <= *since => Liveness::NotYetKnown(format!(
                "the server of node {name} has not answered since {since}, and its lease was not renewed after that"
            )),
            _ => Liveness::Alive,
        },
    }
}
