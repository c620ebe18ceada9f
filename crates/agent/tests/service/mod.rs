//! The agent as a service. One suite is held by simulated hosts, directly and through a tunnel, and by the real binary.

mod canaries;
mod delivery;
mod deltas;
mod identity;
mod killed;
mod peers;
mod real_binary;
mod restarts;
mod suite;
mod upgrades;
mod wire;

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use slipway_agent_api::{
    Problem,
    client::HostClient,
    proto::{self, Operation, OperationState, StartRequest, UpgradeState, start_request::Verb},
};
use slipway_hosts_sim::{Fleet, NodeImage, Options, SimulatedHost};

pub fn order(host: &str, id: &str, generation: u64, verb: Verb) -> StartRequest {
    StartRequest {
        operation_id: id.into(),
        generation,
        host: host.into(),
        verb: Some(verb),
    }
}

/// Orders, and waits for the end.
pub async fn complete(client: &HostClient, id: &str, verb: Verb) -> Result<Operation, Problem> {
    client.start(order(client.host(), id, 1, verb)).await?;
    ended(client, id).await
}

pub async fn ended(client: &HostClient, id: &str) -> Result<Operation, Problem> {
    let mut watch = client.watch(id);
    let mut last = None;
    while let Some(operation) = watch.next().await {
        last = Some(operation?);
    }
    Ok(last.expect("a watch shows the operation"))
}

pub async fn succeeded(client: &HostClient, id: &str, verb: Verb) -> Operation {
    let operation = complete(client, id, verb).await.unwrap();
    assert_eq!(
        operation.state(),
        OperationState::Succeeded,
        "{id}: {}",
        operation.message
    );
    operation
}

pub fn import(name: &str) -> Verb {
    Verb::Import(proto::Import {
        name: name.into(),
        digests: vec![],
    })
}

pub fn pin(image: &NodeImage, owner: &str) -> Verb {
    Verb::Pin(proto::Pin {
        digest: image.digest.to_string(),
        owner: owner.into(),
        ttl_seconds: 0,
    })
}

pub fn prepare(upgrade: &str, image: &NodeImage) -> Verb {
    Verb::Prepare(proto::Prepare {
        upgrade: upgrade.into(),
        digest: image.digest.to_string(),
        ..Default::default()
    })
}

pub fn arm(upgrade: &str) -> Verb {
    Verb::Arm(proto::Arm {
        upgrade: upgrade.into(),
        tries: 0,
    })
}

pub fn give_up(upgrade: &str) -> Verb {
    Verb::GiveUp(proto::GiveUp {
        upgrade: upgrade.into(),
    })
}

/// How the host says that an upgrade stands: the last of that name.
pub fn standing(host: &proto::Host, upgrade: &str) -> Option<(UpgradeState, String)> {
    let found = host.upgrades.iter().rfind(|found| found.id == upgrade)?;
    Some((found.state(), found.reason.clone()))
}

pub fn command(argv: &[&str]) -> Verb {
    Verb::RunCommand(proto::RunCommand {
        argv: argv.iter().map(|word| (*word).to_owned()).collect(),
        ..Default::default()
    })
}

pub async fn fleet() -> (Arc<Fleet>, Options) {
    let fleet = Fleet::start(Duration::from_hours(24)).await.unwrap();
    let installed = Arc::new(NodeImage::build("1.0.0", 1).unwrap());
    (Arc::new(fleet), Options::new(installed))
}

/// A fleet of one.
pub async fn one() -> (Arc<Fleet>, Arc<SimulatedHost>, HostClient) {
    let (fleet, options) = fleet().await;
    let host = fleet.add("box-1", options).await.unwrap();
    let client = fleet.client(&host);
    (fleet, host, client)
}
