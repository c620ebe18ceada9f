//! Every read of the control plane controller; what cannot be read becomes a fact.

use std::{collections::BTreeMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams},
};
use slipway_capi::{
    frame::Subject,
    in_place, marks,
    names::{annotation, condition, label},
    owner, template,
    view::{Cluster, Conditions, Machine, MachinePool, ObjectReference},
};
use slipway_runtime::{Informer, ObjectKey, Scope, controller::Context};

use super::{
    kept::Kept,
    liveness::Probe,
    observed::{
        Adoptable, ClusterFacts, Desired, HealthCheck, Hooks, InPlace, InPlaceAnswer, Node, Observed,
        RemediationLimits, RemediationRecord, Server, View, Workload,
    },
    rollout::{self, Desired as DesiredServer, Made},
    secrets::{self, Access, Secrets},
    workload::{Connection, Workloads},
};
use crate::{
    api::{
        self, CLUSTER_NETWORK_ANNOTATION, KThreesConfig, KThreesConfigSpec, KThreesControlPlane,
        LEGACY_HOOK_VALUE, LEGACY_PRE_TERMINATE_HOOK, MEMBER_REMOVAL_ANNOTATION, PRE_TERMINATE_HOOK,
        REMEDIATION_FOR_ANNOTATION, REMEDIATION_IN_PROGRESS_ANNOTATION,
    },
    duration,
    error::Error,
    reads::Reads,
};

/// How long k3s makes the certificates of a server valid, counted from its start.
const LEAF_LIFETIME: SignedDuration = SignedDuration::from_hours(365 * 24);

/// The index of machines by their Cluster.
const BY_CLUSTER: &str = "cluster";

/// What was read: the facts that decide, and the objects that acting needs besides.
pub struct Snapshot {
    pub object: Arc<KThreesControlPlane>,
    /// None where it is gone.
    pub cluster: Option<Arc<Cluster>>,
    pub cluster_name: String,
    pub secrets: Secrets,
    pub observed: Observed,
    pub machines: BTreeMap<String, Machine>,
    /// The KThreesConfigs and InfraMachines of the machines, by the machines' names.
    pub configs: BTreeMap<String, KThreesConfig>,
    pub infra_machines: BTreeMap<String, (ApiResource, DynamicObject)>,
    pub connection: Option<Arc<Connection>>,
    /// The configuration every server should have.
    pub config: KThreesConfigSpec,
    pub template: ObjectReference,
    pub read_at: Timestamp,
    /// The servers were read from the apiserver and not from watches.
    pub is_fresh: bool,
    /// The workload cluster and its servers were asked, past the watches.
    pub is_confirmed: bool,
    /// What the watches were held against.
    pub kept: Option<Kept>,
}

/// The configuration servers are made with: the spec, with the ranges the cluster was initialised with.
pub fn desired_config(object: &KThreesControlPlane) -> KThreesConfigSpec {
    let mut config = object.spec.config();
    let recorded: BTreeMap<String, String> = object
        .annotations()
        .get(CLUSTER_NETWORK_ANNOTATION)
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default();
    if !recorded.is_empty() {
        let server = config.server_config.get_or_insert_default();
        for (key, field) in [
            ("clusterCidr", &mut server.cluster_cidr),
            ("serviceCidr", &mut server.service_cidr),
            ("clusterDomain", &mut server.cluster_domain),
        ] {
            if field.as_deref().unwrap_or_default().is_empty() {
                *field = recorded.get(key).cloned();
            }
        }
    }
    config
}

/// What is to be recorded of the Cluster's network before the first server exists; empty if there is nothing.
pub fn network_record(cluster: &Cluster) -> BTreeMap<&'static str, String> {
    let network = &cluster.spec.cluster_network;
    [
        ("clusterCidr", network.pods.cidr_blocks.join(",")),
        ("serviceCidr", network.services.cidr_blocks.join(",")),
        ("clusterDomain", network.service_domain.clone()),
    ]
    .into_iter()
    .filter(|(_, value)| !value.is_empty())
    .collect()
}

/// The infrastructure template, in whichever shape it is given.
pub fn template_reference(object: &KThreesControlPlane) -> ObjectReference {
    let machines = object.spec.machines();
    if let Some(reference) = machines.spec.and_then(|spec| spec.infrastructure_ref) {
        return ObjectReference {
            api_group: reference.api_group,
            kind: reference.kind,
            name: reference.name,
        };
    }
    let reference = machines.infrastructure_ref.unwrap_or_default();
    ObjectReference {
        api_group: owner::group_of(reference.api_version.as_deref().unwrap_or_default()).to_owned(),
        kind: reference.kind.unwrap_or_default(),
        name: reference.name.unwrap_or_default(),
    }
}

