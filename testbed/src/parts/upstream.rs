//! Controllers of other projects that tests and comparisons run beside ours. Each is built on demand from a Go module
//! of its own, so that a pin here never rebuilds the parts everybody needs.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{
    Parts, PartsError,
    build::{Builder, FLAGS, LINKER_FLAGS, Program, tail},
    manifests,
};

/// The groups whose definitions Azure Service Operator is given.
const GROUPS: [&str; 6] = [
    "authorization",
    "containerservice",
    "kubernetesconfiguration",
    "managedidentity",
    "network",
    "resources",
];

const OPERATOR: &str = "github.com/Azure/azure-service-operator/v2";
const PROVIDER: &str = "sigs.k8s.io/cluster-api-provider-azure";
const K3S: &str = "github.com/k3s-io/cluster-api-k3s";
const CONTROLLER_GEN: Module = Module {
    name: "controller-gen",
    package: "sigs.k8s.io/controller-tools/cmd/controller-gen",
    go_mod: include_str!("../../../parts/controller-gen/go.mod"),
    go_sum: include_str!("../../../parts/controller-gen/go.sum"),
};

/// A controller that is not ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Upstream {
    /// Azure Service Operator.
    Aso,
    /// Cluster API Provider Azure.
    Capz,
    /// The bootstrap provider of cluster-api-k3s.
    K3sBootstrap,
    /// The control plane provider of cluster-api-k3s.
    K3sControlPlane,
}

/// A Go module that holds one program.
struct Module {
    name: &'static str,
    package: &'static str,
    go_mod: &'static str,
    go_sum: &'static str,
}

impl Upstream {
    pub const ALL: [Upstream; 4] = [
        Upstream::Aso,
        Upstream::Capz,
        Upstream::K3sBootstrap,
        Upstream::K3sControlPlane,
    ];

    pub fn name(self) -> &'static str {
        self.module().name
    }

    /// upstream called `name`, if there is one.
    pub fn named(name: &str) -> Option<Upstream> {
        Upstream::ALL.into_iter().find(|upstream| upstream.name() == name)
    }

    /// The pinned version, `v2.13.0`.
    pub fn version(self) -> &'static str {
        let module = match self {
            Upstream::Aso => OPERATOR,
            Upstream::Capz => PROVIDER,
            Upstream::K3sBootstrap | Upstream::K3sControlPlane => K3S,
        };
        let mut lines = self.module().go_mod.lines();
        lines
            .find_map(|line| {
                let line = line.trim().trim_start_matches("require ");
                line.strip_prefix(module)?.strip_prefix(' ')
            })
            .and_then(|rest| rest.split_whitespace().next())
            .unwrap_or("v0.0.0")
    }

    fn module(self) -> Module {
        match self {
            Upstream::Aso => Module {
                name: "aso",
                package: "github.com/Azure/azure-service-operator/v2/cmd/controller",
                go_mod: include_str!("../../../parts/aso/go.mod"),
                go_sum: include_str!("../../../parts/aso/go.sum"),
            },
            Upstream::Capz => Module {
                name: "capz",
                package: PROVIDER,
                go_mod: include_str!("../../../parts/capz/go.mod"),
                go_sum: include_str!("../../../parts/capz/go.sum"),
            },
            Upstream::K3sBootstrap => Module {
                name: "cluster-api-k3s-bootstrap",
                package: "github.com/k3s-io/cluster-api-k3s/bootstrap",
                go_mod: include_str!("../../../benches/peers/cluster-api-k3s/go.mod"),
                go_sum: include_str!("../../../benches/peers/cluster-api-k3s/go.sum"),
            },
            Upstream::K3sControlPlane => Module {
                name: "cluster-api-k3s-control-plane",
                package: "github.com/k3s-io/cluster-api-k3s/controlplane",
                ..Upstream::K3sBootstrap.module()
            },
        }
    }

    /// What the linker tells the program about its own version, as its makefile does.
    fn version_flags(self) -> String {
        match self {
            Upstream::Aso => format!(" -X {OPERATOR}/internal/version.BuildVersion={}", self.version()),
            Upstream::Capz => format!(" -X {PROVIDER}/version.gitVersion={}", self.version()),
            Upstream::K3sBootstrap | Upstream::K3sControlPlane => String::new(),
        }
    }
}

