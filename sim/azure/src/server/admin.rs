//! The admin port: what the library's methods do, over plain HTTP for other processes.

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;
use http::Method;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::{Answer, LARGEST_BODY, Shared};
use crate::{entra::Application, fault::Fault, settings::Settings};

pub async fn serve(stream: TcpStream, shared: Shared) {
    let service = service_fn(move |request| handle(request, shared.clone()));
    let served = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "admin connection ended");
    }
}

async fn handle(request: hyper::Request<Incoming>, shared: Shared) -> Answer {
    let (parts, body) = request.into_parts();
    let body = match Limited::new(body, LARGEST_BODY).collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => {
            return Ok(json_answer(
                413,
                &problem("the body is larger than 4 MB or was cut off"),
            ));
        }
    };
    let query: HashMap<String, String> =
        url::form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes())
            .into_owned()
            .collect();
    let path = parts.uri.path().trim_matches('/');
    let path = path.strip_prefix("admin/").unwrap_or(path);
    let (status, answer) = match route(&parts.method, path, &query, &body, &shared) {
        Ok(answer) => (200, answer),
        Err(Refused { status, why }) => (status, problem(&why)),
    };
    shared.changed.notify_waiters();
    Ok(json_answer(status, &answer))
}

fn problem(why: &str) -> Value {
    json!({"error": why})
}

fn json_answer(status: u16, body: &Value) -> hyper::Response<Full<Bytes>> {
    let mut response = hyper::Response::new(Full::new(Bytes::from(format!("{body}\n"))));
    *response.status_mut() = http::StatusCode::from_u16(status).unwrap_or(http::StatusCode::BAD_REQUEST);
    response.headers_mut().insert(
        http::header::CONTENT_TYPE,
        http::HeaderValue::from_static("application/json"),
    );
    response
}

struct Refused {
    status: u16,
    why: String,
}

