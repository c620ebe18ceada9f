//! The secrets of a cluster: authorities, tokens and the administrator's kubeconfig. Made before the first server,
//! never again after it: a new authority would not match the running ones.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;
use slipway_capi::{
    owner,
    secret::{
        self, Purpose,
        certificate::{self, AUTHORITY_LIFETIME, CLIENT_LIFETIME, KeyAlgorithm},
        kubeconfig::{self, Administrator},
        store,
    },
    view::Cluster,
};
use slipway_runtime::{ObjectKey, controller::Context};

use crate::{
    api::{AgentToken, KThreesControlPlane},
    error::Error,
    reads::Reads,
};

/// A client certificate is renewed when half of its life is over.
const RENEWAL: Duration = Duration::from_hours(365 * 24 / 2);

/// What there is of a cluster's secrets.
#[derive(Default)]
pub struct Secrets {
    /// What a joining server needs and is not there.
    pub missing: Vec<String>,
    /// What connecting to the workload cluster needs.
    pub access: Option<Access>,
}

pub struct Access {
    pub kubeconfig: Secret,
    pub authority: Secret,
    pub token: Secret,
}

/// What connecting needs, where nothing is made: for a control plane that is being deleted.
pub async fn access(
    object: &KThreesControlPlane,
    cluster: &Cluster,
    reads: &Reads,
    context: &Context,
) -> Result<Option<Access>, Error> {
    let (key, name) = (ObjectKey::of(object), cluster.name_any());
    let mut found = Vec::new();
    for secret in [
        Purpose::Kubeconfig.secret_name(&name),
        Purpose::ClusterCa.secret_name(&name),
        format!("{name}-token"),
    ] {
        found.push(reads.secret(&key, &secret, context).await?);
    }
    let mut found = found.into_iter().flatten();
    Ok(match (found.next(), found.next(), found.next()) {
        (Some(kubeconfig), Some(authority), Some(token)) => Some(Access {
            kubeconfig,
            authority,
            token,
        }),
        _ => None,
    })
}

fn purposes(object: &KThreesControlPlane) -> Vec<Purpose> {
    let mut purposes = vec![Purpose::ClusterCa, Purpose::ClientCa];
    if object.spec.config().has_embedded_etcd() {
        purposes.push(Purpose::EtcdCa);
    }
    purposes
}

/// Makes what may be made, and tells what is missing.
pub async fn ensure(
    object: &KThreesControlPlane,
    cluster: &Cluster,
    initialized: bool,
    reads: &Reads,
    context: &Context,
) -> Result<Secrets, Error> {
    let key = ObjectKey::of(object);
    let namespace = object.namespace().unwrap_or_default();
    let name = cluster.name_any();
    let Some(controller) = owner::controller_reference(object) else {
        return Ok(Secrets::default());
    };
    let mut missing = Vec::new();
    let mut found = BTreeMap::new();
    for purpose in purposes(object) {
        match reads.secret(&key, &purpose.secret_name(&name), context).await? {
            Some(present) => {
                own(&present, &controller, context).await?;
                found.insert(purpose, present);
            }
            None if initialized => missing.push(format!("Secret {}", purpose.secret_name(&name))),
            None => {
                let pair = certificate::generate(
                    purpose,
                    "kubernetes",
                    KeyAlgorithm::Rsa2048,
                    AUTHORITY_LIFETIME,
                    context.clock.now(),
                )?;
                let made =
                    secret::key_pair_secret(&namespace, &name, purpose, Some(controller.clone()), &pair);
                found.insert(purpose, store::create(&context.client, &made).await?);
            }
        }
    }
    let mut tokens = vec![format!("{name}-token")];
    if object.spec.config().server().agent_token == Some(AgentToken::Separate) {
        tokens.push(format!("{name}-agent-token"));
    }
    let mut join_token = None;
    for token in tokens {
        match reads.secret(&key, &token, context).await? {
            Some(present) => {
                own(&present, &controller, context).await?;
                join_token.get_or_insert(present);
            }
            None if initialized => missing.push(format!("Secret {token}")),
            None => {
                let value: String = context.random.uuid().replace('-', "");
                let made = secret::cluster_secret(
                    &namespace,
                    &name,
                    &token,
                    Some(controller.clone()),
                    [(secret::VALUE_KEY, value.into_bytes())],
                );
                let stored = store::create(&context.client, &made).await?;
                join_token.get_or_insert(stored);
            }
        }
    }
    let kubeconfig = kubeconfig(object, cluster, &found, &controller, reads, context).await?;
    let access = match (kubeconfig, found.remove(&Purpose::ClusterCa), join_token) {
        // The first token is the servers'; without it there is nobody to ask as.
        (Some(kubeconfig), Some(authority), Some(token)) if token.name_any() == format!("{name}-token") => {
            Some(Access {
                kubeconfig,
                authority,
                token,
            })
        }
        _ => None,
    };
    Ok(Secrets { missing, access })
}

