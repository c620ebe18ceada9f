//! Air-gapped: what one host exports another one imports, byte for byte, and nothing else gets in.

use std::{fs, path::Path, process::Command, sync::Arc};

use proptest::prelude::*;
use slipway_agent::cache::CacheError;
use tempfile::TempDir;

use super::{TestImage, TestSource, ensure, layer, open};

const QUOTA: u64 = 8 << 20;
/// Of the image that shares its bytes with its bundle.
const LAYER: usize = 24 << 20;

async fn exported(root: &TempDir) -> (Vec<TestImage>, std::path::PathBuf) {
    let shared = layer(1, 50_000);
    let images = vec![
        TestImage::of("one", &[shared.clone(), layer(2, 1000)]),
        TestImage::of("two", &[shared, layer(3, 1000)]),
    ];
    let registry = TestSource::new("registry", &[&images[0], &images[1]]);
    let cache = open(&root.path().join("cache"), QUOTA);
    for (image, name) in images
        .iter()
        .zip(["registry.example:5000/one:1", "registry.example/two:2"])
    {
        let mut request = ensure(image.digest, &[&registry]);
        request.name = Some(name.into());
        cache.ensure(request, |_| {}).await.unwrap();
    }
    let bundle = root.path().join("bundle.tar");
    let files: Vec<_> = images.iter().map(|image| image.digest).collect();
    cache.export(&files, &bundle).unwrap();
    (images, bundle)
}

#[tokio::test]
async fn a_bundle_brings_images_with_their_names_to_a_host_that_has_no_network() {
    let root = TempDir::new().unwrap();
    let (images, bundle) = exported(&root).await;
    // As a file, and unpacked on a stick.
    let unpacked = root.path().join("unpacked");
    tar::Archive::new(fs::File::open(&bundle).unwrap())
        .unpack(&unpacked)
        .unwrap();
    for (number, from) in [&bundle, &unpacked].into_iter().enumerate() {
        let there = open(&root.path().join(format!("there-{number}")), QUOTA);
        let brought = there.import(from, &[]).unwrap();
        assert_eq!(brought.len(), 2);
        for image in &images {
            assert!(there.verify(&image.digest).await.unwrap());
        }
        let record = there.image(&images[0].digest).unwrap();
        assert_eq!(
            record.names.keys().collect::<Vec<_>>(),
            ["registry.example:5000/one:1"]
        );
        assert_eq!(there.used().1, 0);
        // A tag is answered from it.
        let mut by_tag = ensure(images[1].digest, &[]);
        (by_tag.digest, by_tag.name) = (None, Some("registry.example/two:2".into()));
        assert_eq!(there.ensure(by_tag, |_| {}).await, Ok(images[1].digest));
        // Again is nothing, and asking for what is not in it is refused.
        there.import(from, &[images[0].digest]).unwrap();
        let said = there
            .import(from, &[slipway_slots::Digest::of(b"other")])
            .unwrap_err();
        assert!(said.to_string().contains("does not hold"), "{said}");
    }
}

#[tokio::test]
async fn a_bundle_larger_than_the_room_is_refused_before_a_byte_is_taken() {
    let root = TempDir::new().unwrap();
    let (_, bundle) = exported(&root).await;
    let there = open(&root.path().join("there"), 20_000);
    let said = there.import(&bundle, &[]).unwrap_err();
    assert!(matches!(said, CacheError::NoRoom(_)), "{said}");
    assert_eq!(there.used(), (0, 0));
    assert_eq!(super::disk_usage(&root.path().join("there")), 0);
}

