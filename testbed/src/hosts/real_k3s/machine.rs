//! One host: a disk in a folder, and while it has power processes in namespaces of their own that see nothing else.
//! What happens on it is told to the platform through pipes; the platform answers, and lets it into the endpoint.

use std::{
    collections::BTreeMap,
    fs, io,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustix::{
    fs::{CWD, FileType, Mode, mknodat},
    process::{Pid, Signal, kill_process},
};
use slipway_k3s_sim::Config;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{UnixDatagram, unix::pipe},
    sync::watch,
    task::JoinSet,
};

use super::{
    Site,
    image::{self, PLATFORM},
    kubelet::{self, Kubelet},
    network::{GATEWAY, program},
};
use crate::{
    balancer,
    hosts::backend::Booting,
    process::{Process, Program},
};

/// Where k3s serves on every server.
const PORT: u16 = 6443;
/// A hang guard; killing takes milliseconds.
const DEADLINE: Duration = Duration::from_secs(20);

pub struct Machine {
    pub booting: Booting,
    pub address: Ipv4Addr,
    root: PathBuf,
    logs: PathBuf,
    cable: String,
    power: Mutex<Option<Power>>,
    state: Mutex<State>,
    /// Whether its cable is plugged in.
    connected: watch::Sender<bool>,
}

/// What ends when the power does.
struct Power {
    process: Process,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct State {
    is_up: bool,
    failure: Option<String>,
}

/// What the platform hears a host by, and answers with.
struct Line {
    requests: pipe::Receiver,
    answers: pipe::Sender,
    notifications: UnixDatagram,
}

impl Machine {
    /// A new host whose disk holds what its image brings and what its userdata asks for.
    pub fn new(site: &Site, number: usize, booting: &Booting) -> io::Result<Machine> {
        let text = String::from_utf8_lossy(&booting.bootstrap_data);
        let instance = slipway_k3s_sim::Instance {
            hostname: booting.name.clone(),
            instance_id: booting.name.clone(),
            zone: booting.failure_domain.clone(),
        };
        let userdata = slipway_k3s_sim::Userdata::read(&text, &instance)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
        let address = booting
            .address
            .parse()
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a host has an IPv4 address"))?;
        let root = site.directory.join(format!("h{number}"));
        let logs = site.logs.join(&booting.name);
        fs::create_dir_all(&logs)?;
        fs::create_dir(&root)?;
        image::lay_out(&root, &userdata, &booting.version)?;
        Ok(Machine {
            booting: booting.clone(),
            address,
            root,
            logs,
            cable: format!("cable{number}"),
            power: Mutex::default(),
            state: Mutex::default(),
            connected: watch::Sender::new(true),
        })
    }

    /// Why k3s does not run on it, as far as it is known.
    pub fn failure(&self) -> Option<String> {
        self.state.lock().failure.clone()
    }

    pub fn is_up(&self) -> bool {
        self.state.lock().is_up
    }

    pub fn has_power(&self) -> bool {
        self.power.lock().is_some()
    }

    /// What a file of its disk holds.
    pub fn read(&self, path: &str) -> io::Result<String> {
        fs::read_to_string(self.root.join(path.trim_start_matches('/')))
    }

    /// What k3s finds of its configuration on the disk.
    fn config(&self) -> io::Result<Config> {
        let mut files = BTreeMap::new();
        let mut paths = vec![self.root.join("etc/rancher/k3s/config.yaml")];
        if let Ok(folder) = fs::read_dir(self.root.join("etc/rancher/k3s/config.yaml.d")) {
            paths.extend(folder.flatten().map(|entry| entry.path()));
        }
        for path in paths {
            let name = format!("/{}", path.strip_prefix(&self.root).unwrap_or(&path).display());
            files.insert(name, fs::read(&path)?);
        }
        Config::read(&files).map_err(|error| io::Error::other(error.to_string()))
    }

