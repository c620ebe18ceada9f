//! Reading and making the Secrets of a cluster in the apiserver.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;

use super::{Purpose, VALUE_KEY, cluster_secret};
use crate::{Error, owner};

/// The Secrets of a cluster that exist, among those asked for.
pub async fn lookup(
    client: &Client,
    namespace: &str,
    cluster: &str,
    purposes: &[Purpose],
) -> Result<BTreeMap<Purpose, Secret>, Error> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let mut found = BTreeMap::new();
    for purpose in purposes {
        let name = purpose.secret_name(cluster);
        let secret = secrets
            .get_opt(&name)
            .await
            .map_err(Error::api(format!("reading Secret {namespace}/{name}")))?;
        if let Some(secret) = secret {
            found.insert(*purpose, secret);
        }
    }
    Ok(found)
}

/// Stores a new Secret and returns what is stored under its name: if another one was there first, that one counts,
/// because nodes may have been given it already.
pub async fn create(client: &Client, secret: &Secret) -> Result<Secret, Error> {
    let namespace = secret.metadata.namespace.clone().unwrap_or_default();
    let name = secret.metadata.name.clone().unwrap_or_default();
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
    match secrets.create(&PostParams::default(), secret).await {
        Ok(stored) => Ok(stored),
        Err(kube::Error::Api(status)) if status.is_already_exists() => secrets
            .get(&name)
            .await
            .map_err(Error::api(format!("reading Secret {namespace}/{name}"))),
        Err(error) => Err(Error::api(format!("creating Secret {namespace}/{name}"))(error)),
    }
}

/// Stores bootstrap data in the Secret that has the name of its bootstrap config, in the format that the infrastructure
/// is told (`cloud-config`, `ignition`). The config's own Secret is brought up to date; one of anybody else is left alone.
pub async fn bootstrap_data<K: Resource<DynamicType = ()>>(
    client: &Client,
    config: &K,
    cluster: &str,
    format: &str,
    data: &SecretString,
) -> Result<(), Error> {
    let namespace = config.namespace().unwrap_or_default();
    let name = config.name_any();
    let secret = cluster_secret(
        &namespace,
        cluster,
        &name,
        owner::controller_reference(config),
        [
            (VALUE_KEY, data.expose_secret().as_bytes().to_vec()),
            ("format", format.as_bytes().to_vec()),
        ],
    );
    let present = create(client, &secret).await?;
    if !owner::is_controlled_by(present.meta(), config.meta()) {
        return Err(Error::Secret {
            secret: format!("{namespace}/{name}"),
            problem: "bootstrap data is to be stored under its name, and it belongs to another object: \
                      delete or rename it"
                .to_owned(),
        });
    }
    if present.data == secret.data {
        return Ok(());
    }
    let patch = Patch::Merge(json!({"data": secret.data}));
    Api::<Secret>::namespaced(client.clone(), &namespace)
        .patch(&name, &PatchParams::default(), &patch)
        .await
        .map(drop)
        .map_err(Error::api(format!("writing Secret {namespace}/{name}")))
}
