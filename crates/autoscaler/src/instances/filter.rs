//! Which objects a NodeClass takes: of its type, in its scope, opted in, and carrying everything that is asked for.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use super::{
    annotations::Reader,
    source::{Source, SourceKind},
};
use crate::api::{ClusterAPINodeClassSpec, names::label};

/// What the manager was started for: a NodeClass that names no Cluster or namespace means these.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    pub cluster_name: Option<String>,
    pub namespace: Option<String>,
}

/// Why an object is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("it is a {0}")]
    OtherKind(String),
    #[error("it is in namespace {0}")]
    OtherNamespace(String),
    #[error("it belongs to Cluster {0}")]
    OtherCluster(String),
    #[error("a MachineDeployment owns it, and decides its replicas")]
    Owned,
    #[error("it is being deleted")]
    Deleting,
    #[error("it lacks label {0}")]
    LacksLabel(String),
    #[error("the selector does not select it")]
    NotSelected,
    #[error(
        "it is not opted in: give it the label {}, or a most of replicas, or name labels in the NodeClass",
        label::MEMBER
    )]
    NotOptedIn,
}

/// Whether a NodeClass takes an object. A NodeClass without labels of its own takes only what is opted in, so that an empty one
/// does not scale everything there is.
pub fn admits(
    class: &ClusterAPINodeClassSpec,
    scope: &Scope,
    group: &str,
    source: &Source,
) -> Result<(), Refused> {
    let kind = SourceKind::of_type(&class.scalable_resource.clone().unwrap_or_default());
    let reference = &source.reference;
    if reference.kind != kind {
        return Err(Refused::OtherKind(reference.kind.name().to_owned()));
    }
    let namespace = class.namespace.as_ref().or(scope.namespace.as_ref());
    if namespace.is_some_and(|namespace| *namespace != reference.namespace) {
        return Err(Refused::OtherNamespace(reference.namespace.clone()));
    }
    let cluster = class.cluster_name.as_ref().or(scope.cluster_name.as_ref());
    if cluster.is_some_and(|cluster| *cluster != source.cluster_name) {
        return Err(Refused::OtherCluster(source.cluster_name.clone()));
    }
    if source.is_owned {
        return Err(Refused::Owned);
    }
    if source.is_deleting {
        return Err(Refused::Deleting);
    }
    for filter in &class.labels {
        let carries = match filter.split_once('=') {
            Some((key, value)) => source.labels.get(key).is_some_and(|found| found == value),
            None => source.labels.contains_key(filter),
        };
        if !carries {
            return Err(Refused::LacksLabel(filter.clone()));
        }
    }
    if let Some(selector) = &class.scalable_resource_selector
        && !selects(selector, source)
    {
        return Err(Refused::NotSelected);
    }
    let reader = Reader {
        object: reference,
        annotations: &source.annotations,
        group,
        findings: Vec::new(),
    };
    let is_opted_in =
        source.labels.contains_key(label::MEMBER) || reader.names_a_most() || !class.labels.is_empty();
    if is_opted_in {
        Ok(())
    } else {
        Err(Refused::NotOptedIn)
    }
}

/// The sizes an object's annotations name. Where they cannot be read, it may shrink and not grow.
pub fn sizes(source: &Source, group: &str) -> (i32, Option<i32>) {
    let mut reader = Reader {
        object: &source.reference,
        annotations: &source.annotations,
        group,
        findings: Vec::new(),
    };
    let sizes = reader.sizes();
    if reader.findings.is_empty() {
        sizes
    } else {
        (0, Some(source.replicas))
    }
}

fn selects(selector: &LabelSelector, source: &Source) -> bool {
    let value = |key: &str| source.labels.get(key);
    let equal = selector
        .match_labels
        .iter()
        .flatten()
        .all(|(key, expected)| value(key) == Some(expected));
    let holds = |expression: &LabelSelectorRequirement| {
        let values = expression.values.as_deref().unwrap_or_default();
        match (expression.operator.as_str(), value(&expression.key)) {
            ("In", found) => found.is_some_and(|found| values.contains(found)),
            ("NotIn", found) => found.is_none_or(|found| !values.contains(found)),
            ("Exists", found) => found.is_some(),
            ("DoesNotExist", found) => found.is_none(),
            _ => false,
        }
    };
    equal && selector.match_expressions.iter().flatten().all(holds)
}
