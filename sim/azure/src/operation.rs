//! Long-running operations: how they are announced, what a poll answers, and when they end. What an ending does
//! to the resource is in [`crate::ending`].

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::wire::Response;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Operation {
    pub id: String,
    pub style: Style,
    /// `create`, `update`, `delete`, `scale`, `upgrade`, …
    pub verb: String,
    /// Lower-case id of the resource it works on.
    pub target: String,
    /// The same as the caller spelled it.
    pub target_id: String,
    /// Short type name, such as `agentPools`.
    pub kind: String,
    pub api_version: String,
    pub started: Timestamp,
    pub ends: Timestamp,
    /// What it will fail with.
    pub failure: Option<Value>,
    /// An error that is reported although the operation goes on and succeeds.
    pub note: Option<Value>,
    /// Nodes the operation makes ready one by one, for progress texts.
    pub nodes: u64,
    pub finished: bool,
}

/// Where an operation is polled and what its body looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Style {
    /// `/subscriptions/{s}/operationresults/{job}`, 202 until 200, no body.
    ResourceGroups,
    /// `…/Microsoft.ContainerService/locations/{l}/operations/{id}`: name, status, times.
    ContainerService,
    /// `…/Microsoft.Network/locations/{l}/operations/{id}`: status alone, with Retry-After while it runs.
    Network,
    /// `{resource}/operations/{id}`: id, name, and the resource's own state as status.
    Extension,
    /// `…/Microsoft.Compute/locations/{l}/operations/{id}`.
    Compute,
    /// `…/Microsoft.Storage/locations/{l}/asyncoperations/{id}`: 202 until 200, which shows the resource.
    Storage,
    /// `{group}/providers/Microsoft.Network/privateDnsOperationStatuses/{id}`: 202 with its status until 200.
    PrivateDns,
    /// `…/Microsoft.MachineLearningServices/locations/{l}/workspaceOperationsStatus/{id}`.
    MachineLearning,
}

/// The links an accepted request answers with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Links {
    pub asynchronous: bool,
    /// The API version that began to send the Azure-AsyncOperation link.
    pub asynchronous_from: Option<&'static str>,
    pub location: bool,
    pub retry_after: Option<u64>,
}

impl Operation {
    pub fn is_over(&self, now: Timestamp) -> bool {
        now >= self.ends
    }

    /// The two URLs of the operation; the query carries an opaque signature that must come back unchanged.
    pub fn links(&self, authority: &str, location: &str) -> (String, String) {
        let (subscription, signature) = (self.subscription(), self.signature());
        let base = format!("https://{authority}/subscriptions/{subscription}");
        match self.style {
            Style::ResourceGroups => {
                let url = format!(
                    "{base}/operationresults/{}?api-version=2020-06-01&{signature}",
                    self.id
                );
                (url.clone(), url)
            }
            Style::Extension => {
                let url = format!(
                    "https://{authority}{}/operations/{}?api-version={}&{signature}",
                    self.target_id, self.id, self.api_version
                );
                (url.clone(), url)
            }
            Style::Storage => {
                let url = format!(
                    "{base}/providers/Microsoft.Storage/locations/{location}/asyncoperations/{}?monitor=true&api-version={}&{signature}",
                    self.id, self.api_version
                );
                (url.clone(), url)
            }
            Style::PrivateDns => {
                let group = self.target_id.split('/').nth(4).unwrap_or_default();
                let link = |word: &str| {
                    format!(
                        "{base}/resourceGroups/{group}/providers/Microsoft.Network/privateDnsOperation{word}/{}?api-version={}&{signature}",
                        self.id, self.api_version
                    )
                };
                (link("Statuses"), link("Results"))
            }
            Style::MachineLearning => {
                let link = |kind: &str| {
                    format!(
                        "{base}/providers/Microsoft.MachineLearningServices/locations/{location}/workspaceOperationsStatus/{}?api-version={}&type={kind}&{signature}",
                        self.id, self.api_version
                    )
                };
                (link("async"), link("location"))
            }
            Style::ContainerService | Style::Network | Style::Compute => {
                let namespace = match self.style {
                    Style::ContainerService => "Microsoft.ContainerService",
                    Style::Network => "Microsoft.Network",
                    _ => "Microsoft.Compute",
                };
                let version = match self.style {
                    Style::ContainerService if self.api_version.as_str() < "2025" => "2016-03-30",
                    Style::ContainerService => "2025-03-01",
                    _ => self.api_version.as_str(),
                };
                let base = format!("{base}/providers/{namespace}/locations/{location}");
                (
                    format!("{base}/operations/{}?api-version={version}&{signature}", self.id),
                    format!(
                        "{base}/operationresults/{}?api-version={version}&{signature}",
                        self.id
                    ),
                )
            }
        }
    }

