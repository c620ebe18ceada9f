//! E-54: hosts give each other what they have, with upstream cut off, within limits, and to nobody else.

use std::{sync::Arc, time::Duration};

use oci_client::secrets::RegistryAuth;
use slipway_agent::{cache::RegistrySettings, service::Serving};
use slipway_agent_api::{
    Class, Identity,
    channel::Channel,
    proto::{self, LocateRequest, Operation, ReadRequest, blobs_client::BlobsClient, start_request::Verb},
};
use slipway_hosts_sim::{FLEET, Options, SimulatedHost};
use slipway_slots::Digest;

use super::{fleet, succeeded};
use crate::cache::{TestImage, layer, real_registry::RealRegistry};

fn ensure(reference: &str, digest: &Digest, peers: &[&Arc<SimulatedHost>]) -> Verb {
    Verb::Ensure(proto::Ensure {
        image: Some(proto::ImageReference {
            reference: reference.into(),
            digest: digest.to_string(),
            ..Default::default()
        }),
        peers: peers
            .iter()
            .map(|host| proto::PeerHost {
                host: host.name.clone(),
                address: host.address().unwrap(),
            })
            .collect(),
        ..Default::default()
    })
}

fn progress(operation: &Operation) -> proto::Progress {
    operation.progress.unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn e54_the_second_host_gets_everything_from_the_first_with_upstream_cut_off() {
    let Some(mut registry) = RealRegistry::start("e54", false) else {
        return;
    };
    let digest = registry
        .push("app:1", &layer(7, 3 << 20), &RegistryAuth::Anonymous)
        .await;
    let reference = format!("{}/app:1", registry.address);
    let (fleet, mut options) = fleet().await;
    options.registries = RegistrySettings {
        plain_http: vec![registry.address.clone()],
        ..RegistrySettings::default()
    };
    let seed = fleet.add("seed", options.clone()).await.unwrap();
    let first = succeeded(&fleet.client(&seed), "ensure", ensure(&reference, &digest, &[])).await;
    assert!(progress(&first).bytes_upstream >= 3 << 20);
    registry.cut_off();

    // All seeds, and one of them is not there; then every host is a seed for the next.
    let gone = fleet.add("gone", options.clone()).await.unwrap();
    let mut hosts = vec![gone.clone(), seed.clone()];
    gone.stop().await;
    for number in 0..3 {
        let host = fleet
            .add(&format!("box-{number}"), options.clone())
            .await
            .unwrap();
        let known: Vec<_> = hosts.iter().collect();
        let done = succeeded(
            &fleet.client(&host),
            "ensure",
            ensure(&reference, &digest, &known),
        )
        .await;
        assert_eq!(progress(&done).bytes_upstream, 0);
        assert!(progress(&done).bytes_peers >= 3 << 20, "{:?}", progress(&done));
        assert_eq!(
            fleet.client(&host).images().await.unwrap().images[0].digest,
            digest.to_string()
        );
        hosts.push(host);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_lies_is_left_for_upstream() {
    let Some(registry) = RealRegistry::start("a lying host", false) else {
        return;
    };
    let bytes = layer(8, 1 << 20);
    let digest = registry.push("app:1", &bytes, &RegistryAuth::Anonymous).await;
    let reference = format!("{}/app:1", registry.address);
    let (fleet, mut options) = fleet().await;
    options.registries.plain_http = vec![registry.address.clone()];
    let liar = fleet.add("liar", options.clone()).await.unwrap();
    succeeded(&fleet.client(&liar), "ensure", ensure(&reference, &digest, &[])).await;
    let blob = Digest::of(&bytes).to_string().replacen(':', "/", 1);
    let path = liar.folder().join("cache/blobs").join(blob);
    let mut changed = std::fs::read(&path).unwrap();
    changed[1000] ^= 1;
    std::fs::write(&path, changed).unwrap();
    let host = fleet.add("box-1", options).await.unwrap();
    let done = succeeded(
        &fleet.client(&host),
        "ensure",
        ensure(&reference, &digest, &[&liar]),
    )
    .await;
    assert!(progress(&done).bytes_upstream >= 1 << 20);
}

/// A host that gives too little is left for one that gives more, and what came of it is kept.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_is_slow_is_left_for_the_next() {
    let image = TestImage::of("app", &[layer(9, 2 << 20)]);
    let (fleet, mut options) = fleet().await;
    let imported = async |name: &str, options: Options| {
        let host = fleet.add(name, options).await.unwrap();
        image.write_layout(&host.exchange().join("app"));
        succeeded(&fleet.client(&host), "import", super::import("app")).await;
        host
    };
    let fast = imported("fast", options.clone()).await;
    let mut limited = options.clone();
    // One piece, and the next in three days.
    limited.serving.bytes_per_second = Some(1);
    let slow = imported("slow", limited).await;
    // A busy machine makes the fast one pause too.
    options.waits.peer_stall = Duration::from_secs(5);
    let host = fleet.add("box-1", options).await.unwrap();
    let nowhere = "127.0.0.1:1/app:1";
    let done = succeeded(
        &fleet.client(&host),
        "ensure",
        ensure(nowhere, &image.digest, &[&slow, &fast]),
    )
    .await;
    // What the slow one gave is not asked for again.
    assert!(
        progress(&done).bytes_peers <= image.size(),
        "{:?}",
        progress(&done)
    );
}

#[tokio::test]
async fn a_host_reads_blobs_of_others_and_is_limited_in_rights_and_bandwidth() {
    let (fleet, mut options) = fleet().await;
    options.serving = Serving {
        readers: 3,
        readers_per_host: 1,
        bytes_per_second: Some(4 << 20),
    };
    let seed = fleet.add("seed", options.clone()).await.unwrap();
    let image = TestImage::of("app", &[layer(9, 4 << 20)]);
    image.write_layout(&seed.exchange().join("two"));
    succeeded(&fleet.client(&seed), "import", super::import("two")).await;
    let peer = Identity::Host {
        fleet: FLEET.into(),
        name: "box-9".into(),
    };
    let tls = fleet.tls(&peer).unwrap();
    let denied = fleet.client_as(&seed, tls.clone()).images().await.unwrap_err();
    assert_eq!(denied.class, Class::Denied);
    let address = seed.address().unwrap();
    let channel = Channel::to_host(&address, "seed", tls.get().client.clone())
        .await
        .unwrap();
    let origin = channel.origin();
    let mut blobs = BlobsClient::with_origin(channel, origin);
    let request = ReadRequest {
        digest: image.layers[0].to_string(),
        offset: 0,
        length: 0,
    };
    // One reader at a time: the second is told to come later.
    let first = blobs.read(request.clone()).await.unwrap();
    let busy = blobs.read(request.clone()).await.unwrap_err();
    assert_eq!(busy.code(), tonic::Code::ResourceExhausted);
    drop(first);
    // What is not a blob of the cache is not to be had, however it is asked for.
    for digest in [
        "../../state/identity.json",
        "sha256:../../state/identity.json",
        "",
    ] {
        let said = blobs
            .read(ReadRequest {
                digest: digest.into(),
                ..request.clone()
            })
            .await
            .unwrap_err();
        assert_eq!(said.code(), tonic::Code::InvalidArgument, "{said}");
    }
    let located = blobs
        .locate(LocateRequest {
            digests: vec![image.digest.to_string(), Digest::of(b"no").to_string()],
        })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(located.blobs.len(), 1);
    // The operator orders and does not read blobs; nobody else does either.
    let way = fleet.client(&seed).channel().await.unwrap();
    let origin = way.origin();
    let said = BlobsClient::with_origin(way, origin)
        .read(request)
        .await
        .unwrap_err();
    assert_eq!(said.code(), tonic::Code::PermissionDenied);
}
