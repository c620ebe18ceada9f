//! U-Boot's redundant environment with RAUC's variable names.
//!
//! U-Boot believes the copy with the higher flags byte, and that byte is outside the checksum. So a change writes both
//! copies, the one that does not count first: a flipped flag then leads to the same state.

use crate::{BySlot, Slot};

use super::{BootState, Codec, CodecError, Contents, Decoded, Extent, Layout, MAX_TRIES, SlotBoot, Step};

/// The checksum and the flags byte.
const HEADER: usize = 5;
/// What a confirmed slot's counter says: boot scripts that count every boot never reach zero between two starts of
/// the agent.
const GOOD_LEFT: u8 = 3;

/// The flags this agent wrote a copy with. U-Boot carries it along unchanged, so it tells a flipped flag.
const WRITTEN: &str = "slipway_flags";

const OURS: [&str; 7] = [
    "BOOT_ORDER",
    "BOOT_A_LEFT",
    "BOOT_B_LEFT",
    "slipway_trial",
    "slipway_tries",
    "slipway_epoch",
    WRITTEN,
];

/// Two environments of `size` bytes (`CONFIG_ENV_SIZE`) at these offsets of one device.
#[derive(Clone, Copy, Debug)]
pub struct UbootEnv {
    pub offsets: [u64; 2],
    pub size: u64,
}

struct Copy {
    flags: u8,
    variables: Vec<(String, String)>,
}

impl Copy {
    fn written(&self) -> Option<u8> {
        self.variables
            .iter()
            .rfind(|(name, _)| name == WRITTEN)
            .and_then(|(_, value)| value.parse().ok())
    }

    /// Whether this copy can have been made from `older`: by us, or by U-Boot, which takes our variable along.
    fn follows(&self, older: &Self) -> bool {
        let not_before = |copy: &Self| {
            copy.written()
                .is_none_or(|written| copy.flags.wrapping_sub(written) < 128)
        };
        let written = self.written();
        self.flags.wrapping_sub(older.flags) == 1
            && not_before(older)
            && (written.is_none() || written == Some(self.flags) || written == older.written())
    }
}

impl UbootEnv {
    fn copies(contents: &Contents) -> ([Option<Copy>; 2], Vec<String>) {
        let mut problems = Vec::new();
        let Contents::Extents(extents) = contents else {
            return ([None, None], vec!["it is not a device".to_owned()]);
        };
        let copies = [0, 1].map(|at| {
            let copy = extents.get(at).and_then(|bytes| read(bytes));
            if copy.is_none() {
                problems.push(format!("copy {at} is damaged"));
            }
            copy
        });
        if let ([Some(first), Some(second)], Some(active)) = (&copies, Self::active(&copies)) {
            let (newer, older) = if active == 0 {
                (first, second)
            } else {
                (second, first)
            };
            if !newer.follows(older) {
                problems.push("the flags of the copies do not follow each other".to_owned());
            }
        }
        (copies, problems)
    }

    /// The copy U-Boot takes.
    fn active(copies: &[Option<Copy>; 2]) -> Option<usize> {
        match copies {
            [None, None] => None,
            [Some(_), None] => Some(0),
            [None, Some(_)] => Some(1),
            [Some(first), Some(second)] => Some(match (first.flags, second.flags) {
                (255, 0) => 1,
                (0, 255) => 0,
                (first, second) => usize::from(second > first),
            }),
        }
    }
}

impl Codec for UbootEnv {
    fn name(&self) -> &'static str {
        "uboot"
    }

    fn layout(&self) -> Layout {
        Layout::Extents(
            self.offsets
                .map(|offset| Extent {
                    offset,
                    length: self.size,
                })
                .to_vec(),
        )
    }

    fn decode(&self, contents: &Contents) -> Decoded {
        let (copies, mut problems) = Self::copies(contents);
        let active = Self::active(&copies);
        let state = active.and_then(|at| copies[at].as_ref()).map(|copy| {
            let (state, complaint) = understand(&copy.variables);
            problems.extend(complaint);
            state
        });
        Decoded { state, problems }
    }

    fn encode(&self, contents: &Contents, state: &BootState) -> Result<Vec<Step>, CodecError> {
        let decoded = self.decode(contents);
        if decoded.state == Some(*state) && decoded.problems.is_empty() {
            return Ok(Vec::new());
        }
        let (copies, _) = Self::copies(contents);
        let active = Self::active(&copies);
        let foreign: Vec<_> = active
            .and_then(|at| copies[at].as_ref())
            .into_iter()
            .flat_map(|copy| &copy.variables)
            .filter(|(name, _)| !OURS.contains(&name.as_str()))
            .cloned()
            .collect();
        let variables = describe(state, foreign)?;
        let flags = active
            .and_then(|at| copies[at].as_ref())
            .map_or(0, |copy| copy.flags);
        let first = active.map_or(0, |at| 1 - at);
        let mut steps = Vec::new();
        for (count, at) in [first, 1 - first].into_iter().enumerate() {
            let flags = flags.wrapping_add(count as u8 + 1);
            let mut variables = variables.clone();
            variables.push((WRITTEN.to_owned(), flags.to_string()));
            steps.push(Step::Write {
                offset: self.offsets[at],
                bytes: write(&variables, flags, self.size as usize)?,
            });
            steps.push(Step::Flush);
        }
        Ok(steps)
    }
}

