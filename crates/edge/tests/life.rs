//! The infrastructure provider in its world: core, hosts, and every fault at every call. A host is one machine's from its claim until it
//! was wiped, and its bootstrap data is run once.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::ByteString;
use regex::Regex;
use serde_json::{Value, json};
use slipway_apiserver_sim::{Apiserver, faults::Faults};
use slipway_edge::{
    api::{GROUP, INFRASTRUCTURE_GROUP, VERSION},
    host, machine, provider,
};
use slipway_kit::{
    core::FakeCore,
    journey::{Journey, Standing, Surroundings},
    objects::{self, condition, create, delete, find, holds, merge, of_kind},
    sweep::World,
};
use slipway_runtime::{Clock, controller::Registration};

use crate::simulated_hosts::{HostStates, SimulatedHosts};

pub struct Life {
    core: FakeCore,
    hosts: SimulatedHosts,
}

impl Surroundings for Life {
    type State = HostStates;

    fn new(server: &Apiserver, clock: Clock) -> Self {
        Self {
            core: FakeCore::new(server.clone(), clock),
            // Of two sizes: which one is chosen first is known.
            hosts: SimulatedHosts::in_world(server, clock, &[("box-1", 2), ("box-2", 4)]),
        }
    }

    fn resume(server: &Apiserver, clock: Clock, state: &HostStates) -> Self {
        Self {
            core: FakeCore::new(server.clone(), clock),
            hosts: SimulatedHosts::resumed(clock, state),
        }
    }

    fn state(&self) -> HostStates {
        self.hosts.state()
    }

    fn controllers(self: &Arc<Self>, faults: &Faults) -> Vec<Registration> {
        provider::infrastructure(Arc::new(self.hosts.through(faults))).controllers
    }

    fn play(self: &Arc<Self>) -> BoxFuture<'static, ()> {
        self.core.clone().run().boxed()
    }

    fn invariants(&self, objects: &[Value]) -> Result<(), String> {
        if let Some(violation) = self.hosts.violations.lock().first() {
            return Err(violation.clone());
        }
        let hosts = self.hosts.hosts.lock();
        let alone = hosts.values().filter(|host| host.holds_alone).count();
        if alone > 1 {
            return Err(format!("{alone} hosts hold the address without a lease"));
        }
        for (name, host) in hosts.iter() {
            if let Some((id, times)) = host.bootstraps.iter().find(|(_, times)| **times > 1) {
                return Err(format!("{name} ran the bootstrap data of {id} {times} times"));
            }
            let object = find(objects, "EdgeHost", name);
            let is_free = object.is_some_and(|object| object["spec"]["claim"].is_null());
            if let Some(occupant) = host.occupant.as_ref().filter(|_| is_free) {
                return Err(format!("{name} is free and has data of {occupant}"));
            }
        }
        for machine in of_kind(objects, "EdgeMachine") {
            let is_bound = machine["spec"]["providerID"].is_string();
            let finalizers = machine["metadata"]["finalizers"].as_array();
            let is_guarded = finalizers.is_some_and(|all| all.iter().any(|one| one == machine::FINALIZER));
            if is_bound && !is_guarded {
                return Err("a machine is on a host without its finalizer".to_owned());
            }
        }
        Ok(())
    }

    /// Which machine gets which host may differ between two good runs.
    fn end_state(&self, objects: Vec<Value>) -> Value {
        static NAMES: LazyLock<Regex> = LazyLock::new(|| {
            let uid = "[0-9a-f]{8}-[0-9a-f-]{27}";
            Regex::new(&format!(r"{uid}|box-\d|hall-[ab]|\bm-\d|198\.18\.0\.\d")).expect("a pattern")
        });
        let mut ends: Vec<String> = objects
            .into_iter()
            .filter(|object| object["kind"] != "Namespace" && object["kind"] != "CustomResourceDefinition")
            .map(|mut object| {
                if let Some(status) = object["status"].as_object_mut() {
                    status.remove("hardware");
                }
                NAMES.replace_all(&object.to_string(), "one").into_owned()
            })
            .collect();
        ends.sort();
        let hosts = self.hosts.hosts.lock();
        let occupied = hosts.values().filter(|host| host.occupant.is_some()).count();
        json!({"objects": ends, "occupied": occupied})
    }
}

fn edge_host(name: &str, domain: &str) -> Value {
    json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "EdgeHost", "metadata": {"name": name},
        "spec": {"failureDomain": domain}})
}

/// What a user writes for one Machine: with core's kinds, the bootstrap data is given by name.
async fn machine(world: &World, name: &str) {
    machine_with(world, name, "#cloud-config\nruncmd: [[install-k3s]]\n").await;
}

