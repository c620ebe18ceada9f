//! The guides to installing and operating, followed literally with the real clusterctl. The AKS manager runs as the Deployment
//! that clusterctl installed says, with its own volumes, variables and rights: it signs in to Azure with the token that is
//! projected for its service account, and Entra ID checks issuer, keys, subject and audience.

use std::{
    fs,
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::{
    api::apps::v1::Deployment,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams},
};
use serde_json::{Value, json};
use slipway_azure_sim::{Application, Ca, Options, Server, Settings, Simulator, Speed};
use slipway_kit::manager::{Manager, free_port};
use slipway_testbed::{
    Cluster, ManagementCluster, install,
    tools::Tools,
    wait::{until, until_gone},
};

use crate::{
    aks_manager,
    aks_world::{AZURE, CLIENT, SUBSCRIPTION, TENANT, is_ready},
    clusterctl_repository::Repository,
    guides::{Guide, Shell},
    support::{add_fake_host, objects},
};

/// The program of all packages.
const SLIPWAY: &str = env!("CARGO_BIN_EXE_slipway-all");
const ISSUER: &str = "https://kubernetes.default.svc";
const AUDIENCE: &str = "api://AzureADTokenExchange";
/// As the guides call them.
const CLUSTER: &str = "shop";
const NAMESPACE: &str = "fleet";
/// What a provider has beside its namespace, and how it is told from what others have.
const CLUSTER_WIDE: &str = "clusterroles,clusterrolebindings,customresourcedefinitions,\
                            mutatingwebhookconfigurations,validatingwebhookconfigurations";
const PROVIDERS: &str =
    "cluster.x-k8s.io/provider in (infrastructure-azure, bootstrap-k3s, control-plane-k3s)";

async fn management(name: &str) -> Result<Cluster> {
    let cluster = ManagementCluster::builder()
        .name(name)
        .cluster_api()
        .kwok()
        .start()
        .await?;
    add_fake_host(&cluster).await?;
    Ok(cluster)
}

/// Entra ID knows one identity, which trusts the manager's service account in these clusters and nobody else.
async fn azure(clusters: [&Cluster; 2]) -> Result<Server> {
    let mut keys = Vec::new();
    for cluster in clusters {
        let set = cluster.kubectl(&["get", "--raw", "/openid/v1/jwks"]).await?;
        let set: Value = serde_json::from_str(&set)?;
        keys.extend(set["keys"].as_array().cloned().unwrap_or_default());
    }
    let simulator = Simulator::new(Settings {
        tenant: TENANT.to_owned(),
        subscriptions: vec![SUBSCRIPTION.to_owned()],
        speed: Speed::Times(60.0),
        open_sign_in: false,
        ..Settings::default()
    });
    {
        let mut azure = simulator.azure();
        let directory = azure.directory_mut();
        directory.trust_issuer(ISSUER, json!({"keys": keys}));
        directory.register(Application::new(CLIENT).federated(ISSUER, aks_manager::ACCOUNT, AUDIENCE));
    }
    Ok(Server::start(simulator, Ca::new()?, Options::default()).await?)
}

/// A reader's machine: their home, and kubectl, clusterctl and slipway on their PATH.
struct Desk {
    shell: Shell,
    slipway: PathBuf,
    offline: PathBuf,
}

impl Desk {
    async fn new(cluster: &Cluster, home: &Path, metrics: SocketAddr) -> Result<Self> {
        let tools = Tools::write(cluster.parts(), home)?;
        // The way to the packages of others, which a machine with network would not need.
        let others = Repository::for_cluster(cluster, &home.join("others")).await?;
        others.configure(Vec::new(), &[])?;
        let config = install::parse(&fs::read_to_string(others.config())?)?;
        let core = &config[0]["providers"][0];
        let manager = &config[0]["cert-manager"];
        let lines = format!(
            "- name: cluster-api\n  type: CoreProvider\n  url: {}\ncert-manager:\n  url: {}\n  version: {}\n",
            core["url"].as_str().context("core")?,
            manager["url"].as_str().context("cert-manager")?,
            manager["version"].as_str().context("cert-manager")?,
        );
        let offline = home.join("offline.yaml");
        fs::write(&offline, lines)?;
        let desk = Self {
            shell: Shell {
                home: home.to_owned(),
                prelude: format!(
                    "export PATH={}:$PATH KUBECONFIG={}\n\
                     export CAPZ_DIAGNOSTICS_ADDRESS={metrics} CAPZ_INSECURE_DIAGNOSTICS=true",
                    tools.directory.display(),
                    cluster.kubeconfig().display()
                ),
            },
            slipway: tools.directory.join("slipway"),
            offline,
        };
        desk.have_slipway("v0.1.0")?;
        Ok(desk)
    }

    /// Puts the program of a release on the PATH. What it writes of clusterctl's configuration is told where to find the
    /// packages of others without a network.
    fn have_slipway(&self, release: &str) -> Result<()> {
        let script = format!(
            "#!/bin/sh\nset -e\n'{SLIPWAY}' \"$@\" --release {release}\n\
             if [ \"$2\" = --repository ]; then cat '{}' >> \"$3/clusterctl.yaml\"; fi\n",
            self.offline.display()
        );
        fs::write(&self.slipway, script)?;
        fs::set_permissions(&self.slipway, fs::Permissions::from_mode(0o755))?;
        Ok(())
    }
}

fn planes(client: &Client) -> Api<DynamicObject> {
    objects(client, NAMESPACE, AZURE, "AzureManagedControlPlane")
}

async fn until_ready(cluster: &Cluster) -> Result<()> {
    until(&planes(&cluster.client()), CLUSTER, "be ready", is_ready).await?;
    Ok(())
}

