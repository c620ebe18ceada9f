//! The manager: composes the registered providers, serves their webhooks always, runs their controllers while it
//! leads, and stops in order.

mod connect;
mod diagnostics;
mod options;
mod selection;
#[cfg(test)]
mod tests;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use kube::Config;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(crate) use self::connect::configuration;
use self::diagnostics::{Diagnostics, Gatekeeper};
pub use self::{
    connect::own_namespace,
    diagnostics::{ASKER_AUDIENCE, ASKER_HEADER},
    options::{Options, TlsVersion, command, duration_flag, normalize, switch},
    selection::{lease_name, select, select_to_run},
};
use crate::{
    Clock, Context, Metrics, Package, Provider, Random,
    certificates::{self, CertificateError, Certificates, SelfSigned},
    health::Health,
    lease::{ApiServerLease, Campaign, Election, InvalidElection, Leadership},
    logs::{self, Verbosity},
    metrics::NameLabel,
    server::{BindError, ClientCa, Listener, Protocol, Routes},
};

/// Why the manager does not start or has stopped: one message each, with what to do.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    #[error("{0}")]
    Flag(String),
    #[error("cannot use the kubeconfig {path}: {reason}; name another with --kubeconfig")]
    Kubeconfig { path: String, reason: String },
    #[error(
        "found no cluster to work in: {0}; run in a pod with a service account, or name a kubeconfig with --kubeconfig"
    )]
    NoCluster(String),
    #[error(
        "cannot reach the apiserver at {url}: {reason}; check that it runs and that the kubeconfig names it rightly"
    )]
    Unreachable { url: String, reason: String },
    #[error("cannot ask the apiserver which kinds it serves: {0}")]
    Discovery(String),
    #[error(
        "the cluster does not serve {}; install them with `clusterctl init` or `slipway manifests --crds | kubectl apply \
         --server-side -f -`",
        .0.join(", ")
    )]
    MissingCrds(Vec<String>),
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Election(#[from] InvalidElection),
    #[error("leader election needs a namespace outside a pod: name one with --leader-election-namespace")]
    NoElectionNamespace,
    #[error("leader election lost: stopping, so that the next leader works alone")]
    LostLeadership,
    #[error("controller {name} has ended: {reason}")]
    Controller { name: String, reason: String },
    #[error("cannot handle signals: {0}")]
    Signals(std::io::Error),
}

/// Providers and what to do with them.
#[derive(Debug)]
pub struct Manager {
    providers: Vec<Provider>,
    options: Options,
}

/// A manager that has its ports and knows its cluster, and does not serve yet.
pub struct Bound {
    manager: Manager,
    config: Config,
    client: kube::Client,
    metrics: Metrics,
    verbosity: Verbosity,
    webhook: Option<(Listener, Arc<Certificates>)>,
    health: Option<Listener>,
    diagnostics: Option<Listener>,
}

/// Where a bound manager can be reached.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// Absent if no provider has a webhook or hook.
    pub webhook: Option<SocketAddr>,
    pub health: Option<SocketAddr>,
    pub diagnostics: Option<SocketAddr>,
}

/// How the identity of every manager begins, in its lease.
pub const IDENTITY_PREFIX: &str = "slipway";

/// A little more than a controller gives its reconciles.
const BACKGROUND_GRACE: Duration = Duration::from_secs(25);

/// Go's way to turn a server off.
fn is_off(address: &str) -> bool {
    address.is_empty() || address == "0"
}

/// Names a self-signed certificate is good for: this machine, and the host it is reached by.
pub fn local_names(host: &str) -> Vec<String> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    if !host.is_empty() && !names.iter().any(|name| name == host) {
        names.push(host.to_owned());
    }
    names
}

impl Manager {
    pub fn new(providers: Vec<Provider>, options: Options) -> Self {
        Self { providers, options }
    }

    /// Reads what [`command`] parsed.
    pub fn from_matches(providers: Vec<Provider>, matches: &clap::ArgMatches) -> Result<Self, ManagerError> {
        let options = Options::read(matches, &providers)?;
        Ok(Self::new(providers, options))
    }

