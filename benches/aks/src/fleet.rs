//! The manifests of a fleet: the same for everybody who is measured.

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use kube::{
    Api, Client,
    api::{DynamicObject, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::{Value, json};

pub const NAMESPACE: &str = "default";
pub const SUBSCRIPTION: &str = "00000000-0000-0000-0000-000000000001";
pub const TENANT: &str = "11111111-1111-1111-1111-111111111111";
const CORE: &str = "cluster.x-k8s.io";
const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";
const VERSION: &str = "v1.33.5";
const SKU: &str = "Standard_D2s_v3";
const CLIENT: &str = "22222222-2222-2222-2222-222222222222";

pub fn api(client: &Client, kind: &str) -> Api<DynamicObject> {
    let kind = if kind.starts_with("Azure") {
        GroupVersionKind::gvk(INFRASTRUCTURE, "v1beta1", kind)
    } else if kind == "Secret" {
        GroupVersionKind::gvk("", "v1", kind)
    } else {
        GroupVersionKind::gvk(CORE, "v1beta2", kind)
    };
    Api::namespaced_with(client.clone(), NAMESPACE, &ApiResource::from_gvk(&kind))
}

/// Which API the fleet is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    /// AzureManagedControlPlane and its kinds.
    Classic,
    /// AzureASOManagedControlPlane and its kinds, with resources inline.
    Inline,
}

impl Form {
    /// The provider of ours that serves it.
    pub fn provider(self) -> &'static str {
        match self {
            Self::Classic => "aks",
            Self::Inline => "aso",
        }
    }

    fn infrastructure(self) -> &'static str {
        match self {
            Self::Classic => "AzureManagedCluster",
            Self::Inline => "AzureASOManagedCluster",
        }
    }

    pub fn plane(self) -> &'static str {
        match self {
            Self::Classic => "AzureManagedControlPlane",
            Self::Inline => "AzureASOManagedControlPlane",
        }
    }

    pub fn pool(self) -> &'static str {
        match self {
            Self::Classic => "AzureManagedMachinePool",
            Self::Inline => "AzureASOManagedMachinePool",
        }
    }

    pub fn machine(self) -> &'static str {
        match self {
            Self::Classic => "AzureManagedMachine",
            Self::Inline => "AzureASOManagedMachine",
        }
    }

    /// What all clusters sign in with.
    fn identity(self) -> Vec<Value> {
        match self {
            Self::Classic => classic::identity(),
            Self::Inline => vec![inline::identity()],
        }
    }

    /// The specs of what is around a cluster and of its control plane.
    fn specs(self, name: &str) -> (Value, Value) {
        match self {
            Self::Classic => (json!({}), classic::plane(name)),
            Self::Inline => (inline::around(name), inline::plane(name)),
        }
    }

    /// The spec of a pool by its name in AKS.
    fn pool_spec(self, cluster: &str, name: &str, mode: &str) -> Value {
        match self {
            Self::Classic => json!({"name": name, "mode": mode, "sku": SKU}),
            Self::Inline => inline::pool(cluster, name, mode),
        }
    }

    fn cluster(self, number: usize, pools: usize) -> Vec<Value> {
        let name = format!("fleet-{number:04}");
        let reference =
            |kind: &str, name: &str| json!({"apiGroup": INFRASTRUCTURE, "kind": kind, "name": name});
        let ours = |kind: &str, name: &str, spec: Value| {
            json!({"apiVersion": format!("{INFRASTRUCTURE}/v1beta1"), "kind": kind,
                "metadata": {"name": name}, "spec": spec})
        };
        let (around, plane) = self.specs(&name);
        let mut objects = vec![
            ours(self.infrastructure(), &name, around),
            ours(self.plane(), &name, plane),
            json!({
                "apiVersion": format!("{CORE}/v1beta2"), "kind": "Cluster", "metadata": {"name": name},
                "spec": {
                    "clusterNetwork": {"services": {"cidrBlocks": ["192.168.0.0/16"]}},
                    "infrastructureRef": reference(self.infrastructure(), &name),
                    "controlPlaneRef": reference(self.plane(), &name),
                },
            }),
        ];
        for pool in 0..pools {
            let (mode, short) = if pool == 0 {
                ("System", "system".to_owned())
            } else {
                ("User", format!("user{pool}"))
            };
            let object = format!("{name}-{short}");
            objects.push(ours(self.pool(), &object, self.pool_spec(&name, &short, mode)));
            objects.push(json!({
                "apiVersion": format!("{CORE}/v1beta2"), "kind": "MachinePool", "metadata": {"name": object},
                "spec": {
                    "clusterName": name, "replicas": 1,
                    "template": {"spec": {
                        "clusterName": name, "version": VERSION, "bootstrap": {"dataSecretName": ""},
                        "infrastructureRef": reference(self.pool(), &object),
                    }},
                },
            }));
        }
        objects
    }
}