/// A secret an older provider let its first KThreesConfig own would go with that config: it becomes ours. A secret
/// without an owner is the user's and stays so.
async fn own(present: &Secret, controller: &OwnerReference, context: &Context) -> Result<(), Error> {
    let Some(owner) = owner::controller_of(&present.metadata) else {
        return Ok(());
    };
    if owner.kind != "KThreesConfig" {
        return Ok(());
    }
    let name = present.name_any();
    let owners: Vec<OwnerReference> = present
        .metadata
        .owner_references
        .iter()
        .flatten()
        .filter(|owner| owner.controller != Some(true))
        .cloned()
        .chain([controller.clone()])
        .collect();
    let patch = json!({"metadata": {"resourceVersion": present.metadata.resource_version, "ownerReferences": owners}});
    Api::<Secret>::namespaced(context.client.clone(), &present.namespace().unwrap_or_default())
        .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .map_err(Error::api(format!("taking over Secret {name}")))?;
    Ok(())
}

async fn kubeconfig(
    object: &KThreesControlPlane,
    cluster: &Cluster,
    found: &BTreeMap<Purpose, Secret>,
    controller: &OwnerReference,
    reads: &Reads,
    context: &Context,
) -> Result<Option<Secret>, Error> {
    let endpoint = &cluster.spec.control_plane_endpoint;
    let namespace = object.namespace().unwrap_or_default();
    let (name, url) = (cluster.name_any(), endpoint.url());
    let secret_name = Purpose::Kubeconfig.secret_name(&name);
    let present = reads
        .secret(&ObjectKey::of(object), &secret_name, context)
        .await?;
    let now = context.clock.now();
    if let Some(present) = &present {
        // One the user supplied is the user's.
        if !owner::is_controlled_by(&present.metadata, &object.metadata) {
            return Ok(Some(present.clone()));
        }
        let follows = kubeconfig::read(present)?
            .clusters
            .iter()
            .filter_map(|named| named.cluster.as_ref())
            .all(|cluster| cluster.server.as_deref() == Some(url.as_str()));
        if follows && !kubeconfig::needs_renewal(present, RENEWAL, now)? {
            return Ok(Some(present.clone()));
        }
    }
    let (Some(server), Some(client)) = (found.get(&Purpose::ClusterCa), found.get(&Purpose::ClientCa)) else {
        return Ok(present);
    };
    if !endpoint.is_valid() {
        return Ok(present);
    }
    let client_authority = secret::read_key_pair(client)?;
    if client_authority.key.is_none() {
        // Without the key nobody but the user can make one.
        return Ok(present);
    }
    let text = Administrator {
        cluster: &name,
        server: &url,
        server_authority: &secret::read_key_pair(server)?.certificate,
        client_authority: &client_authority,
        algorithm: KeyAlgorithm::EcdsaP256,
        lifetime: CLIENT_LIFETIME,
    }
    .kubeconfig(now)?;
    let made = kubeconfig::secret(&namespace, &name, controller.clone(), &text);
    match present {
        None => Ok(Some(store::create(&context.client, &made).await?)),
        Some(_) => {
            let patch = json!({"data": made.data});
            Api::<Secret>::namespaced(context.client.clone(), &namespace)
                .patch(&secret_name, &PatchParams::default(), &Patch::Merge(&patch))
                .await
                .map(Some)
                .map_err(Error::api(format!("renewing Secret {secret_name}")))
        }
    }
}
