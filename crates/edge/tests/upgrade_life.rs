//! NodeUpgrades in their world: core, hosts that boot and do not, nodes with pods, and faults at calls to every side. The node's cluster
//! and the management cluster are one apiserver here: what is said to either may fail.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::ByteString;
use serde_json::{Value, json};
use slipway_apiserver_sim::{Apiserver, faults::Faults};
use slipway_edge::{
    api::{GROUP, VERSION},
    hosts::Platform,
    provider,
};
use slipway_kit::{
    core::FakeCore,
    journey::{Journey, Standing, Surroundings},
    objects::{condition, create, delete, find, holds, merge, merge_status, of_kind},
    sweep::{Extent, World},
};
use slipway_runtime::{Clock, controller::Registration};

use crate::{
    life::{hosts_and_cluster, machine_labelled},
    simulated_hosts::{HostStates, NEW, NEW_VERSION, OLD, SimulatedHosts, version_of},
};

const SKIP_REMEDIATION: &str = "cluster.x-k8s.io/skip-remediation";
/// Another image, of the same version.
const NEWER: &str = "sha256:00000000000000000000000000000000000000000000000000000000000000cc";

pub struct Upgrading {
    pub server: Apiserver,
    core: FakeCore,
    pub hosts: SimulatedHosts,
    clock: Clock,
}

impl Upgrading {
    fn with(server: &Apiserver, clock: Clock, hosts: SimulatedHosts) -> Self {
        Self {
            server: server.clone(),
            core: FakeCore::new(server.clone(), clock),
            hosts,
            clock,
        }
    }

    /// Nodes follow their hosts: the kubelet comes with the slot, and who reboots is not ready.
    async fn kubelets(self: Arc<Self>) {
        loop {
            for (machine, host) in self.server.look(placed) {
                let Some(host) = self.hosts.look(&host) else {
                    continue;
                };
                let now = self.clock.now().as_millisecond();
                let is_new = host.runs() != OLD;
                let is_down = host.is_away(now) || (is_new && host.never_ready);
                let (ready, version) = (if is_down { "False" } else { "True" }, version_of(host.runs()));
                let node = self
                    .server
                    .look(|objects| find(objects, "Node", &machine).cloned());
                match node {
                    None => {
                        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": machine}});
                        create(&self.server, &node).await;
                    }
                    Some(node)
                        if node["status"]["nodeInfo"]["kubeletVersion"] != version
                            || node["status"]["conditions"][0]["status"] != ready =>
                    {
                        let status = json!({"conditions": [{"type": "Ready", "status": ready}],
                            "nodeInfo": {"kubeletVersion": version}});
                        merge_status(&self.server, &node, status).await;
                    }
                    Some(_) => {}
                }
                let known = self
                    .server
                    .look(|objects| find(objects, "Machine", &machine).cloned());
                if let Some(known) = known
                    && known["status"]["nodeInfo"]["kubeletVersion"] != version_of(host.runs())
                {
                    let info = json!({"nodeRef": {"name": machine},
                        "nodeInfo": {"kubeletVersion": version_of(host.runs())}});
                    merge_status(&self.server, &known, info).await;
                }
            }
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    }
}

/// Machines whose hosts run their nodes, and the hosts.
fn placed(objects: &[Value]) -> Vec<(String, String)> {
    of_kind(objects, "Machine")
        .filter(|machine| machine["status"]["initialization"]["infrastructureProvisioned"] == true)
        .filter_map(|machine| {
            let name = machine["metadata"]["name"].as_str()?;
            let host = find(objects, "EdgeMachine", name)?["spec"]["hostName"].as_str()?;
            Some((name.to_owned(), host.to_owned()))
        })
        .collect()
}

impl Surroundings for Upgrading {
    type State = HostStates;

    fn new(server: &Apiserver, clock: Clock) -> Self {
        let hosts = SimulatedHosts::in_world(server, clock, &[("box-1", 2), ("box-2", 2)]);
        Self::with(server, clock, hosts)
    }

