//! Commands on this host.

use std::time::Duration;

use slipway_agent::command::{Command, Event, Outcome, Stream, run};
use tokio::sync::mpsc;

pub struct Ran {
    pub outcome: Outcome,
    pub stdout: String,
    pub stderr: String,
    pub truncated: usize,
}

/// Collects what a command says while `running` runs it.
pub async fn collect(mut events: mpsc::Receiver<Event>, running: impl Future<Output = Outcome>) -> Ran {
    let listening = async {
        let (mut stdout, mut stderr, mut truncated) = (Vec::new(), Vec::new(), 0);
        while let Some(event) = events.recv().await {
            match event {
                Event::Output(Stream::Stdout, bytes) => stdout.extend(bytes),
                Event::Output(Stream::Stderr, bytes) => stderr.extend(bytes),
                Event::Truncated => truncated += 1,
            }
        }
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        (text(stdout), text(stderr), truncated)
    };
    let (outcome, (stdout, stderr, truncated)) = tokio::join!(running, listening);
    Ran {
        outcome,
        stdout,
        stderr,
        truncated,
    }
}

async fn local(command: &Command) -> Ran {
    let (sender, receiver) = mpsc::channel(4);
    collect(receiver, run(command, sender)).await
}

pub fn shell(script: &str) -> Command {
    Command::new(["sh", "-c", script])
}

/// Whether a process is there and not just waiting to be collected.
fn alive(process: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{}/stat", process.trim())).is_ok_and(|stat| {
        !stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .trim_start()
            .starts_with('Z')
    })
}

/// Returns when the process is gone; never, if nobody ended it.
pub async fn gone(process: &str) {
    assert!(!process.trim().is_empty(), "no process was named");
    while alive(process) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn e45_exit_status_signal_and_both_streams_are_told() {
    let mut command = shell("echo out; echo \"$WORD\" >&2; exit 7");
    command.environment = vec![("WORD".to_owned(), "err".to_owned())];
    let ran = local(&command).await;
    assert_eq!(ran.outcome, Outcome::Exited { code: 7 });
    assert_eq!(
        (ran.stdout.as_str(), ran.stderr.as_str(), ran.truncated),
        ("out\n", "err\n", 0)
    );
    let ran = local(&shell("kill -s SEGV $$")).await;
    assert_eq!(
        ran.outcome,
        Outcome::Signaled {
            signal: "SEGV".to_owned()
        }
    );
    assert!(local(&shell("true")).await.outcome.is_success());
}

#[tokio::test]
async fn e45_time_ends_the_whole_process_group() {
    // The leader ignores the request to end; its child too.
    let mut command = shell("trap '' TERM; sh -c 'trap \"\" TERM; echo $$; sleep 600' & wait; sleep 600");
    command.time_limit = Duration::from_secs(3);
    let ran = local(&command).await;
    assert_eq!(
        ran.outcome,
        Outcome::TimedOut {
            after: Duration::from_secs(3)
        }
    );
    gone(&ran.stdout).await;
}

#[tokio::test]
async fn a_command_that_left_somebody_behind_ends_them_too() {
    let ran = local(&shell("sleep 600 & echo $!")).await;
    assert_eq!(ran.outcome, Outcome::Exited { code: 0 });
    gone(&ran.stdout).await;
}

#[tokio::test]
async fn e45_output_beyond_the_limit_is_dropped_and_said_once() {
    let mut command = shell("head -c 100000 /dev/zero | tr '\\0' x; echo end >&2; exit 3");
    command.output_limit = 1000;
    let ran = local(&command).await;
    assert_eq!(ran.outcome, Outcome::Exited { code: 3 });
    assert_eq!((ran.stdout.len(), ran.truncated), (1000, 1));
}

#[tokio::test]
async fn a_program_that_is_not_there_is_named() {
    let ran = local(&Command::new(["/no/such/program"])).await;
    let Outcome::NotStarted { reason } = ran.outcome else {
        panic!("{:?}", ran.outcome)
    };
    assert!(reason.contains("/no/such/program"), "{reason}");
    let ran = local(&Command::new(Vec::<String>::new())).await;
    assert!(matches!(ran.outcome, Outcome::NotStarted { .. }));
}

#[tokio::test]
async fn a_command_nobody_waits_for_any_more_ends() {
    let (sender, mut receiver) = mpsc::channel(4);
    let command = shell("echo $$; sleep 600");
    let process = tokio::select! {
        _ = run(&command, sender) => panic!("it sleeps"),
        event = receiver.recv() => match event {
            Some(Event::Output(_, bytes)) => String::from_utf8_lossy(&bytes).into_owned(),
            other => panic!("{other:?}"),
        },
    };
    gone(&process).await;
}
