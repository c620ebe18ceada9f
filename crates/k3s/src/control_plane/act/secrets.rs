//! Makes the Secrets of a cluster. What is made goes into the snapshot: what is made after it may be signed by it.

use k8s_openapi::{api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;
use slipway_capi::{
    owner,
    secret::{
        self, Purpose,
        certificate::{self, CA_LIFETIME, CLIENT_LIFETIME, KeyAlgorithm},
        kubeconfig::{self, Administrator},
        store,
    },
};

use super::Executor;
use crate::error::Error;

impl Executor<'_> {
    /// The reference by which a Secret is ours.
    fn controller(&self) -> Result<OwnerReference, Error> {
        owner::controller_reference(self.object).ok_or_else(|| Error::Unusable {
            doing: "making the Secrets of a cluster".into(),
            problem: "the control plane has not been stored".into(),
        })
    }

    pub(super) async fn make_ca(&mut self, purpose: Purpose) -> Result<(), Error> {
        let pair = certificate::generate(
            purpose,
            "kubernetes",
            KeyAlgorithm::Rsa2048,
            CA_LIFETIME,
            self.context.clock.now(),
        )?;
        let made = secret::key_pair_secret(
            &self.namespace(),
            &self.snapshot.cluster_name,
            purpose,
            Some(self.controller()?),
            &pair,
        );
        let stored = store::create(&self.context.client, &made).await?;
        self.snapshot.secrets.cas.insert(purpose, stored);
        Ok(())
    }

    pub(super) async fn make_token(&self, name: &str) -> Result<(), Error> {
        let value: String = self.context.random.uuid().replace('-', "");
        let made = secret::cluster_secret(
            &self.namespace(),
            &self.snapshot.cluster_name,
            name,
            Some(self.controller()?),
            [(secret::VALUE_KEY, value.into_bytes())],
        );
        store::create(&self.context.client, &made).await?;
        Ok(())
    }

    pub(super) async fn take_over_secret(&self, name: &str) -> Result<(), Error> {
        let Some(present) = self.snapshot.secrets.get(name) else {
            return Ok(());
        };
        let owners: Vec<OwnerReference> = present
            .metadata
            .owner_references
            .iter()
            .flatten()
            .filter(|owner| owner.controller != Some(true))
            .cloned()
            .chain([self.controller()?])
            .collect();
        let patch = json!({"metadata": {
            "resourceVersion": present.metadata.resource_version,
            "ownerReferences": owners,
        }});
        self.patch_secret(name, &patch, "taking over").await
    }

    pub(super) async fn write_kubeconfig(&self) -> Result<(), Error> {
        let snapshot = &self.snapshot;
        let (name, cas) = (&snapshot.cluster_name, &snapshot.secrets.cas);
        let (Some(server), Some(client), Some(cluster)) = (
            cas.get(&Purpose::ClusterCa),
            cas.get(&Purpose::ClientCa),
            &snapshot.cluster,
        ) else {
            return Ok(());
        };
        let text = Administrator {
            cluster: name,
            server: &cluster.spec.control_plane_endpoint.url(),
            server_ca: &secret::read_key_pair(server)?.certificate,
            client_ca: &secret::read_key_pair(client)?,
            algorithm: KeyAlgorithm::EcdsaP256,
            lifetime: CLIENT_LIFETIME,
        }
        .kubeconfig(self.context.clock.now())?;
        let made = kubeconfig::secret(&self.namespace(), name, self.controller()?, &text);
        match &snapshot.secrets.kubeconfig {
            None => store::create(&self.context.client, &made).await.map(|_| ())?,
            Some(present) => {
                let patch = json!({"data": made.data});
                self.patch_secret(&present.name_any(), &patch, "renewing").await?;
            }
        }
        Ok(())
    }

    async fn patch_secret(&self, name: &str, patch: &serde_json::Value, doing: &str) -> Result<(), Error> {
        Api::<Secret>::namespaced(self.context.client.clone(), &self.namespace())
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .map(|_| ())
            .map_err(Error::api(format!("{doing} Secret {name}")))
    }
}