    /// Stands for the signed query ARM adds; a poll without it is refused.
    pub fn signature(&self) -> String {
        let stamp = self.started.as_millisecond();
        let sum: u64 = self.id.bytes().fold(14_695_981_039_346_656_037, |sum, byte| {
            (sum ^ u64::from(byte)).wrapping_mul(1_099_511_628_211)
        });
        format!(
            "t={stamp}&c=c2ltdWxhdGVk&s={sum:016x}&h={:08x}",
            sum.rotate_left(17) as u32
        )
    }

    fn subscription(&self) -> &str {
        self.target.split('/').nth(2).unwrap_or_default()
    }

    /// Adds the links of the operation to the answer that starts it.
    pub fn announce(
        &self,
        mut response: Response,
        links: Links,
        authority: &str,
        location: &str,
    ) -> Response {
        let (asynchronous, result) = self.links(authority, location);
        let since = links
            .asynchronous_from
            .is_some_and(|from| self.api_version.as_str() >= from);
        if links.asynchronous || since {
            response = response.with("azure-asyncoperation", &asynchronous);
        }
        if links.location {
            response = response.with("location", &result);
        }
        if let Some(seconds) = links.retry_after {
            response = response.with("retry-after", &seconds.to_string());
        }
        response.with("x-ms-operation-identifier", &self.id)
    }

    /// The answer to a poll of the Azure-AsyncOperation URL.
    pub fn status(&self, now: Timestamp) -> Response {
        let over = self.is_over(now);
        let outcome = if self.failure.is_some() {
            "Failed"
        } else {
            "Succeeded"
        };
        match self.style {
            Style::Network => {
                let mut body = json!({"status": if over { outcome } else { "InProgress" }});
                if let (true, Some(error)) = (over, &self.failure) {
                    body["error"] = error.clone();
                }
                let response = Response::json(200, &body);
                if over {
                    return response;
                }
                let left = self.ends.duration_since(now).as_secs().clamp(1, 160);
                response.with("retry-after", &(if left > 10 { 20 } else { 10 }).to_string())
            }
            Style::PrivateDns | Style::MachineLearning => {
                let mut body = json!({"status": if over { outcome } else { "InProgress" }});
                if let (true, Some(error)) = (over, &self.failure) {
                    body["error"] = error.clone();
                } else if over && self.style == Style::MachineLearning {
                    body["percentComplete"] = 100.0.into();
                }
                Response::json(200, &body)
            }
            Style::Extension => {
                let running = match self.verb.as_str() {
                    "delete" => "Deleting",
                    "update" => "Updating",
                    _ => "Creating",
                };
                let mut body = json!({
                    "id": format!("{}/operations/{}", self.target_id, self.id),
                    "name": self.id,
                    "status": if over { outcome } else { running },
                });
                if let (true, Some(error)) = (over, &self.failure) {
                    body["error"] = error.clone();
                }
                Response::json(200, &body)
            }
            Style::ContainerService | Style::Compute | Style::ResourceGroups | Style::Storage => {
                let mut body = json!({
                    "name": self.id,
                    "status": if over { outcome.to_owned() } else { self.progress(now) },
                    "startTime": self.started.to_string(),
                });
                if over {
                    body["endTime"] = self.ends.to_string().into();
                }
                if let (true, Some(error)) = (over, &self.failure) {
                    body["error"] = error.clone();
                } else if let Some(note) = &self.note {
                    body["error"] = note.clone();
                }
                let response = Response::json(200, &body);
                if self.style == Style::Compute && !over {
                    return response.with("retry-after", "35");
                }
                response
            }
        }
    }

