//! Every read of the control plane controller; what cannot be read becomes a fact.

mod desired;
mod objects;
mod server;

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams},
};
use slipway_capi::{
    frame::Subject,
    names::label,
    owner,
    view::{Cluster, Machine, ObjectReference},
};
use slipway_runtime::{ObjectKey, controller::Context};

pub use self::desired::{desired, desired_config, is_initialized, network_record, template_reference};
use self::{
    desired::cluster_facts,
    objects::{config_of, count_pools, infra_machine_of, shown_config, shown_machines},
    server::{Objects, record, server},
};
use super::{
    last_read::LastRead,
    observed::{Adoptable, ClusterFacts, InPlaceAnswer, Node, Observed, Question, Server, View, Workload},
    secrets::{self, Access, Secrets},
    workload::{Connection, Workloads},
};
use crate::{
    api::{KThreesConfig, KThreesConfigSpec, KThreesControlPlane, REMEDIATION_IN_PROGRESS_ANNOTATION},
    error::Error,
    reads::Reads,
};

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
    pub last_read: Option<LastRead>,
    /// The Machine that this reconcile made.
    pub created: Option<String>,
}

/// Where the objects of the servers are taken from.
#[derive(Clone, Copy)]
pub enum Source<'read> {
    /// A second server must never be made because a cache is behind: what is done is decided on these.
    Apiserver,
    /// Enough to see that there is nothing to do, as long as they show what was last read.
    Watches(&'read LastRead),
}

/// What is known before the servers are read.
#[derive(Clone, Copy)]
pub struct Known<'known> {
    pub subject: &'known Subject<KThreesControlPlane>,
    /// Of the update extension.
    pub answers: &'known BTreeMap<String, InPlaceAnswer>,
    pub question: Option<&'known Question>,
}

/// The servers of a cluster, by whose they are.
struct Owned {
    /// Ours, by name.
    machines: BTreeMap<String, Machine>,
    adoptable: Vec<Adoptable>,
    foreign: Vec<String>,
}

impl Owned {
    fn of(servers: Vec<Machine>, object: &KThreesControlPlane) -> Self {
        let mut owned = Self {
            machines: BTreeMap::new(),
            adoptable: Vec::new(),
            foreign: Vec::new(),
        };
        for machine in servers {
            let name = machine.metadata.name.clone().unwrap_or_default();
            match owner::controller_of(&machine.metadata) {
                Some(_) if owner::is_controlled_by(&machine.metadata, &object.metadata) => {
                    owned.machines.insert(name, machine);
                }
                Some(_) => owned.foreign.push(name),
                None => owned.adoptable.push(Adoptable {
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
        owned
    }
}

/// The KThreesConfigs and InfraMachines of the machines, by the machines' names.
struct Parts {
    configs: BTreeMap<String, KThreesConfig>,
    infra_machines: BTreeMap<String, (ApiResource, DynamicObject)>,
}

impl Parts {
    async fn of(
        machines: &BTreeMap<String, Machine>,
        source: Source<'_>,
        namespace: &str,
        reads: &Reads,
        context: &Context,
    ) -> Result<Self, Error> {
        let (mut configs, mut infra_machines) = (BTreeMap::new(), BTreeMap::new());
        for (name, machine) in machines {
            let (config, infra_machine) = match source {
                Source::Apiserver => (
                    config_of(machine, namespace, context).await?,
                    infra_machine_of(machine, namespace, reads, context).await,
                ),
                Source::Watches(last_read) => (
                    shown_config(machine, namespace, context),
                    last_read.infra_machine(name),
                ),
            };
            configs.extend(config.map(|config| (name.clone(), config)));
            infra_machines.extend(infra_machine.map(|infra_machine| (name.clone(), infra_machine)));
        }
        Ok(Self {
            configs,
            infra_machines,
        })
    }
}

async fn listed_machines(namespace: &str, selector: &str, context: &Context) -> Result<Vec<Machine>, Error> {
    let listed = Api::<Machine>::namespaced(context.client.clone(), namespace)
        .list(&ListParams::default().labels(selector))
        .await;
    let listed = listed.map_err(Error::api(format!("listing the machines of {selector}")))?;
    Ok(listed.items)
}

/// Nothing, if the watches do not show what was last read.
pub async fn observe(
    source: Source<'_>,
    known: Known<'_>,
    workloads: &Workloads,
    reads: &Reads,
    context: &Context,
) -> Result<Option<Snapshot>, Error> {
    let Known {
        subject,
        answers,
        question,
    } = known;
    let object = &subject.object;
    let cluster = subject.cluster.as_deref();
    let cluster_name = subject.cluster_name.clone().unwrap_or_default();
    let namespace = object.namespace().unwrap_or_default();
    let now = context.clock.now();
    let selector = format!("{}={cluster_name}", label::CLUSTER_NAME);
    let all = match source {
        Source::Apiserver => listed_machines(&namespace, &selector, context).await?,
        Source::Watches(_) => shown_machines(&namespace, &cluster_name, context),
    };
    let deleting = object.metadata.deletion_timestamp.is_some();
    // Only one that goes has to wait for them.
    let pools = if deleting {
        count_pools(&namespace, &selector, context).await?
    } else {
        0
    };
    let (servers, workers): (Vec<Machine>, Vec<Machine>) =
        all.into_iter().partition(Machine::is_control_plane);
    let config = desired_config(object);
    let template = template_reference(object);
    let Owned {
        machines,
        adoptable,
        foreign,
    } = Owned::of(servers, object);
    let Parts {
        configs,
        infra_machines,
    } = Parts::of(&machines, source, &namespace, reads, context).await?;
    if let Source::Watches(last_read) = source
        && !last_read.is_shown(&machines, &configs)
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
    let missing_secrets = initialized.then(|| secrets.missing(&cluster_name, embedded_etcd));
    let connection = secrets
        .access()
        .and_then(|access| connect(object, &access, workloads, context));
    let workload = watched_workload(connection.as_deref(), &facts, embedded_etcd, now).await;
    Ok(Some(Snapshot {
        observed: Observed {
            desired: desired(object),
            cluster: cluster.map_or_else(ClusterFacts::of_one_that_is_gone, cluster_facts),
            deleting,
            initialized,
            missing_secrets: missing_secrets.unwrap_or_default(),
            remediation_in_progress: record(object.annotations().get(REMEDIATION_IN_PROGRESS_ANNOTATION)),
            servers: facts,
            adoptable,
            foreign,
            workers: workers.len() + pools,
            workload,
            in_place_answers: answers.clone(),
            question: question.cloned(),
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
        last_read: None,
        created: None,
    }))
}

/// The workload cluster as its watches show it.
async fn watched_workload(
    connection: Option<&Connection>,
    servers: &[Server],
    embedded_etcd: bool,
    now: Timestamp,
) -> Workload {
    let Some(connection) = connection else {
        return Workload::Unknown;
    };
    let nodes = connection.watched_nodes(servers);
    workload_of(connection, nodes, servers, embedded_etcd, now).await
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
        access.ca,
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
