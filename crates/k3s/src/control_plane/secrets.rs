//! The secrets of a cluster: CAs, tokens and the administrator's kubeconfig. Made before the first server, never again after
//! it: a new CA would not match the running ones. Reads, and what is to be made; `act::secrets` makes it.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use slipway_capi::{
    owner,
    secret::{self, Purpose, kubeconfig},
};
use slipway_runtime::{ObjectKey, controller::Context};

use super::{observe::Snapshot, plan::Action, upkeep::purposes};
use crate::{
    api::{AgentToken, KThreesControlPlane},
    error::Error,
    reads::Reads,
};

/// A client certificate is renewed when half of its life is over.
const RENEWAL: Duration = Duration::from_hours(365 * 24 / 2);

/// What there is of a cluster's secrets.
#[derive(Clone, Default)]
pub struct Secrets {
    pub cas: BTreeMap<Purpose, Secret>,
    /// The token of the servers and, where it is another one, that of the agents, by name.
    tokens: Vec<(String, Option<Secret>)>,
    pub kubeconfig: Option<Secret>,
    /// Where the kubeconfig leads, by what it says.
    servers: Vec<String>,
    /// When the kubeconfig is to be renewed.
    ends_soon: bool,
}

/// What connecting to the workload cluster needs.
pub struct Access<'secrets> {
    pub kubeconfig: &'secrets Secret,
    pub ca: &'secrets Secret,
    pub token: &'secrets Secret,
}

pub async fn read(
    object: &KThreesControlPlane,
    cluster: &str,
    reads: &Reads,
    context: &Context,
) -> Result<Secrets, Error> {
    let key = ObjectKey::of(object);
    let config = object.spec.config();
    let mut found = Secrets::default();
    for purpose in purposes(config.has_embedded_etcd()) {
        let secret = reads.secret(&key, &purpose.secret_name(cluster), context).await?;
        found.cas.extend(secret.map(|secret| (purpose, secret)));
    }
    let mut tokens = vec![format!("{cluster}-token")];
    if config.server().agent_token == Some(AgentToken::Separate) {
        tokens.push(format!("{cluster}-agent-token"));
    }
    for token in tokens {
        let secret = reads.secret(&key, &token, context).await?;
        found.tokens.push((token, secret));
    }
    let kubeconfig = Purpose::Kubeconfig.secret_name(cluster);
    found.kubeconfig = reads.secret(&key, &kubeconfig, context).await?;
    // One the user supplied is the user's.
    if let Some(present) = &found.kubeconfig
        && owner::is_controlled_by(&present.metadata, &object.metadata)
    {
        found.servers = kubeconfig::read(present)?
            .clusters
            .into_iter()
            .filter_map(|named| named.cluster?.server)
            .collect();
        found.ends_soon = kubeconfig::needs_renewal(present, RENEWAL, context.clock.now())?;
    }
    Ok(found)
}

impl Secrets {
    pub fn access(&self) -> Option<Access<'_>> {
        Some(Access {
            kubeconfig: self.kubeconfig.as_ref()?,
            ca: self.cas.get(&Purpose::ClusterCa)?,
            token: self.tokens.first()?.1.as_ref()?,
        })
    }

    /// What a joining server needs, is not there and is not made any more.
    pub fn missing(&self, cluster: &str, embedded_etcd: bool) -> Vec<String> {
        let cas = purposes(embedded_etcd)
            .into_iter()
            .filter(|purpose| !self.cas.contains_key(purpose))
            .map(|purpose| purpose.secret_name(cluster));
        let tokens = self.tokens.iter().filter(|(_, secret)| secret.is_none());
        cas.chain(tokens.map(|(name, _)| name.clone()))
            .map(|name| format!("Secret {name}"))
            .collect()
    }

    fn all(&self) -> impl Iterator<Item = &Secret> {
        let tokens = self.tokens.iter().filter_map(|(_, secret)| secret.as_ref());
        self.cas.values().chain(tokens)
    }

    /// One of them by name, as it was read.
    pub fn get(&self, name: &str) -> Option<&Secret> {
        self.all().find(|secret| secret.name_any() == name)
    }
}

/// What is to be made, and why.
pub fn plan(snapshot: &Snapshot) -> Vec<(Action, &'static str)> {
    let (observed, secrets) = (&snapshot.observed, &snapshot.secrets);
    let mut plan = Vec::new();
    if observed.deleting || !observed.cluster.infrastructure_ready || !observed.cluster.endpoint_known {
        return plan;
    }
    // A secret an older provider let its first KThreesConfig own would go with that config. One without an owner is the user's.
    for secret in secrets.all() {
        if owner::controller_of(&secret.metadata).is_some_and(|owner| owner.kind == "KThreesConfig") {
            let secret = secret.name_any();
            plan.push((
                Action::TakeOverSecret { secret },
                "it would be deleted with the first server's configuration",
            ));
        }
    }
    let mut made = Vec::new();
    if !observed.initialized {
        for purpose in purposes(observed.desired.embedded_etcd) {
            if !secrets.cas.contains_key(&purpose) {
                made.push(purpose);
                plan.push((Action::MakeCa { purpose }, "the first server signs with it"));
            }
        }
        for (name, secret) in &secrets.tokens {
            if secret.is_none() {
                let secret = name.clone();
                plan.push((Action::MakeToken { secret }, "servers and agents join with it"));
            }
        }
    }
    plan.extend(kubeconfig(snapshot, &made));
    plan
}

fn kubeconfig(snapshot: &Snapshot, made: &[Purpose]) -> Option<(Action, &'static str)> {
    let secrets = &snapshot.secrets;
    let why = match &secrets.kubeconfig {
        None => "people and controllers reach the cluster with it",
        Some(present) if !owner::is_controlled_by(&present.metadata, &snapshot.object.metadata) => {
            return None;
        }
        Some(_) => {
            let url = snapshot.cluster.as_deref()?.spec.control_plane_endpoint.url();
            if secrets.servers.iter().any(|server| *server != url) {
                "the cluster's endpoint has changed"
            } else if secrets.ends_soon {
                "half of its certificate's life is over"
            } else {
                return None;
            }
        }
    };
    let is_there = |purpose| made.contains(&purpose) || secrets.cas.contains_key(&purpose);
    // Without the key of the CA nobody but the user can make one.
    let signs = made.contains(&Purpose::ClientCa)
        || secrets
            .cas
            .get(&Purpose::ClientCa)
            .and_then(|ca| secret::read_key_pair(ca).ok())
            .is_some_and(|pair| pair.key.is_some());
    let renew = secrets.kubeconfig.is_some();
    (is_there(Purpose::ClusterCa) && signs).then_some((Action::WriteKubeconfig { renew }, why))
}
