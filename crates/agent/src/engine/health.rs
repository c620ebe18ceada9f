//! The health policy of a slot on trial: what must be true of the new system, for how long, and by when.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use slipway_slots::machine::Health;

/// Decides about the booted slot; blocks until it has decided.
pub trait HealthCheck: Send {
    fn decide(&mut self) -> Health;
}

/// What a host's configuration says about health.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HealthPolicy {
    /// systemd units that must be active.
    pub units: Vec<String>,
    /// `http://host:port/path` that must answer with 200 to 399.
    pub http: Vec<String>,
    /// Commands that must end with 0, each a program and its arguments.
    pub commands: Vec<Vec<String>>,
    /// The kubelet's own health address; `http://127.0.0.1:10248/healthz` where there is one.
    pub kubelet: Option<String>,
    /// Everything must stay healthy for so long.
    pub soak_seconds: u64,
    /// What is not healthy by then, never will be.
    pub deadline_seconds: u64,
    /// How long one check may take.
    pub check_timeout_seconds: u64,
    pub interval_seconds: u64,
}

impl Default for HealthPolicy {
    fn default() -> Self {
        Self {
            units: Vec::new(),
            http: Vec::new(),
            commands: Vec::new(),
            kubelet: None,
            soak_seconds: 30,
            deadline_seconds: 600,
            check_timeout_seconds: 10,
            interval_seconds: 5,
        }
    }
}

/// Time, so that waiting can be tested without waiting.
pub trait Time: Send {
    /// Since some fixed moment; never goes back.
    fn elapsed(&self) -> Duration;
    fn sleep(&self, duration: Duration);
}

/// The machine's own time.
#[derive(Debug)]
pub struct MachineTime(Instant);

impl Default for MachineTime {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Time for MachineTime {
    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, duration: Duration) {
        std::thread::sleep(duration);
    }
}

/// Checks once everything the policy names; `Err` says what is not healthy.
pub trait Probe: Send {
    fn observe(&mut self) -> Result<(), String>;
}

/// Checks again and again: healthy for the soak time without a break, or unhealthy at the deadline.
#[derive(Debug)]
pub struct Soak<P, T> {
    pub probe: P,
    pub time: T,
    pub soak: Duration,
    pub deadline: Duration,
    pub interval: Duration,
}

impl<P: Probe, T: Time> HealthCheck for Soak<P, T> {
    fn decide(&mut self) -> Health {
        let began = self.time.elapsed();
        let mut healthy_since = None;
        loop {
            let observed = self.probe.observe();
            let now = self.time.elapsed();
            let problem = match observed {
                Ok(()) => {
                    let since = *healthy_since.get_or_insert(now);
                    if now.saturating_sub(since) >= self.soak {
                        return Health::Passed;
                    }
                    None
                }
                Err(problem) => {
                    healthy_since = None;
                    Some(problem)
                }
            };
            if now.saturating_sub(began) >= self.deadline {
                let reason = problem.unwrap_or_else(|| {
                    format!("it was not healthy for {} s without a break", self.soak.as_secs())
                });
                return Health::Failed(format!(
                    "not healthy within {} s: {reason}",
                    self.deadline.as_secs()
                ));
            }
            self.time.sleep(self.interval);
        }
    }
}

impl HealthPolicy {
    pub fn check(&self) -> Soak<SystemProbe, MachineTime> {
        Soak {
            probe: SystemProbe(self.clone()),
            time: MachineTime::default(),
            soak: Duration::from_secs(self.soak_seconds),
            deadline: Duration::from_secs(self.deadline_seconds),
            interval: Duration::from_secs(self.interval_seconds.max(1)),
        }
    }
}

/// Asks systemd, HTTP servers, the kubelet and commands.
#[derive(Clone, Debug)]
pub struct SystemProbe(pub HealthPolicy);

impl Probe for SystemProbe {
    fn observe(&mut self) -> Result<(), String> {
        let timeout = Duration::from_secs(self.0.check_timeout_seconds.max(1));
        for unit in &self.0.units {
            let argv = ["systemctl", "is-active", "--quiet", "--", unit].map(str::to_owned);
            run(&argv, timeout).map_err(|problem| format!("unit {unit}: {problem}"))?;
        }
        for url in &self.0.http {
            get(url, timeout).map_err(|problem| format!("{url}: {problem}"))?;
        }
        if let Some(url) = &self.0.kubelet {
            get(url, timeout).map_err(|problem| format!("kubelet at {url}: {problem}"))?;
        }
        for argv in &self.0.commands {
            run(argv, timeout).map_err(|problem| format!("command {}: {problem}", argv.join(" ")))?;
        }
        Ok(())
    }
}

/// Ends well within the time, or is killed.
fn run(argv: &[String], timeout: Duration) -> Result<(), String> {
    let (program, arguments) = argv.split_first().ok_or("it is empty")?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("cannot be started: {error}"))?;
    let began = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(status.to_string()),
            Ok(None) if began.elapsed() < timeout => std::thread::sleep(Duration::from_millis(20)),
            Ok(None) => {
                // It may end by itself in the same moment; then there is nothing to kill.
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("did not end within {} s", timeout.as_secs()));
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// A plain GET of a local address; the status line is all that is read.
fn get(url: &str, timeout: Duration) -> Result<(), String> {
    let rest = url
        .strip_prefix("http://")
        .ok_or("only http:// addresses are probed")?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let address = if host.contains(':') {
        host.to_owned()
    } else {
        format!("{host}:80")
    };
    let text = |error: std::io::Error| error.to_string();
    let address = address
        .to_socket_addrs()
        .map_err(text)?
        .next()
        .ok_or("the host has no address")?;
    let mut stream = TcpStream::connect_timeout(&address, timeout).map_err(text)?;
    stream.set_read_timeout(Some(timeout)).map_err(text)?;
    stream.set_write_timeout(Some(timeout)).map_err(text)?;
    // In one piece: a server that answers the first of several and closes would be taken for one that fails.
    let request = format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(text)?;
    let mut head = [0; 12];
    stream.read_exact(&mut head).map_err(text)?;
    let status = std::str::from_utf8(&head)
        .ok()
        .filter(|head| head.starts_with("HTTP/1."))
        .and_then(|head| head[9..].parse::<u16>().ok())
        .ok_or("the answer is not HTTP")?;
    if (200..400).contains(&status) {
        Ok(())
    } else {
        Err(format!("answered {status}"))
    }
}
