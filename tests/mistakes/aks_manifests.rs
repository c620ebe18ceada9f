//! Manifests of AKS clusters and pools that are refused when they are applied.

use serde_json::{Value, json};
use slipway_kit::mistakes::Mistake;

use crate::{
    aks_world::{self, INFRASTRUCTURE_VERSION, NAMESPACE},
    refused::{Refused, see_all, spec},
};

const CONTROL_PLANES: &str = "AKS: the control plane's manifest";
const POOLS: &str = "AKS: a pool's manifest";
const OTHERS: &str = "AKS: identities and classes";

fn base(kind: &str) -> Value {
    let labels = json!({"cluster.x-k8s.io/cluster-name": "fleet"});
    let spec = match kind {
        "AzureManagedControlPlane" => json!({
            "version": "v1.33.3", "location": "westus3", "resourceGroupName": "fleet",
            "subscriptionID": "00000000-0000-0000-0000-00000000000a",
            "identityRef": {"kind": "AzureClusterIdentity", "name": "fleet"},
        }),
        "AzureManagedMachinePool" => json!({"mode": "System", "sku": "Standard_D2s_v3", "name": "system"}),
        "AzureClusterIdentity" => {
            json!({"type": "ServicePrincipal", "clientID": "c", "tenantID": "t", "allowedNamespaces": {},
            "clientSecret": {"name": "secret", "namespace": NAMESPACE}})
        }
        _ => json!({}),
    };
    json!({"apiVersion": INFRASTRUCTURE_VERSION, "kind": kind,
        "metadata": {"name": "one", "namespace": NAMESPACE, "labels": labels}, "spec": spec})
}

fn plane(what: &'static str, wrong: &Value, right: &Value, undo: &'static str) -> Refused {
    Refused {
        what,
        kind: "AzureManagedControlPlane",
        wrong: spec(wrong),
        right: spec(right),
        undo,
    }
}

fn pool(what: &'static str, wrong: &Value, right: &Value, undo: &'static str) -> Refused {
    Refused {
        what,
        kind: "AzureManagedMachinePool",
        wrong: spec(wrong),
        right: spec(right),
        undo,
    }
}

