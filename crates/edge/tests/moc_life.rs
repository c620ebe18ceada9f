//! NodeUpgrades of hosts that are virtual machines of MOC, in their world: a cloud agent in memory, guests that boot what their disk was made
//! from, and faults at every call to MOC and to both clusters.

use std::sync::Arc;

use async_trait::async_trait;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use futures::{FutureExt, future::BoxFuture};
use jiff::Timestamp;
use prost::Message;
use serde_json::{Value, json};
use slipway_agent_api::{
    Problem,
    proto::{
        ListImagesResponse, ListOperationsResponse, LocalAnswer, local_answer::Answer, local_call::Call,
    },
};
use slipway_apiserver_sim::{
    Apiserver,
    faults::{Fate, Faults},
};
use slipway_edge::{
    hosts::{
        EveryHost, HostAddress, Hosts, Platform,
        moc::{
            MocHosts, MocPlace,
            clouds::Clouds,
            record::{self, Record, TAG},
        },
    },
    provider,
};
use slipway_kit::{
    journey::{Journey, Standing, Surroundings},
    objects::{find, holds, merge, of_kind},
    sweep::World,
};
use slipway_moc::{Cloud, Transport, wire::compute::VirtualMachine};
use slipway_moc_sim::{Guests, Moc, call_in};
use slipway_runtime::{Clock, controller::Registration};

use crate::{
    simulated_hosts::{HostStates, NEW, OLD, SimulatedHosts},
    upgrade_life::{Upgrading, cluster, host_of, machine, message, pod, settled, upgrade},
};

const URL: &str = "https://images.example.com/{digest}.vhdx";

/// Hosts in memory as guests: of them only what runs in the guest is asked.
struct MemoryGuests(SimulatedHosts);

#[async_trait]
impl Guests for MemoryGuests {
    async fn start(&self, machine: &str, image: &str) {
        let digest = record::digest_of(image).unwrap_or_else(|| OLD.to_owned());
        self.0.change(machine, |host| host.boots(&digest));
    }

    async fn stop(&self, machine: &str, _: bool) {
        self.0.change(machine, |host| host.is_off = true);
    }

    fn answers(&self, machine: &str) -> bool {
        self.0.look(machine).is_some_and(|host| !host.is_off)
    }

