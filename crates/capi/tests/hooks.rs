//! The hook client against a TLS server on loopback that speaks plain HTTP/1.1 and answers what the test tells it.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use serde_json::{Value, json};
use slipway_capi::{
    hook::{
        HookClient, HookError, Registration, Registry,
        types::{CanUpdateMachineRequest, MachineObjects, UpdateMachineRequest},
    },
    view::ExtensionConfig,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::mpsc,
};

struct Server {
    address: SocketAddr,
    ca: String,
    requests: mpsc::UnboundedReceiver<(String, Value)>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Answers every request with the given status line and body, or never if there is none.
async fn serve(answer: Option<(&'static str, String)>) -> Server {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("certificate");
    let certificate = made.cert.pem();
    let tls =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(certificate.as_bytes()).expect("certificate")],
                PrivateKeyDer::from_pem_slice(made.signing_key.serialize_pem().as_bytes()).expect("key"),
            )
            .expect("server");
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
    let address = listener.local_addr().expect("address");
    let (sender, requests) = mpsc::unbounded_channel();
    let task = tokio::spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                return;
            };
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            let mut bytes = Vec::new();
            let (head, length) = loop {
                let mut chunk = [0; 4096];
                let count = stream.read(&mut chunk).await.unwrap_or(0);
                assert!(count > 0, "the request ended early");
                bytes.extend_from_slice(&chunk[..count]);
                let text = String::from_utf8_lossy(&bytes).into_owned();
                if let Some(end) = text.find("\r\n\r\n") {
                    let head = text[..end].to_owned();
                    let length: usize = head
                        .lines()
                        .find_map(|line| {
                            line.to_lowercase()
                                .strip_prefix("content-length: ")
                                .map(str::to_owned)
                        })
                        .and_then(|length| length.parse().ok())
                        .unwrap_or(0);
                    if bytes.len() >= end + 4 + length {
                        break (head, end + 4);
                    }
                }
            };
            let body = serde_json::from_slice(&bytes[length..]).unwrap_or(Value::Null);
            let first_line = head.lines().next().unwrap_or_default().to_owned();
            let _ = sender.send((first_line, body));
            match &answer {
                None => std::future::pending::<()>().await,
                Some((status, body)) => {
                    let text = format!(
                        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nLocation: https://localhost:1/\r\nConnection: close\r\n\r\n{body}",
                        body.len()
                    );
                    let _ = stream.write_all(text.as_bytes()).await;
                    let _ = stream.shutdown().await;
                }
            }
        }
    });
    Server {
        address,
        ca: certificate,
        requests,
        task,
    }
}

fn registration(server: &Server, hook: &str, change: impl FnOnce(&mut Value)) -> Registration {
    let mut config = json!({
        "metadata": {"name": "edge", "generation": 1},
        "spec": {
            "clientConfig": {
                "url": format!("https://localhost:{}/prefix/", server.address.port()),
                "caBundle": STANDARD.encode(&server.ca),
            },
            "settings": {"policy": "external"},
        },
        "status": {
            "conditions": [{"type": "Discovered", "status": "True", "reason": "Discovered", "message": "",
                "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            "handlers": [{"name": "Handler.edge", "timeoutSeconds": 10, "failurePolicy": "Fail",
                "requestHook": {"apiVersion": "hooks.runtime.cluster.x-k8s.io/v1alpha1", "hook": hook}}],
        },
    });
    change(&mut config);
    let config: ExtensionConfig = serde_json::from_value(config).expect("config");
    Registry::new([&config])
        .handler(hook, &BTreeMap::new())
        .expect("one handler")
        .expect("usable")
        .clone()
}

fn update() -> UpdateMachineRequest {
    UpdateMachineRequest {
        desired: MachineObjects {
            machine: json!({"kind": "Machine", "metadata": {"name": "m"}}),
            infrastructure_machine: json!({"kind": "EdgeMachine"}),
            bootstrap_config: None,
        },
    }
}

