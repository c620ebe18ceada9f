//! Runs controllers of other projects beside a cluster, unmodified, as processes that die with this one. Those that know
//! Azure reach it through a proxy: a simulated one, since the real one is nobody's test bed.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::{
    cluster::{
        Cluster, StartError,
        ready::{self, Probe},
    },
    parts::{Builder, BuiltUpstream, Part, Parts, PartsError, Upstream},
    ports::Port,
    process::{Process, Program},
};

/// Kinds that only make sense inside the cluster, or that hold what a user would fill in.
const LEFT_OUT: &[&str] = &["Certificate", "Deployment", "Issuer", "Secret", "Service"];

/// How an upstream project finds Azure: the SDKs take nothing else for every endpoint they use.
#[derive(Clone, Debug)]
pub struct AzureAccess {
    /// `http://127.0.0.1:PORT` of a CONNECT proxy.
    pub proxy: String,
    /// The file with the certificate authority behind it.
    pub ca: PathBuf,
}

/// An upstream project that runs.
pub struct RunningUpstream {
    upstream: Upstream,
    process: Process,
    _ports: Vec<Port>,
    diagnostics: u16,
}

impl RunningUpstream {
    pub fn upstream(&self) -> Upstream {
        self.upstream
    }

    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Where its metrics are served, without TLS.
    pub fn metrics(&self) -> String {
        format!("http://127.0.0.1:{}/metrics", self.diagnostics)
    }

    /// Stops it; what it installed in the cluster stays.
    pub fn stop(self) {
        self.process.kill();
    }
}

/// Builds an upstream project if it is not in the cache.
pub async fn built(upstream: Upstream, parts: &Parts) -> Result<BuiltUpstream, PartsError> {
    let parts = parts.clone();
    tokio::task::spawn_blocking(move || Builder::new()?.upstream(upstream, &parts))
        .await
        .expect("building an upstream project does not panic")
}

impl Cluster {
    /// Installs its definitions and webhooks, starts it and waits until it is ready. It may do everything in the
    /// cluster: its rights are not what is tested. `arguments` are added to its own.
    pub async fn start_upstream(
        &self,
        built: &BuiltUpstream,
        azure: Option<&AzureAccess>,
        arguments: &[&str],
    ) -> Result<RunningUpstream, StartError> {
        let ports = [Port::free(), Port::free(), Port::free()]
            .into_iter()
            .collect::<Result<Vec<_>, _>>()
            .map_err(StartError::Ports)?;
        let (webhooks, health, diagnostics) = (ports[0].number, ports[1].number, ports[2].number);
        let mut objects = built.objects()?;
        objects.retain(|object| !LEFT_OUT.iter().any(|kind| object["kind"] == *kind));
        trust(&mut objects);
        self.install(
            objects,
            &format!("https://127.0.0.1:{webhooks}"),
            &self.ca().pair().certificate,
        )
        .await?;

        let directory = &self.description().directory;
        let name = built.upstream.name();
        let kubeconfig = directory.join(format!("{name}.kubeconfig"));
        std::fs::write(&kubeconfig, self.kubeconfig_as(name, Some("system:masters")))
            .map_err(|source| StartError::directory(&kubeconfig, source))?;
        let layout = Layout {
            built,
            azure,
            kubeconfig: &kubeconfig,
            certificates: &directory.join("pki/webhook"),
            webhooks,
            health,
            diagnostics,
        };
        let mut program = layout.program();
        program
            .arguments
            .extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let launcher = self.parts().binary(Part::Launch);
        let process = Process::start(&launcher, &self.description().logs, program).map_err(|source| {
            StartError::Spawn {
                part: name.to_owned(),
                source,
            }
        })?;
        let probe = match built.upstream {
            Upstream::Aso | Upstream::Capz => Probe::Http {
                port: health,
                path: "/readyz",
            },
            // They serve nothing else.
            Upstream::K3sBootstrap | Upstream::K3sControlPlane => Probe::Http {
                port: diagnostics,
                path: "/metrics",
            },
        };
        ready::wait(&process, probe).await?;
        Ok(RunningUpstream {
            upstream: built.upstream,
            process,
            _ports: ports,
            diagnostics,
        })
    }
}

/// Definitions that are filled in by cert-manager elsewhere get their CA from [`crate::install::point_at`].
fn trust(objects: &mut [Value]) {
    for object in objects {
        if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
            annotations.remove("cert-manager.io/inject-ca-from");
        }
    }
}

struct Layout<'a> {
    built: &'a BuiltUpstream,
    azure: Option<&'a AzureAccess>,
    kubeconfig: &'a Path,
    certificates: &'a Path,
    webhooks: u16,
    health: u16,
    diagnostics: u16,
}

impl Layout<'_> {
    fn program(&self) -> Program {
        let upstream = self.built.upstream;
        let metrics = format!("--metrics-addr=127.0.0.1:{}", self.diagnostics);
        let served = || {
            vec![
                format!("--webhook-port={}", self.webhooks),
                format!("--webhook-cert-dir={}", self.certificates.display()),
                format!("--health-addr=127.0.0.1:{}", self.health),
                "--v=2".to_owned(),
            ]
        };
        let (arguments, namespace) = match upstream {
            Upstream::Aso => {
                let mut arguments = served();
                arguments.extend([
                    metrics,
                    "--secure-metrics=false".to_owned(),
                    // They are installed already; its own are in its image.
                    "--crd-management=none".to_owned(),
                ]);
                (arguments, "azureserviceoperator-system")
            }
            Upstream::Capz => {
                let mut arguments = served();
                arguments.extend([
                    format!("--diagnostics-address=127.0.0.1:{}", self.diagnostics),
                    "--insecure-diagnostics=true".to_owned(),
                ]);
                (arguments, "capz-system")
            }
            Upstream::K3sBootstrap => (vec![metrics], "capi-k3s-bootstrap-system"),
            Upstream::K3sControlPlane => (vec![metrics], "capi-k3s-control-plane-system"),
        };
        let variable = |name: &str, value: &dyn std::fmt::Display| (name.to_owned(), value.to_string());
        let mut environment = BTreeMap::from([
            variable("KUBECONFIG", &self.kubeconfig.display()),
            variable("POD_NAMESPACE", &namespace),
            variable("POD_NAME", &upstream.name()),
            // Of cluster-api-k3s: its definitions are installed without.
            variable("ENABLE_WEBHOOKS", &false),
        ]);
        if let Some(azure) = self.azure {
            environment.extend([
                variable("HTTPS_PROXY", &azure.proxy),
                variable("NO_PROXY", &"127.0.0.1,localhost"),
                variable("SSL_CERT_FILE", &azure.ca.display()),
            ]);
        }
        Program {
            name: upstream.name().to_owned(),
            path: self.built.binary(),
            arguments,
            environment,
        }
    }
}