    /// Checks everything that can be wrong, and takes the ports.
    pub async fn bind(self) -> Result<Bound, ManagerError> {
        let Self { providers, options } = &self;
        let verbosity = logs::start(options.format, options.verbosity);
        certificates::install_crypto_provider();
        let packages = select_to_run(providers, &options.providers)?;
        if options.leader_elect {
            self.election(&packages)?.validate()?;
        }
        let config = connect::configuration(options.kubeconfig.as_deref()).await?;
        let metrics = Metrics::new();
        crate::process::register(&metrics);
        let client = connect::plain_client(&config, &metrics)?;

        let needs_server = packages.iter().any(|package| {
            !package.admission.is_empty() || !package.conversion.is_empty() || !package.hooks.is_empty()
        });
        let webhook = if needs_server {
            if options.self_signed {
                certificates::ensure_self_signed(&options.certificates, &local_names(&options.webhook_host))?;
            }
            let certificates = Arc::new(Certificates::load(&options.certificates)?);
            let host = &options.webhook_host;
            let host = if host.contains(':') {
                format!("[{host}]")
            } else {
                host.clone()
            };
            let address = format!("{host}:{}", options.webhook_port);
            Some((Listener::bind(&address, "--webhook-port").await?, certificates))
        } else {
            None
        };
        let health = match options.health_address.as_str() {
            address if is_off(address) => None,
            address => Some(Listener::bind(address, "--health-addr").await?),
        };
        let diagnostics = match options.diagnostics_address.as_str() {
            address if is_off(address) => None,
            address => Some(Listener::bind(address, "--diagnostics-address").await?),
        };

        let version = connect::reach(&config, &client).await?;
        connect::require_crds(&client, &packages).await?;
        tracing::info!(
            version = crate::build::THIS.version,
            commit = crate::build::THIS.commit.unwrap_or("unknown"),
            kubernetes = version,
            packages = packages
                .iter()
                .map(|package| package.identity())
                .collect::<Vec<_>>()
                .join(","),
            "Starting manager"
        );
        for ignored in &options.ignored {
            tracing::warn!("Ignoring {ignored}");
        }
        if options.profiler_address.is_some() {
            tracing::warn!(
                "Ignoring --profiler-address: take profiles from outside, with perf or a debugger"
            );
        }
        Ok(Bound {
            manager: self,
            config,
            client,
            metrics,
            verbosity,
            webhook,
            health,
            diagnostics,
        })
    }

    fn election(&self, packages: &[&Package]) -> Result<Election, ManagerError> {
        let options = &self.options;
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Ok(Election {
            namespace: options
                .leader_election_namespace
                .clone()
                .or_else(connect::own_namespace)
                .ok_or(ManagerError::NoElectionNamespace)?,
            name: lease_name(packages),
            // By its beginning another autoscaler's lease is told from ours.
            identity: format!("{IDENTITY_PREFIX}_{}_{}", host.trim(), Random::system().uuid()),
            lease_duration: options.lease_duration,
            renew_deadline: options.renew_deadline,
            retry_period: options.retry_period,
        })
    }

    /// Binds and runs until SIGTERM or SIGINT.
    pub async fn run_until_signalled(self) -> Result<(), ManagerError> {
        let stop = CancellationToken::new();
        let signals = stop.clone();
        let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
            .map_err(ManagerError::Signals)?;
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
            tracing::info!("Shutting down: a second signal stops at once");
            signals.cancel();
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
            std::process::exit(1);
        });
        self.bind().await?.run(stop).await
    }
}

/// Servers that run beside the controllers, and the token that stops them.
struct Servers {
    tasks: JoinSet<()>,
    stop: CancellationToken,
}

