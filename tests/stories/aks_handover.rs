//! A management cluster on which the real clusterctl installs Cluster API Provider Azure with Azure Service Operator, takes
//! them away and installs Slipway, as docs/guides/takeover-aks.md has it. Their programs run as processes; their
//! Deployments are what clusterctl handles.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use base64::{Engine, prelude::BASE64_STANDARD};
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{Namespace, Node, Secret},
        rbac::v1::ClusterRole,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams},
};
use serde_json::{Value, json};
use slipway_kit::manager::{Manager, free_port};
use slipway_testbed::{
    Upstream, install,
    rights::{self, Right},
    upstream::{self, RunningUpstream},
    wait::{until, until_gone},
};

use crate::{
    aks_manager::{self, ACCOUNT, BINARY, NAMESPACE, declared_roles},
    aks_world::{capz, is_ready},
    clusterctl_repository::{CORE_VERSION, Repository, called_as_now},
    support::add_fake_host,
    upstream_world::{SUBSCRIPTION, UpstreamWorld},
};

/// The cluster that changes hands, and its namespace and resource group.
pub const NAME: &str = "handed-over";
const PROVIDER_VERSION: &str = "v1.21.0";
const AZURE: &str = "infrastructure.cluster.x-k8s.io/v1beta1";
/// What clusterctl leaves of them and the guide removes.
const LEFT_ROLES: [&str; 2] = ["capz-manager-role", "capz-base-manager-role"];
const LEFT_BINDING: &str = "capz-manager-rolebinding";
const POOLS: [&str; 2] = ["system", "user"];

pub struct Handover {
    pub world: UpstreamWorld,
    repository: Repository,
    folder: PathBuf,
}

/// What is in Azure and in the cluster, in so much detail that something made again would show.
#[derive(Debug, PartialEq)]
pub struct Standing {
    /// By id, with all that Azure tells of it.
    azure: BTreeMap<String, String>,
    nodes: BTreeSet<(String, Option<String>)>,
}

impl Standing {
    pub fn resources(&self) -> usize {
        self.azure.len()
    }

    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }
}

/// What clusterctl handles of a manager whose process runs already.
fn stand_in(name: &str) -> Value {
    let labels = json!({"app": name});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
            "spec": {"containers": [{"name": "manager", "image": "registry.example/operator:v2"}]}}}})
}

impl Handover {
    pub async fn start(folder: &Path) -> Result<Self> {
        let world =
            UpstreamWorld::start("takeover", |builder| builder.kwok().audit_everything_of(ACCOUNT)).await?;
        add_fake_host(&world.management).await?;
        let repository = Repository::for_cluster(&world.management, &folder.join("theirs")).await?;
        Ok(Self {
            world,
            repository,
            folder: folder.to_owned(),
        })
    }

    pub fn of(&self, version: &str, kind: &str) -> Api<DynamicObject> {
        self.world.objects(NAME, version, kind)
    }

    /// Runs a command of the guide.
    pub async fn clusterctl(&self, arguments: &[&str]) -> Result<String> {
        Ok(self.world.management.clusterctl(arguments).await?)
    }

    /// Both of them, in the inventory and with the labels that `clusterctl init` gives to all of a package.
    pub async fn install_theirs(&self) -> Result<[RunningUpstream; 2]> {
        let running = [
            self.world.upstream(Upstream::Aso).await?,
            self.world.upstream(Upstream::Capz).await?,
        ];
        let management = &self.world.management;
        let mut components = vec![stand_in("azureserviceoperator-controller-manager")];
        for (upstream, configuration) in [
            (Upstream::Capz, "capz-validating-webhook-configuration"),
            (
                Upstream::Aso,
                "azureserviceoperator-validating-webhook-configuration",
            ),
        ] {
            let objects = upstream::built(upstream, management.parts()).await?.objects()?;
            components.extend(called_as_now(management, objects, configuration).await?);
        }
        let metadata = std::fs::read_to_string(capz()?.join("metadata.yaml"))?;
        let mut metadata = install::parse(&metadata)?.pop().context("metadata")?;
        metadata["kind"] = json!("Metadata");
        let provider =
            self.repository
                .add_infrastructure("azure", PROVIDER_VERSION, &components, &metadata)?;
        let subscription = BASE64_STANDARD.encode(SUBSCRIPTION);
        self.repository
            .configure(vec![provider], &[("AZURE_SUBSCRIPTION_ID_B64", subscription)])?;
        let config = self.repository.config().display().to_string();
        let (core, azure) = (
            format!("cluster-api:{CORE_VERSION}"),
            format!("azure:{PROVIDER_VERSION}"),
        );
        self.clusterctl(&[
            "--config",
            &config,
            "init",
            "--core",
            &core,
            "--bootstrap",
            "-",
            "--control-plane",
            "-",
            "--infrastructure",
            &azure,
            "--wait-providers",
        ])
        .await?;
        Ok(running)
    }

