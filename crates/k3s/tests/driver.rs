//! Drives both controllers by hand in virtual time: each round time passes, core and hosts do their part, and both
//! controllers reconcile everything.

use std::{ops::Deref, sync::Arc, time::Duration};

use kube::{
    ResourceExt,
    api::{DynamicObject, ListParams},
};
use serde_json::{Value, json};
use slipway_apiserver_sim::{Apiserver, faults::Faults};
use slipway_k3s::{
    api::KThreesControlPlaneStatus,
    bootstrap::ConfigReconciler,
    control_plane::{ControlPlaneReconciler, ControlPlanes},
};
use slipway_runtime::{
    Clock,
    controller::{Context, Reconciler},
};

use super::environment::{Environment, all, condition_of, set_condition};

/// Two minor versions that follow each other, between which k3s changed a server's labels.
pub const OLD: &str = "v1.33.4+k3s1";
pub const NEW: &str = "v1.34.1+k3s1";

pub struct Driver {
    environment: Environment,
    pub context: Context,
    pub control_plane: ControlPlaneReconciler,
    /// Time is moved by hand between rounds and runs by itself within one: for tests with sockets.
    pub real_time: bool,
}

impl Deref for Driver {
    type Target = Environment;

    fn deref(&self) -> &Environment {
        &self.environment
    }
}

impl Driver {
    pub async fn new(replicas: i32, version: &str) -> Self {
        Self::with(replicas, version, json!({})).await
    }

    /// With a spec merged over the usual one.
    pub async fn with(replicas: i32, version: &str, more: Value) -> Self {
        let driver = Self::empty();
        driver.set_up_with(replicas, version, &more).await;
        driver
    }

    /// With servers that are up.
    pub async fn standing(replicas: i32, version: &str) -> Self {
        let mut driver = Self::new(replicas, version).await;
        let servers = usize::try_from(replicas).expect("a number of servers");
        driver.until_settled(servers, version).await;
        driver
    }

    /// Before the user has made anything.
    pub fn empty() -> Self {
        let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse().expect("a time"));
        let environment = Environment::new(Apiserver::new(clock), clock);
        let mut context = Context::for_tests(environment.management.client(), 7);
        context.clock = clock;
        let connector = environment.connector(&Faults::none());
        Self {
            environment,
            context,
            control_plane: ControlPlaneReconciler::new(ControlPlanes::connecting_by(connector)),
            real_time: false,
        }
    }

    /// Another process takes over: nothing in memory is left.
    pub fn restart(&mut self) {
        let connector = self.environment.connector(&Faults::none());
        self.control_plane = ControlPlaneReconciler::new(ControlPlanes::connecting_by(connector));
    }

    /// The same workload cluster, seen from here.
    pub fn take_over(&mut self, other: &Self) {
        self.environment.take_over(&other.environment);
        self.context.clock = other.environment.clock;
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

    /// One round: time passes, core and hosts do their part, both controllers reconcile everything.
    pub async fn round(&mut self) {
        self.pass(Duration::from_secs(15)).await;
        self.step().await;
        // The watch takes the changes in.
        self.pass(Duration::from_millis(200)).await;
        tokio::time::sleep(Duration::from_millis(30)).await;
        self.reconcile_all().await;
        let violations = self.recorder.lock().violations.clone();
        assert!(violations.is_empty(), "{violations:?}");
    }

    /// Both controllers reconcile everything.
    pub async fn reconcile_all(&self) {
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

    /// A condition of the control plane of the v1beta2 contract, or null.
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
        self.recorder.lock().userdata[host].clone()
    }

    pub async fn machine(&self, name: &str) -> DynamicObject {
        self.machines().get(name).await.expect("the machine")
    }
}
