//! Deletion is a plan too: what is ours goes in the opposite order, what stands in something that goes is not deleted by itself,
//! what is protected or another's stays. Pure.

use jiff::Timestamp;
use slipway_azure::{
    ResourceId,
    reconcile::{
        ResourceState,
        planning::{ORPHAN, Unknown, is_going, is_orphaned, later, remains},
    },
};
use slipway_capi::frame::Plan;

use super::{
    Action, Held,
    held::{Leftover, leftover},
};
use crate::{
    engine,
    inline::{Fate, Leaving, fates},
};

/// How long until something that is held back is reconciled again where no event tells.
const LOOK_AGAIN: std::time::Duration = std::time::Duration::from_mins(1);

/// Whether an id stands below another.
fn is_below(id: &ResourceId, above: &ResourceId) -> bool {
    let rest = id.key().strip_prefix(above.key());
    rest.is_some_and(|rest| rest.starts_with('/'))
}

/// The plan for an object that is deleted. `goes`: an AKS cluster that goes by itself, with everything in it.
pub fn delete<A: From<Action>>(held: &Held, plan: &mut Plan<A>, goes: Option<&ResourceId>, now: Timestamp) {
    let remaining: Vec<String> = held
        .records
        .remaining()
        .filter(|id| {
            let parsed = ResourceId::parse(id).ok();
            !parsed.is_some_and(|id| goes.is_some_and(|above| is_below(&id, above)) || held.is_operated(&id))
        })
        .map(str::to_owned)
        .collect();
    let problem = remaining.iter().find_map(|id| held.sign_in_problems.get(id));
    match problem {
        None => {
            engine::leave(held, plan, goes, now);
            let (named, gone) = all(held, goes);
            let leaving = [named, gone].concat();
            push(held, plan, &leaving, "the object is deleted", now);
            plan.release_finalizer("nothing of it is left in Azure")
                .announced("Deleted");
        }
        Some(_) if is_orphaned(&held.metadata) => {
            let why = format!(
                "{ORPHAN} is set: what remains in Azure is not deleted: {}",
                remaining.join(", ")
            );
            plan.release_finalizer(why).warned("Orphaned");
        }
        Some(problem) => {
            let kind = held.object.split(' ').next().unwrap_or_default();
            remains(problem, &remaining, kind).block(plan);
        }
    }
}

/// Everything recorded, in the order of making: what the spec no longer has, and then what it has, as it says now.
fn all(held: &Held, goes: Option<&ResourceId>) -> (Vec<Leftover>, Vec<Leftover>) {
    let stays =
        |one: &Leftover| !goes.is_some_and(|above| is_below(&one.id, above)) && !held.is_operated(&one.id);
    let named = held.resources.iter().filter_map(|resource| {
        let id = resource.id.as_ref()?;
        let mut found = leftover(id.as_str(), held.records.get(id.key())?)?;
        if let Some(inline) = &resource.inline {
            found.policy = inline.policy;
            found.protected = inline.protected;
        }
        Some(found)
    });
    let mut gone: Vec<Leftover> = held.leftovers();
    gone.retain(&stays);
    (named.filter(&stays).collect(), gone)
}

/// What the spec no longer names goes, if it is ours. Nothing goes that a resource of the spec stands in.
pub(super) fn delete_leftovers<A: From<Action>>(held: &Held, plan: &mut Plan<A>, now: Timestamp) {
    let mut leftovers = held.leftovers();
    if leftovers.is_empty() {
        return;
    }
    // A resource that cannot be read may be one of them.
    let unreadable = held.resources.iter().find(|resource| resource.id.is_none());
    if let Some(resource) = unreadable {
        let message = format!(
            "nothing is deleted while it is not known where {} is in Azure",
            resource.display()
        );
        plan.wait("WaitingForResources", message).group = None;
        return;
    }
    let elsewhere: Vec<ResourceId> = held
        .resources
        .iter()
        .filter_map(|resource| held.stands_elsewhere(resource))
        .collect();
    leftovers.retain(|one| !elsewhere.contains(&one.id));
    leftovers.retain(|one| {
        let named = held.resources.iter().filter_map(|resource| resource.id.as_ref());
        let below = named.into_iter().find(|id| is_below(id, &one.id));
        if let Some(below) = below {
            let message = format!("{} stays while {} of the spec is in it", one.id, below);
            plan.wait("StillInUse", message).group = None;
        }
        below.is_none()
    });
    push(held, plan, &leftovers, "the spec no longer names it", now);
}

