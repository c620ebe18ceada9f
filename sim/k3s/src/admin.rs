//! The admin interface, plain HTTP on loopback for people and other processes: what runs, who asked for what, and
//! power switches. `GET /clusters`, `POST /clusters/NAME/hosts/MACHINE/{kill,revive}`.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{cluster::Cluster, simulator::Simulator};

pub async fn serve(simulator: Weak<Simulator>, listener: TcpListener, stop: CancellationToken) {
    loop {
        let stream = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(_) => continue,
            },
        };
        let simulator = simulator.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let (status, body) = match simulator.upgrade() {
                    Some(simulator) => route(&simulator, request.method(), request.uri().path()),
                    None => (StatusCode::GONE, json!({"error": "the simulator has ended"})),
                };
                let mut answer = Response::new(Full::new(Bytes::from(format!("{body}\n"))));
                *answer.status_mut() = status;
                std::future::ready(Ok::<_, std::convert::Infallible>(answer))
            });
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

fn route(simulator: &Arc<Simulator>, method: &Method, path: &str) -> (StatusCode, Value) {
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    let not_found = |what: &str| {
        (
            StatusCode::NOT_FOUND,
            json!({"error": format!("there is no {what}; try GET /clusters")}),
        )
    };
    // A cluster's name has its namespace in it.
    match (method.as_str(), segments.as_slice()) {
        ("GET", ["clusters"]) => {
            let all: serde_json::Map<String, Value> = simulator
                .clusters()
                .iter()
                .map(|cluster| (cluster.name.clone(), describe(cluster)))
                .collect();
            (StatusCode::OK, Value::Object(all))
        }
        (
            "POST",
            [
                "clusters",
                name @ ..,
                "hosts",
                machine,
                action @ ("kill" | "revive" | "cut" | "mend"),
            ],
        ) => {
            let name = name.join("/");
            let Some(cluster) = simulator.get(&name) else {
                return not_found(&format!("cluster {name}"));
            };
            let found = match *action {
                "kill" => cluster.kill(machine),
                "cut" => cluster.cut(machine),
                "mend" => cluster.mend(machine),
                _ => cluster.revive(machine),
            };
            if found {
                (StatusCode::OK, describe(&cluster))
            } else {
                not_found(&format!("host {machine} in cluster {name}"))
            }
        }
        _ => not_found("such path"),
    }
}

fn describe(cluster: &Cluster) -> Value {
    let hosts = cluster.hosts();
    let mut shown = cluster.look(|model| {
        let of = |node: &String| {
            let host = model.hosts.get(node);
            let member = model.members.iter().find(|member| member.host == *node);
            json!({
                "node": node,
                "alive": host.is_some_and(|host| host.alive),
                "version": host.map(|host| host.version.clone()),
                "member": member.map(|member| if member.learner { "learner" } else { "voter" }),
                "leader": member.is_some_and(|member| model.leader == Some(member.id)),
            })
        };
        let hosts: serde_json::Map<String, Value> = hosts
            .iter()
            .map(|(machine, node)| (machine.clone(), of(node)))
            .collect();
        json!({
            "endpoint": format!("https://{}", cluster.endpoint),
            "hosts": hosts,
            "voters": model.voters(),
            "healthyVoters": model.healthy_voters(),
            "quorum": model.has_quorum(),
        })
    });
    let failures: serde_json::Map<String, Value> = cluster
        .failures()
        .into_iter()
        .map(|(machine, error)| (machine, json!(error.to_string())))
        .collect();
    shown["failures"] = Value::Object(failures);
    shown["requests"] = json!(cluster.requests());
    shown
}
