//! `cargo xtask test`: builds every test once, runs the test programs side by side, and counts.

use std::{
    collections::{BTreeSet, VecDeque},
    io::Read,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::{Mutex, OnceLock},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{packages, shared_clusters::SharedClusters};

#[derive(clap::Args)]
pub struct Arguments {
    /// Run everything: long fuzzing, full sweeps, live upstreams.
    #[arg(long)]
    full: bool,
    /// Only tests of these packages.
    #[arg(short, long)]
    package: Vec<String>,
    /// Install nothing: tests that lack a package of Debian's are skipped.
    #[arg(long)]
    no_install: bool,
    /// Only tests whose name contains this.
    filter: Option<String>,
}

/// One test program that cargo built.
#[derive(Clone)]
struct Program {
    name: String,
    executable: PathBuf,
    directory: PathBuf,
    uses_shared_clusters: bool,
}

#[derive(Default)]
struct Count {
    passed: u64,
    failed: u64,
    skipped: u64,
}

pub fn run(arguments: &Arguments) -> Result<bool> {
    let started = Instant::now();
    // Packages come over the network while the processors build.
    let (programs, installed) = std::thread::scope(|scope| {
        let installing = (!arguments.no_install && packages::are_needed(&arguments.package))
            .then(|| scope.spawn(packages::install));
        let programs = build(arguments);
        let installed = installing.map(|thread| thread.join().expect("installing does not panic"));
        (programs, installed)
    });
    let programs = programs?;
    println!(
        "built {} test programs in {:.0} s",
        programs.len(),
        started.elapsed().as_secs_f64()
    );
    if let Some(Err(reason)) = installed {
        println!("report: packages that tests need were not installed: {reason}");
    }

    // Programs that need no cluster run while the shared ones start.
    let (users, others): (Vec<_>, Vec<_>) = programs
        .into_iter()
        .partition(|program| program.uses_shared_clusters);
    let shared = OnceLock::new();
    let start = || SharedClusters::start().map_err(|error| format!("{error:#}"));
    let needs_shared = !users.is_empty();
    let queue = Mutex::new(others.into_iter().chain(users).collect::<VecDeque<_>>());
    let count = Mutex::new(Count::default());
    // Two at a time: the machines this runs on have two cores, and each program is parallel inside.
    std::thread::scope(|scope| {
        if needs_shared {
            scope.spawn(|| shared.get_or_init(start));
        }
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(program) = { queue.lock().expect("no panic while held").pop_front() } {
                    let environment = if program.uses_shared_clusters {
                        shared
                            .get_or_init(start)
                            .as_ref()
                            .map(SharedClusters::environment)
                    } else {
                        Ok(Vec::new())
                    };
                    let (one, output) = match environment {
                        Ok(environment) => run_program(&program, arguments, &environment),
                        Err(error) => failed(&program, &format!("the shared clusters do not start: {error}")),
                    };
                    let mut count = count.lock().expect("no panic while held");
                    print!("{output}");
                    count.passed += one.passed;
                    count.failed += one.failed;
                    count.skipped += one.skipped;
                }
            });
        }
    });
    let mut count = count.into_inner().expect("threads have ended");
    let (documents, output) = run_documents(arguments)?;
    print!("{output}");
    count.passed += documents.passed;
    count.failed += documents.failed;
    if let Some(Ok(shared)) = shared.into_inner() {
        shared.stop(count.failed > 0);
    }
    println!("took {:.0} s", started.elapsed().as_secs_f64());
    println!(
        "{} passed, {} failed, {} skipped",
        count.passed, count.failed, count.skipped
    );
    Ok(count.failed == 0)
}

/// Builds the test programs and learns their paths from cargo.
fn build(arguments: &Arguments) -> Result<Vec<Program>> {
    let mut command = Command::new(env!("CARGO"));
    command.args([
        "test",
        "--no-run",
        "--locked",
        "--message-format=json-render-diagnostics",
    ]);
    if arguments.package.is_empty() {
        command.arg("--workspace");
    }
    for package in &arguments.package {
        command.args(["--package", package]);
    }
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .context("running cargo test --no-run")?;
    if !output.status.success() {
        bail!("the tests do not build");
    }
    let users = users_of_the_testbed()?;
    let mut programs = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(message) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        let (Some(executable), Some(manifest)) =
            (message["executable"].as_str(), message["manifest_path"].as_str())
        else {
            continue;
        };
        if message["profile"]["test"] != true {
            continue;
        }
        let directory = PathBuf::from(manifest)
            .parent()
            .context("a manifest has a folder")?
            .to_owned();
        let target = message["target"]["name"].as_str().unwrap_or_default();
        let package = directory.file_name().unwrap_or_default().to_string_lossy();
        programs.push(Program {
            name: format!("{package}/{target}"),
            executable: executable.into(),
            // The chores themselves link the testbed to start it; their tests do not use it.
            uses_shared_clusters: users.contains(&directory) && package != "xtask" && target != "repository",
            directory,
        });
    }
    Ok(programs)
}

