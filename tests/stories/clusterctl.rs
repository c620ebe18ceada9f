//! What users do with clusterctl, done with the real one: a provider is installed from a local repository, upgraded to its
//! next version, its objects are moved to another management cluster, described, and it is deleted again. The packages
//! that ship install beside it. Managers run as their Deployments say, under the roles that were installed with them.

use std::{
    env, fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::{
    api::{apps::v1::Deployment, core::v1::Namespace},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use slipway_kit::manager::{Manager, Setup, free_port};
use slipway_render::{Release, repository};
use slipway_runtime::PackageKind;
use slipway_testbed::{
    Cluster, ManagementCluster, install, installed,
    wait::{until, until_gone},
};
use slipway_tests::toy;

use crate::{
    clusterctl_repository::{CORE_VERSION, Repository},
    support::{add_fake_host, apply, is_true, objects},
    toy_provider::BINARY,
};

const CORE: &str = "cluster.x-k8s.io/v1beta2";
const OLD: &str = "infrastructure.cluster.x-k8s.io/v1beta1";
const NEW: &str = "infrastructure.cluster.x-k8s.io/v1beta2";
const INVENTORY: &str = "clusterctl.cluster.x-k8s.io/v1alpha3";
const FLEETS: &str = "fleets.infrastructure.cluster.x-k8s.io";
const NAMESPACE: &str = "capt-system";
const FIRST: &str = "v0.1.0";
const SECOND: &str = "v0.2.0";
/// Nobody pulls it here: kwok runs the pods.
const IMAGE: &str = "registry.example/toy/manager";

/// A management cluster, the repository its clusterctl installs from, and the toy provider's manager.
struct Management {
    cluster: Cluster,
    directory: PathBuf,
    repository: Repository,
    /// Where the manager's metrics are, told to clusterctl by a variable of the package.
    metrics: SocketAddr,
    manager: Option<Manager>,
}

impl Management {
    async fn start(name: &str, directory: &Path) -> Result<Self> {
        // Custom resources and webhooks are global, so the story has clusters of its own. kwok runs the pods that
        // clusterctl waits for.
        let cluster = ManagementCluster::builder()
            .name(name)
            .cluster_api()
            .kwok()
            .start()
            .await?;
        add_fake_host(&cluster).await?;
        let directory = directory.join(name);
        let repository = Repository::for_cluster(&cluster, &directory.join("repository")).await?;
        let metrics = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let management = Self {
            cluster,
            directory,
            repository,
            metrics,
            manager: None,
        };
        management.add_toy_releases()?;
        Ok(management)
    }

    /// Two releases of the toy provider: the earlier stores Fleets in an older version. The later is written by the
    /// command line, as a user would.
    fn add_toy_releases(&self) -> Result<()> {
        let release = Release {
            version: FIRST.into(),
            image: format!("{IMAGE}:{FIRST}"),
        };
        let directory = &self.repository.directory;
        let earlier = toy::earlier_provider();
        for (path, text) in repository(&earlier.packages, &release, directory)? {
            let path = directory.join(path);
            fs::create_dir_all(path.parent().context("a file has a folder")?)?;
            fs::write(path, text)?;
        }
        let output = std::process::Command::new(BINARY)
            .args(["manifests", "--release", SECOND, "--image-repository", IMAGE])
            .arg("--repository")
            .arg(directory)
            .output()?;
        ensure!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let written = install::parse(&fs::read_to_string(self.repository.config())?)?;
        let mut providers = written[0]["providers"]
            .as_array()
            .cloned()
            .context("the configuration names providers")?;
        providers.extend(shipped()?.iter().map(Shipped::provider));
        self.repository.configure(
            providers,
            &[
                ("CAPT_DIAGNOSTICS_ADDRESS", self.metrics.to_string()),
                ("CAPT_INSECURE_DIAGNOSTICS", "true".to_owned()),
            ],
        )
    }

    async fn clusterctl(&self, arguments: &[&str]) -> Result<String> {
        let config = self.repository.config();
        let mut all = vec!["--config", config.to_str().context("a path that is text")?];
        all.extend(arguments);
        Ok(self.cluster.clusterctl(&all).await?)
    }

    async fn init(&self, version: &str) -> Result<()> {
        let core = format!("cluster-api:{CORE_VERSION}");
        let toy = format!("toy:{version}");
        self.clusterctl(&[
            "init",
            "--core",
            &core,
            "--bootstrap",
            "-",
            "--control-plane",
            "-",
            "--infrastructure",
            &toy,
            "--wait-providers",
        ])
        .await?;
        self.is_in_the_inventory("infrastructure-toy", version).await
    }

    async fn is_in_the_inventory(&self, name: &str, version: &str) -> Result<()> {
        let namespace = match name {
            "infrastructure-toy" => NAMESPACE.to_owned(),
            _ => {
                let shipped = shipped()?;
                let one = shipped.iter().find(|one| one.identity == name);
                one.context("a package that ships")?.namespace.clone()
            }
        };
        let providers = objects(&self.cluster.client(), &namespace, INVENTORY, "Provider");
        let provider = providers.get(name).await?;
        assert_eq!(provider.data["version"], version);
        Ok(())
    }

    /// Runs the manager that is installed now, in place of the one that ran before.
    async fn run_manager(&mut self, name: &str) -> Result<()> {
        if let Some(before) = self.manager.take() {
            let status = before.stop().await?;
            ensure!(status.success(), "{}", before.log());
        }
        let port = free_port()?;
        let directory = self.directory.join(name);
        fs::create_dir_all(&directory)?;
        let installed = installed::prepare(&self.cluster, NAMESPACE, &directory, port).await?;
        let setup = Setup::installed(
            &self.cluster,
            Path::new(BINARY),
            &directory,
            installed,
            self.metrics,
        )?;
        let manager = setup.start(name).await?;
        manager
            .until_metric("leader_election_master_status", "capt", |leads| leads > 0.5)
            .await?;
        self.manager = Some(manager);
        Ok(())
    }

    fn of(&self, namespace: &str, version: &str, kind: &str) -> Api<DynamicObject> {
        objects(&self.cluster.client(), namespace, version, kind)
    }

    async fn until_afloat(&self, namespace: &str, vessels: u64) -> Result<()> {
        until(&self.of(namespace, NEW, "Fleet"), "north", "be afloat", |fleet| {
            is_true(fleet, "Ready") && fleet.data["status"]["vessels"] == vessels
        })
        .await?;
        Ok(())
    }

    /// The identities of a fleet's vessels.
    async fn vessels(&self, namespace: &str) -> Result<Vec<(String, String)>> {
        let found = self
            .of(namespace, NEW, "Vessel")
            .list(&ListParams::default())
            .await?;
        Ok(found
            .into_iter()
            .filter_map(|vessel| Some((vessel.metadata.name?, vessel.metadata.uid?)))
            .collect())
    }

    async fn stop(mut self) -> Result<()> {
        if let Some(manager) = self.manager.take() {
            let (status, log) = (manager.stop().await?, manager.log());
            assert!(status.success(), "{log}");
            assert!(
                !log.contains("forbidden"),
                "the installed roles are enough:\n{log}"
            );
        }
        self.cluster.stop();
        Ok(())
    }
}

#[tokio::test]
async fn a_provider_is_installed_upgraded_moved_described_and_deleted() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let (first, second) = tokio::try_join!(
        Management::start("clusterctl-one", directory.path()),
        Management::start("clusterctl-two", directory.path()),
    )?;
    let (mut first, mut second) = (first, second);
    let mut clock = Stopwatch::start();

    first.init(FIRST).await?;
    clock.lap("init");
    first.run_manager("first").await?;
    let namespace = a_cluster(&first).await?;
    clock.lap("cluster");
    upgraded(&mut first, &namespace).await?;
    clock.lap("upgrade");

    second.init(SECOND).await?;
    second.run_manager("second").await?;
    clock.lap("second init");
    moved(&first, &second, &namespace).await?;
    clock.lap("move");
    described(&second, &namespace).await?;
    clock.lap("describe");
    packages_that_ship_install(&second).await?;
    clock.lap("init of what ships");
    deleted(&mut first).await?;
    clock.lap("delete");
    clock.report();

    // The moved cluster goes as any other does, with the manager that took it over.
    let clusters = second.of(&namespace, CORE, "Cluster");
    clusters.delete("north", &DeleteParams::default()).await?;
    until_gone(&clusters, "north").await?;
    assert_eq!(second.vessels(&namespace).await?, []);
    first.stop().await?;
    second.stop().await
}

/// A cluster whose infrastructure is a fleet, as far along as clusterctl wants it before it moves one.
async fn a_cluster(management: &Management) -> Result<String> {
    let client = management.cluster.client();
    let namespace = management.cluster.namespace("sea").await?;
    let reference = json!({"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "Fleet", "name": "north"});
    apply(
        &client,
        &namespace,
        &[
            json!({"apiVersion": OLD, "kind": "Fleet", "metadata": {"name": "north"}, "spec": {"ships": 2}}),
            json!({"apiVersion": CORE, "kind": "Cluster", "metadata": {"name": "north"},
                "spec": {"infrastructureRef": reference}}),
        ],
    )
    .await?;
    management.until_afloat(&namespace, 2).await?;
    let clusters = management.of(&namespace, CORE, "Cluster");
    until(&clusters, "north", "have its infrastructure", |cluster| {
        cluster.data["status"]["initialization"]["infrastructureProvisioned"] == true
    })
    .await?;
    // There is no control plane behind this cluster; core leaves the condition alone once it is True.
    let initialized = json!({
        "apiVersion": CORE,
        "kind": "Cluster",
        "status": {"conditions": [{
            "type": "ControlPlaneInitialized",
            "status": "True",
            "reason": "Initialized",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]},
    });
    clusters
        .patch_status(
            "north",
            &PatchParams::apply("a-control-plane").force(),
            &Patch::Apply(initialized),
        )
        .await?;
    until(&clusters, "north", "count as initialized", |cluster| {
        is_true(cluster, "ControlPlaneInitialized")
    })
    .await?;
    Ok(namespace)
}

async fn upgraded(management: &mut Management, namespace: &str) -> Result<()> {
    let crds: Api<CustomResourceDefinition> = Api::all(management.cluster.client());
    let stored = async || {
        let crd = crds.get(FLEETS).await?;
        Ok::<_, kube::Error>(
            crd.status
                .and_then(|status| status.stored_versions)
                .unwrap_or_default(),
        )
    };
    assert_eq!(stored().await?, ["v1beta1"]);
    let vessels = management.vessels(namespace).await?;
    assert_eq!(vessels.len(), 2);

    let plan = management.clusterctl(&["upgrade", "plan"]).await?;
    let offer = plan.lines().find(|line| line.starts_with("infrastructure-toy"));
    let offer = offer.with_context(|| format!("the plan names the provider:\n{plan}"))?;
    assert!(offer.contains(FIRST) && offer.contains(SECOND), "{plan}");
    let toy = format!("toy:{SECOND}");
    management
        .clusterctl(&["upgrade", "apply", "--infrastructure", &toy, "--wait-providers"])
        .await?;
    management
        .is_in_the_inventory("infrastructure-toy", SECOND)
        .await?;
    let deployments: Api<Deployment> = Api::namespaced(management.cluster.client(), NAMESPACE);
    let deployment = deployments.get("capt-controller-manager").await?;
    let containers = deployment
        .spec
        .and_then(|spec| spec.template.spec)
        .map(|pod| pod.containers)
        .unwrap_or_default();
    assert_eq!(containers[0].image, Some(format!("{IMAGE}:{SECOND}")));

    // The new manager reads what the old one stored: its own conversion answers before its caches are full.
    management.run_manager("upgraded").await?;
    assert_eq!(stored().await?, ["v1beta1", "v1beta2"]);
    let fleets = management.of(namespace, NEW, "Fleet");
    fleets
        .patch(
            "north",
            &PatchParams::default(),
            &Patch::Merge(json!({"spec": {"vessels": 3}})),
        )
        .await?;
    management.until_afloat(namespace, 3).await?;
    let after = management.vessels(namespace).await?;
    assert!(
        vessels.iter().all(|vessel| after.contains(vessel)),
        "what was there stays: {vessels:?}, {after:?}"
    );
    Ok(())
}

async fn moved(from: &Management, to: &Management, namespace: &str) -> Result<()> {
    let target = to.cluster.kubeconfig().display().to_string();
    from.clusterctl(&["move", "--namespace", namespace, "--to-kubeconfig", &target])
        .await?;
    for kind in ["Fleet", "Vessel"] {
        let left = from.of(namespace, NEW, kind).list(&ListParams::default()).await?;
        assert_eq!(left.items.len(), 0, "{kind}s left behind: {:?}", left.items);
    }
    // Status is not moved: the new manager comes to the same by looking.
    to.until_afloat(namespace, 3).await?;
    assert_eq!(
        to.vessels(namespace).await?.len(),
        3,
        "none is lost or made twice"
    );
    let fleet = to.of(namespace, NEW, "Fleet").get("north").await?;
    assert_eq!(fleet.data["spec"], json!({"vessels": 3, "harbour": "home"}));
    let owners = fleet.metadata.owner_references.unwrap_or_default();
    let cluster = to.of(namespace, CORE, "Cluster").get("north").await?;
    assert!(
        owners
            .iter()
            .any(|owner| Some(&owner.uid) == cluster.metadata.uid.as_ref()),
        "owned by the Cluster as it is there: {owners:?}"
    );
    Ok(())
}

async fn described(management: &Management, namespace: &str) -> Result<()> {
    let text = management
        .clusterctl(&[
            "describe",
            "cluster",
            "north",
            "--namespace",
            namespace,
            "--show-conditions=all",
        ])
        .await?;
    for desired in [
        format!("Cluster {namespace}/north"),
        format!("Fleet {namespace}/north"),
        "Afloat".to_owned(),
    ] {
        assert!(text.contains(&desired), "{desired}:\n{text}");
    }
    Ok(())
}

async fn deleted(management: &mut Management) -> Result<()> {
    // Its pods would end first.
    if let Some(manager) = management.manager.take() {
        manager.stop().await?;
    }
    let client = management.cluster.client();
    management
        .clusterctl(&[
            "delete",
            "--infrastructure",
            "toy",
            "--include-crd",
            "--include-namespace",
        ])
        .await?;
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    until_gone(&crds, FLEETS).await?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    until_gone(&namespaces, NAMESPACE).await?;
    let ours = ListParams::default().labels("cluster.x-k8s.io/provider=infrastructure-toy");
    for (version, kind) in [
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
        ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration"),
        (
            "admissionregistration.k8s.io/v1",
            "ValidatingWebhookConfiguration",
        ),
        // clusterctl leaves the cluster roles of every provider behind.
    ] {
        let (group, version) = version.split_once('/').unwrap_or_default();
        let resource =
            kube::api::ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk(group, version, kind));
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let left: Vec<_> = api
            .list(&ours)
            .await?
            .into_iter()
            .map(|one| one.metadata.name)
            .collect();
        assert_eq!(left, [], "{kind}s left behind");
    }
    Ok(())
}

/// A package as it lies under deploy/clusterctl, or in the repository that `cargo xtask package repository` wrote.
struct Shipped {
    identity: String,
    kind: PackageKind,
    version: String,
    namespace: String,
    components: PathBuf,
}

impl Shipped {
    fn name(&self) -> &str {
        &self.identity[self.kind.prefix().len() + 1..]
    }

    fn provider(&self) -> Value {
        json!({
            "name": self.name(),
            "type": self.kind.clusterctl_type(),
            "url": self.components.display().to_string(),
        })
    }
}

fn shipped() -> Result<Vec<Shipped>> {
    let root = env::var_os("SLIPWAY_REPOSITORY")
        .map_or_else(
            || Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/clusterctl"),
            PathBuf::from,
        )
        .canonicalize()
        .context("finding the packages that ship")?;
    let mut shipped = Vec::new();
    for entry in fs::read_dir(&root)? {
        let entry = entry?;
        if !entry.file_type()?.is_dir() {
            continue;
        }
        let identity = entry.file_name().to_string_lossy().into_owned();
        let kind = PackageKind::CLUSTERCTL
            .into_iter()
            .find(|kind| identity.starts_with(&format!("{}-", kind.prefix())))
            .with_context(|| format!("{identity} is of no kind that clusterctl knows"))?;
        let version = concat!("v", env!("CARGO_PKG_VERSION")).to_owned();
        let components = root
            .join(&identity)
            .join(&version)
            .join(format!("{}-components.yaml", kind.prefix()));
        let objects = install::parse(&fs::read_to_string(&components)?)?;
        let namespace = objects
            .iter()
            .find(|object| object["kind"] == "Namespace")
            .and_then(|object| object["metadata"]["name"].as_str())
            .context("a package has a namespace")?
            .to_owned();
        shipped.push(Shipped {
            identity,
            kind,
            version,
            namespace,
            components,
        });
    }
    ensure!(!shipped.is_empty(), "nothing ships");
    Ok(shipped)
}

/// `clusterctl init` takes every package as it ships, and its Deployment becomes available.
async fn packages_that_ship_install(management: &Management) -> Result<()> {
    let shipped = shipped()?;
    let mut arguments = vec!["init".to_owned(), "--wait-providers".to_owned()];
    for one in &shipped {
        arguments.push(format!("--{}={}:{}", one.kind.prefix(), one.name(), one.version));
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    // clusterctl tries cert-manager in a namespace of its own, and leaves it to be deleted. The next init takes one that is
    // still going for one that is there, and asks in vain until it gives up.
    let namespaces: Api<Namespace> = Api::all(management.cluster.client());
    until_gone(&namespaces, "cert-manager-test").await?;
    management.clusterctl(&arguments).await?;
    for one in &shipped {
        management
            .is_in_the_inventory(&one.identity, &one.version)
            .await?;
        let deployments: Api<Deployment> = Api::namespaced(management.cluster.client(), &one.namespace);
        let found = deployments.list(&ListParams::default()).await?;
        let available = found.iter().all(|deployment| {
            let status = deployment.status.as_ref();
            status.is_some_and(|status| status.available_replicas >= Some(1))
        });
        assert!(!found.items.is_empty() && available, "{}", one.identity);
    }
    Ok(())
}

/// How long each part of the journey took, for the reader of the run.
struct Stopwatch {
    last: Instant,
    laps: Vec<String>,
}

impl Stopwatch {
    fn start() -> Self {
        Self {
            last: Instant::now(),
            laps: Vec::new(),
        }
    }

    fn lap(&mut self, name: &str) {
        self.laps
            .push(format!("{name} {:.1} s", self.last.elapsed().as_secs_f64()));
        self.last = Instant::now();
    }

    fn report(&self) {
        println!("report: clusterctl journey: {}", self.laps.join(", "));
    }
}
