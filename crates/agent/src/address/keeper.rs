//! The task that keeps an address: asks for the lease, puts the address on the interface for as long as it may be there, and takes it off.
//! The kernel is told how long: it drops the address by itself when the agent is gone, hangs, or is too slow.

use std::{fs, io, net::IpAddr, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    lease::{LeasePlace, Leases},
    turn::{Millis, Role, Tenure},
};
use crate::{command::Command, service::machine::Machine};

/// Between two rounds. A round with an apiserver that does not answer takes up to three seconds more.
const EVERY: Duration = Duration::from_secs(2);
/// A program that sets an address is ended after this time: what it would do later is over by then.
const SET_WITHIN: Duration = Duration::from_secs(1);
/// Neighbours are told again so often, for those who missed it.
const ANNOUNCE_EVERY: Millis = 30_000;

/// What this host takes part in; on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Share {
    /// With its prefix length.
    pub address: String,
    pub interface: String,
    pub lease: LeasePlace,
    pub role: Role,
}

/// Where the keeper's state goes, and who is told of it.
pub trait Notes: Send + Sync {
    /// Before anything else is done.
    fn role(&self, address: &str, role: Role) -> io::Result<()>;
    fn held(&self, address: &str, held: bool);
}

/// Milliseconds since the machine was started, sleep included.
pub fn since_start() -> io::Result<Millis> {
    let text = fs::read_to_string("/proc/uptime")?;
    let seconds = text
        .split_whitespace()
        .next()
        .and_then(|text| text.parse::<f64>().ok());
    let seconds =
        seconds.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/uptime has no number"))?;
    Ok((seconds * 1000.0) as Millis)
}

pub struct Keeper {
    own: String,
    share: Share,
    turn: Tenure,
    leases: Arc<dyn Leases>,
    machine: Arc<dyn Machine>,
    notes: Arc<dyn Notes>,
    /// Since when it is on the interface, and when neighbours were told last.
    told: Option<Millis>,
    is_held: bool,
}

impl Keeper {
    pub fn new(
        own: &str,
        share: Share,
        leases: Arc<dyn Leases>,
        machine: Arc<dyn Machine>,
        notes: Arc<dyn Notes>,
    ) -> Self {
        Self {
            own: own.to_owned(),
            turn: Tenure::new(own, share.role),
            share,
            leases,
            machine,
            notes,
            told: None,
            // Of an agent of before: it is taken off unless the lease is still this host's.
            is_held: true,
        }
    }

    /// Until it is dropped. The address is left to whoever drops it, or to the kernel.
    pub async fn run(mut self) {
        loop {
            if let Err(error) = self.round().await {
                tracing::warn!(address = self.share.address, "{error}");
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    /// One round: the lease, then the interface.
    pub async fn round(&mut self) -> io::Result<()> {
        // Nobody waits for an apiserver before the first server has its address.
        if !self.is_held || self.turn.role() == Role::First {
            self.settle().await?;
        }
        let asked = self.ask().await;
        self.settle().await?;
        asked
    }

    async fn ask(&mut self) -> io::Result<()> {
        let found = self.leases.read().await.map_err(io::Error::other)?;
        let before = self.turn.role();
        let write = self.turn.read(since_start()?, found.as_ref());
        if let Some(write) = write {
            if write.role != before {
                self.notes.role(&self.share.address, write.role)?;
            }
            let sent = since_start()?;
            self.turn.sends(sent);
            let came = self.leases.write(&self.own, &write).await;
            self.turn.wrote(sent, came);
        } else if self.turn.role() != before {
            self.notes.role(&self.share.address, self.turn.role())?;
        }
        Ok(())
    }

    /// The interface as it has to be now.
    async fn settle(&mut self) -> io::Result<()> {
        let now = since_start()?;
        // Whole seconds are what the kernel counts.
        let seconds = self.turn.holds(now).map_or(0, |until| (until - now) / 1000);
        if seconds < 1 {
            return self.let_go().await;
        }
        let lifetime = seconds.to_string();
        let Share {
            address, interface, ..
        } = &self.share;
        let mut argv = vec!["ip", "address", "replace", address, "dev", interface];
        argv.extend(["valid_lft", &lifetime, "preferred_lft", &lifetime]);
        if address.contains(':') {
            argv.push("nodad");
        }
        let command = Command {
            time_limit: SET_WITHIN,
            ..Command::new(argv)
        };
        let ran = self.machine.run(&command).await;
        if !ran.outcome.is_success() {
            let said = String::from_utf8_lossy(&ran.output).trim().to_owned();
            self.let_go().await?;
            return Err(io::Error::other(format!("ip address replace: {said}")));
        }
        let was_held = std::mem::replace(&mut self.is_held, true) && self.told.is_some();
        self.notes.held(&self.share.address, true);
        if !was_held {
            tracing::info!(
                address = self.share.address,
                interface = self.share.interface,
                "held from now on"
            );
        }
        if !was_held || self.told.is_none_or(|told| now - told >= ANNOUNCE_EVERY) {
            self.told = Some(now);
            let ip = self
                .share
                .address
                .split('/')
                .next()
                .and_then(|ip| ip.parse::<IpAddr>().ok());
            if let Some(ip) = ip {
                self.machine.announce(&self.share.interface, ip)?;
            }
        }
        Ok(())
    }

    async fn let_go(&mut self) -> io::Result<()> {
        if !self.is_held {
            return Ok(());
        }
        take_off(self.machine.as_ref(), &self.share.address, &self.share.interface)
            .await
            .map_err(io::Error::other)?;
        if self.told.take().is_some() {
            tracing::info!(address = self.share.address, "no longer held");
        }
        self.is_held = false;
        self.notes.held(&self.share.address, false);
        Ok(())
    }
}

/// Takes an address off an interface. What is not there is off; otherwise what `ip` said.
pub async fn take_off(machine: &dyn Machine, address: &str, interface: &str) -> Result<(), String> {
    let argv = ["ip", "address", "delete", address, "dev", interface];
    let ran = machine.run(&Command::new(argv)).await;
    let text = String::from_utf8_lossy(&ran.output);
    let absent = [
        "Cannot assign requested address",
        "Address not found",
        "Cannot find device",
    ];
    if ran.outcome.is_success() || absent.iter().any(|words| text.contains(words)) {
        return Ok(());
    }
    Err(format!("ip address delete: {}", text.trim()))
}
