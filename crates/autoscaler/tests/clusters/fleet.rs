//! The controllers over a management cluster and workload clusters on simulators, of which any may say nothing.

use std::{
    collections::BTreeMap,
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::Request;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, PostParams},
    client::Body,
};
use serde_json::{Value, json};
use slipway_apiserver_sim::Apiserver;
use slipway_kit::scaled::{CHOSEN, ScaledClusters};
use slipway_runtime::{Clock, Context, ObjectKey, Settings, settings::Flags, workload::Connector};

/// What kube's own connections allow before they give up on a silent server.
const SILENCE: Duration = Duration::from_secs(295);
const GUARD: Duration = Duration::from_mins(30);

pub struct Fleet {
    pub context: Context,
    clusters: ScaledClusters,
    dead: Arc<BTreeMap<String, Arc<AtomicBool>>>,
}

impl Deref for Fleet {
    type Target = ScaledClusters;

    fn deref(&self) -> &ScaledClusters {
        &self.clusters
    }
}

/// Status and reason of the condition of a Cluster.
pub fn condition(cluster: &Value) -> (String, String) {
    let mut conditions = cluster["status"]["conditions"].as_array().into_iter().flatten();
    let found = conditions.find(|one| one["type"] == "AutoscalerRunning");
    let text = |key: &str| {
        found
            .and_then(|one| one[key].as_str())
            .unwrap_or_default()
            .to_owned()
    };
    (text("status"), text("reason"))
}

/// Asks a cluster, which says nothing as long as it is dead.
fn asking(server: &Apiserver, is_dead: &Arc<AtomicBool>) -> Client {
    let (inner, is_dead) = (server.client(), Arc::clone(is_dead));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (inner, is_dead) = (inner.clone(), Arc::clone(&is_dead));
        async move {
            if is_dead.load(Ordering::SeqCst) {
                tokio::time::sleep(SILENCE).await;
                return Err(std::io::Error::new(std::io::ErrorKind::TimedOut, "silence"));
            }
            inner.send(request).await.map_err(std::io::Error::other)
        }
    });
    Client::new(service, "default")
}

impl Fleet {
    /// The controllers over a management cluster without Clusters; our kinds are installed where they are missing.
    pub fn start(names: &[&str]) -> Self {
        Self::started(names, true)
    }

    pub fn start_without_installing(names: &[&str]) -> Self {
        Self::started(names, false)
    }

    fn started(names: &[&str], installs: bool) -> Self {
        let clock = Clock::starting_at(jiff::Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_hours(24));
        let clusters = ScaledClusters::new(names.iter().map(|name| (*name).to_owned()), clock);
        let alive = names.iter().map(|name| ((*name).to_owned(), Arc::default()));
        let dead: Arc<BTreeMap<String, Arc<AtomicBool>>> = Arc::new(alive.collect());
        let (servers, known) = (Arc::clone(&clusters.workloads), Arc::clone(&dead));
        let connector: Connector =
            Arc::new(move |key: &ObjectKey, _| Ok(asking(&servers[key.name()], &known[key.name()])));
        let mut context = Context::for_tests(clusters.management.client(), 7);
        context.clock = clock;
        let mut flags = Flags::default().with("autoscaler-clusters", CHOSEN);
        if installs {
            flags = flags.with("autoscaler-install-crds", "true");
        }
        context.settings = Arc::new(Settings {
            flags,
            ..Settings::default()
        });
        let mut provider = slipway_autoscaler::provider_connecting_by(Some(connector));
        for registration in provider.packages.remove(0).controllers {
            tokio::spawn((registration.run)(context.clone()));
        }
        tokio::spawn(clusters.clone().play());
        Fleet {
            context,
            clusters,
            dead,
        }
    }

    pub fn server(&self, cluster: &str) -> Apiserver {
        self.workloads[cluster].clone()
    }

    /// From now on a workload cluster says nothing, or it is there again.
    pub fn kill(&self, cluster: &str, is_dead: bool) {
        self.dead[cluster].store(is_dead, Ordering::SeqCst);
    }

    /// A Cluster, and a NodePool in it once our kinds are installed.
    pub async fn found(&self, cluster: &str) {
        self.choose(cluster).await;
        self.found_in(cluster).await;
    }

    /// A Cluster that is to be scaled.
    pub async fn choose(&self, cluster: &str) {
        let address = format!("https://{cluster}.example");
        self.found_in_management(cluster, &address, true).await;
    }

    /// A NodePool, once our kinds are installed.
    pub async fn found_in(&self, cluster: &str) {
        self.until("our kinds are served", || self.serves_kinds(cluster))
            .await;
        self.found_in_workload(cluster).await;
    }

    /// Our kinds are installed by somebody.
    pub async fn install(&self, cluster: &str) {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(
            "apiextensions.k8s.io",
            "v1",
            "CustomResourceDefinition",
        ));
        let definitions: Api<DynamicObject> = Api::all_with(self.server(cluster).client(), &resource);
        for crd in slipway_autoscaler::provider().packages.remove(0).crds {
            let mut crd = serde_json::to_value(crd).expect("a definition");
            crd["apiVersion"] = json!("apiextensions.k8s.io/v1");
            crd["kind"] = json!("CustomResourceDefinition");
            let object = serde_json::from_value(crd).expect("an object");
            let stored = definitions.create(&PostParams::default(), &object).await;
            stored.expect("it is stored");
        }
    }

    pub async fn until_running(&self, cluster: &str, pods: usize) {
        self.until(&format!("{pods} pods run in {cluster}"), || {
            self.running(cluster) == pods
        })
        .await;
    }

    pub async fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let end = tokio::time::Instant::now() + GUARD;
        while !is_so() {
            assert!(tokio::time::Instant::now() < end, "never: {what}");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }
}
