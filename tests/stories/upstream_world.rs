//! A management cluster for unmodified controllers of others, the simulated Azure they reach through a proxy, and the API
//! server behind the clusters they make.

use anyhow::Result;
use kube::{Api, api::DynamicObject};
use slipway_azure_sim::{Ca, Options, Server, Settings, Simulator, Speed};
use slipway_testbed::{
    Builder, Cluster, ManagementCluster, Upstream, WorkloadCluster, install,
    upstream::{self, AzureAccess, RunningUpstream},
};

use crate::support::{apply, objects};

pub const TENANT: &str = "11111111-1111-1111-1111-111111111111";
pub const SUBSCRIPTION: &str = "00000000-0000-0000-0000-000000000000";

pub struct UpstreamWorld {
    pub management: Cluster,
    pub workload: Cluster,
    pub azure: Server,
    access: AzureAccess,
    _folder: tempfile::TempDir,
}

impl UpstreamWorld {
    /// `as_needed` adds to the management cluster what a story has beside Cluster API.
    pub async fn start(name: &str, as_needed: impl FnOnce(Builder) -> Builder) -> Result<Self> {
        let simulator = Simulator::new(Settings {
            tenant: TENANT.to_owned(),
            subscriptions: vec![SUBSCRIPTION.to_owned()],
            speed: Speed::Times(60.0),
            ..Settings::default()
        });
        let (management, workload) = tokio::try_join!(
            // Cluster API Provider Azure watches kubeadm's bootstrap kinds too.
            as_needed(ManagementCluster::builder().name(name).kubeadm()).start(),
            WorkloadCluster::builder()
                .name(format!("{name}-workload"))
                .kwok()
                .start(),
        )?;
        simulator
            .azure()
            .back_all_clusters(&std::fs::read_to_string(workload.kubeconfig())?);
        let azure = Server::start(simulator, Ca::new()?, Options::default()).await?;
        let folder = tempfile::tempdir()?;
        let ca = folder.path().join("ca.pem");
        std::fs::write(&ca, azure.ca.certificate_pem())?;
        let access = AzureAccess {
            proxy: format!("http://{}", azure.ports.proxy),
            ca,
        };
        Ok(Self {
            management,
            workload,
            azure,
            access,
            _folder: folder,
        })
    }

    pub async fn upstream(&self, upstream: Upstream) -> Result<RunningUpstream> {
        let built = upstream::built(upstream, self.management.parts()).await?;
        Ok(self
            .management
            .start_upstream(&built, Some(&self.access), &[])
            .await?)
    }

    /// Applies one of the manifests in tests/manifests for a cluster that is named as its namespace.
    pub async fn apply(&self, namespace: &str, manifest: &str) -> Result<()> {
        let text = manifest
            .replace("${NAMESPACE}", namespace)
            .replace("${NAME}", namespace)
            .replace("${SUBSCRIPTION}", SUBSCRIPTION)
            .replace("${TENANT}", TENANT);
        apply(&self.management.client(), namespace, &install::parse(&text)?).await
    }

    pub fn objects(&self, namespace: &str, api_version: &str, kind: &str) -> Api<DynamicObject> {
        objects(&self.management.client(), namespace, api_version, kind)
    }
}
