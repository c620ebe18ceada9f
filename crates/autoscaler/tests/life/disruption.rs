//! Nodes that are empty, drifted or dearer than they need be are given up, under every fault. Pods of a budget come back where they
//! can; pods of nobody must never be evicted here.

use std::time::Duration;

use futures::{FutureExt, future::BoxFuture};
use serde_json::{Value, json};
use slipway_kit::{
    journey::{Journey, Standing},
    objects::{delete, find, holds, is_deleting, merge_status, name, of_kind},
    sweep::World,
};

use super::cluster::{KEPT, Life, TROUBLE, count, run, until_running};

static ONE_EACH: Standing<Life> = Standing::after(one_pod_on_each_of_three);
static SHOP: Standing<Life> = Standing::after(a_shop_on_two_nodes);

fn names(prefix: &str, number: usize) -> impl Iterator<Item = String> {
    let prefix = prefix.to_owned();
    (0..number).map(move |one| format!("{prefix}-{one}"))
}

/// Three nodes, each with a pod of three cores and one of one core of a budget.
fn one_pod_on_each_of_three<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        life.found(5, "5").await;
        life.pods_of(names("large", 3), 3).await;
        until_running(world, 3).await;
        life.budget_of("shop", 3, 2, 1).await;
        until_running(world, 6).await;
    }
    .boxed()
}

/// Two full nodes, whose pods have a budget.
fn a_shop_on_two_nodes<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        life.found(5, "5").await;
        life.budget("shop", 4, 3).await;
        until_running(world, 4).await;
    }
    .boxed()
}

/// The user gives up the pods that a budget has kept.
async fn close_the_shop(life: &Life) {
    let closed = json!({"metadata": {"annotations": {KEPT: "0"}}, "spec": {"minAvailable": 0}});
    life.merge("PodDisruptionBudget", "shop", closed).await;
    life.delete_all("Pod").await;
}

/// Everything rests: nothing is marked, nothing leaves, and there are as many nodes as claims.
fn rests(objects: &[Value]) -> bool {
    let marks = [
        "karpenter.cluster.x-k8s.io/disrupted-for",
        "karpenter.cluster.x-k8s.io/replaces",
    ];
    let claims = count(objects, "NodeClaim");
    of_kind(objects, "NodeClaim").all(|claim| {
        let annotations = &claim["metadata"]["annotations"];
        holds(claim, "Ready") && !is_deleting(claim) && marks.iter().all(|mark| annotations[*mark].is_null())
    }) && of_kind(objects, "Node").all(|node| node["spec"]["taints"].as_array().is_none_or(Vec::is_empty))
        && count(objects, "Machine") == claims
        && count(objects, "Node") == claims
}

async fn until_rests(world: &World, what: &str, pods: usize, claims: usize) {
    world
        .until(what, |objects| {
            rests(objects) && run(objects, pods) && count(objects, "NodeClaim") == claims
        })
        .await;
}

/// All pods go: so do the nodes.
fn everything_is_emptied<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        close_the_shop(life).await;
        until_rests(world, "no node is left", 0, 0).await;
    }
    .boxed()
}

/// What made three nodes necessary goes: one is enough for the rest, and its budget holds on the way.
fn one_node_is_enough<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        let objects: Vec<Value> = life.server.look(<[Value]>::to_vec);
        for pod in of_kind(&objects, "Pod").filter(|pod| name(pod).starts_with("large")) {
            delete(&life.server, pod).await;
        }
        until_rests(world, "one node is left", 3, 1).await;
    }
    .boxed()
}

/// An object with cheaper machines of the same size comes: every node is replaced, after its replacement came.
fn cheaper_machines_come<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        life.machine_deployment("cheaper", 5, "0.1", "").await;
        world
            .until("both nodes are cheaper ones", |objects| {
                let general = find(objects, "MachineDeployment", "general");
                let replicas = general.and_then(|general| general["spec"]["replicas"].as_i64());
                rests(objects) && run(objects, 4) && count(objects, "NodeClaim") == 2 && replicas == Some(0)
            })
            .await;
    }
    .boxed()
}

fn relabel(value: &str) -> Value {
    json!({"spec": {"template": {"metadata": {"labels": {"slipway.test/fleet": value}}}}})
}

fn all_carry(objects: &[Value], value: &str) -> bool {
    of_kind(objects, "Node").all(|node| node["metadata"]["labels"]["slipway.test/fleet"] == *value)
}

