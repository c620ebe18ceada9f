//! What users do, under every fault.

use std::time::Duration;

use futures::{FutureExt, future::BoxFuture};
use serde_json::{Value, json};
use slipway_kit::{
    journey::{Journey, Standing},
    objects::of_kind,
    sweep::World,
};

use super::cluster::{Life, count, run, until_running};

static RUNNING: Standing<Life> = Standing::after(pods_come);

fn names(prefix: &str, number: usize) -> impl Iterator<Item = String> {
    let prefix = prefix.to_owned();
    (0..number).map(move |one| format!("{prefix}-{one}"))
}

/// Five pods of half a node each need three nodes, from none.
fn pods_come<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        life.found(5, "5").await;
        life.pods(names("web", 5)).await;
        until_running(world, 5).await;
        world
            .until("three nodes", |objects| {
                let deployments = of_kind(objects, "MachineDeployment");
                let replicas: i64 = deployments
                    .filter_map(|one| one["spec"]["replicas"].as_i64())
                    .sum();
                replicas == 3 && count(objects, "NodeClaim") == 3 && count(objects, "Node") == 3
            })
            .await;
    }
    .boxed()
}

fn pods_and_claims_go<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        life.delete_all("Pod").await;
        life.delete_all("NodeClaim").await;
        nothing_is_left(world).await;
    }
    .boxed()
}

/// The claims are deleted under running pods: these are evicted, and come back as others on other nodes.
fn claims_go_under_pods<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        life.delete_all("NodeClaim").await;
        world
            .until("the old pods are gone", |objects| {
                of_kind(objects, "Pod").all(|pod| pod["spec"]["nodeName"].is_null())
            })
            .await;
        life.pods(names("next", 5)).await;
        until_running(world, 5).await;
    }
    .boxed()
}

/// More pods than the limit has nodes for: the rest waits, and nothing is exceeded.
fn more_than_the_limit<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        life.pods(names("more", 9)).await;
        world
            .until("five nodes are full", |objects| run(objects, 10))
            .await;
        tokio::time::sleep(Duration::from_mins(2)).await;
    }
    .boxed()
}

/// The MachineDeployment has less room than the NodePool: claims that find none do not stay.
fn less_room_than_the_pool<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        let annotations = json!({"cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size": "4"});
        life.merge(
            "MachineDeployment",
            "general",
            json!({"metadata": {"annotations": annotations}}),
        )
        .await;
        life.pods(names("more", 9)).await;
        world
            .until("four nodes are full", |objects| run(objects, 8))
            .await;
        tokio::time::sleep(Duration::from_mins(2)).await;
    }
    .boxed()
}

/// The cheapest object gives no machine: its claims are given up, and the next object is tried.
async fn the_next_is_tried(life: &Life, world: &World, trouble: &str) {
    life.machine_deployment("cheaper", 5, "0.1", trouble).await;
    life.found(5, "5").await;
    life.pods(names("web", 2)).await;
    until_running(world, 2).await;
    world
        .until("the object in trouble has nothing", |objects| {
            let cheaper = slipway_kit::objects::find(objects, "MachineDeployment", "cheaper");
            let replicas = cheaper.and_then(|cheaper| cheaper["spec"]["replicas"].as_i64());
            replicas == Some(0) && count(objects, "Machine") == 1 && count(objects, "NodeClaim") == 1
        })
        .await;
}

fn machines_fail<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    the_next_is_tried(life, world, "failed").boxed()
}

fn a_preflight_check_fails<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    the_next_is_tried(life, world, "blocked").boxed()
}

/// A claim that somebody made, of no NodePool: its own reference says where its machine comes from.
fn a_claim_of_its_own<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        life.found(5, "5").await;
        let claim = json!({"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": "alone"},
            "spec": {"requirements": [], "resources": {"requests": {"cpu": "1"}}, "nodeClassRef": {
                "group": "karpenter.cluster.x-k8s.io", "kind": "ClusterAPINodeClass", "name": "here"}}});
        let has_node = |objects: &[Value]| {
            let ready = of_kind(objects, "NodeClaim").any(|claim| slipway_kit::objects::holds(claim, "Ready"));
            ready && count(objects, "Machine") == 1 && count(objects, "Node") == 1
        };
        // One that was given up, for a deadline or because nothing could be chosen, is made again by nobody but its user.
        loop {
            life.create(&claim).await;
            world
                .until("it has a node, or was given up", |objects| {
                    has_node(objects) || count(objects, "NodeClaim") == 0
                })
                .await;
            if world.server.look(has_node) {
                break;
            }
        }
        life.delete_all("NodeClaim").await;
        nothing_is_left(world).await;
    }
    .boxed()
}

static OF_TEMPLATES: Standing<Life> = Standing::after(machines_of_templates);
static BUDGETED: Standing<Life> = Standing::after(pods_with_a_budget);

/// Machines are made one by one, with infrastructure and bootstrap configuration.
fn machines_of_templates<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        life.found_templates("5").await;
        life.pods(names("web", 5)).await;
        until_running(world, 5).await;
        world
            .until("three Machines of three claims", |objects| {
                let parts = count(objects, "EdgeMachine") + count(objects, "EdgeConfig");
                count(objects, "NodeClaim") == 3 && count(objects, "Machine") == 3 && parts == 6
            })
            .await;
    }
    .boxed()
}

