//! The `azure-sim` binary.

fn main() {}
