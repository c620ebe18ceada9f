//! Upgrades of a real Cluster API's machines that do not go as they should, carried out by real agents: a host that does not boot, and a
//! Machine that is deleted in the middle.

use anyhow::{Context as _, Result, ensure};
use futures::StreamExt;
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, DynamicObject},
    runtime::{WatchStreamExt, watcher},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use slipway_capi::condition;
use slipway_edge::{
    api::{EdgeHost, EdgeMachine, GROUP, NodeUpgrade, VERSION},
    hooks::observe::POLICY,
    machine::BOOTSTRAPPED_ANNOTATION,
    node_upgrade::api::Phase,
    provider,
};
use slipway_kit::manager::roles;
use slipway_slots::{Slot, boot::SlotBoot};
use slipway_testbed::{
    Cluster, shared,
    wait::{until_gone_within, until_within},
};

use crate::{
    in_place_agents::Site,
    in_place_world::{
        AFTER, BEFORE, CORE, LONG, Story, USER, Upgrades, begin_on, deployment, manifests, register,
    },
};

/// Workers that Cluster API hands over all at once: who goes when is the policy's to say.
fn workers(template: &str, version: &str, annotations: &Value) -> Value {
    let mut workers = deployment(template, version);
    workers["spec"]["rollout"]["strategy"]["rollingUpdate"]["maxUnavailable"] = json!("100%");
    workers["spec"]["template"]["metadata"]["annotations"] = annotations.clone();
    workers
}

/// Two workers, as they were made, and a runtime extension that is registered.
async fn two_workers(
    site: &Site,
    workload: &Cluster,
    annotations: &Value,
) -> Result<(Story, tempfile::TempDir)> {
    let story = begin_on(site.port(), workload, Upgrades::Done).await?;
    site.is_of(&story);
    let management = shared("capi").await?;
    let folder = tempfile::tempdir()?;
    roles::install(&management, &[provider::extension()], USER).await?;
    let (base, ca, _) = story.run_extension(&management, folder.path()).await?;
    register(&story, &base, &ca).await?;
    let kubeconfig = workload.kubeconfig_as("edge-story", Some("system:masters"));
    let mut objects = site.objects();
    objects.extend(manifests(&kubeconfig, &format!("{}-control", story.namespace)));
    objects.push(site.template("workers-a", &site.before, 1));
    objects.push(workers("workers-a", BEFORE, annotations));
    story.apply(&objects).await?;
    let deployments = story.api(CORE, "MachineDeployment");
    until_within(
        LONG,
        &deployments,
        "workers",
        "have 2 available machines",
        |deployment| deployment.data["status"]["availableReplicas"] == 2,
    )
    .await?;
    story.note_bootstrap_data(story.workers().await?.keys()).await?;
    Ok((story, folder))
}

/// Waits until some object is so.
async fn until_some<K>(api: &Api<K>, what: &str, is_so: impl Fn(&K) -> bool) -> Result<K>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    let mut events = std::pin::pin!(
        watcher(api.clone(), watcher::Config::default())
            .default_backoff()
            .applied_objects()
    );
    let found = async {
        while let Some(event) = events.next().await {
            if let Some(object) = event.ok().filter(|object| is_so(object)) {
                return Some(object);
            }
        }
        None
    };
    let found = tokio::time::timeout(LONG, found).await;
    found
        .ok()
        .flatten()
        .with_context(|| format!("there never was {what}"))
}

fn phase(upgrade: &NodeUpgrade) -> Phase {
    upgrade
        .status
        .as_ref()
        .map_or(Phase::Pending, |status| status.phase)
}

/// Why an upgrade is not done, as its condition says it.
fn why(upgrade: &NodeUpgrade) -> (String, String) {
    let status = upgrade.status.clone().unwrap_or_default();
    let ready = condition::find(&status.conditions, "Ready");
    ready
        .map(|ready| (ready.reason.clone(), ready.message.clone()))
        .unwrap_or_default()
}

