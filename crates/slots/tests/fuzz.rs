//! Every format that is read from a disk or a network takes any bytes without a panic, and plans always give the image.

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use slipway_slots::Digest;
use slipway_slots::boot::{Contents, Layout, gpt};
use slipway_slots::manifest::{
    Blob, ChunkEntry, ChunkIndex, KeyRing, Manifest, PartitionImage, SignedManifest, decode_label,
};
use slipway_slots::write_plan::{Limits, PlanStep, plan};

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
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

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
        // Chunks are named by a number; zero is all zero.
        let chunk = |name: u8| vec![name; 4096];
        let digest = |name: u8| Digest::of(&chunk(name));
        let mut stored = std::collections::BTreeMap::new();
        let mut entries = Vec::new();
        for name in &image {
            let offset = stored.len() as u64 * 4096;
            let stored_offset = *stored.entry(*name).or_insert(offset);
            entries.push(ChunkEntry { digest: digest(*name), stored_offset, stored_length: 4096 });
        }
        let blob = Blob { digest: digest(0), size: stored.len() as u64 * 4096 };
        let partition = PartitionImage {
            name: "root".into(),
            size: image.len() as u64 * 4096,
            digest: digest(0),
            chunk_size: 4096,
            index: blob,
            chunks: blob,
            solid: None,
        };
        let index = ChunkIndex { entries };
        prop_assert_eq!(&ChunkIndex::decode(&index.encode(), &partition).expect("it is whole"), &index);
        let (have, seeds): (Vec<_>, Vec<_>) = (
            target.iter().map(|name| digest(*name)).collect(),
            seed.iter().map(|name| digest(*name)).collect(),
        );
        let limits = Limits { step: 3 * 4096, checkpoint: 5 * 4096 };
        let plan = plan(&partition, &index, &have, &[&seeds], limits);
        let mut result: Vec<Option<u8>> = (0..image.len()).map(|at| target.get(at).copied()).collect();
        let by_offset: std::collections::BTreeMap<u64, u8> =
            stored.iter().map(|(name, offset)| (*offset, *name)).collect();
        let mut since_checkpoint = 0;
        for step in &plan.steps {
            let written = match *step {
                PlanStep::InPlace { .. } => 0,
                PlanStep::Checkpoint => {
                    since_checkpoint = 0;
                    0
                }
                PlanStep::Zero { first, count } => {
                    for at in first..first + count {
                        result[at as usize] = Some(0);
                    }
                    count
                }
                PlanStep::Copy { first, count, from, seed: which } => {
                    prop_assert_eq!(which, 0);
                    for at in 0..count {
                        result[(first + at) as usize] = Some(seed[(from + at) as usize]);
                    }
                    count
                }
                PlanStep::Repeat { first, of } => {
                    prop_assert!(of < first);
                    result[first as usize] = result[of as usize];
                    1
                }
                PlanStep::Fetch { first, count, stored_offset, stored_length } => {
                    prop_assert_eq!(stored_length, count * 4096);
                    for at in 0..count {
                        let name = by_offset[&(stored_offset + u64::from(at) * 4096)];
                        prop_assert!(!seed.contains(&name), "it was at hand");
                        result[(first + at) as usize] = Some(name);
                    }
                    count
                }
            };
            prop_assert!(written <= 3, "a step is longer than allowed");
            since_checkpoint += written;
            prop_assert!(since_checkpoint <= 5, "a checkpoint is missing");
        }
        let expected: Vec<_> = image.iter().copied().map(Some).collect();
        prop_assert_eq!(result, expected);
        let cost = plan.cost;
        prop_assert_eq!(cost.in_place + cost.written(), partition.size);
    }
}
