//! NodeOverlays say what machines cost, under every fault: nodes move to what is cheaper now, and what cannot be applied says so.

use futures::{FutureExt, future::BoxFuture};
use serde_json::{Value, json};
use slipway_kit::{
    journey::{Journey, Standing},
    objects::{condition, find, of_kind},
    sweep::World,
};

use super::{
    cluster::{Life, count, run},
    disruption::{a_shop_on_two_nodes, rests},
};

static SHOP: Standing<Life> = Standing::after(a_shop_on_two_nodes);

fn overlay(named: &str, spec: &Value) -> Value {
    let requirements =
        json!([{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["other"]}]);
    let mut overlay = json!({"apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": {"name": named},
        "spec": {"requirements": requirements}});
    for (key, said) in spec.as_object().into_iter().flatten() {
        overlay["spec"][key] = said.clone();
    }
    overlay
}

fn reason<'a>(objects: &'a [Value], named: &str) -> &'a str {
    let found = find(objects, "NodeOverlay", named).map(|one| condition(one, "ValidationSucceeded"));
    found
        .and_then(|condition| condition["reason"].as_str())
        .unwrap_or_default()
}

/// Both nodes stand on machines of this object, and say why.
fn are_of(objects: &[Value], named: &str) -> bool {
    let replicas = |of: &str| find(objects, "MachineDeployment", of)?["spec"]["replicas"].as_i64();
    let other = if named == "other" { "general" } else { "other" };
    rests(objects)
        && run(objects, 4)
        && count(objects, "NodeClaim") == 2
        && replicas(named) == Some(2)
        && replicas(other) == Some(0)
}

/// Dear machines are made the cheapest by an overlay, a second one is in conflict with it until it is heavier, and makes them dear again.
fn prices_change<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        life.machine_deployment("other", 5, "0.4", "").await;
        let labels = "node.kubernetes.io/instance-type=other";
        let annotations = json!({"capacity.cluster-autoscaler.kubernetes.io/labels": labels});
        let labelled = json!({"metadata": {"annotations": annotations}});
        life.merge("MachineDeployment", "other", labelled).await;
        life.create(&overlay("discount", &json!({"price": "0.05"}))).await;
        world
            .until("both nodes are discounted ones", |objects| {
                let said = "karpenter.sh/price-overlay-applied";
                are_of(objects, "other")
                    && reason(objects, "discount") == "ValidationSucceeded"
                    && of_kind(objects, "NodeClaim")
                        .all(|claim| claim["metadata"]["annotations"][said] == "true")
            })
            .await;
        life.create(&overlay("already", &json!({"price": "0.9"}))).await;
        world
            .until("the second is in conflict, and nothing moves", |objects| {
                reason(objects, "already") == "Conflict" && are_of(objects, "other")
            })
            .await;
        life.merge("NodeOverlay", "already", json!({"spec": {"weight": 7}}))
            .await;
        world
            .until("both nodes are usual ones again", |objects| {
                reason(objects, "already") == "ValidationSucceeded" && are_of(objects, "general")
            })
            .await;
    }
    .boxed()
}

#[test]
fn overlays_move_nodes_to_what_is_cheaper() {
    Journey::from(&SHOP, "autoscaler: overlays change prices", prices_change).assert_clean();
}
