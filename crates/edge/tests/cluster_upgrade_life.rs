//! ClusterUpgrade in its world: a control plane and MachineDeployments that roll out by themselves, and every fault at every call. Workers
//! are never ahead of the control plane, and nobody goes before the canary.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, api::PostParams};
use serde_json::{Value, json};
use slipway_apiserver_sim::{Apiserver, faults::Faults};
use slipway_edge::{
    api::{GROUP, INFRASTRUCTURE_GROUP, VERSION},
    cluster_upgrade, provider, upgrade_policy,
    version::Version,
};
use slipway_kit::{
    core::kinds,
    journey::{Journey, Surroundings},
    objects::{create, delete, find, holds, merge, merge_status, name, of_kind},
    sweep::{Extent, World},
};
use slipway_runtime::{Clock, controller::Registration};

const CORE: &str = "cluster.x-k8s.io/v1beta2";
const CONTROL_PLANES: &str = "controlplane.cluster.x-k8s.io";
/// How often machines and their owners do something.
const PERIOD: Duration = Duration::from_secs(5);
/// Of an image that does not come up.
const BAD: char = 'f';

pub struct Owners {
    server: Apiserver,
}

fn control_planes() -> CustomResourceDefinition {
    kinds::foreign(CONTROL_PLANES, "v1beta2", "KThreesControlPlane")
}

fn digest(letter: char) -> String {
    format!("sha256:{}", letter.to_string().repeat(64))
}

fn image(letter: char) -> Value {
    json!({"reference": "registry.example.com/nodes/k3s", "digest": digest(letter)})
}

fn version(text: &Value) -> Version {
    text.as_str().unwrap_or_default().parse().expect("a version")
}

/// The machines of an owner.
fn machines<'a>(objects: &'a [Value], owner: &'a str) -> impl Iterator<Item = &'a Value> {
    of_kind(objects, "Machine").filter(move |machine| machine["metadata"]["annotations"]["owner"] == owner)
}

/// `None`: there is none, or one has not told its version yet.
fn oldest(objects: &[Value], owner: &str) -> Option<Version> {
    let versions: Option<Vec<Version>> = machines(objects, owner)
        .map(|machine| {
            machine["status"]["nodeInfo"]["kubeletVersion"]
                .as_str()?
                .parse()
                .ok()
        })
        .collect();
    versions?.into_iter().min_by(Version::compare)
}

/// Version and template that an owner asks for.
fn asked(owner: &Value) -> (Value, Value) {
    if owner["kind"] == "MachineDeployment" {
        let spec = &owner["spec"]["template"]["spec"];
        (spec["version"].clone(), spec["infrastructureRef"]["name"].clone())
    } else {
        let reference = &owner["spec"]["machineTemplate"]["spec"]["infrastructureRef"];
        (owner["spec"]["version"].clone(), reference["name"].clone())
    }
}

impl Owners {
    /// Each owner brings one machine further, and counts.
    async fn roll_out(&self) {
        let objects = self.server.look(<[Value]>::to_vec);
        let owners = of_kind(&objects, "MachineDeployment").chain(of_kind(&objects, "KThreesControlPlane"));
        for owner in owners {
            let (version, template) = asked(owner);
            let all: Vec<&Value> = machines(&objects, name(owner)).collect();
            let is_at = |machine: &&&Value| {
                machine["spec"]["version"] == version
                    && machine["metadata"]["annotations"]["template"] == template
            };
            let up_to_date = all.iter().filter(is_at).count();
            let mut status = json!({"observedGeneration": owner["metadata"]["generation"], "replicas": all.len(),
                "upToDateReplicas": up_to_date, "availableReplicas": all.len()});
            if owner["status"] != status {
                // As Cluster API does it: it has observed a spec before it counts by it.
                let known = &owner["status"];
                if known["observedGeneration"] != status["observedGeneration"]
                    && known["replicas"].is_number()
                {
                    status["upToDateReplicas"] = known["upToDateReplicas"].clone();
                }
                merge_status(&self.server, owner, status).await;
                continue;
            }
            let template = find(
                &objects,
                "EdgeMachineTemplate",
                template.as_str().unwrap_or_default(),
            );
            let (Some(machine), Some(template)) = (all.iter().find(|machine| !is_at(machine)), template)
            else {
                continue;
            };
            let image = &template["spec"]["template"]["spec"]["image"];
            if image["digest"] == digest(BAD) {
                self.go_back(machine, image).await;
                continue;
            }
            let host = find(&objects, "EdgeMachine", name(machine)).expect("its host");
            merge(&self.server, host, json!({"spec": {"image": image}})).await;
            let update = json!({"metadata": {"annotations": {"template": name(template)}}, "spec": {"version": version}});
            merge(&self.server, machine, update).await;
            merge_status(
                &self.server,
                machine,
                json!({"nodeInfo": {"kubeletVersion": version}}),
            )
            .await;
        }
    }

