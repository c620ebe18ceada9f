//! HostImages in their world (E-51): hosts that fetch, come later, are away, and cannot use an image, and faults at calls to every side.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use serde_json::{Value, json};
use slipway_apiserver_sim::{Apiserver, faults::Faults};
use slipway_edge::{
    api::{GROUP, VERSION},
    provider,
};
use slipway_kit::{
    journey::{Journey, Surroundings},
    objects::{condition, create, delete, find, holds, merge, of_kind},
    sweep::{Extent, World},
};
use slipway_runtime::{Clock, controller::Registration};

use crate::simulated_hosts::{HostStates, NEW, OLD, SimulatedHosts};

pub struct Caching {
    hosts: SimulatedHosts,
}

impl Surroundings for Caching {
    type State = HostStates;

    fn new(server: &Apiserver, clock: Clock) -> Self {
        let hosts =
            SimulatedHosts::in_world(server, clock, &["box-1", "box-2", "box-3"].map(|name| (name, 2)));
        Self { hosts }
    }

    fn resume(_: &Apiserver, clock: Clock, state: &Self::State) -> Self {
        let hosts = SimulatedHosts::resumed(clock, state);
        Self { hosts }
    }

    fn state(&self) -> Self::State {
        self.hosts.state()
    }

    fn controllers(self: &Arc<Self>, faults: &Faults) -> Vec<Registration> {
        provider::infrastructure(Arc::new(self.hosts.through(faults))).controllers
    }

    fn play(self: &Arc<Self>) -> BoxFuture<'static, ()> {
        futures::future::pending().boxed()
    }

    fn invariants(&self, objects: &[Value]) -> Result<(), String> {
        let hosts = self.hosts.hosts.lock();
        for job in of_kind(objects, "HostImage") {
            let uid = job["metadata"]["uid"].as_str().unwrap_or_default();
            let busy = hosts.values().filter(|host| host.fetches(uid)).count();
            let most = job["spec"]["parallelism"].as_u64().unwrap_or(1);
            if busy as u64 > most {
                return Err(format!("{busy} hosts fetch at once, and {most} may"));
            }
        }
        Ok(())
    }

    fn end_state(&self, objects: Vec<Value>) -> Value {
        let jobs: Vec<Value> = of_kind(&objects, "HostImage")
            .map(|job| {
                let status = &job["status"];
                let ready = &condition(job, "Ready")["reason"];
                json!([
                    job["metadata"]["name"],
                    status["hosts"],
                    status["complete"],
                    status["failures"],
                    ready
                ])
            })
            .collect();
        let hosts = self.hosts.hosts.lock();
        let pins: Vec<Value> = hosts
            .iter()
            .flat_map(|(name, host)| {
                let pinned = host.images.iter().filter(|(_, owners)| !owners.is_empty());
                pinned.map(move |(digest, owners)| json!([name, digest, owners.len()]))
            })
            .collect();
        json!({"jobs": jobs, "pins": pins})
    }
}

async fn edge_host(world: &World, name: &str) {
    let host = json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "EdgeHost",
        "metadata": {"name": name, "labels": {"site": "north"}}, "spec": {}});
    create(&world.server, &host).await;
    world
        .until("the host is ready", |objects| {
            find(objects, "EdgeHost", name).is_some_and(|host| holds(host, "Ready"))
        })
        .await;
}

async fn job(world: &World, name: &str, digests: &[&str]) {
    let images: Vec<Value> = digests
        .iter()
        .map(|digest| json!({"reference": "registry.example.com/app", "digest": digest}))
        .collect();
    let job = json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "HostImage", "metadata": {"name": name},
        "spec": {"images": images, "hostSelector": {"matchLabels": {"site": "north"}}}});
    create(&world.server, &job).await;
}

async fn complete(world: &World, name: &str, hosts: u64) {
    world
        .until("the job is complete", |objects| {
            find(objects, "HostImage", name)
                .is_some_and(|job| job["status"]["complete"] == hosts && holds(job, "Ready"))
        })
        .await;
}

/// How many hosts keep this image, for how many owners altogether.
fn pins(life: &Caching, digest: &str) -> (usize, usize) {
    let state = life.state();
    let owners = state.values().filter_map(|host| host.images.get(digest));
    let owners: Vec<usize> = owners
        .map(std::collections::BTreeSet::len)
        .filter(|pins| *pins > 0)
        .collect();
    (owners.len(), owners.iter().sum())
}

async fn gone(world: &World, name: &str) {
    let found = world
        .server
        .look(|objects| find(objects, "HostImage", name).cloned());
    delete(&world.server, &found.expect("there")).await;
    world
        .until("the job is gone", |objects| {
            find(objects, "HostImage", name).is_none()
        })
        .await;
}

fn cached<'a>(life: &'a Caching, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        edge_host(world, "box-1").await;
        edge_host(world, "box-2").await;
        job(world, "apps", &[OLD, NEW]).await;
        complete(world, "apps", 2).await;
        // A host that comes later gets them too.
        edge_host(world, "box-3").await;
        complete(world, "apps", 3).await;
        // An edit is honoured: what is off the list is let go of.
        let found = world
            .server
            .look(|objects| find(objects, "HostImage", "apps").cloned());
        let images = json!([{"reference": "registry.example.com/app", "digest": NEW}]);
        merge(
            &world.server,
            &found.expect("there"),
            json!({"spec": {"images": images}}),
        )
        .await;
        world
            .until("the image is let go of", |_| pins(life, OLD).0 == 0)
            .await;
        complete(world, "apps", 3).await;
        assert_eq!(pins(life, NEW), (3, 3));
        gone(world, "apps").await;
        assert_eq!(pins(life, NEW), (0, 0));
    }
    .boxed()
}

