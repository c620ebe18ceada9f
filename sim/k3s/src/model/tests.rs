//! The model by itself.

use super::*;

fn three() -> Model {
    let mut model = Model::new(Timestamp::UNIX_EPOCH);
    model.initialize("a", "v1.33.1+k3s1");
    for host in ["b", "c"] {
        model.advance(TICK);
        assert!(model.join(host, "v1.34.1+k3s1"));
        assert_eq!(model.nodes[host].voter, None);
        model.advance(TICK);
    }
    model
}

#[test]
fn learners_are_promoted_on_the_leaders_tick() {
    let mut model = three();
    assert_eq!((model.voters(), model.healthy_voters()), (3, 3));
    assert!(model.join("d", "v1.34.1+k3s1"));
    assert_eq!(model.voters(), 3, "a learner does not vote");
    assert!(!model.join("e", "v1.34.1+k3s1"), "one learner at a time");
    model.advance(TICK);
    assert_eq!(model.voters(), 4);
    let called_voter = |model: &Model| model.nodes["d"].voter.as_ref().is_some_and(|voter| voter.status);
    assert!(
        !called_voter(&model),
        "the tick that promotes it calls it a learner"
    );
    model.advance(TICK);
    assert!(called_voter(&model));
}

/// However soon after its join the tick comes, from one second on.
#[test]
fn a_learner_is_promoted_by_the_first_tick_it_has_caught_up_for() {
    for before in 0..15 {
        let mut model = three();
        model.advance(TICK.saturating_sub(Duration::from_secs(before)));
        assert!(model.join("d", "v1.34.1+k3s1"));
        model.advance(Duration::from_secs(before));
        assert_eq!(model.voters(), if before >= 1 { 4 } else { 3 }, "{before} s");
        model.advance(TICK);
        assert_eq!(model.voters(), 4);
    }
}

#[test]
fn a_learner_that_makes_no_progress_is_evicted() {
    let mut model = three();
    assert!(model.join_and_die("d", "v1.34.1+k3s1"));
    model.advance(LEARNER_STALL);
    assert_eq!(model.members.len(), 4);
    model.advance(TICK * 2);
    assert_eq!(model.members.len(), 3);
}

/// A start of k3s that finds its member removed waits as its unit says: longer where it has been up.
#[test]
fn a_server_that_has_voted_stays_out_longer_than_a_learner() {
    let wait = RejoinWait {
        learner: Duration::from_mins(10),
        voter: Duration::from_hours(24),
    };
    let has = |model: &Model, host: &str| model.members.iter().any(|member| member.host == host);
    let mut model = three();
    model.delay_rejoin("c", wait);
    model.advance(TICK * 2);
    let node = model.nodes.get_mut("c").expect("it has registered");
    node.annotations.insert(REMOVE_ANNOTATION.into(), "true".into());
    model.advance(TICK);
    assert!(!has(&model, "c"), "the voter is removed");

    assert!(model.join("d", "v1.34.1+k3s1"));
    model.delay_rejoin("d", wait);
    model.kill("d");
    model.advance(LEARNER_STALL + TICK * 2);
    assert!(!has(&model, "d"), "the learner is given up");
    model.revive("d");
    model.advance(Duration::from_mins(11));
    assert!(has(&model, "d"), "the learner is back");

    model.advance(Duration::from_hours(23));
    assert!(!has(&model, "c"), "the voter stays out");
    model.advance(Duration::from_hours(1));
    assert!(has(&model, "c"), "not for ever");
}

#[test]
fn a_requested_removal_leaves_its_trace_and_the_last_voter_stays() {
    let mut model = three();
    let member = model.nodes["c"].annotations[MEMBER_ANNOTATION].clone();
    model.annotate("c", REMOVE_ANNOTATION, Some("true"));
    let annotations = &model.nodes["c"].annotations;
    assert_eq!(annotations[REMOVED_ANNOTATION], member);
    assert!(!annotations.contains_key(MEMBER_ANNOTATION) && !annotations.contains_key(REMOVE_ANNOTATION));
    model.annotate("b", REMOVE_ANNOTATION, Some("true"));
    assert_eq!(model.voters(), 1);
    model.annotate("a", REMOVE_ANNOTATION, Some("true"));
    assert_eq!(model.voters(), 1);
    assert!(
        !model.nodes["a"].annotations.contains_key(REMOVE_ANNOTATION),
        "the request is taken back"
    );
}

#[test]
fn a_node_that_does_not_name_its_member_is_kept_until_it_does() {
    let mut model = three();
    model.kill("c");
    let member = model.nodes["c"].annotations[MEMBER_ANNOTATION].clone();
    model.annotate("c", MEMBER_ANNOTATION, None);
    model.delete_node("c");
    model.advance(TICK * 4);
    assert!(model.nodes["c"].deleting);
    assert_eq!(model.voters(), 3, "k3s cannot tell whose member it is");
    model.annotate("c", MEMBER_ANNOTATION, Some(&member));
    model.advance(TICK);
    assert!(!model.nodes.contains_key("c"));
    assert_eq!(model.voters(), 2);
}

#[test]
fn without_quorum_nothing_is_written() {
    let mut model = three();
    model.kill("a");
    model.kill("b");
    let before: Vec<_> = model
        .nodes
        .values()
        .map(|node| (node.ready, node.voter.clone()))
        .collect();
    model.advance(TICK * 8);
    let after: Vec<_> = model
        .nodes
        .values()
        .map(|node| (node.ready, node.voter.clone()))
        .collect();
    assert_eq!(before, after);
    assert_eq!(model.leader, None);
    model.revive("b");
    model.advance(TICK * 4);
    assert!(!model.nodes["a"].ready);
    assert!(model.leader.is_some());
}

#[test]
fn the_older_role_label_ends_with_1_33() {
    let model = three();
    assert!(
        model.nodes["a"]
            .labels
            .contains_key("node-role.kubernetes.io/master")
    );
    assert!(
        !model.nodes["b"]
            .labels
            .contains_key("node-role.kubernetes.io/master")
    );
}
