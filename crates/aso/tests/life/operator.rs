//! A fake Azure Service Operator: what the real one does with its objects, as its source of v2.13 says, as far as the engine that leaves
//! resources to it can see.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use http::Method;
use jiff::Timestamp;
use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Namespace},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use slipway_apiserver_sim::Apiserver;
use slipway_aso::inline::{Catalog, Inline, Lookup, Policy};
use slipway_azure_sim::{Request, Response};
use slipway_kit::{
    azure::SUBSCRIPTION,
    core::kinds::foreign,
    objects::{delete, merge, merge_status, name},
};
use slipway_runtime::Clock;

/// Where it is installed, and the lease it holds.
const NAMESPACE: &str = "azureserviceoperator-system";
const LEASE: &str = "controllers-leader-election-azinfra-generated";
const FINALIZER: &str = "serviceoperator.azure.com/finalizer";
const POLICY: &str = "serviceoperator.azure.com/reconcile-policy";
const RESOURCE_ID: &str = "serviceoperator.azure.com/resource-id";
const POLLER: &str = "serviceoperator.azure.com/poller-resume-token";
/// How often it looks at its objects.
const PERIOD: Duration = Duration::from_secs(3);

/// The kinds that it serves here.
pub fn definitions() -> Vec<CustomResourceDefinition> {
    [
        ("resources.azure.com", "v1api20200601", "ResourceGroup"),
        ("network.azure.com", "v1api20240301", "VirtualNetwork"),
        ("containerservice.azure.com", "v1api20240901", "ManagedCluster"),
        (
            "containerservice.azure.com",
            "v1api20240901",
            "ManagedClustersAgentPool",
        ),
    ]
    .map(|(group, version, kind)| foreign(group, version, kind))
    .into()
}

/// Installs its kinds.
pub async fn install(server: &Apiserver) {
    let api: Api<CustomResourceDefinition> = Api::all(server.client());
    for definition in definitions() {
        api.create(&PostParams::default(), &definition)
            .await
            .expect("installed");
    }
}

/// Takes its kinds away.
pub async fn uninstall(server: &Apiserver) {
    let api: Api<CustomResourceDefinition> = Api::all(server.client());
    for definition in definitions() {
        let name = definition.metadata.name.unwrap_or_default();
        let _ = api.delete(&name, &DeleteParams::default()).await;
    }
}

/// Lets it run, or not: it holds its lease for as long as anybody looks, or gives it back.
pub async fn run(server: &Apiserver, clock: Clock, runs: bool) {
    let namespaces: Api<Namespace> = Api::all(server.client());
    if namespaces.get_opt(NAMESPACE).await.expect("an answer").is_none() {
        let namespace =
            serde_json::from_value(json!({"metadata": {"name": NAMESPACE}})).expect("a namespace");
        let parameters = PostParams::default();
        namespaces
            .create(&parameters, &namespace)
            .await
            .expect("a namespace");
    }
    let api: Api<Lease> = Api::namespaced(server.client(), NAMESPACE);
    let holder = if runs { "aso-1" } else { "" };
    let lease: Lease = serde_json::from_value(json!({
        "metadata": {"name": LEASE, "namespace": NAMESPACE},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 1_000_000_000, "renewTime": micro(clock.now())},
    }))
    .expect("a lease");
    if api.get_opt(LEASE).await.expect("an answer").is_none() {
        api.create(&PostParams::default(), &lease).await.expect("a lease");
    } else {
        let patch = json!({"spec": {"holderIdentity": holder}});
        let parameters = PatchParams::default();
        api.patch(LEASE, &parameters, &Patch::Merge(&patch))
            .await
            .expect("renewed");
    }
}

fn micro(now: Timestamp) -> String {
    format!("{now:.6}")
}

/// How it reaches Azure.
pub type Ask = Arc<dyn Fn(&Request) -> Response + Send + Sync>;

pub struct FakeOperator {
    server: Apiserver,
    ask: Ask,
    /// By uid: the generation and the policy that it is done with.
    done: BTreeMap<String, (i64, String)>,
    /// By uid: the generation that was sent last.
    sent: BTreeMap<String, i64>,
    /// The uids of those whose deletion Azure has accepted.
    deleting: BTreeSet<String>,
}

fn annotation<'a>(object: &'a Value, name: &str) -> &'a str {
    object["metadata"]["annotations"][name]
        .as_str()
        .unwrap_or_default()
}

fn is_its(object: &Value) -> bool {
    let version = object["apiVersion"].as_str().unwrap_or_default();
    version
        .split('/')
        .next()
        .is_some_and(|group| group.ends_with(".azure.com"))
}

fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

