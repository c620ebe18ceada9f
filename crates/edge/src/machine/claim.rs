//! Which host a machine gets: pure. One host for one machine, whatever crashes and however stale a read is, because two objects
//! have to agree: the machine names the host it has chosen (`spec.hostName`), and the host names the machine that has it
//! (`spec.claim`). Each is written only over the version that was read. A machine is given its bootstrap data only while both agree,
//! and a host is free again only when it was wiped (`host::release`).

use std::{cmp::Reverse, collections::BTreeMap, fmt};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use slipway_slots::Digest;

use super::api::Minimum;
use crate::{
    host::api::{Claim, Hardware},
    selector,
};

/// The machine that asks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Asking {
    pub name: String,
    pub uid: String,
    /// The host it has chosen.
    pub chosen: Option<String>,
    /// It has run on the host: it never goes to another one.
    pub is_bound: bool,
    pub is_deleting: bool,
    pub selector: Option<LabelSelector>,
    pub minimum: Option<Minimum>,
    /// Where it has to be.
    pub failure_domain: Option<String>,
}

/// A host that may be chosen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Candidate {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub claim: Option<Claim>,
    pub failure_domain: Option<String>,
    pub hardware: Option<Hardware>,
    /// Its agent answers, and has slots and inventory.
    pub is_ready: bool,
    /// Why nothing is to be done to it.
    pub maintenance: Option<String>,
    pub is_deleting: bool,
    /// From which it speaks to other machines.
    pub addresses: Vec<String>,
    /// How many machines of the same cluster are in its failure domain.
    pub neighbours: usize,
}

/// What is next, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Write the host's name into the machine.
    Choose {
        host: String,
        why: String,
    },
    /// Write the machine into the host.
    Take {
        host: String,
        why: String,
    },
    /// Both agree: it may be used.
    Held {
        host: String,
    },
    /// Take the host's name out of the machine.
    Drop {
        host: String,
        why: String,
    },
    /// Mark the claim on the host as released, so that it is wiped.
    Return {
        host: String,
        why: String,
    },
    /// A machine that has run lost its host: nothing is done by itself.
    Lost {
        host: String,
        why: String,
    },
    /// Nothing of it is left on any host.
    Nothing,
    Wait {
        reason: &'static str,
        message: String,
    },
}

impl fmt::Display for Decision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Choose { host, why } => write!(formatter, "choose host {host}: {why}"),
            Self::Take { host, why } => write!(formatter, "take host {host}: {why}"),
            Self::Held { host } => write!(formatter, "use host {host}"),
            Self::Drop { host, why } => write!(formatter, "give up the choice of host {host}: {why}"),
            Self::Return { host, why } => write!(formatter, "return host {host}: {why}"),
            Self::Lost { host, why } => write!(formatter, "host {host} is lost: {why}"),
            Self::Nothing => formatter.write_str("no host is held"),
            Self::Wait { reason, message } => write!(formatter, "wait {reason}: {message}"),
        }
    }
}

pub fn decide(asking: &Asking, hosts: &[Candidate]) -> Decision {
    let ours = |host: &&Candidate| {
        host.claim
            .as_ref()
            .is_some_and(|claim| claim.uid == asking.uid && !claim.released)
    };
    let held: Vec<&Candidate> = hosts.iter().filter(ours).collect();
    if asking.is_deleting {
        return match held.first() {
            Some(host) => Decision::Return {
                host: host.name.clone(),
                why: "the machine is deleted".to_owned(),
            },
            None => let_go(asking, hosts),
        };
    }
    let Some(chosen) = &asking.chosen else {
        // A claim that was written, and whose choice was given up because the write was not seen: it is taken up again.
        return match held.first() {
            Some(host) => Decision::Choose {
                host: host.name.clone(),
                why: "the host is claimed for it already".to_owned(),
            },
            None => choose(asking, hosts),
        };
    };
    if let Some(other) = held.iter().find(|host| host.name != *chosen) {
        return Decision::Return {
            host: other.name.clone(),
            why: format!("the machine has chosen host {chosen}"),
        };
    }
    let given_up = |why: String| {
        let host = chosen.clone();
        if asking.is_bound {
            Decision::Lost { host, why }
        } else {
            Decision::Drop { host, why }
        }
    };
    let Some(host) = hosts.iter().find(|host| host.name == *chosen) else {
        return given_up("there is no such EdgeHost".to_owned());
    };
    match &host.claim {
        Some(claim) if claim.uid == asking.uid && !claim.released => Decision::Held { host: chosen.clone() },
        Some(claim) if claim.uid == asking.uid => given_up("the host was released and is wiped".to_owned()),
        Some(claim) => given_up(format!("EdgeMachine {} has it", claim.name)),
        None if asking.is_bound => given_up("the host has been freed".to_owned()),
        None => match unfit(asking, host) {
            Some(why) => given_up(why),
            None => Decision::Take {
                host: chosen.clone(),
                why: "the machine has chosen it, and it is free".to_owned(),
            },
        },
    }
}