    /// The answer to a poll of the Location URL.
    pub fn result(&self, now: Timestamp, authority: &str, location: &str) -> Response {
        let (_, link) = self.links(authority, location);
        if !self.is_over(now) {
            let response = match self.style {
                Style::ContainerService => Response::json(
                    202,
                    &json!({
                        "name": self.id,
                        "status": "InProgress",
                        "startTime": self.started.to_string(),
                        "progress": {"currentStep": ""},
                    }),
                ),
                Style::ResourceGroups => Response::empty(202).with("retry-after", "15"),
                Style::Storage => Response::empty(202).with("retry-after", "17"),
                _ => Response::empty(202).with("retry-after", "10"),
            };
            return response.with("location", &link);
        }
        if let Some(error) = &self.failure {
            return Response::json(409, &json!({"error": error}));
        }
        match self.style {
            Style::ResourceGroups => Response::empty(200),
            _ => Response::empty(204).with("location", &link),
        }
    }

    /// Older service versions say InProgress; newer ones tell in free text how far they are.
    fn progress(&self, now: Timestamp) -> String {
        if self.style != Style::ContainerService || self.api_version.as_str() < "2025" {
            return "InProgress".to_owned();
        }
        let steps: &[(f64, &str)] = match (self.kind.as_str(), self.verb.as_str()) {
            ("managedClusters", "create") => CLUSTER_CREATED,
            ("managedClusters", "update") => CLUSTER_UPDATED,
            ("agentPools", "create" | "scale") if self.nodes > 0 => POOL_CREATED,
            ("agentPools", "upgrade") if self.nodes > 0 => POOL_UPGRADED,
            _ => &[(0.0, "InProgress")],
        };
        let elapsed = now.duration_since(self.started).as_secs_f64() / self.pace(steps);
        let step = steps
            .iter()
            .rev()
            .find(|(from, _)| *from <= elapsed)
            .map_or("InProgress", |(_, step)| *step);
        match (step, step.strip_suffix(" done")) {
            (_, Some(step)) => format!("{step}: {}/{} nodes completed", self.nodes, self.nodes),
            (step, None) => match step.strip_suffix(" begun") {
                Some(step) => format!("{step}: 0/{} nodes completed", self.nodes),
                None => step.to_owned(),
            },
        }
    }

    /// Steps take as long as recorded; an operation that is over sooner goes through them faster.
    fn pace(&self, steps: &[(f64, &str)]) -> f64 {
        let last = steps.last().map_or(0.0, |(from, _)| *from);
        let whole = self.ends.duration_since(self.started).as_secs_f64();
        if last <= 0.0 || whole >= last {
            1.0
        } else {
            (whole / last).max(1e-9)
        }
    }
}

/// What an operation says it is doing, by the second from which it says so. `begun` and `done` stand for none and all
/// of the nodes.
const CLUSTER_CREATED: &[(f64, &str)] = &[
    (0.0, "InProgress"),
    (29.5, "ProvisioningNetworkResources"),
    (45.5, "ProvisioningControlPlane"),
    (110.0, "CreatingAgentPools begun"),
    (165.0, "CreatingAgentPools done"),
];
const CLUSTER_UPDATED: &[(f64, &str)] = &[
    (0.0, "InProgress"),
    (18.5, "ProvisioningNetworkResources"),
    (23.0, "ProvisioningControlPlane"),
    (65.0, "ReconcilingDNS"),
];
const POOL_CREATED: &[(f64, &str)] = &[
    (0.0, "CreatingAgentPool"),
    (24.0, "CreatingAgentPool begun"),
    (110.0, "CreatingAgentPool done"),
];
const POOL_UPGRADED: &[(f64, &str)] = &[
    (0.0, "UpgradingAgentPool begun"),
    (150.0, "UpgradingAgentPool done"),
];

/// When something that takes `duration` and starts now ends.
pub fn end_of(now: Timestamp, duration: Duration) -> Timestamp {
    jiff::SignedDuration::try_from(duration)
        .ok()
        .and_then(|duration| now.checked_add(duration).ok())
        .unwrap_or(Timestamp::MAX)
}