impl FakeOperator {
    pub fn new(server: Apiserver, ask: Ask) -> Self {
        Self {
            server,
            ask,
            done: BTreeMap::new(),
            sent: BTreeMap::new(),
            deleting: BTreeSet::new(),
        }
    }

    /// Reconciles its objects while it holds its lease, for ever.
    pub async fn run(mut self) {
        let mut rested_at = None;
        loop {
            tokio::time::sleep(PERIOD).await;
            let version = self.server.version();
            if rested_at == Some(version) {
                continue;
            }
            let (runs, objects) = self.server.look(|objects| {
                let runs = objects.iter().any(|object| {
                    object["kind"] == "Lease"
                        && name(object) == LEASE
                        && object["spec"]["holderIdentity"]
                            .as_str()
                            .is_some_and(|holder| !holder.is_empty())
                });
                (
                    runs,
                    objects
                        .iter()
                        .filter(|object| is_its(object))
                        .cloned()
                        .collect::<Vec<_>>(),
                )
            });
            let mut rests = true;
            for object in objects.iter().filter(|_| runs) {
                if !self.is_done(object) {
                    rests = false;
                    self.reconcile(object, &objects).await;
                }
            }
            rested_at = rests.then_some(version);
        }
    }

    fn is_done(&self, object: &Value) -> bool {
        let generation = object["metadata"]["generation"].as_i64().unwrap_or_default();
        let policy = annotation(object, POLICY).to_owned();
        object["metadata"]["deletionTimestamp"].is_null()
            && annotation(object, POLLER).is_empty()
            && self.done.get(&uid(object)) == Some(&(generation, policy))
    }

    async fn reconcile(&mut self, object: &Value, all: &[Value]) {
        let policy = annotation(object, POLICY).to_owned();
        if object["metadata"]["deletionTimestamp"].is_string() {
            return self.delete(object, &policy).await;
        }
        if object["metadata"]["finalizers"].is_null() {
            return self.claim(object, all).await;
        }
        if policy == "skip" {
            return self.look(object, &policy).await;
        }
        if !annotation(object, POLLER).is_empty() {
            return self.follow(object, &policy).await;
        }
        self.put(object, all).await;
    }