/// The template changes: every node is replaced, one after the other, and the budget holds.
fn the_template_changes<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        life.merge("NodePool", "general", relabel("blue")).await;
        world
            .until("both nodes have the label", |objects| {
                rests(objects)
                    && run(objects, 4)
                    && count(objects, "NodeClaim") == 2
                    && all_carry(objects, "blue")
            })
            .await;
    }
    .boxed()
}

/// The replacement's machine fails: the node stays until one comes.
fn a_replacement_fails<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        let trouble = |value: &str| json!({"metadata": {"annotations": {TROUBLE: value}}});
        life.merge("MachineDeployment", "general", trouble("failing-new"))
            .await;
        life.merge("NodePool", "general", relabel("blue")).await;
        tokio::time::sleep(Duration::from_mins(30)).await;
        life.merge("MachineDeployment", "general", trouble("")).await;
        world
            .until("both nodes have the label", |objects| {
                rests(objects)
                    && run(objects, 4)
                    && count(objects, "NodeClaim") == 2
                    && all_carry(objects, "blue")
            })
            .await;
    }
    .boxed()
}

/// Nodes are emptied, and pods of nobody come a moment before they would be taken away: these run to the end.
fn empty_nodes_are_filled<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        close_the_shop(life).await;
        for (wave, seconds) in [13, 15, 16, 14].into_iter().enumerate() {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            life.pods([format!("late-{wave}")]).await;
        }
        world
            .until("all of them run", |objects| rests(objects) && run(objects, 4))
            .await;
    }
    .boxed()
}

/// A static NodePool grows, shrinks, drifts, and goes to zero.
fn a_static_pool<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        life.found_static(5, 2).await;
        until_rests(world, "two nodes", 0, 2).await;
        let replicas = |count: usize| json!({"spec": {"replicas": count}});
        for count in [3, 1, 2] {
            life.merge("NodePool", "general", replicas(count)).await;
            until_rests(world, "as many nodes as replicas", 0, count).await;
        }
        life.merge("NodePool", "general", relabel("blue")).await;
        world
            .until("both nodes are replaced", |objects| {
                rests(objects) && count(objects, "NodeClaim") == 2 && all_carry(objects, "blue")
            })
            .await;
        life.merge("NodePool", "general", replicas(0)).await;
        until_rests(world, "no node is left", 0, 0).await;
    }
    .boxed()
}

/// A node is not ready: half an hour later it is replaced, and its pods' budget holds.
fn a_node_is_ill<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        let objects: Vec<Value> = life.server.look(<[Value]>::to_vec);
        let node = of_kind(&objects, "Node").next().expect("there are two").clone();
        let since = world.clock.now().to_string();
        let ill = json!({"conditions": [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown",
            "lastTransitionTime": since}]});
        merge_status(&life.server, &node, ill).await;
        let named = name(&node).to_owned();
        world
            .until("it is gone, and another came", |objects| {
                rests(objects)
                    && run(objects, 4)
                    && count(objects, "NodeClaim") == 2
                    && find(objects, "Node", &named).is_none()
            })
            .await;
    }
    .boxed()
}

#[test]
fn static_pools_hold_as_many_nodes_as_they_say() {
    Journey::<Life>::new("autoscaler: a static NodePool", a_static_pool).assert_clean();
}

#[test]
fn ill_nodes_are_repaired() {
    Journey::from(&SHOP, "autoscaler: a node is ill", a_node_is_ill).assert_clean();
}

#[test]
fn empty_nodes_go() {
    Journey::from(&SHOP, "autoscaler: everything is emptied", everything_is_emptied).assert_clean();
}

#[test]
fn underused_nodes_go() {
    Journey::from(&ONE_EACH, "autoscaler: one node is enough", one_node_is_enough).assert_clean();
}

#[test]
fn dear_nodes_are_replaced() {
    Journey::from(&SHOP, "autoscaler: cheaper machines come", cheaper_machines_come).assert_clean();
}

#[test]
fn drifted_nodes_are_replaced() {
    Journey::from(&SHOP, "autoscaler: the template changes", the_template_changes).assert_clean();
}

#[test]
fn a_node_stays_until_its_replacement_comes() {
    Journey::from(&SHOP, "autoscaler: a replacement fails", a_replacement_fails).assert_clean();
}

/// karpenter#3185.
#[test]
fn a_node_that_filled_meanwhile_stays() {
    Journey::from(
        &SHOP,
        "autoscaler: empty nodes are filled",
        empty_nodes_are_filled,
    )
    .assert_clean();
}
