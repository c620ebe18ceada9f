//! GRUB's environment block with RAUC's variable names, and a second copy of it for when the first is damaged.
//!
//! GRUB writes its block in place, sector by sector, and the format has no checksum. So all variables of ours stand
//! in the first sector with values of constant length, a sum of ours covers those that GRUB does not change, the two
//! counters it does change must add up, and a slot that may not boot is named in two ways at once.

use std::collections::BTreeMap;

use crate::{BySlot, Slot};

use super::{BootState, Codec, CodecError, Contents, Decoded, Layout, MAX_TRIES, SlotBoot, Step};

const HEADER: &str = "# GRUB Environment Block\n";
const SIZE: usize = 1024;
/// What GRUB reads and writes.
pub const FILE: &str = "grubenv";
/// Written before it, read by GRUB only when [`FILE`] cannot be used.
pub const SHADOW: &str = "grubenv.shadow";
const TEMPORARY: &str = "grubenv.new";

/// Variables of this agent, in the order they are written; all others are left as they are.
const OURS: [&str; 10] = [
    "ORDER",
    "A_OK",
    "A_TRY",
    "B_OK",
    "B_TRY",
    "SLIPWAY_TRIAL",
    "SLIPWAY_TRIES",
    "SLIPWAY_LEFT",
    "SLIPWAY_EPOCH",
    "SLIPWAY_SUM",
];

/// The directory of `grubenv`, on a filesystem that GRUB can write to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Grubenv;

type Variables = BTreeMap<String, String>;

impl Codec for Grubenv {
    fn name(&self) -> &'static str {
        "grubenv"
    }

    fn layout(&self) -> Layout {
        Layout::Files {
            prefix: FILE.to_owned(),
        }
    }

    fn decode(&self, contents: &Contents) -> Decoded {
        let Contents::Files(files) = contents else {
            return Decoded {
                state: None,
                problems: vec!["it is not a directory".to_owned()],
            };
        };
        let mut problems = Vec::new();
        let mut states = [FILE, SHADOW].map(|name| {
            let bytes = files.get(name).map(Vec::as_slice);
            let Some(bytes) = bytes else {
                problems.push(format!("{name} is missing"));
                return None;
            };
            match Block::read(bytes) {
                Ok(block) => {
                    problems.extend(block.problems.iter().map(|problem| format!("{name}: {problem}")));
                    block.trusted.then_some(block.state)
                }
                Err(problem) => {
                    problems.push(format!("{name}: {problem}"));
                    None
                }
            }
        });
        if let [Some(state), Some(shadow)] = states
            && without_tries(state) != without_tries(shadow)
        {
            problems.push(format!("{SHADOW} is of an interrupted change"));
        }
        if files.contains_key(TEMPORARY) {
            problems.push(format!("{TEMPORARY} was left behind"));
        }
        let [state, shadow] = &mut states;
        Decoded {
            state: state.take().or(shadow.take()),
            problems,
        }
    }

    fn encode(&self, contents: &Contents, state: &BootState) -> Result<Vec<Step>, CodecError> {
        let Contents::Files(files) = contents else {
            return Err(CodecError::Layout {
                store: "grubenv",
                what: "it is not a directory".to_owned(),
            });
        };
        let decoded = self.decode(contents);
        if decoded.state == Some(*state) && decoded.problems.is_empty() {
            return Ok(Vec::new());
        }
        let foreign = files
            .get(FILE)
            .and_then(|bytes| lines(bytes).ok())
            .map(|lines| {
                lines
                    .into_iter()
                    .filter(|(name, _)| !OURS.contains(&name.as_str()))
                    .collect::<Vec<_>>()
            })
            .unwrap_or_default();
        let bytes = write(state, &foreign)?;
        let mut steps = Vec::new();
        if files.contains_key(TEMPORARY) {
            steps.push(Step::Remove {
                name: TEMPORARY.to_owned(),
            });
        }
        for name in [SHADOW, FILE] {
            steps.push(Step::WriteFile {
                name: TEMPORARY.to_owned(),
                bytes: bytes.clone(),
            });
            steps.push(Step::Flush);
            steps.push(Step::Rename {
                from: TEMPORARY.to_owned(),
                to: name.to_owned(),
            });
            steps.push(Step::Flush);
        }
        Ok(steps)
    }
}

/// GRUB counts in one of the two files only.
fn without_tries(mut state: BootState) -> BootState {
    for slot in Slot::BOTH {
        if let SlotBoot::Trial { left, of } = &mut state.slots[slot] {
            *left = *of;
        }
    }
    state
}

struct Block {
    state: BootState,
    /// The sum is right, or nobody of ours ever wrote here.
    trusted: bool,
    problems: Vec<String>,
}