async fn machine_with(world: &World, name: &str, data: &str) {
    machine_labelled(world, name, data, &json!({})).await;
}

/// The same with labels of the Machine, by which core tells a server.
pub async fn machine_labelled(world: &World, name: &str, data: &str, labels: &Value) {
    let data = ByteString(data.as_bytes().to_vec());
    create(
        &world.server,
        &json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name},
        "data": {"value": data}}),
    )
    .await;
    create(
        &world.server,
        &json!({"apiVersion": format!("{INFRASTRUCTURE_GROUP}/{VERSION}"), "kind": "EdgeMachine",
        "metadata": {"name": name}, "spec": {}}),
    )
    .await;
    create(
        &world.server,
        &json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "metadata": {"name": name, "labels": labels},
        "spec": {"clusterName": "north", "version": "v1.34.2+k3s1", "bootstrap": {"dataSecretName": name},
            "infrastructureRef": {"apiGroup": INFRASTRUCTURE_GROUP, "kind": "EdgeMachine", "name": name}}}),
    )
    .await;
}

pub async fn hosts_and_cluster(world: &World) {
    hosts_and_cluster_at(
        world,
        json!({"controlPlaneEndpoint": {"host": "192.0.2.10", "port": 6443}}),
    )
    .await;
}

async fn hosts_and_cluster_at(world: &World, endpoint: Value) {
    for (name, domain) in [("box-1", "hall-a"), ("box-2", "hall-b")] {
        create(&world.server, &edge_host(name, domain)).await;
    }
    create(
        &world.server,
        &json!({"apiVersion": format!("{INFRASTRUCTURE_GROUP}/{VERSION}"), "kind": "EdgeCluster",
        "metadata": {"name": "north"}, "spec": endpoint}),
    )
    .await;
    create(&world.server, &json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": {"name": "north"},
        "spec": {"infrastructureRef": {"apiGroup": INFRASTRUCTURE_GROUP, "kind": "EdgeCluster", "name": "north"}}}))
    .await;
    world
        .until("hosts are ready", |objects| {
            of_kind(objects, "EdgeHost")
                .filter(|host| holds(host, "Ready"))
                .count()
                == 2
        })
        .await;
}

fn is_provisioned(objects: &[Value], name: &str) -> bool {
    find(objects, "Machine", name)
        .is_some_and(|machine| machine["status"]["initialization"]["infrastructureProvisioned"] == true)
}

fn creation<'a>(_: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        hosts_and_cluster(world).await;
        machine(world, "m-1").await;
        world
            .until("a machine", |objects| is_provisioned(objects, "m-1"))
            .await;
        machine(world, "m-2").await;
        world
            .until("two machines", |objects| is_provisioned(objects, "m-2"))
            .await;
        world.server.look(|objects| {
            let first = find(objects, "EdgeMachine", "m-1").expect("there");
            assert_eq!(first["status"]["failureDomain"], first_domain(first));
            let copied = &find(objects, "Machine", "m-1").expect("there")["spec"]["providerID"];
            assert_eq!(*copied, first["spec"]["providerID"]);
            let cluster = find(objects, "EdgeCluster", "north").expect("there");
            assert_eq!(
                cluster["status"]["failureDomains"].as_array().map(Vec::len),
                Some(2)
            );
            true
        });
    }
    .boxed()
}

fn first_domain(machine: &Value) -> &'static str {
    if machine["spec"]["hostName"] == "box-1" {
        "hall-a"
    } else {
        "hall-b"
    }
}

static TWO: Standing<Life> = Standing::after(creation);

/// A Machine goes; its host is wiped, and then another gets it.
fn replaced<'a>(_: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        let gone = world
            .server
            .look(|objects| find(objects, "Machine", "m-1").cloned());
        delete(&world.server, &gone.expect("there")).await;
        machine(world, "m-3").await;
        world
            .until("the third machine", |objects| is_provisioned(objects, "m-3"))
            .await;
        world
            .until("the first is gone", |objects| {
                find(objects, "EdgeMachine", "m-1").is_none()
            })
            .await;
    }
    .boxed()
}

