//! What to write for one scalable object: pure. The account says it; here it becomes a plan, with what follows for claims.

use std::{fmt, mem::discriminant};

use jiff::Timestamp;
use slipway_capi::frame::Plan;

use super::Observed;
use crate::{
    accounting::{self, Account, account},
    api::names::annotation,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Account(accounting::Action),
    /// Notes on a deleted claim that nothing is left of it.
    Settle {
        claim: String,
    },
    /// Takes a claim off the object, so that another is chosen for it.
    Unassign {
        claim: String,
    },
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Account(step) => step.fmt(formatter),
            Self::Settle { claim } => write!(formatter, "settle claim {claim}"),
            Self::Unassign { claim } => write!(formatter, "unassign claim {claim}"),
        }
    }
}

/// The plan, and the account it was made from.
pub fn plan<K>(observed: &Observed<K>, now: Timestamp) -> (Plan<Action>, Account) {
    let mut plan = Plan::new();
    if let Some(rival) = observed.rival.as_ref().filter(|rival| rival.until > now) {
        plan.wait("AnotherAutoscaler", rival.to_string())
            .until(rival.until);
        return (plan, Account::default());
    }
    let group = &observed.group;
    let account = account(group);
    if group.is_paused {
        plan.wait("Paused", format!("{} is paused", group.reference));
        return (
            plan,
            Account {
                needs_confirmation: false,
                ..account
            },
        );
    }
    let mut last: Option<&accounting::Action> = None;
    for planned in &account.steps {
        let action = Action::Account(planned.step.clone());
        // Writes of one sort do not wait for each other; what follows from them does.
        if last.is_some_and(|last| discriminant(last) == discriminant(&planned.step)) {
            plan.beside(action, &planned.why);
        } else {
            plan.then(action, &planned.why);
        }
        last = Some(&planned.step);
    }
    for claim in &account.finished {
        let claim = claim.clone();
        plan.then(
            Action::Settle { claim },
            "nothing is left of it, and nothing will come",
        );
    }
    for claim in &account.unplaced {
        let claim = claim.clone();
        plan.then(Action::Unassign { claim }, "there is no room for it");
    }
    (plan, account)
}

/// Why the object gives no machine for now, if claims wait for one in vain.
pub fn no_machine<K>(observed: &Observed<K>, account: &Account) -> Option<String> {
    let waits = |uid: &String| {
        let claim = observed.claims.get(uid);
        claim.is_some_and(|claim| {
            claim.metadata.deletion_timestamp.is_none()
                && !claim
                    .metadata
                    .annotations
                    .iter()
                    .any(|all| all.contains_key(annotation::MACHINE))
        })
    };
    let group = &observed.group;
    if let Some(why) = &group.stuck {
        let in_vain = account.waiting.iter().any(|(uid, _)| waits(uid));
        return in_vain.then(|| format!("Cluster API makes no Machine: {why}"));
    }
    let failed = group
        .machines
        .iter()
        .find(|machine| machine.has_failed && !machine.is_deleting);
    failed.map(|machine| format!("Machine {} has failed", machine.name))
}
