//! What each verb does. Every one may be done again.

use std::sync::Arc;
use std::time::Duration;

use slipway_agent_api::proto::{CommandResult, Upgrade, start_request::Verb};
use slipway_agent_api::{Class, Problem};
use slipway_slots::Digest;

use super::Host;
use super::programs::failed_program;
use super::slots::Moved;
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
            Verb::HoldAddress(hold) => self.hold_address(id, &hold.address, &hold.interface).await,
            Verb::ReleaseAddress(release) => self.release_address(&release.address, &release.interface).await,
            Verb::Reboot(reboot) => self.reboot(id, &reboot.reason).await,
        }
    }

    async fn hold_address(&self, id: &str, address: &str, interface: &str) -> Result<Done, NotDone> {
        let argv = ["ip", "address", "replace", address, "dev", interface];
        self.program(id, "ip address replace", Command::new(argv)).await?;
        self.hold(address, true)?;
        said(format!("{address} is on {interface}"))
    }

    async fn release_address(&self, address: &str, interface: &str) -> Result<Done, NotDone> {
        let argv = ["ip", "address", "delete", address, "dev", interface];
        let ran = self.machine.run(&Command::new(argv)).await;
        let text = String::from_utf8_lossy(&ran.output);
        // What is not there is released.
        let absent = [
            "Cannot assign requested address",
            "Address not found",
            "Cannot find device",
        ];
        let gone = ran.outcome.is_success() || absent.iter().any(|words| text.contains(words));
        if !gone {
            return Err(failed_program("ip address delete", ran));
        }
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
        self.addresses.set(address, held).map_err(|error| {
            Problem::new(
                Class::Transient,
                "Disk",
                format!("writing the held addresses: {error}"),
            )
        })
    }
}
