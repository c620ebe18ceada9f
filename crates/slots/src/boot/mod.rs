//! What a boot loader reads to choose a slot, in one model for every boot store, and the bytes of each.
//!
//! A store is read whole ([`Contents`]), understood ([`Decoded`]), and changed by a list of [`Step`]s whose order and
//! flushes make it safe to lose power between, and within, any two of them.

mod contents;
pub mod gpt;
pub mod grubenv;
mod model;
mod records;
mod systemd_boot;
mod uboot;

pub use contents::{Codec, CodecError, Contents, Decoded, Extent, Layout, Step};
pub use gpt::GptAttributes;
pub use grubenv::Grubenv;
pub use model::{BootChange, BootState, ChangeRefused, MAX_TRIES, SlotBoot};
pub use records::Records;
pub use systemd_boot::SystemdBoot;
pub use uboot::UbootEnv;
