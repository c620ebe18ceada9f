//! Compiles the messages with a compiler written in Rust, so that no `protoc` is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["compute.proto", "storage.proto", "security.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .build_transport(false)
        // What holds secrets is never printed: `secret.rs` says how.
        .skip_debug([
            ".moc.cloudagent.compute.ScriptSource",
            ".moc.cloudagent.compute.InstanceView",
            ".moc.cloudagent.compute.GalleryImage",
            ".moc.cloudagent.storage.VirtualHardDisk",
            ".moc.cloudagent.security.Identity",
            ".moc.cloudagent.security.AuthenticationResponse",
        ])
        .compile_fds(files)?;
    Ok(())
}
