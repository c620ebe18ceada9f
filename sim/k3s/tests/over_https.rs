//! The simulated K3s as its clients meet it: over HTTPS, with the certificates of the userdata that Slipway renders.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, Config, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
    config::AuthInfo,
    runtime::wait::await_condition,
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use slipway_capi::secret::{
    KeyPair, Purpose,
    certificate::{CA_LIFETIME, CLIENT_LIFETIME, KeyAlgorithm, client_certificate, generate},
};
use slipway_k3s::{
    api::{AgentConfig, KThreesConfigSpec, ServerConfig},
    bootstrap::render::{Ca, Cas, Facts, Role, render},
};
use slipway_k3s_sim::{BootError, Cluster, Machine, Simulator, Timing};

const VERSION: &str = "v1.35.2+k3s1";
const TOKEN: &str = "00112233445566778899aabbccddeeff";
/// A hang guard: nothing here takes more than a few ticks.
const DEADLINE: Duration = Duration::from_mins(1);

const QUICK: Timing = Timing {
    tick: Duration::from_millis(50),
    learner_stall: Duration::from_mins(1),
    heartbeat: Duration::from_mins(5),
    node_grace: Duration::from_millis(200),
    catch_up: Duration::ZERO,
    lease: Duration::from_millis(100),
    annotations: Duration::from_millis(50),
    ..Timing::K3S
};

struct World {
    simulator: Arc<Simulator>,
    cluster: Arc<Cluster>,
    server: KeyPair,
    clients: KeyPair,
    etcd: KeyPair,
}

fn now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}

fn ca(purpose: Purpose) -> KeyPair {
    generate(purpose, "kubernetes", KeyAlgorithm::EcdsaP256, CA_LIFETIME, now()).expect("a CA")
}

impl World {
    async fn new() -> Self {
        slipway_runtime::certificates::install_crypto_provider();
        let simulator = Simulator::new(QUICK);
        Self {
            cluster: simulator.cluster("fleet/edge").await.expect("a port is free"),
            simulator,
            server: ca(Purpose::ClusterCa),
            clients: ca(Purpose::ClientCa),
            etcd: ca(Purpose::EtcdCa),
        }
    }

    fn facts(&self) -> Facts {
        let pem = |pair: &KeyPair| Ca {
            certificate: pair.certificate.clone(),
            key: pair
                .key
                .as_ref()
                .map(|key| key.expose_secret().to_owned())
                .unwrap_or_default(),
        };
        Facts {
            endpoint_host: self.cluster.endpoint.ip().to_string(),
            endpoint_port: self.cluster.endpoint.port(),
            token: TOKEN.into(),
            version: VERSION.into(),
            cas: Cas {
                server: pem(&self.server),
                client: pem(&self.clients),
                etcd: Some(pem(&self.etcd)),
            },
            ..Facts::default()
        }
    }

    fn boot_with(
        &self,
        name: &str,
        role: Role,
        spec: &KThreesConfigSpec,
        facts: &Facts,
    ) -> Result<(), BootError> {
        let machine = Machine {
            name: name.into(),
            provider_id: format!("test://{name}"),
            failure_domain: Some("west".into()),
            ..Machine::default()
        };
        let userdata = render(spec, facts, role).expect("userdata");
        self.cluster.boot(&machine, &userdata)
    }

    fn boot(&self, name: &str, role: Role) -> Result<(), BootError> {
        self.boot_with(name, role, &spec(), &self.facts())
    }

    fn config(&self, identity: Option<&KeyPair>) -> Config {
        let url = format!("https://{}", self.cluster.endpoint);
        let mut config = Config::new(url.parse().expect("a url"));
        let (_, pem) =
            x509_parser::pem::parse_x509_pem(self.server.certificate.as_bytes()).expect("a certificate");
        config.root_cert = Some(vec![pem.contents]);
        if let Some(identity) = identity {
            let encoded =
                |text: &str| base64::Engine::encode(&base64::engine::general_purpose::STANDARD, text);
            config.auth_info.client_certificate_data = Some(encoded(&identity.certificate));
            let key = identity.key.as_ref().expect("a key");
            config.auth_info.client_key_data = Some(encoded(key.expose_secret()).into());
        }
        config
    }

    fn client_of(&self, ca: &KeyPair, group: &str) -> Client {
        let pair = client_certificate(ca, "u", &[group], KeyAlgorithm::EcdsaP256, CLIENT_LIFETIME, now());
        Client::try_from(self.config(Some(&pair.expect("a certificate")))).expect("a client")
    }

