//! What an answer teaches about limits: remaining counts in its headers, and for whom a named wait holds. Pure.

use std::time::Duration;

use crate::arm::Reply;

/// For whom a wait holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Subscription,
    Provider,
    Resource,
}

/// What one answer teaches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateLimitFeedback {
    pub subscription_remaining: Option<u32>,
    pub provider_remaining: Option<u32>,
    pub hold: Option<(Scope, Duration)>,
}

const SUBSCRIPTION: &[&str] = &[
    "x-ms-ratelimit-remaining-subscription-reads",
    "x-ms-ratelimit-remaining-subscription-writes",
    "x-ms-ratelimit-remaining-subscription-deletes",
    "x-ms-ratelimit-remaining-subscription-global-reads",
    "x-ms-ratelimit-remaining-subscription-global-writes",
    "x-ms-ratelimit-remaining-subscription-global-deletes",
    "x-ms-ratelimit-remaining-tenant-reads",
    "x-ms-ratelimit-remaining-tenant-writes",
    "x-ms-ratelimit-remaining-subscription-resource-requests",
    "x-ms-ratelimit-remaining-subscription-resource-entities-read",
];

impl RateLimitFeedback {
    pub fn from_reply(reply: &Reply) -> Self {
        let number = |text: &str| text.trim().parse::<u32>().ok();
        let subscription_remaining = SUBSCRIPTION
            .iter()
            .filter_map(|name| reply.header(name).and_then(number))
            .min();
        // `Microsoft.Compute/HighCostGet3Min;107,Microsoft.Compute/HighCostGet30Min;827`
        let provider_remaining = reply
            .header("x-ms-ratelimit-remaining-resource")
            .into_iter()
            .flat_map(|text| text.split(','))
            .filter_map(|part| part.rsplit(';').next().and_then(number))
            .min();
        let hold = (reply.status == 429 || (reply.status == 503 && reply.retry_after.is_some())).then(|| {
            let refusal = reply.refusal();
            let after = match refusal.retry_policy {
                crate::arm::RetryPolicy::RetryAfter(after) => after,
                _ => reply.retry_after.unwrap_or(Duration::from_mins(1)),
            };
            (
                scope(&refusal.code, &refusal.message, subscription_remaining),
                after,
            )
        });
        Self {
            subscription_remaining,
            provider_remaining,
            hold,
        }
    }
}

fn scope(code: &str, message: &str, subscription_remaining: Option<u32>) -> Scope {
    let code = code.to_ascii_lowercase();
    let message = message.to_ascii_lowercase();
    if code.contains("subscriptionrequests")
        || code.contains("tenantrequests")
        || subscription_remaining == Some(0)
    {
        Scope::Subscription
    } else if message.contains("limit has been exceeded for ") && message.contains("/subscriptions/") {
        // AKS limits writes of one cluster or pool; its neighbours are not affected.
        Scope::Resource
    } else {
        Scope::Provider
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_scarcest_count_is_kept() {
        let reply = Reply::for_test(
            200,
            &[
                ("x-ms-ratelimit-remaining-subscription-global-reads", "3749"),
                ("x-ms-ratelimit-remaining-subscription-reads", "12"),
                (
                    "x-ms-ratelimit-remaining-resource",
                    "Microsoft.Compute/HighCostGet3Min;107,Microsoft.Compute/HighCostGet30Min;27",
                ),
            ],
            json!({}),
        );
        assert_eq!(
            RateLimitFeedback::from_reply(&reply),
            RateLimitFeedback {
                subscription_remaining: Some(12),
                provider_remaining: Some(27),
                hold: None
            }
        );
    }

    #[test]
    fn a_throttle_holds_for_those_it_is_meant_for() {
        let hold = |body, retry| {
            RateLimitFeedback::from_reply(&Reply::for_test(429, &[("retry-after", retry)], body))
                .hold
                .unwrap()
        };
        assert_eq!(
            hold(
                json!({"error": {"code": "SubscriptionRequestsThrottled", "message": "x"}}),
                "30"
            ),
            (Scope::Subscription, Duration::from_secs(30))
        );
        assert_eq!(
            hold(
                json!({"code": "TooManyRequests", "message": "The PutAgentPoolHandler.PUT request limit has been exceeded for agentpool /subscriptions/s/x, please retry again in 36 seconds"}),
                "36"
            ),
            (Scope::Resource, Duration::from_secs(36))
        );
        assert_eq!(
            hold(json!({"error": {"code": "TooManyRequests", "message": "x"}}), "7"),
            (Scope::Provider, Duration::from_secs(7))
        );
    }
}
