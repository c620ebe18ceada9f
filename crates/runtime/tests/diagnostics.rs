//! Diagnostics of a whole manager in front of a real apiserver: who has a token and the right gets in, nobody else.

use std::sync::Arc;

use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
};
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
};
use rustls::{
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use slipway_runtime::{
    Manager, ObjectKey,
    command::{ASKER_ACCOUNT, Asker, asker_flags},
    manager::{ASKER_HEADER, Options, command},
};
use slipway_testbed::{install, shared};
use tokio_util::sync::CancellationToken;

/// The certificate is made in memory for every start, so there is nothing to check it against.
#[derive(Debug)]
struct Anyone;

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        rustls::crypto::aws_lc_rs::default_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

async fn ask(
    address: std::net::SocketAddr,
    method: Method,
    path: &str,
    token: Option<&str>,
    body: &str,
) -> (StatusCode, String) {
    let bearer = token.map(|token| format!("Bearer {token}"));
    let header = bearer.as_deref().map(|bearer| ("authorization", bearer));
    ask_with(address, method, path, header, body).await
}

async fn ask_with(
    address: std::net::SocketAddr,
    method: Method,
    path: &str,
    header: Option<(&str, &str)>,
    body: &str,
) -> (StatusCode, String) {
    let config = rustls::ClientConfig::builder()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone))
        .with_no_client_auth();
    let stream = tokio::net::TcpStream::connect(address).await.expect("it listens");
    let stream = tokio_rustls::TlsConnector::from(Arc::new(config))
        .connect(ServerName::try_from("localhost").expect("a name"), stream)
        .await
        .expect("it speaks TLS");
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .expect("and HTTP");
    tokio::spawn(connection);
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "localhost");
    if let Some((name, value)) = header {
        request = request.header(name, value);
    }
    let request = request
        .body(Full::new(bytes::Bytes::from(body.to_owned())))
        .expect("a request");
    let answer = sender.send_request(request).await.expect("an answer");
    let status = answer.status();
    let text = answer.into_body().collect().await.expect("a body").to_bytes();
    (status, String::from_utf8_lossy(&text).into_owned())
}

