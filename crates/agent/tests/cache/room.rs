//! E-50: what stays, what goes, and that the quota is never exceeded. The decisions are pure and held by properties.

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use slipway_agent::cache::{CacheError, Eviction, ImageRecord, Index, Kind, Limits, Need};
use slipway_agent_api::Class;
use slipway_slots::Digest;
use slipway_slots::manifest::Blob;
use tempfile::TempDir;

use super::{TestImage, TestSource, disk_usage, ensure, layer, open};

fn noon() -> Timestamp {
    "2026-06-01T12:00:00Z".parse().unwrap()
}

fn blob(number: u8) -> Blob {
    Blob {
        digest: Digest::of(&[number]),
        size: 100 + u64::from(number),
    }
}

#[derive(Clone, Copy, Debug)]
struct Pin {
    /// Seconds until it ends, if it does.
    left: Option<i64>,
}

#[derive(Clone, Debug)]
struct Drawn {
    blobs: Vec<u8>,
    age: i64,
    ttl: Option<u64>,
    pin: Option<Pin>,
    leased: bool,
    slot: bool,
    /// It is on its way a second time, from a bundle or another registry.
    arriving: bool,
}

fn drawn() -> impl Strategy<Value = Drawn> {
    (
        proptest::collection::btree_set(0..12_u8, 1..4),
        0..1000_i64,
        proptest::option::of(0..1000_u64),
        proptest::option::weighted(
            0.3,
            proptest::option::of(-100..100_i64).prop_map(|left| Pin { left }),
        ),
        proptest::bool::weighted(0.1),
        proptest::bool::weighted(0.1),
        proptest::bool::weighted(0.1),
    )
        .prop_map(|(blobs, age, ttl, pin, leased, slot, arriving)| Drawn {
            blobs: blobs.into_iter().collect(),
            age,
            ttl,
            pin,
            leased,
            slot,
            arriving,
        })
}

fn index(images: &[Drawn], loose: &[u8]) -> (Index, Vec<Digest>) {
    let mut index = Index::default();
    let mut kept = Vec::new();
    let mut slots = BTreeMap::new();
    for number in loose {
        index.found_loose(blob(*number).digest, 50);
    }
    for (at, drawn) in images.iter().enumerate() {
        let digest = Digest::of(format!("image {at}").as_bytes());
        let mut record = ImageRecord {
            digest,
            kind: Kind::Container,
            blobs: drawn.blobs.iter().map(|number| blob(*number)).collect(),
            names: BTreeMap::new(),
            pins: BTreeMap::new(),
            ttl: drawn.ttl,
            last_used: noon() - SignedDuration::from_secs(drawn.age),
            slot_image: None,
        };
        let mut stays = drawn.leased || drawn.arriving;
        if let Some(Pin { left: until }) = drawn.pin {
            let until = until.map(|seconds| noon() + SignedDuration::from_secs(seconds));
            stays |= until.is_none_or(|until| until > noon());
            record.pins.insert("somebody".into(), until);
        }
        if drawn.slot {
            let id = Digest::of(format!("slot {at}").as_bytes());
            record.slot_image = Some(id);
            slots.insert(id, "A".to_owned());
            stays = true;
        }
        index.insert(record);
        if drawn.leased {
            index.lease(digest);
        }
        if drawn.arriving {
            index.begin_flight(digest);
        }
        if stays {
            kept.push(digest);
        }
    }
    index.set_slots(slots);
    (index, kept)
}

/// Does what was decided to a copy.
fn carry_out(index: &Index, evictions: &[Eviction]) -> Index {
    let mut after = index.clone();
    for eviction in evictions {
        match eviction {
            Eviction::Image { digest, .. } => {
                after.remove(digest);
            }
            Eviction::Loose { digest } => after.loose_gone(digest),
        }
    }
    after
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn e50_room_is_made_without_touching_what_stays(
        images in proptest::collection::vec(drawn(), 0..10),
        loose in proptest::collection::vec(20..30_u8, 0..3),
        quota in 0..2500_u64,
        need in 0..1200_u64,
        free in 0..2500_u64,
    ) {
        let (index, kept) = index(&images, &loose);
        let limits = Limits { quota, high: quota, low: quota };
        let need = Need { quota: need, disk: need };
        match index.make_room(need, &limits, free, noon()) {
            Ok(evictions) => {
                let after = carry_out(&index, &evictions);
                for digest in &kept {
                    prop_assert!(after.image(digest).is_some(), "what stays was taken");
                }
                prop_assert!(need.quota == 0 || after.used() + need.quota <= quota);
                let freed = index.used() - after.used();
                prop_assert!(need.disk <= free + freed);
                // Nothing goes that need not: without the last one there would not be room.
                if let Some((_, but_last)) = evictions.split_last() {
                    let one_more = carry_out(&index, but_last);
                    let freed = index.used() - one_more.used();
                    prop_assert!(one_more.used() + need.quota > quota || need.disk > free + freed);
                }
            }
            Err(no_room) => {
                // Even with everything gone that may go there is not enough.
                let all: Vec<_> = index
                    .images()
                    .filter(|record| !kept.contains(&record.digest))
                    .map(|record| Eviction::Image { digest: record.digest, reason: String::new() })
                    .chain(loose.iter().map(|number| Eviction::Loose { digest: blob(*number).digest }))
                    .collect();
                let bare = carry_out(&index, &all);
                let freed = index.used() - bare.used();
                prop_assert!(bare.used() + need.quota > quota || need.disk > free + freed);
                prop_assert!(no_room.available < need.quota);
            }
        }
    }

    #[test]
    fn e50_the_sweep_takes_what_expired_and_goes_down_to_the_low_watermark(
        images in proptest::collection::vec(drawn(), 0..10),
        high in 0..2000_u64,
        low in 0..2000_u64,
        short in prop_oneof![Just(0_u64), 0..1500_u64],
    ) {
        let (index, kept) = index(&images, &[]);
        let limits = Limits { quota: 10_000, high: high.max(low), low };
        let evictions = index.sweep(&limits, short, noon());
        let after = carry_out(&index, &evictions);
        for digest in &kept {
            prop_assert!(after.image(digest).is_some());
        }
        for record in after.images() {
            let expired = record.expires().is_some_and(|expires| expires <= noon());
            prop_assert!(!expired || kept.contains(&record.digest), "what expired is still there");
        }
        if index.used() > limits.high {
            let all_kept = after.images().all(|record| kept.contains(&record.digest));
            prop_assert!(after.used() <= low || all_kept);
        }
        // The disk gets back what others need, as far as it is ours to give.
        let all_kept = after.images().all(|record| kept.contains(&record.digest));
        prop_assert!(index.used() - after.used() >= short || all_kept);
    }
}

