//! Where the resources are in Azure.

use super::Facts;
use crate::api::FleetMember;

pub fn resource_group(subscription: &str, group: &str) -> String {
    format!("/subscriptions/{subscription}/resourceGroups/{group}")
}

pub fn managed_cluster(facts: &Facts<'_>) -> String {
    format!(
        "{}/providers/Microsoft.ContainerService/managedClusters/{}",
        resource_group(facts.subscription, &facts.plane.spec.class.resource_group_name),
        facts.plane.metadata.name.as_deref().unwrap_or_default()
    )
}

/// The resource group of the virtual network, which may be another than the cluster's.
pub fn network_group<'a>(facts: &Facts<'a>) -> &'a str {
    let class = &facts.plane.spec.class;
    super::text(class.virtual_network.resource_group.as_ref()).unwrap_or(&class.resource_group_name)
}

pub fn virtual_network(facts: &Facts<'_>) -> String {
    format!(
        "{}/providers/Microsoft.Network/virtualNetworks/{}",
        resource_group(facts.subscription, network_group(facts)),
        facts.plane.spec.class.virtual_network.name
    )
}

pub fn subnet(facts: &Facts<'_>, name: &str) -> String {
    format!("{}/subnets/{name}", virtual_network(facts))
}

pub fn fleet(facts: &Facts<'_>, member: &FleetMember) -> String {
    format!(
        "{}/providers/Microsoft.ContainerService/fleets/{}",
        resource_group(facts.subscription, &member.manager_resource_group),
        member.manager_name
    )
}
