//! Commands on a node, and its partition as a target, over a real `sshd` on loopback with keys of the test's own.

use std::{
    fs,
    net::TcpListener,
    os::fd::OwnedFd,
    path::Path,
    process::{Command as Process, Stdio},
    thread,
    time::Duration,
};

use slipway_agent::{
    command::{Command, Outcome},
    ssh::{Error, Node, RemoteTarget},
    target::{LocalTarget, SlotTarget, Through},
};
use slipway_slots::chunking::Chunker;
use tempfile::TempDir;
use tokio::sync::mpsc;

use crate::command::{Ran, collect, gone, shell};

/// An sshd per connection, as from inetd: no port is guessed.
pub struct Sshd {
    folder: TempDir,
    port: u16,
}

impl Sshd {
    /// `None`, said aloud, where OpenSSH's server is not installed.
    pub fn start() -> Option<Self> {
        const PROGRAM: &str = "/usr/sbin/sshd";
        if !Path::new(PROGRAM).exists() || fs::create_dir_all("/run/sshd").is_err() {
            println!("report: skipped: a node over SSH needs {PROGRAM} (Debian: openssh-server) and root");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path();
        for name in ["host", "other", "user", "stranger"] {
            let status = Process::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-C", name, "-f"])
                .arg(path.join(name))
                .status();
            assert!(status.expect("ssh-keygen runs").success());
        }
        fs::copy(path.join("user.pub"), path.join("authorized")).expect("a key");
        let config = path.join("config");
        let text = format!(
            "HostKey {0}/host\nAuthorizedKeysFile {0}/authorized\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n\
             KbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nPidFile none\n",
            path.display()
        );
        fs::write(&config, text).expect("a config");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let log = path.join("log");
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if !config.exists() {
                    return;
                }
                let (Ok(input), Ok(log)) = (
                    stream.try_clone(),
                    fs::File::options().append(true).create(true).open(&log),
                ) else {
                    return;
                };
                let child = Process::new(PROGRAM)
                    .args(["-i", "-e", "-f"])
                    .arg(&config)
                    .stdin(Stdio::from(OwnedFd::from(input)))
                    .stdout(Stdio::from(OwnedFd::from(stream)))
                    .stderr(log)
                    .spawn();
                if let Ok(mut child) = child {
                    thread::spawn(move || child.wait());
                }
            }
        });
        Some(Self { folder, port })
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).expect("a file")
    }

    pub fn node_with(&self, host_key: &str, key: &str) -> Node {
        let user = std::env::var("USER").unwrap_or_else(|_| "root".to_owned());
        Node::new(
            "127.0.0.1",
            self.port,
            &user,
            &[self.text(host_key)],
            &self.text(key),
        )
        .expect("a node")
    }

    /// `node` of the agent's configuration.
    pub fn configuration(&self, host_key: &str, key: &str) -> String {
        let user = std::env::var("USER").unwrap_or_else(|_| "root".to_owned());
        format!(
            "node:\n  host: 127.0.0.1\n  port: {}\n  user: {user}\n  hostKeys: [\"{}\"]\n  keyFile: {}\n  helper: {}\n",
            self.port,
            self.text(host_key).trim(),
            self.folder.path().join(key).display(),
            env!("CARGO_BIN_EXE_slipway-agent")
        )
    }

    pub fn node(&self) -> Node {
        self.node_with("host.pub", "user")
    }

    /// No connection is answered from now on.
    fn stop(&self) {
        fs::remove_file(self.folder.path().join("config")).expect("the config");
    }
}

async fn remote(node: &Node, command: &Command) -> Ran {
    let (sender, receiver) = mpsc::channel(4);
    collect(receiver, node.run(command, sender)).await
}

#[tokio::test]
async fn e45_a_node_runs_commands_and_tells_how_they_ended() {
    let Some(sshd) = Sshd::start() else { return };
    let node = sshd.node();
    let mut command = shell("echo \"it's $WORD\"; echo err >&2; exit 7");
    command.environment = vec![("WORD".to_owned(), "a b".to_owned())];
    let ran = remote(&node, &command).await;
    assert_eq!(ran.outcome, Outcome::Exited { code: 7 }, "{}", sshd.text("log"));
    assert_eq!(
        (ran.stdout.as_str(), ran.stderr.as_str()),
        ("it's a b\n", "err\n")
    );
    let ran = remote(&node, &shell("kill -s SEGV $$")).await;
    assert_eq!(
        ran.outcome,
        Outcome::Signaled {
            signal: "SEGV".to_owned()
        }
    );
    let mut command = shell("head -c 100000 /dev/zero | tr '\\0' x; exit 3");
    command.output_limit = 1000;
    let ran = remote(&node, &command).await;
    assert_eq!(
        (ran.outcome, ran.stdout.len(), ran.truncated),
        (Outcome::Exited { code: 3 }, 1000, 1)
    );
}

