//! Slots written over the API with what the host lacks of an image: chunks of the running slot and of cached images are not
//! downloaded again. Every byte that came is counted, by the agent and on the wire.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use slipway_agent::cache::Waits;
use slipway_agent_api::{
    Class,
    proto::{self, Operation, OperationState, PeerHost, Progress, start_request::Verb},
};
use slipway_hosts_sim::{Fleet, NodeImage, Options, SimulatedHost};
use slipway_slots::Digest;

use super::{arm, complete, ended, fleet, import, order, prepare, succeeded};
use crate::{
    cache::{layer, real_registry::RealRegistry},
    fetch::proxy::{Fault, Proxy},
};

const SIZE: usize = 4 << 20;

/// Does not compress, and differs by seed.
fn contents(seed: u8) -> Vec<u8> {
    layer(seed, SIZE).to_vec()
}

/// The same with 2.5 % of it changed, in four places.
fn changed(contents: &[u8]) -> Vec<u8> {
    let mut changed = contents.to_vec();
    for place in [1, 9, 20, 27] {
        let from = place * (SIZE / 32);
        changed[from..from + SIZE / 160]
            .iter_mut()
            .for_each(|byte| *byte ^= 0x5a);
    }
    changed
}

fn image(version: &str, epoch: u64, contents: Vec<u8>) -> Arc<NodeImage> {
    Arc::new(NodeImage::with_contents(version, epoch, contents).unwrap())
}

/// A fleet whose hosts run an image of these bytes.
async fn fleet_of(contents: Vec<u8>) -> (Arc<Fleet>, Options) {
    let (fleet, mut options) = fleet().await;
    options.installed = image("1.0.0", 1, contents);
    options.waits = Waits {
        backoff: (Duration::from_millis(1), Duration::from_millis(10)),
        ..Waits::default()
    };
    (fleet, options)
}

fn from_elsewhere(image: &NodeImage, reference: &str, peers: &[&Arc<SimulatedHost>]) -> Verb {
    let Verb::Prepare(prepare) = prepare("up-1", image) else {
        panic!("it is prepare")
    };
    let peers = peers.iter().map(|host| PeerHost {
        host: host.name.clone(),
        address: host.address().unwrap(),
    });
    Verb::Prepare(proto::Prepare {
        reference: reference.into(),
        peers: peers.collect(),
        ..prepare
    })
}

fn progress(operation: &Operation) -> Progress {
    operation.progress.unwrap_or_default()
}

/// A host that has the image in its cache.
async fn seed(fleet: &Fleet, options: &Options, image: &NodeImage) -> Arc<SimulatedHost> {
    let seed = fleet.add("seed", options.clone()).await.unwrap();
    image.write_layout(&seed.exchange().join("image")).unwrap();
    succeeded(&fleet.client(&seed), "import", import("image")).await;
    seed
}

/// Nobody listens there.
const NOWHERE: &str = "127.0.0.1:1/os:2";

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_is_written_with_what_the_running_slot_lacks_and_boots() {
    let old = contents(1);
    let new = image("2.0.0", 2, changed(&old));
    let (fleet, options) = fleet_of(old).await;
    let seed = seed(&fleet, &options, &new).await;
    let host = fleet.add("box-1", options).await.unwrap();
    let client = fleet.client(&host);
    // Without a place to have it from it must be cached, as before.
    let missing = complete(&client, "no-place", prepare("up-1", &new))
        .await
        .unwrap();
    assert_eq!(missing.problem.unwrap().reason, "NotCached");

    let done = succeeded(&client, "prepare", from_elsewhere(&new, NOWHERE, &[&seed])).await;
    let Progress {
        bytes_peers,
        bytes_upstream,
        bytes_done,
        bytes_total,
        ..
    } = progress(&done);
    println!("report: 2.5 % of an image changed: {bytes_peers} of {SIZE} bytes were downloaded");
    assert_eq!((bytes_done, bytes_total), (new.size(), new.size()));
    assert_eq!(bytes_upstream, 0);
    assert!(
        bytes_peers >= SIZE as u64 / 50,
        "{bytes_peers}: what changed came"
    );
    assert!(bytes_peers <= SIZE as u64 / 8, "{bytes_peers}: and not much more");
    assert!(
        client.images().await.unwrap().images.is_empty(),
        "it is in the slot and not in the cache"
    );
    succeeded(&client, "arm", arm("up-1")).await;
    let after = super::upgrades::until(&client, "the new slot", |host| {
        host.booted_slot == "B" && host.slots[1].boot == "good"
    })
    .await;
    assert_eq!(after.slots[1].version, "2.0.0");
    // Nothing of it is cached, and the host was started again: what orders call it is known all the same.
    let called = [new.digest.to_string()];
    assert_eq!(after.slots[1].digests, called);
    assert_eq!(after.upgrades[0].digests, called);
    assert_eq!(after.upgrades[0].image, new.id.to_string());
}

