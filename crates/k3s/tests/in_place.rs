//! Updates in place, executed: the controller asks a runtime extension over HTTPS, starts the update with the annotations,
//! field managers and order of KubeadmControlPlane, and core's part (played here) calls the extension until it is done.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
};
use parking_lot::Mutex;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use serde_json::{Value, json};
use slipway_capi::hook::{
    HookClient, registry,
    types::{MachineObjects, UpdateMachineRequest},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::{
    stage::Stage,
    theatre::{Theatre, condition, create, patch_status},
};

const OLD: &str = "v1.33.4+k3s1";
const NEW: &str = "v1.34.1+k3s1";
const UPDATE_IN_PROGRESS: &str = "in-place-updates.internal.cluster.x-k8s.io/update-in-progress";
const PENDING_HOOKS: &str = "runtime.cluster.x-k8s.io/pending-hooks";

/// How the extension behaves, and what it was asked.
#[derive(Default)]
struct Script {
    /// Kinds whose spec it can change.
    covers: BTreeSet<&'static str>,
    /// Fails every call with this message.
    fails: Option<String>,
    /// How many more calls say that the update is still going on.
    takes: usize,
    calls: Vec<(String, Value)>,
}

/// A runtime extension on loopback.
struct Extension {
    address: SocketAddr,
    authority: String,
    script: Arc<Mutex<Script>>,
}

impl Extension {
    async fn start(covers: &[&'static str]) -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(made.cert.pem().as_bytes()).expect("a certificate")],
                PrivateKeyDer::from_pem_slice(made.signing_key.serialize_pem().as_bytes()).expect("a key"),
            )
            .expect("a server");
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let script = Arc::new(Mutex::new(Script {
            covers: covers.iter().copied().collect(),
            ..Script::default()
        }));
        let told = Arc::clone(&script);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, script) = (acceptor.clone(), Arc::clone(&told));
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        answer(stream, &script).await;
                    }
                });
            }
        });
        Self {
            address,
            authority: made.cert.pem(),
            script,
        }
    }

    async fn register(&self, stage: &Stage) {
        let url = format!("https://localhost:{}", self.address.port());
        register(stage, &url, &self.authority).await;
    }

    fn calls(&self, hook: &str) -> usize {
        let path = format!("/{}/", hook.to_lowercase());
        self.script
            .lock()
            .calls
            .iter()
            .filter(|(line, _)| line.contains(&path))
            .count()
    }
}

/// Registers an extension as core does once it has discovered its handlers.
pub async fn register(theatre: &Theatre, url: &str, authority: &str) {
    let api = extension_configs(theatre);
    let handler = |hook: &str| {
        json!({"name": format!("{}.updates", hook.to_lowercase()), "timeoutSeconds": 5, "failurePolicy": "Fail",
                "requestHook": {"apiVersion": "hooks.runtime.cluster.x-k8s.io/v1alpha1", "hook": hook}})
    };
    let made = create(
        &api,
        json!({"apiVersion": "runtime.cluster.x-k8s.io/v1beta2", "kind": "ExtensionConfig",
                "metadata": {"name": "updates"},
                "spec": {"clientConfig": {"url": url, "caBundle": STANDARD.encode(authority)}}}),
    )
    .await;
    patch_status(
            &api,
            "updates",
            json!({
                "conditions": [{"type": "Discovered", "status": "True", "reason": "Discovered", "message": "",
                    "observedGeneration": made.metadata.generation, "lastTransitionTime": "2026-01-01T00:00:00Z"}],
                "handlers": [handler("CanUpdateMachine"), handler("UpdateMachine")],
            }),
        )
        .await;
}

fn extension_configs(stage: &Theatre) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("runtime.cluster.x-k8s.io", "v1beta2", "ExtensionConfig");
    Api::all_with(stage.management.client(), &ApiResource::from_gvk(&kind))
}

/// One request of HTTP/1.1 and its answer.
async fn answer(mut stream: tokio_rustls::server::TlsStream<TcpStream>, script: &Mutex<Script>) {
    let mut bytes = Vec::new();
    let (line, body) = loop {
        let mut chunk = vec![0; 16 * 1024];
        let count = stream.read(&mut chunk).await.unwrap_or(0);
        if count == 0 {
            return;
        }
        bytes.extend_from_slice(&chunk[..count]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some(end) = text.find("\r\n\r\n") else {
            continue;
        };
        let length: usize = text[..end]
            .lines()
            .find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok())
            .unwrap_or(0);
        if bytes.len() >= end + 4 + length {
            let body: Value = serde_json::from_slice(&bytes[end + 4..]).unwrap_or_default();
            break (text.lines().next().unwrap_or_default().to_owned(), body);
        }
    };
    let answer = {
        let mut script = script.lock();
        script.calls.push((line.clone(), body.clone()));
        match &script.fails {
            Some(message) => json!({"status": "Failure", "message": message}),
            None if line.contains("/canupdatemachine/") => patches(&body, &script.covers),
            None if script.takes > 0 => {
                script.takes -= 1;
                json!({"status": "Success", "retryAfterSeconds": 15})
            }
            None => json!({"status": "Success", "retryAfterSeconds": 0}),
        }
    };
    let text = answer.to_string();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        text.len()
    );
    let _ = stream.write_all(head.as_bytes()).await;
    let _ = stream.write_all(text.as_bytes()).await;
    let _ = stream.shutdown().await;
}

