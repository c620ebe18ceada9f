//! The engine `aso` with the real Azure Service Operator: it is given a cluster, scales it, makes and deletes a network, is told to let
//! go, takes over again, is paused, and deletes it; another cluster moves to where no operator is. Nothing in Azure is deleted before
//! somebody deletes it, and nothing is made again. What the operator does is recorded in `aso_engine.golden`, which the fake operator of
//! the crate's tests is held to (`crates/aso/tests/life/recorded.rs`). And the stories of the native engine, word for word.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, anyhow, ensure};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use slipway_kit::azure::outcome::{CLUSTER, Counts, Outcome, POLICY, is_at_rest, manifests};
use slipway_testbed::{
    Cluster, Upstream, install,
    upstream::{self, AzureAccess, RunningUpstream},
    wait::{until, until_gone},
};

use crate::{
    aks_clusters::all_of,
    aks_world::{AZURE, CORE, Fleet, World, condition, management},
    aso_clusters,
    aso_world::{
        AKS, CREDENTIAL, INFRASTRUCTURE, NETWORK, PLANE, POOL, credential, is_settled, start_manager,
        until_settled,
    },
};

const ENGINE: &str = "slipway.dev/azure-engine";
const GROUPS: &str = "resources.azure.com/v1api20200601";
/// The operator's lease, and where it is held.
const LEASE: (&str, &str) = ("default", "controllers-leader-election-azinfra-generated");
const RENEWED_EVERY: Duration = Duration::from_secs(10);
/// The operator's kinds that the cluster has objects of.
const KINDS: [(&str, &str); 4] = [
    (GROUPS, "ResourceGroup"),
    (NETWORK, "VirtualNetwork"),
    (AKS, "ManagedCluster"),
    (AKS, "ManagedClustersAgentPool"),
];
/// Objects of ours in the cluster.
const HOLDERS: [(&str, &str); 4] = [
    (INFRASTRUCTURE, CLUSTER),
    (PLANE, CLUSTER),
    (POOL, "system"),
    (POOL, "work"),
];

/// The operator is built from its Go module, for minutes, and its own clock is the real one.
pub fn asked_for() -> bool {
    let full = std::env::var_os("SLIPWAY_TEST_FULL").is_some();
    if !full {
        println!(
            "report: skipped: the real Azure Service Operator and Cluster API Provider Azure run with SLIPWAY_TEST_FULL=1"
        );
    }
    full
}

/// The lease of an operator that runs. It is renewed until this is dropped.
pub struct HeldLease(tokio::task::JoinHandle<()>);

impl Drop for HeldLease {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The operator renews a lease in a pod only, which a process beside the cluster is not: the story does it while the process lives.
pub async fn hold_lease(client: Client) -> Result<HeldLease> {
    renew(&client).await?;
    Ok(HeldLease(tokio::spawn(async move {
        let mut clock = tokio::time::interval(RENEWED_EVERY);
        loop {
            clock.tick().await;
            // One that fails is made up for by the next.
            let _ = renew(&client).await;
        }
    })))
}

async fn renew(client: &Client) -> Result<()> {
    let (namespace, name) = LEASE;
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let body = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
        "spec": {"holderIdentity": "aso", "leaseDurationSeconds": 15, "renewTime": format!("{:.6}", Timestamp::now())}});
    let parameters = PatchParams::apply("story").force();
    leases.patch(name, &parameters, &Patch::Apply(&body)).await?;
    Ok(())
}

/// The real operator beside a manager, with its lease.
pub struct RealOperator {
    running: RunningUpstream,
    _lease: HeldLease,
    _folder: tempfile::TempDir,
}

impl RealOperator {
    pub async fn start(world: &World) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let ca = folder.path().join("ca.pem");
        std::fs::write(&ca, world.azure.ca.certificate_pem())?;
        let access = AzureAccess {
            proxy: format!("http://{}", world.azure.ports.proxy),
            ca,
        };
        let built = upstream::built(Upstream::Aso, world.management.parts()).await?;
        let started = world.management.start_upstream(&built, Some(&access), &[]);
        let running = started.await?;
        Ok(Self {
            running,
            _lease: hold_lease(world.management.client()).await?,
            _folder: folder,
        })
    }

    pub fn stop(self) {
        self.running.stop();
    }
}

