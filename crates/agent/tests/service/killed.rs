//! kill -9 of the agent at every step of every verb. At each step the host's disk is copied as the kill would leave it; an
//! agent that starts over the copy comes to the same end.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use slipway_agent::{
    cache::{ServiceFailpoint, ServiceFailpoints},
    engine::{Failpoint, Failpoints},
};
use slipway_agent_api::{
    client::{HostClient, has_ended},
    proto::{self, OperationState, StartRequest, start_request::Verb},
};
use slipway_hosts_sim::{FLEET, Fleet, NodeImage, Options, SimulatedHost};
use tempfile::TempDir;

use super::{arm, fleet, give_up, import, order, pin, prepare, succeeded};
use crate::cache::{TestImage, layer};

/// Copies a host's disk at every step while it is on.
#[derive(Default)]
struct Copies {
    on: AtomicBool,
    host: Mutex<PathBuf>,
    to: Mutex<Option<TempDir>>,
    taken: Mutex<Vec<(String, PathBuf)>>,
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

impl Copies {
    fn take(&self, step: &str) {
        if !self.on.load(Ordering::SeqCst) {
            return;
        }
        let mut taken = self.taken.lock();
        let number = taken.len();
        let to = self
            .to
            .lock()
            .get_or_insert_with(|| TempDir::new().unwrap())
            .path()
            .join(number.to_string());
        copy(&self.host.lock(), &to);
        taken.push((step.to_owned(), to));
    }
}

impl ServiceFailpoints for Copies {
    fn reached(&self, step: ServiceFailpoint) {
        self.take(&format!("{step:?}"));
    }
}

impl Failpoints for Copies {
    fn reached(&self, point: Failpoint) {
        self.take(&format!("engine: {point:?}"));
    }
}

/// What a kill must not change.
#[derive(Debug, PartialEq, Eq)]
struct Facts {
    images: Vec<(String, Vec<String>, Vec<String>)>,
    slots: Vec<(String, String)>,
    booted: String,
    addresses: Vec<String>,
    files: Vec<String>,
}

fn files(folder: &Path, into: &mut Vec<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().unwrap().is_dir() {
            files(&entry.path(), into);
        } else {
            let name = entry.file_name().into_string().unwrap();
            let below = folder.file_name().unwrap().to_str().unwrap().to_owned();
            into.push(format!("{below}/{name}"));
        }
    }
    into.sort();
}

async fn facts(client: &HostClient, host: &SimulatedHost) -> Facts {
    let inventory = client.inventory().await.unwrap();
    let images = client.images().await.unwrap().images;
    let mut seen = Vec::new();
    for folder in ["exchange", "k3s-images", "root"] {
        files(&host.folder().join(folder), &mut seen);
    }
    Facts {
        images: images
            .into_iter()
            .map(|image| {
                let users = image.users.into_iter().map(|user| user.name).collect();
                (image.digest, image.names, users)
            })
            .collect(),
        slots: inventory
            .slots
            .into_iter()
            .map(|slot| (slot.boot, slot.version))
            .collect(),
        booted: inventory.booted_slot,
        addresses: inventory.held_addresses,
        files: seen,
    }
}

/// What has not come by then will not come.
const LONGEST: Duration = Duration::from_mins(5);

/// Waits until the host has come to rest in these facts; a reboot may be under way.
async fn rests_in(client: &HostClient, host: &SimulatedHost, expected: &Facts, what: &str) {
    let mut last = None;
    let began = Instant::now();
    while began.elapsed() < LONGEST {
        if client.inventory().await.is_ok() {
            let now = facts(client, host).await;
            if now == *expected {
                return;
            }
            last = Some(now);
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("{what}: {last:#?} and not {expected:#?}");
}

const ON_IMAGES: [&str; 6] = ["ensure", "evict", "export", "import", "pin", "unpin"];
const OF_UPGRADES: [&str; 5] = ["arm", "confirm", "give_up", "prepare", "rollback"];
const ON_THE_MACHINE: [&str; 7] = [
    "hold_address",
    "kubernetes_step",
    "reboot",
    "release_address",
    "run_bootstrap",
    "run_command",
    "wipe",
];

/// The protocol's list, so that no verb is left out: what is not in it changes nothing on a host.
#[test]
fn every_verb_is_among_those_at_whose_steps_the_agent_is_killed() {
    let text = include_str!("../../../agent-api/proto/agent.proto");
    let block = text.split("oneof verb {").nth(1).unwrap();
    let mut in_protocol: Vec<_> = block
        .split('}')
        .next()
        .unwrap()
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1))
        .collect();
    let mut killed = [&ON_IMAGES[..], &OF_UPGRADES, &ON_THE_MACHINE].concat();
    in_protocol.sort_unstable();
    killed.sort_unstable();
    assert_eq!(killed, in_protocol);
}