/// What the extension can do: the whole desired spec of the kinds it covers.
pub fn patches(request: &Value, covers: &BTreeSet<&'static str>) -> Value {
    let mut answer = json!({"status": "Success"});
    for (object, field) in [
        ("machine", "machinePatch"),
        ("infrastructureMachine", "infrastructureMachinePatch"),
        ("bootstrapConfig", "bootstrapConfigPatch"),
    ] {
        let desired = &request["desired"][object];
        if covers.contains(desired["kind"].as_str().unwrap_or_default()) {
            let patch = json!([{"op": "replace", "path": "/spec", "value": desired["spec"]}]).to_string();
            answer[field] = json!({"patchType": "JSONPatch", "patch": STANDARD.encode(patch)});
        }
    }
    answer
}

/// Core's part: while a machine's update is pending it calls the extension; once that is done the host runs what its
/// machine says, and the marks go.
async fn core_updates(stage: &Stage) {
    for machine in stage.servers().await {
        let name = machine.name_any();
        if !machine.annotations().contains_key(PENDING_HOOKS) {
            continue;
        }
        let config = stage.configs().get(&name).await.expect("a config");
        let host = stage.hosts().get(&name).await.expect("a host");
        assert!(
            config.annotations().contains_key(UPDATE_IN_PROGRESS)
                && host.annotations().contains_key(UPDATE_IN_PROGRESS)
                && machine.annotations().contains_key(UPDATE_IN_PROGRESS),
            "S-38: the hook is asked for last, when all three carry the mark"
        );
        let client = stage.management.client();
        let registered = registry::load(&client).await.expect("the registry");
        let handler = registered
            .handler("UpdateMachine", &std::collections::BTreeMap::new())
            .expect("one handler")
            .expect("a handler");
        let request = UpdateMachineRequest {
            desired: MachineObjects {
                machine: json!({"kind": "Machine", "spec": machine.data["spec"]}),
                infrastructure_machine: json!({"kind": "HostMachine", "spec": host.data["spec"]}),
                bootstrap_config: Some(json!({"kind": "KThreesConfig", "spec": config.spec})),
            },
        };
        let outcome = HookClient::new(None).call(handler, &request).await;
        if outcome.is_ok_and(|answer| answer.retry_after_seconds == 0) {
            let version = machine.data["spec"]["version"].as_str().unwrap_or_default();
            stage.model.lock().upgrade(&name, version);
            stage.finish_update(&machine).await;
        }
    }
}

