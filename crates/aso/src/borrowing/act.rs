//! The first start: who borrows the manager's identity by then is written down, once.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, ResourceExt,
    api::{ListParams, ObjectMeta, PostParams},
};
use slipway_azure::credential::{Borrowed, unproven};
use slipway_runtime::Context;
use tracing::{info, warn};

use super::{CONFIG_MAP, read, written};
use crate::{
    access::operator_namespace,
    api::{AzureASOManagedCluster, AzureASOManagedControlPlane, AzureASOManagedMachinePool},
    caches::{Holder, credentials},
};

/// The wait before the API server is asked again.
const AGAIN: Duration = Duration::from_secs(2);
const PAGE: u32 = 500;

/// Who may borrow. Asks until it is answered: nothing signs in before that.
pub async fn known(context: &Context) -> Borrowed {
    loop {
        match known_once(context).await {
            Ok(borrowed) => return borrowed,
            Err(error) => {
                warn!(%error, "Reading which namespaces borrow the manager's identity");
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

async fn known_once(context: &Context) -> Result<Borrowed, kube::Error> {
    let namespace = operator_namespace();
    let maps = Api::<ConfigMap>::namespaced(context.client.clone(), &namespace);
    if let Some(map) = maps.get_opt(CONFIG_MAP).await? {
        return Ok(read(&map));
    }
    let borrowed = borrowing(context).await?;
    let map = ConfigMap {
        metadata: ObjectMeta {
            name: Some(CONFIG_MAP.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some(written(&borrowed)),
        ..ConfigMap::default()
    };
    match maps.create(&PostParams::default(), &map).await {
        Ok(_) if borrowed.is_empty() => Ok(borrowed),
        Ok(_) => {
            let namespaces: BTreeSet<&str> =
                borrowed.iter().map(|(namespace, _)| namespace.as_str()).collect();
            info!(
                ?namespaces,
                "These namespaces go on signing in to Azure as the manager"
            );
            Ok(borrowed)
        }
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            let stored = maps.get_opt(CONFIG_MAP).await?;
            Ok(stored.as_ref().map(read).unwrap_or_default())
        }
        // Without a namespace of its own, a manager remembers nothing: nobody borrows.
        Err(kube::Error::Api(status)) if status.code == 404 => {
            warn!(%namespace, "The manager's namespace does not exist: no namespace borrows its identity");
            Ok(Borrowed::new())
        }
        Err(error) => Err(error),
    }
}

/// The identities that objects of now name without a proof.
async fn borrowing(context: &Context) -> Result<Borrowed, kube::Error> {
    let mut secrets = BTreeSet::new();
    named_by::<AzureASOManagedCluster>(context, &mut secrets).await?;
    named_by::<AzureASOManagedControlPlane>(context, &mut secrets).await?;
    named_by::<AzureASOManagedMachinePool>(context, &mut secrets).await?;
    let mut borrowed = Borrowed::new();
    for (namespace, name) in secrets {
        let found = Api::<Secret>::namespaced(context.client.clone(), &namespace)
            .get_opt(&name)
            .await?;
        let client = found.and_then(|secret| unproven(&secret.data.unwrap_or_default()));
        borrowed.extend(client.map(|client| (namespace, client)));
    }
    Ok(borrowed)
}

/// The credential Secrets of the objects of a kind: namespace and name.
async fn named_by<K: Holder>(
    context: &Context,
    secrets: &mut BTreeSet<(String, String)>,
) -> Result<(), kube::Error> {
    let client = context.client.clone();
    let objects = match &context.settings.namespace {
        Some(namespace) => Api::<K>::namespaced(client, namespace),
        None => Api::<K>::all(client),
    };
    let mut parameters = ListParams::default().limit(PAGE);
    loop {
        let page = objects.list(&parameters).await?;
        for object in &page.items {
            let named = credentials(object.meta(), object.resources());
            let namespace = object.namespace().unwrap_or_default();
            let names = named.iter().filter_map(|key| key.split_once('/'));
            secrets.extend(names.map(|(_, name)| (namespace.clone(), name.to_owned())));
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(&token),
            None => return Ok(()),
        }
    }
}
