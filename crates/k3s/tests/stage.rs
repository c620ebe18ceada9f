//! A stage for both controllers, driven by hand in virtual time: each round time passes, core and hosts do their part,
//! and both controllers look at everything.

use std::{ops::Deref, sync::Arc, time::Duration};

use kube::{
    ResourceExt,
    api::{DynamicObject, ListParams},
};
use serde_json::{Value, json};
use slipway_apiserver_sim::{Apiserver, faults::Faults};
use slipway_k3s::{
    api::KThreesControlPlaneStatus,
    bootstrap::controller::ConfigReconciler,
    control_plane::controller::{ControlPlaneReconciler, ControlPlanes},
};
use slipway_runtime::{
    Clock,
    controller::{Context, Reconciler},
};

use super::theatre::{Theatre, all, condition_of, set_condition};

/// Two minor versions that follow each other, between which k3s changed a server's labels.
pub const OLD: &str = "v1.33.4+k3s1";
pub const NEW: &str = "v1.34.1+k3s1";

pub struct Stage {
    theatre: Theatre,
    pub context: Context,
    pub control_plane: ControlPlaneReconciler,
    /// Time is moved by hand between rounds and runs by itself within one: for tests with sockets.
    pub real_time: bool,
}

impl Deref for Stage {
    type Target = Theatre;

    fn deref(&self) -> &Theatre {
        &self.theatre
    }
}

impl Stage {
    pub async fn new(replicas: i32, version: &str) -> Self {
        Self::with(replicas, version, json!({})).await
    }

    /// With a spec merged over the usual one.
    pub async fn with(replicas: i32, version: &str, more: Value) -> Self {
        let stage = Self::empty();
        stage.set_up_with(replicas, version, &more).await;
        stage
    }

    /// With servers that are up.
    pub async fn standing(replicas: i32, version: &str) -> Self {
        let mut stage = Self::new(replicas, version).await;
        let servers = usize::try_from(replicas).expect("a number of servers");
        stage.until_settled(servers, version).await;
        stage
    }

    /// Before the user has made anything.
    pub fn empty() -> Self {
        let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse().expect("a time"));
        let theatre = Theatre::new(Apiserver::new(clock), clock);
        let mut context = Context::for_tests(theatre.management.client(), 7);
        context.clock = clock;
        // A host that joins again on its way out is seen by reconciles that come seconds apart; rounds do not.
        theatre.model.lock().timing.rejoin = Duration::from_hours(1);
        let connector = theatre.connector(&Faults::none());
        Self {
            theatre,
            context,
            control_plane: ControlPlaneReconciler::new(ControlPlanes::connecting_by(connector)),
            real_time: false,
        }
    }

    /// Another process takes over: nothing in memory is left.
    pub fn restart(&mut self) {
        let connector = self.theatre.connector(&Faults::none());
        self.control_plane = ControlPlaneReconciler::new(ControlPlanes::connecting_by(connector));
    }

    /// The same workload cluster, seen from here.
    pub fn take_over(&mut self, other: &Self) {
        self.theatre.take_over(&other.theatre);
        self.context.clock = other.theatre.clock;
        self.restart();
    }

    pub async fn pass(&self, time: Duration) {
        if self.real_time {
            tokio::time::pause();
            tokio::time::advance(time).await;
            tokio::time::resume();
        } else {
            tokio::time::sleep(time).await;
        }
    }

    /// One round: time passes, core and hosts do their part, both controllers look at everything.
    pub async fn round(&mut self) {
        self.pass(Duration::from_secs(15)).await;
        self.step().await;
        // The watch takes the changes in.
        self.pass(Duration::from_millis(200)).await;
        tokio::time::sleep(Duration::from_millis(30)).await;
        self.look().await;
        let violations = self.book.lock().violations.clone();
        assert!(violations.is_empty(), "{violations:?}");
    }

    /// Both controllers look at everything.
    pub async fn look(&self) {
        let configs = self
            .configs()
            .list(&ListParams::default())
            .await
            .expect("configs");
        for config in configs.items {
            for _ in 0..3 {
                let Some(config) = self
                    .configs()
                    .get_opt(&config.name_any())
                    .await
                    .expect("a config")
                else {
                    break;
                };
                ConfigReconciler::default()
                    .reconcile(Arc::new(config), &self.context)
                    .await
                    .expect("a config reconciles");
            }
        }
        for _ in 0..3 {
            let Some(plane) = self.planes().get_opt("edge").await.expect("a control plane") else {
                break;
            };
            let outcome = Box::pin(self.control_plane.reconcile(Arc::new(plane), &self.context)).await;
            if let Err(error) = outcome {
                panic!("the control plane reconciles: {error}");
            }
        }
    }

    pub async fn rounds(&mut self, count: usize) {
        for _ in 0..count {
            self.round().await;
        }
    }

    pub async fn until_settled(&mut self, servers: usize, version: &str) {
        for _ in 0..160 {
            self.round().await;
            if self.servers().await.len() == servers && self.settled(servers, version) {
                self.rounds(3).await;
                return;
            }
        }
        let plane = self.planes().get("edge").await.expect("a control plane");
        panic!(
            "{servers} servers of {version} do not settle: {:#?}",
            plane.status
        );
    }

    pub async fn names(&self) -> Vec<String> {
        self.servers().await.iter().map(ResourceExt::name_any).collect()
    }

    /// A condition of the control plane in its newer form, or null.
    pub async fn plane_condition(&self, type_: &str) -> Value {
        let plane = self.planes().get("edge").await.expect("the control plane");
        let status = serde_json::to_value(plane.status).unwrap_or_default();
        condition_of(&status["v1beta2"], type_)
    }

    pub async fn plane_status(&self) -> KThreesControlPlaneStatus {
        let plane = self.planes().get("edge").await.expect("the control plane");
        plane.status.expect("a status")
    }

    /// The user changes fields of the control plane's spec.
    pub async fn change_plane(&self, spec: Value) {
        self.patch_plane(json!({ "spec": spec }))
            .await
            .expect("it is changed");
    }

    /// A health check hands a machine over to its owner.
    pub async fn hand_over(&self, machine: &str) {
        for condition in ["HealthCheckSucceeded", "OwnerRemediated"] {
            set_condition(&self.machines(), machine, condition, "False").await;
        }
    }

    /// The names of all secrets with what they hold.
    pub async fn secret_contents(&self) -> Vec<Value> {
        let secrets = all(&self.secrets()).await;
        secrets
            .iter()
            .map(|secret| json!([secret.name_any(), secret.data]))
            .collect()
    }

    /// What a host booted with.
    pub fn userdata_of(&self, host: &str) -> String {
        self.book.lock().userdata[host].clone()
    }

    pub async fn machine(&self, name: &str) -> DynamicObject {
        self.machines().get(name).await.expect("the machine")
    }
}