    /// The token by which it knows its cluster.
    pub fn token(&self) -> Option<String> {
        self.config().ok().map(|config| config.token)
    }

    /// Gives it power; one that has it goes on as it is.
    pub fn power_on(self: &Arc<Self>, site: &Arc<Site>) -> io::Result<()> {
        let mut power = self.power.lock();
        if power.is_some() {
            return Ok(());
        }
        let line = self.line()?;
        let process = Process::start(&site.launcher, &site.logs, self.program(site)?)?;
        let mut tasks = JoinSet::new();
        let id = process.id();
        tasks.spawn(attend(Arc::clone(self), Arc::clone(site), line, id));
        *power = Some(Power {
            process,
            _tasks: tasks,
        });
        Ok(())
    }

    /// What a host forgets when it loses power is made again.
    fn line(&self) -> io::Result<Line> {
        let run = self.root.join("run");
        if run.exists() {
            fs::remove_dir_all(&run)?;
        }
        let platform = self.root.join(PLATFORM);
        fs::create_dir_all(&platform)?;
        let pipe = |name: &str| -> io::Result<PathBuf> {
            let path = platform.join(name);
            mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
            Ok(path)
        };
        Ok(Line {
            // Both ends are held open, so that nobody finds the other one closed.
            requests: pipe::OpenOptions::new()
                .read_write(true)
                .open_receiver(pipe("requests")?)?,
            answers: pipe::OpenOptions::new()
                .read_write(true)
                .open_sender(pipe("answers")?)?,
            notifications: UnixDatagram::bind(platform.join("notify"))?,
        })
    }

    fn program(&self, site: &Site) -> io::Result<Program> {
        let text = |path: &Path| path.display().to_string();
        let mut arguments: Vec<String> = [
            "--net",
            "--mount",
            "--uts",
            "--",
            "sh",
            "-c",
            image::POWER_ON,
            "sh",
        ]
        .map(str::to_owned)
        .into();
        arguments.extend([
            text(&self.root),
            text(&self.logs),
            self.booting.name.clone(),
            self.address.to_string(),
            self.cable.clone(),
            site.switch.id().to_string(),
            GATEWAY.to_owned(),
        ]);
        for release in site.releases.iter() {
            arguments.extend([release.version.clone(), text(&release.path)]);
        }
        Ok(Program {
            name: self.booting.name.clone(),
            path: program("unshare")?,
            arguments,
            environment: BTreeMap::new(),
        })
    }

    /// Takes its power away, as if the cable were pulled. When this ends, nothing of it runs.
    pub fn power_off(&self, site: &Site) {
        site.balancer.down(&self.booting.name);
        self.state.lock().is_up = false;
        let Some(power) = self.power.lock().take() else {
            return;
        };
        let id = power.process.id();
        // With the first process of a namespace the kernel ends all others in it, and only then itself.
        for child in children(id) {
            if let Some(child) = i32::try_from(child).ok().and_then(Pid::from_raw) {
                let _ = kill_process(child, Signal::KILL);
            }
        }
        let started = Instant::now();
        while power.process.ended().is_none() && started.elapsed() < DEADLINE {
            std::thread::sleep(Duration::from_millis(5));
        }
        power.process.kill();
    }

    /// Pulls the cable out of the switch, or plugs it in again: the host runs on and reaches no other host. What stands in
    /// for its kubelet is silent meanwhile.
    pub fn connect(&self, site: &Site, connected: bool) -> io::Result<()> {
        let state = if connected { "up" } else { "down" };
        let namespace = format!("--net={}", site.switch.namespace().display());
        let set = std::process::Command::new(program("nsenter")?)
            .args([&namespace, "ip", "link", "set", &self.cable, state])
            .output()?;
        if !set.status.success() {
            return Err(io::Error::other(format!(
                "the cable of {} cannot be set {state}: {}",
                self.booting.name,
                String::from_utf8_lossy(&set.stderr)
            )));
        }
        self.connected.send_replace(connected);
        Ok(())
    }