/// A deleted machine: what it released must be wiped before it is gone, or be somebody else's to wipe.
fn let_go(asking: &Asking, hosts: &[Candidate]) -> Decision {
    let being_wiped = hosts
        .iter()
        .find(|host| host.claim.as_ref().is_some_and(|claim| claim.uid == asking.uid));
    match being_wiped {
        Some(host) => Decision::Wait {
            reason: "Wiping",
            message: format!("host {} is being wiped", host.name),
        },
        None => Decision::Nothing,
    }
}

/// Why a host cannot be had by this machine.
fn unfit(asking: &Asking, host: &Candidate) -> Option<String> {
    if host.is_deleting {
        return Some("it is being deleted".to_owned());
    }
    if let Some(reason) = &host.maintenance {
        return Some(format!("it is in maintenance: {reason}"));
    }
    if !host.is_ready {
        return Some("its agent does not answer".to_owned());
    }
    does_not_match(asking, host)
}

/// What of the machine's demands the host does not meet, whatever state it is in.
fn does_not_match(asking: &Asking, host: &Candidate) -> Option<String> {
    if !selector::selects(asking.selector.as_ref(), &host.labels) {
        return Some("hostSelector does not select it".to_owned());
    }
    if let Some(domain) = &asking.failure_domain
        && host.failure_domain.as_ref() != Some(domain)
    {
        return Some(format!("it is not in failure domain {domain}"));
    }
    too_small(asking.minimum.as_ref(), host.hardware.as_ref())
}

/// What a host has too little of.
pub fn too_small(minimum: Option<&Minimum>, hardware: Option<&Hardware>) -> Option<String> {
    let minimum = minimum?;
    let none = Hardware::default();
    let has = hardware.unwrap_or(&none);
    if let Some(processors) = minimum.processors.filter(|least| has.processors < *least) {
        return Some(format!(
            "it has {} processors and {processors} are asked for",
            has.processors
        ));
    }
    if let Some(memory) = minimum.memory_mib.filter(|least| has.memory_mib < *least) {
        return Some(format!(
            "it has {} MiB of memory and {memory} are asked for",
            has.memory_mib
        ));
    }
    let other = |architecture: &&String| **architecture != has.architecture;
    let architecture = minimum.architecture.as_ref().filter(other)?;
    Some(format!(
        "it is {} and {architecture} is asked for",
        if has.architecture.is_empty() {
            "of an unknown architecture"
        } else {
            &has.architecture
        }
    ))
}

fn choose(asking: &Asking, hosts: &[Candidate]) -> Decision {
    let fitting: Vec<&Candidate> = hosts
        .iter()
        .filter(|host| host.claim.is_none() && unfit(asking, host).is_none())
        .collect();
    // Spread over failure domains, then the smallest that is large enough. Among equals every machine has an order of its own, so
    // that many that ask at once do not all ask for the same host.
    let rank = |host: &&&Candidate| {
        let size = host.hardware.clone().unwrap_or_default();
        let own = Digest::of(format!("{}/{}", asking.uid, host.name).as_bytes());
        (host.neighbours, size.memory_mib, size.processors, Reverse(own))
    };
    match fitting.iter().min_by_key(rank) {
        Some(host) => Decision::Choose {
            host: host.name.clone(),
            why: format!("it is free and fits; {} hosts do", fitting.len()),
        },
        None => Decision::Wait {
            reason: "NoHost",
            message: no_host(asking, hosts),
        },
    }
}

/// Why there is none, in numbers: what keeps how many hosts from it.
fn no_host(asking: &Asking, hosts: &[Candidate]) -> String {
    if hosts.is_empty() {
        return "there is no EdgeHost in the namespace: register one".to_owned();
    }
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    for host in hosts {
        let why = does_not_match(asking, host)
            .or_else(|| match &host.claim {
                Some(claim) if claim.released => Some("it is being wiped".to_owned()),
                Some(_) => Some("it is claimed".to_owned()),
                None => None,
            })
            .or_else(|| unfit(asking, host));
        *reasons.entry(why.unwrap_or_default()).or_default() += 1;
    }
    let told: Vec<String> = reasons
        .iter()
        .map(|(why, count)| format!("{count} × {why}"))
        .collect();
    format!("none of {} hosts can be had: {}", hosts.len(), told.join("; "))
}
