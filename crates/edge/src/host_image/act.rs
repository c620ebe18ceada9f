//! The actions of a HostImage: each is one idempotent call. The only place that orders.

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt};
use slipway_agent_api::{
    Class,
    proto::{Delivery, RegistryCredentials, StartRequest, start_request::Verb},
};
use slipway_runtime::{Context, Outcome};
use slipway_slots::Digest;

use super::{
    api::{CachedImage, DeliverTo},
    credentials,
    observe::Observed,
    plan::{Action, operation_id, prefix},
};
use crate::{error::Error, hosts::Platform, orders};

/// The host tells only whoever asks.
const ASK_AGAIN: Outcome = Outcome::InProgress(Duration::from_secs(5));
/// What keeps a host from an order passes without an event.
const TRY_AGAIN: Outcome = Outcome::InProgress(Duration::from_secs(30));

pub async fn act(
    action: &Action,
    observed: &Observed,
    platform: &Platform,
    context: &Context,
) -> Result<Outcome, Error> {
    let generation = platform.generation(context.clock.now());
    match action {
        Action::Fetch { host, image, attempt } => {
            let credentials = credentials_of(image, observed, context).await?;
            let mut ensure = orders::ensure(&image.image, &observed.owner(), delivery(image));
            ensure.credentials = credentials;
            let request = StartRequest {
                operation_id: operation_id(&observed.uid(), image, *attempt),
                generation,
                host: host.clone(),
                verb: Some(Verb::Ensure(ensure)),
            };
            send(host, request, observed, platform).await
        }
        Action::Unpin { host, digest } => {
            let short = digest
                .parse::<Digest>()
                .map_or_else(|_| digest.clone(), |digest| digest.short());
            let id = format!("{}{short}", prefix(&observed.uid()));
            let known = observed.hosts.get(host).map(|(_, known)| known.as_slice());
            let verb = orders::unpin(digest, &observed.owner());
            let request = orders::taking_back(&id, verb, host, known.unwrap_or_default(), generation);
            send(host, request, observed, platform).await
        }
    }
}

fn delivery(image: &CachedImage) -> Delivery {
    match image.delivery {
        DeliverTo::Nowhere => Delivery::None,
        DeliverTo::K3s => Delivery::K3s,
        DeliverTo::Containerd => Delivery::Containerd,
    }
}

/// Read when they are due and kept nowhere.
async fn credentials_of(
    image: &CachedImage,
    observed: &Observed,
    context: &Context,
) -> Result<Option<RegistryCredentials>, Error> {
    let Some(name) = &observed.facts.spec.pull_secret_name else {
        return Ok(None);
    };
    let namespace = observed.image.namespace().unwrap_or_default();
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), &namespace);
    let secret = secrets.get(name).await;
    let secret = secret.map_err(Error::api(format!(
        "reading Secret {name} with the registry's credentials"
    )))?;
    let found = credentials::of(&secret, &image.image.reference);
    found.map(Some).map_err(|problem| Error::Secret {
        name: name.clone(),
        problem: problem.to_string(),
    })
}

async fn send(
    host: &str,
    request: StartRequest,
    observed: &Observed,
    platform: &Platform,
) -> Result<Outcome, Error> {
    let Some((place, _)) = observed.hosts.get(host) else {
        return Ok(Outcome::Done);
    };
    let doing = format!("ordering {} from host {host}", request.operation_id);
    match platform.hosts.start(place, request).await {
        Ok(_) => Ok(ASK_AGAIN),
        Err(problem) if problem.class == Class::Conflict => Ok(TRY_AGAIN),
        Err(problem) => Err(Error::Host { doing, problem }),
    }
}
