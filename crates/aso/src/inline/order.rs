//! The order in which the resources of one object are made: what is referred to comes first. Pure.

use super::{parse::Inline, problem::Problem};

/// Indexes into `items`, each after everything of `items` that it refers to, otherwise as written. Resources that wait
/// for each other, and those that wait for them, are left out and told.
pub fn order(items: &[Inline]) -> (Vec<usize>, Vec<(usize, Problem)>) {
    let before: Vec<Vec<usize>> = items
        .iter()
        .enumerate()
        .map(|(own, inline)| {
            let mut found: Vec<usize> = inline
                .references()
                .filter_map(|reference| items.iter().position(|other| other.is_meant_by(reference)))
                .filter(|&other| other != own)
                .collect();
            found.sort_unstable();
            found.dedup();
            found
        })
        .collect();
    let mut placed = vec![false; items.len()];
    let mut order = Vec::with_capacity(items.len());
    // Quadratic, over a list that a person wrote.
    while let Some(next) =
        (0..items.len()).find(|&index| !placed[index] && before[index].iter().all(|&other| placed[other]))
    {
        placed[next] = true;
        order.push(next);
    }
    let stuck: Vec<usize> = (0..items.len()).filter(|&index| !placed[index]).collect();
    let members = || {
        let names: Vec<String> = stuck.iter().map(|&index| items[index].object.display()).collect();
        names.join(", ")
    };
    let problems = stuck
        .iter()
        .map(|&index| {
            let problem = Problem::Cycle {
                path: items[index].path(),
                members: members(),
            };
            (items[index].index, problem)
        })
        .collect();
    (order, problems)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::inline::{Inventory, Policy};

    /// A user-assigned identity that its federated credential stands below, a cluster that uses it, an assignment that
    /// refers to both: written backwards.
    fn backwards() -> Vec<Value> {
        let manifest = |group: &str, kind: &str, name: &str, spec: Value| json!({"apiVersion": group, "kind": kind, "metadata": {"name": name}, "spec": spec});
        vec![
            manifest(
                "managedidentity.azure.com/v1api20230131",
                "FederatedIdentityCredential",
                "trust",
                json!({"owner": {"name": "identity"}, "audiences": ["a"], "issuer": "i", "subject": "s"}),
            ),
            manifest(
                "containerservice.azure.com/v1api20240901",
                "ManagedCluster",
                "cluster",
                json!({
                    "owner": {"name": "group"},
                    "identity": {"type": "UserAssigned", "userAssignedIdentities": [{"reference": {
                        "group": "managedidentity.azure.com", "kind": "UserAssignedIdentity", "name": "identity",
                    }}]},
                }),
            ),
            manifest(
                "managedidentity.azure.com/v1api20230131",
                "UserAssignedIdentity",
                "identity",
                json!({"owner": {"name": "group"}, "location": "l"}),
            ),
            manifest(
                "resources.azure.com/v1api20200601",
                "ResourceGroup",
                "group",
                json!({"location": "l"}),
            ),
        ]
    }

    fn read(resources: &[Value]) -> Vec<Inline> {
        let inventory = Inventory::read(resources, "ns", Policy::Manage);
        assert!(inventory.problems.is_empty(), "{:?}", inventory.problems);
        inventory.items
    }

    #[test]
    fn what_is_referred_to_comes_first() {
        let items = read(&backwards());
        let (order, problems) = order(&items);
        assert!(problems.is_empty());
        let names: Vec<&str> = order
            .iter()
            .map(|&index| items[index].object.name.as_str())
            .collect();
        assert_eq!(names, ["group", "identity", "trust", "cluster"]);
    }

    #[test]
    fn a_ring_is_told_with_its_members_and_keeps_nothing_else_back() {
        let extension = |name: &str, owner: &str| {
            json!({
                "apiVersion": "kubernetesconfiguration.azure.com/v1api20230501", "kind": "Extension",
                "metadata": {"name": name}, "spec": {"owner": {
                    "group": "kubernetesconfiguration.azure.com", "kind": "Extension", "name": owner,
                }},
            })
        };
        let mut resources = vec![extension("a", "b"), extension("b", "a")];
        resources.extend(backwards());
        let items = read(&resources);
        let (order, problems) = order(&items);
        assert_eq!(order.len(), 4);
        let told: Vec<String> = problems
            .iter()
            .map(|(index, problem)| format!("{index} {problem}"))
            .collect();
        assert_eq!(
            told,
            [
                "0 spec.resources[0]: Extension a, Extension b wait for each other: remove one of their references",
                "1 spec.resources[1]: Extension a, Extension b wait for each other: remove one of their references",
            ]
        );
    }

    proptest! {
        #[test]
        fn every_order_of_writing_gives_an_order_of_making(
            shuffled in Just(backwards()).prop_shuffle(),
        ) {
            let items = read(&shuffled);
            let (order, problems) = order(&items);
            prop_assert!(problems.is_empty());
            prop_assert_eq!(order.len(), items.len());
            for (place, &index) in order.iter().enumerate() {
                for reference in items[index].references() {
                    let earlier = order[..place]
                        .iter()
                        .any(|&other| items[other].is_meant_by(reference));
                    prop_assert!(earlier, "{} before {}", items[index].object.display(), reference);
                }
            }
        }
    }
}