/// Claims of a template are deleted while their Machines are being made.
fn made_in_vain<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        life.found_templates("5").await;
        life.pods(names("web", 3)).await;
        world
            .until("claims", |objects| count(objects, "NodeClaim") > 0)
            .await;
        life.delete_all("Pod").await;
        // What the provisioner reads may still hold the pods: the user deletes the claims made for them after that, too.
        let alive = |objects: &[Value]| {
            of_kind(objects, "NodeClaim").any(|claim| claim["metadata"]["deletionTimestamp"].is_null())
        };
        while world.server.look(alive) {
            life.delete_all("NodeClaim").await;
            world
                .until("nothing is left, or a claim came late", |objects| {
                    is_bare(objects) || alive(objects)
                })
                .await;
            tokio::time::sleep(Duration::from_mins(2)).await;
        }
        nothing_is_left(world).await;
    }
    .boxed()
}

fn is_bare(objects: &[Value]) -> bool {
    ["NodeClaim", "Machine", "Node", "EdgeMachine", "EdgeConfig"]
        .iter()
        .all(|kind| count(objects, kind) == 0)
}

async fn nothing_is_left(world: &World) {
    world.until("nothing is left", is_bare).await;
}

fn pods_with_a_budget<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        life.found(5, "5").await;
        life.budget("shop", 4, 3).await;
        until_running(world, 4).await;
    }
    .boxed()
}

/// Every claim is deleted at once: the pods move one by one, and three of four always run.
fn a_budget_is_drained<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        let before: Vec<String> = world.server.look(|objects| {
            of_kind(objects, "NodeClaim")
                .map(|claim| slipway_kit::objects::name(claim).to_owned())
                .collect()
        });
        life.delete_all("NodeClaim").await;
        world
            .until("the old claims are gone", |objects| {
                of_kind(objects, "NodeClaim").all(|claim| {
                    !before
                        .iter()
                        .any(|name| name == slipway_kit::objects::name(claim))
                })
            })
            .await;
        until_running(world, 4).await;
    }
    .boxed()
}

/// Somebody deletes a Node: its pods are drained first, and its Machine goes.
fn a_node_is_deleted<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        life.delete_all("Node").await;
        world
            .until("the nodes are gone", |objects| {
                of_kind(objects, "Pod").all(|pod| pod["spec"]["nodeName"].is_null())
            })
            .await;
        life.pods(names("next", 5)).await;
        until_running(world, 5).await;
    }
    .boxed()
}

#[test]
fn a_deleted_node_is_drained_and_replaced() {
    Journey::from(&RUNNING, "autoscaler: Nodes are deleted", a_node_is_deleted).assert_clean();
}

#[test]
fn templates_give_machines() {
    Journey::<Life>::new("autoscaler: machine templates", machines_of_templates).assert_clean();
}

#[test]
fn what_was_made_of_templates_goes() {
    Journey::from(
        &OF_TEMPLATES,
        "autoscaler: machine templates to zero",
        pods_and_claims_go,
    )
    .assert_clean();
}

#[test]
fn nothing_outlives_a_claim_on_a_template() {
    Journey::<Life>::new("autoscaler: machine templates in vain", made_in_vain).assert_clean();
}

#[test]
fn budgets_hold_while_nodes_are_drained() {
    Journey::from(&BUDGETED, "autoscaler: a budget is drained", a_budget_is_drained).assert_clean();
}

#[test]
fn pods_that_wait_get_nodes() {
    Journey::<Life>::new("autoscaler: pods come", pods_come).assert_clean();
}

#[test]
fn controllers_start_over_a_cluster_that_runs() {
    Journey::start_over(&RUNNING, "autoscaler: a start over claims").assert_clean();
}

#[test]
fn claims_that_go_take_everything_along() {
    Journey::from(&RUNNING, "autoscaler: to zero", pods_and_claims_go).assert_clean();
}

#[test]
fn pods_are_drained_before_their_node_goes() {
    Journey::from(&RUNNING, "autoscaler: claims go under pods", claims_go_under_pods).assert_clean();
}

#[test]
fn limits_hold() {
    Journey::from(&RUNNING, "autoscaler: more than the limit", more_than_the_limit).assert_clean();
}

#[test]
fn sizes_hold() {
    Journey::from(
        &RUNNING,
        "autoscaler: less room than the pool",
        less_room_than_the_pool,
    )
    .assert_clean();
}

#[test]
fn a_claim_without_a_node_pool_gets_a_machine() {
    Journey::<Life>::new("autoscaler: a claim of no NodePool", a_claim_of_its_own).assert_clean();
}

#[test]
fn an_object_whose_machines_fail_is_passed_over() {
    Journey::<Life>::new("autoscaler: Machines fail", machines_fail).assert_clean();
}

#[test]
fn an_object_whose_preflight_checks_fail_is_passed_over() {
    Journey::<Life>::new("autoscaler: a preflight check fails", a_preflight_check_fails).assert_clean();
}

/// The invariants would see it.
#[test]
fn the_sweep_is_not_blind() {
    fn grow<'a>(life: &'a Life, _: &'a World) -> BoxFuture<'a, ()> {
        async move {
            life.merge("MachineDeployment", "general", json!({"spec": {"replicas": 9}}))
                .await;
        }
        .boxed()
    }
    Journey::from(&RUNNING, "autoscaler: grown past its size", grow).assert_caught("has 9 replicas");
}
