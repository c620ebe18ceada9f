//! Every form of kubeconfig that AKS hands out, used against a real API server that trusts the simulated Entra ID and
//! leaves authorization to the simulated role assignments.

use std::{collections::HashMap, path::Path, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use http::Method;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, Config,
    api::ListParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use secrecy::SecretString;
use serde_json::{Value, json};
use slipway_azure_sim::{Ca, Options, Request, Server, Settings, Simulator, Speed, object_id_of};
use slipway_testbed::{Cluster, WorkloadCluster};

use crate::fixture::{SUBSCRIPTION, cluster_body, request};

const TENANT: &str = "11111111-1111-1111-1111-111111111111";
const CLIENT: &str = "22222222-2222-2222-2222-222222222222";
const STRANGER: &str = "33333333-3333-3333-3333-333333333333";
const AKS: &str = "6dae42f8-4368-4678-94ff-3960e28e3630";
const CLUSTER_ADMIN: &str = "b1ff04bb-8a4e-4dc4-8eb5-8693973ce19b";
const CLUSTERS: &str = "/resourceGroups/rg/providers/Microsoft.ContainerService/managedClusters";

/// The API server fetches the issuer's keys a moment after it is ready, and there is nothing to watch for that.
const KEYS_DEADLINE: Duration = Duration::from_mins(1);

struct World {
    simulator: Simulator,
    server: Server,
    folder: tempfile::TempDir,
}

impl World {
    async fn start() -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let simulator = Simulator::new(Settings {
            tenant: TENANT.to_owned(),
            require_token: false,
            speed: Speed::Instant,
            ..Settings::default()
        });
        let ca = Ca::new().expect("a CA");
        let server = Server::start(simulator.clone(), ca, Options::default())
            .await
            .expect("free ports");
        let world = Self {
            simulator,
            server,
            folder: tempfile::tempdir().expect("a folder"),
        };
        world.simulator.azure().settings.token_issuer = Some(world.issuer());
        std::fs::write(world.ca(), world.server.ca.certificate_pem()).expect("writable");
        world
    }

    fn host(&self) -> String {
        format!("https://localhost:{}", self.server.ports.https.port())
    }

    fn issuer(&self) -> String {
        format!("{}/{TENANT}/v2.0", self.host())
    }

    fn ca(&self) -> std::path::PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// An API server as AKS runs it for a cluster: Entra ID says who somebody is, Azure's roles what they may do.
    async fn api_server(&self, cluster: &str) -> Cluster {
        let webhook = self.folder.path().join("authorizer.json");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "azure",
            "clusters": [{"name": "azure", "cluster": {
                "server": format!("{}/kubernetes/authorize{cluster}", self.host()),
                "certificate-authority": self.ca(),
            }}],
            "users": [{"name": "api-server", "user": {}}],
            "contexts": [{"name": "azure", "context": {"cluster": "azure", "user": "api-server"}}],
        });
        std::fs::write(&webhook, config.to_string()).expect("writable");
        let show = |path: &Path| path.display().to_string();
        WorkloadCluster::builder()
            .name("entra")
            .api_server_argument(format!("--oidc-issuer-url={}", self.issuer()))
            .api_server_argument(format!("--oidc-client-id={AKS}"))
            .api_server_argument(format!("--oidc-ca-file={}", show(&self.ca())))
            .api_server_argument("--oidc-username-claim=oid")
            .api_server_argument("--oidc-username-prefix=-")
            .api_server_argument("--authorization-mode=Webhook")
            .api_server_argument(format!("--authorization-webhook-config-file={}", show(&webhook)))
            .api_server_argument("--authorization-webhook-version=v1")
            .api_server_argument("--authorization-webhook-cache-authorized-ttl=0s")
            .api_server_argument("--authorization-webhook-cache-unauthorized-ttl=0s")
            .start()
            .await
            .expect("an API server")
    }

    fn put(&self, path: &str, body: &Value) {
        let response = self.simulator.handle(&request(Method::PUT, path).json(body));
        assert!(response.is_success(), "{path}: {:?}", response.body_json());
    }

    fn kubeconfig(&self, cluster: &str, action: &str) -> Kubeconfig {
        let path = format!("{CLUSTERS}/{cluster}/{action}");
        let response = self.simulator.handle(&request(Method::POST, &path));
        assert!(response.is_success(), "{path}: {:?}", response.body_json());
        let body = response.body_json();
        let text = body["kubeconfigs"][0]["value"].as_str().expect("a kubeconfig");
        let text = String::from_utf8(STANDARD.decode(text).expect("base64")).expect("text");
        Kubeconfig::from_yaml(&text).expect("a kubeconfig")
    }

    /// What Entra ID gives a service principal for an application.
    fn token(&self, client: &str, application: &str) -> String {
        let address = format!("{}/{TENANT}/oauth2/v2.0/token", self.host());
        let scope = format!("{application}/.default");
        let form = [
            ("grant_type", "client_credentials"),
            ("client_id", client),
            ("client_secret", "any"),
            ("scope", &scope),
        ];
        let answer = self
            .simulator
            .handle(&Request::new(Method::POST, &address).form(&form))
            .body_json();
        answer["access_token"].as_str().expect("a token").to_owned()
    }
}

