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
}

/// The links an accepted request answers with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Links {
    pub asynchronous: bool,
    pub location: bool,
    pub retry_after: Option<u64>,
}

impl Operation {
    pub fn is_over(&self, now: Timestamp) -> bool {
        now >= self.ends
    }

    fn elapsed_share(&self, now: Timestamp) -> f64 {
        let whole = self.ends.duration_since(self.started).as_secs_f64();
        if whole <= 0.0 {
            return 1.0;
        }
        (now.duration_since(self.started).as_secs_f64() / whole).clamp(0.0, 1.0)
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
        if links.asynchronous {
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
            Style::ContainerService | Style::Compute | Style::ResourceGroups => {
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
        let share = self.elapsed_share(now);
        let ready = (share * (self.nodes as f64)).floor() as u64;
        match (self.kind.as_str(), self.verb.as_str()) {
            ("managedClusters", "create") if share < 0.1 => "ProvisioningNetworkResources".to_owned(),
            ("managedClusters", "create") if share < 0.45 => "ProvisioningControlPlane".to_owned(),
            ("managedClusters", "create") if share < 0.55 => "ReconcilingDNS".to_owned(),
            ("managedClusters", "create") => {
                let share = ((share - 0.55) / 0.45).clamp(0.0, 1.0);
                let ready = (share * (self.nodes as f64)).floor() as u64;
                format!("CreatingAgentPools: {ready}/{} nodes completed", self.nodes)
            }
            ("agentPools", "create" | "scale") if self.nodes > 0 => {
                format!("CreatingAgentPool: {ready}/{} nodes completed", self.nodes)
            }
            ("agentPools", "upgrade") if self.nodes > 0 => {
                format!("UpgradingAgentPool: {ready}/{} nodes completed", self.nodes)
            }
            _ => "InProgress".to_owned(),
        }
    }
}

/// When something that takes `duration` and starts now ends.
pub fn end_of(now: Timestamp, duration: Duration) -> Timestamp {
    jiff::SignedDuration::try_from(duration)
        .ok()
        .and_then(|duration| now.checked_add(duration).ok())
        .unwrap_or(Timestamp::MAX)
}
