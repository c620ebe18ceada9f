//! What a MachinePool decides in its node pool: version and number of nodes, and who scales it.

use serde_json::{Value, json};
use slipway_capi::{names::annotation, view::MachinePool};

use super::{AGENT_POOL, defined, position, setting::Setting};
use crate::inline::Problem;

/// What is known of a pool beside its manifest.
#[derive(Clone, Copy, Debug)]
pub struct PoolFacts<'a> {
    pub machine_pool: &'a MachinePool,
    /// Whether the pool is in Azure: then an autoscaler's count is not overwritten.
    pub exists: bool,
}

/// The value of the annotation by which AKS is known to scale a pool.
const BY_AKS: &str = "aks";

/// What becomes of the annotation on a MachinePool that says who decides its replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaManager {
    /// As it is.
    Kept,
    /// AKS scales from now on.
    Set(&'static str),
    /// AKS no longer scales.
    Removed,
}

fn manager(machine_pool: &MachinePool) -> Option<&str> {
    machine_pool
        .metadata
        .annotations
        .as_ref()?
        .get(annotation::REPLICAS_MANAGED_BY)
        .map(String::as_str)
        .filter(|value| *value != "false")
}

/// Who decides the replicas of a pool's MachinePool.
pub fn replica_manager(resources: &[Value], machine_pool: &MachinePool) -> Result<ReplicaManager, Problem> {
    let index = position(resources, AGENT_POOL);
    let scaled = index.is_some_and(|index| resources[index]["spec"]["enableAutoScaling"] == true);
    match (scaled, manager(machine_pool)) {
        (true, None) => Ok(ReplicaManager::Set(BY_AKS)),
        (true, Some(other)) if other != BY_AKS => Err(Problem::Incompatible {
            path: format!(
                "spec.resources[{}].spec.enableAutoScaling",
                index.unwrap_or_default()
            ),
            written: json!(true),
            value: json!(false),
            reason: format!(
                "the replicas of MachinePool {} are managed by {other:?}, as its annotation {} says",
                machine_pool.metadata.name.as_deref().unwrap_or_default(),
                annotation::REPLICAS_MANAGED_BY
            ),
        }),
        (false, Some(BY_AKS)) => Ok(ReplicaManager::Removed),
        _ => Ok(ReplicaManager::Kept),
    }
}

