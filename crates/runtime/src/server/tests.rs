//! The server as its callers see it: the routes by request, and the listener over real TLS.

use std::{net::SocketAddr, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use http_body_util::BodyExt;
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionNames, CustomResourceDefinitionSpec,
};
use kube::api::ObjectMeta;
use proptest::prelude::*;
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    PackageKind,
    admission::{
        Operation, Phase, Request as AdmissionRequest, Verdict,
        field::{FieldError, Path},
    },
    certificates::SelfSigned,
    conversion::Conversion,
};

/// A client of nobody: no handler here may call the apiserver.
fn nobody() -> kube::Client {
    kube::Client::new(
        tower::service_fn(|_request: Request<kube::client::Body>| async {
            Err::<Response<kube::client::Body>, _>(std::io::Error::other("no apiserver in this test"))
        }),
        "default",
    )
}

fn admission(phase: Phase, kind: &str, decide: fn(AdmissionRequest) -> Verdict) -> Admission {
    Admission {
        phase,
        group: "fleet.example.dev".to_owned(),
        version: "v1".to_owned(),
        kind: kind.to_owned(),
        plural: format!("{}s", kind.to_lowercase()),
        operations: vec![Operation::Create],
        handler: Arc::new(move |request, _client| Box::pin(async move { decide(request) })),
    }
}

fn package() -> Package {
    let mut package = Package::new(PackageKind::RuntimeExtension, "toy");
    package.admission = vec![
        admission(Phase::Mutating, "Boat", |request| {
            let mut object = request.object.unwrap_or_default();
            object["spec"]["sails"] = json!(2);
            Verdict::Changed {
                object,
                warnings: vec!["sails were raised".to_owned()],
            }
        }),
        admission(Phase::Validating, "Boat", |_| Verdict::Invalid {
            errors: vec![
                FieldError::required(&Path::new("spec").child("keel"), "a boat needs one"),
                FieldError::invalid(&Path::new("spec").child("sails"), -1, "must not be negative"),
            ],
            warnings: Vec::new(),
        }),
        admission(Phase::Validating, "Wreck", |_| panic!("secret cause")),
        Admission {
            handler: Arc::new(|_, _| Box::pin(std::future::pending())),
            ..admission(Phase::Validating, "Becalmed", |_| Verdict::allowed())
        },
    ];
    package.crds = vec![CustomResourceDefinition {
        metadata: ObjectMeta {
            name: Some("boats.fleet.example.dev".to_owned()),
            ..ObjectMeta::default()
        },
        spec: CustomResourceDefinitionSpec {
            group: "fleet.example.dev".to_owned(),
            names: CustomResourceDefinitionNames {
                kind: "Boat".to_owned(),
                plural: "boats".to_owned(),
                ..CustomResourceDefinitionNames::default()
            },
            ..CustomResourceDefinitionSpec::default()
        },
        status: None,
    }];
    package.conversion = vec![Conversion::new(
        "boats.fleet.example.dev",
        |mut object, desired| {
            match object["spec"]["sails"].as_i64() {
                Some(13) => panic!("unlucky"),
                Some(sails) if sails < 0 => return Err("negative sails".to_owned()),
                _ => {}
            }
            object["spec"]["to"] = json!(desired);
            // Not allowed, and put right by the server.
            object["metadata"]["name"] = json!("renamed");
            object["metadata"]["annotations"]["kept"] = json!("yes");
            Ok(object)
        },
    )];
    package.hooks = vec![
        Hook {
            hook: "UpdateMachine",
            name: "update-machine",
            api_version: "hooks.runtime.cluster.x-k8s.io/v1alpha1",
            timeout_seconds: 10,
            fail_open: false,
            gate: None,
            handler: Arc::new(|request, _client| {
                Box::pin(async move {
                    json!({"status": "Success", "message": request["desired"]["machine"], "retryAfterSeconds": 5})
                })
            }),
        },
        Hook {
            hook: "CanUpdateMachine",
            name: "can-update-machine",
            api_version: "hooks.runtime.cluster.x-k8s.io/v1alpha1",
            timeout_seconds: 10,
            fail_open: false,
            gate: None,
            handler: Arc::new(|_request, _client| panic!("at once")),
        },
    ];
    package
}

