//! E-35: every damaged bit and every damaged byte of every store is noticed, and repaired.

use slipway_slots::Slot;
use slipway_slots::boot::{BootState, Codec, Contents, SlotBoot};

use super::disk::{apply, holding};
use super::{codecs, states};

fn full() -> bool {
    std::env::var_os("SLIPWAY_TEST_FULL").is_some()
}

/// Every byte of the contents, as a number of extent or file and an offset in it. A short run looks at every 61st of the
/// many that are empty in every state: blocks behind a record, unused partition entries.
fn places(contents: &Contents) -> Vec<(usize, usize)> {
    let empty = |at: usize, offset: usize| match contents {
        Contents::Extents(extents) => {
            let start = offset.saturating_sub(128);
            let end = (offset + 128).min(extents[at].len());
            extents[at][start..end].iter().all(|byte| *byte == 0)
        }
        Contents::Files(_) => false,
    };
    let lengths: Vec<usize> = match contents {
        Contents::Extents(extents) => extents.iter().map(Vec::len).collect(),
        Contents::Files(files) => files.values().map(Vec::len).collect(),
    };
    lengths
        .into_iter()
        .enumerate()
        .flat_map(|(at, length)| (0..length).map(move |offset| (at, offset)))
        .filter(|(at, offset)| full() || offset % 61 == 0 || !empty(*at, *offset))
        .collect()
}

fn damage(contents: &mut Contents, (at, offset): (usize, usize), change: u8) {
    let byte = match contents {
        Contents::Extents(extents) => &mut extents[at][offset],
        Contents::Files(files) => {
            let bytes = files.values_mut().nth(at).expect("the file is there");
            &mut bytes[offset]
        }
    };
    *byte ^= change;
}

/// A slot that may not boot is never offered because of one damaged byte.
fn check(codec: &dyn Codec, intact: &Contents, state: BootState, place: (usize, usize), change: u8) {
    let mut contents = intact.clone();
    damage(&mut contents, place, change);
    let decoded = codec.decode(&contents);
    let what = format!(
        "{} with byte {place:?} changed by {change:#x}, {state}",
        codec.name()
    );
    assert!(!decoded.problems.is_empty(), "{what}: not noticed");
    let believed = decoded
        .state
        .unwrap_or_else(|| panic!("{what}: no state is left"));
    for slot in Slot::BOTH {
        if state.slots[slot] == SlotBoot::Unbootable {
            assert!(!believed.slots[slot].can_boot(), "{what}: slot {slot} may boot");
        }
    }
    for step in codec.encode(&contents, &believed).expect("there is room") {
        apply(&mut contents, codec, &step);
    }
    let repaired = codec.decode(&contents);
    assert_eq!(repaired.problems, Vec::<String>::new(), "{what}: not repaired");
    assert_eq!(repaired.state, Some(believed), "{what}");
}

#[test]
fn e35_every_damaged_bit_of_every_store_is_noticed_and_repaired() {
    let mut count = 0;
    for codec in codecs() {
        for state in states(&*codec).into_iter().step_by(if full() { 1 } else { 3 }) {
            let intact = holding(&*codec, &state);
            for place in places(&intact) {
                for bit in 0..8 {
                    check(&*codec, &intact, state, place, 1 << bit);
                    count += 1;
                }
            }
        }
    }
    println!("report: {count} damaged bits in boot stores, all noticed");
}

#[test]
fn e35_every_damaged_byte_of_every_store_is_noticed_and_repaired() {
    let mut count = 0;
    for codec in codecs() {
        let state = states(&*codec)[4];
        let intact = holding(&*codec, &state);
        for place in places(&intact) {
            // All 255 other values of each byte; in a short run seventeen of them.
            for change in (1..=255_u8).step_by(if full() { 1 } else { 15 }) {
                check(&*codec, &intact, state, place, change);
                count += 1;
            }
        }
    }
    println!("report: {count} damaged bytes in boot stores, all noticed");
}
