//! Every read of an EdgeMachine: its Machine and Cluster, the hosts that it may get, and how far its own is with the bootstrap data.

use std::{collections::BTreeMap, sync::Arc};

use kube::{Api, ResourceExt, api::ListParams};
use slipway_agent_api::proto::{Operation, OperationState};
use slipway_capi::{
    frame::Subject,
    owner,
    view::{Cluster, Machine},
};
use slipway_runtime::{Context, Informer, ObjectKey, Scope};

use super::{
    BOOTSTRAPPED_ANNOTATION, FIRST_SERVER_ANNOTATION,
    api::EdgeMachine,
    claim::{Asking, Candidate, Decision, decide},
    claim_uid,
    plan::{AddressFacts, AddressOrder, Bootstrap, Facts},
    provider_id,
};
use crate::{
    cluster::api::EdgeCluster,
    error::Error,
    host::{api::EdgeHost, status as host_status},
    hosts::{HostAddress, Platform},
    orders::{address_id, bootstrap_id},
};

#[derive(Clone, Debug)]
pub struct Observed {
    pub machine: EdgeMachine,
    /// The hosts behind the candidates, as they were read.
    pub hosts: Vec<Arc<EdgeHost>>,
    /// The EdgeCluster whose servers hold an address, where the machine is one of them.
    pub cluster: Option<Arc<EdgeCluster>>,
    pub facts: Facts,
}

impl Observed {
    pub fn host(&self, name: &str) -> Option<&EdgeHost> {
        self.hosts
            .iter()
            .find(|host| host.name_any() == name)
            .map(AsRef::as_ref)
    }
}

pub async fn observe(
    subject: &Subject<EdgeMachine>,
    platform: &Platform,
    context: &Context,
) -> Result<Observed, Error> {
    let machine = subject.object.as_ref();
    let hosts: Informer<EdgeHost> = context.informers.get(Scope::of_namespace(&context.settings));
    let namespace = machine.namespace().unwrap_or_default();
    let hosts = hosts
        .index("namespace", |host| host.namespace().into_iter().collect())
        .get(&namespace);
    let mut observed = gather(subject, machine.clone(), hosts, context);
    ask(&mut observed, platform).await;
    Ok(observed)
}

/// What the host says.
async fn ask(observed: &mut Observed, platform: &Platform) {
    observed.facts.bootstrap = bootstrap(observed, platform).await;
    if observed.facts.bootstrap == Bootstrap::NotOrdered
        && let Some(order) = address_order(observed, platform).await
        && let Some(address) = &mut observed.facts.address
    {
        address.order = order;
    }
}

/// The same with machine and hosts as the apiserver has them now.
pub async fn confirm(
    subject: &Subject<EdgeMachine>,
    mut observed: Observed,
    platform: &Platform,
    context: &Context,
) -> Result<Observed, Error> {
    let name = observed.machine.name_any();
    let namespace = observed.machine.namespace().unwrap_or_default();
    let machines: Api<EdgeMachine> = Api::namespaced(context.client.clone(), &namespace);
    let found = machines
        .get_opt(&name)
        .await
        .map_err(Error::api(format!("reading EdgeMachine {name}")))?;
    let Some(machine) = found.filter(|found| found.uid() == observed.machine.uid()) else {
        // It is gone, and another of its name has its own reconcile: nothing is done for this one.
        observed.facts.is_confirmed = true;
        observed.facts.is_owned = false;
        return Ok(observed);
    };
    let hosts: Api<EdgeHost> = Api::namespaced(context.client.clone(), &namespace);
    let hosts = hosts
        .list(&ListParams::default())
        .await
        .map_err(Error::api("reading the EdgeHosts of the namespace"))?;
    let hosts = hosts.items.into_iter().map(Arc::new).collect();
    let mut confirmed = gather(subject, machine, hosts, context);
    confirmed.facts.is_confirmed = true;
    ask(&mut confirmed, platform).await;
    Ok(confirmed)
}

