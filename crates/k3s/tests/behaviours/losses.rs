//! Servers that fail: told, replaced where quorum allows it and within their limits, left alone where it does not.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt, api::DeleteParams};
use serde_json::json;

use super::data;
use crate::{
    stage::{NEW, OLD, Stage},
    theatre::{all, change, condition, set_condition},
};

/// S-11: the server that leads etcd is the one that goes: leadership passes to a healthy member that stays, and the
/// victim never gets it back.
#[tokio::test(start_paused = true)]
async fn leadership_leaves_with_its_server_to_one_that_stays() {
    let mut stage = Stage::standing(3, NEW).await;
    let victim = {
        let model = stage.model.lock();
        let leader = model.leader.expect("a leader");
        let member = model.members.iter().find(|member| member.id == leader);
        member.expect("the leader is a member").host.clone()
    };
    stage
        .machines()
        .delete(&victim, &DeleteParams::default())
        .await
        .expect("somebody deletes it");
    let mut seen_without = false;
    for _ in 0..30 {
        stage.round().await;
        let model = stage.model.lock();
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
    stage.until_settled(3, NEW).await;
}

/// S-16: a first machine that never comes up is remediated; its replacement initialises with the same secrets.
#[tokio::test(start_paused = true)]
async fn a_failed_first_machine_is_replaced_with_the_same_secrets() {
    let mut stage = Stage::new(1, NEW).await;
    stage.round().await;
    let first = stage.names().await.remove(0);
    stage.core.settings.lock().broken.insert(first.clone());
    stage.rounds(4).await;
    let mut before = Vec::new();
    for name in ["edge-ca", "edge-cca", "edge-etcd", "edge-token"] {
        before.push(data(&stage.secrets().get(name).await.expect(name)));
    }
    stage.hand_over(&first).await;
    stage.until_settled(1, NEW).await;
    let names = stage.names().await;
    assert_ne!(names, vec![first]);
    assert_eq!(
        stage.book.lock().initialised,
        names,
        "the replacement initialises"
    );
    for (name, before) in ["edge-ca", "edge-cca", "edge-etcd", "edge-token"]
        .into_iter()
        .zip(before)
    {
        assert_eq!(
            data(&stage.secrets().get(name).await.expect(name)),
            before,
            "{name}"
        );
    }
    let userdata = stage.userdata_of(&names[0]);
    let token = stage.secrets().get("edge-token").await.expect("the token");
    let token = String::from_utf8(token.data.expect("data")["value"].0.clone()).expect("text");
    assert!(userdata.contains(&format!("token: {token}")));
}

/// S-40: a workload cluster that stops answering keeps its state for the grace period, then becomes unknown; nothing
/// fails meanwhile, nothing is replaced, and an answer is seen within a minute.
#[tokio::test(start_paused = true)]
async fn an_unreachable_cluster_keeps_its_state_for_a_while() {
    let mut stage = Stage::standing(3, NEW).await;
    let names = stage.names().await;
    stage.book.lock().unreachable = true;
    stage.workload.cut_watches();
    stage.rounds(6).await;
    let machine = stage.machine(&names[0]).await;
    assert_eq!(
        condition(&machine, "AgentHealthy")["status"],
        "True",
        "90 s are in the grace"
    );
    let plane = stage.plane_status().await;
    assert!(plane.ready, "the last state stands");
    let requests = stage.book.lock().workload_requests;
    stage.rounds(8).await;
    for name in &names {
        let machine = stage.machine(name).await;
        for type_ in ["AgentHealthy", "EtcdMemberHealthy"] {
            assert_eq!(
                condition(&machine, type_)["status"],
                "Unknown",
                "{type_} after the grace"
            );
        }
    }
    let plane = stage.plane_status().await;
    assert!(!plane.ready);
    assert_eq!(stage.plane_condition("Available").await["status"], "False");
    let asked = stage.book.lock().workload_requests - requests;
    assert!(asked <= 24, "{asked} requests in two minutes are a storm");
    stage.book.lock().unreachable = false;
    stage.rounds(4).await;
    let machine = stage.machine(&names[0]).await;
    assert_eq!(
        condition(&machine, "AgentHealthy")["status"],
        "True",
        "an answer is seen"
    );
    assert_eq!(stage.plane_condition("Available").await["status"], "True");
    assert_eq!(stage.names().await, names);
}

/// S-43: an alarm of etcd is told and blocks a rollout; a dead server beside it is still replaced.
#[tokio::test(start_paused = true)]
async fn an_alarm_blocks_a_rollout_and_no_remediation() {
    let mut stage = Stage::standing(3, OLD).await;
    let names = stage.names().await;
    stage
        .model
        .lock()
        .hosts
        .get_mut(&names[0])
        .expect("the host")
        .alarm = true;
    stage.rounds(3).await;
    let told = condition(&stage.machine(&names[0]).await, "EtcdMemberHealthy");
    assert!(
        told["status"] == "False" && told["message"].as_str().unwrap_or_default().contains("NOSPACE"),
        "{told}"
    );
    stage.change_plane(json!({"version": NEW})).await;
    stage.rounds(8).await;
    assert_eq!(stage.names().await, names, "the rollout waits");
    let told = stage.plane_condition("RollingOut").await;
    assert!(told.to_string().contains("NOSPACE"), "{told}");
    stage.model.lock().kill(&names[1]);
    stage.rounds(5).await;
    stage.hand_over(&names[1]).await;
    stage.rounds(20).await;
    assert!(
        !stage.names().await.contains(&names[1]),
        "the dead one is replaced"
    );
    assert!(stage.model.lock().has_quorum());
}

/// S-48, S-49: two of five die and are replaced one after the other; two of three die and nothing is made worse.
#[tokio::test(start_paused = true)]
async fn two_of_five_heal_and_two_of_three_are_left_alone() {
    let mut stage = Stage::standing(5, NEW).await;
    stage.core.settings.lock().health_check_after = Some(Duration::from_mins(3));
    let names = stage.names().await;
    for name in &names[..2] {
        stage.model.lock().kill(name);
    }
    stage.until_settled(5, NEW).await;
    let after = stage.names().await;
    assert!(!after.contains(&names[0]) && !after.contains(&names[1]));

    let mut stage = Stage::standing(3, NEW).await;
    let names = stage.names().await;
    for name in &names[..2] {
        stage.model.lock().kill(name);
        stage.hand_over(name).await;
    }
    stage.workload.cut_watches();
    stage.rounds(40).await;
    assert_eq!(stage.names().await, names, "nothing is deleted without quorum");
    for machine in stage.servers().await {
        assert!(machine.metadata.deletion_timestamp.is_none());
    }
    // One returns, and the plane heals alone.
    stage.model.lock().revive(&names[0]);
    set_condition(&stage.machines(), &names[0], "HealthCheckSucceeded", "True").await;
    stage.until_settled(3, NEW).await;
    let after = stage.names().await;
    assert!(
        after.contains(&names[0]) && !after.contains(&names[1]),
        "{after:?}"
    );
}

/// S-46: limits on retries hold across restarts of the controller: they are read from the objects alone.
#[tokio::test(start_paused = true)]
async fn retries_are_limited_across_restarts() {
    let spec = json!({"remediationStrategy": {"maxRetry": 1, "retryPeriod": "5m", "minHealthyPeriod": "2h"}});
    let mut stage = Stage::with(3, NEW, spec).await;
    stage.until_settled(3, NEW).await;
    let mut victim = stage.names().await.remove(0);
    stage.model.lock().kill(&victim);
    stage.rounds(4).await;
    stage.hand_over(&victim).await;
    let mut replaced = 0;
    for _ in 0..2 {
        // Every replacement fails too.
        let before = stage.names().await;
        for _ in 0..40 {
            stage.round().await;
            stage.restart();
            let fresh: Vec<String> = stage
                .names()
                .await
                .into_iter()
                .filter(|name| !before.contains(name))
                .collect();
            if let Some(name) = fresh.into_iter().next() {
                victim = name;
                replaced += 1;
                stage.core.settings.lock().broken.insert(victim.clone());
                break;
            }
        }
        stage.hand_over(&victim).await;
    }
    assert_eq!(replaced, 2, "the first replacement and one retry");
    stage.rounds(60).await;
    assert!(
        stage.names().await.contains(&victim),
        "maxRetry is reached: it is not replaced again"
    );
    let told = condition(&stage.machine(&victim).await, "OwnerRemediated");
    assert!(
        told["message"].as_str().unwrap_or_default().contains("maxRetry"),
        "{told}"
    );
}

/// S-5, S-10: a server whose machine, host and node are torn out leaves an orphaned member; it is removed, and the plane is whole.
#[tokio::test(start_paused = true)]
async fn an_orphaned_member_is_removed_and_its_placeholder_too() {
    let mut stage = Stage::standing(3, NEW).await;
    let name = stage.names().await.remove(0);
    {
        let mut model = stage.model.lock();
        model.destroy(&name);
        // Its node went while nobody led.
        model.nodes.remove(&name);
        model.revision += 1;
    }
    let torn = json!({"metadata": {"finalizers": null, "annotations":
        {"pre-terminate.delete.hook.machine.cluster.x-k8s.io/k3s-cleanup": null}}});
    change(&stage.machines(), &name, &torn).await;
    stage
        .machines()
        .delete(&name, &DeleteParams::default())
        .await
        .expect("it is deleted");
    stage.until_settled(3, NEW).await;
    stage.rounds(4).await;
    let nodes: Api<Node> = Api::all(stage.workload.client());
    let left: Vec<String> = all(&nodes).await.iter().map(ResourceExt::name_any).collect();
    assert!(left.iter().all(|node| !node.contains("orphan")), "{left:?}");
}

/// S-5, S-13: a watch that says nothing shows no node of a server that joined: its member is no orphan, and stays.
#[tokio::test(start_paused = true)]
async fn a_member_is_no_orphan_because_a_watch_is_mute() {
    let mut stage = Stage::standing(1, NEW).await;
    stage.book.lock().mute = true;
    stage.restart();
    stage
        .patch_plane(json!({"spec": {"replicas": 3}}))
        .await
        .expect("it is scaled");
    stage.rounds(60).await;
    {
        let model = stage.model.lock();
        let voters = model.members.iter().filter(|member| !member.learner);
        assert_eq!(voters.count(), 3, "both joined, and nobody removed them");
    }
    // Another process has watches of its own.
    stage.book.lock().mute = false;
    stage.restart();
    stage.until_settled(3, NEW).await;
}
