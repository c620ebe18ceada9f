//! CapacityBuffer: how many pods room is kept for, and whether there is that room. Nothing is made for it here: the provisioner plans
//! for its pods as for those that are there, after them, and notes what has become of them.

pub mod read;
pub mod resolve;

use std::{convert::Infallible, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::{Deployment, ReplicaSet, StatefulSet},
        core::v1::PodTemplate,
    },
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::ResourceExt;
use slipway_capi::{
    condition::{self, Report, Status},
    frame::{Frame, Kind, Membership, Plan, ProgressOf, StatusOf, Subject},
};
use slipway_runtime::{Context, Controller, Informer, ObjectKey, Outcome, Scope, controller::Registration};

use self::{
    read::Buffers,
    resolve::{Problem, Resolved, resolve},
};
use crate::{
    Error,
    api::{CapacityBuffer, CapacityBufferStatus, names::condition as names},
    memory::Memory,
    options::Options,
    room::Room,
};

/// What a status is made from.
#[derive(Clone, Debug)]
pub struct Observed {
    pub buffer: CapacityBuffer,
    pub resolved: Result<Resolved, Problem>,
    /// What has become of its pods when it was last planned for them.
    pub room: Option<Room>,
}

#[derive(Debug)]
struct CapacityBuffers {
    memory: Arc<Memory>,
}

impl Kind for CapacityBuffers {
    type Object = CapacityBuffer;
    type Observed = Observed;
    type Action = Infallible;
    type Error = Error;

    /// The kind is not Cluster API's and knows no pause.
    fn conditions(_: &mut StatusOf<Self>) -> Option<&mut Vec<Condition>> {
        None
    }

    async fn membership(&self, _: &CapacityBuffer, context: &Context) -> Result<Membership, Error> {
        Ok(if Options::of(&context.settings).is_dry_run {
            Membership::LeftAlone("nothing is written in a dry run")
        } else {
            Membership::Standalone
        })
    }

    async fn observe(&self, subject: &Subject<CapacityBuffer>, context: &Context) -> Result<Observed, Error> {
        let buffer = subject.object.as_ref();
        let buffers = Buffers::start(context);
        Ok(Observed {
            resolved: resolve(buffer, &buffers.shape(buffer)),
            room: self.memory.room(&subject.key()),
            buffer: buffer.clone(),
        })
    }

    fn plan(_: &Observed, _: Timestamp) -> Plan<Infallible> {
        Plan::new()
    }

    async fn act(
        &self,
        action: &Infallible,
        _: &Subject<CapacityBuffer>,
        _: &mut Observed,
        _: &Context,
    ) -> Result<Outcome, Error> {
        match *action {}
    }

    fn status(observed: &Observed, _: &ProgressOf<Self>, now: Timestamp) -> StatusOf<Self> {
        status(observed, now)
    }
}

pub fn status(observed: &Observed, now: Timestamp) -> CapacityBufferStatus {
    let spec = &observed.buffer.spec;
    let mut status = observed.buffer.status.clone().unwrap_or_default();
    status
        .provisioning_strategy
        .clone_from(&spec.provisioning_strategy);
    let resolved = observed.resolved.as_ref().ok();
    status.replicas = resolved.map(|resolved| resolved.replicas);
    status.pod_template_ref = resolved.and(spec.pod_template_ref.clone());
    status.pod_template_generation = resolved.and_then(|resolved| resolved.template_generation);
    let ready = match &observed.resolved {
        Ok(resolved) => Report::new(
            names::READY_FOR_PROVISIONING,
            Status::True,
            "Resolved",
            resolved.note.clone(),
        ),
        Err(problem) => Report::new(
            names::READY_FOR_PROVISIONING,
            Status::False,
            problem.reason,
            problem.message.clone(),
        ),
    };
    let provisioning = provisioning(observed);
    for report in [Some(ready), provisioning].into_iter().flatten() {
        let generation = observed.buffer.metadata.generation;
        condition::set(&mut status.conditions, &report, generation, now);
    }
    status
}

/// None as long as nobody has planned for what it asks now.
fn provisioning(observed: &Observed) -> Option<Report> {
    let not = |reason: &'static str, message: String| {
        Some(Report::new(names::PROVISIONING, Status::False, reason, message))
    };
    let resolved = match &observed.resolved {
        Err(problem) => return not("NotReadyForProvisioning", problem.message.clone()),
        Ok(resolved) if resolved.replicas == 0 => return not("BufferEmpty", resolved.note.clone()),
        Ok(resolved) => resolved,
    };
    let wanted = usize::try_from(resolved.replicas).unwrap_or(0);
    let room = observed.room.as_ref().filter(|room| room.wanted() == wanted)?;
    if room.stands == wanted {
        let message = format!("there is room for all {wanted} pods");
        return Some(Report::new(
            names::PROVISIONING,
            Status::True,
            "FitsExistingCapacity",
            message,
        ));
    }
    not("RequiresNewCapacity", room.to_string())
}

/// The buffers that refer to an object by its kind and name.
fn referring(context: &Context, namespace: Option<String>, kind: &str, name: &str) -> Vec<ObjectKey> {
    let buffers: Informer<CapacityBuffer> = context.informers.get(Scope::of_work(&context.settings));
    let refers = |buffer: &Arc<CapacityBuffer>| {
        let spec = &buffer.spec;
        let by_template = spec.pod_template_ref.as_ref().is_some_and(|one| one.name == name);
        let by_workload = spec
            .scalable_ref
            .as_ref()
            .is_some_and(|one| one.kind == kind && one.name == name);
        buffer.namespace() == namespace
            && if kind == "PodTemplate" {
                by_template
            } else {
                by_workload
            }
    };
    let found = buffers.list().into_iter().filter(refers);
    found.map(|buffer| ObjectKey::of(buffer.as_ref())).collect()
}

pub fn registration(memory: &Arc<Memory>) -> Registration {
    let kind = CapacityBuffers {
        memory: Arc::clone(memory),
    };
    let controller = Controller::new("capacitybuffer", Frame::new(kind))
        .min_interval(Duration::from_secs(1))
        .triggered_by(&memory.planned_buffers)
        .watches::<PodTemplate>(|found, context| {
            referring(context, found.namespace(), "PodTemplate", &found.name_any())
        })
        .watches::<Deployment>(|found, context| {
            referring(context, found.namespace(), "Deployment", &found.name_any())
        })
        .watches::<StatefulSet>(|found, context| {
            referring(context, found.namespace(), "StatefulSet", &found.name_any())
        })
        .watches::<ReplicaSet>(|found, context| {
            referring(context, found.namespace(), "ReplicaSet", &found.name_any())
        })
        .into_registration();
    Options::only_with(controller, |gates| gates.capacity_buffer)
}
