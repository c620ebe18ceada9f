//! How each part is started: data in, command lines out.

use std::{collections::BTreeMap, path::Path};

use crate::{
    parts::{Part, Parts},
    process::Program,
};

/// What the parts of one cluster need to know about it.
pub struct Layout<'a> {
    pub parts: &'a Parts,
    pub directory: &'a Path,
    pub api_port: u16,
    pub etcd_port: u16,
}

/// Where a Cluster API manager listens, and who it is.
pub struct Manager<'a> {
    pub part: Part,
    /// Its feature gates, as `name=on`.
    pub gates: &'a [String],
    pub kubeconfig: &'a Path,
    pub webhook_port: u16,
    pub health_port: u16,
    pub diagnostics_port: u16,
    pub namespace: &'a str,
}

impl Layout<'_> {
    pub fn etcd(&self, peer_port: u16) -> Program {
        self.kubernetes(
            "etcd",
            vec![
                format!("--data-dir={}", self.file("etcd")),
                format!("--client-url=http://127.0.0.1:{}", self.etcd_port),
                format!("--peer-url=http://127.0.0.1:{peer_port}"),
            ],
        )
    }

    pub fn api_server(&self) -> Program {
        self.kubernetes(
            "kube-apiserver",
            vec![
                format!("--etcd-servers=http://127.0.0.1:{}", self.etcd_port),
                "--bind-address=127.0.0.1".to_owned(),
                format!("--secure-port={}", self.api_port),
                // Loopback addresses are refused as endpoints of the `kubernetes` Service.
                "--advertise-address=127.0.0.1".to_owned(),
                "--endpoint-reconciler-type=none".to_owned(),
                "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
                format!("--cert-dir={}", self.file("pki")),
                format!("--tls-cert-file={}", self.file("pki/server.crt")),
                format!("--tls-private-key-file={}", self.file("pki/server.key")),
                format!("--client-ca-file={}", self.file("pki/ca.crt")),
                "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
                format!(
                    "--service-account-key-file={}",
                    self.file("pki/service-account.pub")
                ),
                format!(
                    "--service-account-signing-key-file={}",
                    self.file("pki/service-account.key")
                ),
                "--authorization-mode=RBAC".to_owned(),
                // Pods would wait for tokens that no kubelet here mounts.
                "--disable-admission-plugins=ServiceAccount".to_owned(),
                "--allow-privileged=true".to_owned(),
                format!("--audit-policy-file={}", self.file("audit-policy.json")),
                format!("--audit-log-path={}", self.file("audit.log")),
                // By default another file is begun after 100 MB, and what was said before is no longer found.
                "--audit-log-maxsize=100000".to_owned(),
                // Fair queueing costs processor time and protects nobody here.
                "--enable-priority-and-fairness=false".to_owned(),
                "--profiling=false".to_owned(),
            ],
        )
    }

    pub fn controller_manager(&self, kubeconfig: &Path, port: u16) -> Program {
        let mut arguments = self.serving(kubeconfig, port);
        arguments.extend([
            format!("--root-ca-file={}", self.file("pki/ca.crt")),
            format!(
                "--service-account-private-key-file={}",
                self.file("pki/service-account.key")
            ),
        ]);
        self.kubernetes("kube-controller-manager", arguments)
    }

    pub fn scheduler(&self, kubeconfig: &Path, port: u16) -> Program {
        let arguments = self.serving(kubeconfig, port);
        self.kubernetes("kube-scheduler", arguments)
    }

    pub fn manager(&self, manager: &Manager) -> Program {
        Program {
            name: manager.part.name().to_owned(),
            path: self.parts.binary(manager.part),
            arguments: vec![
                format!("--kubeconfig={}", manager.kubeconfig.display()),
                format!("--feature-gates={}", manager.gates.join(",")),
                format!("--webhook-port={}", manager.webhook_port),
                format!("--webhook-cert-dir={}", self.file("pki/webhook")),
                format!("--health-addr=127.0.0.1:{}", manager.health_port),
                format!("--diagnostics-address=127.0.0.1:{}", manager.diagnostics_port),
                "--insecure-diagnostics=true".to_owned(),
                // The CRDs are new: there is nothing to migrate.
                "--skip-crd-migration-phases=StorageVersionMigration,CleanupManagedFields".to_owned(),
                "--v=2".to_owned(),
            ],
            environment: BTreeMap::from([
                ("POD_NAMESPACE".to_owned(), manager.namespace.to_owned()),
                ("POD_NAME".to_owned(), manager.part.name().to_owned()),
                ("POD_UID".to_owned(), manager.part.name().to_owned()),
            ]),
        }
    }

    pub fn kwok(&self, kubeconfig: &Path, config: &Path, port: u16) -> Program {
        Program {
            name: Part::Kwok.name().to_owned(),
            path: self.parts.binary(Part::Kwok),
            arguments: vec![
                format!("--kubeconfig={}", kubeconfig.display()),
                format!("--config={}", config.display()),
                format!("--server-address=127.0.0.1:{port}"),
            ],
            environment: BTreeMap::new(),
        }
    }

    fn serving(&self, kubeconfig: &Path, port: u16) -> Vec<String> {
        vec![
            format!("--kubeconfig={}", kubeconfig.display()),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={port}"),
            format!("--tls-cert-file={}", self.file("pki/server.crt")),
            format!("--tls-private-key-file={}", self.file("pki/server.key")),
            "--leader-elect=false".to_owned(),
        ]
    }

    fn kubernetes(&self, component: &str, mut arguments: Vec<String>) -> Program {
        arguments.insert(0, component.to_owned());
        Program {
            name: component.to_owned(),
            path: self.parts.binary(Part::Kubernetes),
            arguments,
            environment: BTreeMap::new(),
        }
    }

    fn file(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }
}
