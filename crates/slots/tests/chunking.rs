//! Cuts by content: the same everywhere, however the bytes arrive, and the same again behind a change.

use std::collections::HashSet;
use std::convert::Infallible;

use proptest::collection::vec;
use proptest::prelude::*;
use slipway_slots::Digest;
use slipway_slots::chunking::{Chunker, Cutting};

/// Bytes without a pattern, the same in every run.
fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    (0..length)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect()
}

fn chunks(bytes: &[u8], average: u32) -> Vec<Vec<u8>> {
    let mut chunks = Vec::new();
    let mut keep = |chunk: &[u8]| -> Result<(), Infallible> {
        chunks.push(chunk.to_vec());
        Ok(())
    };
    let mut cutting = Cutting::new(Chunker::new(average).expect("an average"));
    let Ok(()) = cutting.push(bytes, &mut keep);
    let Ok(()) = cutting.finish(&mut keep);
    chunks
}

/// The cuts are part of the image format: an agent that cut otherwise would find nothing in its running slot.
#[test]
fn the_cuts_never_change() {
    let bytes = noise(200_000, 7);
    let lengths: Vec<_> = chunks(&bytes, 8192).iter().map(Vec::len).collect();
    assert_eq!(lengths.iter().sum::<usize>(), bytes.len());
    let cuts = [
        18224, 2656, 7795, 6800, 6085, 7316, 5625, 2774, 9761, 11216, 17366, 2860, 2412, 8401, 17495, 15741,
        7110, 20747, 10179, 10094, 4605, 4738,
    ];
    assert_eq!(lengths, cuts);
}

#[test]
fn averages_that_cannot_be_cut_by_are_none() {
    for average in [0, 1, 512, 1023, 8191, 3 * 4096, 2 << 20, u32::MAX] {
        assert_eq!(Chunker::new(average), None, "{average}");
    }
    for average in (10..=20).map(|power| 1 << power) {
        assert!(Chunker::new(average).is_some(), "{average}");
    }
}

/// A byte more at the beginning moves everything, and nearly everything is found again.
#[test]
fn what_moved_is_found_again() {
    let old = noise(4 << 20, 1);
    let known: HashSet<_> = chunks(&old, 8192).iter().map(|chunk| Digest::of(chunk)).collect();
    for inserted in [1, 2, 3, 100, 4096] {
        let mut new = noise(inserted, 2);
        new.extend_from_slice(&old);
        let chunks = chunks(&new, 8192);
        let missing: usize = chunks
            .iter()
            .filter(|chunk| !known.contains(&Digest::of(chunk)))
            .map(Vec::len)
            .sum();
        assert!(
            missing < new.len() / 50,
            "{inserted} bytes more: {missing} bytes are not found again"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn chunks_are_all_of_the_bytes_whatever_pieces_they_arrive_in(
        seed in any::<u64>(),
        zeros in 0..40_000_usize,
        pieces in vec(1..30_000_usize, 1..12),
    ) {
        let mut bytes = noise(50_000, seed);
        bytes.extend(vec![0; zeros]);
        bytes.extend(noise(10_000, seed ^ 1));
        let chunker = Chunker::new(2048).expect("an average");
        let whole = chunks(&bytes, 2048);
        let joined: Vec<u8> = whole.concat();
        prop_assert!(joined == bytes);
        for (number, chunk) in whole.iter().enumerate() {
            prop_assert!(chunk.len() <= chunker.longest() as usize);
            prop_assert!(chunk.len() >= chunker.shortest() as usize || number + 1 == whole.len());
        }
        let mut parts = Vec::new();
        let mut keep = |chunk: &[u8]| -> Result<(), Infallible> {
            parts.push(chunk.to_vec());
            Ok(())
        };
        let mut cutting = Cutting::new(chunker);
        let mut rest = bytes.as_slice();
        for length in pieces.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, behind) = rest.split_at((*length).min(rest.len()));
            let Ok(()) = cutting.push(piece, &mut keep);
            rest = behind;
        }
        let Ok(()) = cutting.finish(&mut keep);
        prop_assert!(parts == whole);
    }
}
