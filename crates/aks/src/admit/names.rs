//! What Azure asks of the words it is given: subscriptions, resource groups, locations, tags, and what nodes are
//! labelled and tainted with. Refused here, a mistake is told when it is made and not minutes later.

use std::{collections::BTreeMap, sync::LazyLock};

use regex::Regex;
use slipway_runtime::admission::field::{FieldError, Path};

use crate::api::{ControlPlaneClass, PoolClass};

/// Tags that Azure takes on one resource, less those that say whose it is.
pub const MOST_TAGS: usize = 45;
const LONGEST_TAG_NAME: usize = 512;
const LONGEST_TAG_VALUE: usize = 256;
const EFFECTS: &[&str] = &["NoSchedule", "PreferNoSchedule", "NoExecute"];

static SUBSCRIPTION: LazyLock<Regex> =
    LazyLock::new(|| Regex::new("^[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$").expect("a pattern"));
static GROUP: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^[-\w.()]+$").expect("a pattern"));
static LOCATION: LazyLock<Regex> =
    LazyLock::new(|| Regex::new("^[a-zA-Z][a-zA-Z0-9 ]*$").expect("a pattern"));
static NAME: LazyLock<Regex> =
    LazyLock::new(|| Regex::new("^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$").expect("a pattern"));
static DNS_NAME: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$").expect("a pattern")
});

/// Where a control plane is to be.
pub fn place(root: &Path, class: &ControlPlaneClass) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let subscription = class.subscription_id.as_deref().unwrap_or_default();
    if !subscription.is_empty() && !SUBSCRIPTION.is_match(subscription) {
        errors.push(FieldError::invalid(
            &root.child("subscriptionID"),
            subscription,
            "must be the id of a subscription, as `az account show --query id` prints it, and not its name",
        ));
    }
    if !class.location.is_empty() && !LOCATION.is_match(&class.location) {
        errors.push(FieldError::invalid(
            &root.child("location"),
            class.location.as_str(),
            "must be the name of an Azure location, such as westus3: `az account list-locations` lists them",
        ));
    }
    errors.extend(tags(root, &class.additional_tags));
    errors
}

/// What Azure asks of the name of a resource group.
pub fn group(path: &Path, name: &str, longest: usize) -> Option<FieldError> {
    let fits = GROUP.is_match(name) && !name.ends_with('.') && name.chars().count() <= longest;
    (!name.is_empty() && !fits).then(|| {
        FieldError::invalid(
            path,
            name,
            format!(
                "must be the name of a resource group: up to {longest} letters, digits, '-', '_', '.', '(' and ')', and no '.' at the end"
            ),
        )
    })
}

pub fn tags(root: &Path, tags: &BTreeMap<String, String>) -> Vec<FieldError> {
    let path = root.child("additionalTags");
    let mut errors = Vec::new();
    if tags.len() > MOST_TAGS {
        errors.push(FieldError::too_many(&path, tags.len(), MOST_TAGS));
    }
    for (name, value) in tags {
        let reserved = |char: char| "<>%&\\?/".contains(char) || char.is_control();
        if name.is_empty() || name.chars().count() > LONGEST_TAG_NAME || name.chars().any(reserved) {
            errors.push(FieldError::invalid(
                &path,
                name.as_str(),
                format!(
                    "a tag's name must have 1 to {LONGEST_TAG_NAME} characters, and none of < > % & \\ ? /"
                ),
            ));
        }
        if value.chars().count() > LONGEST_TAG_VALUE {
            errors.push(FieldError::invalid(
                &path.key(name),
                format!("{}…", value.chars().take(32).collect::<String>()),
                format!("a tag's value must have at most {LONGEST_TAG_VALUE} characters"),
            ));
        }
    }
    errors
}

fn is_name(text: &str) -> bool {
    text.len() <= 63 && NAME.is_match(text)
}

/// A key as Kubernetes takes it: a name, and perhaps a DNS name and a slash before it.
fn is_key(key: &str) -> bool {
    match key.split_once('/') {
        None => is_name(key),
        Some((prefix, name)) => prefix.len() <= 253 && DNS_NAME.is_match(prefix) && is_name(name),
    }
}

/// What nodes are labelled and tainted with.
pub fn nodes(root: &Path, class: &PoolClass) -> Vec<FieldError> {
    let path = root.child("nodeLabels");
    let mut errors = Vec::new();
    for (key, value) in &class.node_labels {
        if !is_key(key) {
            errors.push(FieldError::invalid(
                &path,
                key.as_str(),
                "must be a label's key: a name of up to 63 letters, digits, '-', '_' and '.', perhaps after a DNS name and '/'",
            ));
        }
        if !(value.is_empty() || is_name(value)) {
            errors.push(FieldError::invalid(
                &path.key(key),
                value.as_str(),
                "must be a label's value: up to 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit",
            ));
        }
        let prefix = key.split_once('/').map_or("", |(prefix, _)| prefix);
        let below = |domain: &str| prefix == domain || prefix.ends_with(&format!(".{domain}"));
        if (below("kubernetes.io") || below("k8s.io"))
            && !below("kubelet.kubernetes.io")
            && !below("node.kubernetes.io")
        {
            errors.push(FieldError::invalid(
                &path,
                key.as_str(),
                "AKS takes labels of Kubernetes' own only below kubelet.kubernetes.io and node.kubernetes.io",
            ));
        }
    }
    for (index, taint) in class.taints.iter().enumerate() {
        let path = root.child("taints").index(index);
        if !is_key(&taint.key) {
            errors.push(FieldError::invalid(
                &path.child("key"),
                taint.key.as_str(),
                "must be a label's key: a name of up to 63 letters, digits, '-', '_' and '.', perhaps after a DNS name and '/'",
            ));
        }
        if !(taint.value.is_empty() || is_name(&taint.value)) {
            errors.push(FieldError::invalid(
                &path.child("value"),
                taint.value.as_str(),
                "must be a label's value: up to 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit",
            ));
        }
        if !EFFECTS.contains(&taint.effect.as_str()) {
            errors.push(FieldError::not_supported(
                &path.child("effect"),
                taint.effect.as_str(),
                EFFECTS,
            ));
        }
    }
    errors.extend(tags(root, &class.additional_tags));
    errors
}
