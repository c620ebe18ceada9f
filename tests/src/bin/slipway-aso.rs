//! The `slipway` command with inline Azure resources alone, for stories.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut provider = slipway_aso::provider::provider();
    // In what ships, the other Azure provider brings them.
    provider.flags.extend(slipway_azure::setup::flags());
    provider.foreign_flags = slipway_aks::provider::provider().foreign_flags;
    slipway::run(vec![provider], std::env::args_os())
}
