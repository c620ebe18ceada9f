//! Watches through kube's own watcher.

use futures::{StreamExt, TryStreamExt};
use kube::{
    api::{Patch, PatchParams, PostParams},
    core::DynamicObject,
    runtime::watcher::{self, Event},
};
use serde_json::json;
use slipway_apiserver_sim::Held;

use super::{boat, boats, harbour};

fn name(object: &DynamicObject) -> &str {
    object.metadata.name.as_deref().unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_watcher_survives_cuts_and_compaction_without_missing_a_change() {
    for streaming in [false, true] {
        let server = harbour();
        let boats = boats(&server.client());
        boats
            .create(&PostParams::default(), &boat("a", &json!({"length": 1})))
            .await
            .unwrap();
        let config = if streaming {
            watcher::Config::default().streaming_lists()
        } else {
            watcher::Config::default()
        };
        let mut events = watcher::watcher(boats.clone(), config).boxed();
        let mut state = std::collections::BTreeMap::new();
        let mut round = 1;
        // Every round changes the object while the connection is cut or history is gone.
        while round < 6 {
            let event = match events.try_next().await {
                Ok(event) => event.unwrap(),
                Err(_) => continue,
            };
            match event {
                Event::Apply(object) | Event::InitApply(object) => {
                    state.insert(
                        name(&object).to_owned(),
                        object.data["spec"]["length"].as_i64().unwrap(),
                    );
                }
                Event::Delete(object) => {
                    state.remove(name(&object));
                }
                Event::Init => state.clear(),
                Event::InitDone => {}
            }
            if state.get("a") == Some(&round) {
                round += 1;
                if round % 2 == 0 {
                    server.cut_watches();
                }
                let change = json!({"spec": {"length": round}});
                boats
                    .patch("a", &PatchParams::default(), &Patch::Merge(&change))
                    .await
                    .unwrap();
                if round % 3 == 0 {
                    server.compact();
                    server.cut_watches();
                }
            }
        }
        assert_eq!(state["a"], 5);
    }
}

#[tokio::test(start_paused = true)]
async fn held_watches_keep_a_cache_in_the_past() {
    let server = harbour();
    let boats = boats(&server.client());
    let mut events = watcher::watcher(boats.clone(), watcher::Config::default()).boxed();
    assert!(matches!(events.try_next().await.unwrap().unwrap(), Event::Init));
    assert!(matches!(
        events.try_next().await.unwrap().unwrap(),
        Event::InitDone
    ));
    server.hold_watches(Held::All);
    boats
        .create(&PostParams::default(), &boat("a", &json!({"length": 1})))
        .await
        .unwrap();
    let silent = tokio::time::timeout(std::time::Duration::from_secs(30), events.try_next()).await;
    assert!(silent.is_err(), "{silent:?}");
    server.release_watches();
    let Event::Apply(object) = events.try_next().await.unwrap().unwrap() else {
        panic!()
    };
    assert_eq!(name(&object), "a");
}

#[tokio::test(start_paused = true)]
async fn an_object_that_leaves_the_selection_is_deleted_for_that_watch() {
    let server = harbour();
    let boats = boats(&server.client());
    let mut object = boat("a", &json!({"length": 1}));
    object.metadata.labels = Some([("dock".to_owned(), "north".to_owned())].into());
    boats.create(&PostParams::default(), &object).await.unwrap();
    let mut events = watcher::watcher(boats.clone(), watcher::Config::default().labels("dock=north")).boxed();
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(events.try_next().await.unwrap().unwrap().to_string());
    }
    let moved = json!({"metadata": {"labels": {"dock": "south"}}});
    boats
        .patch("a", &PatchParams::default(), &Patch::Merge(&moved))
        .await
        .unwrap();
    let Event::Delete(gone) = events.try_next().await.unwrap().unwrap() else {
        panic!("{seen:?}")
    };
    assert_eq!(name(&gone), "a");
}

#[tokio::test(start_paused = true)]
async fn a_list_that_expires_between_its_pages_is_made_again_from_the_start() {
    let server = harbour();
    let boats = boats(&server.client());
    for name in ["a", "b", "c"] {
        boats
            .create(&PostParams::default(), &boat(name, &json!({"length": 1})))
            .await
            .unwrap();
    }
    server.expire_next_lists();
    let mut events = watcher::watcher(boats.clone(), watcher::Config::default().page_size(500)).boxed();
    let mut seen = Vec::new();
    let refused = loop {
        match events.try_next().await {
            Ok(Some(Event::InitApply(object))) => seen.push(name(&object).to_owned()),
            Ok(Some(Event::Init)) => {}
            Ok(other) => panic!("{other:?}"),
            Err(watcher::Error::InitialListFailed(kube::Error::Api(status))) => break status,
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!((refused.code, refused.reason.as_str()), (410, "Expired"));
    assert_eq!(seen, ["a"], "one page came before the token expired");
    seen.clear();
    while let Some(event) = events.try_next().await.unwrap() {
        match event {
            Event::InitApply(object) => seen.push(name(&object).to_owned()),
            Event::InitDone => break,
            _ => {}
        }
    }
    assert_eq!(seen, ["a", "b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn a_kind_can_be_overtaken_and_objects_can_overtake_each_other() {
    let server = harbour();
    let boats = boats(&server.client());
    let mut events = watcher::watcher(boats.clone(), watcher::Config::default()).boxed();
    for _ in 0..2 {
        events.try_next().await.unwrap();
    }
    let create = async |name: &str| {
        let boat = boat(name, &json!({"length": 1}));
        boats.create(&PostParams::default(), &boat).await.unwrap();
    };
    let half_a_minute = std::time::Duration::from_secs(30);
    server.hold_watches(Held::Only("boats.harbour.slipway.dev".to_owned()));
    create("a").await;
    create("b").await;
    let silent = tokio::time::timeout(half_a_minute, events.try_next()).await;
    assert!(silent.is_err(), "{silent:?}");
    server.release_reordered();
    let mut told = Vec::new();
    for _ in 0..2 {
        let Event::Apply(object) = events.try_next().await.unwrap().unwrap() else {
            panic!()
        };
        told.push(name(&object).to_owned());
    }
    assert_eq!(told, ["b", "a"]);
    server.hold_watches(Held::AllBut("boats.harbour.slipway.dev".to_owned()));
    create("c").await;
    let free = tokio::time::timeout(half_a_minute, events.try_next())
        .await
        .unwrap();
    assert!(matches!(free, Ok(Some(Event::Apply(object))) if name(&object) == "c"));
}
