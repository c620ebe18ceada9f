//! Reads recorded ARM traffic from the Go module that carries it. Nothing of it is kept in this repository.

use std::{path::PathBuf, process::Command};

use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Debug, Deserialize)]
struct File {
    interactions: Vec<Interaction>,
}

#[derive(Debug, Deserialize)]
pub struct Interaction {
    pub request: RecordedRequest,
    pub response: RecordedResponse,
}

#[derive(Debug, Deserialize)]
pub struct RecordedRequest {
    #[serde(default)]
    pub body: String,
    pub url: String,
    pub method: String,
}

#[derive(Debug, Deserialize)]
pub struct RecordedResponse {
    #[serde(default)]
    pub body: String,
    #[serde(default)]
    pub headers: BTreeMap<String, Vec<String>>,
    pub code: u16,
}

impl RecordedResponse {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .and_then(|(_, values)| values.first())
            .map(String::as_str)
    }
}

/// The folder with the recordings: the module is downloaded when it is not in the module cache.
pub fn folder() -> PathBuf {
    let module = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../parts/aso");
    let output = Command::new("go")
        .args(["mod", "download", "-json", "github.com/Azure/azure-service-operator/v2"])
        .current_dir(&module)
        .output()
        .unwrap_or_else(|error| {
            panic!("conformance needs the recordings in the Go module pinned by parts/aso, and `go` cannot be run: {error}")
        });
    let text = String::from_utf8_lossy(&output.stdout);
    let answer: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let folder = answer["Dir"].as_str().unwrap_or_else(|| {
        panic!(
            "conformance needs the recordings in the Go module pinned by parts/aso, and `go mod download` did not get it: {} {}",
            answer["Error"].as_str().unwrap_or_default(),
            String::from_utf8_lossy(&output.stderr)
        )
    });
    PathBuf::from(folder).join("internal/controllers/recordings")
}

/// Recordings by path below the folder, without `.yaml`.
pub fn names(wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let root = folder();
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)
            .expect("the module is readable")
            .flatten()
        {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path
                .strip_prefix(&root)
                .expect("below the root")
                .with_extension("")
                .to_string_lossy()
                .into_owned();
            if path.extension().is_some_and(|extension| extension == "yaml") && wanted(&name) {
                found.push(name);
            }
        }
    }
    found.sort();
    found
}

pub fn read(name: &str) -> Vec<Interaction> {
    let path = folder().join(format!("{name}.yaml"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let file: File = serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
    file.interactions
}
