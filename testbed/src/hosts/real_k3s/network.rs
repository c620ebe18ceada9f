//! A network of hosts that this machine's own network knows nothing of: a switch in a namespace of its own, to which
//! every host has a cable. It ends with the process that holds it.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use crate::process::{Process, Program};

/// The switch's own address, which hosts use as their way out.
pub const GATEWAY: &str = "10.255.255.254";

const SWITCH: &str = "ip link set lo up && ip link add hub type bridge && ip addr add $1/8 dev hub && \
     ip link set hub up && echo the switch is on && exec sleep infinity";

/// What a host does with its namespaces, tried once and given up at once.
const PROBE: &str = "ip link set lo up && ip link add hub type bridge && \
     ip link add eth0 type veth peer name cable0 && ip link set cable0 master hub up && \
     mount --make-rprivate / && hostname probe";

/// A hang guard; it takes milliseconds.
const DEADLINE: Duration = Duration::from_secs(20);

pub struct Switch {
    process: Process,
}

/// The program of this name on this machine.
pub fn program(name: &str) -> io::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(system)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
        .ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("there is no program called {name}"),
            )
        })
}

/// Why this machine cannot have hosts in namespaces of their own, if it cannot.
pub fn unavailable() -> Option<String> {
    for name in [
        "unshare", "nsenter", "ip", "mount", "hostname", "chroot", "setsid",
    ] {
        if let Err(error) = program(name) {
            return Some(error.to_string());
        }
    }
    let probed = Command::new("unshare")
        .args(["--net", "--mount", "--uts", "--", "sh", "-c", PROBE])
        .output();
    match probed {
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            Some(said.lines().next().unwrap_or("namespaces are refused").to_owned())
        }
        Err(error) => Some(error.to_string()),
    }
}

impl Switch {
    pub fn start(launcher: &Path, logs: &Path, name: &str) -> io::Result<Switch> {
        let program = Program {
            name: name.to_owned(),
            path: program("unshare")?,
            arguments: ["--net", "--", "sh", "-c", SWITCH, "sh", GATEWAY]
                .map(str::to_owned)
                .into(),
            environment: BTreeMap::new(),
        };
        let process = Process::start(launcher, logs, program)?;
        let started = Instant::now();
        // A process has no watch to offer.
        while !process.says("the switch is on") {
            if process.ended().is_some() || started.elapsed() > DEADLINE {
                let said = process.tail();
                return Err(io::Error::other(format!("a switch does not come up: {said}")));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Switch { process })
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Its network namespace.
    pub fn namespace(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/net", self.id()))
    }
}
