//! A virtual address that three servers hold in turn, in a network of their own: real agents in namespaces on one bridge, whose apiservers are
//! parted from their store, and that hang. At no time do two of them have the address, which the kernel says and not they.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustix::{fd::AsFd, thread::move_into_link_name_space};
use rustls::{
    RootCertStore, ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    server::WebPkiClientVerifier,
};
use serde_json::{Value, json};
use slipway_agent_api::{
    client::has_ended,
    proto::{
        AddressLease, GetOperationRequest, HoldAddress, OperationState, StartRequest, local_answer::Answer,
        local_call::Call, start_request::Verb,
    },
    serve::serve_connection,
};
use tempfile::TempDir;
use tokio_rustls::TlsAcceptor;
use tonic::body::Body;

use crate::{
    address::{Neighbour, in_namespaces, ip, is_inside, run},
    cli::guest::call,
};

const NAMES: [&str; 3] = ["a", "b", "c"];
const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
/// Where the store of the apiservers is, on the bridge.
const STORE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 254);
/// Of the apiserver on each server.
const API: u16 = 6443;
/// Where each server says its name.
const SHOP: u16 = 7777;
const LEASE: &str = "slipway-virtual-address";
/// Whoever waits longer waits in vain: a lease is respected for 15 s, and the machine is shared.
const PATIENCE: Duration = Duration::from_mins(2);
/// A look at all servers that took longer is none: the address may have gone from one to another meanwhile.
const ONE_LOOK: Duration = Duration::from_secs(2);

/// Does something in the network of a process, on a thread of its own.
fn in_namespace_of(process: u32, work: impl FnOnce() + Send + 'static) {
    thread::spawn(move || {
        let namespace = fs::File::open(format!("/proc/{process}/ns/net")).unwrap();
        move_into_link_name_space(namespace.as_fd(), None).unwrap();
        work();
    });
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(std::net::Shutdown::Both);
}

/// The apiserver of a server, which is as good as its way to the store. The certificate is the store's.
fn forward(store: SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, API)).unwrap();
    for caller in listener.incoming().flatten() {
        thread::spawn(move || {
            let Ok(server) = TcpStream::connect_timeout(&store, Duration::from_secs(2)) else {
                return;
            };
            let (Ok(back), Ok(forth)) = (server.try_clone(), caller.try_clone()) else {
                return;
            };
            thread::spawn(move || copy(back, forth));
            copy(caller, server);
        });
    }
}

fn say_name(name: &str) {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, SHOP)).unwrap();
    for mut caller in listener.incoming().flatten() {
        let _ = caller.write_all(name.as_bytes());
    }
}

/// Who answers at the address, for whoever is on the bridge.
fn answers() -> Option<String> {
    let place = SocketAddr::from((ADDRESS, SHOP));
    let mut stream = TcpStream::connect_timeout(&place, Duration::from_secs(1)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    let mut name = String::new();
    stream.read_to_string(&mut name).ok()?;
    Some(name)
}

/// One lease, written over the version that was read alone.
#[derive(Default)]
struct Store(Mutex<Option<Value>>);

impl Store {
    fn holder(&self) -> String {
        let lease = self.0.lock();
        let holder = lease
            .as_ref()
            .map(|lease| lease["spec"]["holderIdentity"].clone());
        holder
            .and_then(|holder| holder.as_str().map(str::to_owned))
            .unwrap_or_default()
    }

    fn answer(&self, method: &Method, body: &[u8]) -> (u16, Value) {
        let mut lease = self.0.lock();
        if *method == Method::GET {
            return lease.clone().map_or((404, Value::Null), |lease| (200, lease));
        }
        let mut written: Value = serde_json::from_slice(body).unwrap();
        let version = |lease: Option<&Value>| {
            let text = lease.and_then(|lease| lease["metadata"]["resourceVersion"].as_str());
            text.and_then(|text| text.parse::<u64>().ok()).unwrap_or_default()
        };
        let current = version(lease.as_ref());
        if (*method == Method::POST) == lease.is_some() || version(Some(&written)) != current {
            return (409, Value::Null);
        }
        written["metadata"]["resourceVersion"] = json!((current + 1).to_string());
        *lease = Some(written.clone());
        (if *method == Method::POST { 201 } else { 200 }, written)
    }

    /// Serves it on the bridge to whoever has a certificate; the kubeconfig of such a one.
    fn serve(self: &Arc<Self>) -> (SocketAddr, String) {
        let ca_key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = params.self_signed(&ca_key).unwrap();
        let issuer = Issuer::new(params, ca_key);
        let issued = |name: &str| {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            (params.signed_by(&key, &issuer).unwrap(), key)
        };
        let ((own, own_key), (admin, admin_key)) = (issued("kubernetes"), issued("admin"));
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(ca.der().clone()).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone())
            .build()
            .unwrap();
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(
                vec![own.der().clone()],
                PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(own_key.serialize_der())),
            )
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let listener = TcpListener::bind((STORE, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let (acceptor, store) = (TlsAcceptor::from(Arc::new(config)), self.clone());
        tokio::spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, store) = (acceptor.clone(), store.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    serve_connection(stream, move |request| respond(store.clone(), request)).await;
                });
            }
        });
        let encoded = |pem: String| BASE64_STANDARD.encode(pem);
        let kubeconfig = json!({
            "clusters": [{"cluster": {"certificate-authority-data": encoded(ca.pem())}}],
            "users": [{"user": {"client-certificate-data": encoded(admin.pem()),
                "client-key-data": encoded(admin_key.serialize_pem())}}]});
        (address, kubeconfig.to_string())
    }
}

