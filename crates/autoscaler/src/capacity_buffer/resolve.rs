//! What a buffer asks for: what its pods are like, and how many there are. Pure.

use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet, StatefulSet},
    core::v1::{PodTemplate, PodTemplateSpec},
};
use kube::ResourceExt;
use serde_json::{Value, json};
use slipway_packing::{
    labels,
    model::{self, ResourceList},
    resources::pod_requests,
};

use crate::api::{ACTIVE_CAPACITY, CapacityBuffer};

/// No buffer is planned for with more pods than these, however many it asks for.
pub const MOST: i32 = 5_000;
/// Lower than every pod that is there.
const PRIORITY: i32 = i32::MIN;

/// What a buffer refers to, if it is there.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Shape {
    #[default]
    Missing,
    Template {
        template: PodTemplateSpec,
        generation: Option<i64>,
    },
    Workload {
        template: PodTemplateSpec,
        replicas: i32,
    },
}

impl Shape {
    pub fn of_template(found: &PodTemplate) -> Self {
        Shape::Template {
            template: found.template.clone().unwrap_or_default(),
            generation: found.metadata.generation,
        }
    }

    pub fn of_deployment(found: &Deployment) -> Self {
        let spec = found.spec.clone().unwrap_or_default();
        Shape::Workload {
            template: spec.template,
            replicas: spec.replicas.unwrap_or(1),
        }
    }

    pub fn of_stateful_set(found: &StatefulSet) -> Self {
        let spec = found.spec.clone().unwrap_or_default();
        Shape::Workload {
            template: spec.template,
            replicas: spec.replicas.unwrap_or(1),
        }
    }

    pub fn of_replica_set(found: &ReplicaSet) -> Self {
        let spec = found.spec.clone().unwrap_or_default();
        Shape::Workload {
            template: spec.template.unwrap_or_default(),
            replicas: spec.replicas.unwrap_or(1),
        }
    }
}

/// Why a buffer can be of no use as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub reason: &'static str,
    pub message: String,
}

impl Problem {
    fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Problem {
            reason,
            message: message.into(),
        }
    }
}

/// What it asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// What each of its pods is like.
    pub example: model::Pod,
    pub replicas: i32,
    /// Why there are no more of them, where a user may wonder.
    pub note: String,
    /// Of the PodTemplate, if it is one.
    pub template_generation: Option<i64>,
}

/// Kinds of workloads that a buffer may refer to.
pub const WORKLOADS: [&str; 3] = ["Deployment", "StatefulSet", "ReplicaSet"];

/// What a buffer asks for, or what is wrong with it.
pub fn resolve(buffer: &CapacityBuffer, shape: &Shape) -> Result<Resolved, Problem> {
    let spec = &buffer.spec;
    let strategy = spec.provisioning_strategy.as_deref().unwrap_or_default();
    if !["", ACTIVE_CAPACITY].contains(&strategy) {
        return Err(Problem::new(
            "UnsupportedProvisioningStrategy",
            format!(
                "provisioningStrategy {strategy} is not served: leave it out, or write {ACTIVE_CAPACITY}"
            ),
        ));
    }
    if let Some(workload) = &spec.scalable_ref {
        let group = workload.api_group.as_deref().unwrap_or_default();
        if !["", "apps"].contains(&group) || !WORKLOADS.contains(&workload.kind.as_str()) {
            return Err(Problem::new(
                "ResolutionFailed",
                format!(
                    "scalableRef names a {} of group {group:?}: it can be a {} of apps",
                    workload.kind,
                    WORKLOADS.join(", ")
                ),
            ));
        }
    }
    let (template, template_generation, of_workload) =
        match (shape, &spec.pod_template_ref, &spec.scalable_ref) {
            (_, None, None) => {
                return Err(Problem::new(
                    "ResolutionFailed",
                    "neither podTemplateRef nor scalableRef says what its pods are like",
                ));
            }
            (Shape::Template { template, generation }, Some(_), _) => (template, *generation, None),
            (Shape::Workload { template, replicas }, None, Some(_)) => (template, None, Some(*replicas)),
            (_, Some(template), _) => {
                return Err(Problem::new(
                    "PodTemplateNotFound",
                    format!("there is no PodTemplate {} in its namespace", template.name),
                ));
            }
            (_, None, Some(workload)) => {
                return Err(Problem::new(
                    "ScalableRefNotFound",
                    format!("there is no {} {} in its namespace", workload.kind, workload.name),
                ));
            }
        };
    let example = example(buffer, template)?;
    let (replicas, note) = replicas(buffer, of_workload, &pod_requests(&example));
    Ok(Resolved {
        example,
        replicas,
        note,
        template_generation,
    })
}

