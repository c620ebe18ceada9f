//! One suite of behaviours for whatever is behind the port to hosts: the hosts in memory that sweeps use, and the real agent's service,
//! reached at its address and behind NAT. `sim/hosts` runs that service, and the agent's own tests hold it and the real binary to one suite.

use std::{sync::Arc, time::Duration};

use slipway_agent_api::{
    Identity,
    client::has_ended,
    proto::{self, Delivery, Operation, OperationState, StartRequest, UpgradeState, start_request::Verb},
};
use slipway_edge::{
    api::Image,
    host::api::Claim,
    hosts::{HostAddress, Hosts, native::NativeHosts},
    machine::provider_id::ProviderId,
    node_upgrade::reading::{Answers, reached},
    orders,
};
use slipway_hosts_sim::{FLEET, Fleet, NodeImage, Options, Reach};
use slipway_runtime::Clock;

use crate::{
    moc,
    simulated_hosts::{NEW, SimulatedHosts},
};

const SHORT: &str = "#cloud-config\nruncmd: [[install-k3s]]\n";
const LONG: &str = "#cloud-config\nruncmd: [[sleep, '600']]\n";
const BROKEN: &str = "#cloud-config\nruncmd: [['false']]\n";

fn bootstrap(host: &HostAddress, claim: &str, data: &str, generation: u64) -> StartRequest {
    let id = ProviderId {
        namespace: "default".to_owned(),
        host: host.name.clone(),
        claim: claim.to_owned(),
    };
    orders::bootstrap(&id, data.as_bytes().to_vec(), generation)
}

fn wipe(host: &HostAddress, uid: &str, generation: u64) -> StartRequest {
    let claim = Claim {
        name: "m".to_owned(),
        uid: uid.to_owned(),
        released: true,
    };
    orders::wipe(&host.name, &claim, 1, generation)
}

