//! The programs that simulate clouds while `slipway up` runs: started before the manager, stopped after it.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Stdio},
};

use serde_json::Value;
use slipway_runtime::{
    Provider,
    provider::{Simulator, Surroundings},
};

use super::{cluster::Cluster, own_program, packages, terminate};

/// What each provider's simulator said when it was ready.
pub type Said = BTreeMap<&'static str, Value>;

/// What was started, and what the manager and people have to know of it.
pub struct Simulators {
    processes: Vec<Child>,
    pub environment: Vec<(&'static str, String)>,
    /// More arguments of the manager.
    pub flags: Vec<String>,
    pub said: Said,
    pub addresses: Vec<(&'static str, String)>,
    /// Providers whose program is not built.
    pub missing: Vec<&'static str>,
}

impl Simulators {
    /// Starts what the providers name.
    pub fn start(providers: &[Provider], cluster: &Cluster) -> Result<Self, String> {
        let mut simulators = Self {
            processes: Vec::new(),
            environment: Vec::new(),
            flags: Vec::new(),
            said: Said::new(),
            addresses: Vec::new(),
            missing: Vec::new(),
        };
        let own = own_program()?;
        let surroundings = Surroundings {
            workload: &cluster.workload,
            management: &cluster.kubeconfig,
            slipway: &own,
        };
        for provider in providers {
            let Some(simulator) = &provider.simulator else {
                continue;
            };
            let name = simulator.program;
            let program = own.with_file_name(name);
            if !is_built(simulator)? {
                println!("  {name} is not built beside this program");
                simulators.missing.push(provider.name);
                continue;
            }
            let folder = cluster.directory.join(name);
            let log = cluster.logs.join(format!("{name}.log"));
            let errors = std::fs::create_dir_all(&folder)
                .and_then(|()| File::create(&log))
                .map_err(|error| format!("cannot write {}: {error}", log.display()))?;
            let mut process = cluster
                .launch(&program)
                .args((simulator.arguments)(&surroundings))
                .current_dir(&folder)
                .stdout(Stdio::piped())
                .stderr(errors)
                .spawn()
                .map_err(|error| format!("cannot start {}: {error}", program.display()))?;
            let mut line = String::new();
            if let Some(output) = process.stdout.take() {
                let _ = BufReader::new(output).read_line(&mut line);
            }
            simulators.processes.push(process);
            let said: Value = serde_json::from_str(&line)
                .map_err(|_| format!("{name} did not start; {} says why", log.display()))?;
            let said = absolute(said, &folder);
            simulators
                .environment
                .extend((simulator.environment)(&said, &packages::volumes(cluster)));
            simulators.flags.extend((simulator.flags)(&said));
            simulators.addresses.extend((simulator.addresses)(&said));
            simulators.said.insert(provider.name, said);
        }
        Ok(simulators)
    }
}

/// Whether its program is beside this one.
pub fn is_built(simulator: &Simulator) -> Result<bool, String> {
    Ok(own_program()?.with_file_name(simulator.program).is_file())
}

/// Paths are said as seen from the program's own folder.
fn absolute(mut said: Value, folder: &Path) -> Value {
    if let Some(path) = said["caFile"].as_str() {
        said["caFile"] = folder.join(path).display().to_string().into();
    }
    said
}

impl Drop for Simulators {
    fn drop(&mut self) {
        for process in &mut self.processes {
            terminate(process);
        }
    }
}
