//! The life of AKS clusters with Cluster API's core and clusterctl as real processes, the manager under its declared
//! roles, and a simulated Azure. The scenarios run side by side in one world; when they are through, nothing is written at
//! rest, no right was missing or too much, no secret was told, and nothing is left in Azure.

use std::{future::Future, pin::Pin, time::Instant};

use anyhow::{Context, Result, ensure};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api,
    api::{DynamicObject, ListParams},
};
use slipway_testbed::{
    canary::Canaries,
    rights::{self, Unused},
};

use crate::{
    aks_changes, aks_features, aks_joining,
    aks_manager::{USER, declared_roles},
    aks_pools, aks_templates,
    aks_world::{AZURE, CORE, Fleet, World},
    support::objects,
};

const DETACH: &[&str] = &["list", "patch", "delete"];
const TAKEOVER: &str = "there is no other installation to take over from";

const MACHINES: &str = "no pool of these scenarios shows its nodes as Machines";

const fn detached(group: &'static str, resource: &'static str) -> Unused {
    Unused {
        group,
        resource,
        verbs: DETACH,
        reason: TAKEOVER,
        rare: false,
    }
}

/// Declared, and not used in these scenarios.
const UNUSED: &[Unused] = &[
    Unused {
        group: "authentication.k8s.io",
        resource: "tokenreviews",
        verbs: &["create"],
        reason: "this manager's diagnostics are open",
        rare: false,
    },
    Unused {
        group: "authorization.k8s.io",
        resource: "subjectaccessreviews",
        verbs: &["create"],
        reason: "this manager's diagnostics are open",
        rare: false,
    },
    Unused {
        group: "",
        resource: "secrets",
        verbs: &["delete", "patch"],
        reason: "only a kubeconfig of another type is replaced, and only one that changes is patched",
        rare: true,
    },
    Unused {
        group: "infrastructure.cluster.x-k8s.io",
        resource: "azureclusteridentities",
        verbs: &["get"],
        reason: "this manager watches every namespace; only one that has not heard of an identity yet asks",
        rare: true,
    },
    Unused {
        group: "coordination.k8s.io",
        resource: "leases",
        verbs: &["create", "get", "update"],
        reason: "this manager runs alone",
        rare: false,
    },
    Unused {
        group: "cluster.x-k8s.io",
        resource: "machines",
        verbs: &["delete", "list", "patch", "watch"],
        reason: MACHINES,
        rare: false,
    },
    Unused {
        group: "cluster.x-k8s.io",
        resource: "machinepools",
        verbs: &["get"],
        reason: MACHINES,
        rare: false,
    },
    Unused {
        group: "infrastructure.cluster.x-k8s.io",
        resource: "azuremanagedmachines",
        verbs: &["create", "delete", "patch"],
        reason: MACHINES,
        rare: false,
    },
    Unused {
        group: "infrastructure.cluster.x-k8s.io",
        resource: "azuremanagedmachines/status",
        verbs: &["patch"],
        reason: MACHINES,
        rare: false,
    },
    detached("containerservice.azure.com", "managedclusters"),
    detached("containerservice.azure.com", "managedclustersagentpools"),
    detached("containerservice.azure.com", "fleetsmembers"),
    detached("kubernetesconfiguration.azure.com", "extensions"),
    detached("network.azure.com", "privateendpoints"),
    detached("network.azure.com", "virtualnetworks"),
    detached("network.azure.com", "virtualnetworkssubnets"),
    detached("resources.azure.com", "resourcegroups"),
];

pub type Scenario<'w> = (&'static str, Pin<Box<dyn Future<Output = Result<()>> + 'w>>);

