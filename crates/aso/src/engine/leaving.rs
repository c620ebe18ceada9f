//! What becomes of the operator's objects when their holder is deleted, when the spec no longer names their resources, or when the
//! holder is paused. Pure.

use jiff::Timestamp;
use slipway_azure::ResourceId;
use slipway_capi::frame::Plan;

use super::{Operated, Standing, Told};
use crate::{
    inline::{Fate, Leaving, Policy, fates},
    resources::{Action, Held},
};

/// An object of the operator, with where its resource is in Azure.
struct Going<'a> {
    operated: &'a Operated,
    id: Option<ResourceId>,
    policy: Policy,
    protected: bool,
    /// We are to write it: the operator deletes nothing.
    is_left: bool,
    /// There is no operator to let go of it.
    is_abandoned: bool,
}

fn is_below(id: &ResourceId, above: &ResourceId) -> bool {
    let rest = id.key().strip_prefix(above.key());
    rest.is_some_and(|rest| rest.starts_with('/'))
}

fn going<'a>(held: &Held, operated: &'a Operated) -> Going<'a> {
    let resource = held.resources.iter().find(|one| {
        one.name.group == operated.name.group
            && one.name.kind == operated.name.kind
            && one.name.name == operated.name.name
    });
    let seen = operated.live.id().and_then(|id| ResourceId::parse(&id).ok());
    let known = held.records.entries().find(|(_, entry)| {
        entry.notes.get("kind") == Some(&operated.name.kind)
            && entry.notes.get("name") == Some(&operated.name.name)
    });
    let protected = match resource.and_then(|one| one.inline.as_ref()) {
        Some(inline) => inline.protected,
        None => {
            known.is_some_and(|(_, entry)| entry.notes.get("protected").is_some_and(|value| value == "true"))
        }
    };
    let policy = operated
        .live
        .policy_before()
        .or(operated.live.policy())
        .unwrap_or_default();
    Going {
        id: seen
            .or_else(|| resource.and_then(|one| one.id.clone()))
            .or_else(|| known.and_then(|(id, _)| ResourceId::parse(id).ok())),
        policy: Policy::by_name(policy).unwrap_or_default(),
        protected,
        is_left: resource.is_some_and(|one| !one.choice.is_operated()),
        is_abandoned: held.operator != Standing::Running,
        operated,
    }
}

/// The operator's objects go, each when those that stand in its resource have gone. `goes`: an AKS cluster that goes by itself, with
/// everything in it.
pub fn leave<A: From<Action>>(held: &Held, plan: &mut Plan<A>, goes: Option<&ResourceId>, now: Timestamp) {
    let ours = held
        .operated
        .values()
        .filter(|one| one.live.is_controlled_by(&held.metadata));
    let mut all: Vec<Going<'_>> = ours.map(|one| going(held, one)).collect();
    push(&mut all, held, plan, goes, "the object is deleted", now);
}

/// What the spec no longer names goes.
pub fn pass<A: From<Action>>(held: &Held, plan: &mut Plan<A>, now: Timestamp) {
    let mut all: Vec<Going<'_>> = held.operated_leftovers().map(|one| going(held, one)).collect();
    all.retain(|one| {
        let named = held.resources.iter().filter_map(|resource| resource.id.as_ref());
        let below = one
            .id
            .as_ref()
            .and_then(|above| named.into_iter().find(|id| is_below(id, above)));
        if let Some(below) = below {
            let message = format!(
                "{} stays while {below} of the spec is in it",
                one.operated.display()
            );
            plan.wait("StillInUse", message).group = None;
        }
        below.is_none()
    });
    push(&mut all, held, plan, None, "the spec no longer names it", now);
}

fn push<A: From<Action>>(
    all: &mut [Going<'_>],
    held: &Held,
    plan: &mut Plan<A>,
    goes: Option<&ResourceId>,
    why: &str,
    now: Timestamp,
) {
    // The longest id first: what stands in another goes before it.
    all.sort_by_key(|one| std::cmp::Reverse(one.id.as_ref().map_or(usize::MAX, |id| id.key().len())));
    let facts: Vec<Leaving> = all
        .iter()
        .filter_map(|one| {
            Some(Leaving {
                id: one.id.clone()?,
                policy: one.policy,
                protected: one.protected,
            })
        })
        .collect();
    let fates = fates(&facts);
    for one in all.iter() {
        let place = one
            .id
            .as_ref()
            .and_then(|id| facts.iter().position(|fact| fact.id == *id));
        let fate = place.map_or(Fate::Delete, |place| fates[place].clone());
        let goes_along = one
            .id
            .as_ref()
            .is_some_and(|id| goes.is_some_and(|above| is_below(id, above)));
        push_one(one, &fate, goes_along, held, plan, why, now);
    }
}

fn push_one<A: From<Action>>(
    one: &Going<'_>,
    fate: &Fate,
    goes_along: bool,
    held: &Held,
    plan: &mut Plan<A>,
    why: &str,
    now: Timestamp,
) {
    let operated = one.operated;
    let display = operated.display();
    let live = &operated.live;
    if matches!(fate, Fate::Protected | Fate::Holds(_)) && !live.is_deleting() {
        plan.wait("DeletionProtected", format!("{display}: {fate}"));
        return;
    }
    // Azure deletes it with what it stands in, or we do: the operator is not to send a request of its own.
    let stays_quiet = one.is_left || goes_along || matches!(fate, Fate::WithParent(_));
    if stays_quiet && !live.is_quiet() {
        let why = if one.is_left {
            "its engine is native"
        } else {
            "it goes with what it stands in"
        };
        plan.then(Action::Quiet(Box::new(operated.clone())).into(), why);
        return;
    }
    if stays_quiet && one.is_left && !one.is_abandoned && live.is_busy() {
        plan.wait(
            "SwitchingEngine",
            format!("{display}: Azure Service Operator is at work on it"),
        );
        return;
    }
    let release = one.is_abandoned && live.is_quiet();
    if live.is_deleting() && !release {
        let text = match live.told() {
            Told::Failed { reason, message, .. } => format!("{display}: {reason}: {message}"),
            _ if one.is_abandoned => format!(
                "{display} waits for Azure Service Operator: {}. Start it, or annotate the object with {}: native",
                held.operator,
                super::ANNOTATION
            ),
            _ => format!("{display}: Azure Service Operator deletes it"),
        };
        let reason = if one.is_abandoned {
            "AzureServiceOperatorUnavailable"
        } else {
            "Deleting"
        };
        plan.wait(reason, text)
            .until(slipway_azure::reconcile::planning::later(
                now,
                slipway_azure::reconcile::planning::OWNER_CHECK,
            ));
        return;
    }
    let action = Action::RemoveObject {
        operated: Box::new(operated.clone()),
        release,
    };
    let entry = plan.then(action.into(), why);
    if !live.is_deleting() {
        entry.announced("Deleting");
    }
}