    /// The upgrade of a machine's host, which ended where it began.
    async fn go_back(&self, machine: &Value, image: &Value) {
        let upgrade = format!("{}-up", name(machine));
        if machine["metadata"]["annotations"]["tried"] == image["digest"] {
            return;
        }
        merge(
            &self.server,
            machine,
            json!({"metadata": {"annotations": {"tried": image["digest"]}}}),
        )
        .await;
        let spec = json!({"machineName": name(machine), "machineUID": "uid", "hostName": "box", "image": image,
            "version": "v1.35.4+k3s1"});
        let made = json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "NodeUpgrade", "metadata": {"name": upgrade,
            "labels": {"cluster.x-k8s.io/cluster-name": "north"}}, "spec": spec});
        create(&self.server, &made).await;
        merge_status(
            &self.server,
            &made,
            json!({"phase": "RolledBack", "endedAt": "2026-01-01T00:00:00Z"}),
        )
        .await;
    }
}

impl Surroundings for Owners {
    type State = ();

    fn new(server: &Apiserver, clock: Clock) -> Self {
        let package = provider::provider().packages.swap_remove(0);
        server.install(&kinds::of_core(), &[], &[]);
        server.install(
            &[
                kinds::foreign("cluster.x-k8s.io", "v1beta2", "MachineDeployment"),
                control_planes(),
            ],
            &[],
            &[],
        );
        server.install(&package.crds, &package.conversion, &package.admission);
        Self::resume(server, clock, &())
    }

    fn resume(server: &Apiserver, _: Clock, (): &()) -> Self {
        Self {
            server: server.clone(),
        }
    }

    fn state(&self) {}

    fn controllers(self: &Arc<Self>, _: &Faults) -> Vec<Registration> {
        vec![cluster_upgrade::registration(), upgrade_policy::registration()]
    }

    fn play(self: &Arc<Self>) -> BoxFuture<'static, ()> {
        let owners = Arc::clone(self);
        async move {
            loop {
                owners.roll_out().await;
                tokio::time::sleep(PERIOD).await;
            }
        }
        .boxed()
    }

    fn invariants(&self, objects: &[Value]) -> Result<(), String> {
        let Some(servers) = oldest(objects, "north") else {
            return Ok(());
        };
        for deployment in of_kind(objects, "MachineDeployment") {
            let told = version(&asked(deployment).0);
            if told.compare(&servers).is_gt() {
                return Err(format!(
                    "{} is told {told} before the control plane runs it",
                    name(deployment)
                ));
            }
            let is_canary = name(deployment) == "canary";
            if let Some(canary) =
                oldest(objects, "canary").filter(|canary| !is_canary && told.compare(canary).is_gt())
            {
                return Err(format!(
                    "{} is told {told}, and the canary runs {canary}",
                    name(deployment)
                ));
            }
        }
        Ok(())
    }

    fn end_state(&self, objects: Vec<Value>) -> Value {
        let ends = objects
            .into_iter()
            .filter(|object| object["kind"] != "Namespace" && object["kind"] != "CustomResourceDefinition");
        let mut ends: Vec<Value> = ends
            .map(|mut object| {
                if let Some(status) = object["status"].as_object_mut() {
                    status.remove("observedGeneration");
                }
                object
            })
            .collect();
        ends.sort_by_key(|object| format!("{} {}", object["kind"], object["metadata"]["name"]));
        json!(ends)
    }
}

fn reference(kind: &str, name: &str) -> Value {
    let group = if kind == "KThreesControlPlane" {
        CONTROL_PLANES
    } else {
        INFRASTRUCTURE_GROUP
    };
    json!({"apiGroup": group, "kind": kind, "name": name})
}

