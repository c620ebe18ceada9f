//! ARM resource ids: reading them out of paths, comparing them without case, walking to parents.

use std::fmt;

/// A resource id as it was spelled, with its parts at hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArmId {
    pub subscription: String,
    pub group: Option<String>,
    /// One entry a `providers` segment: the namespace and its `type/name` pairs.
    pub providers: Vec<(String, Vec<(String, String)>)>,
}

/// What a path under `/subscriptions/{id}` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Resource(ArmId),
    /// A path that ends in a type or action word: what it belongs to, the namespace in force, and the word.
    Under {
        parent: ArmId,
        namespace: String,
        word: String,
    },
}

impl ArmId {
    pub fn subscription(subscription: &str) -> Self {
        Self {
            subscription: subscription.to_owned(),
            group: None,
            providers: Vec::new(),
        }
    }

    pub fn resource_group(subscription: &str, group: &str) -> Self {
        Self {
            group: Some(group.to_owned()),
            ..Self::subscription(subscription)
        }
    }

    /// Reads a full resource id; `None` when it is not one.
    pub fn parse(text: &str) -> Option<Self> {
        match parse_path(text)? {
            Target::Resource(id) => Some(id),
            Target::Under { .. } => None,
        }
    }

    /// The key resources are kept under: the id in lower case.
    pub fn key(&self) -> String {
        self.to_string().to_ascii_lowercase()
    }

    pub fn name(&self) -> &str {
        self.providers
            .last()
            .and_then(|(_, pairs)| pairs.last())
            .map_or_else(
                || self.group.as_deref().unwrap_or(&self.subscription),
                |(_, name)| name,
            )
    }

    /// `Microsoft.ContainerService/managedClusters/agentPools`, as spelled.
    pub fn type_path(&self) -> String {
        match self.providers.last() {
            None if self.group.is_some() => "Microsoft.Resources/resourceGroups".to_owned(),
            None => "Microsoft.Resources/subscriptions".to_owned(),
            Some((namespace, pairs)) => {
                let mut text = namespace.clone();
                for (kind, _) in pairs {
                    text.push('/');
                    text.push_str(kind);
                }
                text
            }
        }
    }

    /// The resource this one is a child of within its provider; `None` at the top level.
    pub fn parent(&self) -> Option<Self> {
        let mut parent = self.clone();
        let (_, pairs) = parent.providers.last_mut()?;
        if pairs.len() < 2 {
            return None;
        }
        pairs.pop();
        Some(parent)
    }

    /// The resource an extension resource (`{id}/providers/…`) sits on.
    pub fn scope(&self) -> Option<Self> {
        let mut scope = self.clone();
        scope.providers.pop()?;
        Some(scope)
    }

    #[must_use]
    pub fn child(&self, kind: &str, name: &str) -> Self {
        let mut child = self.clone();
        if let Some((_, pairs)) = child.providers.last_mut() {
            pairs.push((kind.to_owned(), name.to_owned()));
        }
        child
    }

    #[must_use]
    pub fn provider(&self, namespace: &str, kind: &str, name: &str) -> Self {
        let mut child = self.clone();
        child
            .providers
            .push((namespace.to_owned(), vec![(kind.to_owned(), name.to_owned())]));
        child
    }

    /// The id with `resourcegroups` in lower case, as AKS spells it.
    pub fn aks_spelling(&self) -> String {
        self.to_string()
            .replacen("/resourceGroups/", "/resourcegroups/", 1)
    }
}

impl fmt::Display for ArmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/subscriptions/{}", self.subscription)?;
        if let Some(group) = &self.group {
            write!(f, "/resourceGroups/{group}")?;
        }
        for (namespace, pairs) in &self.providers {
            write!(f, "/providers/{namespace}")?;
            for (kind, name) in pairs {
                write!(f, "/{kind}/{name}")?;
            }
        }
        Ok(())
    }
}