    fn resume(server: &Apiserver, clock: Clock, state: &HostStates) -> Self {
        Self::with(server, clock, SimulatedHosts::resumed(clock, state))
    }

    fn state(&self) -> HostStates {
        self.hosts.state()
    }

    fn controllers(self: &Arc<Self>, faults: &Faults) -> Vec<Registration> {
        let (server, there) = (self.server.clone(), faults.clone());
        let platform = Platform::new(Arc::new(self.hosts.through(faults)))
            .connecting_by(Arc::new(move |_, _| Ok(server.client_with(there.clone()))));
        provider::infrastructure_of(&platform).controllers
    }

    fn play(self: &Arc<Self>) -> BoxFuture<'static, ()> {
        let (core, kubelets) = (self.core.clone().run(), self.clone().kubelets());
        async move {
            tokio::join!(core, kubelets);
        }
        .boxed()
    }

    fn invariants(&self, objects: &[Value]) -> Result<(), String> {
        if let Some(violation) = self.hosts.violations.lock().first() {
            return Err(violation.clone());
        }
        let now = self.clock.now().as_millisecond();
        for upgrade in of_kind(objects, "NodeUpgrade") {
            let name = upgrade["spec"]["machineName"].as_str().unwrap_or_default();
            let id = upgrade["metadata"]["uid"].as_str().unwrap_or_default();
            let (machine, node) = (find(objects, "Machine", name), find(objects, "Node", name));
            let marks = |object: Option<&Value>| {
                let annotations = object.map(|object| object["metadata"]["annotations"].to_string());
                annotations.unwrap_or_default().contains(id)
            };
            let host = upgrade["spec"]["hostName"].as_str().unwrap_or_default();
            let hosts = self.hosts.hosts.lock();
            let host = hosts.get(host);
            if holds(upgrade, "Settled") {
                if marks(machine) || marks(node) {
                    return Err(format!(
                        "{name} is settled, and node or machine are not as they were"
                    ));
                }
                if host.is_some_and(|host| host.holds(id)) {
                    return Err(format!("{name} is settled, and its host keeps something for it"));
                }
            }
            // E-19: only who reboots is kept from health checks, and nobody reboots without that.
            let is_going = machine.is_none_or(|machine| !machine["metadata"]["deletionTimestamp"].is_null());
            let is_hidden = machine
                .is_some_and(|machine| !machine["metadata"]["annotations"][SKIP_REMEDIATION].is_null());
            // Past the deadline of a reboot they are let in again. Nothing here takes an hour but a clock that jumps.
            let made = upgrade["metadata"]["creationTimestamp"]
                .as_str()
                .unwrap_or_default();
            let made = made.parse().map_or(now, jiff::Timestamp::as_millisecond);
            let is_overdue = now - made >= 3_600_000;
            if host.is_some_and(|host| host.is_away(now)) && !is_hidden && !is_going && !is_overdue {
                return Err(format!(
                    "the host of {name} reboots, and health checks are not kept off"
                ));
            }
            let phase = upgrade["status"]["phase"].as_str().unwrap_or("Pending");
            if marks(machine) && ["Pending", "Caching", "Preparing"].contains(&phase) {
                return Err(format!("{name} is {phase}, and health checks are kept off"));
            }
        }
        Ok(())
    }