/// How often the agent was killed, in which verbs.
#[derive(Default)]
struct Tally {
    kills: usize,
    verbs: BTreeSet<&'static str>,
}

impl Tally {
    fn add(&mut self, (verb, kills): (&'static str, usize)) {
        self.kills += kills;
        self.verbs.insert(verb);
    }

    fn check(&self, verbs: &[&str], kills: usize) {
        let list: Vec<_> = self.verbs.iter().copied().collect();
        println!(
            "report: the agent was killed at {} steps of {}",
            self.kills,
            list.join(", ")
        );
        assert_eq!(list, verbs);
        assert!(self.kills > kills, "{}", self.kills);
    }
}

struct World {
    fleet: Arc<Fleet>,
    options: Options,
    copies: Arc<Copies>,
    host: Arc<SimulatedHost>,
    client: HostClient,
}

impl World {
    async fn new(name: &str) -> Self {
        let (fleet, options) = fleet().await;
        let copies = Arc::new(Copies::default());
        let mut watched = options.clone();
        watched.steps = copies.clone();
        watched.failpoints = copies.clone();
        let host = fleet.add(name, watched).await.unwrap();
        host.folder().clone_into(&mut copies.host.lock());
        let told = copies.clone();
        *host.machine.on_program.lock() = Some(Arc::new(move |what| told.take(what)));
        let client = fleet.client(&host);
        Self {
            fleet,
            options,
            copies,
            host,
            client,
        }
    }

    async fn do_first(&self, id: &str, verb: Verb) {
        succeeded(&self.client, id, verb).await;
    }

