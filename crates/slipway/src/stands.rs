//! The programs that stand in for clouds while `slipway up` runs: started before the manager, stopped after it.

use std::{
    env,
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
};

use serde_json::Value;
use slipway_runtime::Provider;

use crate::up::Cluster;

/// What was started, and what the manager has to know of it.
pub struct Stands {
    processes: Vec<Child>,
    pub environment: Vec<(&'static str, String)>,
    /// Providers whose program is not built.
    pub missing: Vec<&'static str>,
}

impl Stands {
    /// Starts what the providers name. `launch` of the testbed's parts makes each end with us, however we end.
    pub fn start(providers: &[Provider], cluster: &Cluster) -> Result<Self, String> {
        let own =
            env::current_exe().map_err(|error| format!("cannot tell where this program is: {error}"))?;
        let mut stands = Self {
            processes: Vec::new(),
            environment: Vec::new(),
            missing: Vec::new(),
        };
        for provider in providers {
            let Some(stand) = provider.stand.as_ref().filter(|_| !provider.examples.is_empty()) else {
                continue;
            };
            let program = own.with_file_name(stand.program);
            if !program.is_file() {
                println!("  {} is not built beside this program", stand.program);
                stands.missing.push(provider.name);
                continue;
            }
            let folder = cluster.directory.join(stand.program);
            let log = cluster.logs.join(format!("{}.log", stand.program));
            let errors = std::fs::create_dir_all(&folder)
                .and_then(|()| std::fs::File::create(&log))
                .map_err(|error| format!("cannot write {}: {error}", log.display()))?;
            let mut process = Command::new(cluster.parts.join("bin/launch"))
                .arg(std::process::id().to_string())
                .arg(&program)
                .args(stand.arguments)
                .current_dir(&folder)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(errors)
                .process_group(0)
                .spawn()
                .map_err(|error| format!("cannot start {}: {error}", program.display()))?;
            let mut line = String::new();
            if let Some(output) = process.stdout.take() {
                let _ = BufReader::new(output).read_line(&mut line);
            }
            stands.processes.push(process);
            let said: Value = serde_json::from_str(&line)
                .map_err(|_| format!("{} did not start; {} says why", stand.program, log.display()))?;
            stands
                .environment
                .extend((stand.environment)(&absolute(said, &folder)));
        }
        Ok(stands)
    }
}

/// Paths are said as seen from the program's own folder.
fn absolute(mut said: Value, folder: &std::path::Path) -> Value {
    if let Some(path) = said["caFile"].as_str() {
        said["caFile"] = folder.join(path).display().to_string().into();
    }
    said
}

impl Drop for Stands {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let id = i32::try_from(process.id()).unwrap_or_default();
            if let Some(id) = rustix::process::Pid::from_raw(id) {
                let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
            }
            let _ = process.wait();
        }
    }
}
