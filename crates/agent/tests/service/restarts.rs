//! The agent ends at any moment: orders that were accepted are carried out, generations do not go back, and what cannot be
//! known is said.

use std::{
    collections::BTreeMap,
    panic::resume_unwind,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::StreamExt;
use slipway_agent::{
    cache::{ServiceFailpoint, ServiceFailpoints},
    engine::Unhindered,
    service::operations::{End, Operations},
};
use slipway_agent_api::{
    Class,
    proto::{self, OperationState, StartRequest, start_request::Verb},
};
use slipway_hosts_sim::{FLEET, SimulatedHost};
use tempfile::TempDir;

use crate::cache::trouble::{SmallDisk, fill};

use super::{command, ended, import, one, order, succeeded};

#[tokio::test]
async fn what_was_accepted_is_known_after_a_restart_and_generations_do_not_go_back() {
    let (_fleet, host, client) = one().await;
    let first = succeeded(&client, "op-1", command(&["echo", "one"])).await;
    client
        .start(order("box-1", "op-2", 7, command(&["echo", "two"])))
        .await
        .unwrap();
    ended(&client, "op-2").await.unwrap();
    host.kill_agent().await.unwrap();
    let after = client.operation("op-1").await.unwrap();
    assert_eq!(
        (after.state(), after.sequence, after.ended_at),
        (first.state(), first.sequence, first.ended_at)
    );
    let stale = client
        .start(order("box-1", "op-3", 6, command(&["true"])))
        .await
        .unwrap_err();
    assert_eq!(stale.reason, "StaleGeneration");
    // Sent again to the new process, the order is still the old operation: the command does not run twice.
    client
        .start(order("box-1", "op-2", 7, command(&["echo", "two"])))
        .await
        .unwrap();
    let runs = host
        .machine
        .ran()
        .iter()
        .filter(|argv| argv[1..] == ["two"])
        .count();
    assert_eq!(runs, 1);
}

#[tokio::test]
async fn a_command_that_the_agents_end_cut_off_is_interrupted_and_runs_again_only_when_it_is_ordered_again() {
    let (_fleet, host, client) = one().await;
    host.machine.faults.lock().programs = [("slow".to_owned(), (0, Duration::from_mins(10)))].into();
    client
        .start(order("box-1", "op-1", 1, command(&["slow"])))
        .await
        .unwrap();
    // Its first words come over the watch.
    let mut watch = client.watch("op-1");
    while watch.next().await.unwrap().unwrap().output.is_none() {}
    let watching = tokio::spawn({
        let client = client.clone();
        async move { ended(&client, "op-1").await }
    });
    host.kill_agent().await.unwrap();
    let seen = watching.await.unwrap().unwrap();
    assert_eq!(seen.state(), OperationState::Interrupted, "{}", seen.message);
    assert!(
        seen.message.contains("nobody knows how far it came"),
        "{}",
        seen.message
    );
    assert_eq!(host.machine.ran().len(), 1, "it is not run again by itself");
    // The next one is not held up, and the same order again runs it.
    host.machine.faults.lock().programs.clear();
    succeeded(&client, "op-2", command(&["true"])).await;
    let again = succeeded(&client, "op-1", command(&["slow"])).await;
    assert!(again.sequence > seen.sequence);
    assert_eq!(host.machine.ran().len(), 3);
}

#[tokio::test]
async fn work_that_can_go_on_goes_on_by_itself() {
    let (_fleet, host, client) = one().await;
    let image = slipway_hosts_sim::NodeImage::build("2.0.0", 2).unwrap();
    // The order is accepted; the agent is gone before it is carried out.
    host.stop().await;
    let (operations, _) = Operations::open(&host.state(), "box-1", "box-1-1", Arc::new(Unhindered)).unwrap();
    operations
        .accept(&order("box-1", "op-1", 1, import("two")), "A")
        .unwrap();
    drop(operations);
    image.write_layout(&host.exchange().join("two")).unwrap();
    host.start().await.unwrap();
    let done = ended(&client, "op-1").await.unwrap();
    assert_eq!(done.state(), OperationState::Succeeded, "{}", done.message);
    assert_eq!(client.images().await.unwrap().images.len(), 1);
}

/// Credentials are on no disk: an order that had some is not gone on with, and is sent again with them.
#[tokio::test]
async fn an_order_with_credentials_is_interrupted_by_a_restart() {
    let (_fleet, host, client) = one().await;
    let ensure = Verb::Ensure(proto::Ensure {
        image: Some(proto::ImageReference {
            reference: "127.0.0.1:1/app:1".into(),
            digest: slipway_slots::Digest::of(b"nothing").to_string(),
            ..Default::default()
        }),
        credentials: Some(proto::RegistryCredentials {
            username: "edge".into(),
            password: "secret".into(),
        }),
        ..Default::default()
    });
    client
        .start(order("box-1", "op-1", 1, ensure.clone()))
        .await
        .unwrap();
    host.kill_agent().await.unwrap();
    let seen = ended(&client, "op-1").await.unwrap();
    assert_eq!(seen.state(), OperationState::Interrupted, "{}", seen.message);
    let again = client.start(order("box-1", "op-1", 1, ensure)).await.unwrap();
    assert_eq!(again.state(), OperationState::Accepted);
    // Cancelled, nothing of it goes on.
    let cancelled = client.cancel("op-1", 1).await.unwrap();
    assert_eq!(cancelled.state(), OperationState::Cancelled);
}

/// A disk that is full takes no order, and one that fills up under an order delays its end; nothing that was told is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_orders_and_delays_ends_until_there_is_room() {
    let (fleet, options) = super::fleet().await;
    let place = fleet.folder().join("small");
    let Some(disk) = SmallDisk::mount(&place, 4 << 20, "orders on a full disk") else {
        return;
    };
    let host = SimulatedHost::install(&disk.0, "box-1", FLEET, &fleet.manager, options).unwrap();
    host.join(&fleet.token("box-1")).await.unwrap();
    host.start().await.unwrap();
    let client = fleet.client(&host);
    let theirs = disk.0.join("theirs");
    fill(&theirs);
    let said = client
        .start(order("box-1", "op-1", 9, command(&["true"])))
        .await
        .unwrap_err();
    assert_eq!(
        (said.class, said.reason.as_str()),
        (Class::Transient, "Disk"),
        "{said}"
    );
    assert_eq!(
        client.inventory().await.unwrap().generation,
        0,
        "what is not on disk does not count"
    );
    assert!(host.machine.ran().is_empty());
    std::fs::remove_file(&theirs).unwrap();
    succeeded(&client, "op-1", command(&["true"])).await;

    // Now it fills up while a program runs.
    let full = theirs.clone();
    *host.machine.on_program.lock() = Some(Arc::new(move |what| {
        if what == "true ended" {
            fill(&full);
        }
    }));
    client
        .start(order("box-1", "op-2", 1, command(&["true"])))
        .await
        .unwrap();
    let mut watch = client.watch("op-2");
    let mut delayed = false;
    while let Some(operation) = watch.next().await {
        let operation = operation.unwrap();
        // The first of what is watched may be from before the program ended, when the disk still has room.
        if operation.state() == OperationState::Succeeded {
            assert!(
                delayed && !theirs.exists(),
                "an end was told that the disk has no room for"
            );
        }
        if !delayed && operation.message.contains("cannot be written") {
            delayed = true;
            std::fs::remove_file(&theirs).unwrap();
        }
    }
    let done = client.operation("op-2").await.unwrap();
    assert_eq!(done.state(), OperationState::Succeeded, "{}", done.message);
    host.stop().await;
}

