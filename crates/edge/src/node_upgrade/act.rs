//! The actions of a NodeUpgrade: each is one idempotent call. The only place that writes.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{EvictParams, Patch, PatchParams},
};
use serde_json::Value;
use slipway_agent_api::{Class, proto::StartRequest};
use slipway_runtime::{Context, ObjectKey, Outcome};

use super::{
    Upgrades, annotations,
    facts::{Facts, Order},
    observe::Observed,
    plan::Action,
};
use crate::{error::Error, hosts::Platform, orders};

/// The host tells only whoever asks.
const ASK_AGAIN: Outcome = Outcome::InProgress(Duration::from_secs(5));
/// Another has taken a place since this one looked.
const LOOK_AGAIN: Outcome = Outcome::InProgress(Duration::from_secs(1));
/// What keeps a host from an order, or a pod from leaving, passes without an event.
const TRY_AGAIN: Outcome = Outcome::InProgress(Duration::from_secs(15));

pub async fn act(
    action: &Action,
    upgrades: &Upgrades,
    observed: &mut Observed,
    context: &Context,
) -> Result<Outcome, Error> {
    let platform = &upgrades.platform;
    let id = observed.facts.id.clone();
    match action {
        Action::Order { order, attempt } => order_host(*order, *attempt, observed, platform, context).await,
        Action::Abandon => take_back(orders::give_up(&id), observed, platform, context).await,
        Action::Unpin => {
            let verb = orders::unpin(&observed.facts.spec.image.digest, &id);
            take_back(verb, observed, platform, context).await
        }
        Action::TakePlace => {
            let given = observed.facts.fleet.as_ref().map_or(0, |fleet| fleet.given);
            let is_taken = upgrades.places.take(&ObjectKey::of(&observed.upgrade), given);
            Ok(if is_taken { Outcome::Done } else { LOOK_AGAIN })
        }
        Action::Cordon => {
            let patch = observed
                .node
                .as_ref()
                .map(|node| annotations::cordon(node, &id, context.clock.now()));
            patch_node(observed, patch, "cordoning").await
        }
        Action::Uncordon => {
            let patch = observed
                .node
                .as_ref()
                .and_then(|node| annotations::uncordon(node, &id));
            patch_node(observed, patch, "uncordoning").await
        }
        Action::Evict { pod } => evict(pod, observed).await,
        Action::KeepOff => {
            let machine = observed.machine.as_ref();
            let patch = machine.map(|machine| annotations::keep_off(machine, &id, context.clock.now()));
            patch_machine(observed, patch, context).await
        }
        Action::LetIn => {
            let patch = observed
                .machine
                .as_ref()
                .and_then(|machine| annotations::let_in(machine, &id));
            patch_machine(observed, patch, context).await
        }
    }
}

async fn order_host(
    order: Order,
    attempt: u32,
    observed: &mut Observed,
    platform: &Platform,
    context: &Context,
) -> Result<Outcome, Error> {
    let generation = platform.generation(context.clock.now());
    let reason = observed.decision().goes_back_because.clone().unwrap_or_default();
    let request = |facts: &Facts| orders::of_upgrade(facts, order, attempt, generation, &reason);
    let mut facts = observed.facts.clone();
    match send(request(&facts), observed, platform).await {
        // Whether the version is applied already decides what the order says, and that has changed since it was first given.
        Err(Error::Host { problem, .. }) if order == Order::Kubernetes && problem.reason == "IdReused" => {
            facts.cluster.is_applied = !facts.cluster.is_applied;
            send(request(&facts), observed, platform).await
        }
        sent => sent,
    }
}

/// Whatever the order is, it may be sent again.
async fn send(request: StartRequest, observed: &mut Observed, platform: &Platform) -> Result<Outcome, Error> {
    let Some(place) = &observed.host else {
        return Ok(Outcome::Done);
    };
    let doing = format!("ordering {} from host {}", request.operation_id, place.name);
    match platform.hosts.start(place, request).await {
        Ok(_) => Ok(ASK_AGAIN),
        Err(problem) if problem.class == Class::Conflict => {
            observed.refused = Some(problem.message);
            Ok(TRY_AGAIN)
        }
        Err(problem) => Err(Error::Host { doing, problem }),
    }
}

async fn take_back(
    verb: slipway_agent_api::proto::start_request::Verb,
    observed: &mut Observed,
    platform: &Platform,
    context: &Context,
) -> Result<Outcome, Error> {
    let generation = platform.generation(context.clock.now());
    let (id, host) = (&observed.facts.id, &observed.facts.spec.host_name);
    let request = orders::taking_back(id, verb, host, &observed.operations, generation);
    send(request, observed, platform).await
}

/// `None`: it is not this upgrade's to do, or is done.
async fn patch_node(observed: &mut Observed, patch: Option<Value>, doing: &str) -> Result<Outcome, Error> {
    let (Some(client), Some(node), Some(patch)) = (&observed.client, &observed.node, patch) else {
        return Ok(Outcome::Done);
    };
    let nodes: Api<Node> = Api::all(client.clone());
    let name = node.name_any();
    let written = nodes
        .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .map_err(Error::api(format!("{doing} Node {name} of the workload cluster")))?;
    observed.node = Some(written);
    // The node tells nobody in the management cluster.
    Ok(Outcome::InProgress(Duration::from_secs(1)))
}

/// What a budget holds back is tried again; what is gone has left.
async fn evict(pod: &str, observed: &Observed) -> Result<Outcome, Error> {
    let (Some(client), Some((namespace, name))) = (&observed.client, pod.split_once('/')) else {
        return Ok(Outcome::Done);
    };
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    match pods.evict(name, &EvictParams::default()).await {
        Ok(_) => Ok(ASK_AGAIN),
        Err(kube::Error::Api(status)) if status.code == 429 => Ok(TRY_AGAIN),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Outcome::Done),
        Err(error) => Err(Error::api(format!("evicting Pod {pod} of the workload cluster"))(
            error,
        )),
    }
}

async fn patch_machine(
    observed: &mut Observed,
    patch: Option<Value>,
    context: &Context,
) -> Result<Outcome, Error> {
    let (Some(machine), Some(patch)) = (observed.machine.clone(), patch) else {
        return Ok(Outcome::Done);
    };
    let doing = format!("writing Machine {}", machine.name_any());
    let written = context.patch_dynamic(machine.as_ref(), &(), &patch).await;
    observed.machine = Some(std::sync::Arc::new(written.map_err(Error::api(doing))?));
    Ok(Outcome::Done)
}
