//! The gate in front of ARM: a token, an API version, and room within the request limits.

use jiff::Timestamp;

use crate::{
    arm::Context,
    arm_id::{Target, parse_path},
    arm_rules,
    azure::Azure,
    collection,
    entra::{Claims, TokenProblem},
    error_response::ErrorResponse,
    throttle::Call,
    wire::Request,
};

pub type Admitted<'a> = (Context<'a>, Option<Target>, Option<(&'static str, u64)>);

pub fn admit<'a>(
    azure: &mut Azure,
    request: &'a Request,
    now: Timestamp,
) -> Result<Admitted<'a>, ErrorResponse> {
    let caller = authenticate(azure, request, now)?;
    let target = parse_path(&request.path);
    let Some(api) = request.parameter("api-version").filter(|api| !api.is_empty()) else {
        return Err(ErrorResponse::missing_api_version());
    };
    let limit = match &target {
        None => None,
        Some(target) => {
            let (id, kind, is_list) = match target {
                Target::Resource(id) => (Some(id), id.type_path().to_ascii_lowercase(), false),
                Target::Under {
                    parent,
                    namespace,
                    word,
                } => (
                    Some(parent),
                    collection::kind_path(parent, namespace, word).to_ascii_lowercase(),
                    true,
                ),
            };
            if let Some(id) = id {
                arm_rules::check_subscription(azure, &id.subscription)?;
            }
            let call = Call {
                method: &request.method,
                subscription: id.map_or("", |id| id.subscription.as_str()),
                id,
                is_operation: kind.contains("/operations") || kind.contains("/operationresults"),
                kind: &kind,
                is_list,
            };
            let mut throttle = std::mem::take(&mut azure.throttle);
            let admitted = throttle.admit(&azure.settings, &call, now);
            azure.throttle = throttle;
            Some(admitted?)
        }
    };
    Ok((
        Context {
            request,
            api,
            now,
            caller,
        },
        target,
        limit,
    ))
}

fn authenticate(azure: &Azure, request: &Request, now: Timestamp) -> Result<Option<Claims>, ErrorResponse> {
    let token = request
        .header_text("authorization")
        .and_then(|header| header.strip_prefix("Bearer "));
    let Some(token) = token else {
        if !azure.settings.require_token {
            return Ok(None);
        }
        return Err(ErrorResponse::gateway(
            401,
            "AuthenticationFailed",
            "Authentication failed. The 'Authorization' header is missing.",
        ));
    };
    match azure.state().directory.read_token(token, now) {
        Ok(claims) => {
            let audience = claims.audience.trim_end_matches('/');
            let known = [
                "management.azure.com",
                "management.core.windows.net",
                "management.usgovcloudapi.net",
                "management.core.usgovcloudapi.net",
                "management.chinacloudapi.cn",
                "management.core.chinacloudapi.cn",
            ];
            let is_ours =
                known.iter().any(|host| audience.contains(host)) || audience.contains(&request.authority);
            if !is_ours {
                return Err(ErrorResponse::gateway(
                    401,
                    "InvalidAuthenticationTokenAudience",
                    format!(
                        "The access token has been obtained for wrong audience or resource '{audience}'. It should exactly match with one of the allowed audiences 'https://management.core.windows.net/','https://management.azure.com/'."
                    ),
                ));
            }
            Ok(Some(claims))
        }
        Err(_) if !azure.settings.require_token => Ok(None),
        Err(TokenProblem::Malformed) => Err(ErrorResponse::gateway(
            401,
            "InvalidAuthenticationToken",
            "The access token is invalid.",
        )),
        Err(TokenProblem::Expired { at }) => Err(ErrorResponse::gateway(
            401,
            "ExpiredAuthenticationToken",
            format!(
                "The access token expiry UTC time '{}' is earlier than current UTC time '{now}'.",
                Timestamp::from_second(at).unwrap_or(now)
            ),
        )),
    }
}
