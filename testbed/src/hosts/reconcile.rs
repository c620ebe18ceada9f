//! One look at one object of the hosts: what it is, what is missing, the next call. Every call can be repeated.

use std::time::Duration;

use k8s_openapi::{
    api::core::v1::Secret,
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use kube::{
    Api, Resource, ResourceExt,
    api::{DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{
    Key, World,
    api::{
        Address, FailureDomain, Initialization, NodeInfo, TestHostCluster, TestHostConfig,
        TestHostControlPlane, TestHostMachine, TestHostMachineStatus, TestHostMachineTemplate,
        TestHostMachineTemplateStatus,
    },
    backend::{BackendError, Booting},
    behaviour::{Failure, HostPhase},
    kwok::ignore_missing,
    pool::{POOL_NAME, pool},
};

const FINALIZER: &str = "testhostmachine.infrastructure.cluster.x-k8s.io";
pub(super) const CLUSTER_NAME: &str = "cluster.x-k8s.io/cluster-name";
const CONTROL_PLANE: &str = "cluster.x-k8s.io/control-plane";
const PAUSED: &str = "cluster.x-k8s.io/paused";

/// Looks at one object; says when to look again if nothing would call for it.
pub async fn reconcile(world: &World, key: &Key) -> Result<Option<Duration>, BackendError> {
    match key {
        Key::Cluster(name) => cluster(world, name).await,
        Key::Machine(name) => machine(world, name).await,
        Key::Pool(name) => pool(world, name).await,
        Key::Template(name) => template(world, name).await,
        Key::Config(name) => config(world, name).await,
        Key::ControlPlane(name) => control_plane(world, name).await,
    }
}

async fn cluster(world: &World, name: &str) -> Result<Option<Duration>, BackendError> {
    let api: Api<TestHostCluster> = world.api();
    let Some(host_cluster) = api.get_opt(name).await? else {
        return Ok(None);
    };
    if host_cluster.meta().deletion_timestamp.is_some() || is_annotated_paused(&host_cluster) {
        return Ok(None);
    }
    let Some(owner) = owner(world, &host_cluster, "Cluster").await? else {
        return Ok(None);
    };
    if is_paused(&owner) {
        return Ok(None);
    }
    if host_cluster.spec.control_plane_endpoint.is_none() {
        let endpoint = world.backend.endpoint(&world.key(&owner.name_any())).await?;
        let spec = json!({"spec": {"controlPlaneEndpoint": endpoint}});
        api.patch(name, &PatchParams::default(), &Patch::Merge(&spec))
            .await?;
    }
    let provisioned = host_cluster
        .status
        .as_ref()
        .is_some_and(|status| status.initialization.provisioned);
    if !provisioned {
        let ready = condition("True", "Provisioned", "");
        let domains: Vec<FailureDomain> = host_cluster
            .spec
            .failure_domains
            .iter()
            .map(|name| domain(name))
            .collect();
        let mut status = json!({"status": {"initialization": {"provisioned": true}, "conditions": [ready]}});
        if !domains.is_empty() {
            status["status"]["failureDomains"] = json!(domains);
        }
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(&status))
            .await?;
    }
    Ok(None)
}

/// Says in its status what the machines of a template will be like.
async fn template(world: &World, name: &str) -> Result<Option<Duration>, BackendError> {
    let api: Api<TestHostMachineTemplate> = world.api();
    let Some(template) = api.get_opt(name).await? else {
        return Ok(None);
    };
    let status = TestHostMachineTemplateStatus {
        capacity: template.spec.template.spec.capacity.clone(),
        node_info: NodeInfo {
            architecture: "amd64".to_owned(),
            operating_system: "linux".to_owned(),
        },
    };
    if template.status.as_ref() != Some(&status) {
        let patch = json!({"status": status});
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
    }
    Ok(None)
}

/// Says that the control plane is there, at the version that was asked for.
async fn control_plane(world: &World, name: &str) -> Result<Option<Duration>, BackendError> {
    let api: Api<TestHostControlPlane> = world.api();
    let Some(found) = api.get_opt(name).await? else {
        return Ok(None);
    };
    let is_told = found.status.as_ref().is_some_and(|status| {
        status.initialization.control_plane_initialized && status.version == found.spec.version
    });
    if !is_told {
        let status = json!({"status": {"initialization": {"controlPlaneInitialized": true},
            "externalManagedControlPlane": true, "version": found.spec.version}});
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(&status))
            .await?;
    }
    Ok(None)
}

/// Bootstrap data that is there already is told to Cluster API.
async fn config(world: &World, name: &str) -> Result<Option<Duration>, BackendError> {
    let api: Api<TestHostConfig> = world.api();
    let Some(config) = api.get_opt(name).await? else {
        return Ok(None);
    };
    let is_told = config.status.as_ref().is_some_and(|status| {
        status.initialization.data_secret_created && status.data_secret_name == config.spec.data_secret_name
    });
    if !is_told {
        let status = json!({"status": {"initialization": {"dataSecretCreated": true},
            "dataSecretName": config.spec.data_secret_name}});
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(&status))
            .await?;
    }
    Ok(None)
}

