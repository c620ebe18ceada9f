//! Runs a command on this host.

use std::{
    io,
    os::{fd::OwnedFd, unix::process::ExitStatusExt},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use tokio::{
    io::{AsyncRead, AsyncReadExt, unix::AsyncFd},
    process::{Child, Command as Process},
    sync::Mutex,
    time::{Instant, timeout, timeout_at},
};

use super::{Command, Events, Limited, Outcome, Stream};

/// Between asking a process group to end and ending it.
const GRACE: Duration = Duration::from_secs(2);

/// Runs the command to its end or to its time limit. Dropping the future ends the process group.
pub async fn run(command: &Command, events: Events) -> Outcome {
    let Some((program, arguments)) = command.argv.split_first() else {
        return Outcome::NotStarted {
            reason: "no program was named".to_owned(),
        };
    };
    let mut process = Process::new(program);
    process
        .args(arguments)
        .envs(command.environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    let not_started = |error: io::Error| Outcome::NotStarted {
        reason: format!("{program}: {error}"),
    };
    let mut child = match process.spawn() {
        Ok(child) => child,
        Err(error) => return not_started(error),
    };
    let group = match Group::of(&child) {
        Ok(group) => group,
        Err(error) => return not_started(error),
    };
    let limited = Mutex::new(Limited::new(events, command.output_limit));
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let output = async {
        tokio::join!(
            forward(stdout, Stream::Stdout, &limited),
            forward(stderr, Stream::Stderr, &limited)
        )
    };
    tokio::pin!(output);
    let mut drained = false;
    let deadline = Instant::now() + command.time_limit;
    let ended = async {
        tokio::select! {
            ended = group.leader_ended() => ended,
            // Closing its output does not end a command.
            _ = &mut output => {
                drained = true;
                group.leader_ended().await
            }
        }
    };
    let in_time = timeout_at(deadline, ended).await;
    if in_time.is_err() {
        group.signal(Signal::TERM);
        let _ = timeout(GRACE, group.leader_ended()).await;
    }
    // The leader is not waited for yet, so its group's number is still its own: nobody else is hit.
    group.signal(Signal::KILL);
    let status = child.wait().await;
    if !drained {
        // Whoever left the group may hold the pipes; what is in them is read, no more is waited for.
        let _ = timeout(Duration::from_millis(200), output).await;
    }
    match (in_time, status) {
        (Err(_), _) => Outcome::TimedOut {
            after: command.time_limit,
        },
        (Ok(Err(error)), _) | (_, Err(error)) => Outcome::Lost {
            reason: error.to_string(),
        },
        (Ok(Ok(())), Ok(status)) => how(status),
    }
}

fn how(status: ExitStatus) -> Outcome {
    match (status.code(), status.signal()) {
        (Some(code), _) => Outcome::Exited { code },
        (None, Some(number)) => Outcome::Signaled { signal: name(number) },
        (None, None) => Outcome::Lost {
            reason: format!("{status}"),
        },
    }
}

/// As `kill -l` and the SSH protocol name it.
fn name(number: i32) -> String {
    let known = [
        (Signal::ABORT, "ABRT"),
        (Signal::ALARM, "ALRM"),
        (Signal::BUS, "BUS"),
        (Signal::FPE, "FPE"),
        (Signal::HUP, "HUP"),
        (Signal::ILL, "ILL"),
        (Signal::INT, "INT"),
        (Signal::KILL, "KILL"),
        (Signal::PIPE, "PIPE"),
        (Signal::QUIT, "QUIT"),
        (Signal::SEGV, "SEGV"),
        (Signal::TERM, "TERM"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
    ];
    let found = known.iter().find(|(signal, _)| signal.as_raw() == number);
    found.map_or_else(|| number.to_string(), |(_, name)| (*name).to_owned())
}

/// A process group by the process that leads it.
struct Group {
    leader: Pid,
    ended: AsyncFd<OwnedFd>,
}

impl Group {
    fn of(child: &Child) -> io::Result<Self> {
        let number = child
            .id()
            .ok_or_else(|| io::Error::other("it ended before it was looked at"))?;
        let leader = Pid::from_raw(number.cast_signed()).ok_or(io::ErrorKind::InvalidInput)?;
        let ended = pidfd_open(leader, PidfdFlags::NONBLOCK)?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe, for owners that are not; an `OwnedFd` is the one it holds"
        )]
        let ended = AsyncFd::new(ended)?;
        Ok(Self { leader, ended })
    }

    async fn leader_ended(&self) -> io::Result<()> {
        // Readable for good once the process has ended, so the readiness is never cleared.
        self.ended.readable().await.map(|mut ready| ready.retain_ready())
    }

    /// A group that is gone already is fine.
    fn signal(&self, signal: Signal) {
        let _ = kill_process_group(self.leader, signal);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

async fn forward(pipe: Option<impl AsyncRead + Unpin>, stream: Stream, limited: &Mutex<Limited>) {
    let Some(mut pipe) = pipe else { return };
    let mut buffer = vec![0; 16 << 10];
    while let Ok(length @ 1..) = pipe.read(&mut buffer).await {
        limited.lock().await.hand_on(stream, &buffer[..length]).await;
    }
}
