//! A running installation of Cluster API Provider Azure with Azure Service Operator has three clusters, one of the classic kinds and two
//! of inline resources. The real clusterctl takes the installation away and installs Slipway, which goes on with all three: one is
//! detached from the operator's objects, one is switched to the native engine while no operator runs, one waits until the operator is
//! there again. Then the classic one is migrated by `slipway migrate`, all are used, and all are deleted.

use std::{collections::BTreeMap, net::SocketAddr};

use anyhow::{Context, Result, ensure};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use slipway_kit::manager::free_port;
use slipway_testbed::{
    Upstream, install,
    wait::{until, until_gone},
};

use crate::{
    aks_handover::{Handover, Successor},
    aks_world::{AZURE, CORE, condition, is_ready},
    aso_engine::{asked_for, hold_lease},
    aso_world::{INFRASTRUCTURE, PLANE, POOL, is_settled},
};

const SLIPWAY: &str = env!("CARGO_BIN_EXE_slipway-all");
const NAMESPACE: &str = "fleet";
/// The classic cluster.
const SHOP: &str = "shop";
/// Clusters of inline resources: one that is switched while no operator runs, one that stays with the operator.
const DESK: &str = "desk";
const STAND: &str = "stand";
const ALL: [&str; 3] = [SHOP, DESK, STAND];
const ENGINE: &str = "slipway.dev/azure-engine";

struct Takeover {
    handover: Handover,
    /// Requests to ARM that were told of.
    told: usize,
    diagnostics: SocketAddr,
}

