//! Reading and making the Secrets of a cluster in the apiserver.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, api::PostParams};

use super::Purpose;
use crate::Error;

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
        Err(kube::Error::Api(status)) if status.code == 409 => secrets
            .get(&name)
            .await
            .map_err(Error::api(format!("reading Secret {namespace}/{name}"))),
        Err(error) => Err(Error::api(format!("creating Secret {namespace}/{name}"))(error)),
    }
}
