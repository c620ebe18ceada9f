//! systemd-boot's entries with boot counting: one file a slot in `loader/entries`, whose name tells the tries.
//!
//! `slipway-b.conf` is confirmed, `slipway-b+2-1.conf` is on trial with two tries left and one done, no file means
//! that the slot may not boot. systemd-boot shows the entry with the higher `version` first and one without tries
//! last. The ESP is FAT, where a rename is not atomic, so the confirmed entry is never touched while the other changes.

use std::collections::BTreeMap;

use crate::{BySlot, Slot};

use super::{BootState, Codec, CodecError, Contents, Decoded, Layout, MAX_TRIES, SlotBoot, Step};

const PREFIX: &str = "slipway-";
const EPOCH: &str = "slipway-epoch";
const TEMPORARY: &str = "slipway-new";

/// The directory `loader/entries` of the EFI system partition.
#[derive(Clone, Debug)]
pub struct SystemdBoot {
    /// What stands in each slot's entry beside what this codec writes: `title`, `linux`, `initrd`, `options`, `efi`.
    pub entries: BySlot<String>,
}

/// One file of a slot.
#[derive(Clone, Debug)]
struct Entry {
    name: String,
    boot: SlotBoot,
    rank: u64,
}

impl SystemdBoot {
    fn entry(&self, slot: Slot, rank: u64, tries: u8) -> Vec<u8> {
        let body = format!(
            "sort-key slipway\nversion {rank}\n{}\n",
            self.entries[slot].trim_end()
        );
        let head = format!("# slipway slot {slot}, rank {rank}, tries {tries}, sum ");
        let sum = crc32fast::hash(format!("{head}\n{body}").as_bytes());
        format!("{head}{sum:08x}\n{body}").into_bytes()
    }

    /// Slot, entry and complaint for one file name; `None` for a file that is not an entry.
    fn read(&self, name: &str, bytes: &[u8], problems: &mut Vec<String>) -> Option<(Slot, Entry)> {
        let stem = name.strip_prefix(PREFIX)?.strip_suffix(".conf")?;
        let (slot, counters) = match stem.split_once('+') {
            Some((slot, counters)) => (slot, Some(counters)),
            None => (stem, None),
        };
        let slot: Slot = slot.parse().ok()?;
        let number = |text: &str| text.parse::<u8>().ok().filter(|_| text.len() == 1);
        let counted = counters.map(|counters| {
            let (left, done) = counters.split_once('-').unwrap_or((counters, "0"));
            (number(left), number(done))
        });
        let header = std::str::from_utf8(bytes).ok().and_then(header);
        let complaint = match header {
            Some((rank, tries)) if self.entry(slot, rank, tries) == bytes => None,
            _ => Some("is damaged"),
        };
        let (rank, tries) = header.unwrap_or((0, 0));
        let mut complaints: Vec<_> = complaint.into_iter().collect();
        let boot = match counted {
            None => SlotBoot::Good,
            Some((Some(left), Some(done))) => {
                if left + done != tries {
                    complaints.push("has counters that do not add up");
                }
                let of = tries.max(left).clamp(1, MAX_TRIES);
                SlotBoot::Trial {
                    left: left.min(of),
                    of,
                }
            }
            Some(_) => {
                complaints.push("has counters that cannot be read");
                SlotBoot::Trial { left: 0, of: 1 }
            }
        };
        problems.extend(
            complaints
                .into_iter()
                .map(|complaint| format!("{name} {complaint}")),
        );
        let name = name.to_owned();
        Some((slot, Entry { name, boot, rank }))
    }

    fn entries(&self, contents: &Contents) -> (BySlot<Vec<Entry>>, u64, Vec<String>) {
        let mut problems = Vec::new();
        let mut found = BySlot::<Vec<Entry>>::default();
        let Contents::Files(files) = contents else {
            return (found, 0, vec!["it is not a directory".to_owned()]);
        };
        for (name, bytes) in files {
            if let Some((slot, entry)) = self.read(name, bytes, &mut problems) {
                found[slot].push(entry);
            } else if name != EPOCH {
                problems.push(format!("{name} was left behind"));
            }
        }
        for slot in Slot::BOTH {
            if found[slot].len() > 1 {
                problems.push(format!("slot {slot} has more than one entry"));
            }
        }
        let epoch = epoch(files, &mut problems);
        (found, epoch, problems)
    }
}