#[tokio::test(flavor = "multi_thread")]
async fn an_installation_with_three_clusters_is_taken_over_migrated_and_deleted() -> Result<()> {
    if !asked_for() {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let mut takeover = Takeover {
        handover: Handover::of_namespace("installation", NAMESPACE, folder.path()).await?,
        told: 0,
        diagnostics: SocketAddr::from(([127, 0, 0, 1], free_port()?)),
    };
    let client = takeover.handover.world.management.client();
    let theirs = takeover.handover.install_theirs().await?;
    let lease = hold_lease(client.clone()).await?;
    takeover.made_by_them().await?;
    takeover.handover.until_theirs_rest().await?;
    takeover.tell("made by Cluster API Provider Azure with Azure Service Operator")?;

    Box::pin(takeover.handover.remove_theirs(theirs)).await?;
    drop(lease);
    let kept = takeover.handover.kept_by_the_operator().await?;
    let before = takeover.handover.standing().await?;
    let successor = Successor {
        binary: SLIPWAY,
        answers: true,
    };
    let manager = takeover
        .handover
        .install_successor(&successor, takeover.diagnostics)
        .await?;
    takeover.handover.remove_their_roles().await?;
    takeover.taken_over(&kept).await?;
    let asked = takeover.tell("taken over, with no operator there")?;
    ensure!(!wrote(&asked), "Azure is only looked at: {asked:?}");

    takeover.switch_without_an_operator().await?;
    let asked = takeover.tell("switched to native, with no operator there")?;
    ensure!(!wrote(&asked), "a switch writes nothing: {asked:?}");
    ensure!(takeover.handover.standing().await? == before, "as it was");

    // It sends what it has once more when it starts, as it always does.
    let operator = takeover.handover.world.upstream(Upstream::Aso).await?;
    let _lease = hold_lease(client).await?;
    takeover.until_operated_again().await?;
    takeover.tell("the operator is there again")?;
    let now = takeover.handover.standing().await?;
    ensure!(now.is_same(&before), "nothing is made again");

    takeover.migrate().await?;
    let asked = takeover.tell("migrated")?;
    let put = asked.contains_key(&format!("{SHOP} PUT"));
    ensure!(!put, "a migration writes nothing: {asked:?}");
    let now = takeover.handover.standing().await?;
    ensure!(now.is_same(&before), "nothing is made again");

    for cluster in ALL {
        takeover.scale(cluster, 2).await?;
    }
    takeover.tell("each scaled")?;

    takeover.delete().await?;
    let asked = takeover.requests_by_verb();
    println!("report: aso takeover: deleted: {asked:?}");
    operator.stop();
    manager.kill();
    Ok(())
}

/// Whether something was put, patched or deleted.
fn wrote(asked: &BTreeMap<String, usize>) -> bool {
    let writes = ["PUT", "PATCH", "DELETE"];
    asked
        .keys()
        .any(|asked| writes.iter().any(|write| asked.ends_with(write)))
}

impl Takeover {
    /// Requests to ARM since they were told of last, by resource group and verb.
    fn requests_by_verb(&mut self) -> BTreeMap<String, usize> {
        let azure = self.handover.world.azure.simulator().azure();
        let mut asked = BTreeMap::new();
        for request in azure.requests().skip(self.told) {
            let path = request.path.to_lowercase();
            if !path.starts_with("/subscriptions") {
                continue;
            }
            let group = path.split_once("/resourcegroups/").map(|(_, rest)| rest);
            let group = group.and_then(|rest| rest.split('/').next()).unwrap_or_default();
            let cluster = ALL.into_iter().find(|cluster| *cluster == group).unwrap_or("all");
            *asked.entry(format!("{cluster} {}", request.method)).or_default() += 1;
        }
        self.told = azure.requests().count();
        asked
    }

    /// Tells what was asked of Azure in a step. Nothing is deleted there before anybody deletes a cluster.
    fn tell(&mut self, step: &str) -> Result<BTreeMap<String, usize>> {
        let asked = self.requests_by_verb();
        println!("report: aso takeover: {step}: {asked:?}");
        let deleted = asked.keys().any(|asked| asked.ends_with("DELETE"));
        ensure!(!deleted, "{step}: {asked:?}");
        Ok(asked)
    }

    async fn made_by_them(&self) -> Result<()> {
        let world = &self.handover.world;
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        install::install(&world.management.client(), &[namespace]).await?;
        let classic = include_str!("../manifests/aks-managed.yaml");
        let inline = include_str!("../manifests/aks-aso.yaml");
        for (cluster, manifest) in [(SHOP, classic), (DESK, inline), (STAND, inline)] {
            world
                .apply(NAMESPACE, &manifest.replace("${NAME}", cluster))
                .await?;
        }
        for (cluster, kind) in [(SHOP, "AzureManagedControlPlane"), (DESK, PLANE), (STAND, PLANE)] {
            let planes = self.handover.of(AZURE, kind);
            until(&planes, cluster, "become ready", |plane| {
                plane.data["status"]["ready"] == true
            })
            .await?;
        }
        for cluster in ALL {
            for pool in ["system", "user"] {
                self.until_nodes(cluster, pool, 1).await?;
            }
        }
        Ok(())
    }

    async fn until_nodes(&self, cluster: &str, pool: &str, nodes: usize) -> Result<()> {
        let pools = self.handover.of(CORE, "MachinePool");
        until(&pools, &format!("{cluster}-{pool}"), "run its nodes", |pool| {
            pool.data["status"]["readyReplicas"] == json!(nodes)
                && pool.data["spec"]["providerIDList"].as_array().map(Vec::len) == Some(nodes)
        })
        .await?;
        Ok(())
    }

    async fn merge(&self, version: &str, kind: &str, name: &str, patch: &Value) -> Result<()> {
        let api = self.handover.of(version, kind);
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .with_context(|| format!("changing {kind} {name}"))?;
        Ok(())
    }

    /// The objects of ours that a cluster of inline resources has.
    fn holders(cluster: &str) -> [(&'static str, String); 4] {
        [
            (INFRASTRUCTURE, cluster.to_owned()),
            (PLANE, cluster.to_owned()),
            (POOL, format!("{cluster}-system")),
            (POOL, format!("{cluster}-user")),
        ]
    }

    async fn until_on(&self, cluster: &str, engine: Option<&str>) -> Result<()> {
        for (kind, name) in Self::holders(cluster) {
            until(
                &self.handover.of(AZURE, kind),
                &name,
                "have its engine",
                |object| {
                    let lines = object.data["status"]["resources"].as_array();
                    is_settled(object)
                        && lines
                            .is_some_and(|lines| lines.iter().all(|line| line["engine"].as_str() == engine))
                },
            )
            .await?;
        }
        Ok(())
    }

    /// The operator's objects of one cluster are gone.
    async fn until_let_go(
        &self,
        kept: &[(Api<DynamicObject>, DynamicObject)],
        cluster: &str,
    ) -> Result<usize> {
        let of_cluster = kept.iter().filter(|(_, object)| {
            let name = object.name_any();
            name == cluster || name.starts_with(&format!("{cluster}-"))
        });
        let mut gone = 0;
        for (api, object) in of_cluster {
            until_gone(api, &object.name_any()).await?;
            gone += 1;
        }
        Ok(gone)
    }

    async fn taken_over(&self, kept: &[(Api<DynamicObject>, DynamicObject)]) -> Result<()> {
        let planes = self.handover.of(AZURE, "AzureManagedControlPlane");
        until(&planes, SHOP, "be taken over", |plane| {
            is_ready(plane) && plane.annotations().contains_key("slipway.dev/azure-applied")
        })
        .await?;
        for pool in ["system", "user"] {
            let pools = self.handover.of(AZURE, "AzureManagedMachinePool");
            until(&pools, &format!("{SHOP}-{pool}"), "be taken over", is_ready).await?;
        }
        let gone = self.until_let_go(kept, SHOP).await?;
        ensure!(gone >= 6, "{gone} objects of the operator");
        // What the operator has objects for stays with it, and says that it does not run.
        for cluster in [DESK, STAND] {
            for (kind, name) in Self::holders(cluster) {
                let api = self.handover.of(AZURE, kind);
                let found = until(&api, &name, "say that no operator runs", |object| {
                    condition(object, "AzureServiceOperatorReady")["reason"] == "NotRunning"
                })
                .await?;
                let message = condition(&found, "AzureServiceOperatorReady")["message"].to_string();
                ensure!(
                    message.contains("Start it") && message.contains(ENGINE),
                    "{message}"
                );
            }
        }
        println!(
            "report: aso takeover: {gone} of {} objects of the operator let go of, {} stay with it",
            kept.len(),
            kept.len() - gone
        );
        Ok(())
    }

    async fn switch_without_an_operator(&self) -> Result<()> {
        let kept = self.handover.kept_by_the_operator().await?;
        let native = json!({"metadata": {"annotations": {(ENGINE): "native"}}});
        for (kind, name) in Self::holders(DESK) {
            self.merge(AZURE, kind, &name, &native).await?;
        }
        self.until_on(DESK, None).await?;
        let gone = self.until_let_go(&kept, DESK).await?;
        ensure!(gone == 4, "{gone} objects of the operator");
        Ok(())
    }

    async fn until_operated_again(&self) -> Result<()> {
        self.until_on(STAND, Some("aso")).await?;
        let planes = self.handover.of(AZURE, PLANE);
        until(&planes, STAND, "see the operator", |plane| {
            condition(plane, "AzureServiceOperatorReady")["reason"] == "Running"
        })
        .await?;
        // One that comes later gets nothing by itself.
        self.until_on(DESK, None).await
    }

    /// A command of the guide, with what it prints.
    async fn slipway(&self, arguments: &[&str]) -> Result<String> {
        let kubeconfig = self.handover.world.management.kubeconfig();
        let output = tokio::process::Command::new(SLIPWAY)
            .args(arguments)
            .args([
                "-n",
                NAMESPACE,
                "--manager",
                &format!("https://{}", self.diagnostics),
            ])
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .output()
            .await?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        println!("$ slipway {}\n{said}{errors}", arguments.join(" "));
        ensure!(output.status.success(), "slipway {arguments:?}: {said}\n{errors}");
        Ok(said)
    }

    /// As docs/guides/migrate-aks.md has it.
    async fn migrate(&self) -> Result<()> {
        let said = self.slipway(&["migrate", "--dry-run", SHOP]).await?;
        ensure!(said.contains("Nothing was changed"), "{said}");
        let said = self.slipway(&["migrate", SHOP]).await?;
        ensure!(said.matches("no difference").count() == 4, "{said}");
        self.until_on(SHOP, None).await?;
        let said = self.slipway(&["migrate", "--undo", SHOP]).await?;
        ensure!(said.contains("is as it was before"), "{said}");
        let planes = self.handover.of(AZURE, "AzureManagedControlPlane");
        until(&planes, SHOP, "be ready as before", is_ready).await?;
        self.slipway(&["migrate", "--all"]).await?;
        let said = self.slipway(&["migrate", "--confirm", SHOP]).await?;
        ensure!(said.contains("the classic objects are gone"), "{said}");
        self.until_on(SHOP, None).await?;
        for kind in [
            "AzureManagedControlPlane",
            "AzureManagedCluster",
            "AzureManagedMachinePool",
        ] {
            let left = self.handover.of(AZURE, kind).list(&ListParams::default()).await?;
            ensure!(left.items.is_empty(), "{kind} stayed behind");
        }
        let said = self.slipway(&["diff", &format!("cluster/{SHOP}")]).await?;
        ensure!(said.matches("no difference").count() == 4, "{said}");
        let operated = self.handover.kept_by_the_operator().await?;
        ensure!(operated.len() == 4, "{} objects of the operator", operated.len());
        Ok(())
    }

    async fn scale(&self, cluster: &str, replicas: usize) -> Result<()> {
        let pool = format!("{cluster}-user");
        self.merge(
            CORE,
            "MachinePool",
            &pool,
            &json!({"spec": {"replicas": replicas}}),
        )
        .await?;
        self.until_nodes(cluster, "user", replicas).await
    }

    async fn delete(&self) -> Result<()> {
        let clusters = self.handover.of(CORE, "Cluster");
        for cluster in ALL {
            clusters.delete(cluster, &DeleteParams::default()).await?;
        }
        for cluster in ALL {
            until_gone(&clusters, cluster).await?;
        }
        let left = self.handover.in_azure("/resourcegroups/");
        ensure!(left.is_empty(), "left in Azure: {left:?}");
        let kept = self.handover.kept_by_the_operator().await?;
        ensure!(kept.is_empty(), "{} objects of the operator", kept.len());
        Ok(())
    }
}
