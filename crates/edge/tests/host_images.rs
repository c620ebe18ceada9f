//! HostImages (E-51): parallelism, windows, pause, edits of the spec, new hosts, two jobs on one host, and failures by host.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use proptest::prelude::*;
use slipway_edge::{
    api::Image,
    host_image::{
        api::{CachedImage, HostImageSpec},
        plan::{Action, CacheFacts, Decision, Facts, Fetch, HostFacts, decide, key},
    },
    node_upgrade::facts::OrderState,
    window::Window,
};

use crate::golden::golden;

fn image(number: u8) -> CachedImage {
    CachedImage {
        image: Image {
            reference: format!("registry.example.com/image-{number}"),
            digest: format!("sha256:{number:064x}"),
        },
        ..CachedImage::default()
    }
}

fn start() -> Timestamp {
    "2026-11-18T12:00:00Z".parse().expect("a time")
}

/// One host, with the pins of every job on it.
#[derive(Default)]
struct Host {
    is_away: bool,
    is_selected: bool,
    /// Digests by job.
    pins: BTreeMap<usize, BTreeSet<String>>,
    orders: BTreeMap<usize, BTreeMap<String, (CachedImage, Fetch)>>,
    /// Fetches of these fail, for now or for good.
    fails: BTreeMap<String, OrderState>,
}

struct World {
    now: Timestamp,
    specs: Vec<HostImageSpec>,
    is_deleting: Vec<bool>,
    hosts: BTreeMap<String, Host>,
}

impl World {
    fn new(hosts: usize, specs: Vec<HostImageSpec>) -> Self {
        let is_deleting = vec![false; specs.len()];
        let mut world = Self {
            now: start(),
            specs,
            is_deleting,
            hosts: BTreeMap::new(),
        };
        (0..hosts).for_each(|number| world.add(&format!("box-{number}")));
        world
    }

    fn add(&mut self, name: &str) {
        let host = Host {
            is_selected: true,
            ..Host::default()
        };
        self.hosts.insert(name.to_owned(), host);
    }

    fn host(&mut self, name: &str) -> &mut Host {
        self.hosts.get_mut(name).expect("a host")
    }

    fn decide(&self, job: usize) -> Decision {
        let hosts = self.hosts.iter().map(|(name, host)| HostFacts {
            name: name.clone(),
            is_selected: host.is_selected,
            cache: (!host.is_away).then(|| CacheFacts {
                pinned: host.pins.get(&job).into_iter().flatten().cloned().collect(),
                orders: host
                    .orders
                    .get(&job)
                    .into_iter()
                    .flatten()
                    .map(|(key, (_, fetch))| (key.clone(), fetch.clone()))
                    .collect(),
            }),
        });
        let facts = Facts {
            spec: self.specs[job].clone(),
            is_deleting: self.is_deleting[job],
            hosts: hosts.collect(),
        };
        decide(&facts, self.now)
    }

    fn step(&mut self, job: usize) -> Decision {
        let decision = self.decide(job);
        for entry in &decision.plan.entries {
            match entry.action() {
                Some(Action::Fetch { host, image, attempt }) => {
                    let fetch = Fetch {
                        attempt: *attempt,
                        state: OrderState::Running,
                        message: String::new(),
                        ended_at: None,
                    };
                    let orders = self.host(host).orders.entry(job).or_default();
                    orders.insert(key(image), (image.clone(), fetch));
                }
                Some(Action::Unpin { host, digest }) => {
                    self.host(host).pins.entry(job).or_default().remove(digest);
                }
                None => {}
            }
        }
        decision
    }

    /// Every fetch that runs comes to its end.
    fn pass(&mut self, minutes: i64) {
        self.now += SignedDuration::from_mins(minutes);
        let now = self.now;
        for host in self.hosts.values_mut().filter(|host| !host.is_away) {
            for (job, orders) in &mut host.orders {
                for (image, fetch) in orders.values_mut() {
                    if fetch.state != OrderState::Running {
                        continue;
                    }
                    fetch.ended_at = Some(now);
                    match host.fails.get(&image.image.digest) {
                        Some(state) => {
                            fetch.state = *state;
                            "the registry says no".clone_into(&mut fetch.message);
                        }
                        None => {
                            fetch.state = OrderState::Succeeded;
                            host.pins
                                .entry(*job)
                                .or_default()
                                .insert(image.image.digest.clone());
                        }
                    }
                }
            }
        }
    }

