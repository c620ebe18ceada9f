//! Every read behind an answer: from the apiserver itself, because an answer that rests on older facts could begin an upgrade twice.

use kube::{Api, Client, ResourceExt, api::ListParams, core::NamespaceResourceScope};
use serde::de::DeserializeOwned;
use serde_json::Value;
use slipway_capi::view::Machine;

use super::update::{Known, KnownUpgrade, Target};
use crate::{
    api::{ClusterUpgrade, EdgeMachine, NodeUpgrade, UpgradePolicy},
    error::Error,
    upgrade_policy::api::UpgradePolicySpec,
};

/// The uid of the Machine, on its NodeUpgrades.
pub const MACHINE_LABEL: &str = "edge.slipway.dev/machine-uid";
/// The UpgradePolicy of a Machine or a Cluster that no ClusterUpgrade names one for.
pub const POLICY: &str = "slipway.dev/upgrade-policy";

pub struct Observed {
    pub machine: Machine,
    pub upgrades: Vec<NodeUpgrade>,
    pub known: Known,
}

async fn list<K>(client: &Client, namespace: &str, parameters: &ListParams) -> Result<Vec<K>, Error>
where
    K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    let doing = format!("listing {} of namespace {namespace}", K::plural(&()));
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let found = api.list(parameters).await.map_err(Error::api(doing))?;
    Ok(found.items)
}

async fn get<K>(client: &Client, namespace: &str, name: &str) -> Result<Option<K>, Error>
where
    K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    let doing = format!("reading {} {name}", K::kind(&()));
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    api.get_opt(name).await.map_err(Error::api(doing))
}

/// `None`: there is no such Machine.
pub async fn of_target(target: &Target, client: &Client) -> Result<Option<Observed>, Error> {
    let namespace = target.namespace.as_str();
    let Some(machine) = get::<Machine>(client, namespace, &target.machine).await? else {
        return Ok(None);
    };
    let uid = machine.metadata.uid.clone().unwrap_or_default();
    let of_machine = ListParams::default().labels(&format!("{MACHINE_LABEL}={uid}"));
    let (host, upgrades) = futures::future::try_join(
        get::<EdgeMachine>(client, namespace, &machine.spec.infrastructure_ref.name),
        list::<NodeUpgrade>(client, namespace, &of_machine),
    )
    .await?;
    let mut known = Known {
        machine_uid: uid,
        is_control_plane: machine.is_control_plane(),
        has_node: machine.node_name().is_some(),
        host: host.and_then(|machine| machine.spec.host_name),
        policy: None,
        held: None,
        upgrades: upgrades.iter().map(known_upgrade).collect(),
    };
    if known.upgrade_to(target).is_none() {
        let asked = list::<ClusterUpgrade>(client, namespace, &ListParams::default()).await?;
        begun_by(&asked, &machine, target, &mut known);
    }
    Ok(Some(Observed {
        machine,
        upgrades,
        known,
    }))
}

fn known_upgrade(upgrade: &NodeUpgrade) -> KnownUpgrade {
    let status = upgrade.status.clone().unwrap_or_default();
    KnownUpgrade {
        name: upgrade.name_any(),
        machine_uid: upgrade.spec.machine_uid.clone(),
        hash: upgrade.spec.desired_hash.clone(),
        phase: status.phase,
        message: status.message,
        percent: status.percent,
    }
}

/// What the ClusterUpgrade that asks for this image says, and the machine itself.
fn begun_by(asked: &[ClusterUpgrade], machine: &Machine, target: &Target, known: &mut Known) {
    let by = asked.iter().find(|upgrade| {
        upgrade.spec.cluster_name == machine.spec.cluster_name
            && upgrade
                .spec
                .images
                .iter()
                .any(|image| image.version == target.version && image.image == target.image)
    });
    let annotations = machine.metadata.annotations.as_ref();
    known.policy = by
        .and_then(|upgrade| upgrade.spec.policy_name.clone())
        .or_else(|| annotations?.get(POLICY).cloned());
    if machine.metadata.deletion_timestamp.is_some() {
        known.held = Some("the machine is being deleted".to_owned());
    } else if let Some(upgrade) = by.filter(|upgrade| upgrade.spec.paused) {
        known.held = Some(format!("ClusterUpgrade {} is paused", upgrade.name_any()));
    }
}

/// The policy by which a topology is upgraded; the inner error is the answer.
pub async fn policy_of_cluster(
    request: &Value,
    client: &Client,
) -> Result<Result<UpgradePolicySpec, String>, Error> {
    let metadata = &request["cluster"]["metadata"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (namespace, cluster) = (text(&metadata["namespace"]), text(&metadata["name"]));
    if namespace.is_empty() {
        return Ok(Err("the request names no Cluster".to_owned()));
    }
    let mut asked = list::<ClusterUpgrade>(client, &namespace, &ListParams::default()).await?;
    asked.retain(|upgrade| upgrade.spec.cluster_name == cluster);
    let named = metadata["annotations"][POLICY].as_str();
    let named = named
        .map(ToOwned::to_owned)
        .or_else(|| asked.iter().find_map(|upgrade| upgrade.spec.policy_name.clone()));
    let mut policy = match named {
        None => UpgradePolicySpec::default(),
        Some(name) => match get::<UpgradePolicy>(client, &namespace, &name).await? {
            Some(policy) => policy.spec,
            None => {
                return Ok(Err(format!(
                    "there is no UpgradePolicy {name} in namespace {namespace}, which upgrades of Cluster {cluster} go by"
                )));
            }
        },
    };
    // Versions that there are images of can be gone by.
    let images = asked.into_iter().flat_map(|upgrade| upgrade.spec.images);
    policy.known_versions.extend(images.map(|image| image.version));
    Ok(Ok(policy))
}