/// A bundle with one byte changed anywhere brings the right images or none.
#[test]
fn a_damaged_bundle_brings_the_right_images_or_none() {
    let root = TempDir::new().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (images, bundle) = runtime.block_on(exported(&root));
    let good = fs::read(&bundle).unwrap();
    let number = std::cell::Cell::new(0);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(60));
    runner
        .run(
            &(any::<prop::sample::Index>(), any::<u8>(), any::<bool>()),
            |(at, byte, cut)| {
                let mut bytes = good.clone();
                let at = at.index(bytes.len());
                if cut {
                    bytes.truncate(at);
                } else {
                    bytes[at] = byte;
                }
                let damaged = root.path().join("damaged.tar");
                fs::write(&damaged, &bytes).unwrap();
                number.set(number.get() + 1);
                let folder = root.path().join(format!("there-{}", number.get()));
                let there = open(&folder, QUOTA);
                let taken = there.import(&damaged, &[]).is_ok();
                let wrong = runtime.block_on(async {
                    for (record, _) in there.list() {
                        if !there.verify(&record.digest).await.unwrap()
                            || !images.iter().any(|image| image.digest == record.digest)
                        {
                            return true;
                        }
                    }
                    false
                });
                prop_assert!(!wrong);
                prop_assert!(!taken || !there.list().is_empty());
                prop_assert_eq!(there.used().1, 0, "a reservation was left behind");
                fs::remove_dir_all(&folder).unwrap();
                Ok(())
            },
        )
        .unwrap();
    drop(Arc::new(images));
}

/// A file system that can share bytes does; the copy is right either way.
#[test]
fn a_copy_has_the_same_bytes_whether_they_are_shared_or_not() {
    let root = TempDir::new().unwrap();
    let (from, to) = (root.path().join("from"), root.path().join("to"));
    fs::write(&from, layer(1, 100_000)).unwrap();
    fs::write(&to, vec![0; 200_000]).unwrap();
    slipway_agent::cache::copy_file(&from, &to).unwrap();
    assert_eq!(fs::read(&from).unwrap(), fs::read(&to).unwrap());
}

/// A file system of a file, mounted until it is dropped.
struct Mounted(std::path::PathBuf);

impl Mounted {
    /// `None`, with the reason said, where that cannot be.
    fn btrfs(root: &Path, test: &str) -> Option<Self> {
        let (image, at) = (root.join("btrfs.img"), root.join("mounted"));
        fs::create_dir_all(&at).unwrap();
        fs::File::create(&image).unwrap().set_len(256 << 20).unwrap();
        let made = Command::new("mkfs.btrfs").arg("-q").arg(&image).output();
        let mounted = made.is_ok_and(|made| made.status.success())
            && Command::new("mount")
                .args(["-o", "loop"])
                .args([&image, &at])
                .output()
                .is_ok_and(|mounted| mounted.status.success());
        if !mounted {
            println!("report: skipped: {test}: it needs root and mkfs.btrfs (Debian package btrfs-progs)");
        }
        mounted.then_some(Self(at))
    }

    fn free(&self) -> u64 {
        Command::new("sync").arg("-f").arg(&self.0).status().unwrap();
        let told = rustix::fs::statvfs(&self.0).unwrap();
        told.f_bfree * told.f_frsize
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// On a real btrfs the images of a bundle are in the cache without taking their room again.
#[test]
fn a_bundle_on_a_file_system_that_can_share_bytes_takes_no_room_twice() {
    let root = TempDir::new().unwrap();
    let Some(disk) = Mounted::btrfs(root.path(), "an import that shares bytes") else {
        return;
    };
    let image = TestImage::of("app", &[layer(1, LAYER)]);
    let bundle = disk.0.join("bundle");
    image.write_layout(&bundle);
    let before = disk.free();
    let cache = open(&disk.0.join("cache"), 64 << 20);
    cache.import(&bundle, &[image.digest]).unwrap();
    let taken = before.saturating_sub(disk.free());
    println!("report: an import of {LAYER} bytes on btrfs took {taken} bytes of the disk");
    assert!(taken < LAYER as u64 / 4, "{taken}");
    assert_eq!(cache.image(&image.digest).unwrap().size(), image.size());
    // The cache's bytes are its own: what is done to the bundle does not reach them.
    fs::remove_dir_all(&bundle).unwrap();
    let out = root.path().join("out.tar");
    cache.export(&[image.digest], &out).unwrap();
}
