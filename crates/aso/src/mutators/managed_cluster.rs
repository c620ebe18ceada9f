//! What a Cluster, its control plane and its pools decide in an AKS cluster: version, network ranges, the pools it is made
//! with, and where its credentials go.

use serde_json::{Map, Value, json};
use slipway_azure::resource::{AsoObject, Mapping};
use slipway_capi::{
    secret::{Purpose, VALUE_KEY},
    view::{Cluster, MachinePool},
};

use super::{
    AGENT_POOL, MANAGED_CLUSTER,
    agent_pool::{PoolFacts, set_agent_pool},
    defined, position,
    setting::Setting,
};
use crate::inline::{Problem, spec_member};

/// What is known of an AKS cluster beside its manifest.
#[derive(Clone, Copy, Debug)]
pub struct ClusterFacts<'a> {
    pub cluster: &'a Cluster,
    /// `spec.version` of the control plane; empty if the manifest decides.
    pub version: &'a str,
    pub pools: Pools<'a>,
}

/// The pools of an AKS cluster.
#[derive(Clone, Copy, Debug)]
pub enum Pools<'a> {
    /// Azure has some: each is changed by its own request.
    InAzure,
    /// The cluster is made with these.
    AtCreation(&'a [Value]),
}

/// One pool object of a cluster.
#[derive(Clone, Copy, Debug)]
pub struct Pool<'a> {
    pub name: &'a str,
    pub resources: &'a [Value],
    /// Its owner, once core has made it so.
    pub machine_pool: Option<&'a MachinePool>,
}

/// What an AKS cluster is made with.
#[derive(Clone, Debug, PartialEq)]
pub enum Profiles {
    Complete {
        profiles: Vec<Value>,
        /// What the cluster's version of the API does not know of its pools, by path; each pool's own request sends it.
        left_out: Vec<String>,
    },
    /// The cluster is not made yet, and why.
    Incomplete(String),
}

/// Members of a pool's spec that are not part of its profile.
const NOT_IN_A_PROFILE: &[&str] = &["azureName", "owner", "operatorSpec", "originalVersion"];

