//! The actions of an EdgeMachine: each is one idempotent call. The only place that writes.

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use slipway_agent_api::Class;
use slipway_runtime::{Context, Outcome};

use super::{
    BOOTSTRAPPED_ANNOTATION, FIRST_SERVER_ANNOTATION,
    observe::Observed,
    plan::{Action, Bootstrap},
    provider_id::ProviderId,
};
use crate::{
    error::Error,
    hosts::{HostAddress, Platform},
    orders,
};

/// The host tells only whoever asks.
const ASK_AGAIN: Outcome = Outcome::InProgress(Duration::from_secs(5));
/// What keeps a host from an order passes without an event.
const TRY_AGAIN: Outcome = Outcome::InProgress(Duration::from_secs(30));

pub async fn act(
    action: &Action,
    observed: &mut Observed,
    platform: &Platform,
    context: &Context,
) -> Result<Outcome, Error> {
    match action {
        Action::Choose { host } => write(observed, json!({"hostName": host}), context).await,
        Action::Drop { .. } => write(observed, json!({"hostName": null}), context).await,
        Action::WriteProviderId { id } => {
            write(observed, json!({"providerID": id.to_string()}), context).await
        }
        Action::Take { host } => {
            let asking = &observed.facts.asking;
            let claim = json!({"claim": {"name": asking.name, "uid": asking.uid}});
            claim_host(observed, host, claim, context).await
        }
        Action::Return { host } => {
            claim_host(observed, host, json!({"claim": {"released": true}}), context).await
        }
        Action::OrderBootstrap { host, secret } => {
            order_bootstrap(observed, host, secret, platform, context).await
        }
        Action::BeFirst { .. } => be_first(observed, context).await,
        Action::OrderAddress { host, first } => {
            order_address(observed, host, *first, platform, context).await
        }
        Action::RecordBootstrap => {
            let patch = json!({"metadata": {"annotations": {BOOTSTRAPPED_ANNOTATION: "true"}}});
            patch_machine(observed, &patch, context).await
        }
    }
}

/// A field of its spec, over the version that was read.
async fn write(observed: &mut Observed, spec: Value, context: &Context) -> Result<Outcome, Error> {
    let version = &observed.machine.metadata.resource_version;
    let patch = json!({"metadata": {"resourceVersion": version}, "spec": spec});
    patch_machine(observed, &patch, context).await
}

async fn patch_machine(observed: &mut Observed, patch: &Value, context: &Context) -> Result<Outcome, Error> {
    let machine = &observed.machine;
    let doing = format!("writing EdgeMachine {}", machine.name_any());
    let written = context.patch(machine, patch).await.map_err(Error::api(doing))?;
    // Actions after this one write over the version that it made.
    observed.machine = written;
    Ok(Outcome::Done)
}

/// The claim in a host, over the version that was read: of two machines that want it, one has it.
async fn claim_host(
    observed: &Observed,
    name: &str,
    spec: Value,
    context: &Context,
) -> Result<Outcome, Error> {
    let Some(host) = observed.host(name) else {
        return Ok(Outcome::Done);
    };
    let version = &host.metadata.resource_version;
    let patch = json!({"metadata": {"resourceVersion": version}, "spec": spec});
    let doing = format!("writing the claim of EdgeHost {name}");
    context.patch(host, &patch).await.map_err(Error::api(doing))?;
    Ok(Outcome::Done)
}

/// Over the version that was read: of two servers that want to be the first, one is.
async fn be_first(observed: &Observed, context: &Context) -> Result<Outcome, Error> {
    let Some(cluster) = &observed.cluster else {
        return Ok(Outcome::Done);
    };
    let patch = json!({"metadata": {
        "resourceVersion": cluster.metadata.resource_version,
        "annotations": {FIRST_SERVER_ANNOTATION: observed.facts.asking.uid},
    }});
    let doing = format!("writing EdgeCluster {}", cluster.name_any());
    context
        .patch(cluster.as_ref(), &patch)
        .await
        .map_err(Error::api(doing))?;
    Ok(Outcome::Done)
}

async fn order_address(
    observed: &Observed,
    name: &str,
    first: bool,
    platform: &Platform,
    context: &Context,
) -> Result<Outcome, Error> {
    let place = observed.host(name).map(HostAddress::of);
    let cluster = observed.cluster.as_ref();
    let address = cluster.and_then(|cluster| cluster.spec.virtual_address.as_ref());
    let (Some(place), Some(address)) = (place, address) else {
        return Ok(Outcome::Done);
    };
    let id = ProviderId {
        namespace: observed.facts.namespace.clone(),
        host: name.to_owned(),
        claim: observed.facts.asking.uid.clone(),
    };
    let generation = platform.generation(context.clock.now());
    let order = orders::hold_address(&id, address, first, generation);
    match platform.hosts.start(&place, order).await {
        Ok(_) => Ok(Outcome::Done),
        // A person works on the host.
        Err(problem) if problem.class == Class::Conflict => Ok(TRY_AGAIN),
        Err(problem) => {
            let doing = format!("letting host {name} hold the address of its cluster");
            Err(Error::Host { doing, problem })
        }
    }
}

async fn order_bootstrap(
    observed: &mut Observed,
    name: &str,
    secret: &str,
    platform: &Platform,
    context: &Context,
) -> Result<Outcome, Error> {
    let Some(place) = observed.host(name).map(HostAddress::of) else {
        return Ok(Outcome::Done);
    };
    let facts = &observed.facts;
    let id = ProviderId {
        namespace: facts.namespace.clone(),
        host: name.to_owned(),
        claim: facts.asking.uid.clone(),
    };
    let data = bootstrap_data(&facts.namespace, secret, context).await?;
    let generation = platform.generation(context.clock.now());
    let order = orders::bootstrap(&id, data, generation);
    match platform.hosts.start(&place, order).await {
        Ok(_) => {
            observed.facts.bootstrap = Bootstrap::Running;
            Ok(ASK_AGAIN)
        }
        Err(problem) if problem.class == Class::Conflict => {
            observed.facts.bootstrap = Bootstrap::Refused(problem.message);
            Ok(TRY_AGAIN)
        }
        Err(problem) => {
            let doing = format!("giving host {name} its bootstrap data");
            Err(Error::Host { doing, problem })
        }
    }
}

/// Read when it is due and kept nowhere.
async fn bootstrap_data(namespace: &str, name: &str, context: &Context) -> Result<Vec<u8>, Error> {
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), namespace);
    let secret = secrets.get(name).await.map_err(Error::api(format!(
        "reading Secret {name} with the bootstrap data"
    )))?;
    let data = secret.data.and_then(|mut data| data.remove("value"));
    data.map(|value| value.0).ok_or_else(|| Error::NoData {
        name: name.to_owned(),
    })
}
