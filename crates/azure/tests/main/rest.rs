//! What is asked of Azure when nothing changes, when something does, and when it drifts.

use std::time::Duration;

use http::Method;
use serde_json::json;
use slipway_azure::{Desired, Tuning};
use slipway_azure_sim::{Fault, Settings};
use slipway_runtime::Outcome;

use crate::world::{World, cluster, converge, group, pool, remove};

#[tokio::test(start_paused = true)]
async fn at_rest_only_lists_are_read_and_nothing_is_written() {
    const CLUSTERS: usize = 20;
    let world = World::with(
        Settings {
            throttling: false,
            ..Settings::default()
        },
        Tuning {
            budget: 50.0,
            ..Tuning::default()
        },
    );
    let mut objects = vec![(world.arm("all"), group(), None)];
    for number in 0..CLUSTERS {
        let name = format!("c{number}");
        let arm = world.arm(&name);
        objects.push((arm.clone(), cluster(&name, &json!({"team": "a"})), None));
        for pool_name in ["one", "two", "three"] {
            objects.push((arm.clone(), pool(&name, pool_name, 2), None));
        }
    }
    for (arm, put, record) in &mut objects {
        *record = converge(arm, put, None).await.unwrap();
    }
    // One read after the last change of each, then rest.
    for (arm, put, record) in &objects {
        arm.ensure(&Desired::new(put, record.as_ref())).await.unwrap();
    }
    world.simulator.azure().forget_requests();
    let mut steps = 0;
    for _minute in 0..60 {
        tokio::time::sleep(Duration::from_mins(1)).await;
        for (arm, put, record) in &objects {
            let step = arm.ensure(&Desired::new(put, record.as_ref())).await;
            // The one refusal an hour brings is the token's: the next step has a new one.
            if let Ok(step) = step {
                assert_eq!(step.outcome, Outcome::Done, "{}", put.id);
            }
            steps += 1;
        }
    }
    let arm_reads = world.count("GET", "/subscriptions/");
    println!(
        "report: azure view: {steps} looks at {} resources in an hour, {arm_reads} reads",
        objects.len()
    );
    assert_eq!(world.count("PUT", ""), 0);
    assert_eq!(world.count("POST", "/subscriptions/"), 0);
    assert_eq!(world.count("GET", "/agentPools/"), 0);
    assert!(
        arm_reads <= 16,
        "{arm_reads} reads: more than one list of each type every ten minutes"
    );
}

#[tokio::test(start_paused = true)]
async fn a_change_is_one_put_and_its_removal_another() {
    let world = World::new();
    let arm = world.arm("c");
    converge(&arm, &group(), None).await.unwrap();
    let record = converge(&arm, &cluster("c", &json!({"a": "1", "b": "2"})), None)
        .await
        .unwrap();
    assert_eq!(world.count("PUT", "/managedClusters/c"), 1);
    let record = converge(&arm, &cluster("c", &json!({"a": "1", "b": "2"})), record)
        .await
        .unwrap();
    assert_eq!(
        world.count("PUT", "/managedClusters/c"),
        1,
        "nothing differs, nothing is sent"
    );
    let record = converge(&arm, &cluster("c", &json!({"a": "1"})), record)
        .await
        .unwrap();
    assert_eq!(world.count("PUT", "/managedClusters/c"), 2);
    converge(&arm, &cluster("c", &json!({"a": "1"})), record.clone())
        .await
        .unwrap();
    // A restart remembers nothing but the record that is kept with the object.
    let restarted = world.restarted();
    converge(&restarted.arm("c"), &cluster("c", &json!({"a": "1"})), record)
        .await
        .unwrap();
    assert_eq!(world.count("PUT", "/managedClusters/c"), 2);
    remove(&restarted.arm("c"), &cluster("c", &json!({}))).await;
    assert_eq!(world.count("DELETE", "/managedClusters/c"), 1);
    remove(&restarted.arm("c"), &group()).await;
}

#[tokio::test(start_paused = true)]
async fn drift_is_seen_within_the_read_age_and_put_right() {
    let world = World::new();
    let arm = world.arm("c");
    converge(&arm, &group(), None).await.unwrap();
    converge(&arm, &cluster("c", &json!({})), None).await.unwrap();
    let desired = pool("c", "p", 2);
    let record = converge(&arm, &desired, None).await.unwrap();
    world.simulator.azure().set_pool_count(desired.id.as_str(), 5);
    tokio::time::sleep(Duration::from_mins(11)).await;
    let step = arm
        .ensure(&Desired::new(&desired, record.as_ref()))
        .await
        .unwrap();
    assert_eq!(
        step.differences
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>(),
        ["update properties.count (5 to 2)"]
    );
    converge(&arm, &desired, record).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn progress_is_azures_own_and_a_failed_change_waits_before_it_is_tried_again() {
    let world = World::new();
    let arm = world.arm("c");
    converge(&arm, &group(), None).await.unwrap();
    world.simulator.azure().add_fault(Fault {
        method: Method::PUT.to_string(),
        path: "/managedClusters/c".into(),
        operation_error: Some(json!({"code": "ReconcileVMSSAgentPoolFailed", "message": "no capacity. Correlation ID: 7d1c9e3e-0e0b-4c35-86d1-65e36a6e2e43"})),
        ..Fault::default()
    });
    let desired = cluster("c", &json!({}));
    let mut record = None;
    let mut progress = Vec::new();
    let error = loop {
        match arm.ensure(&Desired::new(&desired, record.as_ref())).await {
            Ok(step) => {
                progress.extend(step.progress);
                record = step.record.or(record);
                let after = match step.outcome {
                    Outcome::InProgress(after) | Outcome::Throttled(after) => after,
                    Outcome::Done => panic!("the operation fails"),
                };
                tokio::time::sleep(after).await;
            }
            Err(error) => break error,
        }
    };
    assert!(!progress.is_empty());
    assert_eq!(error.code(), "ReconcileVMSSAgentPoolFailed");
    assert!(
        error
            .to_string()
            .ends_with("no capacity. (ReconcileVMSSAgentPoolFailed)"),
        "{error}"
    );
    // At once it is not sent again; after a while it is, and succeeds.
    assert!(
        arm.ensure(&Desired::new(&desired, record.as_ref()))
            .await
            .is_err()
    );
    assert_eq!(world.count("PUT", "/managedClusters/c"), 1);
    converge(&arm, &desired, record).await.unwrap();
    assert_eq!(world.count("PUT", "/managedClusters/c"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_foreign_operation_is_waited_for() {
    let world = World::new();
    let arm = world.arm("c");
    converge(&arm, &group(), None).await.unwrap();
    converge(&arm, &cluster("c", &json!({})), None).await.unwrap();
    let other = world.restarted();
    let step = other
        .arm("c")
        .ensure(&Desired::new(&cluster("c", &json!({"x": "1"})), None))
        .await
        .unwrap();
    assert!(matches!(step.outcome, Outcome::InProgress(_)));
    let puts = world.count("PUT", "/managedClusters/c");
    let desired = pool("c", "p", 1);
    let step = arm.ensure(&Desired::new(&desired, None)).await.unwrap();
    assert!(matches!(step.outcome, Outcome::InProgress(_)), "{step:?}");
    converge(&arm, &desired, None).await.unwrap();
    let own = world
        .simulator
        .azure()
        .requests()
        .filter(|request| request.method == "PUT" && request.path.ends_with("/managedClusters/c"))
        .count();
    assert_eq!(own, puts, "the cluster was not written because of its pool");
}
