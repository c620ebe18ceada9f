//! How bytes come: once for everybody, on from where they stopped, and never from a liar.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use slipway_agent::cache::{Progress, TagPolicy};
use slipway_agent_api::Class;
use tempfile::TempDir;
use tokio::task::JoinSet;

use super::{Manner, TestImage, TestSource, disk_usage, ensure, layer, open, open_with, settings};

const QUOTA: u64 = 64 << 20;

#[tokio::test]
async fn e47_parallel_callers_share_one_download_and_a_cached_image_costs_nothing() {
    let root = TempDir::new().unwrap();
    let cache = open(root.path(), QUOTA);
    let image = TestImage::of("app", &[layer(1, 300_000), layer(2, 100_000)]);
    let registry = TestSource::new("registry", &[&image]);
    let mut callers = JoinSet::new();
    for _ in 0..20 {
        let (cache, request) = (cache.clone(), ensure(image.digest, &[&registry]));
        callers.spawn(async move { cache.ensure(request, |_| {}).await });
    }
    for result in callers.join_all().await {
        assert_eq!(result, Ok(image.digest));
    }
    let asked = registry.asked.lock().clone();
    assert_eq!(
        asked.len(),
        image.blobs.len() - 1,
        "each blob was asked for once: {asked:?}"
    );
    assert_eq!(registry.manifests.load(Ordering::Relaxed), 1);
    // Again, and after a restart: nothing is asked for.
    cache
        .ensure(ensure(image.digest, &[&registry]), |_| {})
        .await
        .unwrap();
    drop(cache);
    let cache = open(root.path(), QUOTA);
    cache.ensure(ensure(image.digest, &[]), |_| {}).await.unwrap();
    assert_eq!(registry.asked.lock().len(), asked.len());
    assert!(cache.verify(&image.digest).await.unwrap());
}

#[tokio::test]
async fn a_layer_that_two_images_share_comes_once_even_at_the_same_time() {
    let root = TempDir::new().unwrap();
    let cache = open(root.path(), QUOTA);
    let shared = layer(1, 400_000);
    let one = TestImage::of("one", &[shared.clone(), layer(2, 1000)]);
    let two = TestImage::of("two", &[shared.clone(), layer(3, 1000)]);
    let registry = TestSource::with("registry", &[&one, &two], Manner::CutAfter(50_000));
    let (first, second) = tokio::join!(
        cache.ensure(ensure(one.digest, &[&registry]), |_| {}),
        cache.ensure(ensure(two.digest, &[&registry]), |_| {}),
    );
    first.unwrap();
    second.unwrap();
    let offsets = registry.asked_for(&one.layers[0]);
    assert_eq!(offsets, (0..8).map(|n| n * 50_000).collect::<Vec<_>>());
    for image in [&one, &two] {
        assert!(cache.verify(&image.digest).await.unwrap());
    }
}

#[tokio::test]
async fn e48_a_cut_link_goes_on_where_it_stopped() {
    let root = TempDir::new().unwrap();
    let cache = open(root.path(), QUOTA);
    let image = TestImage::of("app", &[layer(1, 500_000)]);
    let registry = TestSource::with("registry", &[&image], Manner::CutAfter(70_001));
    let mut seen = Vec::<Progress>::new();
    let shown = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let report = shown.clone();
    cache
        .ensure(ensure(image.digest, &[&registry]), move |progress| {
            report.lock().push(progress);
        })
        .await
        .unwrap();
    seen.extend(shown.lock().iter());
    assert_eq!(
        registry.sent.load(Ordering::Relaxed),
        image.size() - image.blobs[&image.digest].len() as u64,
        "no byte came twice"
    );
    assert!(
        seen.windows(2).all(|pair| pair[0].done <= pair[1].done),
        "{seen:?}"
    );
    assert_eq!(seen.last().unwrap().total, image.size());
}

