//! The `slipway` command. Thin: it composes the providers and runs the command line over them.

use std::process::ExitCode;

use slipway_runtime::Provider;

/// The providers of this binary, in the order they are listed and started.
fn providers() -> Vec<Provider> {
    vec![slipway_aks::provider::provider(), slipway_k3s::provider()]
}

fn main() -> ExitCode {
    slipway::run(providers(), std::env::args_os())
}