fn gather(
    subject: &Subject<EdgeMachine>,
    machine: EdgeMachine,
    mut hosts: Vec<Arc<EdgeHost>>,
    context: &Context,
) -> Observed {
    hosts.sort_by_key(|host| host.name_any());
    let owner = owner_machine(&machine, context);
    let spec = &machine.spec;
    let given = |text: &String| (!text.is_empty()).then(|| text.clone());
    let neighbours = neighbours(&machine, &hosts, context);
    let candidates = hosts.iter().map(|host| candidate(host, &neighbours)).collect();
    let asking = Asking {
        name: machine.name_any(),
        uid: claim_uid(&machine),
        chosen: spec.host_name.clone(),
        is_bound: provider_id(&machine).is_some(),
        is_deleting: machine.metadata.deletion_timestamp.is_some(),
        selector: spec.host_selector.clone(),
        minimum: spec.minimum.clone(),
        failure_domain: owner
            .as_ref()
            .and_then(|machine| given(&machine.spec.failure_domain)),
    };
    let cluster = subject.cluster.as_ref();
    let is_server = owner.as_ref().is_some_and(|machine| machine.is_control_plane());
    let with_address = cluster
        .filter(|_| is_server)
        .and_then(|cluster| with_address(cluster, context));
    let address = with_address.as_deref().map(|found| address(found, &hosts));
    let facts = Facts {
        address,
        is_initialized: cluster.is_some_and(|cluster| cluster.control_plane_initialized()),
        namespace: machine.namespace().unwrap_or_default(),
        asking,
        hosts: candidates,
        is_confirmed: false,
        is_owned: owner.is_some(),
        is_cluster_provisioned: cluster.is_some_and(|cluster| cluster.infrastructure_provisioned()),
        bootstrap_secret: owner.and_then(|machine| machine.spec.bootstrap.data_secret_name.clone()),
        provider_id: spec.provider_id.clone(),
        bootstrap: Bootstrap::default(),
        is_recorded: machine.annotations().contains_key(BOOTSTRAPPED_ANNOTATION),
        deleted_at: machine.metadata.deletion_timestamp.as_ref().map(|time| time.0),
    };
    Observed {
        machine,
        hosts,
        cluster: with_address,
        facts,
    }
}

/// The EdgeCluster of a Cluster, where its servers hold an address.
fn with_address(cluster: &Cluster, context: &Context) -> Option<Arc<EdgeCluster>> {
    let reference = cluster.spec.infrastructure_ref.as_ref()?;
    let clusters: Informer<EdgeCluster> = context.informers.get(Scope::of_namespace(&context.settings));
    let found = clusters.get(&ObjectKey::of(cluster).sibling(&reference.name))?;
    (reference.kind == "EdgeCluster" && found.spec.virtual_address.is_some()).then_some(found)
}

fn address(cluster: &EdgeCluster, hosts: &[Arc<EdgeHost>]) -> AddressFacts {
    let first = cluster.annotations().get(FIRST_SERVER_ANNOTATION).cloned();
    let has_claim = |uid: &String| {
        let mut claims = hosts.iter().filter_map(|host| host.spec.claim.as_ref());
        claims.any(|claim| claim.uid == *uid)
    };
    AddressFacts {
        cluster: cluster.name_any(),
        first_is_there: first.as_ref().is_some_and(has_claim),
        first,
        order: AddressOrder::default(),
    }
}

/// How far the host is with taking part; `None`: it is not its turn to be asked.
async fn address_order(observed: &Observed, platform: &Platform) -> Option<AddressOrder> {
    let facts = &observed.facts;
    facts.address.as_ref()?;
    if facts.is_recorded || facts.asking.is_deleting || !facts.asking.is_bound {
        return None;
    }
    let Decision::Held { host } = decide(&facts.asking, &facts.hosts) else {
        return None;
    };
    let place = HostAddress::of(observed.host(&host)?);
    let found = platform
        .hosts
        .operation(&place, &address_id(&facts.asking.uid))
        .await;
    Some(match found {
        Ok(None) => AddressOrder::NotOrdered,
        Ok(Some(operation)) => match operation.state() {
            OperationState::Failed | OperationState::Cancelled => {
                AddressOrder::Failed(operation.message.clone())
            }
            _ => AddressOrder::Accepted,
        },
        Err(problem) => AddressOrder::Unreachable(problem.message),
    })
}

