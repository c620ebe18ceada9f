//! Throttling as ARM, the AKS provider and compute do it: token buckets, and three ways to say 429.

use std::collections::HashMap;

use http::Method;
use jiff::Timestamp;
use serde_json::json;

use crate::{
    arm_id::ArmId,
    error_response::ErrorResponse,
    settings::{Bucket, Settings},
};

#[derive(Clone, Debug, Default)]
pub struct Throttle {
    levels: HashMap<String, Level>,
}

#[derive(Clone, Copy, Debug)]
struct Level {
    tokens: f64,
    at: Timestamp,
}

/// What kind of call it is to the limits.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    pub method: &'a Method,
    pub subscription: &'a str,
    pub id: Option<&'a ArmId>,
    /// Type of the resource or collection, in lower case.
    pub kind: &'a str,
    pub is_list: bool,
    pub is_operation: bool,
}

impl Throttle {
    /// Takes a token; otherwise tells how many seconds until there is one.
    fn take(&mut self, key: &str, bucket: Bucket, now: Timestamp) -> Result<f64, u64> {
        let level = self.levels.entry(key.to_owned()).or_insert(Level {
            tokens: bucket.burst,
            at: now,
        });
        let passed = now.duration_since(level.at).as_secs_f64().max(0.0);
        level.tokens = (level.tokens + passed * bucket.per_second).min(bucket.burst);
        level.at = now;
        if level.tokens >= 1.0 {
            level.tokens -= 1.0;
            return Ok(level.tokens);
        }
        let missing = 1.0 - level.tokens;
        Err((missing / bucket.per_second.max(1e-9)).ceil().clamp(1.0, 3600.0) as u64)
    }

    pub fn forget(&mut self, subscription: &str) {
        let subscription = subscription.to_ascii_lowercase();
        self.levels.retain(|key, _| !key.contains(&subscription));
    }

    /// Counts a call. Gives the rate-limit header to answer with, or the refusal.
    pub fn admit(
        &mut self,
        settings: &Settings,
        call: &Call<'_>,
        now: Timestamp,
    ) -> Result<(&'static str, u64), ErrorResponse> {
        let limits = &settings.limits;
        let subscription = call.subscription.to_ascii_lowercase();
        let (header, word, bucket) = match *call.method {
            Method::GET | Method::HEAD => (
                "x-ms-ratelimit-remaining-subscription-global-reads",
                "read",
                limits.subscription_reads,
            ),
            Method::DELETE => (
                "x-ms-ratelimit-remaining-subscription-global-deletes",
                "delete",
                limits.subscription_deletes,
            ),
            _ => (
                "x-ms-ratelimit-remaining-subscription-global-writes",
                "write",
                limits.subscription_writes,
            ),
        };
        let left = match self.take(&format!("{subscription}/{word}"), bucket, now) {
            Ok(left) => left as u64,
            Err(_) if !settings.throttling => 0,
            Err(seconds) => {
                return Err(ErrorResponse::gateway(
                    429,
                    "SubscriptionRequestsThrottled",
                    format!(
                        "Number of '{word}' requests for subscription '{}' exceeded the limit of '{}' for time interval '01:00:00'. Please try again after '{seconds}' seconds.",
                        call.subscription,
                        bucket.burst as u64
                    ),
                )
                .retry_after(seconds));
            }
        };
        if settings.throttling {
            self.admit_at_provider(settings, call, &subscription, now)?;
        }
        Ok((header, left))
    }

    fn admit_at_provider(
        &mut self,
        settings: &Settings,
        call: &Call<'_>,
        subscription: &str,
        now: Timestamp,
    ) -> Result<(), ErrorResponse> {
        let limits = &settings.limits;
        let id = call.id.map(ArmId::key).unwrap_or_default();
        let is_pool = call.kind.ends_with("/agentpools");
        let is_cluster = call.kind == "microsoft.containerservice/managedclusters";
        if call.kind.starts_with("microsoft.compute/virtualmachinescalesets") {
            let bucket = limits.compute_get;
            return self
                .take(&format!("{subscription}/compute"), bucket, now)
                .map(drop)
                .map_err(|seconds| compute_error(bucket, seconds));
        }
        if call.is_operation && call.kind.starts_with("microsoft.containerservice") {
            let bucket = limits.aks_operation;
            return self
                .take(&format!("{subscription}/aks-operations"), bucket, now)
                .map(drop)
                .map_err(|seconds| {
                    aks_error(
                        "GetOperationStatusHandler.GET",
                        "subscription",
                        subscription,
                        seconds,
                    )
                });
        }
        if !is_pool && !is_cluster {
            return Ok(());
        }
        let noun = if is_pool { "agentpool" } else { "managedcluster" };
        let handler = if is_pool { "AgentPool" } else { "ManagedCluster" };
        let (key, bucket, name) = match *call.method {
            Method::PUT => (
                format!("{id}/put"),
                limits.aks_put,
                format!("Put{handler}Handler.PUT"),
            ),
            Method::GET if call.is_list => (
                format!("{subscription}/aks-list/{noun}"),
                limits.aks_list,
                format!("List{handler}sHandler.GET"),
            ),
            Method::GET => (
                format!("{id}/get"),
                limits.aks_get,
                format!("Get{handler}Handler.GET"),
            ),
            _ => return Ok(()),
        };
        let shown = call.id.map(ToString::to_string).unwrap_or_default();
        self.take(&key, bucket, now)
            .map(drop)
            .map_err(|seconds| aks_error(&name, noun, &shown, seconds))
    }
}

fn aks_error(handler: &str, noun: &str, id: &str, seconds: u64) -> ErrorResponse {
    ErrorResponse::aks(
        429,
        "TooManyRequests",
        format!(
            "The {handler} request limit has been exceeded for {noun} {id}, please retry again in {seconds} seconds. For more information please visit: https://aka.ms/aks-throttling"
        ),
    )
    .retry_after(seconds)
}

fn compute_error(bucket: Bucket, seconds: u64) -> ErrorResponse {
    let allowed = bucket.burst as u64;
    let detail = json!({
        "operationGroup": "HighCostGetVMScaleSet30Min",
        "startTime": "",
        "endTime": "",
        "allowedRequestCount": allowed,
        "measuredRequestCount": allowed + 1,
    });
    ErrorResponse::with_body(
        429,
        json!({"error": {
            "code": "OperationNotAllowed",
            "message": format!(
                "The server rejected the request because too many requests have been received for this subscription. Please try again after {seconds} seconds."
            ),
            "details": [{
                "code": "TooManyRequests",
                "target": "HighCostGetVMScaleSet30Min",
                "message": detail.to_string(),
            }],
        }}),
    )
    .retry_after(seconds)
}
