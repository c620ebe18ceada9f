//! authorization
use super::Kind;
pub const KINDS: &[Kind] = &[];
