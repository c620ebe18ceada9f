//! From names to ARM ids: every inline resource of a namespace, whichever object it stands in. As with Azure Service
//! Operator's own objects, a reference names a resource of its namespace, in any version. Pure.

use std::collections::BTreeMap;

use secrecy::SecretString;
use slipway_azure::{
    ResourceId,
    resource::{AsoObject, Put, Reference, Resolver, ResourceError, id_of, to_arm},
};

use super::{parse::Inline, problem::Problem};

type Key = (String, String, String);

/// Every resource that can be named in one namespace.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    known: BTreeMap<Key, Known>,
}

#[derive(Clone, Debug)]
struct Known {
    object: AsoObject,
    /// The subscription of its credential.
    subscription: String,
}

/// How many owners a resource can have above each other. Azure's deepest types have far fewer; a ring of owners ends here.
const DEEPEST: usize = 16;

impl Catalog {
    /// Adds a resource that others can name. The first one of a name counts.
    pub fn add(&mut self, object: &AsoObject, subscription: &str) {
        let key = (
            object.mapping.group.clone(),
            object.mapping.kind.clone(),
            object.name.clone(),
        );
        self.known.entry(key).or_insert_with(|| Known {
            object: object.clone(),
            subscription: subscription.to_owned(),
        });
    }

    /// The ARM id that a reference stands for.
    pub fn id(&self, reference: &Reference) -> Option<ResourceId> {
        self.id_within(reference, DEEPEST)
    }

    fn id_within(&self, reference: &Reference, depth: usize) -> Option<ResourceId> {
        if let Some(id) = &reference.arm_id {
            return ResourceId::parse(id).ok();
        }
        let depth = depth.checked_sub(1)?;
        let key = (
            reference.group.clone(),
            reference.kind.clone(),
            reference.name.clone(),
        );
        let known = self.known.get(&key)?;
        let owner = match known.object.owner() {
            Some(owner) => Some(self.id_within(&owner, depth)?),
            None => None,
        };
        id_of(&known.object, owner.as_ref(), &known.subscription).ok()
    }
}

/// What an inline resource's request is made from.
#[derive(Clone, Debug, Default)]
pub struct Lookup<'a> {
    /// The subscription of its credential.
    pub subscription: &'a str,
    /// Data of the Secrets that it refers to, by name.
    pub secrets: BTreeMap<String, BTreeMap<String, SecretString>>,
    /// Data of the ConfigMaps that it refers to, by name.
    pub configs: BTreeMap<String, BTreeMap<String, String>>,
}

struct Answers<'a> {
    catalog: &'a Catalog,
    lookup: &'a Lookup<'a>,
}

impl Resolver for Answers<'_> {
    fn subscription(&self) -> &str {
        self.lookup.subscription
    }

    fn resource(&self, reference: &Reference) -> Option<String> {
        self.catalog.id(reference).map(|id| id.as_str().to_owned())
    }

    fn secret(&self, name: &str, key: &str) -> Option<SecretString> {
        self.lookup.secrets.get(name)?.get(key).cloned()
    }

    fn secret_map(&self, name: &str) -> Option<BTreeMap<String, SecretString>> {
        self.lookup.secrets.get(name).cloned()
    }

    fn config(&self, name: &str, key: &str) -> Option<String> {
        self.lookup.configs.get(name)?.get(key).cloned()
    }
}

impl Catalog {
    /// The request that an inline resource stands for.
    pub fn put(&self, inline: &Inline, lookup: &Lookup<'_>) -> Result<Put, Problem> {
        let answers = Answers {
            catalog: self,
            lookup,
        };
        let put = to_arm(&inline.object, &answers).map_err(|error| Problem::Resource {
            path: inline.path(),
            error: Box::new(error),
        })?;
        // A token for one subscription is no use in another, and Azure's answer would not say so.
        match put.id.subscription() {
            Some(owner) if !owner.eq_ignore_ascii_case(lookup.subscription) => {
                Err(Problem::SubscriptionMismatch {
                    path: inline.path(),
                    owner: owner.to_owned(),
                    credential: lookup.subscription.to_owned(),
                })
            }
            _ => Ok(put),
        }
    }

    /// The ARM id of an inline resource, as far as its owners can be found.
    pub fn id_of(&self, inline: &Inline, subscription: &str) -> Result<ResourceId, Problem> {
        let owner = inline.object.owner();
        let unusable = |error| Problem::Resource {
            path: inline.path(),
            error: Box::new(error),
        };
        let found = match &owner {
            None => None,
            Some(reference) => Some(self.id(reference).ok_or_else(|| {
                unusable(ResourceError::WaitingForOwner {
                    object: inline.object.display(),
                    owner: reference.to_string(),
                })
            })?),
        };
        id_of(&inline.object, found.as_ref(), subscription).map_err(unusable)
    }

