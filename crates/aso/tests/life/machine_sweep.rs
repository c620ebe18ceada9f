//! The journeys of machines in the fault sweep, over inline resources that the manager writes.

use futures::{FutureExt, future::BoxFuture};
use serde_json::json;
use slipway_kit::{
    azure::machines::{
        deleted, given_up, moved, off_and_on, replaced, scaled_away, scaled_by_aks, switched_on, upgraded,
        whole,
    },
    journey::{Journey, Standing},
    sweep::World,
};

use super::{
    surroundings::{Aso, Life},
    world::{apply, manifests, pool_manifests},
};

fn creation<'a>(_: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        let pools: &[(&str, &str, i32)] = &[("system", "System", 1), ("work", "User", 2)];
        apply(&world.server, &switched_on::<Aso>(manifests(pools))).await;
        world.until("whole", |objects| whole::<Aso>(objects, 2)).await;
    }
    .boxed()
}

static FLEET: Standing<Life> = Standing::after(creation);

fn left_to_aks<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    let scaling = json!({"enableAutoScaling": true, "minCount": 1, "maxCount": 5});
    let pool = pool_manifests("work", "User", 2, &scaling).swap_remove(1);
    scaled_by_aks::<Aso>(life, world, json!({"spec": pool["spec"]})).boxed()
}

#[test]
fn machines_come_with_their_pool_whatever_fails() {
    Journey::new("ASO machines: a cluster that is made with them", creation).assert_clean();
}

#[test]
fn a_marked_machine_goes_once_and_no_other_whatever_fails() {
    Journey::from(
        &FLEET,
        "ASO machines: one is marked and scaled away",
        scaled_away::<Aso>,
    )
    .assert_clean();
}

#[test]
fn a_deleted_machine_is_replaced_once_whatever_fails() {
    Journey::from(&FLEET, "ASO machines: one is deleted", replaced::<Aso>).assert_clean();
}

#[test]
fn a_machine_that_a_health_check_gives_up_is_replaced_once_whatever_fails() {
    Journey::from(&FLEET, "ASO machines: one is given up", given_up::<Aso>).assert_clean();
}

#[test]
fn an_upgrade_leaves_every_machine_whatever_fails() {
    Journey::from(&FLEET, "ASO machines: the next minor version", upgraded::<Aso>).assert_clean();
}

#[test]
fn aks_scales_and_nobody_fights_it_whatever_fails() {
    Journey::from(&FLEET, "ASO machines: scaled by AKS", left_to_aks).assert_clean();
}

#[test]
fn machines_are_switched_off_and_on_whatever_fails() {
    Journey::from(&FLEET, "ASO machines: switched off and on", off_and_on::<Aso>).assert_clean();
}

#[test]
fn a_move_takes_machines_along_and_touches_no_vm_whatever_fails() {
    Journey::from(&FLEET, "ASO machines: moved", moved::<Aso>).assert_clean();
}

#[test]
fn machines_go_with_their_cluster_whatever_fails() {
    Journey::from(&FLEET, "ASO machines: the Cluster is deleted", deleted::<Aso>).assert_clean();
}
