//! The judge itself (see `truth`): what it calls unsafe, and what not.

use std::time::Duration;

use slipway_k3s::control_plane::plan::Action;
use slipway_k3s_sim::model;

use super::{truth::Cause, world::World};

/// A plane in which some servers have lost their power and others were let go and run on for a minute, as voters.
fn plane(servers: usize, lost: &[&str], let_go: &[&str]) -> World {
    let mut world = World::settled(servers);
    world.counts_verdicts = true;
    world.model.timing.shutdown = Duration::from_mins(1);
    for host in let_go {
        world.delete_machine(host);
        world.model.shut_down(host);
    }
    for host in lost {
        world.fault(|model| model.kill(host));
    }
    world
}

/// Whether the judge calls the removal of a server's member unsafe by our doing.
fn is_unsafe(world: &mut World, host: &str) -> bool {
    let member = world.model.nodes[host].annotations[model::MEMBER_ANNOTATION].clone();
    let action = Action::RemoveOrphan {
        member,
        machine: Some(host.to_owned()),
        address: world.model.hosts[host].address.clone(),
    };
    let before = world.verdicts.unsafe_writes(Cause::Ours);
    world.judge_write(&action, None);
    world.verdicts.unsafe_writes(Cause::Ours) > before
}

/// S-36: the member of a host that was let go and joined again leaves, also while another server is lost.
#[test]
fn a_host_that_was_let_go_may_leave_while_another_is_lost() {
    assert!(!is_unsafe(
        &mut plane(5, &["server-5"], &["server-3"]),
        "server-3"
    ));
}

/// S-36: that is what keeps quorum where the number of voters is even.
#[test]
fn a_host_that_was_let_go_takes_quorum_along_unless_it_leaves() {
    for removed in [false, true] {
        let mut world = plane(5, &[], &["server-3"]);
        let remove = |world: &mut World, host: &str| {
            world.model.annotate(host, model::REMOVE_ANNOTATION, Some("true"));
        };
        remove(&mut world, "server-5");
        world.fault(|model| model.kill("server-4"));
        assert_eq!((world.model.voters(), world.model.healthy_voters()), (4, 3));
        if removed {
            assert!(!is_unsafe(&mut world, "server-3"));
            remove(&mut world, "server-3");
        }
        world.model.destroy("server-3");
        assert_eq!(world.model.has_quorum(), removed);
    }
}

/// S-1: a server that runs on may not be taken while another is lost, deleted or not.
#[test]
fn a_living_server_may_not_be_taken_while_another_is_lost() {
    let mut world = plane(5, &["server-5"], &[]);
    assert!(is_unsafe(&mut world, "server-3"));
    world.delete_machine("server-3");
    assert!(is_unsafe(&mut world, "server-3"));
}

/// S-1: nor while one that was let go still votes.
#[test]
fn a_living_server_may_not_be_taken_while_another_goes() {
    assert!(is_unsafe(&mut plane(5, &[], &["server-3"]), "server-2"));
    assert!(is_unsafe(&mut plane(5, &["server-5"], &["server-3"]), "server-2"));
}

/// S-1: of whatever host a member is, enough have to be left.
#[test]
fn a_host_that_was_let_go_may_not_leave_too_few_behind() {
    assert!(is_unsafe(&mut plane(3, &["server-1"], &["server-2"]), "server-2"));
    let two_gone = &mut plane(5, &["server-4", "server-5"], &["server-3"]);
    assert!(is_unsafe(two_gone, "server-3"));
}

/// S-36: k3s on a host of another provider that was let go joins again, and is a voter when it is seen, at whatever moment of the
/// leader's tick; a server is lost meanwhile. The host's member leaves, and quorum is kept.
#[test]
fn a_voter_on_its_way_out_is_removed_while_another_is_lost() {
    let mut seen_as_voter = 0;
    for phase in 0..15 {
        let mut world = World::taken_over(5);
        world.model.timing.shutdown = Duration::from_mins(1);
        world.step_by(Duration::from_secs(phase + 1));
        world.delete_machine("server-3");
        while world.machines["server-3"].hooks.ours {
            world.step_by(Duration::from_secs(1));
        }
        world.fault(|model| model.kill("server-5"));
        let from = world.log.len();
        while world.machines.contains_key("server-3") {
            world.step_by(Duration::from_secs(5));
            assert!(world.model.has_quorum(), "{}", world.log.join("\n"));
        }
        seen_as_voter += world.log[from..]
            .iter()
            .filter(|line| line.contains("RemoveOrphan { member: \"server-3-") && line.ends_with("[4/5]"))
            .count();
        world.settle();
        assert!(world.is_settled(), "{}", world.log.join("\n"));
    }
    assert!(seen_as_voter > 0, "it is promoted before it is seen");
}