impl Bound {
    pub fn addresses(&self) -> Addresses {
        Addresses {
            webhook: self.webhook.as_ref().map(|(listener, _)| listener.address()),
            health: self.health.as_ref().map(Listener::address),
            diagnostics: self.diagnostics.as_ref().map(Listener::address),
        }
    }

    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Serves at once, campaigns, runs the controllers while it leads, and stops in order: controllers, lease,
    /// servers.
    pub async fn run(self, stop: CancellationToken) -> Result<(), ManagerError> {
        let options = self.manager.options.clone();
        let providers = &self.manager.providers;
        let packages = select_to_run(providers, &options.providers)?;
        let health = Health::default();
        health.live.add("ping", || Ok(()));
        health.ready.add("ping", || Ok(()));

        let campaigning = CancellationToken::new();
        let mut identity = None;
        let (mut leadership, campaign) = if options.leader_elect {
            let election = self.manager.election(&packages)?;
            identity = Some(election.identity.clone());
            let store = ApiServerLease::new(self.client.clone(), &election.namespace, &election.name);
            let name = NameLabel {
                name: election.name.clone(),
            };
            let seed = Random::system().next();
            let (campaign, leadership) = Campaign::new(election, Arc::new(store), Clock::system(), seed);
            let gauge = self.metrics.leader_status.clone();
            let asked = leadership.clone();
            self.metrics.before_reading(move || {
                gauge.get_or_create(&name).set(i64::from(asked.is_leading()));
                true
            });
            (leadership, Some(tokio::spawn(campaign.run(campaigning.clone()))))
        } else {
            (Leadership::always(), None)
        };
        let client =
            connect::controller_client(&self.config, &self.metrics, options.rate, leadership.clone())?;
        let working = CancellationToken::new();
        let mut context = Context::new(
            client,
            options.settings.clone(),
            self.metrics.clone(),
            working.clone(),
        );
        context.leadership = leadership.clone();
        context.identity = identity.map(Into::into);
        let background = context.background.clone();
        let leads = leadership.clone();
        let informers = context.informers.clone();
        health.ready.add("informers", move || {
            // A replica that stands by has nothing to watch; its webhooks are ready.
            let unsynced = if leads.is_leading() {
                informers.unsynced()
            } else {
                Vec::new()
            };
            if unsynced.is_empty() {
                Ok(())
            } else {
                Err(format!("waiting for the first list of {}", unsynced.join(", ")))
            }
        });
        let runs: Vec<_> = packages
            .iter()
            .flat_map(|package| &package.controllers)
            .map(|controller| (controller.name, controller.run.clone()))
            .collect();
        let gates = &options.settings.gates;
        let routes = Routes::new(
            packages.iter().copied(),
            self.client.clone(),
            gates,
            &self.metrics,
        );
        let routes = Arc::new(routes.require_certificates_for_hooks(options.hook_clients.is_some()));
        let servers = self.serve(&health, routes, &context)?;

        let result = work(runs, context, &mut leadership, &stop).await;
        working.cancel();
        // Without the lease there is no time to wait: the fence refuses every write.
        if result.is_ok() {
            end_background(&background).await;
        }
        campaigning.cancel();
        if let Some(campaign) = campaign {
            finish(campaign).await;
        }
        servers.stop().await;
        tracing::info!("Stopped manager");
        result
    }

    /// Starts every server.
    fn serve(self, health: &Health, routes: Arc<Routes>, context: &Context) -> Result<Servers, ManagerError> {
        let options = self.manager.options;
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        if let Some((listener, certificates)) = self.webhook {
            let protocol = tls(&options, certificates.clone(), options.hook_clients.as_ref())?;
            let serving = Arc::new(AtomicBool::new(false));
            for checks in [&health.live, &health.ready] {
                let serving = serving.clone();
                checks.add("webhook", move || {
                    serving
                        .load(Ordering::Relaxed)
                        .then_some(())
                        .ok_or_else(|| "not serving".to_owned())
                });
            }
            tracing::info!(address = %listener.address(), "Serving webhook server");
            tasks.spawn(certificates.follow(options.certificates.clone(), stop.clone()));
            let stopping = stop.clone();
            tasks.spawn(async move {
                serving.store(true, Ordering::Relaxed);
                listener
                    .serve(protocol, move |request| routes.clone().answer(request), stopping)
                    .await;
                serving.store(false, Ordering::Relaxed);
            });
        }
        if let Some(listener) = self.health {
            let health = health.clone();
            let answer = move |request| std::future::ready(diagnostics::answer_probe(&health, &request));
            tasks.spawn(listener.serve(Protocol::Plain, answer, stop.clone()));
        }
        if let Some(listener) = self.diagnostics {
            let secure = !options.insecure_diagnostics;
            let diagnostics = Diagnostics {
                metrics: self.metrics,
                plans: context.plans.clone(),
                previews: context.previews.clone(),
                answers: context.answers.clone(),
                verbosity: self.verbosity,
                gate: secure.then(|| Arc::new(Gatekeeper::new(self.client))),
            };
            let protocol = if secure {
                let pair = SelfSigned::generate(&["localhost".to_owned()])?;
                let certificates = pair.certificates().map_err(|reason| {
                    ManagerError::Certificate(CertificateError::Unusable {
                        directory: "memory".to_owned(),
                        reason,
                    })
                })?;
                tls(&options, Arc::new(certificates), None)?
            } else {
                Protocol::Plain
            };
            tracing::info!(address = %listener.address(), secure, "Serving metrics server");
            let answer = move |request| diagnostics.clone().answer(request);
            tasks.spawn(listener.serve(protocol, answer, stop.clone()));
        }
        Ok(Servers { tasks, stop })
    }
}