#[tokio::test]
async fn e45_time_ends_the_process_group_on_the_node() {
    let Some(sshd) = Sshd::start() else { return };
    let mut command = shell("trap '' TERM; sh -c 'trap \"\" TERM; echo $$; sleep 600' & wait; sleep 600");
    command.time_limit = Duration::from_secs(10);
    let ran = remote(&sshd.node(), &command).await;
    assert!(
        matches!(ran.outcome, Outcome::TimedOut { .. }),
        "{:?}",
        ran.outcome
    );
    gone(&ran.stdout).await;
}

#[tokio::test]
async fn e45_a_changed_host_key_and_a_strange_key_are_refused() {
    let Some(sshd) = Sshd::start() else { return };
    match sshd.node_with("other.pub", "user").connect().await {
        Err(error @ Error::HostKey { .. }) => {
            let said = error.to_string();
            assert!(
                said.contains("SHA256:") && said.contains("pin its new key"),
                "{said}"
            );
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it trusts anybody"),
    }
    match sshd.node_with("host.pub", "stranger").connect().await {
        Err(Error::Denied { .. }) => {}
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it lets anybody in"),
    }
    let none = Node::new("127.0.0.1", 1, "root", &[], &sshd.text("user"))
        .err()
        .expect("no host key");
    assert!(none.to_string().contains("none is pinned"), "{none}");
}

#[tokio::test]
async fn e46_a_node_that_goes_away_under_a_command_is_a_reboot_where_one_was_meant() {
    let Some(sshd) = Sshd::start() else { return };
    let node = sshd.node();
    // The parent of a command's shell is the sshd of its connection.
    let mut command = shell("kill -s KILL $PPID; sleep 600");
    command.time_limit = Duration::from_secs(30);
    let ran = remote(&node, &command).await;
    let Outcome::Lost { reason } = &ran.outcome else {
        panic!("{:?}", ran.outcome)
    };
    assert!(reason.contains("did not restart"), "{reason}");
    sshd.stop();
    // Nobody answers any more, not even for what comes before the command.
    command.may_reboot = true;
    command.time_limit = Duration::from_secs(1);
    let ran = remote(&node, &command).await;
    assert!(
        matches!(ran.outcome, Outcome::NotStarted { .. }),
        "{:?}",
        ran.outcome
    );
}

/// E-43: the partition of a node is a target like a local one; the helper runs on the other side of a real connection.
#[test]
fn e43_a_partition_of_a_node_is_a_target() {
    let Some(sshd) = Sshd::start() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let device = folder.path().join("it's a slot");
    fs::write(&device, vec![0; 4 << 20]).expect("a slot");
    let helper = env!("CARGO_BIN_EXE_slipway-agent");
    let path = device.to_str().expect("plain");
    let mut target = RemoteTarget::open(&sshd.node(), helper, path).expect("it opens");
    assert_eq!(target.size(), 4 << 20);
    assert!(target.describe().contains("it's a slot"), "{}", target.describe());
    assert_eq!(target.in_use().expect("asked"), None);
    let bytes: Vec<u8> = (0..3 << 20).map(|at| (at / 4096 * 7 + at) as u8).collect();
    target.write_at(1 << 20, &bytes).expect("written");
    target.flush().expect("flushed");
    assert!(fs::read(&device).expect("the slot")[1 << 20..] == bytes);
    let mut seen = vec![0; bytes.len()];
    target.read_at(1 << 20, &mut seen, Through::Medium).expect("read");
    assert!(seen == bytes);
    let lengths = [4096; 1024];
    let there = target.digests(0, &lengths, Through::Cache).expect("digests");
    let mut local = LocalTarget::open(&device).expect("the slot");
    assert_eq!(
        there,
        local.digests(0, &lengths, Through::Cache).expect("digests")
    );
    let chunker = Chunker::new(4096).expect("an average");
    assert_eq!(
        target.cut(0, 4 << 20, chunker, 10_000).expect("cuts"),
        local.cut(0, 4 << 20, chunker, 10_000).expect("cuts")
    );
    let whole = target.digest(0, 4 << 20, Through::Medium).expect("a digest");
    assert_eq!(
        whole,
        local.digest(0, 4 << 20, Through::Medium).expect("a digest")
    );
    // A write that fails is told at the next flush, and what comes after it goes on.
    target.write_at(4 << 20, &[0; 4096]).expect("sent");
    let error = target.flush().expect_err("beyond the end").to_string();
    assert!(error.contains("an earlier write"), "{error}");
    target.flush().expect("all is well again");
    let absent = RemoteTarget::open(&sshd.node(), helper, "/no/such/device")
        .err()
        .expect("absent")
        .to_string();
    assert!(absent.contains("/no/such/device"), "{absent}");
}
