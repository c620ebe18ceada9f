//! The module of Cluster API Provider Azure that `parts/capz/go.mod` pins.

use std::{path::PathBuf, process::Command};

use serde_json::Value;

const MODULE: &str = "sigs.k8s.io/cluster-api-provider-azure@v1.21.0";

fn folder() -> PathBuf {
    let output = Command::new("go")
        .args(["mod", "download", "-json", MODULE])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../parts/capz"))
        .output()
        .unwrap_or_else(|error| panic!("go cannot be run ({error}): this test needs Go to find {MODULE}"));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let Some(directory) = answer["Dir"].as_str() else {
        panic!(
            "{MODULE} cannot be had; run `go mod download {MODULE}` in parts/capz: {} {}",
            answer["Error"],
            String::from_utf8_lossy(&output.stderr)
        )
    };
    directory.into()
}

/// A file of the module.
pub fn text(path: &str) -> String {
    let path = folder().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A document of a file, however large.
pub fn document(text: &str) -> Value {
    serde_saphyr::from_str_with_options(text, serde_saphyr::options! { budget: None })
        .unwrap_or_else(|error| panic!("{error}\n{text}"))
}
