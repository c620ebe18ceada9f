//! Which Machine stands for which claim. A Machine carries the uid of one claim at most; a claim that lost its Machine takes
//! the one that came in its place.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    account::{Action, Planned},
    facts::{Claim, Group, Machine},
};

/// How the Machines of a group are spoken for, once the steps are taken.
#[derive(Debug, Default)]
pub struct Bindings {
    /// Claim uid to Machine name.
    pub of_claim: BTreeMap<String, String>,
    pub steps: Vec<Planned>,
    /// Machines that nobody speaks for and that are not to go.
    pub unclaimed: Vec<String>,
    /// Machines whose claim is gone without having let go of them.
    pub leaked: Vec<String>,
}

fn plan(bindings: &mut Bindings, claim: &Claim, machine: &Machine, why: &str) {
    bindings.of_claim.insert(claim.uid.clone(), machine.name.clone());
    bindings.steps.push(Planned::new(
        Action::Bind {
            machine: machine.name.clone(),
            claim: claim.uid.clone(),
        },
        why,
    ));
}

fn standing(group: &Group) -> impl Iterator<Item = &Machine> {
    group.machines.iter().filter(|machine| !machine.is_deleting)
}

/// Claims that have their Machine, by its label or by the claim's own word; answers with the names of those Machines.
fn known<'a>(group: &'a Group, bindings: &mut Bindings) -> BTreeSet<&'a str> {
    let mut spoken_for: BTreeSet<&str> = BTreeSet::new();
    for claim in &group.claims {
        let mut own: Vec<&Machine> = standing(group)
            .filter(|machine| machine.claim.as_deref() == Some(claim.uid.as_str()))
            .collect();
        own.sort_by_key(|machine| {
            (
                claim.machine.as_deref() != Some(machine.name.as_str()),
                machine.created,
                &machine.name,
            )
        });
        let mut own = own.into_iter();
        if let Some(first) = own.next() {
            bindings.of_claim.insert(claim.uid.clone(), first.name.clone());
            spoken_for.insert(&first.name);
        }
        for surplus in own {
            // One that is on its way out goes on being so.
            if surplus.deleted_with.is_none() {
                let step = Action::Release {
                    machine: surplus.name.clone(),
                };
                bindings
                    .steps
                    .push(Planned::new(step, "another Machine already stands for its claim"));
            }
            spoken_for.insert(&surplus.name);
        }
    }
    // The Go provider bound by the claim's annotation alone.
    for claim in &group.claims {
        let named = standing(group).find(|machine| {
            claim.machine.as_deref() == Some(machine.name.as_str())
                && machine.claim.is_none()
                && !spoken_for.contains(machine.name.as_str())
        });
        if let Some(machine) = named.filter(|_| !bindings.of_claim.contains_key(&claim.uid)) {
            spoken_for.insert(&machine.name);
            plan(bindings, claim, machine, "the claim names it");
        }
    }
    spoken_for
}

/// Claims that are to be given a Machine, in this order.
fn waiting<'a>(group: &'a Group, bindings: &Bindings) -> Vec<&'a Claim> {
    let mut waiting: Vec<&Claim> = group
        .claims
        .iter()
        .filter(|claim| !bindings.of_claim.contains_key(&claim.uid))
        .collect();
    // A claim that goes takes a Machine only if replicas still ask for one on its behalf: it never had one, or lost it.
    let staying = group.claims.iter().filter(|claim| !claim.is_leaving()).count();
    let going = standing(group)
        .filter(|machine| {
            let claim = group
                .claims
                .iter()
                .find(|claim| machine.claim.as_ref() == Some(&claim.uid));
            machine.deleted_with.is_some() || (machine.claim.is_some() && claim.is_none_or(Claim::is_leaving))
        })
        .count();
    let is_asked_for = usize::try_from(group.replicas).unwrap_or(0) > staying + going;
    let has_one = |claim: &Claim| {
        let is_its_own = |machine: &Machine| machine.claim.as_deref() == Some(claim.uid.as_str());
        claim.gave_back || group.machines.iter().any(is_its_own)
    };
    waiting.retain(|claim| !claim.is_leaving() || (is_asked_for && !has_one(claim)));
    // Those that stay before those that go, then in the order in which they were made.
    waiting.sort_by_key(|claim| (claim.is_leaving(), claim.created, &claim.name, &claim.uid));
    waiting
}

pub fn bind(group: &Group) -> Bindings {
    let mut bindings = Bindings::default();
    let spoken_for = known(group, &mut bindings);
    let mut free: Vec<&Machine> = standing(group)
        .filter(|machine| machine.deleted_with.is_none() && !spoken_for.contains(machine.name.as_str()))
        .collect();
    free.sort_by_key(|machine| {
        (
            machine.revision != group.current_revision,
            machine.created,
            &machine.name,
        )
    });
    let waiting = waiting(group, &bindings);
    for claim in waiting {
        let suits = |machine: &&Machine| {
            if claim.is_leaving() {
                // It takes only what was made after it, so that it takes nobody else's Machine with it. One that failed
                // goes too: nobody else will ever take it.
                machine.claim.is_none() && machine.created >= claim.created
            } else {
                !machine.has_failed
            }
        };
        if let Some(place) = free.iter().position(suits) {
            let machine = free.remove(place);
            let why = match (&claim.machine, claim.is_leaving()) {
                (_, true) => "it was made for a claim that has been deleted meanwhile",
                (Some(_), false) => "it came in place of the claim's Machine",
                (None, false) => "it was made for the claim",
            };
            plan(&mut bindings, claim, machine, why);
        }
    }
    for machine in free {
        if machine.claim.is_some() {
            bindings.leaked.push(machine.name.clone());
        } else {
            bindings.unclaimed.push(machine.name.clone());
        }
    }
    bindings
}
