//! What is accepted and cannot work: a K3s cluster that waits, says why in a condition, and goes on once the mistake is undone.
//! Nothing boots here; a server's Machine and its bootstrap data are as far as it gets.

use std::{sync::Arc, sync::LazyLock, time::Duration};

use k8s_openapi::{
    ByteString, api::core::v1::Secret,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use slipway_apiserver_sim::{Apiserver, Kinds};
use slipway_insight::Actor;
use slipway_k3s::{
    bootstrap,
    control_plane::{self, ControlPlanes},
};
use slipway_kit::{
    core::{
        FakeCore,
        kinds::{CORE, INFRASTRUCTURE, foreign, of_core},
    },
    mistakes::Mistake,
    objects::{api_of, condition, create, find, of_kind},
};
use slipway_runtime::{Clock, controller::Context};
use tokio::task::JoinSet;

use crate::{
    refused::merged,
    why::{self, Expected, stuck},
};

const AREA: &str = "K3s: what is accepted and cannot work";
const NAMESPACE: &str = "default";
const PLANE: &str = "KThreesControlPlane";
const CONFIG: &str = "KThreesConfig";

fn foreign_kinds() -> Vec<CustomResourceDefinition> {
    let mut kinds = of_core();
    kinds.extend(["HostMachine", "HostMachineTemplate"].map(|kind| foreign(INFRASTRUCTURE, "v1beta1", kind)));
    kinds.push(foreign("runtime.cluster.x-k8s.io", "v1beta2", "ExtensionConfig"));
    kinds
}

fn template() -> Value {
    json!({"apiVersion": format!("{INFRASTRUCTURE}/v1beta1"), "kind": "HostMachineTemplate",
        "metadata": {"name": "hosts", "namespace": NAMESPACE}, "spec": {"template": {"spec": {}}}})
}

fn cluster() -> Value {
    json!({"apiVersion": format!("{CORE}/v1beta2"), "kind": "Cluster",
        "metadata": {"name": "edge", "namespace": NAMESPACE},
        "spec": {"controlPlaneEndpoint": {"host": "10.9.9.9", "port": 6443},
            "controlPlaneRef": {"apiGroup": "controlplane.cluster.x-k8s.io", "kind": PLANE, "name": "edge"}}})
}

fn plane() -> Value {
    json!({"apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": PLANE,
        "metadata": {"name": "edge", "namespace": NAMESPACE},
        "spec": {"replicas": 1, "version": "v1.35.2+k3s1", "machineTemplate": {"infrastructureRef": {
            "apiVersion": format!("{INFRASTRUCTURE}/v1beta1"), "kind": "HostMachineTemplate", "name": "hosts"}}}})
}

struct World {
    server: Apiserver,
    clock: Clock,
    core: tokio::task::JoinHandle<()>,
    _controllers: JoinSet<anyhow::Result<()>>,
}

impl World {
    async fn new() -> Self {
        // Read once: schemas take long to make.
        static KINDS: LazyLock<Kinds> = LazyLock::new(|| {
            slipway_k3s::provider()
                .packages
                .iter()
                .map(|package| Kinds::read(&package.crds, &package.conversion, &package.admission))
                .fold(Kinds::read(&foreign_kinds(), &[], &[]), Kinds::and)
        });
        let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse().expect("a time"));
        let server = Apiserver::new(clock);
        server.install_kinds(&KINDS);
        // References are resolved by the labels of stored definitions.
        for definition in foreign_kinds() {
            Api::<CustomResourceDefinition>::all(server.client())
                .create(&PostParams::default(), &definition)
                .await
                .expect("a definition");
        }
        let mut context = Context::for_tests(server.client(), 7);
        context.clock = clock;
        let nobody = ControlPlanes::connecting_by(Arc::new(|_, _| {
            Err(kube::Error::Service(Box::new(std::io::Error::other(
                "no route to host",
            ))))
        }));
        let mut controllers = JoinSet::new();
        for registration in [bootstrap::registration(), control_plane::registration_of(nobody)] {
            controllers.spawn((registration.run)(context.clone()));
        }
        Self {
            core: tokio::spawn(FakeCore::new(server.clone(), clock).run()),
            server,
            clock,
            _controllers: controllers,
        }
    }

    /// A cluster as its user makes it, its infrastructure ready.
    async fn apply(&self, cluster: &Value, plane: &Value) {
        create(&self.server, cluster).await;
        let provisioned = json!({"status": {"initialization": {"infrastructureProvisioned": true}}});
        api_of(&self.server, cluster)
            .patch_status("edge", &PatchParams::default(), &Patch::Merge(&provisioned))
            .await
            .expect("a status");
        create(&self.server, plane).await;
    }

    async fn change(&self, object: &Value, patch: Value) {
        api_of(&self.server, object)
            .patch("edge", &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .unwrap_or_else(|error| panic!("{patch}: {error}"));
    }

    /// What `slipway why` says of the Cluster.
    fn why(&self, expected: &Expected) -> String {
        why::of_cluster(&self.server, self.clock, "edge", expected)
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.server.client(), NAMESPACE)
    }

    async fn apply_secret(&self, name: &str, key: &str, value: &str) {
        let _ = self.secrets().delete(name, &DeleteParams::default()).await;
        let secret: Secret = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": NAMESPACE},
            "data": {key: ByteString(value.as_bytes().to_vec())},
        }))
        .expect("a secret");
        self.secrets()
            .create(&PostParams::default(), &secret)
            .await
            .expect("it is created");
    }

    async fn until<T>(&self, what: &str, reached: impl Fn(&[Value]) -> Option<T>) -> T {
        for _ in 0..4000 {
            if let Some(found) = self.server.look(|objects| reached(objects)) {
                return found;
            }
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        let status = |kind: &str| {
            let objects = self.server.objects();
            let found: Vec<Value> = of_kind(&objects, kind).map(|one| one["status"].clone()).collect();
            json!(found)
        };
        panic!("still not {what}: {:#}\n{:#}", status(PLANE), status(CONFIG));
    }

    /// Reason and message of a condition once it is False and has been the same for five minutes.
    async fn seen(&self, kind: &str, type_: &str) -> String {
        self.seen_as(kind, "False", type_, |object| {
            Some(condition(object, type_).clone())
        })
        .await
    }

    async fn seen_as(
        &self,
        kind: &str,
        status: &str,
        type_: &str,
        condition: impl Fn(&Value) -> Option<Value>,
    ) -> String {
        let said = |objects: &[Value]| {
            let object = of_kind(objects, kind).next()?;
            let condition = condition(object)?;
            (condition["status"] == status).then(|| {
                format!(
                    "`{type_}` {status}, `{}`: {}",
                    condition["reason"].as_str().unwrap_or_default(),
                    condition["message"].as_str().unwrap_or_default()
                )
            })
        };
        loop {
            let first = self.until("told", said).await;
            tokio::time::sleep(Duration::from_mins(5)).await;
            if self.server.look(|objects| said(objects)).as_ref() == Some(&first) {
                return first;
            }
        }
    }

    /// There is a server, and it has what it boots with.
    async fn until_booting(&self) {
        self.until("booting", |objects| {
            let config = of_kind(objects, CONFIG).next()?;
            let secret = config["status"]["dataSecretName"].as_str()?;
            find(objects, "Secret", secret).map(|_| ())
        })
        .await;
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.core.abort();
    }
}

