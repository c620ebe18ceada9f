//! Every read that userdata is made from: the secrets a config names, its cluster's token and its authorities.

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt};
use secrecy::ExposeSecret;
use slipway_capi::{
    secret::{self, Purpose},
    view::Cluster,
};
use slipway_runtime::controller::Context;

use super::{
    owner::Owner,
    render::{Authorities, Authority, Facts, Role},
};
use crate::{
    api::{FileSource, KThreesConfig},
    error::Error,
};

pub(super) enum Gathered {
    Facts(Box<Facts>),
    /// What is not there yet; its creation brings the config back.
    Missing(String),
}

pub(super) async fn gather(
    config: &KThreesConfig,
    owner: &Owner,
    cluster: &Cluster,
    role: Role,
    context: &Context,
) -> Result<Gathered, Error> {
    let namespace = config.namespace().unwrap_or_default();
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), &namespace);
    let value = |name: String, key: String| {
        let secrets = secrets.clone();
        async move {
            let found = secrets
                .get_opt(&name)
                .await
                .map_err(Error::api(format!("reading Secret {name}")))?;
            Ok::<_, Error>(match found {
                None => Err(format!("Secret {name} does not exist")),
                Some(secret) => secret
                    .data
                    .and_then(|mut data| data.remove(&key))
                    .map(|bytes| bytes.0)
                    .ok_or_else(|| format!("Secret {name} has no key {key:?}")),
            })
        }
    };
    let mut facts = Facts {
        endpoint_host: cluster.spec.control_plane_endpoint.host.clone(),
        endpoint_port: u16::try_from(cluster.spec.control_plane_endpoint.port).unwrap_or_default(),
        version: config
            .spec
            .version
            .clone()
            .filter(|version| !version.is_empty())
            .unwrap_or_else(|| owner.version.clone()),
        ..Facts::default()
    };
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).trim_end().to_owned();
    match value(format!("{}-token", owner.cluster), "value".into()).await? {
        Ok(token) => facts.token = text(token),
        Err(missing) => return Ok(Gathered::Missing(missing)),
    }
    if let Ok(token) = value(format!("{}-agent-token", owner.cluster), "value".into()).await? {
        facts.agent_token = Some(text(token));
    }
    let source = |source: &FileSource| (source.secret.name.clone(), source.secret.key.clone());
    for file in config.spec.files.iter().flatten() {
        let content = match &file.content_from {
            None => file.content.clone().unwrap_or_default().into_bytes(),
            Some(from) => {
                let (name, key) = source(from);
                match value(name, key).await? {
                    Ok(content) => content,
                    Err(missing) => return Ok(Gathered::Missing(format!("file {}: {missing}", file.path))),
                }
            }
        };
        facts.file_contents.push(content);
    }
    if role != Role::Worker
        && let Some(datastore) = config.spec.server().datastore
    {
        let (name, key) = source(&datastore.endpoint_from);
        match value(name, key).await? {
            Ok(endpoint) => facts.datastore_endpoint = Some(text(endpoint)),
            Err(missing) => return Ok(Gathered::Missing(format!("datastore: {missing}"))),
        }
    }
    if role == Role::Init {
        let mut purposes = vec![Purpose::ClusterCa, Purpose::ClientCa];
        if config.spec.has_embedded_etcd() {
            purposes.push(Purpose::EtcdCa);
        }
        let found = secret::store::lookup(&context.client, &namespace, &owner.cluster, &purposes).await?;
        let mut authorities = Vec::new();
        for purpose in &purposes {
            let Some(stored) = found.get(purpose) else {
                return Ok(Gathered::Missing(format!(
                    "Secret {} does not exist",
                    purpose.secret_name(&owner.cluster)
                )));
            };
            let pair = secret::read_key_pair(stored)?;
            if pair.key.is_none() {
                // k3s would make an authority of its own beside the one without a key.
                return Ok(Gathered::Missing(format!(
                    "Secret {} has no key \"tls.key\": the first server signs with it, so put it there until the control \
                     plane is initialised",
                    purpose.secret_name(&owner.cluster)
                )));
            }
            authorities.push(Authority {
                certificate: pair.certificate,
                key: pair
                    .key
                    .map(|key| key.expose_secret().to_owned())
                    .unwrap_or_default(),
            });
        }
        let mut authorities = authorities.into_iter();
        facts.authorities = Authorities {
            server: authorities.next().unwrap_or_default(),
            client: authorities.next().unwrap_or_default(),
            etcd: authorities.next(),
        };
    }
    Ok(Gathered::Facts(Box::new(facts)))
}
