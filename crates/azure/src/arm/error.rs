//! What Azure refuses and what that means for us: retry soon, retry at a time, a change by the user, or a
//! permission. Pure; the code lists are Azure's own.

use std::{sync::LazyLock, time::Duration};

use regex::Regex;
use serde_json::Value;
use slipway_runtime::{Class, Classified};

use super::{id::IdError, text::stable};
use crate::credential::CredentialError;

/// What helps against a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryPolicy {
    /// It is expected to pass by itself.
    RetrySoon,
    /// Azure said when to come back.
    RetryAfter(Duration),
    /// Another operation holds the resource: wait for it.
    Wait,
    /// The resource changed since it was read: read it again.
    ReadAgain,
    /// Only a change of the object helps.
    Change,
    /// Somebody has to grant something outside Kubernetes: a role, a quota, a lock removed.
    Grant,
}

impl RetryPolicy {
    pub fn class(self) -> Class {
        match self {
            Self::RetrySoon | Self::Wait => Class::Transient,
            Self::RetryAfter(after) => Class::Throttled(after),
            Self::ReadAgain => Class::Conflict,
            Self::Change => Class::Terminal,
            Self::Grant => Class::Denied,
        }
    }
}

/// An answer by which Azure refused, without anything that differs between two identical refusals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorResponse {
    pub status: u16,
    pub code: String,
    pub message: String,
    pub retry_policy: RetryPolicy,
}

/// Codes that only a changed object can help against.
const CHANGE: &[&str] = &[
    "BadRequest",
    "BadRequestFormat",
    "InvalidGatewaySize",
    "InvalidGatewaySkuProvidedForGatewayVpnType",
    "InvalidParameter",
    "InvalidParameterValue",
    "InvalidRequestContent",
    "InvalidResourceGroupLocation",
    "InvalidResourceLocation",
    "InvalidResourceType",
    "InvalidTemplate",
    "InvalidValuesForRequestParameters",
    "LocationRequired",
    "MethodNotAllowed",
    "MissingRequiredParameter",
    "NoRegisteredProviderFound",
    "PasswordTooLong",
    "PrivateIPAddressInReservedRange",
    "PrivateIPAddressNotInSubnet",
    "PropertyChangeNotAllowed",
    "PublicIpForGatewayIsRequired",
    "RegionIsOfferRestricted",
    "ReservedResourceName",
];

/// Codes that pass once somebody granted a role, a quota, capacity or removed a lock: no event tells us when.
const GRANT: &[&str] = &[
    "AllocationFailed",
    "AuthorizationFailed",
    "AuthenticationFailed",
    "CustomKubeletIdentityMissingPermissionError",
    "ErrCode_InsufficientVCPUQuota",
    "InsufficientVCPUQuota",
    "InvalidAuthenticationTokenTenant",
    "LinkedAuthorizationFailed",
    "OverconstrainedAllocationRequest",
    "OverconstrainedZonalAllocationRequest",
    "QuotaExceeded",
    "RequestDisallowedByPolicy",
    "ResourceQuotaExceeded",
    "ScopeLocked",
    "SkuNotAvailable",
    "SubscriptionNotFound",
    "ZonalAllocationFailed",
];

/// Codes that pass by themselves: replication, registration, parents still on their way.
const RETRY: &[&str] = &[
    "Conflict",
    "ExpiredAuthenticationToken",
    "FailedIdentityOperation",
    "GatewayTimeout",
    "InternalServerError",
    "InvalidAuthenticationToken",
    "InvalidResourceReference",
    "InvalidSubscriptionRegistrationState",
    "MissingRegistrationForLocation",
    "MissingSubscriptionRegistration",
    "NotFound",
    "NotLatestOperation",
    "ParentResourceNotFound",
    "PrincipalNotFound",
    "ReferencedResourceNotProvisioned",
    "ResourceGroupNotFound",
    "ResourceNotFound",
    "RetryableError",
    "ServerTimeout",
    "ServiceUnavailable",
    "SubscriptionNotRegistered",
];