async fn ended(hosts: &dyn Hosts, host: &HostAddress, id: &str) -> Operation {
    loop {
        let operation = hosts.operation(host, id).await.expect("the host answers");
        let operation = operation.expect("the host knows what it accepted");
        if has_ended(&operation) {
            return operation;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn hold(hosts: &dyn Hosts, host: &HostAddress) {
    let inventory = hosts.inventory(host).await.expect("the host answers");
    assert_eq!(inventory.name, host.name);
    let hardware = inventory.hardware.expect("hardware");
    assert!(hardware.processors > 0 && hardware.memory_bytes > 0);
    assert_eq!(inventory.booted_slot, "A");
    assert_eq!(inventory.addresses.len(), 1);
    assert_eq!(
        hosts.operation(host, "bootstrap-never").await.expect("an answer"),
        None
    );

    // The same order is the same operation, also for the next leader, and other contents are refused.
    let first = hosts
        .start(host, bootstrap(host, "one", SHORT, 1))
        .await
        .expect("accepted");
    let done = ended(hosts, host, &first.id).await;
    assert_eq!(done.state(), OperationState::Succeeded, "{}", done.message);
    let again = hosts
        .start(host, bootstrap(host, "one", SHORT, 2))
        .await
        .expect("joined");
    assert_eq!(again.accepted_at, done.accepted_at);
    let said = hosts
        .start(host, bootstrap(host, "one", LONG, 2))
        .await
        .expect_err("refused");
    assert_eq!(said.reason, "IdReused");

    // A leader of before is refused, and so is an order for another host.
    let said = hosts
        .start(host, wipe(host, "one", 1))
        .await
        .expect_err("refused");
    assert_eq!(said.reason, "StaleGeneration");
    let elsewhere = HostAddress {
        name: "another-host".to_owned(),
        ..host.clone()
    };
    let said = hosts
        .start(host, wipe(&elsewhere, "one", 2))
        .await
        .expect_err("refused");
    assert_eq!(said.reason, "OtherHost");

    // A failure stays one.
    let failed = hosts
        .start(host, bootstrap(host, "two", BROKEN, 2))
        .await
        .expect("accepted");
    assert_eq!(
        ended(hosts, host, &failed.id).await.state(),
        OperationState::Failed
    );
    let again = hosts
        .start(host, bootstrap(host, "two", BROKEN, 2))
        .await
        .expect("joined");
    assert_eq!(again.state(), OperationState::Failed);

    // One at a time; what is cut off has ended.
    let long = hosts
        .start(host, bootstrap(host, "three", LONG, 2))
        .await
        .expect("accepted");
    let said = hosts
        .start(host, wipe(host, "three", 2))
        .await
        .expect_err("refused");
    assert_eq!(said.reason, "Busy");
    let cancelled = hosts.cancel(host, &long.id, 2).await.expect("cancelled");
    assert_eq!(cancelled.state(), OperationState::Cancelled);
    let said = hosts
        .cancel(host, "bootstrap-never", 2)
        .await
        .expect_err("unknown");
    assert_eq!(said.reason, "UnknownOperation");

    // Then it is wiped, and says so among its operations.
    let wiped = hosts.start(host, wipe(host, "three", 2)).await.expect("accepted");
    assert_eq!(
        ended(hosts, host, &wiped.id).await.state(),
        OperationState::Succeeded
    );
    let all = hosts.operations(host).await.expect("an answer");
    assert!(all.iter().any(|operation| operation.id == "wipe-three-1"));
    assert_eq!(hosts.inventory(host).await.expect("an answer").generation, 2);
    hosts.forget(&host.name);
    assert!(
        hosts.inventory(host).await.is_ok(),
        "what is forgotten is found again"
    );
}

fn order(host: &HostAddress, id: &str, verb: Verb) -> StartRequest {
    StartRequest {
        operation_id: id.to_owned(),
        generation: 2,
        host: host.name.clone(),
        verb: Some(verb),
    }
}

async fn succeeds(hosts: &dyn Hosts, host: &HostAddress, id: &str, verb: Verb) {
    let started = hosts.start(host, order(host, id, verb)).await.expect("accepted");
    let done = ended(hosts, host, &started.id).await;
    assert_eq!(done.state(), OperationState::Succeeded, "{id}: {}", done.message);
}

/// Waits until the host answers and says so.
async fn until(hosts: &dyn Hosts, host: &HostAddress, seen: impl Fn(&proto::Host) -> bool) -> proto::Host {
    loop {
        if let Ok(inventory) = hosts.inventory(host).await
            && seen(&inventory)
        {
            return inventory;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// An upgrade as NodeUpgrades give it, by the digest that orders name: slots, upgrades and quarantine are known by it, over reboots and
/// back. `cached` brings the image to the host.
async fn hold_upgrades(hosts: &dyn Hosts, host: &HostAddress, digest: &str, cached: Verb) {
    let prepare = |upgrade: &str| {
        Verb::Prepare(proto::Prepare {
            upgrade: upgrade.to_owned(),
            digest: digest.to_owned(),
            ..proto::Prepare::default()
        })
    };
    let facts = async |upgrade: &str| {
        let inventory = hosts.inventory(host).await.expect("an answer");
        let answers = Answers {
            host: &inventory,
            operations: &hosts.operations(host).await.expect("an answer"),
            images: &hosts.images(host).await.expect("an answer"),
            maintenance: None,
        };
        reached(answers, upgrade, digest)
    };
    succeeds(hosts, host, "cached", cached).await;
    succeeds(hosts, host, "up-1-prepare-1", prepare("up-1")).await;
    let told = facts("up-1").await;
    assert!(told.holds_slot && !told.has_booted(digest), "{told:?}");
    let image = hosts.images(host).await.expect("an answer");
    let image = image.iter().find(|image| image.digest == digest).expect("cached");
    let inventory = hosts.inventory(host).await.expect("an answer");
    let upgrade = inventory.upgrades.last().expect("an upgrade");
    assert_eq!(
        (upgrade.state(), &upgrade.image),
        (UpgradeState::Prepared, &image.slot_image)
    );
    assert_ne!(upgrade.image, digest);
    assert_eq!(upgrade.digests, [digest]);
    // Another upgrade has to wait for the slot.
    let busy = hosts
        .start(host, order(host, "up-2-prepare-1", prepare("up-2")))
        .await;
    let busy = ended(hosts, host, &busy.expect("accepted").id).await;
    assert_eq!(busy.state(), OperationState::Failed, "{}", busy.message);
    succeeds(hosts, host, "up-1-give_up-1", orders::give_up("up-1")).await;
    assert!(!facts("up-1").await.holds_slot);

    succeeds(hosts, host, "up-2-prepare-2", prepare("up-2")).await;
    let arm = Verb::Arm(proto::Arm {
        upgrade: "up-2".to_owned(),
        tries: 0,
    });
    hosts
        .start(host, order(host, "up-2-arm-1", arm))
        .await
        .expect("accepted");
    until(hosts, host, |found| {
        found.booted_slot == "B" && found.slots[1].boot == "good" && found.running_operations.is_empty()
    })
    .await;
    let told = facts("up-2").await;
    assert!(
        told.runs(digest) && !told.holds_slot && told.left_because.is_none(),
        "{told:?}"
    );

    // It is told to go back after it was kept: that is why the slot of this upgrade was left.
    let back = Verb::Rollback(proto::Rollback {
        reason: "the shop does not open".to_owned(),
    });
    hosts
        .start(host, order(host, "up-2-rollback-1", back))
        .await
        .expect("accepted");
    until(hosts, host, |found| {
        found.booted_slot == "A" && !found.quarantined.is_empty()
    })
    .await;
    let told = facts("up-2").await;
    assert!(!told.has_booted(digest));
    assert_eq!(told.left_because.as_deref(), Some("the shop does not open"));
    assert_eq!(told.quarantined.as_deref(), Some("the shop does not open"));
    assert_eq!(facts("up-3").await.quarantined, told.quarantined, "whoever asks");
}

#[tokio::test(start_paused = true)]
async fn hosts_in_memory_hold_the_suite() {
    let clock = Clock::starting_at("2026-11-18T02:00:00Z".parse().expect("a time"));
    let hosts = SimulatedHosts::new(clock);
    hosts.add("box-1", 4);
    let place = HostAddress {
        name: "box-1".to_owned(),
        address: None,
        ..HostAddress::default()
    };
    hold(&hosts, &place).await;
    // A person works on it.
    hosts.change("box-1", |host| host.maintenance = Some("a disk".to_owned()));
    let said = hosts
        .start(&place, wipe(&place, "four", 2))
        .await
        .expect_err("refused");
    assert_eq!(said.reason, "Maintenance");
    hosts.change("box-1", |host| host.maintenance = None);
    let image = Image {
        reference: "registry.example.com/nodes/k3s".to_owned(),
        digest: NEW.to_owned(),
    };
    let cached = Verb::Ensure(orders::ensure(&image, "up-1", Delivery::None));
    hold_upgrades(&hosts, &place, NEW, cached).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_hold_the_suite_through_the_native_port() {
    for reach in [Reach::Direct, Reach::Tunnel] {
        let fleet = Fleet::start(Duration::from_hours(24)).await.expect("a fleet");
        let mut options = Options::new(Arc::new(NodeImage::build("1.0.0", 1).expect("an image")));
        options.reach = reach;
        let host = fleet.add("box-1", options).await.expect("a host");
        fleet.connected(&host).await;
        host.machine.faults.lock().programs = [
            ("false".to_owned(), (1, Duration::ZERO)),
            ("sleep".to_owned(), (0, Duration::from_mins(10))),
        ]
        .into();
        let operator = Identity::Operator { fleet: FLEET.into() };
        let tls = fleet.tls(&operator).expect("a certificate");
        let native = NativeHosts::new(tls, fleet.board.clone());
        let place = HostAddress {
            name: "box-1".to_owned(),
            address: host.address(),
            ..HostAddress::default()
        };
        hold(&native, &place).await;
        assert_eq!(native.len(), 1, "one connection a host");
        // The provider id of the order is in what the host ran.
        let templated = "## template: jinja\n#cloud-config\nwrite_files:\n- path: /etc/id\n  content: '{{ ds.meta_data.provider_id }}'\n";
        let order = bootstrap(&place, "five", templated, 2);
        let started = native.start(&place, order).await.expect("accepted");
        let done = ended(&native, &place, &started.id).await;
        assert_eq!(done.state(), OperationState::Succeeded, "{}", done.message);
        let written = std::fs::read_to_string(host.folder().join("root/etc/id")).expect("the file");
        assert_eq!(written, "edge://default/box-1/five");
        let image = NodeImage::build("2.0.0", 2).expect("an image");
        image
            .write_layout(&host.exchange().join("two"))
            .expect("a bundle");
        let cached = Verb::Import(proto::Import {
            name: "two".to_owned(),
            digests: Vec::new(),
        });
        hold_upgrades(&native, &place, &image.digest.to_string(), cached).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_of_moc_hold_the_suite() {
    let site = moc::Site::start().await;
    site.machine.faults.lock().programs = [
        ("false".to_owned(), (1, Duration::ZERO)),
        ("sleep".to_owned(), (0, Duration::from_mins(10))),
    ]
    .into();
    hold(&site.hosts, &site.place).await;
    hold_upgrades(&site.hosts, &site.place, moc::NEW, moc::ensure(moc::NEW, "up-1")).await;
}