    fn end_state(&self, objects: Vec<Value>) -> Value {
        let conditions = |object: &Value| {
            let found = object["status"]["conditions"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            found
                .iter()
                .map(|found| json!([found["type"], found["status"], found["reason"]]))
                .collect::<Vec<_>>()
        };
        let mut ends: Vec<Value> = objects
            .iter()
            .filter_map(|object| {
                let (name, status) = (&object["metadata"]["name"], &object["status"]);
                match object["kind"].as_str()? {
                    "NodeUpgrade" => Some(json!([
                        name,
                        status["phase"],
                        status["message"],
                        conditions(object)
                    ])),
                    "Node" => Some(json!([
                        name,
                        object["spec"]["unschedulable"],
                        status["nodeInfo"]["kubeletVersion"]
                    ])),
                    "Machine" => Some(json!([name, object["metadata"]["annotations"][SKIP_REMEDIATION]])),
                    "Pod" => Some(json!([name, "pod"])),
                    _ => None,
                }
            })
            .collect();
        ends.sort_by_key(ToString::to_string);
        let hosts = self.hosts.hosts.lock();
        let hosts: Vec<Value> = hosts
            .values()
            .map(|host| json!([host.runs(), host.quarantined, host.occupant.is_some(), host.arms]))
            .collect();
        json!({"objects": ends, "hosts": hosts})
    }
}

pub async fn machine(world: &World, name: &str, is_server: bool) {
    let labels = if is_server {
        json!({"cluster.x-k8s.io/control-plane": ""})
    } else {
        json!({})
    };
    machine_labelled(world, name, "#cloud-config\nruncmd: [[install-k3s]]\n", &labels).await;
    world
        .until("a machine with its node", |objects| {
            find(objects, "Node", name)
                .is_some_and(|node| node["status"]["conditions"][0]["status"] == "True")
                && find(objects, "Machine", name)
                    .is_some_and(|machine| !machine["status"]["nodeInfo"].is_null())
        })
        .await;
}

pub async fn pod(world: &World, name: &str, node: &str) {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"nodeName": node, "containers": [{"name": "web", "image": "web"}]}});
    create(&world.server, &pod).await;
}

pub async fn cluster(world: &World) {
    hosts_and_cluster(world).await;
    let kubeconfig = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "https://192.0.2.10:6443"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "north-kubeconfig"},
        "data": {"value": ByteString(kubeconfig.to_string().into_bytes())}});
    create(&world.server, &secret).await;
}

fn one_worker<'a>(_: &'a Upgrading, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        cluster(world).await;
        machine(world, "m-1", false).await;
        pod(world, "web", "m-1").await;
    }
    .boxed()
}

static ONE: Standing<Upgrading> = Standing::after(one_worker);

pub fn host_of(world: &World, machine: &str) -> String {
    let machine = world
        .server
        .look(|objects| find(objects, "EdgeMachine", machine).cloned());
    machine.expect("there")["spec"]["hostName"]
        .as_str()
        .expect("a host")
        .to_owned()
}

/// A NodeUpgrade of a machine, with more in its spec.
pub async fn upgrade(world: &World, name: &str, machine: &str, digest: &str, more: &Value) {
    let found = world
        .server
        .look(|objects| find(objects, "Machine", machine).cloned());
    let uid = found.expect("there")["metadata"]["uid"].clone();
    let mut upgrade = json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "NodeUpgrade", "metadata": {"name": name},
        "spec": {"machineName": machine, "machineUID": uid, "hostName": host_of(world, machine), "version": NEW_VERSION,
            "image": {"reference": "registry.example.com/nodes/k3s", "digest": digest}}});
    for (field, value) in more.as_object().into_iter().flatten() {
        upgrade["spec"][field] = value.clone();
    }
    create(&world.server, &upgrade).await;
}

fn phase<'a>(objects: &'a [Value], name: &str) -> &'a str {
    let upgrade = find(objects, "NodeUpgrade", name);
    upgrade.map_or("", |upgrade| {
        upgrade["status"]["phase"].as_str().unwrap_or("Pending")
    })
}