/// The profiles of all pools, for a cluster that is to be made. AKS takes no cluster without a system pool, and a pool that
/// is added later costs an operation of its own.
pub fn profiles(cluster: &Mapping, pools: &[Pool<'_>]) -> Profiles {
    let mut found = Vec::new();
    for pool in pools {
        let of =
            |text: String| Profiles::Incomplete(format!("AzureASOManagedMachinePool {}: {text}", pool.name));
        let Some(machine_pool) = pool.machine_pool else {
            return of("it has no MachinePool yet".to_owned());
        };
        let mut resources = pool.resources.to_vec();
        let facts = PoolFacts {
            machine_pool,
            exists: false,
        };
        if let Err(problem) = set_agent_pool(&mut resources, &facts) {
            return of(problem.to_string());
        }
        let manifest = position(&resources, AGENT_POOL).map(|index| &resources[index]);
        match manifest.map(profile) {
            Some(Ok(profile)) => found.push(profile),
            Some(Err(problem)) => return of(problem),
            None => {}
        }
    }
    if found.is_empty() {
        return Profiles::Incomplete("no AzureASOManagedMachinePool of the cluster exists yet".to_owned());
    }
    let is_system = |profile: &Value| {
        let mode = profile["mode"].as_str().unwrap_or_default();
        mode.eq_ignore_ascii_case("System")
    };
    if !found.iter().any(is_system) {
        return Profiles::Incomplete(
            "no pool has the mode System, and AKS takes no cluster without one: set mode: System in one of them"
                .to_owned(),
        );
    }
    // A stable order: the body is compared with what was sent before.
    found.sort_by_key(|profile| profile["name"].as_str().unwrap_or_default().to_owned());
    let (fitted, left_out) = cluster.fit("agentPoolProfiles", &Value::Array(found));
    match fitted {
        Value::Array(profiles) => Profiles::Complete { profiles, left_out },
        _ => Profiles::Complete {
            profiles: Vec::new(),
            left_out,
        },
    }
}

/// A pool as part of its cluster: its spec under the name it has in Azure.
fn profile(manifest: &Value) -> Result<Value, String> {
    let object = AsoObject::parse(manifest).map_err(|error| error.to_string())?;
    let mut profile: Map<String, Value> = object
        .spec
        .iter()
        .filter(|(name, _)| !NOT_IN_A_PROFILE.contains(&name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    profile.insert("name".to_owned(), Value::String(object.azure_name()));
    Ok(Value::Object(profile))
}

/// Sets what is decided elsewhere.
pub fn set_managed_cluster(
    resources: &mut [Value],
    facts: &ClusterFacts<'_>,
) -> Result<Vec<Setting>, Problem> {
    let (manifest, at) = defined(resources, MANAGED_CLUSTER)?;
    let mut settings = Vec::new();
    if !facts.version.is_empty() {
        settings.push(Setting::apply(
            manifest,
            &at,
            &["kubernetesVersion"],
            json!(facts.version.strip_prefix('v').unwrap_or(facts.version)),
            format!("spec.version is {}", facts.version),
        )?);
    }
    let cluster = facts.cluster;
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let network = &cluster.spec.cluster_network;
    for (ranges, from, to) in [
        (&network.services, "services", "serviceCidr"),
        (&network.pods, "pods", "podCidr"),
    ] {
        if let Some(range) = ranges.cidr_blocks.first() {
            settings.push(Setting::apply(
                manifest,
                &at,
                &["networkProfile", to],
                json!(range),
                format!("spec.clusterNetwork.{from}.cidrBlocks[0] of Cluster {name} is {range}"),
            )?);
        }
    }
    settings.extend(set_profiles(manifest, &at, facts.pools)?);
    settings.extend(set_credentials(manifest, &at, name)?);
    Ok(settings)
}

fn set_profiles(manifest: &mut Value, at: &str, pools: Pools<'_>) -> Result<Option<Setting>, Problem> {
    const FIELD: &str = "agentPoolProfiles";
    let reason = "the pools of a cluster are its AzureASOManagedMachinePools".to_owned();
    if !manifest["spec"][FIELD].is_null() {
        return Err(Problem::NotYours {
            path: format!("{at}.spec.{FIELD}"),
            reason,
        });
    }
    match pools {
        Pools::InAzure => Ok(None),
        Pools::AtCreation(profiles) => {
            Setting::apply(manifest, at, &[FIELD], json!(profiles), reason).map(Some)
        }
    }
}

/// Asks for credentials under the name that Cluster API knows, where the manifest asks for none.
fn set_credentials(manifest: &mut Value, at: &str, cluster: &str) -> Result<Option<Setting>, Problem> {
    let names = ["operatorSpec", "secrets"];
    let path = format!("{at}.spec.operatorSpec.secrets");
    let Some(place) = spec_member(manifest, &names) else {
        return Err(Problem::Malformed {
            path,
            expected: "what it stands in must be an object",
        });
    };
    if place.is_null() {
        *place = json!({});
    }
    let Some(secrets) = place.as_object_mut() else {
        return Err(Problem::Malformed {
            path,
            expected: "must be an object",
        });
    };
    let asks = |name: &str| secrets.get(name).is_some_and(|value| !value.is_null());
    if asks("userCredentials") || asks("adminCredentials") {
        return Ok(None);
    }
    let value = json!({"name": Purpose::Kubeconfig.secret_name(cluster), "key": VALUE_KEY});
    secrets.insert("adminCredentials".to_owned(), value.clone());
    Ok(Some(Setting {
        path: format!("{path}.adminCredentials"),
        value,
        reason: "neither userCredentials nor adminCredentials are asked for".to_owned(),
    }))
}

#[cfg(test)]
mod tests {
    use slipway_azure::resource::Table;

    use super::*;

    fn cluster(services: &[&str], pods: &[&str]) -> Cluster {
        let mut cluster = Cluster::default();
        cluster.metadata.name = Some("c".to_owned());
        let owned = |ranges: &[&str]| ranges.iter().map(|&range| range.to_owned()).collect();
        cluster.spec.cluster_network.services.cidr_blocks = owned(services);
        cluster.spec.cluster_network.pods.cidr_blocks = owned(pods);
        cluster
    }

    fn set(spec: &Value, version: &str, cluster: &Cluster, pools: Pools<'_>) -> Result<Value, String> {
        let mut resources = [json!({
            "apiVersion": "containerservice.azure.com/v1api20240901", "kind": "ManagedCluster",
            "metadata": {"name": "aks"}, "spec": spec,
        })];
        let facts = ClusterFacts {
            cluster,
            version,
            pools,
        };
        set_managed_cluster(&mut resources, &facts).map_err(|problem| problem.to_string())?;
        Ok(resources[0]["spec"].clone())
    }

    const ADMIN: &str = r#"{"secrets": {"adminCredentials": {"name": "c-kubeconfig", "key": "value"}}}"#;

    fn admin() -> Value {
        serde_json::from_str(ADMIN).unwrap()
    }

    #[test]
    fn version_ranges_and_credentials_are_set() {
        let found = set(
            &json!({"networkProfile": {"networkPlugin": "azure"}, "location": "l"}),
            "v1.31.2",
            &cluster(&["10.0.0.0/16", "fd00::/108"], &["10.1.0.0/16"]),
            Pools::InAzure,
        );
        assert_eq!(
            found,
            Ok(json!({
                "kubernetesVersion": "1.31.2", "location": "l", "operatorSpec": admin(),
                "networkProfile": {
                    "networkPlugin": "azure", "serviceCidr": "10.0.0.0/16", "podCidr": "10.1.0.0/16",
                },
            }))
        );
        assert_eq!(
            set(&json!({}), "", &cluster(&[], &[]), Pools::InAzure),
            Ok(json!({"operatorSpec": admin()}))
        );
    }

    #[test]
    fn credentials_that_are_asked_for_stay_and_so_does_what_is_beside_them() {
        for secrets in [
            json!({"userCredentials": {"name": "u", "key": "k"}}),
            json!({"adminCredentials": {"name": "a", "key": "k"}}),
        ] {
            let spec = json!({"operatorSpec": {"secrets": secrets}});
            assert_eq!(set(&spec, "", &cluster(&[], &[]), Pools::InAzure), Ok(spec));
        }
        let beside =
            json!({"operatorSpec": {"configMaps": {"oidcIssuerProfile": {"name": "n", "key": "k"}}}});
        let found = set(&beside, "", &cluster(&[], &[]), Pools::InAzure).unwrap();
        assert_eq!(
            found["operatorSpec"]["configMaps"],
            beside["operatorSpec"]["configMaps"]
        );
        assert_eq!(found["operatorSpec"]["secrets"], admin()["secrets"]);
    }

    #[test]
    fn what_the_user_decided_otherwise_is_told() {
        let told = |spec: Value| {
            set(
                &spec,
                "v1.31.2",
                &cluster(&["10.0.0.0/16"], &["10.1.0.0/16"]),
                Pools::InAzure,
            )
            .unwrap_err()
        };
        assert_eq!(
            told(json!({"kubernetesVersion": "1.30"})),
            "spec.resources[0].spec.kubernetesVersion is \"1.30\", but it must be \"1.31.2\" because spec.version is \
             v1.31.2: remove it, or write \"1.31.2\""
        );
        assert_eq!(
            told(json!({"networkProfile": {"serviceCidr": "10.9.0.0/16"}})),
            "spec.resources[0].spec.networkProfile.serviceCidr is \"10.9.0.0/16\", but it must be \"10.0.0.0/16\" \
             because spec.clusterNetwork.services.cidrBlocks[0] of Cluster c is 10.0.0.0/16: remove it, or write \
             \"10.0.0.0/16\""
        );
        assert_eq!(
            told(json!({"networkProfile": {"podCidr": 5}})),
            "spec.resources[0].spec.networkProfile.podCidr is 5, but it must be \"10.1.0.0/16\" because \
             spec.clusterNetwork.pods.cidrBlocks[0] of Cluster c is 10.1.0.0/16: remove it, or write \"10.1.0.0/16\""
        );
        assert_eq!(
            told(json!({"agentPoolProfiles": []})),
            "spec.resources[0].spec.agentPoolProfiles must not be set because the pools of a cluster are its \
             AzureASOManagedMachinePools: remove it"
        );
        assert_eq!(
            told(json!({"operatorSpec": {"secrets": "x"}})),
            "spec.resources[0].spec.operatorSpec.secrets: must be an object"
        );
    }

    fn pool_manifest(version: &str, spec: &Value) -> Vec<Value> {
        vec![json!({
            "apiVersion": format!("containerservice.azure.com/{version}"), "kind": "ManagedClustersAgentPool",
            "metadata": {"name": "c-pool"}, "spec": spec,
        })]
    }

    fn of_version(version: &str) -> Mapping {
        Table::get()
            .lookup("containerservice.azure.com", "ManagedCluster", version)
            .unwrap()
    }

    #[test]
    fn a_cluster_is_made_with_all_its_pools() {
        let mut machine_pool = MachinePool::default();
        machine_pool.spec.replicas = Some(2);
        "v1.31.2".clone_into(&mut machine_pool.spec.template.spec.version);
        let second = pool_manifest(
            "v1api20240901",
            &json!({"azureName": "second", "owner": {"name": "c"}, "mode": "User", "nodeLabels": {"a": "b"}}),
        );
        let first = pool_manifest(
            "v1api20240901",
            &json!({
                "azureName": "first", "mode": "System", "vmSize": "s", "operatorSpec": {},
                "securityProfile": {"enableVTPM": true},
            }),
        );
        let pool = |name, resources| Pool {
            name,
            resources,
            machine_pool: Some(&machine_pool),
        };
        let all = [pool("two", second.as_slice()), pool("one", first.as_slice())];
        let Profiles::Complete {
            profiles: found,
            left_out,
        } = profiles(&of_version("v1api20240901"), &all)
        else {
            panic!("complete")
        };
        assert_eq!(
            json!(found),
            json!([
                {
                    "name": "first", "mode": "System", "vmSize": "s", "count": 2, "orchestratorVersion": "1.31.2",
                    "securityProfile": {"enableVTPM": true},
                },
                {
                    "name": "second", "mode": "User", "nodeLabels": {"a": "b"}, "count": 2,
                    "orchestratorVersion": "1.31.2",
                },
            ])
        );
        assert_eq!(left_out, Vec::<String>::new());
        let older = profiles(&of_version("v1api20231001"), &all);
        let Profiles::Complete { left_out, .. } = older else {
            panic!("complete")
        };
        assert_eq!(left_out, ["agentPoolProfiles[0].securityProfile"]);
        let spec = set(&json!({}), "", &cluster(&[], &[]), Pools::AtCreation(&found)).unwrap();
        assert_eq!(spec["agentPoolProfiles"], json!(found));
    }

    #[test]
    fn a_cluster_is_not_made_while_a_pool_is_not_complete() {
        let mut machine_pool = MachinePool::default();
        machine_pool.spec.replicas = Some(2);
        let system = pool_manifest("v1api20240901", &json!({"mode": "System"}));
        let user = pool_manifest("v1api20240901", &json!({"mode": "User"}));
        let counted = pool_manifest("v1api20240901", &json!({"mode": "System", "count": 9}));
        let told = |pools: &[(&[Value], bool)]| {
            let pools: Vec<Pool<'_>> = pools
                .iter()
                .map(|&(resources, owned)| Pool {
                    name: "p",
                    resources,
                    machine_pool: owned.then_some(&machine_pool),
                })
                .collect();
            match profiles(&of_version("v1api20240901"), &pools) {
                Profiles::Incomplete(text) => text,
                Profiles::Complete { .. } => "complete".to_owned(),
            }
        };
        assert_eq!(
            told(&[]),
            "no AzureASOManagedMachinePool of the cluster exists yet"
        );
        assert_eq!(
            told(&[(&system, true), (&user, false)]),
            "AzureASOManagedMachinePool p: it has no MachinePool yet"
        );
        assert_eq!(
            told(&[(&user, true)]),
            "no pool has the mode System, and AKS takes no cluster without one: set mode: System in one of them"
        );
        assert_eq!(
            told(&[(&counted, true)]),
            "AzureASOManagedMachinePool p: spec.resources[0].spec.count is 9, but it must be 2 because spec.replicas of \
             MachinePool  is 2: remove it, or write 2"
        );
        assert!(told(&[(&[], true)]).starts_with("AzureASOManagedMachinePool p: spec.resources: no "));
        assert_eq!(told(&[(&system, true), (&user, true)]), "complete");
    }
}
