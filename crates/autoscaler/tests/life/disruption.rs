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

use super::cluster::{KEPT, Life, OF_A_SET, REFUSED, TROUBLE, WATCHED, count, run, until_running};

static ONE_EACH: Standing<Life> = Standing::after(one_pod_on_each_of_three);
static SHOP: Standing<Life> = Standing::after(a_shop_on_two_nodes);
static SET: Standing<Life> = Standing::after(a_set_on_three_nodes);

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
        life.watch_budget().await;
    }
    .boxed()
}

/// Two full nodes, whose pods have a budget.
fn a_shop_on_two_nodes<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        life.found(5, "5").await;
        life.budget("shop", 4, 3).await;
        until_running(world, 4).await;
        life.watch_budget().await;
    }
    .boxed()
}

/// Three full nodes of a ReplicaSet's pods.
fn a_set_on_three_nodes<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        life.found(5, "5").await;
        life.budget("shop", 0, 3).await;
        let annotations = json!({KEPT: "6", OF_A_SET: "true"});
        life.merge(
            "PodDisruptionBudget",
            "shop",
            json!({"metadata": {"annotations": annotations}}),
        )
        .await;
        until_running(world, 6).await;
        life.watch_budget().await;
    }
    .boxed()
}

/// The user gives up the pods that a budget has kept.
async fn close_the_shop(life: &Life) {
    let closed = json!({"metadata": {"annotations": {KEPT: "0"}}, "spec": {"minAvailable": 0}});
    life.merge("PodDisruptionBudget", "shop", closed).await;
    life.delete_all("Pod").await;
}

/// The NodePool's budget lets all nodes go at once.
async fn all_may_go(life: &Life) {
    let all = json!({"metadata": {"annotations": {WATCHED: null}},
        "spec": {"disruption": {"budgets": [{"nodes": "100%"}]}}});
    life.merge("NodePool", "general", all).await;
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

/// Both nodes are emptied and may go together; a pod of nobody comes to one a moment before. It runs to the end, and the other goes.
fn one_of_two_empty_nodes_is_filled<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        all_may_go(life).await;
        close_the_shop(life).await;
        tokio::time::sleep(Duration::from_secs(14)).await;
        life.pods(["late".to_owned()]).await;
        until_rests(world, "it runs, and the other node is gone", 1, 1).await;
    }
    .boxed()
}

/// Somebody's webhook refuses to let a claim go: the others go all the same, and it goes when it may. karpenter#3186.
fn a_claim_is_kept_by_somebody<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        all_may_go(life).await;
        let objects: Vec<Value> = life.server.look(<[Value]>::to_vec);
        let mut claims: Vec<&str> = of_kind(&objects, "NodeClaim").map(name).collect();
        claims.sort_unstable();
        let kept = claims[0].to_owned();
        let refused = |value: Value| json!({"metadata": {"annotations": {REFUSED: value}}});
        life.merge("NodeClaim", &kept, refused(json!("true"))).await;
        life.merge("NodePool", "general", relabel("blue")).await;
        let stands =
            |objects: &[Value]| find(objects, "NodeClaim", &kept).is_some_and(|claim| !is_deleting(claim));
        world
            .until("the other is replaced", |objects| {
                let others = claims[1..]
                    .iter()
                    .all(|claim| find(objects, "NodeClaim", claim).is_none());
                stands(objects) && others && run(objects, 4)
            })
            .await;
        close_the_shop(life).await;
        world
            .until("it stands alone", |objects| {
                stands(objects) && count(objects, "NodeClaim") == 1
            })
            .await;
        life.merge("NodeClaim", &kept, refused(json!(null))).await;
        until_rests(world, "no node is left", 0, 0).await;
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

/// A static NodePool at its limit of nodes drifts: nothing can come before a node went, so one goes first, and another comes.
fn a_static_pool_at_its_limit<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        life.found_static(5, 4).await;
        until_rests(world, "four nodes, as many as its limit", 0, 4).await;
        life.watch_budget().await;
        life.merge("NodePool", "general", relabel("blue")).await;
        world
            .until("all four are replaced", |objects| {
                rests(objects) && count(objects, "NodeClaim") == 4 && all_carry(objects, "blue")
            })
            .await;
    }
    .boxed()
}

