//! What to do for a fleet: pure.

use std::fmt;

use kube::ResourceExt;
use slipway_capi::frame::Plan;

use super::observe::Observed;
use crate::toy::vessel::api::Vessel;

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    CreateVessel {
        number: i32,
    },
    DeleteVessel(Box<Vessel>),
    /// The same every time: nothing changes, and still it is a write.
    WriteRestlessly,
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CreateVessel { number } => write!(formatter, "create vessel {number}"),
            Self::DeleteVessel(vessel) => write!(formatter, "delete Vessel {}", vessel.name_any()),
            Self::WriteRestlessly => formatter.write_str("write without need"),
        }
    }
}

/// How many vessels there are to be.
pub fn desired(observed: &Observed) -> i32 {
    observed.fleet.spec.vessels.unwrap_or(1)
}

pub fn plan(observed: &Observed) -> Plan<Action> {
    let mut plan = Plan::new();
    if observed.fleet.metadata.deletion_timestamp.is_some() {
        for vessel in &observed.vessels {
            plan.beside(
                Action::DeleteVessel(Box::new(vessel.clone())),
                "the fleet is deleted",
            );
        }
        if plan.is_empty() {
            plan.release_finalizer("no vessel is left");
        }
        return plan;
    }
    if observed.is_restless {
        plan.regardless(Action::WriteRestlessly, "the fleet is restless");
    }
    if let Some((problem, class)) = &observed.charter {
        plan.blocked("BadCharter", problem, *class);
        return plan;
    }
    let desired = desired(observed);
    for number in 0..desired {
        if !observed.vessels.iter().any(|vessel| vessel.spec.number == number) {
            let why = format!("{desired} vessels are desired, and this one is missing");
            plan.beside(Action::CreateVessel { number }, why)
                .announced("Creating");
        }
    }
    for vessel in &observed.vessels {
        if vessel.spec.number >= desired {
            let why = format!("only {desired} vessels are desired");
            plan.beside(Action::DeleteVessel(Box::new(vessel.clone())), why)
                .changing("spec.vessels", observed.vessels.len(), desired)
                .announced("Deleting");
        }
    }
    let afloat = afloat(observed);
    if afloat != desired {
        plan.wait("NotAfloat", format!("{afloat} of {desired} vessels are afloat"));
    }
    plan
}

/// How many vessels are afloat.
pub fn afloat(observed: &Observed) -> i32 {
    let afloat = |vessel: &&Vessel| vessel.status.as_ref().is_some_and(|status| status.afloat);
    observed.vessels.iter().filter(afloat).count() as i32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toy::vessel::api::{VesselSpec, VesselStatus};
    use slipway_runtime::Class;

    fn fleet(desired: i32, vessels: &[(i32, bool)]) -> Observed {
        let mut observed = Observed::default();
        observed.fleet.spec.vessels = Some(desired);
        for (number, afloat) in vessels {
            let spec = VesselSpec {
                number: *number,
                cargo: None,
            };
            let mut vessel = Vessel::new(&format!("north-{number}"), spec);
            vessel.status = Some(VesselStatus { afloat: *afloat });
            observed.vessels.push(vessel);
        }
        observed
    }

    fn deleted(mut observed: Observed) -> Observed {
        observed.fleet.metadata.deletion_timestamp = Some(
            k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH),
        );
        observed
    }

    #[test]
    fn the_plan_of_a_fleet() {
        let mut bad = fleet(1, &[]);
        bad.charter = Some(("the seal is broken".to_owned(), Class::Transient));
        for (observed, printed) in [
            (fleet(1, &[(0, true)]), "nothing to do\n"),
            (
                fleet(2, &[(0, true)]),
                "1. create vessel 1: 2 vessels are desired, and this one is missing\n\
                 2. wait NotAfloat: 1 of 2 vessels are afloat\n",
            ),
            (
                fleet(1, &[(0, true), (1, false)]),
                "1. delete Vessel north-1: only 1 vessels are desired\n     spec.vessels: 2 -> 1\n",
            ),
            (bad, "1. blocked BadCharter (transient): the seal is broken\n"),
            (
                deleted(fleet(1, &[(0, true)])),
                "1. delete Vessel north-0: the fleet is deleted\n",
            ),
            (
                deleted(fleet(1, &[])),
                "1. release finalizer: no vessel is left\n",
            ),
        ] {
            assert_eq!(plan(&observed).to_string(), printed);
        }
    }
}