    /// Its finalizer, the resource that it stands for, and its owner.
    async fn claim(&mut self, object: &Value, all: &[Value]) {
        let Some((id, _)) = request_of(object, all) else {
            return self.tell(object, "False", "WaitingForOwner", "Info").await;
        };
        let mut owners = object["metadata"]["ownerReferences"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        if let Some(owner) = owner_of(object, all) {
            owners.push(
                json!({"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": name(owner),
                "uid": owner["metadata"]["uid"]}),
            );
        }
        let patch = json!({"metadata": {
            "finalizers": [FINALIZER], "ownerReferences": owners,
            "annotations": {(RESOURCE_ID): id, "serviceoperator.azure.com/operator-namespace": NAMESPACE},
        }});
        merge(&self.server, object, patch).await;
    }

    fn asks(&self, method: Method, id: &str, body: Option<&Value>) -> Response {
        let address = format!("https://management.azure.com{id}?api-version=2024-09-01");
        let mut request = Request::new(method, &address);
        if let Some(body) = body {
            request = request.json(body);
        }
        (self.ask)(&request)
    }

    async fn tell(&self, object: &Value, status: &str, reason: &str, severity: &str) {
        let ready = json!([{"type": "Ready", "status": status, "reason": reason, "severity": severity,
            "observedGeneration": object["metadata"]["generation"], "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        if object["status"]["conditions"] != ready {
            merge_status(&self.server, object, json!({ "conditions": ready })).await;
        }
    }

    /// What it is told to leave alone is looked at.
    async fn look(&mut self, object: &Value, policy: &str) {
        let generation = object["metadata"]["generation"].as_i64().unwrap_or_default();
        let answer = self.asks(Method::GET, annotation(object, RESOURCE_ID), None);
        if answer.is_success() {
            self.tell(object, "True", "Succeeded", "").await;
            self.done.insert(uid(object), (generation, policy.to_owned()));
        } else {
            self.tell(object, "False", "AzureResourceNotFound", "Warning")
                .await;
        }
    }

    async fn put(&mut self, object: &Value, all: &[Value]) {
        let Some((id, body)) = request_of(object, all) else {
            return self.tell(object, "False", "WaitingForOwner", "Info").await;
        };
        let answer = self.asks(Method::PUT, &id, Some(&body));
        if answer.is_success() {
            let generation = object["metadata"]["generation"].as_i64().unwrap_or_default();
            self.sent.insert(uid(object), generation);
            let patch = json!({"metadata": {"annotations": {(POLLER): "token"}}});
            merge(&self.server, object, patch).await;
            self.tell(object, "False", "Reconciling", "Info").await;
            return;
        }
        let text = answer.body_json();
        let code = text["error"]["code"]
            .as_str()
            .or(text["code"].as_str())
            .unwrap_or("Failed")
            .to_owned();
        let is_passing = answer.status != 400;
        self.tell(
            object,
            "False",
            &code,
            if is_passing { "Warning" } else { "Error" },
        )
        .await;
        if !is_passing {
            let generation = object["metadata"]["generation"].as_i64().unwrap_or_default();
            self.done
                .insert(uid(object), (generation, annotation(object, POLICY).to_owned()));
        }
    }

    async fn follow(&mut self, object: &Value, policy: &str) {
        let id = annotation(object, RESOURCE_ID);
        let answer = self.asks(Method::GET, id, None);
        let body = answer.body_json();
        let state = body["properties"]["provisioningState"].as_str();
        if answer.is_success() && !matches!(state, None | Some("Succeeded" | "Failed" | "Canceled")) {
            return;
        }
        if object["kind"] == "ManagedCluster" {
            self.hand_out(object, id).await;
        }
        let patch = json!({"metadata": {"annotations": {(POLLER): null}}});
        merge(&self.server, object, patch).await;
        let generation = object["metadata"]["generation"].as_i64().unwrap_or_default();
        // What changed meanwhile is sent next.
        if self.sent.get(&uid(object)) == Some(&generation) {
            self.tell(object, "True", "Succeeded", "").await;
            self.done.insert(uid(object), (generation, policy.to_owned()));
        }
    }

    /// The kubeconfig that its manifest asks for.
    async fn hand_out(&self, object: &Value, id: &str) {
        let to = &object["spec"]["operatorSpec"]["secrets"]["adminCredentials"];
        let (Some(secret), Some(key)) = (to["name"].as_str(), to["key"].as_str()) else {
            return;
        };
        let answer = self.asks(Method::POST, &format!("{id}/listClusterAdminCredential"), None);
        let Some(text) = answer.body_json()["kubeconfigs"][0]["value"]
            .as_str()
            .map(str::to_owned)
        else {
            return;
        };
        assert!(STANDARD.decode(&text).is_ok(), "AKS hands out base64");
        let made = json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {"name": secret, "namespace": object["metadata"]["namespace"], "ownerReferences": [
                {"apiVersion": object["apiVersion"], "kind": object["kind"], "name": name(object),
                    "uid": object["metadata"]["uid"]}]},
            "data": {(key): text}});
        let there = self.server.look(|objects| {
            objects
                .iter()
                .any(|one| one["kind"] == "Secret" && name(one) == secret)
        });
        if there {
            merge(&self.server, &made, json!({"data": made["data"]})).await;
        } else {
            slipway_kit::objects::create(&self.server, &made).await;
        }
    }

    async fn delete(&mut self, object: &Value, policy: &str) {
        let id = annotation(object, RESOURCE_ID);
        let is_detached = matches!(policy, "skip" | "detach-on-delete");
        if !is_detached && !id.is_empty() {
            if self.asks(Method::GET, id, None).is_success() {
                if self.deleting.insert(uid(object)) {
                    let answer = self.asks(Method::DELETE, id, None);
                    if !answer.is_success() {
                        self.deleting.remove(&uid(object));
                    }
                }
                return;
            }
            self.deleting.remove(&uid(object));
        }
        merge(&self.server, object, json!({"metadata": {"finalizers": null}})).await;
        delete(&self.server, object).await;
    }
}

fn owner_of<'a>(object: &Value, all: &'a [Value]) -> Option<&'a Value> {
    let inline = Inline::parse(object, 0, "default", Policy::Manage).ok()?;
    let owner = inline.object.owner()?;
    all.iter()
        .find(|one| one["kind"] == owner.kind && name(one) == owner.name)
}

/// Id and body of what it sends for an object; `None` while it does not find what the object refers to.
fn request_of(object: &Value, all: &[Value]) -> Option<(String, Value)> {
    let mut catalog = Catalog::default();
    for one in all {
        if let Ok(inline) = Inline::parse(one, 0, "default", Policy::Manage) {
            catalog.add(&inline.object, SUBSCRIPTION);
        }
    }
    let mut manifest = object.clone();
    manifest.as_object_mut()?.remove("status");
    let inline = Inline::parse(&manifest, 0, "default", Policy::Manage)
        .unwrap_or_else(|problem| panic!("its object cannot be read: {problem}"));
    let lookup = Lookup {
        subscription: SUBSCRIPTION,
        ..Lookup::default()
    };
    let put = catalog.put(&inline, &lookup).ok()?;
    Some((put.id.as_str().to_owned(), put.body))
}
