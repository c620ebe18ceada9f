//! Hosts of one site, each an agent's process, and the operator who orders an image for all of them.

use std::{fs, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use slipway_agent_api::{
    client::HostClient,
    peers::{Candidate, Scope, choose},
    proto::{Ensure, ImageReference, Operation, OperationState, StartRequest, start_request::Verb},
};
use slipway_hosts_sim::{AgentProcess, Fleet, NodeImage, Reach};
use tokio::{task::JoinSet, time::Instant};

use crate::{Arguments, registry::Registry};

/// Joining starts so many processes at a time.
const JOINING: usize = 4;

/// What one distribution cost.
pub struct Measurement {
    pub seconds: f64,
    pub upstream_bytes: u64,
    pub peer_bytes: u64,
    /// The largest agent at its peak.
    pub rss_mb: f64,
    /// Of a processor, all agents together.
    pub busy_seconds: f64,
}

struct Member {
    agent: AgentProcess,
    client: HostClient,
}

pub struct Site {
    hosts: Vec<Member>,
    // Ends after the hosts.
    _fleet: Arc<Fleet>,
}

fn name(number: usize) -> String {
    format!("box-{number}")
}

impl Site {
    pub async fn start(arguments: &Arguments, registry: &Registry) -> Result<Self> {
        let fleet = Arc::new(Fleet::start(Duration::from_hours(24)).await?);
        let installed = Arc::new(NodeImage::build("1.0.0", 1)?);
        let service = Arc::new(format!(
            "registries: {{plainHttp: ['{}']}}\npeers: {{bytesPerSecond: {}}}\ncache: {{marginMebibytes: 0}}",
            registry.address,
            arguments.host_mbit * 1_000_000 / 8
        ));
        eprintln!("{} hosts join", arguments.hosts);
        let mut hosts = Vec::new();
        let mut joining = JoinSet::new();
        for number in 0..arguments.hosts {
            if joining.len() == JOINING
                && let Some(joined) = joining.join_next().await
            {
                hosts.push(joined??);
            }
            let (fleet, installed, service) = (fleet.clone(), installed.clone(), service.clone());
            let program = arguments.agent.clone();
            joining.spawn_blocking(move || -> Result<Member> {
                let agent = AgentProcess::join(
                    &program,
                    &fleet,
                    &name(number),
                    &installed,
                    Reach::Direct,
                    &service,
                )?;
                let client = agent.operator(&fleet)?;
                Ok(Member { agent, client })
            });
        }
        while let Some(joined) = joining.join_next().await {
            hosts.push(joined??);
        }
        Ok(Self { hosts, _fleet: fleet })
    }

    /// Orders the image for every host and waits until it is usable everywhere. Who asks hosts waits for one that has the image
    /// and is not asked by `fan_out` others; the first asks upstream.
    pub async fn distribute(
        &self,
        digest: &str,
        registry: &Registry,
        scope: Scope,
        fan_out: usize,
    ) -> Result<Measurement> {
        let mut candidates: Vec<_> = self
            .hosts
            .iter()
            .map(|member| Candidate {
                name: member.client.host().to_owned(),
                address: member.agent.address().to_owned(),
                seed: false,
                has_image: false,
            })
            .collect();
        let before = registry.sent();
        let busy_before = self.busy_seconds()?;
        let began = Instant::now();
        let (mut next, mut have, mut peer_bytes) = (0, 0, 0);
        let mut running = JoinSet::new();
        while have < self.hosts.len() {
            let at_once = match scope {
                Scope::None => self.hosts.len(),
                _ => (have * fan_out).max(1),
            };
            while next < self.hosts.len() && running.len() < at_once {
                let client = self.hosts[next].client.clone();
                let verb = Verb::Ensure(Ensure {
                    image: Some(ImageReference {
                        reference: format!("{}/app:1", registry.address),
                        digest: digest.to_owned(),
                        ..ImageReference::default()
                    }),
                    peers: choose(scope, client.host(), &candidates),
                    ..Ensure::default()
                });
                let number = next;
                running.spawn(async move { ordered(&client, verb).await.map(|done| (number, done)) });
                next += 1;
            }
            let (number, done) = running.join_next().await.context("nobody is left")???;
            candidates[number].has_image = true;
            have += 1;
            peer_bytes += done.progress.unwrap_or_default().bytes_peers;
        }
        Ok(Measurement {
            seconds: began.elapsed().as_secs_f64(),
            upstream_bytes: registry.sent() - before,
            peer_bytes,
            rss_mb: self.rss_mb()?,
            busy_seconds: self.busy_seconds()? - busy_before,
        })
    }

    fn of_each(&self, file: &str) -> Result<Vec<String>> {
        self.hosts
            .iter()
            .map(|member| {
                let process = member.agent.process_id().context("an agent has ended")?;
                Ok(fs::read_to_string(format!("/proc/{process}/{file}"))?)
            })
            .collect()
    }

    fn rss_mb(&self) -> Result<f64> {
        let mut largest = 0.0_f64;
        for status in self.of_each("status")? {
            let peak: f64 = status
                .lines()
                .find_map(|line| line.strip_prefix("VmHWM:"))
                .and_then(|line| line.trim().trim_end_matches(" kB").parse().ok())
                .context("the kernel tells the peak of the memory")?;
            largest = largest.max(peak / 1024.0);
        }
        Ok(largest)
    }

    fn busy_seconds(&self) -> Result<f64> {
        // USER_HZ is this on every Linux that Rust runs on.
        const TICKS_PER_SECOND: f64 = 100.0;
        let mut ticks = 0.0;
        for stat in self.of_each("stat")? {
            let (_, after_name) = stat.rsplit_once(") ").context("the kernel tells the times")?;
            ticks += after_name
                .split(' ')
                .skip(11)
                .take(2)
                .filter_map(|field| field.parse::<f64>().ok())
                .sum::<f64>();
        }
        Ok(ticks / TICKS_PER_SECOND)
    }
}

async fn ordered(client: &HostClient, verb: Verb) -> Result<Operation> {
    let host = client.host().to_owned();
    let id = "ensure".to_owned();
    let request = StartRequest {
        operation_id: id.clone(),
        generation: 1,
        host: host.clone(),
        verb: Some(verb),
    };
    client.start(request).await?;
    let mut watch = client.watch(&id);
    let mut last = Operation::default();
    while let Some(operation) = watch.next().await {
        last = operation?;
    }
    if last.state() != OperationState::Succeeded {
        bail!("{host}: {}", last.message);
    }
    Ok(last)
}
