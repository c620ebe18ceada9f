//! The verbs `ensure` does not use by itself, and the read age one object asks for.

use std::time::Duration;

use serde_json::json;
use slipway_azure::{
    ArmError, Desired, Tuning,
    arm::{Answer, ResourceId},
};
use slipway_runtime::{Class, Classified};

use crate::world::{World, cluster, converge, group};

const AKS: &str = "2024-09-01";

#[tokio::test(start_paused = true)]
async fn a_patch_changes_what_it_names_and_leaves_the_rest() {
    let world = World::new();
    let arm = world.arm("c");
    converge(&arm, &group(), None).await.unwrap();
    let put = cluster("c", &json!({"team": "a"}));
    converge(&arm, &put, None).await.unwrap();
    let answer = arm
        .client()
        .patch(&put.id, AKS, &json!({"tags": {"team": "b"}}))
        .await
        .unwrap();
    let (Answer::Done(body) | Answer::Accepted { body, .. }) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(body["tags"], json!({"team": "b"}));
    assert_eq!(
        body["properties"]["dnsPrefix"], put.body["properties"]["dnsPrefix"],
        "a field the patch does not name stays"
    );
    assert_eq!(world.count("PATCH", "/managedClusters/c"), 1);

    let missing = ResourceId::parse(
        &put.id
            .to_string()
            .replace("managedClusters/c", "managedClusters/nobody"),
    )
    .unwrap();
    let error = arm
        .client()
        .patch(&missing, AKS, &json!({"tags": {}}))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("ResourceNotFound"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_post_asks_for_credentials_and_starts_operations() {
    let world = World::new();
    let arm = world.arm("c");
    converge(&arm, &group(), None).await.unwrap();
    let put = cluster("c", &json!({}));
    converge(&arm, &put, None).await.unwrap();
    let answer = arm
        .client()
        .post(&put.id, "listClusterAdminCredential", AKS, None)
        .await
        .unwrap();
    let Answer::Done(body) = answer else {
        panic!("{answer:?}")
    };
    assert!(
        body["kubeconfigs"][0]["value"].is_string(),
        "a kubeconfig in base64"
    );

    let answer = arm.client().post(&put.id, "stop", AKS, None).await.unwrap();
    let Answer::Accepted { operation, .. } = answer else {
        panic!("{answer:?}")
    };
    // A second change while the first is under way is told to come back, not failed.
    let again = arm.client().post(&put.id, "stop", AKS, None).await;
    match again {
        Ok(answer) => assert!(matches!(answer, Answer::Busy { .. }), "{answer:?}"),
        Err(error) => assert_ne!(error.class(), Class::Denied, "{error}"),
    }
    drop(operation);

    let error = match arm.client().post(&put.id, "levitate", AKS, None).await {
        Ok(Answer::NotFound) => return,
        Ok(answer) => panic!("{answer:?}"),
        Err(error) => error,
    };
    assert!(matches!(error, ArmError::Refused { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn one_object_may_ask_for_fresher_reads_than_the_rest() {
    let world = World::new();
    let (eager, lazy) = (world.arm("eager"), world.arm("lazy"));
    converge(&eager, &group(), None).await.unwrap();
    let put = cluster("c", &json!({}));
    let record = converge(&eager, &put, None).await.unwrap();
    let read = async |arm: &slipway_azure::Arm, age: Option<Duration>| {
        let mut desired = Desired::new(&put, record.as_ref());
        desired.max_read_age = age;
        arm.ensure(&desired).await.unwrap();
    };
    // One read after the change, then the view is settled.
    read(&lazy, None).await;
    tokio::time::sleep(Duration::from_mins(2)).await;
    read(&lazy, None).await;
    tokio::time::sleep(Duration::from_mins(2)).await;
    world.simulator.azure().forget_requests();
    read(&lazy, None).await;
    assert_eq!(
        world.count("GET", "/subscriptions/"),
        0,
        "two minutes is young enough for everybody else"
    );
    let asked = Tuning::read_age_of("1m").unwrap();
    read(&eager, Some(asked)).await;
    assert_eq!(
        world.count("GET", "/subscriptions/"),
        1,
        "a minute is asked for, so one read"
    );
    let error = Tuning::read_age_of("soon").unwrap_err().to_string();
    assert!(error.contains("slipway.dev/azure-max-read-age"), "{error}");
}