#[tokio::test]
async fn metrics_plans_and_verbosity_are_for_those_whom_the_cluster_allows() {
    let cluster = shared("plain").await.expect("the shared cluster runs");
    let namespace = cluster.namespace("diagnostics").await.expect("a namespace");
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client(), &namespace);
    let mut tokens = Vec::new();
    for name in ["allowed", "stranger", ASKER_ACCOUNT] {
        let account = ServiceAccount {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                ..ObjectMeta::default()
            },
            ..ServiceAccount::default()
        };
        accounts
            .create(&PostParams::default(), &account)
            .await
            .expect("an account");
        let request = TokenRequest {
            spec: TokenRequestSpec {
                audiences: Vec::new(),
                ..TokenRequestSpec::default()
            },
            ..TokenRequest::default()
        };
        let token = accounts
            .create_token_request(name, &PostParams::default(), &request)
            .await
            .expect("a token");
        tokens.push(token.status.expect("issued").token);
    }
    let role = format!("read-metrics-of-{namespace}");
    let objects = [
        serde_json::json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": role},
            "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}, {"nonResourceURLs": ["/debug/flags/v"], "verbs": ["put"]},
                {"nonResourceURLs": ["/debug/plans", "/debug/plans/*"], "verbs": ["get"]},
                {"nonResourceURLs": ["/debug/diff/*", "/debug/ask/*"], "verbs": ["get", "post"]}]}),
        serde_json::json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": role},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": "allowed", "namespace": namespace},
                {"kind": "ServiceAccount", "name": ASKER_ACCOUNT, "namespace": namespace}]}),
    ];
    install::install(&cluster.client(), &objects)
        .await
        .expect("roles");

    let kubeconfig = cluster.kubeconfig().to_string_lossy().into_owned();
    let matches = command(&[]).get_matches_from([
        "manager",
        "--kubeconfig",
        &kubeconfig,
        "--health-addr=0",
        "--diagnostics-address=127.0.0.1:0",
    ]);
    let options = Options::read(&matches, &[]).expect("good flags");
    let manager = Manager::new(Vec::new(), options).bind().await.expect("it binds");
    let address = manager.addresses().diagnostics.expect("an address");
    let stop = CancellationToken::new();
    let running = tokio::spawn(manager.run(stop.clone()));

    let [allowed, stranger, asks] = [&tokens[0], &tokens[1], &tokens[2]];
    assert_eq!(
        ask(address, Method::GET, "/metrics", None, "").await.0,
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(
        ask(address, Method::GET, "/metrics", Some("nonsense"), "")
            .await
            .0,
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(
        ask(address, Method::GET, "/metrics", Some(stranger), "").await.0,
        StatusCode::FORBIDDEN
    );
    let (status, text) = ask(address, Method::GET, "/metrics", Some(allowed), "").await;
    assert_eq!(status, StatusCode::OK);
    assert!(
        text.contains("rest_client_requests_total{") && text.ends_with("# EOF\n"),
        "{text}"
    );
    let (status, text) = ask(address, Method::PUT, "/debug/flags/v", Some(allowed), "5").await;
    assert_eq!(status, StatusCode::OK, "{text}");
    let (status, _) = ask(address, Method::PUT, "/debug/flags/v", Some(allowed), "loud").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);

    let plan = "/debug/plans/toy.dev/Fleet/default/north";
    for (token, expected) in [
        (None, StatusCode::UNAUTHORIZED),
        (Some(stranger.as_str()), StatusCode::FORBIDDEN),
        (Some(allowed.as_str()), StatusCode::NOT_FOUND),
    ] {
        assert_eq!(ask(address, Method::GET, plan, token, "").await.0, expected);
    }
    let (status, text) = ask(address, Method::GET, "/debug/plans", Some(allowed), "").await;
    assert_eq!((status, text.trim()), (StatusCode::OK, ""), "nothing was planned");

    // A command asks with a token of its own, which is good for nothing else.
    let url = format!("https://{address}");
    let flags = clap::Command::new("ask").args(asker_flags("nowhere"));
    let matches = flags.get_matches_from(["ask", "--manager", &url, "--manager-namespace", &namespace]);
    let asker = Asker::find(&cluster.client(), &matches).await.expect("a token");
    let fleet = ObjectKey::namespaced("default", "north");
    let error = asker.preview("toy.dev", "Fleet", &fleet, None, true).await;
    assert!(
        error
            .as_ref()
            .is_err_and(|error| error.contains("no controller of Fleet.toy.dev")),
        "{error:?}"
    );
    let error = asker.question("toys", &serde_json::json!({})).await;
    assert!(
        error
            .as_ref()
            .is_err_and(|error| error.contains("nobody answers questions about toys")),
        "{error:?}"
    );
    // The header is for that token alone, and not for those that the apiserver takes itself.
    let diff = "/debug/diff/toy.dev/Fleet/default/north";
    assert_eq!(
        ask_with(address, Method::GET, diff, Some((ASKER_HEADER, asks)), "")
            .await
            .0,
        StatusCode::UNAUTHORIZED
    );
    for (token, expected) in [
        (None, StatusCode::UNAUTHORIZED),
        (Some(stranger.as_str()), StatusCode::FORBIDDEN),
        (Some(allowed.as_str()), StatusCode::SERVICE_UNAVAILABLE),
    ] {
        assert_eq!(ask(address, Method::GET, diff, token, "").await.0, expected);
    }
    let broken = ask(address, Method::POST, diff, Some(allowed), "not an object").await;
    assert_eq!(broken.0, StatusCode::BAD_REQUEST, "{}", broken.1);

    stop.cancel();
    running.await.expect("no panic").expect("an orderly end");
}
