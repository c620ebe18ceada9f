//! The agent's own program over the files of a simulated host: a process that joins, serves and is killed.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use slipway_agent::boot_store::{BootStore, Device, Stored};
use slipway_agent_api::Identity;
use slipway_agent_api::client::{Direct, HostClient, Way};
use slipway_slots::Slot;
use slipway_slots::boot::{BootState, Records};
use slipway_slots::manifest::KeyRingFile;

use crate::image::{NodeImage, signing_key};
use crate::{FLEET, Fleet, Reach};

/// A process that ends with this value.
pub struct AgentProcess {
    program: PathBuf,
    name: String,
    folder: PathBuf,
    child: Option<Child>,
    reach: Reach,
    address: String,
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

impl AgentProcess {
    /// A host in a folder of the fleet whose slot A holds `installed`. `service` is what stands in the configuration's
    /// `service` beside manager and address, as lines of YAML. It has joined and serves, or connects to the manager.
    pub fn join(
        program: &Path,
        fleet: &Fleet,
        name: &str,
        installed: &NodeImage,
        reach: Reach,
        service: &str,
    ) -> io::Result<Self> {
        let folder = fleet.folder().join(name);
        fs::create_dir_all(folder.join("state/exchange"))?;
        let at = |name: &str| folder.join(name);
        let slot = installed.slot();
        fs::write(at("b.img"), vec![0; slot.len()])?;
        fs::write(at("a.img"), slot)?;
        fs::write(at("store"), vec![0; Records::SIZE as usize])?;
        Stored::new(Records { offset: 0 }, Device::open(&at("store"))?)
            .install(&BootState::installed(Slot::A))
            .map_err(io::Error::other)?;
        let ring = KeyRingFile {
            version: 1,
            threshold: 1,
            keys: vec![signing_key().pk.to_base64()],
        };
        fs::write(at("keys.json"), serde_json::to_vec(&ring)?)?;
        let shown = |name: &str| at(name).display().to_string();
        let listen = match reach {
            Reach::Direct => "listen: 127.0.0.1:0\n",
            Reach::Tunnel => "",
        };
        let service = format!(
            "  {}\n",
            format!("{listen}{service}").trim().replace('\n', "\n  ")
        );
        let config = format!(
            "compatible: simulated\nstateDirectory: {}\nkeyRing: {}\nbooted: A\nrebootCommand: ['true']\n\
             bootStore:\n  records:\n    device: {}\nslots:\n  A: [{{name: root, device: {}}}]\n  B: [{{name: root, device: {}}}]\n\
             service:\n  manager: {}\n{service}",
            shown("state"),
            shown("keys.json"),
            shown("store"),
            shown("a.img"),
            shown("b.img"),
            fleet.manager,
        );
        fs::write(at("config.yaml"), config)?;
        fs::write(at("token"), fleet.token(name).reveal())?;
        let mut agent = Self {
            program: program.to_owned(),
            name: name.to_owned(),
            folder,
            child: None,
            reach,
            address: String::new(),
        };
        agent.enrol()?;
        agent.start()?;
        Ok(agent)
    }

    /// The program with this host's configuration.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--config").arg(self.folder.join("config.yaml"));
        command
    }

    /// Joins with the token that lies on the host; an error has what the program said.
    pub fn enrol(&self) -> io::Result<()> {
        let joined = self
            .command()
            .args(["join", "--host", &self.name, "--token-file"])
            .arg(self.folder.join("token"))
            .output()?;
        if joined.status.success() {
            return Ok(());
        }
        Err(io::Error::other(
            String::from_utf8_lossy(&joined.stderr).into_owned(),
        ))
    }

    pub fn start(&mut self) -> io::Result<()> {
        let log = fs::File::create(self.folder.join("log"))?;
        let mut child = self
            .command()
            .arg("serve")
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()?;
        if self.reach == Reach::Tunnel {
            self.child = Some(child);
            return Ok(());
        }
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            BufReader::new(output).read_line(&mut line)?;
        }
        self.child = Some(child);
        match line.trim().strip_prefix("listening on ") {
            Some(address) => {
                address.clone_into(&mut self.address);
                Ok(())
            }
            None => Err(io::Error::other(format!(
                "the agent does not listen: {line} {}",
                fs::read_to_string(self.folder.join("log"))?
            ))),
        }
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Where it listens now; empty for a host that connects to the manager.
    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn process_id(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    pub fn state(&self) -> PathBuf {
        self.folder.join("state")
    }

    pub fn exchange(&self) -> PathBuf {
        self.folder.join("state/exchange")
    }

    /// Somebody's way to the host as it listens now.
    pub fn client(&self, fleet: &Fleet, identity: &Identity) -> io::Result<HostClient> {
        let way: Arc<dyn Way> = match self.reach {
            Reach::Direct => Arc::new(Direct {
                address: self.address.clone(),
                tls: fleet.tls(identity)?,
            }),
            // Only the manager speaks over it, whoever asks here.
            Reach::Tunnel => Arc::new(fleet.board.clone()),
        };
        Ok(HostClient::new(&self.name, way))
    }

    pub fn operator(&self, fleet: &Fleet) -> io::Result<HostClient> {
        self.client(fleet, &Identity::Operator { fleet: FLEET.into() })
    }
}
