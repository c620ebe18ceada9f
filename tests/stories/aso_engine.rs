//! The engine `aso` with the real Azure Service Operator: it is given a cluster, scales it, makes and deletes a network, is told to let
//! go, takes over again, and the cluster moves to where no operator is. Azure is asked for what each step is about, once for each
//! resource, and nothing is deleted before somebody deletes it. What it does is recorded in `aso_engine.golden`.

use std::{collections::BTreeSet, path::Path};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams},
};
use serde_json::json;
use slipway_testbed::{
    Cluster, Upstream, install,
    upstream::{self, AzureAccess},
    wait::{until, until_gone},
};

use crate::{
    aks_world::{AZURE, CORE, Fleet, World, management},
    aso_world::{
        AKS, CREDENTIAL, INFRASTRUCTURE, NETWORK, PLANE, POOL, cluster, credential, is_settled,
        managed_cluster, pool, replace, resource, resource_group, start_manager, until_settled,
    },
};

const NAME: &str = "engines";
const ENGINE: &str = "slipway.dev/azure-engine";
const POLICY: &str = "serviceoperator.azure.com/reconcile-policy";
/// Set, it writes the golden file instead of comparing with it.
const RECORD: &str = "SLIPWAY_RECORD";
const GROUPS: &str = "resources.azure.com/v1api20200601";
/// What these are called in the golden file, as in the tests of the crate.
const PLAIN: [(&str, &str); 3] = [(NAME, "fleet"), ("engsys", "system"), ("engwork", "work")];
/// The operator's kinds that the story has objects of.
const KINDS: [(&str, &str); 4] = [
    (GROUPS, "ResourceGroup"),
    (NETWORK, "VirtualNetwork"),
    (AKS, "ManagedCluster"),
    (AKS, "ManagedClustersAgentPool"),
];

#[tokio::test(flavor = "multi_thread")]
#[ignore = "outside CI: builds Azure Service Operator; docs/aso.md has the command that records its outcome"]
async fn a_real_operator_writes_what_it_is_given() -> Result<()> {
    let world = World::managed_by("not-a-secret".to_owned(), "engines", start_manager).await?;
    let fleet = world.fleet(NAME).await?.backed()?;
    let folder = tempfile::tempdir()?;
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, world.azure.ca.certificate_pem())?;
    let access = AzureAccess {
        proxy: format!("http://{}", world.azure.ports.proxy),
        ca,
    };
    let built = upstream::built(Upstream::Aso, world.management.parts()).await?;
    let operator = world
        .management
        .start_upstream(&built, Some(&access), &[])
        .await?;
    let renewing = tokio::spawn(renew(world.management.client()));

    let mut story = Story {
        fleet: &fleet,
        seen: 0,
        told: Vec::new(),
    };
    story.live().await?;
    story.move_away(&world).await?;
    renewing.abort();
    operator.stop();
    story.compare()
}

/// The operator renews a lease in a pod only, which a process beside the cluster is not: the story does it while the process lives.
async fn renew(client: kube::Client) {
    use k8s_openapi::api::coordination::v1::Lease;
    use kube::api::{Patch, PatchParams};
    let leases: Api<Lease> = Api::namespaced(client, "default");
    let mut clock = tokio::time::interval(std::time::Duration::from_secs(10));
    loop {
        clock.tick().await;
        let body = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "controllers-leader-election-azinfra-generated"},
            "spec": {"holderIdentity": "aso", "leaseDurationSeconds": 15, "renewTime": format!("{:.6}", Timestamp::now())}});
        let parameters = PatchParams::apply("story").force();
        let _ = leases
            .patch(
                "controllers-leader-election-azinfra-generated",
                &parameters,
                &Patch::Apply(&body),
            )
            .await;
    }
}

struct Story<'a> {
    fleet: &'a Fleet<'a>,
    /// Writes that were told of.
    seen: usize,
    told: Vec<String>,
}