async fn machine(world: &World, name: &str) -> Result<Option<Duration>, BackendError> {
    let api: Api<TestHostMachine> = world.api();
    let Some(host) = api.get_opt(name).await? else {
        world.behaviour.lock().gone(name);
        return Ok(None);
    };
    let Some(owner) = owner(world, &host, "Machine").await? else {
        // Orphans are deleted like others, but are never made.
        if host.meta().deletion_timestamp.is_some() {
            return delete(world, &api, &host).await;
        }
        return Ok(None);
    };
    let zone = owner.data["spec"]["failureDomain"].as_str();
    let cluster_name = owner.labels().get(CLUSTER_NAME).cloned().unwrap_or_default();
    // Before the Cluster is read: a change after that brings the host back.
    let cluster_key = world.key(&cluster_name);
    world.behaviour.lock().belongs(name, &cluster_key);
    let cluster = world.core("Cluster").get_opt(&cluster_name).await?;
    if is_annotated_paused(&host) || cluster.as_ref().is_some_and(is_paused) {
        return Ok(None);
    }
    if host.meta().deletion_timestamp.is_some() {
        return delete(world, &api, &host).await;
    }
    if !host.finalizers().iter().any(|finalizer| finalizer == FINALIZER) {
        set_finalizers(&api, &host, |finalizers| finalizers.push(FINALIZER.to_owned())).await?;
    }
    let failure = world.behaviour.lock().failure(name);
    let infrastructure_is_ready = cluster
        .is_some_and(|cluster| cluster.data["status"]["initialization"]["infrastructureProvisioned"] == true);
    // Machines of a pool boot with what their pool says.
    let pool = match host.labels().get(POOL_NAME) {
        Some(pool) => world.core("MachinePool").get_opt(pool).await?,
        None => None,
    };
    let spec = pool
        .as_ref()
        .map_or(&owner.data["spec"], |pool| &pool.data["spec"]["template"]["spec"]);
    let data_secret = spec["bootstrap"]["dataSecretName"].as_str();
    let (true, Some(data_secret)) = (infrastructure_is_ready, data_secret) else {
        let waiting = condition("False", "WaitingForBootstrapData", "");
        set_status(&api, &host, false, zone, waiting).await?;
        return Ok(None);
    };

    if let Some(Failure::Provision(message)) = &failure {
        let failed = condition("False", "ProvisioningFailed", message);
        set_status(&api, &host, false, zone, failed).await?;
        return Ok(None);
    }
    if let Some(left) = world.behaviour.lock().remaining(name, HostPhase::Provision) {
        return Ok(Some(left));
    }
    let bootstrap_data = read_bootstrap_data(world, name, data_secret).await?;
    let provider_id = format!("testhost://{}/{name}", world.namespace);
    if host.spec.provider_id.is_none() {
        let spec = json!({"spec": {"providerID": provider_id}});
        api.patch(name, &PatchParams::default(), &Patch::Merge(&spec))
            .await?;
    }
    set_status(&api, &host, true, zone, condition("True", "Provisioned", "")).await?;

    let is_leaving = owner.meta().deletion_timestamp.is_some();
    if is_leaving || failure == Some(Failure::NeverJoins) || world.behaviour.lock().has_joined(name) {
        return Ok(None);
    }
    if let Some(left) = world.behaviour.lock().remaining(name, HostPhase::Join) {
        return Ok(Some(left));
    }
    let booting = booting(&host, &owner, spec, cluster_key, provider_id, bootstrap_data);
    match world.backend.boot(&booting).await {
        // A host that cannot run what it was given stays as it is, like a real one.
        Err(BackendError::Refused(why)) => tracing::warn!(machine = name, why, "A host does not come up"),
        booted => booted?,
    }
    world.behaviour.lock().joined(name);
    Ok(None)
}