/// Names that are made up are left out.
fn mistake(what: &str, sees: &str, why: &str, undo: &str) -> Mistake {
    let made_up = regex::Regex::new("edge-[bcdfghjklmnpqrstvwxz2456789]{5}").expect("a pattern");
    Mistake {
        area: AREA,
        what: what.to_owned(),
        sees: made_up.replace_all(sees, "edge-…").into_owned(),
        why: Some(made_up.replace_all(why, "edge-…").into_owned()),
        undo: undo.to_owned(),
    }
}

pub async fn see() -> Vec<Mistake> {
    let mut seen = templates().await;
    seen.extend(files().await);
    seen.extend(surroundings().await);
    seen
}

/// What servers are made from.
async fn templates() -> Vec<Mistake> {
    let mut seen = Vec::new();

    let world = World::new().await;
    world.apply(&cluster(), &plane()).await;
    let sees = world.seen(PLANE, "Ready").await;
    let why = world.why(&stuck("HostMachineTemplate/hosts", "create it"));
    create(&world.server, &template()).await;
    world.until_booting().await;
    seen.push(mistake(
        "a machine template that does not exist",
        &sees,
        &why,
        "create it; the control plane looks for it once a minute",
    ));

    let world = World::new().await;
    create(&world.server, &template()).await;
    let reference = |kind: &str| {
        json!({"spec": {"machineTemplate": {"infrastructureRef": {
            "apiVersion": format!("{INFRASTRUCTURE}/v1beta1"), "kind": kind, "name": "hosts"}}}})
    };
    let unknown = merged(&plane(), &reference("HostTemplate"));
    world.apply(&cluster(), &unknown).await;
    let sees = world.seen(PLANE, "Ready").await;
    let why = world.why(&stuck("KThreesControlPlane/edge", "HostTemplate").by(Actor::Operator));
    world.change(&plane(), reference("HostMachineTemplate")).await;
    world.until_booting().await;
    seen.push(mistake(
        "a kind of machine template that nobody serves",
        &sees,
        &why,
        "correct the kind, or install the provider that has it",
    ));
    seen
}

