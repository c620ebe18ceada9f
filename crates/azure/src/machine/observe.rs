//! What a pool's controller reads for its machines: VMs from Azure and from Nodes, the objects that show them, and core's Machines.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, ResourceExt, api::ListParams};
use slipway_capi::{
    names::label,
    owner,
    view::{Machine, MachinePool},
};
use slipway_runtime::{Context, Informer, ObjectKey, Scope, settings::Gates};

use super::{
    ANNOTATION, Board, Fleet, GATE, Instances, PoolMachine, Posted, Vm,
    fleet::{CoreMachine, Shown, Switch},
    instances::Question,
    kind::{by_pool, objects},
    vm,
};
use crate::{
    Arm,
    reconcile::{Error, ResourceState},
    tuning::Tuning,
    workload::{
        machines::{count, scales},
        nodes::Nodes,
    },
};

/// How old a list of VMs may be while AKS is at work on their pool.
const AT_WORK: Duration = Duration::from_secs(15);

/// What is read from, besides Kubernetes.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    pub instances: &'a Instances,
    pub nodes: &'a Nodes,
    pub board: &'a Board,
    pub arm: Option<&'a Arm>,
}

/// A pool whose machines are looked at.
#[derive(Clone, Debug)]
pub struct Pool<'a> {
    /// The object that stands for it.
    pub metadata: &'a ObjectMeta,
    pub cluster: &'a str,
    pub machine_pool: Option<&'a MachinePool>,
    /// Its name in AKS.
    pub name: &'a str,
    /// The resource group of the cluster's nodes, where it is known.
    pub group: Option<&'a str>,
    /// As AKS shows it.
    pub state: &'a ResourceState,
    /// Why AKS takes no change of it now.
    pub occupied: Option<String>,
    /// Whether its status names the kind of its machines.
    pub is_told: bool,
    /// How old a read of Azure may be for this object, if not what the tuning says.
    pub max_age: Option<Duration>,
}

/// Whether machines are switched on for a pool.
pub fn switch(metadata: &ObjectMeta, gates: &Gates) -> Switch {
    let annotation = metadata.annotations.as_ref().and_then(|all| all.get(ANNOTATION));
    match annotation.map(String::as_str) {
        Some("true") => Switch::On,
        Some("false") => Switch::Off,
        _ if gates.enabled(GATE.name) => Switch::On,
        _ => Switch::Off,
    }
}

/// The value of core's label for what belongs to a MachinePool: its name, or a hash where a label cannot hold that.
pub fn pool_label(name: &str) -> String {
    const LONGEST: usize = 63;
    if name.len() <= LONGEST {
        return name.to_owned();
    }
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    let text = base64::Engine::encode(
        &base64::engine::general_purpose::URL_SAFE_NO_PAD,
        hash.to_be_bytes(),
    );
    format!("hash_{text}_z")
}

/// Reads everything, and posts it for the machines' own controllers. `now`: nothing that was read before counts.
pub async fn observe<M: PoolMachine>(
    pool: &Pool<'_>,
    sources: &Sources<'_>,
    now: bool,
    context: &Context,
) -> (Fleet, Option<Error>) {
    let key = ObjectKey::new(
        pool.metadata.namespace.as_deref(),
        pool.metadata.name.as_deref().unwrap_or_default(),
    );
    let switch = switch(pool.metadata, &context.settings.gates);
    let is_on = switch == Switch::On;
    let found = by_pool::<M>(&objects(context)).get(&key.to_string());
    let mut fleet = Fleet {
        switch,
        look_again: max_age(pool, sources),
        is_told: pool.is_told,
        is_fresh: now,
        shown: found
            .iter()
            .map(|object| Shown {
                name: object.name_any(),
                provider_id: object.provider_id().to_owned(),
                is_deleting: object.meta().deletion_timestamp.is_some(),
            })
            .collect(),
        replicas: pool.machine_pool.and_then(|found| found.spec.replicas),
        count: count(pool.state),
        occupied: pool.occupied.clone(),
        is_scaled_by_aks: scales(pool.state),
        is_system: pool
            .state
            .property("mode")
            .is_some_and(|mode| mode.eq_ignore_ascii_case("System")),
        ..Fleet::default()
    };
    if !is_on && !fleet.is_told && fleet.shown.is_empty() {
        sources.board.forget(&key);
        return (fleet, None);
    }
    if let Some(machine_pool) = pool.machine_pool {
        match machines(machine_pool, &M::kind(&()), now, context).await {
            Ok(machines) => fleet.machines = machines,
            Err(error) => return (fleet, Some(error)),
        }
    }
    if is_on {
        match vms_of(pool, &key, sources, now).await {
            Ok(vms) => fleet.vms = vms,
            Err(error) => return (fleet, Some(error)),
        }
        fleet.look_again = sources.instances.look_again(&key, max_age(pool, sources));
    }
    let posted = match (&fleet.vms, is_on) {
        (_, false) => Posted {
            is_off: true,
            ..Posted::default()
        },
        (Some(vms), true) => Posted {
            is_off: false,
            vms: vms.iter().map(|vm| (vm.key(), vm.clone())).collect(),
            held: fleet.held(),
        },
        (None, true) => return (fleet, None),
    };
    let keys: Vec<ObjectKey> = found
        .iter()
        .map(|object| ObjectKey::of(object.as_ref()))
        .collect();
    let machines = keys.iter().zip(found.iter().map(|object| object.provider_id()));
    sources.board.post(&key, &posted, machines);
    (fleet, None)
}

