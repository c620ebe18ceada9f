//! The steps by which Cluster API Provider Azure documents how a classic cluster becomes one of inline resources, given by hand as they
//! stand there, on a management cluster that has Azure Service Operator and its kinds: into a new namespace, with `slipway adopt` for the
//! step that adopts. Nothing is deleted in Azure, and nothing is written before the adoption is confirmed.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{core::v1::ServiceAccount, rbac::v1::ClusterRoleBinding};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::{Value, json};
use slipway_azure_sim::Server;
use slipway_kit::manager::free_port;
use slipway_testbed::{
    Cluster, install,
    wait::{until, until_gone},
};

use crate::{
    aks_manager::{Program, start_answering},
    aks_world::{AZURE, CORE, Fleet, SUBSCRIPTION, World, pool, system},
    aso_engine::{RealOperator, asked_for},
    aso_world::{CREDENTIAL, INFRASTRUCTURE, PLANE, POOL, credential, is_settled},
};

const SLIPWAY: &str = env!("CARGO_BIN_EXE_slipway-all");
/// The classic cluster, and the namespace where it becomes another.
const NAME: &str = "byhand";
const NEW: &str = "byhand-new";
const POOLS: [&str; 2] = ["handsys", "handwork"];
const BLOCK_MOVE: &str = "clusterctl.cluster.x-k8s.io/block-move";

const PROGRAM: Program = Program {
    binary: SLIPWAY,
    packages: || {
        let classic = slipway_aks::provider::provider().packages;
        let inline = slipway_aso::provider::provider().packages;
        classic.into_iter().chain(inline).collect()
    },
};

/// What the document has after the adoption, word for word.
const FORCEFULLY: [&str; 9] = [
    "delete cluster byhand --wait=false",
    "delete azuremanagedcluster byhand --wait=false",
    "delete azuremanagedcontrolplane byhand --wait=false",
    "delete machinepool handsys handwork --wait=false",
    "delete azuremanagedmachinepool handsys handwork --wait=false",
    "patch azuremanagedmachinepool handsys handwork --type merge -p {\"metadata\":{\"finalizers\":null}}",
    "patch machinepool handsys handwork --type merge -p {\"metadata\":{\"finalizers\":null}}",
    "patch azuremanagedcontrolplane byhand --type merge -p {\"metadata\":{\"finalizers\":null}}",
    "patch cluster byhand --type merge -p {\"metadata\":{\"finalizers\":null}}",
];

struct ByHand<'a> {
    world: &'a World,
    diagnostics: SocketAddr,
    token: tempfile::NamedTempFile,
    old: Fleet<'a>,
    new: Fleet<'a>,
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_steps_by_hand_beside_a_real_operator() -> Result<()> {
    if !asked_for() {
        return Ok(());
    }
    let diagnostics = SocketAddr::from(([127, 0, 0, 1], free_port()?));
    let world = World::managed_by(
        "not-a-secret".to_owned(),
        NAME,
        async |cluster: &Cluster, azure: &Server| {
            start_answering(&PROGRAM, cluster, azure, diagnostics).await
        },
    )
    .await?;
    let operator = RealOperator::start(&world).await?;
    let old = world.fleet(NAME).await?.backed()?;
    let work = pool(POOLS[1], "User", 2, json!({}));
    old.create(&json!({}), &[system(POOLS[0]), work]).await?;
    old.until_nodes(POOLS[1], 2).await?;
    let new = Fleet {
        name: NEW.to_owned(),
        ..old.clone()
    };
    let steps = ByHand {
        token: token(&world).await?,
        world: &world,
        diagnostics,
        old,
        new,
    };
    steps.follow().await?;
    operator.stop();
    world.manager.kill();
    world.management.stop();
    world.workload.stop();
    Ok(())
}

/// Of somebody who may ask the manager.
async fn token(world: &World) -> Result<tempfile::NamedTempFile> {
    let client = world.management.client();
    let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": "asker"}}))?;
    Api::<ServiceAccount>::namespaced(client.clone(), "default")
        .create(&PostParams::default(), &account)
        .await?;
    let binding: ClusterRoleBinding = serde_json::from_value(json!({"metadata": {"name": "asker"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "asker", "namespace": "default"}]}))?;
    Api::<ClusterRoleBinding>::all(client)
        .create(&PostParams::default(), &binding)
        .await?;
    let token = world.management.kubectl(&["create", "token", "asker"]).await?;
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), token.trim())?;
    Ok(file)
}