fn control_planes() -> Vec<Refused> {
    vec![
        plane(
            "a version without its patch number",
            &json!({"version": "v1.33"}),
            &json!({"version": "v1.33.3"}),
            "write all three numbers: `v1.33.3`",
        ),
        plane(
            "`latest` as the version",
            &json!({"version": "latest"}),
            &json!({"version": "v1.34.1"}),
            "write a version that AKS offers: `az aks get-versions`",
        ),
        plane(
            "no `identityRef`",
            &json!({"identityRef": null}),
            &json!({}),
            "name the AzureClusterIdentity that signs in",
        ),
        plane(
            "a display name as the location",
            &json!({"location": "West US 3!"}),
            &json!({"location": "westus3"}),
            "write the location's short name: `az account list-locations`",
        ),
        plane(
            "the name of a subscription for its id",
            &json!({"subscriptionID": "Pay-As-You-Go"}),
            &json!({}),
            "write the id: `az account show --query id`",
        ),
        plane(
            "a resource group with a space in its name",
            &json!({"resourceGroupName": "my group"}),
            &json!({"resourceGroupName": "my-group"}),
            "choose a name of letters, digits and `-_.()`",
        ),
        plane(
            "a node resource group that ends with a period",
            &json!({"nodeResourceGroupName": "nodes."}),
            &json!({"nodeResourceGroupName": "nodes"}),
            "leave the period out",
        ),
        Refused {
            what: "a cluster's name with a dot",
            kind: "AzureManagedControlPlane",
            wrong: json!({"metadata": {"name": "shop.prod"}}),
            right: json!({"metadata": {"name": "shop-prod"}}),
            undo: "name it with letters, digits, `-` and `_`",
        },
        Refused {
            what: "a cluster's name with `microsoft` in it",
            kind: "AzureManagedControlPlane",
            wrong: json!({"metadata": {"name": "my-microsoft-shop"}}),
            right: json!({"metadata": {"name": "my-shop"}}),
            undo: "name it otherwise: Azure keeps that word for itself",
        },
        plane(
            "a DNS prefix that begins with a hyphen",
            &json!({"dnsPrefix": "-shop"}),
            &json!({"dnsPrefix": "shop"}),
            "begin and end it with a letter or digit",
        ),
        plane(
            "a DNS service address outside the service range",
            &json!({"dnsServiceIP": "1.2.3.4"}),
            &json!({"dnsServiceIP": "192.168.0.10"}),
            "take the tenth address of the Cluster's service range",
        ),
        plane(
            "a DNS service address that is not the tenth",
            &json!({"dnsServiceIP": "192.168.0.11"}),
            &json!({"dnsServiceIP": "192.168.0.10"}),
            "take the tenth address of the Cluster's service range",
        ),
        plane(
            "a DNS service address that is no address",
            &json!({"dnsServiceIP": "ten"}),
            &json!({"dnsServiceIP": "192.168.0.10"}),
            "write an IP address, or leave the field out",
        ),
        plane(
            "overlay networking with kubenet",
            &json!({"networkPlugin": "kubenet", "networkPluginMode": "overlay"}),
            &json!({"networkPlugin": "azure", "networkPluginMode": "overlay"}),
            "use `networkPlugin: azure`, or no overlay",
        ),
        plane(
            "a network plugin that does not exist",
            &json!({"networkPlugin": "foo"}),
            &json!({"networkPlugin": "azure"}),
            "choose one of those listed",
        ),
        plane(
            "Cilium's data plane without its policies",
            &json!({"networkPluginMode": "overlay", "networkDataplane": "cilium"}),
            &json!({"networkPluginMode": "overlay", "networkDataplane": "cilium", "networkPolicy": "cilium"}),
            "add `networkPolicy: cilium`",
        ),
        plane(
            "a network range without its length",
            &json!({"virtualNetwork": {"name": "net", "cidrBlock": "10.0.0.0", "subnet": {"name": "nodes", "cidrBlock": "10.0.0.0/16"}}}),
            &json!({"virtualNetwork": {"name": "net", "cidrBlock": "10.0.0.0/8", "subnet": {"name": "nodes", "cidrBlock": "10.0.0.0/16"}}}),
            "write it like `10.0.0.0/8`",
        ),
        plane(
            "a subnet outside its network",
            &json!({"virtualNetwork": {"name": "net", "cidrBlock": "10.0.0.0/16", "subnet": {"name": "nodes", "cidrBlock": "10.240.0.0/16"}}}),
            &json!({"virtualNetwork": {"name": "net", "cidrBlock": "10.0.0.0/8", "subnet": {"name": "nodes", "cidrBlock": "10.240.0.0/16"}}}),
            "widen the network or move the subnet",
        ),
        plane(
            "two hundred outbound addresses",
            &json!({"loadBalancerProfile": {"managedOutboundIPs": 200}}),
            &json!({"loadBalancerProfile": {"managedOutboundIPs": 20}}),
            "ask for 1 to 100",
        ),
        plane(
            "outbound addresses both managed and brought",
            &json!({"loadBalancerProfile": {"managedOutboundIPs": 1, "outboundIPs": ["a"]}}),
            &json!({"loadBalancerProfile": {"managedOutboundIPs": 1}}),
            "keep one of the two",
        ),
        plane(
            "local accounts disabled without Entra",
            &json!({"disableLocalAccounts": true}),
            &json!({"disableLocalAccounts": true, "aadProfile": {"managed": true, "adminGroupObjectIDs": ["g"]}}),
            "add an `aadProfile`, or keep local accounts",
        ),
        plane(
            "an SSH key that was not encoded",
            &json!({"sshPublicKey": "ssh-rsa AAAA me@host"}),
            &json!({"sshPublicKey": null}),
            "encode the public key: `base64 -w0 id_rsa.pub`; or leave it out, and nodes get none",
        ),
        plane(
            "a user-assigned identity without its id",
            &json!({"identity": {"type": "UserAssigned"}}),
            &json!({"identity": {"type": "UserAssigned", "userAssignedIdentityResourceID": "/subscriptions/s/resourceGroups/g/providers/Microsoft.ManagedIdentity/userAssignedIdentities/i"}}),
            "add `userAssignedIdentityResourceID`",
        ),
        plane(
            "workload identity without an issuer",
            &json!({"securityProfile": {"workloadIdentity": {"enabled": true}}}),
            &json!({"oidcIssuerProfile": {"enabled": true}, "securityProfile": {"workloadIdentity": {"enabled": true}}}),
            "enable `oidcIssuerProfile` with it",
        ),
        plane(
            "an authorised range that is none",
            &json!({"apiServerAccessProfile": {"authorizedIPRanges": ["1.2.3.400/32"]}}),
            &json!({"apiServerAccessProfile": {"authorizedIPRanges": ["1.2.3.4/32"]}}),
            "write a range like `1.2.3.4/32`",
        ),
        plane(
            "a private DNS zone for a public cluster",
            &json!({"apiServerAccessProfile": {"privateDNSZone": "/x/privateDnsZones/privatelink.westus.azmk8s.io"}}),
            &json!({"apiServerAccessProfile": {"enablePrivateCluster": true, "privateDNSZone": "System"}}),
            "set `enablePrivateCluster`, or leave the zone out",
        ),
        plane(
            "an autoscaler interval in minutes",
            &json!({"autoscalerProfile": {"scanInterval": "10m"}}),
            &json!({"autoscalerProfile": {"scanInterval": "10s"}}),
            "write it in seconds",
        ),
        plane(
            "one add-on twice",
            &json!({"addonProfiles": [{"name": "azurepolicy", "enabled": true}, {"name": "azurepolicy", "enabled": false}]}),
            &json!({"addonProfiles": [{"name": "azurepolicy", "enabled": true}]}),
            "keep one of them",
        ),
        plane(
            "an extension with a version that upgrades itself",
            &json!({"extensions": [{"name": "flux", "extensionType": "microsoft.flux", "version": "1.0.0"}]}),
            &json!({"extensions": [{"name": "flux", "extensionType": "microsoft.flux", "version": "1.0.0", "autoUpgradeMinorVersion": false}]}),
            "set `autoUpgradeMinorVersion: false`, or leave the version out",
        ),
        plane(
            "a patch that is no object",
            &json!({"asoManagedClusterPatches": ["[1]"]}),
            &json!({"asoManagedClusterPatches": ["{\"spec\": {\"enableRBAC\": true}}"]}),
            "write a merge patch of the managed cluster",
        ),
        plane(
            "a cloud that was closed",
            &json!({"azureEnvironment": "AzureGermanCloud"}),
            &json!({"azureEnvironment": "AzurePublicCloud"}),
            "choose one of those listed",
        ),
        plane(
            "a tag with a slash in its name",
            &json!({"additionalTags": {"team/owner": "shop"}}),
            &json!({"additionalTags": {"team-owner": "shop"}}),
            "Azure takes no `<>%&\\?/` in names of tags",
        ),
    ]
}