    fn running(&self, job: usize) -> usize {
        let is_running = |host: &&Host| {
            host.orders.get(&job).is_some_and(|orders| {
                orders
                    .values()
                    .any(|(_, fetch)| fetch.state == OrderState::Running)
            })
        };
        self.hosts.values().filter(is_running).count()
    }

    fn story(&mut self, rounds: usize) -> String {
        let mut text = String::new();
        for _ in 0..rounds {
            let _ = writeln!(text, "{}", self.step(0));
            self.pass(1);
        }
        text
    }
}

fn job(images: &[u8], parallelism: i32) -> HostImageSpec {
    HostImageSpec {
        images: images.iter().map(|number| image(*number)).collect(),
        parallelism: Some(IntOrString::Int(parallelism)),
        ..HostImageSpec::default()
    }
}

#[test]
fn e51_images_come_to_hosts_a_few_at_a_time() {
    let mut world = World::new(3, vec![job(&[1, 2], 2)]);
    golden("host-image.golden", &world.story(5));
    assert_eq!(world.decide(0).status.complete, 3);
}

#[test]
fn e51_pause_and_windows_hold_up_what_has_not_begun() {
    let mut world = World::new(3, vec![job(&[1], 1)]);
    world.step(0);
    for spec in [
        HostImageSpec {
            paused: true,
            ..job(&[1], 1)
        },
        job(&[1], 0),
        HostImageSpec {
            windows: vec![Window {
                start: "02:00".to_owned(),
                minutes: 60,
                ..Window::default()
            }],
            ..job(&[1], 3)
        },
    ] {
        world.specs[0] = spec;
        let decision = world.step(0);
        assert_eq!(decision.plan.actions().count(), 0);
        assert_eq!(decision.status.running, 1, "what has begun goes on");
    }
    world.pass(1);
    assert_eq!(world.decide(0).status.complete, 1);
    let (wait, _) = world
        .decide(0)
        .plan
        .waits()
        .next()
        .map(|(wait, why)| (wait.clone(), why.to_owned()))
        .expect("a wait");
    assert_eq!(wait.until, "2026-11-19T02:00:00Z".parse().ok());
}

#[test]
fn e51_edits_are_honoured_and_new_hosts_are_included() {
    let mut world = World::new(2, vec![job(&[1], 2)]);
    world.story(2);
    assert_eq!(world.decide(0).status.complete, 2);
    world.add("box-9");
    assert_eq!(
        world.step(0).to_string(),
        "3 hosts: 2 complete, 1 running, 0 failed\n1. fetch 000000000000 on box-9: the host does not have it\n"
            .replace("000000000000", &image(1).image.short())
    );
    world.pass(1);
    // Another image in the place of the first: the first is let go of, the other fetched.
    world.specs[0] = job(&[2], 3);
    world.host("box-1").is_selected = false;
    world.step(0);
    world.pass(1);
    world.step(0);
    for (name, host) in &world.hosts {
        let pins: Vec<&String> = host.pins[&0].iter().collect();
        let expected = if name == "box-1" {
            vec![]
        } else {
            vec![image(2).image.digest]
        };
        assert_eq!(pins, expected.iter().collect::<Vec<_>>(), "{name}");
    }
    world.is_deleting[0] = true;
    world.step(0);
    assert!(world.hosts.values().all(|host| host.pins[&0].is_empty()));
}

/// Nothing but the selection changes: the image is on the list as before.
#[test]
fn e51_a_host_that_is_not_selected_any_more_lets_go_of_an_image_that_is_still_on_the_list() {
    let mut world = World::new(2, vec![job(&[1], 2)]);
    world.story(2);
    world.host("box-1").is_selected = false;
    let decision = world.step(0);
    let told = format!(
        "1 hosts: 1 complete, 0 running, 0 failed\n1. let go of {} on box-1: the host is not selected any more\n",
        image(1).image.short()
    );
    assert_eq!(decision.to_string(), told);
    assert!(world.hosts["box-1"].pins[&0].is_empty() && world.hosts["box-0"].pins[&0].len() == 1);
}

