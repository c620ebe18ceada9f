//! What `slipway up` installs of the providers' packages: CRDs and webhooks that call this machine, what clusterctl has to
//! know of them, and the tokens that a kubelet would project into the managers' Pods.

use std::{
    fs,
    path::{Path, PathBuf},
};

use k8s_openapi::{
    ByteString,
    api::{
        authentication::v1::{TokenRequest, TokenRequestSpec},
        core::v1::ServiceAccount,
    },
};
use kube::{
    Api,
    api::{DynamicObject, PostParams},
};
use serde_json::{Value, json};
use slipway_render::{Bundle, local_objects};
use slipway_runtime::{Package, Provider, certificates::SelfSigned, install, manager::select_to_run};

use super::{cluster::Cluster, free_port, own_program, simulators};
use crate::manifests;

/// Nobody renews a token here, so it lives as long as anybody leaves `up` running.
const TOKEN_LIFETIME_SECONDS: i64 = 30 * 24 * 3600;

/// Where the apiserver calls the manager.
pub struct Webhooks {
    pub port: u16,
    pub certificates: PathBuf,
}

/// The folder that holds the volumes of the managers' Pods, each at its path there.
pub fn volumes(cluster: &Cluster) -> PathBuf {
    cluster.directory.join("volumes")
}

/// The packages that run here, as `--providers` names them: those that nobody has to ask for, and those that have something to show.
pub fn to_run(providers: &[Provider]) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for provider in providers {
        let can_be_shown = match &provider.simulator {
            Some(simulator) => simulators::is_built(simulator)?,
            None => !provider.examples.is_empty(),
        };
        let runs = |package: &&Package| !package.on_request || can_be_shown;
        names.extend(provider.packages.iter().filter(runs).map(Package::identity));
    }
    Ok(names)
}

pub async fn install(
    providers: &[Provider],
    names: &[String],
    cluster: &Cluster,
    client: &kube::Client,
) -> Result<Webhooks, String> {
    let webhooks = Webhooks {
        port: free_port()?,
        certificates: cluster.directory.join("slipway-certificates"),
    };
    let addresses: Vec<String> = ["localhost", "127.0.0.1"].map(str::to_owned).into();
    let pair = SelfSigned::generate(&addresses).map_err(|error| error.to_string())?;
    pair.write(&webhooks.certificates)
        .map_err(|error| error.to_string())?;
    let packages: Vec<&Package> = select_to_run(providers, names).map_err(|error| error.to_string())?;
    let address = format!("https://127.0.0.1:{}", webhooks.port);
    let objects = local_objects(packages.iter().copied(), &address, &pair.ca)
        .map_err(|error| format!("rendering CRDs and webhooks: {error}"))?;
    install::apply(client, &objects)
        .await
        .map_err(|error| error.to_string())?;
    let bundles = Bundle::join(packages.iter().copied()).map_err(|error| error.to_string())?;
    let mut objects = surroundings(&bundles)?;
    objects.extend(extension(&packages, &address, &pair.ca)?);
    install::apply(client, &objects)
        .await
        .map_err(|error| error.to_string())?;
    for bundle in &bundles {
        project_tokens(bundle, client, &volumes(cluster)).await?;
    }
    offer_commands(packages, cluster)?;
    Ok(webhooks)
}

/// Tells Cluster API where the hooks of the packages are, if there are any: one manager serves them all.
fn extension(packages: &[&Package], address: &str, ca: &str) -> Result<Option<DynamicObject>, String> {
    if packages.iter().all(|package| package.hooks.is_empty()) {
        return Ok(None);
    }
    let config = json!({
        "apiVersion": "runtime.cluster.x-k8s.io/v1beta2", "kind": "ExtensionConfig", "metadata": {"name": "slipway"},
        "spec": {"clientConfig": {"url": address, "caBundle": ByteString(ca.as_bytes().to_vec())}},
    });
    let config = serde_json::from_value(config).map_err(|error| error.to_string())?;
    Ok(Some(config))
}

/// Each package's namespace, its manager's service account, and its entry in clusterctl's inventory.
fn surroundings(bundles: &[Bundle]) -> Result<Vec<DynamicObject>, String> {
    let mut objects: Vec<Value> = Vec::new();
    for bundle in bundles {
        let namespace = bundle.namespace();
        objects.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}));
        objects.push(json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": bundle.service_account(), "namespace": namespace},
        }));
        objects.extend(bundle.inventory(manifests::RELEASE));
    }
    objects
        .into_iter()
        .map(|object| serde_json::from_value(object).map_err(|error| error.to_string()))
        .collect()
}

/// Writes each token that the package's Pods have projected, below `volumes`, at the path it has in the container.
async fn project_tokens(bundle: &Bundle, client: &kube::Client, volumes: &Path) -> Result<(), String> {
    for projected in bundle.projected_tokens() {
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &bundle.namespace());
        let request = TokenRequest {
            spec: TokenRequestSpec {
                audiences: vec![projected.audience.clone()],
                expiration_seconds: Some(TOKEN_LIFETIME_SECONDS),
                ..TokenRequestSpec::default()
            },
            ..TokenRequest::default()
        };
        let account = bundle.service_account();
        let answer = accounts
            .create_token_request(&account, &PostParams::default(), &request)
            .await
            .map_err(|error| format!("asking for a token of service account {account}: {error}"))?;
        let token = answer.status.map(|status| status.token).unwrap_or_default();
        let path = volumes.join(projected.path.trim_start_matches('/'));
        path.parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| fs::write(&path, token))
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(())
}

/// `slipway` beside kubectl and clusterctl, and a repository that clusterctl finds the packages' templates in.
fn offer_commands(packages: Vec<&Package>, cluster: &Cluster) -> Result<(), String> {
    let link = cluster.tools.join("slipway");
    std::os::unix::fs::symlink(own_program()?, &link)
        .map_err(|error| format!("cannot write {}: {error}", link.display()))?;
    let repository = cluster.directory.join("repository");
    manifests::write_repository(packages, &manifests::release(), &repository)?;
    let config = &cluster.clusterctl_config;
    fs::copy(repository.join("clusterctl.yaml"), config)
        .map_err(|error| format!("cannot write {}: {error}", config.display()))?;
    Ok(())
}
