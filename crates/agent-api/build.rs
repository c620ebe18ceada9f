//! Compiles the protocol with a compiler written in Rust, so that no `protoc` is needed, and lists its methods.

use std::{fmt::Write, fs, path::Path};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/agent.proto");
    let files = protox::compile(["agent.proto"], ["proto"])?;
    let mut methods =
        String::from("/// Every method of the protocol, by its path.\npub const METHODS: &[&str] = &[\n");
    for file in &files.file {
        for service in &file.service {
            for method in &service.method {
                writeln!(
                    methods,
                    "    \"/{}.{}/{}\",",
                    file.package(),
                    service.name(),
                    method.name()
                )?;
            }
        }
    }
    methods.push_str("];\n");
    fs::write(Path::new(&std::env::var("OUT_DIR")?).join("methods.rs"), methods)?;
    tonic_prost_build::configure()
        .build_transport(false)
        // What holds secrets is never printed: `secret.rs` says how.
        .skip_debug([
            ".slipway.agent.v1.RegistryCredentials",
            ".slipway.agent.v1.EnvironmentVariable",
            ".slipway.agent.v1.RunBootstrap",
            ".slipway.agent.v1.JoinRequest",
            ".slipway.agent.v1.CommandResult",
            ".slipway.agent.v1.Output",
        ])
        .compile_fds(files)?;
    Ok(())
}
