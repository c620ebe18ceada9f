//! One scalable object with all its Machines and claims: from the caches, and, before anything is scaled or let go, past them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use kube::{Api, ResourceExt, api::ListParams};
use slipway_capi::view::{Cluster, Machine};
use slipway_runtime::Context;

use super::Scalable;
use crate::{
    Error,
    accounting::Group,
    api::{
        NodeClaim,
        names::{annotation, label},
    },
    cluster_api::Reader,
    instances::{Reference, sizes},
    options::Options,
    read,
    safety::Rival,
};

/// What a plan is made from, and the objects behind it.
#[derive(Debug)]
pub struct Observed<K> {
    pub object: Arc<K>,
    pub group: Group,
    /// By name.
    pub machines: BTreeMap<String, Arc<Machine>>,
    /// By uid.
    pub claims: BTreeMap<String, Arc<NodeClaim>>,
    pub rival: Option<Rival>,
    /// A MachineDeployment owns it, and the account is that one's.
    pub is_owned: bool,
}

impl<K> Observed<K> {
    /// Whether no claim was ever on the object, or another object speaks for its Machines.
    pub fn is_not_ours(&self) -> bool {
        let is_bound = |machine: &Arc<Machine>| {
            machine.labels().contains_key(label::CLAIM)
                || machine.annotations().contains_key(annotation::DELETED_WITH)
        };
        self.is_owned || (self.claims.is_empty() && !self.machines.values().any(is_bound))
    }
}

fn observed<K: Scalable>(
    object: Arc<K>,
    machines: Vec<Arc<Machine>>,
    claims: Vec<Arc<NodeClaim>>,
    cluster: Option<&Cluster>,
    reader: &Reader<'_>,
    options: &Options,
    now: Timestamp,
) -> Observed<K> {
    let source = object.source(cluster);
    let mut group = Group::new(source.reference.clone(), source.replicas);
    (group.min_size, group.max_size) = sizes(&source, &options.group);
    group.is_paused = source.is_paused;
    (group.current_revision, group.stuck) = object.progress(reader);
    // One that nothing is left of waits for its finalizer alone.
    let is_settled = |claim: &Arc<NodeClaim>| claim.annotations().contains_key(annotation::SETTLED);
    let claims: Vec<Arc<NodeClaim>> = claims.into_iter().filter(|claim| !is_settled(claim)).collect();
    group.machines = machines.iter().map(|machine| read::machine(machine)).collect();
    group.claims = claims.iter().map(|claim| read::claim(claim)).collect();
    Observed {
        object,
        group,
        machines: machines
            .into_iter()
            .map(|machine| (machine.name_any(), machine))
            .collect(),
        claims: claims
            .into_iter()
            .map(|claim| (claim.uid().unwrap_or_default(), claim))
            .collect(),
        rival: reader.rival(now),
        is_owned: source.is_owned,
    }
}

/// The claims whose uid Machines carry: such a Machine is not leaked, whichever object its claim names by now.
fn spoken_for(machines: &[Arc<Machine>]) -> BTreeSet<String> {
    let uids = machines
        .iter()
        .filter_map(|machine| machine.labels().get(label::CLAIM).cloned());
    uids.collect()
}

fn reference<K: Scalable>(object: &K) -> Reference {
    Reference::new(
        K::KIND,
        object.meta().namespace.as_deref().unwrap_or_default(),
        &object.name_any(),
    )
}

pub fn from_caches<K: Scalable>(
    object: Arc<K>,
    reader: &Reader<'_>,
    options: &Options,
    now: Timestamp,
) -> Observed<K> {
    let named = reference(object.as_ref());
    let (machines, mut claims) = (reader.machines_of(&named), reader.claims_of(&named));
    for uid in spoken_for(&machines) {
        let is_known = claims.iter().any(|claim| claim.uid().as_ref() == Some(&uid));
        claims.extend(reader.claim_of_uid(&uid).filter(|_| !is_known));
    }
    let cluster = reader.cluster(&named.namespace, object.cluster_name());
    observed(object, machines, claims, cluster.as_deref(), reader, options, now)
}

/// Everything read again from the apiserver. None if the object is gone.
pub async fn past_the_caches<K: Scalable>(
    cached: &Observed<K>,
    reader: &Reader<'_>,
    options: &Options,
    context: &Context,
) -> Result<Option<Observed<K>>, Error> {
    let named = &cached.group.reference;
    let doing = |what: &str| format!("reading {what} of {named}");
    let objects: Api<K> = Api::namespaced(context.client.clone(), &named.namespace);
    let found = objects
        .get_opt(&named.name)
        .await
        .map_err(Error::api(format!("reading {named}")))?;
    let Some(object) = found else {
        return Ok(None);
    };
    // Claims before Machines: a claim made after them has none, and one that went meanwhile is found to be bound.
    let all: Api<NodeClaim> = Api::all(context.client.clone());
    let all = all
        .list(&ListParams::default())
        .await
        .map_err(Error::api(doing("the claims")))?;
    let text = named.to_string();
    let machines: Api<Machine> = Api::namespaced(context.client.clone(), &named.namespace);
    let selector = ListParams::default().labels(&format!("{}={}", K::LABEL, named.name));
    let machines = machines
        .list(&selector)
        .await
        .map_err(Error::api(doing("the Machines")))?;
    let machines: Vec<Arc<Machine>> = machines.items.into_iter().map(Arc::new).collect();
    let spoken_for = spoken_for(&machines);
    let is_of_this = |claim: &NodeClaim| {
        claim.annotations().get(annotation::SCALABLE_RESOURCE) == Some(&text)
            || claim.uid().is_some_and(|uid| spoken_for.contains(&uid))
    };
    let claims = all.items.into_iter().filter(is_of_this).map(Arc::new).collect();
    let cluster = reader.cluster(&named.namespace, object.cluster_name());
    Ok(Some(observed(
        Arc::new(object),
        machines,
        claims,
        cluster.as_deref(),
        reader,
        options,
        context.clock.now(),
    )))
}