    /// Everything that runs on it.
    pub fn processes(&self) -> Vec<u32> {
        let Ok(all) = fs::read_dir("/proc") else {
            return Vec::new();
        };
        all.flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|id: &u32| fs::read_link(format!("/proc/{id}/root")).is_ok_and(|root| root == self.root))
            .collect()
    }

    /// Removes its disk.
    pub fn scrap(&self, site: &Site) -> io::Result<()> {
        self.power_off(site);
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let root = self.root.display().to_string();
        // It would be somebody else's disk that is removed.
        if mounts
            .lines()
            .any(|line| line.split(' ').nth(4).is_some_and(|at| at.starts_with(&root)))
        {
            return Err(io::Error::other(format!("something is mounted below {root}")));
        }
        match fs::remove_dir_all(&self.root) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn failed(&self, why: String) {
        tracing::warn!(host = self.booting.name, why, "k3s does not come up");
        self.state.lock().failure = Some(why);
    }

    fn kubelet(&self, config: &Config, version: &str) -> Kubelet {
        let machine = slipway_k3s_sim::Machine {
            name: self.booting.name.clone(),
            provider_id: self.booting.provider_id.clone(),
            failure_domain: self.booting.failure_domain.clone(),
            image_version: None,
            labels: self.booting.labels.clone(),
            capacity: self.booting.capacity.clone(),
        };
        Kubelet {
            name: config
                .node_name
                .clone()
                .unwrap_or_else(|| self.booting.name.clone()),
            version: version.to_owned(),
            with: slipway_k3s_sim::Registration::new(&machine, config, &self.address.to_string()),
        }
    }
}

fn children(process: u32) -> Vec<u32> {
    fs::read_to_string(format!("/proc/{process}/task/{process}/children"))
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|child| child.parse().ok())
        .collect()
}

/// What the platform knows of a host that has power.
struct Attendant {
    machine: Arc<Machine>,
    site: Arc<Site>,
    process: u32,
    answers: pipe::Sender,
    /// Whether an installer waits for k3s to be up.
    is_asked: bool,
    version: String,
    kubelet: JoinSet<()>,
}

/// Listens to a host as long as it has power.
async fn attend(machine: Arc<Machine>, site: Arc<Site>, line: Line, process: u32) {
    let mut attendant = Attendant {
        machine,
        site,
        process,
        answers: line.answers,
        is_asked: false,
        version: String::new(),
        kubelet: JoinSet::new(),
    };
    let mut requests = BufReader::new(line.requests).lines();
    let mut notification = [0; 512];
    let mut connected = attendant.machine.connected.subscribe();
    loop {
        tokio::select! {
            Ok(()) = connected.changed() => attendant.cable_changed(),
            request = requests.next_line() => match request {
                Ok(Some(request)) => attendant.hear(&request).await,
                _ => return,
            },
            received = line.notifications.recv(&mut notification) => match received {
                Ok(length) => {
                    if String::from_utf8_lossy(&notification[..length]).lines().any(|word| word == "READY=1") {
                        attendant.server_is_up().await;
                    }
                }
                Err(_) => return,
            },
        }
    }
}

impl Attendant {
    async fn hear(&mut self, request: &str) {
        tracing::debug!(host = self.machine.booting.name, request, "A host says");
        let mut words = request.split_whitespace();
        match (words.next(), words.next()) {
            (Some("network"), _) => {
                let namespace = PathBuf::from(format!("/proc/{}/ns/net", self.process));
                let listening = balancer::listen_in(&namespace, self.site.endpoint)
                    .and_then(|listener| self.site.balancer.listen(listener));
                match listening {
                    Ok(()) => self.answer("ready").await,
                    Err(error) => self
                        .machine
                        .failed(format!("its network does not come up: {error}")),
                }
            }
            (Some("start"), Some(role)) => {
                self.is_asked = true;
                words.next().unwrap_or_default().clone_into(&mut self.version);
                if role == "agent" {
                    self.join_as_agent().await;
                }
            }
            (Some("exited"), status) => {
                self.kubelet.abort_all();
                self.site.balancer.down(&self.machine.booting.name);
                self.machine.state.lock().is_up = false;
                self.machine
                    .failed(format!("k3s ended with {}", status.unwrap_or("?")));
                self.answer_if_asked("failed").await;
            }
            (Some("refused"), Some(status)) if !self.machine.is_up() => {
                self.machine.failed(format!("the installer ended with {status}"));
            }
            _ => {}
        }
    }

