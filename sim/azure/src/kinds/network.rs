//! network
use super::Kind;
pub const KINDS: &[Kind] = &[];
