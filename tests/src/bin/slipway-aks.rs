//! The `slipway` command with AKS alone, for stories.

use std::process::ExitCode;

fn main() -> ExitCode {
    slipway::run(vec![slipway_aks::provider::provider()], std::env::args_os())
}
