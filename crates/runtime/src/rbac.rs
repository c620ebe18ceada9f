//! Permissions, declared beside the code that needs them and rendered into ClusterRoles.

/// Rules for the manager of another package, whose own roles lack them and collect none.
#[derive(Clone, Copy, Debug)]
pub struct RoleGrant {
    /// What the role and its binding are called after, with the prefix of the package that lends.
    pub name: &'static str,
    /// The namespace whose service accounts get them.
    pub namespace: &'static str,
    pub rules: &'static [Rule],
}

/// One permission: verbs on resources of one API group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rule {
    pub group: &'static str,
    pub resources: &'static [&'static str],
    pub verbs: &'static [&'static str],
    /// The names of the objects it is for; empty: all.
    pub names: &'static [&'static str],
}

impl Rule {
    pub const READ: &'static [&'static str] = &["get", "list", "watch"];
    pub const WRITE: &'static [&'static str] = &["create", "delete", "patch", "update"];
    pub const ALL: &'static [&'static str] = &["create", "delete", "get", "list", "patch", "update", "watch"];

    pub const fn new(
        group: &'static str,
        resources: &'static [&'static str],
        verbs: &'static [&'static str],
    ) -> Self {
        Self {
            group,
            resources,
            verbs,
            names: &[],
        }
    }

    /// The same for objects of these names alone, in any namespace.
    pub const fn named(self, names: &'static [&'static str]) -> Self {
        Self { names, ..self }
    }
}