    async fn answer(&mut self, answer: &str) {
        // A host that has gone needs no answer.
        let _ = self.answers.write_all(format!("{answer}\n").as_bytes()).await;
    }

    async fn answer_if_asked(&mut self, answer: &str) {
        if std::mem::take(&mut self.is_asked) {
            self.answer(answer).await;
        }
    }

    fn is_up(&self) {
        let mut state = self.machine.state.lock();
        state.is_up = true;
        state.failure = None;
    }

    async fn server_is_up(&mut self) {
        self.run_after_start().await;
        self.answer_if_asked("ready").await;
        self.is_up();
        self.serve();
    }

    /// What drop-ins of the unit run when k3s says that it is up.
    async fn run_after_start(&self) {
        let Ok(nsenter) = program("nsenter") else {
            return;
        };
        let commands =
            "sed -n 's/^ExecStartPost=-*//p' /etc/systemd/system/k3s.service.d/*.conf 2> /dev/null | sh";
        // What is mounted on its disk is seen by nobody else.
        let ran = tokio::process::Command::new(nsenter)
            .args(["--target", &self.process.to_string(), "--mount", "chroot"])
            .arg(&self.machine.root)
            .args(["/bin/sh", "-c", commands])
            .status()
            .await;
        if !ran.is_ok_and(|status| status.success()) {
            tracing::warn!(
                host = self.machine.booting.name,
                "what runs after the start of k3s failed"
            );
        }
    }

    fn cable_changed(&mut self) {
        if !*self.machine.connected.borrow() {
            self.kubelet.abort_all();
            self.site.balancer.down(&self.machine.booting.name);
        } else if self.machine.is_up() {
            self.serve();
        }
    }

    /// Lets a server that is up into the endpoint, with a kubelet beside it.
    fn serve(&mut self) {
        if !*self.machine.connected.borrow() {
            return;
        }
        let address = SocketAddr::from((self.machine.address, PORT));
        self.site.balancer.up(&self.machine.booting.name, address);
        self.kubelet.abort_all();
        let endpoint = format!("https://{}", self.site.endpoint);
        let started = self.machine.config().and_then(|config| {
            let identities = kubelet::of_server(&self.machine, &endpoint)?;
            Ok((self.machine.kubelet(&config, &self.version), identities))
        });
        match started {
            Ok((kubelet, (own, administrator))) => {
                self.kubelet.spawn(kubelet.run(own, Some(administrator)));
            }
            Err(error) => self.machine.failed(format!("no kubelet can be started: {error}")),
        }
    }

    async fn join_as_agent(&mut self) {
        let joined = match self.machine.config() {
            Ok(config) => {
                let kubelet = self.machine.kubelet(&config, &self.version);
                kubelet::of_agent(&config, &kubelet.name)
                    .await
                    .map(|identity| (kubelet, identity))
            }
            Err(error) => Err(error),
        };
        match joined {
            Ok((kubelet, identity)) => {
                self.kubelet.spawn(kubelet.run(identity, None));
                self.is_up();
                self.answer_if_asked("ready").await;
            }
            Err(error) => {
                self.machine.failed(format!("the agent does not join: {error}"));
                self.answer_if_asked("failed").await;
            }
        }
    }
}