#[test]
fn what_was_used_longest_ago_goes_first_and_expired_before_it() {
    let image = |blobs: &[u8], age, ttl| Drawn {
        blobs: blobs.to_vec(),
        age,
        ttl,
        pin: None,
        leased: false,
        slot: false,
        arriving: false,
    };
    let (index, _) = index(
        &[
            image(&[1], 500, None),
            image(&[2], 10, Some(5)),
            image(&[3], 900, None),
        ],
        &[25],
    );
    let limits = Limits {
        quota: 1000,
        high: 0,
        low: 0,
    };
    let told: Vec<_> = index
        .sweep(&limits, 0, noon())
        .into_iter()
        .map(|eviction| match eviction {
            Eviction::Loose { .. } => "loose".to_owned(),
            Eviction::Image { digest, reason } => {
                let at = (0..3)
                    .find(|at| Digest::of(format!("image {at}").as_bytes()) == digest)
                    .unwrap();
                format!("{at}: {reason}")
            }
        })
        .collect();
    assert_eq!(
        told,
        [
            "loose",
            "1: its time is over",
            "2: last used 2026-06-01T11:45:00Z, and room is needed",
            "0: last used 2026-06-01T11:51:40Z, and room is needed",
        ]
    );
}

#[tokio::test]
async fn e50_a_full_cache_makes_room_and_says_so_when_it_cannot() {
    let root = TempDir::new().unwrap();
    let images: Vec<_> = (0..5)
        .map(|number| TestImage::of(&format!("app-{number}"), &[layer(number, 100_000)]))
        .collect();
    let references: Vec<_> = images.iter().collect();
    let registry = TestSource::new("registry", &references);
    let size = images[0].size();
    let cache = open(root.path(), size * 2 + 1000);
    let get = async |at: usize| {
        cache
            .ensure(ensure(images[at].digest, &[&registry]), |_| {})
            .await
    };
    get(0).await.unwrap();
    cache.pin(&images[0].digest, "HostImage/app", None).unwrap();
    get(1).await.unwrap();
    get(2).await.unwrap();
    assert!(cache.image(&images[0].digest).is_some(), "pinned");
    assert!(cache.image(&images[1].digest).is_none(), "the oldest that may go");
    let lease = cache.lease(&images[2].digest).unwrap();
    let error = get(3).await.unwrap_err();
    assert!(matches!(error, CacheError::NoRoom(_)), "{error}");
    assert_eq!(error.problem().class, Class::Conflict);
    assert!(
        error.to_string().contains(&format!("no room for {size} bytes")),
        "{error}"
    );
    assert!(matches!(
        cache.evict(&images[2].digest),
        Err(CacheError::Kept { .. })
    ));
    assert_eq!(
        registry.asked_for(&images[3].layers[0]),
        [0_u64; 0],
        "room comes before the first byte"
    );
    drop(lease);
    get(3).await.unwrap();
    assert!(cache.image(&images[2].digest).is_none());
    // Unpinned it may go; a pin with an end ends by itself.
    cache.unpin(&images[0].digest, "HostImage/app").unwrap();
    cache
        .pin(&images[0].digest, "briefly", Some(Duration::ZERO))
        .unwrap();
    cache.evict(&images[0].digest).unwrap();
    assert!(disk_usage(root.path()) <= size * 2 + 1000 + 4096);
    assert_eq!(cache.used(), (images[3].size(), 0));
}

/// Many at once under a small quota: each gets its place or a clear answer, and the disk never holds more.
#[tokio::test(flavor = "multi_thread")]
async fn e50_the_quota_holds_while_many_arrive_at_once() {
    let root = TempDir::new().unwrap();
    let images: Vec<_> = (0..12)
        .map(|number| TestImage::of(&format!("app-{number}"), &[layer(number, 60_000)]))
        .collect();
    let references: Vec<_> = images.iter().collect();
    let registry = TestSource::with("registry", &references, super::Manner::CutAfter(7000));
    let quota = images[0].size() * 3 + 500;
    let cache = open(root.path(), quota);
    let mut tasks = tokio::task::JoinSet::new();
    for image in &images {
        let (cache, request) = (cache.clone(), ensure(image.digest, &[&registry]));
        tasks.spawn(async move { cache.ensure(request, |_| {}).await.is_ok() });
    }
    let mut most = 0;
    while !tasks.is_empty() {
        tokio::select! {
            _ = tasks.join_next() => {}
            () = tokio::time::sleep(Duration::from_millis(1)) => {}
        }
        most = most.max(disk_usage(&root.path().join("blobs")));
        let (used, reserved) = cache.used();
        assert!(used + reserved <= quota, "{used} and {reserved} of {quota}");
    }
    assert!(most <= quota, "{most} of {quota} were on disk");
    assert!(cache.list().len() >= 2);
}
