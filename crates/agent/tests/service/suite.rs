//! What every host does, whoever simulates it.

use std::path::PathBuf;

use jiff::Timestamp;
use slipway_agent::service::maintenance::Maintenance;
use slipway_agent_api::{
    Class, Identity,
    client::HostClient,
    proto::{self, OperationState, UpgradeState, agent_client::AgentClient, start_request::Verb},
};
use slipway_hosts_sim::{FLEET, NodeImage, Reach};

use super::{command, complete, fleet, give_up, import, order, pin, prepare, standing, succeeded};

pub struct Target {
    pub operator: HostClient,
    /// None where there is only one way to the host.
    pub reader: Option<HostClient>,
    pub exchange: PathBuf,
    pub state: PathBuf,
}

pub fn reader() -> Identity {
    Identity::Reader {
        fleet: FLEET.into(),
        name: "dashboard".into(),
    }
}

pub async fn hold(target: &Target) {
    let image = NodeImage::build("2.0.0", 2).unwrap();
    images(target, &image).await;
    operations(target).await;
    fence(target).await;
    commands(target).await;
    maintenance(target).await;
    slots(target, &image).await;
}

async fn images(target: &Target, image: &NodeImage) {
    let client = &target.operator;
    image.write_layout(&target.exchange.join("two")).unwrap();
    let waiting = tokio::spawn({
        let (client, digest) = (client.clone(), image.digest.to_string());
        async move { client.wait_for_image(&digest, 60).await }
    });
    let imported = succeeded(client, "import-1", import("two")).await;
    assert_eq!(imported.digest, image.digest.to_string());
    let waited = waiting.await.unwrap().unwrap();
    assert!(waited.usable);
    assert_eq!(waited.image.unwrap().kind, "disk");

    succeeded(client, "pin-1", pin(image, "NodeUpgrade/one")).await;
    let listed = client.images().await.unwrap();
    let shown = &listed.images[0];
    assert_eq!(shown.users[0].name, "NodeUpgrade/one");
    assert_eq!(listed.r#use.unwrap().used_bytes, shown.size_bytes);
    let evict = || {
        Verb::Evict(proto::Evict {
            digest: image.digest.to_string(),
        })
    };
    let kept = complete(client, "evict-1", evict()).await.unwrap();
    assert_eq!(kept.problem.as_ref().unwrap().reason, "Kept");
    assert!(
        kept.message.contains("pinned by NodeUpgrade/one"),
        "{}",
        kept.message
    );

    let export = Verb::Export(proto::Export {
        digests: vec![image.digest.to_string()],
        name: "out.tar".into(),
    });
    succeeded(client, "export-1", export).await;
    succeeded(
        client,
        "unpin-1",
        Verb::Unpin(proto::Unpin {
            digest: image.digest.to_string(),
            owner: "NodeUpgrade/one".into(),
        }),
    )
    .await;
    succeeded(client, "evict-2", evict()).await;
    assert!(client.images().await.unwrap().images.is_empty());
    assert!(
        !client
            .wait_for_image(&image.digest.to_string(), 0)
            .await
            .unwrap()
            .usable
    );
    // What was exported can be imported again.
    succeeded(client, "import-2", import("out.tar")).await;
    succeeded(client, "pin-2", pin(image, "NodeUpgrade/one")).await;
    let missing = complete(client, "import-3", import("nothing-here"))
        .await
        .unwrap();
    assert_eq!(missing.state(), OperationState::Failed);
}

async fn operations(target: &Target) {
    let client = &target.operator;
    let first = succeeded(client, "same-1", command(&["echo", "one"])).await;
    let again = client
        .start(order(client.host(), "same-1", 1, command(&["echo", "one"])))
        .await
        .unwrap();
    assert_eq!(
        (again.accepted_at, again.sequence),
        (first.accepted_at, first.sequence),
        "the same order is the same operation"
    );
    let said = client
        .start(order(client.host(), "same-1", 1, command(&["echo", "two"])))
        .await
        .unwrap_err();
    assert_eq!((said.class, said.reason.as_str()), (Class::Terminal, "IdReused"));
    let said = client
        .start(order("another-host", "other-1", 1, command(&["true"])))
        .await
        .unwrap_err();
    assert_eq!(said.reason, "OtherHost");
    let said = client.operation("never-ordered").await.unwrap_err();
    assert_eq!(said.reason, "UnknownOperation");
    let mut invalid = order(client.host(), "../escape", 1, command(&["true"]));
    let said = client.start(invalid.clone()).await.unwrap_err();
    assert_eq!(said.reason, "InvalidOrder");
    invalid.operation_id = "no-verb".into();
    invalid.verb = None;
    assert_eq!(client.start(invalid).await.unwrap_err().reason, "InvalidOrder");
    assert!(
        client
            .operations()
            .await
            .unwrap()
            .iter()
            .any(|it| it.id == "same-1")
    );
}

async fn fence(target: &Target) {
    let client = &target.operator;
    client
        .start(order(client.host(), "fence-1", 5, command(&["true"])))
        .await
        .unwrap();
    super::ended(client, "fence-1").await.unwrap();
    let stale = client
        .start(order(client.host(), "fence-2", 4, command(&["true"])))
        .await
        .unwrap_err();
    assert_eq!(
        (stale.class, stale.reason.as_str()),
        (Class::Conflict, "StaleGeneration")
    );
    assert_eq!(
        client.cancel("fence-1", 4).await.unwrap_err().reason,
        "StaleGeneration"
    );
    assert_eq!(client.inventory().await.unwrap().generation, 5);
}

async fn run(target: &Target, id: &str, verb: Verb) -> proto::Operation {
    let client = &target.operator;
    client.start(order(client.host(), id, 5, verb)).await.unwrap();
    super::ended(client, id).await.unwrap()
}

async fn commands(target: &Target) {
    let done = run(target, "command-1", command(&["echo", "hello"])).await;
    let result = done.command.unwrap();
    assert_eq!((result.exited, result.exit_code), (true, 0));
    assert!(String::from_utf8(result.output).unwrap().contains("hello"));
    if let Some(reader) = &target.reader {
        let seen = reader.operation("command-1").await.unwrap();
        assert_eq!(seen.command.unwrap().output, b"", "readers do not see output");
        let said = reader
            .start(order(reader.host(), "reader-1", 9, command(&["true"])))
            .await
            .unwrap_err();
        assert_eq!(said.class, Class::Denied);
    }
    let failed = run(target, "command-2", command(&["false"])).await;
    assert_eq!(failed.state(), OperationState::Failed);
    assert_eq!(failed.command.unwrap().exit_code, 1);
    assert_eq!(failed.problem.unwrap().reason, "CommandFailed");
    // A long one is cut off, and the next may begin.
    let client = &target.operator;
    client
        .start(order(client.host(), "command-3", 5, command(&["sleep", "600"])))
        .await
        .unwrap();
    let busy = client
        .start(order(client.host(), "command-4", 5, command(&["true"])))
        .await
        .unwrap_err();
    assert_eq!((busy.class, busy.reason.as_str()), (Class::Conflict, "Busy"));
    let cancelled = client.cancel("command-3", 5).await.unwrap();
    assert_eq!(cancelled.state(), OperationState::Cancelled);
    output(target).await;
    let after = run(target, "command-4", command(&["true"])).await;
    assert_eq!(after.state(), OperationState::Succeeded);
}

/// What a command says is seen while it runs, from any place on, and by nobody but the operator.
async fn output(target: &Target) {
    let client = &target.operator;
    let verb = command(&["sh", "-c", "echo one; sleep 600"]);
    client
        .start(order(client.host(), "output-1", 5, verb))
        .await
        .unwrap();
    let heard = async |client: &HostClient, from: u64| {
        let request = proto::WatchOperationRequest {
            operation_id: "output-1".into(),
            output_from: from,
        };
        let channel = client.channel().await.unwrap();
        let origin = channel.origin();
        let watch = AgentClient::with_origin(channel, origin)
            .watch_operation(request)
            .await;
        watch.unwrap().into_inner()
    };
    let mut watch = heard(client, 0).await;
    let first = loop {
        let operation = watch.message().await.unwrap().unwrap();
        assert_eq!(operation.ended_at, 0, "it has not ended: {}", operation.message);
        if let Some(output) = operation.output {
            break output;
        }
    };
    assert_eq!(first.offset, 0);
    let text = String::from_utf8(first.data.clone()).unwrap();
    assert!(text.contains("one"), "{text}");
    // Whoever has seen two bytes gets the rest, and a reader nothing.
    let again = heard(client, 2).await.message().await.unwrap().unwrap();
    let rest = again.output.unwrap();
    assert_eq!((rest.offset, &rest.data[..]), (2, &first.data[2..]));
    if let Some(reader) = &target.reader {
        let seen = heard(reader, 0).await.message().await.unwrap().unwrap();
        assert_eq!(seen.output, None);
    }
    client.cancel("output-1", 5).await.unwrap();
    let last = super::ended(client, "output-1").await.unwrap();
    assert_eq!(last.state(), OperationState::Cancelled);
}

/// An address is on the interface when the order has ended, and off it again. On loopback, where it disturbs nobody.
pub async fn real_addresses(client: &HostClient) {
    let shown = || {
        let output = std::process::Command::new("ip")
            .args(["address", "show", "dev", "lo"])
            .output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let Ok(before) = shown() else {
        println!("report: skipped: holding a real address, `ip` is not installed");
        return;
    };
    let (address, interface) = ("127.99.54.7/32".to_owned(), "lo".to_owned());
    assert!(!before.contains(&address), "{before}");
    let hold = Verb::HoldAddress(proto::HoldAddress {
        address: address.clone(),
        interface: interface.clone(),
        lease: None,
    });
    let order = async |id: &str, verb| {
        client.start(order(client.host(), id, 5, verb)).await.unwrap();
        super::ended(client, id).await.unwrap()
    };
    let held = order("hold-1", hold).await;
    if held.state() == OperationState::Failed {
        println!(
            "report: skipped: holding a real address, it is not allowed here: {}",
            held.message
        );
        return;
    }
    assert!(shown().unwrap().contains(&address));
    assert_eq!(
        client.inventory().await.unwrap().held_addresses,
        std::slice::from_ref(&address)
    );
    let release = Verb::ReleaseAddress(proto::ReleaseAddress { address, interface });
    for id in ["release-1", "release-2"] {
        // What is not there is released.
        let released = order(id, release.clone()).await;
        assert_eq!(
            released.state(),
            OperationState::Succeeded,
            "{}",
            released.message
        );
    }
    assert_eq!(shown().unwrap(), before);
}

async fn maintenance(target: &Target) {
    let client = &target.operator;
    let lock = Maintenance {
        by: "ada".into(),
        reason: "a disk is replaced".into(),
        since: Timestamp::now(),
    };
    lock.hold(&target.state).unwrap();
    let said = client
        .start(order(client.host(), "maintenance-1", 5, command(&["true"])))
        .await
        .unwrap_err();
    assert_eq!(
        (said.class, said.reason.as_str()),
        (Class::Conflict, "Maintenance")
    );
    assert!(
        said.message.contains("ada") && said.message.contains("a disk is replaced"),
        "{said}"
    );
    assert_eq!(client.inventory().await.unwrap().maintenance.unwrap().by, "ada");
    // Nobody feels an image that arrives.
    let imported = run(target, "maintenance-2", import("two")).await;
    assert_eq!(imported.state(), OperationState::Succeeded);
    Maintenance::release(&target.state).unwrap();
    let after = run(target, "maintenance-1", command(&["true"])).await;
    assert_eq!(after.state(), OperationState::Succeeded);
}

async fn slots(target: &Target, image: &NodeImage) {
    let before = target.operator.inventory().await.unwrap();
    assert_eq!(before.booted_slot, "A");
    for address in &before.addresses {
        let address: std::net::IpAddr = address.parse().unwrap();
        assert!(!address.is_loopback(), "{address}");
    }
    assert_eq!(before.slots[0].version, "1.0.0");
    let prepared = run(target, "prepare-1", prepare("up-1", image)).await;
    assert_eq!(
        prepared.state(),
        OperationState::Succeeded,
        "{}",
        prepared.message
    );
    assert!(
        prepared.message.contains("2.0.0 is written and verified"),
        "{}",
        prepared.message
    );
    let unknown = NodeImage::build("9.9.9", 9).unwrap();
    let missing = run(target, "prepare-2", prepare("up-2", &unknown)).await;
    assert_eq!(missing.problem.unwrap().reason, "NotCached");
    given_up(target, image).await;
}

/// A slot that was prepared and is not needed any more is free for the next upgrade, also while a person works on the host.
async fn given_up(target: &Target, image: &NodeImage) {
    let stands = async |upgrade: &str| standing(&target.operator.inventory().await.unwrap(), upgrade);
    assert_eq!(
        stands("up-1").await,
        Some((UpgradeState::Prepared, String::new()))
    );
    let busy = run(target, "prepare-3", prepare("up-3", image)).await;
    assert_eq!(busy.problem.unwrap().reason, "Refused", "{}", busy.message);
    let lock = Maintenance {
        by: "ada".into(),
        reason: "a disk is replaced".into(),
        since: Timestamp::now(),
    };
    lock.hold(&target.state).unwrap();
    // Once, again, and one that nobody has heard of.
    for (id, upgrade) in [
        ("give-up-1", "up-1"),
        ("give-up-2", "up-1"),
        ("give-up-3", "up-9"),
    ] {
        let done = run(target, id, give_up(upgrade)).await;
        assert_eq!(done.state(), OperationState::Succeeded, "{id}: {}", done.message);
        let stands = done.upgrade.map(|upgrade| upgrade.state());
        assert_eq!(
            stands,
            (upgrade == "up-1").then_some(UpgradeState::GivenUp),
            "{id}"
        );
    }
    Maintenance::release(&target.state).unwrap();
    assert_eq!(stands("up-1").await, Some((UpgradeState::GivenUp, String::new())));
    let next = run(target, "prepare-4", prepare("up-4", image)).await;
    assert_eq!(next.state(), OperationState::Succeeded, "{}", next.message);
    assert_eq!(next.upgrade.unwrap().state(), UpgradeState::Prepared);
}

#[tokio::test]
async fn a_simulated_host_holds_the_suite() {
    simulated(Reach::Direct).await;
}

#[tokio::test]
async fn a_simulated_host_behind_nat_holds_the_suite() {
    simulated(Reach::Tunnel).await;
}

async fn simulated(reach: Reach) {
    let (fleet, mut options) = fleet().await;
    options.reach = reach;
    let host = fleet.add("box-1", options).await.unwrap();
    fleet.connected(&host).await;
    let faults = &host.machine.faults;
    faults.lock().programs = [
        ("false".to_owned(), (1, std::time::Duration::ZERO)),
        ("sleep".to_owned(), (0, std::time::Duration::from_mins(10))),
        ("sh".to_owned(), (0, std::time::Duration::from_mins(10))),
    ]
    .into();
    let target = Target {
        operator: fleet.client(&host),
        reader: (reach == Reach::Direct).then(|| fleet.client_as(&host, fleet.tls(&reader()).unwrap())),
        exchange: host.exchange(),
        state: host.state(),
    };
    hold(&target).await;
}
