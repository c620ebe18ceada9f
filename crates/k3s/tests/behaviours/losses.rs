//! Servers that fail: told, replaced where quorum allows it and within their limits, left alone where it does not.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt, api::DeleteParams};
use serde_json::json;

use super::data;
use crate::{
    driver::{Driver, NEW, OLD},
    environment::{all, change, condition, set_condition},
};

/// S-11: the server that leads etcd is the one that goes: leadership passes to a healthy member that stays, and the
/// victim never gets it back.
#[tokio::test(start_paused = true)]
async fn leadership_leaves_with_its_server_to_one_that_stays() {
    let mut driver = Driver::standing(3, NEW).await;
    let victim = {
        let model = driver.model.lock();
        let leader = model.leader.expect("a leader");
        let member = model.members.iter().find(|member| member.id == leader);
        member.expect("the leader is a member").host.clone()
    };
    driver
        .machines()
        .delete(&victim, &DeleteParams::default())
        .await
        .expect("somebody deletes it");
    let mut seen_without = false;
    for _ in 0..30 {
        driver.round().await;
        let model = driver.model.lock();
        let gone = model.members.iter().all(|member| member.host != victim);
        let leader = model
            .members
            .iter()
            .find(|member| Some(member.id) == model.leader);
        if gone {
            seen_without = true;
            let leader = leader.expect("somebody leads at every moment after the victim left");
            assert!(leader.host != victim && !leader.learner && model.hosts[&leader.host].alive);
        }
    }
    assert!(seen_without, "the victim leaves");
    driver.until_settled(3, NEW).await;
}

/// S-16: a first machine that never comes up is remediated; its replacement initialises with the same secrets.
#[tokio::test(start_paused = true)]
async fn a_failed_first_machine_is_replaced_with_the_same_secrets() {
    let mut driver = Driver::new(1, NEW).await;
    driver.round().await;
    let first = driver.names().await.remove(0);
    driver.core.settings.lock().broken.insert(first.clone());
    driver.rounds(4).await;
    let mut before = Vec::new();
    for name in ["edge-ca", "edge-cca", "edge-etcd", "edge-token"] {
        before.push(data(&driver.secrets().get(name).await.expect(name)));
    }
    driver.hand_over(&first).await;
    driver.until_settled(1, NEW).await;
    let names = driver.names().await;
    assert_ne!(names, vec![first]);
    assert_eq!(
        driver.recorder.lock().initialised,
        names,
        "the replacement initialises"
    );
    for (name, before) in ["edge-ca", "edge-cca", "edge-etcd", "edge-token"]
        .into_iter()
        .zip(before)
    {
        assert_eq!(
            data(&driver.secrets().get(name).await.expect(name)),
            before,
            "{name}"
        );
    }
    let userdata = driver.userdata_of(&names[0]);
    let token = driver.secrets().get("edge-token").await.expect("the token");
    let token = String::from_utf8(token.data.expect("data")["value"].0.clone()).expect("text");
    assert!(userdata.contains(&format!("token: {token}")));
}

/// S-40: a workload cluster that stops answering keeps its state for the grace period, then becomes unknown; nothing
/// fails meanwhile, nothing is replaced, and an answer is seen within a minute.
#[tokio::test(start_paused = true)]
async fn an_unreachable_cluster_keeps_its_state_for_a_while() {
    let mut driver = Driver::standing(3, NEW).await;
    let names = driver.names().await;
    driver.recorder.lock().unreachable = true;
    driver.workload.cut_watches();
    driver.rounds(6).await;
    let machine = driver.machine(&names[0]).await;
    assert_eq!(
        condition(&machine, "AgentHealthy")["status"],
        "True",
        "90 s are in the grace"
    );
    let plane = driver.plane_status().await;
    assert!(plane.ready, "the last state stands");
    let requests = driver.recorder.lock().workload_requests;
    driver.rounds(8).await;
    for name in &names {
        let machine = driver.machine(name).await;
        for type_ in ["AgentHealthy", "EtcdMemberHealthy"] {
            assert_eq!(
                condition(&machine, type_)["status"],
                "Unknown",
                "{type_} after the grace"
            );
        }
    }
    let plane = driver.plane_status().await;
    assert!(!plane.ready);
    assert_eq!(driver.plane_condition("Available").await["status"], "False");
    let asked = driver.recorder.lock().workload_requests - requests;
    assert!(asked <= 24, "{asked} requests in two minutes are a storm");
    driver.recorder.lock().unreachable = false;
    driver.rounds(4).await;
    let machine = driver.machine(&names[0]).await;
    assert_eq!(
        condition(&machine, "AgentHealthy")["status"],
        "True",
        "an answer is seen"
    );
    assert_eq!(driver.plane_condition("Available").await["status"], "True");
    assert_eq!(driver.names().await, names);
}

/// S-43: an alarm of etcd is told and blocks a rollout; a dead server beside it is still replaced.
#[tokio::test(start_paused = true)]
async fn an_alarm_blocks_a_rollout_and_no_remediation() {
    let mut driver = Driver::standing(3, OLD).await;
    let names = driver.names().await;
    driver
        .model
        .lock()
        .hosts
        .get_mut(&names[0])
        .expect("the host")
        .alarm = true;
    driver.rounds(3).await;
    let told = condition(&driver.machine(&names[0]).await, "EtcdMemberHealthy");
    assert!(
        told["status"] == "False" && told["message"].as_str().unwrap_or_default().contains("NOSPACE"),
        "{told}"
    );
    driver.change_plane(json!({"version": NEW})).await;
    driver.rounds(8).await;
    assert_eq!(driver.names().await, names, "the rollout waits");
    let told = driver.plane_condition("RollingOut").await;
    assert!(told.to_string().contains("NOSPACE"), "{told}");
    driver.model.lock().kill(&names[1]);
    driver.rounds(5).await;
    driver.hand_over(&names[1]).await;
    driver.rounds(20).await;
    assert!(
        !driver.names().await.contains(&names[1]),
        "the dead one is replaced"
    );
    assert!(driver.model.lock().has_quorum());
}

