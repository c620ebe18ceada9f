//! The Go sources of the parts, carried inside this crate: a program built from it needs no checkout, and a
//! change to them is a new cache key.

use std::{fs, path::Path};

use sha2::{Digest, Sha256};

use super::PartsError;

const FILES: &[(&str, &str)] = &[
    ("go.mod", include_str!("../../../parts/go.mod")),
    ("go.sum", include_str!("../../../parts/go.sum")),
    (
        "kubernetes/main.go",
        include_str!("../../../parts/kubernetes/main.go"),
    ),
    ("launch/main.go", include_str!("../../../parts/launch/main.go")),
];

/// Names what the parts are built from: the sources, the flags and the platform.
pub fn key(flags: &[&str]) -> String {
    let mut hash = Sha256::new();
    for (path, text) in FILES {
        hash.update(path);
        hash.update([0]);
        hash.update(text);
        hash.update([0]);
    }
    for flag in flags {
        hash.update(flag);
        hash.update([0]);
    }
    // What the manifests are rendered from changes with the modules; how, and how versions are stamped, with this number.
    hash.update(b"rendering 2");
    hash.update(std::env::consts::ARCH);
    hex::encode(&hash.finalize()[..8])
}

/// The version that go.mod asks of a module.
pub fn version(module: &str) -> &'static str {
    let (_, go_mod) = FILES[0];
    go_mod
        .lines()
        .filter_map(|line| line.trim().strip_prefix(module))
        .find_map(|rest| rest.strip_prefix(' '))
        .and_then(|rest| rest.split_whitespace().next())
        .unwrap_or("v0.0.0")
}

/// Writes the Go module to `directory`.
pub fn write(directory: &Path) -> Result<(), PartsError> {
    for (path, text) in FILES {
        let path = directory.join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|source| PartsError::cache(parent, source))?;
        }
        fs::write(&path, text).map_err(|source| PartsError::cache(&path, source))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_the_pins() {
        assert_eq!(version("k8s.io/kubernetes"), "v1.36.3");
        assert_eq!(version("sigs.k8s.io/cluster-api"), "v1.14.2");
        assert_eq!(version("example.com/unknown"), "v0.0.0");
    }

    #[test]
    fn another_flag_is_another_build() {
        assert_ne!(key(&["a"]), key(&["a", "b"]));
        assert_ne!(key(&["ab"]), key(&["a", "b"]));
    }
}
