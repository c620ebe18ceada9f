//! An EdgeMachine's life: what it waits for, what it does, what it says; and how it goes.

use std::fmt::Write as _;

use jiff::{SignedDuration, Timestamp};
use slipway_edge::{
    host::api::Claim,
    machine::{
        api::EdgeMachineStatus,
        claim::{Asking, Candidate},
        plan::{Action, AddressFacts, AddressOrder, Bootstrap, Facts, needs_confirmation, plan},
        status::status,
    },
};

use crate::golden::golden;

struct World {
    now: Timestamp,
    facts: Facts,
    status: EdgeMachineStatus,
    text: String,
}

impl World {
    fn new() -> Self {
        Self {
            now: "2026-11-18T02:00:00Z".parse().expect("a time"),
            facts: Facts {
                namespace: "default".to_owned(),
                asking: Asking {
                    name: "m-1".to_owned(),
                    uid: "uid-1".to_owned(),
                    ..Asking::default()
                },
                hosts: vec![Candidate {
                    name: "box-1".to_owned(),
                    is_ready: true,
                    failure_domain: Some("north".to_owned()),
                    addresses: vec!["192.0.2.7".to_owned()],
                    ..Candidate::default()
                }],
                is_confirmed: true,
                ..Facts::default()
            },
            status: EdgeMachineStatus::default(),
            text: String::new(),
        }
    }

    /// Plans, carries it out and says what the status says after it.
    fn step(&mut self, what: &str) {
        let planned = plan(&self.facts, self.now);
        for action in planned.actions() {
            match action {
                Action::Choose { host } => self.facts.asking.chosen = Some(host.clone()),
                Action::Drop { .. } => self.facts.asking.chosen = None,
                Action::Take { .. } => {
                    self.facts.hosts[0].claim = Some(Claim {
                        name: "m-1".to_owned(),
                        uid: "uid-1".to_owned(),
                        released: false,
                    });
                }
                Action::Return { .. } => {
                    if let Some(claim) = &mut self.facts.hosts[0].claim {
                        claim.released = true;
                    }
                }
                Action::WriteProviderId { id } => {
                    self.facts.provider_id = Some(id.to_string());
                    self.facts.asking.is_bound = true;
                }
                Action::OrderBootstrap { .. } => self.facts.bootstrap = Bootstrap::Running,
                Action::RecordBootstrap => self.facts.is_recorded = true,
                Action::BeFirst { .. } => {
                    if let Some(address) = &mut self.facts.address {
                        (address.first, address.first_is_there) = (Some("uid-1".to_owned()), true);
                    }
                }
                Action::OrderAddress { .. } => {
                    if let Some(address) = &mut self.facts.address {
                        address.order = AddressOrder::Accepted;
                    }
                }
            }
        }
        self.status = status(&self.status, &self.facts, &planned, Some(1), self.now);
        let told: Vec<String> = self
            .status
            .conditions
            .iter()
            .map(|condition| format!("{}={}({})", condition.type_, condition.status, condition.reason))
            .collect();
        let _ = writeln!(self.text, "# {what}\n{planned}{}\n", told.join(" "));
    }
}

#[test]
fn from_nothing_to_a_node_and_back() {
    let mut world = World::new();
    world.step("made");
    world.facts.is_owned = true;
    world.step("a Machine owns it");
    world.facts.is_cluster_provisioned = true;
    world.step("the Cluster's infrastructure is provisioned");
    world.facts.bootstrap_secret = Some("m-1".to_owned());
    world.step("there is bootstrap data");
    world.step("chosen");
    world.step("taken");
    world.step("running");
    world.facts.bootstrap = Bootstrap::Succeeded;
    world.step("the host has run it");
    assert_eq!(
        world.facts.provider_id.as_deref(),
        Some("edge://default/box-1/uid-1")
    );
    assert_eq!(world.status.initialization.provisioned, Some(true));
    assert_eq!(world.status.failure_domain.as_deref(), Some("north"));
    let addresses: Vec<&str> = world
        .status
        .addresses
        .iter()
        .map(|one| one.address.as_str())
        .collect();
    assert_eq!(addresses, ["box-1", "192.0.2.7"]);
    world.facts.asking.is_deleting = true;
    world.facts.deleted_at = Some(world.now);
    world.step("deleted");
    world.step("released");
    world.facts.hosts[0].claim = None;
    world.step("wiped");
    golden("machine.golden", &world.text);
}

#[test]
fn a_host_that_is_never_wiped_does_not_keep_the_machine_but_stays_unclaimable() {
    let mut world = World::new();
    world.facts.asking.is_deleting = true;
    world.facts.deleted_at = Some(world.now);
    world.facts.hosts[0].claim = Some(Claim {
        name: "m-1".to_owned(),
        uid: "uid-1".to_owned(),
        released: true,
    });
    assert_eq!(
        plan(&world.facts, world.now).to_string(),
        "1. wait Wiping until 2026-11-18T02:10:00Z: host box-1 is being wiped\n"
    );
    let later = world.now + SignedDuration::from_mins(10);
    assert_eq!(
        plan(&world.facts, later).to_string(),
        "1. release finalizer: host box-1 is being wiped for longer than 10 minutes; it cannot be claimed before it is\n"
    );
    // The next machine does not get it.
    let mut next = World::new();
    next.facts.asking.uid = "uid-2".to_owned();
    next.facts.is_owned = true;
    next.facts.is_cluster_provisioned = true;
    next.facts.bootstrap_secret = Some("m-2".to_owned());
    next.facts.hosts = world.facts.hosts;
    assert_eq!(
        plan(&next.facts, later).to_string(),
        "1. wait NoHost: none of 1 hosts can be had: 1 × it is being wiped\n"
    );
}

