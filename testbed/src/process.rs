//! Child processes that die with this one, however it ends. All are spawned from one thread that never ends,
//! because the kernel sends the parent-death signal when the spawning *thread* does.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{LazyLock, mpsc},
    thread,
};

use parking_lot::Mutex;

type Request = (Command, mpsc::Sender<io::Result<Child>>);

static SPAWNER: LazyLock<mpsc::Sender<Request>> = LazyLock::new(|| {
    let (sender, receiver) = mpsc::channel::<Request>();
    thread::Builder::new()
        .name("testbed-spawner".to_owned())
        .spawn(move || {
            for (mut command, answer) in receiver {
                // A caller that has gone does not want the child either.
                if let Err(mpsc::SendError(Ok(mut child))) = answer.send(command.spawn()) {
                    let _ = child.kill();
                }
            }
        })
        .expect("a thread can be started");
    sender
});

/// How to start a process.
#[derive(Clone, Debug)]
pub struct Program {
    /// What it is called in messages, and its log file's name.
    pub name: String,
    pub path: PathBuf,
    pub arguments: Vec<String>,
    pub environment: BTreeMap<String, String>,
}

/// A running process and its log.
#[derive(Debug)]
pub struct Process {
    program: Program,
    launcher: PathBuf,
    log: PathBuf,
    child: Mutex<Child>,
}

impl Process {
    /// Starts `program`; everything it says goes to `<logs>/<name>.log`.
    pub fn start(launcher: &Path, logs: &Path, program: Program) -> io::Result<Process> {
        let log = logs.join(format!("{}.log", program.name));
        let child = spawn(launcher, &log, &program)?;
        Ok(Process {
            program,
            launcher: launcher.to_owned(),
            log,
            child: Mutex::new(child),
        })
    }

    pub fn name(&self) -> &str {
        &self.program.name
    }

    pub fn id(&self) -> u32 {
        self.child.lock().id()
    }

    pub fn log(&self) -> &Path {
        &self.log
    }

    /// How it ended, if it has.
    pub fn ended(&self) -> Option<ExitStatus> {
        self.child.lock().try_wait().ok().flatten()
    }

    /// Kills it with SIGKILL and waits until it is gone. Nothing is lost that anyone would want: a testbed's data
    /// ends with it.
    pub fn kill(&self) {
        let mut child = self.child.lock();
        // It may have ended by itself.
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Starts it again with the same arguments, after killing it if it still runs.
    pub fn restart(&self) -> io::Result<()> {
        self.kill();
        *self.child.lock() = spawn(&self.launcher, &self.log, &self.program)?;
        Ok(())
    }

    /// Whether its log contains `words`.
    pub fn says(&self, words: &str) -> bool {
        self.text().contains(words)
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// The last lines of its log.
    pub fn tail(&self) -> String {
        let text = self.text();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(launcher: &Path, log: &Path, program: &Program) -> io::Result<Child> {
    let out = File::options().create(true).append(true).open(log)?;
    let mut command = Command::new(launcher);
    command
        .arg(std::process::id().to_string())
        .arg(&program.path)
        .args(&program.arguments)
        // A user's own clusters are none of our business, unless a program takes its kubeconfig this way.
        .env_remove("KUBECONFIG")
        .envs(&program.environment)
        .stdin(Stdio::null())
        .stderr(out.try_clone()?)
        .stdout(out)
        // Ctrl-C is for this process, which stops the children in order.
        .process_group(0);
    let (sender, receiver) = mpsc::channel();
    SPAWNER
        .send((command, sender))
        .map_err(|_| io::Error::other("the spawning thread has ended"))?;
    receiver
        .recv()
        .map_err(|_| io::Error::other("the spawning thread has ended"))?
}