/// With room for every host: nothing else holds it up.
#[test]
fn e51_a_job_that_is_paused_begins_nothing() {
    let paused = HostImageSpec {
        paused: true,
        ..job(&[1], 3)
    };
    let mut world = World::new(3, vec![paused]);
    for _ in 0..5 {
        let decision = world.step(0);
        assert_eq!(decision.plan.actions().count(), 0);
        let told = decision
            .plan
            .waits()
            .next()
            .map(|(wait, why)| (wait.reason.as_str(), why));
        assert_eq!(told, Some(("Paused", "3 hosts wait: the HostImage is paused")));
        world.pass(1);
    }
    world.specs[0].paused = false;
    world.story(3);
    assert_eq!(world.decide(0).status.complete, 3);
}

#[test]
fn e51_two_jobs_on_one_host_leave_each_others_images_alone() {
    let mut world = World::new(1, vec![job(&[1, 2], 1), job(&[2, 3], 1)]);
    for _ in 0..4 {
        world.step(0);
        world.step(1);
        world.pass(1);
    }
    world.specs[0] = job(&[1], 1);
    world.step(0);
    let pins = &world.hosts["box-0"].pins;
    assert_eq!(pins[&0], [image(1).image.digest].into());
    assert_eq!(pins[&1], [image(2).image.digest, image(3).image.digest].into());
}

#[test]
fn e51_failures_are_told_by_host_and_do_not_hold_up_the_others() {
    let mut world = World::new(3, vec![job(&[1], 1)]);
    let digest = image(1).image.digest;
    world
        .host("box-0")
        .fails
        .insert(digest.clone(), OrderState::FailedForGood);
    world
        .host("box-1")
        .fails
        .insert(digest.clone(), OrderState::FailedForNow);
    world.host("box-2").is_away = true;
    world.story(4);
    let status = world.decide(0).status;
    let told: Vec<&str> = status
        .failures
        .iter()
        .map(|failure| failure.host.as_str())
        .collect();
    assert_eq!((told, status.failed), (vec!["box-0", "box-1"], 1));
    assert_eq!(status.failures[0].message, "the registry says no");
    // One of them passes, and a host that was away is there again.
    world.host("box-1").fails.clear();
    world.host("box-2").is_away = false;
    world.story(40);
    assert_eq!(world.decide(0).status.complete, 2);
    // What failed for good is tried again when the spec says something else about the image, and not before.
    let attempts = |world: &World| {
        world.hosts["box-0"].orders[&0]
            .values()
            .map(|(_, fetch)| fetch.attempt)
            .max()
    };
    assert_eq!(attempts(&world), Some(1));
    world.host("box-0").fails.clear();
    world.specs[0].images[0].image.reference = "mirror.example.com/image-1".to_owned();
    world.story(2);
    assert_eq!(world.decide(0).status.complete, 3);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn e51_never_more_hosts_at_once_than_allowed_and_all_in_the_end(
        hosts in 1..8_usize,
        most in 1..4_i32,
        events in proptest::collection::vec((0..6_u8, 0..8_usize), 0..40),
    ) {
        let mut world = World::new(hosts, vec![job(&[1, 2], most)]);
        for (event, number) in events {
            let name = format!("box-{}", number % hosts);
            match event {
                0 => world.host(&name).is_away = true,
                1 => world.host(&name).is_away = false,
                2 => { world.host(&name).fails.insert(image(1).image.digest, OrderState::FailedForNow); }
                3 => world.host(&name).fails.clear(),
                4 => world.pass(1),
                _ => { let selected = world.host(&name).is_selected; world.host(&name).is_selected = !selected; }
            }
            let before = world.running(0);
            world.step(0);
            // Hosts that went away in the middle may still be at it; nothing is begun beyond what is allowed of those that are seen.
            let away = world.hosts.values().filter(|host| host.is_away || !host.is_selected).count();
            prop_assert!(world.running(0) <= (most as usize).max(before) + away, "{} run", world.running(0));
        }
        for host in world.hosts.values_mut() {
            host.is_away = false;
            host.is_selected = true;
            host.fails.clear();
        }
        for _ in 0..200 {
            world.pass(1);
            world.step(0);
        }
        prop_assert_eq!(world.decide(0).status.complete, hosts);
        prop_assert_eq!(world.decide(0).plan.actions().count(), 0);
    }
}

