//! The account of one scalable object: what to bind, mark, scale and delete, in this order, and who waits for what.

use std::{cmp::Ordering, collections::BTreeMap, fmt};

use super::{
    bind::{Bindings, bind},
    facts::{Claim, Group, Machine},
};

/// One idempotent write. Each is refused by the apiserver if its object has changed since it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Labels a Machine with the uid of its claim.
    Bind { machine: String, claim: String },
    /// Takes that label away.
    Release { machine: String },
    /// Records on a Machine that it goes with its claim: it is the one Cluster API deletes, and its node is drained already.
    Mark { machine: String, claim: String },
    /// Writes replicas, through the scale subresource.
    Scale { from: i32, to: i32 },
    /// Notes on a claim that replicas have fallen for it.
    Note { claim: String },
    /// Deletes a Machine that is marked, once replicas no longer ask for it.
    Delete { machine: String },
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bind { machine, claim } => write!(formatter, "bind Machine {machine} to claim {claim}"),
            Self::Release { machine } => write!(formatter, "release Machine {machine}"),
            Self::Mark { machine, claim } => {
                write!(formatter, "mark Machine {machine} to go with claim {claim}")
            }
            Self::Scale { from, to } => write!(formatter, "scale from {from} to {to}"),
            Self::Note { claim } => write!(formatter, "note on claim {claim} that replicas have fallen"),
            Self::Delete { machine } => write!(formatter, "delete Machine {machine}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    pub step: Action,
    pub why: String,
}

impl Planned {
    pub fn new(step: Action, why: impl Into<String>) -> Self {
        Planned {
            step,
            why: why.into(),
        }
    }
}

impl fmt::Display for Planned {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.step, self.why)
    }
}

/// What to do for an object, and what its claims can be told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Account {
    pub steps: Vec<Planned>,
    /// The Machine of each claim that has one, by uid.
    pub machines: Vec<(String, String)>,
    /// Claims without a Machine, and what they wait for.
    pub waiting: Vec<(String, String)>,
    /// Claims for which there is no room: another object has to be chosen for them.
    pub unplaced: Vec<String>,
    /// Leaving claims that leave nothing behind: their finalizer can go.
    pub finished: Vec<String>,
    /// Machines that nobody speaks for: a claim can be made for each.
    pub unclaimed: Vec<String>,
    /// Whether something rests on who is there and who is not, which is to be read again, past the cache.
    pub needs_confirmation: bool,
}

