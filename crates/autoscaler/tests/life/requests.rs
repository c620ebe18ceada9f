//! ProvisioningRequests under every fault: all of what is asked for comes or nothing does, it is kept for its pods for ten minutes, and
//! what nobody took goes again.

use std::time::Duration;

use futures::{FutureExt, future::BoxFuture};
use serde_json::{Value, json};
use slipway_kit::{
    journey::{Journey, Standing},
    objects::{condition, find, holds, of_kind},
    sweep::World,
};

use super::{
    cluster::{Life, NAMESPACE, count, run},
    disruption::{a_shop_on_two_nodes, close_the_shop, rests},
    workload::pod_of,
};

static SHOP: Standing<Life> = Standing::after(a_shop_on_two_nodes);

/// Pods of two cores, of which two share a node.
fn template() -> Value {
    json!({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "worker", "namespace": NAMESPACE},
        "template": {"spec": {"containers": [{"name": "main",
            "resources": {"requests": {"cpu": "2", "memory": "1Gi"}}}]}}})
}

fn request(named: &str, class: &str, count: usize, parameters: &Value) -> Value {
    let spec = json!({"provisioningClassName": class, "parameters": parameters,
        "podSets": [{"count": count, "podTemplateRef": {"name": "worker"}}]});
    json!({"apiVersion": "autoscaling.x-k8s.io/v1", "kind": "ProvisioningRequest",
        "metadata": {"name": named, "namespace": NAMESPACE}, "spec": spec})
}

const ATOMIC: &str = "best-effort-atomic-scale-up.autoscaling.x-k8s.io";
const CHECK: &str = "check-capacity.autoscaling.x-k8s.io";

fn says(objects: &[Value], named: &str, kind: &str) -> bool {
    find(objects, "ProvisioningRequest", named).is_some_and(|request| holds(request, kind))
}

fn reason<'a>(objects: &'a [Value], named: &str, kind: &str) -> &'a str {
    let found = find(objects, "ProvisioningRequest", named).map(|request| condition(request, kind));
    found
        .and_then(|found| found["reason"].as_str())
        .unwrap_or_default()
}

fn consumer(named: &str, of: &str) -> Value {
    let mut pod = pod_of(named, "job", 2);
    pod["metadata"]["annotations"] = json!({"autoscaling.x-k8s.io/consume-provisioning-request": of});
    pod
}

/// A job of six pods gets its three nodes before its pods are there; they run on these. One that is too large gets none of its nodes, and
/// fails in its time.
fn a_job_comes<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        life.found(5, "5").await;
        life.create(&template()).await;
        let soon = json!({"ValidUntilSeconds": "600"});
        life.create(&request("large", ATOMIC, 11, &soon)).await;
        world
            .until("it says that there is not enough", |objects| {
                let why = reason(objects, "large", "Provisioned");
                why == "CapacityIsNotFound" || says(objects, "large", "Failed")
            })
            .await;
        tokio::time::sleep(Duration::from_mins(2)).await;
        let made = world.server.look(|objects| count(objects, "NodeClaim"));
        assert_eq!(made, 0, "five nodes would be some of six");
        world
            .until("it has failed", |objects| says(objects, "large", "Failed"))
            .await;
        // Where an hour passes at once, the booking is over before its pods come: then the user asks again.
        for time in 0.. {
            let job = format!("job-{time}");
            life.create(&request(&job, ATOMIC, 6, &json!({}))).await;
            world
                .until("it is provisioned", |objects| says(objects, &job, "Provisioned"))
                .await;
            for number in 0..6 {
                life.create(&consumer(&format!("{job}-{number}"), &job)).await;
            }
            world
                .until("its pods run, or its booking is over", |objects| {
                    run(objects, 6) || says(objects, &job, "BookingExpired")
                })
                .await;
            if world.server.look(|objects| run(objects, 6)) {
                break;
            }
            life.delete_all("Pod").await;
        }
        world
            .until("its booking is over, and its nodes stay", |objects| {
                let mut requests = of_kind(objects, "ProvisioningRequest");
                let is_over = requests.all(|one| holds(one, "BookingExpired") || holds(one, "Failed"));
                is_over && rests(objects) && run(objects, 6) && count(objects, "NodeClaim") == 3
            })
            .await;
    }
    .boxed()
}

/// Two nodes are emptied while a check keeps one of them for its pod; when its time is over, that goes too.
fn a_check_keeps_a_node<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        life.create(&template()).await;
        life.create(&request("early", CHECK, 1, &json!({"noRetry": "true"})))
            .await;
        world
            .until("the nodes are full", |objects| says(objects, "early", "Failed"))
            .await;
        close_the_shop(life).await;
        life.create(&request("late", CHECK, 1, &json!({}))).await;
        world
            .until("it is answered", |objects| {
                says(objects, "late", "Provisioned") || count(objects, "Node") == 0
            })
            .await;
        world
            .until("nothing is kept any more", |objects| {
                let is_over = says(objects, "late", "BookingExpired")
                    || says(objects, "late", "CapacityRevoked")
                    || !says(objects, "late", "Provisioned");
                is_over && rests(objects) && count(objects, "NodeClaim") == 0
            })
            .await;
        let claims = world.server.look(|objects| of_kind(objects, "NodeClaim").count());
        assert_eq!(claims, 0);
    }
    .boxed()
}

#[test]
fn a_job_gets_all_of_its_nodes_or_none() {
    Journey::<Life>::new("autoscaler: a job comes", a_job_comes).assert_clean();
}

#[test]
fn what_a_check_found_is_kept_for_its_time() {
    Journey::from(&SHOP, "autoscaler: a check keeps a node", a_check_keeps_a_node).assert_clean();
}