pub fn is_initialized(object: &KThreesControlPlane, cluster: Option<&Cluster>) -> bool {
    let status = object.status.as_ref();
    status.is_some_and(|status| status.initialized)
        || status
            .and_then(|status| status.initialization.as_ref())
            .is_some_and(|initialization| initialization.control_plane_initialized == Some(true))
        || object.annotations().contains_key(api::INITIALIZED_ANNOTATION)
        || cluster.is_some_and(Cluster::control_plane_initialized)
}

/// What the user asks for.
pub fn desired(object: &KThreesControlPlane) -> Desired {
    let limits = object.spec.remediation_strategy.clone().unwrap_or_default();
    let default = RemediationLimits::default();
    let period = |text: Option<String>, default| text.as_deref().and_then(duration::parse).unwrap_or(default);
    Desired {
        replicas: usize::try_from(object.spec.desired_replicas()).unwrap_or(0),
        version: object.spec.version.clone(),
        embedded_etcd: object.spec.config().has_embedded_etcd(),
        strategy: object.spec.strategy(),
        max_surge: usize::try_from(object.spec.max_surge()).unwrap_or(1).min(1),
        remediation: RemediationLimits {
            max_retry: limits.max_retry,
            retry_period: period(limits.retry_period, default.retry_period),
            min_healthy_period: period(limits.min_healthy_period, default.min_healthy_period),
        },
    }
}

/// Where the objects of the servers are taken from.
#[derive(Clone, Copy)]
pub enum Source<'kept> {
    /// A second server must never be made because a cache is behind: what is done is decided on these.
    Apiserver,
    /// Enough to see that there is nothing to do, as long as they show what was last read.
    Watches(&'kept Kept),
}

/// What is known before the servers are read.
#[derive(Clone, Copy)]
pub struct Known<'known> {
    pub subject: &'known Subject<KThreesControlPlane>,
    /// Of the update extension.
    pub answers: &'known BTreeMap<String, InPlaceAnswer>,
}