/// Settles the account. Replicas are what the claims need and what others asked for, never one more or less than before:
///
/// - They rise to the claims, and to Machines nobody claims as far as replicas already ask for these. Machines beyond replicas
///   are a rollout's surge and ask for nothing.
/// - They fall only for Machines that are marked, one for each, and never below what the claims need. A raise by hand stays.
/// - Neither leaves the object's sizes.
pub fn account(group: &Group) -> Account {
    let Bindings {
        of_claim,
        mut steps,
        unclaimed,
        leaked,
    } = bind(group);
    let mut result = Account {
        needs_confirmation: !leaked.is_empty(),
        ..Account::default()
    };

    // Intent first: what goes is marked before anything is scaled.
    steps.extend(marks(group, &of_claim, &leaked));

    let staying: Vec<&Claim> = group.claims.iter().filter(|claim| !claim.is_leaving()).collect();
    let needed = i32::try_from(staying.len()).unwrap_or(i32::MAX);
    let nobodys = i32::try_from(unclaimed.len()).unwrap_or(i32::MAX);
    let given_back = already_given_back(group);
    let going = group
        .machines
        .iter()
        .filter(|machine| !machine.is_deleting && is_going(group, machine, &of_claim, &leaked))
        .count();
    // Replicas that those still hold who go are not there for anybody else.
    let still_held = i32::try_from(going)
        .unwrap_or(i32::MAX)
        .saturating_sub(given_back)
        .max(0);
    let desired = needed + nobodys.min((group.replicas - needed - still_held).max(0));
    let marked: Vec<&Machine> = group
        .machines
        .iter()
        .filter(|machine| !machine.is_deleting && machine.deleted_with.is_some())
        .collect();
    let leaving_without = |claim: &&Claim| claim.is_leaving() && !of_claim.contains_key(&claim.uid);
    let never_had = group
        .claims
        .iter()
        .filter(leaving_without)
        .filter(|claim| !claim.gave_back)
        .count();
    let fall = i32::try_from(marked.len())
        .unwrap_or(0)
        .saturating_sub(given_back)
        .max(0);
    let to = scaled(group, desired, fall, never_had);
    if !group.is_paused {
        steps.extend(scale(group, to, needed, desired, marked.len()));
        steps.extend(give_back(group, &marked));
    }

    let replicas = if group.is_paused { group.replicas } else { to };
    let mut pending: Vec<&Claim> = staying
        .iter()
        .copied()
        .filter(|claim| !of_claim.contains_key(&claim.uid))
        .collect();
    pending.sort_by_key(|claim| (claim.created, &claim.name, &claim.uid));
    let without_room = usize::try_from((needed - replicas).max(0))
        .unwrap_or(0)
        .min(pending.len());
    let is_full = group
        .max_size
        .is_some_and(|most| needed > most.max(group.replicas));
    for (place, claim) in pending.iter().enumerate() {
        let is_last = place + without_room >= pending.len();
        if is_last && is_full && claim.machine.is_none() {
            result.unplaced.push(claim.uid.clone());
        }
        result.waiting.push((claim.uid.clone(), waits_for(group)));
    }
    for claim in group.claims.iter().filter(leaving_without) {
        match left_behind(group, claim, desired) {
            Some(why) => result.waiting.push((claim.uid.clone(), why.to_owned())),
            None => result.finished.push(claim.uid.clone()),
        }
    }
    // A claim that is gone meanwhile would be scaled for, and nobody would take that back.
    let scales = steps
        .iter()
        .any(|planned| matches!(planned.step, Action::Scale { .. }));
    result.needs_confirmation |= scales || !result.finished.is_empty();
    result.machines = of_claim.into_iter().collect();
    result.unclaimed = unclaimed;
    result.steps = steps;
    result
}

/// Marks on the Machines of claims that leave or are gone.
fn marks(group: &Group, of_claim: &BTreeMap<String, String>, leaked: &[String]) -> Vec<Planned> {
    let machine = |name: &String| group.machines.iter().find(|machine| machine.name == *name);
    let of_leaving = group
        .claims
        .iter()
        .filter(|claim| claim.is_leaving())
        .filter_map(|claim| {
            let bound = of_claim.get(&claim.uid).and_then(machine)?;
            // One that is only now bound is marked when that has been seen.
            let is_to_be_marked = bound.deleted_with.is_none() && bound.claim.is_some();
            is_to_be_marked.then(|| mark(bound, &claim.uid, "its claim is deleted"))
        });
    let of_gone = leaked.iter().filter_map(|name| {
        let found = machine(name)?;
        Some(mark(found, found.claim.as_ref()?, "its claim is gone"))
    });
    of_leaving.chain(of_gone).collect()
}

/// The change of replicas, if they change.
fn scale(group: &Group, to: i32, needed: i32, desired: i32, marked: usize) -> Option<Planned> {
    let from = group.replicas;
    let why = match to.cmp(&from) {
        Ordering::Equal => return None,
        Ordering::Greater => format!("{needed} claims need a Machine"),
        Ordering::Less => format!("{marked} Machines are marked to go, and {desired} are needed"),
    };
    Some(Planned::new(Action::Scale { from, to }, why))
}