/// Codes that say another operation holds the resource.
const WAIT: &[&str] = &[
    "AnotherOperationInProgress",
    "InUseByAnotherOperation",
    "OperationPreempted",
    "ResourceGroupBeingDeleted",
    "OperationConflict",
];

const THROTTLED: &[&str] = &[
    "OperationThrottled",
    "ResourceCollectionRequestsThrottled",
    "ResourceRequestsThrottled",
    "SubscriptionRequestsThrottled",
    "TenantRequestsThrottled",
    "TooManyRequests",
];

/// When a throttle names no time.
const UNNAMED_WAIT: Duration = Duration::from_mins(1);

fn listed(list: &[&str], code: &str) -> bool {
    list.iter().any(|known| known.eq_ignore_ascii_case(code))
}

impl ErrorResponse {
    /// Reads an error answer: wrapped in `error`, bare, or no JSON at all.
    pub fn read(status: u16, retry_after: Option<Duration>, body: &[u8]) -> Self {
        let body: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
        Self::from_error(status, retry_after, body.get("error").unwrap_or(&body))
    }

    /// Reads the error object itself, as it also stands inside an operation's answer.
    pub fn from_error(status: u16, retry_after: Option<Duration>, error: &Value) -> Self {
        let text = |key: &str| {
            error
                .get(key)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let mut code = text("code");
        let mut message = text("message");
        let detail = error
            .get("details")
            .and_then(Value::as_array)
            .and_then(|details| details.first());
        // Some providers say nothing useful on the outside; the first detail is the reason.
        let detail_text = |key: &str| {
            detail
                .and_then(|detail| detail.get(key))
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let throttled_inside = listed(THROTTLED, detail_text("code"));
        if code.is_empty() {
            detail_text("code").clone_into(&mut code);
        }
        if message.is_empty() {
            detail_text("message").clone_into(&mut message);
        }
        let retry_policy = if throttled_inside {
            RetryPolicy::RetryAfter(retry_after.or_else(|| wait_in(&message)).unwrap_or(UNNAMED_WAIT))
        } else {
            retry_policy(status, &code, &message, retry_after)
        };
        if code.is_empty() {
            code = format!("HTTP{status}");
        }
        let mut message = stable(&message);
        if message.is_empty() {
            message = format!("Azure answered with status {status} and no explanation");
        }
        Self {
            status,
            code,
            message,
            retry_policy,
        }
    }

    pub fn class(&self) -> Class {
        self.retry_policy.class()
    }
}

fn retry_policy(status: u16, code: &str, message: &str, retry_after: Option<Duration>) -> RetryPolicy {
    let in_progress = || {
        let message = message.to_ascii_lowercase();
        message.contains("in progress")
            || message.contains("being deleted")
            || message.contains("is deleting")
    };
    if status == 429 || listed(THROTTLED, code) {
        return RetryPolicy::RetryAfter(retry_after.or_else(|| wait_in(message)).unwrap_or(UNNAMED_WAIT));
    }
    if status == 412 {
        return RetryPolicy::ReadAgain;
    }
    if listed(WAIT, code) || (matches!(status, 400 | 409) && in_progress()) {
        return RetryPolicy::Wait;
    }
    if listed(GRANT, code) {
        return RetryPolicy::Grant;
    }
    if listed(CHANGE, code) {
        return RetryPolicy::Change;
    }
    if listed(RETRY, code) {
        return retry_after.map_or(RetryPolicy::RetrySoon, RetryPolicy::RetryAfter);
    }
    if code.to_ascii_lowercase().contains("quota") || message.to_ascii_lowercase().contains("quota") {
        return RetryPolicy::Grant;
    }
    match status {
        401 | 403 => RetryPolicy::Grant,
        400 | 405 | 413 | 415 | 422 => RetryPolicy::Change,
        _ => retry_after.map_or(RetryPolicy::RetrySoon, RetryPolicy::RetryAfter),
    }
}

static WAIT_IN_MESSAGE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?i)(?:in|after) '?(\d{1,6})'? second").expect("the pattern is valid"));

/// The wait a throttle names in its words.
fn wait_in(message: &str) -> Option<Duration> {
    WAIT_IN_MESSAGE
        .captures(message)
        .and_then(|found| found[1].parse().ok())
        .map(Duration::from_secs)
}

/// Why a call to Azure Resource Manager has no answer to work with.
#[derive(Debug, thiserror::Error)]
pub enum ArmError {
    #[error("{doing} {target}: {} ({})", refusal.message, refusal.code)]
    Refused {
        doing: &'static str,
        target: String,
        refusal: ErrorResponse,
    },
    #[error("{doing} {target}: Azure could not be reached: {reason}")]
    Unreachable {
        doing: &'static str,
        target: String,
        reason: String,
    },
    #[error("{doing} {target}: Azure's answer is not understood: {reason}")]
    Unreadable {
        doing: &'static str,
        target: String,
        reason: String,
    },
    #[error(
        "{doing} {target}: the answer points to {host:?}, which is not Azure Resource Manager; it is not followed"
    )]
    ForeignAddress {
        doing: &'static str,
        target: String,
        host: String,
    },
    #[error("{target} is neither changed nor deleted: another owns it (tag slipway.dev_owner: {mark})")]
    Foreign { target: String, mark: String },
    #[error("{doing} {target}: waiting for the subscription's request budget")]
    Budget {
        doing: &'static str,
        target: String,
        after: Duration,
    },
    #[error(transparent)]
    Id(#[from] IdError),
    #[error(transparent)]
    Credential(#[from] CredentialError),
}

impl ArmError {
    /// Azure's code, or ours for what is not Azure's: stable, for a condition's reason.
    pub fn code(&self) -> &str {
        match self {
            Self::Refused { refusal, .. } => &refusal.code,
            Self::Unreachable { .. } => "AzureUnreachable",
            Self::Unreadable { .. } => "UnexpectedAnswer",
            Self::ForeignAddress { .. } => "ForeignAddress",
            Self::Foreign { .. } => "OwnedByAnother",
            Self::Budget { .. } => "Throttled",
            Self::Id(_) => "InvalidResourceId",
            Self::Credential(error) => error.code(),
        }
    }

    pub fn refusal(&self) -> Option<&ErrorResponse> {
        match self {
            Self::Refused { refusal, .. } => Some(refusal),
            _ => None,
        }
    }
}

impl Classified for ArmError {
    fn class(&self) -> Class {
        match self {
            Self::Refused { refusal, .. } => refusal.class(),
            Self::Unreachable { .. } | Self::Unreadable { .. } => Class::Transient,
            Self::ForeignAddress { .. } | Self::Id(_) => Class::Terminal,
            Self::Foreign { .. } => Class::Denied,
            Self::Budget { after, .. } => Class::Throttled(*after),
            Self::Credential(error) => error.class(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(status: u16, retry_after: Option<u64>, body: &str) -> ErrorResponse {
        ErrorResponse::read(status, retry_after.map(Duration::from_secs), body.as_bytes())
    }

    #[test]
    fn refusals_are_sorted_by_what_helps() {
        let seconds = Duration::from_secs;
        let table: &[(u16, Option<u64>, &str, &str, RetryPolicy)] = &[
            (
                429,
                Some(17),
                r#"{"error":{"code":"SubscriptionRequestsThrottled","message":"Please try again after '5' seconds."}}"#,
                "SubscriptionRequestsThrottled",
                RetryPolicy::RetryAfter(seconds(17)),
            ),
            (
                429,
                None,
                r#"{"code":"TooManyRequests","message":"The PutAgentPoolHandler.PUT request limit has been exceeded for agentpool x, please retry again in 36 seconds"}"#,
                "TooManyRequests",
                RetryPolicy::RetryAfter(seconds(36)),
            ),
            (
                409,
                None,
                r#"{"error":{"code":"OperationNotAllowed","message":"","details":[{"code":"TooManyRequests","message":"{\"operationGroup\":\"HighCostGetVMScaleSet30Min\"}"}]}}"#,
                "OperationNotAllowed",
                RetryPolicy::RetryAfter(seconds(60)),
            ),
            (
                409,
                None,
                r#"{"code":"OperationNotAllowed","message":"Operation is not allowed: Another operation (Updating) is in progress, please wait for it to finish"}"#,
                "OperationNotAllowed",
                RetryPolicy::Wait,
            ),
            (
                400,
                None,
                r#"{"code":"OperationNotAllowed","message":"There has to be at least one system agent pool."}"#,
                "OperationNotAllowed",
                RetryPolicy::Change,
            ),
            (
                412,
                None,
                r#"{"error":{"code":"PreconditionFailed","message":"etag"}}"#,
                "PreconditionFailed",
                RetryPolicy::ReadAgain,
            ),
            (
                403,
                None,
                r#"{"error":{"code":"AuthorizationFailed","message":"no"}}"#,
                "AuthorizationFailed",
                RetryPolicy::Grant,
            ),
            (
                403,
                None,
                r#"{"error":{"code":"RequestDisallowedByPolicy","message":"no"}}"#,
                "RequestDisallowedByPolicy",
                RetryPolicy::Grant,
            ),
            (
                409,
                None,
                r#"{"error":{"code":"ScopeLocked","message":"locked"}}"#,
                "ScopeLocked",
                RetryPolicy::Grant,
            ),
            (
                400,
                None,
                r#"{"code":"ErrCode_InsufficientVCPUQuota","message":"Insufficient vcpu quota"}"#,
                "ErrCode_InsufficientVCPUQuota",
                RetryPolicy::Grant,
            ),
            (
                400,
                None,
                r#"{"error":{"code":"PropertyChangeNotAllowed","message":"Changing property 'x' is not allowed."}}"#,
                "PropertyChangeNotAllowed",
                RetryPolicy::Change,
            ),
            (
                404,
                None,
                r#"{"error":{"code":"ParentResourceNotFound","message":"x"}}"#,
                "ParentResourceNotFound",
                RetryPolicy::RetrySoon,
            ),
            (
                401,
                None,
                r#"{"error":{"code":"ExpiredAuthenticationToken","message":"x"}}"#,
                "ExpiredAuthenticationToken",
                RetryPolicy::RetrySoon,
            ),
            (
                400,
                None,
                r#"{"error":{"code":"SomethingNew","message":"x"}}"#,
                "SomethingNew",
                RetryPolicy::Change,
            ),
            (500, None, "<html>", "HTTP500", RetryPolicy::RetrySoon),
            (503, Some(9), "", "HTTP503", RetryPolicy::RetryAfter(seconds(9))),
        ];
        for (status, retry_after, body, code, retry_policy) in table {
            let refusal = read(*status, *retry_after, body);
            assert_eq!(
                (refusal.code.as_str(), refusal.retry_policy),
                (*code, *retry_policy),
                "{body}"
            );
            assert!(!refusal.message.is_empty());
        }
    }

    #[test]
    fn a_bare_body_is_read_like_a_wrapped_one() {
        let refusal = read(
            404,
            None,
            r#"{"code":"NotFound","details":null,"message":"Could not find the agentpool: p.","subcode":"GetAgentPool_NotFound"}"#,
        );
        assert_eq!(refusal.code, "NotFound");
        assert_eq!(refusal.message, "Could not find the agentpool: p.");
    }

    #[test]
    fn the_same_refusal_twice_reads_the_same() {
        let body = |id: &str| {
            format!(
                r#"{{"error":{{"code":"InternalServerError","message":"Failed. Correlation ID: {id}"}}}}"#
            )
        };
        assert_eq!(
            read(500, None, &body("7d1c9e3e-0e0b-4c35-86d1-65e36a6e2e43")),
            read(500, None, &body("00000000-0e0b-4c35-86d1-65e36a6e2e43"))
        );
    }
}
