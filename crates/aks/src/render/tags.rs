//! Tags: those that mark ownership, and the user's. Nobody else's are lost: what is sent is merged with what is there.

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