/// How many pods, and why no more, where a user may wonder. As the API has it: the larger of replicas and percentage, and no more than
/// limits have room for; limits alone say it where neither is given.
fn replicas(buffer: &CapacityBuffer, of_workload: Option<i32>, requests: &ResourceList) -> (i32, String) {
    let spec = &buffer.spec;
    let share = spec
        .percentage
        .zip(of_workload)
        .map(|(percentage, replicas)| (i64::from(replicas) * i64::from(percentage) + 99) / 100);
    let wanted = spec.replicas.map(i64::from).into_iter().chain(share).max();
    let within = spec
        .limits
        .iter()
        .filter_map(|(name, limit)| {
            let each = requests.get(name).filter(|each| !each.is_zero())?;
            Some((limit.milli_value().max(0) / each.milli_value().max(1), name))
        })
        .min();
    let (count, mut note) = match (wanted, within) {
        (Some(wanted), Some((within, name))) if within < wanted => (
            within,
            format!("its limit of {name} has room for {within} of {wanted}"),
        ),
        (Some(wanted), _) => (wanted, String::new()),
        (None, Some((within, _))) => (within, String::new()),
        (None, None) if !spec.limits.is_empty() => (
            0,
            "its pods ask for nothing that its limits name: name what they ask for, or set replicas"
                .to_owned(),
        ),
        (None, None) => (
            0,
            "it says of no number of pods: set replicas, percentage or limits".to_owned(),
        ),
    };
    if count > i64::from(MOST) {
        note = format!("it asks for {count} pods, and no more than {MOST} are planned for");
    }
    let count = i32::try_from(count.min(i64::from(MOST))).unwrap_or(MOST);
    (count, note)
}

/// What a pod of the buffer is like to who plans: without what only a pod that is there can have.
fn example(buffer: &CapacityBuffer, template: &PodTemplateSpec) -> Result<model::Pod, Problem> {
    let metadata = json!({
        "namespace": buffer.namespace(),
        "labels": template.metadata.as_ref().and_then(|metadata| metadata.labels.clone()).unwrap_or_default(),
        "creationTimestamp": buffer.metadata.creation_timestamp,
        "annotations": {
            labels::ROOM: format!("{}/{}", buffer.namespace().unwrap_or_default(), buffer.name_any()),
        },
    });
    let mut pod = virtual_pod(template, metadata).map_err(|why| {
        Problem::new(
            "ResolutionFailed",
            format!("its pods cannot be planned with: {why}"),
        )
    })?;
    pod.spec.priority = Some(PRIORITY);
    Ok(pod)
}

/// A pod of a template that is not there. Its own volumes would have to be, so it is planned without them.
pub fn virtual_pod(template: &PodTemplateSpec, metadata: Value) -> Result<model::Pod, serde_json::Error> {
    let mut spec = serde_json::to_value(template.spec.clone().unwrap_or_default())?;
    if let Some(spec) = spec.as_object_mut() {
        spec.remove("nodeName");
        if let Some(volumes) = spec.get_mut("volumes").and_then(Value::as_array_mut) {
            volumes
                .retain(|volume| volume["persistentVolumeClaim"].is_null() && volume["ephemeral"].is_null());
        }
    }
    let conditions = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
    serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": {"conditions": conditions}}))
}

/// The buffer of a pod that is not there, as it is named in a plan.
pub fn buffer_of(pod: &model::Pod) -> Option<&str> {
    pod.metadata.annotations.get(labels::ROOM).map(String::as_str)
}

/// The pods of a buffer, each with a name and uid that are the same every time. No pod that is there can have such a name.
pub fn pods(buffer: &CapacityBuffer, resolved: &Resolved) -> Vec<model::Pod> {
    let (name, uid) = (buffer.name_any(), buffer.uid().unwrap_or_default());
    (1..=resolved.replicas)
        .map(|number| {
            let mut pod = resolved.example.clone();
            pod.metadata.name = format!("capacity buffer {name} ({number})");
            pod.metadata.uid = format!("{uid}-{number}");
            pod
        })
        .collect()
}
