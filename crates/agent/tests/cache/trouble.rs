//! What happens around the cache: clocks that jump, disks that fill up or forget, people who bring a bundle meanwhile or no
//! longer wait.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use slipway_agent::cache::{CacheError, Settings, TagPolicy, remove_leftovers};
use slipway_agent::engine::Unhindered;
use slipway_agent_api::Class;
use tempfile::TempDir;

use super::{Manner, TestImage, TestSource, disk_usage, ensure, layer, open, open_with, settings};

const QUOTA: u64 = 64 << 20;

/// Seconds since 1970 of the clock that the tests below set. Each test has its own process-wide clock by being the only
/// one that uses this file's `now`.
static CLOCK: AtomicI64 = AtomicI64::new(0);

fn clock() -> Timestamp {
    Timestamp::from_second(CLOCK.load(Ordering::SeqCst)).unwrap()
}

fn set(text: &str) {
    let time: Timestamp = text.parse().unwrap();
    CLOCK.store(time.as_second(), Ordering::SeqCst);
}

fn by_clock() -> Settings {
    Settings {
        now: clock,
        ..settings(QUOTA)
    }
}

/// A host without a battery for its clock starts in 1970, and jumps when it finds the time.
#[tokio::test]
async fn jumps_of_the_clock_take_nothing_that_is_needed_and_confuse_no_tag() {
    let root = TempDir::new().unwrap();
    let (kept, brief, other) = (
        TestImage::of("kept", &[layer(1, 1000)]),
        TestImage::of("brief", &[layer(2, 1000)]),
        TestImage::of("other", &[layer(3, 1000)]),
    );
    let registry = TestSource::new("registry", &[&kept, &brief, &other]);
    let cache = open_with(root.path(), by_clock(), Arc::new(Unhindered));
    let tagged = |image: &TestImage| {
        let mut request = ensure(image.digest, &[&registry]);
        request.name = Some("registry.example/app:1".into());
        request
    };
    set("2026-06-01T12:00:00Z");
    let mut request = tagged(&kept);
    request.pin = Some("HostImage/app".into());
    cache.ensure(request, |_| {}).await.unwrap();
    let mut request = ensure(brief.digest, &[&registry]);
    request.ttl = Some(Duration::from_hours(1));
    cache.ensure(request, |_| {}).await.unwrap();

    // Back by years: nothing expires, and the tag that moves now moves.
    set("1970-01-01T00:00:10Z");
    assert_eq!(cache.sweep().unwrap(), []);
    cache.ensure(tagged(&other), |_| {}).await.unwrap();
    let offline = |sources: &[&Arc<TestSource>]| {
        let mut request = ensure(other.digest, sources);
        (request.digest, request.name) = (None, Some("registry.example/app:1".into()));
        request.tag_policy = TagPolicy::PreferCache;
        request
    };
    assert_eq!(cache.ensure(offline(&[]), |_| {}).await, Ok(other.digest));
    let again = open_with(root.path(), by_clock(), Arc::new(Unhindered));
    assert_eq!(
        again.ensure(offline(&[]), |_| {}).await,
        Ok(other.digest),
        "after a restart the tag means what it meant last"
    );
    drop(cache);

    // Ahead by decades: what had a time is over, what is pinned stays.
    set("2199-01-01T00:00:00Z");
    assert_eq!(again.sweep().unwrap(), [brief.digest]);
    assert!(again.image(&kept.digest).is_some() && again.image(&other.digest).is_some());
    let said = again.evict(&kept.digest).unwrap_err();
    assert!(matches!(said, CacheError::Kept { .. }), "{said}");
}

