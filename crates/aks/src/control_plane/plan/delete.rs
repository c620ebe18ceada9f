//! Deletion is a plan too: what is ours goes in the opposite order, then the identity and the object.

use jiff::Timestamp;
use slipway_azure::reconcile::{ResourceKind, ResourceState, state_of};
use slipway_capi::frame::{Entry, Plan};

use super::{Action, OPTIONAL, Observed, Ranks, id_of, resources};
use crate::{
    planning::{ORPHAN, is_going, is_orphaned, remains},
    render::ids,
    status::condition_of,
};

pub(super) fn delete(observed: &Observed, plan: &mut Plan<Action>, now: Timestamp) {
    let remaining: Vec<String> = observed.records.remaining().map(str::to_owned).collect();
    match &observed.problem {
        None => {
            delete_resources(observed, plan, now);
            release(observed, plan, "nothing of it is left in Azure").announced("Deleted");
        }
        // An object that made nothing in Azure needs nobody who signs in to be deleted.
        Some(_) if remaining.is_empty() => {
            release(observed, plan, "it made nothing in Azure");
        }
        Some(_) if is_orphaned(&observed.plane.metadata) => {
            let why = format!(
                "{ORPHAN} is set: what remains in Azure is not deleted: {}",
                remaining.join(", ")
            );
            release(observed, plan, &why).warned("Orphaned");
        }
        Some(problem) => {
            remains(problem, &remaining, "AzureManagedControlPlane")
                .block(plan)
                .shown_in(condition_of(ResourceKind::ResourceGroup));
        }
    }
}

/// The identity and the object may go.
fn release<'a>(observed: &Observed, plan: &'a mut Plan<Action>, why: &str) -> &'a mut Entry<Action> {
    if let Some(identity) = observed.identity.as_ref().filter(|identity| identity.is_held) {
        let why = "this control plane no longer needs it";
        plan.then(Action::ReleaseIdentity(identity.key.clone()), why);
    }
    plan.release_finalizer(why)
}

/// Deletion in the opposite order, of what is ours and there. What is brought stays.
fn delete_resources(observed: &Observed, plan: &mut Plan<Action>, now: Timestamp) {
    let facts = observed.facts();
    let mut steps: Vec<(ResourceKind, String, bool)> = resources(&facts)
        .into_iter()
        .map(|(kind, manifest)| {
            let id = id_of(&facts, &manifest);
            let is_ours = match kind {
                ResourceKind::ResourceGroup
                | ResourceKind::VirtualNetwork
                | ResourceKind::PrivateEndpoint => observed.is_ours(&id),
                ResourceKind::Subnet => {
                    observed.made_by_us(&id) || observed.is_ours(&ids::virtual_network(&facts))
                }
                // The others are parts of the cluster, and go or stay with it.
                _ => observed.foreign(&ids::managed_cluster(&facts)).is_none(),
            };
            (kind, id, is_ours)
        })
        .collect();
    for (id, kind) in observed.made() {
        if OPTIONAL.contains(&kind) && !steps.iter().any(|(_, known, _)| known.eq_ignore_ascii_case(id)) {
            steps.push((kind, id.to_owned(), true));
        }
    }
    // A manifest that cannot be made must not keep the cluster from being deleted: only its id is needed.
    steps.push((ResourceKind::ManagedCluster, ids::managed_cluster(&facts), true));
    steps.sort_by_key(|(kind, ..)| *kind);
    let mut ranks = Ranks { plan, last: None };
    for (kind, id, is_ours) in steps.iter().rev() {
        if *kind == ResourceKind::ResourceGroup && *is_ours && state_of(&observed.states, id).body().is_some()
        {
            delete_group(observed, &mut ranks, id);
        } else {
            push_deletion(
                observed,
                &mut ranks,
                (*kind, id, *is_ours),
                "the cluster is deleted",
                now,
            );
        }
    }
}

/// A resource group takes everything in it along: it goes last, and only if no cluster of others is in it.
fn delete_group(observed: &Observed, ranks: &mut Ranks<'_>, id: &str) {
    let kind = ResourceKind::ResourceGroup;
    let is_last = ranks
        .plan
        .entries
        .iter()
        .all(|entry| entry.condition == Some(condition_of(kind)));
    if !is_last {
        ranks.plan.wait(
            "WaitingForDeletion",
            format!("{id} goes when nothing of the cluster is left in it"),
        );
        return;
    }
    let id = id.to_owned();
    match observed.others_in_groups.get(&id.to_lowercase()) {
        Some(others) if !others.is_empty() => {
            let why = format!("it also holds {}", others.join(", "));
            ranks
                .act(kind, Action::LeaveGroup { id }, why)
                .warned("ResourceGroupInUse");
        }
        _ => {
            let begins = begins(observed, &id);
            let entry = ranks.act(kind, Action::Delete { kind, id }, "the cluster is deleted");
            if begins {
                entry.announced("Deleting");
            }
        }
    }
}

/// The resource groups that the plan deletes without knowing who else is in them.
pub fn unconfirmed_groups(observed: &Observed, plan: &Plan<Action>) -> Vec<String> {
    let groups = plan.actions().filter_map(|action| match action {
        Action::Delete {
            kind: ResourceKind::ResourceGroup,
            id,
        } => Some(id.clone()),
        _ => None,
    });
    groups
        .filter(|id| !observed.others_in_groups.contains_key(&id.to_lowercase()))
        .collect()
}

/// Whether a deletion has not begun yet.
fn begins(observed: &Observed, id: &str) -> bool {
    let state = state_of(&observed.states, id);
    state.body().is_some() && !is_going(state, observed.unknown(id))
}

/// A resource with whether it is ours goes, if it is there.
pub(super) fn push_deletion(
    observed: &Observed,
    ranks: &mut Ranks<'_>,
    (kind, id, is_ours): (ResourceKind, &str, bool),
    why: &str,
    now: Timestamp,
) {
    let is_ours = is_ours && observed.foreign(id).is_none();
    match state_of(&observed.states, id) {
        ResourceState::Unknown => ranks.wait_for_azure(kind, id, observed.unknown(id), now),
        ResourceState::Absent if !is_ours || observed.is_deleting() => {}
        ResourceState::Present(_) if !is_ours => {}
        // Gone, but still on our list: deleting it again takes it off.
        ResourceState::Absent | ResourceState::Present(_) => {
            let begins = begins(observed, id);
            let id = id.to_owned();
            let entry = ranks.act(kind, Action::Delete { kind, id }, why);
            if begins {
                entry.announced("Deleting");
            }
        }
    }
}
