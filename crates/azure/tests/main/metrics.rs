//! What `/metrics` shows of the requests to Azure.

use std::time::Duration;

use serde_json::json;
use slipway_azure::{Desired, Tuning};
use slipway_azure_sim::{Fault, Settings};
use slipway_runtime::metrics::Metrics;

use crate::world::{World, cluster, converge, group};

/// The values of a metric's lines that carry all of these labels.
fn values(text: &str, metric: &str, labels: &[&str]) -> Vec<f64> {
    text.lines()
        .filter(|line| {
            line.starts_with(&format!("{metric}{{")) && labels.iter().all(|label| line.contains(label))
        })
        .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn requests_throttles_and_what_is_left_of_the_budget_are_shown() {
    let world = World::with(Settings::default(), Tuning::default());
    let metrics = Metrics::new();
    world.azure.show_metrics(&metrics);
    let arm = world.arm("c");
    converge(&arm, &group(), None).await.unwrap();
    converge(&arm, &cluster("c", &json!({})), None).await.unwrap();
    let text = metrics.encode();
    let kind = r#"resource="Microsoft.ContainerService/managedClusters""#;
    let created = [kind, r#"requestType="PUT""#, r#"responseCode="201""#];
    assert_eq!(
        values(&text, "azure_successful_requests_total", &created),
        [1.0],
        "{text}"
    );
    let absent = [kind, r#"requestType="GET""#, r#"responseCode="404""#];
    assert_eq!(
        values(&text, "azure_failed_requests_total", &absent),
        [1.0],
        "{text}"
    );
    let writes = [r#"provider="microsoft.containerservice""#, r#"access="write""#];
    let left = |text: &str| values(text, "slipway_azure_budget_remaining", &writes);
    assert!(left(&text)[0] > 19.0, "time has filled it again: {text}");

    // Azure says 429, and what was learnt from it holds the next write back.
    world.simulator.azure().add_fault(Fault {
        method: "PUT".into(),
        path: "/managedClusters/".into(),
        times: 1,
        status: Some(429),
        code: "TooManyRequests".into(),
        message: "no".into(),
        retry_after: Some(600),
        ..Fault::default()
    });
    for tag in ["one", "two"] {
        let changed = cluster("c", &json!({"tag": tag}));
        let _ = arm.ensure(&Desired::new(&changed, None)).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    let text = metrics.encode();
    for by in [r#"by="azure""#, r#"by="budget""#] {
        let labels = [writes[0], writes[1], by];
        assert_eq!(
            values(&text, "slipway_azure_throttled_requests_total", &labels),
            [1.0],
            "{text}"
        );
    }
    assert!(text.contains("slipway_azure_budget_waiting 1\n"), "{text}");
    assert!(!text.contains(crate::world::CLIENT), "no identity is a label");
}
