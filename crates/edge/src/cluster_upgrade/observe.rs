//! Every read of a ClusterUpgrade: its Cluster, control plane and MachineDeployments, what their machines run, and the upgrades of hosts
//! on the way. Control planes are of any kind, so theirs is read from the apiserver.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject},
    core::GroupVersionKind,
};
use serde_json::Value;
use slipway_capi::{
    condition,
    frame::Subject,
    in_place,
    names::{self, condition as condition_type, label},
    owner, paused, reference,
    view::{Cluster, Machine, MachineDeployment, ObjectReference},
};
use slipway_runtime::{Context, Informer, ObjectKey, Scope, informer};

use super::{
    api::{ClusterUpgrade, ClusterUpgradeSpec},
    facts::{Asked, ClusterFacts, Facts, HostUpgradeFacts, MachineFacts, MachinesFacts},
};
use crate::{
    api::{EdgeMachine, EdgeMachineTemplate, INFRASTRUCTURE_GROUP, Image, NodeUpgrade, UpgradePolicy},
    error::Error,
    node_upgrade::{api::Phase, fleet::NOT_HEALTHY},
};

/// The variable of a topology that holds the image, where the ClusterUpgrade names no other.
const IMAGE_VARIABLE: &str = "nodeImage";

#[derive(Clone, Debug)]
pub struct Observed {
    pub upgrade: Arc<ClusterUpgrade>,
    pub facts: Facts,
    /// The Cluster, where it has a topology.
    pub topology: Option<DynamicObject>,
    pub control_plane: Option<(DynamicObject, ApiResource)>,
    pub deployments: Vec<Arc<MachineDeployment>>,
    pub templates: BTreeMap<String, Arc<EdgeMachineTemplate>>,
}

pub fn image_variable(spec: &ClusterUpgradeSpec) -> &str {
    spec.topology_image_variable.as_deref().unwrap_or(IMAGE_VARIABLE)
}

pub fn of_core(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(names::GROUP, names::VERSION, kind))
}

/// Where a control plane names the template of its machines: in the shape of the contract, or in the older one.
pub const TEMPLATE_REFERENCES: [&str; 2] = [
    "/spec/machineTemplate/spec/infrastructureRef",
    "/spec/machineTemplate/infrastructureRef",
];

fn informer<K: informer::Object<DynamicType = ()>>(context: &Context) -> Informer<K> {
    context.informers.get(Scope::of_namespace(&context.settings))
}

pub async fn observe(subject: &Subject<ClusterUpgrade>, context: &Context) -> Result<Observed, Error> {
    let upgrade = Arc::clone(&subject.object);
    let (spec, key) = (&upgrade.spec, subject.key());
    let namespace = upgrade.namespace().unwrap_or_default();
    let policies = informer::<UpgradePolicy>(context);
    let policy = spec
        .policy_name
        .as_ref()
        .map(|name| policies.get(&key.sibling(name)));
    let facts = Facts {
        spec: spec.clone(),
        is_policy_missing: matches!(policy, Some(None)),
        policy: policy
            .flatten()
            .map(|policy| policy.spec.clone())
            .unwrap_or_default(),
        ..Facts::default()
    };
    let templates = informer::<EdgeMachineTemplate>(context)
        .index("namespace", |template| template.namespace().into_iter().collect())
        .get(&namespace);
    let mut observed = Observed {
        upgrade: Arc::clone(&upgrade),
        facts,
        topology: None,
        control_plane: None,
        deployments: Vec::new(),
        templates: templates.into_iter().map(|one| (one.name_any(), one)).collect(),
    };
    if let Some(cluster) = informer::<Cluster>(context).get(&key.sibling(&spec.cluster_name)) {
        of_cluster(&mut observed, &cluster, context).await?;
    }
    Ok(observed)
}