/// What follows once replicas have fallen: it is noted with the claims, and the marked Machines go.
fn give_back(group: &Group, marked: &[&Machine]) -> Vec<Planned> {
    let goes_with = |claim: &Claim| {
        marked
            .iter()
            .any(|machine| machine.deleted_with.as_ref() == Some(&claim.uid))
    };
    // A rollout or a health check may take the Machine first: that replicas fell is therefore noted, and not concluded.
    let notes = group
        .claims
        .iter()
        .filter(|claim| claim.is_leaving() && !claim.gave_back && goes_with(claim))
        .map(|claim| {
            let step = Action::Note {
                claim: claim.uid.clone(),
            };
            Planned::new(step, "its Machine can go")
        });
    let deletions = marked.iter().map(|machine| {
        let step = Action::Delete {
            machine: machine.name.clone(),
        };
        Planned::new(step, "it is marked, and replicas do not ask for it")
    });
    notes.chain(deletions).collect()
}

/// What a leaving claim without a bound Machine would leave behind, if it went now.
fn left_behind(group: &Group, claim: &Claim, desired: i32) -> Option<&'static str> {
    // The Machine it names may have become another claim's.
    let is_its_own = |machine: &Machine| match &machine.claim {
        Some(uid) => *uid == claim.uid,
        None => claim.machine.as_ref() == Some(&machine.name),
    };
    let goes_with_it = |machine: &Machine| machine.deleted_with.as_ref() == Some(&claim.uid);
    let is_still_there = group
        .machines
        .iter()
        .any(|machine| is_its_own(machine) || goes_with_it(machine));
    if is_still_there {
        Some("its Machine is being deleted")
    } else if !claim.gave_back && group.replicas > desired.max(group.min_size) {
        Some("Cluster API may still make a Machine for it, which must not outlive it")
    } else {
        None
    }
}

/// How many of the marked Machines replicas have already fallen for, after a crash before they were deleted. While a rollout adds
/// Machines of its own this cannot be told; then replicas fall again, if need be for a Machine that nobody claims.
fn already_given_back(group: &Group) -> i32 {
    let standing = || group.machines.iter().filter(|machine| !machine.is_deleting);
    let is_rolling = standing().any(|machine| machine.revision != group.current_revision);
    if is_rolling {
        return 0;
    }
    (i32::try_from(standing().count()).unwrap_or(i32::MAX) - group.replicas).max(0)
}

/// Whether a Machine goes with a claim, or because its claim is gone.
fn is_going(
    group: &Group,
    machine: &Machine,
    of_claim: &BTreeMap<String, String>,
    leaked: &[String],
) -> bool {
    machine.deleted_with.is_some()
        || leaked.contains(&machine.name)
        || group
            .claims
            .iter()
            .any(|claim| claim.is_leaving() && of_claim.get(&claim.uid) == Some(&machine.name))
}

fn mark(machine: &Machine, claim: &str, why: &str) -> Planned {
    let step = Action::Mark {
        machine: machine.name.clone(),
        claim: claim.to_owned(),
    };
    Planned::new(step, why)
}

/// What replicas are to be, within the object's sizes.
fn scaled(group: &Group, desired: i32, marked: i32, leaving_without: usize) -> i32 {
    let replicas = group.replicas;
    if desired >= replicas {
        let most = group.max_size.unwrap_or(i32::MAX).max(replicas);
        return desired.min(most);
    }
    // Replicas that are no Machine yet can be taken back only where Cluster API makes none: it would otherwise have to pick
    // somebody else's in the place of the one it has just made.
    let unmade = replicas - i32::try_from(group.machines.len()).unwrap_or(i32::MAX);
    let taken_back = if group.stuck.is_some() {
        i32::try_from(leaving_without).unwrap_or(0).min(unmade.max(0))
    } else {
        0
    };
    desired
        .max(replicas - marked - taken_back)
        .max(group.min_size.min(replicas))
}

/// What a claim without a Machine waits for.
pub fn waits_for(group: &Group) -> String {
    if group.is_paused {
        return format!("{} is paused", group.reference);
    }
    match (&group.stuck, group.max_size) {
        (Some(why), _) => format!("Cluster API makes no Machine: {why}"),
        (None, Some(most)) if group.replicas >= most => {
            format!(
                "{} has {} of at most {most} replicas",
                group.reference, group.replicas
            )
        }
        _ => "Cluster API has not made its Machine yet".to_owned(),
    }
}
