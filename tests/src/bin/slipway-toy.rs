//! `slipway` with the toy provider: the real command line, so that stories run it as a process.

use std::process::ExitCode;

fn main() -> ExitCode {
    slipway::run(vec![slipway_tests::toy::provider()], std::env::args_os())
}
