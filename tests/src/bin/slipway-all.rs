//! The `slipway` command with every provider that ships, for stories.

use std::process::ExitCode;

fn main() -> ExitCode {
    slipway::run(
        vec![
            slipway_aks::provider::provider(),
            slipway_aso::provider::provider(),
            slipway_k3s::provider(),
            slipway_autoscaler::provider(),
        ],
        std::env::args_os(),
    )
}