/// The code in the guides, which cargo builds and runs by itself: its programs are not among those that `--no-run` names.
fn run_documents(arguments: &Arguments) -> Result<(Count, String)> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["test", "--doc", "--locked"]);
    if arguments.package.is_empty() {
        command.arg("--workspace");
    }
    for package in &arguments.package {
        command.args(["--package", package]);
    }
    command.args(&arguments.filter);
    let started = Instant::now();
    let output = command.output().context("running cargo test --doc")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut count = count(&text);
    // A package that is a program alone has no documents, and cargo says so with an error.
    let errors = String::from_utf8_lossy(&output.stderr);
    let is_empty = errors.contains("no library targets found");
    if !output.status.success() && count.failed == 0 && !is_empty {
        count.failed = 1;
    }
    let line = format!(
        "{} {:<40} {:>5} passed {:>3} failed {:>3} skipped {:>7.1} s\n",
        if count.failed == 0 { "ok  " } else { "FAIL" },
        "documents",
        count.passed,
        count.failed,
        count.skipped,
        started.elapsed().as_secs_f64()
    );
    let shown = if count.failed == 0 {
        line
    } else {
        format!("{text}{errors}{line}")
    };
    Ok((count, shown))
}

/// The packages that use the testbed, by their directory.
fn users_of_the_testbed() -> Result<BTreeSet<PathBuf>> {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--no-deps",
            "--offline",
            "--locked",
            "--format-version=1",
        ])
        .stderr(Stdio::inherit())
        .output()
        .context("running cargo metadata")?;
    let metadata: Value = serde_json::from_slice(&output.stdout).context("reading cargo metadata")?;
    let packages = metadata["packages"]
        .as_array()
        .context("cargo metadata names packages")?;
    Ok(packages
        .iter()
        .filter(|package| {
            let mut dependencies = package["dependencies"].as_array().into_iter().flatten();
            dependencies.any(|dependency| dependency["name"] == "slipway-testbed")
        })
        .filter_map(|package| package["manifest_path"].as_str())
        .filter_map(|manifest| Some(Path::new(manifest).parent()?.to_owned()))
        .collect())
}

fn failed(program: &Program, reason: &str) -> (Count, String) {
    let count = Count {
        failed: 1,
        ..Count::default()
    };
    (count, format!("FAIL {}: {reason}\n", program.name))
}

/// Runs one program; its output is shown whole when it fails, else in one line.
fn run_program(
    program: &Program,
    arguments: &Arguments,
    environment: &[(String, PathBuf)],
) -> (Count, String) {
    let started = Instant::now();
    let mut command = Command::new(&program.executable);
    command.current_dir(&program.directory).stdin(Stdio::null());
    command.env("CARGO_MANIFEST_DIR", &program.directory);
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    if arguments.full {
        command.env("SLIPWAY_TEST_FULL", "1");
        if std::env::var_os("PROPTEST_CASES").is_none() {
            command.env("PROPTEST_CASES", LONG_FUZZING);
        }
    }
    // What passing tests print is captured unless told otherwise; their report lines are shown.
    command.arg("--show-output");
    if let Some(filter) = &arguments.filter {
        command.arg(filter);
    }
    let guard = if arguments.full {
        FULL_HANG_GUARD
    } else {
        HANG_GUARD
    };
    let output = match run_with_guard(&mut command, guard) {
        Ok(Guarded { output, hung: false }) => output,
        Ok(Guarded { output, hung: true }) => {
            let minutes = guard.as_secs() / 60;
            let reason = format!("killed: nothing was printed for {minutes} minutes; until then:");
            let (count, mut shown) = failed(program, &reason);
            shown.push_str(&String::from_utf8_lossy(&output.stdout));
            shown.push_str(&String::from_utf8_lossy(&output.stderr));
            return (count, shown);
        }
        Err(error) => return failed(program, &format!("cannot start: {error}")),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let mut count = count(&text);
    if !output.status.success() && count.failed == 0 {
        count.failed = 1;
    }
    let seconds = started.elapsed().as_secs_f64();
    let line = format!(
        "{} {:<40} {:>5} passed {:>3} failed {:>3} skipped {seconds:>7.1} s\n",
        if count.failed == 0 { "ok  " } else { "FAIL" },
        program.name,
        count.passed,
        count.failed,
        count.skipped,
    );
    let mut shown = String::new();
    if count.failed > 0 {
        shown.push_str(&text);
        shown.push_str(&String::from_utf8_lossy(&output.stderr));
    } else {
        // A test may print a figure or a visible skip: those lines are for the reader of the whole run.
        for line in text
            .lines()
            .filter(|line| line.starts_with("report: ") || line.contains(", ignored"))
        {
            shown.push_str(line);
            shown.push('\n');
        }
    }
    shown.push_str(&line);
    (count, shown)
}

/// Cases of each property in full; 256 in every run.
const LONG_FUZZING: &str = "10000";

/// No test takes this long, unless it hangs. A program may: it prints a line whenever one of its tests ends.
const HANG_GUARD: Duration = Duration::from_mins(20);
/// In full, machines are started by the hundred.
const FULL_HANG_GUARD: Duration = Duration::from_hours(12);

/// How long the last of a program's output may take.
const AFTER_ITS_END: Duration = Duration::from_secs(5);

/// What a program printed, and whether it had to be killed.
struct Guarded {
    output: Output,
    hung: bool,
}

/// Runs a program to its end, or until it has printed nothing for as long as that.
fn run_with_guard(command: &mut Command, longest: Duration) -> std::io::Result<Guarded> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let id = child.id();
    let (printed, guard) = std::sync::mpsc::channel::<()>();
    let watcher = std::thread::spawn(move || {
        loop {
            match guard.recv_timeout(longest) {
                Ok(()) => {}
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return false,
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                    // The child cannot be killed through its handle while another thread waits for its output.
                    let _ = Command::new("kill").args(["-KILL", &id.to_string()]).status();
                    return true;
                }
            }
        }
    });
    let errors = child.stderr.take();
    let (text, stderr) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut chunk = [0; 8192];
        if let Some(mut errors) = errors {
            while let Ok(length @ 1..) = errors.read(&mut chunk) {
                let _ = text.send(chunk[..length].to_vec());
            }
        }
    });
    let mut stdout = Vec::new();
    if let Some(mut output) = child.stdout.take() {
        let mut chunk = [0; 8192];
        loop {
            let length = output.read(&mut chunk)?;
            if length == 0 {
                break;
            }
            stdout.extend_from_slice(&chunk[..length]);
            // A watcher that has ended has killed the program.
            let _ = printed.send(());
        }
    }
    let status = child.wait()?;
    drop(printed);
    // Something that it started and that outlives it may hold the other end, and nobody waits for that.
    let mut errors = Vec::new();
    while let Ok(chunk) = stderr.recv_timeout(AFTER_ITS_END) {
        errors.extend(chunk);
    }
    let hung = watcher.join().unwrap_or(false);
    Ok(Guarded {
        output: Output {
            status,
            stdout,
            stderr: errors,
        },
        hung,
    })
}

