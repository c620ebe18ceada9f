//! The agent dies at every step of the cache, each time it is reached. Started again, every image that is listed is
//! whole, the work can be finished, and nothing is left behind.

use std::{
    panic::resume_unwind,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use slipway_agent::cache::{CacheError, ServiceFailpoint, ServiceFailpoints};
use slipway_agent::engine::Unhindered;
use tempfile::TempDir;

use super::{Manner, TestImage, TestSource, disk_usage, ensure, layer, open_with, settings};

const QUOTA: u64 = 1 << 20;

struct DieAt {
    step: ServiceFailpoint,
    nth: usize,
    reached: AtomicUsize,
}

struct Died;

impl ServiceFailpoints for DieAt {
    fn reached(&self, step: ServiceFailpoint) {
        if step == self.step && self.reached.fetch_add(1, Ordering::SeqCst) + 1 >= self.nth {
            resume_unwind(Box::new(Died));
        }
    }
}

struct World {
    root: TempDir,
    one: TestImage,
    two: TestImage,
    registry: Arc<TestSource>,
}

impl World {
    fn new() -> Self {
        let shared = layer(1, 9000);
        let one = TestImage::of("one", &[shared.clone(), layer(2, 5000)]);
        let two = TestImage::of("two", &[shared, layer(3, 7000)]);
        let registry = TestSource::with("registry", &[&one, &two], Manner::CutAfter(4000));
        Self {
            root: TempDir::new().unwrap(),
            one,
            two,
            registry,
        }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.root.path().join(name)
    }

    /// Every kind of change, in an order that repeats without harm.
    async fn work(&self, steps: Arc<dyn ServiceFailpoints>) -> Result<(), CacheError> {
        std::fs::create_dir_all(self.path("exchange")).unwrap();
        let cache = open_with(&self.path("cache"), settings(QUOTA), steps.clone());
        for record in cache.list() {
            assert!(
                cache.verify(&record.0.digest).await?,
                "an image is listed and not whole"
            );
        }
        for image in [&self.one, &self.two] {
            cache
                .ensure(ensure(image.digest, &[&self.registry]), |_| {})
                .await?;
            cache.pin(&image.digest, "story", None)?;
        }
        cache.export(&[self.two.digest], &self.path("exchange/two.tar"))?;
        cache.unpin(&self.one.digest, "story")?;
        cache.evict(&self.one.digest)?;
        let other = open_with(&self.path("other"), settings(QUOTA), steps);
        other.import(&self.path("exchange/two.tar"), &[self.two.digest])?;
        Ok(())
    }

    async fn check(&self) {
        self.work(Arc::new(Unhindered)).await.unwrap();
        for folder in ["cache", "other"] {
            let cache = open_with(&self.path(folder), settings(QUOTA), Arc::new(Unhindered));
            assert_eq!(cache.problems(), [""; 0]);
            let images: Vec<_> = cache.list().iter().map(|(record, _)| record.digest).collect();
            assert_eq!(images, [self.two.digest], "{folder}");
            assert!(cache.verify(&self.two.digest).await.unwrap());
            let blobs = self.path(folder).join("blobs");
            assert_eq!(
                disk_usage(&blobs),
                self.two.size(),
                "{folder} keeps what nobody needs"
            );
            assert_eq!(disk_usage(&self.path(folder).join("partial")), 0, "{folder}");
        }
        assert_eq!(files(&self.path("exchange")), ["two.tar"]);
    }
}

/// Files that a reader of the folder sees.
fn files(folder: &Path) -> Vec<String> {
    std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with('.'))
        .collect()
}

#[tokio::test]
async fn e48_killed_at_every_step_nothing_is_lost_and_nothing_is_left_behind() {
    let mut deaths = 0;
    for step in ServiceFailpoint::ALL {
        for nth in 1.. {
            let world = Arc::new(World::new());
            let die = Arc::new(DieAt {
                step,
                nth,
                reached: AtomicUsize::new(0),
            });
            let (working, steps) = (world.clone(), die.clone());
            let run = tokio::spawn(async move { working.work(steps).await }).await;
            let died = die.reached.load(Ordering::SeqCst) >= nth;
            assert_eq!(
                died,
                !matches!(run, Ok(Ok(()))),
                "{step:?} {nth}: it died and nobody noticed, or failed without dying"
            );
            world.check().await;
            if !died {
                break;
            }
            deaths += 1;
        }
    }
    println!("report: the cache died at {deaths} places and finished each time");
    assert!(deaths >= 60, "{deaths}");
}

/// Every byte of every file of the cache, damaged: what is listed after it is whole, or is no longer listed.
#[tokio::test]
async fn damaged_files_are_noticed_and_the_image_is_had_again() {
    let world = World::new();
    let cache = open_with(&world.path("cache"), settings(QUOTA), Arc::new(Unhindered));
    cache
        .ensure(ensure(world.two.digest, &[&world.registry]), |_| {})
        .await
        .unwrap();
    drop(cache);
    let mut paths = Vec::new();
    for folder in ["cache/blobs/sha256", "cache/images"] {
        for entry in std::fs::read_dir(world.path(folder)).unwrap() {
            paths.push(entry.unwrap().path());
        }
    }
    let mut damaged = 0;
    for path in paths {
        let bytes = std::fs::read(&path).unwrap();
        for at in (0..bytes.len()).step_by(bytes.len() / 40 + 1) {
            let mut changed = bytes.clone();
            changed[at] ^= 0x20;
            std::fs::write(&path, &changed).unwrap();
            let cache = open_with(&world.path("cache"), settings(QUOTA), Arc::new(Unhindered));
            let mut request = ensure(world.two.digest, &[&world.registry]);
            request.verify = true;
            cache.ensure(request, |_| {}).await.unwrap();
            assert!(cache.verify(&world.two.digest).await.unwrap());
            for (record, _) in cache.list() {
                for blob in &record.blobs {
                    let (file, size) = cache.blob(&blob.digest).unwrap();
                    assert_eq!(size, blob.size);
                    assert_eq!(
                        slipway_slots::Digest::of(&std::fs::read(file).unwrap()),
                        blob.digest
                    );
                }
            }
            damaged += 1;
        }
    }
    assert!(damaged > 100, "{damaged}");
}
