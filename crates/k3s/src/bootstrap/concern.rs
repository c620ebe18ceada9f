//! Which configs a change of a Cluster or a Secret enqueues. They are found by index in the objects that the controller
//! works on: a fleet has as many Secrets as configs, and each of them changes while clusters are made.

use std::{collections::BTreeSet, sync::Arc};

use kube::api::ObjectMeta;
use slipway_capi::{names::condition as names, owner, paused, view::Cluster};
use slipway_runtime::{
    ObjectKey,
    controller::Context,
    informer::{Informer, Scope},
};

use crate::api::KThreesConfig;

/// The configs of a Cluster that wait for it, or say of themselves what no longer is true.
pub fn by_cluster(cluster: &Cluster, context: &Context) -> Vec<ObjectKey> {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let key = owner::key(cluster.metadata.namespace.as_deref(), name);
    of_cluster(&configs(context), &key)
        .iter()
        .filter(|config| is_unfinished(config) || is_told_otherwise(config, cluster))
        .map(|config| ObjectKey::of(config.as_ref()))
        .collect()
}

/// The configs that may wait for a Secret: those that refer to it, and those of a Cluster whose Secrets are named so.
pub fn by_secret(secret: &ObjectMeta, context: &Context) -> Vec<ObjectKey> {
    let name = secret.name.as_deref().unwrap_or_default();
    let namespace = secret.namespace.as_deref();
    let configs = configs(context);
    let mut found = configs
        .index("concern/secret", |config| {
            let namespace = config.metadata.namespace.as_deref();
            referred_secrets(config)
                .map(|name| owner::key(namespace, name))
                .collect()
        })
        .get(&owner::key(namespace, name));
    for (end, _) in name.match_indices('-') {
        found.extend(of_cluster(&configs, &owner::key(namespace, &name[..end])));
    }
    let found: BTreeSet<ObjectKey> = found
        .iter()
        .filter(|config| is_unfinished(config))
        .map(|config| ObjectKey::of(config.as_ref()))
        .collect();
    found.into_iter().collect()
}

fn configs(context: &Context) -> Informer<KThreesConfig> {
    context.informers.get(Scope::of_work(&context.settings))
}

fn of_cluster(configs: &Informer<KThreesConfig>, cluster: &str) -> Vec<Arc<KThreesConfig>> {
    configs
        .index("concern/cluster", |config| owner::by_cluster(&config.metadata))
        .get(cluster)
}

/// A config that still waits for something.
fn is_unfinished(config: &KThreesConfig) -> bool {
    config.status.as_ref().and_then(|status| status.ready) != Some(true)
}

/// A finished config has nothing left to do, but it still says whether it is paused.
fn is_told_otherwise(config: &KThreesConfig, cluster: &Cluster) -> bool {
    let told = config
        .status
        .iter()
        .filter_map(|status| status.v1beta2.as_ref()?.conditions.as_ref())
        .flatten()
        .find(|condition| condition.type_ == names::PAUSED)
        .map(|condition| condition.status == "True");
    told != Some(paused::paused(Some(cluster), &config.metadata).is_paused())
}

/// The Secrets that a config names.
fn referred_secrets(config: &KThreesConfig) -> impl Iterator<Item = &str> {
    let files = config.spec.files.iter().flatten();
    let servers = config.spec.server_config.iter();
    files
        .filter_map(|file| file.content_from.as_ref())
        .chain(servers.filter_map(|server| {
            server
                .datastore
                .as_ref()
                .map(|datastore| &datastore.endpoint_from)
        }))
        .map(|source| source.secret.name.as_str())
}