/// Reads `test result: ok. 3 passed; 0 failed; 1 ignored; …`, and `report: skipped: …`.
fn count(output: &str) -> Count {
    let mut count = Count::default();
    for line in output
        .lines()
        .filter_map(|line| line.strip_prefix("test result: "))
    {
        let numbers = line.split([';', '.']).filter_map(|part| {
            let (number, word) = part.trim().split_once(' ')?;
            Some((number.parse::<u64>().ok()?, word.to_owned()))
        });
        for (number, word) in numbers {
            match word.as_str() {
                "passed" => count.passed += number,
                "failed" => count.failed += number,
                "ignored" => count.skipped += number,
                _ => {}
            }
        }
    }
    // A test that finds out only while it runs that it cannot says so in one line; to libtest it has passed.
    let skipped = output
        .lines()
        .filter(|line| line.starts_with("report: skipped: "))
        .count() as u64;
    let skipped = skipped.min(count.passed);
    count.passed -= skipped;
    count.skipped += skipped;
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What it printed until then is shown, so that one sees which test it was.
    #[test]
    fn only_a_program_that_prints_nothing_is_killed() {
        let run = |script: &str, longest| {
            run_with_guard(Command::new("sh").args(["-c", script]), longest).expect("it starts")
        };
        let hung = run("echo begun; exec sleep 1000", Duration::from_secs(3));
        assert!(hung.hung);
        assert_eq!(hung.output.stdout, b"begun\n", "what it printed is kept");
        let slow = run(
            "for i in 1 2 3; do echo $i; sleep 0.1; done",
            Duration::from_mins(1),
        );
        assert!(!slow.hung && slow.output.status.success());
        assert_eq!(slow.output.stdout, b"1\n2\n3\n");
        let outlived = run(
            "echo lost >&2; sleep 1000 > /dev/null & echo $!",
            Duration::from_mins(1),
        );
        assert!(!outlived.hung);
        assert_eq!(
            outlived.output.stderr, b"lost\n",
            "nobody waits for what it left behind"
        );
        let left = String::from_utf8_lossy(&outlived.output.stdout).into_owned();
        let ended = Command::new("kill").arg(left.trim()).status();
        assert!(ended.is_ok_and(|status| status.success()));
    }

    #[test]
    fn libtest_results_are_added_up() {
        let count = count(
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
             test result: FAILED. 2 passed; 4 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.23s\n",
        );
        assert_eq!((count.passed, count.failed, count.skipped), (5, 4, 1));
    }

    #[test]
    fn a_test_that_says_it_was_skipped_has_not_passed() {
        let count = count(
            "---- real_k3s::one stdout ----\nreport: skipped: one on real k3s needs a k3s\n\
             ---- packing::figures stdout ----\nreport: packing: 3 of 4 skipped\n\
             test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n",
        );
        assert_eq!((count.passed, count.failed, count.skipped), (2, 0, 2));
    }
}