async fn image(cluster: &Cluster) -> Result<String> {
    let deployments: Api<Deployment> = Api::namespaced(cluster.client(), aks_manager::NAMESPACE);
    let deployment = deployments.get("capz-controller-manager").await?;
    let pod = deployment.spec.and_then(|spec| spec.template.spec);
    let container = pod.and_then(|pod| pod.containers.into_iter().next());
    container
        .and_then(|container| container.image)
        .context("an image")
}

async fn start(cluster: &Cluster, azure: &Server, metrics: SocketAddr) -> Result<Manager> {
    aks_manager::start_installed(cluster, azure, metrics).await
}

async fn stop(manager: Manager) -> Result<()> {
    let (status, log) = (manager.stop().await?, manager.log());
    ensure!(status.success(), "{log}");
    ensure!(
        !log.contains("forbidden"),
        "the installed roles are enough:\n{log}"
    );
    Ok(())
}

#[tokio::test]
async fn the_guides_to_installing_and_operating_are_followed_literally() -> Result<()> {
    let home = tempfile::tempdir()?;
    let (one, two) = tokio::try_join!(management("guide-one"), management("guide-two"))?;
    let azure = azure([&one, &two]).await?;
    let metrics = SocketAddr::from(([127, 0, 0, 1], free_port()?));
    let desk = Desk::new(&one, home.path(), metrics).await?;
    let (install, operate) = (Guide::read("install.md")?, Guide::read("operate.md")?);

    desk.shell
        .run(&install.section("With clusterctl")?.join("\n"))
        .await?;
    for namespace in [
        "capz-system",
        "capi-k3s-bootstrap-system",
        "capi-k3s-control-plane-system",
    ] {
        let deployments: Api<Deployment> = Api::namespaced(one.client(), namespace);
        let found = deployments.list(&ListParams::default()).await?;
        ensure!(
            found.items.len() == 1,
            "{namespace}: {} Deployments",
            found.items.len()
        );
    }
    let manager = start(&one, &azure, metrics).await?;
    let generate = format!(
        "export AZURE_SUBSCRIPTION_ID={SUBSCRIPTION} AZURE_TENANT_ID={TENANT} AZURE_LOCATION=westus3\n\
         export AZURE_CLIENT_ID_USER_ASSIGNED_IDENTITY={CLIENT}\n\
         kubectl create namespace {NAMESPACE}\n\
         clusterctl generate cluster {CLUSTER} --config $HOME/slipway/clusterctl.yaml --target-namespace {NAMESPACE} \
         --infrastructure azure --flavor aks --kubernetes-version v1.33.3 | kubectl apply -f -"
    );
    desk.shell.run(&generate).await?;
    until_ready(&one)
        .await
        .context("signing in with the projected token")?;

    desk.have_slipway("v0.1.1")?;
    let [plan, apply] = operate
        .section("Upgrade")?
        .try_into()
        .map_err(|_| anyhow::anyhow!("two blocks"))?;
    let said = desk.shell.run(&plan).await?;
    ensure!(said.contains("v0.1.1"), "{said}");
    stop(manager).await?;
    desk.shell.run(&apply).await?;
    ensure!(image(&one).await?.ends_with(":v0.1.1"), "{}", image(&one).await?);
    let manager = start(&one, &azure, metrics).await?;
    until_ready(&one).await?;

    let writes = |azure: &Server| {
        let azure = azure.simulator().azure();
        azure
            .requests()
            .filter(|request| matches!(request.method.as_str(), "PUT" | "DELETE"))
            .count()
    };
    let before = writes(&azure);
    fs::copy(two.kubeconfig(), home.path().join("target.kubeconfig"))?;
    let [init, moving] = operate
        .section("Move to another management cluster")?
        .try_into()
        .map_err(|_| anyhow::anyhow!("two blocks"))?;
    let other = SocketAddr::from(([127, 0, 0, 1], free_port()?));
    let there = Shell {
        home: home.path().to_owned(),
        prelude: format!("{}\nexport CAPZ_DIAGNOSTICS_ADDRESS={other}", desk.shell.prelude),
    };
    there.run(&init).await?;
    let target = start(&two, &azure, other).await?;
    desk.shell.run(&moving).await?;
    ensure!(
        planes(&one.client()).get_opt(CLUSTER).await?.is_none(),
        "it has moved"
    );
    until_ready(&two).await?;
    ensure!(writes(&azure) == before, "nothing is written in Azure");

    let there = Shell {
        home: home.path().to_owned(),
        prelude: format!(
            "{}\nexport KUBECONFIG=$HOME/target.kubeconfig",
            desk.shell.prelude
        ),
    };
    let said = there.run(&operate.section("Inspect")?.join("\n")).await?;
    for expected in ["Cluster fleet/shop", "ManagedClusterRunning"] {
        ensure!(said.contains(expected), "{said}");
    }

    stop(manager).await?;
    desk.shell.run(&operate.section("Remove")?.join("\n")).await?;
    let definitions: Api<CustomResourceDefinition> = Api::all(one.client());
    for name in [
        "azuremanagedcontrolplanes.infrastructure.cluster.x-k8s.io",
        "kthreescontrolplanes.controlplane.cluster.x-k8s.io",
    ] {
        until_gone(&definitions, name).await?;
    }
    let left = desk
        .shell
        .run(&format!("kubectl get {CLUSTER_WIDE} -o name -l '{PROVIDERS}'"))
        .await?;
    ensure!(
        !left.contains(".k8s.io/"),
        "nothing of the providers is left:\n{left}"
    );
    stop(target).await?;
    one.stop();
    two.stop();
    Ok(())
}