/// The agent is killed: here its cache is dropped with the runtime that downloads.
#[test]
fn e48_a_killed_download_goes_on_with_a_range() {
    let root = TempDir::new().unwrap();
    let image = TestImage::of("app", &[layer(1, 3 << 20)]);
    let registry = TestSource::with("registry", &[&image], Manner::CutAfter(2 << 20));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut slow = settings(QUOTA);
        slow.waits.backoff = (Duration::from_hours(1), Duration::from_hours(1));
        slow.waits.give_up = Duration::from_hours(9);
        let cache = open_with(root.path(), slow, Arc::new(slipway_agent::engine::Unhindered));
        let waiting = cache.ensure(ensure(image.digest, &[&registry]), |_| {});
        tokio::select! {
            result = waiting => panic!("it cannot be there: {result:?}"),
            () = async { while registry.sent.load(Ordering::Relaxed) < 2 << 20 { tokio::task::yield_now().await } } => {}
        }
        // What was sent is on disk before the runtime ends.
        while disk_usage(&root.path().join("partial")) < 2 << 20 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    runtime.shutdown_background();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let cache = open(root.path(), QUOTA);
        cache
            .ensure(ensure(image.digest, &[&registry]), |_| {})
            .await
            .unwrap();
        assert!(cache.verify(&image.digest).await.unwrap());
    });
    assert_eq!(registry.asked_for(&image.layers[0]), [0, 2 << 20]);
}

#[tokio::test]
async fn e48_a_server_that_ignores_ranges_or_whose_file_changed_is_read_from_the_beginning() {
    for manner in [Manner::NoRanges, Manner::Changed { first: 1 }] {
        let root = TempDir::new().unwrap();
        let cache = open(root.path(), QUOTA);
        let image = TestImage::of("app", &[layer(1, 200_000)]);
        let registry = TestSource::with("registry", &[&image], manner);
        // Half of it is there already, from a source that is gone.
        let before = TestSource::with("mirror", &[&image], Manner::CutAfter(100_000));
        let mut request = ensure(image.digest, &[&before, &registry]);
        cache.ensure(request.clone(), |_| {}).await.unwrap();
        assert!(cache.verify(&image.digest).await.unwrap(), "{manner:?}");
        request.verify = true;
        cache.ensure(request, |_| {}).await.unwrap();
    }
}

#[tokio::test]
async fn e49_other_bytes_are_removed_and_their_source_is_not_asked_again() {
    let root = TempDir::new().unwrap();
    let cache = open(root.path(), QUOTA);
    let image = TestImage::of("app", &[layer(1, 200_000)]);
    let liar = TestSource::with("registry", &[&image], Manner::Lies);
    let problem = cache
        .ensure(ensure(image.digest, &[&liar]), |_| {})
        .await
        .unwrap_err()
        .problem();
    assert_eq!(
        (problem.class, problem.reason.as_str()),
        (Class::Transient, "NoSource")
    );
    assert!(problem.message.contains("registry sent other bytes"), "{problem}");
    assert!(cache.image(&image.digest).is_none());
    assert_eq!(std::fs::read_dir(root.path().join("partial")).unwrap().count(), 0);
    let lied_about = liar.asked.lock()[0].0;
    // A mirror that is right is enough, and the liar is not asked for what it lied about.
    let mirror = TestSource::new("mirror", &[&image]);
    cache
        .ensure(ensure(image.digest, &[&liar, &mirror]), |_| {})
        .await
        .unwrap();
    assert_eq!(liar.asked_for(&lied_about), [0]);
    assert!(cache.verify(&image.digest).await.unwrap());
}

