//! K3s on edge hosts that are virtual machines of MOC, with Cluster API's real core and nothing of anybody else's. The cloud agent is our own
//! (`sim/moc`), over the wire and mutual TLS; in its machines run real agents, what installs k3s on them reaches the simulator, and what one
//! runs is what is in the disk that it boots from.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use k8s_openapi::ByteString;
use serde_json::{Value, json};
use slipway_edge::hosts::moc::record::image_name;
use slipway_edge_sim::K3sOnHosts;
use slipway_hosts_sim::SimulatedMachine;
use slipway_moc_sim::{AgentGuests, Moc, Pace, Server};
use slipway_testbed::canary::Canaries;

use crate::{
    edge_world::{HOSTS, Story, VERSIONS},
    support::apply,
};

const LOCATION: &str = "north";
const GROUP: &str = "site";
const URL: &str = "https://images.example.com/{digest}.vhdx";
const IDENTITY: &str = "slipway";
/// The Secret with the login file.
const SECRET: &str = "moc";

fn digest(number: usize) -> String {
    format!("sha256:{number:064x}")
}

fn machine_name(host: &str) -> String {
    host.replace("box", "vm")
}

fn credentials(login: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET},
        "data": {"login": ByteString(login.as_bytes().to_vec())}})
}

/// A cloud with a machine for each host, and what EdgeHosts say of them.
async fn cloud(
    story: &mut Story,
    folder: &tempfile::TempDir,
) -> Result<(Server, Vec<Arc<SimulatedMachine>>)> {
    let system = K3sOnHosts::new(Arc::clone(&story.cluster));
    let guests = AgentGuests::new(folder.path(), Some(system));
    let moc = Moc::new(guests.clone());
    moc.set_pace(Pace {
        import: Duration::from_secs(3),
        disk: Duration::from_secs(1),
        shutdown: Duration::from_secs(1),
    });
    for (number, version) in VERSIONS.into_iter().enumerate() {
        let digest = digest(number);
        guests.image(&image_name(&digest), Some(version), false);
        let hex = digest.trim_start_matches("sha256:");
        moc.offer(&URL.replace("{digest}", hex));
        let image = ("registry.example.com/nodes/k3s".to_owned(), digest);
        story.images.insert(version.to_owned(), image);
    }
    let mut machines = Vec::new();
    for (host, _) in HOSTS {
        let machine = machine_name(host);
        machines.push(guests.install(&machine, host)?);
        moc.add(LOCATION, GROUP, &machine, &image_name(&digest(0))).await;
    }
    let server = Server::start(moc).await?;
    for (host, _) in HOSTS {
        let place = json!({"platform": {"moc": {
            "cloudAgent": format!("{}:{}", server.endpoint.host, server.endpoint.cloud_port),
            "loginPort": server.endpoint.login_port, "location": LOCATION, "group": GROUP,
            "virtualMachine": machine_name(host), "imageURL": URL, "credentialsSecretName": SECRET}}});
        story.host_specs.insert(host.to_owned(), place);
    }
    Ok((server, machines))
}

/// E-18, E-57: one server and one worker on machines of MOC are made, upgraded in place with another disk each while the token and the
/// certificate are renewed, and deleted; the machines and everything else of them stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e18_e57_one_server_on_machines_of_moc_is_made_upgraded_with_another_disk_and_deleted() -> Result<()>
{
    let folder = tempfile::tempdir()?;
    let mut story = Story::begin("edge-moc").await?;
    let (server, machines) = cloud(&mut story, &folder).await?;
    let mut canaries = Canaries::default();
    let token = canaries.hatch("the token for MOC");
    apply(
        &story.client,
        &story.namespace,
        &[credentials(&server.login_file(IDENTITY, &token))],
    )
    .await?;
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
    let boots: Vec<u64> = machines.iter().map(|machine| machine.boots()).collect();

    // The identity gets another token, certificates live a minute from now on, and whoever is connected is cut off.
    let token = canaries.hatch("the next token for MOC");
    let login = server.login_file(IDENTITY, &token);
    server.set_lifetime(Duration::from_mins(1));
    server.cut_connections();
    let logins = server.logins();
    apply(&story.client, &story.namespace, &[credentials(&login)]).await?;
    story.upgrade(&VERSIONS[1..2]).await?;
    ensure!(server.logins() > logins, "the new token is used");
    ensure!(story.uids().await? == before, "the same machines: {before:?}");
    ensure!(
        story.machines.lock().len() == 2,
        "no third one: {:?}",
        story.machines.lock()
    );
    let versions = story.versions();
    ensure!(
        versions.len() == 2 && versions.values().all(|version| version == VERSIONS[1]),
        "{versions:?}"
    );
    for ((host, role), (machine, boots)) in HOSTS.into_iter().zip(machines.iter().zip(boots)) {
        let name = machine_name(host);
        let (system, data) = server.moc.disks_of(GROUP, &name);
        ensure!(
            system.starts_with(&format!("{name}-b-")) && data == [format!("{name}-data")],
            "{host} boots {system} and keeps {data:?}"
        );
        ensure!(
            server.moc.disks(GROUP).contains(&format!("{name}-os")),
            "the way back"
        );
        ensure!(
            machine.boots() == boots + 1,
            "{host} was started {} times",
            machine.boots()
        );
        let ran = machine.ran();
        let saves = ran
            .iter()
            .filter(|argv| argv.get(1).is_some_and(|word| word == "etcd-snapshot"));
        ensure!(saves.count() == usize::from(role == "server"), "{host}: {ran:?}");
    }

    story.delete().await?;
    ensure!(story.cluster.hosts().is_empty(), "nothing runs k3s any more");
    for (host, _) in HOSTS {
        let name = machine_name(host);
        let left = folder.path().join(&name).join("root/var/lib/rancher");
        ensure!(!left.exists(), "{} is left", left.display());
        ensure!(
            server.moc.machine_bytes(GROUP, &name).is_some(),
            "{name} was there before"
        );
    }
    let mut seen = canaries.sightings_in_cluster(&story.client).await?;
    for (host, _) in HOSTS {
        let machine = server.moc.machine_bytes(GROUP, &machine_name(host));
        let text = String::from_utf8_lossy(&machine.unwrap_or_default()).into_owned();
        seen.extend(canaries.sightings("MOC's record of the machine", &text));
    }
    ensure!(seen.is_empty(), "{seen:?}");
    story.management.stop();
    Ok(())
}
