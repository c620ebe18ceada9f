//! What Azure refuses, one row a case: the request, the answer, and where its code and text are known from. The table
//! is also a page, `docs/azure-refusals.md`; the test fails when the page is not what the rows say
//! (`SLIPWAY_WRITE_PAGES=1` writes it).

use std::fmt::Write as _;

use serde_json::{Value, json};
use slipway_azure_sim::Settings;

use crate::fixture::{Fixture, SUBSCRIPTION, cluster_body, code, pool_body, request};

const CLUSTER: &str = "/resourceGroups/rg/providers/Microsoft.ContainerService/managedClusters/one";
const NETWORK: &str = "/resourceGroups/rg/providers/Microsoft.Network/virtualNetworks/net";
const IDENTITY: &str = "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/rg/providers/Microsoft.ManagedIdentity/userAssignedIdentities/none";

/// Where a refusal is known from.
#[derive(Clone, Copy)]
enum Known {
    /// Code and text, from a public report of the real answer.
    Seen(&'static str),
    /// That it is refused and the code or the frame of the text; the rest is ours.
    Partly(&'static str),
    /// That it is refused, from the documentation; code and text are ours.
    Inferred(&'static str),
}

use Known::{Inferred, Partly, Seen};

/// What is sent.
enum Sent {
    /// A new cluster with this value at this pointer below `properties`, or at the top for `/sku` and the like.
    Cluster(&'static str, Value),
    /// The same for the pool `p2` of a cluster that stands.
    Pool(&'static str, Value),
    /// Another body for the cluster that stands.
    Change(&'static str, Value),
    /// A PUT of anything else.
    Put(&'static str, Value),
    /// A PUT when the cluster is stopped.
    Stopped(&'static str, Value),
}

use Sent::{Change, Cluster, Pool, Put, Stopped};

struct Row {
    what: &'static str,
    sent: Sent,
    status: u16,
    code: &'static str,
    /// A part of the message.
    says: &'static str,
    known: Known,
}

fn row(
    what: &'static str,
    sent: Sent,
    (status, code): (u16, &'static str),
    says: &'static str,
    known: Known,
) -> Row {
    Row {
        what,
        sent,
        status,
        code,
        says,
        known,
    }
}

fn subnet(prefix: &str) -> Value {
    json!({"properties": {"addressPrefix": prefix}})
}

fn network(subnets: &[(&str, &str)]) -> Value {
    let subnets: Vec<Value> = subnets
        .iter()
        .map(|(name, prefix)| json!({"name": name, "properties": {"addressPrefix": prefix}}))
        .collect();
    json!({"location": "westus3", "properties": {"addressSpace": {"addressPrefixes": ["10.0.0.0/8"]}, "subnets": subnets}})
}

fn network_rows() -> Vec<Row> {
    let new = "/resourceGroups/rg/providers/Microsoft.Network/virtualNetworks/new";
    let outside = (400, "NetcfgSubnetRangeOutsideVnet");
    let overlap = (400, "NetcfgSubnetRangesOverlap");
    let docs = "azure-docs#123869";
    vec![
        row(
            "a subnet outside its virtual network",
            Put(
                "/resourceGroups/rg/providers/Microsoft.Network/virtualNetworks/net/subnets/far",
                subnet("192.168.0.0/24"),
            ),
            outside,
            "Subnet 'far' is not valid because its IP address range is outside the IP address range of virtual network 'net'.",
            Seen(docs),
        ),
        row(
            "the same in the body of the network",
            Put(new, network(&[("far", "192.168.0.0/24")])),
            outside,
            "Subnet 'far' is not valid",
            Seen(docs),
        ),
        row(
            "a subnet over another",
            Put(
                "/resourceGroups/rg/providers/Microsoft.Network/virtualNetworks/net/subnets/over",
                subnet("10.240.1.0/24"),
            ),
            overlap,
            "Subnet 'over' is not valid because its IP address range overlaps with that of an existing subnet in virtual network 'net'.",
            Seen(docs),
        ),
        row(
            "the same in the body of the network",
            Put(new, network(&[("a", "10.1.0.0/16"), ("b", "10.1.2.0/24")])),
            overlap,
            "Subnet 'b' is not valid",
            Seen(docs),
        ),
        row(
            "a range that is none",
            Put(new, network(&[("a", "10.1.0.0/33")])),
            (400, "InvalidCIDRNotation"),
            "The address prefix 10.1.0.0/33",
            Inferred("resource-manager errors"),
        ),
    ]
}

fn arm_rows() -> Vec<Row> {
    let group = json!({"location": "westus3"});
    vec![
        row(
            "a subscription id that is none",
            Put(
                "https://management.azure.com/subscriptions/Pay-As-You-Go/resourceGroups/rg",
                group.clone(),
            ),
            (400, "InvalidSubscriptionId"),
            "The provided subscription identifier 'Pay-As-You-Go' is malformed or invalid.",
            Seen("azure-docs#77959"),
        ),
        row(
            "a name of a resource group with other characters",
            Put("/resourceGroups/my%20group", group.clone()),
            (400, "InvalidResourceGroup"),
            "The provided resource group name 'my group' has these invalid characters: ' '. The name can only be a letter, digit, '-', '.', '(', ')' or '_'.",
            Seen("azure-cli#14481"),
        ),
        row(
            "a name of a resource group of 91 characters",
            Put(
                "/resourceGroups/gggggggggggggggggggggggggggggggggggggggggggggggggggggggggggggggggggggggggggggggggggggggggggg",
                group.clone(),
            ),
            (400, "InvalidResourceGroup"),
            "exceeds the maximum length of 90 characters",
            Inferred("resource name rules"),
        ),
        row(
            "a network in a resource group that is not there",
            Put(
                "/resourceGroups/none/providers/Microsoft.Network/virtualNetworks/new",
                network(&[]),
            ),
            (404, "ResourceGroupNotFound"),
            "Resource group 'none' could not be found.",
            Seen("recorded"),
        ),
        row(
            "a name of a resource group that ends with a period",
            Put("/resourceGroups/group.", group.clone()),
            (400, "InvalidResourceGroup"),
            "must not end with a period",
            Inferred("resource name rules"),
        ),
        row(
            "a location that is none",
            Put("/resourceGroups/other", json!({"location": "westus33"})),
            (400, "LocationNotAvailableForResourceGroup"),
            "The provided location 'westus33' is not available for resource group.",
            Partly("resource-manager errors"),
        ),
        row(
            "the same of a cluster",
            Cluster("/location", json!("none")),
            (400, "LocationNotAvailableForResourceType"),
            "The provided location 'none' is not available for resource type 'Microsoft.ContainerService/managedClusters'. List of available regions for the resource type is",
            Seen("AKS#5099"),
        ),
        row(
            "a tag name with reserved characters",
            Put(
                "/resourceGroups/other",
                json!({"location": "westus3", "tags": {"a/b": "c"}}),
            ),
            (400, "InvalidTagNameCharacters"),
            "The tag name 'a/b' has reserved characters",
            Partly("azure-operator#146"),
        ),
        row(
            "more than fifty tags",
            Put(
                "/resourceGroups/other",
                json!({"location": "westus3", "tags": (0..51).map(|n| (format!("t{n}"), "v")).collect::<std::collections::BTreeMap<_, _>>()}),
            ),
            (400, "TooManyTags"),
            "at most 50",
            Inferred("tag limits"),
        ),
    ]
}

fn cluster_rows() -> Vec<Row> {
    let invalid = (400, "InvalidParameter");
    let frame = "AKS#3300";
    let word = |pointer: &'static str, says: &'static str| {
        row(
            "a word that AKS does not know",
            Cluster(pointer, json!("foo")),
            invalid,
            says,
            Partly(frame),
        )
    };
    let switch = |pointer: &'static str| {
        row(
            "text for a switch of the autoscaler",
            Cluster(pointer, json!("true")),
            (400, "UnmarshalError"),
            pointer.rsplit('/').next().unwrap_or_default(),
            Seen("AKS#1402"),
        )
    };
    vec![
        word(
            "/networkProfile/networkPlugin",
            "The value of parameter networkProfile.networkPlugin is invalid. Error details: \"foo\" is not one of the supported values: azure, kubenet, none",
        ),
        word(
            "/networkProfile/networkPluginMode",
            "networkProfile.networkPluginMode is invalid",
        ),
        word(
            "/networkProfile/networkPolicy",
            "networkProfile.networkPolicy is invalid",
        ),
        word(
            "/networkProfile/networkDataplane",
            "networkProfile.networkDataplane is invalid",
        ),
        word(
            "/networkProfile/outboundType",
            "networkProfile.outboundType is invalid",
        ),
        word(
            "/networkProfile/loadBalancerSku",
            "networkProfile.loadBalancerSku is invalid",
        ),
        word(
            "/autoUpgradeProfile/upgradeChannel",
            "autoUpgradeProfile.upgradeChannel is invalid",
        ),
        word(
            "/autoScalerProfile/expander",
            "autoScalerProfile.expander is invalid",
        ),
        row(
            "the same for the tier",
            Cluster("/sku", json!({"name": "Base", "tier": "Gold"})),
            invalid,
            "The value of parameter sku.tier is invalid.",
            Partly(frame),
        ),
        switch("/autoScalerProfile/daemonset-eviction-for-empty-nodes"),
        switch("/autoScalerProfile/daemonset-eviction-for-occupied-nodes"),
        switch("/autoScalerProfile/ignore-daemonsets-utilization"),
        row(
            "a switch for what the autoscaler takes as text",
            Cluster("/autoScalerProfile/skip-nodes-with-system-pods", json!(true)),
            (400, "UnmarshalError"),
            "json: cannot unmarshal bool into Go struct field",
            Partly("AKS#1402"),
        ),
        row(
            "a service range that is none",
            Cluster("/networkProfile/serviceCidr", json!("10.0.0.0")),
            (400, "CidrStringParseError"),
            "Cidr is invalid",
            Seen("AKS#506"),
        ),
        row(
            "a service range that AKS keeps for itself",
            Cluster("/networkProfile/serviceCidr", json!("172.30.0.0/16")),
            invalid,
            "is conflicted with the reserved CIDR 172.30.0.0/16",
            Inferred("AKS#2234"),
        ),
        row(
            "a DNS address outside the service range",
            Cluster("/networkProfile/dnsServiceIP", json!("1.2.3.4")),
            invalid,
            "the DNS service IP 1.2.3.4 does not belong to the range 10.0.0.0/16",
            Partly("bicep-registry-modules#1469"),
        ),
        row(
            "a DNS address that is the network's own",
            Cluster("/networkProfile/dnsServiceIP", json!("10.0.0.0")),
            invalid,
            "must not be the first address",
            Inferred("AKS#2579"),
        ),
        row(
            "a pod range over the service range",
            Cluster(
                "/networkProfile",
                json!({"networkPlugin": "kubenet", "podCidr": "10.0.0.0/8"}),
            ),
            invalid,
            "the pod CIDR overlaps with the service CIDR",
            Inferred("configure-kubenet"),
        ),
        row(
            "an identity that is not there",
            Cluster(
                "/identity",
                json!({"type": "UserAssigned", "userAssignedIdentities": {IDENTITY: {}}}),
            ),
            (400, "FailedIdentityOperation"),
            "userAssignedIdentities/none' was not found.",
            Inferred("AKS-Construction#330"),
        ),
        row(
            "a kubelet identity that is not there",
            Cluster(
                "/identityProfile",
                json!({"kubeletidentity": {"resourceId": IDENTITY}}),
            ),
            invalid,
            "was not found",
            Inferred("use-managed-identity"),
        ),
        row(
            "a maintenance configuration of another name",
            Put(
                "/resourceGroups/rg/providers/Microsoft.ContainerService/managedClusters/one/maintenanceConfigurations/weekly",
                json!({"properties": {}}),
            ),
            invalid,
            "Only 'default', 'aksManagedAutoUpgradeSchedule' and 'aksManagedNodeOSUpgradeSchedule' are allowed configNames for maintenance configuration.",
            Seen("ARO-HCP#3260"),
        ),
        row(
            "a change to a stopped cluster",
            Stopped(CLUSTER, cluster_body()),
            (409, "OperationNotAllowed"),
            "managed cluster is in Provisioning State(Succeeded) and Power State(Stopped), updating cannot be performed",
            Partly("azure-docs#85161"),
        ),
        row(
            "a new pool in a stopped cluster",
            Stopped(
                "/resourceGroups/rg/providers/Microsoft.ContainerService/managedClusters/one/agentPools/p2",
                pool_body(1),
            ),
            (409, "OperationNotAllowed"),
            "Power State(Stopped), updating cannot be performed",
            Partly("azure-docs#90658"),
        ),
        row(
            "a version that is not offered",
            Cluster("/kubernetesVersion", json!("1.99.0")),
            (400, "K8sVersionNotSupported"),
            "is on version 1.99.0, which is not supported in this region.",
            Seen("AKS, az aks create"),
        ),
        row(
            "two minor versions at once",
            Change("/kubernetesVersion", json!("1.35.0")),
            (400, "OperationNotAllowed"),
            "Available upgrades: [1.34.1 1.34.2]",
            Seen("AKS, az aks upgrade"),
        ),
    ]
}

fn pool_rows() -> Vec<Row> {
    let invalid = (400, "InvalidParameter");
    let bad = (400, "BadRequest");
    let missing = format!("{SUBSCRIPTION}{NETWORK}/subnets/missing");
    let services = format!(
        "{SUBSCRIPTION}/resourceGroups/rg/providers/Microsoft.Network/virtualNetworks/low/subnets/nodes"
    );
    vec![
        row(
            "a pool in a subnet that is not there",
            Pool("/vnetSubnetID", json!(missing)),
            (400, "SubnetNotFound"),
            "Could not find subnet missing in vnet net from resource group rg of subscription 00000000-0000-0000-0000-00000000000a.",
            Seen("viya4-iac-azure#163"),
        ),
        row(
            "the same for a new cluster",
            Cluster("/agentPoolProfiles/0/vnetSubnetID", json!(missing)),
            (400, "SubnetNotFound"),
            "Could not find subnet missing in vnet net",
            Seen("viya4-iac-azure#163"),
        ),
        row(
            "a subnet id that is none",
            Pool("/vnetSubnetID", json!("nodes")),
            invalid,
            "The value of parameter agentPoolProfile.vnetSubnetID is invalid.",
            Seen("AKS#695"),
        ),
        row(
            "a subnet whose network has addresses of the services",
            Cluster("/agentPoolProfiles/0/vnetSubnetID", json!(services)),
            (400, "ServiceCidrOverlapExistingSubnetsCidr"),
            "The specified service CIDR 10.0.0.0/16 is conflicted with an existing subnet CIDR 10.0.1.0/24",
            Seen("azure-cli#20810"),
        ),
        row(
            "a size that there is not",
            Pool("/vmSize", json!("Standard_Large")),
            bad,
            "The VM size of AgentPoolProfile:p2 is not allowed in your subscription in location 'westus3'.",
            Seen("dotnet/core#8000"),
        ),
        row(
            "a size too small for system pods",
            Cluster("/agentPoolProfiles/0/vmSize", json!("Standard_DS1_v2")),
            (400, "SystemPoolSkuTooLow"),
            "System node pool must use VM sku with more than 2 cores and 4GB memory. Nodepool name: p1.",
            Seen("azure-dev-docs#216"),
        ),
        row(
            "a zone that there is not",
            Pool("/availabilityZones", json!(["4"])),
            (400, "AvailabilityZoneNotSupported"),
            "The zone(s) '4' for resource 'p2' is not supported. The supported zones for location 'westus3' are '1,2,3'",
            Seen("azure-aks-docs#416"),
        ),
        row(
            "maxPods below ten",
            Pool("/maxPods", json!(5)),
            invalid,
            "The value of parameter maxPods is invalid.",
            Seen("AKS#931"),
        ),
        row(
            "room for fewer than thirty system pods",
            Cluster("/agentPoolProfiles/0/maxPods", json!(12)),
            (400, "InsufficientAgentPoolMaxPodsPerAgentPool"),
            "the total maxPods(12 * 2) should be larger than 30",
            Inferred("AKS#1422"),
        ),
        row(
            "a disk below 30 GB",
            Pool("/osDiskSizeGB", json!(10)),
            invalid,
            "The OSDiskSize for Agent p2 cannot be less than 30GB or larger than 2048GB.",
            Seen("pulumi-azure-native#663"),
        ),
        row(
            "a Windows system pool",
            Pool(
                "",
                json!({"mode": "System", "osType": "Windows", "vmSize": "Standard_D4s_v5"}),
            ),
            invalid,
            "Windows agent pools must have mode User",
            Inferred("use-system-pools"),
        ),
        row(
            "a Spot system pool",
            Pool(
                "",
                json!({"mode": "System", "scaleSetPriority": "Spot", "vmSize": "Standard_D4s_v5"}),
            ),
            invalid,
            "Spot agent pools must have mode User",
            Inferred("spot-node-pool"),
        ),
        row(
            "a word that AKS does not know",
            Pool("/osDiskType", json!("Floppy")),
            invalid,
            "The value of parameter agentPoolProfile.osDiskType is invalid.",
            Partly("AKS#3300"),
        ),
        row(
            "a malformed taint",
            Pool("/nodeTaints", json!(["gpu"])),
            invalid,
            "invalid taint spec: gpu. Please see https://aka.ms/node-taints for more details.",
            Partly("terraform-provider-azurerm#32269"),
        ),
        row(
            "a taint with another effect",
            Pool("/nodeTaints", json!(["gpu=yes:Sometimes"])),
            invalid,
            "invalid taint spec: gpu=yes:Sometimes",
            Partly("terraform-provider-azurerm#32269"),
        ),
        row(
            "taints that are no list",
            Pool("/nodeTaints", json!("CriticalAddonsOnly=true:NoSchedule")),
            (400, "UnmarshalError"),
            "UnmarshalEntity encountered error: json: cannot unmarshal string into Go struct field AgentPoolProperties.properties.nodeTaints of type []string.",
            Seen("AKS#1402"),
        ),
        row(
            "a label of AKS's own",
            Pool(
                "/nodeLabels",
                json!({"kubernetes.azure.com/aks-local-ssd": "true"}),
            ),
            bad,
            "Invalid node label key kubernetes.azure.com/aks-local-ssd. The 'kubernetes.azure.com' prefix is preserved by aks system labels",
            Seen("aks-nvme-ssd-provisioner#5"),
        ),
        row(
            "a label of Kubernetes' own",
            Pool("/nodeLabels", json!({"node-role.kubernetes.io/eos": ""})),
            bad,
            "node label keys in the 'kubernetes.io' or 'k8s.io' namespace must begin with an allowed prefix (kubelet.kubernetes.io, node.kubernetes.io).",
            Seen("terraform-provider-azurerm#18567"),
        ),
        row(
            "the label that names the pool, with another name",
            Pool("/nodeLabels", json!({"agentpool": "other"})),
            bad,
            "Node label with key 'agentpool'",
            Partly("terraform-provider-azurerm#28636"),
        ),
        row(
            "a malformed label",
            Pool("/nodeLabels", json!({"a": "b c"})),
            bad,
            "Invalid node label a=b c",
            Inferred("AKS#1739"),
        ),
        row(
            "no node in a system pool",
            Change("/agentPoolProfiles/0/count", json!(0)),
            invalid,
            "must have between 1 and 1000 nodes",
            Partly("cluster-api-provider-azure#5947"),
        ),
    ]
}

fn rows() -> Vec<Row> {
    let mut rows = cluster_rows();
    rows.extend(pool_rows());
    rows.extend(network_rows());
    rows.extend(arm_rows());
    rows
}

/// A group with networks and a cluster in place.
fn world() -> Fixture {
    let mut azure = Fixture::with_group();
    azure.put(NETWORK, &network(&[("nodes", "10.240.0.0/16")]));
    let mut low = network(&[("nodes", "10.0.1.0/24")]);
    low["properties"]["addressSpace"]["addressPrefixes"] = json!(["10.0.0.0/16"]);
    azure.put(
        "/resourceGroups/rg/providers/Microsoft.Network/virtualNetworks/low",
        &low,
    );
    azure.pass(60);
    azure
}

fn set(body: &mut Value, pointer: &str, value: &Value) {
    let mut place = body;
    for key in pointer.split('/').skip(1) {
        place = match key.parse::<usize>() {
            Ok(index) => &mut place[index],
            Err(_) => &mut place[key],
        };
    }
    match (place, value) {
        (Value::Object(old), Value::Object(new)) if pointer.is_empty() => old.extend(new.clone()),
        (place, value) => *place = value.clone(),
    }
}

fn cluster_with(pointer: &str, value: &Value) -> Value {
    let mut body = cluster_body();
    let at_top = ["/location", "/sku", "/identity"].contains(&pointer);
    set(
        if at_top {
            &mut body
        } else {
            &mut body["properties"]
        },
        pointer,
        value,
    );
    body
}

fn ask(row: &Row) -> slipway_azure_sim::Response {
    let mut azure = world();
    match &row.sent {
        Cluster(pointer, value) => azure.put(CLUSTER, &cluster_with(pointer, value)),
        Change(pointer, value) => {
            azure.cluster("one");
            azure.put(CLUSTER, &cluster_with(pointer, value))
        }
        Pool(pointer, value) => {
            azure.cluster("one");
            let mut body = pool_body(1);
            set(&mut body["properties"], pointer, value);
            azure.put(&format!("{CLUSTER}/agentPools/p2"), &body)
        }
        Put(path, body) if path.starts_with("https://") => {
            let mut sent = request(http::Method::PUT, "").json(body);
            path.trim_start_matches("https://management.azure.com")
                .clone_into(&mut sent.path);
            azure.send(&sent)
        }
        Put(path, body) => {
            if path.contains("/maintenanceConfigurations/") {
                azure.cluster("one");
            }
            azure.put(path, body)
        }
        Stopped(path, body) => {
            azure.cluster("one");
            assert_eq!(azure.post(&format!("{CLUSTER}/stop")).status, 202);
            azure.pass(600);
            azure.put(path, body)
        }
    }
}

#[test]
fn what_azure_refuses_is_refused_with_its_code_and_text() {
    let mut page = String::from(
        "# What the simulated Azure refuses\n\nGenerated from `sim/azure/tests/main/refusals.rs`; every row is a test. *seen*: code and text are those of a public\nreport of the real answer. *partly*: that it is refused, and the code or the frame of the text, are known. *inferred*: only\nthat it is refused is known, from the documentation.\n\n| what | status | code | text | known from |\n|---|---|---|---|---|\n",
    );
    let mut wrong = Vec::new();
    for row in rows() {
        let response = ask(&row);
        let body = response.body_json();
        let message = body["error"]["message"]
            .as_str()
            .or_else(|| body["message"].as_str())
            .unwrap_or_default()
            .to_owned();
        if (response.status, code(&response).as_str()) != (row.status, row.code)
            || !message.contains(row.says)
        {
            wrong.push(format!("{} ({}): {} {body}", row.what, row.says, response.status));
        }
        let known = match row.known {
            Seen(source) => format!("seen: {source}"),
            Partly(source) => format!("partly: {source}"),
            Inferred(source) => format!("inferred: {source}"),
        };
        let short: String = message.chars().take(160).collect();
        let short = if short.len() < message.len() {
            format!("{short}…")
        } else {
            short
        };
        let _ = writeln!(
            page,
            "| {} | {} | `{}` | {} | {known} |",
            row.what,
            row.status,
            row.code,
            short.replace('|', "\\|").replace('<', "&lt;")
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/azure-refusals.md");
    if std::env::var_os("SLIPWAY_WRITE_PAGES").is_some() {
        std::fs::write(&path, &page).expect("the page can be written");
    }
    let stands = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        stands == page,
        "docs/azure-refusals.md is not what the rows say: run with SLIPWAY_WRITE_PAGES=1"
    );
}

#[test]
fn a_zone_is_refused_where_there_are_none() {
    let mut azure = world();
    let mut body = cluster_with("/location", &json!("westus"));
    body["properties"]["agentPoolProfiles"][0]["availabilityZones"] = json!(["1"]);
    let refused = azure.put(CLUSTER, &body);
    assert_eq!(code(&refused), "AvailabilityZoneNotSupported");
    assert_eq!(
        refused.body_json()["message"],
        "Availability zone is not supported in region westus."
    );
}

#[test]
fn a_subscription_that_is_not_there_is_not_found_when_asked_to() {
    let mut azure = Fixture::with(Settings {
        require_token: false,
        any_subscription: false,
        ..Settings::default()
    });
    let refused = azure.put("/resourceGroups/rg", &json!({"location": "westus3"}));
    assert_eq!(
        (refused.status, code(&refused).as_str()),
        (404, "SubscriptionNotFound")
    );
}

#[test]
fn what_is_ordinary_is_taken() {
    for (pointer, value) in [
        (
            "/networkProfile",
            json!({"networkPlugin": "Azure", "loadBalancerSku": "Standard"}),
        ),
        ("/agentPoolProfiles/0/availabilityZones", json!(["1", "2"])),
        (
            "/agentPoolProfiles/0/vnetSubnetID",
            json!(format!("{SUBSCRIPTION}{NETWORK}/subnets/nodes")),
        ),
        (
            "/agentPoolProfiles/0/nodeTaints",
            json!(["CriticalAddonsOnly=true:NoSchedule", "gpu:NoExecute"]),
        ),
        (
            "/agentPoolProfiles/0/nodeLabels",
            json!({"example.com/a": "b", "node.kubernetes.io/x": ""}),
        ),
        ("/agentPoolProfiles/0/vmSize", json!("Standard_E64-16s_v3")),
        ("/sku", json!({"name": "Base", "tier": "Premium"})),
        ("/location", json!("West US 3")),
    ] {
        let response = world().put(CLUSTER, &cluster_with(pointer, &value));
        assert_eq!(response.status, 201, "{pointer}: {:?}", response.body_json());
    }
}

#[test]
fn the_autoscaler_s_switches_are_true_or_false() {
    let mut azure = world();
    let shown = azure
        .put(
            CLUSTER,
            &cluster_with("/autoScalerProfile", &json!({"expander": "priority"})),
        )
        .body_json();
    let profile = &shown["properties"]["autoScalerProfile"];
    for key in [
        "daemonset-eviction-for-empty-nodes",
        "daemonset-eviction-for-occupied-nodes",
        "ignore-daemonsets-utilization",
    ] {
        assert!(profile[key].is_boolean(), "{key}: {profile}");
    }
    assert_eq!(profile["skip-nodes-with-system-pods"], "true");
    assert_eq!(profile["expander"], "priority");
}

#[test]
fn an_aborted_upgrade_leaves_the_version_where_it_was() {
    let mut azure = world();
    let path = azure.cluster("one");
    let mut body = cluster_body();
    body["properties"]["kubernetesVersion"] = "1.34".into();
    assert_eq!(azure.put(&path, &body).status, 200);
    azure.pass(60);
    assert_eq!(azure.post(&format!("{path}/abort")).status, 202);
    azure.pass(600);
    let shown = azure.get(&path).body_json();
    assert_eq!(shown["properties"]["provisioningState"], "Canceled");
    assert_eq!(shown["properties"]["currentKubernetesVersion"], "1.33.5");
    // Nothing is left of the upgrade that a later operation could finish.
    azure.post(&format!("{path}/stop"));
    azure.pass(600);
    azure.post(&format!("{path}/start"));
    azure.pass(600);
    assert_eq!(
        azure.get(&path).body_json()["properties"]["currentKubernetesVersion"],
        "1.33.5"
    );
}

#[test]
fn a_stopped_cluster_can_be_started_and_deleted() {
    let mut azure = world();
    let path = azure.cluster("one");
    azure.post(&format!("{path}/stop"));
    azure.pass(600);
    assert_eq!(
        code(&azure.delete(&format!("{path}/agentPools/p1"))),
        "OperationNotAllowed"
    );
    assert_eq!(azure.post(&format!("{path}/start")).status, 202);
    azure.pass(600);
    assert_eq!(azure.put(&path, &cluster_body()).status, 200);
    azure.pass(600);
    azure.post(&format!("{path}/stop"));
    azure.pass(600);
    assert_eq!(azure.delete(&path).status, 202);
}
