//! A virtual address on a real interface, in a network of its own: the test starts itself again in new namespaces, with a neighbour in
//! another one. Where namespaces cannot be made it says so.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use parking_lot::Mutex;
use slipway_agent::{
    address::{
        keeper::{Keeper, Notes, Share},
        lease::{LeasePlace, Leases},
        turn::{HOLD, LEASE, LeaseState, Role, Write, Wrote},
    },
    service::machine::LocalMachine,
};

const INSIDE: &str = "SLIPWAY_TEST_IN_NAMESPACES";
const ADDRESS: &str = "192.0.2.10/24";

pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn ip(line: &str) -> String {
    run("ip", &line.split(' ').collect::<Vec<_>>())
}

/// A machine beside this one, on the other end of a cable.
pub struct Neighbour(pub Child);

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Neighbour {
    pub fn new() -> Self {
        let mut child = Command::new("unshare")
            .args(["-n", "sh", "-c", "echo ready; exec sleep 600"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "ready\n");
        Self(child)
    }

    pub fn ip(&self, line: &str) -> String {
        let process = self.0.id().to_string();
        let mut arguments = vec!["-t", &process, "-n", "ip"];
        arguments.extend(line.split(' '));
        run("nsenter", &arguments)
    }
}

/// The API of a cluster, in memory, with the lease that it has.
#[derive(Default)]
enum Api {
    #[default]
    Away,
    Answers(Option<LeaseState>),
}

#[derive(Default)]
struct Memory(Mutex<Api>);

#[async_trait]
impl Leases for Memory {
    async fn read(&self) -> Result<Option<LeaseState>, String> {
        match &*self.0.lock() {
            Api::Away => Err("away".to_owned()),
            Api::Answers(lease) => Ok(lease.clone()),
        }
    }

    async fn write(&self, own: &str, write: &Write) -> Wrote {
        let mut api = self.0.lock();
        let Api::Answers(current) = &mut *api else {
            return Wrote::Unknown;
        };
        if current.as_ref().map(|seen| seen.version.clone()) != write.over {
            return Wrote::Refused;
        }
        let version = write
            .over
            .as_deref()
            .and_then(|text| text.parse().ok())
            .unwrap_or(0_u64)
            + 1;
        *current = Some(LeaseState {
            holder: own.to_owned(),
            version: version.to_string(),
        });
        Wrote::Done
    }
}

#[derive(Default)]
struct Noted(Mutex<Vec<String>>);

impl Notes for Noted {
    fn role(&self, _: &str, role: Role) -> std::io::Result<()> {
        self.0.lock().push(format!("{role:?}"));
        Ok(())
    }

    fn held(&self, _: &str, _: bool) {}
}

fn keeper(own: &str, role: Role, leases: &Arc<Memory>, noted: &Arc<Noted>) -> Keeper {
    let share = Share {
        address: ADDRESS.to_owned(),
        interface: "v0".to_owned(),
        lease: LeasePlace {
            namespace: "kube-system".to_owned(),
            name: "address".to_owned(),
            kubeconfigs: Vec::new(),
            port: 6443,
        },
        role,
    };
    Keeper::new(own, share, leases.clone(), Arc::new(LocalMachine), noted.clone())
}

fn is_held() -> bool {
    ip("-o address show dev v0").contains(ADDRESS)
}

async fn until(what: &str, limit: Duration, met: impl Fn() -> bool) {
    let began = Instant::now();
    while !met() {
        assert!(began.elapsed() < limit, "{what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// What the kernel does with it: neighbours learn of it at once, and it goes by itself when the agent does.
async fn inside() {
    let neighbour = Neighbour::new();
    ip("link add v0 type veth peer name v1");
    ip(&format!("link set v1 netns {}", neighbour.0.id()));
    ip("address add 192.0.2.1/24 dev v0");
    ip("link set v0 up");
    neighbour.ip("address add 192.0.2.2/24 dev v1");
    neighbour.ip("link set v1 up");
    // It believes that another machine has the address, as after a failover.
    neighbour.ip("neighbor replace 192.0.2.10 lladdr 02:00:00:00:00:99 dev v1 nud stale");
    let link = ip("-o link show dev v0");
    let mac = link
        .split("link/ether ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next());
    let mac = mac.expect("it has one").to_owned();

    let (leases, noted) = (Arc::new(Memory::default()), Arc::new(Noted::default()));
    let mut first = keeper("a", Role::First, &leases, &noted);
    // Its apiserver is not there yet, and it is the first.
    assert!(first.round().await.is_err());
    assert!(is_held());
    let shown = ip("address show dev v0");
    let limited = (1..=HOLD / 1000).any(|seconds| shown.contains(&format!("valid_lft {seconds}sec")));
    assert!(limited, "the kernel drops it by itself: {shown}");
    until("the neighbour knows", Duration::from_secs(5), || {
        neighbour.ip("neighbor show 192.0.2.10").contains(&mac)
    })
    .await;

    // The apiserver comes: the lease is made, and that this host is no longer first is noted before.
    *leases.0.lock() = Api::Answers(None);
    first.round().await.unwrap();
    assert_eq!(*noted.0.lock(), ["Maker"]);
    assert_eq!(
        leases.read().await.unwrap().map(|seen| seen.holder),
        Some("a".to_owned())
    );
    assert!(is_held());

    // Another host has it: it is off at once.
    *leases.0.lock() = Api::Answers(Some(LeaseState {
        holder: "b".to_owned(),
        version: "7".to_owned(),
    }));
    first.round().await.unwrap();
    assert!(!is_held());

    // Its own again, and the agent is gone without a word: the kernel drops it before anybody else may have it.
    *leases.0.lock() = Api::Answers(Some(LeaseState {
        holder: "a".to_owned(),
        version: "8".to_owned(),
    }));
    first.round().await.unwrap();
    assert!(is_held());
    drop(first);
    let lease = Duration::from_millis(LEASE.unsigned_abs());
    until("the kernel drops it", lease, || !is_held()).await;
}

/// Runs a test of this program in a network of its own. Where namespaces cannot be made it says so.
pub fn in_namespaces(test: &str) {
    let can = |arguments: &[&str]| {
        let tried = Command::new("unshare").args(arguments).output();
        tried.is_ok_and(|output| output.status.success())
    };
    let ready = ["ip", "nsenter"].iter().all(|program| {
        let found = Command::new(program).arg("-V").output();
        found.is_ok_and(|output| output.status.success())
    });
    let making = [
        "--map-root-user",
        "--net",
        "ip",
        "link",
        "add",
        "v0",
        "type",
        "veth",
    ];
    if !ready || !can(&making) {
        println!("report: skipped: an address in a network of its own, namespaces cannot be made here");
        return;
    }
    let output = Command::new("unshare")
        .args(["--map-root-user", "--net"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    for line in text.lines().filter(|line| line.starts_with("report: ")) {
        println!("{line}");
    }
}

pub fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_is_announced_and_goes_with_its_agent() {
    if is_inside() {
        return inside().await;
    }
    in_namespaces("address::an_address_is_announced_and_goes_with_its_agent");
}
