//! Resource groups: written at once, deleted with all they hold in a while.

use super::{Kind, Missing, PLAIN, polled};
use crate::operation::Style;

pub const KINDS: &[Kind] = &[Kind {
    path: "Microsoft.Resources/resourceGroups",
    style: Style::ResourceGroups,
    delete: polled(202, false, true, Some(15)),
    missing: Missing::Gateway,
    ..PLAIN
}];
