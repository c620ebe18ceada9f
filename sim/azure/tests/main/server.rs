//! The simulator behind sockets: HTTPS, proxy, admin port, and a restart.

use reqwest::{Certificate, Client, Proxy};
use serde_json::{Value, json};
use slipway_azure_sim::{Azure, Ca, Options, Server, Settings, Simulator, Speed, read_state};

const GROUP: &str =
    "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/rg?api-version=2020-06-01";

fn settings() -> Settings {
    Settings {
        require_token: false,
        speed: Speed::Instant,
        ..Settings::default()
    }
}

async fn start(settings: Settings, options: Options) -> Server {
    // Another test may have installed it; all that counts is that there is one.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let ca = Ca::new().expect("a CA can be made");
    Server::start(Simulator::new(settings), ca, options)
        .await
        .expect("loopback ports are free")
}

fn client(server: &Server) -> reqwest::ClientBuilder {
    let root = Certificate::from_pem(server.ca.certificate_pem().as_bytes()).expect("a certificate");
    Client::builder().tls_certs_only([root]).no_proxy()
}

async fn admin(server: &Server, method: reqwest::Method, path: &str, body: Value) -> Value {
    let address = format!("http://{}/{path}", server.ports.admin);
    let answer = Client::builder()
        .no_proxy()
        .build()
        .expect("a client")
        .request(method, address)
        .body(body.to_string())
        .send()
        .await
        .expect("an answer");
    serde_json::from_str(&answer.text().await.expect("a body")).expect("JSON")
}

#[tokio::test]
async fn https_answers_under_its_own_address_with_links_to_it() {
    let server = start(settings(), Options::default()).await;
    let client = client(&server).build().expect("a client");
    let base = format!("https://{}", server.ports.https);
    let put = client
        .put(format!("{base}{GROUP}"))
        .body(r#"{"location":"westus3"}"#);
    assert_eq!(put.send().await.expect("an answer").status(), 201);
    let deleted = client
        .delete(format!("{base}{GROUP}"))
        .send()
        .await
        .expect("an answer");
    let link = deleted.headers()["location"].to_str().expect("text").to_owned();
    assert!(link.starts_with(&base), "{link}");
    assert_eq!(client.get(link).send().await.expect("an answer").status(), 200);
    server.stop().await;
}

#[tokio::test]
async fn unmodified_clients_reach_the_public_names_through_the_proxy() {
    let server = start(
        Settings {
            require_token: true,
            ..settings()
        },
        Options::default(),
    )
    .await;
    let proxy = Proxy::all(format!("http://{}", server.ports.proxy)).expect("a proxy");
    let root = Certificate::from_pem(server.ca.certificate_pem().as_bytes()).expect("a certificate");
    let client = Client::builder()
        .tls_certs_only([root])
        .proxy(proxy)
        .build()
        .expect("a client");
    let token = client
        .post("https://login.microsoftonline.com/11111111-1111-1111-1111-111111111111/oauth2/v2.0/token")
        .header("content-type", "application/x-www-form-urlencoded")
        .body("grant_type=client_credentials&client_id=a&client_secret=b&scope=https%3A%2F%2Fmanagement.azure.com%2F.default")
        .send()
        .await
        .expect("an answer")
        .text()
        .await
        .expect("a body");
    let token: Value = serde_json::from_str(&token).expect("JSON");
    let put = client
        .put(format!("https://management.azure.com{GROUP}"))
        .header(
            "authorization",
            format!("Bearer {}", token["access_token"].as_str().expect("a token")),
        )
        .body(r#"{"location":"westus3"}"#);
    assert_eq!(put.send().await.expect("an answer").status(), 201);
    let elsewhere = client.get("https://example.com/").send().await;
    assert!(elsewhere.is_err(), "nothing is passed on");
    let seen = admin(&server, reqwest::Method::GET, "requests?method=PUT", json!(null)).await;
    assert_eq!(seen["count"], 1);
    assert_eq!(seen["requests"][0]["host"], "management.azure.com");
    server.stop().await;
}

#[tokio::test]
async fn the_admin_port_sets_faults_and_pushes_the_clock() {
    let server = start(
        Settings {
            speed: Speed::Recorded,
            ..settings()
        },
        Options::default(),
    )
    .await;
    let client = client(&server).build().expect("a client");
    let group = format!("https://{}{GROUP}", server.ports.https);
    let body = r#"{"location":"westus3"}"#;
    admin(
        &server,
        reqwest::Method::POST,
        "admin/faults",
        json!({"method": "PUT", "dropConnection": true}),
    )
    .await;
    assert!(
        client.put(&group).body(body).send().await.is_err(),
        "the answer is lost"
    );
    assert_eq!(
        client.get(&group).send().await.expect("an answer").status(),
        200,
        "the work is done"
    );
    let deleted = client.delete(&group).send().await.expect("an answer");
    let link = deleted.headers()["location"].to_str().expect("text").to_owned();
    assert_eq!(client.get(&link).send().await.expect("an answer").status(), 202);
    admin(
        &server,
        reqwest::Method::POST,
        "clock",
        json!({"advanceSeconds": 600}),
    )
    .await;
    assert_eq!(client.get(&link).send().await.expect("an answer").status(), 200);
    let refused = admin(
        &server,
        reqwest::Method::POST,
        "clock",
        json!({"advanceSeconds": -1}),
    )
    .await;
    assert!(
        refused["error"]
            .as_str()
            .is_some_and(|text| text.contains("advanceSeconds"))
    );
    server.stop().await;
}

#[tokio::test]
async fn state_survives_a_restart_with_operations_still_running() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("state.json");
    let options = Options {
        state: Some(file.clone()),
        ..Options::default()
    };
    let server = start(
        Settings {
            speed: Speed::Recorded,
            ..settings()
        },
        options,
    )
    .await;
    let client = client(&server).build().expect("a client");
    let base = format!("https://{}", server.ports.https);
    client
        .put(format!("{base}{GROUP}"))
        .body(r#"{"location":"westus3"}"#)
        .send()
        .await
        .expect("an answer");
    client
        .delete(format!("{base}{GROUP}"))
        .send()
        .await
        .expect("an answer");
    let before = server.simulator().now();
    server.stop().await;
    let state = read_state(&file).expect("readable").expect("written");
    let mut azure = Azure::with_state(settings(), state);
    let get =
        slipway_azure_sim::Request::new(http::Method::GET, &format!("https://management.azure.com{GROUP}"));
    assert_eq!(
        azure.handle(&get, before).body_json()["properties"]["provisioningState"],
        "Deleting"
    );
    let later = before + jiff::SignedDuration::from_mins(10);
    assert_eq!(azure.handle(&get, later).status, 404, "the deletion went on");
    std::fs::write(&file, "{ not whole").expect("writable");
    assert!(read_state(&file).is_err(), "half a state is not taken for none");
}
