//! Who may call what, over the wire: every method, as everybody.

use std::{sync::Arc, time::Duration};

use http::Request;
use http_body_util::BodyExt;
use jiff::{SignedDuration, Timestamp};
use slipway_agent_api::{
    Class, Identity,
    ca::Ca,
    channel::Channel,
    client::{Direct, HostClient},
    enrol,
    proto::{METHODS, OperationState, WatchOperationRequest, agent_client::AgentClient},
    roles::{Role, may_call},
    tls::{Callers, CurrentTls, joining},
};
use tonic::body::Body;

use crate::support::{FLEET, Fleet, Host, host, operator, reader};

/// The gRPC status of an empty call.
async fn status(channel: &mut Channel, path: &str) -> i32 {
    let origin = channel.origin();
    let uri = format!("{origin}{}", &path[1..]);
    let request = Request::post(uri)
        .header("content-type", "application/grpc")
        .body(Body::new(http_body_util::Full::new(bytes::Bytes::from_static(
            &[0, 0, 0, 0, 0],
        ))))
        .unwrap();
    let response = channel.send(request).await.unwrap();
    let header = response.headers().get("grpc-status").cloned();
    let trailers = response.into_body().collect().await.unwrap();
    let trailer = trailers
        .trailers()
        .and_then(|map| map.get("grpc-status").cloned());
    header.or(trailer).unwrap().to_str().unwrap().parse().unwrap()
}

const DENIED: i32 = 7;
const UNIMPLEMENTED: i32 = 12;

#[tokio::test]
async fn every_method_is_for_whom_the_table_says() {
    let fleet = Fleet::new().await;
    let box_1 = fleet.host("box-1").await;
    // So that watches end.
    box_1.script.advance(OperationState::Succeeded);
    let mut checked = 0;
    for identity in [operator(), host("box-2"), reader()] {
        let tls = fleet.tls(&identity);
        let mut to_host = Channel::to_host(&box_1.address, "box-1", tls.get().client.clone())
            .await
            .unwrap();
        let mut to_manager = Channel::to_manager(&fleet.manager, tls.get().client.clone())
            .await
            .unwrap();
        for method in METHODS {
            let allowed = may_call(Role::of(&identity), method);
            let enrolment = method.contains(".Enrolment/");
            let said = status(&mut to_host, method).await;
            match (allowed, enrolment) {
                (false, _) => assert_eq!(said, DENIED, "{identity} calls {method} of a host"),
                (true, true) => assert_eq!(said, UNIMPLEMENTED, "hosts enrol nobody"),
                (true, false) => assert_eq!(said, 0, "{identity} calls {method} of a host"),
            }
            let said = status(&mut to_manager, method).await;
            assert_eq!(
                said == DENIED,
                !allowed,
                "{identity} calls {method} of the manager: {said}"
            );
            checked += 2;
        }
    }
    let mut anonymous = Channel::to_manager(&fleet.manager, joining(fleet.ca.load().digest()).unwrap())
        .await
        .unwrap();
    for method in METHODS {
        let said = status(&mut anonymous, method).await;
        assert_eq!(said == DENIED, !method.ends_with("/Join"), "{method}: {said}");
        checked += 1;
    }
    assert_eq!(checked, METHODS.len() * 7);
}

