//! HostImage: which images which hosts keep. On the frame: joins `observe`, `plan`, `act` and `status`, and registers the controller.

mod act;
pub mod admit;
pub mod api;
pub mod credentials;
pub mod observe;
pub mod plan;
pub mod status;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use kube::ResourceExt;
use parking_lot::Mutex;
use slipway_capi::{
    condition::Condition,
    frame::{Frame, Kind, Membership, Plan, ProgressOf, Subject},
};
use slipway_runtime::{Context, Controller, Informer, ObjectKey, Outcome, Scope, controller::Registration};

use self::{
    api::{HostImage, HostImageStatus},
    observe::Observed,
    plan::{Action, decide},
};
use crate::{
    error::Error,
    host::{api::EdgeHost, status as host_status},
    hosts::Platform,
};

/// Keeps a job until no host that answers keeps an image for it.
pub const FINALIZER: &str = "hostimage.edge.slipway.dev";
/// While hosts fetch: their agents tell only whoever asks.
const ASKED_SOON: Duration = Duration::from_secs(15);
/// Whether hosts still have what they had.
const ASKED_LATER: Duration = Duration::from_mins(10);

struct HostImages {
    platform: Platform,
}

/// What a job is decided by of a host: its labels, and whether it answers.
type KnownHosts = Arc<Mutex<HashMap<ObjectKey, (BTreeMap<String, String>, bool)>>>;

pub fn registration(platform: &Platform) -> Registration {
    let kind = HostImages {
        platform: platform.clone(),
    };
    let seen = KnownHosts::default();
    Controller::new("hostimage", Frame::new(kind))
        .watches::<EdgeHost>(move |host, context| {
            if is_news(&seen, host) {
                of_namespace(host, context)
            } else {
                Vec::new()
            }
        })
        .into_registration()
}

/// Every job asks every host: what does not concern jobs must not wake them.
fn is_news(seen: &KnownHosts, host: &EdgeHost) -> bool {
    let key = ObjectKey::of(host);
    let mut seen = seen.lock();
    if host.metadata.deletion_timestamp.is_some() {
        return seen.remove(&key).is_some();
    }
    let shown = (host.labels().clone(), host_status::is_reachable(host));
    seen.insert(key, shown.clone()) != Some(shown)
}

fn of_namespace(host: &EdgeHost, context: &Context) -> Vec<ObjectKey> {
    let images: Informer<HostImage> = context.informers.get(Scope::of_namespace(&context.settings));
    let found = images.index("namespace", |image| image.namespace().into_iter().collect());
    let found = found.get(&host.namespace().unwrap_or_default());
    found.iter().map(|image| ObjectKey::of(image.as_ref())).collect()
}

impl Kind for HostImages {
    type Object = HostImage;
    type Observed = Observed;
    type Action = Action;
    type Error = Error;

    fn finalizer(_: &HostImage) -> Option<&'static str> {
        Some(FINALIZER)
    }

    fn conditions(status: &mut HostImageStatus) -> Option<&mut Vec<Condition>> {
        Some(&mut status.conditions)
    }

    /// Hosts are there before any Cluster is.
    async fn membership(&self, _: &HostImage, _: &Context) -> Result<Membership, Error> {
        Ok(Membership::Standalone)
    }

    async fn observe(&self, subject: &Subject<HostImage>, context: &Context) -> Result<Observed, Error> {
        Ok(observe::observe(subject, &self.platform, context).await)
    }

    fn plan(observed: &Observed, now: Timestamp) -> Plan<Action> {
        let mut decision = decide(&observed.facts, now);
        let is_busy = decision.status.running > 0 || observed.facts.is_deleting;
        let after = if is_busy { ASKED_SOON } else { ASKED_LATER };
        decision.plan.revisit(after, "hosts tell only whoever asks");
        decision.plan
    }

    async fn act(
        &self,
        action: &Action,
        _: &Subject<HostImage>,
        observed: &mut Observed,
        context: &Context,
    ) -> Result<Outcome, Error> {
        act::act(action, observed, &self.platform, context).await
    }

    fn status(observed: &Observed, progress: &ProgressOf<Self>, now: Timestamp) -> HostImageStatus {
        status::status(observed, progress.plan(), now)
    }
}
