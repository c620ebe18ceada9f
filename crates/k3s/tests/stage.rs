//! A stage for both controllers, driven by hand in virtual time: each round time passes, core and hosts do their part,
//! and both controllers look at everything.

use std::{ops::Deref, sync::Arc, time::Duration};

use kube::{
    ResourceExt,
    api::{DynamicObject, ListParams},
};
use serde_json::{Value, json};
use slipway_k3s::{
    bootstrap::controller::ConfigReconciler, control_plane::controller::ControlPlaneReconciler,
};
use slipway_memory::{Apiserver, faults::Faults};
use slipway_runtime::{
    Clock,
    controller::{Context, Reconciler},
};

use super::theatre::Theatre;
pub use super::theatre::{NAMESPACE, set_condition};

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

    /// Before the user has made anything.
    pub fn empty() -> Self {
        let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse().expect("a time"));
        let theatre = Theatre::new(Apiserver::new(clock), clock);
        let mut context = Context::for_tests(theatre.management.client(), 7);
        context.clock = clock;
        let connector = theatre.connector(&Faults::none());
        Self {
            theatre,
            context,
            control_plane: ControlPlaneReconciler::connecting_by(connector),
            real_time: false,
        }
    }

    /// Another process takes over: nothing in memory is left.
    pub fn restart(&mut self) {
        let connector = self.theatre.connector(&Faults::none());
        self.control_plane = ControlPlaneReconciler::connecting_by(connector);
    }

    /// The same workload cluster, seen from here.
    pub fn take_over(&mut self, other: &Self) {
        self.theatre.model = Arc::clone(&other.theatre.model);
        self.theatre.workload = other.theatre.workload.clone();
        self.theatre.clock = other.theatre.clock;
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
                ConfigReconciler
                    .reconcile(Arc::new(config), &self.context)
                    .await
                    .expect("a config reconciles");
            }
        }
        for _ in 0..3 {
            let Some(plane) = self.planes().get_opt("edge").await.expect("a control plane") else {
                break;
            };
            let outcome = self.control_plane.reconcile(Arc::new(plane), &self.context).await;
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
        status["v1beta2"]["conditions"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|condition| condition["type"] == type_)
            .cloned()
            .unwrap_or(Value::Null)
    }

    pub async fn machine(&self, name: &str) -> DynamicObject {
        self.machines().get(name).await.expect("the machine")
    }
}
