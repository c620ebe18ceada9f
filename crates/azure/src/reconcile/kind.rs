//! The kinds of Azure resources that an AKS cluster is made of, in the order in which they are made. Pure.

use crate::ResourceId;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ResourceKind {
    ResourceGroup,
    VirtualNetwork,
    Subnet,
    ManagedCluster,
    PrivateEndpoint,
    FleetMember,
    Extension,
    AgentPool,
}

impl ResourceKind {
    /// The kind of a resource, by its id.
    pub fn of(id: &str) -> Option<Self> {
        let id = ResourceId::parse(id).ok()?;
        Some(match id.resource_type().to_ascii_lowercase().as_str() {
            "microsoft.resources/resourcegroups" => Self::ResourceGroup,
            "microsoft.network/virtualnetworks" => Self::VirtualNetwork,
            "microsoft.network/virtualnetworks/subnets" => Self::Subnet,
            "microsoft.network/privateendpoints" => Self::PrivateEndpoint,
            "microsoft.containerservice/managedclusters" => Self::ManagedCluster,
            "microsoft.containerservice/managedclusters/agentpools" => Self::AgentPool,
            "microsoft.containerservice/fleets/members" => Self::FleetMember,
            "microsoft.kubernetesconfiguration/extensions" => Self::Extension,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_known_by_its_id() {
        let group = "/subscriptions/s/resourceGroups/g";
        let cluster = format!("{group}/providers/Microsoft.ContainerService/managedClusters/c");
        for (id, kind) in [
            (group.to_owned(), Some(ResourceKind::ResourceGroup)),
            (
                format!("{group}/providers/Microsoft.Network/virtualNetworks/v"),
                Some(ResourceKind::VirtualNetwork),
            ),
            (
                format!("{group}/providers/Microsoft.Network/virtualNetworks/v/subnets/n").to_lowercase(),
                Some(ResourceKind::Subnet),
            ),
            (
                format!("{group}/providers/Microsoft.Network/privateEndpoints/e"),
                Some(ResourceKind::PrivateEndpoint),
            ),
            (cluster.clone(), Some(ResourceKind::ManagedCluster)),
            (format!("{cluster}/agentPools/p"), Some(ResourceKind::AgentPool)),
            (
                format!("{group}/providers/Microsoft.ContainerService/fleets/f/members/m"),
                Some(ResourceKind::FleetMember),
            ),
            (
                format!("{cluster}/providers/Microsoft.KubernetesConfiguration/extensions/x"),
                Some(ResourceKind::Extension),
            ),
            (
                format!("{group}/providers/Microsoft.Storage/storageAccounts/a"),
                None,
            ),
            ("nonsense".to_owned(), None),
        ] {
            assert_eq!(ResourceKind::of(&id), kind, "{id}");
        }
    }
}