/// Files of the servers whose contents are in Secrets.
async fn files() -> Vec<Mistake> {
    let mut seen = Vec::new();
    let file = json!({"spec": {"kthreesConfigSpec": {"files": [
        {"path": "/etc/registries.yaml", "contentFrom": {"secret": {"name": "registries", "key": "yaml"}}}]}}});

    let world = World::new().await;
    create(&world.server, &template()).await;
    world.apply(&cluster(), &merged(&plane(), &file)).await;
    let sees = world.seen(CONFIG, "DataSecretAvailable").await;
    let why = world.why(&stuck("KThreesConfig/", "Secret registries"));
    world.apply_secret("registries", "yaml", "mirrors: {}").await;
    world.until_booting().await;
    seen.push(mistake(
        "a file whose Secret does not exist",
        &sees,
        &why,
        "create the Secret; the server goes on by itself",
    ));

    let world = World::new().await;
    create(&world.server, &template()).await;
    world.apply_secret("registries", "yml", "mirrors: {}").await;
    world.apply(&cluster(), &merged(&plane(), &file)).await;
    let sees = world.seen(CONFIG, "DataSecretAvailable").await;
    let why = world.why(&stuck("KThreesConfig/", "no key"));
    world.apply_secret("registries", "yaml", "mirrors: {}").await;
    world.until_booting().await;
    seen.push(mistake(
        "a file whose Secret has another key",
        &sees,
        &why,
        "write it under the key that the file names",
    ));
    seen
}

/// What is around the control plane.
async fn surroundings() -> Vec<Mistake> {
    let mut seen = Vec::new();

    let world = World::new().await;
    create(&world.server, &template()).await;
    let nowhere = merged(&cluster(), &json!({"spec": {"controlPlaneEndpoint": null}}));
    world.apply(&nowhere, &plane()).await;
    let v1beta2 = |object: &Value| {
        // v1beta1 has no word for what a control plane waits for before its first server.
        let conditions = object["status"]["v1beta2"]["conditions"].as_array();
        let mut found = conditions.into_iter().flatten();
        found.find(|one| one["type"] == "ScalingUp").cloned()
    };
    let sees = world.seen_as(PLANE, "True", "ScalingUp", v1beta2).await;
    let why = world.why(&stuck("KThreesControlPlane/edge", "spec.controlPlaneEndpoint"));
    let endpoint = json!({"spec": {"controlPlaneEndpoint": {"host": "10.9.9.9", "port": 6443}}});
    world.change(&cluster(), endpoint).await;
    world.until_booting().await;
    seen.push(mistake(
        "a Cluster without an endpoint, on infrastructure that has none",
        &sees,
        &why,
        "write `spec.controlPlaneEndpoint` of the Cluster",
    ));

    let world = World::new().await;
    create(&world.server, &template()).await;
    world.apply_secret("edge-ca", "ca.crt", "not a certificate").await;
    world.apply(&cluster(), &plane()).await;
    let sees = world.seen(PLANE, "Ready").await;
    let why = world.why(&stuck("KThreesControlPlane/edge", "edge-ca"));
    world
        .secrets()
        .delete("edge-ca", &DeleteParams::default())
        .await
        .expect("it is deleted");
    world.until_booting().await;
    seen.push(mistake(
        "a CA of one's own without its certificate or key",
        &sees,
        &why,
        "put both into the Secret (`tls.crt`, `tls.key`), or delete it: one is made",
    ));
    seen
}
