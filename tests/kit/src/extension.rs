//! A runtime extension that updates machines in place: what it covers, how long it takes and what it was asked is the
//! test's to say and to read.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};
use parking_lot::Mutex;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

const HOOKS: &str = "hooks.runtime.cluster.x-k8s.io/v1alpha1";

/// The hooks it serves.
const SERVED: [&str; 2] = ["CanUpdateMachine", "UpdateMachine"];

/// How the extension behaves, and what it was asked.
#[derive(Default)]
pub struct Script {
    /// Kinds whose spec it can change.
    pub covers: BTreeSet<&'static str>,
    /// Fails every call with this message.
    pub fails: Option<String>,
    /// How many more calls say that the update is still going on.
    pub takes: usize,
    calls: Vec<(String, Value)>,
}

/// A runtime extension on loopback. It ends with this value.
pub struct Extension {
    address: SocketAddr,
    ca: String,
    pub script: Arc<Mutex<Script>>,
    task: JoinHandle<()>,
}

impl Drop for Extension {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Extension {
    pub async fn start(covers: &[&'static str]) -> Self {
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
        let task = tokio::spawn(async move {
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
            ca: made.cert.pem(),
            script,
            task,
        }
    }

    /// What an ExtensionConfig says of it.
    pub fn client_config(&self) -> Value {
        let url = format!("https://localhost:{}", self.address.port());
        json!({"url": url, "caBundle": STANDARD.encode(&self.ca)})
    }

    pub fn calls(&self, hook: &str) -> usize {
        let path = format!("/{}/", hook.to_lowercase());
        self.script
            .lock()
            .calls
            .iter()
            .filter(|(line, _)| line.contains(&path))
            .count()
    }
}

/// A handler of it, as core notes it once it has asked for them, or as the extension itself answers.
pub fn handler(hook: &str, name: &str) -> Value {
    json!({"name": name, "timeoutSeconds": 5, "failurePolicy": "Fail",
        "requestHook": {"apiVersion": HOOKS, "hook": hook}})
}

/// All of them, as core notes them.
pub fn handlers() -> Vec<Value> {
    let noted = |hook: &&str| handler(hook, &format!("{}.updates", hook.to_lowercase()));
    SERVED.iter().map(noted).collect()
}

fn discovery() -> Value {
    let handlers: Vec<Value> = SERVED
        .iter()
        .map(|hook| handler(hook, &hook.to_lowercase()))
        .collect();
    json!({"apiVersion": HOOKS, "kind": "DiscoveryResponse", "status": "Success", "handlers": handlers})
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
            None if line.contains("/discovery") => discovery(),
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