/// Everything goes: machines, cluster, and then the hosts themselves.
fn deletion<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        // An EdgeHost that somebody has is not deleted.
        let host = world
            .server
            .look(|objects| find(objects, "EdgeHost", "box-1").cloned());
        let hosts = objects::api_of(&world.server, &host.expect("there"));
        let refusal = hosts.delete("box-1", &kube::api::DeleteParams::default()).await;
        let refusal = refusal.expect_err("it is claimed").to_string();
        assert!(refusal.contains("has the host"), "{refusal}");
        for name in ["m-1", "m-2"] {
            let gone = world
                .server
                .look(|objects| find(objects, "Machine", name).cloned());
            delete(&world.server, &gone.expect("there")).await;
        }
        world
            .until("machines are gone and hosts are free", |objects| {
                of_kind(objects, "EdgeMachine").next().is_none()
                    && of_kind(objects, "EdgeHost").all(|host| {
                        host["spec"]["claim"].is_null() && condition(host, "Claimed")["reason"] == "Free"
                    })
            })
            .await;
        assert!(
            life.hosts
                .hosts
                .lock()
                .values()
                .all(|host| host.occupant.is_none())
        );
        let cluster = world
            .server
            .look(|objects| find(objects, "Cluster", "north").cloned());
        delete(&world.server, &cluster.expect("there")).await;
        for name in ["box-1", "box-2"] {
            let host = world
                .server
                .look(|objects| find(objects, "EdgeHost", name).cloned());
            delete(&world.server, &host.expect("there")).await;
        }
        world
            .until("everything is gone", |objects| {
                ["EdgeHost", "EdgeCluster", "EdgeMachine"]
                    .iter()
                    .all(|kind| of_kind(objects, kind).next().is_none())
            })
            .await;
    }
    .boxed()
}

/// A Machine that is deleted while its host still runs the bootstrap data: that is cut off, and the host is clean.
fn given_up<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        hosts_and_cluster(world).await;
        machine_with(world, "m-1", "#cloud-config\nruncmd: [[sleep]]\n").await;
        world
            .until("the host runs it", |objects| {
                find(objects, "EdgeMachine", "m-1")
                    .is_some_and(|machine| condition(machine, "Ready")["reason"] == "Bootstrapping")
            })
            .await;
        let gone = world
            .server
            .look(|objects| find(objects, "Machine", "m-1").cloned());
        delete(&world.server, &gone.expect("there")).await;
        world
            .until("it is gone and its host free", |objects| {
                find(objects, "EdgeMachine", "m-1").is_none()
                    && of_kind(objects, "EdgeHost").all(|host| host["spec"]["claim"].is_null())
            })
            .await;
        assert!(
            life.hosts
                .hosts
                .lock()
                .values()
                .all(|host| host.occupant.is_none())
        );
    }
    .boxed()
}

/// Hosts that a person works on or that do not answer are not chosen, and the machine says why it waits.
fn waiting<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        hosts_and_cluster(world).await;
        life.hosts
            .change("box-1", |host| host.maintenance = Some("a disk".to_owned()));
        life.hosts.change("box-2", |host| host.is_silent = true);
        world
            .until("no host is ready", |objects| {
                of_kind(objects, "EdgeHost").all(|host| !holds(host, "Ready"))
            })
            .await;
        machine(world, "m-1").await;
        world
            .until("the machine says why", |objects| {
                find(objects, "EdgeMachine", "m-1").is_some_and(|machine| {
                    let ready = condition(machine, "Ready");
                    let message = ready["message"].as_str().unwrap_or_default();
                    ready["reason"] == "NoHost"
                        && message.contains("it is in maintenance: a disk (ada)")
                        && message.contains("its agent does not answer")
                })
            })
            .await;
        life.hosts.change("box-2", |host| host.is_silent = false);
        world
            .until("a machine", |objects| is_provisioned(objects, "m-1"))
            .await;
    }
    .boxed()
}

#[test]
fn a_machine_that_is_deleted_while_its_data_runs_leaves_a_clean_host() {
    Journey::<Life>::new("edge: deleted while it starts", given_up).assert_clean();
}

#[test]
fn a_host_that_is_away_or_in_maintenance_is_not_chosen() {
    Journey::<Life>::new("edge: no host can be had", waiting)
        .sweep(slipway_kit::sweep::Extent::Baseline)
        .assert_clean();
}

#[test]
fn two_machines_get_a_host_each_whatever_fails() {
    Journey::<Life>::new("edge: created", creation).assert_clean();
}

#[test]
fn a_machine_is_replaced_on_a_wiped_host_whatever_fails() {
    Journey::from(&TWO, "edge: replaced", replaced).assert_clean();
}

#[test]
fn everything_is_deleted_whatever_fails() {
    Journey::from(&TWO, "edge: deleted", deletion).assert_clean();
}

#[test]
fn controllers_that_start_over_two_machines_change_nothing() {
    Journey::start_over(&TWO, "edge: the controllers start over two machines").assert_clean();
}

/// The sweep is not blind: a claim that somebody takes away by hand frees a host that is not wiped.
#[test]
fn a_claim_that_is_torn_off_is_caught() {
    fn torn<'a>(_: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
        async move {
            let host = world
                .server
                .look(|objects| find(objects, "EdgeHost", "box-1").cloned());
            merge(
                &world.server,
                &host.expect("there"),
                json!({"spec": {"claim": null}}),
            )
            .await;
            tokio::time::sleep(Duration::from_mins(1)).await;
        }
        .boxed()
    }
    Journey::from(&TWO, "edge: torn", torn).assert_caught("is free and has data of");
}