/// Nothing, if the watches do not show what was last read.
pub async fn observe(
    source: Source<'_>,
    known: Known<'_>,
    workloads: &Workloads,
    reads: &Reads,
    context: &Context,
) -> Result<Option<Snapshot>, Error> {
    let Known { subject, answers } = known;
    let object = &subject.object;
    let cluster = subject.cluster.as_deref();
    let cluster_name = subject.cluster_name.clone().unwrap_or_default();
    let namespace = object.namespace().unwrap_or_default();
    let now = context.clock.now();
    let selector = format!("{}={cluster_name}", label::CLUSTER_NAME);
    let all = match source {
        Source::Apiserver => {
            Api::<Machine>::namespaced(context.client.clone(), &namespace)
                .list(&ListParams::default().labels(&selector))
                .await
                .map_err(Error::api(format!("listing the machines of {selector}")))?
                .items
        }
        Source::Watches(_) => shown_machines(&namespace, &cluster_name, context),
    };
    // Only one that goes has to wait for them.
    let pools = match object.metadata.deletion_timestamp {
        Some(_) => count_pools(&namespace, &selector, context).await?,
        None => 0,
    };
    let (servers, workers): (Vec<Machine>, Vec<Machine>) =
        all.into_iter().partition(Machine::is_control_plane);
    let config = desired_config(object);
    let template = template_reference(object);
    let mut machines = BTreeMap::new();
    let (mut adoptable, mut foreign) = (Vec::new(), Vec::new());
    for machine in servers {
        let name = machine.metadata.name.clone().unwrap_or_default();
        match owner::controller_of(&machine.metadata) {
            Some(_) if owner::is_controlled_by(&machine.metadata, &object.metadata) => {
                machines.insert(name, machine);
            }
            Some(_) => foreign.push(name),
            None => adoptable.push(Adoptable {
                name,
                version: Some(machine.spec.version.clone()).filter(|version| !version.is_empty()),
                is_k3s: machine
                    .spec
                    .bootstrap
                    .config_ref
                    .as_ref()
                    .is_some_and(|reference| reference.kind == "KThreesConfig"),
            }),
        }
    }
    let (mut configs, mut infra_machines) = (BTreeMap::new(), BTreeMap::new());
    for (name, machine) in &machines {
        let (config, infra_machine) = match source {
            Source::Apiserver => (
                config_of(machine, &namespace, context).await?,
                infra_machine_of(machine, &namespace, reads, context).await,
            ),
            Source::Watches(kept) => (
                shown_config(machine, &namespace, context),
                kept.infra_machine(name),
            ),
        };
        configs.extend(config.map(|config| (name.clone(), config)));
        infra_machines.extend(infra_machine.map(|infra_machine| (name.clone(), infra_machine)));
    }
    if let Source::Watches(kept) = source
        && !kept.is_shown(&machines, &configs)
    {
        return Ok(None);
    }
    let facts: Vec<Server> = machines
        .iter()
        .map(|(name, machine)| {
            let made = Objects {
                config: configs.get(name),
                infra_machine: infra_machines.get(name).map(|(_, infra_machine)| infra_machine),
            };
            server(machine, &made, object, &config, &template, now)
        })
        .collect();
    let initialized = is_initialized(object, cluster);
    let embedded_etcd = config.has_embedded_etcd();
    let secrets = secrets::read(object, &cluster_name, reads, context).await?;
    // What may still be made is not missing.
    let missing_secrets = if initialized {
        secrets.missing(&cluster_name, embedded_etcd)
    } else {
        Vec::new()
    };
    let connection = secrets
        .access()
        .and_then(|access| connect(object, &access, workloads, context));
    let workload = match &connection {
        None => Workload::Unknown,
        Some(connection) => {
            let nodes = connection.watched_nodes(&facts);
            workload_of(connection, nodes, &facts, embedded_etcd, now).await
        }
    };
    let deleting = object.metadata.deletion_timestamp.is_some();
    Ok(Some(Snapshot {
        observed: Observed {
            desired: desired(object),
            cluster: cluster.map_or(
                ClusterFacts {
                    deleting: true,
                    gone: true,
                    ..ClusterFacts::default()
                },
                cluster_facts,
            ),
            deleting,
            initialized,
            missing_secrets,
            remediation_in_progress: record(object.annotations().get(REMEDIATION_IN_PROGRESS_ANNOTATION)),
            servers: facts,
            adoptable,
            foreign,
            workers: workers.len() + pools,
            workload,
            in_place_answers: answers.clone(),
        },
        object: Arc::clone(object),
        cluster: subject.cluster.clone(),
        cluster_name,
        secrets,
        machines,
        configs,
        infra_machines,
        connection,
        config,
        template,
        read_at: now,
        is_fresh: matches!(source, Source::Apiserver),
        is_confirmed: false,
        kept: None,
    }))
}

fn cluster_facts(cluster: &Cluster) -> ClusterFacts {
    ClusterFacts {
        deleting: cluster.metadata.deletion_timestamp.is_some(),
        gone: false,
        infrastructure_ready: cluster.infrastructure_provisioned(),
        endpoint_known: cluster.spec.control_plane_endpoint.is_valid(),
        failure_domains: cluster
            .status
            .failure_domains
            .iter()
            .filter(|domain| domain.control_plane == Some(true))
            .map(|domain| domain.name.clone())
            .collect(),
        topology_version: cluster
            .spec
            .topology
            .as_ref()
            .map(|topology| topology.version.clone())
            .filter(|version| !version.is_empty()),
        upgrade_step: cluster
            .annotations()
            .get("topology.internal.cluster.x-k8s.io/upgrade-step")
            .cloned(),
    }
}

fn shown_machines(namespace: &str, cluster: &str, context: &Context) -> Vec<Machine> {
    let informer: Informer<Machine> = context.informers.get(Scope::of_namespace(&context.settings));
    let of_cluster = informer.index(BY_CLUSTER, |machine| owner::by_cluster(&machine.metadata));
    let shown = of_cluster.get(&owner::key(Some(namespace), cluster));
    shown.into_iter().map(Arc::unwrap_or_clone).collect()
}

fn shown_config(machine: &Machine, namespace: &str, context: &Context) -> Option<KThreesConfig> {
    let reference = machine.spec.bootstrap.config_ref.as_ref()?;
    let informer: Informer<KThreesConfig> = context.informers.get(Scope::of_namespace(&context.settings));
    let shown = informer.get(&ObjectKey::namespaced(namespace, &reference.name))?;
    Some(Arc::unwrap_or_clone(shown))
}

async fn count_pools(namespace: &str, selector: &str, context: &Context) -> Result<usize, Error> {
    let pools = Api::<MachinePool>::namespaced(context.client.clone(), namespace)
        .list(&ListParams::default().labels(selector))
        .await;
    match pools {
        Ok(pools) => Ok(pools.items.len()),
        // The kind is not installed everywhere.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(0),
        Err(error) => Err(Error::api("listing machine pools")(error)),
    }
}