async fn respond(store: Arc<Store>, request: Request<Body>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let body = body
        .collect()
        .await
        .map(http_body_util::Collected::to_bytes)
        .unwrap_or_default();
    let (status, answer) = store.answer(&parts.method, &body);
    Response::builder()
        .status(status)
        .body(Body::new(answer.to_string()))
        .unwrap()
}

/// A server of the site, with an agent of its own.
struct Server {
    name: &'static str,
    namespace: Neighbour,
    agent: Child,
    state: PathBuf,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.agent.kill();
        let _ = self.agent.wait();
    }
}

impl Server {
    fn start(name: &'static str, number: usize, folder: &Path) -> Self {
        let namespace = Neighbour::new();
        let process = namespace.0.id();
        ip(&format!("link add {name}0 type veth peer name v0"));
        ip(&format!("link set v0 netns {process}"));
        ip(&format!("link set {name}0 master site"));
        ip(&format!("link set {name}0 up"));
        namespace.ip(&format!("address add 192.0.2.{}/24 dev v0", number + 1));
        namespace.ip("link set v0 up");
        namespace.ip("link set lo up");
        let state = folder.join(name);
        let mut agent = Command::new("nsenter")
            .args(["-t", &process.to_string(), "-n"])
            .args([
                env!("CARGO_BIN_EXE_slipway-agent"),
                "guest",
                "--host",
                name,
                "--state",
            ])
            .arg(&state)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let output = agent.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        assert!(line.starts_with("answering at "), "{line}");
        in_namespace_of(process, move || say_name(name));
        Self {
            name,
            namespace,
            agent,
            state,
        }
    }

    /// From now on it holds the address when it is its turn.
    fn take_part(&self, kubeconfig: &Path, first: bool) {
        let id = "hold";
        let hold = HoldAddress {
            address: format!("{ADDRESS}/24"),
            interface: "v0".to_owned(),
            lease: Some(AddressLease {
                namespace: "kube-system".to_owned(),
                name: LEASE.to_owned(),
                kubeconfigs: vec![kubeconfig.display().to_string()],
                port: API.into(),
                first,
            }),
        };
        let order = Call::Start(StartRequest {
            operation_id: id.to_owned(),
            generation: 1,
            host: self.name.to_owned(),
            verb: Some(Verb::HoldAddress(hold)),
        });
        let mut answer = call(&self.state, order);
        loop {
            match answer {
                Answer::Operation(operation) if has_ended(&operation) => {
                    assert_eq!(
                        operation.state(),
                        OperationState::Succeeded,
                        "{}",
                        operation.message
                    );
                    return;
                }
                Answer::Operation(_) => {}
                other => panic!("{}: {other:?}", self.name),
            }
            let request = GetOperationRequest {
                operation_id: id.to_owned(),
            };
            answer = call(&self.state, Call::GetOperation(request));
        }
    }

    fn signal(&self, signal: &str) {
        run("kill", &[signal, &self.agent.id().to_string()]);
    }

    /// Pulls its cable, or plugs it in again.
    fn cable(&self, is_in: bool) {
        let state = if is_in { "up" } else { "down" };
        ip(&format!("link set {}0 {state}", self.name));
    }
}

/// Whether the kernel of a namespace has the address, without asking anybody in it.
fn has_address(process: u32) -> bool {
    let routes = fs::read_to_string(format!("/proc/{process}/net/fib_trie")).unwrap_or_default();
    routes.lines().any(|line| line.trim() == format!("|-- {ADDRESS}"))
}