/// A server, a canary and two workers at v1.34.2.
async fn cluster(world: &World) {
    const AT: &str = "v1.34.2+k3s1";
    let server = &world.server;
    // By its labels the version of a control plane is found.
    Api::<CustomResourceDefinition>::all(server.client())
        .create(&PostParams::default(), &control_planes())
        .await
        .expect("a definition");
    for template in ["servers", "workers"] {
        create(
            server,
            &json!({"apiVersion": format!("{INFRASTRUCTURE_GROUP}/{VERSION}"), "kind": "EdgeMachineTemplate",
            "metadata": {"name": template}, "spec": {"template": {"spec": {"image": image('a')}}}}),
        )
        .await;
    }
    create(server, &json!({"apiVersion": format!("{CONTROL_PLANES}/v1beta2"), "kind": "KThreesControlPlane", "metadata": {"name": "north"},
        "spec": {"replicas": 1, "version": AT, "machineTemplate": {"spec": {
            "infrastructureRef": reference("EdgeMachineTemplate", "servers")}}}}))
    .await;
    create(
        server,
        &json!({"apiVersion": CORE, "kind": "Cluster", "metadata": {"name": "north"},
        "spec": {"controlPlaneRef": reference("KThreesControlPlane", "north")}}),
    )
    .await;
    for (deployment, replicas) in [("canary", 1), ("rest", 2)] {
        create(server, &json!({"apiVersion": CORE, "kind": "MachineDeployment", "metadata": {"name": deployment},
            "spec": {"clusterName": "north", "replicas": replicas, "template": {"spec": {"clusterName": "north", "version": AT,
                "infrastructureRef": reference("EdgeMachineTemplate", "workers")}}}}))
        .await;
    }
    for (machine, owner, template) in [
        ("s-1", "north", "servers"),
        ("c-1", "canary", "workers"),
        ("w-1", "rest", "workers"),
        ("w-2", "rest", "workers"),
    ] {
        let mut labels =
            json!({"cluster.x-k8s.io/cluster-name": "north", "cluster.x-k8s.io/deployment-name": owner});
        if owner == "north" {
            labels = json!({"cluster.x-k8s.io/cluster-name": "north", "cluster.x-k8s.io/control-plane": ""});
        }
        let made = json!({"apiVersion": CORE, "kind": "Machine", "metadata": {"name": machine, "labels": labels,
            "annotations": {"owner": owner, "template": template}}, "spec": {"clusterName": "north", "version": AT,
            "infrastructureRef": reference("EdgeMachine", machine)}});
        create(
            server,
            &json!({"apiVersion": format!("{INFRASTRUCTURE_GROUP}/{VERSION}"), "kind": "EdgeMachine",
            "metadata": {"name": machine, "labels": labels}, "spec": {"image": image('a')}}),
        )
        .await;
        create(server, &made).await;
        merge_status(server, &made, json!({"nodeInfo": {"kubeletVersion": AT}})).await;
    }
}

async fn upgrade(world: &World, to: &str, images: &[(&str, char)]) {
    let images: Vec<Value> = images
        .iter()
        .map(|(version, letter)| {
            let mut image = image(*letter);
            image["version"] = json!(version);
            image
        })
        .collect();
    create(&world.server, &json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "ClusterUpgrade", "metadata": {"name": "up"},
        "spec": {"clusterName": "north", "version": to, "canary": "canary", "images": images}}))
    .await;
}

async fn until_phase(world: &World, phase: &str) {
    world
        .until(phase, |objects| {
            find(objects, "ClusterUpgrade", "up").is_some_and(|upgrade| upgrade["status"]["phase"] == phase)
        })
        .await;
}

fn over_two_versions<'a>(_: &'a Owners, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        cluster(world).await;
        upgrade(
            world,
            "v1.36.1+k3s1",
            &[("v1.35.4+k3s1", 'b'), ("v1.36.1+k3s1", 'c')],
        )
        .await;
        until_phase(world, "Done").await;
        world.server.look(|objects| {
            let run: BTreeSet<String> = of_kind(objects, "Machine")
                .map(|machine| machine["status"]["nodeInfo"]["kubeletVersion"].to_string())
                .collect();
            assert_eq!(run, BTreeSet::from([r#""v1.36.1+k3s1""#.to_owned()]));
            let status = &find(objects, "ClusterUpgrade", "up").expect("there")["status"];
            assert_eq!((&status["machines"], &status["upToDate"]), (&json!(4), &json!(4)));
        });
    }
    .boxed()
}

#[test]
fn e55_e58_a_cluster_goes_over_two_versions_with_the_canary_first() {
    Journey::new("edge: a cluster goes over two versions", over_two_versions).assert_clean();
}

/// The first machine that goes back stops it; another image goes on.
fn halts_and_goes_on<'a>(_: &'a Owners, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        cluster(world).await;
        upgrade(world, "v1.34.3+k3s1", &[("v1.34.3+k3s1", BAD)]).await;
        until_phase(world, "Halted").await;
        let found = world
            .server
            .look(|objects| find(objects, "ClusterUpgrade", "up").cloned())
            .expect("there");
        let message = found["status"]["message"].as_str().unwrap_or_default();
        assert!(message.contains("s-1"), "{message}");
        tokio::time::sleep(Duration::from_hours(1)).await;
        world.server.look(|objects| {
            let told = of_kind(objects, "MachineDeployment")
                .filter(|one| asked(one).0 == "v1.34.3+k3s1")
                .count();
            assert_eq!(told, 0, "no worker is told");
        });
        let mut good = image('b');
        good["version"] = json!("v1.34.3+k3s1");
        merge(&world.server, &found, json!({"spec": {"images": [good]}})).await;
        until_phase(world, "Done").await;
    }
    .boxed()
}