#[test]
fn e51_images_come_to_every_host_one_at_a_time_and_go_whatever_fails() {
    Journey::<Caching>::new("edge images: cached, edited, deleted", cached).assert_clean();
}

#[test]
fn e51_two_jobs_on_one_host_do_not_take_each_others_images() {
    fn two<'a>(life: &'a Caching, world: &'a World) -> BoxFuture<'a, ()> {
        async move {
            edge_host(world, "box-1").await;
            job(world, "apps", &[OLD, NEW]).await;
            job(world, "more", &[NEW]).await;
            complete(world, "apps", 1).await;
            complete(world, "more", 1).await;
            assert_eq!(pins(life, NEW), (1, 2));
            gone(world, "apps").await;
            tokio::time::sleep(Duration::from_mins(30)).await;
            assert_eq!((pins(life, OLD), pins(life, NEW)), ((0, 0), (1, 1)));
        }
        .boxed()
    }
    Journey::<Caching>::new("edge images: two jobs", two)
        .sweep(Extent::Baseline)
        .assert_clean();
}

/// A job that is paused begins nothing, and a host that is not selected any more keeps nothing.
#[test]
fn e51_a_pause_and_the_selection_are_honoured() {
    fn selected<'a>(life: &'a Caching, world: &'a World) -> BoxFuture<'a, ()> {
        async move {
            let found = |kind: &'static str, name: &'static str| {
                let found = world.server.look(|objects| find(objects, kind, name).cloned());
                found.expect("there")
            };
            edge_host(world, "box-1").await;
            edge_host(world, "box-2").await;
            let job = json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "HostImage", "metadata": {"name": "apps"},
                "spec": {"images": [{"reference": "registry.example.com/app", "digest": NEW}], "paused": true,
                    "parallelism": 2, "hostSelector": {"matchLabels": {"site": "north"}}}});
            create(&world.server, &job).await;
            world
                .until("it says that it is paused", |objects| {
                    find(objects, "HostImage", "apps")
                        .is_some_and(|job| condition(job, "Ready")["reason"] == "Paused")
                })
                .await;
            tokio::time::sleep(Duration::from_mins(30)).await;
            assert_eq!(pins(life, NEW), (0, 0));
            let resumed = json!({"spec": {"paused": false}});
            merge(&world.server, &found("HostImage", "apps"), resumed).await;
            complete(world, "apps", 2).await;
            let moved = json!({"metadata": {"labels": {"site": "south"}}});
            merge(&world.server, &found("EdgeHost", "box-2"), moved).await;
            world
                .until("the host lets go of the image", |_| pins(life, NEW) == (1, 1))
                .await;
            assert!(life.state()["box-2"].images.get(NEW).is_none_or(std::collections::BTreeSet::is_empty));
            complete(world, "apps", 1).await;
        }
        .boxed()
    }
    Journey::<Caching>::new("edge images: paused and selected", selected)
        .sweep(Extent::Baseline)
        .assert_clean();
}

#[test]
fn e51_what_a_host_cannot_use_is_named_and_the_others_go_on() {
    fn failing<'a>(life: &'a Caching, world: &'a World) -> BoxFuture<'a, ()> {
        async move {
            edge_host(world, "box-1").await;
            edge_host(world, "box-2").await;
            life.hosts.change("box-1", |host| {
                host.unusable.insert(OLD.to_owned());
            });
            job(world, "apps", &[OLD, NEW]).await;
            world
                .until("the failure is told", |objects| {
                    find(objects, "HostImage", "apps").is_some_and(|job| {
                        job["status"]["complete"] == 1 && condition(job, "Ready")["reason"] == "Failed"
                    })
                })
                .await;
            world.server.look(|objects| {
                let job = find(objects, "HostImage", "apps").expect("there");
                let failures = job["status"]["failures"].as_array().expect("failures");
                assert_eq!(failures.len(), 1);
                assert_eq!(
                    (&failures[0]["host"], &failures[0]["image"]),
                    (&json!("box-1"), &json!(OLD))
                );
                assert_eq!(failures[0]["message"], "the host says NotUsable");
            });
            assert_eq!(pins(life, NEW), (2, 2), "the other image came to it all the same");
        }
        .boxed()
    }
    Journey::<Caching>::new("edge images: failures", failing)
        .sweep(Extent::Baseline)
        .assert_clean();
}

/// A job that is deleted while a host is away does not wait for it; the host lets go of the image when it is there again.
#[test]
fn e51_a_host_that_was_away_lets_go_of_what_nobody_needs() {
    fn away<'a>(life: &'a Caching, world: &'a World) -> BoxFuture<'a, ()> {
        async move {
            edge_host(world, "box-1").await;
            job(world, "apps", &[NEW]).await;
            complete(world, "apps", 1).await;
            life.hosts.change("box-1", |host| host.is_silent = true);
            world
                .until("the host is away", |objects| {
                    find(objects, "EdgeHost", "box-1").is_some_and(|host| !holds(host, "Reachable"))
                })
                .await;
            gone(world, "apps").await;
            assert_eq!(pins(life, NEW), (1, 1));
            life.hosts.change("box-1", |host| host.is_silent = false);
            world
                .until("the image is let go of", |_| pins(life, NEW) == (0, 0))
                .await;
        }
        .boxed()
    }
    Journey::<Caching>::new("edge images: host away", away)
        .sweep(Extent::Baseline)
        .assert_clean();
}
