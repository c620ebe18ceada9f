//! The `slipway` command with K3s and edge hosts, for stories.

use std::process::ExitCode;

fn main() -> ExitCode {
    slipway::run(
        vec![slipway_k3s::provider(), slipway_edge::provider::provider()],
        std::env::args_os(),
    )
}