mod classic {
    use serde_json::{Value, json};

    use super::{CLIENT, INFRASTRUCTURE, NAMESPACE, SUBSCRIPTION, TENANT, VERSION};

    pub fn identity() -> Vec<Value> {
        vec![
            json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "identity"},
                "stringData": {"clientSecret": "the simulated Azure takes any"},
            }),
            json!({
                "apiVersion": format!("{INFRASTRUCTURE}/v1beta1"), "kind": "AzureClusterIdentity",
                "metadata": {"name": "identity"},
                "spec": {
                    "type": "ServicePrincipal", "tenantID": TENANT, "allowedNamespaces": {}, "clientID": CLIENT,
                    "clientSecret": {"name": "identity", "namespace": NAMESPACE},
                },
            }),
        ]
    }

    pub fn plane(name: &str) -> Value {
        json!({
            "subscriptionID": SUBSCRIPTION, "resourceGroupName": name, "location": "westus3", "version": VERSION,
            "identityRef": {
                "apiVersion": format!("{INFRASTRUCTURE}/v1beta1"), "kind": "AzureClusterIdentity",
                "name": "identity", "namespace": NAMESPACE,
            },
        })
    }
}

mod inline {
    use serde_json::{Value, json};

    use super::{CLIENT, SKU, SUBSCRIPTION, TENANT, VERSION};

    const AKS: &str = "containerservice.azure.com/v1api20240901";

    pub fn identity() -> Value {
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "identity"},
            "stringData": {"AZURE_SUBSCRIPTION_ID": SUBSCRIPTION, "AZURE_TENANT_ID": TENANT, "AZURE_CLIENT_ID": CLIENT,
                "AZURE_CLIENT_SECRET": "the simulated Azure takes any"},
        })
    }

    fn resource(api_version: &str, kind: &str, name: &str, spec: &Value) -> Value {
        json!({"apiVersion": api_version, "kind": kind,
            "metadata": {"name": name, "annotations": {"serviceoperator.azure.com/credential-from": "identity"}},
            "spec": spec})
    }

    pub fn around(name: &str) -> Value {
        let spec = json!({"location": "westus3"});
        let group = resource("resources.azure.com/v1api20200601", "ResourceGroup", name, &spec);
        json!({"resources": [group]})
    }

    pub fn plane(name: &str) -> Value {
        let spec = json!({"owner": {"name": name}, "location": "westus3", "dnsPrefix": name,
            "identity": {"type": "SystemAssigned"}, "networkProfile": {"networkPlugin": "azure"},
            "servicePrincipalProfile": {"clientId": "msi"}});
        json!({"version": VERSION, "resources": [resource(AKS, "ManagedCluster", name, &spec)]})
    }

    pub fn pool(cluster: &str, name: &str, mode: &str) -> Value {
        let spec = json!({"azureName": name, "owner": {"name": cluster}, "mode": mode,
            "type": "VirtualMachineScaleSets", "vmSize": SKU});
        let object = format!("{cluster}-{name}");
        json!({"resources": [resource(AKS, "ManagedClustersAgentPool", &object, &spec)]})
    }
}

/// Applies everything.
pub async fn create(client: &Client, form: Form, clusters: usize, pools: usize) -> Result<()> {
    for object in form.identity() {
        one(client, &object).await?;
    }
    stream::iter(0..clusters)
        .map(|number| async move {
            for object in form.cluster(number, pools) {
                one(client, &object).await?;
            }
            Ok(())
        })
        .buffer_unordered(8)
        .try_for_each(|()| async { Ok(()) })
        .await
}

async fn one(client: &Client, object: &Value) -> Result<()> {
    let kind = object["kind"].as_str().unwrap_or_default();
    let read: DynamicObject = serde_json::from_value(object.clone())?;
    api(client, kind)
        .create(&PostParams::default(), &read)
        .await
        .with_context(|| format!("creating {kind} {}", object["metadata"]["name"]))?;
    Ok(())
}