#[tokio::test]
async fn a_download_that_nobody_waits_for_ends_and_is_gone_on_with_later() {
    let root = TempDir::new().unwrap();
    let cache = open(root.path(), QUOTA);
    let image = TestImage::of("app", &[layer(1, 2 << 20)]);
    let registry = TestSource::with("registry", &[&image], Manner::Silent);
    for waiters in [1, 3] {
        let mut waiting = Vec::new();
        for _ in 0..waiters {
            let (cache, request) = (cache.clone(), ensure(image.digest, &[&registry]));
            waiting.push(tokio::spawn(async move { cache.ensure(request, |_| {}).await }));
        }
        while cache.used().1 == 0 {
            tokio::task::yield_now().await;
        }
        // All but the last leave: it goes on.
        let last = waiting.pop().unwrap();
        for task in waiting {
            task.abort();
            let _ = task.await;
        }
        tokio::task::yield_now().await;
        assert!(cache.used().1 > 0, "somebody still waits");
        last.abort();
        let _ = last.await;
        while cache.used().1 > 0 {
            tokio::task::yield_now().await;
        }
    }
    *registry.manner.lock() = Manner::Good;
    cache
        .ensure(ensure(image.digest, &[&registry]), |_| {})
        .await
        .unwrap();
    assert!(cache.verify(&image.digest).await.unwrap());
}

/// Upstream is gone, the host tries on, and a person brings the image on a stick: everybody has it.
#[tokio::test]
async fn a_bundle_helps_a_download_that_waits_for_its_source() {
    let root = TempDir::new().unwrap();
    let image = TestImage::of("app", &[layer(1, 300_000), layer(2, 5000)]);
    let registry = TestSource::with("registry", &[&image], Manner::CutAfter(100_000));
    let cache = open(&root.path().join("cache"), QUOTA);
    let waiting = tokio::spawn({
        let (cache, mut request) = (cache.clone(), ensure(image.digest, &[&registry]));
        request.pin = Some("HostImage/app".into());
        async move { cache.ensure(request, |_| {}).await }
    });
    // It has begun; then the link is dead.
    while registry.asked.lock().len() < 2 {
        tokio::task::yield_now().await;
    }
    *registry.manner.lock() = Manner::Unreachable;
    image.write_layout(&root.path().join("stick"));
    let (importing, stick) = (cache.clone(), root.path().join("stick"));
    tokio::task::spawn_blocking(move || importing.import(&stick, &[]))
        .await
        .unwrap()
        .unwrap();
    cache.pin(&image.digest, "by hand", None).unwrap();
    assert_eq!(waiting.await.unwrap(), Ok(image.digest));
    assert!(cache.verify(&image.digest).await.unwrap());
    let record = cache.image(&image.digest).unwrap();
    assert_eq!(
        record.pins.keys().collect::<Vec<_>>(),
        ["HostImage/app", "by hand"],
        "both are remembered"
    );
    assert_eq!(cache.used(), (image.size(), 0));
    assert_eq!(disk_usage(&root.path().join("cache/partial")), 0);
}

#[tokio::test]
async fn damage_that_is_met_on_the_way_out_ends_the_image_and_the_next_order_mends_it() {
    let root = TempDir::new().unwrap();
    let cache = open(&root.path().join("cache"), QUOTA);
    let image = TestImage::of("app", &[layer(1, 50_000)]);
    let registry = TestSource::new("registry", &[&image]);
    cache
        .ensure(ensure(image.digest, &[&registry]), |_| {})
        .await
        .unwrap();
    cache.pin(&image.digest, "HostImage/app", None).unwrap();
    let out = root.path().join("out.tar");
    for blob in [image.layers[0], image.digest] {
        let (path, size) = cache.blob(&blob).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        bytes[size as usize / 2] ^= 1;
        fs::write(&path, bytes).unwrap();
        let said = cache.export(&[image.digest], &out).unwrap_err();
        assert_eq!(said, CacheError::Damaged(image.digest));
        assert_eq!(said.problem().class, Class::Transient);
        assert!(!out.exists());
        assert!(
            cache.image(&image.digest).is_none(),
            "it no longer counts as cached"
        );
        cache
            .ensure(ensure(image.digest, &[&registry]), |_| {})
            .await
            .unwrap();
        assert!(cache.verify(&image.digest).await.unwrap());
        assert!(
            cache
                .image(&image.digest)
                .unwrap()
                .pins
                .contains_key("HostImage/app"),
            "who needs it is still known"
        );
    }
    cache.export(&[image.digest], &out).unwrap();
    // Once more changes nothing: k3s would import the file again.
    let before = fs::metadata(&out).unwrap().modified().unwrap();
    cache.export(&[image.digest], &out).unwrap();
    assert_eq!(fs::metadata(&out).unwrap().modified().unwrap(), before);
}