    async fn run(&self, machine: &str, script: &str) -> Option<(i32, String, String)> {
        if !self.answers(machine) {
            return None;
        }
        let place = HostAddress {
            name: machine.to_owned(),
            ..HostAddress::default()
        };
        let answered = match call_in(script)?.call? {
            Call::GetHost(_) => self.0.inventory(&place).await.map(Answer::Host),
            Call::ListImages(_) => self
                .0
                .images(&place)
                .await
                .map(|images| Answer::Images(ListImagesResponse { images, r#use: None })),
            Call::Start(order) => self.0.start(&place, order).await.map(Answer::Operation),
            Call::CancelOperation(request) => self
                .0
                .cancel(&place, &request.operation_id, request.generation)
                .await
                .map(Answer::Operation),
            Call::GetOperation(request) => {
                let found = self.0.operation(&place, &request.operation_id).await;
                found.and_then(|found| {
                    found.map(Answer::Operation).ok_or_else(|| {
                        Problem::new(slipway_agent_api::Class::Terminal, "UnknownOperation", "unknown")
                    })
                })
            }
            Call::ListOperations(_) => self
                .0
                .operations(&place)
                .await
                .map(|operations| Answer::Operations(ListOperationsResponse { operations })),
        };
        let answer = answered.unwrap_or_else(|problem| Answer::Problem(problem.to_proto()));
        let answer = LocalAnswer { answer: Some(answer) };
        Some((0, BASE64_STANDARD.encode(answer.encode_to_vec()), String::new()))
    }
}

/// The cloud through whatever goes wrong on the way to it.
struct FaultyClouds {
    moc: Moc,
    faults: Faults,
}

#[async_trait]
impl Clouds for FaultyClouds {
    async fn cloud(&self, _: &MocPlace, _: Timestamp) -> Result<Cloud, Problem> {
        let (there, faults) = (self.moc.transport(), self.faults.clone());
        let transport = Transport::new(move |request| {
            let (mut there, faults) = (there.clone(), faults.clone());
            async move {
                let what = format!("MOC {}", request.uri().path());
                match faults.external(&what, true).await {
                    Fate::Pass => tower::Service::call(&mut there, request).await,
                    Fate::Refuse(_) | Fate::Lose => Err("the connection broke".into()),
                    Fate::LoseAnswer => {
                        let _ = tower::Service::call(&mut there, request).await;
                        Err("the connection broke".into())
                    }
                    Fate::Hang => std::future::pending().await,
                    Fate::HangAnswer => {
                        let _ = tower::Service::call(&mut there, request).await;
                        std::future::pending().await
                    }
                }
            }
        });
        Ok(Cloud::new(transport, http::Uri::from_static("https://cloud")))
    }

    fn refused(&self, _: &MocPlace) {}
}

pub struct MocUpgrading {
    inner: Arc<Upgrading>,
    moc: Moc,
    clock: Clock,
}

fn guests(inner: &Upgrading) -> Arc<dyn Guests> {
    Arc::new(MemoryGuests(inner.hosts.clone()))
}

impl Surroundings for MocUpgrading {
    type State = (HostStates, Moc);

    fn new(server: &Apiserver, clock: Clock) -> Self {
        let inner = Arc::new(Upgrading::new(server, clock));
        let moc = Moc::new(guests(&inner));
        for name in ["box-1", "box-2"] {
            moc.place("north", "site", name, &record::image_name(OLD));
        }
        moc.offer(&URL.replace("{digest}", NEW.trim_start_matches("sha256:")));
        Self { inner, moc, clock }
    }

    fn resume(server: &Apiserver, clock: Clock, (hosts, moc): &Self::State) -> Self {
        let inner = Arc::new(Upgrading::resume(server, clock, hosts));
        let moc = moc.copied(guests(&inner));
        Self { inner, moc, clock }
    }

    fn state(&self) -> Self::State {
        (self.inner.state(), self.moc.copied(guests(&self.inner)))
    }

    fn controllers(self: &Arc<Self>, faults: &Faults) -> Vec<Registration> {
        let (server, there) = (self.inner.server.clone(), faults.clone());
        let clouds = FaultyClouds {
            moc: self.moc.clone(),
            faults: faults.clone(),
        };
        let every = EveryHost {
            native: Arc::new(self.inner.hosts.through(faults)),
            moc: Arc::new(MocHosts::new(Arc::new(clouds), self.clock)),
        };
        let platform = Platform::new(Arc::new(every))
            .connecting_by(Arc::new(move |_, _| Ok(server.client_with(there.clone()))));
        provider::infrastructure_of(&platform).controllers
    }

    fn play(self: &Arc<Self>) -> BoxFuture<'static, ()> {
        self.inner.play()
    }

    fn invariants(&self, objects: &[Value]) -> Result<(), String> {
        self.inner.invariants(objects)?;
        // What MOC keeps for an upgrade is gone when that is settled.
        for upgrade in of_kind(objects, "NodeUpgrade").filter(|upgrade| holds(upgrade, "Settled")) {
            let id = upgrade["metadata"]["uid"].as_str().unwrap_or_default();
            let record = self.record(upgrade["spec"]["hostName"].as_str().unwrap_or_default());
            let is_pinned = record.images.values().any(|owners| owners.contains(id));
            let holds_slot = record
                .upgrades
                .iter()
                .any(|upgrade| upgrade.id == id && upgrade.stage.holds_slot());
            if is_pinned || holds_slot {
                return Err(format!("{id} is settled, and MOC keeps something for it"));
            }
        }
        for name in ["box-1", "box-2"] {
            let (os_disk, data) = self.moc.disks_of("site", name);
            if data != [format!("{name}-data")] {
                return Err(format!("{name} has data disks {data:?}"));
            }
            if !self.moc.disks("site").contains(&os_disk) {
                return Err(format!("{name} boots from {os_disk}, which is not there"));
            }
        }
        Ok(())
    }

    fn end_state(&self, objects: Vec<Value>) -> Value {
        let disks: Vec<_> = ["box-1", "box-2"]
            .iter()
            .map(|name| {
                let record = self.record(name);
                json!([self.moc.disks_of("site", name).0, record.quarantined])
            })
            .collect();
        json!([self.inner.end_state(objects), disks])
    }
}

impl MocUpgrading {
    fn record(&self, name: &str) -> Record {
        let bytes = self.moc.machine_bytes("site", name).unwrap_or_default();
        let machine = VirtualMachine::decode(bytes.as_slice()).unwrap_or_default();
        let text = slipway_moc::edit::tag(&machine, TAG).unwrap_or("{}");
        serde_json::from_str(text).expect("a record")
    }
}

fn one_worker<'a>(_: &'a MocUpgrading, world: &'a World) -> BoxFuture<'a, ()> {
    async move {
        cluster(world).await;
        for name in ["box-1", "box-2"] {
            let host = world.server.look(|objects| find(objects, "EdgeHost", name).cloned());
            let moc = json!({"cloudAgent": "cloud", "location": "north", "group": "site", "virtualMachine": name,
                "imageURL": URL, "credentialsSecretName": "moc"});
            merge(&world.server, &host.expect("there"), json!({"spec": {"platform": {"moc": moc}}})).await;
        }
        machine(world, "m-1", false).await;
        pod(world, "web", "m-1").await;
    }
    .boxed()
}

static ONE: Standing<MocUpgrading> = Standing::after(one_worker);

/// E-16, E-57: whatever fails on the way to MOC, and wherever the manager is killed, the machine boots its new disk and nothing is left behind.
#[test]
fn e16_e57_a_machine_of_moc_is_upgraded_whatever_fails() {
    fn to_done<'a>(life: &'a MocUpgrading, world: &'a World) -> BoxFuture<'a, ()> {
        async move {
            upgrade(world, "up", "m-1", NEW, &json!({})).await;
            settled(world, "up", "Done").await;
            let name = host_of(world, "m-1");
            let host = life.inner.hosts.look(&name).expect("there");
            assert_eq!(host.runs(), NEW);
            let (os_disk, _) = life.moc.disks_of("site", &name);
            assert_eq!(os_disk, record::disk_name(&name, 1, NEW));
        }
        .boxed()
    }
    Journey::from(&ONE, "edge upgrade on MOC: done", to_done).assert_clean();
}

/// E-28, E-57: a disk that does not come up is left again, with the reason, and the image is not tried again.
#[test]
fn e28_e57_a_machine_of_moc_that_does_not_boot_goes_back_whatever_fails() {
    fn to_rolled_back<'a>(life: &'a MocUpgrading, world: &'a World) -> BoxFuture<'a, ()> {
        async move {
            let name = host_of(world, "m-1");
            life.inner.hosts.change(&name, |host| host.does_not_boot = true);
            upgrade(world, "up", "m-1", NEW, &json!({})).await;
            settled(world, "up", "RolledBack").await;
            world.server.look(|objects| {
                assert_eq!(
                    message(objects, "up"),
                    "the guest on slot B did not answer within 10 minutes"
                );
            });
            assert_eq!(life.inner.hosts.look(&name).expect("there").runs(), OLD);
            upgrade(world, "again", "m-1", NEW, &json!({})).await;
            settled(world, "again", "Failed").await;
        }
        .boxed()
    }
    Journey::from(&ONE, "edge upgrade on MOC: rolled back", to_rolled_back).assert_clean();
}
