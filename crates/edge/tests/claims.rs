//! Claims: which host is chosen, and when one is free again.

use std::collections::{BTreeMap, HashSet};

use slipway_edge::{
    host::{
        api::{Claim, Hardware},
        release::{self, Claimant, Wipe},
    },
    machine::{
        api::{EdgeMachineSpec, Minimum},
        capacity,
        claim::{Asking, Candidate, decide},
    },
};

fn host(name: &str) -> Candidate {
    Candidate {
        name: name.to_owned(),
        is_ready: true,
        hardware: Some(Hardware {
            architecture: "x86_64".to_owned(),
            processors: 4,
            memory_mib: 8192,
            ..Hardware::default()
        }),
        ..Candidate::default()
    }
}

fn asking() -> Asking {
    Asking {
        name: "m-1".to_owned(),
        uid: "uid-1".to_owned(),
        ..Asking::default()
    }
}

fn claimed_by(name: &str) -> Claim {
    Claim {
        name: name.to_owned(),
        uid: format!("uid-of-{name}"),
        released: false,
    }
}

#[test]
fn the_smallest_host_that_is_large_enough_is_chosen() {
    let mut large = host("large");
    large.hardware.as_mut().expect("hardware").memory_mib = 65536;
    let hosts = [large, host("small")];
    let chosen = |asking: &Asking| decide(asking, &hosts).to_string();
    assert_eq!(
        chosen(&asking()),
        "choose host small: it is free and fits; 2 hosts do"
    );
    let demanding = Asking {
        minimum: Some(Minimum {
            memory_mib: Some(16384),
            ..Minimum::default()
        }),
        ..asking()
    };
    assert_eq!(
        chosen(&demanding),
        "choose host large: it is free and fits; 1 hosts do"
    );
}

#[test]
fn failure_domains_are_kept_and_spread_over() {
    let in_domain = |name: &str, domain: &str, neighbours| Candidate {
        failure_domain: Some(domain.to_owned()),
        neighbours,
        ..host(name)
    };
    let hosts = [in_domain("a", "north", 2), in_domain("b", "south", 0)];
    assert!(decide(&asking(), &hosts).to_string().starts_with("choose host b"));
    let bound = Asking {
        failure_domain: Some("north".to_owned()),
        ..asking()
    };
    assert!(decide(&bound, &hosts).to_string().starts_with("choose host a"));
}

#[test]
fn machines_that_ask_at_once_ask_for_different_hosts() {
    let hosts: Vec<Candidate> = (0..20).map(|number| host(&format!("h-{number:02}"))).collect();
    let chosen: HashSet<String> = (0..20)
        .map(|number| {
            let machine = Asking {
                uid: format!("uid-{number}"),
                ..asking()
            };
            decide(&machine, &hosts).to_string()
        })
        .collect();
    assert!(chosen.len() > 10, "{} different hosts", chosen.len());
}

#[test]
fn whoever_gets_no_host_is_told_what_keeps_each_from_it() {
    let demanding = Asking {
        minimum: Some(Minimum {
            processors: Some(8),
            ..Minimum::default()
        }),
        ..asking()
    };
    let none: [Candidate; 0] = [];
    assert_eq!(
        decide(&asking(), &none).to_string(),
        "wait NoHost: there is no EdgeHost in the namespace: register one"
    );
    assert_eq!(
        decide(&demanding, &[host("a"), host("b")]).to_string(),
        "wait NoHost: none of 2 hosts can be had: 2 × it has 4 processors and 8 are asked for"
    );
    let taken = Candidate {
        claim: Some(claimed_by("m-2")),
        ..host("a")
    };
    let away = Candidate {
        is_ready: false,
        ..host("b")
    };
    let in_maintenance = Candidate {
        maintenance: Some("new fan".to_owned()),
        ..host("c")
    };
    assert_eq!(
        decide(&asking(), &[taken, away, in_maintenance]).to_string(),
        "wait NoHost: none of 3 hosts can be had: 1 × it is claimed; 1 × it is in maintenance: new fan; 1 × its agent does not answer"
    );
}

#[test]
fn a_machine_that_has_run_never_goes_to_another_host() {
    let bound = Asking {
        chosen: Some("a".to_owned()),
        is_bound: true,
        ..asking()
    };
    assert_eq!(
        decide(&bound, &[host("b")]).to_string(),
        "host a is lost: there is no such EdgeHost"
    );
    let theirs = Candidate {
        claim: Some(claimed_by("m-2")),
        ..host("a")
    };
    assert_eq!(
        decide(&bound, &[theirs]).to_string(),
        "host a is lost: EdgeMachine m-2 has it"
    );
    // One that has not run yet chooses again.
    let unbound = Asking {
        is_bound: false,
        ..bound
    };
    assert_eq!(
        decide(&unbound, &[host("b")]).to_string(),
        "give up the choice of host a: there is no such EdgeHost"
    );
}

#[test]
fn a_host_is_free_only_when_it_was_wiped() {
    let claim = |released| Claim {
        released,
        ..claimed_by("m-1")
    };
    let told =
        |released, claimant, wipe: &Wipe| release::decide(Some(&claim(released)), claimant, wipe).to_string();
    assert_eq!(told(false, Claimant::Present, &Wipe::NotOrdered), "keep");
    assert_eq!(
        told(false, Claimant::NotSeen, &Wipe::NotOrdered),
        "look up the claimant"
    );
    assert_eq!(
        told(false, Claimant::Gone, &Wipe::NotOrdered),
        "release the claim: EdgeMachine m-1 is gone"
    );
    assert_eq!(
        told(true, Claimant::Gone, &Wipe::NotOrdered),
        "wipe the host: EdgeMachine m-1 has let go of it"
    );
    let failed = Wipe::Failed {
        attempt: 2,
        message: "the disk is read-only".to_owned(),
    };
    assert_eq!(
        told(true, Claimant::Present, &failed),
        "wipe the host (try 3): the last try failed: the disk is read-only"
    );
    assert_eq!(
        told(true, Claimant::Present, &Wipe::Unreachable("no route".to_owned())),
        "wait Unreachable: the host is wiped when it answers: no route"
    );
    assert_eq!(
        told(true, Claimant::Gone, &Wipe::Done),
        "free the host: nothing is left of the last machine"
    );
    assert_eq!(
        release::decide(None, Claimant::NotSeen, &Wipe::Done).to_string(),
        "keep"
    );
}

#[test]
fn a_template_promises_the_least_that_its_hosts_have() {
    let mut large = host("large");
    large.hardware = Some(Hardware {
        architecture: "x86_64".to_owned(),
        processors: 16,
        memory_mib: 4096,
        ..Hardware::default()
    });
    let status = capacity::of_template(&EdgeMachineSpec::default(), &[host("a"), large.clone()]);
    let expected: BTreeMap<String, String> = [
        ("cpu".to_owned(), "4".to_owned()),
        ("memory".to_owned(), "4096Mi".to_owned()),
    ]
    .into();
    assert_eq!(status.capacity, expected);
    assert_eq!(status.node_info.expect("one kind of host").architecture, "amd64");
    large.hardware.as_mut().expect("hardware").architecture = "aarch64".to_owned();
    let mixed = capacity::of_template(&EdgeMachineSpec::default(), &[host("a"), large]);
    assert_eq!(mixed.node_info, None, "of two kinds of hosts nothing is said");
    assert!(
        capacity::of_template(&EdgeMachineSpec::default(), &[])
            .capacity
            .is_empty()
    );
}