/// Output of commands is kept for the latest ones, and not for ever.
#[test]
fn output_is_remembered_up_to_a_limit() {
    let folder = TempDir::new().unwrap();
    let (operations, _) = Operations::open(folder.path(), "box-1", "boot-1", Arc::new(Unhindered)).unwrap();
    for number in 0..20 {
        let id = format!("op-{number:02}");
        operations
            .accept(&order("box-1", &id, 1, command(&["true"])), "A")
            .unwrap();
        let end = End {
            command: Some(proto::CommandResult {
                output: vec![b'x'; 1 << 20],
                ..Default::default()
            }),
            ..End::succeeded("done")
        };
        operations.end(&id, &end).unwrap();
    }
    let kept: usize = operations
        .list()
        .iter()
        .map(|operation| operation.command.as_ref().unwrap().output.len())
        .sum();
    assert!((4 << 20..=8 << 20).contains(&kept), "{kept}");
    assert!(operations.get("op-00").unwrap().command.unwrap().truncated);
}

struct DieAt {
    step: ServiceFailpoint,
    nth: usize,
    reached: AtomicUsize,
}

impl ServiceFailpoints for DieAt {
    fn reached(&self, step: ServiceFailpoint) {
        if step == self.step && self.reached.fetch_add(1, Ordering::SeqCst) + 1 == self.nth {
            resume_unwind(Box::new(()));
        }
    }
}

