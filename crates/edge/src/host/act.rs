//! The actions of an EdgeHost: each is one idempotent call. The only place that writes.

use std::time::Duration;

use kube::ResourceExt;
use serde_json::{Value, json};
use slipway_agent_api::Class;
use slipway_runtime::{Context, Outcome};
use slipway_slots::Digest;

use super::{
    observe::{Observed, Orphan},
    plan::Action,
};
use crate::{
    error::Error,
    hosts::{HostAddress, Platform},
    orders::{self, bootstrap_id},
};

/// The host tells only whoever asks.
const ASK_AGAIN: Outcome = Outcome::InProgress(Duration::from_secs(5));

pub async fn act(
    action: &Action,
    observed: &Observed,
    platform: &Platform,
    context: &Context,
) -> Result<Outcome, Error> {
    match action {
        Action::Release => {
            write(
                observed,
                json!({"claim": {"released": true}}),
                "releasing",
                context,
            )
            .await
        }
        Action::Free => write(observed, json!({"claim": null}), "freeing", context).await,
        Action::Unpin(orphan) => unpin(orphan, observed, platform, context).await,
        Action::OrderWipe { attempt } => wipe(observed, *attempt, platform, context).await,
    }
}

/// Over the version that was read: a claim that has changed since is decided about again.
async fn write(observed: &Observed, spec: Value, doing: &str, context: &Context) -> Result<Outcome, Error> {
    let host = &observed.host;
    let patch = json!({"metadata": {"resourceVersion": host.metadata.resource_version}, "spec": spec});
    let doing = format!("{doing} EdgeHost {}", host.name_any());
    context.patch(host, &patch).await.map_err(Error::api(doing))?;
    Ok(Outcome::Done)
}

async fn wipe(
    observed: &Observed,
    attempt: u32,
    platform: &Platform,
    context: &Context,
) -> Result<Outcome, Error> {
    let Some(claim) = &observed.host.spec.claim else {
        return Ok(Outcome::Done);
    };
    let place = HostAddress::of(&observed.host);
    let generation = platform.generation(context.clock.now());
    let order = orders::wipe(&place.name, claim, attempt, generation);
    match platform.hosts.start(&place, order).await {
        Ok(_) => Ok(ASK_AGAIN),
        // The machine's own bootstrap data is still being run: nobody needs it any more.
        Err(problem) if problem.reason == "Busy" => {
            let cancelled = platform
                .hosts
                .cancel(&place, &bootstrap_id(&claim.uid), generation)
                .await;
            match cancelled {
                // Something else runs, and is waited for.
                Err(problem) if problem.class != Class::Terminal => Err(problem),
                _ => Ok(ASK_AGAIN),
            }
        }
        // A person works on the host.
        Err(problem) if problem.reason == "Maintenance" => Ok(ASK_AGAIN),
        Err(problem) => Err(problem),
    }
    .map_err(Error::host(format!("wiping host {}", place.name)))
}

/// The operation is the same for the same pin, whoever asks.
async fn unpin(
    orphan: &Orphan,
    observed: &Observed,
    platform: &Platform,
    context: &Context,
) -> Result<Outcome, Error> {
    let place = HostAddress::of(&observed.host);
    let what = Digest::of(format!("{}\n{}", orphan.owner, orphan.digest).as_bytes());
    let generation = platform.generation(context.clock.now());
    let id = format!("orphan-{}", what.short());
    let known = platform.hosts.operations(&place).await;
    let doing = || format!("letting go of an image on host {}", place.name);
    let known = known.map_err(Error::host(doing()))?;
    let verb = orders::unpin(&orphan.digest, &orphan.owner);
    let order = orders::taking_back(&id, verb, &place.name, &known, generation);
    let started = platform.hosts.start(&place, order).await;
    started.map_err(Error::host(doing()))?;
    Ok(Outcome::Done)
}
