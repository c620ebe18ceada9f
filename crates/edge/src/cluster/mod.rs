//! EdgeCluster: where the API of a cluster on edge hosts is reached. The endpoint is a load balancer that is there, or an address that the
//! servers hold in turn, which their machines order. Nothing is made, so nothing is left behind.

mod act;
pub mod admit;
pub mod api;
pub mod plan;
pub mod status;

use jiff::Timestamp;
use kube::ResourceExt;
use slipway_capi::{
    annotations,
    condition::Condition,
    frame::{Frame, Kind, Membership, Plan, ProgressOf, Subject},
    view::Cluster,
};
use slipway_runtime::{Context, Controller, Informer, ObjectKey, Outcome, Scope, controller::Registration};

use self::{
    api::{EdgeCluster, EdgeClusterStatus},
    plan::{Action, Observed},
};
use crate::{api::INFRASTRUCTURE_GROUP, error::Error, host::api::EdgeHost};

struct EdgeClusters;

pub fn registration() -> Registration {
    Controller::new("edgecluster", Frame::new(EdgeClusters))
        .watches::<Cluster>(|cluster, _| {
            let infrastructure = cluster.spec.infrastructure_ref.iter();
            infrastructure
                .filter(|reference| {
                    reference.kind == "EdgeCluster" && reference.api_group == INFRASTRUCTURE_GROUP
                })
                .map(|reference| ObjectKey::new(cluster.metadata.namespace.as_deref(), &reference.name))
                .collect()
        })
        .watches::<EdgeHost>(|host, context| {
            let clusters: Informer<EdgeCluster> =
                context.informers.get(Scope::of_namespace(&context.settings));
            let namespace = host.namespace().unwrap_or_default();
            let clusters = clusters
                .index("namespace", |cluster| cluster.namespace().into_iter().collect())
                .get(&namespace);
            clusters.iter().map(|one| ObjectKey::of(one.as_ref())).collect()
        })
        .into_registration()
}

impl Kind for EdgeClusters {
    type Object = EdgeCluster;
    type Observed = Observed;
    type Action = Action;
    type Error = Error;

    fn conditions(status: &mut EdgeClusterStatus) -> Option<&mut Vec<Condition>> {
        Some(&mut status.conditions)
    }

    async fn membership(&self, cluster: &EdgeCluster, _: &Context) -> Result<Membership, Error> {
        if annotations::is_externally_managed(&cluster.metadata) {
            return Ok(Membership::LeftAlone("somebody else manages it"));
        }
        Ok(Membership::by_owner(&cluster.metadata))
    }

    async fn observe(&self, subject: &Subject<EdgeCluster>, context: &Context) -> Result<Observed, Error> {
        let object = subject.object.as_ref();
        let hosts: Informer<EdgeHost> = context.informers.get(Scope::of_namespace(&context.settings));
        let namespace = object.namespace().unwrap_or_default();
        let hosts = hosts
            .index("namespace", |host| host.namespace().into_iter().collect())
            .get(&namespace);
        let given = subject
            .cluster
            .as_ref()
            .map(|cluster| &cluster.spec.control_plane_endpoint);
        Ok(Observed {
            object: object.clone(),
            given_by_cluster: given.is_some_and(|endpoint| !endpoint.host.is_empty()),
            failure_domains: hosts
                .iter()
                .filter_map(|host| host.spec.failure_domain.clone())
                .collect(),
        })
    }

    fn plan(observed: &Observed, _: Timestamp) -> Plan<Action> {
        plan::plan(observed)
    }

    async fn act(
        &self,
        action: &Action,
        _: &Subject<EdgeCluster>,
        observed: &mut Observed,
        context: &Context,
    ) -> Result<Outcome, Error> {
        act::act(action, &observed.object, context).await
    }

    fn status(observed: &Observed, progress: &ProgressOf<Self>, now: Timestamp) -> EdgeClusterStatus {
        status::status(observed, progress.plan(), now)
    }
}
