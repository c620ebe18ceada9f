//! Why a cluster did not start, each with what to look at.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::{install::InstallError, parts::PartsError};

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Parts(#[from] PartsError),
    #[error(
        "port {port} on 127.0.0.1 is in use. Stop what listens there, or choose another port (or none, for a free one)."
    )]
    PortInUse { port: u16 },
    #[error("looking for a free port: {0}")]
    Ports(#[source] io::Error),
    #[error(
        "cannot write to the data directory {path}: {source}. Choose a directory that is writable, with --directory or TMPDIR."
    )]
    DirectoryNotWritable { path: PathBuf, source: io::Error },
    #[error(
        "the disk that holds the data directory {path} is full. Free about 500 MB, or choose another with --directory or TMPDIR."
    )]
    DirectoryFull { path: PathBuf },
    #[error("using the data directory {path}: {source}")]
    Directory { path: PathBuf, source: io::Error },
    #[error("making certificates: {0}")]
    Certificates(#[from] rcgen::Error),
    #[error("starting {part}: {source}")]
    Spawn { part: String, source: io::Error },
    #[error("{part} {what}. The end of its log ({}):\n{tail}", log.display())]
    PartFailed {
        part: String,
        what: String,
        log: PathBuf,
        tail: String,
    },
    #[error(transparent)]
    Install(#[from] InstallError),
    #[error("talking to the new cluster: {0}")]
    Client(#[source] Box<kube::Error>),
    #[error("attaching to the shared cluster described by {variable}={path}: {detail}")]
    Attach {
        variable: String,
        path: String,
        detail: String,
    },
    #[error("there is no shared cluster called {name:?}; there are {known}")]
    UnknownShared { name: String, known: String },
}

impl From<kube::Error> for StartError {
    fn from(error: kube::Error) -> StartError {
        StartError::Client(Box::new(error))
    }
}

impl StartError {
    /// Says whether a directory is full or not writable, which have different ways out.
    pub(crate) fn directory(path: &Path, source: io::Error) -> StartError {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StartError::DirectoryFull { path },
            io::ErrorKind::PermissionDenied
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::NotFound => StartError::DirectoryNotWritable { path, source },
            _ => StartError::Directory { path, source },
        }
    }
}