impl Story<'_> {
    /// Tells what was written in Azure since the last step: each write once, however often it was sent.
    fn tell(&mut self, step: &str) -> BTreeSet<String> {
        let writes = self.fleet.world.writes(&format!("/resourcegroups/{NAME}"));
        let new: Vec<String> = writes[self.seen..].iter().map(|write| short(write)).collect();
        self.seen = writes.len();
        let once: BTreeSet<String> = new.iter().cloned().collect();
        println!("report: aso engine: {step}: {} writes: {new:?}", new.len());
        let line = once.iter().cloned().collect::<Vec<_>>().join(", ");
        self.told.push(format!("{step}: {line}").trim_end().to_owned());
        once
    }

    async fn operated(&self) -> Result<Vec<DynamicObject>> {
        let mut found = Vec::new();
        for (version, kind) in KINDS {
            found.extend(self.fleet.of(version, kind).list(&ListParams::default()).await?);
        }
        Ok(found)
    }

    async fn ask_for(&self, engine: &str) -> Result<()> {
        let patch = json!({"metadata": {"annotations": {(ENGINE): engine}}});
        for (kind, name) in [
            (INFRASTRUCTURE, NAME),
            (PLANE, NAME),
            (POOL, "engsys"),
            (POOL, "engwork"),
        ] {
            self.fleet
                .merge(&self.fleet.of(AZURE, kind), name, patch.clone())
                .await?;
        }
        Ok(())
    }

    /// Every resource is written by this engine, and all is settled.
    async fn until_on(&self, engine: Option<&str>) -> Result<()> {
        for (kind, name) in [
            (INFRASTRUCTURE, NAME),
            (PLANE, NAME),
            (POOL, "engsys"),
            (POOL, "engwork"),
        ] {
            until(&self.fleet.of(AZURE, kind), name, "have its engine", |object| {
                let lines = object.data["status"]["resources"].as_array();
                is_settled(object)
                    && lines.is_some_and(|lines| lines.iter().all(|line| line["engine"].as_str() == engine))
            })
            .await?;
        }
        Ok(())
    }

    async fn live(&mut self) -> Result<()> {
        let fleet = self.fleet;
        let mut all = vec![credential(fleet, CREDENTIAL)];
        all.extend(cluster(NAME, &[resource_group(NAME)], &[managed_cluster(NAME)]));
        all.extend(pool(NAME, "engsys", "System", 1));
        all.extend(pool(NAME, "engwork", "User", 1));
        fleet.apply(&all).await?;
        until_settled(fleet, NAME, 2).await?;
        self.until_on(Some("aso")).await?;
        fleet.until_nodes("engwork", 1).await?;
        self.tell("made");

        fleet.scale("engwork", 3).await?;
        fleet.until_nodes("engwork", 3).await?;
        self.until_on(Some("aso")).await?;
        self.tell("scaled");

        let network = resource(
            NETWORK,
            "VirtualNetwork",
            "second",
            &json!({"owner": {"name": NAME}, "location": "westus3",
            "addressSpace": {"addressPrefixes": ["10.2.0.0/16"]}}),
        );
        replace(fleet, INFRASTRUCTURE, NAME, &[resource_group(NAME), network]).await?;
        self.until_on(Some("aso")).await?;
        self.tell("a network added");
        replace(fleet, INFRASTRUCTURE, NAME, &[resource_group(NAME)]).await?;
        until_gone(&fleet.of(NETWORK, "VirtualNetwork"), "second").await?;
        self.until_on(Some("aso")).await?;
        self.tell("a network taken out");

        self.ask_for("native").await?;
        self.until_on(None).await?;
        for (version, kind) in KINDS {
            for object in fleet.of(version, kind).list(&ListParams::default()).await? {
                until_gone(&fleet.of(version, kind), &object.name_any()).await?;
            }
        }
        let written = self.tell("switched to native");
        ensure!(
            !written.iter().any(|write| write.starts_with("DELETE")),
            "{written:?}"
        );
        fleet.scale("engwork", 2).await?;
        fleet.until_nodes("engwork", 2).await?;
        self.until_on(None).await?;
        self.tell("scaled natively");

        self.ask_for("aso").await?;
        self.until_on(Some("aso")).await?;
        for object in self.operated().await? {
            let kind = object
                .types
                .as_ref()
                .map(|types| types.kind.clone())
                .unwrap_or_default();
            let policy = object.annotations().get(POLICY);
            ensure!(
                policy.is_none(),
                "{kind} {} may write: {policy:?}",
                object.name_any()
            );
        }
        let written = self.tell("switched back");
        ensure!(
            !written.iter().any(|write| write.starts_with("DELETE")),
            "{written:?}"
        );
        Ok(())
    }

    /// To a management cluster where no operator is: nothing flips and nothing is written until somebody says so.
    async fn move_away(&mut self, world: &World) -> Result<()> {
        let there: Cluster = management("engines-there", true).await?;
        let manager = start_manager(&there, &world.azure).await?;
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAME}});
        install::install(&there.client(), &[namespace]).await?;
        let kubeconfig = there.kubeconfig().display().to_string();
        world
            .management
            .clusterctl(&["move", "--namespace", NAME, "--to-kubeconfig", &kubeconfig])
            .await?;
        until_gone(&self.fleet.of(CORE, "Cluster"), NAME).await?;
        let left = self.operated().await?;
        for object in left {
            let types = object.types.clone().context("a kind")?;
            until_gone(
                &self.fleet.of(&types.api_version, &types.kind),
                &object.name_any(),
            )
            .await?;
        }
        let moved = Fleet {
            client: there.client(),
            ..self.fleet.clone()
        };
        until(
            &moved.of(AZURE, PLANE),
            NAME,
            "say that no operator is there",
            |plane| {
                crate::aks_world::condition(plane, "AzureServiceOperatorReady")["reason"] == "NotInstalled"
            },
        )
        .await?;
        let written = self.tell("moved to where no operator is");
        ensure!(written.is_empty(), "{written:?}");
        let mut story = Story {
            fleet: &moved,
            seen: self.seen,
            told: std::mem::take(&mut self.told),
        };
        story.ask_for("native").await?;
        story.until_on(None).await?;
        let written = story.tell("switched to native there");
        ensure!(written.is_empty(), "{written:?}");
        moved.clusters().delete(NAME, &DeleteParams::default()).await?;
        until_gone(&moved.clusters(), NAME).await?;
        story.tell("deleted");
        let left = world.in_azure(&format!("/resourcegroups/{NAME}"));
        ensure!(left.is_empty(), "left in Azure: {left:?}");
        self.told = story.told;
        manager.kill();
        there.stop();
        Ok(())
    }

    fn compare(&self) -> Result<()> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("stories/aso_engine.golden");
        let text = format!("{}\n", self.told.join("\n"));
        if std::env::var_os(RECORD).is_some() {
            std::fs::write(&path, text)?;
            return Ok(());
        }
        let golden = std::fs::read_to_string(&path)?;
        ensure!(golden == text, "recorded:\n{golden}now:\n{text}");
        Ok(())
    }
}

/// `PUT managedclusters/fleet/agentpools/work` of a request below the group.
fn short(write: &str) -> String {
    let lower = write.to_lowercase();
    let (method, path) = lower.split_once(' ').unwrap_or((&lower, ""));
    let below = path
        .split_once(&format!("/resourcegroups/{NAME}"))
        .map_or(path, |(_, below)| below);
    let parts: Vec<&str> = below
        .trim_start_matches('/')
        .split('/')
        .filter(|part| !part.is_empty())
        .collect();
    let shown = match parts.as_slice() {
        [] => "resourcegroup".to_owned(),
        ["providers", _, rest @ ..] => rest.join("/"),
        rest => rest.join("/"),
    };
    let mut shown = format!("{} {}", method.to_uppercase(), shown);
    for (name, plain) in PLAIN {
        shown = shown.replace(name, plain);
    }
    shown
}