/// An upstream project in the cache: its program, and the objects it needs in the cluster.
#[derive(Clone, Debug)]
pub struct BuiltUpstream {
    pub upstream: Upstream,
    directory: PathBuf,
}

impl BuiltUpstream {
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn binary(&self) -> PathBuf {
        self.directory.join(self.upstream.name())
    }

    fn manifest(&self) -> PathBuf {
        self.directory.join("manifest.json")
    }

    fn is_complete(&self) -> bool {
        self.binary().is_file() && self.manifest().is_file()
    }

    /// Its custom resource definitions, webhooks and roles, as the module ships them or its own tool makes them.
    pub fn objects(&self) -> Result<Vec<Value>, PartsError> {
        let path = self.manifest();
        let text = fs::read(&path).map_err(|source| PartsError::cache(&path, source))?;
        serde_json::from_slice(&text).map_err(|source| PartsError::Manifest {
            path,
            detail: source.to_string(),
        })
    }
}

impl Builder {
    /// upstream, built now if it is not in the cache; minutes at first. `parts` has the kubectl that renders manifests.
    pub fn upstream(&self, upstream: Upstream, parts: &Parts) -> Result<BuiltUpstream, PartsError> {
        let built = BuiltUpstream {
            upstream,
            directory: self.home(&upstream.module())?,
        };
        if built.is_complete() {
            return Ok(built);
        }
        fs::create_dir_all(&built.directory).map_err(|source| PartsError::cache(&built.directory, source))?;
        let _lock = self.lock(&built.directory.join("lock"))?;
        if built.is_complete() {
            return Ok(built);
        }
        let source = self.install_program(&upstream.module(), &upstream.version_flags(), &built.directory)?;
        let objects = match upstream {
            Upstream::Aso => self.operator_objects(&source, &built)?,
            Upstream::Capz => {
                let module = self.module_directory(&source, PROVIDER)?;
                manifests::kustomize(parts, &module.join("config/capz"))?
            }
            Upstream::K3sBootstrap => k3s_definitions(&self.module_directory(&source, K3S)?, "bootstrap")?,
            Upstream::K3sControlPlane => {
                k3s_definitions(&self.module_directory(&source, K3S)?, "controlplane")?
            }
        };
        manifests::write(&built.manifest(), objects)?;
        Ok(built)
    }

    /// Where a module's program is kept: named by what it is built from.
    fn home(&self, module: &Module) -> Result<PathBuf, PartsError> {
        let mut hash = Sha256::new();
        for text in [module.go_mod, module.go_sum, LINKER_FLAGS, "rendering 1"] {
            hash.update(text);
            hash.update([0]);
        }
        for flag in FLAGS {
            hash.update(flag);
            hash.update([0]);
        }
        hash.update(std::env::consts::ARCH);
        let key = hex::encode(&hash.finalize()[..8]);
        let version = self.go_version()?;
        Ok(self
            .cache_directory()
            .join(format!("{}-{key}-{version}", module.name)))
    }

    /// Builds a module's program into `directory`; returns where the module was written.
    fn install_program(
        &self,
        module: &Module,
        version_flags: &str,
        directory: &Path,
    ) -> Result<PathBuf, PartsError> {
        let source = directory.join("source");
        fs::create_dir_all(&source).map_err(|error| PartsError::cache(&source, error))?;
        for (name, text) in [("go.mod", module.go_mod), ("go.sum", module.go_sum)] {
            let path = source.join(name);
            fs::write(&path, text).map_err(|error| PartsError::cache(&path, error))?;
        }
        let binary = directory.join(module.name);
        if !binary.is_file() {
            let program = Program {
                name: module.name,
                package: module.package,
                version_flags,
            };
            let step = format!("building {}, which takes minutes the first time", module.name);
            let unfinished = directory.join(format!("{}.unfinished", module.name));
            self.compile(&source, &program, &step, &unfinished, &binary)?;
        }
        Ok(source)
    }

