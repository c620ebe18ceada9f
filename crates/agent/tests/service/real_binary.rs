//! `slipway-agent serve` as a process: joined with a token, held by the same suite, and killed again and again.

use std::{
    fs,
    os::unix::net::UnixDatagram,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use slipway_agent::self_update::LAUNCHED;
use slipway_agent_api::proto::{self, OperationState, start_request::Verb};
use slipway_hosts_sim::{AgentProcess, Fleet, NodeImage, Options, Reach};
use slipway_slots::Digest;

use super::suite::{Target, hold, reader, real_addresses};
use super::{ended, fleet, import, order};

fn join(fleet: &Fleet, options: &Options) -> AgentProcess {
    join_by(fleet, options, Reach::Direct)
}

fn join_by(fleet: &Fleet, options: &Options, reach: Reach) -> AgentProcess {
    AgentProcess::join(
        Path::new(env!("CARGO_BIN_EXE_slipway-agent")),
        fleet,
        "box-real",
        &options.installed,
        reach,
        "cache: {quotaMebibytes: 64, marginMebibytes: 0}",
    )
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_real_binary_holds_the_suite() {
    let (fleet, options) = fleet().await;
    let agent = join(&fleet, &options);
    let target = Target {
        operator: agent.operator(&fleet).unwrap(),
        reader: Some(agent.client(&fleet, &reader()).unwrap()),
        exchange: agent.exchange(),
        state: agent.state(),
    };
    hold(&target).await;
    real_addresses(&target.operator).await;
    // The token was for one use.
    let said = agent.enrol().unwrap_err().to_string();
    assert!(said.contains("was used already"), "{said}");
}

/// The same without a port of its own: it connects to the manager, also after it was killed.
#[tokio::test(flavor = "multi_thread")]
async fn the_real_binary_behind_nat_holds_the_suite() {
    let (fleet, options) = fleet().await;
    let mut agent = join_by(&fleet, &options, Reach::Tunnel);
    fleet.has_connected("box-real").await;
    let target = Target {
        operator: agent.operator(&fleet).unwrap(),
        reader: None,
        exchange: agent.exchange(),
        state: agent.state(),
    };
    hold(&target).await;
    let mut changes = fleet.board.changes();
    agent.kill();
    changes.changed().await.unwrap();
    agent.start().unwrap();
    fleet.has_connected("box-real").await;
    assert_eq!(target.operator.inventory().await.unwrap().generation, 5);
}

/// kill -9 at times that differ; each order comes to its end, and none is done twice over.
#[tokio::test(flavor = "multi_thread")]
async fn the_real_binary_is_killed_while_it_works_and_finishes() {
    let (fleet, options) = fleet().await;
    let mut agent = join(&fleet, &options);
    let image = NodeImage::build("2.0.0", 2).unwrap();
    image.write_layout(&agent.exchange().join("two")).unwrap();
    let rounds = if crate::power::full() { 60 } else { 12 };
    let mut cut_off = 0;
    for round in 0..rounds {
        let id = format!("import-{round}");
        let client = agent.operator(&fleet).unwrap();
        client
            .start(order("box-real", &id, 1, import("two")))
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_millis(round % 6)).await;
        agent.kill();
        agent.start().unwrap();
        let client = agent.operator(&fleet).unwrap();
        let done = ended(&client, &id).await.unwrap();
        assert_eq!(done.state(), OperationState::Succeeded, "{}", done.message);
        cut_off += usize::from(done.sequence >= 1 << 32);
        let images = client.images().await.unwrap();
        assert_eq!(images.images.len(), 1);
        assert_eq!(images.r#use.unwrap().reserved_bytes, 0);
        let verb = Verb::Evict(proto::Evict {
            digest: image.digest.to_string(),
        });
        super::succeeded(&client, &format!("evict-{round}"), verb).await;
    }
    println!(
        "report: of {rounds} imports of the real agent {cut_off} were cut off by SIGKILL, and all ended well"
    );
}

/// As systemd starts it: it says when it is ready and that it lives, keeps a version of itself that was on trial, and its
/// slots' engine is behind all others at the disk.
#[tokio::test(flavor = "multi_thread")]
async fn as_a_unit_it_reports_and_keeps_its_own_version_and_gives_way() {
    let (fleet, options) = fleet().await;
    let mut agent = join(&fleet, &options);
    agent.kill();
    let versions = agent.state().join("agent");
    fs::create_dir_all(&versions).unwrap();
    let digest = Digest::of(b"a version");
    fs::write(versions.join(digest.to_string().replace(':', "-")), b"a version").unwrap();
    let state =
        serde_json::json!({"epoch": 0, "trial": {"digest": digest, "left": 2, "epoch": 1}}).to_string();
    let state = format!("{:08x} {state}\n", crc32fast::hash(state.as_bytes()));
    fs::write(versions.join("state"), state).unwrap();

    let place = agent.state().join("notify");
    let socket = UnixDatagram::bind(&place).unwrap();
    socket.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    let mut child = agent
        .command()
        .arg("serve")
        .env("NOTIFY_SOCKET", &place)
        .env("WATCHDOG_USEC", "300000")
        .env(LAUNCHED, digest.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let hear = || {
        let mut word = [0; 64];
        let length = socket.recv(&mut word).expect("it reports in time");
        String::from_utf8_lossy(&word[..length]).into_owned()
    };
    assert_eq!(hear(), "READY=1");
    let kept = (0..2000).any(|_| {
        assert_eq!(hear(), "WATCHDOG=1");
        let state = fs::read_to_string(versions.join("state")).unwrap();
        state.contains(&format!("\"current\":\"{digest}\"")) && state.contains("\"trial\":null")
    });
    let tasks = fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
    let priorities: Vec<_> = tasks
        .flatten()
        .filter_map(|task| {
            let output = Command::new("ionice")
                .arg("-p")
                .arg(task.file_name())
                .output()
                .ok()?;
            Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        })
        .collect();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(kept, "the version on trial is not kept");
    if priorities.is_empty() {
        println!("report: skipped: reading the I/O priority needs ionice (Debian: util-linux)");
        return;
    }
    assert!(
        priorities.iter().any(|priority| priority == "idle"),
        "{priorities:?}"
    );
    assert!(
        priorities.iter().any(|priority| priority != "idle"),
        "{priorities:?}"
    );
}
