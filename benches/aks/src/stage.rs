//! Who is measured, installed and running in front of a cluster and a simulated Azure.

use std::{collections::BTreeMap, net::TcpListener, path::Path, time::Duration};

use anyhow::{Context, Result, bail};
use slipway_azure_sim::Server;
use slipway_render::local_objects;
use slipway_runtime::{certificates::SelfSigned, install};
use slipway_testbed::{
    Cluster, Part, Peer, Process, Program,
    peers::{self, AzureAccess, RunningPeer},
};

use super::Arguments;

/// Who our manager is, for the audit log.
pub const USER: &str = "slipway";

/// A hang guard: a manager is ready within seconds.
const READY: Duration = Duration::from_mins(2);

/// The processes under measurement. They end with this one, however it ends.
pub enum Stage {
    Slipway(Process),
    Capz(Vec<RunningPeer>),
}

impl Stage {
    /// Their process ids.
    pub fn ids(&self) -> Vec<u32> {
        match self {
            Self::Slipway(manager) => vec![manager.id()],
            Self::Capz(peers) => peers.iter().map(|peer| peer.process().id()).collect(),
        }
    }

    /// Who they are, for the audit log.
    pub fn users(&self) -> Vec<String> {
        match self {
            Self::Slipway(_) => vec![USER.to_owned()],
            Self::Capz(peers) => peers.iter().map(|peer| peer.peer().name().to_owned()).collect(),
        }
    }

    /// A manager that has ended has nothing to measure.
    pub fn check(&mut self) -> Result<()> {
        match self {
            Self::Slipway(manager) => match manager.ended() {
                None => Ok(()),
                Some(status) => bail!("our manager ended by itself with {status}"),
            },
            Self::Capz(peers) => match peers.iter().find_map(|peer| peer.process().ended()) {
                None => Ok(()),
                Some(status) => bail!("a manager ended by itself with {status}"),
            },
        }
    }

    pub fn stop(self) {
        match self {
            Self::Slipway(manager) => manager.kill(),
            Self::Capz(peers) => peers.into_iter().for_each(RunningPeer::stop),
        }
    }
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

pub async fn slipway(arguments: &Arguments, cluster: &Cluster, azure: &Server, ca: &Path) -> Result<Stage> {
    let directory = &cluster.description().directory;
    let (webhooks, health) = (free_port()?, free_port()?);
    let certificates = directory.join("slipway-certificates");
    let names: Vec<String> = ["localhost", "127.0.0.1"].map(str::to_owned).into();
    let pair = SelfSigned::generate(&names)?;
    pair.write(&certificates)?;
    let provider = slipway_aks::provider::provider();
    let objects = local_objects(
        provider.packages.iter(),
        &format!("https://127.0.0.1:{webhooks}"),
        &pair.authority,
    )?;
    install::apply(&cluster.client(), &objects).await?;
    let kubeconfig = directory.join("slipway.kubeconfig");
    std::fs::write(&kubeconfig, cluster.kubeconfig_as(USER, Some("system:masters")))?;
    let address = format!("https://{}/", azure.ports.https);
    let program = Program {
        name: USER.to_owned(),
        path: arguments.slipway.clone(),
        arguments: vec![
            "manager".to_owned(),
            "--providers=aks".to_owned(),
            format!("--kubeconfig={}", kubeconfig.display()),
            "--webhook-host=127.0.0.1".to_owned(),
            format!("--webhook-port={webhooks}"),
            format!("--webhook-cert-dir={}", certificates.display()),
            format!("--health-addr=127.0.0.1:{health}"),
            "--diagnostics-address=0".to_owned(),
            format!("--sync-period={}s", arguments.period),
            // Half of it: then every round of resyncs reads once, whichever controller comes first.
            format!("--azure-max-read-age={}s", arguments.period.div_ceil(2)),
            // Nobody is spared here: neither Azure nor the apiserver is anybody else's.
            "--azure-request-budget=100".to_owned(),
            "--kube-api-qps=10000".to_owned(),
            "--kube-api-burst=10000".to_owned(),
        ],
        environment: BTreeMap::from([
            ("AZURE_RESOURCE_MANAGER_ENDPOINT".to_owned(), address.clone()),
            ("AZURE_AUTHORITY_HOST".to_owned(), address),
            (
                "AZURE_CERTIFICATE_AUTHORITIES".to_owned(),
                ca.display().to_string(),
            ),
        ]),
    };
    let launcher = cluster.parts().binary(Part::Launch);
    let manager = Process::start(&launcher, &cluster.description().logs, program)
        .with_context(|| format!("starting {}", arguments.slipway.display()))?;
    let mut stage = Stage::Slipway(manager);
    let started = tokio::time::Instant::now();
    let client = reqwest::Client::new();
    loop {
        stage.check()?;
        let answer = client
            .get(format!("http://127.0.0.1:{health}/readyz"))
            .send()
            .await;
        if answer.is_ok_and(|answer| answer.status().is_success()) {
            return Ok(stage);
        }
        if started.elapsed() > READY {
            bail!("our manager is not ready after two minutes");
        }
        // A poll, because a health endpoint has nothing to watch.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

pub async fn capz(arguments: &Arguments, cluster: &Cluster, azure: &Server, ca: &Path) -> Result<Stage> {
    let access = AzureAccess {
        proxy: format!("http://{}", azure.ports.proxy),
        ca: ca.to_owned(),
    };
    let mut running = Vec::new();
    let period = format!("--sync-period={}s", arguments.period);
    for peer in [Peer::Aso, Peer::Capz] {
        let built = peers::built(peer, cluster.parts()).await?;
        // The operator's own period is an hour, and stays so: it is its default and would only look worse shortened.
        let more: &[&str] = if peer == Peer::Capz {
            &[period.as_str()]
        } else {
            &[]
        };
        running.push(cluster.start_peer(&built, Some(&access), more).await?);
    }
    Ok(Stage::Capz(running))
}
