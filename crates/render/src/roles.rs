//! Permissions: what the providers declared, what the runtime itself needs, and what Cluster API's own managers need
//! to work with our kinds.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use slipway_runtime::{PackageKind, Rule};

use super::Bundle;

/// What the runtime does for every package: record events, and ask who may read its diagnostics.
const OWN: &[Rule] = &[
    Rule::new("authentication.k8s.io", &["tokenreviews"], &["create"]),
    Rule::new("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
    Rule::new("events.k8s.io", &["events"], &["create", "patch"]),
];

/// What is allowed: API group, verbs, and the names of the objects.
type Allowed<'a> = (&'a str, BTreeSet<&'a str>, &'a [&'a str]);

/// Rules in their shortest form: verbs joined by resource, then resources joined by verbs.
pub fn merged(rules: impl IntoIterator<Item = Rule>) -> Vec<Value> {
    let mut verbs: BTreeMap<(&str, &str, &[&str]), BTreeSet<&str>> = BTreeMap::new();
    for rule in rules {
        for resource in rule.resources {
            verbs
                .entry((rule.group, *resource, rule.names))
                .or_default()
                .extend(rule.verbs);
        }
    }
    let mut resources: BTreeMap<Allowed<'_>, Vec<&str>> = BTreeMap::new();
    for ((group, resource, names), verbs) in verbs {
        resources.entry((group, verbs, names)).or_default().push(resource);
    }
    resources
        .into_iter()
        .map(|((group, verbs, names), resources)| {
            let mut rule = json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
            if !names.is_empty() {
                rule["resourceNames"] = json!(names);
            }
            rule
        })
        .collect()
}

pub fn roles(bundle: &Bundle) -> Vec<Value> {
    let namespace = bundle.namespace();
    let cluster_role = bundle.cluster_role.unwrap_or("manager");
    let subject =
        json!([{"kind": "ServiceAccount", "name": bundle.service_account(), "namespace": namespace}]);
    let mut objects = vec![
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": bundle.named("leader-election-role"), "namespace": namespace},
            "rules": merged([Rule::new("coordination.k8s.io", &["leases"], &["create", "get", "update"])]),
        }),
        role(
            bundle,
            cluster_role,
            &merged(bundle.rules.iter().chain(OWN).copied()),
        ),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": bundle.named("leader-election-rolebinding"), "namespace": namespace},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "Role",
                "name": bundle.named("leader-election-role"),
            },
            "subjects": subject,
        }),
        binding(bundle, cluster_role, &subject),
    ];
    objects.extend(aggregated(bundle));
    for grant in &bundle.role_grants {
        objects.push(role(bundle, grant.name, &merged(grant.rules.iter().copied())));
        // A group, because clusterctl moves every subject that has a namespace into the package's own.
        let accounts = format!("system:serviceaccounts:{}", grant.namespace);
        let subject = json!([{"kind": "Group", "name": accounts, "apiGroup": "rbac.authorization.k8s.io"}]);
        objects.push(binding(bundle, grant.name, &subject));
    }
    objects
}

fn role(bundle: &Bundle, name: &str, rules: &[Value]) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": bundle.named(&format!("{name}-role"))},
        "rules": rules,
    })
}

fn binding(bundle: &Bundle, name: &str, subjects: &Value) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": bundle.named(&format!("{name}-rolebinding"))},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": bundle.named(&format!("{name}-role")),
        },
        "subjects": subjects,
    })
}

/// Cluster API's manager may touch kinds of its own groups; for others it collects roles by this label.
fn aggregated(bundle: &Bundle) -> Option<Value> {
    // Nothing of Cluster API refers to kinds of somebody who works beside it.
    if bundle.kind == PackageKind::HelmOnly {
        return None;
    }
    let mut resources: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for crd in bundle.crds.values() {
        let group = crd["spec"]["group"].as_str().unwrap_or_default();
        let plural = crd["spec"]["names"]["plural"].as_str().unwrap_or_default();
        if !group.ends_with(".cluster.x-k8s.io") {
            resources.entry(group).or_default().extend([
                plural.to_owned(),
                format!("{plural}/finalizers"),
                format!("{plural}/status"),
            ]);
        }
    }
    let rules: Vec<Value> = resources
        .into_iter()
        .map(|(group, resources)| json!({"apiGroups": [group], "resources": resources, "verbs": Rule::ALL}))
        .collect();
    (!rules.is_empty()).then(|| {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {
                "name": bundle.named("cluster-api-role"),
                "labels": {"cluster.x-k8s.io/aggregate-to-manager": "true"},
            },
            "rules": rules,
        })
    })
}