    /// The operator's definitions and webhooks: its module has the types they are made from, and not them.
    fn operator_objects(&self, source: &Path, built: &BuiltUpstream) -> Result<Vec<Value>, PartsError> {
        let home = self.home(&CONTROLLER_GEN)?;
        fs::create_dir_all(&home).map_err(|error| PartsError::cache(&home, error))?;
        self.install_program(&CONTROLLER_GEN, "", &home)?;
        let failed = |detail: String| PartsError::Render {
            manifest: format!("the definitions of {OPERATOR}"),
            detail,
        };
        let output = built.directory.join("generated");
        let mut command = Command::new(home.join(CONTROLLER_GEN.name));
        command
            .current_dir(source)
            .args([
                "crd:crdVersions=v1,allowDangerousTypes=true,maxDescLen=0",
                "webhook",
            ])
            .args(GROUPS.map(|group| format!("paths={OPERATOR}/api/{group}/...")))
            .arg(format!("output:dir={}", output.display()))
            .env("GOWORK", "off")
            .env("GOFLAGS", "-mod=readonly")
            .stdin(Stdio::null());
        let said = command.output().map_err(|error| failed(error.to_string()))?;
        if !said.status.success() {
            return Err(failed(tail(&said.stderr)));
        }
        let mut objects = manifests::files(&output)?;
        for object in &mut objects {
            finish(object);
        }
        // They are in the manifest now.
        let _ = fs::remove_dir_all(&output);
        Ok(objects)
    }
}

/// What the operator's own packaging adds to what is generated: labels it finds its definitions by, conversion
/// between versions, and names.
fn finish(object: &mut Value) {
    let is_definition = object["kind"] == "CustomResourceDefinition";
    if is_definition {
        let labels = &mut object["metadata"]["labels"];
        if labels.is_null() {
            *labels = json!({});
        }
        labels["app.kubernetes.io/name"] = json!("azure-service-operator");
        labels["app.kubernetes.io/version"] = json!(Upstream::Aso.version());
        object["spec"]["conversion"] = json!({
            "strategy": "Webhook",
            "webhook": {
                "clientConfig": {"service": {
                    "name": "azureserviceoperator-webhook-service",
                    "namespace": "azureserviceoperator-system",
                    "path": "/convert",
                }},
                "conversionReviewVersions": ["v1"],
            },
        });
    } else if let Some(name) = object["metadata"]["name"].as_str() {
        object["metadata"]["name"] = json!(format!("azureserviceoperator-{name}"));
    }
}

/// The definitions of one half of cluster-api-k3s, labelled as its releases label them. Its webhooks fill in defaults,
/// which manifests can have, and convert versions; both halves would serve them at one port, so they stay off, and one
/// version is used.
fn k3s_definitions(module: &Path, half: &str) -> Result<Vec<Value>, PartsError> {
    let mut definitions = manifests::files(&module.join(half).join("config/crd/bases"))?;
    // The control plane's folder has old copies of the bootstrap kinds.
    definitions.retain(|definition| {
        let group = definition["spec"]["group"].as_str().unwrap_or_default();
        group.starts_with(half)
    });
    let provider = if half == "bootstrap" {
        "bootstrap-k3s"
    } else {
        "control-plane-k3s"
    };
    for definition in &mut definitions {
        definition["metadata"]["labels"] = json!({
            "cluster.x-k8s.io/v1beta1": "v1beta1_v1beta2",
            "cluster.x-k8s.io/provider": provider,
        });
        if let Some(spec) = definition["spec"].as_object_mut() {
            spec.remove("conversion");
        }
    }
    Ok(definitions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_of_the_pins() {
        assert_eq!(Upstream::Aso.version(), "v2.13.0");
        assert_eq!(Upstream::Capz.version(), "v1.21.0");
        assert_eq!(Upstream::K3sControlPlane.version(), "v0.2.1");
    }

    #[test]
    fn generated_definitions_can_be_found_and_converted() {
        let mut definition =
            json!({"kind": "CustomResourceDefinition", "metadata": {"name": "a"}, "spec": {}});
        finish(&mut definition);
        assert_eq!(
            definition["metadata"]["labels"]["app.kubernetes.io/version"],
            "v2.13.0"
        );
        assert_eq!(definition["spec"]["conversion"]["strategy"], "Webhook");
        let mut webhooks = json!({"kind": "MutatingWebhookConfiguration", "metadata": {"name": "w"}});
        finish(&mut webhooks);
        assert_eq!(webhooks["metadata"]["name"], "azureserviceoperator-w");
    }
}