fn requests() -> Vec<StartRequest> {
    let reboot = |id: &str, generation| {
        let verb = Verb::Reboot(proto::Reboot::default());
        order("box-1", id, generation, verb)
    };
    vec![
        order("box-1", "op-1", 1, import("one")),
        order("box-1", "op-2", 3, command(&["true"])),
        order("box-1", "op-3", 3, import("three")),
        reboot("op-4", 4),
    ]
}

/// The journal dies at each of its steps. What its caller was told holds after the restart; what it was not told may
/// hold; and nothing else does.
#[test]
fn killed_at_every_step_of_an_order_nothing_that_was_said_is_lost() {
    let mut deaths = 0;
    for step in [
        ServiceFailpoint::FenceWritten,
        ServiceFailpoint::OperationAccepted,
        ServiceFailpoint::OperationEnded,
    ] {
        for nth in 1.. {
            let folder = TempDir::new().unwrap();
            let die = Arc::new(DieAt {
                step,
                nth,
                reached: AtomicUsize::new(0),
            });
            let mut told = BTreeMap::new();
            let mut generation = 0;
            let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let (operations, left) =
                    Operations::open(folder.path(), "box-1", "boot-1", die.clone()).unwrap();
                assert!(left.is_empty());
                for request in requests() {
                    let (operation, started) = operations.accept(&request, "A").unwrap();
                    assert!(started.is_some());
                    told.insert(operation.id.clone(), OperationState::Accepted);
                    generation = request.generation;
                    operations.end(&operation.id, &End::succeeded("done")).unwrap();
                    told.insert(operation.id, OperationState::Succeeded);
                }
            }));
            let (operations, left) =
                Operations::open(folder.path(), "box-1", "boot-2", Arc::new(Unhindered)).unwrap();
            assert!(operations.generation() >= generation, "the generation went back");
            for (id, state) in &told {
                let known = operations.get(id).unwrap_or_else(|| panic!("{id} is forgotten"));
                let unfinished = left.iter().any(|left| left.id == *id);
                match state {
                    OperationState::Succeeded => assert_eq!(known.state(), *state, "{id}"),
                    _ => assert!(unfinished || known.state() == OperationState::Succeeded, "{id}"),
                }
            }
            // Everything may be sent again and comes to the same end.
            for request in requests() {
                if request.generation < operations.generation() {
                    continue;
                }
                let (operation, _) = operations.accept(&request, "A").unwrap();
                operations.end(&operation.id, &End::succeeded("done")).unwrap();
            }
            if run.is_ok() {
                break;
            }
            deaths += 1;
        }
    }
    println!("report: the journal of operations died at {deaths} places");
    assert_eq!(deaths, 3 + 4 + 4);
}

/// Half a file, or another one's bytes, is an order that was never accepted.
#[test]
fn damaged_records_of_operations_are_passed_over() {
    let folder = TempDir::new().unwrap();
    let open = || Operations::open(folder.path(), "box-1", "boot-1", Arc::new(Unhindered)).unwrap();
    let (operations, _) = open();
    operations.accept(&requests()[0], "A").unwrap();
    let path = folder.path().join("operations/op-1.json");
    let bytes = std::fs::read(&path).unwrap();
    for length in 0..bytes.len() {
        std::fs::write(&path, &bytes[..length]).unwrap();
        let (operations, left) = open();
        assert!(operations.get("op-1").is_none() && left.is_empty(), "{length}");
    }
    std::fs::write(&path, &bytes).unwrap();
    let (operations, left) = open();
    assert!(operations.get("op-1").is_some() && left.len() == 1);
}