/// What is left of machines while their pool goes: the Machines that it holds. Where they cannot be read, the pool goes all the same.
pub async fn leaving<M: PoolMachine>(
    machine_pool: Option<&MachinePool>,
    is_told: bool,
    context: &Context,
) -> Fleet {
    let mut fleet = Fleet::default();
    if let Some(machine_pool) = machine_pool.filter(|_| is_told) {
        let found = machines(machine_pool, &M::kind(&()), false, context).await;
        fleet.machines = found.unwrap_or_default();
    }
    fleet
}

/// The VMs of a pool; `None` where nobody can tell.
async fn vms_of(
    pool: &Pool<'_>,
    key: &ObjectKey,
    sources: &Sources<'_>,
    now: bool,
) -> Result<Option<Vec<Vm>>, Error> {
    if pool.state.is_absent() {
        return Ok(Some(Vec::new()));
    }
    let (Some(arm), Some(group)) = (sources.arm, pool.group) else {
        return Ok(None);
    };
    if pool.state.body().is_none() {
        return Ok(None);
    }
    let question = Question {
        object: key,
        name: pool.name,
        group,
        state: pool.state,
        // While AKS is at work on a pool, VMs come and go.
        max_age: if pool.occupied.is_some() {
            AT_WORK
        } else {
            max_age(pool, sources)
        },
    };
    let workload = ObjectKey::new(key.namespace(), pool.cluster);
    let nodes = sources.nodes.facts(&workload, pool.name, pool.group);
    // A cluster that shows none of a pool's nodes tells nothing of its VMs.
    let nodes = nodes.filter(|nodes| !nodes.is_empty());
    let mut listing = sources.instances.of_pool(arm, &question, now).await?;
    if let Some(nodes) = &nodes
        && !vm::agree(&listing.instances, nodes, &listing.sets)
    {
        sources.instances.compared(key, false);
        listing = sources.instances.of_pool(arm, &question, false).await?;
    }
    let nodes = nodes.unwrap_or_default();
    let agree = nodes.is_empty() || vm::agree(&listing.instances, &nodes, &listing.sets);
    sources.instances.compared(key, agree);
    // An empty list of a pool that has nodes is one that somebody may not see.
    if listing.instances.is_empty() && count(pool.state).is_none_or(|count| count > 0) {
        return Ok(None);
    }
    Ok(Some(vm::merge(&listing.instances, &nodes, &listing.sets)))
}

/// Core's Machines of a MachinePool.
async fn machines(
    pool: &MachinePool,
    kind: &str,
    now: bool,
    context: &Context,
) -> Result<Vec<CoreMachine>, Error> {
    let namespace = pool.metadata.namespace.as_deref();
    let value = pool_label(pool.metadata.name.as_deref().unwrap_or_default());
    let mut found: Vec<CoreMachine> = if now {
        let api: Api<Machine> = Api::namespaced(context.client.clone(), namespace.unwrap_or_default());
        let selector = format!(
            "{}={value},{}={}",
            label::MACHINE_POOL_NAME,
            label::CLUSTER_NAME,
            pool.spec.cluster_name
        );
        let listed = api.list(&ListParams::default().labels(&selector)).await;
        let listed = listed.map_err(Error::api("listing the Machines of the pool"))?;
        let of_kind = |machine: &&Machine| machine.spec.infrastructure_ref.kind == kind;
        listed.items.iter().filter(of_kind).map(CoreMachine::of).collect()
    } else {
        let all = watched(context);
        all.synced().await;
        all.index("machine-pool", by_machine_pool)
            .get(&owner::key(
                namespace,
                &format!("{}/{value}", pool.spec.cluster_name),
            ))
            .iter()
            .filter(|machine| machine.spec.infrastructure_ref.kind == kind)
            .map(|machine| CoreMachine::of(machine))
            .collect()
    };
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}

fn by_machine_pool(machine: &Machine) -> Vec<String> {
    let labels = machine.metadata.labels.as_ref();
    let pool = labels.and_then(|labels| labels.get(label::MACHINE_POOL_NAME));
    let cluster = &machine.spec.cluster_name;
    pool.map(|pool| {
        owner::key(
            machine.metadata.namespace.as_deref(),
            &format!("{cluster}/{pool}"),
        )
    })
    .into_iter()
    .collect()
}

/// Machines are watched from the first pool on that has any; their changes bring the pool back.
fn watched(context: &Context) -> Informer<Machine> {
    let scope = Scope::of_namespace(&context.settings);
    let pools = context.informers.get::<MachinePool>(scope.clone());
    context.watch::<Machine>(&(), scope.clone(), move |machine| {
        let namespace = machine.metadata.namespace.as_deref();
        let pool = owner::owner_machine_pool_name(&machine.metadata)
            .and_then(|name| pools.get(&ObjectKey::new(namespace, name)));
        pool.map(|pool| {
            let reference = &pool.spec.template.spec.infrastructure_ref;
            ObjectKey::new(namespace, &reference.name)
        })
        .into_iter()
        .collect()
    });
    context.informers.get::<Machine>(scope)
}

/// How old a list of VMs may be where nothing says that it is outdated.
fn max_age(pool: &Pool<'_>, sources: &Sources<'_>) -> Duration {
    let tuned = || {
        sources
            .arm
            .map_or(Tuning::default().max_read_age, Arm::max_read_age)
    };
    pool.max_age.unwrap_or_else(tuned)
}