fn read<T: for<'a> Deserialize<'a>>(body: &Bytes, what: &str) -> Result<T, Refused> {
    serde_json::from_slice(body).map_err(|error| Refused {
        status: 400,
        why: format!("the body must be {what} in JSON: {error}"),
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Advance {
    advance_seconds: f64,
}

#[derive(Deserialize)]
struct Backing {
    /// Every cluster that has no API server of its own, where none is named.
    cluster: Option<String>,
    kubeconfig: String,
}

#[derive(Deserialize)]
struct PoolCount {
    pool: String,
    count: u64,
}

#[derive(Deserialize)]
struct PolicyTarget {
    cluster: String,
}

/// An application as people write it: with its secret and certificate in clear.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NewApplication {
    #[serde(flatten)]
    application: Application,
    #[serde(default)]
    secret: Option<String>,
    #[serde(default)]
    certificate_pem: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Issuer {
    issuer: String,
    key_set: Value,
}

fn change_settings(shared: &Shared, changes: &Value) -> Result<Value, Refused> {
    let mut azure = shared.simulator.azure();
    let mut merged = json!(azure.settings);
    if let (Some(merged), Some(changes)) = (merged.as_object_mut(), changes.as_object()) {
        merged.extend(changes.clone());
    }
    azure.settings = serde_json::from_value::<Settings>(merged).map_err(|error| Refused {
        status: 400,
        why: format!("settings: {error}"),
    })?;
    Ok(json!(azure.settings))
}

fn register(shared: &Shared, new: NewApplication) -> Value {
    let mut application = Application {
        object_id: new.application.object_id.clone(),
        ..Application::new(&new.application.client_id)
    };
    if application.object_id.is_empty() {
        application.object_id = crate::entra::object_id_of(&application.client_id);
    }
    application.tenant = new.application.tenant;
    application.federated = new.application.federated;
    if let Some(secret) = &new.secret {
        application = application.secret(secret);
    }
    if let Some(pem) = &new.certificate_pem {
        application = application.certificate_pem(pem);
    }
    let object_id = application.object_id.clone();
    shared.simulator.azure().directory_mut().register(application);
    json!({"objectId": object_id})
}

fn nodes(shared: &Shared, cluster: &str) -> Value {
    let nodes: Vec<Value> = shared
        .simulator
        .azure()
        .nodes(cluster)
        .into_iter()
        .map(|node| json!({"name": node.name, "providerID": node.provider_id, "pool": node.pool}))
        .collect();
    json!({"nodes": nodes})
}

/// What was asked for is done, unless it is about something that is not there.
fn found(is_there: bool, what: &str, id: &str) -> Result<Value, Refused> {
    if is_there {
        return Ok(json!({"done": true}));
    }
    Err(Refused {
        status: 404,
        why: format!("there is no {what} {id}"),
    })
}

fn route(
    method: &Method,
    path: &str,
    query: &HashMap<String, String>,
    body: &Bytes,
    shared: &Shared,
) -> Result<Value, Refused> {
    let simulator = &shared.simulator;
    let done = || json!({"done": true});
    match (method, path) {
        (&Method::GET, "healthz" | "") => Ok(json!({"ok": true})),
        (&Method::GET, "ca") => Ok(json!({"pem": shared.ca.certificate_pem()})),
        (&Method::GET, "summary") => Ok(simulator.azure().summary()),
        (&Method::GET, "state") => serde_json::to_value(simulator.azure().state()).map_err(|error| Refused {
            status: 500,
            why: error.to_string(),
        }),
        (&Method::POST, "reset") => {
            match query.get("subscription") {
                Some(subscription) => simulator.azure().reset_subscription(subscription),
                None => simulator.azure().reset(),
            }
            Ok(done())
        }
        (&Method::GET, "requests") => Ok(requests(shared, query)),
        (&Method::DELETE, "requests") => {
            simulator.azure().forget_requests();
            Ok(done())
        }
        (&Method::GET, "faults") => Ok(json!({"faults": simulator.azure().faults()})),
        (&Method::POST, "faults") => {
            simulator.azure().add_fault(read::<Fault>(body, "a fault")?);
            Ok(done())
        }
        (&Method::DELETE, "faults") => {
            simulator.azure().clear_faults();
            Ok(done())
        }
        (&Method::GET, "clock") => Ok(json!({"now": simulator.now().to_string()})),
        (&Method::POST, "clock") => {
            let advance: Advance = read(body, "{\"advanceSeconds\": …}")?;
            let by = Duration::try_from_secs_f64(advance.advance_seconds).map_err(|error| Refused {
                status: 400,
                why: format!("advanceSeconds: {error}"),
            })?;
            simulator.advance(by);
            Ok(json!({"now": simulator.now().to_string()}))
        }
        (&Method::GET, "settings") => Ok(json!(simulator.azure().settings)),
        (&Method::PATCH, "settings") => change_settings(shared, &read(body, "settings")?),
        (&Method::POST, "applications") => Ok(register(shared, read(body, "an application")?)),
        (&Method::POST, "issuers") => {
            let issuer: Issuer = read(body, "{\"issuer\": …, \"keySet\": …}")?;
            simulator
                .azure()
                .directory_mut()
                .trust_issuer(&issuer.issuer, issuer.key_set);
            Ok(done())
        }
        (&Method::POST, "backing") => {
            let backing: Backing = read(body, "{\"cluster\": …, \"kubeconfig\": …}")?;
            match &backing.cluster {
                Some(cluster) => simulator.azure().back_cluster(cluster, &backing.kubeconfig),
                None => simulator.azure().back_all_clusters(&backing.kubeconfig),
            }
            Ok(done())
        }
        (&Method::POST, "pools") => {
            let pool: PoolCount = read(body, "{\"pool\": …, \"count\": …}")?;
            let is_there = simulator.azure().set_pool_count(&pool.pool, pool.count);
            found(is_there, "agent pool", &pool.pool)
        }
        (&Method::POST, "policy") => {
            let target: PolicyTarget = read(body, "{\"cluster\": …}")?;
            let is_there = simulator.azure().enable_policy_addon(&target.cluster);
            found(is_there, "managed cluster", &target.cluster)
        }
        (&Method::GET, "nodes") => Ok(nodes(shared, query.get("cluster").map_or("", String::as_str))),
        _ => Err(Refused {
            status: 404,
            why: format!("{method} /{path} is not part of the admin port"),
        }),
    }
}

/// Remembered requests, by `method`, part of the `path`, and number of the first (`since`).
fn requests(shared: &Shared, query: &HashMap<String, String>) -> Value {
    let part = query.get("path").map(|part| part.to_ascii_lowercase());
    let since = query
        .get("since")
        .and_then(|since| since.parse().ok())
        .unwrap_or(0);
    let azure = shared.simulator.azure();
    let found: Vec<Value> = azure
        .requests()
        .skip(since)
        .filter(|request| query.get("method").is_none_or(|method| *method == request.method))
        .filter(|request| {
            part.as_ref()
                .is_none_or(|part| request.path.to_ascii_lowercase().contains(part))
        })
        .map(|request| {
            let mut shown = json!(request);
            if query.contains_key("bodies") {
                shown["body"] = request.body_json();
            }
            shown
        })
        .collect();
    json!({"count": found.len(), "requests": found})
}
