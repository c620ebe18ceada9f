//! Where subnets may lie: inside their virtual network and beside each other.

use serde_json::{Map, Value};

use super::SUBNET;
use crate::{
    aks::prefixes,
    arm_id::ArmId,
    azure::Azure,
    error_response::ErrorResponse,
    kinds::{Child, Kind},
    range::Range,
};

/// Looks at the write of a network, with the subnets in its body, or of one subnet.
pub fn check_ranges(
    azure: &Azure,
    kind: &Kind,
    id: &ArmId,
    body: &Map<String, Value>,
    embedded: Option<&[Child]>,
) -> Result<(), ErrorResponse> {
    let own = |body: &Map<String, Value>| {
        body.get("properties")
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default()
    };
    if kind.is("Microsoft.Network/virtualNetworks") {
        let space = space_of(&own(body));
        read(id, &space)?;
        let subnets: Vec<(String, Vec<String>)> = embedded
            .into_iter()
            .flatten()
            .filter(|(_, path, ..)| *path == SUBNET)
            .map(|(id, _, body, _)| (id.name().to_owned(), prefixes(&own(body))))
            .collect();
        for (index, (name, ranges)) in subnets.iter().enumerate() {
            check(id, &space, name, ranges, &subnets[..index])?;
        }
        return Ok(());
    }
    if !kind.is(SUBNET) {
        return Ok(());
    }
    let Some(network) = id
        .parent()
        .and_then(|network| azure.state().resources.get(&network))
    else {
        return Ok(());
    };
    let others: Vec<(String, Vec<String>)> = azure
        .state()
        .resources
        .of_kind(&network.id.to_ascii_lowercase(), SUBNET)
        .into_iter()
        .filter(|other| other.id.to_ascii_lowercase() != id.key())
        .map(|other| (other.name().to_owned(), prefixes(other.properties())))
        .collect();
    check(
        &network.arm_id(),
        &space_of(network.properties()),
        id.name(),
        &prefixes(&own(body)),
        &others,
    )
}

fn space_of(properties: &Map<String, Value>) -> Vec<String> {
    properties
        .get("addressSpace")
        .and_then(|space| space["addressPrefixes"].as_array())
        .into_iter()
        .flatten()
        .filter_map(|prefix| prefix.as_str().map(str::to_owned))
        .collect()
}

fn read(id: &ArmId, prefixes: &[String]) -> Result<Vec<Range>, ErrorResponse> {
    prefixes
        .iter()
        .map(|prefix| {
            Range::parse(prefix).ok_or_else(|| {
                ErrorResponse::new(
                    400,
                    "InvalidCIDRNotation",
                    format!(
                        "The address prefix {prefix} in resource {id} has an invalid CIDR notation. For more information on CIDR notation, see https://en.wikipedia.org/wiki/Classless_Inter-Domain_Routing."
                    ),
                )
            })
        })
        .collect()
}

fn check(
    network: &ArmId,
    space: &[String],
    name: &str,
    ranges: &[String],
    others: &[(String, Vec<String>)],
) -> Result<(), ErrorResponse> {
    let space = read(network, space)?;
    let ranges = read(&network.child("subnets", name), ranges)?;
    let refusal = |code: &str, problem: &str| {
        Err(ErrorResponse::new(
            400,
            code,
            format!(
                "Subnet '{name}' is not valid because its IP address range {problem} virtual network '{}'.",
                network.name()
            ),
        ))
    };
    if ranges
        .iter()
        .any(|range| !space.iter().any(|space| space.holds(range)))
    {
        return refusal(
            "NetcfgSubnetRangeOutsideVnet",
            "is outside the IP address range of",
        );
    }
    let taken = others
        .iter()
        .flat_map(|(_, prefixes)| prefixes)
        .filter_map(|prefix| Range::parse(prefix));
    if taken
        .into_iter()
        .any(|taken| ranges.iter().any(|range| range.overlaps(&taken)))
    {
        return refusal(
            "NetcfgSubnetRangesOverlap",
            "overlaps with that of an existing subnet in",
        );
    }
    Ok(())
}
