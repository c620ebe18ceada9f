//! Runs a command on a node, with the limits and outcomes of a command on this host.

use std::time::Duration;

use russh::ChannelMsg;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{Error, Node, Session};
use crate::command::{BootId, Command, Events, Limited, Outcome, Stream};

/// Between asking a process group to end and ending it.
const GRACE: Duration = Duration::from_secs(2);
/// How often a node that went away is tried again.
const KNOCK: Duration = Duration::from_secs(2);

/// What the login shell is given: it says which process group it leads, then becomes the program.
fn shell_line(command: &Command) -> String {
    let mut line = "echo \"$$\"; exec env --".to_owned();
    let assignments = command
        .environment
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    for word in assignments.chain(command.argv.iter().cloned()) {
        line.push_str(" '");
        line.push_str(&word.replace('\'', "'\\''"));
        line.push('\'');
    }
    line
}

impl Node {
    /// Runs the command to its end or to its time limit. A connection that is lost under it is made again, to learn
    /// whether the node restarted.
    pub async fn run(&self, command: &Command, events: Events) -> Outcome {
        let not_started = |error: Error| Outcome::NotStarted {
            reason: error.to_string(),
        };
        if command.argv.is_empty() {
            return Outcome::NotStarted {
                reason: "no program was named".to_owned(),
            };
        }
        let session = match self.connect().await {
            Ok(session) => session,
            Err(error) => return not_started(error),
        };
        let boot = match session.boot_id().await {
            Ok(boot) => boot,
            Err(error) => return not_started(error),
        };
        let deadline = Instant::now() + command.time_limit;
        let ended = session.execute(command, events, deadline).await;
        match ended {
            Ok(outcome) => {
                session.close().await;
                outcome
            }
            Err(lost) => {
                let now = self.boot_id_until(deadline).await;
                judge(&boot, now.as_ref(), command.may_reboot, &lost)
            }
        }
    }

    /// The node's boot identity as soon as it answers again.
    async fn boot_id_until(&self, deadline: Instant) -> Option<BootId> {
        let knocking = async {
            loop {
                if let Ok(session) = self.connect().await
                    && let Ok(boot) = session.boot_id().await
                {
                    session.close().await;
                    return boot;
                }
                sleep(KNOCK).await;
            }
        };
        timeout_at(deadline, knocking).await.ok()
    }
}

/// How a command ended whose connection was lost.
fn judge(before: &BootId, after: Option<&BootId>, may_reboot: bool, lost: &str) -> Outcome {
    let reason = match after {
        Some(after) if after != before && may_reboot => return Outcome::Rebooting,
        None if may_reboot => return Outcome::Rebooting,
        Some(after) if after != before => "the node restarted while it ran".to_owned(),
        Some(_) => format!("{lost}; the node answers again and did not restart"),
        None => format!("{lost}; the node does not answer"),
    };
    Outcome::Lost { reason }
}

impl Session {
    async fn boot_id(&self) -> Result<BootId, Error> {
        let argv = ["cat", BootId::PLACE];
        let (text, outcome) = self.short(&Command::new(argv)).await?;
        if outcome.is_success() && !text.trim().is_empty() {
            Ok(BootId::new(&text))
        } else {
            Err(Error::Session {
                node: self.node.clone(),
                doing: "reading its boot identity",
                reason: outcome.to_string(),
            })
        }
    }

    /// A command of ours whose output is short.
    async fn short(&self, command: &Command) -> Result<(String, Outcome), Error> {
        let (events, mut received) = tokio::sync::mpsc::channel(16);
        let limited = Command {
            output_limit: 4096,
            time_limit: Duration::from_secs(15),
            ..command.clone()
        };
        let deadline = Instant::now() + limited.time_limit;
        let collect = async {
            let mut text = Vec::new();
            while let Some(event) = received.recv().await {
                if let crate::command::Event::Output(Stream::Stdout, bytes) = event {
                    text.extend(bytes);
                }
            }
            text
        };
        let (outcome, text) = tokio::join!(self.execute(&limited, events, deadline), collect);
        let outcome = outcome.map_err(|reason| Error::Session {
            node: self.node.clone(),
            doing: "running a command",
            reason,
        })?;
        Ok((String::from_utf8_lossy(&text).into_owned(), outcome))
    }

