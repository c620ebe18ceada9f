//! The network, and what stands beside a cluster: endpoints, a place in a fleet, extensions.

use super::{CLUSTER, Case, Mutation, plane};

const SUBNET: &str = "/virtualNetworks/fleet/subnets/fleet";
const ENDPOINT: &str = "/privateEndpoints/registry";
const MEMBER: &str = "/members/fleet";
const EXTENSION: &str = "/extensions/dapr";

pub const NETWORK: &[Case] = &[
    plane("loadBalancerProfile.managedOutboundIPs", CLUSTER, "/properties/networkProfile/loadBalancerProfile/managedOutboundIPs/count")
    .set(Mutation::Sends(r#"{"loadBalancerProfile": {"managedOutboundIPs": 2}}"#, "2"))
    .change(Mutation::Sends(r#"{"loadBalancerProfile": {"managedOutboundIPs": 3}}"#, "3"))
    .unset(Mutation::Sends(r#"{"loadBalancerProfile": null}"#, "null")),
    plane("loadBalancerProfile.allocatedOutboundPorts", CLUSTER, "/properties/networkProfile/loadBalancerProfile/allocatedOutboundPorts")
    .set(Mutation::Sends(r#"{"loadBalancerProfile": {"allocatedOutboundPorts": 1024}}"#, "1024"))
    .change(Mutation::Sends(r#"{"loadBalancerProfile": {"allocatedOutboundPorts": 2048}}"#, "2048"))
    .unset(Mutation::Sends(r#"{"loadBalancerProfile": {"allocatedOutboundPorts": null}}"#, "null")),
    plane("loadBalancerProfile.idleTimeoutInMinutes", CLUSTER, "/properties/networkProfile/loadBalancerProfile/idleTimeoutInMinutes")
    .set(Mutation::Sends(r#"{"loadBalancerProfile": {"idleTimeoutInMinutes": 10}}"#, "10"))
    .change(Mutation::Sends(r#"{"loadBalancerProfile": {"idleTimeoutInMinutes": 20}}"#, "20"))
    .unset(Mutation::Sends(r#"{"loadBalancerProfile": {"idleTimeoutInMinutes": null}}"#, "null")),
    plane("loadBalancerProfile.outboundIPs[]", CLUSTER, "/properties/networkProfile/loadBalancerProfile/outboundIPs/publicIPs")
    .set(Mutation::Sends(r#"{"loadBalancerProfile": {"outboundIPs": ["/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/publicIPAddresses/a"]}}"#, r#"[{"id": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/publicIPAddresses/a"}]"#))
    .change(Mutation::Sends(r#"{"loadBalancerProfile": {"outboundIPs": ["/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/publicIPAddresses/b"]}}"#, r#"[{"id": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/publicIPAddresses/b"}]"#))
    .unset(Mutation::Sends(r#"{"loadBalancerProfile": {"outboundIPs": null}}"#, "null")),
    plane("loadBalancerProfile.outboundIPPrefixes[]", CLUSTER, "/properties/networkProfile/loadBalancerProfile/outboundIPPrefixes/publicIPPrefixes")
    .set(Mutation::Sends(r#"{"loadBalancerProfile": {"outboundIPPrefixes": ["/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/publicIPPrefixes/a"]}}"#, r#"[{"id": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/publicIPPrefixes/a"}]"#))
    .change(Mutation::Sends(r#"{"loadBalancerProfile": {"outboundIPPrefixes": ["/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/publicIPPrefixes/b"]}}"#, r#"[{"id": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/publicIPPrefixes/b"}]"#))
    .unset(Mutation::Sends(r#"{"loadBalancerProfile": null}"#, "null")),
    plane("virtualNetwork.subnet.serviceEndpoints[].service", SUBNET, "/properties/serviceEndpoints/0/service")
    .set(Mutation::Sends(r#"{"virtualNetwork": {"subnet": {"serviceEndpoints": [{"service": "Microsoft.Sql", "locations": ["westus3"]}]}}}"#, r#""Microsoft.Sql""#))
    .change(Mutation::Sends(r#"{"virtualNetwork": {"subnet": {"serviceEndpoints": [{"service": "Microsoft.Storage", "locations": ["westus3"]}]}}}"#, r#""Microsoft.Storage""#))
    .unset(Mutation::Sends(r#"{"virtualNetwork": {"subnet": {"serviceEndpoints": null}}}"#, "null")),
    plane("virtualNetwork.subnet.serviceEndpoints[].locations[]", SUBNET, "/properties/serviceEndpoints/0/locations")
    .set(Mutation::Sends(r#"{"virtualNetwork": {"subnet": {"serviceEndpoints": [{"service": "Microsoft.Sql", "locations": ["westus3"]}]}}}"#, r#"["westus3"]"#))
    .change(Mutation::Sends(r#"{"virtualNetwork": {"subnet": {"serviceEndpoints": [{"service": "Microsoft.Sql", "locations": ["westus3", "eastus"]}]}}}"#, r#"["westus3", "eastus"]"#))
    .unset(Mutation::Sends(r#"{"virtualNetwork": {"subnet": {"serviceEndpoints": null}}}"#, "null")),
    plane("networkPluginMode", CLUSTER, "/properties/networkProfile/networkPluginMode")
    .set(Mutation::Sends(r#"{"networkPluginMode": "overlay"}"#, r#""overlay""#))
    .unset(Mutation::Refused(r#"{"networkPluginMode": null}"#, "cannot be disabled")),
];

pub const BESIDES: &[Case] = &[
    plane("virtualNetwork.subnet.privateEndpoints[].applicationSecurityGroups[]", ENDPOINT, "/properties/applicationSecurityGroups")
    .beside(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#)
    .set(Mutation::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "applicationSecurityGroups": ["/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/applicationSecurityGroups/a"], "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, r#"[{"id": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/applicationSecurityGroups/a"}]"#))
    .change(Mutation::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "applicationSecurityGroups": ["/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/applicationSecurityGroups/b"], "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, r#"[{"id": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/applicationSecurityGroups/b"}]"#))
    .unset(Mutation::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, "null")),
    plane("virtualNetwork.subnet.privateEndpoints[].customNetworkInterfaceName", ENDPOINT, "/properties/customNetworkInterfaceName")
    .set(Mutation::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "customNetworkInterfaceName": "nic-a", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, r#""nic-a""#))
    .change(Mutation::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "customNetworkInterfaceName": "nic-b", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, r#""nic-b""#))
    .unset(Mutation::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, "null")),
    plane("virtualNetwork.subnet.privateEndpoints[].location", ENDPOINT, "/location")
        .set(Mutation::Refused(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "location": "eastus", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, "field is immutable"))
        .change(Mutation::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "location": "westus3", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, r#""westus3""#))
        .unset(Mutation::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, r#""westus3""#)),
    plane("virtualNetwork.subnet.privateEndpoints[].manualApproval", ENDPOINT, "/properties/manualPrivateLinkServiceConnections/0/name")
    .set(Mutation::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "manualApproval": true, "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, r#""one""#))
    .change(Mutation::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "manualApproval": false, "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, "null"))
    .unset(Mutation::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, "null")),
    plane("virtualNetwork.subnet.privateEndpoints[].privateIPAddresses[]", ENDPOINT, "/properties/ipConfigurations/0/properties/privateIPAddress")
    .set(Mutation::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateIPAddresses": ["10.240.0.10"], "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, r#""10.240.0.10""#))
    .change(Mutation::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateIPAddresses": ["10.240.0.11"], "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, r#""10.240.0.11""#))
    .unset(Mutation::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, "null")),
    plane("virtualNetwork.subnet.privateEndpoints[].privateLinkServiceConnections[].groupIDs[]", ENDPOINT, "/properties/privateLinkServiceConnections/0/properties/groupIds")
    .set(Mutation::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a", "groupIDs": ["a"]}]}]}}}"#, r#"["a"]"#))
    .change(Mutation::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a", "groupIDs": ["b"]}]}]}}}"#, r#"["b"]"#))
    .unset(Mutation::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, "null")),
    plane("virtualNetwork.subnet.privateEndpoints[].privateLinkServiceConnections[].name", ENDPOINT, "/properties/privateLinkServiceConnections/0/name")
    .set(Mutation::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"name": "two", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, r#""two""#))
    .change(Mutation::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"name": "three", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, r#""three""#))
    .unset(Mutation::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, r#""registry""#)),
    plane("virtualNetwork.subnet.privateEndpoints[].privateLinkServiceConnections[].privateLinkServiceID", ENDPOINT, "/properties/privateLinkServiceConnections/0/properties/privateLinkServiceId")
    .set(Mutation::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, r#""/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a""#))
    .change(Mutation::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/b"}]}]}}}"#, r#""/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/b""#))
    .unset(Mutation::Refused(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"name": "one"}]}]}}}"#, "privateLinkServiceID is required")),
    plane("virtualNetwork.subnet.privateEndpoints[].privateLinkServiceConnections[].requestMessage", ENDPOINT, "/properties/privateLinkServiceConnections/0/properties/requestMessage")
    .set(Mutation::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a", "requestMessage": "please"}]}]}}}"#, r#""please""#))
    .change(Mutation::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a", "requestMessage": "thanks"}]}]}}}"#, r#""thanks""#))
    .unset(Mutation::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, "null")),
    plane("virtualNetwork.subnet.privateEndpoints[].name", ENDPOINT, "/properties")
    .change(Mutation::Gone(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "other", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#))
    .unset(Mutation::Gone(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": null}}}"#)),
    plane("fleetsMember.name", MEMBER, "/properties/clusterResourceId")
    .set(Mutation::Sends(r#"{"fleetsMember": {"name": "fleet", "managerName": "armada", "managerResourceGroup": "hub"}}"#, r#""/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/fleet/providers/Microsoft.ContainerService/managedClusters/fleet""#))
    .change(Mutation::Refused(r#"{"fleetsMember": {"name": "other"}}"#, "Name is immutable"))
    .unset(Mutation::Gone(r#"{"fleetsMember": null}"#)),
    plane("fleetsMember.group", MEMBER, "/properties/group")
    .beside(r#"{"fleetsMember": {"name": "fleet", "managerName": "armada", "managerResourceGroup": "hub"}}"#)
    .set(Mutation::Sends(r#"{"fleetsMember": {"group": "blue"}}"#, r#""blue""#))
    .change(Mutation::Sends(r#"{"fleetsMember": {"group": "red"}}"#, r#""red""#))
    .unset(Mutation::Sends(r#"{"fleetsMember": {"group": null}}"#, r#""default""#)),
    plane("fleetsMember.managerName", "/fleets/armada/members/fleet", "/properties")
    .change(Mutation::Gone(r#"{"fleetsMember": {"managerName": "flotilla"}}"#)),
    plane("fleetsMember.managerResourceGroup", "/resourceGroups/hub/providers/Microsoft.ContainerService/fleets/flotilla/members/fleet", "/properties")
    .change(Mutation::Gone(r#"{"fleetsMember": {"managerResourceGroup": "hub2"}}"#))
    .unset(Mutation::Gone(r#"{"fleetsMember": null}"#)),
    plane("extensions[].aksAssignedIdentityType", EXTENSION, "/properties/aksAssignedIdentity/type")
    .beside(r#"{"extensions": [{"name": "dapr", "extensionType": "microsoft.dapr"}]}"#)
    .set(Mutation::Sends(r#"{"extensions": [{"name": "dapr", "extensionType": "microsoft.dapr", "aksAssignedIdentityType": "SystemAssigned"}]}"#, r#""SystemAssigned""#))
    .change(Mutation::Sends(r#"{"extensions": [{"name": "dapr", "extensionType": "microsoft.dapr", "aksAssignedIdentityType": "UserAssigned"}]}"#, r#""UserAssigned""#))
    .unset(Mutation::Sends(r#"{"extensions": [{"name": "dapr", "extensionType": "microsoft.dapr"}]}"#, "null")),
    plane("extensions[].configurationSettings{}", EXTENSION, "/properties/configurationSettings/mode")
    .set(Mutation::Sends(r#"{"extensions": [{"name": "dapr", "extensionType": "microsoft.dapr", "configurationSettings": {"mode": "a"}}]}"#, r#""a""#))
    .change(Mutation::Sends(r#"{"extensions": [{"name": "dapr", "extensionType": "microsoft.dapr", "configurationSettings": {"mode": "b"}}]}"#, r#""b""#))
    .unset(Mutation::Sends(r#"{"extensions": [{"name": "dapr", "extensionType": "microsoft.dapr"}]}"#, "null")),
    plane("extensions[].autoUpgradeMinorVersion", EXTENSION, "/properties/autoUpgradeMinorVersion")
    .set(Mutation::Sends(r#"{"extensions": [{"name": "dapr", "extensionType": "microsoft.dapr", "autoUpgradeMinorVersion": false}]}"#, "false"))
    .change(Mutation::Sends(r#"{"extensions": [{"name": "dapr", "extensionType": "microsoft.dapr", "autoUpgradeMinorVersion": true}]}"#, "true"))
    .unset(Mutation::Sends(r#"{"extensions": [{"name": "dapr", "extensionType": "microsoft.dapr"}]}"#, "true")),
    plane("extensions[].releaseTrain", EXTENSION, "/properties/releaseTrain")
    .set(Mutation::Sends(r#"{"extensions": [{"name": "dapr", "extensionType": "microsoft.dapr", "releaseTrain": "Preview"}]}"#, r#""Preview""#))
    .change(Mutation::Refused(r#"{"extensions": [{"name": "dapr", "extensionType": "microsoft.dapr", "releaseTrain": "Stable"}]}"#, "field is immutable"))
    .unset(Mutation::Sends(r#"{"extensions": [{"name": "dapr", "extensionType": "microsoft.dapr"}]}"#, "null")),
    plane("extensions[].version", EXTENSION, "/properties/version")
    .set(Mutation::Sends(r#"{"extensions": [{"name": "dapr", "extensionType": "microsoft.dapr", "autoUpgradeMinorVersion": false, "version": "1.14.4"}]}"#, r#""1.14.4""#))
    .change(Mutation::Refused(r#"{"extensions": [{"name": "dapr", "extensionType": "microsoft.dapr", "autoUpgradeMinorVersion": false, "version": "1.15.0"}]}"#, "field is immutable"))
    .unset(Mutation::Sends(r#"{"extensions": [{"name": "dapr", "extensionType": "microsoft.dapr"}]}"#, "null")),
    plane("extensions[].name", EXTENSION, "/properties")
    .change(Mutation::Gone(r#"{"extensions": [{"name": "other", "extensionType": "microsoft.dapr"}]}"#))
    .unset(Mutation::Gone(r#"{"extensions": null}"#)),
];
