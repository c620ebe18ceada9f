//! The name of an object among those of its kind.

use std::{fmt, sync::Arc};

use kube::{Resource, ResourceExt};

/// Namespace (none for a cluster-scoped kind) and name. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    namespace: Option<Arc<str>>,
    name: Arc<str>,
}

impl ObjectKey {
    pub fn new(namespace: Option<&str>, name: &str) -> Self {
        Self {
            namespace: namespace.filter(|namespace| !namespace.is_empty()).map(Arc::from),
            name: Arc::from(name),
        }
    }

    pub fn namespaced(namespace: &str, name: &str) -> Self {
        Self::new(Some(namespace), name)
    }

    pub fn cluster_scoped(name: &str) -> Self {
        Self::new(None, name)
    }

    pub fn of(object: &impl Resource) -> Self {
        Self::new(object.meta().namespace.as_deref(), &object.name_any())
    }

    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// An object of the same namespace with another name.
    pub fn sibling(&self, name: &str) -> Self {
        Self {
            namespace: self.namespace.clone(),
            name: Arc::from(name),
        }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(formatter, "{namespace}/{}", self.name),
            None => formatter.write_str(&self.name),
        }
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_as_kubernetes_writes_it() {
        assert_eq!(
            ObjectKey::namespaced("default", "north").to_string(),
            "default/north"
        );
        assert_eq!(ObjectKey::cluster_scoped("north").to_string(), "north");
        assert_eq!(
            ObjectKey::new(Some(""), "north"),
            ObjectKey::cluster_scoped("north")
        );
    }
}