/// Debian's registry: ranges of its blobs, and all of it where nothing is at hand.
#[tokio::test(flavor = "multi_thread")]
async fn a_real_registry_is_asked_for_the_chunks_that_are_missing() {
    let Some(registry) = RealRegistry::start("a slot written from a real registry", false) else {
        return;
    };
    let old = contents(1);
    let new = image("2.0.0", 2, changed(&old));
    let reference = registry.push_image(&new, "os", "2").await;
    let (fleet, mut options) = fleet_of(old).await;
    options.registries.plain_http = vec![registry.address.clone()];
    let near = fleet.add("near", options.clone()).await.unwrap();
    options.installed = image("1.0.0", 1, contents(7));
    let far = fleet.add("far", options).await.unwrap();
    let upstream = async |host: &Arc<SimulatedHost>| {
        let verb = from_elsewhere(&new, &reference, &[]);
        let done = succeeded(&fleet.client(host), "prepare", verb).await;
        progress(&done).bytes_upstream
    };
    let (delta, whole) = (upstream(&near).await, upstream(&far).await);
    println!(
        "report: from a real registry {delta} bytes came where the slot had most, {whole} where it had nothing"
    );
    assert!(delta <= SIZE as u64 / 8, "{delta}");
    assert!(
        (SIZE as u64..SIZE as u64 + SIZE as u64 / 20).contains(&whole),
        "{whole}"
    );
}

/// The running slot has nothing of it, a cached image most.
#[tokio::test(flavor = "multi_thread")]
async fn chunks_of_a_cached_image_are_not_downloaded_again_even_when_some_are_damaged() {
    let cached = image("2.0.0", 2, contents(2));
    let new = image("3.0.0", 3, changed(&contents(2)));
    let (fleet, options) = fleet_of(contents(1)).await;
    let seed = seed(&fleet, &options, &new).await;
    for damage in [false, true] {
        let name = format!("box-{damage}");
        let host = fleet.add(&name, options.clone()).await.unwrap();
        let client = fleet.client(&host);
        cached.write_layout(&host.exchange().join("two")).unwrap();
        succeeded(&client, "import", import("two")).await;
        if damage {
            // In the middle of its chunks.
            let manifest = cached.signed.unverified().unwrap();
            let chunks = manifest.partitions[0].chunks.digest;
            let (digest, bytes) = cached
                .blobs()
                .iter()
                .find(|(digest, _)| *digest == chunks)
                .unwrap();
            let path = digest.to_string().replacen(':', "/", 1);
            let mut bytes = bytes.clone();
            let middle = bytes.len() / 2;
            bytes[middle..middle + 8].fill(0);
            std::fs::write(host.folder().join("cache/blobs").join(path), bytes).unwrap();
        }
        let done = succeeded(&client, "prepare", from_elsewhere(&new, NOWHERE, &[&seed])).await;
        let came = progress(&done).bytes_peers;
        println!(
            "report: with most of an image in another cached one {came} of {SIZE} bytes were downloaded, damage: {damage}"
        );
        // From the damage on, the cached image is not believed any more.
        let expected = if damage {
            SIZE as u64 / 4..SIZE as u64
        } else {
            SIZE as u64 / 50..SIZE as u64 / 8
        };
        assert!(expected.contains(&came), "{came}, damage: {damage}");
        assert_eq!(done.state(), OperationState::Succeeded);
    }
}

/// The network cuts, stalls, refuses, ignores ranges and lies; the slot is whole in the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_network_delays_a_slot_and_does_not_spoil_it() {
    let old = contents(1);
    let new = image("2.0.0", 2, changed(&old));
    let files = || -> BTreeMap<_, _> {
        let blobs = new.blobs().iter();
        blobs
            .map(|(digest, bytes)| (digest.to_string(), bytes.clone()))
            .collect()
    };
    let faults = [
        Fault::Cut(0),
        Fault::Cut(20_000),
        Fault::NoAnswer,
        Fault::Stall(1000),
        Fault::Status(429, "Retry-After: 0\r\n"),
        Fault::Status(503, ""),
        Fault::IgnoreRange,
        Fault::Drip(3000),
    ];
    let (fleet, options) = fleet_of(old).await;
    for (number, fault) in faults.into_iter().enumerate() {
        // At the manifest, at the index, and at chunks.
        let mut script = vec![fault.clone(); 2];
        for _ in 0..2 {
            script.push(Fault::Drip(50_000));
            script.push(fault.clone());
        }
        let proxy = Proxy::registry(files(), script);
        let address = proxy
            .address
            .trim_start_matches("http://")
            .trim_end_matches("/images")
            .to_owned();
        let mut options = options.clone();
        options.waits.stall = Duration::from_millis(300);
        options.registries.plain_http = vec![address.clone()];
        let host = fleet.add(&format!("box-{number}"), options).await.unwrap();
        let verb = from_elsewhere(&new, &format!("{address}/os:2"), &[]);
        let done = complete(&fleet.client(&host), "prepare", verb).await.unwrap();
        assert_eq!(
            done.state(),
            OperationState::Succeeded,
            "{fault:?}: {}",
            done.message
        );
        assert_eq!(proxy.faults_left(), 0, "{fault:?}: it was met everywhere");
        let (counted, sent) = (progress(&done).bytes_upstream, proxy.log().sent);
        assert!(counted <= sent, "{fault:?}: {counted} counted, {sent} sent");
    }
}

