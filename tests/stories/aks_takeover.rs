//! A running installation of Cluster API Provider Azure with Azure Service Operator hands its clusters over: they make a
//! cluster, are taken away, and Slipway goes on with it. The operator's objects are detached and Azure is not written to.

use anyhow::{Result, ensure};
use k8s_openapi::{
    api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
};
use serde_json::json;
use slipway_azure_sim::{Authority, Options, Server, Settings, Simulator, Speed};
use slipway_testbed::{
    Cluster, ManagementCluster, Peer, WorkloadCluster, install,
    peers::{self, AzureAccess, RunningPeer},
    wait::{until, until_gone},
};

use crate::{
    aks_manager::{AksManager, USER},
    aks_world::{AZURE, CORE, SUBSCRIPTION, TENANT, is_ready},
    support::{apply, objects},
};

const NAME: &str = "handed-over";

struct Handover {
    management: Cluster,
    azure: Server,
    access: AzureAccess,
    _workload: Cluster,
    _folder: tempfile::TempDir,
}

impl Handover {
    async fn start() -> Result<Self> {
        let simulator = Simulator::new(Settings {
            tenant: TENANT.to_owned(),
            subscriptions: vec![SUBSCRIPTION.to_owned()],
            speed: Speed::Times(60.0),
            ..Settings::default()
        });
        let (management, workload) = tokio::try_join!(
            ManagementCluster::builder()
                .name("takeover")
                .kubeadm()
                .audit_everything_of(USER)
                .start(),
            WorkloadCluster::builder()
                .name("takeover-workload")
                .kwok()
                .start(),
        )?;
        simulator
            .azure()
            .back_all_clusters(&std::fs::read_to_string(workload.kubeconfig())?);
        let azure = Server::start(simulator, Authority::new()?, Options::default()).await?;
        let folder = tempfile::tempdir()?;
        let ca = folder.path().join("ca.pem");
        std::fs::write(&ca, azure.authority.certificate_pem())?;
        let proxy = format!("http://{}", azure.ports.proxy);
        Ok(Self {
            management,
            azure,
            access: AzureAccess { proxy, ca },
            _workload: workload,
            _folder: folder,
        })
    }

    async fn peer(&self, peer: Peer) -> Result<RunningPeer> {
        let built = peers::built(peer, self.management.parts()).await?;
        Ok(self.management.start_peer(&built, &self.access, &[]).await?)
    }

    fn of(&self, version: &str, kind: &str) -> Api<DynamicObject> {
        objects(&self.management.client(), NAME, version, kind)
    }

    fn writes(&self) -> Vec<String> {
        let azure = self.azure.simulator().azure();
        azure
            .requests()
            .filter(|request| matches!(request.method.as_str(), "PUT" | "PATCH" | "DELETE"))
            .map(|request| format!("{} {}", request.method, request.path))
            .collect()
    }

    fn in_azure(&self) -> Vec<String> {
        let azure = self.azure.simulator().azure();
        let resources = &azure.state().resources;
        let ids = resources.iter().map(|resource| resource.id.to_lowercase());
        ids.filter(|id| id.contains("/resourcegroups/")).collect()
    }

