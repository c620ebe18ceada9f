//! The VMs of a pool, from what Azure lists and what the workload cluster's Nodes say. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::Address;
use crate::workload::nodes::{NodeFacts, provider_id};

/// One VM of a scale set, as Azure lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Instance {
    pub provider_id: String,
    /// What AKS calls it, e.g. `aks-work-12345678-vmss_3`.
    pub name: String,
    /// What its operating system calls itself, which is the node's name.
    pub computer: String,
    pub zone: Option<String>,
    /// Azure's word, e.g. `running`.
    pub power: Option<String>,
}

impl Instance {
    /// Reads an entry of a scale set's list.
    pub fn read(machine: &Value) -> Option<Self> {
        let id = machine["id"].as_str()?;
        let name = machine["name"].as_str()?.to_owned();
        let power = machine.pointer("/properties/instanceView/statuses");
        Some(Self {
            provider_id: provider_id(id),
            computer: machine
                .pointer("/properties/osProfile/computerName")
                .and_then(Value::as_str)
                .map_or_else(|| name.replace('_', "-"), str::to_owned),
            name,
            zone: machine
                .pointer("/zones/0")
                .and_then(Value::as_str)
                .map(str::to_owned),
            power: power
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .find_map(|status| status["code"].as_str()?.strip_prefix("PowerState/"))
                .map(str::to_owned),
        })
    }
}

/// A VM of a pool, with all that is known of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vm {
    pub provider_id: String,
    /// What AKS calls it, and deletes it by. `None`: it joined by itself, and AKS knows nothing of it.
    pub machine: Option<String>,
    /// The name of the node, which its objects have too.
    pub name: String,
    pub zone: Option<String>,
    pub power: Option<String>,
    pub image: Option<String>,
    pub version: Option<String>,
    pub addresses: Vec<Address>,
    pub has_node: bool,
}

impl Vm {
    /// A number that grows with each VM of a scale set, so that the youngest is known.
    pub fn number(&self) -> u64 {
        let number = self.machine.as_deref().and_then(|name| name.rsplit('_').next());
        number.and_then(|number| number.parse().ok()).unwrap_or_default()
    }

    pub fn key(&self) -> String {
        self.provider_id.to_lowercase()
    }
}

/// The scale set of a provider id, in lower case; `None` where it names none.
pub fn scale_set_of(provider_id: &str) -> Option<String> {
    let lower = provider_id.to_lowercase();
    let (set, _) = lower.split_once("/virtualmachines/")?;
    set.contains("/virtualmachinescalesets/").then(|| set.to_owned())
}

/// The VMs of a pool. A VM of its scale sets is there as long as Azure lists it, whatever its Node says: Nodes outlive their VM
/// for a while. One that stands in none of them joined by itself, and is there as long as its Node is.
pub fn merge(instances: &[Instance], nodes: &[NodeFacts], sets: &BTreeSet<String>) -> Vec<Vm> {
    let mut found: BTreeMap<String, Vm> = instances
        .iter()
        .map(|instance| {
            let vm = Vm {
                provider_id: instance.provider_id.clone(),
                machine: Some(instance.name.clone()),
                name: instance.computer.to_lowercase(),
                zone: instance.zone.clone(),
                power: instance.power.clone(),
                ..Vm::default()
            };
            (vm.key(), vm)
        })
        .collect();
    for node in nodes {
        let key = node.provider_id.to_lowercase();
        if !found.contains_key(&key) && scale_set_of(&key).is_some_and(|set| sets.contains(&set)) {
            continue;
        }
        let vm = found.entry(key).or_default();
        // Core compares provider ids letter by letter.
        vm.provider_id.clone_from(&node.provider_id);
        vm.name.clone_from(&node.name);
        vm.has_node = true;
        vm.image.clone_from(&node.image);
        vm.version.clone_from(&node.version);
        vm.addresses.clone_from(&node.addresses);
        if node.zone.is_some() {
            vm.zone.clone_from(&node.zone);
        }
    }
    let mut vms: Vec<Vm> = found.into_values().collect();
    vms.sort_by(|one, other| one.name.cmp(&other.name));
    vms
}

/// Whether the list of Azure and the Nodes of the workload cluster are of one moment.
pub fn agree(instances: &[Instance], nodes: &[NodeFacts], sets: &BTreeSet<String>) -> bool {
    let listed: BTreeSet<String> = instances
        .iter()
        .map(|instance| instance.provider_id.to_lowercase())
        .collect();
    let of_sets: BTreeSet<String> = nodes
        .iter()
        .map(|node| node.provider_id.to_lowercase())
        .filter(|id| scale_set_of(id).is_some_and(|set| sets.contains(&set)))
        .collect();
    listed == of_sets
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const SET: &str = "/subscriptions/s/resourceGroups/MC_g/providers/Microsoft.Compute/virtualMachineScaleSets/aks-work-1-vmss";

    fn instance(number: u32) -> Instance {
        Instance::read(&json!({
            "id": format!("{SET}/virtualMachines/{number}"), "name": format!("aks-work-1-vmss_{number}"), "zones": ["2"],
            "properties": {"osProfile": {"computerName": format!("aks-work-1-vmss00000{number}")},
                "instanceView": {"statuses": [{"code": "ProvisioningState/succeeded"}, {"code": "PowerState/running"}]}},
        }))
        .unwrap()
    }

    fn node(id: &str, name: &str) -> NodeFacts {
        NodeFacts {
            name: name.into(),
            provider_id: id.into(),
            zone: Some("westus3-2".into()),
            image: Some("AKSUbuntu-2204".into()),
            version: Some("v1.33.3".into()),
            addresses: Vec::new(),
        }
    }

    fn sets() -> BTreeSet<String> {
        scale_set_of(&provider_id(&format!("{SET}/virtualMachines/0")))
            .into_iter()
            .collect()
    }

    #[test]
    fn a_vm_is_what_azure_lists_with_what_its_node_says() {
        let (first, second) = (instance(0), instance(1));
        assert_eq!(first.power.as_deref(), Some("running"));
        let nodes = [node(&first.provider_id, "aks-work-1-vmss000000")];
        let vms = merge(&[first.clone(), second.clone()], &nodes, &sets());
        assert_eq!(vms.len(), 2);
        assert_eq!(vms[0].zone.as_deref(), Some("westus3-2"), "the node's word");
        assert_eq!(vms[0].version.as_deref(), Some("v1.33.3"));
        assert_eq!(
            (vms[1].zone.as_deref(), vms[1].version.as_deref()),
            (Some("2"), None)
        );
        assert_eq!(vms[1].machine.as_deref(), Some("aks-work-1-vmss_1"));
        assert_eq!((vms[0].number(), vms[1].number()), (0, 1));
        assert!(!agree(&[first.clone(), second], &nodes, &sets()), "one boots");
        assert!(agree(&[first], &nodes, &sets()));
    }

    #[test]
    fn a_node_outlives_its_vm_and_one_of_elsewhere_joined_by_itself() {
        let gone = node(&instance(7).provider_id, "aks-work-1-vmss000007");
        let own = node(
            "azure:///subscriptions/s/resourceGroups/mine/providers/Microsoft.Compute/virtualMachines/b",
            "b",
        );
        let vms = merge(&[instance(0)], &[gone, own], &sets());
        let names: Vec<_> = vms
            .iter()
            .map(|vm| (vm.name.as_str(), vm.machine.is_some()))
            .collect();
        assert_eq!(names, [("aks-work-1-vmss000000", true), ("b", false)]);
    }
}
