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
        let (url, authority) = core_webhooks(cluster).await?;
        let mut components = cluster.parts().manifest(Manifest::ClusterApi)?;
        install::point_at(&mut components, &url, &authority);
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

/// Where core's webhooks are served, and by whose authority.
async fn core_webhooks(cluster: &Cluster) -> Result<(String, String)> {
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(cluster.client());
    let found = configurations
        .get("capi-validating-webhook-configuration")
        .await?;
    let config = found
        .webhooks
        .and_then(|mut webhooks| webhooks.pop())
        .context("core has webhooks")?
        .client_config;
    let url = config.url.context("core is called by URL")?;
    let end = url
        .match_indices('/')
        .nth(2)
        .map_or(url.len(), |(index, _)| index);
    let authority = config.ca_bundle.context("core's authority is known")?;
    Ok((url[..end].to_owned(), String::from_utf8(authority.0)?))
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