fn routes() -> (Arc<Routes>, Metrics) {
    let metrics = Metrics::new();
    let routes = Routes::new([&package()], nobody(), &Gates::default(), &metrics);
    (Arc::new(routes), metrics)
}

async fn post(routes: &Arc<Routes>, path: &str, body: impl Into<Bytes>) -> (StatusCode, String) {
    let request = Request::post(path).body(Full::new(body.into())).unwrap();
    let answer = routes.clone().answer(request).await;
    let status = answer.status();
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(bytes.to_vec()).unwrap())
}

fn review(kind: &str) -> String {
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u-1",
            "kind": {"group": "fleet.example.dev", "version": "v1", "kind": kind},
            "resource": {"group": "fleet.example.dev", "version": "v1", "resource": "boats"},
            "name": "skiff",
            "namespace": "harbour",
            "operation": "CREATE",
            "userInfo": {"username": "jane"},
            "object": {"metadata": {"name": "skiff"}, "spec": {}},
            "oldObject": null,
            "dryRun": false,
        },
    })
    .to_string()
}

async fn admit(kind: &str, path: &str) -> (Value, Metrics) {
    let (routes, metrics) = routes();
    let (status, body) = post(&routes, path, review(kind)).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let review: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(review["kind"], "AdmissionReview");
    assert_eq!(review["apiVersion"], "admission.k8s.io/v1");
    assert_eq!(review["response"]["uid"], "u-1");
    (review["response"].clone(), metrics)
}

#[tokio::test]
async fn a_changed_object_becomes_a_json_patch() {
    let (response, _) = admit("Boat", "/mutate-fleet-example-dev-v1-boat").await;
    assert_eq!(response["allowed"], true);
    assert_eq!(response["patchType"], "JSONPatch");
    assert_eq!(response["warnings"], json!(["sails were raised"]));
    let patch = STANDARD.decode(response["patch"].as_str().unwrap()).unwrap();
    let patch: Value = serde_json::from_slice(&patch).unwrap();
    assert_eq!(patch, json!([{"op": "add", "path": "/spec/sails", "value": 2}]));
}

#[tokio::test]
async fn an_invalid_object_is_refused_in_the_apiservers_words() {
    let (response, _) = admit("Boat", "/validate-fleet-example-dev-v1-boat").await;
    assert_eq!(response["allowed"], false);
    assert_eq!(
        response["status"],
        json!({
            "status": "Failure",
            "code": 422,
            "reason": "Invalid",
            "message": "Boat.fleet.example.dev \"skiff\" is invalid: [spec.keel: Required value: a boat needs one, \
                        spec.sails: Invalid value: -1: must not be negative]",
            "details": {
                "name": "skiff",
                "group": "fleet.example.dev",
                "kind": "Boat",
                "causes": [
                    {"reason": "FieldValueRequired", "message": "Required value: a boat needs one", "field": "spec.keel"},
                    {"reason": "FieldValueInvalid", "message": "Invalid value: -1: must not be negative", "field": "spec.sails"},
                ],
            },
        })
    );
}

#[tokio::test]
async fn a_panicking_handler_denies_is_counted_and_keeps_its_cause_to_itself() {
    let (response, metrics) = admit("Wreck", "/validate-fleet-example-dev-v1-wreck").await;
    assert_eq!(response["allowed"], false);
    assert_eq!(response["status"]["code"], 500);
    assert!(!response.to_string().contains("secret cause"), "{response}");
    let text = metrics.encode();
    assert!(
        text.contains("controller_runtime_webhook_panics_total 1"),
        "{text}"
    );
    assert!(
        text.contains(
            r#"controller_runtime_webhook_requests_total{webhook="/validate-fleet-example-dev-v1-wreck",code="200"} 1"#
        ),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_hangs_is_answered_for_before_the_apiserver_gives_up() {
    let started = tokio::time::Instant::now();
    let (response, _) = admit("Becalmed", "/validate-fleet-example-dev-v1-becalmed?timeout=4s").await;
    assert_eq!(response["status"]["code"], 504);
    assert!(started.elapsed() < Duration::from_secs(4));
}

fn conversion(objects: &Value) -> String {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "ConversionReview",
        "request": {"uid": "c-1", "desiredAPIVersion": "fleet.example.dev/v2", "objects": objects},
    })
    .to_string()
}