#[test]
fn what_a_killed_export_left_is_removed_and_nothing_else() {
    let folder = TempDir::new().unwrap();
    for name in [".slipway-abc.partial", ".slipway-import-1.partial"] {
        fs::write(folder.path().join(name), b"half").unwrap();
    }
    let others = ["airgap.tar", ".slipway-notes", "x.partial"];
    for name in others {
        fs::write(folder.path().join(name), b"theirs").unwrap();
    }
    remove_leftovers(folder.path()).unwrap();
    let left = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, others.len());
    remove_leftovers(&folder.path().join("not-there")).unwrap();
}

/// A file system of so many bytes; `None`, with the reason said, where it cannot be mounted.
pub struct SmallDisk(pub PathBuf);

impl SmallDisk {
    pub fn mount(at: &Path, bytes: u64, test: &str) -> Option<Self> {
        fs::create_dir_all(at).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"])
            .arg(at)
            .output();
        if mounted.is_ok_and(|mounted| mounted.status.success()) {
            return Some(Self(at.to_owned()));
        }
        println!("report: skipped: {test}: a tmpfs cannot be mounted here");
        None
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Takes all that is left.
pub fn fill(path: &Path) {
    use std::io::Write;
    let mut file = fs::File::create(path).unwrap();
    while file.write_all(&[0; 512]).is_ok() {}
}

#[tokio::test]
async fn a_full_disk_is_said_before_the_first_byte_and_is_gone_on_with_when_there_is_room() {
    let root = TempDir::new().unwrap();
    let Some(disk) = SmallDisk::mount(&root.path().join("disk"), 2 << 20, "a full disk") else {
        return;
    };
    let image = TestImage::of("app", &[layer(1, 1 << 20)]);
    let old = TestImage::of("old", &[layer(2, 300_000)]);
    let registry = TestSource::new("registry", &[&image, &old]);
    let mut small = settings(QUOTA);
    small.margin = 64 << 10;
    let cache = open_with(&disk.0.join("cache"), small, Arc::new(Unhindered));
    cache
        .ensure(ensure(old.digest, &[&registry]), |_| {})
        .await
        .unwrap();
    cache.pin(&old.digest, "HostImage/old", None).unwrap();
    // Somebody else takes most of the disk.
    let theirs = disk.0.join("theirs");
    fs::write(&theirs, vec![0; 900_000]).unwrap();
    let said = cache
        .ensure(ensure(image.digest, &[&registry]), |_| {})
        .await
        .unwrap_err();
    assert!(matches!(said, CacheError::NoRoom(_)), "{said}");
    assert_eq!(registry.asked_for(&image.layers[0]), [0_u64; 0]);
    // And all of it.
    fill(&theirs);
    let said = cache.export(&[old.digest], &disk.0.join("out.tar")).unwrap_err();
    assert!(matches!(said, CacheError::DiskFull(_)), "{said}");
    assert_eq!(said.problem().reason, "NoRoom");
    assert_eq!(
        fs::read_dir(&disk.0).unwrap().count(),
        2,
        "nothing half written stays"
    );
    assert_eq!(cache.sweep().unwrap(), [], "it is pinned");
    let said = cache.unpin(&old.digest, "HostImage/old").unwrap_err();
    assert!(matches!(said, CacheError::DiskFull(_)), "{said}");
    assert!(
        cache
            .image(&old.digest)
            .unwrap()
            .pins
            .contains_key("HostImage/old")
    );
    // The disk is short of its margin: what nobody needs makes room for others.
    fs::remove_file(&theirs).unwrap();
    cache.unpin(&old.digest, "HostImage/old").unwrap();
    fill(&theirs);
    assert_eq!(cache.sweep().unwrap(), [old.digest]);
    fs::remove_file(&theirs).unwrap();
    cache
        .ensure(ensure(image.digest, &[&registry]), |_| {})
        .await
        .unwrap();
    assert!(cache.verify(&image.digest).await.unwrap());
}
