//! Hosts that are virtual machines of MOC: the client against a cloud agent of our own over mutual TLS, with real agents as guests, and the
//! things that go wrong with one. `host_suite` holds them to what every host does; no real MOC has been spoken to.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use slipway_agent_api::{
    Class, Problem,
    client::has_ended,
    proto::{self, Operation, OperationState, StartRequest, UpgradeState, start_request::Verb},
};
use slipway_edge::{
    api::Image,
    hosts::{
        HostAddress, Hosts,
        moc::{
            MocHosts, MocPlace,
            clouds::Clouds,
            plan::{CloudStep, Facts, next},
            record::{self, Held, Record, StoredOperation, Switch, Work},
        },
    },
    orders,
};
use slipway_moc::{
    Cloud,
    access::Credentials,
    session::Session,
    wire::{PowerOperation, PowerState},
};
use slipway_moc_sim::{AgentGuests, Moc, Pace, Server};
use slipway_runtime::Clock;
use tempfile::TempDir;

pub const OLD: &str = "sha256:00000000000000000000000000000000000000000000000000000000000000aa";
pub const NEW: &str = "sha256:00000000000000000000000000000000000000000000000000000000000000bb";
const BAD: &str = "sha256:00000000000000000000000000000000000000000000000000000000000000cc";
pub const URL: &str = "https://images.example.com/{digest}.vhdx?signature=canary";

fn url(digest: &str) -> String {
    URL.replace("{digest}", digest.strip_prefix("sha256:").expect("a digest"))
}

/// Sessions with the credentials that the test has, as a Secret would have them.
struct TestClouds {
    login: Mutex<String>,
    session: Mutex<Option<Arc<Session>>>,
}

#[async_trait]
impl Clouds for TestClouds {
    async fn cloud(&self, place: &MocPlace, now: Timestamp) -> Result<Cloud, Problem> {
        let session = {
            let mut session = self.session.lock();
            session
                .get_or_insert_with(|| {
                    let data = [("login".to_owned(), self.login.lock().clone().into_bytes())].into();
                    let credentials = Credentials::of_secret(&data).expect("credentials");
                    Arc::new(Session::new(place.cloud.clone(), credentials))
                })
                .clone()
        };
        let opened = session.cloud(now).await;
        if opened.as_ref().is_err_and(|error| error.class == Class::Denied) {
            self.refused(place);
        }
        opened.map_err(|error| error.problem())
    }

    fn refused(&self, _: &MocPlace) {
        *self.session.lock() = None;
    }
}

/// A cloud with one machine, which is host box-1, and the port to it.
pub struct Site {
    pub server: Server,
    pub machine: Arc<slipway_hosts_sim::SimulatedMachine>,
    pub hosts: MocHosts,
    pub place: HostAddress,
    clouds: Arc<TestClouds>,
    clock: Clock,
    folder: TempDir,
}

