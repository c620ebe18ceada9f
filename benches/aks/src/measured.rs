//! Who is measured, installed and running in front of a cluster and a simulated Azure.

use std::path::Path;

use anyhow::{Result, bail};
use slipway_azure_sim::Server;
use slipway_kit::manager::{Manager, Setup};
use slipway_testbed::{
    Cluster, Upstream,
    upstream::{self, AzureAccess, RunningUpstream},
};

use super::Arguments;

/// Who our manager is, for the audit log.
pub const USER: &str = "slipway";

/// The processes under measurement. They end with this one, however it ends.
pub enum Measured {
    Slipway(Box<Manager>),
    Capz(Vec<RunningUpstream>),
}

impl Measured {
    /// Their process ids.
    pub fn ids(&self) -> Vec<u32> {
        match self {
            Self::Slipway(manager) => vec![manager.id()],
            Self::Capz(upstreams) => upstreams.iter().map(|upstream| upstream.process().id()).collect(),
        }
    }

    /// Who they are, for the audit log.
    pub fn users(&self) -> Vec<String> {
        match self {
            Self::Slipway(_) => vec![USER.to_owned()],
            Self::Capz(upstreams) => upstreams
                .iter()
                .map(|upstream| upstream.upstream().name().to_owned())
                .collect(),
        }
    }

    /// A manager that has ended has nothing to measure.
    pub fn check(&mut self) -> Result<()> {
        match self {
            Self::Slipway(manager) => manager.check(),
            Self::Capz(upstreams) => match upstreams.iter().find_map(|upstream| upstream.process().ended()) {
                None => Ok(()),
                Some(status) => bail!("a manager ended by itself with {status}"),
            },
        }
    }

    pub fn stop(self) {
        match self {
            Self::Slipway(manager) => manager.kill(),
            Self::Capz(upstreams) => upstreams.into_iter().for_each(RunningUpstream::stop),
        }
    }
}

pub async fn slipway(
    arguments: &Arguments,
    cluster: &Cluster,
    azure: &Server,
    ca: &Path,
    machines: bool,
) -> Result<Measured> {
    let folder = cluster.description().directory.join("slipway");
    let address = format!("https://{}/", azure.ports.https);
    let setup = Setup::new(cluster, &arguments.slipway, &folder, USER, Some("system:masters"))?
        .with([
            format!("--providers={}", arguments.form.provider()),
            format!("--sync-period={}s", arguments.period),
            // Half of it: then every round of resyncs reads once, whichever controller comes first.
            format!("--azure-max-read-age={}s", arguments.period.div_ceil(2)),
            // Nobody is spared here: neither Azure nor the apiserver is anybody else's.
            "--azure-request-budget=100".to_owned(),
            "--kube-api-qps=10000".to_owned(),
            "--kube-api-burst=10000".to_owned(),
        ])
        .with(machines.then_some("--feature-gates=AKSMachines=true"))
        .environment("AZURE_RESOURCE_MANAGER_ENDPOINT", &address)
        .environment("AZURE_AUTHORITY_HOST", &address)
        .environment("AZURE_CERTIFICATE_AUTHORITIES", &ca.display().to_string());
    setup.install(cluster).await?;
    Ok(Measured::Slipway(Box::new(setup.start(USER).await?)))
}

pub async fn capz(arguments: &Arguments, cluster: &Cluster, azure: &Server, ca: &Path) -> Result<Measured> {
    let access = AzureAccess {
        proxy: format!("http://{}", azure.ports.proxy),
        ca: ca.to_owned(),
    };
    let mut running = Vec::new();
    let period = format!("--sync-period={}s", arguments.period);
    for upstream in [Upstream::Aso, Upstream::Capz] {
        let built = upstream::built(upstream, cluster.parts()).await?;
        // The operator's own period is an hour, and stays so: it is its default and would only look worse shortened.
        let more: &[&str] = if upstream == Upstream::Capz {
            &[period.as_str()]
        } else {
            &[]
        };
        running.push(cluster.start_upstream(&built, Some(&access), more).await?);
    }
    Ok(Measured::Capz(running))
}