    /// Resources of one object that would be one and the same in Azure: the later ones, with what is wrong.
    pub fn same_ids(&self, items: &[Inline], subscription: &str) -> Vec<(usize, Problem)> {
        let mut first: BTreeMap<String, &Inline> = BTreeMap::new();
        let mut found = Vec::new();
        for inline in items {
            let Ok(id) = self.id_of(inline, subscription) else {
                continue;
            };
            match first.get(id.key()) {
                None => {
                    first.insert(id.key().to_owned(), inline);
                }
                Some(earlier) => found.push((
                    inline.index,
                    Problem::SameId {
                        path: inline.path(),
                        object: inline.object.display(),
                        other: earlier.object.display(),
                        id: id.as_str().to_owned(),
                    },
                )),
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::inline::Policy;

    fn inline(version: &str, kind: &str, name: &str, spec: &Value) -> Inline {
        let manifest = json!({
            "apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec,
        });
        Inline::parse(&manifest, 0, "ns", Policy::Manage).unwrap()
    }

    fn catalog(items: &[(&Inline, &str)]) -> Catalog {
        let mut catalog = Catalog::default();
        for (inline, subscription) in items {
            catalog.add(&inline.object, subscription);
        }
        catalog
    }

    const GROUP: &str = "resources.azure.com/v1api20200601";

    #[test]
    fn a_name_leads_to_an_id_across_versions_and_owners() {
        let group = inline(
            GROUP,
            "ResourceGroup",
            "rg",
            &json!({"azureName": "Real", "location": "l"}),
        );
        let network = inline(
            "network.azure.com/v1api20240301",
            "VirtualNetwork",
            "net",
            &json!({"owner": {"name": "rg"}, "location": "l"}),
        );
        let subnet = inline(
            "network.azure.com/v1api20201101",
            "VirtualNetworksSubnet",
            "sub",
            &json!({"owner": {"name": "net"}, "azureName": "nodes", "addressPrefix": "10.0.0.0/24"}),
        );
        let pool = inline(
            "containerservice.azure.com/v1api20240901",
            "ManagedClustersAgentPool",
            "p",
            &json!({
                "owner": {"armId": "/subscriptions/s/resourceGroups/Real/providers/Microsoft.ContainerService/managedClusters/c"},
                "vnetSubnetReference": {"group": "network.azure.com", "kind": "VirtualNetworksSubnet", "name": "sub"},
            }),
        );
        let catalog = catalog(&[(&group, "s"), (&network, "s"), (&subnet, "s")]);
        let lookup = Lookup {
            subscription: "S",
            ..Lookup::default()
        };
        let put = catalog.put(&pool, &lookup).unwrap();
        assert_eq!(
            put.body["properties"]["vnetSubnetID"],
            "/subscriptions/s/resourceGroups/Real/providers/Microsoft.Network/virtualNetworks/net/subnets/nodes"
        );
        let other = Lookup {
            subscription: "t",
            ..Lookup::default()
        };
        let error = catalog.put(&pool, &other).unwrap_err();
        assert_eq!(error.reason(), "SubscriptionMismatch");
        assert_eq!(
            error.to_string(),
            "spec.resources[0]: its owner is in subscription s, but its credential is for t: use a credential of the \
             owner's subscription"
        );
    }

    #[test]
    fn what_cannot_be_found_is_waited_for_and_a_ring_of_owners_ends() {
        let network = inline(
            "network.azure.com/v1api20240301",
            "VirtualNetwork",
            "net",
            &json!({"owner": {"name": "rg"}}),
        );
        let lookup = Lookup {
            subscription: "s",
            ..Lookup::default()
        };
        let error = Catalog::default().put(&network, &lookup).unwrap_err();
        assert_eq!(error.reason(), "WaitingForOwner");
        let owned = |name: &str, owner: &str| {
            inline(
                "kubernetesconfiguration.azure.com/v1api20230501",
                "Extension",
                name,
                &json!({"owner": {
                    "group": "kubernetesconfiguration.azure.com", "kind": "Extension", "name": owner,
                }}),
            )
        };
        let (left, right) = (owned("left", "right"), owned("right", "left"));
        let catalog = catalog(&[(&left, "s"), (&right, "s")]);
        assert_eq!(
            catalog.put(&left, &lookup).unwrap_err().reason(),
            "WaitingForOwner"
        );
    }

    #[test]
    fn two_objects_for_one_resource_are_told() {
        let one = inline(GROUP, "ResourceGroup", "one", &json!({"azureName": "same"}));
        let mut two = inline(GROUP, "ResourceGroup", "two", &json!({"azureName": "SAME"}));
        two.index = 1;
        let found = Catalog::default().same_ids(&[one, two], "s");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, 1);
        assert_eq!(
            found[0].1.to_string(),
            "spec.resources[1]: ResourceGroup two and ResourceGroup one are the same resource in Azure, \
             /subscriptions/s/resourceGroups/SAME: remove one of them"
        );
    }
}