/// Nodes first, to know which members have a machine; then the members with that knowledge.
async fn workload_of(
    connection: &Connection,
    nodes: Result<Vec<Node>, Workload>,
    servers: &[Server],
    embedded_etcd: bool,
    now: Timestamp,
) -> Workload {
    let nodes = match nodes {
        Ok(nodes) => nodes,
        Err(workload) => return workload,
    };
    let members = if embedded_etcd {
        connection.members(servers, &nodes, now).await
    } else {
        None
    };
    Workload::Reachable(View { nodes, members })
}

impl Snapshot {
    /// Reads the workload cluster again, past the watch, and asks its servers. One that was not seen at all stays as it was.
    pub async fn confirmed(mut self, now: Timestamp) -> Self {
        self.is_confirmed = true;
        let Observed {
            servers,
            workload,
            desired,
            ..
        } = &mut self.observed;
        if let (Some(connection), Workload::Reachable(_)) = (&self.connection, &workload) {
            if desired.embedded_etcd {
                connection.probe(servers, self.config.api_port(), now).await;
            }
            let nodes = connection.read_nodes(servers, now).await;
            *workload = workload_of(connection, nodes, servers, desired.embedded_etcd, now).await;
        }
        self
    }
}

fn connect(
    object: &KThreesControlPlane,
    access: &Access<'_>,
    workloads: &Workloads,
    context: &Context,
) -> Option<Arc<Connection>> {
    let token = access.token.data.as_ref().and_then(|data| data.get("value"))?;
    let token = String::from_utf8_lossy(&token.0).trim_end().to_owned();
    match workloads.connect(
        &ObjectKey::of(object),
        access.kubeconfig,
        access.authority,
        &token,
        context,
    ) {
        Ok(connection) => Some(connection),
        Err(error) => {
            tracing::info!(%error, "The workload cluster cannot be connected to");
            None
        }
    }
}

async fn config_of(
    machine: &Machine,
    namespace: &str,
    context: &Context,
) -> Result<Option<KThreesConfig>, Error> {
    let Some(reference) = &machine.spec.bootstrap.config_ref else {
        return Ok(None);
    };
    Api::<KThreesConfig>::namespaced(context.client.clone(), namespace)
        .get_opt(&reference.name)
        .await
        .map_err(Error::api(format!("reading KThreesConfig {}", reference.name)))
}

/// The InfraMachine; one that cannot be read says nothing.
async fn infra_machine_of(
    machine: &Machine,
    namespace: &str,
    reads: &Reads,
    context: &Context,
) -> Option<(ApiResource, DynamicObject)> {
    let reference = &machine.spec.infrastructure_ref;
    let read = async {
        let resource = reads.kind(reference, context).await?;
        let found = Api::<DynamicObject>::namespaced_with(context.client.clone(), namespace, &resource)
            .get_opt(&reference.name)
            .await
            .map_err(Error::api(format!(
                "reading {} {}",
                reference.kind, reference.name
            )))?;
        if found.is_none() {
            reads.doubt_kind(reference);
        }
        Ok::<_, Error>(found.map(|found| (resource, found)))
    };
    match read.await {
        Ok(found) => found,
        Err(error) => {
            tracing::info!(machine = machine.metadata.name, %error, "The InfraMachine of a machine cannot be read");
            None
        }
    }
}

/// What a machine was made from.
struct Objects<'objects> {
    config: Option<&'objects KThreesConfig>,
    infra_machine: Option<&'objects DynamicObject>,
}

