//! The machine below the agent: programs, its identity and its hardware. A simulated host has another one.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::Path;

use async_trait::async_trait;
use slipway_agent_api::proto::{Disk, Hardware};
use tokio::sync::mpsc;

use crate::address::announce::announce;
use crate::command::{self, Command, Event, Outcome};

/// How a program ended, and what it said.
#[derive(Clone, Debug)]
pub struct Ran {
    pub outcome: Outcome,
    pub output: Vec<u8>,
    pub truncated: bool,
}

/// Told what a program says, as it comes.
pub type Heard<'a> = &'a (dyn Fn(&[u8]) + Send + Sync);

#[async_trait]
pub trait Machine: Send + Sync {
    /// Runs a program to its end. Dropping the future ends it.
    async fn run_heard(&self, command: &Command, heard: Heard<'_>) -> Ran;

    /// The same, where nobody listens meanwhile.
    async fn run(&self, command: &Command) -> Ran {
        self.run_heard(command, &|_| {}).await
    }

    /// Another one after every start of the kernel.
    fn boot_id(&self) -> String;
    fn hardware(&self) -> Hardware;
    fn disks(&self) -> Vec<Disk>;
    /// From which it speaks to other machines.
    fn addresses(&self) -> Vec<IpAddr>;
    /// Tells the neighbours on an interface that an address is here now.
    fn announce(&self, interface: &str, address: IpAddr) -> std::io::Result<()>;
}

/// This machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalMachine;

#[async_trait]
impl Machine for LocalMachine {
    async fn run_heard(&self, command: &Command, heard: Heard<'_>) -> Ran {
        let (sender, mut receiver) = mpsc::channel(16);
        let collecting = async {
            let (mut output, mut truncated) = (Vec::new(), false);
            while let Some(event) = receiver.recv().await {
                match event {
                    Event::Output(_, bytes) => {
                        heard(&bytes);
                        output.extend_from_slice(&bytes);
                    }
                    Event::Truncated => truncated = true,
                }
            }
            (output, truncated)
        };
        let (outcome, (output, truncated)) = tokio::join!(command::run(command, sender), collecting);
        Ran {
            outcome,
            output,
            truncated,
        }
    }

    fn boot_id(&self) -> String {
        fs::read_to_string(command::BootId::PLACE)
            .map(|text| text.trim().to_owned())
            .unwrap_or_default()
    }

    fn hardware(&self) -> Hardware {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let memory = read("/proc/meminfo")
            .lines()
            .find_map(|line| {
                let kilobytes = line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?;
                kilobytes.trim().parse::<u64>().ok()
            })
            .unwrap_or_default();
        let system = read("/etc/os-release")
            .lines()
            .find_map(|line| line.strip_prefix("PRETTY_NAME="))
            .unwrap_or_default()
            .trim_matches('"')
            .to_owned();
        Hardware {
            architecture: std::env::consts::ARCH.to_owned(),
            processors: std::thread::available_parallelism().map_or(1, usize::from) as u32,
            memory_bytes: memory * 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            system,
        }
    }

    fn disks(&self) -> Vec<Disk> {
        disks(Path::new("/sys/block"))
    }

    fn announce(&self, interface: &str, address: IpAddr) -> std::io::Result<()> {
        announce(interface, address)
    }

    fn addresses(&self) -> Vec<IpAddr> {
        // Addresses of documentation: only a default route leads there, and nothing is sent.
        let far: [(IpAddr, IpAddr); 2] = [
            (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into()),
            (
                Ipv6Addr::UNSPECIFIED.into(),
                Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
            ),
        ];
        far.into_iter()
            .filter_map(|(any, far)| source_address(any, far))
            .collect()
    }
}

/// The address that the kernel would speak to `far` from.
fn source_address(any: IpAddr, far: IpAddr) -> Option<IpAddr> {
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((far, 9)).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

/// The disks that the kernel names, without what is only memory.
fn disks(folder: &Path) -> Vec<Disk> {
    let mut disks: Vec<_> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let number = |file: &str| {
                let text = fs::read_to_string(entry.path().join(file)).ok()?;
                text.trim().parse::<u64>().ok()
            };
            let size = number("size")? * 512;
            let memory = ["loop", "ram", "zram"].iter().any(|kind| name.starts_with(kind));
            (size > 0 && !memory).then(|| Disk {
                size_bytes: size,
                rotational: number("queue/rotational") == Some(1),
                read_only: number("ro") == Some(1),
                name,
            })
        })
        .collect();
    disks.sort_by(|one, other| one.name.cmp(&other.name));
    disks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_processor_memory_and_a_name_for_its_kernel() {
        let hardware = LocalMachine.hardware();
        assert!(hardware.processors > 0 && hardware.memory_bytes > 1 << 20);
        assert!(!hardware.kernel.is_empty());
        assert_eq!(LocalMachine.boot_id().len(), 36);
    }

    #[test]
    fn an_address_is_the_one_that_routes_choose_and_loopback_is_none() {
        let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
        let any = IpAddr::from(Ipv4Addr::UNSPECIFIED);
        assert_eq!(source_address(any, loopback), None);
        for address in LocalMachine.addresses() {
            assert!(!address.is_loopback() && !address.is_unspecified(), "{address}");
            assert!(
                UdpSocket::bind((address, 0)).is_ok(),
                "{address} is on this machine"
            );
        }
    }

    #[test]
    fn disks_are_told_with_their_size_and_loops_are_not() {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, size) in [("sda", "2048"), ("loop0", "2048"), ("sr0", "0")] {
            let path = folder.path().join(name);
            fs::create_dir_all(path.join("queue")).expect("made");
            fs::write(path.join("size"), format!("{size}\n")).expect("written");
            fs::write(path.join("ro"), "0\n").expect("written");
            fs::write(path.join("queue/rotational"), "1\n").expect("written");
        }
        let found = disks(folder.path());
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].name.as_str(), found[0].size_bytes, found[0].rotational),
            ("sda", 1 << 20, true)
        );
    }
}
