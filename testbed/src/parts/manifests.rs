//! Renders the objects that come with the parts from the pinned modules, once, as JSON that a start reads fast.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;

use super::{Manifest, Part, Parts, PartsError};

const CLUSTER_API: &str = "sigs.k8s.io/cluster-api";
const KWOK: &str = "sigs.k8s.io/kwok";

/// Renders every manifest that is missing; `module` finds a module's directory.
pub fn render(parts: &Parts, module: impl Fn(&str) -> Result<PathBuf, PartsError>) -> Result<(), PartsError> {
    let cluster_api = module(CLUSTER_API)?;
    let kwok = module(KWOK)?;
    for manifest in Manifest::ALL {
        let objects = match manifest {
            Manifest::ClusterApi => kustomize(parts, &cluster_api.join("core/config/default")),
            Manifest::KubeadmBootstrap => {
                kustomize(parts, &cluster_api.join("bootstrap/kubeadm/config/default"))
            }
            Manifest::KubeadmControlPlane => {
                kustomize(parts, &cluster_api.join("controlplane/kubeadm/config/default"))
            }
            Manifest::Clusterctl => files(&cluster_api.join("cmd/clusterctl/config/crd/bases")),
            Manifest::KwokStages => {
                let stages = kwok.join("kustomize/stage");
                let mut objects = Vec::new();
                for directory in ["node/fast", "node/heartbeat-with-lease", "pod/fast"] {
                    objects.extend(kustomize(parts, &stages.join(directory))?);
                }
                Ok(objects)
            }
        }?;
        let directory = parts.directory().join("manifests");
        fs::create_dir_all(&directory).map_err(|source| PartsError::cache(&directory, source))?;
        write(&parts.manifest_path(manifest), objects)?;
    }
    Ok(())
}

/// Writes objects as one JSON file, whole or not at all.
pub(super) fn write(path: &Path, objects: Vec<Value>) -> Result<(), PartsError> {
    let unfinished = path.with_extension("unfinished");
    fs::write(&unfinished, Value::Array(objects).to_string())
        .and_then(|()| fs::rename(&unfinished, path))
        .map_err(|source| PartsError::cache(path, source))
}

pub(super) fn kustomize(parts: &Parts, directory: &Path) -> Result<Vec<Value>, PartsError> {
    let failed = |detail: String| PartsError::Render {
        manifest: directory.display().to_string(),
        detail,
    };
    let output = Command::new(parts.binary(Part::Kubernetes))
        .args(["kubectl", "kustomize"])
        .arg(directory)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    parse(&String::from_utf8_lossy(&output.stdout)).map_err(failed)
}

pub(super) fn files(directory: &Path) -> Result<Vec<Value>, PartsError> {
    let failed = |detail: String| PartsError::Render {
        manifest: directory.display().to_string(),
        detail,
    };
    let mut paths: Vec<PathBuf> = fs::read_dir(directory)
        .map_err(|error| failed(error.to_string()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    paths.sort();
    let mut objects = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path).map_err(|error| failed(error.to_string()))?;
        objects.extend(parse(&text).map_err(failed)?);
    }
    Ok(objects)
}

/// Reads a stream of YAML documents.
pub fn parse(text: &str) -> Result<Vec<Value>, String> {
    // The budget guards against hostile input; these come from pinned modules and are large.
    let options = serde_saphyr::options! { budget: None };
    let documents: Vec<Value> =
        serde_saphyr::from_str_multiple_with_options(text, options).map_err(|error| error.to_string())?;
    Ok(documents
        .into_iter()
        .filter(|document| !document.is_null())
        .collect())
}
