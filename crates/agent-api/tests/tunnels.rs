//! Hosts that nobody can reach: they connect, and are called over their own connection, also from other replicas.

use std::sync::Arc;

use futures::StreamExt;
use slipway_agent_api::{
    Class,
    client::{HostClient, ThroughReplica},
    proto::{OperationState, WatchOperationRequest, agent_client::AgentClient},
    serve::Router,
    tunnel::{Switchboard, connect_tunnel, serve_manager},
};
use tokio::net::TcpListener;

use crate::support::{FLEET, Fleet, Running, Script, host, operator, router};

/// Connects a host without a port of its own.
async fn behind_nat(fleet: &Fleet, name: &str, script: &Script) -> Running {
    let (address, tls, router) = (
        fleet.manager.clone(),
        fleet.tls(&host(name)),
        Arc::new(router(script)),
    );
    let mut changes = fleet.board.changes();
    let task = tokio::spawn(async move {
        let _ = connect_tunnel(&address, FLEET, &tls, router).await;
    });
    changes.changed().await.unwrap();
    Running(task)
}

#[tokio::test]
async fn a_host_behind_nat_is_ordered_and_watched_over_its_own_connection() {
    let fleet = Fleet::new().await;
    let script = Script::new();
    let _tunnel = behind_nat(&fleet, "box-1", &script).await;
    let client = HostClient::new("box-1", Arc::new(fleet.board.clone()));
    client.start(<_>::default()).await.unwrap();
    let mut watch = client.watch("op-1");
    assert_eq!(watch.next().await.unwrap().unwrap().sequence, 1);
    script.advance(OperationState::Succeeded);
    assert_eq!(
        watch.next().await.unwrap().unwrap().state(),
        OperationState::Succeeded
    );
    assert!(watch.next().await.is_none());
}

#[tokio::test]
async fn every_replica_accepts_and_the_leader_orders_through_the_one_that_has_the_host() {
    let fleet = Fleet::new().await;
    let script = Script::new();
    let _tunnel = behind_nat(&fleet, "box-1", &script).await;
    // Another replica, with no host of its own.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let leader = listener.local_addr().unwrap().to_string();
    let _leader = Running(tokio::spawn(serve_manager(
        listener,
        fleet.manager_tls.clone(),
        FLEET.to_owned(),
        Router::new(FLEET),
        Switchboard::default(),
    )));
    let through = |address: &str| {
        let way = ThroughReplica {
            address: address.to_owned(),
            tls: fleet.tls(&operator()),
        };
        HostClient::new("box-1", Arc::new(way))
    };
    let client = through(&fleet.manager);
    client.start(<_>::default()).await.unwrap();
    let mut watch = client.watch("op-1");
    watch.next().await.unwrap().unwrap();
    script.advance(OperationState::Failed);
    assert_eq!(
        watch.next().await.unwrap().unwrap().state(),
        OperationState::Failed
    );
    // The one that does not have it says so, and that it may have it later.
    let said = through(&leader).inventory().await.unwrap_err();
    assert_eq!(
        (said.class, said.reason.as_str()),
        (Class::Transient, "NotConnected")
    );
}

#[tokio::test]
async fn a_host_that_connects_again_replaces_itself() {
    let fleet = Fleet::new().await;
    let (old, new) = (Script::new(), Script::new());
    let old_tunnel = behind_nat(&fleet, "box-1", &old).await;
    let first = fleet.board.channel("box-1").unwrap();
    new.advance(OperationState::Running);
    let _new_tunnel = behind_nat(&fleet, "box-1", &new).await;
    // A client made now asks the board, and gets the newer connection.
    let client = HostClient::new("box-1", Arc::new(fleet.board.clone()));
    assert_eq!(client.operation("op-1").await.unwrap().sequence, 2);
    // The end of the old connection, which a watch over it tells, takes nothing off the board.
    let origin = first.origin();
    let mut watch = AgentClient::with_origin(first, origin)
        .watch_operation(WatchOperationRequest::default())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().sequence, 1);
    drop(old_tunnel);
    assert!(watch.message().await.is_err());
    assert_eq!(fleet.board.hosts(), ["box-1"]);
}

#[tokio::test]
async fn only_a_host_connects_a_tunnel_and_only_to_the_manager() {
    let fleet = Fleet::new().await;
    let script = Script::new();
    // A reader's tunnel is not taken.
    let tls = fleet.tls(&crate::support::reader());
    let _ = connect_tunnel(&fleet.manager, FLEET, &tls, Arc::new(router(&script))).await;
    assert!(fleet.board.hosts().is_empty());
    // A host is not taken for the manager, whatever it answers.
    let box_2 = fleet.host("box-2").await;
    let tls = fleet.tls(&host("box-1"));
    let said = connect_tunnel(&box_2.address, FLEET, &tls, Arc::new(router(&script)))
        .await
        .unwrap_err();
    assert!(said.to_string().contains("not who it should be"), "{said}");
}