    /// What the operator keeps for the cluster's resources, in the version it is stored in.
    async fn kept_by_the_operator(&self) -> Result<Vec<(Api<DynamicObject>, String)>> {
        let client = self.management.client();
        let definitions = Api::<CustomResourceDefinition>::all(client.clone())
            .list(&ListParams::default())
            .await?;
        let mut kept = Vec::new();
        for definition in definitions {
            let (group, names) = (&definition.spec.group, &definition.spec.names);
            let stored = definition.spec.versions.iter().find(|version| version.storage);
            let (true, Some(version)) = (group.ends_with(".azure.com"), stored) else {
                continue;
            };
            let kind = GroupVersionKind::gvk(group, &version.name, &names.kind);
            let resource = ApiResource::from_gvk_with_plural(&kind, &names.plural);
            let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAME, &resource);
            for object in api.list(&ListParams::default()).await? {
                kept.push((api.clone(), object.name_any()));
            }
        }
        Ok(kept)
    }

    /// Both are gone, as `clusterctl delete --infrastructure azure` leaves it: without webhooks, with all objects.
    async fn take_webhooks_away(&self) -> Result<()> {
        let client = self.management.client();
        let of_theirs = |name: &str| name.contains("capz") || name.contains("azureserviceoperator");
        let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
        for one in mutating.list(&ListParams::default()).await? {
            if of_theirs(&one.name_any()) {
                mutating.delete(&one.name_any(), &DeleteParams::default()).await?;
            }
        }
        let validating: Api<ValidatingWebhookConfiguration> = Api::all(client);
        for one in validating.list(&ListParams::default()).await? {
            if of_theirs(&one.name_any()) {
                validating
                    .delete(&one.name_any(), &DeleteParams::default())
                    .await?;
            }
        }
        Ok(())
    }

    async fn until_taken(&self) -> Result<()> {
        let taken = |object: &DynamicObject| {
            let own = "slipway.dev/azure-applied";
            is_ready(object) && object.annotations().contains_key(own)
        };
        until(
            &self.of(AZURE, "AzureManagedControlPlane"),
            NAME,
            "be taken over",
            taken,
        )
        .await?;
        for pool in ["system", "user"] {
            let name = format!("{NAME}-{pool}");
            until(
                &self.of(AZURE, "AzureManagedMachinePool"),
                &name,
                "be taken over",
                is_ready,
            )
            .await?;
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "outside CI: builds Azure Service Operator and Cluster API Provider Azure; docs/guides/takeover-aks.md has the command"]
async fn a_running_installation_hands_its_clusters_over() -> Result<()> {
    let world = Handover::start().await?;
    let operator = world.peer(Peer::Aso).await?;
    let provider = world.peer(Peer::Capz).await?;
    let client = world.management.client();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAME}});
    install::install(&client, &[namespace]).await?;
    let manifest = include_str!("../manifests/aks-managed.yaml")
        .replace("${NAMESPACE}", NAME)
        .replace("${NAME}", NAME)
        .replace("${SUBSCRIPTION}", SUBSCRIPTION)
        .replace("${TENANT}", TENANT);
    apply(&client, NAME, &install::parse(&manifest)?).await?;
    let planes = world.of(AZURE, "AzureManagedControlPlane");
    let pools = world.of(CORE, "MachinePool");
    until(&planes, NAME, "become ready", |plane| {
        plane.data["status"]["ready"] == true
    })
    .await?;
    for pool in ["system", "user"] {
        until(&pools, &format!("{NAME}-{pool}"), "run a node", |pool| {
            pool.data["status"]["readyReplicas"] == 1
        })
        .await?;
    }

    provider.stop();
    operator.stop();
    world.take_webhooks_away().await?;
    let kept = world.kept_by_the_operator().await?;
    ensure!(kept.len() >= 6, "{} objects of the operator", kept.len());
    let (before, made) = (world.writes(), world.in_azure());

    let manager = AksManager::start(&world.management, &world.azure).await?;
    world.until_taken().await?;
    for (api, name) in &kept {
        until_gone(api, name).await?;
    }
    ensure!(
        world.writes() == before,
        "written in Azure: {:?}",
        &world.writes()[before.len()..]
    );
    ensure!(world.in_azure() == made, "{:?}", world.in_azure());
    println!(
        "report: aks takeover: {} objects detached, 0 writes in Azure",
        kept.len()
    );

    // From here on the cluster is ours: it scales, and it goes.
    let scale = Patch::Merge(json!({"spec": {"replicas": 3}}));
    let user = format!("{NAME}-user");
    pools.patch(&user, &PatchParams::default(), &scale).await?;
    until(&pools, &user, "run three nodes", |pool| {
        pool.data["status"]["readyReplicas"] == 3
    })
    .await?;
    let denied = world
        .management
        .audit()
        .requests(None, |request| request.username() == USER && request.was_denied())?;
    ensure!(denied.is_empty(), "{denied:?}");
    let clusters = world.of(CORE, "Cluster");
    clusters.delete(NAME, &DeleteParams::default()).await?;
    until_gone(&clusters, NAME).await?;
    let left = world.in_azure();
    ensure!(left.is_empty(), "left in Azure: {left:?}");
    manager.kill();
    Ok(())
}
