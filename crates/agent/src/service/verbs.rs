//! What each verb does. Every one may be done again.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use slipway_agent_api::proto::{CommandResult, HoldAddress, Upgrade, start_request::Verb};
use slipway_agent_api::{Class, Problem};
use slipway_slots::Digest;

use super::Host;
use super::slots::Moved;
use crate::address::keeper::{Keeper, Share, take_off};
use crate::address::lease::{LeasePlace, OwnCluster};
use crate::address::turn::Role;
use crate::command::Command;

/// A machine that still runs so long after it was told to reboot does not.
const REBOOTS_WITHIN: Duration = Duration::from_mins(10);

/// How an operation ended well.
#[derive(Default)]
pub struct Done {
    pub message: String,
    pub digest: Option<Digest>,
    pub command: Option<CommandResult>,
    pub upgrade: Option<Upgrade>,
}

impl From<Moved> for Done {
    fn from(moved: Moved) -> Self {
        Self {
            message: moved.message,
            upgrade: moved.upgrade,
            ..Self::default()
        }
    }
}

/// How it did not.
pub struct NotDone {
    pub problem: Problem,
    pub command: Option<CommandResult>,
}

impl From<Problem> for NotDone {
    fn from(problem: Problem) -> Self {
        Self {
            problem,
            command: None,
        }
    }
}

#[expect(clippy::unnecessary_wraps, reason = "it ends a verb")]
pub(super) fn said(message: impl Into<String>) -> Result<Done, NotDone> {
    Ok(Done {
        message: message.into(),
        ..Done::default()
    })
}

#[expect(clippy::unnecessary_wraps, reason = "it ends a verb")]
pub(super) fn about(digest: Digest, message: impl Into<String>) -> Result<Done, NotDone> {
    Ok(Done {
        message: message.into(),
        digest: Some(digest),
        ..Done::default()
    })
}

/// Orders were checked when they were accepted: what does not parse now was changed on disk.
pub(super) fn digest(text: &str) -> Result<Digest, Problem> {
    text.parse()
        .map_err(|error| Problem::new(Class::Terminal, "InvalidOrder", format!("{error}")))
}

pub(super) fn seconds(seconds: u64) -> Option<Duration> {
    (seconds > 0).then(|| Duration::from_secs(seconds))
}

impl Host {
    /// Does it to its end.
    pub(super) async fn carry_out(self: &Arc<Self>, id: &str, verb: &Verb) -> Result<Done, NotDone> {
        match verb {
            Verb::Ensure(ensure) => self.ensure(id, ensure).await,
            Verb::Pin(pin) => {
                let image = digest(&pin.digest)?;
                self.cache
                    .pin(&image, &pin.owner, seconds(pin.ttl_seconds))
                    .map_err(|error| error.problem())?;
                about(image, format!("pinned by {}", pin.owner))
            }
            Verb::Unpin(unpin) => {
                let image = digest(&unpin.digest)?;
                self.cache
                    .unpin(&image, &unpin.owner)
                    .map_err(|error| error.problem())?;
                self.deliveries.tidy(&self.cache, self.machine.as_ref()).await?;
                about(image, format!("no longer pinned by {}", unpin.owner))
            }
            Verb::Evict(evict) => {
                let image = digest(&evict.digest)?;
                self.cache.evict(&image).map_err(|error| error.problem())?;
                self.deliveries.tidy(&self.cache, self.machine.as_ref()).await?;
                about(image, "gone")
            }
            Verb::Export(export) => self.export(export).await,
            Verb::Import(import) => self.import(import).await,
            Verb::Prepare(prepare) => self.prepare(id, prepare).await,
            Verb::Arm(arm) => {
                let tries = if arm.tries == 0 {
                    self.tries
                } else {
                    arm.tries as u8
                };
                Ok(self.slots()?.arm(&arm.upgrade, tries).await?.into())
            }
            Verb::Confirm(confirm) => Ok(self.slots()?.confirm(&confirm.upgrade).await?.into()),
            Verb::Rollback(rollback) => Ok(self.slots()?.roll_back(&rollback.reason).await?.into()),
            Verb::GiveUp(given_up) => Ok(self.slots()?.give_up(&given_up.upgrade).await?.into()),
            Verb::RunCommand(run) => self.run_command(id, run).await,
            Verb::RunBootstrap(run) => self.run_bootstrap(id, run).await,
            Verb::KubernetesStep(step) => self.kubernetes_step(id, step).await,
            Verb::Wipe(_) => self.wipe(id).await,
            Verb::HoldAddress(hold) => self.hold_address(id, hold).await,
            Verb::ReleaseAddress(release) => self.release_address(&release.address, &release.interface).await,
            Verb::Reboot(reboot) => self.reboot(id, &reboot.reason).await,
        }
    }