/// A host and all it is told. `spec` is its Machine's, or that of the template of its pool.
fn booting(
    host: &TestHostMachine,
    owner: &DynamicObject,
    spec: &Value,
    cluster: String,
    provider_id: String,
    bootstrap_data: Vec<u8>,
) -> Booting {
    let name = host.name_any();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    Booting {
        cluster,
        provider_id,
        address: address(&name),
        name,
        version: text(&spec["version"]).unwrap_or_else(|| "v0.0.0".to_owned()),
        failure_domain: text(&owner.data["spec"]["failureDomain"]),
        is_control_plane: owner.labels().contains_key(CONTROL_PLANE),
        bootstrap_kind: text(&spec["bootstrap"]["configRef"]["kind"]).unwrap_or_default(),
        bootstrap_data,
        capacity: host.spec.capacity.clone(),
        labels: host.spec.node_labels.clone(),
    }
}

/// What a host is told to run; a test may look at it too.
async fn read_bootstrap_data(world: &World, name: &str, secret: &str) -> Result<Vec<u8>, kube::Error> {
    let secret = world.api::<Secret>().get(secret).await?;
    let data = secret
        .data
        .unwrap_or_default()
        .remove("value")
        .unwrap_or_default();
    world.behaviour.lock().read_bootstrap_data(name, data.0.clone());
    Ok(data.0)
}

fn domain(name: &str) -> FailureDomain {
    FailureDomain {
        name: name.to_owned(),
        control_plane: true,
    }
}

async fn delete(
    world: &World,
    api: &Api<TestHostMachine>,
    host: &TestHostMachine,
) -> Result<Option<Duration>, BackendError> {
    let name = host.name_any();
    if let Some(left) = world.behaviour.lock().remaining(&name, HostPhase::Delete) {
        return Ok(Some(left));
    }
    let booted_in = world.behaviour.lock().cluster(&name);
    let cluster = booted_in.unwrap_or_else(|| {
        let label = host.labels().get(CLUSTER_NAME).cloned();
        world.key(&label.unwrap_or_default())
    });
    world.backend.destroy(&cluster, &name).await?;
    ignore_missing(set_finalizers(api, host, |finalizers| finalizers.retain(|one| one != FINALIZER)).await)?;
    world.behaviour.lock().gone(&name);
    Ok(None)
}

async fn set_finalizers(
    api: &Api<TestHostMachine>,
    host: &TestHostMachine,
    change: impl FnOnce(&mut Vec<String>),
) -> Result<(), kube::Error> {
    let mut finalizers = host.finalizers().to_vec();
    change(&mut finalizers);
    // The resource version keeps finalizers of others that came in between.
    let patch = json!({"metadata": {"finalizers": finalizers, "resourceVersion": host.resource_version()}});
    api.patch(&host.name_any(), &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    Ok(())
}

/// Writes the status, if it says something new.
async fn set_status(
    api: &Api<TestHostMachine>,
    host: &TestHostMachine,
    provisioned: bool,
    zone: Option<&str>,
    ready: Condition,
) -> Result<(), kube::Error> {
    let name = host.name_any();
    if let Some(status) = &host.status {
        let same = status.conditions.iter().any(|old| {
            (&old.status, &old.reason, &old.message) == (&ready.status, &ready.reason, &ready.message)
        });
        if same && status.initialization.provisioned == provisioned {
            return Ok(());
        }
    }
    let status = TestHostMachineStatus {
        initialization: Initialization { provisioned },
        failure_domain: zone.map(str::to_owned),
        addresses: vec![Address {
            type_: "InternalIP".to_owned(),
            address: address(&name),
        }],
        conditions: vec![ready],
    };
    let patch = json!({"status": status});
    api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    Ok(())
}

fn condition(status: &str, reason: &str, message: &str) -> Condition {
    Condition {
        type_: "Ready".to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: Time::from(Timestamp::now()),
        observed_generation: None,
    }
}

/// The owner of a kind, as it is now.
pub(super) async fn owner(
    world: &World,
    object: &impl ResourceExt,
    kind: &str,
) -> Result<Option<DynamicObject>, kube::Error> {
    let reference = object.owner_references().iter().find(|owner| owner.kind == kind);
    match reference {
        Some(reference) => world.core(kind).get_opt(&reference.name).await,
        None => Ok(None),
    }
}

pub(super) fn is_annotated_paused(object: &impl ResourceExt) -> bool {
    object.annotations().contains_key(PAUSED)
}

fn is_paused(cluster: &DynamicObject) -> bool {
    cluster.data["spec"]["paused"] == true
}

/// An address that looks like a host's and stays the same for a name.
fn address(name: &str) -> String {
    let sum = name.bytes().fold(0u32, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(u32::from(byte))
    });
    format!("10.{}.{}.{}", sum >> 16 & 0xff, sum >> 8 & 0xff, sum % 254 + 1)
}
