//! What the last read of the apiserver found in order. While the watches show the same, and nothing is to be done, a control
//! plane is reconciled without a request; whatever is done to a server is decided on a new read.

use std::{
    collections::{BTreeMap, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DynamicObject};
use slipway_capi::view::Machine;

use super::{health, observe::Snapshot};
use crate::api::{KThreesConfig, KThreesControlPlane};

/// InfraMachines are not watched, and the watches do not show who owns a field: so often the apiserver is asked all the same.
const STANDS: Duration = Duration::from_mins(10);

pub struct LastRead {
    generation: Option<i64>,
    read_at: Timestamp,
    servers: BTreeMap<String, Server>,
}

struct Server {
    version: Option<u64>,
    metadata_hash: u64,
    infra_machine: Option<(ApiResource, DynamicObject)>,
}

impl LastRead {
    pub fn of(snapshot: &Snapshot) -> Self {
        let servers = snapshot.machines.iter().map(|(name, machine)| {
            let infra_machine = snapshot.infra_machines.get(name).map(|(resource, found)| {
                let mut found = found.clone();
                found.data = serde_json::Value::Null;
                found.metadata.managed_fields = None;
                (resource.clone(), found)
            });
            let server = Server {
                version: version(machine),
                metadata_hash: metadata_hash(machine, snapshot.configs.get(name)),
                infra_machine,
            };
            (name.clone(), server)
        });
        Self {
            generation: snapshot.object.metadata.generation,
            read_at: snapshot.read_at,
            servers: servers.collect(),
        }
    }

    /// Whether it says anything of this control plane as it is now.
    pub fn stands(&self, object: &KThreesControlPlane, now: Timestamp) -> bool {
        object.metadata.deletion_timestamp.is_none()
            && object.metadata.generation == self.generation
            && health::age(self.read_at, now) < STANDS
    }

    pub fn infra_machine(&self, machine: &str) -> Option<(ApiResource, DynamicObject)> {
        self.servers.get(machine)?.infra_machine.clone()
    }

    /// Whether the watches show the same servers, no older than they were read, with nothing to carry over to them.
    pub fn is_shown(
        &self,
        machines: &BTreeMap<String, Machine>,
        configs: &BTreeMap<String, KThreesConfig>,
    ) -> bool {
        machines.len() == self.servers.len()
            && machines.iter().all(|(name, machine)| {
                self.servers.get(name).is_some_and(|read| {
                    version(machine) >= read.version
                        && metadata_hash(machine, configs.get(name)) == read.metadata_hash
                })
            })
    }
}

fn version(machine: &Machine) -> Option<u64> {
    machine.metadata.resource_version.as_ref()?.parse().ok()
}

/// What decides whether something is to be carried over to a server: all but its status.
fn metadata_hash(machine: &Machine, config: Option<&KThreesConfig>) -> u64 {
    let mut hasher = DefaultHasher::new();
    for metadata in [Some(&machine.metadata), config.map(|config| &config.metadata)] {
        of_metadata(metadata).hash(&mut hasher);
    }
    hasher.finish()
}

fn of_metadata(metadata: Option<&ObjectMeta>) -> impl Hash {
    metadata.map(|metadata| {
        (
            metadata.uid.clone(),
            metadata.generation,
            metadata.labels.clone(),
            metadata.annotations.clone(),
            metadata.deletion_timestamp.is_some(),
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn machine(version: &str, labels: &Value, ready: &str) -> Machine {
        serde_json::from_value(json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2",
            "kind": "Machine",
            "metadata": {"name": "a", "uid": "u", "resourceVersion": version, "generation": 1, "labels": labels},
            "spec": {"clusterName": "c"},
            "status": {"phase": ready},
        }))
        .unwrap()
    }

    fn shown(machines: &[(&str, Machine)]) -> BTreeMap<String, Machine> {
        let named = machines
            .iter()
            .map(|(name, machine)| ((*name).to_owned(), machine.clone()));
        named.collect()
    }

    #[test]
    fn watches_are_enough_only_while_they_show_what_was_read_or_a_newer_status() {
        let labels = json!({"pool": "servers"});
        let read = machine("9", &labels, "Provisioning");
        let last_read = LastRead {
            generation: Some(1),
            read_at: Timestamp::UNIX_EPOCH,
            servers: BTreeMap::from([(
                "a".to_owned(),
                Server {
                    version: version(&read),
                    metadata_hash: metadata_hash(&read, None),
                    infra_machine: None,
                },
            )]),
        };
        let holds = |machines: &[(&str, Machine)]| last_read.is_shown(&shown(machines), &BTreeMap::new());
        assert!(holds(&[("a", read.clone())]));
        assert!(
            holds(&[("a", machine("10", &labels, "Running"))]),
            "only its status is newer"
        );
        assert!(
            !holds(&[("a", machine("8", &labels, "Pending"))]),
            "the watch is behind"
        );
        assert!(
            !holds(&[("a", machine("10", &json!({}), "Running"))]),
            "a label has gone"
        );
        assert!(!holds(&[]), "a server has gone");
        assert!(
            !holds(&[("a", read.clone()), ("b", read.clone())]),
            "there is another"
        );
        assert!(!holds(&[("b", read)]));
    }
}