async fn convert(objects: Value) -> (Value, Metrics) {
    let (routes, metrics) = routes();
    let (status, body) = post(&routes, CONVERSION_PATH, conversion(&objects)).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let review: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(review["response"]["uid"], "c-1");
    (review["response"].clone(), metrics)
}

fn boat(sails: i64) -> Value {
    json!({
        "apiVersion": "fleet.example.dev/v1",
        "kind": "Boat",
        "metadata": {"name": "skiff", "uid": "7", "labels": {"a": "b"}},
        "spec": {"sails": sails},
    })
}

#[tokio::test]
async fn conversion_keeps_metadata_but_labels_and_annotations() {
    let (response, _) = convert(json!([boat(1)])).await;
    assert_eq!(response["result"], json!({"status": "Success"}));
    assert_eq!(
        response["convertedObjects"],
        json!([{
            "apiVersion": "fleet.example.dev/v2",
            "kind": "Boat",
            "metadata": {"name": "skiff", "uid": "7", "labels": {"a": "b"}, "annotations": {"kept": "yes"}},
            "spec": {"sails": 1, "to": "fleet.example.dev/v2"},
        }])
    );
}

#[tokio::test]
async fn one_object_that_cannot_be_converted_fails_the_review_with_its_name() {
    let (response, _) = convert(json!([boat(1), boat(-1)])).await;
    assert_eq!(response["result"]["status"], "Failure");
    assert_eq!(
        response["result"]["message"],
        "cannot convert Boat \"skiff\" from fleet.example.dev/v1 to fleet.example.dev/v2: negative sails"
    );
    let (response, metrics) = convert(json!([boat(13)])).await;
    assert_eq!(response["result"]["status"], "Failure");
    assert!(
        metrics
            .encode()
            .contains("controller_runtime_conversion_webhook_panics_total 1")
    );
    let (response, _) = convert(json!([{"apiVersion": "fleet.example.dev/v1", "kind": "Raft"}])).await;
    assert_eq!(
        response["result"]["message"],
        "no conversion is registered for Raft of fleet.example.dev"
    );
}

