//! Boot stores as bytes: every state comes back as it was written, every damaged bit and byte is noticed, and a change
//! that is cut off anywhere leaves the state before it or the state after it.

mod corruption;
mod crash;
pub mod disk;
mod round_trip;

use slipway_slots::boot::{
    BootState, Codec, GptAttributes, Grubenv, Records, SlotBoot, SystemdBoot, UbootEnv,
};
use slipway_slots::{BySlot, Slot};

/// A small disk: the tables at both ends and room between.
pub const DISK: u64 = 1 << 20;

pub fn codecs() -> Vec<Box<dyn Codec>> {
    vec![
        Box::new(Records { offset: 0 }),
        Box::new(Grubenv),
        Box::new(UbootEnv {
            offsets: [0, 4096],
            size: 4096,
        }),
        Box::new(SystemdBoot {
            entries: BySlot {
                a: "title Slot A\nlinux /a/vmlinuz\noptions root=PARTLABEL=root-a".into(),
                b: "title Slot B\nlinux /b/vmlinuz\noptions root=PARTLABEL=root-b".into(),
            },
        }),
        Box::new(GptAttributes {
            disk_size: DISK,
            partitions: BySlot { a: 2, b: 3 },
            tries: 3,
        }),
    ]
}

/// Every state an agent and a boot loader can bring a store to.
pub fn states(codec: &dyn Codec) -> Vec<BootState> {
    let mut states = Vec::new();
    for good in Slot::BOTH {
        for other in [
            SlotBoot::Unbootable,
            SlotBoot::Good,
            SlotBoot::Trial { left: 3, of: 3 },
            SlotBoot::Trial { left: 2, of: 3 },
            SlotBoot::Trial { left: 0, of: 3 },
        ] {
            let mut slots = BySlot {
                a: SlotBoot::Good,
                b: SlotBoot::Good,
            };
            slots[good.other()] = other;
            for epoch in [0, 7] {
                let preferred = if other == SlotBoot::Unbootable {
                    good
                } else {
                    good.other()
                };
                states.push(BootState {
                    slots,
                    preferred,
                    // Partition attributes have no room for it.
                    epoch: if codec.name() == "gpt" { 0 } else { epoch },
                });
            }
        }
    }
    states
}
