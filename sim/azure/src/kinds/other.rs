//! Types that clusters refer to and that are kept as sent: enough for a reference to resolve.

use super::{Kind, Missing, PLAIN};

pub const KINDS: &[Kind] = &[
    Kind {
        path: "Microsoft.KeyVault/vaults",
        create: super::at_once(200),
        missing: Missing::Gateway,
        ..PLAIN
    },
    Kind {
        path: "Microsoft.OperationalInsights/workspaces",
        ..PLAIN
    },
];