#[tokio::test]
async fn discovery_lists_what_is_registered() {
    let (routes, _) = routes();
    let (status, body) = post(&routes, DISCOVERY_PATH, r#"{"kind":"DiscoveryRequest"}"#).await;
    assert_eq!(status, StatusCode::OK);
    let response: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(response["status"], "Success");
    assert_eq!(
        response["handlers"][0],
        json!({
            "name": "update-machine",
            "requestHook": {"apiVersion": "hooks.runtime.cluster.x-k8s.io/v1alpha1", "hook": "UpdateMachine"},
            "timeoutSeconds": 10,
            "failurePolicy": "Fail",
        })
    );
    assert_eq!(response["handlers"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_hook_behind_a_gate_is_told_and_served_where_the_gate_is_on() {
    let mut package = package();
    package.hooks[0].gate = Some("Hoist");
    for (is_on, handlers, found) in [(false, 1, StatusCode::NOT_FOUND), (true, 2, StatusCode::OK)] {
        let gates = Gates::default().with("Hoist", is_on);
        let routes = Arc::new(Routes::new([&package], nobody(), &gates, &Metrics::new()));
        let (_, body) = post(&routes, DISCOVERY_PATH, "{}").await;
        let response: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(response["handlers"].as_array().unwrap().len(), handlers);
        let (status, _) = post(&routes, &hook_path(&package.hooks[0]), "{}").await;
        assert_eq!(status, found);
    }
}

#[tokio::test]
async fn hooks_answer_at_cluster_apis_paths_and_a_panic_is_a_failure() {
    let (routes, metrics) = routes();
    let path = "/hooks.runtime.cluster.x-k8s.io/v1alpha1/updatemachine/update-machine?timeout=10s";
    let (status, body) = post(&routes, path, r#"{"desired":{"machine":"m"}}"#).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(
        serde_json::from_str::<Value>(&body).unwrap(),
        json!({"status": "Success", "message": "m", "retryAfterSeconds": 5})
    );
    let path = "/hooks.runtime.cluster.x-k8s.io/v1alpha1/canupdatemachine/can-update-machine";
    let (_, body) = post(&routes, path, "{}").await;
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["status"], "Failure");
    assert!(
        metrics
            .encode()
            .contains("controller_runtime_webhook_panics_total 1")
    );
}

#[tokio::test]
async fn what_cannot_be_read_gets_a_plain_refusal() {
    let (routes, _) = routes();
    let mutate = "/mutate-fleet-example-dev-v1-boat";
    for (path, body, status, message) in [
        ("/nonesuch", "{}", 404, "there is no webhook at /nonesuch\n"),
        (
            mutate,
            "",
            400,
            "cannot read the AdmissionReview: the body is empty\n",
        ),
        (
            mutate,
            "{}",
            400,
            "cannot read the AdmissionReview: expected an admission.k8s.io/v1 AdmissionReview, got \"\" of \"\"\n",
        ),
        (
            mutate,
            r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}"#,
            400,
            "cannot read the AdmissionReview: it has no request\n",
        ),
        (
            DISCOVERY_PATH,
            "[]",
            400,
            "cannot read the DiscoveryRequest: not a JSON object\n",
        ),
    ] {
        let answer = post(&routes, path, body).await;
        assert_eq!(
            answer,
            (StatusCode::from_u16(status).unwrap(), message.to_owned())
        );
    }
    let (status, _) = post(&routes, CONVERSION_PATH, "{").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let (status, body) = post(&routes, mutate, vec![b' '; admission_review::LIMIT + 1]).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "{body}");
    let get = Request::get(mutate).body(Full::new(Bytes::new())).unwrap();
    let answer = routes.clone().answer(get).await;
    assert_eq!(answer.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(answer.headers()["allow"], "POST");
}

fn paths() -> Vec<String> {
    let package = package();
    let mut paths: Vec<String> = package.admission.iter().map(Admission::path).collect();
    paths.extend(package.hooks.iter().map(hook_path));
    paths.extend([CONVERSION_PATH.to_owned(), DISCOVERY_PATH.to_owned()]);
    paths
}

/// JSON that is nearly a review: real ones with a part replaced by anything.
fn nearly_a_review() -> impl Strategy<Value = Vec<u8>> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
        Just(json!({})),
        Just(json!([1])),
    ];
    let pointers = prop::sample::select(vec![
        "/apiVersion",
        "/kind",
        "/request",
        "/request/uid",
        "/request/kind",
        "/request/kind/kind",
        "/request/operation",
        "/request/object",
        "/request/object/metadata",
        "/request/object/spec",
        "/request/oldObject",
        "/request/userInfo",
        "/request/dryRun",
        "/request/desiredAPIVersion",
        "/request/objects",
        "/request/objects/0",
        "/request/objects/0/apiVersion",
        "/request/objects/0/metadata",
    ]);
    let base = prop_oneof![Just(review("Boat")), Just(conversion(&json!([boat(1)])))];
    (base, pointers, leaf).prop_map(|(base, pointer, leaf)| {
        let mut value: Value = serde_json::from_str(&base).unwrap();
        if let Some(slot) = value.pointer_mut(pointer) {
            *slot = leaf;
        }
        value.to_string().into_bytes()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_bytes_panic_the_server(
        path in prop::sample::select(paths()),
        body in prop_oneof![prop::collection::vec(any::<u8>(), 0..200), nearly_a_review()],
        query in "[a-z0-9=&%.]{0,20}",
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let status = runtime.block_on(async {
            let (routes, _) = routes();
            post(&routes, &format!("{path}?{query}"), body).await.0
        });
        prop_assert!(status == StatusCode::OK || status == StatusCode::BAD_REQUEST, "{}", status);
    }
}

struct Serving {
    address: SocketAddr,
    ca: String,
    cancel: CancellationToken,
    task: tokio::task::JoinHandle<()>,
    counters: Counters,
}

async fn serve() -> Serving {
    let pair = SelfSigned::generate(&["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    let listener = Listener::bind("127.0.0.1:0", "--webhook-port").await.unwrap();
    let address = listener.address();
    let protocol = Protocol::tls(Arc::new(pair.certificates().unwrap()), rustls::ALL_VERSIONS, &[]).unwrap();
    let (routes, _) = routes();
    let counters = routes.counters.clone();
    let cancel = CancellationToken::new();
    let task = tokio::spawn(listener.serve(
        protocol,
        move |request| routes.clone().answer(request),
        cancel.clone(),
    ));
    Serving {
        address,
        ca: pair.ca,
        cancel,
        task,
        counters,
    }
}

async fn connect(serving: &Serving, alpn: &[u8]) -> tokio_rustls::client::TlsStream<tokio::net::TcpStream> {
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(serving.ca.as_bytes()).unwrap())
        .unwrap();
    let mut config = rustls::ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    let stream = tokio::net::TcpStream::connect(serving.address).await.unwrap();
    tokio_rustls::TlsConnector::from(Arc::new(config))
        .connect(ServerName::try_from("127.0.0.1").unwrap(), stream)
        .await
        .unwrap()
}

#[tokio::test]
async fn both_protocols_are_served_over_tls_and_requests_under_way_are_finished() {
    let serving = serve().await;
    let path = "/mutate-fleet-example-dev-v1-boat";
    let request = || {
        Request::post(format!("https://127.0.0.1{path}"))
            .header("host", "127.0.0.1")
            .body(Full::new(Bytes::from(review("Boat"))))
            .unwrap()
    };
    let stream = connect(&serving, b"h2").await;
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    assert_eq!(
        sender.send_request(request()).await.unwrap().status(),
        StatusCode::OK
    );

    let stream = connect(&serving, b"http/1.1").await;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    assert_eq!(
        sender.send_request(request()).await.unwrap().status(),
        StatusCode::OK
    );
    // This one hangs in its handler until its timeout; the shutdown waits for its answer.
    let slow = Request::post("https://127.0.0.1/validate-fleet-example-dev-v1-becalmed?timeout=300ms")
        .header("host", "127.0.0.1")
        .body(Full::new(Bytes::from(review("Becalmed"))))
        .unwrap();
    let pending = sender.send_request(slow);
    let in_flight = serving.counters.in_flight.get_or_create_owned(&Webhook {
        webhook: "/validate-fleet-example-dev-v1-becalmed".to_owned(),
    });
    let cancel = serving.cancel.clone();
    let (answer, ()) = tokio::join!(pending, async {
        while in_flight.get() == 0 {
            tokio::task::yield_now().await;
        }
        cancel.cancel();
    });
    assert_eq!(answer.unwrap().status(), StatusCode::OK);
    // Who has not heard of it yet is still answered.
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(connect(&serving, b"http/1.1").await))
            .await
            .unwrap();
    tokio::spawn(connection);
    assert_eq!(
        sender.send_request(request()).await.unwrap().status(),
        StatusCode::OK
    );
    serving.task.await.unwrap();
    assert!(tokio::net::TcpStream::connect(serving.address).await.is_err());
}

#[test]
fn cipher_suites_are_chosen_by_their_names() {
    let pair = SelfSigned::generate(&["localhost".to_owned()]).unwrap();
    let choose = |name: &str| {
        Protocol::tls(
            Arc::new(pair.certificates().unwrap()),
            rustls::ALL_VERSIONS,
            &[name.to_owned()],
        )
        .err()
    };
    assert_eq!(choose("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"), None);
    assert_eq!(choose("TLS_AES_128_GCM_SHA256"), None);
    let refusal = choose("TLS_RSA_WITH_RC4_128_SHA").unwrap();
    assert!(
        refusal.starts_with("\"TLS_RSA_WITH_RC4_128_SHA\" is not offered; choose from TLS_ECDHE_"),
        "{refusal}"
    );
}

#[tokio::test]
async fn a_port_in_use_names_the_flag() {
    let first = Listener::bind("127.0.0.1:0", "--webhook-port").await.unwrap();
    let port = first.address().port();
    let error = Listener::bind(&format!("127.0.0.1:{port}"), "--webhook-port")
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "port {port} is in use: stop the process that listens on it, or choose another with --webhook-port"
        )
    );
    let error = Listener::bind("nonsense", "--health-addr").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "\"nonsense\" is not an address to listen on: write host:port or :port in --health-addr"
    );
}

