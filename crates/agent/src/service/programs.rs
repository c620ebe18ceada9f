//! Verbs that run programs: commands, bootstrap data, steps of Kubernetes, and wiping.

use std::time::Duration;

use slipway_agent_api::proto::{
    CommandResult, KubernetesStep, RunBootstrap, RunCommand, kubernetes_step::Step,
};
use slipway_agent_api::{Class, Problem};

use super::Host;
use super::bootstrap::Bootstrap;
use super::machine::Ran;
use super::verbs::{Done, NotDone, said};
use crate::cache::replace_file;
use crate::command::{Command, Outcome};

/// The time a program gets when the order does not say.
fn limit(seconds: u32, or: Duration) -> Duration {
    if seconds == 0 {
        or
    } else {
        Duration::from_secs(seconds.into())
    }
}

fn result(ran: Ran) -> CommandResult {
    CommandResult {
        exited: matches!(ran.outcome, Outcome::Exited { .. }),
        exit_code: match ran.outcome {
            Outcome::Exited { code } => code,
            _ => 0,
        },
        outcome: ran.outcome.to_string(),
        output: ran.output,
        truncated: ran.truncated,
    }
}

impl Host {
    /// A program of an operation that must succeed; what it says is shown as it comes. Arguments may be secret: `name` is
    /// what messages call it.
    pub(super) async fn program(&self, id: &str, name: &str, command: Command) -> Result<Ran, NotDone> {
        let heard = |bytes: &[u8]| self.operations.said(id, bytes);
        let ran = self.machine.run_heard(&command, &heard).await;
        if ran.outcome.is_success() {
            Ok(ran)
        } else {
            Err(failed_program(name, ran))
        }
    }

    pub(super) async fn run_command(&self, id: &str, run: &RunCommand) -> Result<Done, NotDone> {
        let mut command = Command::new(run.argv.clone());
        command.environment = run
            .environment
            .iter()
            .map(|variable| (variable.name.clone(), variable.value.clone()))
            .collect();
        command.time_limit = limit(run.time_limit_seconds, Duration::from_mins(1));
        if run.output_limit_bytes > 0 {
            command.output_limit = (run.output_limit_bytes as usize).min(1 << 20);
        }
        command.may_reboot = run.may_reboot;
        let name = run.argv.first().map_or("", String::as_str);
        let ran = self.program(id, name, command).await?;
        Ok(Done {
            message: format!("the command {}", ran.outcome),
            command: Some(result(ran)),
            ..Done::default()
        })
    }

    pub(super) async fn run_bootstrap(&self, id: &str, run: &RunBootstrap) -> Result<Done, NotDone> {
        let bootstrap = Bootstrap::parse(&run.data, &self.name, &run.provider_id)?;
        let deadline = tokio::time::Instant::now() + limit(run.time_limit_seconds, Duration::from_mins(20));
        let total = bootstrap.early.len() + bootstrap.commands.len();
        // Early commands come before files, as cloud-init has it.
        self.bootstrap_commands(id, &bootstrap.early, (0, total), deadline)
            .await?;
        for (at, file) in bootstrap.files.iter().enumerate() {
            self.operations.report(
                id,
                &format!("writing file {} of {}", at + 1, bootstrap.files.len()),
                None,
            );
            file.write(&self.root).map_err(|error| {
                Problem::new(
                    Class::Transient,
                    "Bootstrap",
                    format!("writing {}: {error}", file.path.display()),
                )
            })?;
        }
        let first = bootstrap.early.len();
        self.bootstrap_commands(id, &bootstrap.commands, (first, total), deadline)
            .await?;
        // What Cluster API's contract has on hosts that ran their bootstrap data.
        let sentinel = self.root.join("run/cluster-api/bootstrap-success.complete");
        let written = sentinel
            .parent()
            .map_or(Ok(()), std::fs::create_dir_all)
            .and_then(|()| replace_file(&sentinel, b"success\n"));
        written.map_err(|error| {
            Problem::new(
                Class::Transient,
                "Bootstrap",
                format!("writing {}: {error}", sentinel.display()),
            )
        })?;
        said(format!(
            "{} files were written and {} commands run",
            bootstrap.files.len(),
            total
        ))
    }

    /// Runs them one after the other, until one fails.
    async fn bootstrap_commands(
        &self,
        id: &str,
        commands: &[Vec<String>],
        (before, total): (usize, usize),
        deadline: tokio::time::Instant,
    ) -> Result<(), NotDone> {
        for (at, argv) in commands.iter().enumerate() {
            // A command's text may hold a secret: its number tells which.
            let which = format!("command {} of {total}", before + at + 1);
            self.operations.report(id, &format!("running {which}"), None);
            let mut command = Command::new(argv.clone());
            command.time_limit = deadline.saturating_duration_since(tokio::time::Instant::now());
            self.program(id, &format!("bootstrap {which}"), command).await?;
        }
        Ok(())
    }

    pub(super) async fn kubernetes_step(&self, id: &str, step: &KubernetesStep) -> Result<Done, NotDone> {
        let argv: Vec<String> = match &step.step {
            Some(Step::KubeadmUpgrade(upgrade)) if upgrade.apply_version.is_empty() => {
                ["kubeadm", "upgrade", "node"].map(str::to_owned).to_vec()
            }
            Some(Step::KubeadmUpgrade(upgrade)) => {
                ["kubeadm", "upgrade", "apply", "--yes", &upgrade.apply_version]
                    .map(str::to_owned)
                    .to_vec()
            }
            Some(Step::ServiceRestart(restart)) => ["systemctl", "restart", &restart.service]
                .map(str::to_owned)
                .to_vec(),
            None => return Err(Problem::new(Class::Terminal, "InvalidOrder", "the step is missing").into()),
        };
        let mut command = Command::new(argv.clone());
        command.time_limit = Duration::from_mins(20);
        let ran = self.program(id, &argv.join(" "), command).await?;
        Ok(Done {
            message: format!("{} is done", argv.join(" ")),
            command: Some(result(ran)),
            ..Done::default()
        })
    }

    pub(super) async fn wipe(&self, id: &str) -> Result<Done, NotDone> {
        // Before anything of the cluster goes: another server holds its address then.
        for share in self.addresses.shares() {
            self.release_address(&share.address, &share.interface).await?;
        }
        for argv in &self.wipe.commands {
            let name = argv.first().cloned().unwrap_or_default();
            self.operations.report(id, &format!("running {name}"), None);
            let mut command = Command::new(argv.clone());
            command.time_limit = Duration::from_mins(10);
            self.program(id, &name, command).await?;
        }
        for path in &self.wipe.paths {
            let path = self.root.join(path.strip_prefix("/").unwrap_or(path));
            let removed = match std::fs::symlink_metadata(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
                Err(error) => Err(error),
                Ok(metadata) if metadata.is_dir() => std::fs::remove_dir_all(&path),
                Ok(_) => std::fs::remove_file(&path),
            };
            removed.map_err(|error| {
                Problem::new(
                    Class::Transient,
                    "Wipe",
                    format!("removing {}: {error}", path.display()),
                )
            })?;
        }
        said("the host is out of its cluster")
    }
}

pub(super) fn failed_program(name: &str, ran: Ran) -> NotDone {
    let class = match ran.outcome {
        Outcome::TimedOut { .. } | Outcome::Lost { .. } => Class::Transient,
        _ => Class::Terminal,
    };
    NotDone {
        problem: Problem::new(class, "CommandFailed", format!("{name} {}", ran.outcome)),
        command: Some(result(ran)),
    }
}
