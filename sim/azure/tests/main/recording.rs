//! Reads recorded ARM traffic from the Go modules that carry it. Nothing of it is kept in this repository.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

use serde::Deserialize;

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

/// A recording of one of the pinned modules.
#[derive(Debug)]
pub struct Recording {
    /// Version of the module and path below its recordings, without `.yaml`.
    pub name: String,
    path: PathBuf,
}

/// Where each pinned module keeps its recordings.
const MODULES: &[(&str, &[&str])] = &[
    ("parts/aso", &["internal/controllers/recordings"]),
    (
        "parts/aso-recordings",
        &[
            "internal/controllers/recordings",
            "internal/testsamples/recordings",
        ],
    ),
];

/// Version and folder of a pinned module, which is downloaded when it is not in the module cache.
fn module(pin: &str) -> (String, PathBuf) {
    let needed = format!("conformance needs the recordings in the Go module pinned by {pin}");
    let output = Command::new("go")
        .args([
            "mod",
            "download",
            "-json",
            "github.com/Azure/azure-service-operator/v2",
        ])
        .current_dir(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(pin))
        .output()
        .unwrap_or_else(|error| panic!("{needed}, and `go` cannot be run: {error}"));
    let text = String::from_utf8_lossy(&output.stdout);
    let answer: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    match (answer["Version"].as_str(), answer["Dir"].as_str()) {
        (Some(version), Some(folder)) => (version.to_owned(), PathBuf::from(folder)),
        _ => panic!(
            "{needed}, and `go mod download` did not get it: {} {}",
            answer["Error"].as_str().unwrap_or_default(),
            String::from_utf8_lossy(&output.stderr)
        ),
    }
}

/// Recordings of all pinned modules; one that a newer module carries unchanged comes once.
pub fn all(chosen: impl Fn(&str) -> bool) -> Vec<Recording> {
    let mut found: Vec<Recording> = Vec::new();
    for (pin, folders) in MODULES {
        let (version, root) = module(pin);
        for folder in *folders {
            let root = root.join(folder);
            for (name, path) in below(&root) {
                let old = found
                    .iter()
                    .find(|old| old.name.split_once(' ').is_some_and(|(_, old)| old == name));
                let is_same = old.is_some_and(|old| bytes(&old.path) == bytes(&path));
                if chosen(&name) && !is_same {
                    found.push(Recording {
                        name: format!("{version} {name}"),
                        path,
                    });
                }
            }
        }
    }
    found
}

fn bytes(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Recordings below a folder by name, in order.
fn below(root: &Path) -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)
            .expect("the module is readable")
            .flatten()
        {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "yaml") {
                let name = path
                    .strip_prefix(root)
                    .expect("below the root")
                    .with_extension("");
                found.insert(name.to_string_lossy().into_owned(), path);
            }
        }
    }
    found
}

pub fn read(recording: &Recording) -> Vec<Interaction> {
    let text = String::from_utf8(bytes(&recording.path)).expect("a recording is text");
    let file: File =
        serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", recording.name));
    file.interactions
}
