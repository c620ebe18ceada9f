//! Karpenter as a process: one workload per line in, one outcome per line out.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;

pub struct Karpenter {
    program: PathBuf,
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Karpenter {
    /// Builds and starts the harness; none where there is no Go.
    pub fn start() -> Option<Karpenter> {
        let program = match env::var_os("SLIPWAY_KARPENTER_HARNESS") {
            Some(program) => PathBuf::from(program),
            None => build()?,
        };
        Some(Karpenter::run(&program))
    }

    fn run(program: &Path) -> Karpenter {
        let mut process = Command::new(program)
            .args(["stream", "-threads", "1"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("starting {}: {error}", program.display()));
        let input = process.stdin.take().expect("piped");
        let output = BufReader::new(process.stdout.take().expect("piped"));
        Karpenter {
            program: program.to_owned(),
            process,
            input,
            output,
        }
    }

    /// What Karpenter does with a workload; none if the process breaks off over it, which starts it again.
    pub fn solve(&mut self, workload: &Value) -> Option<Value> {
        let mut line = String::new();
        let asked = writeln!(self.input, "{workload}");
        if asked.is_err() || self.output.read_line(&mut line).is_err() || line.is_empty() {
            *self = Karpenter::run(&self.program);
            return None;
        }
        let answer: Value = serde_json::from_str(&line).expect("an answer is JSON");
        assert!(
            answer["error"].is_null(),
            "Karpenter does not take the workload: {}",
            answer["error"]
        );
        Some(answer)
    }
}

impl Drop for Karpenter {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn build() -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/peers/karpenter");
    let module = std::fs::read_to_string(source.join("go.mod")).expect("Karpenter's module");
    let version = module
        .lines()
        .find_map(|line| line.strip_prefix("go "))
        .expect("a Go version");
    if Command::new("go")
        .arg("version")
        .stdout(Stdio::null())
        .status()
        .is_err()
    {
        return None;
    }
    let cache = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| env::home_dir().map(|home| home.join(".cache")))?;
    let program = cache.join("slipway/peers/karpenter");
    let status = Command::new("go")
        .current_dir(&source)
        .env("CGO_ENABLED", "0")
        .env("GOTOOLCHAIN", format!("go{}+auto", version.trim()))
        .args(["build", "-trimpath", "-o"])
        .arg(&program)
        .arg(".")
        .status()
        .ok()?;
    assert!(
        status.success(),
        "Karpenter does not build; go's message is above"
    );
    Some(program)
}
