//! What the toy provider's story is set on: the roles its manager runs under, what is installed for it, managers that
//! take each other's place, and what is looked for at the end: rights nobody needs, and secrets somebody told.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use base64::{Engine, prelude::BASE64_STANDARD};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::ListParams};
use serde_json::{Value, json};
use slipway_render::{Bundle, Release};
use slipway_testbed::{
    Cluster,
    audit::Request,
    canary::{Canaries, Sighting},
    install,
    rights::{self, Right, Unused},
};
use slipway_tests::toy;

use super::status_of;
use crate::manager_process::{BINARY, ManagerProcess};

pub const USER: &str = "toy-manager";

/// Declared, and not used in this story.
const UNUSED: &[Unused] = &[
    Unused {
        group: "authentication.k8s.io",
        resource: "tokenreviews",
        verbs: &["create"],
        reason: OPEN_DIAGNOSTICS,
    },
    Unused {
        group: "authorization.k8s.io",
        resource: "subjectaccessreviews",
        verbs: &["create"],
        reason: OPEN_DIAGNOSTICS,
    },
];
const OPEN_DIAGNOSTICS: &str = "this manager's diagnostics are open; guarded ones have a test of their own";

/// The manager's namespace and roles, as they are declared.
fn declared_roles() -> Result<Vec<Value>> {
    let provider = toy::provider();
    let release = Release {
        version: "v0.1.0".into(),
        image: "none".into(),
    };
    let bundles = Bundle::join(&provider.packages)?;
    Ok(bundles[0]
        .objects(&release)
        .into_iter()
        .filter(|object| {
            [
                "Namespace",
                "Role",
                "ClusterRole",
                "RoleBinding",
                "ClusterRoleBinding",
            ]
            .contains(&object["kind"].as_str().unwrap_or_default())
        })
        .collect())
}

/// Installs the declared roles for the user the manager runs as, and returns that user's kubeconfig.
pub async fn roles(cluster: &Cluster, directory: &Path) -> Result<PathBuf> {
    let mut wanted = declared_roles()?;
    for object in &mut wanted {
        if object.get("subjects").is_some() {
            object["subjects"] =
                json!([{"kind": "User", "name": USER, "apiGroup": "rbac.authorization.k8s.io"}]);
        }
    }
    install::install(&cluster.client(), &wanted).await?;
    let path = directory.join("toy.kubeconfig");
    std::fs::write(&path, cluster.kubeconfig_as(USER, None))?;
    Ok(path)
}

/// Installs CRDs and webhooks as the command line renders them for a manager at `url`.
pub async fn install_for(cluster: &Cluster, directory: &Path, url: &str) -> Result<()> {
    let output = tokio::process::Command::new(BINARY)
        .args(["manifests", "--local", url, "--cert-dir"])
        .arg(directory.join("certificates"))
        .output()
        .await?;
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let rendered = install::parse(&String::from_utf8(output.stdout)?)?;
    install::install(&cluster.client(), &rendered).await?;
    Ok(())
}

pub async fn install_certificate(directory: &Path) -> Result<()> {
    let output = tokio::process::Command::new(BINARY)
        .args(["manifests", "--local", "https://127.0.0.1:1", "--cert-dir"])
        .arg(directory.join("certificates"))
        .output()
        .await?;
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// A manager that another one takes the place of, at the same port because webhooks are called there.
pub struct Replaceable<'a> {
    pub cluster: &'a Cluster,
    pub directory: &'a Path,
    pub kubeconfig: &'a Path,
    pub port: u16,
    pub manager: ManagerProcess,
}

impl Replaceable<'_> {
    pub async fn until_leading(&mut self) -> Result<()> {
        self.manager.until_ready().await?;
        self.manager
            .until_metric("leader_election_master_status", "capt", |leads| leads > 0.5)
            .await
    }

    /// What a new manager writes that finds everything as it should be.
    pub async fn writes_of_the_next(
        &mut self,
        name: &str,
        objects: &[(&str, usize)],
    ) -> Result<Vec<Request>> {
        let next = || ManagerProcess::start(name, self.directory, self.kubeconfig, self.port);
        self.manager.stop().await?;
        let audit = self.cluster.audit();
        let mark = audit.mark()?;
        self.manager = next()?;
        self.until_leading().await?;
        self.manager.until_idle(objects).await?;
        Ok(audit.writes_at_rest(USER, mark)?)
    }
}

/// The manager's own secret: its key.
pub fn planted_in(kubeconfig: &Path) -> Result<Canaries> {
    let text = std::fs::read_to_string(kubeconfig)?;
    let data = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("client-key-data: "))
        .context("the kubeconfig has a key")?;
    let mut canaries = Canaries::default();
    canaries.add("the manager's key, encoded", data);
    canaries.add(
        "the manager's key",
        &String::from_utf8(BASE64_STANDARD.decode(data)?)?,
    );
    Ok(canaries)
}

/// Looks through what every manager of the story wrote to its log.
pub fn in_logs(canaries: &Canaries, directory: &Path) -> Result<Vec<Sighting>> {
    let mut sightings = Vec::new();
    let mut logs = 0;
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "log") {
            logs += 1;
            sightings.extend(canaries.sightings(&path.to_string_lossy(), &std::fs::read_to_string(&path)?));
        }
    }
    assert!(logs >= 4, "each manager has a log");
    Ok(sightings)
}

/// Nothing was denied, and nothing is declared that nothing used. A request without a right does not go unnoticed.
pub async fn rights_are_those_needed(cluster: &Cluster) -> Result<()> {
    let declared = rights::declared(&declared_roles()?);
    let requests = || {
        cluster
            .audit()
            .requests(None, |request| request.username() == USER)
    };
    let findings = rights::compare(&declared, &requests()?, UNUSED);
    assert!(findings.is_empty(), "{findings}");

    let nodes: Api<Node> = Api::all(cluster.client_as(USER, &[]));
    let refused = nodes.list(&ListParams::default()).await.expect_err("no right");
    assert_eq!(status_of(&refused).0, 403);
    let findings = rights::compare(&declared, &requests()?, UNUSED);
    let denied: Vec<&Right> = findings.denied.keys().collect();
    assert_eq!(denied, [&Right::new("", "nodes", "list")]);
    Ok(())
}
