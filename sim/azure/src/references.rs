//! What cannot be deleted because something else uses it.

use serde_json::Value;

use crate::{arm_id::ArmId, azure::Azure, error_response::ErrorResponse};

/// Network resources refuse to go while another resource names them.
pub fn check_unused(azure: &Azure, id: &ArmId) -> Result<(), ErrorResponse> {
    let Some((namespace, pairs)) = id.providers.last() else {
        return Ok(());
    };
    if !namespace.eq_ignore_ascii_case("Microsoft.Network") {
        return Ok(());
    }
    let word = pairs
        .last()
        .map_or("", |(word, _)| word.as_str())
        .to_ascii_lowercase();
    let code = match word.as_str() {
        "subnets" => "InUseSubnetCannotBeDeleted",
        "publicipaddresses" => "PublicIPAddressCannotBeDeleted",
        "publicipprefixes" => "PublicIpPrefixCannotBeDeleted",
        "natgateways" => "InUseNatGatewayCannotBeDeleted",
        "networksecuritygroups" => "InUseNetworkSecurityGroupCannotBeDeleted",
        "routetables" => "InUseRouteTableCannotBeDeleted",
        _ => return Ok(()),
    };
    let key = id.key();
    let user = azure.state().resources.iter().find(|resource| {
        let own = resource.id.to_ascii_lowercase();
        !own.starts_with(&key)
            && !key.starts_with(&own)
            && resource.state != "Deleting"
            && resource.document.values().any(|value| names(value, &key))
    });
    match user {
        None => Ok(()),
        Some(user) => Err(ErrorResponse::new(
            400,
            code,
            format!(
                "{} is used by {} and cannot be deleted. In order to delete it, delete all the resources that use it.",
                id.name(),
                user.id
            ),
        )),
    }
}

/// Whether a document mentions a resource id anywhere.
fn names(value: &Value, key: &str) -> bool {
    match value {
        Value::String(text) => {
            text.len() >= key.len()
                && text.is_char_boundary(key.len())
                && text[..key.len()].eq_ignore_ascii_case(key)
                && matches!(text.as_bytes().get(key.len()), None | Some(b'/'))
        }
        Value::Array(list) => list.iter().any(|value| names(value, key)),
        Value::Object(object) => object.values().any(|value| names(value, key)),
        _ => false,
    }
}
