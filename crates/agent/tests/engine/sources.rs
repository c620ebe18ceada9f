//! Sources that lie, fail or are missing, and images that are cheaper whole.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use slipway_agent::engine::{ChunkSource, Engine, FetchError, Progress};
use slipway_agent::image::ImageDirectory;
use slipway_agent::target::{SlotTarget, Through};
use slipway_slots::Slot;
use slipway_slots::boot::BootState;
use slipway_slots::manifest::{Blob, LABEL_SIZE};
use slipway_slots::write_plan::{Limits, OnDeltaFailure};

use super::{Bench, CHUNKS};
use crate::support::disks::{Device, Disks, MemoryTarget, Shared};
use crate::support::host::{Kind, Setup};
use crate::support::images::{TestImage, blocks, noise};

/// A directory whose bytes of some blob are changed on the way, or do not come at all.
struct Faulty {
    inner: ImageDirectory,
    blob: Blob,
    fails: bool,
    asked: Arc<AtomicU64>,
}

impl ChunkSource for Faulty {
    fn name(&self) -> String {
        "faulty mirror".into()
    }

    fn read(&mut self, blob: &Blob, offset: u64, buffer: &mut [u8]) -> Result<(), FetchError> {
        self.inner.read(blob, offset, buffer)?;
        self.asked.fetch_add(1, Ordering::Relaxed);
        if blob.digest == self.blob.digest {
            if self.fails {
                return Err(FetchError::Failed {
                    source_name: self.name(),
                    blob: blob.digest.to_string(),
                    reason: "connection reset".into(),
                });
            }
            if let Some(byte) = buffer.last_mut() {
                *byte ^= 1;
            }
        }
        Ok(())
    }
}

fn faulty(image: &TestImage, blob: Blob, fails: bool) -> (Box<dyn ChunkSource>, Arc<AtomicU64>) {
    let asked = Arc::new(AtomicU64::new(0));
    let source = Faulty {
        inner: ImageDirectory::new(image.directory.path()),
        blob,
        fails,
        asked: asked.clone(),
    };
    (Box::new(source), asked)
}

/// E-23: wrong bytes are never written; another mirror gives the right ones.
#[test]
fn e23_a_corrupt_chunk_is_fetched_from_another_mirror() {
    for fails in [false, true] {
        let bench = Bench::new();
        let (bad, asked) = faulty(&bench.new, bench.new.manifest.partitions[0].chunks, fails);
        let good = Box::new(ImageDirectory::new(bench.new.directory.path()));
        let mut engine = bench.setup.engine(&bench.shared, Slot::A).unwrap();
        engine
            .prepare("op-1", bench.new.image_from(vec![bad, good]))
            .unwrap();
        assert!(bench.new.is_in(&bench.shared.disks().b));
        assert!(asked.load(Ordering::Relaxed) > 0);
    }
}

#[test]
fn e23_without_another_mirror_the_operation_fails_and_nothing_wrong_is_written() {
    let mut bench = Bench::new();
    bench.setup.on_delta_failure = OnDeltaFailure::Fail;
    let (bad, _) = faulty(&bench.new, bench.new.manifest.partitions[0].chunks, false);
    let mut engine = bench.setup.engine(&bench.shared, Slot::A).unwrap();
    let error = engine
        .prepare("op-1", bench.new.image_from(vec![bad]))
        .unwrap_err()
        .to_string();
    assert!(error.contains("faulty mirror: chunk"), "{error}");
    let disks = bench.shared.disks();
    for (number, chunk) in disks.b[..CHUNKS * 4096].chunks(4096).enumerate() {
        let right = &bench.new.raw[number * 4096..][..4096];
        assert!(
            chunk == right || chunk.iter().all(|byte| *byte == 0xee),
            "chunk {number}"
        );
    }
    let status = engine.status().unwrap();
    assert!(!status.slots[1].boot.can_boot());
    // The same id may try again, and then it works.
    engine.prepare("op-1", bench.new.image()).unwrap();
}

/// Fails when a byte is written that is not the image's.
struct Strict {
    inner: MemoryTarget,
    raw: Vec<u8>,
}

impl SlotTarget for Strict {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn in_use(&mut self) -> io::Result<Option<String>> {
        self.inner.in_use()
    }

