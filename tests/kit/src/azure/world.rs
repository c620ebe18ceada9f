//! A world in which the controllers of an Azure provider live, in virtual time, and short ways to act in it.

use std::{sync::Arc, time::Duration};

use azure_core::http::Transport;
use http::Method;
use jiff::Timestamp;
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};
use slipway_apiserver_sim::{Apiserver, Kinds, faults::Faults};
use slipway_azure_sim::{Settings, Simulator};
use slipway_runtime::{
    Clock,
    controller::{Context, Registration},
};
use tokio::task::{JoinHandle, JoinSet};

use super::{ask, in_azure, simulator, transport};
use crate::{
    core::{
        FakeCore,
        kinds::{CORE, INFRASTRUCTURE},
    },
    objects::{self, create},
};

/// Where a user's objects are.
pub const NAMESPACE: &str = "default";

/// The controllers of one process, over the transport to Azure.
pub type Controllers = Arc<dyn Fn(Clock, Transport) -> Vec<Registration> + Send + Sync>;

/// The API of a kind that a user's manifests hold.
pub fn api(server: &Apiserver, kind: &str) -> Api<DynamicObject> {
    let version = match kind {
        "Secret" | "ConfigMap" => "v1".to_owned(),
        _ if kind.starts_with("Azure") => format!("{INFRASTRUCTURE}/v1beta1"),
        _ => format!("{CORE}/v1beta2"),
    };
    objects::api(server, NAMESPACE, &version, kind)
}

pub async fn merge(server: &Apiserver, kind: &str, name: &str, patch: Value) {
    api(server, kind)
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap_or_else(|error| panic!("patching {kind} {name}: {error}"));
}

pub async fn remove(server: &Apiserver, kind: &str, name: &str) {
    let _ = api(server, kind).delete(name, &DeleteParams::default()).await;
}

/// Applies what a user applies.
pub async fn apply(server: &Apiserver, manifests: &[Value]) {
    for manifest in manifests {
        create(server, manifest).await;
    }
}

pub struct World {
    pub server: Apiserver,
    pub simulator: Arc<Simulator>,
    pub clock: Clock,
    calls: Faults,
    controllers: Controllers,
    tasks: JoinSet<anyhow::Result<()>>,
    context: Option<Context>,
    core: JoinHandle<()>,
}

impl World {
    pub fn new(kinds: &Kinds, settings: Settings, controllers: Controllers) -> Self {
        let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse::<Timestamp>().expect("a time"));
        let server = Apiserver::new(clock);
        server.install_kinds(kinds);
        let core = tokio::spawn(FakeCore::new(server.clone(), clock).run());
        let mut world = Self {
            simulator: simulator(settings, clock),
            server,
            clock,
            calls: Faults::none(),
            controllers,
            tasks: JoinSet::new(),
            context: None,
            core,
        };
        world.start();
        world
    }

    /// Starts a process of the manager.
    pub fn start(&mut self) {
        self.start_with(|_| ());
    }

    /// The same with settings of its own.
    pub fn start_with(&mut self, set: impl FnOnce(&mut slipway_runtime::Settings)) {
        let mut context = Context::for_tests(self.server.client_with(self.calls.clone()), 7);
        context.clock = self.clock;
        set(Arc::make_mut(&mut context.settings));
        self.context = Some(context.clone());
        for registration in (self.controllers)(self.clock, transport(&self.simulator)) {
            self.tasks.spawn((registration.run)(context.clone()));
        }
    }

    /// Kills the manager, wherever it is.
    pub async fn kill(&mut self) {
        self.tasks.abort_all();
        while self.tasks.join_next().await.is_some() {}
        if let Some(context) = self.context.take() {
            context.shutdown.cancel();
        }
    }

    /// Cluster API's core stops, as if it did not serve what comes.
    pub fn stop_core(&self) {
        self.core.abort();
    }

    /// The injected clients of the process that runs.
    pub fn context(&self) -> &Context {
        self.context.as_ref().expect("a process")
    }

    /// Every call of the manager to the apiserver, as `verb resource place`.
    pub fn asked(&self) -> Vec<String> {
        self.calls.log().into_iter().map(|call| call.line).collect()
    }

    /// Waits, in virtual time, until something holds.
    pub async fn until(&self, what: &str, reached: impl Fn() -> bool) {
        for _ in 0..8000 {
            if reached() {
                return;
            }
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        let objects: Vec<Value> = self
            .server
            .objects()
            .into_iter()
            .filter(|object| {
                object["kind"]
                    .as_str()
                    .is_some_and(|kind| kind.starts_with("Azure"))
            })
            .map(|object| {
                json!({"kind": object["kind"], "name": object["metadata"]["name"],
                "deleted": object["metadata"]["deletionTimestamp"],
                "finalizers": object["metadata"]["finalizers"], "status": object["status"]})
            })
            .collect();
        let azure = self.simulator.azure();
        let asked: Vec<String> = azure
            .requests()
            .map(|request| {
                format!(
                    "{} {} {} {}",
                    request.at, request.method, request.path, request.status
                )
            })
            .collect();
        panic!(
            "still not {what}: {}\n{}",
            serde_json::to_string_pretty(&objects).expect("json"),
            asked[asked.len().saturating_sub(12)..].join("\n")
        );
    }

    /// Ids of everything in Azure, in lower case.
    pub fn in_azure(&self) -> Vec<String> {
        in_azure(&self.simulator)
    }

    /// What Azure holds of the resource whose id ends in this.
    pub fn document(&self, end: &str) -> Value {
        let azure = self.simulator.azure();
        let found = azure.state().resources.iter().find(|one| one.id.ends_with(end));
        json!(found.expect(end).document)
    }

    pub fn count(&self, method: &str, part: &str) -> usize {
        self.simulator.azure().count(method, part)
    }

    /// Asks the simulated Azure as somebody else.
    pub fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Value {
        ask(&self.simulator, method, path, body)
    }

    /// Nothing is written, here or in Azure, in the time of several resyncs.
    pub async fn assert_rests(&self) {
        tokio::time::sleep(Duration::from_mins(5)).await;
        let version = self.server.version();
        self.simulator.azure().forget_requests();
        tokio::time::sleep(Duration::from_mins(40)).await;
        let azure = self.simulator.azure();
        let writes: Vec<String> = azure
            .requests()
            .filter(|request| request.method != "GET" && !request.path.contains("oauth2"))
            .map(|request| format!("{} {}", request.method, request.path))
            .collect();
        assert_eq!(writes, Vec::<String>::new(), "at rest");
        drop(azure);
        assert_eq!(self.server.version(), version, "at rest");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.core.abort();
        self.tasks.abort_all();
    }
}