/// A CA and a client certificate of it, with its key, all PEM.
fn client_pair(common_name: &str) -> (String, String, String) {
    use rcgen::{
        BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    };
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::default();
    ca.distinguished_name.push(DnType::CommonName, "test CA");
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_certificate = ca.self_signed(&ca_key).unwrap();
    let issuer = Issuer::new(ca, ca_key);
    let key = KeyPair::generate().unwrap();
    let mut client = CertificateParams::default();
    client.distinguished_name.push(DnType::CommonName, common_name);
    client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = client.signed_by(&key, &issuer).unwrap();
    (ca_certificate.pem(), certificate.pem(), key.serialize_pem())
}

#[tokio::test]
async fn hooks_are_for_clients_with_a_certificate_where_a_ca_is_named() {
    let (client_ca, certificate, key) = client_pair("capi-core");
    let (_, foreign_certificate, foreign_key) = client_pair("somebody else");
    let pair = SelfSigned::generate(&["127.0.0.1".to_owned()]).unwrap();
    let listener = Listener::bind("127.0.0.1:0", "--webhook-port").await.unwrap();
    let address = listener.address();
    let protocol = Protocol::tls_for(
        Arc::new(pair.certificates().unwrap()),
        rustls::ALL_VERSIONS,
        &[],
        Some(&ClientCa::from_pem(client_ca.as_bytes()).unwrap()),
    )
    .unwrap();
    let routes = Routes::new([&package()], nobody(), &Gates::default(), &Metrics::new())
        .require_certificates_for_hooks(true);
    let (routes, cancel) = (Arc::new(routes), CancellationToken::new());
    let task = tokio::spawn(listener.serve(
        protocol,
        move |request| routes.clone().answer(request),
        cancel.clone(),
    ));
    let ask = async |shown: Option<(&str, &str)>, path: &str, body: String| -> Result<StatusCode, String> {
        let mut roots = rustls::RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(pair.ca.as_bytes()).unwrap())
            .unwrap();
        let builder = rustls::ClientConfig::builder().with_root_certificates(roots);
        let config = match shown {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => builder
                .with_client_auth_cert(
                    vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()],
                    rustls::pki_types::PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
                )
                .unwrap(),
        };
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let stream = tokio_rustls::TlsConnector::from(Arc::new(config))
            .connect(ServerName::try_from("127.0.0.1").unwrap(), stream)
            .await
            .map_err(|error| error.to_string())?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| error.to_string())?;
        tokio::spawn(connection);
        let request = Request::post(format!("https://127.0.0.1{path}"))
            .header("host", "127.0.0.1")
            .body(Full::new(Bytes::from(body)))
            .unwrap();
        let answer = sender.send_request(request).await;
        answer
            .map(|answer| answer.status())
            .map_err(|error| error.to_string())
    };
    let webhook = "/mutate-fleet-example-dev-v1-boat";
    let core = Some((certificate.as_str(), key.as_str()));
    let hook = hook_path(&package().hooks[0]);
    for path in [DISCOVERY_PATH, &hook] {
        assert_eq!(ask(None, path, "{}".into()).await, Ok(StatusCode::FORBIDDEN));
        assert_eq!(ask(core, path, "{}".into()).await, Ok(StatusCode::OK));
    }
    // The apiserver shows no certificate.
    assert_eq!(ask(None, webhook, review("Boat")).await, Ok(StatusCode::OK));
    let foreign = Some((foreign_certificate.as_str(), foreign_key.as_str()));
    ask(foreign, DISCOVERY_PATH, "{}".into())
        .await
        .expect_err("a certificate of another CA ends the connection");
    cancel.cancel();
    task.await.unwrap();
}

#[test]
fn a_file_that_holds_no_ca_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ca.crt");
    let refused = ClientCa::read(&path).unwrap_err();
    assert!(
        refused.starts_with("cannot read ") && refused.contains("ca.crt"),
        "{refused}"
    );
    std::fs::write(&path, "nothing").unwrap();
    let refused = ClientCa::read(&path).unwrap_err();
    assert!(refused.ends_with("ca.crt: it holds no certificate"), "{refused}");
}
