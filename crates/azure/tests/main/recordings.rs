//! Reads the recordings and samples of the pinned module from Go's module cache. Nothing of them is kept here.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

use serde::Deserialize;
use serde_json::Value;

/// The module's folder; downloaded if it is not in the cache yet.
pub static MODULE: LazyLock<PathBuf> = LazyLock::new(|| {
    let pin = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../parts/aso-table");
    let output = Command::new("go")
        .args([
            "mod",
            "download",
            "-json",
            "github.com/Azure/azure-service-operator/v2",
        ])
        .current_dir(&pin)
        .output()
        .expect("go is installed");
    let found: Value = serde_json::from_slice(&output.stdout).expect("go describes the module");
    PathBuf::from(found["Dir"].as_str().expect("the module is in the cache"))
});

#[derive(Deserialize)]
struct File {
    interactions: Vec<RawExchange>,
}

#[derive(Deserialize)]
struct RawExchange {
    request: RawRequest,
    response: RawResponse,
}

#[derive(Deserialize)]
struct RawRequest {
    method: String,
    url: String,
    #[serde(default)]
    body: String,
}

#[derive(Deserialize)]
struct RawResponse {
    code: u16,
    #[serde(default)]
    body: String,
}

/// One recorded call.
#[derive(Debug)]
pub struct Exchange {
    pub method: String,
    /// Without host and query.
    pub path: String,
    pub api_version: String,
    pub sent: Value,
    pub status: u16,
    pub answer: Value,
}

fn parse(path: &Path) -> Vec<Exchange> {
    let text = std::fs::read_to_string(path).expect("a recording is readable");
    let options = serde_saphyr::options! { budget: None };
    let file: File = serde_saphyr::from_str_with_options(&text, options)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    file.interactions
        .into_iter()
        .map(|exchange| {
            let url = url::Url::parse(&exchange.request.url).expect("a recorded URL");
            let api_version = url
                .query_pairs()
                .find(|(key, _)| key == "api-version")
                .map(|(_, value)| value.into_owned())
                .unwrap_or_default();
            Exchange {
                method: exchange.request.method,
                path: url.path().to_owned(),
                api_version,
                sent: serde_json::from_str(&exchange.request.body).unwrap_or_default(),
                status: exchange.response.code,
                answer: serde_json::from_str(&exchange.response.body).unwrap_or_default(),
            }
        })
        .collect()
}

/// Every recording whose name has one of these words in it, by name.
pub fn named(words: &[&str]) -> Vec<(String, Vec<Exchange>)> {
    let folder = MODULE.join("internal/controllers/recordings");
    let mut paths: Vec<PathBuf> = [folder.clone(), folder.join("Test_Samples_CreationAndDeletion")]
        .iter()
        .flat_map(|folder| std::fs::read_dir(folder).expect("the recordings are there"))
        .map(|entry| entry.expect("a readable entry").path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.ends_with(".yaml") && words.iter().any(|word| name.contains(word))
        })
        .collect();
    paths.sort();
    paths
        .into_iter()
        .map(|path| {
            (
                path.file_stem().unwrap().to_string_lossy().into_owned(),
                parse(&path),
            )
        })
        .collect()
}

/// One folder of samples.
pub struct Set {
    /// The folder below `samples`.
    pub name: String,
    /// The sample manifests, references included.
    pub manifests: Vec<Value>,
}

impl Set {
    /// What was recorded while the samples were made and deleted. The recording is called by the last two folders.
    pub fn exchanges(&self) -> Option<Vec<Exchange>> {
        let mut folders = self.name.rsplit('/');
        let (version, group) = (folders.next()?, folders.next()?);
        let title = |word: &str| word[..1].to_uppercase() + &word[1..];
        let group: String = group.split('.').map(title).collect();
        let folder = MODULE.join("internal/controllers/recordings/Test_Samples_CreationAndDeletion");
        let path = folder.join(format!("Test_{group}_{version}_CreationAndDeletion.yaml"));
        path.exists().then(|| parse(&path))
    }
}

/// Every folder of samples, by name: most are of a group and version, some of a group, and some are below others.
pub fn sets() -> Vec<Set> {
    fn read(folder: &Path, found: &mut BTreeMap<PathBuf, Vec<Value>>) {
        let entries = std::fs::read_dir(folder).expect("the samples are there");
        let mut paths: Vec<PathBuf> = entries
            .map(|entry| entry.expect("a readable entry").path())
            .collect();
        paths.sort();
        for path in paths {
            if path.is_dir() {
                read(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "yaml") {
                let text = std::fs::read_to_string(&path).expect("a sample is readable");
                let manifest = serde_saphyr::from_str(&text)
                    .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                let is_reference = folder.ends_with("refs");
                let set = if is_reference {
                    folder.parent().unwrap()
                } else {
                    folder
                };
                found.entry(set.to_owned()).or_default().push(manifest);
            }
        }
    }
    let samples = MODULE.join("samples");
    let mut found = BTreeMap::new();
    read(&samples, &mut found);
    let name = |path: &Path| path.strip_prefix(&samples).unwrap().display().to_string();
    found
        .into_iter()
        .map(|(path, manifests)| Set {
            name: name(&path),
            manifests,
        })
        .collect()
}