pub fn message(objects: &[Value], name: &str) -> String {
    let upgrade = find(objects, "NodeUpgrade", name).expect("there");
    upgrade["status"]["message"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

async fn until_phase(world: &World, name: &str, expected: &str) {
    world
        .until(&format!("{name} is {expected}"), |objects| {
            phase(objects, name) == expected
        })
        .await;
}

/// It has ended so, and nothing of it is left.
pub async fn settled(world: &World, name: &str, expected: &str) {
    world
        .until(&format!("{name} has ended"), |objects| {
            find(objects, "NodeUpgrade", name).is_some_and(|upgrade| holds(upgrade, "Settled"))
        })
        .await;
    world.server.look(|objects| {
        assert_eq!(phase(objects, name), expected, "{}", message(objects, name));
    });
}

fn is_cordoned(objects: &[Value], node: &str) -> bool {
    find(objects, "Node", node).is_some_and(|node| node["spec"]["unschedulable"] == true)
}

fn to_done<'a>(life: &'a Upgrading, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        upgrade(world, "up", "m-1", NEW, &json!({})).await;
        settled(world, "up", "Done").await;
        world.server.look(|objects| {
            let upgrade = find(objects, "NodeUpgrade", "up").expect("there");
            assert!(holds(upgrade, "Ready") && !upgrade["status"]["endedAt"].is_null());
            assert!(!is_cordoned(objects, "m-1") && find(objects, "Pod", "web").is_none());
        });
        let host = life.hosts.look(&host_of(world, "m-1")).expect("there");
        assert_eq!((host.runs(), host.arms), (NEW, 1));
    }
    .boxed()
}

/// E-16, E-19: whatever fails, and wherever the manager is killed, the host boots its new slot once and nothing is left behind.
#[test]
fn e16_e19_a_node_is_upgraded_whatever_fails() {
    Journey::from(&ONE, "edge upgrade: done", to_done).assert_clean();
}

fn to_rolled_back<'a>(life: &'a Upgrading, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        let name = host_of(world, "m-1");
        life.hosts.change(&name, |host| host.does_not_boot = true);
        upgrade(world, "up", "m-1", NEW, &json!({})).await;
        settled(world, "up", "RolledBack").await;
        world.server.look(|objects| {
            assert_eq!(message(objects, "up"), "slot B did not come up in 3 tries");
            assert!(!is_cordoned(objects, "m-1"));
        });
        let host = life.hosts.look(&name).expect("there");
        assert_eq!((host.runs(), host.arms), (OLD, 1));
        // The image is not tried again on this host.
        upgrade(world, "again", "m-1", NEW, &json!({})).await;
        settled(world, "again", "Failed").await;
        world.server.look(|objects| {
            let again = find(objects, "NodeUpgrade", "again").expect("there");
            assert_eq!(condition(again, "Ready")["reason"], "Quarantined");
        });
    }
    .boxed()
}

#[test]
fn e28_a_host_that_does_not_boot_rolls_back_with_the_reason_whatever_fails() {
    Journey::from(&ONE, "edge upgrade: rolled back", to_rolled_back).assert_clean();
}

/// E-28: the slot is kept by the host, and the node is never ready.
#[test]
fn e28_a_node_that_is_never_ready_makes_its_host_go_back_whatever_fails() {
    fn never_ready<'a>(life: &'a Upgrading, world: &'a World) -> BoxFuture<'a, ()> {
        async move {
            let name = host_of(world, "m-1");
            life.hosts.change(&name, |host| host.never_ready = true);
            upgrade(world, "up", "m-1", NEW, &json!({})).await;
            until_phase(world, "up", "Verifying").await;
            settled(world, "up", "RolledBack").await;
            world.server.look(|objects| {
                assert_eq!(message(objects, "up"), "after 15 minutes the node is not ready");
            });
            let host = life.hosts.look(&name).expect("there");
            assert_eq!(host.runs(), OLD);
            assert_eq!(host.quarantined[NEW], "after 15 minutes the node is not ready");
        }
        .boxed()
    }
    Journey::from(&ONE, "edge upgrade: never ready", never_ready).assert_clean();
}

/// How many upgrades go by a policy, as it says itself.
fn go_by(objects: &[Value], policy: &str) -> u64 {
    let policy = find(objects, "UpgradePolicy", policy).expect("there");
    assert!(holds(policy, "Ready"), "{policy}");
    policy["status"]["nodeUpgrades"].as_u64().unwrap_or_default()
}

async fn held_policy(world: &World) {
    let policy = json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "UpgradePolicy", "metadata": {"name": "held"},
        "spec": {"maxConcurrent": 0}});
    create(&world.server, &policy).await;
}