fn read(bytes: &[u8]) -> Option<Copy> {
    let (header, data) = bytes.split_at_checked(HEADER)?;
    if crc32fast::hash(data).to_le_bytes() != header[..4] {
        return None;
    }
    let end = data.windows(2).position(|pair| pair == [0, 0])?;
    let text = std::str::from_utf8(&data[..end]).ok()?;
    let variables = text
        .split('\0')
        .filter(|variable| !variable.is_empty())
        .map(|variable| variable.split_once('='))
        .map(|pair| pair.map(|(name, value)| (name.to_owned(), value.to_owned())))
        .collect::<Option<_>>()?;
    Some(Copy {
        flags: header[4],
        variables,
    })
}

fn write(variables: &[(String, String)], flags: u8, size: usize) -> Result<Vec<u8>, CodecError> {
    let mut data = Vec::with_capacity(size);
    for (name, value) in variables {
        data.extend_from_slice(format!("{name}={value}\0").as_bytes());
    }
    data.push(0);
    if data.len() + HEADER > size {
        return Err(CodecError::NoRoom {
            store: "uboot",
            what: format!("its variables take {} of {size} bytes", data.len() + HEADER),
        });
    }
    data.resize(size - HEADER, 0);
    let mut bytes = crc32fast::hash(&data).to_le_bytes().to_vec();
    bytes.push(flags);
    bytes.extend_from_slice(&data);
    Ok(bytes)
}

fn understand(variables: &[(String, String)]) -> (BootState, Option<String>) {
    let get = |name: &str| {
        variables
            .iter()
            .rfind(|(known, _)| known == name)
            .map_or("", |(_, value)| value.as_str())
    };
    let order: Vec<_> = get("BOOT_ORDER")
        .split(' ')
        .filter_map(|name| name.parse::<Slot>().ok())
        .collect();
    let trial = get("slipway_trial").parse::<Slot>().ok();
    let slots = BySlot::each(|slot| {
        if !order.contains(&slot) {
            return SlotBoot::Unbootable;
        }
        if trial != Some(slot) {
            return SlotBoot::Good;
        }
        let of = get("slipway_tries").parse().unwrap_or(1).clamp(1, MAX_TRIES);
        // U-Boot's `setexpr` writes hexadecimal, which is the same for one digit.
        let left = get(&format!("BOOT_{slot}_LEFT")).parse().unwrap_or(0).min(of);
        SlotBoot::Trial { left, of }
    });
    let state = BootState {
        slots,
        preferred: order.first().copied().unwrap_or(Slot::A),
        epoch: get("slipway_epoch").parse().unwrap_or(0),
    };
    let complaint = order
        .is_empty()
        .then(|| "BOOT_ORDER names no slot: the environment was reset or never set up".to_owned());
    (state, complaint)
}

fn describe(state: &BootState, foreign: Vec<(String, String)>) -> Result<Vec<(String, String)>, CodecError> {
    let mut variables = Vec::new();
    let mut set = |name: &str, value: String| variables.push((name.to_owned(), value));
    let order: Vec<_> = [state.preferred, state.preferred.other()]
        .into_iter()
        .filter(|slot| state.slots[*slot] != SlotBoot::Unbootable)
        .map(|slot| slot.to_string())
        .collect();
    set("BOOT_ORDER", order.join(" "));
    let mut trial = None;
    for slot in Slot::BOTH {
        let remaining = match state.slots[slot] {
            SlotBoot::Unbootable => 0,
            SlotBoot::Good => GOOD_LEFT,
            SlotBoot::Trial { left, of } => {
                if trial.replace((slot, of)).is_some() {
                    return Err(CodecError::NoRoom {
                        store: "uboot",
                        what: "it holds one slot on trial, not two".to_owned(),
                    });
                }
                left
            }
        };
        set(&format!("BOOT_{slot}_LEFT"), remaining.to_string());
    }
    if let Some((slot, of)) = trial {
        set("slipway_trial", slot.to_string());
        set("slipway_tries", of.to_string());
    }
    set("slipway_epoch", state.epoch.to_string());
    variables.extend(foreign);
    Ok(variables)
}
