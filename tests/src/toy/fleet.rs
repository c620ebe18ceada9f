//! Keeps as many vessels as a Fleet wants, and tells Cluster API when they are all afloat.

use std::sync::Arc;

use kube::{Api, ResourceExt};
use serde_json::json;
use slipway_capi::{
    condition::{self, Report, Status},
    finalizer, names, owner,
    paused::paused,
    view::Cluster,
};
use slipway_runtime::{Class, Classified, Context, Next, ObjectKey, Outcome, Reconciler, Scope};

use super::{
    api::{Fleet, FleetStatus, GROUP, Vessel, VesselSpec},
    charter::{self, CharterError},
};

pub const FINALIZER: &str = "fleet.toy.slipway.dev";
/// Misbehaviour on demand: what harms nobody else (`panic`, `hang`), and what the tests' helpers must notice
/// (`careless` has no finalizer, `restless` writes without need, `leak` tells what is in its charter).
pub const MISBEHAVE: &str = "toy.slipway.dev/misbehave";
/// Names the Secret a fleet sails under.
pub const CHARTER: &str = "toy.slipway.dev/charter";

#[derive(Debug, thiserror::Error)]
pub enum ToyError {
    #[error(transparent)]
    Kubernetes(#[from] kube::Error),
    #[error(transparent)]
    ClusterApi(#[from] slipway_capi::Error),
    #[error(transparent)]
    Charter(#[from] CharterError),
}

impl Classified for ToyError {
    fn class(&self) -> Class {
        match self {
            Self::Kubernetes(error) => error.class(),
            Self::ClusterApi(error) => error.class(),
            Self::Charter(error) => error.class(),
        }
    }
}

/// A Cluster's change brings back its Fleet.
pub fn of_cluster(cluster: &Cluster, _: &Context) -> Vec<ObjectKey> {
    cluster
        .spec
        .infrastructure_ref
        .iter()
        .filter(|reference| reference.kind == "Fleet" && reference.api_group == GROUP)
        .map(|reference| ObjectKey::new(cluster.metadata.namespace.as_deref(), &reference.name))
        .collect()
}

pub struct FleetReconciler;

impl Reconciler for FleetReconciler {
    type Object = Fleet;
    type Error = ToyError;

    async fn reconcile(&self, fleet: Arc<Fleet>, context: &Context) -> Result<Next, ToyError> {
        let misbehaviour = fleet.annotations().get(MISBEHAVE).map(String::as_str);
        match misbehaviour {
            Some("panic") => panic!("told to"),
            Some("hang") => std::future::pending().await,
            _ => {}
        }
        let namespace = fleet.namespace().unwrap_or_default();
        let api: Api<Fleet> = Api::namespaced(context.client.clone(), &namespace);
        let scope = Scope::of_namespace(&context.settings);
        let cluster = owner::owner_cluster_name(&fleet.metadata).and_then(|name| {
            context
                .informers
                .get::<Cluster>(scope.clone())
                .get(&ObjectKey::new(Some(&namespace), name))
        });
        let paused = paused(cluster.as_deref(), &fleet.metadata);
        let mut status = fleet.status.clone().unwrap_or_default();
        let set = |status: &mut FleetStatus, report: &Report| {
            condition::set(
                &mut status.conditions,
                report,
                fleet.metadata.generation,
                context.clock.now(),
            )
        };
        set(&mut status, &paused.report("Fleet"));
        if paused.is_paused() {
            context.patch_status(fleet.as_ref(), &status).await?;
            return Ok(Next::OnChange);
        }

        let vessels: Vec<Arc<Vessel>> = context
            .informers
            .get::<Vessel>(scope)
            .list()
            .into_iter()
            .filter(|vessel| owner::is_controlled_by(&vessel.metadata, &fleet.metadata))
            .collect();
        if fleet.metadata.deletion_timestamp.is_some() {
            for vessel in &vessels {
                context.delete(vessel.as_ref()).await?;
            }
            if vessels.is_empty() {
                finalizer::release(&api, fleet.as_ref(), FINALIZER, Outcome::Done).await?;
            }
            return Ok(Next::OnChange);
        }
        if misbehaviour != Some("careless")
            && let Some(stored) = finalizer::ensure(&api, fleet.as_ref(), FINALIZER).await?
        {
            context.writes().saw(&stored);
            return Ok(Next::OnChange);
        }
        if misbehaviour == Some("restless") {
            // The same every time: nothing changes, and still it is a write.
            let patch = json!({"metadata": {"labels": {"toy.slipway.dev/restless": "true"}}});
            context.patch(fleet.as_ref(), &patch).await?;
        }
        if let Some(secret) = fleet.annotations().get(CHARTER) {
            charter::read(&fleet, secret, misbehaviour == Some("leak"), context).await?;
        }

        let wanted = fleet.spec.vessels.unwrap_or(1);
        for number in 0..wanted {
            if !vessels.iter().any(|vessel| vessel.spec.number == number) {
                context.create(&new_vessel(&fleet, number)).await?;
            }
        }
        for vessel in vessels.iter().filter(|vessel| vessel.spec.number >= wanted) {
            context.delete(vessel.as_ref()).await?;
        }
        let afloat = vessels
            .iter()
            .filter(|vessel| vessel.status.as_ref().is_some_and(|status| status.afloat))
            .count() as i32;
        let is_ready = afloat == wanted && vessels.len() as i32 == wanted;
        status.vessels = afloat;
        if is_ready {
            status.initialization.provisioned = Some(true);
        }
        let report = if is_ready {
            Report::new(names::condition::READY, Status::True, "Afloat", "")
        } else {
            let message = format!("{afloat} of {wanted} vessels are afloat");
            Report::new(names::condition::READY, Status::False, "NotAfloat", message)
        };
        set(&mut status, &report);
        context.patch_status(fleet.as_ref(), &status).await?;
        Ok(Next::OnChange)
    }
}

fn new_vessel(fleet: &Fleet, number: i32) -> Vessel {
    let mut vessel = Vessel::new(
        &format!("{}-{number}", fleet.name_any()),
        VesselSpec { number, cargo: None },
    );
    vessel.metadata.namespace = fleet.namespace();
    vessel.metadata.owner_references = owner::controller_reference(fleet).map(|reference| vec![reference]);
    vessel
}