fn owner_machine(machine: &EdgeMachine, context: &Context) -> Option<Arc<Machine>> {
    let name = owner::owner_machine_name(&machine.metadata)?;
    let machines: Informer<Machine> = context.informers.get(Scope::of_namespace(&context.settings));
    machines.get(&ObjectKey::of(machine).sibling(name))
}

pub fn candidate(host: &EdgeHost, neighbours: &BTreeMap<Option<String>, usize>) -> Candidate {
    let status = host.status.as_ref();
    Candidate {
        name: host.name_any(),
        labels: host.labels().clone(),
        claim: host.spec.claim.clone(),
        failure_domain: host.spec.failure_domain.clone(),
        hardware: status.and_then(|status| status.hardware.clone()),
        is_ready: host_status::is_reachable(host),
        maintenance: host_status::maintenance(host),
        is_deleting: host.metadata.deletion_timestamp.is_some(),
        addresses: status.map(|status| status.addresses.clone()).unwrap_or_default(),
        neighbours: neighbours
            .get(&host.spec.failure_domain)
            .copied()
            .unwrap_or_default(),
    }
}

/// How many other machines of the same Cluster are in each failure domain.
fn neighbours(
    machine: &EdgeMachine,
    hosts: &[Arc<EdgeHost>],
    context: &Context,
) -> BTreeMap<Option<String>, usize> {
    let machines: Informer<EdgeMachine> = context.informers.get(Scope::of_namespace(&context.settings));
    let by_cluster = machines.index("cluster", |machine| owner::by_cluster(&machine.metadata));
    let mut counts = BTreeMap::new();
    for cluster in owner::by_cluster(&machine.metadata) {
        for other in by_cluster.get(&cluster) {
            let Some(chosen) = &other.spec.host_name else {
                continue;
            };
            let host = hosts.iter().find(|host| host.name_any() == *chosen);
            if let Some(host) = host
                && other.uid() != machine.uid()
            {
                *counts.entry(host.spec.failure_domain.clone()).or_default() += 1;
            }
        }
    }
    counts
}

/// How far the host is. It is asked from when the machine is bound to it until it has succeeded.
async fn bootstrap(observed: &Observed, platform: &Platform) -> Bootstrap {
    let facts = &observed.facts;
    if facts.is_recorded {
        return Bootstrap::Succeeded;
    }
    if facts.asking.is_deleting || !facts.asking.is_bound {
        return Bootstrap::NotOrdered;
    }
    let Decision::Held { host } = decide(&facts.asking, &facts.hosts) else {
        return Bootstrap::NotOrdered;
    };
    let Some(host) = observed.host(&host) else {
        return Bootstrap::NotOrdered;
    };
    let id = bootstrap_id(&facts.asking.uid);
    match platform.hosts.operation(&HostAddress::of(host), &id).await {
        Ok(found) => found.map_or(Bootstrap::NotOrdered, |operation| stands(&operation)),
        Err(problem) => Bootstrap::Unreachable(problem.message),
    }
}

fn stands(operation: &Operation) -> Bootstrap {
    match operation.state() {
        OperationState::Succeeded => Bootstrap::Succeeded,
        OperationState::Interrupted => Bootstrap::Interrupted,
        OperationState::Failed | OperationState::Cancelled => Bootstrap::Failed(operation.message.clone()),
        OperationState::Unspecified | OperationState::Accepted | OperationState::Running => {
            Bootstrap::Running
        }
    }
}