/// Reads a request path. `None` when it is not below a subscription.
pub fn parse_path(path: &str) -> Option<Target> {
    let mut segments = path.split('/').filter(|segment| !segment.is_empty()).peekable();
    if !segments.next()?.eq_ignore_ascii_case("subscriptions") {
        return None;
    }
    let mut id = ArmId::subscription(segments.next()?);
    let mut namespace = String::new();
    while let Some(word) = segments.next() {
        let in_provider = !id.providers.is_empty();
        if word.eq_ignore_ascii_case("providers") {
            namespace = match segments.next() {
                Some(namespace) => namespace.to_owned(),
                None => {
                    return Some(Target::Under {
                        parent: id,
                        namespace: String::new(),
                        word: word.to_owned(),
                    });
                }
            };
            if segments.peek().is_some() {
                id.providers.push((namespace.clone(), Vec::new()));
                continue;
            }
            return Some(Target::Under {
                parent: id,
                namespace,
                word: "providers".to_owned(),
            });
        }
        if !in_provider && word.eq_ignore_ascii_case("resourceGroups") {
            match segments.next() {
                Some(group) => id.group = Some(group.to_owned()),
                None => {
                    return Some(Target::Under {
                        parent: id,
                        namespace,
                        word: "resourceGroups".to_owned(),
                    });
                }
            }
            continue;
        }
        match segments.next() {
            Some(name) if in_provider => {
                if let Some((_, pairs)) = id.providers.last_mut() {
                    pairs.push((word.to_owned(), name.to_owned()));
                }
            }
            Some(name) => {
                // `/subscriptions/{id}/operationresults/{job}` and its like: words of ARM itself.
                id.providers
                    .push((String::new(), vec![(word.to_owned(), name.to_owned())]));
            }
            None => {
                if id.providers.last().is_some_and(|(_, pairs)| pairs.is_empty()) {
                    id.providers.pop();
                }
                return Some(Target::Under {
                    parent: id,
                    namespace,
                    word: word.to_owned(),
                });
            }
        }
    }
    Some(Target::Resource(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: &str =
        "/subscriptions/s/resourceGroups/rg/providers/Microsoft.ContainerService/managedClusters/one";

    #[test]
    fn ids_are_read_and_written_alike() {
        let pool = format!("{CLUSTER}/agentPools/p1");
        let id = ArmId::parse(&pool).expect("an id");
        assert_eq!(id.to_string(), pool);
        assert_eq!(
            id.type_path(),
            "Microsoft.ContainerService/managedClusters/agentPools"
        );
        assert_eq!(id.parent().expect("a parent").to_string(), CLUSTER);
        assert_eq!(id.parent().and_then(|cluster| cluster.parent()), None);
    }

    #[test]
    fn extension_resources_know_their_scope() {
        let text = format!("{CLUSTER}/providers/Microsoft.KubernetesConfiguration/extensions/flux");
        let id = ArmId::parse(&text).expect("an id");
        assert_eq!(id.scope().expect("a scope").to_string(), CLUSTER);
        assert_eq!(id.type_path(), "Microsoft.KubernetesConfiguration/extensions");
    }

    #[test]
    fn a_trailing_word_is_a_collection_or_an_action() {
        for (path, parent, word) in [
            (
                format!("{CLUSTER}/listClusterAdminCredential"),
                CLUSTER.to_owned(),
                "listClusterAdminCredential",
            ),
            (
                "/subscriptions/s/providers/Microsoft.ContainerService/managedClusters".to_owned(),
                "/subscriptions/s".to_owned(),
                "managedClusters",
            ),
            (
                "/subscriptions/s/resourcegroups".to_owned(),
                "/subscriptions/s".to_owned(),
                "resourceGroups",
            ),
        ] {
            match parse_path(&path) {
                Some(Target::Under {
                    parent: found,
                    word: last,
                    ..
                }) => {
                    assert_eq!(found.to_string(), parent);
                    assert_eq!(last, word);
                }
                other => panic!("{path}: {other:?}"),
            }
        }
        assert_eq!(
            parse_path("/providers/Microsoft.ContainerService/operations"),
            None
        );
    }
}