/// Sets what the MachinePool decides.
pub fn set_agent_pool(resources: &mut [Value], facts: &PoolFacts<'_>) -> Result<Vec<Setting>, Problem> {
    let pool = facts.machine_pool;
    let name = pool.metadata.name.as_deref().unwrap_or_default();
    let autoscaled = match replica_manager(resources, pool)? {
        ReplicaManager::Set(_) => true,
        ReplicaManager::Removed => false,
        ReplicaManager::Kept => manager(pool).is_some(),
    };
    let (manifest, at) = defined(resources, AGENT_POOL)?;
    let mut settings = Vec::new();
    let version = pool.spec.template.spec.version.as_str();
    if !version.is_empty() {
        settings.push(Setting::apply(
            manifest,
            &at,
            &["orchestratorVersion"],
            json!(version.strip_prefix('v').unwrap_or(version)),
            format!("spec.template.spec.version of MachinePool {name} is {version}"),
        )?);
    }
    match pool.spec.replicas {
        // Whoever scales the pool decides; the MachinePool's number is what it starts with.
        Some(_) if autoscaled && facts.exists => {}
        Some(replicas) => settings.push(Setting::apply(
            manifest,
            &at,
            &["count"],
            json!(replicas),
            format!("spec.replicas of MachinePool {name} is {replicas}"),
        )?),
        None => {}
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine_pool(version: &str, replicas: Option<i32>, manager: Option<&str>) -> MachinePool {
        let mut pool = MachinePool::default();
        pool.metadata.name = Some("mp".to_owned());
        pool.metadata.annotations =
            manager.map(|value| [(annotation::REPLICAS_MANAGED_BY.to_owned(), value.to_owned())].into());
        version.clone_into(&mut pool.spec.template.spec.version);
        pool.spec.replicas = replicas;
        pool
    }

    fn set(spec: &Value, machine_pool: &MachinePool, exists: bool) -> Result<Value, String> {
        let mut resources = [
            json!({"apiVersion": "resources.azure.com/v1api20200601", "kind": "ResourceGroup"}),
            json!({
                "apiVersion": "containerservice.azure.com/v1api20240901", "kind": "ManagedClustersAgentPool",
                "metadata": {"name": "p"}, "spec": spec,
            }),
        ];
        let facts = PoolFacts { machine_pool, exists };
        let settings = set_agent_pool(&mut resources, &facts).map_err(|problem| problem.to_string())?;
        let again = set_agent_pool(&mut resources.clone(), &facts).map_err(|problem| problem.to_string())?;
        assert_eq!(settings, again, "what was set is no conflict with itself");
        Ok(resources[1]["spec"].clone())
    }

    #[test]
    fn version_and_count_are_the_machine_pools() {
        let pool = machine_pool("v1.31.2", Some(3), None);
        let expected = json!({"orchestratorVersion": "1.31.2", "count": 3});
        assert_eq!(set(&json!({}), &pool, false), Ok(expected.clone()));
        assert_eq!(set(&json!(null), &pool, true), Ok(expected.clone()));
        assert_eq!(set(&expected, &pool, true), Ok(expected));
        assert_eq!(
            set(&json!({"a": 1}), &machine_pool("", None, None), false),
            Ok(json!({"a": 1}))
        );
    }

    #[test]
    fn another_value_is_told_with_both_and_what_to_do() {
        let pool = machine_pool("v1.31.2", Some(3), None);
        assert_eq!(
            set(&json!({"orchestratorVersion": "1.30"}), &pool, false).unwrap_err(),
            "spec.resources[1].spec.orchestratorVersion is \"1.30\", but it must be \"1.31.2\" because \
             spec.template.spec.version of MachinePool mp is v1.31.2: remove it, or write \"1.31.2\""
        );
        assert_eq!(
            set(&json!({"count": 5}), &pool, false).unwrap_err(),
            "spec.resources[1].spec.count is 5, but it must be 3 because spec.replicas of MachinePool mp is 3: remove it, \
             or write 3"
        );
        assert_eq!(
            set(&json!("text"), &pool, false).unwrap_err(),
            "spec.resources[1].spec.orchestratorVersion: what it stands in must be an object"
        );
        let error = set_agent_pool(
            &mut [],
            &PoolFacts {
                machine_pool: &pool,
                exists: false,
            },
        )
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            "spec.resources: no ManagedClustersAgentPool of containerservice.azure.com is in spec.resources: add one"
        );
    }

    #[test]
    fn whoever_scales_decides_the_count_once_the_pool_exists() {
        let scaled = json!({"enableAutoScaling": true, "minCount": 1, "maxCount": 5});
        let seeded =
            |pool: &MachinePool, exists| set(&scaled, pool, exists).map(|spec| spec.get("count").cloned());
        for manager in [None, Some("aks")] {
            let pool = machine_pool("", Some(2), manager);
            assert_eq!(seeded(&pool, false), Ok(Some(json!(2))), "what it starts with");
            assert_eq!(seeded(&pool, true), Ok(None));
        }
        let external = machine_pool("", Some(2), Some("external-autoscaler"));
        assert_eq!(
            set(&json!({}), &external, true),
            Ok(json!({})),
            "another autoscaler without AKS's"
        );
        assert_eq!(
            seeded(&external, true).unwrap_err(),
            "spec.resources[1].spec.enableAutoScaling is true, but it must be false because the replicas of MachinePool \
             mp are managed by \"external-autoscaler\", as its annotation cluster.x-k8s.io/replicas-managed-by says: \
             remove it, or write false"
        );
        let plain = [json!({
            "apiVersion": "containerservice.azure.com/v1api20240901", "kind": "ManagedClustersAgentPool",
        })];
        let of = |manager| replica_manager(&plain, &machine_pool("", None, manager));
        assert_eq!(of(Some("aks")), Ok(ReplicaManager::Removed));
        assert_eq!(of(Some("other")), Ok(ReplicaManager::Kept));
        assert_eq!(of(None), Ok(ReplicaManager::Kept));
        assert_eq!(
            set(&json!({}), &machine_pool("", Some(4), Some("aks")), true),
            Ok(json!({"count": 4})),
            "autoscaling was switched off"
        );
    }
}
