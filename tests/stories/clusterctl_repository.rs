//! What the real clusterctl installs from in the stories: a folder with the packages under test, Cluster API's core as it
//! runs outside the cluster, and cert-manager's custom resources.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::Api;
use serde_json::{Value, json};
use slipway_testbed::{Cluster, Manifest, install};

pub const CORE_VERSION: &str = "v1.14.2";
const CERT_MANAGER: &str = "github.com/cert-manager/cert-manager";
const CERT_MANAGER_VERSION: &str = "v1.21.1";

/// A repository and the clusterctl configuration that names what is in it.
pub struct Repository {
    pub directory: PathBuf,
}

impl Repository {
    /// Core and cert-manager, for one cluster.
    pub async fn for_cluster(cluster: &Cluster, directory: &Path) -> Result<Self> {
        let repository = Self {
            directory: directory.to_owned(),
        };
        repository.add_core(cluster).await?;
        repository.add_cert_manager()?;
        Ok(repository)
    }

    pub fn config(&self) -> PathBuf {
        self.directory.join("clusterctl.yaml")
    }

    /// Writes the configuration: these providers beside core, and these variables.
    pub fn configure(&self, mut providers: Vec<Value>, variables: &[(&str, String)]) -> Result<()> {
        let path = |relative: &str| self.directory.join(relative).display().to_string();
        providers.push(json!({
            "name": "cluster-api",
            "type": "CoreProvider",
            "url": path("cluster-api/latest/core-components.yaml"),
        }));
        let mut config = json!({
            "providers": providers,
            "cert-manager": {
                "url": path(&format!("cert-manager/{CERT_MANAGER_VERSION}/cert-manager.yaml")),
                "version": CERT_MANAGER_VERSION,
            },
        });
        for (name, value) in variables {
            config[*name] = json!(value);
        }
        fs::write(self.config(), config.to_string())?;
        Ok(())
    }

    /// Core's own manifests. Its manager runs as a process already, so its webhooks keep calling that.
    async fn add_core(&self, cluster: &Cluster) -> Result<()> {
        let components = cluster.parts().manifest(Manifest::ClusterApi)?;
        let components = called_as_now(cluster, components, "capi-validating-webhook-configuration").await?;
        self.write(
            &format!("cluster-api/{CORE_VERSION}/core-components.yaml"),
            &components,
        )?;
        let metadata = json!({
            "apiVersion": "clusterctl.cluster.x-k8s.io/v1alpha3",
            "kind": "Metadata",
            "releaseSeries": [{"major": 1, "minor": 14, "contract": "v1beta2"}],
        });
        self.write(&format!("cluster-api/{CORE_VERSION}/metadata.yaml"), &[metadata])
    }

    /// An infrastructure package beside them, and how the configuration names it.
    pub fn add_infrastructure(
        &self,
        name: &str,
        version: &str,
        components: &[Value],
        metadata: &Value,
    ) -> Result<Value> {
        let folder = format!("infrastructure-{name}/{version}");
        let path = format!("{folder}/infrastructure-components.yaml");
        self.write(&path, components)?;
        self.write(&format!("{folder}/metadata.yaml"), std::slice::from_ref(metadata))?;
        let url = self.directory.join(path).display().to_string();
        Ok(json!({"name": name, "type": "InfrastructureProvider", "url": url}))
    }

    /// clusterctl takes cert-manager for installed when its API accepts an Issuer and a Certificate, so its custom
    /// resources are enough; what its controllers would do, [`slipway_testbed::installed`] does.
    fn add_cert_manager(&self) -> Result<()> {
        let mut objects = vec![json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": "cert-manager"},
        })];
        objects.extend(cert_manager_definitions()?);
        self.write(
            &format!("cert-manager/{CERT_MANAGER_VERSION}/cert-manager.yaml"),
            &objects,
        )
    }

    fn write(&self, relative: &str, documents: &[Value]) -> Result<()> {
        let path = self.directory.join(relative);
        fs::create_dir_all(path.parent().context("a file has a folder")?)?;
        let text: Vec<String> = documents.iter().map(Value::to_string).collect();
        fs::write(path, text.join("\n---\n"))?;
        Ok(())
    }
}

/// Components whose manager runs as a process already, called where this configuration of it is called now.
pub async fn called_as_now(
    cluster: &Cluster,
    mut components: Vec<Value>,
    configuration: &str,
) -> Result<Vec<Value>> {
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(cluster.client());
    let config = configurations
        .get(configuration)
        .await?
        .webhooks
        .and_then(|mut webhooks| webhooks.pop())
        .with_context(|| format!("{configuration} has webhooks"))?
        .client_config;
    let url = config.url.context("it is called by URL")?;
    let end = url
        .match_indices('/')
        .nth(2)
        .map_or(url.len(), |(index, _)| index);
    let ca = config.ca_bundle.context("its CA is known")?;
    install::point_at(&mut components, &url[..end], &String::from_utf8(ca.0)?);
    Ok(components)
}

/// cert-manager's custom resources.
pub fn cert_manager_definitions() -> Result<Vec<Value>> {
    let folder = cert_manager()?.join("deploy/crds");
    let mut objects = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            objects.extend(install::parse(&fs::read_to_string(&path)?)?);
        }
    }
    Ok(objects)
}

/// The pinned cert-manager module's folder.
fn cert_manager() -> Result<PathBuf> {
    let output = Command::new("go")
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../parts/cert-manager"))
        .args(["mod", "download", "-json", CERT_MANAGER])
        .output()
        .context("running go mod download")?;
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let Some(directory) = answer["Dir"].as_str() else {
        bail!(
            "{CERT_MANAGER} cannot be had; run `go mod download {CERT_MANAGER}` in parts/cert-manager: {} {}",
            answer["Error"],
            String::from_utf8_lossy(&output.stderr)
        );
    };
    Ok(directory.into())
}