/// What Cluster API says of a machine's update.
fn updating(machine: &DynamicObject) -> String {
    let conditions = machine.data["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten();
    let mut updating = conditions.filter(|one| one["type"] == "Updating");
    updating
        .next()
        .map(|one| one["message"].as_str().unwrap_or_default().to_owned())
        .unwrap_or_default()
}

async fn end(story: &Story) -> Result<()> {
    let clusters = story.api(CORE, "Cluster");
    clusters.delete("north", &DeleteParams::default()).await?;
    until_gone_within(LONG, &clusters, "north").await?;
    let kind = kube::core::GroupVersionKind::gvk("runtime.cluster.x-k8s.io", "v1beta2", "ExtensionConfig");
    let configs: Api<DynamicObject> =
        Api::all_with(story.client.clone(), &kube::api::ApiResource::from_gvk(&kind));
    configs.delete(&story.namespace, &DeleteParams::default()).await?;
    Ok(())
}

/// E-28, E-55: the first host does not boot its new slot and goes back; the second one is not disturbed, and Cluster API shows why. When a
/// person has looked at it, the second goes on, and the first is not tried again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e28_e55_a_host_that_does_not_boot_goes_back_and_the_fleet_stops_with_the_reason() -> Result<()> {
    let workload = shared("workload").await?;
    let site = Site::start(&workload, BEFORE, AFTER).await?;
    let (story, _folder) = two_workers(&site, &workload, &json!({})).await?;
    let before = story.workers().await?;
    for host in &site.hosts {
        host.machine.faults.lock().does_not_boot = true;
    }
    story
        .apply(&[
            site.template("workers-b", &site.after, 1),
            workers("workers-b", AFTER, &json!({})),
        ])
        .await?;
    let upgrades: Api<NodeUpgrade> = Api::namespaced(story.client.clone(), &story.namespace);
    let back = until_some(&upgrades, "an upgrade that went back", |upgrade| {
        phase(upgrade) == Phase::RolledBack
    })
    .await?;
    ensure!(
        why(&back).1.contains("slot B did not come up in 3 tries"),
        "{:?}",
        why(&back)
    );
    let waits = until_some(&upgrades, "an upgrade that is stopped", |upgrade| {
        why(upgrade).0 == "Halted"
    })
    .await?;
    let stopped = format!("1 machine went back from this image ({})", back.spec.machine_name);
    ensure!(why(&waits).1.starts_with(&stopped), "{:?}", why(&waits));
    let machines = story.api(CORE, "Machine");
    let other = waits.spec.machine_name.clone();
    until_within(LONG, &machines, &other, "show why it waits", |machine| {
        updating(machine).contains(&stopped)
    })
    .await?;
    ensure!(story.workers().await? == before, "nobody is replaced: {before:?}");
    ensure!(
        site.reboots() == [(back.spec.host_name.as_str(), 1_u64)],
        "{:?} were disturbed",
        site.reboots()
    );
    let host = site.host(&back.spec.host_name)?;
    ensure!(
        host.boots_into()?.next_boot() == Some(Slot::A),
        "it boots what it had: {:?}",
        host.boots_into()?
    );

    // A person has seen it, and found what kept the host from booting.
    for host in &site.hosts {
        host.machine.faults.lock().does_not_boot = false;
    }
    upgrades
        .delete(&back.name_any(), &DeleteParams::default())
        .await?;
    story.until_upgraded(std::iter::once(&other), AFTER).await?;
    let again = until_some(&upgrades, "a second try that is refused", |upgrade| {
        upgrade.spec.machine_name == back.spec.machine_name && phase(upgrade) == Phase::Failed
    })
    .await?;
    ensure!(
        again.uid() != back.uid() && why(&again).1.contains("is not tried again"),
        "{:?}",
        why(&again)
    );
    ensure!(story.workers().await? == before, "nobody is replaced: {before:?}");
    end(&story).await
}

/// E-20: a Machine is deleted while its new slot is written and waits. The host is left clean: nothing is kept for the upgrade, the old
/// slot runs, and the machine that takes the place gets the host.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e20_a_machine_that_is_deleted_in_mid_update_leaves_a_host_that_the_next_one_gets() -> Result<()> {
    let workload = shared("workload").await?;
    let site = Site::start(&workload, BEFORE, AFTER).await?;
    let held = json!({(POLICY): "held"});
    let (story, _folder) = two_workers(&site, &workload, &held).await?;
    let policy = json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "UpgradePolicy", "metadata": {"name": "held"},
        "spec": {"maxConcurrent": 0}});
    story
        .apply(&[
            policy,
            site.template("workers-b", &site.after, 1),
            workers("workers-b", AFTER, &held),
        ])
        .await?;
    let upgrades: Api<NodeUpgrade> = Api::namespaced(story.client.clone(), &story.namespace);
    let waits = until_some(&upgrades, "an upgrade that waits", |upgrade| {
        phase(upgrade) == Phase::Prepared
    })
    .await?;
    let (name, host) = (waits.spec.machine_name.clone(), waits.spec.host_name.clone());
    let id = waits.uid().context("a uid")?;
    let told = site.reached(&host, &id).await?;
    ensure!(told.holds_slot && told.is_pinned, "its slot is written: {told:?}");
    let namespace = format!("--namespace={}", story.namespace);
    let management = shared("capi").await?;
    management
        .kubectl(&["delete", "machine", &name, &namespace, "--wait=false"])
        .await?;
    until_gone_within(LONG, &story.api(CORE, "Machine"), &name).await?;
    until_gone_within(LONG, &upgrades, &waits.name_any()).await?;
    let edge_machines: Api<EdgeMachine> = Api::namespaced(story.client.clone(), &story.namespace);
    let next = until_some(&edge_machines, "another machine on the host", |machine| {
        machine.spec.host_name.as_deref() == Some(&host)
            && machine.name_any() != name
            && machine.annotations().contains_key(BOOTSTRAPPED_ANNOTATION)
    })
    .await?;
    let left = site.reached(&host, &id).await?;
    ensure!(
        !left.holds_slot && !left.is_pinned && !left.has_booted(&site.after.digest.to_string()),
        "{left:?}"
    );
    ensure!(site.reboots().is_empty(), "{:?} were disturbed", site.reboots());
    let state = site.host(&host)?.boots_into()?;
    ensure!(
        state.slots[Slot::B] == SlotBoot::Unbootable,
        "nobody boots the slot that nobody wants: {state:?}"
    );
    let occupant = std::fs::read_to_string(site.host(&host)?.folder().join("root/etc/occupant"))?;
    ensure!(
        Some(&occupant) == next.spec.provider_id.as_ref(),
        "{occupant}, not {:?}",
        next.spec.provider_id
    );
    let edge_hosts: Api<EdgeHost> = Api::namespaced(story.client.clone(), &story.namespace);
    let claim = edge_hosts.get(&host).await?.spec.claim.context("a claim")?;
    ensure!(claim.name == next.name_any() && !claim.released, "{claim:?}");
    end(&story).await
}
