//! How the controllers reach the workload cluster: its apiserver in memory and the simulated supervisor.

use std::sync::Arc;

use http_body_util::BodyExt;
use serde_json::{Value, json};
use slipway_apiserver_sim::faults::{Fate, Faults};
use slipway_k3s_sim::model;
use slipway_runtime::workload::Connector;

use super::Environment;

impl Environment {
    /// How the controllers reach the workload cluster: through its apiserver in memory and the simulated supervisor, both
    /// counted, and both failing where the faults or the recorder say so.
    pub fn connector(&self, faults: &Faults) -> Connector {
        let (environment, faults) = (self.clone(), faults.clone());
        Arc::new(move |_, config| {
            let host = config.cluster_url.host().unwrap_or_default();
            // Only the supervisor knows users by a password; at a host's address is one server.
            Ok(if config.auth_info.password.is_some() {
                environment.supervisor(faults.clone())
            } else if environment
                .model
                .lock()
                .hosts
                .values()
                .any(|one| one.address == host)
            {
                environment.server_at(host, faults.clone())
            } else {
                environment.guarded(environment.workload.client_with(faults.clone()))
            })
        })
    }

    fn is_down(&self) -> bool {
        let mut recorder = self.recorder.lock();
        recorder.workload_requests += 1;
        recorder.unreachable || !self.model.lock().has_quorum()
    }

    /// The same client, refused while the plane is down.
    fn guarded(&self, client: kube::Client) -> kube::Client {
        let environment = self.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (environment, client) = (environment.clone(), client.clone());
            async move {
                if environment.is_down() {
                    return Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
                }
                let is_watch = request
                    .uri()
                    .query()
                    .is_some_and(|query| query.contains("watch=true"));
                if is_watch && environment.recorder.lock().mute {
                    return std::future::pending().await;
                }
                if let Some(answer) = environment.kubelet(request.uri().path()) {
                    return Ok(answer);
                }
                client.send(request).await.map_err(std::io::Error::other)
            }
        });
        kube::Client::new(service, "default")
    }

    /// What the kubelet of a node answers through the endpoint, if it is one that is asked.
    fn kubelet(&self, path: &str) -> Option<http::Response<kube::client::Body>> {
        let node = path
            .strip_prefix("/api/v1/nodes/")?
            .strip_suffix("/proxy/healthz")?;
        let model = self.model.lock();
        let up = model.hosts.get(node).is_some_and(model::Host::is_connected);
        let mut answer = http::Response::new(kube::client::Body::from(b"ok".to_vec()));
        if !up {
            *answer.status_mut() = http::StatusCode::SERVICE_UNAVAILABLE;
        }
        Some(answer)
    }

    /// `/readyz` of the server at an address.
    fn server_at(&self, address: &str, faults: Faults) -> kube::Client {
        let (environment, address) = (self.clone(), address.to_owned());
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (environment, faults, address) = (environment.clone(), faults.clone(), address.clone());
            async move {
                assert_eq!(request.uri().path(), "/readyz");
                let refused = || Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
                match faults.external("get /readyz", false).await {
                    Fate::Pass => {}
                    Fate::Refuse(_) | Fate::Lose | Fate::LoseAnswer => return refused(),
                    Fate::Hang | Fate::HangAnswer => std::future::pending().await,
                }
                if environment.recorder.lock().unreachable {
                    return refused();
                }
                let model = environment.model.lock();
                let mut hosts = model.hosts.iter();
                let Some((name, _)) = hosts.find(|(_, host)| host.address == address && host.is_connected())
                else {
                    return refused();
                };
                let votes = model
                    .members
                    .iter()
                    .any(|member| member.host == *name && !member.learner);
                let (status, text) = if votes && model.has_quorum() {
                    (http::StatusCode::OK, "ok")
                } else {
                    (
                        http::StatusCode::INTERNAL_SERVER_ERROR,
                        "[-]etcd failed: reason withheld",
                    )
                };
                let body = http_body_util::Full::new(bytes::Bytes::from(text)).boxed();
                let mut answer = http::Response::new(body);
                *answer.status_mut() = status;
                Ok(answer)
            }
        });
        kube::Client::new(service, "default")
    }

    /// `/db/info`, as the supervisor answers it.
    fn supervisor(&self, faults: Faults) -> kube::Client {
        let environment = self.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (environment, faults) = (environment.clone(), faults.clone());
            async move {
                assert_eq!(request.uri().path(), "/db/info");
                let refused = || Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
                if environment.is_down() {
                    return refused();
                }
                match faults.external("get /db/info", false).await {
                    Fate::Pass => {}
                    Fate::Refuse(_) | Fate::Lose | Fate::LoseAnswer => return refused(),
                    Fate::Hang | Fate::HangAnswer => std::future::pending().await,
                }
                let members: Vec<Value> = environment
                    .model
                    .lock()
                    .members
                    .iter()
                    .map(|member| {
                        json!({"ID": member.id, "name": member.name, "isLearner": member.learner,
                            "peerURLs": [format!("https://{}:2380", member.address)]})
                    })
                    .collect();
                let body = json!({"members": members}).to_string();
                let body = http_body_util::Full::new(bytes::Bytes::from(body)).boxed();
                Ok(http::Response::new(body))
            }
        });
        kube::Client::new(service, "default")
    }
}
