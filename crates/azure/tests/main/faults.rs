//! The client under every fault at every call, waits that are kept to the second, and a shared budget.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::json;
use slipway_azure::{Arm, ArmError, Desired, ResourceId, Tuning};
use slipway_azure_sim::{Fault, Settings, Speed};
use slipway_runtime::Outcome;
use tokio::time::Instant;

use crate::world::{World, cluster, converge, group, pool, remove};

/// A cluster's life: made, changed, scaled, one pool taken away.
async fn life(world: &World) {
    let arm = world.arm("c");
    converge(&arm, &group(), None).await.unwrap();
    let record = converge(&arm, &cluster("c", &json!({"v": "1"})), None)
        .await
        .unwrap();
    let pool_record = converge(&arm, &pool("c", "a", 1), None).await.unwrap();
    converge(&arm, &pool("c", "b", 1), None).await.unwrap();
    converge(&arm, &cluster("c", &json!({"v": "2"})), record)
        .await
        .unwrap();
    converge(&arm, &pool("c", "a", 3), pool_record).await.unwrap();
    remove(&arm, &pool("c", "b", 1)).await;
}

/// What is there in the end: names, tags, counts.
fn end(world: &World) -> BTreeMap<String, String> {
    let azure = world.simulator.azure();
    azure
        .state()
        .resources
        .iter()
        .map(|resource| {
            let find = |key: &str| resource.document.get(key).cloned().unwrap_or_default();
            let facts = format!(
                "{} {} {}",
                find("tags"),
                find("properties")["count"],
                resource.state
            );
            (resource.id.to_ascii_lowercase(), facts)
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn every_fault_at_every_call_ends_in_the_same_state() {
    // Fast enough that operations take a poll or two, so that the sweep is about different calls.
    let quick = || {
        let settings = Settings {
            speed: Speed::Times(20.0),
            ..Settings::default()
        };
        World::with(settings, Tuning::default())
    };
    let baseline = quick();
    life(&baseline).await;
    let calls = baseline.simulator.azure().requests().count() as u64;
    let expected = end(&baseline);
    assert!(
        expected.keys().any(|id| id.ends_with("/agentpools/a")),
        "{expected:?}"
    );
    assert!(
        !expected.keys().any(|id| id.ends_with("/agentpools/b")),
        "{expected:?}"
    );
    let faults: Vec<(&str, Fault)> = vec![
        (
            "500",
            Fault {
                status: Some(500),
                ..Fault::default()
            },
        ),
        (
            "502 twice",
            Fault {
                status: Some(502),
                times: 2,
                body: Some(json!("<html>")),
                ..Fault::default()
            },
        ),
        (
            "503 with Retry-After",
            Fault {
                status: Some(503),
                retry_after: Some(7),
                code: "ServiceUnavailable".into(),
                ..Fault::default()
            },
        ),
        (
            "429 with Retry-After",
            Fault {
                status: Some(429),
                retry_after: Some(30),
                code: "SubscriptionRequestsThrottled".into(),
                ..Fault::default()
            },
        ),
        (
            "409 in progress",
            Fault {
                status: Some(409),
                code: "OperationNotAllowed".into(),
                message: "Another operation (Updating) is in progress".into(),
                ..Fault::default()
            },
        ),
        (
            "412",
            Fault {
                status: Some(412),
                code: "PreconditionFailed".into(),
                ..Fault::default()
            },
        ),
        (
            "401 expired",
            Fault {
                status: Some(401),
                code: "ExpiredAuthenticationToken".into(),
                ..Fault::default()
            },
        ),
        (
            "dropped after commit",
            Fault {
                drop_connection: true,
                ..Fault::default()
            },
        ),
        (
            "slow",
            Fault {
                delay_milliseconds: 90_000,
                ..Fault::default()
            },
        ),
    ];
    let mut runs = 0;
    for (name, fault) in &faults {
        for call in 1..=calls {
            let world = quick();
            world.simulator.azure().add_fault(Fault {
                path: "/subscriptions/".into(),
                first: call,
                ..fault.clone()
            });
            life(&world).await;
            assert_eq!(end(&world), expected, "{name} at call {call}");
            runs += 1;
        }
    }
    println!(
        "report: azure faults: {} faults at {calls} calls, {runs} runs, one end state",
        faults.len()
    );
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_kept_to_the_second_on_reads_and_writes() {
    for (method, wait) in [("PUT", 37), ("GET", 23), ("DELETE", 41)] {
        let world = World::new();
        let arm = world.arm("c");
        world.simulator.azure().add_fault(Fault {
            method: method.into(),
            path: "/resourceGroups/rg".into(),
            status: Some(429),
            retry_after: Some(wait),
            code: "TooManyRequests".into(),
            ..Fault::default()
        });
        let start = Instant::now();
        converge(&arm, &group(), None).await.unwrap();
        if method == "DELETE" {
            remove(&arm, &group()).await;
        }
        let times: Vec<_> = world
            .simulator
            .azure()
            .requests()
            .filter(|request| {
                request.method == method && request.path.to_ascii_lowercase().ends_with("/resourcegroups/rg")
            })
            .map(|request| request.at)
            .collect();
        assert!(times.len() >= 2, "{method}: {times:?}");
        assert_eq!(
            times[1].as_second() - times[0].as_second(),
            wait as i64,
            "{method}"
        );
        assert!(start.elapsed() >= Duration::from_secs(wait));
    }
}

/// Reads a resource, and comes back for its turn as often as it has to.
async fn read(arm: &Arm, id: &ResourceId) {
    while let Err(ArmError::Budget { after, .. }) = arm
        .client()
        .get(id, "2024-03-01", slipway_azure::Priority::Change)
        .await
    {
        tokio::time::sleep(after).await;
    }
}

/// A reconcile that is cut short at one read does the others again: so many of them would never end.
#[tokio::test(start_paused = true)]
async fn reconciles_of_several_reads_end_while_the_budget_is_scarce() {
    const WORKERS: usize = 15;
    let world = World::with(
        Settings {
            throttling: false,
            ..Settings::default()
        },
        Tuning {
            budget: 0.5,
            ..Tuning::default()
        },
    );
    let world = Arc::new(world);
    let mut workers = tokio::task::JoinSet::new();
    for number in 0..WORKERS {
        let world = Arc::clone(&world);
        workers.spawn(async move {
            let arm = world.arm(&format!("c{number}"));
            'reconcile: loop {
                for name in 0..6 {
                    let id = group()
                        .id
                        .provided("Microsoft.Network/virtualNetworks", &format!("n{number}-{name}"))
                        .unwrap();
                    let read = arm
                        .client()
                        .get(&id, "2024-03-01", slipway_azure::Priority::Refresh)
                        .await;
                    if let Err(ArmError::Budget { after, .. }) = read {
                        tokio::time::sleep(after).await;
                        continue 'reconcile;
                    }
                }
                return;
            }
        });
    }
    tokio::time::timeout(Duration::from_hours(1), workers.join_all())
        .await
        .expect("every reconcile ends");
    assert!(world.count("GET", "/virtualNetworks/") < 2 * 6 * WORKERS);
}

#[tokio::test(start_paused = true)]
async fn two_clusters_and_a_noisy_neighbour_share_the_budget() {
    let world = World::with(
        Settings {
            throttling: false,
            ..Settings::default()
        },
        Tuning {
            budget: 0.05,
            ..Tuning::default()
        },
    );
    let mut tasks = tokio::task::JoinSet::new();
    let done = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let world = Arc::new(world);
    converge(&world.arm("setup"), &group(), None).await.unwrap();
    for number in 0..300 {
        let (world, done) = (Arc::clone(&world), Arc::clone(&done));
        tasks.spawn(async move {
            // The neighbour asks for 300 things that are not there, each a read of its own.
            let vnet = group()
                .id
                .provided("Microsoft.Network/virtualNetworks", &format!("n{number}"))
                .unwrap();
            read(&world.arm("noisy"), &vnet).await;
            done.lock().push("noisy");
        });
    }
    tokio::time::sleep(Duration::from_millis(10)).await;
    for name in ["quiet", "calm"] {
        let (world, done) = (Arc::clone(&world), Arc::clone(&done));
        tasks.spawn(async move {
            for number in 0..5 {
                let vnet = group()
                    .id
                    .provided("Microsoft.Network/virtualNetworks", &format!("{name}{number}"))
                    .unwrap();
                read(&world.arm(name), &vnet).await;
            }
            done.lock().push(name);
        });
    }
    tasks.join_all().await;
    let done = done.lock();
    let position = |name| done.iter().position(|other| *other == name).unwrap();
    println!(
        "report: azure budget: of {} finished, quiet was number {} and calm number {}",
        done.len(),
        position("quiet"),
        position("calm")
    );
    // Five calls each, one turn in three: both are through while the neighbour still has most of its line to go.
    assert!(
        position("quiet") < 60 && position("calm") < 60,
        "{} {}",
        position("quiet"),
        position("calm")
    );
}

#[tokio::test(start_paused = true)]
async fn a_throttled_pool_does_not_hold_up_its_neighbours() {
    let world = World::new();
    let arm = world.arm("c");
    converge(&arm, &group(), None).await.unwrap();
    converge(&arm, &cluster("c", &json!({})), None).await.unwrap();
    let throttled = pool("c", "a", 1);
    world.simulator.azure().add_fault(Fault {
        method: "PUT".into(),
        path: "/agentPools/a".into(),
        status: Some(429),
        retry_after: Some(300),
        body: Some(json!({"code": "TooManyRequests", "message": format!("The PutAgentPoolHandler.PUT request limit has been exceeded for agentpool {}, please retry again in 300 seconds", throttled.id)})),
        ..Fault::default()
    });
    let step = arm.ensure(&Desired::new(&throttled, None)).await.unwrap();
    assert_eq!(step.outcome, Outcome::Throttled(Duration::from_mins(5)));
    let start = Instant::now();
    let step = arm.ensure(&Desired::new(&pool("c", "b", 1), None)).await.unwrap();
    assert!(matches!(step.outcome, Outcome::InProgress(_)), "{step:?}");
    assert!(start.elapsed() < Duration::from_mins(1));
}
