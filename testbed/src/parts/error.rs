//! What can go wrong before a part runs, each with the way out.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::build::OLDEST_GO;

#[derive(Debug, thiserror::Error)]
pub enum PartsError {
    #[error(
        "Go is not installed (no `{program}` to run), and the real parts are not built yet. \
         Install Go {OLDEST_GO} or newer (https://go.dev/dl), put it on PATH and run this again."
    )]
    GoMissing { program: String },
    #[error(
        "Go is too old to build the real parts: {found}, and {OLDEST_GO} or newer is needed. \
         Install a newer Go (https://go.dev/dl), put it first on PATH and run this again."
    )]
    GoTooOld { found: String },
    #[error("running `{command}`: {source}")]
    Go { command: String, source: io::Error },
    #[error(
        "downloading the Go modules of the real parts failed. Check the network, or point GOPROXY at a module \
         proxy this machine can reach, and run this again; what is built already is kept.\ngo said:\n{detail}"
    )]
    Download { detail: String },
    #[error("building {part} failed.\ngo said:\n{detail}")]
    Build { part: &'static str, detail: String },
    #[error(
        "the disk that holds the parts cache {path} is full. Free about 5 GB, or set XDG_CACHE_HOME (and GOCACHE \
         and GOMODCACHE, where Go keeps its own) to a directory with room, and run this again."
    )]
    CacheFull { path: PathBuf },
    #[error(
        "cannot write to the parts cache {path}: {source}. Make it writable, or set XDG_CACHE_HOME to a directory \
         that is, and run this again."
    )]
    CacheNotWritable { path: PathBuf, source: io::Error },
    #[error("using the parts cache at {path}: {source}")]
    Cache { path: PathBuf, source: io::Error },
    #[error("there is no cache directory: neither XDG_CACHE_HOME nor HOME is set. Set one of them.")]
    NoCacheDirectory,
    #[error("reading the manifest {path}: {detail}. Remove that file and run `cargo xtask parts`.")]
    Manifest { path: PathBuf, detail: String },
    #[error("rendering {manifest}: {detail}")]
    Render { manifest: String, detail: String },
    #[error("there is no part called {name:?}; there are {known}")]
    UnknownPart { name: String, known: String },
}

impl PartsError {
    /// Says whether the cache is full or not writable, which have different ways out.
    pub(super) fn cache(path: &Path, source: io::Error) -> PartsError {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => PartsError::CacheFull { path },
            io::ErrorKind::PermissionDenied
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::NotADirectory => PartsError::CacheNotWritable { path, source },
            _ => PartsError::Cache { path, source },
        }
    }
}
