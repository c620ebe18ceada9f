//! Every read of an EdgeHost: what its agent says, who has it, and how far it is wiped.

use std::collections::BTreeSet;

use jiff::Timestamp;
use kube::{Api, Resource, ResourceExt, api::ListParams};
use slipway_agent_api::{
    client::has_ended,
    proto::{self, OperationState},
};
use slipway_capi::frame::Subject;
use slipway_runtime::{Context, Informer, Scope};

use super::{
    api::{Claim, EdgeHost},
    release::{Claimant, Wipe, attempt_of},
    status::is_reachable,
};
use crate::{
    error::Error,
    host_image::{api::HostImage, plan::uid_of_owner},
    hosts::{HostAddress, Platform},
    machine::{api::EdgeMachine, claim_uid},
};

#[derive(Clone, Debug)]
pub struct Observed {
    pub host: EdgeHost,
    /// The namespace of an older EdgeHost of the same name: the machine is that one's.
    pub taken_in: Option<String>,
    pub claimant: Claimant,
    pub agent: Agent,
    pub wipe: Wipe,
    /// Images that it keeps for HostImages that are gone. They are looked for when it is there again: while it is, jobs see to it themselves.
    pub orphans: Vec<Orphan>,
    /// When the last try to wipe it ended.
    pub wipe_ended: Option<Timestamp>,
    pub now: Timestamp,
}

/// A pin of a job that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    pub digest: String,
    pub owner: String,
}

#[derive(Clone, Debug)]
pub enum Agent {
    Answers(Box<proto::Host>),
    Silent(String),
    /// The host is another EdgeHost's.
    NotAsked,
}

pub async fn observe(
    subject: &Subject<EdgeHost>,
    platform: &Platform,
    context: &Context,
) -> Result<Observed, Error> {
    let host = subject.object.as_ref();
    let taken_in = taken_in(host, context);
    let claim = host.spec.claim.as_ref();
    let (agent, wipe, wipe_ended) = if taken_in.is_some() {
        let why = "the host is another EdgeHost's".to_owned();
        (Agent::NotAsked, Wipe::Unreachable(why), None)
    } else {
        ask(host, claim, platform).await
    };
    let was_away = matches!(agent, Agent::Answers(_)) && !is_reachable(host);
    let orphans = if was_away {
        orphans(host, platform, context).await
    } else {
        Vec::new()
    };
    Ok(Observed {
        orphans,
        claimant: claim.map_or(Claimant::Present, |claim| seen(host, claim, context)),
        host: host.clone(),
        taken_in,
        agent,
        wipe,
        wipe_ended,
        now: context.clock.now(),
    })
}

/// The claimant as the apiserver has it now.
pub async fn confirm(mut observed: Observed, context: &Context) -> Result<Observed, Error> {
    let Some(claim) = &observed.host.spec.claim else {
        return Ok(observed);
    };
    let namespace = observed.host.namespace().unwrap_or_default();
    let machines: Api<EdgeMachine> = Api::namespaced(context.client.clone(), &namespace);
    let machines = machines
        .list(&ListParams::default())
        .await
        .map_err(Error::api("looking up who has the host"))?;
    let is_there = machines.iter().any(|machine| claim_uid(machine) == claim.uid);
    observed.claimant = if is_there {
        Claimant::Present
    } else {
        Claimant::Gone
    };
    Ok(observed)
}

fn seen(host: &EdgeHost, claim: &Claim, context: &Context) -> Claimant {
    let machines: Informer<EdgeMachine> = context.informers.get(Scope::of_namespace(&context.settings));
    let found = machines
        .index("claim", |machine| vec![claim_uid(machine)])
        .get(&claim.uid);
    if found
        .iter()
        .any(|machine| machine.namespace() == host.namespace())
    {
        Claimant::Present
    } else {
        Claimant::NotSeen
    }
}

/// A host's name is its identity in the whole fleet; the first EdgeHost of a name has it.
fn taken_in(host: &EdgeHost, context: &Context) -> Option<String> {
    let hosts: Informer<EdgeHost> = context.informers.get(Scope::of_namespace(&context.settings));
    let age = |host: &EdgeHost| (host.meta().creation_timestamp.clone(), host.namespace());
    hosts
        .index("name", |host| vec![host.name_any()])
        .get(&host.name_any())
        .iter()
        .filter(|other| other.namespace() != host.namespace() && age(other) < age(host))
        .filter_map(|other| other.namespace())
        .min()
}

async fn orphans(host: &EdgeHost, platform: &Platform, context: &Context) -> Vec<Orphan> {
    let jobs: Informer<HostImage> = context.informers.get(Scope::of_namespace(&context.settings));
    if !jobs.is_synced() {
        return Vec::new();
    }
    let jobs: BTreeSet<String> = jobs.list().iter().filter_map(|job| job.uid()).collect();
    let images = platform.hosts.images(&HostAddress::of(host)).await;
    let images = images.unwrap_or_default();
    images
        .iter()
        .flat_map(|image| image.users.iter().map(move |user| (image, user)))
        .filter(|(_, user)| {
            user.kind == "pin" && uid_of_owner(&user.name).is_some_and(|uid| !jobs.contains(uid))
        })
        .map(|(image, user)| Orphan {
            digest: image.digest.clone(),
            owner: user.name.clone(),
        })
        .collect()
}

async fn ask(
    host: &EdgeHost,
    claim: Option<&Claim>,
    platform: &Platform,
) -> (Agent, Wipe, Option<Timestamp>) {
    let place = HostAddress::of(host);
    let inventory = match platform.hosts.inventory(&place).await {
        Ok(inventory) => inventory,
        Err(problem) => {
            let why = problem.message;
            return (Agent::Silent(why.clone()), Wipe::Unreachable(why), None);
        }
    };
    let agent = Agent::Answers(Box::new(inventory));
    let Some(claim) = claim.filter(|claim| claim.released) else {
        return (agent, Wipe::NotOrdered, None);
    };
    match platform.hosts.operations(&place).await {
        Ok(operations) => {
            let (wipe, ended) = wiped(claim, &operations);
            (agent, wipe, ended)
        }
        Err(problem) => (agent, Wipe::Unreachable(problem.message), None),
    }
}

/// How the last try stands.
fn wiped(claim: &Claim, operations: &[proto::Operation]) -> (Wipe, Option<Timestamp>) {
    let tries = operations
        .iter()
        .filter_map(|operation| Some((attempt_of(claim, &operation.id)?, operation)));
    let Some((attempt, last)) = tries.max_by_key(|(attempt, _)| *attempt) else {
        return (Wipe::NotOrdered, None);
    };
    let ended = Timestamp::from_millisecond(last.ended_at).ok();
    match last.state() {
        OperationState::Succeeded => (Wipe::Done, ended),
        _ if !has_ended(last) => (Wipe::Running, None),
        _ => {
            let message = last.message.clone();
            (Wipe::Failed { attempt, message }, ended)
        }
    }
}
