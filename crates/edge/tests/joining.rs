//! Hosts join this manager: a CA that is made once, tokens that are used once, a port, and a host behind NAT that is spoken to over it.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use slipway_apiserver_sim::Apiserver;
use slipway_edge::{
    fleet::{self, record},
    hosts::{HostAddress, Hosts, native::NativeHosts},
};
use slipway_hosts_sim::{NodeImage, Options, Reach, SimulatedHost};
use slipway_runtime::{Clock, Context, Settings, settings::Flags};

/// A manager that leads, on a port of its own.
async fn manager(server: &Apiserver) -> (Arc<NativeHosts>, String, Context) {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("an address").to_string();
    drop(free);
    let mut context = Context::for_tests(server.client(), 1);
    context.clock = Clock::system();
    context.settings = Arc::new(Settings {
        flags: Flags::default()
            .with(fleet::ADDRESS_FLAG, address.clone())
            .with(fleet::NAMESPACE_FLAG, "default"),
        ..Settings::default()
    });
    let hosts: Arc<NativeHosts> = Arc::default();
    let place = HostAddress {
        name: "box-1".to_owned(),
        address: None,
        ..HostAddress::default()
    };
    let said = hosts.inventory(&place).await.expect_err("nothing is served yet");
    assert!(said.message.contains("no certificate for hosts yet"), "{said}");
    tokio::spawn((fleet::registration(&hosts).run)(context.clone()));
    (hosts, address, context)
}

async fn token(server: &Apiserver, host: &str) -> slipway_agent_api::token::JoinToken {
    let valid = SignedDuration::from_hours(1);
    fleet::issue_token(&server.client(), "default", host, valid, Timestamp::now())
        .await
        .expect("a token")
}

fn install(folder: &std::path::Path, name: &str, manager: &str) -> Arc<SimulatedHost> {
    let mut options = Options::new(Arc::new(NodeImage::build("1.0.0", 1).expect("an image")));
    options.reach = Reach::Tunnel;
    SimulatedHost::install(folder, name, record::FLEET, manager, options).expect("a host")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_joins_once_and_is_spoken_to_behind_nat_also_by_the_next_manager() {
    let server = Apiserver::new(Clock::system());
    let (hosts, address, context) = manager(&server).await;
    let folder = tempfile::tempdir().expect("a folder");
    let host = install(folder.path(), "box-1", &address);
    let token = token(&server, "box-1").await;
    // The manager opens its port when the CA is stored.
    let joined = async {
        while host.join(&token).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), joined)
        .await
        .expect("the host joins");
    host.start().await.expect("it serves");
    let place = HostAddress {
        name: "box-1".to_owned(),
        address: None,
        ..HostAddress::default()
    };
    answers(&hosts, &place).await;

    // The token was for one key, for one host, and nothing of it is in the cluster.
    let another = install(&folder.path().join("other"), "box-1", &address);
    let said = another.join(&token).await.expect_err("used").to_string();
    assert!(said.contains("was used already"), "{said}");
    let other_name = install(folder.path(), "box-2", &address);
    let said = other_name.join(&token).await.expect_err("for box-1").to_string();
    assert!(said.contains("is for host box-1"), "{said}");
    let secret = token.reveal();
    let secret = secret.split('.').nth(2).expect("the secret part");
    let stored = server
        .objects()
        .iter()
        .map(ToString::to_string)
        .collect::<String>();
    assert!(!stored.contains(secret));

    // Another manager trusts the same CA, and the host finds it.
    context.shutdown.cancel();
    let before = ca(&server).await;
    let mut next = Context::for_tests(server.client(), 2);
    next.clock = Clock::system();
    next.settings = context.settings.clone();
    let after: Arc<NativeHosts> = Arc::default();
    tokio::spawn((fleet::registration(&after).run)(next));
    answers(&after, &place).await;
    assert_eq!(ca(&server).await.data, before.data);
}

async fn ca(server: &Apiserver) -> Secret {
    let secrets: Api<Secret> = Api::namespaced(server.client(), "default");
    secrets.get(record::CA_SECRET).await.expect("the CA")
}

async fn answers(hosts: &NativeHosts, place: &HostAddress) {
    let answered = async {
        loop {
            match hosts.inventory(place).await {
                Ok(inventory) => return inventory,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    let inventory = tokio::time::timeout(Duration::from_mins(1), answered)
        .await
        .expect("an answer");
    assert_eq!(inventory.name, "box-1");
}