    fn read_at(&mut self, offset: u64, buffer: &mut [u8], through: Through) -> io::Result<()> {
        self.inner.read_at(offset, buffer, through)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let at = offset as usize;
        if at < self.raw.len() {
            assert!(
                self.raw[at..at + bytes.len()] == *bytes,
                "wrong bytes were written at {at}"
            );
        }
        self.inner.write_at(offset, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// E-23: chunks of a stream are hashed on other threads than the one that writes; none that is wrong is written, wherever
/// it is. What the stream did not bring comes chunk by chunk, if anybody has it.
#[test]
fn e23_a_stream_that_lies_is_noticed_before_it_is_written() {
    // Behind the image's last byte the stream has a header of three bytes, of an empty block, that nobody needs.
    const END: u64 = 4;
    let (size, old) = (3 << 20, TestImage::build("1.0", 1, noise(2, 1)));
    let new = TestImage::build("2.0", 2, noise(768, 2));
    let partition = &new.manifest.partitions[0];
    let solid = partition.solid.unwrap();
    let step = if crate::power::full() { 40_009 } else { 400_009 };
    for has_chunks in [true, false] {
        let mut written = 0;
        for place in (0..solid.size).step_by(step).chain([solid.size - END]) {
            let setup = Setup::new(Kind::Records);
            let shared = Shared::new(
                Disks {
                    a: old.slot(size + LABEL_SIZE),
                    b: vec![0xee; size + LABEL_SIZE],
                    store: setup.kind.bytes(&BootState::installed(Slot::A)),
                    journal: Vec::new(),
                },
                true,
            );
            let mut host = setup.host(&shared, Some(Slot::A));
            host.limits = Limits {
                step: 64 << 10,
                checkpoint: 512 << 10,
            };
            host.slots.b[0].target = Box::new(Strict {
                inner: MemoryTarget {
                    shared: shared.clone(),
                    slot: Slot::B,
                    used_by: None,
                },
                raw: new.raw.clone(),
            });
            let source = LyingStream {
                inner: ImageDirectory::new(new.directory.path()),
                solid,
                place,
                chunks: (!has_chunks).then_some(partition.chunks),
            };
            let mut engine = Engine::open(host).unwrap();
            let result = engine.prepare("op-1", new.image_from(vec![Box::new(source)]));
            assert_eq!(result.is_ok(), has_chunks, "{place}: {result:?}");
            assert_eq!(new.is_in(&shared.disks().b), has_chunks, "{place}");
            if let Err(error) = result {
                let error = error.to_string();
                assert!(
                    error.contains("the solid image is not what its manifest says"),
                    "{error}"
                );
                assert!(!engine.status().unwrap().slots[1].boot.can_boot());
            }
            written += shared.written(Device::B);
        }
        assert!(written > 0, "what came before the lie was written");
    }
}

/// One byte of the stream is another one; chunks may be missing.
struct LyingStream {
    inner: ImageDirectory,
    solid: Blob,
    place: u64,
    chunks: Option<Blob>,
}

impl ChunkSource for LyingStream {
    fn name(&self) -> String {
        "a liar".into()
    }

    fn read(&mut self, blob: &Blob, offset: u64, buffer: &mut [u8]) -> Result<(), FetchError> {
        if self.chunks.is_some_and(|chunks| chunks.digest == blob.digest) {
            return Err(FetchError::Absent {
                source_name: self.name(),
                blob: blob.digest.to_string(),
            });
        }
        self.inner.read(blob, offset, buffer)?;
        let range = offset..offset + buffer.len() as u64;
        if blob.digest == self.solid.digest && range.contains(&self.place) {
            buffer[(self.place - offset) as usize] ^= 1;
        }
        Ok(())
    }
}

/// E-37: most of it is missing and the stream is smaller, so the stream is downloaded.
#[test]
fn e37_a_major_change_comes_as_one_stream() {
    // Stretches longer than any chunk that compress well together and not at all alone.
    let stretch = noise(10, 1);
    let mut raw = Vec::new();
    for number in 1..=20 {
        let mut copy = stretch.clone();
        for byte in copy.iter_mut().step_by(500) {
            *byte ^= number;
        }
        raw.extend_from_slice(&copy);
    }
    let (new, progress) = cost(noise(200, 2), raw);
    let partition = &new.manifest.partitions[0];
    let solid = partition.solid.unwrap();
    assert!(
        solid.size * 4 < partition.chunks.size,
        "the stream is much smaller"
    );
    assert_eq!(progress.bytes_downloaded, partition.index.size + solid.size);
}

/// E-37: chunks cannot be had. `Full` downloads the stream, `Fail` never does.
#[test]
fn e37_on_delta_failure_decides_about_the_whole_image() {
    for (policy, completes) in [(OnDeltaFailure::Full, true), (OnDeltaFailure::Fail, false)] {
        let mut bench = Bench::new();
        bench.setup.on_delta_failure = policy;
        let (source, _) = faulty(&bench.new, bench.new.manifest.partitions[0].chunks, true);
        let mut engine = bench.setup.engine(&bench.shared, Slot::A).unwrap();
        let result = engine.prepare("op-1", bench.new.image_from(vec![source]));
        assert_eq!(result.is_ok(), completes, "{result:?}");
        if completes {
            assert!(bench.new.is_in(&bench.shared.disks().b));
        } else {
            let error = result.unwrap_err().to_string();
            assert!(error.contains("onDeltaFailure: Fail"), "{error}");
            assert_eq!(bench.shared.written(Device::A), 0);
        }
    }
}

/// What the host downloads and writes to bring `new` to a host that runs `old`.
fn cost(old: Vec<u8>, new: Vec<u8>) -> (TestImage, Progress) {
    let size = old.len().max(new.len()) + 64 * 1024;
    let old = TestImage::build("1.0", 1, old);
    let new = TestImage::build("2.0", 2, new);
    let bench = Bench::new();
    bench.shared.change(|disks| {
        disks.a = old.slot(size);
        disks.b = vec![0xee; size];
    });
    let mut engine = bench.setup.engine(&bench.shared, Slot::A).unwrap();
    engine.prepare("op-1", new.image()).unwrap();
    assert!(new.is_in(&bench.shared.disks().b));
    let progress = engine.status().unwrap().progress;
    (new, progress)
}

fn fraction(progress: &Progress) -> f64 {
    progress.bytes_downloaded as f64 / progress.bytes_total as f64
}

/// E-37: with 5 % of an image changed, little more than that is downloaded.
#[test]
fn e37_a_small_change_downloads_little() {
    let old = noise(2000, 1);
    let mut new = old.clone();
    for number in (0..2000).step_by(500) {
        new[number * 4096..][..25 * 4096].copy_from_slice(&noise(25, number as u64 + 2));
    }
    let (_, progress) = cost(old, new);
    let fraction = fraction(&progress);
    assert!(fraction < 0.08, "{fraction}");
    assert!(fraction > 0.05, "less than what is new: {fraction}");
}

/// E-37: what only moved is copied from the running slot, wherever it lies there.
#[test]
fn e37_what_moved_is_not_downloaded() {
    let old = noise(2000, 1);
    let mut new = noise(1, 2)[..100].to_vec();
    new.extend_from_slice(&old[1000 * 4096..]);
    new.extend_from_slice(&old[..1000 * 4096]);
    new.resize(2001 * 4096, 0);
    let (_, progress) = cost(old, new);
    let fraction = fraction(&progress);
    assert!(fraction < 0.02, "{fraction}");
    assert_eq!(progress.bytes_written, progress.bytes_total);
}

/// Between chunks that are right and chunks that are not lie blocks with bytes of both; only blocks that differ are
/// written, and those counted are those written.
#[test]
fn only_blocks_that_differ_are_written_and_wear_is_counted() {
    let raw = noise(200, 4);
    for change in [0, 5000, 40_000, 200 * 4096 - 1] {
        let bench = Bench::new();
        let new = TestImage::build("2.0", 2, raw.clone());
        let size = raw.len() + 64 * 1024;
        let mut held = raw.clone();
        held[change] ^= 1;
        held.resize(size, 0xee);
        bench.shared.change(|disks| {
            disks.a = TestImage::build("1.0", 1, noise(200, 5)).slot(size);
            disks.b = held;
        });
        let mut engine = bench.setup.engine(&bench.shared, Slot::A).unwrap();
        engine.prepare("op-1", new.image()).unwrap();
        assert!(new.is_in(&bench.shared.disks().b));
        let progress = engine.status().unwrap().progress;
        assert_eq!(progress.bytes_written, 4096, "byte {change}");
        assert_eq!(progress.bytes_in_place, raw.len() as u64 - 4096);
        let label = 64 * 1024;
        assert_eq!(bench.shared.written(Device::B), 4096 + label, "byte {change}");
    }
}

/// Each source is asked in its order, and what each gave is told.
#[test]
fn what_each_source_gave_is_counted() {
    let bench = Bench::new();
    let cache = tempfile::TempDir::new().unwrap();
    let index = bench.new.manifest.partitions[0].index;
    let name = index.digest.to_string().replace(':', "-");
    std::fs::copy(bench.new.directory.path().join(&name), cache.path().join(&name)).unwrap();
    let sources: Vec<Box<dyn ChunkSource>> = vec![
        Box::new(ImageDirectory::new(cache.path())),
        Box::new(ImageDirectory::new(bench.new.directory.path())),
    ];
    let mut engine = bench.setup.engine(&bench.shared, Slot::A).unwrap();
    engine.prepare("op-1", bench.new.image_from(sources)).unwrap();
    let downloads = engine.watch().downloads();
    assert_eq!(downloads[&cache.path().display().to_string()], index.size);
    let rest = downloads[&bench.new.directory.path().display().to_string()];
    let progress = engine.status().unwrap().progress;
    assert_eq!(progress.bytes_downloaded, index.size + rest);
    assert!(rest > 0);
}

#[test]
fn without_any_source_the_reason_says_so() {
    let bench = Bench::with(blocks(CHUNKS, 9, &[]));
    let mut engine = bench.setup.engine(&bench.shared, Slot::A).unwrap();
    let error = engine
        .prepare("op-1", bench.new.image_from(Vec::new()))
        .unwrap_err()
        .to_string();
    assert!(error.contains("there are no sources"), "{error}");
}