/// S-48, S-49: two of five die and are replaced one after the other; two of three die and nothing is made worse.
#[tokio::test(start_paused = true)]
async fn two_of_five_heal_and_two_of_three_are_left_alone() {
    let mut driver = Driver::standing(5, NEW).await;
    driver.core.settings.lock().health_check_after = Some(Duration::from_mins(3));
    let names = driver.names().await;
    for name in &names[..2] {
        driver.model.lock().kill(name);
    }
    driver.until_settled(5, NEW).await;
    let after = driver.names().await;
    assert!(!after.contains(&names[0]) && !after.contains(&names[1]));

    let mut driver = Driver::standing(3, NEW).await;
    let names = driver.names().await;
    for name in &names[..2] {
        driver.model.lock().kill(name);
        driver.hand_over(name).await;
    }
    driver.workload.cut_watches();
    driver.rounds(40).await;
    assert_eq!(driver.names().await, names, "nothing is deleted without quorum");
    for machine in driver.servers().await {
        assert!(machine.metadata.deletion_timestamp.is_none());
    }
    // One returns, and the plane heals alone.
    driver.model.lock().revive(&names[0]);
    set_condition(&driver.machines(), &names[0], "HealthCheckSucceeded", "True").await;
    driver.until_settled(3, NEW).await;
    let after = driver.names().await;
    assert!(
        after.contains(&names[0]) && !after.contains(&names[1]),
        "{after:?}"
    );
}

/// S-46: limits on retries hold across restarts of the controller: they are read from the objects alone.
#[tokio::test(start_paused = true)]
async fn retries_are_limited_across_restarts() {
    let spec = json!({"remediationStrategy": {"maxRetry": 1, "retryPeriod": "5m", "minHealthyPeriod": "2h"}});
    let mut driver = Driver::with(3, NEW, spec).await;
    driver.until_settled(3, NEW).await;
    let mut victim = driver.names().await.remove(0);
    driver.model.lock().kill(&victim);
    driver.rounds(4).await;
    driver.hand_over(&victim).await;
    let mut replaced = 0;
    for _ in 0..2 {
        // Every replacement fails too.
        let before = driver.names().await;
        for _ in 0..40 {
            driver.round().await;
            driver.restart();
            let fresh: Vec<String> = driver
                .names()
                .await
                .into_iter()
                .filter(|name| !before.contains(name))
                .collect();
            if let Some(name) = fresh.into_iter().next() {
                victim = name;
                replaced += 1;
                driver.core.settings.lock().broken.insert(victim.clone());
                break;
            }
        }
        driver.hand_over(&victim).await;
    }
    assert_eq!(replaced, 2, "the first replacement and one retry");
    driver.rounds(60).await;
    assert!(
        driver.names().await.contains(&victim),
        "maxRetry is reached: it is not replaced again"
    );
    let told = condition(&driver.machine(&victim).await, "OwnerRemediated");
    assert!(
        told["message"].as_str().unwrap_or_default().contains("maxRetry"),
        "{told}"
    );
}

/// S-5, S-10: a server whose machine, host and node are torn out leaves an orphaned member; it is removed, and the plane is whole.
#[tokio::test(start_paused = true)]
async fn an_orphaned_member_is_removed_and_its_placeholder_too() {
    let mut driver = Driver::standing(3, NEW).await;
    let name = driver.names().await.remove(0);
    {
        let mut model = driver.model.lock();
        model.destroy(&name);
        // Its node went while nobody led.
        model.nodes.remove(&name);
        model.revision += 1;
    }
    let torn = json!({"metadata": {"finalizers": null, "annotations":
        {"pre-terminate.delete.hook.machine.cluster.x-k8s.io/k3s-cleanup": null}}});
    change(&driver.machines(), &name, &torn).await;
    driver
        .machines()
        .delete(&name, &DeleteParams::default())
        .await
        .expect("it is deleted");
    driver.until_settled(3, NEW).await;
    driver.rounds(4).await;
    let nodes: Api<Node> = Api::all(driver.workload.client());
    let left: Vec<String> = all(&nodes).await.iter().map(ResourceExt::name_any).collect();
    assert!(left.iter().all(|node| !node.contains("orphan")), "{left:?}");
}

/// S-5, S-13: a watch that says nothing shows no node of a server that joined: its member is no orphan, and stays.
#[tokio::test(start_paused = true)]
async fn a_member_is_no_orphan_because_a_watch_is_mute() {
    let mut driver = Driver::standing(1, NEW).await;
    driver.recorder.lock().mute = true;
    driver.restart();
    driver
        .patch_plane(json!({"spec": {"replicas": 3}}))
        .await
        .expect("it is scaled");
    driver.rounds(60).await;
    {
        let model = driver.model.lock();
        let voters = model.members.iter().filter(|member| !member.learner);
        assert_eq!(voters.count(), 3, "both joined, and nobody removed them");
    }
    // Another process has watches of its own.
    driver.recorder.lock().mute = false;
    driver.restart();
    driver.until_settled(3, NEW).await;
}