/// `clusterctl move` makes every object again: the machine has another uid, its claim is found by its provider id, and nothing is wiped or run again.
#[test]
fn a_machine_that_was_moved_keeps_its_host() {
    fn moved<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
        async move {
            let before = life.state();
            let machine = world
                .server
                .look(|objects| find(objects, "EdgeMachine", "m-1").cloned());
            let mut machine = machine.expect("there");
            // As clusterctl does it: the provider is told not to clean up.
            let told =
                json!({"metadata": {"annotations": {"clusterctl.cluster.x-k8s.io/delete-for-move": ""}}});
            merge(&world.server, &machine, told).await;
            delete(&world.server, &machine).await;
            tokio::time::sleep(Duration::from_mins(10)).await;
            world.server.look(|objects| {
                let host = find(
                    objects,
                    "EdgeHost",
                    machine["spec"]["hostName"].as_str().unwrap_or_default(),
                );
                assert_eq!(
                    condition(host.expect("there"), "Claimed")["reason"],
                    host::status::CLAIMANT_MISSING
                );
                true
            });
            let metadata = machine["metadata"].as_object_mut().expect("metadata");
            for field in [
                "uid",
                "resourceVersion",
                "creationTimestamp",
                "generation",
                "managedFields",
            ] {
                metadata.remove(field);
            }
            machine.as_object_mut().expect("an object").remove("status");
            create(&world.server, &machine).await;
            world
                .until("the machine is ready again", |objects| {
                    find(objects, "EdgeMachine", "m-1").is_some_and(|machine| holds(machine, "Ready"))
                })
                .await;
            tokio::time::sleep(Duration::from_hours(2)).await;
            let after = life.state();
            for (name, host) in before {
                assert_eq!(after[&name].occupant, host.occupant);
                assert_eq!(after[&name].bootstraps, host.bootstraps);
            }
        }
        .boxed()
    }
    Journey::from(&TWO, "edge: moved", moved)
        .sweep(slipway_kit::sweep::Extent::Baseline)
        .assert_clean();
}

/// Two servers that begin at once with an address that they hold in turn: its endpoint is written, one of them is the first and both take part
/// before they are bootstrapped. The first one goes before the cluster has a control plane, and another one takes its place.
#[test]
fn one_server_at_most_holds_the_address_without_a_lease_whatever_fails() {
    fn addressed<'a>(life: &'a Life, world: &'a World) -> BoxFuture<'a, ()> {
        async move {
            let address = json!({"virtualAddress": {"address": "192.0.2.10/24", "interface": "eth0"}});
            hosts_and_cluster_at(world, address).await;
            let server = json!({"cluster.x-k8s.io/control-plane": ""});
            for name in ["m-1", "m-2"] {
                machine_labelled(world, name, "#cloud-config\nruncmd: [[install-k3s]]\n", &server).await;
            }
            for name in ["m-1", "m-2"] {
                world
                    .until("a server", |objects| is_provisioned(objects, name))
                    .await;
            }
            let first = world.server.look(|objects| {
                let cluster = find(objects, "EdgeCluster", "north").expect("there");
                assert_eq!(
                    cluster["spec"]["controlPlaneEndpoint"],
                    json!({"host": "192.0.2.10", "port": 6443})
                );
                let first = cluster["metadata"]["annotations"][machine::FIRST_SERVER_ANNOTATION].clone();
                let mut hosts = of_kind(objects, "EdgeHost");
                let host = hosts
                    .find(|host| host["spec"]["claim"]["uid"] == first)
                    .expect("the first");
                host["spec"]["claim"]["name"].as_str().expect("a name").to_owned()
            });
            for (name, host) in life.hosts.hosts.lock().iter() {
                assert_eq!(host.ran(), ["hold_address", "run_bootstrap"], "{name}");
            }
            let gone = world
                .server
                .look(|objects| find(objects, "Machine", &first).cloned());
            delete(&world.server, &gone.expect("there")).await;
            machine_labelled(world, "m-3", "#cloud-config\nruncmd: [[install-k3s]]\n", &server).await;
            world
                .until("another server", |objects| is_provisioned(objects, "m-3"))
                .await;
            let alone: usize = life
                .hosts
                .hosts
                .lock()
                .values()
                .filter(|host| host.holds_alone)
                .count();
            assert_eq!(alone, 1);
        }
        .boxed()
    }
    Journey::<Life>::new("edge: a virtual address", addressed).assert_clean();
}