/// How many nodes somebody sees, or the status they are refused with.
async fn count_nodes(kubeconfig: &Kubeconfig) -> Result<usize, u16> {
    let mut config = Config::from_custom_kubeconfig(kubeconfig.clone(), &KubeConfigOptions::default())
        .await
        .expect("a usable kubeconfig");
    config.default_retry = false;
    let nodes: Api<Node> = Api::all(Client::try_from(config).expect("a client"));
    match nodes.list(&ListParams::default()).await {
        Ok(list) => Ok(list.items.len()),
        Err(kube::Error::Api(status)) => Err(status.code),
        Err(error) => panic!("{error:?}"),
    }
}

fn with_token(mut kubeconfig: Kubeconfig, token: &str) -> Kubeconfig {
    let user = kubeconfig.auth_infos[0].auth_info.as_mut().expect("a user");
    user.exec = None;
    user.token = Some(SecretString::from(token.to_owned()));
    kubeconfig
}

// kube runs the credential plugin on the thread that asks, and the plugin asks the simulator.
#[tokio::test(flavor = "multi_thread")]
async fn every_form_of_kubeconfig_reaches_a_real_api_server() {
    let world = World::start().await;
    let path = format!("{CLUSTERS}/entra");
    let id = format!("{SUBSCRIPTION}{path}");
    let real = world.api_server(&id).await;
    world
        .simulator
        .azure()
        .back_all_clusters(&std::fs::read_to_string(real.kubeconfig()).expect("readable"));
    world.put("/resourceGroups/rg", &json!({"location": "westus3"}));
    let mut body = cluster_body();
    world.put(&format!("{CLUSTERS}/local"), &body);
    body["properties"]["aadProfile"] = json!({"managed": true, "enableAzureRBAC": true});
    world.put(&path, &body);

    // Local accounts: whoever holds the file may do everything.
    for action in ["listClusterAdminCredential", "listClusterUserCredential"] {
        assert!(
            count_nodes(&world.kubeconfig("local", action)).await.is_ok(),
            "{action}"
        );
    }
    assert!(
        count_nodes(&world.kubeconfig("entra", "listClusterAdminCredential"))
            .await
            .is_ok()
    );

    // A token of Entra ID: known, and without a role allowed nothing.
    let user = world.kubeconfig("entra", "listClusterUserCredential");
    let known = with_token(user.clone(), &world.token(CLIENT, AKS));
    let began = std::time::Instant::now();
    while count_nodes(&known).await == Err(401) {
        assert!(
            began.elapsed() < KEYS_DEADLINE,
            "the API server never took a token"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(count_nodes(&known).await, Err(403));
    world.put(
        &format!("{path}/providers/Microsoft.Authorization/roleAssignments/{STRANGER}"),
        &json!({"properties": {
            "principalId": object_id_of(CLIENT),
            "roleDefinitionId": format!("/providers/Microsoft.Authorization/roleDefinitions/{CLUSTER_ADMIN}"),
        }}),
    );
    assert!(count_nodes(&known).await.is_ok());
    assert_eq!(
        count_nodes(&with_token(user.clone(), &world.token(STRANGER, AKS))).await,
        Err(403)
    );
    let elsewhere = world.token(CLIENT, "https://management.azure.com");
    assert_eq!(count_nodes(&with_token(user.clone(), &elsewhere)).await, Err(401));

    // The credential plugin that fetches such a token itself.
    let mut plugin = user.clone();
    let exec = plugin.auth_infos[0]
        .auth_info
        .as_mut()
        .and_then(|user| user.exec.as_mut())
        .expect("a credential plugin");
    assert_eq!(exec.command.as_deref(), Some("kubelogin"));
    exec.command = Some(env!("CARGO_BIN_EXE_azure-sim").to_owned());
    let variable = |name: &str, value: String| {
        HashMap::from([("name".to_owned(), name.to_owned()), ("value".to_owned(), value)])
    };
    exec.env = Some(vec![
        variable("AZURE_AUTHORITY_HOST", world.host()),
        variable("SSL_CERT_FILE", world.ca().display().to_string()),
        variable("AZURE_CLIENT_ID", CLIENT.to_owned()),
        variable("AZURE_CLIENT_SECRET", "any".to_owned()),
    ]);
    assert!(count_nodes(&plugin).await.is_ok());

    world.server.stop().await;
    real.stop();
}