    /// `clusterctl delete --infrastructure azure`: their pods end with their Deployments. It leaves their cluster roles, one
    /// of which collects its rules from others.
    pub async fn remove_theirs(&self, running: [RunningUpstream; 2]) -> Result<()> {
        self.clusterctl(&["delete", "--infrastructure", "azure"]).await?;
        let client = self.world.management.client();
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
        for name in [
            "capz-controller-manager",
            "azureserviceoperator-controller-manager",
        ] {
            until_gone(&deployments, name).await?;
        }
        running.into_iter().for_each(RunningUpstream::stop);
        let left = Api::<ClusterRole>::all(client.clone())
            .get(LEFT_ROLES[0])
            .await
            .context("what clusterctl leaves")?;
        ensure!(left.aggregation_rule.is_some(), "{left:?}");
        // clusterctl tries cert-manager in a namespace of its own, and takes one that is still going for one that is there.
        until_gone(&Api::<Namespace>::all(client), "cert-manager-test").await?;
        Ok(())
    }

    /// What the guide removes at once and whoever forgets it later: from here on the manager has no rights but its own.
    pub async fn remove_their_roles(&self) -> Result<()> {
        let management = &self.world.management;
        let mut command = vec!["delete", "clusterrole"];
        command.extend(LEFT_ROLES);
        management.kubectl(&command).await?;
        management
            .kubectl(&["delete", "clusterrolebinding", LEFT_BINDING])
            .await?;
        Ok(())
    }

    /// Requests of the manager that were denied, or would have been without the rights that their roles leave to it.
    pub fn beyond_its_rights(&self) -> Result<BTreeSet<String>> {
        let declared = rights::declared(&declared_roles()?);
        let requests = self.world.management.audit().requests(None, |request| {
            request.username() == ACCOUNT && !request.object.resource.is_empty()
        })?;
        ensure!(!requests.is_empty(), "the manager asks for something");
        let beyond = requests.iter().filter_map(|request| {
            let right = Right::new(&request.object.api_group, &request.resource(), &request.verb);
            (request.was_denied() || !declared.contains(&right)).then(|| right.to_string())
        });
        Ok(beyond.collect())
    }

    /// `slipway manifests --repository` and `clusterctl init`, and the manager that this installs.
    pub async fn install_ours(&self) -> Result<Manager> {
        let ours = self.folder.join("ours");
        let output = std::process::Command::new(BINARY)
            .args(["manifests", "--repository"])
            .arg(&ours)
            .output()?;
        ensure!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let path = ours.join("clusterctl.yaml");
        let read = |path: &Path| -> Result<Value> {
            let text = std::fs::read_to_string(path)?;
            install::parse(&text)?.pop().context("a configuration")
        };
        // What clusterctl would ask the network for: who core is. And a port for the metrics of a process.
        let mut config = read(&path)?;
        let theirs = read(&self.repository.config())?;
        let core = theirs["providers"].as_array().into_iter().flatten();
        let core = core.filter(|one| one["name"] == "cluster-api").cloned();
        let providers = config["providers"].as_array_mut().context("providers")?;
        providers.extend(core);
        config["cert-manager"] = theirs["cert-manager"].clone();
        let metrics = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        config["CAPZ_DIAGNOSTICS_ADDRESS"] = json!(metrics.to_string());
        config["CAPZ_INSECURE_DIAGNOSTICS"] = json!("true");
        std::fs::write(&path, config.to_string())?;
        let path = path.display().to_string();
        self.clusterctl(&["init", "--config", &path, "--infrastructure", "azure"])
            .await?;
        aks_manager::start_installed(&self.world.management, &self.world.azure, metrics).await
    }

