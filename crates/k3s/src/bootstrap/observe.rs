//! Every read of a config: its owner, the init lock, and what its userdata is made from, which is the secrets it names,
//! its cluster's token and its CAs. What is made of them is kept where nothing prints it.

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt};
use secrecy::{ExposeSecret, SecretString};
use slipway_capi::{
    frame::Subject,
    secret::{self, Purpose},
    view::Cluster,
};
use slipway_runtime::controller::Context;

use super::{
    lock,
    owner::{Owner, find_owner},
    plan::{self, Decision, Lock, Situation},
    render::{self, Ca, Cas, Facts, Role},
};
use crate::{
    api::{FileSource, KThreesConfig},
    error::Error,
};

/// What a plan is made from.
#[derive(Debug, Default)]
pub struct Observed {
    pub config: KThreesConfig,
    /// `None`: the owner has gone since it was found; it takes the config with it.
    pub owner: Option<Owner>,
    /// Of the Cluster, which owns the init lock.
    pub cluster_uid: String,
    pub situation: Situation,
    pub userdata: Userdata,
}

/// What the host will be told.
#[derive(Debug, Default)]
pub enum Userdata {
    /// Not asked for in this situation.
    #[default]
    Unread,
    /// What is not there yet; its creation brings the config back.
    Missing(String),
    /// The spec cannot be made into userdata.
    Unusable(String),
    Made(SecretString),
}

pub(super) async fn observe(subject: &Subject<KThreesConfig>, context: &Context) -> Result<Observed, Error> {
    let config = subject.object.as_ref();
    let (Some(owner), Some(cluster)) = (find_owner(config, context).await?, &subject.cluster) else {
        return Ok(Observed {
            config: config.clone(),
            ..Observed::default()
        });
    };
    let status = config.status.clone().unwrap_or_default();
    let mut situation = Situation {
        infrastructure_ready: cluster.infrastructure_provisioned(),
        control_plane_initialized: cluster.control_plane_initialized(),
        endpoint_known: cluster.spec.control_plane_endpoint.is_valid(),
        is_server: owner.is_server,
        owners_secret: owner.data_secret_name.clone(),
        ready: status.ready == Some(true),
        data_secret_name: status.data_secret_name,
        lock: Lock::Free,
    };
    if plan::turns_on_the_lock(&situation) {
        situation.lock = lock::read(config, &owner, context).await?;
    }
    let userdata = match plan::decide(&situation) {
        Decision::Render { role, .. } => match gather(config, &owner, cluster, role, context).await? {
            Gathered::Missing(what) => Userdata::Missing(what),
            Gathered::Facts(facts) => match render::render(&config.spec, &facts, role) {
                Ok(text) => Userdata::Made(text.into()),
                Err(error) => Userdata::Unusable(error.to_string()),
            },
        },
        _ => Userdata::Unread,
    };
    Ok(Observed {
        config: config.clone(),
        cluster_uid: cluster.metadata.uid.clone().unwrap_or_default(),
        owner: Some(owner),
        situation,
        userdata,
    })
}

enum Gathered {
    Facts(Box<Facts>),
    Missing(String),
}

async fn gather(
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
        match cas(config, owner, &namespace, context).await? {
            Ok(cas) => facts.cas = cas,
            Err(missing) => return Ok(Gathered::Missing(missing)),
        }
    }
    Ok(Gathered::Facts(Box::new(facts)))
}

/// The CAs that the first server signs with, or what is missing of them.
async fn cas(
    config: &KThreesConfig,
    owner: &Owner,
    namespace: &str,
    context: &Context,
) -> Result<Result<Cas, String>, Error> {
    let mut purposes = vec![Purpose::ClusterCa, Purpose::ClientCa];
    if config.spec.has_embedded_etcd() {
        purposes.push(Purpose::EtcdCa);
    }
    let found = secret::store::lookup(&context.client, namespace, &owner.cluster, &purposes).await?;
    let mut cas = Vec::new();
    for purpose in &purposes {
        let name = purpose.secret_name(&owner.cluster);
        let Some(stored) = found.get(purpose) else {
            return Ok(Err(format!("Secret {name} does not exist")));
        };
        let pair = secret::read_key_pair(stored)?;
        let Some(key) = pair.key else {
            // k3s would make a CA of its own beside the one without a key.
            return Ok(Err(format!(
                "Secret {name} has no key \"tls.key\": the first server signs with it, so put it there until the control \
                 plane is initialised"
            )));
        };
        cas.push(Ca {
            certificate: pair.certificate,
            key: key.expose_secret().to_owned(),
        });
    }
    let mut cas = cas.into_iter();
    Ok(Ok(Cas {
        server: cas.next().unwrap_or_default(),
        client: cas.next().unwrap_or_default(),
        etcd: cas.next(),
    }))
}
