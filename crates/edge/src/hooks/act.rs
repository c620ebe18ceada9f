//! What an answer to `UpdateMachine` makes sure of. Two replicas may do it at once: the name of an upgrade follows from what the
//! machine is to become, and what is deleted is the object that was read.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, PostParams, Preconditions},
};
use slipway_capi::names::label;

use super::{
    observe::{MACHINE_LABEL, Observed},
    update::Ensure,
};
use crate::{api::NodeUpgrade, error::Error, node_upgrade::api::NodeUpgradeSpec};

pub async fn ensure(desired: &Ensure, observed: &Observed, client: &Client) -> Result<(), Error> {
    let namespace = observed.machine.metadata.namespace.clone().unwrap_or_default();
    let api: Api<NodeUpgrade> = Api::namespaced(client.clone(), &namespace);
    for upgrade in &observed.upgrades {
        if desired.delete.contains(&upgrade.name_any()) {
            delete(&api, upgrade).await?;
        }
    }
    if let Some((name, spec)) = &desired.create {
        let made = api
            .create(&PostParams::default(), &object(name, spec, observed))
            .await;
        match made {
            Ok(_) => tracing::info!(upgrade = %name, machine = %spec.machine_name, "Asked for an upgrade"),
            // The other replica was first.
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            Err(error) => return Err(Error::api(format!("creating NodeUpgrade {name}"))(error)),
        }
    }
    Ok(())
}

async fn delete(api: &Api<NodeUpgrade>, upgrade: &NodeUpgrade) -> Result<(), Error> {
    let name = upgrade.name_any();
    let parameters = DeleteParams {
        preconditions: Some(Preconditions {
            uid: upgrade.uid(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    match api.delete(&name, &parameters).await {
        Ok(_) => Ok(()),
        // It is gone, or another of its name is there since.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        Err(error) => Err(Error::api(format!("deleting NodeUpgrade {name}"))(error)),
    }
}

/// It goes with its Machine, and moves with it.
fn object(name: &str, spec: &NodeUpgradeSpec, observed: &Observed) -> NodeUpgrade {
    let machine = &observed.machine;
    let owner = OwnerReference {
        api_version: "cluster.x-k8s.io/v1beta2".to_owned(),
        kind: "Machine".to_owned(),
        name: spec.machine_name.clone(),
        uid: spec.machine_uid.clone(),
        ..OwnerReference::default()
    };
    let labels = [
        (label::CLUSTER_NAME.to_owned(), machine.spec.cluster_name.clone()),
        (MACHINE_LABEL.to_owned(), spec.machine_uid.clone()),
    ];
    NodeUpgrade {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: machine.metadata.namespace.clone(),
            labels: Some(labels.into()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: spec.clone(),
        status: None,
    }
}