impl Servers {
    async fn stop(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

fn tls(
    options: &Options,
    certificates: Arc<Certificates>,
    clients: Option<&ClientCa>,
) -> Result<Protocol, ManagerError> {
    Protocol::tls_for(
        certificates,
        &options.tls_minimum.versions(),
        &options.cipher_suites,
        clients,
    )
    .map_err(|reason| ManagerError::Flag(format!("--tls-cipher-suites: {reason}")))
}

/// Waits to lead, runs every controller, and ends when one of them ends, when leadership is lost, or in order when
/// stopped.
async fn work(
    runs: Vec<(&'static str, crate::controller::Run)>,
    context: Context,
    leadership: &mut Leadership,
    stop: &CancellationToken,
) -> Result<(), ManagerError> {
    tokio::select! {
        () = stop.cancelled() => return Ok(()),
        () = leadership.won() => {}
    }
    let mut controllers = JoinSet::new();
    for (name, run) in runs {
        tracing::info!(controller = name, "Starting Controller");
        let context = context.clone();
        controllers.spawn(async move { (name, run(context).await) });
    }
    loop {
        tokio::select! {
            biased;
            // What is dropped here stops at its next await, well before another process may lead.
            () = leadership.lost() => {
                controllers.abort_all();
                return Err(ManagerError::LostLeadership);
            }
            () = stop.cancelled(), if !context.shutdown.is_cancelled() => {
                context.shutdown.cancel();
            }
            ended = controllers.join_next(), if !controllers.is_empty() => {
                let stopping = context.shutdown.is_cancelled();
                match ended {
                    Some(Ok((name, Err(error)))) => {
                        return Err(ManagerError::Controller { name: name.to_owned(), reason: format!("{error:#}") });
                    }
                    Some(Ok((name, Ok(())))) if !stopping => {
                        return Err(ManagerError::Controller { name: name.to_owned(), reason: "without being asked".to_owned() });
                    }
                    Some(Err(panic)) if !stopping => {
                        return Err(ManagerError::Controller { name: "task".to_owned(), reason: panic.to_string() });
                    }
                    _ => {}
                }
            }
            else => return Ok(()),
        }
        if context.shutdown.is_cancelled() && controllers.is_empty() {
            return Ok(());
        }
    }
}

/// Lets what goes on beside the controllers end, as they did, before another process may lead.
async fn end_background(background: &TaskTracker) {
    background.close();
    if tokio::time::timeout(BACKGROUND_GRACE, background.wait())
        .await
        .is_err()
    {
        tracing::warn!(
            unfinished = background.len(),
            "Stopping work in workload clusters that did not end in time"
        );
    }
}

/// Lets the campaign give the lease back.
async fn finish(campaign: JoinHandle<()>) {
    if tokio::time::timeout(Duration::from_secs(10), campaign)
        .await
        .is_err()
    {
        tracing::warn!("Ended without giving the lease back: it will expire by itself");
    }
}
