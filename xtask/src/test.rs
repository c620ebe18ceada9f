//! `cargo xtask test`: builds every test once, runs the test programs side by side, and counts.

use std::{
    collections::VecDeque,
    path::PathBuf,
    process::{Command, Stdio},
    sync::Mutex,
    time::Instant,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

#[derive(clap::Args)]
pub struct Arguments {
    /// Run everything: long fuzzing, full sweeps, live peers.
    #[arg(long)]
    full: bool,
    /// Only tests of these packages.
    #[arg(short, long)]
    package: Vec<String>,
    /// Only tests whose name contains this.
    filter: Option<String>,
}

/// One test program that cargo built.
#[derive(Clone)]
struct Program {
    name: String,
    executable: PathBuf,
    directory: PathBuf,
}

#[derive(Default)]
struct Count {
    passed: u64,
    failed: u64,
    skipped: u64,
}

pub fn run(arguments: &Arguments) -> Result<bool> {
    let started = Instant::now();
    let programs = build(arguments)?;
    println!(
        "built {} test programs in {:.0} s",
        programs.len(),
        started.elapsed().as_secs_f64()
    );

    let queue = Mutex::new(VecDeque::from(programs));
    let count = Mutex::new(Count::default());
    // Two at a time: the machines this runs on have two cores, and each program is parallel inside.
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(program) = { queue.lock().expect("no panic while held").pop_front() } {
                    let (one, output) = run_program(&program, arguments);
                    let mut count = count.lock().expect("no panic while held");
                    print!("{output}");
                    count.passed += one.passed;
                    count.failed += one.failed;
                    count.skipped += one.skipped;
                }
            });
        }
    });
    let count = count.into_inner().expect("threads have ended");
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
            directory,
        });
    }
    Ok(programs)
}

/// Runs one program; its output is shown whole when it fails, else in one line.
fn run_program(program: &Program, arguments: &Arguments) -> (Count, String) {
    let started = Instant::now();
    let mut command = Command::new(&program.executable);
    command.current_dir(&program.directory).stdin(Stdio::null());
    command.env("CARGO_MANIFEST_DIR", &program.directory);
    if arguments.full {
        command.env("SLIPWAY_TEST_FULL", "1");
    }
    if let Some(filter) = &arguments.filter {
        command.arg(filter);
    }
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => {
            let failed = Count {
                failed: 1,
                ..Count::default()
            };
            return (failed, format!("FAIL {}: cannot start: {error}\n", program.name));
        }
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

/// Reads `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
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
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libtest_results_are_added_up() {
        let count = count(
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
             test result: FAILED. 2 passed; 4 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.23s\n",
        );
        assert_eq!((count.passed, count.failed, count.skipped), (5, 4, 1));
    }
}