impl Site {
    pub async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let guests = AgentGuests::new(folder.path(), None);
        let machine = guests.install("vm-1", "box-1").expect("a guest");
        guests.image(&record::image_name(OLD), Some("v1.34.2"), false);
        guests.image(&record::image_name(NEW), Some("v1.34.3"), false);
        guests.image(&record::image_name(BAD), None, true);
        let moc = Moc::new(guests.clone());
        moc.add("north", "site", "vm-1", &record::image_name(OLD)).await;
        for digest in [NEW, BAD] {
            moc.offer(&url(digest));
        }
        let server = Server::start(moc).await.expect("a server");
        let clouds = Arc::new(TestClouds {
            login: Mutex::new(server.login_file("slipway", "canary-1")),
            session: Mutex::default(),
        });
        let place = HostAddress {
            name: "box-1".to_owned(),
            address: None,
            moc: Some(MocPlace {
                namespace: "default".to_owned(),
                secret: "moc".to_owned(),
                cloud: server.endpoint.clone(),
                location: "north".to_owned(),
                group: "site".to_owned(),
                machine: "vm-1".to_owned(),
                container: None,
                image_url: Some(URL.to_owned()),
            }),
        };
        let clock = Clock::starting_at(Timestamp::now());
        Self {
            hosts: MocHosts::new(clouds.clone(), clock),
            server,
            machine,
            place,
            clouds,
            clock,
            folder,
        }
    }

    /// The next manager, which knows nothing but what MOC has.
    fn next_manager(&mut self) {
        self.hosts = MocHosts::new(self.clouds.clone(), self.clock);
    }

    async fn order(&self, id: &str, verb: Verb) -> Result<Operation, Problem> {
        self.hosts.start(&self.place, order(id, verb)).await
    }

    async fn ended(&self, id: &str) -> Operation {
        loop {
            if let Ok(found) = self.hosts.operation(&self.place, id).await {
                let found = found.expect("the host knows what it accepted");
                if has_ended(&found) {
                    return found;
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn succeeds(&self, id: &str, verb: Verb) -> Operation {
        self.order(id, verb).await.expect("accepted");
        let ended = self.ended(id).await;
        assert_eq!(
            ended.state(),
            OperationState::Succeeded,
            "{id}: {}",
            ended.message
        );
        ended
    }

    async fn inventory(&self) -> proto::Host {
        self.hosts.inventory(&self.place).await.expect("the host answers")
    }

    async fn prepared(&self, upgrade: &str, digest: &str) {
        self.succeeds(&format!("{upgrade}-ensure-1"), ensure(digest, upgrade))
            .await;
        self.succeeds(&format!("{upgrade}-prepare-1"), prepare(upgrade, digest))
            .await;
    }

    /// For the next manager it is so much later.
    fn minutes_go_by(&mut self, minutes: i64) {
        self.clock = Clock::starting_at(self.clock.now() + jiff::SignedDuration::from_mins(minutes));
        self.next_manager();
    }
}

fn order(id: &str, verb: Verb) -> StartRequest {
    StartRequest {
        operation_id: id.to_owned(),
        generation: 2,
        host: "box-1".to_owned(),
        verb: Some(verb),
    }
}

pub fn ensure(digest: &str, upgrade: &str) -> Verb {
    let image = Image {
        reference: "registry.example.com/nodes/k3s".to_owned(),
        digest: digest.to_owned(),
    };
    Verb::Ensure(orders::ensure(&image, upgrade, proto::Delivery::None))
}

fn prepare(upgrade: &str, digest: &str) -> Verb {
    Verb::Prepare(proto::Prepare {
        upgrade: upgrade.to_owned(),
        digest: digest.to_owned(),
        ..proto::Prepare::default()
    })
}

fn arm(upgrade: &str) -> Verb {
    Verb::Arm(proto::Arm {
        upgrade: upgrade.to_owned(),
        tries: 0,
    })
}

/// E-57: an image is imported with its progress shown, a disk is made from it, the machine is shut down, switched and started, and its data
/// disk and everything that is not known of it stay as they were.
#[tokio::test(flavor = "multi_thread")]
async fn e57_a_host_of_moc_is_upgraded_and_keeps_everything_else() {
    let site = Site::start().await;
    site.server.moc.set_pace(Pace {
        import: Duration::from_millis(400),
        ..Pace::default()
    });
    let before = site.server.moc.machine_bytes("site", "vm-1").expect("a machine");
    let started = site
        .order("up-1-ensure-1", ensure(NEW, "up-1"))
        .await
        .expect("accepted");
    assert_eq!(started.state(), OperationState::Running);
    assert!(
        started.message.starts_with("the gallery imports the image (") && started.message.ends_with("%)"),
        "{}",
        started.message
    );
    assert_eq!(
        site.ended("up-1-ensure-1").await.state(),
        OperationState::Succeeded
    );
    site.succeeds("up-1-prepare-1", prepare("up-1", NEW)).await;
    let seen = site.inventory().await;
    assert_eq!((seen.booted_slot.as_str(), site.machine.boots()), ("A", 2));
    assert_eq!(seen.slots[1].boot, "unbootable", "nothing has run from it");

    site.succeeds("up-1-arm-1", arm("up-1")).await;
    let seen = site.inventory().await;
    assert_eq!(
        (seen.booted_slot.as_str(), seen.slots[1].boot.as_str()),
        ("B", "good")
    );
    assert_eq!(seen.slots[1].digests, [NEW]);
    assert_eq!(site.machine.boots(), 3, "one start more");
    let (os_disk, data) = site.server.moc.disks_of("site", "vm-1");
    assert_eq!(os_disk, "vm-1-b-0000000000000000");
    assert_eq!(data, ["vm-1-data"]);
    let after = site.server.moc.machine_bytes("site", "vm-1").expect("a machine");
    for number in [5, 12, 777] {
        let others = |bytes: &[u8]| {
            let rest = slipway_moc::edit::without(bytes, number).expect("a machine");
            bytes.len() - rest.len()
        };
        assert!(
            others(&before) > 0 && others(&before) == others(&after),
            "field {number}"
        );
    }
    // What is in the tag is no secret.
    let text = String::from_utf8_lossy(&after).into_owned();
    assert!(
        text.contains("slipway.dev/host") && !text.contains("canary"),
        "{text}"
    );
}

/// E-57: a system that does not come up is left after ten minutes, with the reason, and is not tried again.
#[tokio::test(flavor = "multi_thread")]
async fn e57_a_disk_that_does_not_boot_is_left_for_the_one_of_before() {
    let mut site = Site::start().await;
    site.prepared("up-1", BAD).await;
    let armed = site.order("up-1-arm-1", arm("up-1")).await.expect("accepted");
    assert_eq!(armed.state(), OperationState::Running, "{}", armed.message);
    let away = site.hosts.inventory(&site.place).await.expect_err("away");
    assert_eq!(
        (away.class, away.reason.as_str()),
        (Class::Transient, "Unreachable")
    );
    // Another manager goes on with it.
    site.next_manager();
    assert!(site.hosts.inventory(&site.place).await.is_err());
    site.minutes_go_by(10);
    let _ = site.hosts.inventory(&site.place).await;
    site.minutes_go_by(3);
    site.ended("up-1-arm-1").await;
    let seen = site.inventory().await;
    assert_eq!(seen.booted_slot, "A");
    let upgrade = seen.upgrades.last().expect("an upgrade");
    assert_eq!(upgrade.state(), UpgradeState::RolledBack);
    assert_eq!(
        upgrade.reason,
        "the guest on slot B did not answer within 10 minutes"
    );
    assert_eq!(seen.quarantined[0].digests, [BAD]);
    site.order("up-2-prepare-1", prepare("up-2", BAD))
        .await
        .expect("taken");
    let refused = site.ended("up-2-prepare-1").await;
    let problem = Problem::from_proto(&refused.problem.expect("a problem"));
    assert_eq!(
        (problem.class, problem.reason.as_str()),
        (Class::Terminal, "ImageRefused")
    );
}

/// E-57: certificates run out and are had again, tokens run out and are replaced in the Secret, and connections break in the middle of a call.
#[tokio::test(flavor = "multi_thread")]
async fn e57_certificates_and_tokens_expire_and_connections_break() {
    let mut site = Site::start().await;
    site.server.set_lifetime(Duration::from_mins(1));
    site.inventory().await;
    assert_eq!(site.server.logins(), 1);
    site.inventory().await;
    assert_eq!(site.server.logins(), 1, "a connection is kept");
    // After two thirds of its life the certificate is had again.
    site.minutes_go_by(1);
    site.inventory().await;
    assert_eq!(site.server.logins(), 2);

    // A connection that breaks while an image is copied: the copy goes on in MOC, and is found by the next visit.
    site.server.set_lifetime(Duration::from_hours(24));
    site.server.cut_connections();
    site.prepared("up-1", NEW).await;
    site.server.moc.set_pace(Pace {
        shutdown: Duration::from_secs(3),
        ..Pace::default()
    });
    let armed = site.order("up-1-arm-1", arm("up-1")).await.expect("accepted");
    assert_eq!(armed.message, "the machine changes its power state");
    site.server.cut_connections();
    site.ended("up-1-arm-1").await;
    assert_eq!(site.inventory().await.booted_slot, "B");

    // The token is replaced at MOC; the certificate is good as long as it is, and then nobody is let in.
    *site.clouds.login.lock() = site
        .server
        .login_file("slipway", "canary-2")
        .replace("canary-2", "canary-1");
    site.clouds.refused(site.place.moc.as_ref().expect("a place"));
    let denied = site.hosts.inventory(&site.place).await.expect_err("denied");
    assert_eq!(
        (denied.class, denied.reason.as_str()),
        (Class::Denied, "MocExpired")
    );
    assert!(
        denied.message.contains("logging in to MOC as slipway") && !denied.message.contains("canary"),
        "{denied}"
    );
    *site.clouds.login.lock() = site.server.login_file("slipway", "canary-3");
    assert_eq!(site.inventory().await.booted_slot, "B");
}

/// An image that cannot be had fails with MOC's own words, is taken away and had again by the next try; one that nobody offers says what to do.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_cannot_be_imported_is_tried_again_by_the_next_order() {
    let mut site = Site::start().await;
    site.server.moc.withdraw(&url(NEW));
    site.order("up-1-ensure-1", ensure(NEW, "up-1"))
        .await
        .expect("taken");
    let failed = site.ended("up-1-ensure-1").await;
    assert_eq!(failed.state(), OperationState::Failed);
    assert!(
        failed.message.ends_with("the download ended with 404"),
        "{}",
        failed.message
    );
    let problem = Problem::from_proto(&failed.problem.expect("a problem"));
    assert_eq!(problem.class, Class::Transient);
    site.server.moc.offer(&url(NEW));
    site.succeeds("up-1-ensure-2", ensure(NEW, "up-1")).await;

    let moc = site.place.moc.as_mut().expect("a place");
    moc.image_url = None;
    site.order("up-2-ensure-1", ensure(OLD, "up-2"))
        .await
        .expect("taken");
    let failed = site.ended("up-2-ensure-1").await;
    let problem = Problem::from_proto(&failed.problem.expect("a problem"));
    assert_eq!(
        (problem.class, problem.reason.as_str()),
        (Class::Terminal, "NotInGallery")
    );
    assert!(
        problem.message.contains("spec.platform.moc.imageURL"),
        "{problem}"
    );
}

/// Two managers never write over each other: the one that read an older version is refused, and decides again.
#[tokio::test(flavor = "multi_thread")]
async fn who_has_read_an_older_version_writes_nothing() {
    let site = Site::start().await;
    let cloud = site
        .clouds
        .cloud(site.place.moc.as_ref().expect("a place"), Timestamp::now())
        .await
        .expect("a cloud");
    let read = cloud
        .machine("site", "vm-1")
        .await
        .expect("read")
        .expect("a machine");
    site.server.moc.touch("site", "vm-1");
    let change = slipway_moc::edit::MachineEdit::default();
    let bytes = slipway_moc::edit::changed(&read, &change).expect("a machine");
    let refused = cloud.write_machine(bytes).await.expect_err("refused");
    assert_eq!(refused.problem().class, Class::Conflict);
    assert!(refused.is(slipway_moc::Code::InvalidVersion), "{refused}");
    // And what it refuses besides.
    let read = cloud
        .machine("site", "vm-1")
        .await
        .expect("read")
        .expect("a machine");
    let switched = slipway_moc::edit::MachineEdit {
        os_disk: Some("vm-1-data".to_owned()),
        tag: None,
    };
    let bytes = slipway_moc::edit::changed(&read, &switched).expect("a machine");
    let refused = cloud.write_machine(bytes).await.expect_err("it runs");
    assert!(refused.is(slipway_moc::Code::InUse), "{refused}");
    assert_eq!(cloud.machine("site", "no-vm").await.expect("read"), None);
    let refused = cloud.machine("no-site", "vm-1").await.expect_err("no group");
    assert!(refused.is(slipway_moc::Code::InvalidGroup), "{refused}");
    // A machine of another host says so, and what to do.
    let elsewhere = HostAddress {
        name: "box-2".to_owned(),
        ..site.place.clone()
    };
    let said = site.hosts.inventory(&elsewhere).await.expect_err("another host");
    assert_eq!((said.class, said.reason.as_str()), (Class::Terminal, "OtherHost"));
    assert!(said.message.contains("--host box-2"), "{said}");
    assert!(site.folder.path().exists());
}

/// Who wrote down that the machine starts may have gone before it did: however late the next one comes, it is started and has its time.
/// What is off again after that goes back.
#[test]
fn a_machine_that_was_perhaps_never_started_is_started_once_more() {
    let switch = Switch {
        to: 1,
        upgrade: "up-1".to_owned(),
        start_at: Some(0),
        ..Switch::default()
    };
    let mut record = Record::beginning("vm-1-os", &record::image_name(OLD));
    record.disks[1] = Some(Held {
        name: "vm-1-b".to_owned(),
        ..Held::default()
    });
    let running = StoredOperation {
        work: Some(Work::Switch(switch)),
        ..StoredOperation::default()
    };
    record.operations.insert("up-1-arm-1".to_owned(), running);
    let facts = Facts {
        os_disk: "vm-1-b".to_owned(),
        power: PowerState::Off,
        ..Facts::default()
    };
    let hour = 3_600_000;
    let step = |record: &Record, now| {
        let mut steps = next(record, &facts, "vm-1", now);
        steps.pop().expect("a step").1
    };
    let CloudStep::Record(again) = step(&record, hour) else {
        panic!("it is noted first");
    };
    assert_eq!(step(&again, hour), CloudStep::Power(PowerOperation::Start));
    let CloudStep::Record(back) = step(&again, 2 * hour) else {
        panic!("it is noted first");
    };
    let Some(Work::Switch(switch)) = &back.operations["up-1-arm-1"].work else {
        panic!("it goes back");
    };
    assert!(switch.is_back && switch.to == 0, "{switch:?}");
}
