//! `slipway up`: a real management cluster on this machine, with Slipway in it, until Ctrl-C. It starts the `testbed`
//! program and the manager as processes of their own and links neither.

use std::{
    env,
    io::{BufRead, BufReader, Read},
    net::TcpListener,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use clap::{Arg, ArgAction, ArgMatches};
use serde_json::Value;
use slipway_render::local_objects;
use slipway_runtime::{Provider, certificates::SelfSigned, install};
use tokio::signal::unix::{SignalKind, signal};

use crate::{examples, stands::Stands};

/// A hang guard: a manager is ready within seconds.
const READY_DEADLINE: Duration = Duration::from_mins(2);

pub fn command() -> clap::Command {
    clap::Command::new("up")
        .about("Run a management cluster on this machine with Slipway in it, until Ctrl-C")
        .arg(
            Arg::new("exit-when-ready")
                .long("exit-when-ready")
                .action(ArgAction::SetTrue)
                .help("Stop everything and exit 0 once all is up"),
        )
        .arg(
            Arg::new("testbed")
                .long("testbed")
                .value_name("PATH")
                .env("SLIPWAY_TESTBED_PROGRAM")
                .value_parser(clap::value_parser!(PathBuf))
                .help("The testbed program; looked for beside this one if absent"),
        )
}

/// Says what is going on: which step of how many, and how long the last one took.
struct Steps {
    total: usize,
    done: usize,
    started: Instant,
}

impl Steps {
    fn next(&mut self, what: &str) {
        self.done += 1;
        println!("[{}/{}] {what}", self.done, self.total);
    }
}

/// What `testbed run` says of the cluster it started.
pub struct Cluster {
    testbed: Child,
    kubeconfig: PathBuf,
    pub directory: PathBuf,
    pub logs: PathBuf,
    pub parts: PathBuf,
    /// Where the simulated K3s hosts can be looked at and switched off.
    k3s: String,
}

/// A process that ends with this one.
struct Manager {
    process: Child,
    log: PathBuf,
}

#[tokio::main(flavor = "current_thread")]
pub async fn run(providers: &[Provider], matches: &ArgMatches) -> Result<(), String> {
    let has_examples = providers.iter().any(|provider| !provider.examples.is_empty());
    let mut steps = Steps {
        total: 3 + usize::from(has_examples),
        done: 0,
        started: Instant::now(),
    };
    let testbed = testbed_program(matches)?;
    let mut terminate =
        signal(SignalKind::terminate()).map_err(|error| format!("cannot handle signals: {error}"))?;

    steps.next("Starting Kubernetes and Cluster API");
    let mut cluster = start_cluster(&testbed)?;
    let result = tokio::select! {
        result = work(providers, matches, &cluster, &mut steps) => result,
        _ = tokio::signal::ctrl_c() => Ok(()),
        _ = terminate.recv() => Ok(()),
    };
    println!("Stopping");
    stop_cluster(&mut cluster);
    result
}

async fn work(
    providers: &[Provider],
    matches: &ArgMatches,
    cluster: &Cluster,
    steps: &mut Steps,
) -> Result<(), String> {
    let certificates = cluster.directory.join("slipway-certificates");
    let port = free_port()?;
    let names: Vec<String> = ["localhost", "127.0.0.1"].map(str::to_owned).into();
    let pair = SelfSigned::generate(&names).map_err(|error| error.to_string())?;
    pair.write(&certificates).map_err(|error| error.to_string())?;

    steps.next("Installing Slipway's CRDs and webhooks");
    let packages = providers.iter().flat_map(|provider| &provider.packages);
    let objects = local_objects(packages, &format!("https://127.0.0.1:{port}"), &pair.authority)
        .map_err(|error| format!("rendering CRDs and webhooks: {error}"))?;
    let client = client(&cluster.kubeconfig).await?;
    install::apply(&client, &objects)
        .await
        .map_err(|error| error.to_string())?;

    let stands = Stands::start(providers, cluster)?;
    steps.next("Starting the manager");
    let health = free_port()?;
    let mut manager = start_manager(cluster, &certificates, port, health, &stands)?;
    let result = match wait_until_ready(&mut manager, health).await {
        Ok(()) => show(providers, matches, cluster, &mut manager, steps, &client, &stands).await,
        Err(message) => Err(message),
    };
    stop_manager(&mut manager);
    result
}

/// Says how to go on, shows the examples, and stays until the manager ends. An example is a cluster of its own and
/// takes as long as clusters do; nobody has to wait for it.
async fn show(
    providers: &[Provider],
    matches: &ArgMatches,
    cluster: &Cluster,
    manager: &mut Manager,
    steps: &mut Steps,
    client: &kube::Client,
    stands: &Stands,
) -> Result<(), String> {
    print_summary(providers, cluster, manager, steps.started.elapsed());
    if steps.total > steps.done {
        steps.next("Applying examples");
        for provider in providers {
            if stands.missing.contains(&provider.name) {
                println!("  {} has no examples without its simulator", provider.name);
                continue;
            }
            for example in &provider.examples {
                examples::show(client, example).await?;
            }
        }
        println!("The examples are up.");
    }
    println!("\nCtrl-C stops everything.");
    if matches.get_flag("exit-when-ready") {
        Ok(())
    } else {
        wait_for_end(manager).await
    }
}

fn testbed_program(matches: &ArgMatches) -> Result<PathBuf, String> {
    if let Some(path) = matches.get_one::<PathBuf>("testbed") {
        return Ok(path.clone());
    }
    let own = env::current_exe().map_err(|error| format!("cannot tell where this program is: {error}"))?;
    let beside = own.with_file_name("testbed");
    if beside.is_file() {
        return Ok(beside);
    }
    Err(format!(
        "there is no testbed program at {}; build it with `cargo build -p slipway-testbed`, or name it with --testbed",
        beside.display()
    ))
}

/// Runs `testbed run`, whose own progress goes straight to the terminal, until it has described the cluster.
fn start_cluster(program: &Path) -> Result<Cluster, String> {
    let mut testbed = Command::new(program)
        .args(["run", "--name", "up", "--with", "capi,kubeadm,scheduler,kwok,k3s"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // Ctrl-C in a terminal reaches the whole group; the cluster is stopped last, by us.
        .process_group(0)
        .spawn()
        .map_err(|error| format!("cannot start {}: {error}", program.display()))?;
    let mut line = String::new();
    let output = testbed.stdout.take().ok_or("the testbed has no output")?;
    BufReader::new(output)
        .read_line(&mut line)
        .map_err(|error| format!("reading what the testbed says: {error}"))?;
    let description: Value = match serde_json::from_str(&line) {
        Ok(description) => description,
        Err(_) => {
            let _ = testbed.wait();
            return Err("the cluster did not start; the message above says why".to_owned());
        }
    };
    let path = |field: &str| PathBuf::from(description[field].as_str().unwrap_or_default());
    Ok(Cluster {
        testbed,
        kubeconfig: path("kubeconfig"),
        directory: path("directory"),
        logs: path("logs"),
        parts: path("parts"),
        k3s: description["k3s"].as_str().unwrap_or_default().to_owned(),
    })
}

/// The testbed stops its processes and removes their directory when its standard input closes.
fn stop_cluster(cluster: &mut Cluster) {
    drop(cluster.testbed.stdin.take());
    if let Err(error) = cluster.testbed.wait() {
        eprintln!("error: waiting for the testbed to stop: {error}");
    }
}

fn free_port() -> Result<u16, String> {
    let listener =
        TcpListener::bind("127.0.0.1:0").map_err(|error| format!("there is no free port: {error}"))?;
    Ok(listener.local_addr().map_err(|error| error.to_string())?.port())
}

async fn client(kubeconfig: &Path) -> Result<kube::Client, String> {
    slipway_runtime::certificates::install_crypto_provider();
    let wrong = |error: &dyn std::fmt::Display| format!("cannot use {}: {error}", kubeconfig.display());
    let file = kube::config::Kubeconfig::read_from(kubeconfig).map_err(|error| wrong(&error))?;
    let options = kube::config::KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(file, &options)
        .await
        .map_err(|error| wrong(&error))?;
    kube::Client::try_from(config).map_err(|error| wrong(&error))
}

/// Starts this same program as the manager. `launch` of the testbed's parts makes it end with us, however we end.
fn start_manager(
    cluster: &Cluster,
    certificates: &Path,
    port: u16,
    health: u16,
    stands: &Stands,
) -> Result<Manager, String> {
    let own = env::current_exe().map_err(|error| format!("cannot tell where this program is: {error}"))?;
    let log = cluster.logs.join("slipway.log");
    let output =
        std::fs::File::create(&log).map_err(|error| format!("cannot write {}: {error}", log.display()))?;
    let errors = output
        .try_clone()
        .map_err(|error| format!("cannot write {}: {error}", log.display()))?;
    let process = Command::new(cluster.parts.join("bin/launch"))
        .arg(std::process::id().to_string())
        .arg(own)
        .arg("manager")
        .arg("--kubeconfig")
        .arg(&cluster.kubeconfig)
        .arg("--webhook-host=127.0.0.1")
        .arg(format!("--webhook-port={port}"))
        .arg("--webhook-cert-dir")
        .arg(certificates)
        .arg(format!("--health-addr=127.0.0.1:{health}"))
        .arg("--diagnostics-address=0")
        .envs(stands.environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .process_group(0)
        .spawn()
        .map_err(|error| format!("cannot start the manager: {error}"))?;
    Ok(Manager { process, log })
}

impl Manager {
    /// What the log ends with, for a message.
    fn last_words(&self) -> String {
        let mut text = String::new();
        if let Ok(mut file) = std::fs::File::open(&self.log) {
            let _ = file.read_to_string(&mut text);
        }
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
    }

    fn ended(&mut self) -> Option<String> {
        let status = self.process.try_wait().ok().flatten()?;
        Some(format!("the manager ended ({status}):\n{}", self.last_words()))
    }
}

/// Asks `/readyz` until it says yes.
async fn wait_until_ready(manager: &mut Manager, port: u16) -> Result<(), String> {
    let deadline = Instant::now() + READY_DEADLINE;
    loop {
        if let Some(message) = manager.ended() {
            return Err(message);
        }
        if is_ready(port).await {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!(
                "the manager is not ready after two minutes:\n{}",
                manager.last_words()
            ));
        }
        // A poll, because a health endpoint has nothing to watch.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn is_ready(port: u16) -> bool {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let ask = async {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        stream
            .write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .await
            .ok()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.ok()?;
        answer.starts_with(b"HTTP/1.1 200").then_some(())
    };
    tokio::time::timeout(Duration::from_secs(2), ask)
        .await
        .is_ok_and(|answer| answer.is_some())
}

/// Stays until the manager ends, which it should not.
async fn wait_for_end(manager: &mut Manager) -> Result<(), String> {
    loop {
        if let Some(message) = manager.ended() {
            return Err(message);
        }
        // A poll, because a child started through the standard library is not awaited.
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// In order: the manager gives up its lease before the cluster goes.
fn stop_manager(manager: &mut Manager) {
    if let Some(id) = rustix::process::Pid::from_raw(i32::try_from(manager.process.id()).unwrap_or_default())
    {
        let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
    }
    let _ = manager.process.wait();
}

fn print_summary(providers: &[Provider], cluster: &Cluster, manager: &Manager, took: Duration) {
    let names: Vec<&str> = providers.iter().map(|provider| provider.name).collect();
    println!("\nReady after {:.1} s.\n", took.as_secs_f64());
    println!("  kubeconfig   {}", cluster.kubeconfig.display());
    println!(
        "  providers    {}",
        if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        }
    );
    println!("  manager log  {}", manager.log.display());
    println!("  test hosts   {}/clusters", cluster.k3s);
    println!("\nTry, in another terminal:\n");
    println!("  export KUBECONFIG={}", cluster.kubeconfig.display());
    println!(
        "  alias kubectl='{} kubectl'",
        cluster.parts.join("bin/kubernetes").display()
    );
    println!("  kubectl get crds");
    println!(
        "  {} describe cluster NAME",
        cluster.parts.join("bin/clusterctl").display()
    );
    println!();
}

impl Drop for Manager {
    /// Whatever ended the work early: no process stays.
    fn drop(&mut self) {
        if matches!(self.process.try_wait(), Ok(None)) {
            stop_manager(self);
        }
    }
}
