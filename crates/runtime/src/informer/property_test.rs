//! Random edits and random breaks, in any order: a subscriber that follows what it is told always ends with what
//! the server has, and every change it is told follows from the state it was told before. However objects are kept.

use std::{collections::BTreeMap, time::Duration};

use futures::FutureExt;
use k8s_openapi::api::core::v1::ConfigMap;
use proptest::prelude::*;
use serde_json::json;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::test_server::TestServer;

const MAPS: &str = "/api/v1/configmaps";

#[derive(Clone, Copy, Debug)]
enum Disturbance {
    Put(u8),
    Spoil(u8),
    Remove(u8),
    Cut,
    End,
    Garble,
    Compact,
    Bookmark,
    Hold,
    Release,
    Down,
    Up,
    Silent,
    Speak,
    Wait(u16),
    Read,
}

fn disturbances() -> impl Strategy<Value = Vec<Disturbance>> {
    let disturbance = prop_oneof![
        8 => (0..5_u8).prop_map(Disturbance::Put),
        2 => (0..5_u8).prop_map(Disturbance::Spoil),
        4 => (0..5_u8).prop_map(Disturbance::Remove),
        2 => Just(Disturbance::Cut),
        1 => Just(Disturbance::End),
        1 => Just(Disturbance::Garble),
        2 => Just(Disturbance::Compact),
        1 => Just(Disturbance::Bookmark),
        1 => Just(Disturbance::Hold),
        1 => Just(Disturbance::Release),
        1 => Just(Disturbance::Down),
        1 => Just(Disturbance::Up),
        1 => Just(Disturbance::Silent),
        1 => Just(Disturbance::Speak),
        6 => (1..3000_u16).prop_map(Disturbance::Wait),
        4 => Just(Disturbance::Read),
    ];
    prop::collection::vec(disturbance, 1..60)
}

fn apply(server: &TestServer, disturbance: Disturbance, number: usize) {
    let metadata = |object: u8| json!({"name": format!("m{object}"), "namespace": "default"});
    match disturbance {
        Disturbance::Put(object) => {
            let value = json!({"metadata": metadata(object), "data": {"v": number.to_string()}});
            server.put(MAPS, value);
        }
        Disturbance::Spoil(object) => {
            server.put(MAPS, json!({"metadata": metadata(object), "data": 7}));
        }
        Disturbance::Remove(object) => server.remove(MAPS, Some("default"), &format!("m{object}")),
        Disturbance::Cut => server.cut(),
        Disturbance::End => server.end_watches(),
        Disturbance::Garble => server.garble(),
        Disturbance::Compact => server.compact(),
        Disturbance::Bookmark => server.bookmark(),
        Disturbance::Hold => server.hold_watches(),
        Disturbance::Release => server.release_watches(),
        Disturbance::Down => server.set_down(true),
        Disturbance::Up => server.set_down(false),
        Disturbance::Silent => server.set_silent(true),
        Disturbance::Speak => server.set_silent(false),
        Disturbance::Wait(_) | Disturbance::Read => {}
    }
}

type Told = BTreeMap<String, String>;

fn value(object: &ConfigMap) -> String {
    object
        .data
        .as_ref()
        .and_then(|data| data.get("v"))
        .cloned()
        .unwrap_or_default()
}

fn read(subscription: &mut Subscription<ConfigMap>, told: &mut Told) -> Result<(), TestCaseError> {
    while let Some(Some(change)) = subscription.next().now_or_never() {
        let name = change.key.name().to_owned();
        match change.event() {
            Event::Added(new) => prop_assert_eq!(told.insert(name, value(new)), None, "added twice"),
            Event::Updated { old, new } => {
                prop_assert_eq!(
                    told.insert(name, value(new)),
                    Some(value(old)),
                    "a disturbance is missing"
                );
            }
            // What came and went unread is told as gone though it never was told as there.
            Event::Deleted(_) => {
                told.remove(&name);
            }
        }
    }
    Ok(())
}

async fn follow(disturbances: Vec<Disturbance>, compressed: bool) -> Result<(), TestCaseError> {
    let server = TestServer::new();
    let stopped = CancellationToken::new();
    let informers = Informers::new(
        server.client(),
        Metrics::new(),
        Random::seeded(9),
        stopped.clone(),
    );
    if compressed {
        informers.keep_as_text::<ConfigMap>();
    }
    let informer: Informer<ConfigMap> = informers.get(Scope::all());
    let mut subscription = informer.subscribe();
    let mut told = Told::new();
    for (number, disturbance) in disturbances.into_iter().enumerate() {
        apply(&server, disturbance, number);
        match disturbance {
            Disturbance::Wait(milliseconds) => sleep(Duration::from_millis(milliseconds.into())).await,
            Disturbance::Read => read(&mut subscription, &mut told)?,
            _ => {}
        }
    }
    for disturbance in [Disturbance::Up, Disturbance::Speak, Disturbance::Release] {
        apply(&server, disturbance, 0);
    }
    // The longest answer that does not come, and the longest wait before asking again.
    sleep(Duration::from_mins(3)).await;
    read(&mut subscription, &mut told)?;
    let unreadable: Vec<String> = informer
        .malformed()
        .iter()
        .map(|malformed| malformed.key.name().to_owned())
        .collect();
    told.retain(|name, _| !unreadable.contains(name));
    let cached: Told = informer
        .list()
        .iter()
        .map(|object| (object.metadata.name.clone().unwrap_or_default(), value(object)))
        .collect();
    let (mut stored, mut spoilt) = (Told::new(), Vec::new());
    for name in server.names(MAPS) {
        let object = server.get(MAPS, Some("default"), &name).unwrap_or_default();
        match object["data"]["v"].as_str() {
            Some(value) => {
                stored.insert(name, value.to_owned());
            }
            None => spoilt.push(name),
        }
    }
    prop_assert_eq!(&cached, &stored, "the cache is not what the server has");
    prop_assert_eq!(&told, &stored, "the subscriber was not told all");
    prop_assert_eq!(
        unreadable.iter().collect::<std::collections::BTreeSet<_>>(),
        spoilt.iter().collect()
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn no_break_loses_a_change(disturbances in disturbances(), compressed in any::<bool>()) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(follow(disturbances, compressed))?;
    }
}