#[tokio::test]
async fn a_stolen_host_certificate_is_good_for_its_own_host_only() {
    let fleet = Fleet::new().await;
    let (box_1, stolen) = (fleet.host("box-1").await, fleet.tls(&host("box-2")));
    // It gives no orders to others.
    let client = box_1.client(stolen.clone());
    let said = client
        .start(slipway_agent_api::proto::StartRequest::default())
        .await
        .unwrap_err();
    assert_eq!((said.class, said.reason.as_str()), (Class::Denied, "NotAllowed"));
    // It does not pass for another host.
    let impostor = Host::start("box-1", stolen.clone()).await;
    let said = impostor
        .client(fleet.tls(&operator()))
        .inventory()
        .await
        .unwrap_err();
    assert_eq!(said.class, Class::Denied, "{said}");
    assert!(said.message.contains("not who it should be"), "{said}");
    // Renewing it gives its own name again, whatever is asked for.
    let key = enrol::NewKey::generate().unwrap();
    let said = enrol::renew(&fleet.manager, "box-1", &stolen, &key)
        .await
        .unwrap_err();
    assert!(said.message.contains("slipway://north/host/box-2"), "{said}");
    enrol::renew(&fleet.manager, "box-2", &stolen, &key)
        .await
        .unwrap();
    // It does not reach other hosts through the manager.
    let way = slipway_agent_api::client::ThroughReplica {
        address: fleet.manager.clone(),
        tls: stolen,
    };
    let said = HostClient::new("box-1", Arc::new(way))
        .inventory()
        .await
        .unwrap_err();
    assert_eq!(said.class, Class::Denied, "{said}");
}

#[tokio::test]
async fn certificates_of_another_fleet_or_another_ca_are_refused() {
    let fleet = Fleet::new().await;
    let box_1 = fleet.host("box-1").await;
    // The same CA, another fleet.
    let south = Identity::Operator {
        fleet: "south".into(),
    };
    let said = box_1.client(fleet.tls(&south)).inventory().await.unwrap_err();
    assert_eq!(
        (said.class, said.reason.as_str()),
        (Class::Denied, "ForeignFleet")
    );
    // Another CA that uses the fleet's name; it even believes the right one.
    let pem = Ca::generate(FLEET, Timestamp::now()).unwrap();
    let foreign = Ca::open(FLEET, &pem, &[], Duration::from_hours(1)).unwrap();
    let mut material = foreign.issue(&operator(), Timestamp::now()).unwrap();
    material.ca_certificates = fleet.ca.load().trusted();
    let way = Direct {
        address: box_1.address.clone(),
        tls: CurrentTls::new(&material, Callers::WithCertificate).unwrap(),
    };
    let said = HostClient::new("box-1", Arc::new(way))
        .inventory()
        .await
        .unwrap_err();
    assert_ne!(said.class, Class::Terminal, "{said}");
    assert_eq!(box_1.script.starts.load(std::sync::atomic::Ordering::Relaxed), 0);
}

/// A certificate's end is the end of its connections.
#[tokio::test]
async fn a_connection_ends_with_the_certificate_it_was_made_with() {
    let fleet = Fleet::new().await;
    let box_1 = fleet.host("box-1").await;
    let short = Ca::open(FLEET, &fleet.pem, &[], Duration::from_secs(8)).unwrap();
    let material = short.issue(&operator(), Timestamp::now()).unwrap();
    let tls = CurrentTls::new(&material, Callers::WithCertificate).unwrap();
    let channel = Channel::to_host(&box_1.address, "box-1", tls.get().client.clone())
        .await
        .unwrap();
    let mut probe = channel.clone();
    assert_eq!(status(&mut probe, "/slipway.agent.v1.Agent/GetHost").await, 0);
    // A watch that nothing happens in ends with the connection.
    let origin = channel.origin();
    let mut watch = AgentClient::with_origin(channel, origin)
        .watch_operation(WatchOperationRequest::default())
        .await
        .unwrap()
        .into_inner();
    watch.message().await.unwrap().unwrap();
    assert!(watch.message().await.is_err());
    // The second in which it ends still counts.
    let over = tls.get().valid.until + SignedDuration::from_secs(1);
    let left = over.duration_since(Timestamp::now());
    tokio::time::sleep(left.try_into().unwrap_or_default()).await;
    let again = Channel::to_host(&box_1.address, "box-1", tls.get().client.clone()).await;
    let refused = match again {
        Err(_) => true,
        // In TLS 1.3 the refusal comes after the client's last message.
        Ok(mut channel) => {
            let uri = format!("{}slipway.agent.v1.Agent/GetHost", channel.origin());
            let request = Request::post(uri).body(Body::empty()).unwrap();
            channel.send(request).await.is_err()
        }
    };
    assert!(refused, "an expired certificate was accepted");
}
