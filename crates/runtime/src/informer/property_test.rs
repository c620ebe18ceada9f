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
enum Step {
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

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0..5_u8).prop_map(Step::Put),
        2 => (0..5_u8).prop_map(Step::Spoil),
        4 => (0..5_u8).prop_map(Step::Remove),
        2 => Just(Step::Cut),
        1 => Just(Step::End),
        1 => Just(Step::Garble),
        2 => Just(Step::Compact),
        1 => Just(Step::Bookmark),
        1 => Just(Step::Hold),
        1 => Just(Step::Release),
        1 => Just(Step::Down),
        1 => Just(Step::Up),
        1 => Just(Step::Silent),
        1 => Just(Step::Speak),
        6 => (1..3000_u16).prop_map(Step::Wait),
        4 => Just(Step::Read),
    ];
    prop::collection::vec(step, 1..60)
}

fn apply(server: &TestServer, step: Step, number: usize) {
    let metadata = |object: u8| json!({"name": format!("m{object}"), "namespace": "default"});
    match step {
        Step::Put(object) => {
            let value = json!({"metadata": metadata(object), "data": {"v": number.to_string()}});
            server.put(MAPS, value);
        }
        Step::Spoil(object) => {
            server.put(MAPS, json!({"metadata": metadata(object), "data": 7}));
        }
        Step::Remove(object) => server.remove(MAPS, Some("default"), &format!("m{object}")),
        Step::Cut => server.cut(),
        Step::End => server.end_watches(),
        Step::Garble => server.garble(),
        Step::Compact => server.compact(),
        Step::Bookmark => server.bookmark(),
        Step::Hold => server.hold_watches(),
        Step::Release => server.release_watches(),
        Step::Down => server.set_down(true),
        Step::Up => server.set_down(false),
        Step::Silent => server.set_silent(true),
        Step::Speak => server.set_silent(false),
        Step::Wait(_) | Step::Read => {}
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
                    "a step is missing"
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

async fn follow(steps: Vec<Step>, packed: bool) -> Result<(), TestCaseError> {
    let server = TestServer::new();
    let stopped = CancellationToken::new();
    let informers = Informers::new(
        server.client(),
        Metrics::new(),
        Random::seeded(9),
        stopped.clone(),
    );
    if packed {
        informers.keep_as_text::<ConfigMap>();
    }
    let informer: Informer<ConfigMap> = informers.get(Scope::all());
    let mut subscription = informer.subscribe();
    let mut told = Told::new();
    for (number, step) in steps.into_iter().enumerate() {
        apply(&server, step, number);
        match step {
            Step::Wait(milliseconds) => sleep(Duration::from_millis(milliseconds.into())).await,
            Step::Read => read(&mut subscription, &mut told)?,
            _ => {}
        }
    }
    for step in [Step::Up, Step::Speak, Step::Release] {
        apply(&server, step, 0);
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
    fn no_break_loses_a_change(steps in steps(), packed in any::<bool>()) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(follow(steps, packed))?;
    }
}