fn upgrade_facts(upgrade: &NodeUpgrade) -> HostUpgradeFacts {
    let status = upgrade.status.as_ref();
    HostUpgradeFacts {
        machine: upgrade.spec.machine_name.clone(),
        digest: upgrade.spec.image.digest.clone(),
        policy_name: upgrade.spec.policy_name.clone(),
        created: upgrade.metadata.creation_timestamp.as_ref().map(|time| time.0),
        went_back: status.is_some_and(|status| status.phase == Phase::RolledBack),
        is_deleting: upgrade.metadata.deletion_timestamp.is_some(),
        waits_for_health: status
            .filter(|status| {
                let ready = condition::find(&status.conditions, condition_type::READY);
                ready.is_some_and(|ready| ready.reason == NOT_HEALTHY)
            })
            .map(|status| status.message.clone()),
    }
}

/// The images of EdgeMachines, by their names.
type Images = BTreeMap<String, Option<Image>>;

async fn of_cluster(observed: &mut Observed, cluster: &Cluster, context: &Context) -> Result<(), Error> {
    let key = ObjectKey::of(cluster);
    let machines = informer::<Machine>(context)
        .index("cluster", |machine| owner::by_cluster(&machine.metadata))
        .get(&owner::key(key.namespace(), key.name()));
    let mut deployments = informer::<MachineDeployment>(context)
        .index("cluster", |deployment| {
            vec![owner::key(
                deployment.metadata.namespace.as_deref(),
                &deployment.spec.cluster_name,
            )]
        })
        .get(&owner::key(key.namespace(), key.name()));
    let upgrades = informer::<NodeUpgrade>(context)
        .index("namespace", |upgrade| upgrade.namespace().into_iter().collect())
        .get(key.namespace().unwrap_or_default());
    let names: BTreeSet<String> = machines.iter().map(|machine| machine.name_any()).collect();
    observed.facts.upgrades = upgrades
        .iter()
        .filter(|upgrade| names.contains(&upgrade.spec.machine_name))
        .map(|upgrade| upgrade_facts(upgrade))
        .collect();
    let images: Images = informer::<EdgeMachine>(context)
        .index("namespace", |machine| machine.namespace().into_iter().collect())
        .get(key.namespace().unwrap_or_default())
        .iter()
        .map(|machine| (machine.name_any(), machine.spec.image.clone()))
        .collect();
    // Machines of other infrastructure have no image of ours.
    deployments.retain(|deployment| is_edge(&deployment.spec.template.spec.infrastructure_ref));
    deployments.sort_by_key(|deployment| deployment.metadata.name.clone());
    let namespace = key.namespace().unwrap_or_default();
    if let Some(control_plane) = &cluster.spec.control_plane_ref {
        observed.control_plane = control_plane_of(namespace, control_plane, context).await?;
    }
    if cluster.spec.topology.is_some() {
        let clusters: Api<DynamicObject> =
            Api::namespaced_with(context.client.clone(), namespace, &of_core("Cluster"));
        let read = clusters.get_opt(key.name()).await;
        observed.topology = read.map_err(Error::api(format!("reading Cluster {}", key.name())))?;
    }
    let facts = ClusterFacts {
        topology: observed
            .topology
            .as_ref()
            .map(|cluster| topology_of(&cluster.data, image_variable(&observed.facts.spec))),
        control_plane: observed.control_plane.as_ref().map_or_else(
            || MachinesFacts {
                name: "the control plane".to_owned(),
                ..MachinesFacts::default()
            },
            |(object, _)| control_plane_facts(object, &observed.templates, &machines, &images),
        ),
        deployments: deployments
            .iter()
            .map(|deployment| deployment_facts(deployment, &observed.templates, &machines, &images))
            .collect(),
        is_paused: paused::paused(Some(cluster), &observed.upgrade.metadata).is_paused(),
    };
    observed.deployments = deployments;
    observed.facts.cluster = Some(facts);
    Ok(())
}

async fn control_plane_of(
    namespace: &str,
    named: &ObjectReference,
    context: &Context,
) -> Result<Option<(DynamicObject, ApiResource)>, Error> {
    let doing = || format!("finding the control plane {} {}", named.kind, named.name);
    let (resource, _) = reference::resolve(&context.client, named)
        .await
        .map_err(Error::cluster_api(doing()))?;
    let api: Api<DynamicObject> = Api::namespaced_with(context.client.clone(), namespace, &resource);
    let found = api.get_opt(&named.name).await.map_err(Error::api(doing()))?;
    Ok(found.map(|object| (object, resource)))
}

