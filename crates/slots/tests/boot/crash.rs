//! A change that is cut off: whatever subset of its unflushed writes arrived, the store says what it said before or
//! what it was to say.

use slipway_slots::Slot;
use slipway_slots::boot::{BootChange, BootState, Codec, Contents, Step};

use super::disk::{apply, holding};
use super::{codecs, states};

const SECTOR: usize = 512;

/// Every smallest thing a disk or a filesystem does at once.
fn pieces(step: &Step, files_are_on_fat: bool) -> Vec<Step> {
    match step {
        Step::Write { offset, bytes } => bytes
            .chunks(SECTOR)
            .enumerate()
            .map(|(at, sector)| Step::Write {
                offset: offset + (at * SECTOR) as u64,
                bytes: sector.to_vec(),
            })
            .collect(),
        Step::Rename { from, to } if files_are_on_fat => vec![
            Step::Rename {
                from: from.clone(),
                to: to.clone(),
            },
            Step::Remove { name: from.clone() },
        ],
        other => vec![other.clone()],
    }
}

/// On FAT the new name may be there while the old one still is.
fn apply_piece(contents: &mut Contents, codec: &dyn Codec, step: &Step) {
    match (&mut *contents, step) {
        (Contents::Files(files), Step::Rename { from, to }) if codec.name() == "systemd-boot" => {
            if let Some(bytes) = files.get(from).cloned() {
                files.insert(to.clone(), bytes);
            }
        }
        _ => apply(contents, codec, step),
    }
}

/// Torn in the middle: the first half of the sector is new, the rest old; a file ends early.
fn tear(contents: &mut Contents, codec: &dyn Codec, step: &Step) -> bool {
    match step {
        Step::Write { offset, bytes } => {
            let half = Step::Write {
                offset: *offset,
                bytes: bytes[..bytes.len() / 2].to_vec(),
            };
            apply(contents, codec, &half);
            true
        }
        Step::WriteFile { name, bytes } => {
            let half = Step::WriteFile {
                name: name.clone(),
                bytes: bytes[..bytes.len() / 2].to_vec(),
            };
            apply(contents, codec, &half);
            true
        }
        _ => false,
    }
}

fn crash_states(codec: &dyn Codec, before: &Contents, steps: &[Step], mut visit: impl FnMut(Contents)) {
    let mut durable = before.clone();
    let mut epoch = Vec::new();
    for step in steps.iter().chain([&Step::Flush]) {
        if *step != Step::Flush {
            epoch.extend(pieces(step, codec.name() == "systemd-boot"));
            continue;
        }
        // Neighbouring sectors of one write count as one beyond eight of them.
        let subsets: Vec<u32> = if epoch.len() <= 12 {
            (0..1 << epoch.len()).collect()
        } else {
            let all = u32::MAX >> (32 - epoch.len());
            let mut subsets = vec![0, all];
            for one in 0..epoch.len() {
                subsets.push(all & !(1 << one));
                subsets.push(1 << one);
                subsets.push(all >> one);
                for two in 0..one {
                    subsets.push(all & !(1 << one) & !(1 << two));
                }
            }
            subsets
        };
        for subset in subsets {
            let mut contents = durable.clone();
            for (at, piece) in epoch.iter().enumerate() {
                if subset >> at & 1 == 1 {
                    apply_piece(&mut contents, codec, piece);
                }
            }
            // A tear beside every subset would say nothing new: beside none and all of the others it does.
            let (none, all) = (subset == 0, subset.count_ones() as usize == epoch.len());
            if none || all {
                for piece in &epoch {
                    let mut torn = contents.clone();
                    if tear(&mut torn, codec, piece) {
                        visit(torn);
                    }
                }
            }
            visit(contents);
        }
        for piece in epoch.drain(..) {
            apply_piece(&mut durable, codec, &piece);
        }
    }
}

/// GRUB and U-Boot have no word for the epoch in a change that is half done; the slots are what counts.
fn boots(state: &BootState) -> impl PartialEq + std::fmt::Debug {
    (state.slots, state.preferred)
}

/// What agent and boot loader can make of a state.
fn successors(before: &BootState) -> Vec<BootState> {
    let mut after: Vec<_> = before
        .next_boot()
        .map(|slot| before.after_boot_of(slot))
        .into_iter()
        .collect();
    for slot in Slot::BOTH {
        for change in [
            BootChange::MakeUnbootable(slot),
            BootChange::Arm { slot, tries: 3 },
            BootChange::Confirm {
                slot,
                epoch: before.epoch,
            },
        ] {
            after.extend(before.with(change));
        }
    }
    after
}

#[test]
fn e22_a_change_that_is_cut_off_anywhere_is_made_or_not_made_in_every_store() {
    for codec in codecs() {
        let mut count = 0;
        for before in states(&*codec) {
            for after in successors(&before) {
                let contents = holding(&*codec, &before);
                let steps = codec.encode(&contents, &after).expect("there is room");
                crash_states(&*codec, &contents, &steps, |crashed| {
                    count += 1;
                    let decoded = codec.decode(&crashed);
                    let Some(found) = decoded.state else {
                        panic!("{}: {before} to {after}: nothing is left", codec.name())
                    };
                    let allowed = boots(&found) == boots(&before)
                        || boots(&found) == boots(&after)
                        // One slot's entry after the other: only what may no longer boot has gone.
                        || (codec.name() == "systemd-boot" && found.next_boot().is_some_and(|slot| {
                            before.slots[slot].can_boot() || after.slots[slot].can_boot()
                        }));
                    assert!(allowed, "{}: {before} to {after}: it says {found}", codec.name());
                });
            }
        }
        println!("report: {}: {count} cut-off changes", codec.name());
    }
}
