//! What a control plane decides over time, in golden files: each plan with the reason and the difference of every action, as
//! the situation unfolds. `SLIPWAY_TEST_BLESS=1` writes them.

use std::{fmt::Write as _, path::Path, time::Duration};

use slipway_k3s::api::RolloutStrategyType;

use super::world::World;

/// Steps until the plane is settled, and writes down every plan that differs from the one before.
fn story(world: &mut World) -> String {
    let (mut text, mut last, start) = (String::new(), String::new(), world.now());
    for _ in 0..2_000 {
        let plan = world.step_by(Duration::from_secs(1)).to_string();
        if plan != last {
            let _ = writeln!(
                text,
                "+{} s, {} of {} voters alive\n{plan}",
                world.now().duration_since(start).as_secs(),
                world.model.healthy_voters(),
                world.model.voters()
            );
        }
        last = plan;
        if world.is_settled() {
            return text;
        }
    }
    panic!("never settled:\n{text}");
}

/// The story is that of the golden file.
fn golden(file: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(file);
    if std::env::var_os("SLIPWAY_TEST_BLESS").is_some() {
        std::fs::write(&path, text).expect("the golden file is written");
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        text,
        expected,
        "run with SLIPWAY_TEST_BLESS=1 to accept {}",
        path.display()
    );
}

#[test]
fn one_server_grows_to_three() {
    let mut world = World::settled(1);
    world.desired.replicas = 3;
    golden("one-to-three.golden", &story(&mut world));
}

#[test]
fn three_servers_are_replaced_for_an_upgrade() {
    let mut world = World::settled(3);
    world.desired.version = "v1.34.1+k3s1".into();
    golden("upgrade.golden", &story(&mut world));
}

#[test]
fn three_servers_are_updated_in_place() {
    let mut world = World::settled(3);
    world.desired.strategy = RolloutStrategyType::InPlace;
    world.desired.version = "v1.34.1+k3s1".into();
    golden("in-place.golden", &story(&mut world));
}

#[test]
fn a_dead_server_is_replaced_before_a_deleted_one_goes() {
    let mut world = World::settled(3);
    world.fault(|model| model.kill("server-1"));
    world.delete_machine("server-2");
    golden("dead-and-deleted.golden", &story(&mut world));
}

#[test]
fn a_server_deleted_as_a_learner_leaves_etcd_first() {
    let mut world = World::settled(1);
    world.desired.replicas = 3;
    while world.model.members.iter().all(|member| !member.learner) {
        world.step_by(Duration::from_secs(5));
    }
    world.delete_machine("server-2");
    golden("deleted-learner.golden", &story(&mut world));
}
