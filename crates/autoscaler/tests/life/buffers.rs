//! CapacityBuffers under every fault: room is made and kept, pods that come take it and it is made again, and when it is wanted no
//! more its nodes go.

use futures::{FutureExt, future::BoxFuture};
use serde_json::{Value, json};
use slipway_kit::{
    journey::{Journey, Standing},
    objects::{condition, find, holds},
    sweep::World,
};

use super::{
    cluster::{Life, NAMESPACE, count, run},
    disruption::{close_the_shop, rests},
};

static SPARE: Standing<Life> = Standing::after(a_buffer_of_three);

/// A pod of two cores, of which two share a node.
fn template(cores: usize) -> Value {
    json!({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "web", "namespace": NAMESPACE},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "main",
            "resources": {"requests": {"cpu": cores.to_string(), "memory": "1Gi"}}}]}}})
}

fn says(objects: &[Value], kind: &str) -> (bool, String) {
    let Some(buffer) = find(objects, "CapacityBuffer", "spare") else {
        return (false, String::new());
    };
    let reason = condition(buffer, kind)["reason"].as_str().unwrap_or_default();
    (holds(buffer, kind), reason.to_owned())
}

/// So many nodes, on which so many pods run and the whole buffer has room.
fn has_room(objects: &[Value], pods: usize, nodes: usize) -> bool {
    rests(objects)
        && run(objects, pods)
        && count(objects, "NodeClaim") == nodes
        && says(objects, "Provisioning") == (true, "FitsExistingCapacity".to_owned())
}

/// Room for three pods is two nodes, from none, once somebody has written what the pods are like.
fn a_buffer_of_three<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        life.found(5, "5").await;
        let spec = json!({"podTemplateRef": {"name": "web"}, "replicas": 3});
        let metadata = json!({"name": "spare", "namespace": NAMESPACE});
        life.create(
            &json!({"apiVersion": "autoscaling.x-k8s.io/v1beta1", "kind": "CapacityBuffer", "metadata": metadata,
                "spec": spec}),
        )
        .await;
        world
            .until("it says what is missing", |objects| {
                says(objects, "ReadyForProvisioning") == (false, "PodTemplateNotFound".to_owned())
            })
            .await;
        life.create(&template(2)).await;
        world
            .until("there is room for three pods", |objects| has_room(objects, 0, 2))
            .await;
    }
    .boxed()
}

/// Pods come and run at once in the room that is there; it is made again for others to come, and goes when it is wanted no more.
fn pods_take_the_room<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        life.budget("shop", 3, 2).await;
        world
            .until("three pods run, and there is room for three more", |objects| {
                has_room(objects, 3, 3)
            })
            .await;
        life.merge("CapacityBuffer", "spare", json!({"spec": {"replicas": 1}}))
            .await;
        world
            .until("two nodes are enough", |objects| has_room(objects, 3, 2))
            .await;
        life.delete_all("CapacityBuffer").await;
        close_the_shop(life).await;
        world
            .until("no node is left", |objects| {
                rests(objects) && count(objects, "NodeClaim") == 0
            })
            .await;
    }
    .boxed()
}

/// What its pods are like changes: room for larger ones is made.
fn its_pods_grow<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        life.merge("PodTemplate", "web", json!({"template": template(3)["template"]}))
            .await;
        world
            .until("each has a node", |objects| has_room(objects, 0, 3))
            .await;
        // More than there can be: the rest is told, and what stands is kept.
        life.merge("CapacityBuffer", "spare", json!({"spec": {"replicas": 7}}))
            .await;
        world
            .until("as many as the limit allows", |objects| {
                rests(objects)
                    && count(objects, "NodeClaim") == 5
                    && says(objects, "Provisioning") == (false, "RequiresNewCapacity".to_owned())
            })
            .await;
    }
    .boxed()
}

#[test]
fn room_is_made_from_nothing() {
    Journey::<Life>::new("autoscaler: a buffer of three", a_buffer_of_three).assert_clean();
}

#[test]
fn room_is_taken_made_again_and_given_up() {
    Journey::from(&SPARE, "autoscaler: pods take the room", pods_take_the_room).assert_clean();
}

#[test]
fn room_follows_what_its_pods_are_like() {
    Journey::from(&SPARE, "autoscaler: the pods of a buffer grow", its_pods_grow).assert_clean();
}
