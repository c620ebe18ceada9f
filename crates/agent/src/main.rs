//! The `slipway-agent` binary: parses arguments and composes the parts of the library.

use clap::Parser;

#[derive(Parser)]
#[command(name = "slipway-agent", version, about = "Keeps the A/B slots of a host")]
struct Arguments {}

fn main() {
    let Arguments {} = Arguments::parse();
}
