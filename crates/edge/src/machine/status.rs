//! What an EdgeMachine says of itself: pure.

use jiff::Timestamp;
use slipway_capi::{
    condition::{self, Report, Status},
    frame::Plan,
    names::{condition as condition_type, reason},
};

use super::{
    api::{Address, EdgeMachineStatus},
    plan::{Action, Bootstrap, Facts, NOT_PROVISIONED},
};

/// Whether a host is the machine's.
pub const HOST_CLAIMED: &str = "HostClaimed";
/// Whether the host has run its bootstrap data.
pub const BOOTSTRAPPED: &str = "Bootstrapped";

/// What follows from the facts and from what the plan waits for. `before`: what stands in the status.
pub fn status(
    before: &EdgeMachineStatus,
    facts: &Facts,
    plan: &Plan<Action>,
    generation: Option<i64>,
    now: Timestamp,
) -> EdgeMachineStatus {
    let mut status = before.clone();
    let chosen = facts.asking.chosen.as_ref();
    let host = chosen.and_then(|chosen| {
        facts
            .hosts
            .iter()
            .find(|host| host.name == *chosen)
            .filter(|host| {
                let ours = |claim: &crate::host::api::Claim| claim.uid == facts.asking.uid && !claim.released;
                host.claim.as_ref().is_some_and(ours)
            })
    });
    let is_bootstrapped = facts.bootstrap == Bootstrap::Succeeded;
    if let Some(host) = host {
        status.failure_domain.clone_from(&host.failure_domain);
        status.addresses = addresses(&host.name, &host.addresses);
        if is_bootstrapped {
            status.initialization.provisioned = Some(true);
        }
    }
    let waits = plan.waits().next();
    let (waits_for, message) = waits.map_or((NOT_PROVISIONED, String::new()), |(wait, message)| {
        (wait.reason.as_str(), message.to_owned())
    });
    let reports = [
        match host {
            Some(host) => Report::new(
                HOST_CLAIMED,
                Status::True,
                "Claimed",
                format!("host {}", host.name),
            ),
            None => Report::new(HOST_CLAIMED, Status::False, waits_for, message.clone()),
        },
        if is_bootstrapped {
            Report::new(BOOTSTRAPPED, Status::True, "Bootstrapped", "")
        } else {
            Report::new(BOOTSTRAPPED, Status::False, waits_for, message.clone())
        },
        match (host, is_bootstrapped, facts.asking.is_deleting) {
            (_, _, true) => Report::new(condition_type::READY, Status::False, reason::DELETING, message),
            (Some(_), true, _) => Report::new(condition_type::READY, Status::True, reason::READY, ""),
            _ => Report::new(condition_type::READY, Status::False, waits_for, message),
        },
    ];
    for report in reports {
        condition::set(&mut status.conditions, &report, generation, now);
    }
    status
}

/// A host is known by its name and by the addresses it has.
fn addresses(host: &str, found: &[String]) -> Vec<Address> {
    let address = |type_: &str, address: &str| Address {
        type_: type_.to_owned(),
        address: address.to_owned(),
    };
    std::iter::once(address("Hostname", host))
        .chain(found.iter().map(|found| address("InternalIP", found)))
        .collect()
}
