//! Rights both ways: compares what a manager's roles allow with what its user asked for in a test, by the audit log. A
//! request that was denied is a fault, and so is a right that nothing used: it is not needed, or not tested.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde_json::Value;

use crate::audit::Request;

/// One verb on one resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    pub group: String,
    /// With its subresource, as a role names it.
    pub resource: String,
    pub verb: String,
}

impl Right {
    pub fn new(group: &str, resource: &str, verb: &str) -> Right {
        Right {
            group: group.to_owned(),
            resource: resource.to_owned(),
            verb: verb.to_owned(),
        }
    }
}

impl fmt::Display for Right {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dot = if self.group.is_empty() { "" } else { "." };
        write!(formatter, "{} {}{dot}{}", self.verb, self.resource, self.group)
    }
}

/// A right that is declared although the test does not use it, and why that is well.
#[derive(Clone, Copy, Debug)]
pub struct Unused {
    pub group: &'static str,
    pub resource: &'static str,
    pub verbs: &'static [&'static str],
    pub reason: &'static str,
    /// Whether the test may use it all the same: some runs do and most do not, as who comes first decides.
    pub rare: bool,
}

/// What is wrong between the roles and the requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Requests that were denied, and how often.
    pub denied: BTreeMap<Right, usize>,
    /// Declared and never used.
    pub unused: BTreeSet<Right>,
    /// Said to be unused, but it is used (and not rarely), or not declared at all.
    pub outdated: BTreeSet<Right>,
}

impl Findings {
    pub fn is_empty(&self) -> bool {
        self.denied.is_empty() && self.unused.is_empty() && self.outdated.is_empty()
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (right, times) in &self.denied {
            writeln!(formatter, "denied {times} times: {right}; declare a Rule for it")?;
        }
        for right in &self.unused {
            writeln!(
                formatter,
                "declared and not used: {right}; drop it, test it, or say why"
            )?;
        }
        for right in &self.outdated {
            writeln!(
                formatter,
                "said to be unused, and is not (or is not declared): {right}"
            )?;
        }
        Ok(())
    }
}

/// The rights that the bindings among these objects give to a manager, by the roles among them. Roles that nothing here
/// binds (those collected by label for somebody else) give none, and neither do those bound to a group: they are lent.
pub fn declared(objects: &[Value]) -> BTreeSet<Right> {
    let bound: BTreeSet<(&str, &str)> = objects
        .iter()
        .filter_map(|object| {
            let role = object.get("roleRef")?;
            if items(&object["subjects"]).any(|subject| subject["kind"] == "Group") {
                return None;
            }
            Some((role["kind"].as_str()?, role["name"].as_str()?))
        })
        .collect();
    let is_bound = |object: &&Value| {
        let kind = object["kind"].as_str().unwrap_or_default();
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        bound.contains(&(kind, name))
    };
    let mut rights = BTreeSet::new();
    for rule in objects
        .iter()
        .filter(is_bound)
        .flat_map(|role| items(&role["rules"]))
    {
        for group in items(&rule["apiGroups"]).filter_map(Value::as_str) {
            for resource in items(&rule["resources"]).filter_map(Value::as_str) {
                for verb in items(&rule["verbs"]).filter_map(Value::as_str) {
                    rights.insert(Right::new(group, resource, verb));
                }
            }
        }
    }
    rights
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Compares the declared rights with the requests of one user. Requests outside resources (discovery, health) need no
/// right of ours.
pub fn compare(declared: &BTreeSet<Right>, requests: &[Request], excused: &[Unused]) -> Findings {
    let mut findings = Findings::default();
    let mut used = BTreeSet::new();
    for request in requests
        .iter()
        .filter(|request| !request.object.resource.is_empty())
    {
        let right = Right::new(&request.object.api_group, &request.resource(), &request.verb);
        if request.was_denied() {
            *findings.denied.entry(right).or_default() += 1;
        } else {
            used.insert(right);
        }
    }
    findings.unused = declared.difference(&used).cloned().collect();
    for one in excused {
        for verb in one.verbs {
            let right = Right::new(one.group, one.resource, verb);
            let may_be_used = one.rare && declared.contains(&right);
            if !findings.unused.remove(&right) && !may_be_used {
                findings.outdated.insert(right);
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(verb: &str, resource: &str, decision: &str) -> Request {
        serde_json::from_value(json!({
            "verb": verb, "user": {"username": "manager"}, "requestURI": "/",
            "objectRef": {"apiGroup": "toy", "resource": resource},
            "annotations": {"authorization.k8s.io/decision": decision},
        }))
        .unwrap()
    }

    fn roles() -> Vec<Value> {
        let rule = |verbs: &[&str]| json!([{"apiGroups": ["toy"], "resources": ["fleets"], "verbs": verbs}]);
        vec![
            json!({"kind": "ClusterRole", "metadata": {"name": "manager"}, "rules": rule(&["list", "patch"])}),
            json!({"kind": "ClusterRole", "metadata": {"name": "for-others"}, "rules": rule(&["delete"])}),
            json!({"kind": "ClusterRole", "metadata": {"name": "lent"}, "rules": rule(&["create"])}),
            json!({"kind": "ClusterRoleBinding", "metadata": {"name": "manager"},
                "roleRef": {"kind": "ClusterRole", "name": "manager"}}),
            json!({"kind": "ClusterRoleBinding", "metadata": {"name": "lent"},
                "roleRef": {"kind": "ClusterRole", "name": "lent"}, "subjects": [{"kind": "Group"}]}),
        ]
    }

    #[test]
    fn only_bound_roles_count() {
        let expected = ["list", "patch"].map(|verb| Right::new("toy", "fleets", verb));
        assert_eq!(declared(&roles()), BTreeSet::from(expected));
    }

    #[test]
    fn a_denied_request_and_an_unused_right_are_found() {
        let requests = [
            request("list", "fleets", "allow"),
            request("get", "fleets", "forbid"),
        ];
        let findings = compare(&declared(&roles()), &requests, &[]);
        assert_eq!(
            findings.to_string(),
            "denied 1 times: get fleets.toy; declare a Rule for it\n\
             declared and not used: patch fleets.toy; drop it, test it, or say why\n"
        );
    }

    #[test]
    fn an_excuse_holds_only_while_it_is_needed() {
        let mut excuse = [Unused {
            group: "toy",
            resource: "fleets",
            verbs: &["patch"],
            reason: "a test of its own",
            rare: false,
        }];
        let listed = [request("list", "fleets", "allow")];
        assert!(compare(&declared(&roles()), &listed, &excuse).is_empty());
        let both = [
            request("list", "fleets", "allow"),
            request("patch", "fleets", "allow"),
        ];
        let findings = compare(&declared(&roles()), &both, &excuse);
        assert_eq!(
            findings.outdated,
            BTreeSet::from([Right::new("toy", "fleets", "patch")])
        );
        // One that is rarely used may be used, and may not; but it is declared.
        excuse[0].rare = true;
        assert!(compare(&declared(&roles()), &listed, &excuse).is_empty());
        assert!(compare(&declared(&roles()), &both, &excuse).is_empty());
        excuse[0].verbs = &["patch", "watch"];
        let findings = compare(&declared(&roles()), &both, &excuse);
        assert_eq!(
            findings.outdated,
            BTreeSet::from([Right::new("toy", "fleets", "watch")])
        );
    }
}