/// Runs them side by side and tells of every one that failed.
pub async fn all_of(scenarios: Vec<Scenario<'_>>) -> Result<()> {
    let ended = join_all(scenarios.into_iter().map(|(name, scenario)| async move {
        let started = Instant::now();
        let result = scenario.await;
        println!("report: azure: {name}: {:.1} s", started.elapsed().as_secs_f64());
        result.with_context(|| format!("scenario {name}"))
    }))
    .await;
    let failed: Vec<String> = ended
        .into_iter()
        .filter_map(|result| result.err().map(|error| format!("{error:#}")))
        .collect();
    ensure!(failed.is_empty(), "{}", failed.join("\n\n"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn aks_clusters_live_side_by_side() -> Result<()> {
    let mut canaries = Canaries::default();
    let world = World::start(canaries.hatch("the client secret")).await?;
    let workload = slipway_testbed::install::parse(&std::fs::read_to_string(world.workload.kubeconfig())?)?;
    let key = workload[0]["users"][0]["user"]["client-key-data"].as_str();
    canaries.add("the key in the kubeconfigs, encoded", key.context("a key")?);
    let (mut token, mut there) = (None, None);
    all_of(vec![
        ("scale and change", Box::pin(aks_pools::scale_and_change(&world))),
        ("autoscale", Box::pin(aks_pools::autoscale(&world))),
        ("spot and windows", Box::pin(aks_pools::spot_and_windows(&world))),
        (
            "refused and mended",
            Box::pin(aks_pools::refused_and_mended(&world)),
        ),
        ("upgrade", Box::pin(aks_pools::upgrade(&world))),
        ("private", Box::pin(aks_features::private(&world))),
        (
            "without local accounts",
            Box::pin(async {
                token = Some(aks_features::entra(&world).await?);
                Ok(())
            }),
        ),
        (
            "fleet and extension",
            Box::pin(aks_features::fleet_and_extension(&world)),
        ),
        ("default pool", Box::pin(aks_features::default_pool(&world))),
        (
            "nodes of others",
            Box::pin(aks_joining::bring_your_own_nodes(&world)),
        ),
        (
            "identity of others",
            Box::pin(aks_features::identity_of_others(&world)),
        ),
        ("pause and adopt", Box::pin(aks_changes::pause_and_adopt(&world))),
        ("drift", Box::pin(aks_changes::drift(&world))),
        (
            "deleted while made",
            Box::pin(aks_changes::deleted_while_made(&world)),
        ),
        (
            "move there and back",
            Box::pin(async {
                there = Some(aks_changes::move_there_and_back(&world).await?);
                Ok(())
            }),
        ),
        ("quick start", Box::pin(aks_templates::quick_start(&world))),
        ("topology", Box::pin(aks_templates::topology(&world))),
        (
            "templates of upstream",
            Box::pin(aks_templates::of_upstream(&world)),
        ),
    ])
    .await?;
    canaries.add("the token in a kubeconfig", &token.context("a token")?);
    let (there, other) = there.context("it moved")?;
    other.kill();
    at_rest_nothing_is_written(&world).await?;

    let left: Vec<Fleet<'_>> =
        join_all(["scale", "auto", "raise", "entra", "pause", "moved"].map(|name| world.fleet(name)))
            .await
            .into_iter()
            .collect::<Result<_>>()?;
    all_of(
        left.iter()
            .map(|fleet| {
                (
                    "deletion",
                    Box::pin(fleet.delete()) as Pin<Box<dyn Future<Output = Result<()>>>>,
                )
            })
            .collect(),
    )
    .await?;
    let rest = world.in_azure("/resourcegroups/");
    ensure!(
        rest.iter().all(|id| id.contains("/resourcegroups/hub")),
        "left in Azure: {rest:?}"
    );

    let mut sightings = canaries.sightings("the metrics", &world.manager.metrics().await?);
    let mut requests = Vec::new();
    for (cluster, manager) in [(&world.management, &world.manager), (&there, &other)] {
        sightings.extend(canaries.sightings_in_cluster(&cluster.client()).await?);
        let log = manager.log();
        ensure!(!log.is_empty(), "the manager says what it does");
        sightings.extend(canaries.sightings("the log", &log));
        requests.extend(
            cluster
                .audit()
                .requests(None, |request| request.username() == USER)?,
        );
    }
    ensure!(sightings.is_empty(), "secrets are told: {sightings:?}");
    let findings = rights::compare(&rights::declared(&declared_roles()?), &requests, UNUSED);
    ensure!(findings.is_empty(), "{findings}");
    world.manager.kill();
    there.stop();
    Ok(())
}

/// A manager that starts looks at every object once, and finds nothing to write.
async fn at_rest_nothing_is_written(world: &World) -> Result<()> {
    let client = world.management.client();
    let mut counts = Vec::new();
    for (controller, kind) in [
        ("azuremanagedcluster", "AzureManagedCluster"),
        ("azuremanagedcontrolplane", "AzureManagedControlPlane"),
        ("azuremanagedmachinepool", "AzureManagedMachinePool"),
    ] {
        let mut count = 0;
        for namespace in Api::<Namespace>::all(client.clone())
            .list(&ListParams::default())
            .await?
        {
            let name = namespace.metadata.name.unwrap_or_default();
            let found: Api<DynamicObject> = objects(&client, &name, AZURE, kind);
            count += found.list(&ListParams::default()).await?.items.len();
        }
        ensure!(count > 0, "{kind}");
        counts.push((controller, count));
    }
    world.manager.kill();
    let (mark, before) = (world.management.audit().mark()?, world.writes(""));
    world.manager.restart().await?;
    world.manager.until_idle(&counts).await?;
    let written: Vec<String> = world
        .management
        .audit()
        .writes_at_rest(USER, mark)?
        .iter()
        .map(ToString::to_string)
        .collect();
    ensure!(written.is_empty(), "at rest: {written:?}");
    ensure!(
        world.writes("") == before,
        "at rest: {:?}",
        &world.writes("")[before.len()..]
    );
    let clusters: Api<DynamicObject> = objects(&client, "raise", CORE, "Cluster");
    ensure!(clusters.get("raise").await?.data["status"]["initialization"]["controlPlaneInitialized"] == true);
    Ok(())
}
