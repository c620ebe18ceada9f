//! Every format that is read from a disk or a network takes any bytes without a panic, and plans always give the image.

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use slipway_slots::Digest;
use slipway_slots::boot::{Contents, Layout, gpt};
use slipway_slots::manifest::{
    Blob, ChunkEntry, ChunkIndex, KeyRing, Manifest, PartitionImage, SignedManifest, decode_label,
};
use slipway_slots::write_plan::{Limits, PlanStep, SeedChunk, plan};

use crate::boot::disk::holding;
use crate::boot::{codecs, states};
use crate::manifest::sample;

/// Good bytes with some of them changed: reaches further than noise.
fn damaged(good: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    let length = good.len();
    vec((0..length, any::<u8>()), 0..6).prop_map(move |changes| {
        let mut bytes = good.clone();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        bytes
    })
}

proptest! {
    #[test]
    fn formats_take_any_bytes(bytes in vec(any::<u8>(), 0..5000)) {
        let _ = Manifest::decode(&bytes);
        let _ = SignedManifest::decode(&bytes);
        let _ = KeyRing::decode(&bytes);
        let _ = decode_label(&bytes);
        let _ = ChunkIndex::decode(&bytes, &sample().partitions[0]);
        let _ = gpt::partitions(1 << 20, [&bytes, &bytes]);
    }

    #[test]
    fn manifests_take_damage(bytes in damaged(sample().encode())) {
        if let Ok(manifest) = Manifest::decode(&bytes) {
            prop_assert_eq!(manifest.encode(), bytes);
        }
    }

    #[test]
    fn stores_take_any_bytes(
        bytes in vec(any::<u8>(), 0..3000),
        files in btree_map("(grubenv|grubenv.shadow|slipway-[abc+0-9.-]{1,9}conf|slipway-epoch)", vec(any::<u8>(), 0..1100), 0..5),
    ) {
        for codec in codecs() {
            let contents = match codec.layout() {
                Layout::Files { .. } => Contents::Files(files.clone()),
                Layout::Extents(extents) => Contents::Extents(
                    extents
                        .iter()
                        .map(|extent| {
                            let mut bytes = bytes.clone();
                            bytes.resize(extent.length as usize, 0);
                            bytes
                        })
                        .collect(),
                ),
            };
            let _ = codec.decode(&contents);
            let _ = codec.encode(&contents, &states(&*codec)[0]);
            // Contents of another shape are refused, not trusted.
            prop_assert_eq!(codec.decode(&Contents::Extents(Vec::new())).state.is_some(), false);
        }
    }

    #[test]
    fn stores_take_damage_at_several_places(
        which in 0..5_usize,
        state in 0..20_usize,
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let codec = codecs().remove(which);
        let states = states(&*codec);
        let mut contents = holding(&*codec, &states[state % states.len()]);
        for (at, byte) in changes {
            match &mut contents {
                Contents::Extents(extents) => {
                    let extent = at.index(extents.len());
                    let place = at.index(extents[extent].len());
                    extents[extent][place] = byte;
                }
                Contents::Files(files) => {
                    let file = at.index(files.len());
                    let bytes = files.values_mut().nth(file).expect("a file");
                    let place = at.index(bytes.len());
                    bytes[place] = byte;
                }
            }
        }
        if let Some(state) = codec.decode(&contents).state {
            let _ = codec.encode(&contents, &state);
        }
    }

    /// Whatever target and seed hold, carrying out the plan gives the image, and nothing is fetched that is at hand.
    #[test]
    fn a_plan_gives_the_image(
        image in vec(0..6_u8, 1..40),
        target in vec(0..6_u8, 0..40),
        seed in vec(0..6_u8, 0..40),
    ) {
        // A chunk is named by a number and as long as that says; zero is all zero and of the longest length.
        let chunk = |name: u8| vec![name; if name == 0 { 4096 } else { 256 + usize::from(name) * 3 }];
        let digest = |name: u8| Digest::of(&chunk(name));
        let mut stored = std::collections::BTreeMap::new();
        let mut entries = Vec::new();
        let (mut offset, mut stored_end) = (0, 0);
        for name in &image {
            let length = chunk(*name).len() as u32;
            let stored_offset = *stored.entry(*name).or_insert_with(|| {
                stored_end += u64::from(length);
                stored_end - u64::from(length)
            });
            entries.push(ChunkEntry { digest: digest(*name), offset, length, stored_offset, stored_length: length });
            offset += u64::from(length);
        }
        let blob = Blob { digest: digest(0), size: stored_end };
        let partition = PartitionImage {
            name: "root".into(),
            size: offset,
            digest: digest(0),
            chunk_size: 1024,
            chunk_count: image.len() as u32,
            index: blob,
            chunks: blob,
            solid: None,
        };
        let index = ChunkIndex { entries };
        prop_assert_eq!(&ChunkIndex::decode(&index.encode(), &partition).expect("it is whole"), &index);
        let in_place: Vec<bool> = image.iter().enumerate().map(|(at, name)| target.get(at) == Some(name)).collect();
        let mut seed_bytes = Vec::new();
        let mut seeds = Vec::new();
        for name in &seed {
            // What the image does not have is not listed.
            if image.contains(name) {
                let length = chunk(*name).len() as u32;
                seeds.push(SeedChunk { digest: digest(*name), offset: seed_bytes.len() as u64, length });
            }
            seed_bytes.extend(chunk(*name));
        }
        let limits = Limits { step: 1000, checkpoint: 5000 };
        let plan = plan(&partition, &index, &in_place, &[&seeds], limits);
        let whole: Vec<u8> = image.iter().flat_map(|name| chunk(*name)).collect();
        let stored_bytes: Vec<u8> = {
            let mut by_offset: Vec<_> = stored.iter().map(|(name, offset)| (*offset, *name)).collect();
            by_offset.sort_unstable();
            by_offset.iter().flat_map(|(_, name)| chunk(*name)).collect()
        };
        let mut result = vec![0xff; whole.len()];
        let (mut since_checkpoint, mut next) = (0, 0);
        for step in &plan.steps {
            let (first, count, bytes) = match *step {
                PlanStep::Checkpoint => {
                    since_checkpoint = 0;
                    continue;
                }
                PlanStep::InPlace { first, count } => {
                    prop_assert!(in_place[first as usize..(first + count) as usize].iter().all(|is| *is));
                    let (offset, length) = index.range(first, count);
                    (first, count, whole[offset as usize..][..length].to_vec())
                }
                PlanStep::Zero { first, count } => (first, count, vec![0; index.range(first, count).1]),
                PlanStep::Copy { first, count, from, seed: which } => {
                    prop_assert_eq!(which, 0);
                    (first, count, seed_bytes[from as usize..][..index.range(first, count).1].to_vec())
                }
                PlanStep::Repeat { first, of } => {
                    prop_assert!(of < first);
                    let (offset, length) = index.range(of, 1);
                    (first, 1, result[offset as usize..][..length].to_vec())
                }
                PlanStep::Fetch { first, count, stored_offset, stored_length } => {
                    for name in &image[first as usize..(first + count) as usize] {
                        prop_assert!(!seed.contains(name), "it was at hand");
                    }
                    (first, count, stored_bytes[stored_offset as usize..][..stored_length as usize].to_vec())
                }
            };
            prop_assert_eq!(first, next, "every chunk comes once, in order");
            next = first + count;
            let (offset, length) = index.range(first, count);
            prop_assert_eq!(bytes.len(), length);
            result[offset as usize..][..length].copy_from_slice(&bytes);
            if !matches!(step, PlanStep::InPlace { .. }) {
                prop_assert!(length <= 1000 || count == 1, "a step is longer than allowed");
                since_checkpoint += length;
                prop_assert!(since_checkpoint <= 5000, "a checkpoint is missing");
            }
        }
        prop_assert!(result == whole, "the plan gives other bytes");
        let cost = plan.cost;
        prop_assert_eq!(cost.in_place + cost.written(), partition.size);
    }

    /// An index with some bytes changed is refused, or says what it says without a contradiction.
    #[test]
    fn indexes_take_damage(changes in vec((0..320_usize, any::<u8>()), 1..6)) {
        let partition = sample().partitions.remove(0);
        let mut bytes = Vec::new();
        for number in 0..8_u8 {
            bytes.extend(Digest::of(&[number]).0);
            bytes.extend(8192_u32.to_be_bytes());
            bytes.extend(8192_u32.to_be_bytes());
        }
        let intact = bytes.clone();
        prop_assert!(ChunkIndex::decode(&bytes, &partition).is_ok());
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        if let Ok(index) = ChunkIndex::decode(&bytes, &partition) {
            prop_assert_eq!(index.encode(), bytes.clone());
            prop_assert_eq!(index.entries.iter().map(|entry| u64::from(entry.length)).sum::<u64>(), partition.size);
            let inside = index
                .entries
                .iter()
                .all(|entry| entry.stored_offset + u64::from(entry.stored_length) <= partition.chunks.size);
            prop_assert!(inside);
        } else {
            prop_assert!(bytes != intact);
        }
    }
}
