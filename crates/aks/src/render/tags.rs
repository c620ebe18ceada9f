//! Tags: those that mark ownership, and the user's, merged three ways so that nobody else's are lost.

use std::collections::BTreeMap;

const OWNED_PREFIX: &str = "sigs.k8s.io_cluster-api-provider-azure_cluster_";
const ROLE: &str = "sigs.k8s.io_cluster-api-provider-azure_role";

pub type Tags = BTreeMap<String, String>;

/// The tag that says whose a resource is.
pub fn owned_key(cluster: &str) -> String {
    format!("{OWNED_PREFIX}{cluster}")
}

/// Whether the resource was made for this Cluster.
pub fn is_owned(tags: &Tags, cluster: &str) -> bool {
    tags.get(&owned_key(cluster))
        .is_some_and(|lifecycle| lifecycle == "owned")
}

/// The tags of a resource that is made for a Cluster.
pub fn of_new(cluster: &str, name: &str, additional: &Tags) -> Tags {
    let mut tags = additional.clone();
    tags.insert(owned_key(cluster), "owned".to_owned());
    tags.insert(ROLE.to_owned(), "common".to_owned());
    tags.insert("Name".to_owned(), name.to_owned());
    tags
}

/// The tags a resource should have: those it has, without what we set earlier and no longer want, with what we want.
pub fn merged(existing: &Tags, applied: &Tags, wanted: &Tags) -> Tags {
    let mut tags = existing.clone();
    for (key, value) in applied {
        // What somebody changed since is theirs now.
        if !wanted.contains_key(key) && tags.get(key) == Some(value) {
            tags.remove(key);
        }
    }
    tags.extend(wanted.clone());
    tags
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(text: &str) -> Tags {
        text.split_whitespace()
            .filter_map(|pair| pair.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    }

    #[test]
    fn tags_merge_three_ways() {
        for (existing, applied, wanted, expected, why) in [
            ("", "", "a=1", "a=1", "a new tag is added"),
            ("x=9", "", "a=1", "a=1 x=9", "a stranger's tag stays"),
            (
                "a=1 x=9",
                "a=1",
                "",
                "x=9",
                "ours goes when it is no longer wanted",
            ),
            ("a=2", "a=1", "", "a=2", "one that somebody changed is theirs"),
            ("a=2", "a=1", "a=1", "a=1", "what is wanted is put back"),
            ("a=1", "", "a=3", "a=3", "a changed tag is changed"),
        ] {
            assert_eq!(
                merged(&tags(existing), &tags(applied), &tags(wanted)),
                tags(expected),
                "{why}"
            );
        }
    }

    #[test]
    fn ownership_is_told_by_the_clusters_name() {
        let made = of_new("fleet", "network", &tags("team=blue"));
        assert!(is_owned(&made, "fleet"));
        assert!(!is_owned(&made, "other"));
        assert_eq!(made["Name"], "network");
        assert_eq!(made["team"], "blue");
        assert!(!is_owned(
            &tags("sigs.k8s.io_cluster-api-provider-azure_cluster_fleet=shared"),
            "fleet"
        ));
    }
}
