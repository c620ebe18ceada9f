//! The `slipway` command with K3s alone, for stories.

use std::process::ExitCode;

fn main() -> ExitCode {
    slipway::run(vec![slipway_k3s::provider()], std::env::args_os())
}
