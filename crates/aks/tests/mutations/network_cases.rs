//! The network, and what stands beside a cluster: endpoints, a place in a fleet, extensions.

use super::{CLUSTER, Case, Step, plane};

const SUBNET: &str = "/virtualNetworks/fleet/subnets/fleet";
const ENDPOINT: &str = "/privateEndpoints/registry";
const MEMBER: &str = "/members/fleet";
const EXTENSION: &str = "/extensions/dapr";

pub const NETWORK: &[Case] = &[
    plane("loadBalancerProfile.managedOutboundIPs", CLUSTER, "/properties/networkProfile/loadBalancerProfile/managedOutboundIPs/count")
    .set(Step::Sends(r#"{"loadBalancerProfile": {"managedOutboundIPs": 2}}"#, "2"))
    .change(Step::Sends(r#"{"loadBalancerProfile": {"managedOutboundIPs": 3}}"#, "3"))
    .unset(Step::Sends(r#"{"loadBalancerProfile": null}"#, "null")),
    plane("loadBalancerProfile.allocatedOutboundPorts", CLUSTER, "/properties/networkProfile/loadBalancerProfile/allocatedOutboundPorts")
    .set(Step::Sends(r#"{"loadBalancerProfile": {"allocatedOutboundPorts": 1024}}"#, "1024"))
    .change(Step::Sends(r#"{"loadBalancerProfile": {"allocatedOutboundPorts": 2048}}"#, "2048"))
    .unset(Step::Sends(r#"{"loadBalancerProfile": {"allocatedOutboundPorts": null}}"#, "null")),
    plane("loadBalancerProfile.idleTimeoutInMinutes", CLUSTER, "/properties/networkProfile/loadBalancerProfile/idleTimeoutInMinutes")
    .set(Step::Sends(r#"{"loadBalancerProfile": {"idleTimeoutInMinutes": 10}}"#, "10"))
    .change(Step::Sends(r#"{"loadBalancerProfile": {"idleTimeoutInMinutes": 20}}"#, "20"))
    .unset(Step::Sends(r#"{"loadBalancerProfile": {"idleTimeoutInMinutes": null}}"#, "null")),
    plane("loadBalancerProfile.outboundIPs[]", CLUSTER, "/properties/networkProfile/loadBalancerProfile/outboundIPs/publicIPs")
    .set(Step::Sends(r#"{"loadBalancerProfile": {"outboundIPs": ["/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/publicIPAddresses/a"]}}"#, r#"[{"id": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/publicIPAddresses/a"}]"#))
    .change(Step::Sends(r#"{"loadBalancerProfile": {"outboundIPs": ["/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/publicIPAddresses/b"]}}"#, r#"[{"id": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/publicIPAddresses/b"}]"#))
    .unset(Step::Sends(r#"{"loadBalancerProfile": {"outboundIPs": null}}"#, "null")),
    plane("loadBalancerProfile.outboundIPPrefixes[]", CLUSTER, "/properties/networkProfile/loadBalancerProfile/outboundIPPrefixes/publicIPPrefixes")
    .set(Step::Sends(r#"{"loadBalancerProfile": {"outboundIPPrefixes": ["/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/publicIPPrefixes/a"]}}"#, r#"[{"id": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/publicIPPrefixes/a"}]"#))
    .change(Step::Sends(r#"{"loadBalancerProfile": {"outboundIPPrefixes": ["/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/publicIPPrefixes/b"]}}"#, r#"[{"id": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/publicIPPrefixes/b"}]"#))
    .unset(Step::Sends(r#"{"loadBalancerProfile": null}"#, "null")),
    plane("virtualNetwork.subnet.serviceEndpoints[].service", SUBNET, "/properties/serviceEndpoints/0/service")
    .set(Step::Sends(r#"{"virtualNetwork": {"subnet": {"serviceEndpoints": [{"service": "Microsoft.Sql", "locations": ["westus3"]}]}}}"#, r#""Microsoft.Sql""#))
    .change(Step::Sends(r#"{"virtualNetwork": {"subnet": {"serviceEndpoints": [{"service": "Microsoft.Storage", "locations": ["westus3"]}]}}}"#, r#""Microsoft.Storage""#))
    .unset(Step::Sends(r#"{"virtualNetwork": {"subnet": {"serviceEndpoints": null}}}"#, "null")),
    plane("virtualNetwork.subnet.serviceEndpoints[].locations[]", SUBNET, "/properties/serviceEndpoints/0/locations")
    .set(Step::Sends(r#"{"virtualNetwork": {"subnet": {"serviceEndpoints": [{"service": "Microsoft.Sql", "locations": ["westus3"]}]}}}"#, r#"["westus3"]"#))
    .change(Step::Sends(r#"{"virtualNetwork": {"subnet": {"serviceEndpoints": [{"service": "Microsoft.Sql", "locations": ["westus3", "eastus"]}]}}}"#, r#"["westus3", "eastus"]"#))
    .unset(Step::Sends(r#"{"virtualNetwork": {"subnet": {"serviceEndpoints": null}}}"#, "null")),
    plane("networkPluginMode", CLUSTER, "/properties/networkProfile/networkPluginMode")
    .set(Step::Sends(r#"{"networkPluginMode": "overlay"}"#, r#""overlay""#))
    .unset(Step::Refused(r#"{"networkPluginMode": null}"#, "cannot be disabled")),
];

pub const BESIDES: &[Case] = &[
    plane("virtualNetwork.subnet.privateEndpoints[].applicationSecurityGroups[]", ENDPOINT, "/properties/applicationSecurityGroups")
    .beside(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#)
    .set(Step::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "applicationSecurityGroups": ["/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/applicationSecurityGroups/a"], "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, r#"[{"id": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/applicationSecurityGroups/a"}]"#))
    .change(Step::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "applicationSecurityGroups": ["/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/applicationSecurityGroups/b"], "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, r#"[{"id": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/applicationSecurityGroups/b"}]"#))
    .unset(Step::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, "null")),
    plane("virtualNetwork.subnet.privateEndpoints[].customNetworkInterfaceName", ENDPOINT, "/properties/customNetworkInterfaceName")
    .set(Step::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "customNetworkInterfaceName": "nic-a", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, r#""nic-a""#))
    .change(Step::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "customNetworkInterfaceName": "nic-b", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, r#""nic-b""#))
    .unset(Step::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, "null")),
    plane("virtualNetwork.subnet.privateEndpoints[].location", ENDPOINT, "/location")
        .set(Step::Refused(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "location": "eastus", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, "field is immutable"))
        .change(Step::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "location": "westus3", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, r#""westus3""#))
        .unset(Step::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, r#""westus3""#)),
    plane("virtualNetwork.subnet.privateEndpoints[].manualApproval", ENDPOINT, "/properties/manualPrivateLinkServiceConnections/0/name")
    .set(Step::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "manualApproval": true, "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, r#""one""#))
    .change(Step::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "manualApproval": false, "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, "null"))
    .unset(Step::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, "null")),
    plane("virtualNetwork.subnet.privateEndpoints[].privateIPAddresses[]", ENDPOINT, "/properties/ipConfigurations/0/properties/privateIPAddress")
    .set(Step::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateIPAddresses": ["10.240.0.10"], "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, r#""10.240.0.10""#))
    .change(Step::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateIPAddresses": ["10.240.0.11"], "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, r#""10.240.0.11""#))
    .unset(Step::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, "null")),
    plane("virtualNetwork.subnet.privateEndpoints[].privateLinkServiceConnections[].groupIDs[]", ENDPOINT, "/properties/privateLinkServiceConnections/0/properties/groupIds")
    .set(Step::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a", "groupIDs": ["a"]}]}]}}}"#, r#"["a"]"#))
    .change(Step::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a", "groupIDs": ["b"]}]}]}}}"#, r#"["b"]"#))
    .unset(Step::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, "null")),
    plane("virtualNetwork.subnet.privateEndpoints[].privateLinkServiceConnections[].name", ENDPOINT, "/properties/privateLinkServiceConnections/0/name")
    .set(Step::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"name": "two", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, r#""two""#))
    .change(Step::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"name": "three", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, r#""three""#))
    .unset(Step::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, r#""registry""#)),
    plane("virtualNetwork.subnet.privateEndpoints[].privateLinkServiceConnections[].privateLinkServiceID", ENDPOINT, "/properties/privateLinkServiceConnections/0/properties/privateLinkServiceId")
    .set(Step::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, r#""/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a""#))
    .change(Step::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/b"}]}]}}}"#, r#""/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/b""#))
    .unset(Step::Refused(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"name": "one"}]}]}}}"#, "privateLinkServiceID is required")),
    plane("virtualNetwork.subnet.privateEndpoints[].privateLinkServiceConnections[].requestMessage", ENDPOINT, "/properties/privateLinkServiceConnections/0/properties/requestMessage")
    .set(Step::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a", "requestMessage": "please"}]}]}}}"#, r#""please""#))
    .change(Step::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a", "requestMessage": "thanks"}]}]}}}"#, r#""thanks""#))
    .unset(Step::Sends(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#, "null")),
    plane("virtualNetwork.subnet.privateEndpoints[].name", ENDPOINT, "/properties")
    .change(Step::Gone(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": [{"name": "other", "privateLinkServiceConnections": [{"name": "one", "privateLinkServiceID": "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/hub/providers/Microsoft.Network/privateLinkServices/a"}]}]}}}"#))
    .unset(Step::Gone(r#"{"virtualNetwork": {"subnet": {"privateEndpoints": null}}}"#)),
    plane("fleetsMember.name", MEMBER, "/properties/clusterResourceId")
    .set(Step::Sends(r#"{"fleetsMember": {"name": "fleet", "managerName": "armada", "managerResourceGroup": "hub"}}"#, r#""/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/fleet/providers/Microsoft.ContainerService/managedClusters/fleet""#))
    .change(Step::Refused(r#"{"fleetsMember": {"name": "other"}}"#, "Name is immutable"))
    .unset(Step::Gone(r#"{"fleetsMember": null}"#)),
    plane("fleetsMember.group", MEMBER, "/properties/group")
    .beside(r#"{"fleetsMember": {"name": "fleet", "managerName": "armada", "managerResourceGroup": "hub"}}"#)
    .set(Step::Sends(r#"{"fleetsMember": {"group": "blue"}}"#, r#""blue""#))
    .change(Step::Sends(r#"{"fleetsMember": {"group": "red"}}"#, r#""red""#))
    .unset(Step::Sends(r#"{"fleetsMember": {"group": null}}"#, r#""default""#)),
    plane("fleetsMember.managerName", "/fleets/armada/members/fleet", "/properties")
    .change(Step::Gone(r#"{"fleetsMember": {"managerName": "flotilla"}}"#)),
    plane("fleetsMember.managerResourceGroup", "/resourceGroups/hub/providers/Microsoft.ContainerService/fleets/flotilla/members/fleet", "/properties")
    .change(Step::Gone(r#"{"fleetsMember": {"managerResourceGroup": "hub2"}}"#))
    .unset(Step::Gone(r#"{"fleetsMember": null}"#)),
    plane("extensions[].aksAssignedIdentityType", EXTENSION, "/properties/aksAssignedIdentity/type")
    .beside(r#"{"extensions": [{"name": "dapr", "extensionType": "microsoft.dapr"}]}"#)
    .set(Step::Sends(r#"{"extensions": [{"name": "dapr", "extensionType": "microsoft.dapr", "aksAssignedIdentityType": "SystemAssigned"}]}"#, r#""SystemAssigned""#))
    .change(Step::Sends(r#"{"extensions": [{"name": "dapr", "extensionType": "microsoft.dapr", "aksAssignedIdentityType": "UserAssigned"}]}"#, r#""UserAssigned""#))
    .unset(Step::Sends(r#"{"extensions": [{"name": "dapr", "extensionType": "microsoft.dapr"}]}"#, "null")),
    plane("extensions[].configurationSettings{}", EXTENSION, "/properties/configurationSettings/mode")
    .set(Step::Sends(r#"{"extensions": [{"name": "dapr", "extensionType": "microsoft.dapr", "configurationSettings": {"mode": "a"}}]}"#, r#""a""#))
    .change(Step::Sends(r#"{"extensions": [{"name": "dapr", "extensionType": "microsoft.dapr", "configurationSettings": {"mode": "b"}}]}"#, r#""b""#))
    .unset(Step::Sends(r#"{"extensions": [{"name": "dapr", "extensionType": "microsoft.dapr"}]}"#, "null")),
    plane("extensions[].autoUpgradeMinorVersion", EXTENSION, "/properties/autoUpgradeMinorVersion")
    .set(Step::Sends(r#"{"extensions": [{"name": "dapr", "extensionType": "microsoft.dapr", "autoUpgradeMinorVersion": false}]}"#, "false"))
    .change(Step::Sends(r#"{"extensions": [{"name": "dapr", "extensionType": "microsoft.dapr", "autoUpgradeMinorVersion": true}]}"#, "true"))
    .unset(Step::Sends(r#"{"extensions": [{"name": "dapr", "extensionType": "microsoft.dapr"}]}"#, "true")),
    plane("extensions[].releaseTrain", EXTENSION, "/properties/releaseTrain")
    .set(Step::Sends(r#"{"extensions": [{"name": "dapr", "extensionType": "microsoft.dapr", "releaseTrain": "Preview"}]}"#, r#""Preview""#))
    .change(Step::Refused(r#"{"extensions": [{"name": "dapr", "extensionType": "microsoft.dapr", "releaseTrain": "Stable"}]}"#, "field is immutable"))
    .unset(Step::Sends(r#"{"extensions": [{"name": "dapr", "extensionType": "microsoft.dapr"}]}"#, "null")),
    plane("extensions[].version", EXTENSION, "/properties/version")
    .set(Step::Sends(r#"{"extensions": [{"name": "dapr", "extensionType": "microsoft.dapr", "autoUpgradeMinorVersion": false, "version": "1.14.4"}]}"#, r#""1.14.4""#))
    .change(Step::Refused(r#"{"extensions": [{"name": "dapr", "extensionType": "microsoft.dapr", "autoUpgradeMinorVersion": false, "version": "1.15.0"}]}"#, "field is immutable"))
    .unset(Step::Sends(r#"{"extensions": [{"name": "dapr", "extensionType": "microsoft.dapr"}]}"#, "null")),
    plane("extensions[].name", EXTENSION, "/properties")
    .change(Step::Gone(r#"{"extensions": [{"name": "other", "extensionType": "microsoft.dapr"}]}"#))
    .unset(Step::Gone(r#"{"extensions": null}"#)),
];