/// E-55: a Deployment of the cluster is a gate. What is not well is named, nothing is drained, and it goes on by itself when it is well.
#[test]
fn e55_an_application_that_is_not_well_holds_up_the_next_machine() {
    fn gated<'a>(life: &'a Upgrading, world: &'a World) -> BoxFuture<'a, ()> {
        async move {
            let policy = json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "UpgradePolicy", "metadata": {"name": "gated"},
                "spec": {"healthGates": [
                    {"kind": "Deployment", "namespace": "default", "selector": {"matchLabels": {"tier": "front"}}},
                    {"kind": "Node"}]}});
            create(&world.server, &policy).await;
            upgrade(world, "up", "m-1", NEW, &json!({"policyName": "gated"})).await;
            let says = |text: &'static str| {
                world.until(text, move |objects| {
                    let upgrade = find(objects, "NodeUpgrade", "up").expect("there");
                    condition(upgrade, "Ready")["reason"] == "NotHealthy" && message(objects, "up") == text
                })
            };
            says("there is no Deployment in namespace default that a health gate selects").await;
            let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment",
                "metadata": {"name": "front", "labels": {"tier": "front"}},
                "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "front"}}, "template": {
                    "metadata": {"labels": {"app": "front"}}, "spec": {"containers": [{"name": "web", "image": "web"}]}}}});
            create(&world.server, &deployment).await;
            let front = |objects: &[Value]| find(objects, "Deployment", "front").cloned().expect("there");
            let available = |status: &str, pods: i32| {
                json!({"observedGeneration": 1, "availableReplicas": pods,
                    "conditions": [{"type": "Available", "status": status}]})
            };
            merge_status(&world.server, &world.server.look(front), available("False", 1)).await;
            says("Deployment default/front is not available: 1 of 2 Pods are").await;
            tokio::time::sleep(Duration::from_hours(1)).await;
            let host = life.hosts.look(&host_of(world, "m-1")).expect("there");
            assert!(host.arms == 0 && !world.server.look(|objects| is_cordoned(objects, "m-1")));
            merge_status(&world.server, &world.server.look(front), available("True", 2)).await;
            settled(world, "up", "Done").await;
        }
        .boxed()
    }
    Journey::from(&ONE, "edge upgrade: health gate", gated)
        .sweep(Extent::Baseline)
        .assert_clean();
}

#[test]
fn a_newer_upgrade_takes_the_place_of_one_that_waits() {
    fn superseded<'a>(life: &'a Upgrading, world: &'a World) -> BoxFuture<'a, ()> {
        async move {
            held_policy(world).await;
            upgrade(world, "first", "m-1", NEW, &json!({"policyName": "held"})).await;
            until_phase(world, "first", "Prepared").await;
            tokio::time::sleep(Duration::from_mins(10)).await;
            world.server.look(|objects| {
                assert_eq!(message(objects, "first"), "maxConcurrent is 0");
                assert!(!is_cordoned(objects, "m-1"), "it is prepared ahead of time");
                assert_eq!(go_by(objects, "held"), 1);
            });
            upgrade(world, "second", "m-1", NEWER, &json!({})).await;
            settled(world, "first", "Superseded").await;
            settled(world, "second", "Done").await;
            let host = life.hosts.look(&host_of(world, "m-1")).expect("there");
            assert_eq!((host.runs(), host.arms), (NEWER, 1));
            world
                .until("nobody goes by the policy", |objects| go_by(objects, "held") == 0)
                .await;
        }
        .boxed()
    }
    Journey::from(&ONE, "edge upgrade: superseded", superseded)
        .sweep(Extent::Baseline)
        .assert_clean();
}

