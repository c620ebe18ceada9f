//! What a boot loader reads to choose a slot, in one model for every boot store, and the bytes of each.
//!
//! A store is read whole ([`Contents`]), understood ([`Decoded`]), and changed by a list of [`Step`]s whose order and
//! flushes make it safe to lose power between, and within, any two of them.

mod contents;
mod model;

pub use contents::{Codec, CodecError, Contents, Decoded, Extent, Layout, Step};
pub use model::{BootChange, BootState, ChangeRefused, MAX_TRIES, SlotBoot};
