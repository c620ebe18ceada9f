//! Getting to the cluster: its address and credentials, whether it answers, and whether it knows our kinds. Every
//! way this can fail is one message that says what to do.

use std::{collections::BTreeMap, path::Path, time::Duration};

use kube::{
    Client, Config,
    client::ClientBuilder,
    config::{KubeConfigOptions, Kubeconfig},
};

use super::ManagerError;
use crate::{
    Metrics, Package,
    client::CountRequests,
    lease::{Fence, Leadership},
    queue::Rate,
    throttle::Throttle,
};

/// How long an apiserver may take to answer the first question.
const REACH: Duration = Duration::from_secs(15);
/// CRDs that are applied together with the manager are served a moment later.
const CRD_PATIENCE: Duration = Duration::from_secs(5);

/// Where the cluster is and who we are, from a file or from what the process finds around it.
pub async fn configuration(kubeconfig: Option<&Path>) -> Result<Config, ManagerError> {
    let mut config = match kubeconfig {
        Some(path) => {
            let broken = |reason: String| ManagerError::Kubeconfig {
                path: path.display().to_string(),
                reason,
            };
            let file = Kubeconfig::read_from(path).map_err(|error| broken(error.to_string()))?;
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                .await
                .map_err(|error| broken(error.to_string()))?
        }
        None => Config::infer()
            .await
            .map_err(|error| ManagerError::NoCluster(error.to_string()))?,
    };
    // The queue decides when something is tried again.
    config.default_retry = false;
    config.connect_timeout = Some(config.connect_timeout.unwrap_or(Duration::from_secs(10)));
    Ok(config)
}

fn host(config: &Config) -> String {
    config
        .cluster_url
        .authority()
        .map(ToString::to_string)
        .unwrap_or_default()
}

/// The client of the lease and of webhooks: counted, never held back.
pub fn plain_client(config: &Config, metrics: &Metrics) -> Result<Client, ManagerError> {
    let builder = ClientBuilder::try_from(config.clone()).map_err(|error| unusable(config, &error))?;
    Ok(builder
        .with_layer(&CountRequests::new(host(config), metrics))
        .build())
}

/// The client of the controllers: counted, rate limited, and silent once leadership may be stale.
pub fn controller_client(
    config: &Config,
    metrics: &Metrics,
    rate: Rate,
    leadership: Leadership,
) -> Result<Client, ManagerError> {
    let builder = ClientBuilder::try_from(config.clone()).map_err(|error| unusable(config, &error))?;
    Ok(builder
        .with_layer(&CountRequests::new(host(config), metrics))
        .with_layer(&Throttle::new(rate))
        .with_layer(&Fence::new(leadership))
        .build())
}

fn unusable(config: &Config, error: &kube::Error) -> ManagerError {
    ManagerError::Unreachable {
        url: config.cluster_url.to_string(),
        reason: error.to_string(),
    }
}

/// Asks the apiserver for its version.
pub async fn reach(config: &Config, client: &Client) -> Result<String, ManagerError> {
    let unreachable = |reason: String| ManagerError::Unreachable {
        url: config.cluster_url.to_string(),
        reason,
    };
    match tokio::time::timeout(REACH, client.apiserver_version()).await {
        Ok(Ok(version)) => Ok(version.git_version),
        Ok(Err(error)) => Err(unreachable(error.to_string())),
        Err(_) => Err(unreachable("no answer in time".to_owned())),
    }
}

/// Fails if the cluster does not serve a kind that is registered. Asked by discovery, which needs no permission.
pub async fn require_crds(client: &Client, packages: &[&Package]) -> Result<(), ManagerError> {
    let started = tokio::time::Instant::now();
    loop {
        let missing = missing_crds(client, packages).await?;
        if missing.is_empty() {
            return Ok(());
        }
        if started.elapsed() >= CRD_PATIENCE {
            return Err(ManagerError::MissingCrds(missing));
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

async fn missing_crds(client: &Client, packages: &[&Package]) -> Result<Vec<String>, ManagerError> {
    let mut served: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut missing = Vec::new();
    for crd in packages.iter().flat_map(|package| &package.crds) {
        for version in crd.spec.versions.iter().filter(|version| version.served) {
            let group_version = format!("{}/{}", crd.spec.group, version.name);
            if !served.contains_key(&group_version) {
                let plurals = match client.list_api_group_resources(&group_version).await {
                    Ok(list) => list.resources.into_iter().map(|resource| resource.name).collect(),
                    Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
                    Err(error) => return Err(ManagerError::Discovery(error.to_string())),
                };
                served.insert(group_version.clone(), plurals);
            }
            if !served[&group_version].contains(&crd.spec.names.plural) {
                missing.push(format!(
                    "{}.{} {}",
                    crd.spec.names.plural, crd.spec.group, version.name
                ));
            }
        }
    }
    missing.sort();
    missing.dedup();
    Ok(missing)
}

/// The namespace this pod runs in, if it runs in one.
pub fn own_namespace() -> Option<String> {
    let file = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
    std::env::var("POD_NAMESPACE")
        .ok()
        .or_else(|| std::fs::read_to_string(file).ok())
        .map(|namespace| namespace.trim().to_owned())
        .filter(|namespace| !namespace.is_empty())
}