/// The NodeClass takes other objects from now on: nodes of those that it no longer takes are replaced.
fn the_class_changes<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        life.machine_deployment("other", 5, "0.2", "").await;
        let label = json!({"metadata": {"labels": {"fleet": "new"}}});
        life.merge("MachineDeployment", "other", label).await;
        let class = json!({"spec": {"labels": ["fleet=new"]}});
        life.merge("ClusterAPINodeClass", "here", class).await;
        world
            .until("both nodes are of the other object", |objects| {
                let replicas = |named: &str| {
                    let found = find(objects, "MachineDeployment", named);
                    found.and_then(|found| found["spec"]["replicas"].as_i64())
                };
                rests(objects)
                    && run(objects, 4)
                    && count(objects, "NodeClaim") == 2
                    && (replicas("general"), replicas("other")) == (Some(0), Some(2))
            })
            .await;
    }
    .boxed()
}

/// The same saving as of cheaper machines, found by the policy `cost`.
fn cheaper_machines_come_at_the_least_cost<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        let policy = json!({"metadata": {"annotations": {"slipway.dev/packing": "cost"}}});
        life.merge("NodePool", "general", policy).await;
        cheaper_machines_come(life, world).await;
    }
    .boxed()
}

/// The ReplicaSet gets smaller: its pods go from one node, which goes empty. Nobody is evicted.
fn a_set_gets_smaller<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        let is_first = |pod: &Value| {
            pod["metadata"]["annotations"]["controller.kubernetes.io/pod-deletion-cost"] == "-1"
        };
        world
            .until("the pods of one node are to go first", |objects| {
                let first: Vec<&Value> = of_kind(objects, "Pod").filter(|pod| is_first(pod)).collect();
                run(objects, 6)
                    && first.len() == 2
                    && first[0]["spec"]["nodeName"] == first[1]["spec"]["nodeName"]
            })
            .await;
        let objects: Vec<Value> = life.server.look(<[Value]>::to_vec);
        let before: Vec<&str> = of_kind(&objects, "Pod")
            .filter(|pod| !is_first(pod))
            .map(name)
            .collect();
        let smaller = json!({"metadata": {"annotations": {KEPT: "4"}}});
        life.merge("PodDisruptionBudget", "shop", smaller).await;
        world
            .until("two nodes are left, and the pods that ran there", |objects| {
                rests(objects)
                    && run(objects, 4)
                    && count(objects, "NodeClaim") == 2
                    && of_kind(objects, "Pod").all(|pod| before.contains(&name(pod)))
            })
            .await;
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

/// karpenter#3185.
#[test]
fn of_empty_nodes_those_that_filled_meanwhile_stay() {
    Journey::from(
        &SHOP,
        "autoscaler: one of two empty nodes is filled",
        one_of_two_empty_nodes_is_filled,
    )
    .assert_clean();
}

#[test]
fn a_claim_that_cannot_go_holds_up_nobody() {
    Journey::from(
        &SHOP,
        "autoscaler: a claim is kept by somebody",
        a_claim_is_kept_by_somebody,
    )
    .assert_clean();
}

#[test]
fn a_static_pool_at_its_limit_is_replaced_one_by_one() {
    Journey::<Life>::new(
        "autoscaler: a static NodePool at its limit",
        a_static_pool_at_its_limit,
    )
    .assert_clean();
}

#[test]
fn nodes_of_objects_that_are_no_longer_taken_are_replaced() {
    Journey::from(&SHOP, "autoscaler: the NodeClass changes", the_class_changes).assert_clean();
}

#[test]
fn dear_nodes_are_replaced_at_the_least_cost() {
    Journey::from(
        &SHOP,
        "autoscaler: cheaper machines come, at the least cost",
        cheaper_machines_come_at_the_least_cost,
    )
    .assert_clean();
}

#[test]
fn a_node_empties_by_itself_when_a_set_gets_smaller() {
    Journey::from(&SET, "autoscaler: a set gets smaller", a_set_gets_smaller).assert_clean();
}

/// The invariants would see it.
#[test]
fn the_sweep_sees_more_nodes_go_than_the_budget_lets() {
    fn all_at_once<'a>(life: &'a Life, _: &'a World) -> BoxFuture<'a, ()> {
        async move { life.delete_all("NodeClaim").await }.boxed()
    }
    Journey::from(&SHOP, "autoscaler: two go at once", all_at_once).assert_caught("go at once");
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