/// A plane that is up, and an extension that covers these kinds.
async fn ready(replicas: i32, strategy: &str, covers: &[&'static str]) -> (Stage, Extension) {
    let spec = json!({"rolloutStrategy": {"type": strategy}});
    let mut stage = Stage::with(replicas, OLD, spec).await;
    stage.real_time = true;
    stage.book.lock().plays_updates = false;
    let extension = Extension::start(covers).await;
    extension.register(&stage).await;
    let servers = usize::try_from(replicas).unwrap_or_default();
    stage.until_settled(servers, OLD).await;
    (stage, extension)
}

async fn rounds(stage: &mut Stage, count: usize, until: impl Fn(&Stage) -> bool) -> bool {
    for _ in 0..count {
        stage.round().await;
        core_updates(stage).await;
        if until(stage) {
            return true;
        }
    }
    false
}

fn all_run(stage: &Stage, version: &str) -> bool {
    let model = stage.model.lock();
    model.hosts.values().all(|host| host.version == version)
}

pub const EVERYTHING: &[&str] = &["Machine", "HostMachine", "KThreesConfig"];

/// S-38: three servers are updated in place, one at a time, none replaced; then a config and a template change are too.
/// Bootstrap data is not made again, and fields that left the spec leave the objects.
#[tokio::test]
async fn servers_are_updated_through_the_extension_and_none_is_replaced() {
    let (mut stage, extension) = ready(3, "InPlace", EVERYTHING).await;
    let names = stage.names().await;
    let data = |list: Vec<k8s_openapi::api::core::v1::Secret>| -> Vec<Value> {
        list.into_iter()
            .map(|secret| json!([secret.name_any(), secret.data]))
            .collect()
    };
    let before = data(
        stage
            .secrets()
            .list(&ListParams::default())
            .await
            .expect("secrets")
            .items,
    );

    extension.script.lock().takes = 2;
    let patch = json!({"spec": {"version": NEW, "kthreesConfigSpec": {"preK3sCommands": ["echo before"]}}});
    stage.patch_plane(patch).await.expect("it is changed");
    let done = rounds(&mut stage, 60, |stage| all_run(stage, NEW)).await;
    assert!(done, "{:?}", stage.plane_condition("RollingOut").await);
    rounds(&mut stage, 4, |_| false).await;
    assert_eq!(stage.names().await, names, "no machine is replaced");
    assert_eq!(
        data(
            stage
                .secrets()
                .list(&ListParams::default())
                .await
                .expect("secrets")
                .items
        ),
        before,
        "bootstrap data is not made again"
    );
    for machine in stage.servers().await {
        assert_eq!(machine.data["spec"]["version"], NEW);
        assert_eq!(condition(&machine, "UpToDate")["status"], "True");
        assert!(!machine.annotations().contains_key(UPDATE_IN_PROGRESS));
        assert!(
            machine
                .owner_references()
                .iter()
                .any(|owner| owner.controller == Some(true))
        );
    }
    for config in stage
        .configs()
        .list(&ListParams::default())
        .await
        .expect("configs")
        .items
    {
        assert_eq!(config.spec.pre_k3s_commands, Some(vec!["echo before".to_owned()]));
        let managers: BTreeSet<String> = config
            .managed_fields()
            .iter()
            .filter(|entry| entry.operation.as_deref() == Some("Apply"))
            .filter_map(|entry| entry.manager.clone())
            .collect();
        assert!(managers.contains("capi-kthreescontrolplane"), "{managers:?}");
    }
    assert_eq!(extension.calls("CanUpdateMachine"), 3);
    assert_eq!(
        extension.calls("UpdateMachine"),
        3 + 2,
        "two answers said: not yet"
    );

    // A field that leaves the spec leaves the objects, and another template reaches the hosts.
    stage.create_template("larger", "large").await;
    let patch = json!({"spec": {"kthreesConfigSpec": {"preK3sCommands": null},
        "machineTemplate": {"infrastructureRef": {"name": "larger"}}}});
    stage.patch_plane(patch).await.expect("it is changed");
    for _ in 0..60 {
        rounds(&mut stage, 1, |_| false).await;
        let hosts = stage
            .hosts()
            .list(&ListParams::default())
            .await
            .expect("hosts")
            .items;
        if hosts.iter().all(|host| host.data["spec"]["size"] == "large") {
            break;
        }
    }
    rounds(&mut stage, 4, |_| false).await;
    assert_eq!(stage.names().await, names, "no machine is replaced");
    for config in stage
        .configs()
        .list(&ListParams::default())
        .await
        .expect("configs")
        .items
    {
        assert_eq!(config.spec.pre_k3s_commands, None, "what left the spec is gone");
    }
    for host in stage
        .hosts()
        .list(&ListParams::default())
        .await
        .expect("hosts")
        .items
    {
        assert_eq!(host.data["spec"]["size"], "large");
        assert_eq!(host.annotations()["cluster.x-k8s.io/cloned-from-name"], "larger");
    }
}

/// S-38, S-36: a single server is updated without a spare machine.
#[tokio::test]
async fn a_single_server_is_updated_without_a_spare() {
    let (mut stage, _extension) = ready(1, "InPlace", EVERYTHING).await;
    let names = stage.names().await;
    stage
        .patch_plane(json!({"spec": {"version": NEW}}))
        .await
        .expect("it is upgraded");
    let mut most = 0;
    for _ in 0..40 {
        rounds(&mut stage, 1, |_| false).await;
        most = most.max(stage.servers().await.len());
        if all_run(&stage, NEW) {
            break;
        }
    }
    assert!(all_run(&stage, NEW));
    assert_eq!((most, stage.names().await), (1, names));
}

/// S-38: what the extension does not cover is replaced under InPlace, and blocks with the list of fields under External.
#[tokio::test]
async fn what_is_not_covered_is_replaced_or_blocks() {
    let (mut stage, extension) = ready(1, "InPlace", &["Machine"]).await;
    let names = stage.names().await;
    let change = json!({"spec": {"version": NEW, "kthreesConfigSpec": {"postK3sCommands": ["echo after"]}}});
    stage.patch_plane(change.clone()).await.expect("it is changed");
    stage.until_settled(1, NEW).await;
    assert_ne!(stage.names().await, names, "the server is replaced");
    assert!(extension.calls("CanUpdateMachine") >= 1);
    assert_eq!(extension.calls("UpdateMachine"), 0);

    let (mut stage, extension) = ready(1, "External", &["Machine"]).await;
    let names = stage.names().await;
    stage.patch_plane(change).await.expect("it is changed");
    rounds(&mut stage, 8, |_| false).await;
    assert_eq!(stage.names().await, names, "nothing is replaced");
    assert!(all_run(&stage, OLD), "and nothing is updated");
    let told = stage.plane_condition("RollingOut").await;
    let message = told["message"].as_str().unwrap_or_default().to_owned();
    assert!(
        message.contains("KThreesConfig /spec/postK3sCommands") && message.contains("External"),
        "{message}"
    );
    // Once the extension covers it, it goes on by itself.
    extension.script.lock().covers = EVERYTHING.iter().copied().collect();
    assert!(
        rounds(&mut stage, 40, |stage| all_run(stage, NEW)).await,
        "{message}"
    );
    assert_eq!(stage.names().await, names);
}

/// S-38: no extension: External waits and says so, nothing is replaced; a failing one decides nothing either way.
#[tokio::test]
async fn without_an_answer_nothing_is_decided() {
    let (mut stage, extension) = ready(1, "InPlace", EVERYTHING).await;
    let names = stage.names().await;
    extension.script.lock().fails = Some("the disk is busy".into());
    stage
        .patch_plane(json!({"spec": {"version": NEW}}))
        .await
        .expect("it is upgraded");
    rounds(&mut stage, 6, |_| false).await;
    assert_eq!(stage.names().await, names, "a failure is no refusal");
    let told = stage.plane_condition("RollingOut").await;
    assert!(told.to_string().contains("the disk is busy"), "{told}");
    extension.script.lock().fails = None;
    assert!(rounds(&mut stage, 40, |stage| all_run(stage, NEW)).await);
    assert_eq!(stage.names().await, names);

    let (mut stage, _extension) = ready(1, "External", EVERYTHING).await;
    let names = stage.names().await;
    extension_configs(&stage)
        .delete("updates", &kube::api::DeleteParams::default())
        .await
        .expect("it is unregistered");
    stage
        .patch_plane(json!({"spec": {"version": NEW}}))
        .await
        .expect("it is upgraded");
    rounds(&mut stage, 6, |_| false).await;
    assert_eq!(stage.names().await, names);
    let told = stage.plane_condition("RollingOut").await;
    assert!(
        told.to_string().contains("waits for an update extension"),
        "{told}"
    );
}

/// S-38: an update whose start was interrupted after its first mark is carried on by the next process, and one that
/// never ends can be remediated.
#[tokio::test]
async fn an_interrupted_start_goes_on_and_a_stuck_update_is_remediated() {
    let (mut stage, extension) = ready(3, "InPlace", EVERYTHING).await;
    let names = stage.names().await;
    stage
        .patch_plane(json!({"spec": {"version": NEW}}))
        .await
        .expect("it is upgraded");
    // As a process leaves it that stops after its first write.
    let mark = json!({"metadata": {"annotations": {UPDATE_IN_PROGRESS: ""}}});
    stage
        .machines()
        .patch(&names[1], &PatchParams::default(), &Patch::Merge(&mark))
        .await
        .expect("it is marked");
    stage.restart();
    extension.script.lock().takes = usize::MAX;
    rounds(&mut stage, 3, |_| false).await;
    let machine = stage.machine(&names[1]).await;
    assert_eq!(machine.annotations()[PENDING_HOOKS], "UpdateMachine");
    assert_eq!(machine.data["spec"]["version"], NEW);
    assert_eq!(
        extension.calls("CanUpdateMachine"),
        0,
        "what is begun is not asked again"
    );
    for name in [&names[0], &names[2]] {
        assert_eq!(
            stage.machine(name).await.data["spec"]["version"],
            OLD,
            "one at a time"
        );
    }
    // The update never ends, and the host is dead: the health check hands it over.
    stage.model.lock().kill(&names[1]);
    stage.book.lock().health_check_after = Some(Duration::from_mins(2));
    for _ in 0..60 {
        rounds(&mut stage, 1, |_| false).await;
        if stage
            .machines()
            .get_opt(&names[1])
            .await
            .expect("an answer")
            .is_none()
        {
            break;
        }
    }
    assert!(
        stage
            .machines()
            .get_opt(&names[1])
            .await
            .expect("an answer")
            .is_none(),
        "a stuck update is replaced"
    );
    extension.script.lock().takes = 0;
    assert!(
        rounds(&mut stage, 80, |stage| all_run(stage, NEW)
            && stage.settled(3, NEW))
        .await
    );
}