/// E-20: the Machine is deleted while its slot waits to be booted; the host is clean, and free.
#[test]
fn e20_a_machine_that_is_deleted_in_mid_upgrade_leaves_a_clean_host_whatever_fails() {
    fn cancelled<'a>(life: &'a Upgrading, world: &'a World) -> BoxFuture<'a, ()> {
        async move {
            held_policy(world).await;
            let name = host_of(world, "m-1");
            upgrade(world, "up", "m-1", NEW, &json!({"policyName": "held"})).await;
            until_phase(world, "up", "Prepared").await;
            let gone = world
                .server
                .look(|objects| find(objects, "Machine", "m-1").cloned());
            delete(&world.server, &gone.expect("there")).await;
            settled(world, "up", "Cancelled").await;
            world
                .until("the host is free", |objects| {
                    of_kind(objects, "EdgeHost").all(|host| host["spec"]["claim"].is_null())
                })
                .await;
            let host = life.hosts.look(&name).expect("there");
            assert_eq!((host.runs(), host.arms, host.occupant.as_ref()), (OLD, 0, None));
            // And the object itself goes when it is deleted.
            let upgrade = world
                .server
                .look(|objects| find(objects, "NodeUpgrade", "up").cloned());
            delete(&world.server, &upgrade.expect("there")).await;
            world
                .until("the upgrade is gone", |objects| {
                    find(objects, "NodeUpgrade", "up").is_none()
                })
                .await;
        }
        .boxed()
    }
    Journey::from(&ONE, "edge upgrade: machine deleted", cancelled).assert_clean();
}

/// An upgrade that is deleted while it drains: the node takes pods again, and the host forgets the slot.
#[test]
fn an_upgrade_that_is_deleted_takes_back_what_it_did() {
    fn deleted<'a>(life: &'a Upgrading, world: &'a World) -> BoxFuture<'a, ()> {
        async move {
            budget(world, 0).await;
            upgrade(world, "up", "m-1", NEW, &json!({})).await;
            until_phase(world, "up", "Draining").await;
            let found = world
                .server
                .look(|objects| find(objects, "NodeUpgrade", "up").cloned());
            let found = found.expect("there");
            delete(&world.server, &found).await;
            world
                .until("the upgrade is gone", |objects| {
                    find(objects, "NodeUpgrade", "up").is_none()
                })
                .await;
            world.server.look(|objects| assert!(!is_cordoned(objects, "m-1")));
            let host = life.hosts.look(&host_of(world, "m-1")).expect("there");
            let id = found["metadata"]["uid"].as_str().expect("a uid");
            assert!(!host.holds(id) && host.arms == 0, "{host:?}");
        }
        .boxed()
    }
    Journey::from(&ONE, "edge upgrade: deleted", deleted)
        .sweep(Extent::Baseline)
        .assert_clean();
}

#[test]
fn a_host_that_is_away_is_waited_for_and_its_node_is_not_kept_from_its_work() {
    fn away<'a>(life: &'a Upgrading, world: &'a World) -> BoxFuture<'a, ()> {
        async move {
            let name = host_of(world, "m-1");
            budget(world, 0).await;
            upgrade(world, "up", "m-1", NEW, &json!({})).await;
            until_phase(world, "up", "Draining").await;
            life.hosts.change(&name, |host| host.is_silent = true);
            world
                .until("the upgrade says so", |objects| {
                    let upgrade = find(objects, "NodeUpgrade", "up").expect("there");
                    condition(upgrade, "Ready")["reason"] == "HostUnreachable" && !is_cordoned(objects, "m-1")
                })
                .await;
            budget(world, 1).await;
            life.hosts.change(&name, |host| host.is_silent = false);
            settled(world, "up", "Done").await;
        }
        .boxed()
    }
    Journey::from(&ONE, "edge upgrade: host away", away)
        .sweep(Extent::Baseline)
        .assert_clean();
}

/// The budget of the pod on the node.
async fn budget(world: &World, allowed: i32) {
    let found = world
        .server
        .look(|objects| find(objects, "PodDisruptionBudget", "web").cloned());
    let status =
        json!({"disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1});
    if let Some(found) = found {
        merge_status(&world.server, &found, status).await;
        return;
    }
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}, "status": status});
    create(&world.server, &budget).await;
    let made = world
        .server
        .look(|objects| find(objects, "PodDisruptionBudget", "web").cloned());
    merge_status(&world.server, &made.expect("there"), status).await;
}