#[tokio::test]
async fn every_bad_manner_is_survived_when_somebody_is_good() {
    for manner in [
        Manner::CutAfter(1),
        Manner::Lies,
        Manner::NoRanges,
        Manner::TooMuch,
        Manner::Changed { first: 3 },
        Manner::Absent,
        Manner::Unreachable,
    ] {
        for peer in ["host a", "mirror"] {
            let root = TempDir::new().unwrap();
            let cache = open(root.path(), QUOTA);
            let image = TestImage::of("app", &[layer(1, 9000)]);
            let bad = TestSource::with(peer, &[&image], manner);
            let good = TestSource::new("registry", &[&image]);
            cache
                .ensure(ensure(image.digest, &[&bad, &good]), |_| {})
                .await
                .unwrap_or_else(|error| panic!("{manner:?} {peer}: {error}"));
            assert!(cache.verify(&image.digest).await.unwrap(), "{manner:?}");
            assert_eq!(cache.used(), (image.size(), 0), "{manner:?}");
        }
    }
}

/// E-52: a link that is silent for ten minutes is no failure; a host beside us that is silent or slow is left at once.
#[tokio::test(start_paused = true)]
async fn e52_ten_silent_minutes_are_no_failure() {
    let root = TempDir::new().unwrap();
    let cache = open(root.path(), QUOTA);
    let image = TestImage::of("app", &[layer(1, 100_000)]);
    let registry = TestSource::with("registry", &[&image], Manner::Silent);
    let waiting = tokio::spawn({
        let (cache, request) = (cache.clone(), ensure(image.digest, &[&registry]));
        async move { cache.ensure(request, |_| {}).await }
    });
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert!(!waiting.is_finished(), "it failed while the link was silent");
    *registry.manner.lock() = Manner::Good;
    waiting.await.unwrap().unwrap();

    for manner in [Manner::Silent, Manner::Drips] {
        let image = TestImage::of("other", &[layer(2, 100_000)]);
        let slow = TestSource::with("host a", &[&image], manner);
        let registry = TestSource::new("registry", &[&image]);
        let began = tokio::time::Instant::now();
        cache
            .ensure(ensure(image.digest, &[&slow, &registry]), |_| {})
            .await
            .unwrap();
        assert!(
            began.elapsed() < Duration::from_mins(1),
            "{manner:?}: {:?}",
            began.elapsed()
        );
        cache.evict(&image.digest).unwrap();
    }
}

#[tokio::test]
async fn a_tag_is_answered_offline_by_what_it_meant_last() {
    let root = TempDir::new().unwrap();
    let cache = open(root.path(), QUOTA);
    let (old, new) = (
        TestImage::of("old", &[layer(1, 1000)]),
        TestImage::of("new", &[layer(2, 1000)]),
    );
    let registry = TestSource::new("registry", &[&old, &new]);
    let by_tag = |policy| {
        let mut request = ensure(old.digest, &[&registry]);
        request.digest = None;
        request.name = Some("registry.example/app:1".into());
        request.tag_policy = policy;
        request
    };
    let ask = async |policy| cache.ensure(by_tag(policy), |_| {}).await;
    assert_eq!(ask(TagPolicy::PreferCache).await, Ok(old.digest));
    // The tag moves: one policy follows, the other stays.
    *registry.tag.lock() = Some(new.digest);
    assert_eq!(ask(TagPolicy::PreferCache).await, Ok(old.digest));
    assert_eq!(ask(TagPolicy::PreferRegistry).await, Ok(new.digest));
    // Offline both answer, also after a restart.
    *registry.manner.lock() = Manner::Unreachable;
    assert_eq!(ask(TagPolicy::PreferRegistry).await, Ok(new.digest));
    let again = open(root.path(), QUOTA);
    assert_eq!(
        again.ensure(by_tag(TagPolicy::PreferRegistry), |_| {}).await,
        Ok(new.digest)
    );
    // A registry that says there is no such tag is believed.
    *registry.manner.lock() = Manner::Good;
    *registry.tag.lock() = None;
    let said = again
        .ensure(by_tag(TagPolicy::PreferRegistry), |_| {})
        .await
        .unwrap_err();
    assert!(said.to_string().contains("does not have it"), "{said}");
}