    /// Waits until a host runs that slot, decided about.
    async fn runs(&self, slot: &str) {
        let began = Instant::now();
        while began.elapsed() < LONGEST {
            if let Ok(host) = self.client.inventory().await
                && host.booted_slot == slot
                && host.slots.iter().all(|slot| slot.boot != "trial")
                && host.running_operations.is_empty()
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("slot {slot} does not run");
    }

    /// Orders the verb with copies at every step; then an agent starts over each copy.
    async fn killed_everywhere(&self, verb: Verb, rest: Option<&str>) -> (&'static str, usize) {
        let name = slipway_agent_api::order::nature(&verb).name;
        let request = order(&self.host.name, "the-order", 1, verb);
        self.copies.on.store(true, Ordering::SeqCst);
        self.client.start(request.clone()).await.unwrap();
        let done = super::ended(&self.client, "the-order").await.unwrap();
        assert_eq!(
            done.state(),
            OperationState::Succeeded,
            "{name}: {}",
            done.message
        );
        if let Some(slot) = rest {
            self.runs(slot).await;
        }
        self.copies.on.store(false, Ordering::SeqCst);
        let expected = facts(&self.client, &self.host).await;
        let boots = self.host.machine.boots();
        let taken = std::mem::take(&mut *self.copies.taken.lock());
        assert!(taken.len() >= 2, "{name} has {} steps", taken.len());
        for (step, folder) in &taken {
            let what = format!("{name} killed at {step} in {}", folder.display());
            delivered_whole(&folder.join("k3s-images"), &what);
            self.start_over(&request, folder, &expected, boots, &what).await;
        }
        (name, taken.len())
    }

    async fn start_over(
        &self,
        request: &StartRequest,
        folder: &Path,
        expected: &Facts,
        boots: u64,
        what: &str,
    ) {
        let host = SimulatedHost::found(
            folder.to_owned(),
            &self.host.name,
            FLEET,
            &self.fleet.manager,
            self.options.clone(),
        );
        host.start().await.unwrap();
        let client = self.fleet.client(&host);
        let id = &request.operation_id;
        let mut orders = 0;
        loop {
            match client.operation(id).await {
                Err(problem) if problem.reason == "UnknownOperation" => {
                    assert_eq!(orders, 0, "{what}: an order that was accepted is forgotten");
                }
                Err(_) => {
                    // It starts again.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                }
                Ok(operation) if !has_ended(&operation) => {
                    super::ended(&client, id).await.unwrap();
                    continue;
                }
                Ok(operation) if operation.state() == OperationState::Succeeded => break,
                Ok(operation) => {
                    assert_eq!(
                        operation.state(),
                        OperationState::Interrupted,
                        "{what}: {}",
                        operation.message
                    );
                    assert!(host.machine.ran().is_empty(), "{what}: it ran again by itself");
                }
            }
            match client.start(request.clone()).await {
                Ok(_) => orders += 1,
                // It starts again, and whether it has the order is seen then.
                Err(problem) if problem.reason == "Unreachable" => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(problem) => panic!("{what}: {problem}"),
            }
            assert!(orders < 4, "{what}: it never succeeds");
        }
        rests_in(&client, &host, expected, what).await;
        assert!(
            host.machine.boots() <= boots + 1,
            "{what}: it was started too often"
        );
        host.stop().await;
    }
}

fn container() -> TestImage {
    TestImage::of("app", &[layer(1, 40_000), layer(2, 3000)])
}

fn ensure(image: &TestImage, seed: &SimulatedHost) -> Verb {
    Verb::Ensure(proto::Ensure {
        image: Some(proto::ImageReference {
            // Nobody listens there: the host beside is enough.
            reference: "127.0.0.1:1/team/app:1".into(),
            digest: image.digest.to_string(),
            ..Default::default()
        }),
        pin_owner: "HostImage/app".into(),
        delivery: proto::Delivery::K3s.into(),
        peers: beside(seed),
        ..Default::default()
    })
}

fn beside(seed: &SimulatedHost) -> Vec<proto::PeerHost> {
    vec![proto::PeerHost {
        host: seed.name.clone(),
        address: seed.address().unwrap(),
    }]
}

/// Whenever k3s looks into its folder, what it would take is whole: the archive has its end.
fn delivered_whole(folder: &Path, what: &str) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().ends_with(".tar") {
            continue;
        }
        let mut archive = tar::Archive::new(fs::File::open(entry.path()).unwrap());
        let names: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                entry.and_then(|mut entry| {
                    std::io::copy(&mut entry, &mut std::io::sink())?;
                    Ok(entry.path()?.display().to_string())
                })
            })
            .collect::<Result<_, _>>()
            .unwrap_or_else(|error| panic!("{what}: half an image is in k3s' folder: {error}"));
        assert!(names.iter().any(|name| name == "index.json"), "{what}: {names:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_every_step_of_every_verb_on_images_it_comes_to_the_same_end() {
    let mut tally = Tally::default();
    let image = container();
    // A host beside it has the image, and nobody else.
    let seeded = async |name: &str| {
        let world = World::new(name).await;
        let seed = world.fleet.add("seed", world.options.clone()).await.unwrap();
        image.write_layout(&seed.exchange().join("app"));
        succeeded(&world.fleet.client(&seed), "import", import("app")).await;
        (world, seed)
    };
    let (world, seed) = seeded("box-ensure").await;
    tally.add(world.killed_everywhere(ensure(&image, &seed), None).await);

    let digest = image.digest.to_string();
    let owner = || "HostImage/app".to_owned();
    let verbs = [
        Verb::Pin(proto::Pin {
            digest: digest.clone(),
            owner: "somebody".into(),
            ttl_seconds: 0,
        }),
        Verb::Unpin(proto::Unpin {
            digest: digest.clone(),
            owner: owner(),
        }),
        Verb::Export(proto::Export {
            digests: vec![digest.clone()],
            name: "out.tar".into(),
        }),
    ];
    for (number, verb) in verbs.into_iter().enumerate() {
        let (world, seed) = seeded(&format!("box-{number}")).await;
        world.do_first("first", ensure(&image, &seed)).await;
        tally.add(world.killed_everywhere(verb, None).await);
    }
    let world = World::new("box-evict").await;
    image.write_layout(&world.host.exchange().join("app"));
    world.do_first("first", import("app")).await;
    let evict = Verb::Evict(proto::Evict { digest });
    tally.add(world.killed_everywhere(evict, None).await);
    let world = World::new("box-import").await;
    image.write_layout(&world.host.exchange().join("app"));
    tally.add(world.killed_everywhere(import("app"), None).await);
    tally.check(&ON_IMAGES, 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_every_step_of_an_upgrade_it_comes_to_the_same_end() {
    let image = NodeImage::build("2.0.0", 2).unwrap();
    let prepared = async |name: &str| {
        let world = World::new(name).await;
        image.write_layout(&world.host.exchange().join("two")).unwrap();
        world.do_first("import", import("two")).await;
        world.do_first("pin", pin(&image, "up-1")).await;
        world
    };
    let world = prepared("box-prepare").await;
    let mut tally = Tally::default();
    tally.add(world.killed_everywhere(prepare("up-1", &image), None).await);

    // The same from a host beside it, with nothing in the cache.
    let world = World::new("box-delta").await;
    let seed = world.fleet.add("seed", world.options.clone()).await.unwrap();
    image.write_layout(&seed.exchange().join("two")).unwrap();
    succeeded(&world.fleet.client(&seed), "import", import("two")).await;
    let elsewhere = Verb::Prepare(proto::Prepare {
        upgrade: "up-1".into(),
        digest: image.digest.to_string(),
        reference: "127.0.0.1:1/os:2".into(),
        credentials: None,
        peers: beside(&seed),
    });
    tally.add(world.killed_everywhere(elsewhere, None).await);

    let world = prepared("box-give-up").await;
    world.do_first("prepare", prepare("up-1", &image)).await;
    tally.add(world.killed_everywhere(give_up("up-1"), None).await);

    let world = prepared("box-arm").await;
    world.do_first("prepare", prepare("up-1", &image)).await;
    tally.add(world.killed_everywhere(arm("up-1"), Some("B")).await);

    let upgraded = async |name: &str| {
        let world = prepared(name).await;
        world.do_first("prepare", prepare("up-1", &image)).await;
        world.do_first("arm", arm("up-1")).await;
        world.runs("B").await;
        world
    };
    let confirm = Verb::Confirm(proto::Confirm {
        upgrade: "up-1".into(),
    });
    let world = upgraded("box-confirm").await;
    tally.add(world.killed_everywhere(confirm, None).await);
    let back = Verb::Rollback(proto::Rollback {
        reason: "the shop does not open".into(),
    });
    let world = upgraded("box-rollback").await;
    tally.add(world.killed_everywhere(back, Some("A")).await);
    tally.check(&OF_UPGRADES, 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_every_step_of_verbs_on_the_machine_it_comes_to_the_same_end() {
    let address = || ("192.0.2.10/24".to_owned(), "eth0".to_owned());
    let hold = || {
        let (address, interface) = address();
        Verb::HoldAddress(proto::HoldAddress {
            address,
            interface,
            lease: None,
        })
    };
    let release = {
        let (address, interface) = address();
        Verb::ReleaseAddress(proto::ReleaseAddress { address, interface })
    };
    let bootstrap = "#cloud-config\nbootcmd: [[early]]\nwrite_files: [{path: /etc/one, content: one}]\nruncmd: [[install]]\n";
    let restart = proto::kubernetes_step::Step::ServiceRestart(proto::ServiceRestart {
        service: "k3s".into(),
    });
    let verbs = [
        (super::command(&["echo", "one"]), None),
        (
            Verb::RunBootstrap(proto::RunBootstrap {
                data: bootstrap.into(),
                time_limit_seconds: 0,
                ..Default::default()
            }),
            None,
        ),
        (
            Verb::KubernetesStep(proto::KubernetesStep { step: Some(restart) }),
            None,
        ),
        (hold(), None),
        (release, None),
        (Verb::Reboot(proto::Reboot::default()), Some("A")),
    ];
    let mut tally = Tally::default();
    for (number, (verb, rest)) in verbs.into_iter().enumerate() {
        let world = World::new(&format!("box-{number}")).await;
        if matches!(verb, Verb::ReleaseAddress(_)) {
            world.do_first("hold", hold()).await;
        }
        tally.add(world.killed_everywhere(verb, rest).await);
    }
    let world = World::new("box-wipe").await;
    fs::create_dir_all(world.host.folder().join("root/var/lib/rancher/k3s")).unwrap();
    let wipe = Verb::Wipe(proto::Wipe {
        confirm_host: "box-wipe".into(),
    });
    tally.add(world.killed_everywhere(wipe, None).await);
    tally.check(&ON_THE_MACHINE, 20);
}