/// A host that lies is left for the next; when nobody is right it fails, and the same order succeeds when somebody is.
#[tokio::test(flavor = "multi_thread")]
async fn a_lying_host_does_not_get_its_bytes_into_a_slot() {
    let old = contents(1);
    let new = image("2.0.0", 2, changed(&old));
    let (fleet, options) = fleet_of(old).await;
    let liar = seed(&fleet, &options, &new).await;
    let honest = fleet.add("honest", options.clone()).await.unwrap();
    new.write_layout(&honest.exchange().join("image")).unwrap();
    succeeded(&fleet.client(&honest), "import", import("image")).await;
    for (digest, bytes) in new.blobs().iter().filter(|(_, bytes)| bytes.len() > SIZE / 2) {
        let path = digest.to_string().replacen(':', "/", 1);
        let wrong: Vec<u8> = bytes.iter().map(|byte| byte ^ 1).collect();
        std::fs::write(liar.folder().join("cache/blobs").join(path), wrong).unwrap();
    }
    let host = fleet.add("box-1", options).await.unwrap();
    let client = fleet.client(&host);
    let failed = complete(&client, "alone", from_elsewhere(&new, NOWHERE, &[&liar]))
        .await
        .unwrap();
    assert_eq!(failed.state(), OperationState::Failed, "{}", failed.message);
    let after = client.inventory().await.unwrap();
    assert_eq!(
        (after.slots[1].boot.as_str(), after.booted_slot.as_str()),
        ("unbootable", "A")
    );
    let verb = from_elsewhere(&new, NOWHERE, &[&liar, &honest]);
    succeeded(&client, "together", verb).await;
}

/// Nobody has it yet: the order waits over restarts of the agent, and goes on when somebody does.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_waits_for_upstream_goes_on_after_a_restart() {
    let old = contents(1);
    let new = image("2.0.0", 2, changed(&old));
    let (fleet, options) = fleet_of(old).await;
    let host = fleet.add("box-1", options.clone()).await.unwrap();
    let client = fleet.client(&host);
    let seed = seed(&fleet, &options, &new).await;
    let verb = from_elsewhere(&new, NOWHERE, &[&seed]);
    seed.stop().await;
    client.start(order("box-1", "prepare", 1, verb)).await.unwrap();
    host.kill_agent().await.unwrap();
    seed.start().await.unwrap();
    host.kill_agent().await.unwrap();
    let done = ended(&client, "prepare").await.unwrap();
    assert_eq!(done.state(), OperationState::Succeeded, "{}", done.message);
}

/// A wrong image is told as what it is, and nothing is written.
#[tokio::test]
async fn what_is_no_image_for_a_slot_is_refused() {
    let (fleet, mut options) = fleet_of(contents(1)).await;
    options.waits.give_up = Duration::ZERO;
    let app = crate::cache::TestImage::of("app", &[layer(3, 1000)]);
    let seed = fleet.add("seed", options.clone()).await.unwrap();
    app.write_layout(&seed.exchange().join("app"));
    succeeded(&fleet.client(&seed), "import", import("app")).await;
    let host = fleet.add("box-1", options).await.unwrap();
    let Verb::Prepare(mut prepare) = from_elsewhere(&image("2.0.0", 2, contents(1)), NOWHERE, &[&seed])
    else {
        panic!("it is prepare")
    };
    let client = fleet.client(&host);
    prepare.digest = app.digest.to_string();
    let refused = complete(&client, "app", Verb::Prepare(prepare.clone()))
        .await
        .unwrap();
    assert_eq!(
        refused.problem.unwrap().reason,
        "NotUsable",
        "{}",
        refused.message
    );
    prepare.digest = Digest::of(b"nobody has it").to_string();
    let absent = complete(&client, "absent", Verb::Prepare(prepare)).await.unwrap();
    let problem = slipway_agent_api::Problem::from_proto(&absent.problem.unwrap());
    assert_eq!(
        (problem.class, problem.reason.as_str()),
        (Class::Transient, "NoSource")
    );
}
