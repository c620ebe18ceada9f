//! The endpoint of a cluster: a load balancer that hands each connection to a server that is up, and what that server
//! answers: the Kubernetes API to people with a certificate, the supervisor to those who know the token.

use std::{io, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use serde_json::{Value, json};
use slipway_apiserver_sim::ResponseBody;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::{
    certificates,
    cluster::{Backend, Cluster},
};

const LARGEST_BODY: usize = 4 << 20;
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

pub async fn accept(cluster: Arc<Cluster>, listener: TcpListener) {
    loop {
        let stream = tokio::select! {
            () = cluster.stop.cancelled() => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "A simulated cluster cannot accept a connection");
                    // Out of file descriptors, most likely: somebody has to give one back first.
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                    continue;
                }
            },
        };
        // Nobody is up: the connection is closed as a load balancer without targets closes it.
        if let Some(backend) = cluster.next_backend() {
            tokio::spawn(connection(Arc::clone(&cluster), stream, backend));
        }
    }
}

async fn connection(cluster: Arc<Cluster>, stream: TcpStream, backend: Backend) {
    let (up, stop) = (backend.up.clone(), cluster.stop.clone());
    let served = async {
        let _ = stream.set_nodelay(true);
        let stream = TlsAcceptor::from(backend.tls).accept(stream).await?;
        let certificates = stream.get_ref().1.peer_certificates();
        let client = certificates
            .and_then(<[_]>::first)
            .and_then(certificates::Identity::of);
        let service = service_fn(move |request| {
            let (cluster, client) = (Arc::clone(&cluster), client.clone());
            async move { Ok::<_, io::Error>(answer(&cluster, client.as_ref(), request).await) }
        });
        auto::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), service)
            .await
            .map_err(io::Error::other)
    };
    tokio::select! {
        () = up.cancelled() => {}
        () = stop.cancelled() => {}
        served = served => if let Err(error) = served {
            tracing::debug!(%error, "A connection to a simulated cluster ended");
        }
    }
}

/// What anybody may ask.
fn open_to_all(cluster: &Cluster, path: &str, headers: &HeaderMap) -> Option<Response<ResponseBody>> {
    Some(match path {
        "/ping" => plain(StatusCode::OK, "pong"),
        "/cacerts" => whole(StatusCode::OK, "text/plain", cluster.ca()),
        "/db/info" => supervisor(cluster, headers),
        "/healthz" | "/livez" | "/readyz" => match cluster.apiserver() {
            Some(_) => plain(StatusCode::OK, "ok"),
            None => plain(
                StatusCode::INTERNAL_SERVER_ERROR,
                "[-]etcd failed: reason withheld",
            ),
        },
        "/version" => json_answer(StatusCode::OK, &version(&cluster.version())),
        _ => return None,
    })
}

fn kubelet_health(cluster: &Cluster, node: &str) -> Response<ResponseBody> {
    if cluster.reaches_kubelet(node) {
        return plain(StatusCode::OK, "ok");
    }
    refusal(
        StatusCode::SERVICE_UNAVAILABLE,
        "ServiceUnavailable",
        "error trying to reach service: failed to find Session for client",
    )
}

async fn answer(
    cluster: &Cluster,
    client: Option<&certificates::Identity>,
    request: Request<Incoming>,
) -> Response<ResponseBody> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let agent = parts.headers.get(header::USER_AGENT);
    let agent = agent.and_then(|agent| agent.to_str().ok()).unwrap_or("unknown");
    let is_watch = parts.uri.query().is_some_and(|query| {
        query
            .split('&')
            .any(|part| part == "watch=true" || part == "watch=1")
    });
    let what = what(&parts.method, &path, is_watch);
    cluster.count(agent.split(['/', ' ']).next().unwrap_or("unknown"), &what);

    if let Some(answer) = open_to_all(cluster, &path, &parts.headers) {
        return answer;
    }
    // Servers are told to let anonymous clients in, who may do next to nothing.
    let Some(client) = client else {
        return refusal(
            StatusCode::FORBIDDEN,
            "Forbidden",
            &anonymous(&parts.method, &path, is_watch),
        );
    };
    if !client.is_administrator() {
        let message = format!("User {:?} cannot {what}", client.user);
        return refusal(StatusCode::FORBIDDEN, "Forbidden", &message);
    }
    let Some(apiserver) = cluster.apiserver() else {
        return refusal(
            StatusCode::INTERNAL_SERVER_ERROR,
            "InternalError",
            "etcdserver: request timed out",
        );
    };
    if let Some(node) = path
        .strip_prefix("/api/v1/nodes/")
        .and_then(|rest| rest.strip_suffix("/proxy/healthz"))
    {
        return kubelet_health(cluster, node);
    }
    if path == "/" {
        return json_answer(
            StatusCode::OK,
            &json!({"paths": ["/api", "/api/v1", "/apis", "/version"]}),
        );
    }
    let Ok(body) = Limited::new(body, LARGEST_BODY).collect().await else {
        return refusal(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestEntityTooLarge",
            "the body is too large",
        );
    };
    let mut body = body.to_bytes();
    let content_type = parts.headers.get(header::CONTENT_TYPE);
    let is_protobuf =
        content_type.is_some_and(|value| value.to_str().is_ok_and(|value| value.starts_with(PROTOBUF)));
    let mut parts = parts;
    if is_protobuf && !body.is_empty() {
        if parts.method != Method::DELETE {
            return refusal(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "UnsupportedMediaType",
                "the simulated apiserver reads JSON only",
            );
        }
        // The options of a deletion: what they ask for besides is not simulated.
        body = Bytes::new();
    }
    // An eviction ends in a deletion; there is nobody to ask for grace.
    if parts.method == Method::POST
        && let Some(pod) = path.strip_suffix("/eviction")
    {
        parts.method = Method::DELETE;
        parts.uri = pod.parse().unwrap_or_default();
        body = Bytes::new();
    }
    let writes_nodes = parts.method != Method::GET && path.starts_with("/api/v1/nodes");
    let request = Request::from_parts(parts, kube::client::Body::from(body.to_vec()));
    let answer = apiserver.respond(request).await;
    if writes_nodes {
        cluster.node_written();
    }
    answer.unwrap_or_else(|error| {
        refusal(
            StatusCode::INTERNAL_SERVER_ERROR,
            "InternalError",
            &error.to_string(),
        )
    })
}