fn is_edge(reference: &ObjectReference) -> bool {
    reference.kind == "EdgeMachineTemplate" && reference.api_group == INFRASTRUCTURE_GROUP
}

fn image_of(templates: &BTreeMap<String, Arc<EdgeMachineTemplate>>, name: &str) -> Option<Image> {
    templates.get(name)?.spec.template.spec.image.clone()
}

pub fn topology_of(cluster: &Value, variable: &str) -> Asked {
    let topology = &cluster["spec"]["topology"];
    let variables = topology["variables"].as_array().into_iter().flatten();
    let image = variables
        .filter(|one| one["name"] == variable)
        .find_map(|one| serde_json::from_value(one["value"].clone()).ok());
    Asked {
        version: topology["version"].as_str().unwrap_or_default().to_owned(),
        image,
    }
}

/// The template that a control plane names.
pub fn template_of(control_plane: &Value) -> Option<(&'static str, &str)> {
    TEMPLATE_REFERENCES.iter().find_map(|pointer| {
        let reference = control_plane.pointer(pointer)?;
        let is_edge = reference["kind"] == "EdgeMachineTemplate";
        Some((*pointer, reference["name"].as_str().filter(|_| is_edge)?))
    })
}

fn control_plane_facts(
    object: &DynamicObject,
    templates: &BTreeMap<String, Arc<EdgeMachineTemplate>>,
    machines: &[Arc<Machine>],
    images: &Images,
) -> MachinesFacts {
    let (spec, status) = (&object.data["spec"], &object.data["status"]);
    let image = template_of(&object.data).and_then(|(_, name)| image_of(templates, name));
    let asked = Asked {
        version: spec["version"].as_str().unwrap_or_default().to_owned(),
        image,
    };
    let number = |value: &Value| value.as_i64().and_then(|number| i32::try_from(number).ok());
    let machines = machines.iter().filter(|machine| machine.is_control_plane());
    MachinesFacts {
        name: "the control plane".to_owned(),
        asked,
        replicas: number(&spec["replicas"]).unwrap_or(1),
        counted: number(&status["upToDateReplicas"]).unwrap_or(0),
        is_current: status["observedGeneration"].as_i64() >= object.metadata.generation,
        available: number(&status["availableReplicas"]).unwrap_or(0),
        machines: machines.map(|machine| machine_facts(machine, images)).collect(),
    }
}

fn deployment_facts(
    deployment: &MachineDeployment,
    templates: &BTreeMap<String, Arc<EdgeMachineTemplate>>,
    machines: &[Arc<Machine>],
    images: &Images,
) -> MachinesFacts {
    let (template, status) = (&deployment.spec.template.spec, &deployment.status);
    let name = deployment.metadata.name.clone().unwrap_or_default();
    let asked = Asked {
        version: template.version.clone(),
        image: image_of(templates, &template.infrastructure_ref.name),
    };
    let machines = machines.iter().filter(|machine| {
        let labels = machine.metadata.labels.as_ref();
        labels.and_then(|labels| labels.get(label::MACHINE_DEPLOYMENT_NAME)) == Some(&name)
    });
    MachinesFacts {
        asked,
        replicas: deployment.spec.replicas.unwrap_or(1),
        counted: status.up_to_date_replicas.unwrap_or(0),
        is_current: Some(status.observed_generation) >= deployment.metadata.generation,
        available: status.available_replicas.unwrap_or(0),
        machines: machines.map(|machine| machine_facts(machine, images)).collect(),
        name: name.clone(),
    }
}

fn machine_facts(machine: &Machine, images: &Images) -> MachineFacts {
    let image = images.get(&machine.spec.infrastructure_ref.name);
    MachineFacts {
        version: machine.status.node_info.kubelet_version.clone(),
        image: image.cloned().flatten(),
        is_updating: in_place::is_update_in_progress(&machine.metadata),
    }
}