/// E-56: the reason is shown, the drain is given up at its deadline, and the node takes pods again until it is tried once more.
#[test]
fn e56_a_drain_that_a_budget_holds_up_is_given_up_and_tried_again() {
    fn blocked<'a>(_: &'a Upgrading, world: &'a World) -> BoxFuture<'a, ()> {
        async move {
            budget(world, 0).await;
            upgrade(world, "up", "m-1", NEW, &json!({})).await;
            world
                .until("the budget is named", |objects| {
                    phase(objects, "up") == "Draining"
                        && message(objects, "up")
                            .contains("PodDisruptionBudget web holds back Pod default/web")
                })
                .await;
            world.server.look(|objects| assert!(is_cordoned(objects, "m-1")));
            world
                .until("the drain is given up", |objects| {
                    let upgrade = find(objects, "NodeUpgrade", "up").expect("there");
                    condition(upgrade, "Ready")["reason"] == "DrainTimedOut" && !is_cordoned(objects, "m-1")
                })
                .await;
            world
                .server
                .look(|objects| assert!(find(objects, "Pod", "web").is_some()));
            budget(world, 1).await;
            settled(world, "up", "Done").await;
        }
        .boxed()
    }
    Journey::from(&ONE, "edge upgrade: drain held up", blocked)
        .sweep(Extent::Baseline)
        .assert_clean();
}

/// A node that a person has cordoned stays so.
#[test]
fn what_somebody_else_cordoned_or_hid_stays_so() {
    fn theirs<'a>(_: &'a Upgrading, world: &'a World) -> BoxFuture<'a, ()> {
        async move {
            let node = world.server.look(|objects| find(objects, "Node", "m-1").cloned());
            merge(
                &world.server,
                &node.expect("there"),
                json!({"spec": {"unschedulable": true}}),
            )
            .await;
            let machine = world
                .server
                .look(|objects| find(objects, "Machine", "m-1").cloned());
            let hidden = json!({"metadata": {"annotations": {(SKIP_REMEDIATION): "ada"}}});
            merge(&world.server, &machine.expect("there"), hidden).await;
            upgrade(world, "up", "m-1", NEW, &json!({})).await;
            settled(world, "up", "Done").await;
            world.server.look(|objects| {
                assert!(is_cordoned(objects, "m-1"));
                let machine = find(objects, "Machine", "m-1").expect("there");
                assert_eq!(machine["metadata"]["annotations"][SKIP_REMEDIATION], "ada");
            });
        }
        .boxed()
    }
    Journey::from(&ONE, "edge upgrade: cordoned by a person", theirs)
        .sweep(Extent::Baseline)
        .assert_clean();
}

/// E-55: one at a time, and the first that goes back stops the others.
#[test]
fn e55_one_at_a_time_and_a_rollback_stops_the_fleet() {
    fn fleet<'a>(life: &'a Upgrading, world: &'a World) -> BoxFuture<'a, ()> {
        async move {
            machine(world, "m-2", false).await;
            let first = host_of(world, "m-1");
            life.hosts.change(&first, |host| host.does_not_boot = true);
            for machine in ["m-2", "m-1"] {
                upgrade(world, &format!("up-{machine}"), machine, NEW, &json!({})).await;
            }
            world
                .until("the second waits for the first", |objects| {
                    phase(objects, "up-m-1") == "Rebooting" && phase(objects, "up-m-2") == "Prepared"
                })
                .await;
            settled(world, "up-m-1", "RolledBack").await;
            world
                .until("the fleet stops", |objects| {
                    let other = find(objects, "NodeUpgrade", "up-m-2").expect("there");
                    condition(other, "Ready")["reason"] == "Halted"
                })
                .await;
            tokio::time::sleep(Duration::from_hours(3)).await;
            world.server.look(|objects| {
                assert_eq!(phase(objects, "up-m-2"), "Prepared");
                assert!(!is_cordoned(objects, "m-2"));
            });
            // Who takes the failed one away goes on.
            let failed = world
                .server
                .look(|objects| find(objects, "NodeUpgrade", "up-m-1").cloned());
            delete(&world.server, &failed.expect("there")).await;
            settled(world, "up-m-2", "Done").await;
        }
        .boxed()
    }
    Journey::from(&ONE, "edge upgrade: fleet", fleet)
        .sweep(Extent::Baseline)
        .assert_clean();
}