impl ByHand<'_> {
    async fn kubectl(&self, command: &str) -> Result<()> {
        let mut arguments: Vec<&str> = command.split(' ').collect();
        arguments.extend(["-n", NAME]);
        // What is gone already needs no patch.
        arguments.extend(arguments[0].eq("delete").then_some("--ignore-not-found"));
        let done = self.world.management.kubectl(&arguments).await;
        match done {
            Err(error) if command.starts_with("patch") && error.to_string().contains("NotFound") => Ok(()),
            other => other.map(|_| ()).with_context(|| command.to_owned()),
        }
    }

    async fn slipway(&self, arguments: &[&str]) -> Result<String> {
        let output = tokio::process::Command::new(SLIPWAY)
            .args(arguments)
            .args(["-n", NEW, "--manager", &format!("https://{}", self.diagnostics)])
            .arg("--token-file")
            .arg(self.token.path())
            .arg("--kubeconfig")
            .arg(self.world.management.kubeconfig())
            .output()
            .await?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        println!("$ slipway {}\n{said}{errors}", arguments.join(" "));
        ensure!(output.status.success(), "slipway {arguments:?}: {said}\n{errors}");
        Ok(said)
    }

    /// What was written in Azure so far.
    fn writes(&self) -> Vec<String> {
        self.world.writes("/subscriptions/")
    }

    async fn until_settled(&self) -> Result<()> {
        for kind in [INFRASTRUCTURE, PLANE, POOL] {
            let api = self.new.of(AZURE, kind);
            for object in api.list(&ListParams::default()).await? {
                until(&api, &object.name_any(), "be settled", is_settled).await?;
            }
        }
        Ok(())
    }

    async fn follow(&self) -> Result<()> {
        let (old, new) = (&self.old, &self.new);
        let before = self.writes();
        let stood = self.world.in_azure("/resourcegroups/");
        // 1 and 2: paused, and its controllers have let go.
        let paused = json!({"spec": {"paused": true}});
        old.merge(&old.clusters(), NAME, paused).await?;
        let let_go = |object: &kube::api::DynamicObject| !object.annotations().contains_key(BLOCK_MOVE);
        until(&old.planes(), NAME, "be let go of", let_go).await?;
        for pool in POOLS {
            until(&old.pools(), pool, "be let go of", let_go).await?;
        }
        // 3: a new namespace.
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NEW}});
        install::install(&new.client, &[namespace]).await?;
        new.apply(&[credential(new, CREDENTIAL)]).await?;
        // 4: adopted there.
        let id = format!("/subscriptions/{SUBSCRIPTION}{}", old.aks());
        let said = self.slipway(&["adopt", "--credential", CREDENTIAL, &id]).await?;
        ensure!(said.contains("Nothing is written in Azure yet"), "{said}");
        // 5: the old one goes by force.
        for command in FORCEFULLY {
            self.kubectl(command).await?;
        }
        for (version, kind) in [
            (CORE, "Cluster"),
            (CORE, "MachinePool"),
            (AZURE, "AzureManagedCluster"),
            (AZURE, "AzureManagedControlPlane"),
            (AZURE, "AzureManagedMachinePool"),
        ] {
            let api = old.of(version, kind);
            for object in api.list(&ListParams::default()).await? {
                until_gone(&api, &object.name_any()).await?;
            }
        }
        self.until_settled().await?;
        let written = self.writes().split_off(before.len());
        ensure!(written.is_empty(), "before it is confirmed: {written:?}");
        println!("report: aso by hand: adopted, and the old objects are gone: 0 writes in Azure");

        let said = self.slipway(&["adopt", "--confirm", NAME]).await?;
        ensure!(!said.contains("not known"), "{said}");
        self.until_settled().await?;
        let written = self.writes().split_off(before.len());
        let engines = self.engines().await?;
        println!(
            "report: aso by hand: confirmed: {} writes in Azure: {written:?}; {engines:?}",
            written.len()
        );
        ensure!(
            !written.iter().any(|write| write.starts_with("DELETE")),
            "{written:?}"
        );
        ensure!(self.world.in_azure("/resourcegroups/") == stood, "{stood:?}");

        // It is the operator's now, and does what it is asked.
        let pools = new.machine_pools().list(&ListParams::default()).await?;
        let work = pools.iter().map(ResourceExt::name_any);
        let work = work
            .filter(|name| name.ends_with(POOLS[1]))
            .next()
            .context("a pool")?;
        new.scale(&work, 3).await?;
        new.until_nodes(&work, 3).await?;
        let written = self.writes().split_off(before.len());
        ensure!(
            !written.iter().any(|write| write.starts_with("DELETE")),
            "{written:?}"
        );
        new.clusters().delete(NAME, &DeleteParams::default()).await?;
        until_gone(&new.clusters(), NAME).await?;
        let left = self.world.in_azure(&old.group().to_lowercase());
        println!("report: aso by hand: deleted; what was only adopted stays: {left:?}");
        ensure!(
            !left.iter().any(|id| id.contains("/managedclusters/")),
            "{left:?}"
        );
        Ok(())
    }

    /// Who writes each resource.
    async fn engines(&self) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for kind in [INFRASTRUCTURE, PLANE, POOL] {
            for object in self.new.of(AZURE, kind).list(&ListParams::default()).await? {
                let lines = object.data["status"]["resources"].as_array().cloned();
                for line in lines.unwrap_or_default() {
                    let text = |value: &Value| value.as_str().unwrap_or("native").to_owned();
                    let resource = &line["resource"];
                    found.push(format!(
                        "{} {}: {}",
                        text(&resource["kind"]),
                        text(&resource["name"]),
                        text(&line["engine"])
                    ));
                }
            }
        }
        Ok(found)
    }
}
