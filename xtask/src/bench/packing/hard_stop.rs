//! Limits that hold. A solver may look at its own limit too rarely: one that goes on after its time is ended from outside, and
//! what it had said and used until then is all there is.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// What a process said, a JSON value a line.
#[derive(Debug)]
pub struct Heard {
    /// The last line; none if it had not said anything.
    pub last: Option<Value>,
    /// What it used, where it had to be ended.
    pub ended: Option<Used>,
}

/// What a process used until it was ended.
#[derive(Debug)]
pub struct Used {
    /// Since its first line, or since it was started if there was none.
    pub seconds: f64,
    /// All in all, over all threads.
    pub busy_seconds: f64,
    pub peak_megabytes: f64,
}

/// Runs a command. It has so long to its first line, which says that it is prepared and begins, and so long from there.
pub fn run(command: &mut Command, prepare: Duration, limit: Duration) -> Result<Heard> {
    let mut process = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {command:?}"))?;
    let output = process.stdout.take().context("the output is piped")?;
    let (said, heard) = mpsc::channel();
    // Not waited for: something that the process started may hold its output open.
    thread::spawn(move || {
        for line in BufReader::new(output).lines() {
            if said.send(line).is_err() {
                return;
            }
        }
    });
    let mut began = Instant::now();
    let mut deadline = began + prepare;
    let mut last = None;
    loop {
        match heard.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                let line = line.context("reading what a solver prints")?;
                let value = serde_json::from_str(&line).context("reading what a solver printed")?;
                if last.is_none() {
                    began = Instant::now();
                    deadline = began + limit;
                }
                last = Some(value);
            }
            Err(RecvTimeoutError::Timeout) => {
                let ended = end(&mut process, began)?;
                return Ok(Heard {
                    last,
                    ended: Some(ended),
                });
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let status = process.wait().context("waiting for a solver")?;
    if !status.success() {
        bail!("{command:?} failed: {status}");
    }
    Ok(Heard { last, ended: None })
}

/// Notes what the process has used, and ends it.
fn end(process: &mut Child, began: Instant) -> Result<Used> {
    let used = Used {
        seconds: began.elapsed().as_secs_f64(),
        busy_seconds: busy_seconds(process.id()),
        peak_megabytes: peak_megabytes(process.id()),
    };
    process.kill().context("ending a solver whose time is up")?;
    process.wait().context("waiting for a solver's end")?;
    Ok(used)
}

fn peak_megabytes(process: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kilobytes.unwrap_or_default() / 1024.0
}

/// Linux counts processor time in hundredths of a second for whoever reads it here.
const TICKS_A_SECOND: f64 = 100.0;

fn busy_seconds(process: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // After the name, which may hold anything, the 12th and 13th field are user and system time.
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = fields.split_whitespace().skip(11).take(2);
    ticks.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / TICKS_A_SECOND
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Long enough for a shell to say something on a busy machine, and never waited out.
    const LONG: Duration = Duration::from_mins(10);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn the_last_line_of_a_process_that_ends_by_itself_counts() {
        let heard = run(&mut shell(r#"echo '{"n":1}'; echo '{"n":2}'"#), LONG, LONG).expect("it ends");
        assert_eq!(heard.last.expect("it said something")["n"], 2);
        assert!(heard.ended.is_none());
    }

    #[test]
    fn a_process_that_goes_on_is_ended_and_what_it_said_is_kept() {
        // It says its own id, never ends, and is busy all the time.
        let script = r#"echo "{\"id\":$$}"; while :; do :; done"#;
        let heard = run(&mut shell(script), LONG, Duration::from_millis(300)).expect("it is ended");
        let used = heard.ended.expect("it did not end by itself");
        assert!(used.seconds >= 0.3, "{}", used.seconds);
        assert!(used.peak_megabytes > 0.0);
        let id = heard.last.expect("it said its id")["id"].clone();
        assert!(
            !fs::exists(format!("/proc/{id}")).expect("processes are listed"),
            "{id} still runs"
        );
    }

    #[test]
    fn a_process_that_never_begins_is_ended_too() {
        let heard = run(
            &mut shell("while :; do :; done"),
            Duration::from_millis(300),
            LONG,
        )
        .expect("it is ended");
        assert!(heard.last.is_none() && heard.ended.is_some());
    }

    #[test]
    fn a_process_that_fails_is_an_error() {
        let problem = run(&mut shell("exit 3"), LONG, LONG).expect_err("it fails");
        assert!(problem.to_string().contains("exit status: 3"), "{problem}");
    }

    #[test]
    fn processor_time_is_read_from_the_right_fields() {
        let own = std::process::id();
        let before = busy_seconds(own);
        let started = Instant::now();
        // Until the system has counted a few ticks more; a second of work is a hundred of them.
        while busy_seconds(own) < before + 0.05 {
            assert!(started.elapsed() < LONG, "no processor time is counted");
        }
    }
}
