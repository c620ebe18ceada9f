//! EdgeMachineTemplate: says what a node of it will have, for scaling from zero. It does nothing else.

use std::{collections::BTreeMap, convert::Infallible};

use jiff::Timestamp;
use kube::ResourceExt;
use slipway_capi::{
    condition::Condition,
    frame::{Frame, Kind, Membership, Plan, ProgressOf, Subject},
};
use slipway_runtime::{Context, Controller, Informer, ObjectKey, Outcome, Scope, controller::Registration};

use super::{
    api::{EdgeMachineTemplate, EdgeMachineTemplateStatus},
    capacity, observe,
};
use crate::{error::Error, host::api::EdgeHost};

struct EdgeMachineTemplates;

pub fn registration() -> Registration {
    Controller::new("edgemachinetemplate", Frame::new(EdgeMachineTemplates))
        .watches::<EdgeHost>(|host, context| {
            let templates: Informer<EdgeMachineTemplate> =
                context.informers.get(Scope::of_namespace(&context.settings));
            let namespace = host.namespace().unwrap_or_default();
            let templates = templates
                .index("namespace", |template| template.namespace().into_iter().collect())
                .get(&namespace);
            templates.iter().map(|one| ObjectKey::of(one.as_ref())).collect()
        })
        .into_registration()
}

impl Kind for EdgeMachineTemplates {
    type Object = EdgeMachineTemplate;
    type Observed = EdgeMachineTemplateStatus;
    type Action = Infallible;
    type Error = Error;

    fn conditions(_: &mut EdgeMachineTemplateStatus) -> Option<&mut Vec<Condition>> {
        None
    }

    /// Hosts are there before any Cluster is.
    async fn membership(&self, _: &EdgeMachineTemplate, _: &Context) -> Result<Membership, Error> {
        Ok(Membership::Standalone)
    }

    async fn observe(
        &self,
        subject: &Subject<EdgeMachineTemplate>,
        context: &Context,
    ) -> Result<EdgeMachineTemplateStatus, Error> {
        let template = subject.object.as_ref();
        let hosts: Informer<EdgeHost> = context.informers.get(Scope::of_namespace(&context.settings));
        let namespace = template.namespace().unwrap_or_default();
        let hosts = hosts
            .index("namespace", |host| host.namespace().into_iter().collect())
            .get(&namespace);
        let none = BTreeMap::new();
        let hosts: Vec<_> = hosts.iter().map(|host| observe::candidate(host, &none)).collect();
        Ok(capacity::of_template(&template.spec.template.spec, &hosts))
    }

    fn plan(_: &EdgeMachineTemplateStatus, _: Timestamp) -> Plan<Infallible> {
        Plan::new()
    }

    async fn act(
        &self,
        action: &Infallible,
        _: &Subject<EdgeMachineTemplate>,
        _: &mut EdgeMachineTemplateStatus,
        _: &Context,
    ) -> Result<Outcome, Error> {
        match *action {}
    }

    fn status(
        found: &EdgeMachineTemplateStatus,
        _: &ProgressOf<Self>,
        _: Timestamp,
    ) -> EdgeMachineTemplateStatus {
        found.clone()
    }
}
