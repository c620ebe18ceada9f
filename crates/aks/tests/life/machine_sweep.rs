//! The journeys of machines in the fault sweep: whatever fails, each VM that is to go goes once and no other does, and where machines
//! are switched off nothing happens to any.

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
    surroundings::{Aks, Life},
    world::{apply, manifests},
};

fn creation<'a>(_: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        let pools: &[(&str, &str, i32)] = &[("system", "System", 1), ("work", "User", 2)];
        apply(&world.server, &switched_on::<Aks>(manifests(&json!({}), pools))).await;
        world.until("whole", |objects| whole::<Aks>(objects, 2)).await;
    }
    .boxed()
}

static FLEET: Standing<Life> = Standing::after(creation);

fn left_to_aks<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    let scaling = json!({"spec": {"scaling": {"minSize": 1, "maxSize": 5}}});
    scaled_by_aks::<Aks>(life, world, scaling).boxed()
}

#[test]
fn machines_come_with_their_pool_whatever_fails() {
    Journey::new("AKS machines: a cluster that is made with them", creation).assert_clean();
}

#[test]
fn a_marked_machine_goes_once_and_no_other_whatever_fails() {
    Journey::from(
        &FLEET,
        "AKS machines: one is marked and scaled away",
        scaled_away::<Aks>,
    )
    .assert_clean();
}

#[test]
fn a_deleted_machine_is_replaced_once_whatever_fails() {
    Journey::from(&FLEET, "AKS machines: one is deleted", replaced::<Aks>).assert_clean();
}

#[test]
fn a_machine_that_a_health_check_gives_up_is_replaced_once_whatever_fails() {
    Journey::from(&FLEET, "AKS machines: one is given up", given_up::<Aks>).assert_clean();
}

#[test]
fn an_upgrade_leaves_every_machine_whatever_fails() {
    Journey::from(&FLEET, "AKS machines: the next minor version", upgraded::<Aks>).assert_clean();
}

#[test]
fn aks_scales_and_nobody_fights_it_whatever_fails() {
    Journey::from(&FLEET, "AKS machines: scaled by AKS", left_to_aks).assert_clean();
}

#[test]
fn machines_are_switched_off_and_on_whatever_fails() {
    Journey::from(&FLEET, "AKS machines: switched off and on", off_and_on::<Aks>).assert_clean();
}

#[test]
fn a_move_takes_machines_along_and_touches_no_vm_whatever_fails() {
    Journey::from(&FLEET, "AKS machines: moved", moved::<Aks>).assert_clean();
}

#[test]
fn machines_go_with_their_cluster_whatever_fails() {
    Journey::from(&FLEET, "AKS machines: the Cluster is deleted", deleted::<Aks>).assert_clean();
}