async fn fails(answer: Option<(&'static str, String)>, change: impl FnOnce(&mut Value)) -> HookError {
    let server = serve(answer).await;
    HookClient::default()
        .call(&registration(&server, "UpdateMachine", change), &update())
        .await
        .expect_err("it fails")
}

#[tokio::test]
async fn a_call_goes_out_as_cluster_api_sends_it() {
    let answer = json!({"status": "Success", "message": "writing slot B 40%", "retryAfterSeconds": 15});
    let mut server = serve(Some(("200 OK", answer.to_string()))).await;
    let client = HookClient::default();
    let response = client
        .call(&registration(&server, "UpdateMachine", |_| {}), &update())
        .await
        .expect("answered");
    assert_eq!(response.retry_after_seconds, 15);
    let (line, body) = server.requests.recv().await.expect("a request");
    assert_eq!(
        line,
        "POST /prefix/hooks.runtime.cluster.x-k8s.io/v1alpha1/updatemachine/handler?timeout=10s HTTP/1.1"
    );
    assert_eq!(body["kind"], "UpdateMachineRequest");
    assert_eq!(body["settings"], json!({"policy": "external"}));
    assert_eq!(body["desired"]["machine"]["metadata"]["name"], "m");

    let can = CanUpdateMachineRequest::default();
    client
        .call(&registration(&server, "CanUpdateMachine", |_| {}), &can)
        .await
        .expect("the connection can be used again");
}

#[tokio::test]
async fn an_answer_that_says_failure_is_an_error_even_if_failures_are_ignored() {
    let failure = json!({"status": "Failure", "message": "EdgeMachine /spec/disk cannot be changed"});
    let error = fails(Some(("200 OK", failure.to_string())), |config| {
        config["status"]["handlers"][0]["failurePolicy"] = json!("Ignore");
    })
    .await;
    assert_eq!(
        error.to_string(),
        "failed to call extension handler \"Handler.edge\": got failure response with message: EdgeMachine /spec/disk \
         cannot be changed"
    );
    let unknown = fails(Some(("200 OK", json!({"status": "Perhaps"}).to_string())), |_| {}).await;
    assert!(
        unknown
            .to_string()
            .contains("got unknown response status \"Perhaps\""),
        "{unknown}"
    );
}

#[tokio::test]
async fn errors_of_the_transport_are_the_same_every_time() {
    for (answer, expected) in [
        (
            Some(("500 Internal Server Error", "x".repeat(600))),
            format!(
                "got response with status code 500 != 200: response : \"{}...\"",
                "x".repeat(512)
            ),
        ),
        (
            Some(("200 OK", "not json".to_owned())),
            "failed to decode response".to_owned(),
        ),
        // A redirect is not followed.
        (
            Some(("307 Temporary Redirect", String::new())),
            "status code 307 != 200".to_owned(),
        ),
    ] {
        let first = fails(answer.clone(), |_| {}).await;
        let second = fails(answer, |_| {}).await;
        assert!(first.to_string().contains(&expected), "{first}");
        assert_eq!(first, second);
    }
}

#[tokio::test]
async fn an_extension_that_never_answers_is_given_up_after_its_time() {
    let server = serve(None).await;
    let mut slow = registration(&server, "UpdateMachine", |_| {});
    slow.timeout = Duration::from_millis(300);
    let error = HookClient::default()
        .call(&slow, &update())
        .await
        .expect_err("it times out");
    assert!(
        error.to_string().ends_with("http request timeout expired"),
        "{error}"
    );
    // Under Ignore the same is an empty success.
    slow.failure_policy = slipway_capi::view::FailurePolicy::Ignore;
    let ignored = HookClient::default()
        .call(&slow, &update())
        .await
        .expect("ignored");
    assert_eq!(
        (ignored.status.as_str(), ignored.retry_after_seconds),
        ("Success", 0)
    );
}

#[tokio::test]
async fn an_extension_with_another_certificate_is_not_trusted() {
    let other = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("certificate");
    let error = fails(Some(("200 OK", "{}".to_owned())), |config| {
        config["spec"]["clientConfig"]["caBundle"] = json!(STANDARD.encode(other.cert.pem()));
    })
    .await;
    assert!(matches!(error, HookError::Call { .. }), "{error:?}");
}

#[tokio::test]
async fn an_address_that_cannot_be_called_is_named() {
    for (client_config, expected) in [
        (
            json!({"caBundle": "QQ==", "url": "http://x"}),
            "expected https scheme, got http",
        ),
        (json!({"caBundle": "QQ=="}), "at least one of service and url"),
        (
            json!({"caBundle": "QQ==", "url": "https://x"}),
            "caBundle holds no PEM certificates",
        ),
        (
            json!({"caBundle": "%", "url": "https://x"}),
            "caBundle is not base64",
        ),
    ] {
        let error = fails(Some(("200 OK", String::new())), |config| {
            config["spec"]["clientConfig"] = client_config;
        })
        .await;
        assert!(matches!(&error, HookError::Address { .. }), "{error:?}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}