async fn world(name: &str) -> Result<(World, RealOperator)> {
    let world = World::managed_by("not-a-secret".to_owned(), name, start_manager).await?;
    let operator = RealOperator::start(&world).await?;
    Ok((world, operator))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_operator_does_what_the_fake_one_does() -> Result<()> {
    if !asked_for() {
        return Ok(());
    }
    let (world, operator) = world("engines").await?;
    let fleet = world.fleet(CLUSTER).await?.backed()?;
    let mut story = Story {
        fleet: &fleet,
        outcome: Outcome::default(),
    };
    story.live().await?;
    story
        .outcome
        .compare(true)
        .map_err(|difference| anyhow!(difference))?;
    move_away(&world).await?;
    operator.stop();
    world.manager.kill();
    world.management.stop();
    world.workload.stop();
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stories_of_the_native_engine_hold_with_a_real_operator() -> Result<()> {
    if !asked_for() {
        return Ok(());
    }
    let (world, operator) = world("operated").await?;
    all_of(aso_clusters::anywhere(&world)).await?;
    let rest = world.in_azure("/resourcegroups/");
    ensure!(rest.is_empty(), "left in Azure: {rest:?}");
    println!(
        "report: aso stories with the real operator: {:?}",
        by_sender(&world)
    );
    operator.stop();
    world.manager.kill();
    world.management.stop();
    world.workload.stop();
    Ok(())
}

/// Requests to ARM by who sent them and how.
fn by_sender(world: &World) -> BTreeMap<String, usize> {
    let azure = world.simulator().azure();
    let mut counts = BTreeMap::new();
    for request in azure.requests() {
        if !request.path.to_lowercase().starts_with("/subscriptions") {
            continue;
        }
        let agent = request.user_agent.as_deref().unwrap_or_default();
        let sender = if agent.contains("slipway") {
            "slipway"
        } else {
            "operator"
        };
        *counts.entry(format!("{sender} {}", request.method)).or_default() += 1;
    }
    counts
}

struct Story<'a> {
    fleet: &'a Fleet<'a>,
    outcome: Outcome,
}

impl Story<'_> {
    async fn operated(&self) -> Result<Vec<DynamicObject>> {
        let mut found = Vec::new();
        for (version, kind) in KINDS {
            found.extend(self.fleet.of(version, kind).list(&ListParams::default()).await?);
        }
        Ok(found)
    }

    /// Tells what a step came to.
    async fn tell(&mut self, step: &str) -> Result<Counts> {
        let objects: Vec<Value> = self
            .operated()
            .await?
            .iter()
            .map(|object| json!(object))
            .collect();
        let counts = {
            let azure = self.fleet.world.simulator().azure();
            self.outcome.step(step, &azure, &objects)
        };
        println!(
            "report: aso engine: {step}: {} PUT, {} DELETE, {} GET",
            counts.puts, counts.deletes, counts.reads
        );
        Ok(counts)
    }

    /// The operator is done with all that it has.
    async fn until_operator_rests(&self, policy: Option<&str>) -> Result<()> {
        for object in self.operated().await? {
            let types = object.types.clone().context("a kind")?;
            let api = self.fleet.of(&types.api_version, &types.kind);
            until(&api, &object.name_any(), "be at rest", |object| {
                let found = object.annotations().get(POLICY).map(String::as_str);
                let is_cluster = types.kind == "ManagedCluster";
                let has_pools = is_cluster && !object.data["spec"]["agentPoolProfiles"].is_null();
                found == policy && !has_pools && is_at_rest(&json!(object))
            })
            .await?;
        }
        Ok(())
    }

    /// Every resource is written by this engine, and all is settled.
    async fn until_on(&self, engine: Option<&str>) -> Result<()> {
        for _ in 0..2 {
            until_on(self.fleet, engine).await?;
            if engine.is_some() {
                self.until_operator_rests(None).await?;
            }
        }
        Ok(())
    }

    async fn live(&mut self) -> Result<()> {
        let fleet = self.fleet;
        let (all, network) = manifests();
        fleet.apply(&[credential(fleet, CREDENTIAL)]).await?;
        fleet.apply(&all).await?;
        until_settled(fleet, CLUSTER, 2).await?;
        self.until_on(Some("aso")).await?;
        fleet.until_nodes("work", 1).await?;
        let made = self.tell("made").await?;
        ensure!(made.deletes == 0);
        let before = standing(fleet);

        fleet.scale("work", 3).await?;
        fleet.until_nodes("work", 3).await?;
        self.until_on(Some("aso")).await?;
        self.tell("scaled").await?;

        let infrastructure = fleet.of(AZURE, INFRASTRUCTURE);
        let resources = infrastructure.get(CLUSTER).await?.data["spec"]["resources"].clone();
        let mut more = resources.clone();
        more.as_array_mut().context("resources")?.push(network);
        let put = |resources: Value| json!({"spec": {"resources": resources}});
        fleet.merge(&infrastructure, CLUSTER, put(more)).await?;
        self.until_on(Some("aso")).await?;
        self.tell("a network added").await?;
        fleet.merge(&infrastructure, CLUSTER, put(resources)).await?;
        until_gone(&fleet.of(NETWORK, "VirtualNetwork"), "second").await?;
        self.until_on(Some("aso")).await?;
        let taken = self.tell("a network taken out").await?;
        ensure!(taken.deletes == 1, "{taken:?}");

        ask_for(fleet, "native").await?;
        self.until_on(None).await?;
        for object in self.operated().await? {
            let types = object.types.clone().context("a kind")?;
            until_gone(&fleet.of(&types.api_version, &types.kind), &object.name_any()).await?;
        }
        let switched = self.tell("switched to native").await?;
        ensure!(switched.deletes == 0 && switched.puts == 0, "{switched:?}");
        fleet.scale("work", 2).await?;
        fleet.until_nodes("work", 2).await?;
        self.until_on(None).await?;
        self.tell("scaled natively").await?;

        ask_for(fleet, "aso").await?;
        self.until_on(Some("aso")).await?;
        let back = self.tell("switched back").await?;
        ensure!(back.deletes == 0, "{back:?}");

        let pause = |paused: bool| json!({"spec": {"paused": paused}});
        fleet.merge(&fleet.clusters(), CLUSTER, pause(true)).await?;
        for (kind, name) in HOLDERS {
            until(&fleet.of(AZURE, kind), name, "be paused", |object| {
                crate::support::is_true(object, "Paused")
            })
            .await?;
        }
        self.until_operator_rests(Some("skip")).await?;
        let paused = self.tell("paused").await?;
        ensure!(paused.deletes == 0 && paused.puts == 0, "{paused:?}");
        fleet.merge(&fleet.clusters(), CLUSTER, pause(false)).await?;
        self.until_on(Some("aso")).await?;
        let resumed = self.tell("resumed").await?;
        ensure!(resumed.deletes == 0, "{resumed:?}");
        ensure!(
            standing(fleet) == before,
            "{before:?}, and then {:?}",
            standing(fleet)
        );

        fleet.clusters().delete(CLUSTER, &DeleteParams::default()).await?;
        until_gone(&fleet.clusters(), CLUSTER).await?;
        self.tell("deleted").await?;
        fleet.until_nothing_is_left().await
    }
}

