//! The real parts: what they are, where they lie in the per-user cache, and how they get there.
//! Owns the cache directory and is the only place that runs the `go` command.

mod build;
mod error;
mod manifests;
mod sources;
mod upstream;

use std::{
    fs,
    path::{Path, PathBuf},
};

pub use build::Builder;
pub use error::PartsError;
pub(crate) use manifests::parse as parse_yaml;
use serde_json::Value;
pub use sources::version as version_of;
pub use upstream::{BuiltUpstream, Upstream};

/// A program built from pinned Go modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Starts the others so that they die with their parent.
    Launch,
    /// etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl in one binary.
    Kubernetes,
    /// Cluster API's core manager.
    ClusterApi,
    /// Cluster API's kubeadm bootstrap manager.
    KubeadmBootstrap,
    /// Cluster API's kubeadm control plane manager.
    KubeadmControlPlane,
    Clusterctl,
    /// Plays the kubelet for nodes that do not exist.
    Kwok,
}

impl Part {
    pub const ALL: [Part; 7] = [
        Part::Launch,
        Part::Kubernetes,
        Part::ClusterApi,
        Part::KubeadmBootstrap,
        Part::KubeadmControlPlane,
        Part::Clusterctl,
        Part::Kwok,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Part::Launch => "launch",
            Part::Kubernetes => "kubernetes",
            Part::ClusterApi => "cluster-api",
            Part::KubeadmBootstrap => "kubeadm-bootstrap",
            Part::KubeadmControlPlane => "kubeadm-control-plane",
            Part::Clusterctl => "clusterctl",
            Part::Kwok => "kwok",
        }
    }

    /// The part called `name`, or the names there are.
    pub fn named(name: &str) -> Result<Part, PartsError> {
        Part::ALL
            .into_iter()
            .find(|part| part.name() == name)
            .ok_or_else(|| PartsError::UnknownPart {
                name: name.to_owned(),
                known: Part::ALL.map(Part::name).join(", "),
            })
    }

    /// The Go package it is built from.
    fn package(self) -> &'static str {
        match self {
            Part::Launch => "./launch",
            Part::Kubernetes => "./kubernetes",
            Part::ClusterApi => "sigs.k8s.io/cluster-api/core",
            Part::KubeadmBootstrap => "sigs.k8s.io/cluster-api/bootstrap/kubeadm",
            Part::KubeadmControlPlane => "sigs.k8s.io/cluster-api/controlplane/kubeadm",
            Part::Clusterctl => "sigs.k8s.io/cluster-api/cmd/clusterctl",
            Part::Kwok => "sigs.k8s.io/kwok/cmd/kwok",
        }
    }

    /// What the linker tells the program about its own version. A program built as a dependency does not know it,
    /// and others decide by the API server's.
    fn version_flags(self) -> String {
        let (prefix, module) = match self {
            Part::Launch | Part::Kwok => return String::new(),
            Part::Kubernetes => ("k8s.io/component-base/version", "k8s.io/kubernetes"),
            _ => ("sigs.k8s.io/cluster-api/version", "sigs.k8s.io/cluster-api"),
        };
        let version = sources::version(module);
        let mut numbers = version.trim_start_matches('v').split('.');
        let (major, minor) = (
            numbers.next().unwrap_or_default(),
            numbers.next().unwrap_or_default(),
        );
        format!(
            " -X {prefix}.gitVersion={version} -X {prefix}.gitMajor={major} -X {prefix}.gitMinor={minor} \
             -X {prefix}.gitTreeState=clean"
        )
    }
}

/// Kubernetes objects that come with the parts, rendered from the pinned modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manifest {
    ClusterApi,
    KubeadmBootstrap,
    KubeadmControlPlane,
    /// The CRDs of clusterctl's inventory, which `clusterctl move` needs.
    Clusterctl,
    /// kwok's stages for nodes and pods.
    KwokStages,
}

impl Manifest {
    pub const ALL: [Manifest; 5] = [
        Manifest::ClusterApi,
        Manifest::KubeadmBootstrap,
        Manifest::KubeadmControlPlane,
        Manifest::Clusterctl,
        Manifest::KwokStages,
    ];

    fn file(self) -> &'static str {
        match self {
            Manifest::ClusterApi => "cluster-api.json",
            Manifest::KubeadmBootstrap => "kubeadm-bootstrap.json",
            Manifest::KubeadmControlPlane => "kubeadm-control-plane.json",
            Manifest::Clusterctl => "clusterctl.json",
            Manifest::KwokStages => "kwok-stages.json",
        }
    }
}

/// Built parts in the cache.
#[derive(Clone, Debug)]
pub struct Parts {
    directory: PathBuf,
}

impl Parts {
    /// Every part, built now if it is not in the cache yet; progress goes to stderr.
    pub fn ready() -> Result<Parts, PartsError> {
        Builder::new()?.build(&Part::ALL)
    }

    /// Parts that were built into `directory` before.
    pub fn at(directory: impl Into<PathBuf>) -> Parts {
        Parts {
            directory: directory.into(),
        }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn binary(&self, part: Part) -> PathBuf {
        self.directory.join("bin").join(part.name())
    }

    /// The objects of a manifest, as the module ships them.
    pub fn manifest(&self, manifest: Manifest) -> Result<Vec<Value>, PartsError> {
        let path = self.manifest_path(manifest);
        let text = fs::read(&path).map_err(|source| PartsError::cache(&path, source))?;
        serde_json::from_slice(&text).map_err(|source| PartsError::Manifest {
            path,
            detail: source.to_string(),
        })
    }

    fn manifest_path(&self, manifest: Manifest) -> PathBuf {
        self.directory.join("manifests").join(manifest.file())
    }

    fn has(&self, part: Part) -> bool {
        self.binary(part).is_file()
    }

    fn has_manifests(&self) -> bool {
        Manifest::ALL
            .into_iter()
            .all(|manifest| self.manifest_path(manifest).is_file())
    }
}
