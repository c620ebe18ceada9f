//! What the toy provider's story is set on: the roles its manager runs under, what is installed for it, managers that
//! take each other's place, and what is looked for at the end: rights nobody needs, and secrets somebody told.

use std::path::Path;

use anyhow::{Context, Result};
use base64::{Engine, prelude::BASE64_STANDARD};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::ListParams};
use slipway_kit::manager::{Manager, Setup, logs, roles};
use slipway_testbed::{
    Cluster,
    audit::Request,
    canary::{Canaries, Sighting},
    rights::{self, Right, Unused},
};
use slipway_tests::toy;

use super::status_of;

pub const BINARY: &str = env!("CARGO_BIN_EXE_slipway-toy");
pub const USER: &str = "toy-manager";

/// Declared, and not used in this story.
const UNUSED: &[Unused] = &[
    Unused {
        group: "authentication.k8s.io",
        resource: "tokenreviews",
        verbs: &["create"],
        reason: OPEN_DIAGNOSTICS,
        rare: false,
    },
    Unused {
        group: "authorization.k8s.io",
        resource: "subjectaccessreviews",
        verbs: &["create"],
        reason: OPEN_DIAGNOSTICS,
        rare: false,
    },
];
const OPEN_DIAGNOSTICS: &str = "this manager's diagnostics are open; guarded ones have a test of their own";

/// Installs the declared roles for the user the manager runs as.
pub async fn setup(cluster: &Cluster, directory: &Path) -> Result<Setup> {
    roles::install(cluster, &toy::provider().packages, USER).await?;
    Ok(
        Setup::new(cluster, Path::new(BINARY), directory, USER, None)?.with([
            "--leader-elect",
            "--leader-election-namespace=capt-system",
            "--sync-period=10m",
            "--fleet-concurrency=4",
            "-v=4",
        ]),
    )
}

/// A manager that another one takes the place of, at the same port because webhooks are called there.
pub struct Replaceable<'a> {
    pub cluster: &'a Cluster,
    pub setup: &'a Setup,
    pub manager: Manager,
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
        self.manager.stop().await?;
        let audit = self.cluster.audit();
        let mark = audit.mark()?;
        self.manager = self.setup.launch(name)?;
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
    let logs = logs(directory)?;
    assert!(logs.len() >= 4, "each manager has a log");
    let sightings = logs
        .iter()
        .flat_map(|(path, log)| canaries.sightings(&path.to_string_lossy(), log));
    Ok(sightings.collect())
}

/// Nothing was denied, and nothing is declared that nothing used. A request without a right does not go unnoticed.
pub async fn rights_are_those_needed(cluster: &Cluster) -> Result<()> {
    let declared = rights::declared(&roles::declared(&toy::provider().packages)?);
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