#[test]
fn e55_a_rollback_halts_the_cluster_and_another_image_goes_on() {
    Journey::new("edge: a rollback halts the cluster", halts_and_goes_on)
        .sweep(Extent::Baseline)
        .assert_clean();
}

/// A person who has seen the rollback takes its upgrade away: the machine stays behind, and nobody is held up by it any more. A policy
/// that is named and is not there holds everybody up.
#[test]
fn e55_an_upgrade_that_is_taken_away_stops_nobody() {
    fn resumed<'a>(_: &'a Owners, world: &'a World) -> BoxFuture<'a, ()> {
        async move {
            cluster(world).await;
            upgrade(world, "v1.34.3+k3s1", &[("v1.34.3+k3s1", BAD)]).await;
            until_phase(world, "Halted").await;
            let find_object = find;
            let find = |kind: &'static str, name: &'static str| {
                world.server.look(|objects| find_object(objects, kind, name).cloned()).expect("there")
            };
            assert!(holds(&find("ClusterUpgrade", "up"), "Halted"));
            delete(&world.server, &find("NodeUpgrade", "s-1-up")).await;
            until_phase(world, "ControlPlane").await;
            assert!(!holds(&find("ClusterUpgrade", "up"), "Halted"));
            let named = json!({"spec": {"policyName": "slow"}});
            merge(&world.server, &find("ClusterUpgrade", "up"), named).await;
            until_phase(world, "Blocked").await;
            create(
                &world.server,
                &json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "UpgradePolicy", "metadata": {"name": "slow"}, "spec": {}}),
            )
            .await;
            until_phase(world, "ControlPlane").await;
            world
                .until("the policy says who goes by it", |objects| {
                    let policy = find_object(objects, "UpgradePolicy", "slow");
                    policy.is_some_and(|policy| {
                        holds(policy, "Ready") && policy["status"]["clusterUpgrades"] == json!(["up"])
                    })
                })
                .await;
            // Without it nobody knows when hosts may be disturbed.
            delete(&world.server, &find("UpgradePolicy", "slow")).await;
            until_phase(world, "Blocked").await;
        }
        .boxed()
    }
    Journey::new("edge: resumed", resumed)
        .sweep(Extent::Baseline)
        .assert_clean();
}

/// Of a topology nothing but `spec.topology` is written.
#[test]
fn e55_of_a_topology_only_the_topology_is_written() {
    fn topology<'a>(_: &'a Owners, world: &'a World) -> BoxFuture<'a, ()> {
        async move {
            cluster(world).await;
            let cluster = world.server.look(|objects| find(objects, "Cluster", "north").cloned()).expect("there");
            let topology = json!({"version": "v1.34.2+k3s1", "classRef": {"name": "edge"}, "variables": [{"name": "site", "value": "n"}]});
            merge(&world.server, &cluster, json!({"spec": {"topology": topology}})).await;
            upgrade(world, "v1.34.3+k3s1", &[("v1.34.3+k3s1", 'b')]).await;
            world
                .until("the topology is told", |objects| {
                    let topology = &find(objects, "Cluster", "north").expect("there")["spec"]["topology"];
                    topology["version"] == "v1.34.3+k3s1"
                        && topology["variables"] == json!([{"name": "site", "value": "n"}, {"name": "nodeImage", "value": image('b')}])
                })
                .await;
            tokio::time::sleep(Duration::from_hours(1)).await;
            world.server.look(|objects| {
                for owner in of_kind(objects, "MachineDeployment").chain(of_kind(objects, "KThreesControlPlane")) {
                    assert_eq!(asked(owner).0, "v1.34.2+k3s1", "{} is the topology controller's", name(owner));
                }
                assert_eq!(of_kind(objects, "EdgeMachineTemplate").count(), 2);
            });
        }
        .boxed()
    }
    Journey::new("edge: a topology", topology)
        .sweep(Extent::Baseline)
        .assert_clean();
}

/// The sweep is not blind: somebody who tells the workers first is caught.
#[test]
fn workers_before_the_control_plane_are_caught() {
    fn hasty<'a>(_: &'a Owners, world: &'a World) -> BoxFuture<'a, ()> {
        async move {
            cluster(world).await;
            let rest = world
                .server
                .look(|objects| find(objects, "MachineDeployment", "rest").cloned())
                .expect("there");
            merge(
                &world.server,
                &rest,
                json!({"spec": {"template": {"spec": {"version": "v1.35.0+k3s1"}}}}),
            )
            .await;
            tokio::time::sleep(Duration::from_mins(1)).await;
        }
        .boxed()
    }
    Journey::new("edge: hasty", hasty).assert_caught("before the control plane runs it");
}
