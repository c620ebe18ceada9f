//! Three throttles with three ways to say 429: ARM's per subscription, AKS's per resource, compute's per subscription.

use serde_json::json;
use slipway_azure_sim::{Bucket, Limits, Response, Settings, Speed};

use crate::fixture::{Fixture, code};

fn limited(limits: Limits) -> Fixture {
    Fixture::with(Settings {
        require_token: false,
        speed: Speed::Instant,
        limits,
        ..Settings::default()
    })
}

fn seconds(response: &Response) -> i64 {
    assert_eq!(response.status, 429, "{:?}", response.body_json());
    let text = response.header_text("retry-after").expect("Retry-After");
    text.parse().expect("seconds")
}

#[test]
fn arm_counts_reads_and_writes_of_a_subscription_apart() {
    let mut azure = limited(Limits {
        subscription_reads: Bucket {
            burst: 3.0,
            per_second: 0.1,
        },
        ..Limits::default()
    });
    let group = "/resourceGroups/rg";
    azure.put(group, &json!({"location": "westus3"}));
    let left: Vec<String> = (0..3)
        .map(|_| {
            let read = azure.get(group);
            assert_eq!(read.status, 200);
            let left = read.header_text("x-ms-ratelimit-remaining-subscription-global-reads");
            left.expect("what is left").to_owned()
        })
        .collect();
    assert_eq!(left, ["2", "1", "0"]);
    let refused = azure.get(group);
    assert_eq!(code(&refused), "SubscriptionRequestsThrottled");
    let wait = seconds(&refused);
    assert_eq!(wait, 10);
    assert_eq!(
        azure.put(group, &json!({"location": "westus3"})).status,
        200,
        "writes are another count"
    );
    azure.pass(wait - 1);
    assert_eq!(azure.get(group).status, 429);
    azure.pass(1);
    assert_eq!(azure.get(group).status, 200);
}

#[test]
fn aks_counts_each_cluster_apart() {
    let mut azure = limited(Limits {
        aks_get: Bucket {
            burst: 2.0,
            per_second: 1.0,
        },
        ..Limits::default()
    });
    azure.put("/resourceGroups/rg", &json!({"location": "westus3"}));
    let (one, two) = (azure.cluster("one"), azure.cluster("two"));
    azure.pass(10);
    for _ in 0..2 {
        assert_eq!(azure.get(&one).status, 200);
    }
    let refused = azure.get(&one);
    assert_eq!(seconds(&refused), 1);
    assert_eq!(
        refused.body_json()["code"],
        "TooManyRequests",
        "not wrapped in an error"
    );
    assert!(
        refused.body_json()["message"]
            .as_str()
            .is_some_and(|text| text.contains("GetManagedClusterHandler.GET request limit"))
    );
    assert_eq!(azure.get(&two).status, 200);
}

#[test]
fn compute_says_it_in_its_own_words() {
    let mut azure = limited(Limits {
        compute_get: Bucket {
            burst: 1.0,
            per_second: 0.5,
        },
        ..Limits::default()
    });
    azure.put("/resourceGroups/rg", &json!({"location": "westus3"}));
    azure.cluster("one");
    let sets = "/resourceGroups/MC_rg_one_westus3/providers/Microsoft.Compute/virtualMachineScaleSets";
    assert_eq!(azure.get(sets).status, 200);
    let refused = azure.get(sets);
    assert_eq!(seconds(&refused), 2);
    assert_eq!(code(&refused), "OperationNotAllowed");
    assert_eq!(
        refused.body_json()["error"]["details"][0]["code"],
        "TooManyRequests"
    );
}