/// The only server of an etcd is saved before it is drained.
#[test]
fn the_only_server_is_saved_first_whatever_fails() {
    fn only_server<'a>(life: &'a Upgrading, world: &'a World) -> BoxFuture<'a, ()> {
        async move {
            cluster(world).await;
            machine(world, "m-1", true).await;
            let node = world.server.look(|objects| find(objects, "Node", "m-1").cloned());
            let label = json!({"metadata": {"labels": {"node-role.kubernetes.io/etcd": "true"}}});
            merge(&world.server, &node.expect("there"), label).await;
            upgrade(world, "up", "m-1", NEW, &json!({"role": "ControlPlane"})).await;
            settled(world, "up", "Done").await;
            let host = life.hosts.look(&host_of(world, "m-1")).expect("there");
            let ran = host.ran();
            let place = |what: &str| ran.iter().position(|verb| verb == what);
            assert!(
                place("run_command").expect("a snapshot") < place("arm").expect("armed"),
                "{ran:?}"
            );
        }
        .boxed()
    }
    Journey::<Upgrading>::new("edge upgrade: the only server", only_server).assert_clean();
}

/// The first server applies the version, and the next one takes it from the cluster. Two servers of an etcd save nothing.
#[test]
fn kubeadm_applies_a_version_once_whatever_fails() {
    fn servers<'a>(life: &'a Upgrading, world: &'a World) -> BoxFuture<'a, ()> {
        async move {
            cluster(world).await;
            machine(world, "m-1", true).await;
            machine(world, "m-2", true).await;
            let kubeadm = json!({"role": "ControlPlane", "distribution": "Kubeadm"});
            upgrade(world, "up-m-1", "m-1", NEW, &kubeadm).await;
            settled(world, "up-m-1", "Done").await;
            // As kubeadm leaves it.
            let configuration = format!("kind: ClusterConfiguration\nkubernetesVersion: {NEW_VERSION}\n");
            let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": "kubeadm-config", "namespace": "kube-system"},
                "data": {"ClusterConfiguration": configuration}});
            create(&world.server, &map).await;
            upgrade(world, "up-m-2", "m-2", NEW, &kubeadm).await;
            settled(world, "up-m-2", "Done").await;
            let ran = ["m-1", "m-2"].map(|machine| life.hosts.look(&host_of(world, machine)).expect("there"));
            assert_eq!(ran[0].applied(), [NEW_VERSION]);
            assert_eq!(ran[1].applied(), [""]);
            assert!(
                ran.iter()
                    .all(|host| !host.ran().contains(&"run_command".to_owned()))
            );
        }
        .boxed()
    }
    Journey::<Upgrading>::new("edge upgrade: kubeadm", servers).assert_clean();
}

/// The sweep is not blind: a node that a person cordons again under the upgrade's mark is seen.
#[test]
fn an_upgrade_that_leaves_its_mark_is_caught() {
    fn left<'a>(_: &'a Upgrading, world: &'a World) -> BoxFuture<'a, ()> {
        async move {
            upgrade(world, "up", "m-1", NEW, &json!({})).await;
            settled(world, "up", "Done").await;
            let found = world
                .server
                .look(|objects| find(objects, "NodeUpgrade", "up").cloned());
            let id = found.expect("there")["metadata"]["uid"].clone();
            let node = world.server.look(|objects| find(objects, "Node", "m-1").cloned());
            let mark = json!({"metadata": {"annotations": {"edge.slipway.dev/cordoned": id}}});
            merge(&world.server, &node.expect("there"), mark).await;
        }
        .boxed()
    }
    Journey::from(&ONE, "edge upgrade: a mark that stays", left).assert_caught("are not as they were");
}
