//! Types that clusters refer to and that are kept as sent: enough for a reference to resolve.

use super::{Kind, PLAIN, polled};
use crate::operation::Style;

pub const KINDS: &[Kind] = &[
    Kind {
        path: "Microsoft.MachineLearningServices/workspaces",
        style: Style::MachineLearning,
        create: polled(202, true, true, None),
        update: polled(202, true, true, None),
        unchanged: polled(202, true, true, None),
        ..PLAIN
    },
    Kind {
        path: "Microsoft.OperationalInsights/workspaces",
        ..PLAIN
    },
];