impl Codec for SystemdBoot {
    fn name(&self) -> &'static str {
        "systemd-boot"
    }

    fn layout(&self) -> Layout {
        Layout::Files {
            prefix: PREFIX.to_owned(),
        }
    }

    fn decode(&self, contents: &Contents) -> Decoded {
        let (found, epoch, mut problems) = self.entries(contents);
        if found.a.is_empty() && found.b.is_empty() {
            problems.push("there is no entry for any slot".to_owned());
            return Decoded {
                state: None,
                problems,
            };
        }
        let best = BySlot::each(|slot| found[slot].iter().max_by_key(|entry| trust(entry.boot)));
        let preferred = match (best.a, best.b) {
            (Some(a), Some(b)) if b.rank > a.rank => Slot::B,
            (None, Some(_)) => Slot::B,
            _ => Slot::A,
        };
        let state = BootState {
            slots: BySlot::each(|slot| best[slot].map_or(SlotBoot::Unbootable, |entry| entry.boot)),
            preferred,
            epoch,
        };
        Decoded {
            state: Some(state),
            problems,
        }
    }

    fn encode(&self, contents: &Contents, state: &BootState) -> Result<Vec<Step>, CodecError> {
        let decoded = self.decode(contents);
        if decoded.state == Some(*state) && decoded.problems.is_empty() {
            return Ok(Vec::new());
        }
        let (found, _, _) = self.entries(contents);
        let Contents::Files(files) = contents else {
            return Err(CodecError::Layout {
                store: "systemd-boot",
                what: "it is not a directory".to_owned(),
            });
        };
        let mut steps = Vec::new();
        let epoch = epoch_file(state.epoch);
        if files.get(EPOCH) != Some(&epoch) {
            replace(EPOCH, epoch, &mut steps);
        }
        let highest = Slot::BOTH
            .iter()
            .flat_map(|slot| &found[*slot])
            .map(|entry| entry.rank)
            .max()
            .unwrap_or(0);
        // What may no longer boot goes first, then the preferred slot gets its entry, then the fallback's is repaired.
        let mut order = [state.preferred, state.preferred.other()];
        order.sort_by_key(|slot| state.slots[*slot] != SlotBoot::Unbootable);
        for slot in order {
            let boot = state.slots[slot];
            let name = match boot {
                SlotBoot::Unbootable => None,
                SlotBoot::Good => Some(format!("{PREFIX}{}.conf", letter(slot))),
                SlotBoot::Trial { left, of } if left == of => {
                    Some(format!("{PREFIX}{}+{left}.conf", letter(slot)))
                }
                SlotBoot::Trial { left, of } => {
                    Some(format!("{PREFIX}{}+{left}-{}.conf", letter(slot), of - left))
                }
            };
            if let Some(name) = &name {
                let tries = match boot {
                    SlotBoot::Trial { of, .. } => of,
                    _ => 0,
                };
                let rank = rank(slot, state, &found, highest);
                let bytes = self.entry(slot, rank, tries);
                if files.get(name) != Some(&bytes) {
                    replace(name, bytes, &mut steps);
                }
            }
            let stale: Vec<_> = found[slot]
                .iter()
                .filter(|entry| Some(&entry.name) != name.as_ref())
                .map(|entry| Step::Remove {
                    name: entry.name.clone(),
                })
                .collect();
            if !stale.is_empty() {
                steps.extend(stale);
                steps.push(Step::Flush);
            }
        }
        let left_behind: Vec<_> = files
            .keys()
            .filter(|name| *name != EPOCH && self.read(name, &[], &mut Vec::new()).is_none())
            .map(|name| Step::Remove { name: name.clone() })
            .collect();
        if !left_behind.is_empty() {
            steps.extend(left_behind);
            steps.push(Step::Flush);
        }
        Ok(steps)
    }
}

/// The preferred slot's rank is above the other's; a rank that is right already stays.
fn rank(slot: Slot, state: &BootState, found: &BySlot<Vec<Entry>>, highest: u64) -> u64 {
    let of = |slot: Slot| found[slot].iter().map(|entry| entry.rank).max();
    let (own, other) = (of(slot), of(slot.other()));
    match own {
        _ if slot != state.preferred => own.unwrap_or(0),
        Some(own) if other.is_none_or(|other| own > other) => own,
        _ => highest + 1,
    }
}

/// Of two entries of one slot after an interrupted rename: a confirmed one was confirmed; of two counted ones the
/// lower count is the later.
fn trust(boot: SlotBoot) -> (bool, u8) {
    match boot {
        SlotBoot::Unbootable => (false, 0),
        SlotBoot::Trial { left, .. } => (false, u8::MAX - left),
        SlotBoot::Good => (true, 0),
    }
}

fn letter(slot: Slot) -> char {
    slot.letter().to_ascii_lowercase()
}

/// Rank and tries from the first line of an entry.
fn header(text: &str) -> Option<(u64, u8)> {
    let line = text.lines().next()?;
    let (_, rest) = line.split_once(", rank ")?;
    let (rank, rest) = rest.split_once(", tries ")?;
    let (tries, _) = rest.split_once(", sum ")?;
    Some((
        rank.parse().ok().filter(|rank| *rank < u64::MAX)?,
        tries.parse().ok().filter(|tries| *tries <= MAX_TRIES)?,
    ))
}

fn epoch_file(epoch: u64) -> Vec<u8> {
    let text = format!("epoch {epoch} ");
    format!("{text}{:08x}\n", crc32fast::hash(text.as_bytes())).into_bytes()
}

fn epoch(files: &BTreeMap<String, Vec<u8>>, problems: &mut Vec<String>) -> u64 {
    let Some(bytes) = files.get(EPOCH) else {
        problems.push(format!("{EPOCH} is missing"));
        return 0;
    };
    let epoch = std::str::from_utf8(bytes)
        .ok()
        .and_then(|text| text.strip_prefix("epoch "))
        .and_then(|text| text.split_once(' '))
        .and_then(|(epoch, _)| epoch.parse().ok())
        .filter(|epoch| epoch_file(*epoch) == *bytes);
    if epoch.is_none() {
        problems.push(format!("{EPOCH} is damaged"));
    }
    epoch.unwrap_or(0)
}

/// The file is complete and durable before it gets its name.
fn replace(name: &str, bytes: Vec<u8>, steps: &mut Vec<Step>) {
    steps.push(Step::WriteFile {
        name: TEMPORARY.to_owned(),
        bytes,
    });
    steps.push(Step::Flush);
    steps.push(Step::Rename {
        from: TEMPORARY.to_owned(),
        to: name.to_owned(),
    });
    steps.push(Step::Flush);
}
