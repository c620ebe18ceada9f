//! A real cluster with kube-scheduler and kwok, whose management cluster with Cluster API is the same or another, and the autoscaler at
//! work in it.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams},
};
use serde_json::Value;
use slipway_kit::manager::roles;
use slipway_runtime::{Context, Metrics, Package, Settings, settings::Flags};
use slipway_testbed::{
    Cluster, ManagementCluster, WorkloadCluster,
    audit::Request,
    hosts::Hosts,
    install,
    rights::{self, Unused},
};
use tokio_util::sync::CancellationToken;

pub const CORE: &str = "cluster.x-k8s.io/v1beta2";
pub const HOSTS: &str = "infrastructure.cluster.x-k8s.io/v1beta1";
pub const BOOTSTRAP: &str = "bootstrap.cluster.x-k8s.io/v1beta1";
pub const CONTROL_PLANE: &str = "controlplane.cluster.x-k8s.io/v1beta1";
pub const CLASS: &str = "karpenter.cluster.x-k8s.io/v1alpha1";
pub const KARPENTER: &str = "karpenter.sh/v1";
pub const USER: &str = "slipway-autoscaler";
/// Nothing here takes as long, unless it never comes.
const HANG_GUARD: Duration = Duration::from_mins(5);
pub const VERSION: &str = "v1.36.3";

/// What the package may do and these stories do not make it do.
const UNUSED: &[Unused] = &[
    unused(
        "authentication.k8s.io",
        "tokenreviews",
        &["create"],
        "the manager's diagnostics",
    ),
    unused(
        "authorization.k8s.io",
        "subjectaccessreviews",
        &["create"],
        "the manager's diagnostics",
    ),
    unused(
        "coordination.k8s.io",
        "leases",
        &["create", "get", "update"],
        "the manager's lease",
    ),
    unused(
        "infrastructure.cluster.x-k8s.io",
        "*",
        &["create", "delete", "get", "list", "watch"],
        "used by the name of each kind, which depends on the providers",
    ),
    unused(
        "bootstrap.cluster.x-k8s.io",
        "*",
        &["create", "delete", "get", "list", "watch"],
        "used by the name of each kind, which depends on the providers",
    ),
    rarely(
        "",
        "pods/eviction",
        &["create"],
        "pods are gone before claims are deleted",
    ),
    rarely(
        "events.k8s.io",
        "events",
        &["patch"],
        "events that are told again",
    ),
    rarely(
        "",
        "nodes",
        &["get"],
        "a disruption that comes to nothing, which no story asks for",
    ),
    unused(
        "",
        "pods",
        &["delete"],
        "only past a grace period, which no story has",
    ),
];

const fn unused(
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
    reason: &'static str,
) -> Unused {
    Unused {
        group,
        resource,
        verbs,
        reason,
        rare: false,
    }
}

const fn rarely(
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
    reason: &'static str,
) -> Unused {
    Unused {
        group,
        resource,
        verbs,
        reason,
        rare: true,
    }
}

pub fn objects(
    client: &Client,
    namespace: Option<&str>,
    api_version: &str,
    kind: &str,
) -> Api<DynamicObject> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

pub async fn apply(client: &Client, namespace: &str, manifests: &[Value]) -> Result<()> {
    for manifest in manifests {
        let text = |pointer: &str| {
            manifest
                .pointer(pointer)
                .and_then(Value::as_str)
                .context("a name")
        };
        let (version, kind, name) = (text("/apiVersion")?, text("/kind")?, text("/metadata/name")?);
        let is_global = version == CLASS || version == KARPENTER;
        objects(client, (!is_global).then_some(namespace), version, kind)
            .patch(name, &PatchParams::apply("a-user"), &Patch::Apply(manifest))
            .await
            .with_context(|| format!("applying {kind} {name}"))?;
    }
    Ok(())
}