fn pools() -> Vec<Refused> {
    vec![
        pool(
            "five pods a node",
            &json!({"maxPods": 5}),
            &json!({"maxPods": 30}),
            "ask for 10 to 250",
        ),
        pool(
            "a system pool on Windows",
            &json!({"osType": "Windows", "name": "win"}),
            &json!({"osType": "Windows", "name": "win", "mode": "User"}),
            "make it a User pool; system pods run on Linux",
        ),
        pool(
            "a system pool of Spot machines",
            &json!({"scaleSetPriority": "Spot"}),
            &json!({"scaleSetPriority": "Spot", "mode": "User"}),
            "make it a User pool; AKS may take Spot machines away",
        ),
        pool(
            "a pool's name with capitals",
            &json!({"name": "Work"}),
            &json!({"name": "work"}),
            "up to twelve lower-case letters and digits, a letter first",
        ),
        pool(
            "a pool's name of thirteen letters",
            &json!({"name": "thirteenchars"}),
            &json!({"name": "twelvechars"}),
            "up to twelve lower-case letters and digits, a letter first",
        ),
        pool(
            "a long name for a Windows pool",
            &json!({"osType": "Windows", "mode": "User", "name": "windows1"}),
            &json!({"osType": "Windows", "mode": "User", "name": "win1"}),
            "Windows pools have up to six characters",
        ),
        pool(
            "a smallest size above the largest",
            &json!({"scaling": {"minSize": 5, "maxSize": 3}}),
            &json!({"scaling": {"minSize": 3, "maxSize": 5}}),
            "swap them",
        ),
        pool(
            "a system pool that may scale to nothing",
            &json!({"scaling": {"minSize": 0, "maxSize": 3}}),
            &json!({"scaling": {"minSize": 1, "maxSize": 3}}),
            "keep one node, or make it a User pool",
        ),
        pool(
            "a Spot price without Spot",
            &json!({"spotMaxPrice": "0.5"}),
            &json!({"spotMaxPrice": "0.5", "scaleSetPriority": "Spot", "mode": "User"}),
            "add `scaleSetPriority: Spot`, or leave the price out",
        ),
        pool(
            "a label of AKS's own",
            &json!({"nodeLabels": {"kubernetes.azure.com/zone": "1"}}),
            &json!({"nodeLabels": {"example.com/zone": "1"}}),
            "use a prefix of your own",
        ),
        pool(
            "a label of Kubernetes' own",
            &json!({"nodeLabels": {"kubernetes.io/team": "shop"}}),
            &json!({"nodeLabels": {"example.com/team": "shop"}}),
            "use a prefix of your own, or `node.kubernetes.io`",
        ),
        pool(
            "a label with a space",
            &json!({"nodeLabels": {"team": "the shop"}}),
            &json!({"nodeLabels": {"team": "the-shop"}}),
            "letters, digits and `-_.`, up to 63",
        ),
        pool(
            "a taint with an effect that does not exist",
            &json!({"taints": [{"key": "gpu", "value": "yes", "effect": "Sometimes"}]}),
            &json!({"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}),
            "choose one of those listed",
        ),
        pool(
            "a subnet's name with a space",
            &json!({"subnetName": "my nodes"}),
            &json!({"subnetName": "my-nodes"}),
            "write the subnet's name as Azure shows it",
        ),
        pool(
            "a CPU quota period in seconds",
            &json!({"kubeletConfig": {"cpuCfsQuotaPeriod": "1s"}}),
            &json!({"kubeletConfig": {"cpuCfsQuotaPeriod": "100ms"}}),
            "write it in milliseconds",
        ),
        pool(
            "swap that the kubelet refuses",
            &json!({"linuxOSConfig": {"swapFileSizeMB": 1500}}),
            &json!({"linuxOSConfig": {"swapFileSizeMB": 1500}, "kubeletConfig": {"failSwapOn": false}}),
            "set `kubeletConfig.failSwapOn: false` with it",
        ),
        pool(
            "a port range the wrong way round",
            &json!({"linuxOSConfig": {"sysctls": {"netIpv4IPLocalPortRange": "60000 32768"}}}),
            &json!({"linuxOSConfig": {"sysctls": {"netIpv4IPLocalPortRange": "32768 60000"}}}),
            "write the first port first",
        ),
    ]
}

fn others() -> Vec<Refused> {
    vec![
        Refused {
            what: "the id of a managed identity for a service principal",
            kind: "AzureClusterIdentity",
            wrong: spec(&json!({"resourceID": "/subscriptions/s"})),
            right: spec(&json!({})),
            undo: "leave `resourceID` out, or use the type `UserAssignedMSI`",
        },
        Refused {
            what: "a default pool that is neither described nor named",
            kind: "AzureManagedCluster",
            wrong: spec(&json!({"defaultPoolTemplate": {"replicas": 1}})),
            right: spec(&json!({"defaultPoolTemplate": {"machinePoolRef": {"name": "system"}}})),
            undo: "add `spec`, or `machinePoolRef`",
        },
        Refused {
            what: "a default pool of mode User",
            kind: "AzureManagedCluster",
            wrong: spec(
                &json!({"defaultPoolTemplate": {"spec": {"mode": "User", "sku": "Standard_D2s_v3"}}}),
            ),
            right: spec(
                &json!({"defaultPoolTemplate": {"spec": {"mode": "System", "sku": "Standard_D2s_v3"}}}),
            ),
            undo: "make it System: AKS cannot begin without one",
        },
    ]
}

pub async fn see() -> Vec<Mistake> {
    let server = aks_world::bare_server().await;
    see_all(
        &server,
        vec![
            (CONTROL_PLANES, control_planes()),
            (POOLS, pools()),
            (OTHERS, others()),
        ],
        base,
    )
    .await
}