    /// What the operator keeps for the cluster's resources, in the version it is stored in.
    pub async fn kept_by_the_operator(&self) -> Result<Vec<(Api<DynamicObject>, DynamicObject)>> {
        let client = self.world.management.client();
        let definitions = Api::<CustomResourceDefinition>::all(client.clone())
            .list(&ListParams::default())
            .await?;
        let mut kept = Vec::new();
        for definition in definitions {
            let (group, names) = (&definition.spec.group, &definition.spec.names);
            let stored = definition.spec.versions.iter().find(|version| version.storage);
            let (true, Some(version)) = (group.ends_with(".azure.com"), stored) else {
                continue;
            };
            let kind = GroupVersionKind::gvk(group, &version.name, &names.kind);
            let resource = ApiResource::from_gvk_with_plural(&kind, &names.plural);
            let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAME, &resource);
            for object in api.list(&ListParams::default()).await? {
                kept.push((api.clone(), object));
            }
        }
        Ok(kept)
    }

    /// Every object that ASO keeps is managed by it, and done.
    pub async fn until_theirs_rest(&self) -> Result<()> {
        for (api, object) in self.kept_by_the_operator().await? {
            until(&api, &object.name_any(), "be at rest", |object| {
                let policy = "serviceoperator.azure.com/reconcile-policy";
                let quiet = object
                    .annotations()
                    .get(policy)
                    .is_some_and(|text| text == "skip");
                !quiet && crate::support::is_true(object, "Ready")
            })
            .await?;
        }
        Ok(())
    }

    pub async fn until_taken(&self) -> Result<()> {
        let planes = self.of(AZURE, "AzureManagedControlPlane");
        let taken = |object: &DynamicObject| {
            is_ready(object) && object.annotations().contains_key("slipway.dev/azure-applied")
        };
        until(&planes, NAME, "be taken over", taken).await?;
        let pools = self.of(AZURE, "AzureManagedMachinePool");
        for pool in POOLS {
            until(&pools, &format!("{NAME}-{pool}"), "be taken over", is_ready).await?;
        }
        Ok(())
    }

    /// Names of the Secrets of the cluster's namespace with this part.
    pub async fn secrets(&self, part: &str) -> Result<BTreeSet<String>> {
        let secrets: Api<Secret> = Api::namespaced(self.world.management.client(), NAME);
        let found = secrets.list(&ListParams::default()).await?;
        let names = found.iter().map(ResourceExt::name_any);
        Ok(names.filter(|name| name.contains(part)).collect())
    }

    pub async fn standing(&self) -> Result<Standing> {
        let azure = {
            let azure = self.world.azure.simulator().azure();
            let resources = &azure.state().resources;
            resources
                .iter()
                .map(|one| (one.id.to_lowercase(), json!(one.properties()).to_string()))
                .collect()
        };
        let nodes = Api::<Node>::all(self.world.workload.client())
            .list(&ListParams::default())
            .await?;
        let nodes = nodes
            .into_iter()
            .map(|node| (node.name_any(), node.metadata.uid))
            .collect();
        Ok(Standing { azure, nodes })
    }

    /// Ids in Azure that have this part.
    pub fn in_azure(&self, part: &str) -> Vec<String> {
        let azure = self.world.azure.simulator().azure();
        let resources = &azure.state().resources;
        let ids = resources.iter().map(|resource| resource.id.to_lowercase());
        ids.filter(|id| id.contains(part)).collect()
    }

    /// Requests to ARM since so many were made, by method, and by what they ask where that is an action.
    pub fn requests_since(&self, seen: usize) -> BTreeMap<String, usize> {
        let azure = self.world.azure.simulator().azure();
        let mut methods = BTreeMap::new();
        for request in azure.requests().skip(seen) {
            if !request.path.to_lowercase().starts_with("/subscriptions") {
                continue;
            }
            let action = request.path.rsplit('/').next().unwrap_or_default();
            let asked = match request.method.as_str() {
                "POST" => format!("POST {action}"),
                other => other.to_owned(),
            };
            *methods.entry(asked).or_default() += 1;
        }
        methods
    }

    pub fn requests(&self) -> usize {
        self.world.azure.simulator().azure().requests().count()
    }
}