/// Waits until a question is answered with yes; looks again and again, because the answer spans kinds.
pub async fn eventually<F, Answer>(what: &str, mut ask: F) -> Result<()>
where
    F: FnMut() -> Answer,
    Answer: Future<Output = Result<bool>>,
{
    let asked = async {
        while !ask().await? {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        anyhow::Ok(())
    };
    match tokio::time::timeout(HANG_GUARD, asked).await {
        Ok(answer) => answer,
        Err(_) => bail!("never: {what}"),
    }
}

pub struct World {
    /// Where Cluster API is.
    pub cluster: Cluster,
    /// The cluster that is scaled, if it is another.
    pub workload: Option<Cluster>,
    stop: CancellationToken,
}

/// Whether a group's objects are the management cluster's.
pub fn is_cluster_apis(group: &str) -> bool {
    group == "cluster.x-k8s.io"
        || (group.ends_with(".cluster.x-k8s.io") && group != "karpenter.cluster.x-k8s.io")
}

/// The package with some of its rules.
fn with_rules(is_kept: impl Fn(&str) -> bool) -> Vec<Package> {
    let mut packages = slipway_autoscaler::provider().packages;
    packages[0].rbac.retain(|rule| is_kept(rule.group));
    packages
}

impl World {
    pub async fn start() -> Result<Arc<World>> {
        let cluster = ManagementCluster::builder()
            .name("autoscaler")
            .cluster_api()
            .kwok()
            .audit_everything_of(USER)
            .start()
            .await?;
        roles::install(&cluster, &slipway_autoscaler::provider().packages, USER).await?;
        Self::over(cluster, None).await
    }

    /// The management cluster is another. In it the autoscaler may do what the manual says, and no more.
    pub async fn apart() -> Result<Arc<World>> {
        let management = ManagementCluster::builder()
            .name("autoscaler-management")
            .cluster_api()
            .scheduler(false)
            .audit_everything_of(USER);
        let workload = WorkloadCluster::builder()
            .name("autoscaler-workload")
            .controller_manager(true)
            .scheduler(true)
            .kwok()
            .audit_everything_of(USER);
        let (management, workload) = tokio::try_join!(management.start(), workload.start())?;
        let there = |group: &str| is_cluster_apis(group) || group == "apiextensions.k8s.io";
        let both = "events.k8s.io";
        roles::install(
            &management,
            &with_rules(|group| there(group) || group == both),
            USER,
        )
        .await?;
        roles::install(&workload, &with_rules(|group| !there(group)), USER).await?;
        Self::over(management, Some(workload)).await
    }

    async fn over(cluster: Cluster, workload: Option<Cluster>) -> Result<Arc<World>> {
        let world = World {
            cluster,
            workload,
            stop: CancellationToken::new(),
        };
        let packages = slipway_autoscaler::provider().packages;
        let crds = packages[0].crds.iter().map(serde_json::to_value);
        let crds = crds.collect::<Result<Vec<_>, _>>()?;
        install::install(&world.scaled().client(), &crds).await?;
        Hosts::install(&world.cluster).await?;
        std::fs::write(world.kubeconfig(), world.cluster.kubeconfig_as(USER, None))?;
        world.run(None, world.settings(), &world.stop);
        Ok(Arc::new(world))
    }

    /// Cluster API's objects are reached by another client, also where they are in the same cluster.
    pub fn settings(&self) -> Settings {
        let kubeconfig = self.kubeconfig();
        Settings {
            flags: Flags::default().with("cluster-api-kubeconfig", kubeconfig.to_string_lossy()),
            ..Settings::default()
        }
    }

    /// The autoscaler that was there from the beginning ends.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// The cluster that is scaled.
    pub fn scaled(&self) -> &Cluster {
        self.workload.as_ref().unwrap_or(&self.cluster)
    }

    /// How the autoscaler reaches the management cluster.
    pub fn kubeconfig(&self) -> PathBuf {
        let directory = &self.cluster.description().directory;
        directory.join("management.kubeconfig")
    }

    /// Runs the controllers as a manager of this identity would.
    pub fn run(&self, identity: Option<&str>, settings: Settings, stop: &CancellationToken) {
        let mut context = Context::new(
            self.scaled().client_as(USER, &[]),
            settings,
            Metrics::new(),
            stop.clone(),
        );
        context.identity = identity.map(Into::into);
        for registration in slipway_autoscaler::provider().packages.remove(0).controllers {
            tokio::spawn((registration.run)(context.clone()));
        }
    }

    /// The roles were enough, and nothing was asked for beyond them.
    pub fn end(&self) -> Result<()> {
        self.stop.cancel();
        let requests = asked(&self.cluster)?;
        let packages = slipway_autoscaler::provider().packages;
        let declared = rights::declared(&roles::declared(&packages)?);
        let findings = rights::compare(&declared, &requests, UNUSED);
        anyhow::ensure!(findings.is_empty(), "{findings}");
        Ok(())
    }

    /// Each cluster was asked for what is its own, and nothing was refused.
    pub fn end_apart(&self) -> Result<()> {
        self.stop.cancel();
        let (there, here) = (asked(&self.cluster)?, asked(self.scaled())?);
        let denied = there.iter().chain(&here).find(|request| request.was_denied());
        anyhow::ensure!(
            denied.is_none(),
            "{} was refused",
            denied.map(ToString::to_string).unwrap_or_default()
        );
        let is_shared = |group: &str| group == "events.k8s.io" || group == "apiextensions.k8s.io";
        for (requests, is_own) in [(&there, true), (&here, false)] {
            let astray = requests.iter().find(|request| {
                let group = &request.object.api_group;
                !is_shared(group) && is_cluster_apis(group) != is_own
            });
            anyhow::ensure!(
                astray.is_none(),
                "{} went astray",
                astray.map(ToString::to_string).unwrap_or_default()
            );
        }
        Ok(())
    }
}

/// Everything the autoscaler asked a cluster for.
fn asked(cluster: &Cluster) -> Result<Vec<Request>> {
    Ok(cluster
        .audit()
        .requests(None, |request| request.username() == USER)?)
}
