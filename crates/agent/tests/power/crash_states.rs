//! Every state that a power cut can leave behind, from a log of writes and flushes.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use slipway_slots::boot::Step;

use crate::support::disks::{Device, DiskWrite, Disks, Event, SECTOR, StoreBytes};
use crate::support::host::Kind;

pub struct Bounds {
    /// Every subset of so many unflushed writes; of more, omissions and seeded subsets.
    pub subsets_up_to: usize,
    pub seeded: usize,
    /// Every n-th sector of a write is lost on its own.
    pub tear_every: usize,
    /// At every event of a long epoch, not only where it is longest.
    pub omissions_everywhere: bool,
}

#[derive(Default)]
pub struct Counts {
    pub prefixes: usize,
    pub subsets: usize,
    pub omissions: usize,
    pub tears: usize,
    pub seeded: usize,
}

/// The smallest things that happen at once. On FAT a rename is two of them.
fn pieces(device: Device, change: &DiskWrite, kind: Kind) -> Vec<(Device, Piece)> {
    match change {
        DiskWrite::Step(Step::Rename { from, to }) if kind == Kind::SystemdBoot => vec![
            (
                device,
                Piece::Link {
                    from: from.clone(),
                    to: to.clone(),
                },
            ),
            (
                device,
                Piece::Whole(DiskWrite::Step(Step::Remove { name: from.clone() })),
            ),
        ],
        change => vec![(device, Piece::Whole(change.clone()))],
    }
}

#[derive(Clone, Debug)]
enum Piece {
    Whole(DiskWrite),
    /// The new name of a file, while the old one is still there.
    Link {
        from: String,
        to: String,
    },
}

impl Piece {
    fn apply(&self, disks: &mut Disks, device: Device) {
        match self {
            Self::Whole(change) => disks.apply(device, change),
            Self::Link { from, to } => {
                if let StoreBytes::Files(files) = &mut disks.store
                    && let Some(bytes) = files.get(from).cloned()
                {
                    files.insert(to.clone(), bytes);
                }
            }
        }
    }

    /// This piece without each of its sectors in turn, and cut off in the middle of each.
    fn torn(&self, every: usize) -> Vec<Vec<DiskWrite>> {
        let Self::Whole(change) = self else {
            return Vec::new();
        };
        match change {
            DiskWrite::Bytes { offset, bytes } => {
                let part = |from: usize, to: usize| DiskWrite::Bytes {
                    offset: offset + from as u64,
                    bytes: bytes[from.min(bytes.len())..to.min(bytes.len())].to_vec(),
                };
                (0..bytes.len().div_ceil(SECTOR))
                    .step_by(every)
                    .flat_map(|sector| {
                        let at = sector * SECTOR;
                        [
                            vec![part(0, at), part(at + SECTOR, bytes.len())],
                            vec![part(0, at + SECTOR / 2)],
                        ]
                    })
                    .collect()
            }
            DiskWrite::Append(bytes) => (0..bytes.len())
                .step_by(every * 7)
                .map(|end| vec![DiskWrite::Append(bytes[..end].to_vec())])
                .collect(),
            DiskWrite::Step(Step::WriteFile { name, bytes }) => (0..bytes.len())
                .step_by(64 * every)
                .map(|end| {
                    vec![DiskWrite::Step(Step::WriteFile {
                        name: name.clone(),
                        bytes: bytes[..end].to_vec(),
                    })]
                })
                .collect(),
            DiskWrite::Step(_) | DiskWrite::Replace(_) => Vec::new(),
        }
    }

    /// GRUB writes over its block in place: a tear leaves the other sector as it was.
    fn is_in_place(&self, disks: &Disks) -> bool {
        match (self, &disks.store) {
            (Self::Whole(DiskWrite::Step(Step::WriteFile { name, .. })), StoreBytes::Files(files)) => {
                files.contains_key(name)
            }
            _ => false,
        }
    }
}

/// Visits each state with a description; the same state may come more than once.
pub fn crash_states(
    start: &Disks,
    log: &[Event],
    kind: Kind,
    bounds: &Bounds,
    mut visit: impl FnMut(&Disks, &str),
) -> Counts {
    let mut counts = Counts::default();
    let mut durable = start.clone();
    let mut pending: Vec<(Device, Piece)> = Vec::new();
    for (at, event) in log.iter().enumerate() {
        match event {
            Event::Write(device, change) => pending.extend(pieces(*device, change, kind)),
            Event::Flush(flushed) => {
                pending.retain(|(device, piece)| {
                    if device == flushed {
                        piece.apply(&mut durable, *device);
                    }
                    device != flushed
                });
            }
        }
        counts.prefixes += 1;
        let mut one = |chosen: &dyn Fn(usize) -> bool, what: &str| {
            let mut disks = durable.clone();
            for (number, (device, piece)) in pending.iter().enumerate() {
                if chosen(number) {
                    piece.apply(&mut disks, *device);
                }
            }
            visit(&disks, &format!("after event {at}, {what}"));
        };
        let writes = pending.len();
        one(&|_| true, "everything arrived");
        if writes <= bounds.subsets_up_to {
            for subset in 0..1_usize << writes {
                one(
                    &|number| subset >> number & 1 == 1,
                    &format!("subset {subset:#b}"),
                );
                counts.subsets += 1;
            }
        } else {
            one(&|_| false, "nothing arrived");
            let last = matches!(log.get(at + 1), None | Some(Event::Flush(_)));
            let omitted = if last || bounds.omissions_everywhere {
                writes
            } else {
                0
            };
            for first in 0..omitted {
                one(&|number| number != first, &format!("without {first}"));
                counts.omissions += 1;
                for second in 0..first {
                    one(
                        &|number| number != first && number != second,
                        &format!("without {first} and {second}"),
                    );
                    counts.omissions += 1;
                }
            }
            // A long epoch is sampled once, where it is longest: at its last event.
            if last {
                let mut random = StdRng::seed_from_u64(at as u64);
                for _ in 0..bounds.seeded {
                    let chosen: Vec<bool> = (0..writes).map(|_| random.random()).collect();
                    one(&|number| chosen[number], &format!("seeded subset {chosen:?}"));
                    counts.seeded += 1;
                }
            }
        }
        if let Event::Write(..) = event {
            counts.tears += torn_states(&durable, &pending, bounds.tear_every, |disks, what| {
                visit(disks, &format!("after event {at}, {what}"));
            });
        }
    }
    counts
}

/// The newest write is torn; the others arrived, or none of them did. How many states that are.
fn torn_states(
    durable: &Disks,
    pending: &[(Device, Piece)],
    every: usize,
    mut visit: impl FnMut(&Disks, &str),
) -> usize {
    let Some(((device, piece), before)) = pending.split_last() else {
        return 0;
    };
    let mut count = 0;
    for others in [true, false] {
        let mut base = durable.clone();
        for (device, piece) in before.iter().filter(|_| others) {
            piece.apply(&mut base, *device);
        }
        let in_place = piece.is_in_place(&base);
        for (tear, changes) in piece.torn(every).into_iter().enumerate() {
            let mut disks = base.clone();
            for change in &changes {
                if in_place && let DiskWrite::Step(Step::WriteFile { name, bytes }) = change {
                    if let StoreBytes::Files(files) = &mut disks.store
                        && let Some(old) = files.get_mut(name)
                        && bytes.len() % SECTOR == 0
                    {
                        old[..bytes.len()].copy_from_slice(bytes);
                    }
                } else {
                    disks.apply(*device, change);
                }
            }
            visit(&disks, &format!("torn at {tear}, others {others}"));
            count += 1;
        }
    }
    count
}
