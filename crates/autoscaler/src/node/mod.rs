//! Node: what its finalizer is for. Whoever deletes a Node of ours deletes its claim, and so has it drained first. A Node that
//! Cluster API deletes with its Machine, or that nobody claims any more, is let go at once.
//!
//! Nodes are the kubelet's, so the frame, which owns an object's status, is not for them. The shape is the same.

mod act;

use std::{fmt, sync::Arc};

use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use kube::ResourceExt;
use slipway_capi::view::Machine;
use slipway_runtime::{Context, Controller, Next, ObjectKey, Reconciler, controller::Registration};

use crate::{
    Error,
    api::{
        NodeClaim,
        names::{TERMINATION_FINALIZER, annotation},
    },
    cluster_api::{Reader, lease_scope},
    memory::Memory,
    options::Options,
    safety,
};

/// What a decision is made from.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub is_deleting: bool,
    pub has_finalizer: bool,
    /// Its claim, by way of the Machine that carries that one's uid.
    pub claim: Option<Arc<NodeClaim>>,
    pub machine_is_deleting: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Deletes the claim: it drains the Node, and lets it go.
    DeleteClaim,
    /// Takes the finalizer away.
    Release,
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::DeleteClaim => "delete its claim",
            Self::Release => "take the finalizer away",
        })
    }
}

/// What to do for a Node, and why: pure.
pub fn plan(observed: &Observed) -> Option<(Action, &'static str)> {
    if !observed.is_deleting || !observed.has_finalizer {
        return None;
    }
    let Some(claim) = &observed.claim else {
        return Some((Action::Release, "nobody claims it"));
    };
    let is_drained = claim.annotations().contains_key(annotation::DRAINED);
    match (
        claim.metadata.deletion_timestamp.is_some(),
        observed.machine_is_deleting,
    ) {
        _ if is_drained => Some((Action::Release, "it is drained")),
        // The claim's drain lets it go.
        (true, _) => None,
        (false, true) => Some((Action::Release, "Cluster API deletes it with its Machine")),
        (false, false) => Some((Action::DeleteClaim, "the Node was deleted")),
    }
}

#[derive(Debug)]
struct Nodes {
    memory: Arc<Memory>,
}

impl Reconciler for Nodes {
    type Object = Node;
    type Error = Error;

    async fn reconcile(&self, node: Arc<Node>, context: &Context) -> Result<Next, Error> {
        let has_finalizer = node
            .finalizers()
            .iter()
            .any(|finalizer| finalizer == TERMINATION_FINALIZER);
        if !has_finalizer || node.metadata.deletion_timestamp.is_none() {
            return Ok(Next::OnChange);
        }
        let reader = Reader::new(context, &self.memory);
        let now = context.clock.now();
        if let Some(rival) = reader.rival(now) {
            let left = rival.until.duration_since(now);
            return Ok(Next::After(
                std::time::Duration::try_from(left).unwrap_or_default(),
            ));
        }
        if Options::of(&context.settings).is_dry_run {
            return Ok(Next::OnChange);
        }
        let id = node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref());
        let machine = reader.claimed_machine_of_node(&node.name_any(), id);
        let observed = Observed {
            is_deleting: true,
            has_finalizer,
            claim: machine
                .as_ref()
                .and_then(|machine| reader.claim_of_machine(machine)),
            machine_is_deleting: machine.is_some_and(|machine| machine.is_deleting()),
        };
        if let Some((action, why)) = plan(&observed) {
            act::act(&action, &node, &observed, context).await?;
            tracing::info!(node = node.name_any(), %action, why, "Acted");
        }
        Ok(Next::OnChange)
    }
}

pub fn registration(memory: &Arc<Memory>) -> Registration {
    let reconciler = Nodes {
        memory: Arc::clone(memory),
    };
    let mut controller = Controller::new("autoscaler-node", reconciler)
        .watches::<Machine>(|machine, _| {
            let node = machine.node_name().map(ObjectKey::cluster_scoped);
            node.into_iter().collect()
        })
        .watches::<NodeClaim>(|claim, _| {
            let node = claim
                .status
                .as_ref()
                .and_then(|status| status.node_name.as_deref());
            node.map(ObjectKey::cluster_scoped).into_iter().collect()
        });
    for (name, _) in safety::LEASES {
        controller = controller.watches_in::<Lease>(move |_| lease_scope(name), |_, _| Vec::new());
    }
    controller.into_registration()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deleted_node_is_drained_unless_it_goes_anyway() {
        let claim = |deleted: bool, drained: bool| {
            let mut claim = NodeClaim::default();
            if deleted {
                let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH);
                claim.metadata.deletion_timestamp = Some(now);
            }
            if drained {
                claim
                    .annotations_mut()
                    .insert(annotation::DRAINED.to_owned(), "true".to_owned());
            }
            Some(Arc::new(claim))
        };
        let rows = [
            (claim(false, false), false, Some(Action::DeleteClaim)),
            (claim(false, false), true, Some(Action::Release)),
            (claim(true, false), false, None),
            (claim(true, true), true, Some(Action::Release)),
            (None, false, Some(Action::Release)),
        ];
        for (claim, machine_is_deleting, expected) in rows {
            let observed = Observed {
                is_deleting: true,
                has_finalizer: true,
                claim,
                machine_is_deleting,
            };
            assert_eq!(
                plan(&observed).map(|(action, _)| action),
                expected,
                "{observed:?}"
            );
        }
        assert_eq!(plan(&Observed::default()), None, "one that stays");
    }
}