    /// `Err` says how the connection was lost.
    async fn execute(&self, command: &Command, events: Events, deadline: Instant) -> Result<Outcome, String> {
        let mut limited = Limited::new(events, command.output_limit);
        let mut group = Vec::new();
        let mut said: Option<Outcome> = None;
        let mut channel = self
            .handle
            .channel_open_session()
            .await
            .map_err(|error| error.to_string())?;
        channel
            .exec(true, shell_line(command))
            .await
            .map_err(|error| error.to_string())?;
        let running = async {
            while let Some(message) = channel.wait().await {
                match message {
                    ChannelMsg::Failure => {
                        said = Some(Outcome::NotStarted {
                            reason: "the node refuses to run commands".to_owned(),
                        });
                    }
                    ChannelMsg::Data { data } => {
                        let mut rest = &data[..];
                        if group.last() != Some(&b'\n') {
                            let end = rest
                                .iter()
                                .position(|byte| *byte == b'\n')
                                .map_or(rest.len(), |at| at + 1);
                            group.extend(&rest[..end.min(32)]);
                            rest = &rest[end..];
                        }
                        limited.hand_on(Stream::Stdout, rest).await;
                    }
                    ChannelMsg::ExtendedData { data, ext: 1 } => limited.hand_on(Stream::Stderr, &data).await,
                    ChannelMsg::ExitStatus { exit_status } => {
                        said = Some(Outcome::Exited {
                            code: exit_status.cast_signed(),
                        });
                    }
                    ChannelMsg::ExitSignal { signal_name, .. } => {
                        said = Some(Outcome::Signaled {
                            signal: format!("{signal_name:?}"),
                        });
                    }
                    _ => {}
                }
            }
        };
        if timeout_at(deadline, running).await.is_ok() {
            return said.ok_or_else(|| "the connection was lost".to_owned());
        }
        if let Ok(group) = std::str::from_utf8(&group)
            .unwrap_or_default()
            .trim()
            .parse::<u32>()
        {
            self.end(group).await;
        }
        let _ = timeout(GRACE, channel.close()).await;
        Ok(Outcome::TimedOut {
            after: command.time_limit,
        })
    }

    /// Ends a process group on the node: first asked, then made to.
    async fn end(&self, group: u32) {
        let script = format!(
            "kill -s TERM -- -{group}; n=0; while kill -s 0 -- -{group} 2>/dev/null && [ $n -lt {} ]; do sleep 0.1; n=$((n + 1)); done; kill -s KILL -- -{group} 2>/dev/null; true",
            GRACE.as_millis() / 100
        );
        let ending = async {
            let mut channel = self.handle.channel_open_session().await?;
            channel.exec(true, script).await?;
            while channel.wait().await.is_some() {}
            Ok::<_, russh::Error>(())
        };
        let _ = timeout(GRACE * 4, ending).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_the_program_as_they_are() {
        let mut command = Command::new(["printf", "%s", "it's $HOME; `x`"]);
        command.environment = vec![("A".to_owned(), "b c".to_owned())];
        assert_eq!(
            shell_line(&command),
            r#"echo "$$"; exec env -- 'A=b c' 'printf' '%s' 'it'\''s $HOME; `x`'"#
        );
    }

    #[test]
    fn e46_a_lost_connection_is_a_reboot_only_where_one_was_meant_and_seen() {
        let (one, two) = (BootId::new("one"), BootId::new("two"));
        let lost = "the connection was lost";
        let said = |after, may_reboot| judge(&one, after, may_reboot, lost).to_string();
        assert_eq!(said(Some(&two), true), "restarts the machine");
        assert_eq!(said(None, true), "restarts the machine");
        assert_eq!(
            said(Some(&two), false),
            "was lost sight of: the node restarted while it ran"
        );
        assert!(said(Some(&one), true).contains("did not restart"));
        assert!(said(None, false).contains("does not answer"));
    }
}
