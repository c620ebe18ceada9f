//! One suite of behaviours for whatever is behind the port to hosts: the hosts in memory that sweeps use, and the real agent's service,
//! reached at its address and behind NAT. `sim/hosts` runs that service, and the agent's own tests hold it and the real binary to one suite.

use std::{sync::Arc, time::Duration};

use slipway_agent_api::{
    Identity,
    client::has_ended,
    proto::{Operation, OperationState, StartRequest},
};
use slipway_edge::{
    host::api::Claim,
    hosts::{HostAddress, Hosts, native::NativeHosts},
    machine::provider_id::ProviderId,
    orders,
};
use slipway_hosts_sim::{FLEET, Fleet, NodeImage, Options, Reach};
use slipway_runtime::Clock;

use crate::simulated_hosts::SimulatedHosts;

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
        address: host.address.clone(),
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

#[tokio::test(start_paused = true)]
async fn hosts_in_memory_hold_the_suite() {
    let clock = Clock::starting_at("2026-11-18T02:00:00Z".parse().expect("a time"));
    let hosts = SimulatedHosts::new(clock);
    hosts.add("box-1", 4);
    let place = HostAddress {
        name: "box-1".to_owned(),
        address: None,
    };
    hold(&hosts, &place).await;
    // A person works on it.
    hosts.change("box-1", |host| host.maintenance = Some("a disk".to_owned()));
    let said = hosts
        .start(&place, wipe(&place, "four", 2))
        .await
        .expect_err("refused");
    assert_eq!(said.reason, "Maintenance");
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
    }
}