/// Which of them have it now, and how long it took to look.
fn look(processes: &[(&'static str, u32)]) -> (BTreeSet<&'static str>, Duration) {
    let began = Instant::now();
    let having = processes
        .iter()
        .filter(|(_, process)| has_address(*process))
        .map(|(name, _)| *name)
        .collect();
    (having, began.elapsed())
}

/// What was seen by somebody who looks all the time.
#[derive(Default)]
struct Watch {
    looks: usize,
    /// Two had it.
    violations: Vec<String>,
}

fn watch(processes: Vec<(&'static str, u32)>) -> Arc<Mutex<Watch>> {
    let seen: Arc<Mutex<Watch>> = Arc::default();
    let told = Arc::downgrade(&seen);
    thread::spawn(move || {
        let began = Instant::now();
        while let Some(told) = told.upgrade() {
            let (having, took) = look(&processes);
            if took < ONE_LOOK {
                let mut told = told.lock();
                told.looks += 1;
                if having.len() > 1 {
                    told.violations
                        .push(format!("after {:?}: {having:?}", began.elapsed()));
                }
            }
            // The kernel tells whoever listens in the namespace, and this looks from outside of all.
            thread::sleep(Duration::from_millis(50));
        }
    });
    seen
}

/// How long it took. Nothing of it can be waited for but by looking.
async fn until(what: &str, met: impl Fn() -> bool) -> Duration {
    let began = Instant::now();
    while !met() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    began.elapsed()
}

async fn inside() {
    let folder = TempDir::new().unwrap();
    ip("link set lo up");
    ip("link add site type bridge");
    ip(&format!("address add {STORE}/24 dev site"));
    ip("link set site up");
    let servers: Vec<Server> = (0..)
        .zip(NAMES)
        .map(|(number, name)| Server::start(name, number, folder.path()))
        .collect();
    let processes: Vec<_> = servers
        .iter()
        .map(|server| (server.name, server.namespace.0.id()))
        .collect();
    let seen = watch(processes.clone());
    let holder = || look(&processes).0;
    let is_held_by = |name: &'static str| holder() == BTreeSet::from([name]);
    let kubeconfig = folder.path().join("k3s.yaml");

    // There is no apiserver, and the first server has the address that the others are to join it at.
    for server in &servers {
        server.take_part(&kubeconfig, server.name == "a");
    }
    until("the first server has it", || is_held_by("a")).await;
    let store = Arc::new(Store::default());
    let (address, text) = store.serve();
    for (_, process) in &processes {
        in_namespace_of(*process, move || forward(address));
    }
    fs::write(&kubeconfig, text).unwrap();
    until("the lease is the first server's", || store.holder() == "a").await;
    until("it answers there", || answers().as_deref() == Some("a")).await;

    // It is parted from the others: it lets go, and another one takes it, whom everybody finds.
    servers[0].cable(false);
    let parted = until("another server has it", || {
        holder().len() == 1 && !is_held_by("a")
    })
    .await;
    let second = *holder().first().unwrap();
    until("the other one answers there", || {
        answers().as_deref() == Some(second)
    })
    .await;
    servers[0].cable(true);

    // The agent that has it hangs: the kernel drops it, and it goes on to somebody else. When the agent goes on it does not take it back.
    let hung = servers.iter().find(|server| server.name == second).unwrap();
    hung.signal("-STOP");
    let hung_for = until("a third turn", || holder().len() == 1 && !is_held_by(second)).await;
    let third = *holder().first().unwrap();
    hung.signal("-CONT");
    until("who has it answers there", || answers().as_deref() == Some(third)).await;

    // Both others are cut off, and then it is itself, alone, until they are back.
    for server in servers.iter().filter(|server| server.name != third) {
        server.cable(false);
    }
    let holding = servers.iter().find(|server| server.name == third).unwrap();
    let renewed = store.0.lock().clone();
    until("it goes on with it alone", || *store.0.lock() != renewed).await;
    assert!(is_held_by(third), "{:?}", holder());
    holding.cable(false);
    until("nobody has it", || holder().is_empty()).await;
    for server in &servers {
        server.cable(true);
    }
    until("somebody has it again", || holder().len() == 1).await;
    until("and answers there", || {
        answers().as_deref() == holder().first().copied()
    })
    .await;

    let seen = seen.lock();
    assert_eq!(seen.violations, Vec::<String>::new());
    assert!(seen.looks > 100, "{} looks", seen.looks);
    println!(
        "report: address: it is another server's {:.0} s after its holder is parted, {:.0} s after it hangs; {} looks, never two",
        parted.as_secs_f64(),
        hung_for.as_secs_f64(),
        seen.looks
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn partitioned_agents_on_real_interfaces_never_both_have_the_address() {
    if is_inside() {
        return inside().await;
    }
    in_namespaces("address_partitions::partitioned_agents_on_real_interfaces_never_both_have_the_address");
}