impl Block {
    fn read(bytes: &[u8]) -> Result<Self, String> {
        let lines = lines(bytes)?;
        let variables: Variables = lines.iter().cloned().collect();
        let mut problems = Vec::new();
        if variables.len() != lines.len() {
            problems.push("a variable is there twice".to_owned());
        }
        let get = |name: &str| variables.get(name).map_or("", String::as_str);
        let ours = variables.contains_key("SLIPWAY_SUM");
        let mut trusted = true;
        if !ours {
            problems.push("it was not written by this agent".to_owned());
            trusted = variables.contains_key("ORDER");
        } else if get("SLIPWAY_SUM") != sum(&variables) {
            problems.push("its sum is wrong".to_owned());
            trusted = false;
        }
        let order: Vec<_> = get("ORDER")
            .split(' ')
            .filter_map(|name| name.parse::<Slot>().ok())
            .collect();
        let digit = |name: &str| match get(name).as_bytes() {
            [digit @ b'0'..=b'9'] => Some(digit - b'0'),
            _ => None,
        };
        let trial = get("SLIPWAY_TRIAL").parse::<Slot>().ok();
        let remaining = digit("SLIPWAY_LEFT");
        if ours && (remaining.is_none() || trial.is_none() && remaining != Some(0)) {
            problems.push("SLIPWAY_LEFT is missing, or counts though no slot is on trial".to_owned());
        }
        let mut slots = BySlot {
            a: SlotBoot::Unbootable,
            b: SlotBoot::Unbootable,
        };
        for slot in Slot::BOTH {
            let ok = digit(&format!("{slot}_OK"));
            let tried = digit(&format!("{slot}_TRY"));
            if ok.is_none() || tried.is_none() {
                problems.push(format!("{slot}_OK or {slot}_TRY is not a digit"));
            }
            let named = order.contains(&slot);
            if named != (ok == Some(1)) {
                problems.push(format!("ORDER and {slot}_OK disagree"));
            }
            if trial != Some(slot) && tried != Some(0) {
                problems.push(format!("{slot}_TRY counts though the slot is not on trial"));
            }
            if !named || ok != Some(1) {
                continue;
            }
            slots[slot] = SlotBoot::Good;
            if trial != Some(slot) {
                continue;
            }
            let of = digit("SLIPWAY_TRIES").unwrap_or(1).clamp(1, MAX_TRIES);
            let (tried, by_left) = (tried.unwrap_or(of), digit("SLIPWAY_LEFT").unwrap_or(0));
            let by_tried = of.saturating_sub(tried);
            if tried + by_left != of {
                problems.push(format!(
                    "{slot}_TRY and SLIPWAY_LEFT do not add up to SLIPWAY_TRIES"
                ));
            }
            slots[slot] = SlotBoot::Trial {
                left: by_tried.min(by_left),
                of,
            };
        }
        let state = BootState {
            slots,
            preferred: order.first().copied().unwrap_or(Slot::A),
            epoch: get("SLIPWAY_EPOCH").parse().unwrap_or(0),
        };
        Ok(Self {
            state,
            trusted,
            problems,
        })
    }
}

/// Names and values, or what is wrong with the block. GRUB's escapes stay as they are.
fn lines(bytes: &[u8]) -> Result<Vec<(String, String)>, String> {
    if bytes.len() != SIZE {
        return Err(format!("it has {} bytes instead of {SIZE}", bytes.len()));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not text".to_owned())?;
    let text = text.strip_prefix(HEADER).ok_or("it has no header")?;
    let mut lines = Vec::new();
    let mut rest = text;
    // grub-editenv warns of other tools in a comment.
    while let Some((comment, after)) = rest.split_once('\n')
        && comment.starts_with("# ")
    {
        rest = after;
    }
    while !rest.is_empty() && !rest.starts_with('#') {
        let (line, after) = rest.split_once('\n').ok_or("a line does not end")?;
        let (name, value) = line.split_once('=').ok_or("a line has no value")?;
        lines.push((name.to_owned(), value.to_owned()));
        rest = after;
    }
    if rest.bytes().any(|byte| byte != b'#') {
        return Err("something stands after its end".to_owned());
    }
    Ok(lines)
}

/// Over what only this agent changes.
fn sum(variables: &Variables) -> String {
    let mut hasher = crc32fast::Hasher::new();
    for name in [
        "ORDER",
        "A_OK",
        "B_OK",
        "SLIPWAY_TRIAL",
        "SLIPWAY_TRIES",
        "SLIPWAY_EPOCH",
    ] {
        hasher.update(variables.get(name).map_or("", String::as_str).as_bytes());
        hasher.update(b"\n");
    }
    format!("{:08x}", hasher.finalize())
}

fn write(state: &BootState, foreign: &[(String, String)]) -> Result<Vec<u8>, CodecError> {
    let mut variables = Variables::new();
    let mut set = |name: &str, value: String| variables.insert(name.to_owned(), value);
    let order: Vec<_> = [state.preferred, state.preferred.other()]
        .into_iter()
        .filter(|slot| state.slots[*slot] != SlotBoot::Unbootable)
        .map(|slot| slot.to_string())
        .collect();
    set("ORDER", order.join(" "));
    let (mut trial, mut tries, mut remaining) = ("-".to_owned(), 0, 0);
    for slot in Slot::BOTH {
        let boot = state.slots[slot];
        set(
            &format!("{slot}_OK"),
            u8::from(boot != SlotBoot::Unbootable).to_string(),
        );
        let mut tried = 0;
        if let SlotBoot::Trial { left, of } = boot {
            if trial != "-" {
                return Err(CodecError::NoRoom {
                    store: "grubenv",
                    what: "it holds one slot on trial, not two".to_owned(),
                });
            }
            (trial, tries, remaining, tried) = (slot.to_string(), of, left, of - left);
        }
        set(&format!("{slot}_TRY"), tried.to_string());
    }
    set("SLIPWAY_TRIAL", trial);
    set("SLIPWAY_TRIES", tries.to_string());
    set("SLIPWAY_LEFT", remaining.to_string());
    set("SLIPWAY_EPOCH", format!("{:020}", state.epoch));
    let sum = sum(&variables);
    variables.insert("SLIPWAY_SUM".to_owned(), sum);
    let mut text = HEADER.to_owned();
    for name in OURS {
        text.extend([name, "=", &variables[name], "\n"]);
    }
    for (name, value) in foreign {
        text.extend([name, "=", value, "\n"]);
    }
    if text.len() > SIZE {
        return Err(CodecError::NoRoom {
            store: "grubenv",
            what: format!("its variables take {} of {SIZE} bytes", text.len()),
        });
    }
    let mut bytes = text.into_bytes();
    bytes.resize(SIZE, b'#');
    Ok(bytes)
}
