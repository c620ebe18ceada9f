//! The management cluster of `slipway up`: the `testbed` program as a process, and what it says of what it started.

use std::{
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use serde_json::Value;

pub struct Cluster {
    testbed: Child,
    pub kubeconfig: PathBuf,
    pub directory: PathBuf,
    pub logs: PathBuf,
    pub parts: PathBuf,
    /// The folder with kubectl and clusterctl.
    pub tools: PathBuf,
    /// What that clusterctl reads.
    pub clusterctl_config: PathBuf,
    /// The API server for simulated clusters, where one was asked for.
    pub workload: PathBuf,
    /// Where the simulated K3s hosts are seen and switched off.
    pub k3s: String,
}

/// The testbed program: the one that is named, or the one beside this program.
pub fn program(named: Option<&PathBuf>) -> Result<PathBuf, String> {
    if let Some(path) = named {
        return Ok(path.clone());
    }
    let beside = super::own_program()?.with_file_name("testbed");
    if beside.is_file() {
        return Ok(beside);
    }
    Err(format!(
        "there is no testbed program at {}; build it with `cargo build -p slipway-testbed`, or name it with --testbed",
        beside.display()
    ))
}

impl Cluster {
    /// Runs `testbed run`, whose own progress goes straight to the terminal, until it has described the cluster.
    pub fn start(program: &Path, with_workload: bool) -> Result<Self, String> {
        let with = if with_workload {
            "capi,kubeadm,scheduler,kwok,k3s,tools,workload"
        } else {
            "capi,kubeadm,scheduler,kwok,k3s,tools"
        };
        let mut testbed = Command::new(program)
            .args(["run", "--name", "up", "--with", with])
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
        let text = |field: &str| description[field].as_str().unwrap_or_default().to_owned();
        let path = |field: &str| PathBuf::from(text(field));
        Ok(Self {
            testbed,
            kubeconfig: path("kubeconfig"),
            directory: path("directory"),
            logs: path("logs"),
            parts: path("parts"),
            tools: path("tools"),
            clusterctl_config: path("clusterctlConfig"),
            workload: path("workload"),
            k3s: text("k3s"),
        })
    }

    pub async fn client(&self) -> Result<kube::Client, String> {
        slipway_runtime::certificates::install_crypto_provider();
        let wrong =
            |error: &dyn std::fmt::Display| format!("cannot use {}: {error}", self.kubeconfig.display());
        let file = kube::config::Kubeconfig::read_from(&self.kubeconfig).map_err(|error| wrong(&error))?;
        let options = kube::config::KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(file, &options)
            .await
            .map_err(|error| wrong(&error))?;
        kube::Client::try_from(config).map_err(|error| wrong(&error))
    }

    /// A command that ends with this process, however that ends: the testbed's `launch` sees to it.
    pub fn launch(&self, program: &Path) -> Command {
        let mut command = Command::new(self.parts.join("bin/launch"));
        command
            .arg(std::process::id().to_string())
            .arg(program)
            .stdin(Stdio::null())
            .process_group(0);
        command
    }

    /// The logs stay for a day when the cluster goes: the testbed keeps those of a directory that holds this file.
    pub fn keep_logs(&self) {
        let _ = std::fs::File::create(self.directory.join("keep"));
    }

    /// The testbed stops its processes and removes their directory when its standard input closes.
    pub fn stop(&mut self) {
        drop(self.testbed.stdin.take());
        if let Err(error) = self.testbed.wait() {
            eprintln!("error: waiting for the testbed to stop: {error}");
        }
    }
}