/// One host with a job's orders: of each image, its last order and whether the host has it.
fn asked(orders: &[(u8, OrderState, u32, i64)], pinned: &[u8]) -> HostFacts {
    let fetch = |(number, state, attempt, minutes_ago): &(u8, OrderState, u32, i64)| {
        let fetch = Fetch {
            attempt: *attempt,
            state: *state,
            message: format!("image {number} failed"),
            ended_at: Some(start() - SignedDuration::from_mins(*minutes_ago)),
        };
        (key(&image(*number)), fetch)
    };
    HostFacts {
        name: "box".to_owned(),
        is_selected: true,
        cache: Some(CacheFacts {
            pinned: pinned.iter().map(|number| image(*number).image.digest).collect(),
            orders: orders.iter().map(fetch).collect(),
        }),
    }
}

fn decided(images: &[u8], hosts: Vec<HostFacts>) -> Decision {
    let facts = Facts {
        spec: job(images, 4),
        is_deleting: false,
        hosts,
    };
    decide(&facts, start())
}

/// Several things wait for their time: the first of them is waited for.
#[test]
fn e51_what_failed_is_tried_again_when_its_own_time_has_come() {
    let until = |decision: &Decision| {
        let wait = decision.plan.waits().next().map(|(wait, _)| wait.until);
        wait.flatten().map(|time| time.duration_since(start()).as_secs())
    };
    let now = OrderState::FailedForNow;
    // The first try waits for half a minute, the fifth for eight.
    let on_one_host = decided(&[1, 2], vec![asked(&[(1, now, 5, 1), (2, now, 1, 0)], &[])]);
    assert_eq!(until(&on_one_host), Some(30));
    let on_two = decided(
        &[1],
        vec![asked(&[(1, now, 5, 1)], &[]), asked(&[(1, now, 1, 0)], &[])],
    );
    assert_eq!(until(&on_two), Some(30));
    let two_the_other_way = decided(
        &[1],
        vec![asked(&[(1, now, 1, 0)], &[]), asked(&[(1, now, 5, 1)], &[])],
    );
    assert_eq!(until(&two_the_other_way), Some(30));
}

/// An image that can never be had holds up neither the others nor the count of what is wrong.
#[test]
fn e51_what_can_never_be_had_does_not_hold_up_the_other_images() {
    let good = OrderState::FailedForGood;
    let decision = decided(&[1, 2], vec![asked(&[(1, good, 1, 5)], &[])]);
    let fetched: Vec<String> = decision.plan.actions().map(ToString::to_string).collect();
    assert_eq!(fetched, [format!("fetch {} on box", image(2).image.short())]);
    assert_eq!(decision.status.failures.len(), 1);
    let ended = decided(&[1, 2], vec![asked(&[(1, good, 1, 5)], &[2])]);
    assert_eq!((ended.status.failed, ended.plan.actions().count()), (1, 0));
    // The host has it by now, whatever came of an order.
    let had = decided(&[1], vec![asked(&[(1, OrderState::FailedForNow, 1, 0)], &[1])]);
    assert_eq!((had.status.complete, had.status.failures.len()), (1, 0));
}

/// The same order goes on after the agent was restarted; what was taken away is another one.
#[test]
fn e51_an_order_that_was_interrupted_keeps_its_number() {
    let attempt = |state| {
        let decision = decided(&[1], vec![asked(&[(1, state, 3, 5)], &[])]);
        decision.plan.actions().find_map(|action| match action {
            Action::Fetch { attempt, .. } => Some(*attempt),
            Action::Unpin { .. } => None,
        })
    };
    assert_eq!(attempt(OrderState::Interrupted), Some(3));
    assert_eq!(attempt(OrderState::Succeeded), Some(4));
    assert_eq!(attempt(OrderState::FailedForNow), Some(4));
    assert_eq!(attempt(OrderState::Running), None);
}