fn server(
    machine: &Machine,
    made: &Objects<'_>,
    object: &KThreesControlPlane,
    desired: &KThreesConfigSpec,
    template: &ObjectReference,
    now: Timestamp,
) -> Server {
    let metadata = &machine.metadata;
    let annotations = metadata.annotations.clone().unwrap_or_default();
    let created_at = metadata
        .creation_timestamp
        .as_ref()
        .map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    let cloned = made.infra_machine.and_then(|object| {
        let annotations = object.metadata.annotations.as_ref()?;
        Some((
            annotations.get(annotation::CLONED_FROM_NAME)?.clone(),
            annotations.get(annotation::CLONED_FROM_GROUP_KIND)?.clone(),
        ))
    });
    let group_kind = template::group_kind(&format!("{}/v1", template.api_group), &template.kind);
    let expiry = annotations
        .get(annotation::CERTIFICATES_EXPIRY)
        .and_then(|text| text.parse().ok())
        .or(machine
            .status
            .certificates_expiry_date
            .as_ref()
            .map(|time| time.0))
        .or_else(|| created_at.checked_add(LEAF_LIFETIME).ok());
    let outdated = rollout::differences(
        &Made {
            created_at,
            version: Some(machine.spec.version.as_str()).filter(|version| !version.is_empty()),
            config: made.config.map(|config| &config.spec),
            cloned_from: cloned.as_ref().map(|(name, kind)| (name.as_str(), kind.as_str())),
            certificates_expire_at: expiry,
        },
        &DesiredServer {
            version: &object.spec.version,
            config: desired,
            template: (&template.name, &group_kind),
            rollout_after: object.spec.effective_rollout_after(),
            certificates_expiry_days: object
                .spec
                .rollout_before
                .as_ref()
                .and_then(|before| before.certificates_expiry_days),
        },
        now,
    );
    let is = |type_: &str, status: &str| {
        machine
            .condition(type_)
            .is_some_and(|found| found.status == status)
    };
    let legacy = annotations
        .get(LEGACY_PRE_TERMINATE_HOOK)
        .is_some_and(|value| value == LEGACY_HOOK_VALUE);
    let others = marks::other_pre_terminate_hooks(metadata, PRE_TERMINATE_HOOK)
        .into_iter()
        .any(|hook| !(legacy && hook == LEGACY_PRE_TERMINATE_HOOK));
    Server {
        name: metadata.name.clone().unwrap_or_default(),
        created_at,
        deleted_at: metadata.deletion_timestamp.as_ref().map(|time| time.0),
        version: Some(machine.spec.version.clone()).filter(|version| !version.is_empty()),
        node: machine.node_name().map(ToOwned::to_owned),
        failure_domain: Some(machine.spec.failure_domain.clone()).filter(|domain| !domain.is_empty()),
        ready: is(condition::READY, "True"),
        available: is(condition::AVAILABLE, "True"),
        health_check: HealthCheck {
            failed: is(condition::HEALTH_CHECK_SUCCEEDED, "False"),
            ours_to_remediate: is(condition::OWNER_REMEDIATED, "False"),
        },
        remediate_requested: machine.is_marked_for_remediation(),
        delete_requested: machine.is_marked_for_deletion(),
        hooks: Hooks {
            ours: annotations.contains_key(PRE_TERMINATE_HOOK),
            legacy,
            others,
        },
        waiting_for_hook: machine.condition(condition::DELETING).is_some_and(|deleting| {
            deleting.status == "True" && deleting.reason == "WaitingForPreTerminateHook"
        }),
        in_place: if in_place::is_half_triggered(metadata) {
            InPlace::HalfTriggered
        } else if in_place::is_update_in_progress(metadata) {
            InPlace::Updating
        } else {
            InPlace::No
        },
        remediation_for: record(annotations.get(REMEDIATION_FOR_ANNOTATION)),
        outdated,
        addresses: machine
            .status
            .addresses
            .iter()
            .filter(|address| matches!(address.type_.as_str(), "InternalIP" | "ExternalIP"))
            .map(|address| address.address.clone())
            .collect(),
        has_bootstrap_data: machine.spec.bootstrap.data_secret_name.is_some(),
        removal_asked: annotations.contains_key(MEMBER_REMOVAL_ANNOTATION),
        probe: Probe::NotTried,
    }
}

fn record(text: Option<&String>) -> Option<RemediationRecord> {
    serde_json::from_str(text?).ok()
}

impl Snapshot {
    /// Labels of everything that belongs to a server.
    pub fn server_labels(&self) -> BTreeMap<String, String> {
        let metadata = self.object.spec.machines().metadata;
        let mut labels = metadata.and_then(|metadata| metadata.labels).unwrap_or_default();
        labels.insert(label::CLUSTER_NAME.into(), self.cluster_name.clone());
        labels.insert(label::CONTROL_PLANE.into(), String::new());
        // cluster-api-k3s leaves the value empty; a value would be a difference on every machine it made.
        labels.insert(label::CONTROL_PLANE_NAME.into(), String::new());
        labels
    }

    /// Annotations of everything that belongs to a server.
    pub fn server_annotations(&self) -> BTreeMap<String, String> {
        let metadata = self.object.spec.machines().metadata;
        metadata
            .and_then(|metadata| metadata.annotations)
            .unwrap_or_default()
    }
}
