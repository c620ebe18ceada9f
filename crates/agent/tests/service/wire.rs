//! Whatever bytes come over the wire to whichever method, a host and a manager answer, and go on.

use bytes::{BufMut, Bytes, BytesMut};
use http::Request;
use http_body_util::{BodyExt, Full};
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use prost::Message;
use slipway_agent_api::{
    Identity,
    channel::Channel,
    proto::{self, METHODS, start_request::Verb},
};
use slipway_hosts_sim::FLEET;
use tonic::body::Body;

use super::{command, import, one, order, succeeded};

/// The gRPC status of a call with these bytes as its message.
async fn status(channel: &Channel, path: &str, message: &[u8]) -> Option<i32> {
    let mut body = BytesMut::new();
    body.put_u8(0);
    body.put_u32(message.len() as u32);
    body.put_slice(message);
    let uri = format!("{}{}", channel.origin(), &path[1..]);
    let request = Request::post(uri)
        .header("content-type", "application/grpc")
        .body(Body::new(Full::new(body.freeze())))
        .unwrap();
    let response = channel.clone().send(request).await.unwrap();
    if let Some(status) = response.headers().get("grpc-status") {
        return status.to_str().unwrap().parse().ok();
    }
    let body = response.into_body().collect().await.unwrap();
    let status: &http::HeaderValue = body.trailers()?.get("grpc-status")?;
    status.to_str().unwrap().parse().ok()
}

/// Noise, and good messages with bytes changed, put in and cut off.
fn messages() -> impl Strategy<Value = Vec<u8>> {
    let good = vec![
        order("box-1", "op-1", 1, import("one")).encode_to_vec(),
        order("box-1", "op-2", 1, command(&["true"])).encode_to_vec(),
        order(
            "box-1",
            "op-3",
            1,
            Verb::RunBootstrap(proto::RunBootstrap {
                data: b"#cloud-config\nruncmd: [[true]]\n".to_vec(),
                time_limit_seconds: 1,
                ..Default::default()
            }),
        )
        .encode_to_vec(),
        proto::ReadRequest {
            digest: slipway_slots::Digest::of(b"x").to_string(),
            offset: 3,
            length: u64::MAX,
        }
        .encode_to_vec(),
        proto::LocateRequest {
            digests: vec![slipway_slots::Digest::of(b"x").to_string(); 3],
        }
        .encode_to_vec(),
        proto::WatchOperationRequest {
            operation_id: "done".into(),
            output_from: u64::MAX,
        }
        .encode_to_vec(),
    ];
    let change = (any::<prop::sample::Index>(), any::<u8>(), 0..3_u8);
    let damaged = (
        prop::sample::select(good),
        proptest::collection::vec(change, 0..5),
    )
        .prop_map(|(mut bytes, changes)| {
            for (at, byte, how) in changes {
                let at = at.index(bytes.len().max(1)).min(bytes.len());
                match how {
                    0 if at < bytes.len() => bytes[at] = byte,
                    1 => bytes.insert(at, byte),
                    _ => bytes.truncate(at),
                }
            }
            bytes
        });
    prop_oneof![proptest::collection::vec(any::<u8>(), 0..120), damaged]
}

#[tokio::test(flavor = "multi_thread")]
async fn every_method_answers_whatever_it_is_sent_and_the_host_goes_on() {
    let (fleet, host, client) = one().await;
    succeeded(&client, "done", command(&["true"])).await;
    let channel = async |identity: &Identity| {
        let tls = fleet.tls(identity).unwrap();
        let address = host.address().unwrap();
        Channel::to_host(&address, "box-1", tls.get().client.clone())
            .await
            .unwrap()
    };
    let fleet_name = || FLEET.to_owned();
    let operator = channel(&Identity::Operator { fleet: fleet_name() }).await;
    let peer_identity = Identity::Host {
        fleet: fleet_name(),
        name: "box-2".into(),
    };
    let peer = channel(&peer_identity).await;
    let tls = fleet.tls(&peer_identity).unwrap();
    let manager = Channel::to_manager(&fleet.manager, tls.get().client.clone())
        .await
        .unwrap();
    let mut runner = TestRunner::deterministic();
    let (mut calls, mut understood) = (0, 0);
    for method in METHODS {
        let to = match method.split(['.', '/']).nth(4) {
            Some("Blobs") => &peer,
            Some("Enrolment") => &manager,
            _ => &operator,
        };
        for _ in 0..40 {
            let message = messages().new_tree(&mut runner).unwrap().current();
            // What it may wait for is what the message says: such a one is cut off, which is an answer too.
            let answer =
                tokio::time::timeout(std::time::Duration::from_secs(2), status(to, method, &message));
            match answer.await {
                Ok(status) => {
                    let status = status.unwrap_or_else(|| panic!("{method}: no status for {message:?}"));
                    understood += usize::from(status == 0);
                }
                Err(_) => understood += 1,
            }
            calls += 1;
        }
    }
    println!(
        "report: {calls} calls of {} methods with damaged messages, {understood} were understood",
        METHODS.len()
    );
    assert!(understood > 0);
    assert_eq!(client.inventory().await.unwrap().name, "box-1");
    let oversized = Bytes::from(vec![0; 5 << 20]);
    let refused = status(&operator, "/slipway.agent.v1.Agent/Start", &oversized).await;
    assert_ne!(refused, Some(0));
    succeeded(&client, "after", command(&["true"])).await;
}