#[test]
fn bootstrap_data_is_given_after_a_read_past_the_watch_and_run_once() {
    let mut world = World::new();
    world.facts.is_owned = true;
    world.facts.is_cluster_provisioned = true;
    world.facts.bootstrap_secret = Some("m-1".to_owned());
    for what in ["chosen", "taken"] {
        world.step(what);
    }
    world.facts.is_confirmed = false;
    assert!(needs_confirmation(&world.facts));
    world.facts.is_confirmed = true;
    assert!(!needs_confirmation(&world.facts));
    world.step("ordered");
    world.facts.bootstrap = Bootstrap::Interrupted;
    let planned = plan(&world.facts, world.now).to_string();
    assert!(
        planned.contains("give host box-1 the bootstrap data of Secret m-1: the agent was restarted"),
        "{planned}"
    );
    world.facts.bootstrap = Bootstrap::Failed("install.sh: exit status 1".to_owned());
    assert_eq!(
        plan(&world.facts, world.now).to_string(),
        "1. wait BootstrapFailed: the bootstrap data failed on host box-1: install.sh: exit status 1\n"
    );
    // A host that another machine has is not ours any more, and that is looked up before it is said.
    world.facts.hosts[0].claim = Some(Claim {
        name: "m-2".to_owned(),
        uid: "uid-2".to_owned(),
        released: false,
    });
    world.facts.is_confirmed = false;
    assert!(needs_confirmation(&world.facts));
    assert_eq!(
        plan(&world.facts, world.now).to_string(),
        "1. wait HostLost: host box-1 is lost: EdgeMachine m-2 has it\n"
    );
}

/// What a server does about the address of its cluster before it is made one.
#[test]
fn one_server_is_the_first_to_hold_the_address_and_nobody_is_bootstrapped_before_it_takes_part() {
    let server = |first: Option<&str>, is_there: bool, is_initialized: bool, order: AddressOrder| {
        let mut world = World::new();
        world.facts.is_owned = true;
        world.facts.is_cluster_provisioned = true;
        world.facts.is_initialized = is_initialized;
        world.facts.bootstrap_secret = Some("data".to_owned());
        world.facts.provider_id = Some("edge://default/box-1/uid-1".to_owned());
        world.facts.asking.is_bound = true;
        world.facts.asking.chosen = Some("box-1".to_owned());
        world.facts.hosts[0].claim = Some(Claim {
            name: "m-1".to_owned(),
            uid: "uid-1".to_owned(),
            released: false,
        });
        world.facts.address = Some(AddressFacts {
            cluster: "north".to_owned(),
            first: first.map(str::to_owned),
            first_is_there: is_there,
            order,
        });
        let plan = plan(&world.facts, world.now);
        let actions: Vec<String> = plan.actions().map(ToString::to_string).collect();
        let waits: Vec<String> = plan.waits().map(|(wait, _)| wait.reason.clone()).collect();
        (actions, waits)
    };
    let none: Vec<String> = Vec::new();
    let bootstrap = "give host box-1 the bootstrap data of Secret data".to_owned();
    let in_turn = "let host box-1 hold the address of its cluster in its turn".to_owned();
    let first = "let host box-1 hold the address of its cluster, as the first".to_owned();
    let noted = "note in EdgeCluster north that this server is the first to hold its address".to_owned();
    let not_ordered = AddressOrder::NotOrdered;
    // Nobody was first yet, or whoever was has left nothing behind.
    for (known, is_there) in [(None, false), (Some("uid-0"), false)] {
        let planned = server(known, is_there, false, not_ordered.clone());
        assert_eq!(planned, (vec![noted.clone()], none.clone()));
    }
    let planned = server(Some("uid-1"), true, false, not_ordered.clone());
    assert_eq!(planned, (vec![first, bootstrap.clone()], none.clone()));
    // Another one is, or may still be; or the control plane has its lease.
    for (known, is_there, is_initialized) in [
        (Some("uid-0"), true, false),
        (Some("uid-0"), false, true),
        (None, false, true),
    ] {
        let planned = server(known, is_there, is_initialized, not_ordered.clone());
        assert_eq!(planned, (vec![in_turn.clone(), bootstrap.clone()], none.clone()));
    }
    let planned = server(Some("uid-0"), true, false, AddressOrder::Accepted);
    assert_eq!(planned, (vec![bootstrap], none.clone()));
    for (order, reason) in [
        (AddressOrder::Failed("no".to_owned()), "AddressRefused"),
        (AddressOrder::Unreachable("no".to_owned()), "HostUnreachable"),
    ] {
        let planned = server(Some("uid-0"), true, false, order);
        assert_eq!(planned, (none.clone(), vec![reason.to_owned()]));
    }
}