    async fn hold_address(&self, id: &str, hold: &HoldAddress) -> Result<Done, NotDone> {
        let HoldAddress {
            address,
            interface,
            lease,
        } = hold;
        if let Some(lease) = lease {
            let share = Share {
                address: address.clone(),
                interface: interface.clone(),
                lease: LeasePlace {
                    namespace: lease.namespace.clone(),
                    name: lease.name.clone(),
                    kubeconfigs: lease.kubeconfigs.iter().map(|path| self.path(path)).collect(),
                    port: u16::try_from(lease.port).unwrap_or(6443),
                },
                role: if lease.first { Role::First } else { Role::Member },
            };
            let share = self.addresses.take_part(share).map_err(not_written)?;
            self.keep(share);
            return said(format!(
                "{address} is held on {interface} when it is this host's turn"
            ));
        }
        let argv = ["ip", "address", "replace", address, "dev", interface];
        self.program(id, "ip address replace", Command::new(argv)).await?;
        self.hold(address, true)?;
        said(format!("{address} is on {interface}"))
    }

    /// The host's own path of a file, below its root.
    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Keeps an address from now on; whoever kept it before ends.
    pub(super) fn keep(&self, share: Share) {
        let address = share.address.clone();
        let keeper = Keeper::new(
            &self.name,
            share.clone(),
            Arc::new(OwnCluster::new(share.lease)),
            self.machine.clone(),
            self.addresses.clone(),
        );
        // Under the lock: two of them never work on one address.
        let mut keepers = self.keepers.lock();
        if let Some(before) = keepers.remove(&address) {
            before.abort();
        }
        keepers.insert(address, tokio::spawn(keeper.run()).abort_handle());
    }

    pub(super) async fn release_address(&self, address: &str, interface: &str) -> Result<Done, NotDone> {
        self.addresses.take_no_part(address).map_err(not_written)?;
        if let Some(keeper) = self.keepers.lock().remove(address) {
            keeper.abort();
        }
        take_off(self.machine.as_ref(), address, interface)
            .await
            .map_err(|said| Problem::new(Class::Transient, "Program", said))?;
        self.hold(address, false)?;
        said(format!("{address} is released"))
    }

    async fn reboot(&self, id: &str, reason: &str) -> Result<Done, NotDone> {
        tracing::info!(reason, "rebooting");
        let mut command = Command::new(self.reboot_command.clone());
        command.may_reboot = true;
        self.program(id, "the reboot command", command).await?;
        // The end of this run of the kernel is the success; it is told by the next one.
        self.operations.report(id, "the reboot is under way", None);
        tokio::time::sleep(REBOOTS_WITHIN).await;
        let message = format!(
            "the machine was told to reboot and still runs after {} minutes: somebody holds it up",
            REBOOTS_WITHIN.as_secs() / 60
        );
        Err(Problem::new(Class::Transient, "StillRunning", message).into())
    }

    pub(super) fn slots(&self) -> Result<&super::Slots, Problem> {
        self.slots.as_ref().ok_or_else(|| {
            Problem::new(
                Class::Terminal,
                "NoSlots",
                "this host has no slots: its configuration names none",
            )
        })
    }

    fn hold(&self, address: &str, held: bool) -> Result<(), Problem> {
        self.addresses.set(address, held).map_err(not_written)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it takes what map_err has")]
fn not_written(error: std::io::Error) -> Problem {
    let message = format!("writing the held addresses: {error}");
    Problem::new(Class::Transient, "Disk", message)
}