/// `LIST nodes`, `PATCH nodes`, `GET /db/info`: what a request asks for, without names.
fn what(method: &Method, path: &str, is_watch: bool) -> String {
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    let rest = match segments.as_slice() {
        ["api", _, "namespaces", _, rest @ ..] | ["apis", _, _, "namespaces", _, rest @ ..]
            if !rest.is_empty() =>
        {
            rest
        }
        ["api", _, rest @ ..] | ["apis", _, _, rest @ ..] if !rest.is_empty() => rest,
        _ => return format!("{method} {path}"),
    };
    let verb = match (method.as_str(), rest.len()) {
        ("GET", _) if is_watch => "WATCH",
        ("GET", 1) => "LIST",
        (other, _) => other,
    };
    format!("{verb} {}", rest[0])
}

/// Why an anonymous client is refused.
fn anonymous(method: &Method, path: &str, is_watch: bool) -> String {
    let what = what(method, path, is_watch);
    match what.split_once(' ') {
        Some((verb, resource)) if !resource.starts_with('/') => format!(
            "{resource} is forbidden: User \"system:anonymous\" cannot {} resource \"{resource}\" in API group \"\" at the cluster scope",
            verb.to_lowercase()
        ),
        _ => format!(
            "forbidden: User \"system:anonymous\" cannot {} path {path:?}",
            method.as_str().to_lowercase()
        ),
    }
}

fn supervisor(cluster: &Cluster, headers: &HeaderMap) -> Response<ResponseBody> {
    let basic = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok()?.strip_prefix("Basic "))
        .and_then(|text| STANDARD.decode(text).ok())
        .and_then(|bytes| String::from_utf8(bytes).ok());
    let token = basic.as_deref().and_then(|basic| basic.strip_prefix("server:"));
    if !token.is_some_and(|token| cluster.is_server_token(token)) {
        return refusal(StatusCode::FORBIDDEN, "Forbidden", "forbidden");
    }
    match cluster.members() {
        Some(members) => json_answer(StatusCode::OK, &members),
        None => refusal(
            StatusCode::INTERNAL_SERVER_ERROR,
            "InternalError",
            "Internal error occurred: failed to get etcd MemberList: context deadline exceeded",
        ),
    }
}

fn version(version: &str) -> Value {
    let mut numbers = version.trim_start_matches('v').split('.');
    let mut next = || numbers.next().unwrap_or_default().to_owned();
    let (major, minor) = (next(), next());
    let before = minor
        .parse::<u32>()
        .unwrap_or_default()
        .saturating_sub(1)
        .to_string();
    json!({"major": major, "minor": minor, "emulationMajor": major, "emulationMinor": minor,
        "minCompatibilityMajor": major, "minCompatibilityMinor": before, "gitVersion": version, "gitCommit": "",
        "gitTreeState": "clean", "buildDate": "", "goVersion": "", "compiler": "gc", "platform": "linux/amd64"})
}

fn refusal(code: StatusCode, reason: &str, message: &str) -> Response<ResponseBody> {
    json_answer(
        code,
        &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "code": code.as_u16()}),
    )
}

fn json_answer(code: StatusCode, body: &Value) -> Response<ResponseBody> {
    whole(code, "application/json", body.to_string())
}

fn plain(code: StatusCode, text: &str) -> Response<ResponseBody> {
    whole(code, "text/plain; charset=utf-8", text.to_owned())
}

fn whole(code: StatusCode, content_type: &'static str, text: String) -> Response<ResponseBody> {
    let body = Full::new(Bytes::from(text)).map_err(|never| match never {});
    let mut response = Response::new(BodyExt::boxed_unsync(body));
    *response.status_mut() = code;
    let value = http::HeaderValue::from_static(content_type);
    response.headers_mut().insert(header::CONTENT_TYPE, value);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_what_they_ask_for() {
        let of = |method: Method, path: &str| what(&method, path, false);
        assert_eq!(of(Method::GET, "/api/v1/nodes"), "LIST nodes");
        assert_eq!(of(Method::PATCH, "/api/v1/nodes/a"), "PATCH nodes");
        assert_eq!(
            of(Method::GET, "/api/v1/namespaces/kube-system/secrets/s"),
            "GET secrets"
        );
        assert_eq!(of(Method::GET, "/api/v1/namespaces/x"), "GET namespaces");
        assert_eq!(of(Method::GET, "/db/info"), "GET /db/info");
        assert_eq!(what(&Method::GET, "/api/v1/nodes", true), "WATCH nodes");
    }
}
