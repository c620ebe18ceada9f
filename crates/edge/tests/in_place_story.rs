//! Machines of a real Cluster API that are updated in place: core and the runtime extension are real, core calls the replica that stands by,
//! and the hosts are real agents.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use slipway_edge::{
    api::{EdgeMachine, NodeUpgrade},
    provider,
};
use slipway_kit::manager::roles;
use slipway_testbed::{
    shared,
    wait::{until_gone_within, until_within},
};

use crate::{
    in_place_agents::Site,
    in_place_world::{
        AFTER, BEFORE, CORE, LONG, USER, Upgrades, asked, begin_on, deployment, manifests, register,
        until_asked,
    },
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e7_e17_a_machine_deployment_is_updated_in_place_and_what_cannot_be_is_left_alone() -> Result<()> {
    let workload = shared("workload").await?;
    let site = Site::start(&workload, BEFORE, AFTER).await?;
    let story = begin_on(site.port(), &workload, Upgrades::Done).await?;
    site.is_of(&story);
    let management = shared("capi").await?;
    let folder = tempfile::tempdir()?;
    let extension = [provider::extension()];
    roles::install(&management, &extension, USER).await?;
    let (_leader, _, _) = story
        .run_extension(&management, &folder.path().join("one"))
        .await?;
    // The first one has the lease, or will: one of the two always stands by, and either answers.
    let (base, ca, metrics) = story
        .run_extension(&management, &folder.path().join("two"))
        .await?;
    let configs = register(&story, &base, &ca).await?;

    let kubeconfig = workload.kubeconfig_as("edge-story", Some("system:masters"));
    let mut objects = site.objects();
    objects.extend(manifests(&kubeconfig, &format!("{}-control", story.namespace)));
    objects.push(site.template("workers-a", &site.before, 1));
    objects.push(deployment("workers-a", BEFORE));
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
    let before = story.workers().await?;
    ensure!(before.len() == 2, "{before:?}");
    story.note_bootstrap_data(before.keys()).await?;

    story
        .apply(&[
            site.template("workers-b", &site.after, 1),
            deployment("workers-b", AFTER),
        ])
        .await?;
    story.until_upgraded(before.keys(), AFTER).await?;
    until_within(LONG, &deployments, "workers", "count them", |deployment| {
        let status = &deployment.data["status"];
        status["upToDateReplicas"] == 2 && status["availableReplicas"] == 2
    })
    .await?;
    ensure!(
        story.workers().await? == before,
        "the same machines: {before:?}, {:?}",
        story.workers().await?
    );
    let machines: Api<EdgeMachine> = Api::namespaced(story.client.clone(), &story.namespace);
    for name in before.keys() {
        let image = machines.get(name).await?.spec.image.context("an image")?;
        ensure!(
            image.digest == site.after.digest.to_string(),
            "{name} has {image:?}"
        );
    }
    let upgrades: Api<NodeUpgrade> = Api::namespaced(story.client.clone(), &story.namespace);
    ensure!(
        upgrades.list(&ListParams::default()).await?.items.len() == 2,
        "one upgrade for each machine"
    );
    ensure!(
        asked(&metrics, "updatemachine") >= 4,
        "each is begun and told to be done"
    );
    ensure!(
        site.reboots().len() == 2 && site.reboots().iter().all(|(_, reboots)| *reboots == 1),
        "{:?}",
        site.reboots()
    );

    // More processors cannot be had in place: nothing is deleted, nothing is made.
    let questions = asked(&metrics, "canupdatemachineset");
    story
        .apply(&[
            site.template("workers-c", &site.before, 2),
            deployment("workers-c", BEFORE),
        ])
        .await?;
    until_asked(&metrics, "canupdatemachineset", questions + 3).await?;
    ensure!(
        story.workers().await? == before,
        "nobody is replaced: {:?}",
        story.workers().await?
    );
    ensure!(
        upgrades.list(&ListParams::default()).await?.items.len() == 2,
        "and nobody upgraded"
    );

    let clusters = story.api(CORE, "Cluster");
    clusters.delete("north", &DeleteParams::default()).await?;
    until_gone_within(LONG, &clusters, "north").await?;
    configs.delete(&story.namespace, &DeleteParams::default()).await?;
    let secrets: Api<Secret> = Api::namespaced(story.client.clone(), &story.namespace);
    ensure!(
        secrets.get_opt("north-kubeconfig").await?.is_some(),
        "what the user made stays"
    );
    Ok(())
}
