//! K3s on edge hosts with Cluster API's real core and nothing of anybody else's. Hosts are real agents over files; what installs k3s on them
//! reaches the simulator, and what a host runs is what its booted slot holds.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use kube::api::{Patch, PatchParams};
use serde_json::json;
use slipway_edge::fleet::{self, record};
use slipway_edge_sim::EdgeSite;
use slipway_hosts_sim::SimulatedHost;
use slipway_testbed::wait::until_within;

use crate::{
    edge_world::{INFRASTRUCTURE, LONG, NAME, Story, VERSIONS},
    k3s_fleet::{CONTROL_PLANE, condition},
    support::apply,
};

/// A host joins with a token of its own, as a person would let it.
async fn join(story: &Story, site: &EdgeSite, name: &str) -> Result<Arc<SimulatedHost>> {
    let valid = SignedDuration::from_hours(1);
    let token = fleet::issue_token(
        &story.client,
        fleet::DEFAULT_NAMESPACE,
        name,
        valid,
        Timestamp::now(),
    )
    .await?;
    Ok(site.add(name, record::FLEET, &story.address, &token).await?)
}

/// A host of another size cannot be had in place, and the strategy forbids to replace: nothing happens, and the control plane says why.
async fn what_cannot_be_changed_in_place_is_left_alone(story: &Story) -> Result<()> {
    let larger = json!({"apiVersion": INFRASTRUCTURE, "kind": "EdgeMachineTemplate", "metadata": {"name": "larger"},
        "spec": {"template": {"spec": {"hostSelector": {"matchLabels": {"role": "server"}}, "image": story.image(VERSIONS[2])?,
            "minimum": {"processors": 3}}}}});
    apply(&story.client, &story.namespace, &[larger]).await?;
    let planes = story.of(CONTROL_PLANE, "KThreesControlPlane");
    let asked = json!({"spec": {"machineTemplate": {"infrastructureRef": {"name": "larger"}}}});
    planes
        .patch(NAME, &PatchParams::default(), &Patch::Merge(asked))
        .await?;
    until_within(LONG, &planes, NAME, "say why nothing happens", |plane| {
        let said = condition(plane, "RollingOut").map(|one| one["message"].as_str().unwrap_or_default());
        said.is_some_and(|said| said.contains("forbids to replace it") && said.contains("/spec/minimum"))
    })
    .await?;
    Ok(())
}

/// E-7, E-18, E-58: one server and one worker are made, brought over two minor versions in place without a third machine, left alone when a
/// change is not possible in place, deleted, and their hosts are wiped and taken again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e7_e18_e58_one_server_on_an_edge_host_is_made_upgraded_in_place_over_two_minors_and_deleted()
-> Result<()> {
    let mut story = Story::begin("edge-k3s").await?;
    let site = EdgeSite::start(Arc::clone(&story.cluster), &VERSIONS, Duration::from_secs(1)).await?;
    for version in VERSIONS {
        let image = site.image(version).context("an image of the version")?;
        story.images.insert(version.to_owned(), image);
    }
    let server = join(&story, &site, "box-1").await?;
    let worker = join(&story, &site, "box-2").await?;
    apply(&story.client, &story.namespace, &story.manifests(VERSIONS[0])?).await?;
    story.until_up().await?;
    let before = story.uids().await?;
    ensure!(before.len() == 2, "{before:?}");
    ensure!(
        story.cluster.hosts().keys().eq(["box-1", "box-2"]),
        "{:?}, {:?}",
        story.cluster.hosts(),
        story.cluster.failures()
    );

    story.upgrade(&VERSIONS[1..]).await?;
    ensure!(story.uids().await? == before, "the same machines: {before:?}");
    ensure!(
        story.machines.lock().len() == 2,
        "no third one: {:?}",
        story.machines.lock()
    );
    let versions = story.versions();
    ensure!(
        versions.len() == 2 && versions.values().all(|version| version == VERSIONS[2]),
        "{versions:?}"
    );
    // The server took both versions, and its etcd was saved before each; the worker took the last one alone.
    let saves = |host: &SimulatedHost| {
        let ran = host.machine.ran();
        ran.iter()
            .filter(|argv| argv.get(1).is_some_and(|word| word == "etcd-snapshot"))
            .count()
    };
    ensure!(
        (server.machine.boots(), saves(&server)) == (3, 2),
        "{:?}",
        server.machine.ran()
    );
    ensure!(
        (worker.machine.boots(), saves(&worker)) == (2, 0),
        "{:?}",
        worker.machine.ran()
    );

    what_cannot_be_changed_in_place_is_left_alone(&story).await?;
    ensure!(story.uids().await? == before, "nobody is replaced: {before:?}");

    story.delete().await?;
    ensure!(story.cluster.hosts().is_empty(), "nothing runs k3s any more");
    for host in [&server, &worker] {
        let left = host.folder().join("root/var/lib/rancher");
        ensure!(!left.exists(), "{} is left", left.display());
    }

    // The hosts are taken again, and k3s begins on them again.
    apply(&story.client, &story.namespace, &story.manifests(VERSIONS[2])?).await?;
    story.until_up().await?;
    ensure!(
        story.uids().await?.keys().all(|name| !before.contains_key(name)),
        "other machines on the same hosts"
    );
    story.delete().await?;
    story.management.stop();
    Ok(())
}