    fn client(&self) -> Client {
        self.client_of(&self.clients, "system:masters")
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client())
    }

    async fn until_node(&self, name: &str, what: &str, is_so: impl Fn(&Node) -> bool) -> Node {
        let reached = await_condition(self.nodes(), name, |node: Option<&Node>| node.is_some_and(&is_so));
        match tokio::time::timeout(DEADLINE, reached).await {
            Ok(Ok(Some(node))) => node,
            other => panic!("{name} does not {what}: {other:?}; {:?}", self.cluster.failures()),
        }
    }

    async fn until_voter(&self, name: &str) -> Node {
        self.until_node(name, "vote", |node| condition(node, "EtcdIsVoter") == "True")
            .await
    }

    async fn three() -> Self {
        let world = Self::new().await;
        world.boot("a", Role::Init).expect("a boots");
        for name in ["b", "c"] {
            world.boot(name, Role::JoinServer).expect("it boots");
        }
        for name in ["a", "b", "c"] {
            world.until_voter(name).await;
        }
        world
    }

    /// What the supervisor tells who knows this token.
    async fn members(&self, token: &str) -> Result<Value, kube::Error> {
        let mut config = self.config(None);
        config.auth_info = AuthInfo {
            username: Some("server".into()),
            password: Some(SecretString::from(token.to_owned())),
            ..AuthInfo::default()
        };
        let client = Client::try_from(config)?;
        let request = http::Request::get("/db/info")
            .body(Vec::new())
            .expect("a request");
        let text = client.request_text(request).await?;
        Ok(serde_json::from_str(&text).expect("JSON"))
    }
}

fn spec() -> KThreesConfigSpec {
    KThreesConfigSpec {
        server_config: Some(ServerConfig {
            cloud_provider_name: Some("external".into()),
            ..ServerConfig::default()
        }),
        agent_config: Some(AgentConfig {
            node_labels: Some(vec!["pool=edge".into()]),
            ..AgentConfig::default()
        }),
        ..KThreesConfigSpec::default()
    }
}

fn condition(node: &Node, expected: &str) -> String {
    let conditions = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions
        .filter(|one| one.type_ == expected)
        .map(|one| one.status.clone())
        .collect()
}

fn code<T: std::fmt::Debug>(result: Result<T, kube::Error>) -> u16 {
    match result {
        Err(kube::Error::Api(status)) => status.code,
        other => panic!("an answer with a code was expected: {other:?}"),
    }
}

#[tokio::test]
async fn servers_and_workers_join_by_their_userdata() {
    let world = World::three().await;
    world.boot("w", Role::Worker).expect("a worker boots");
    let worker = world
        .until_node("w", "join", |node| condition(node, "Ready") == "True")
        .await;
    assert_eq!(worker.labels()["pool"], "edge");
    assert_eq!(worker.labels()["topology.kubernetes.io/zone"], "west");
    let server = world.nodes().get("b").await.expect("a node");
    let spec = server.spec.expect("a spec");
    assert_eq!(spec.provider_id.as_deref(), Some("test://b"));
    let info = server.status.and_then(|status| status.node_info).expect("info");
    assert_eq!(info.kubelet_version, VERSION);
    let members = world.members(TOKEN).await.expect("members");
    assert_eq!(members["members"].as_array().map(Vec::len), Some(3));
    let version = world.client().apiserver_version().await.expect("a version");
    assert_eq!(version.git_version, VERSION);
    assert!(world.cluster.failures().is_empty());
}

#[tokio::test]
async fn only_those_who_may_are_answered() {
    let world = World::three().await;
    let anonymous: Api<Node> = Api::all(Client::try_from(world.config(None)).expect("a client"));
    assert_eq!(code(anonymous.list(&ListParams::default()).await), 403);
    let nobody: Api<Node> = Api::all(world.client_of(&world.clients, "nobody"));
    assert_eq!(code(nobody.list(&ListParams::default()).await), 403);
    // Another CA's certificate does not even get through the handshake.
    let stranger: Api<Node> = Api::all(world.client_of(&world.etcd, "system:masters"));
    let refused = stranger.list(&ListParams::default()).await;
    assert!(
        !matches!(refused, Ok(_) | Err(kube::Error::Api(_))),
        "{refused:?}"
    );
    assert_eq!(code(world.members("wrong").await), 403);
}

#[tokio::test]
async fn hosts_that_do_not_belong_are_refused() {
    let world = World::three().await;
    assert_eq!(world.boot("d", Role::Init), Err(BootError::SecondCluster));
    let mut facts = world.facts();
    facts.token = "another".into();
    let wrong_token = world.boot_with("e", Role::JoinServer, &spec(), &facts);
    assert_eq!(wrong_token, Err(BootError::WrongToken));
    facts = world.facts();
    facts.endpoint_port = 1;
    let elsewhere = world.boot_with("f", Role::Worker, &spec(), &facts);
    assert!(
        matches!(elsewhere, Err(BootError::WrongServer(..))),
        "{elsewhere:?}"
    );
    let mut other = spec();
    if let Some(server) = &mut other.server_config {
        server.cluster_cidr = Some("10.99.0.0/16".into());
    }
    let mismatch = world.boot_with("g", Role::JoinServer, &other, &world.facts());
    assert_eq!(mismatch, Err(BootError::Critical("cluster-cidr")));
    assert_eq!(world.cluster.failures().len(), 4);
    let nodes = world.nodes().list(&ListParams::default()).await.expect("nodes");
    assert_eq!(nodes.items.len(), 3);
}

