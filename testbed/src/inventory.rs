//! clusterctl's inventory: the objects by which it knows which providers a cluster has and whose objects it moves, as
//! `clusterctl init` leaves them.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    Cluster, Manifest,
    install::{self, InstallError},
    parts::{PartsError, version_of},
};

/// The label by which clusterctl knows what is its own.
const CLUSTERCTL: &str = "clusterctl.cluster.x-k8s.io";
const PROVIDER: &str = "cluster.x-k8s.io/provider";

/// What of Cluster API the testbed runs itself: the part, its namespace and what clusterctl calls it.
const RUN_HERE: [(&str, &str, &str); 3] = [
    ("cluster-api", "capi-system", "cluster-api"),
    (
        "kubeadm-bootstrap",
        "capi-kubeadm-bootstrap-system",
        "bootstrap-kubeadm",
    ),
    (
        "kubeadm-control-plane",
        "capi-kubeadm-control-plane-system",
        "control-plane-kubeadm",
    ),
];

#[derive(Debug, thiserror::Error)]
pub enum InventoryError {
    #[error(transparent)]
    Parts(#[from] PartsError),
    #[error(transparent)]
    Install(#[from] InstallError),
    #[error("marking the kinds that clusterctl moves: {0}")]
    Mark(#[source] Box<kube::Error>),
}

/// A provider that was installed without clusterctl.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    pub namespace: &'a str,
    /// `infrastructure-azure`, `bootstrap-k3s`, …
    pub identity: &'a str,
    pub version: &'a str,
}

impl Entry<'_> {
    fn objects(&self) -> [Value; 2] {
        let (kind, name) = [
            ("infrastructure-", "InfrastructureProvider"),
            ("bootstrap-", "BootstrapProvider"),
            ("control-plane-", "ControlPlaneProvider"),
            ("runtime-extension-", "RuntimeExtensionProvider"),
        ]
        .iter()
        .find_map(|(prefix, kind)| Some((*kind, self.identity.strip_prefix(prefix)?)))
        .unwrap_or(("CoreProvider", self.identity));
        [
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}),
            json!({
                "apiVersion": "clusterctl.cluster.x-k8s.io/v1alpha3",
                "kind": "Provider",
                "metadata": {
                    "name": self.identity,
                    "namespace": self.namespace,
                    "labels": {
                        CLUSTERCTL: "",
                        "clusterctl.cluster.x-k8s.io/core": "inventory",
                        PROVIDER: self.identity,
                    },
                },
                "providerName": name,
                "type": kind,
                "version": self.version,
            }),
        ]
    }
}

/// Writes the inventory: these providers beside what of Cluster API runs here. Every kind of a provider that is installed by
/// now is marked as one that clusterctl moves.
pub async fn install(cluster: &Cluster, entries: &[Entry<'_>]) -> Result<(), InventoryError> {
    let client = cluster.client();
    let mut objects = cluster.parts().manifest(Manifest::Clusterctl)?;
    for (part, namespace, identity) in RUN_HERE {
        if cluster.description().processes.contains_key(part) {
            let version = version_of("sigs.k8s.io/cluster-api");
            objects.extend(
                Entry {
                    namespace,
                    identity,
                    version,
                }
                .objects(),
            );
        }
    }
    objects.extend(entries.iter().flat_map(Entry::objects));
    install::install(&client, &objects).await?;
    let failed = |error| InventoryError::Mark(Box::new(error));
    let definitions: Api<CustomResourceDefinition> = Api::all(client);
    let mark = Patch::Merge(json!({"metadata": {"labels": {CLUSTERCTL: ""}}}));
    let of_providers = ListParams::default().labels(PROVIDER);
    for definition in definitions.list(&of_providers).await.map_err(failed)? {
        definitions
            .patch(&definition.name_any(), &PatchParams::default(), &mark)
            .await
            .map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_says_what_kind_of_provider_it_is() {
        for (identity, kind, name) in [
            ("infrastructure-azure", "InfrastructureProvider", "azure"),
            ("control-plane-k3s", "ControlPlaneProvider", "k3s"),
            ("cluster-api", "CoreProvider", "cluster-api"),
        ] {
            let entry = Entry {
                namespace: "system",
                identity,
                version: "v1.2.3",
            };
            let [_, provider] = entry.objects();
            assert_eq!(
                (&provider["type"], &provider["providerName"]),
                (&json!(kind), &json!(name))
            );
        }
    }
}
