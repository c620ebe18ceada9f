//! What a machine is made of: Debian's packages as `install.sh` unpacks them, and the programs that put a disk together.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Debian's packages, unpacked over each other.
pub struct Parts {
    root: PathBuf,
    pub kernel: PathBuf,
    modules: PathBuf,
}

impl Parts {
    /// `None`, and said aloud, where something is missing that the machine needs.
    pub fn find(programs: &[&str], files: &[&str]) -> Option<Self> {
        let mut missing: Vec<String> = programs
            .iter()
            .filter(|program| Command::new(program).arg("--version").output().is_err())
            .chain(files.iter().filter(|file| !Path::new(file).exists()))
            .map(|name| (*name).to_owned())
            .collect();
        let parts = Self::unpacked();
        if parts.is_none() {
            missing.push("Debian's packages for the guest".to_owned());
        }
        if missing.is_empty() {
            return parts;
        }
        println!(
            "report: skipped: real machines need {}; crates/agent/tests/machine/install.sh gets them",
            missing.join(", ")
        );
        None
    }

    fn unpacked() -> Option<Self> {
        let cache = std::env::var_os("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
        let root = cache.join("slipway/machine/current/root");
        let kernel = fs::read_dir(root.join("boot"))
            .ok()?
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.to_string_lossy().contains("/vmlinuz-"))?;
        let version = kernel.file_name()?.to_str()?.strip_prefix("vmlinuz-")?.to_owned();
        Some(Self {
            modules: root.join("lib/modules").join(version).join("kernel"),
            kernel,
            root,
        })
    }

    /// A file of the packages, wherever below `/` they have it.
    pub fn file(&self, path: &str) -> PathBuf {
        [self.root.join(path), self.root.join("usr").join(path)]
            .into_iter()
            .find(|found| found.exists())
            .unwrap_or_else(|| panic!("no package has {path}"))
    }

    /// The modules and those they need, in the order they are loaded. A module says itself what it depends on.
    pub fn modules(&self, names: &[&str]) -> Vec<PathBuf> {
        let mut all = Vec::new();
        files_below(&self.modules, &mut all);
        let mut ordered = Vec::new();
        for name in names {
            load(name, &all, &mut ordered);
        }
        ordered
    }

    /// The shared libraries of these programs and theirs in turn, from the packages.
    pub fn libraries(&self, programs: &[PathBuf]) -> Vec<PathBuf> {
        let mut all = Vec::new();
        for folder in ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"] {
            files_below(&self.root.join(folder), &mut all);
        }
        let mut known = BTreeSet::new();
        let mut found = Vec::new();
        let mut open = programs.to_vec();
        while let Some(program) = open.pop() {
            for name in needed_libraries(&program) {
                if !known.insert(name.clone()) {
                    continue;
                }
                let path = all
                    .iter()
                    .find(|path| path.file_name().is_some_and(|file| file == name.as_str()))
                    .unwrap_or_else(|| panic!("{} needs {name}, which no package has", program.display()));
                found.push(path.clone());
                open.push(path.clone());
            }
        }
        found
    }
}

fn load(name: &str, all: &[PathBuf], ordered: &mut Vec<PathBuf>) {
    let file = format!("{name}.ko");
    let path = all
        .iter()
        .find(|path| path.file_name().is_some_and(|found| found == file.as_str()))
        .unwrap_or_else(|| panic!("the kernel has no module {name}"));
    if ordered.contains(path) {
        return;
    }
    let bytes = fs::read(path).expect("a module");
    for needed in text_after(&bytes, b"\0depends=")
        .split(',')
        .filter(|name| !name.is_empty())
    {
        load(needed, all, ordered);
    }
    ordered.push(path.clone());
}

fn files_below(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            files_below(&entry.path(), into);
        } else {
            into.push(entry.path());
        }
    }
}

fn text_after<'a>(bytes: &'a [u8], key: &[u8]) -> &'a str {
    let Some(at) = bytes.windows(key.len()).position(|window| window == key) else {
        return "";
    };
    let rest = &bytes[at + key.len()..];
    let end = rest.iter().position(|byte| *byte == 0).unwrap_or(0);
    std::str::from_utf8(&rest[..end]).unwrap_or_default()
}

fn needed_libraries(program: &Path) -> Vec<String> {
    let output = Command::new("readelf")
        .arg("-d")
        .arg(program)
        .output()
        .expect("readelf runs");
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| Some(line.split_once('[')?.1.split_once(']')?.0.to_owned()))
        .collect()
}
