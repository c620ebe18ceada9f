//! NodeOverlay: whether it is applied, and what is wrong with it if not. Planning reads overlays itself; nothing is made for them.

pub mod read;

use std::{convert::Infallible, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use slipway_capi::{
    condition::{self, Report, Status},
    frame::{Frame, Kind, Membership, Plan, ProgressOf, StatusOf, Subject},
    view::{MachineDeployment, MachinePool, MachineSet},
};
use slipway_runtime::{Context, Controller, Informer, ObjectKey, Outcome, Scope, controller::Registration};

use crate::{
    Error,
    api::{ClusterAPINodeClass, NodeOverlay, NodeOverlayStatus, NodePool, names::condition as names},
    cluster_api::Reader,
    instances::Rejected,
    memory::Memory,
    options::Options,
};

/// What a status is made from.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub overlay: NodeOverlay,
    pub rejected: Option<Rejected>,
    /// What it is applied to, in words.
    pub reaches: String,
}

#[derive(Debug)]
struct NodeOverlays {
    memory: Arc<Memory>,
}

impl Kind for NodeOverlays {
    type Object = NodeOverlay;
    type Observed = Observed;
    type Action = Infallible;
    type Error = Error;

    /// Karpenter's kinds know no pause: its conditions are Karpenter's alone.
    fn conditions(_: &mut StatusOf<Self>) -> Option<&mut Vec<Condition>> {
        None
    }

    async fn membership(&self, _: &NodeOverlay, context: &Context) -> Result<Membership, Error> {
        Ok(if Options::of(&context.settings).is_dry_run {
            Membership::LeftAlone("nothing is written in a dry run")
        } else {
            Membership::Standalone
        })
    }

    async fn observe(&self, subject: &Subject<NodeOverlay>, context: &Context) -> Result<Observed, Error> {
        let options = Options::of(&context.settings);
        let reader = Reader::new(context, &self.memory);
        let overlays = read::overlays(&reader, &options, context, context.clock.now()).await;
        let name = subject.object.name_any();
        Ok(Observed {
            overlay: subject.object.as_ref().clone(),
            rejected: overlays.rejected(&name).cloned(),
            reaches: overlays.reaches(&name),
        })
    }

    fn plan(_: &Observed, _: Timestamp) -> Plan<Infallible> {
        Plan::new()
    }

    async fn act(
        &self,
        action: &Infallible,
        _: &Subject<NodeOverlay>,
        _: &mut Observed,
        _: &Context,
    ) -> Result<Outcome, Error> {
        match *action {}
    }

    fn status(observed: &Observed, _: &ProgressOf<Self>, now: Timestamp) -> StatusOf<Self> {
        status(observed, now)
    }
}

pub fn status(observed: &Observed, now: Timestamp) -> NodeOverlayStatus {
    let mut status = observed.overlay.status.clone().unwrap_or_default();
    let valid = match &observed.rejected {
        None => Report::new(
            names::VALIDATION_SUCCEEDED,
            Status::True,
            names::VALIDATION_SUCCEEDED,
            observed.reaches.clone(),
        ),
        Some(why) => Report::new(
            names::VALIDATION_SUCCEEDED,
            Status::False,
            match why {
                Rejected::Invalid(_) => "RuntimeValidation",
                Rejected::Conflict { .. } => "Conflict",
            },
            why.to_string(),
        ),
    };
    let ready = match valid.status {
        Status::True => Report::new(names::READY, Status::True, names::READY, ""),
        other => Report::new(names::READY, other, "UnhealthyDependents", valid.message.clone()),
    };
    for report in [valid, ready] {
        condition::set(
            &mut status.conditions,
            &report,
            observed.overlay.metadata.generation,
            now,
        );
    }
    status
}

/// Every overlay: what one says can be in conflict with any other.
fn all(context: &Context) -> Vec<ObjectKey> {
    let overlays: Informer<NodeOverlay> = context.informers.get(Scope::of_work(&context.settings));
    overlays.keys()
}

pub fn registration(memory: &Arc<Memory>) -> Registration {
    let kind = NodeOverlays {
        memory: Arc::clone(memory),
    };
    let controller = Controller::new("nodeoverlay", Frame::new(kind))
        .min_interval(Duration::from_secs(1))
        .watches::<NodeOverlay>(|_, context| all(context))
        .watches::<NodePool>(|_, context| all(context))
        .watches::<ClusterAPINodeClass>(|_, context| all(context))
        .watches::<MachineDeployment>(|_, context| all(context))
        .watches::<MachineSet>(|_, context| all(context))
        .watches::<MachinePool>(|_, context| all(context))
        .into_registration();
    Options::only_with(controller, |gates| gates.node_overlay)
}
