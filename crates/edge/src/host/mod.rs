//! EdgeHost: a machine on site that has joined. On the frame: joins `observe`, `plan`, `act` and `status`, and registers the controller.

mod act;
pub mod admit;
pub mod api;
pub mod inventory;
pub mod observe;
pub mod plan;
pub mod release;
pub mod status;

use jiff::Timestamp;
use kube::ResourceExt;
use slipway_capi::{
    condition::Condition,
    frame::{Frame, Kind, Membership, Plan, ProgressOf, Subject},
};
use slipway_runtime::{Context, Controller, Informer, ObjectKey, Outcome, Scope, controller::Registration};

use self::{
    api::{EdgeHost, EdgeHostStatus},
    observe::Observed,
    plan::Action,
};
use crate::{error::Error, hosts::Platform, machine::api::EdgeMachine};

/// Keeps a host that somebody has, and one that is not wiped yet.
pub const FINALIZER: &str = "edgehost.edge.slipway.dev";

struct EdgeHosts {
    platform: Platform,
}

pub fn registration(platform: &Platform) -> Registration {
    let kind = EdgeHosts {
        platform: platform.clone(),
    };
    Controller::new("edgehost", Frame::new(kind))
        // The machine that has it: a host whose machine is gone is released.
        .watches::<EdgeMachine>(|machine, _| {
            let namespace = machine.metadata.namespace.as_deref();
            let chosen = machine.spec.host_name.iter();
            chosen.map(|host| ObjectKey::new(namespace, host)).collect()
        })
        // Of two hosts of one name the other counts when the first goes.
        .watches::<EdgeHost>(namesakes)
        .into_registration()
}

fn namesakes(host: &EdgeHost, context: &Context) -> Vec<ObjectKey> {
    let hosts: Informer<EdgeHost> = context.informers.get(Scope::of_namespace(&context.settings));
    let found = hosts
        .index("name", |host| vec![host.name_any()])
        .get(&host.name_any());
    found
        .iter()
        .filter(|other| other.namespace() != host.namespace())
        .map(|other| ObjectKey::of(other.as_ref()))
        .collect()
}

impl Kind for EdgeHosts {
    type Object = EdgeHost;
    type Observed = Observed;
    type Action = Action;
    type Error = Error;

    fn finalizer(_: &EdgeHost) -> Option<&'static str> {
        Some(FINALIZER)
    }

    fn conditions(status: &mut EdgeHostStatus) -> Option<&mut Vec<Condition>> {
        Some(&mut status.conditions)
    }

    /// A host is there before any Cluster is, and after.
    async fn membership(&self, _: &EdgeHost, _: &Context) -> Result<Membership, Error> {
        Ok(Membership::Standalone)
    }

    async fn observe(&self, subject: &Subject<EdgeHost>, context: &Context) -> Result<Observed, Error> {
        observe::observe(subject, &self.platform, context).await
    }

    fn plan(observed: &Observed, now: Timestamp) -> Plan<Action> {
        plan::plan(observed, now)
    }

    fn needs_confirmation(observed: &Observed, _: &Plan<Action>) -> bool {
        plan::needs_confirmation(observed)
    }

    async fn confirm(
        &self,
        _: &Subject<EdgeHost>,
        observed: Observed,
        context: &Context,
    ) -> Result<Observed, Error> {
        observe::confirm(observed, context).await
    }

    async fn act(
        &self,
        action: &Action,
        _: &Subject<EdgeHost>,
        observed: &mut Observed,
        context: &Context,
    ) -> Result<Outcome, Error> {
        act::act(action, observed, &self.platform, context).await
    }

    fn status(observed: &Observed, _: &ProgressOf<Self>, now: Timestamp) -> EdgeHostStatus {
        status::status(observed, now)
    }

    fn forget(&self, key: &ObjectKey, _: &Context) {
        self.platform.hosts.forget(key.name());
    }
}