/// What is in Azure, with what would be another if something had been made again.
fn standing(fleet: &Fleet<'_>) -> BTreeMap<String, Value> {
    let group = fleet.group().to_lowercase();
    let azure = fleet.world.simulator().azure();
    let resources = azure.state().resources.iter();
    resources
        .filter(|resource| resource.id.to_lowercase().contains(&group))
        .map(|resource| {
            let of = |name: &str| resource.properties().get(name).cloned().unwrap_or_default();
            let identity = json!([of("resourceUID"), of("fqdn"), of("nodeResourceGroup")]);
            (resource.id.to_lowercase(), identity)
        })
        .collect()
}

async fn ask_for(fleet: &Fleet<'_>, engine: &str) -> Result<()> {
    let patch = json!({"metadata": {"annotations": {(ENGINE): engine}}});
    for (kind, name) in HOLDERS {
        fleet.merge(&fleet.of(AZURE, kind), name, patch.clone()).await?;
    }
    Ok(())
}

/// Every resource is written by this engine, and all is settled.
async fn until_on(fleet: &Fleet<'_>, engine: Option<&str>) -> Result<()> {
    for (kind, name) in HOLDERS {
        until(&fleet.of(AZURE, kind), name, "have its engine", |object| {
            let lines = object.data["status"]["resources"].as_array();
            is_settled(object)
                && lines.is_some_and(|lines| lines.iter().all(|line| line["engine"].as_str() == engine))
        })
        .await?;
    }
    Ok(())
}

/// To a management cluster where no operator is: nothing flips and nothing is written until somebody says so.
async fn move_away(world: &World) -> Result<()> {
    let fleet = world.fleet(CLUSTER).await?.backed()?;
    fleet.apply(&[credential(&fleet, CREDENTIAL)]).await?;
    fleet.apply(&manifests().0).await?;
    until_settled(&fleet, CLUSTER, 2).await?;
    until_on(&fleet, Some("aso")).await?;
    fleet.until_nodes("work", 1).await?;

    let there: Cluster = management("engines-there", true).await?;
    let manager = start_manager(&there, &world.azure).await?;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": CLUSTER}});
    install::install(&there.client(), &[namespace]).await?;
    let (before, stood) = (fleet.writes().len(), standing(&fleet));
    let kubeconfig = there.kubeconfig().display().to_string();
    world
        .management
        .clusterctl(&["move", "--namespace", CLUSTER, "--to-kubeconfig", &kubeconfig])
        .await?;
    until_gone(&fleet.of(CORE, "Cluster"), CLUSTER).await?;
    for (version, kind) in KINDS {
        let api = fleet.of(version, kind);
        for object in api.list(&ListParams::default()).await? {
            until_gone(&api, &object.name_any()).await?;
        }
    }
    let moved = Fleet {
        client: there.client(),
        ..fleet.clone()
    };
    until(
        &moved.of(AZURE, PLANE),
        CLUSTER,
        "say that no operator is there",
        |plane| condition(plane, "AzureServiceOperatorReady")["reason"] == "NotInstalled",
    )
    .await?;
    ask_for(&moved, "native").await?;
    until_on(&moved, None).await?;
    let written = fleet.writes().split_off(before);
    ensure!(written.is_empty(), "{written:?}");
    ensure!(standing(&moved) == stood, "{:?}", standing(&moved));
    println!("report: aso engine: moved to where no operator is, and switched to native there: 0 writes");
    moved.clusters().delete(CLUSTER, &DeleteParams::default()).await?;
    until_gone(&moved.clusters(), CLUSTER).await?;
    let left = world.in_azure(&format!("/resourcegroups/{CLUSTER}"));
    ensure!(left.is_empty(), "left in Azure: {left:?}");
    manager.kill();
    there.stop();
    Ok(())
}