/// Deletes in the opposite order of making, each when the one before it is gone.
fn push<A: From<Action>>(held: &Held, plan: &mut Plan<A>, leaving: &[Leftover], why: &str, now: Timestamp) {
    let facts: Vec<Leaving> = leaving
        .iter()
        .map(|one| Leaving {
            id: one.id.clone(),
            policy: one.policy,
            protected: one.protected,
        })
        .collect();
    for (one, fate) in leaving.iter().zip(fates(&facts)).rev() {
        push_one(held, plan, one, &fate, why, now);
    }
}

fn push_one<A: From<Action>>(
    held: &Held,
    plan: &mut Plan<A>,
    one: &Leftover,
    fate: &Fate,
    why: &str,
    now: Timestamp,
) {
    let (kind, id) = (one.name.kind.clone(), one.id.clone());
    let is_there = held.state(&id).body().is_some();
    // What goes with something else is off the record when that is gone.
    let let_go = |plan: &mut Plan<A>, why: String| {
        if !held.is_deleting() {
            plan.then(
                Action::LetGo {
                    kind: kind.clone(),
                    id: id.clone(),
                }
                .into(),
                why,
            );
        }
    };
    match fate {
        Fate::Stays(_) => let_go(plan, fate.to_string()),
        Fate::WithParent(above) => {
            if held.state(above).is_absent() {
                let_go(plan, fate.to_string());
            }
        }
        Fate::Protected | Fate::Holds(_) if is_there => {
            let message = format!("{kind} {}: {fate}", one.name.name);
            plan.wait("DeletionProtected", message);
        }
        Fate::Protected | Fate::Holds(_) => {}
        Fate::Delete => match held.state(&id) {
            ResourceState::Unknown => {
                let unknown = held.unknown(&id).unwrap_or(&Unknown::Silent);
                unknown.wait(plan, id.as_str(), now);
            }
            ResourceState::Absent => let_go(plan, "Azure has none".to_owned()),
            ResourceState::Present(_) if !held.is_ours(&id) => {
                let_go(plan, "it was not made here".to_owned());
            }
            ResourceState::Present(_) => push_deletion(held, plan, one, why, now),
        },
    }
}

/// A resource group takes everything in it along: it stays if a cluster of others is in it.
fn push_deletion<A: From<Action>>(
    held: &Held,
    plan: &mut Plan<A>,
    one: &Leftover,
    why: &str,
    now: Timestamp,
) {
    let (kind, id) = (one.name.kind.clone(), one.id.clone());
    if let Some(others) = held
        .others_in_groups
        .get(id.key())
        .filter(|others| !others.is_empty())
    {
        let message = format!("{id} also holds {}", others.join(", "));
        if held.is_deleting() {
            let entry = plan.then(Action::LetGo { kind, id }.into(), message);
            entry.warned("ResourceGroupInUse");
        } else {
            plan.wait("ResourceGroupInUse", message)
                .until(later(now, LOOK_AGAIN))
                .group = None;
        }
        return;
    }
    let begins = !is_going(held.state(&id), held.unknown(&id));
    let api_version = one.api_version.clone();
    let action = Action::Delete {
        kind,
        id,
        api_version,
    };
    let entry = plan.then(action.into(), why);
    if begins {
        entry.announced("Deleting");
    }
}