#[tokio::test]
async fn a_member_leaves_when_asked_to_or_with_its_node() {
    let world = World::three().await;
    let ask = json!({"metadata": {"annotations": {"etcd.k3s.cattle.io/remove": "true"}}});
    let nodes = world.nodes();
    nodes
        .patch("c", &PatchParams::default(), &Patch::Merge(&ask))
        .await
        .expect("a patch");
    let removed = world
        .until_node("c", "be removed", |node| {
            node.annotations()
                .contains_key("etcd.k3s.cattle.io/removed-node-name")
        })
        .await;
    assert!(!removed.annotations().contains_key("etcd.k3s.cattle.io/remove"));
    assert_eq!(world.cluster.look(slipway_k3s_sim::Model::voters), 2);
    world.cluster.destroy("c");
    nodes
        .delete("c", &DeleteParams::default())
        .await
        .expect("a deletion");
    assert_eq!(world.cluster.left_behind(), [""; 0]);
    world.cluster.destroy("b");
    assert_eq!(world.cluster.left_behind(), ["b"], "it was still counted on");
}

#[tokio::test]
async fn the_endpoint_outlives_a_server_and_not_the_quorum() {
    let world = World::three().await;
    assert!(world.cluster.kill("a"));
    world
        .until_node("a", "be silent", |node| condition(node, "Ready") == "Unknown")
        .await;
    assert!(world.cluster.kill("b"));
    let lost = tokio::time::timeout(DEADLINE, async {
        while world.cluster.quorum_losses() == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    lost.await.expect("the loss is seen");
    assert_eq!(code(world.nodes().list(&ListParams::default()).await), 500);
    match world.members(TOKEN).await {
        Err(kube::Error::Api(told)) => {
            assert_eq!((told.code, told.reason.as_str()), (500, "InternalError"));
            assert!(
                told.message.contains("failed to get etcd MemberList"),
                "{}",
                told.message
            );
        }
        told => panic!("{told:?}"),
    }
    assert!(world.cluster.revive("b"));
    world
        .until_node("b", "be ready", |node| condition(node, "Ready") == "True")
        .await;
    assert!(!world.cluster.kill("nobody"));
}

#[tokio::test]
async fn the_admin_interface_tells_and_switches() {
    let world = World::three().await;
    let address = world.simulator.serve_admin().await.expect("a port is free");
    let client = |path: &str, method: &str| {
        let (path, method) = (path.to_owned(), method.to_owned());
        async move {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            let mut stream = tokio::net::TcpStream::connect(address).await.expect("it listens");
            let request = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.expect("a request");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.expect("an answer");
            let (head, body) = answer.split_once("\r\n\r\n").expect("a body");
            let code: u16 = head[9..12].parse().expect("a code");
            (code, serde_json::from_str::<Value>(body).expect("JSON"))
        }
    };
    let (code, told) = client("/clusters", "GET").await;
    assert_eq!(code, 200);
    let edge = &told["fleet/edge"];
    assert_eq!((&edge["voters"], &edge["quorum"]), (&json!(3), &json!(true)));
    let watches: u64 = edge["requests"]
        .as_object()
        .into_iter()
        .flat_map(|agents| agents.values())
        .filter_map(|agent| agent["WATCH nodes"].as_u64())
        .sum();
    assert!(watches >= 1, "{edge}");
    let (code, told) = client("/clusters/fleet/edge/hosts/b/kill", "POST").await;
    assert_eq!((code, &told["hosts"]["b"]["alive"]), (200, &json!(false)));
    let (code, told) = client("/clusters/fleet/edge/hosts/z/kill", "POST").await;
    assert_eq!(code, 404, "{told}");
}

#[tokio::test]
async fn with_its_last_server_a_cluster_is_new() {
    let world = World::new().await;
    world.boot("a", Role::Init).expect("a boots");
    world.until_voter("a").await;
    world.cluster.destroy("a");
    world.boot("b", Role::Init).expect("another may start it again");
    world.until_voter("b").await;
    let nodes = world.nodes().list(&ListParams::default()).await.expect("nodes");
    assert_eq!(nodes.items.len(), 1);
}
